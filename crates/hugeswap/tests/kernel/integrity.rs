//! Bad slots are found and taken out of use, and the contents that are still in memory are saved
//! from them.

use crate::pages::counter;
use crate::util::*;
use hugeswap::{Cause, Error, FaultMode, Pool, Region};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    #[disk]
    scrub_finds_what_is_lost,
    #[disk]
    scrub_saves_what_is_in_memory,
    scrub_saves_base_pages,
    scrub_of_scattered_pages,
    bad_slots_are_not_used_again,
    unwritable_slots_are_not_used_again,
    blocks_exchanged_are_noticed,
    what_failed_is_told_apart,
    encrypted_what_failed_is_told_apart => with_encryption(what_failed_is_told_apart),
    pieces_that_swap_lost_are_saved => with_pieces(scrub_saves_base_pages),
    encrypted_scrub_finds_what_is_lost => with_encryption(scrub_finds_what_is_lost),
    encrypted_scrub_saves_what_is_in_memory => with_encryption(scrub_saves_what_is_in_memory),
    encrypted_scrub_of_scattered_pages => with_encryption(scrub_of_scattered_pages),
    encrypted_blocks_exchanged_are_noticed => with_encryption(blocks_exchanged_are_noticed),
}

const PAGE: usize = 4096;

/// A page for direct I/O.
#[derive(PartialEq)]
#[repr(C, align(4096))]
pub struct Block([u8; PAGE]);

/// Access to the swap file behind the pool's back.
pub struct Swap(ManuallyDrop<File>);

impl Swap {
    pub fn of_the_pool() -> Swap {
        let fds = swap_fds();
        assert_eq!(fds.len(), 1);
        // SAFETY: the descriptor is open, and not closed by this.
        Swap(ManuallyDrop::new(unsafe { File::from_raw_fd(fds[0]) }))
    }

    fn read(&self, block: u64) -> Block {
        let mut b = Block([0; PAGE]);
        self.0.read_exact_at(&mut b.0, block * PAGE as u64).unwrap();
        b
    }

    fn write(&self, block: u64, b: &Block) {
        self.0.write_all_at(&b.0, block * PAGE as u64).unwrap();
    }

    pub fn flip(&self, block: u64) {
        let mut b = self.read(block);
        b.0[block as usize % PAGE] ^= 1;
        self.write(block, &b);
    }

    /// The blocks that are not all zeros. (The first cluster may have them from the measurement of
    /// the device.)
    pub fn used(&self) -> Vec<u64> {
        let blocks = self.0.metadata().unwrap().len() / PAGE as u64;
        let used = |b: &u64| self.read(*b).0.iter().any(|&b| b != 0);
        (0..blocks).filter(used).collect()
    }

    /// The first block of each cluster that is not all zeros.
    pub fn clusters(&self) -> Vec<u64> {
        let mut clusters: Vec<u64> = self.used().iter().map(|b| b / 512 * 512).collect();
        clusters.dedup();
        clusters
    }
}

/// A region of `len` bytes that is in swap, in whole units.
fn swapped(pool: &Pool, len: usize) -> Region {
    let r = pool.region(len).unwrap();
    fill(&r, 1);
    page_out(&r);
    r
}

fn scrub_finds_what_is_lost() {
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        let mut r = swapped(&pool, 8 * UNIT);
        let whole = pool.scrub();
        assert_eq!((whole.good, whole.bad, whole.lost), (8 * 512, 0, 0));
        // The same two pages of every cluster.
        let swap = Swap::of_the_pool();
        for c in swap.clusters() {
            swap.flip(c + 3);
            swap.flip(c + 400);
        }
        let found = pool.scrub();
        assert_eq!((found.good, found.bad), (8 * 510, 16));
        assert_eq!((found.recovered, found.lost), (0, 16));
        let s = pool.stats();
        assert_eq!(counter(&s, "hwpoison"), 16);
        assert_eq!(s.swap_bad_bytes, 16 * PAGE as u64);
        assert_eq!(pool.scrub().lost, 16);
        assert_eq!(counter(&pool.stats(), "hwpoison"), 16, "counted once");
        if mode == FaultMode::Message || in_pieces() {
            return;
        }
        // What is lost is given up; the rest is there.
        for page in (0..8).flat_map(|u| [u * 512 + 3, u * 512 + 400]) {
            r.discard(page * PAGE, PAGE).unwrap();
        }
        for (i, w) in words(&r).iter().enumerate() {
            let lost = matches!(i / 512 % 512, 3 | 400);
            let want = if lost { 0 } else { value(i, 1) };
            assert_eq!(w.load(Relaxed), want, "word {i}");
        }
        fill(&r, 2);
        page_out(&r);
        assert_eq!(pool.scrub().bad, 0);
        check(&r, 2);
        pool.audit().unwrap();
    });
}

/// Bytes that changed on the device and a device that does not read are reported as different
/// errors, both with their places.
fn what_failed_is_told_apart() {
    both_modes(|mode| {
        let pool = builder(32)
            .fault_mode(mode)
            .set("readahead.max=0")
            .build()
            .unwrap();
        let r = swapped(&pool, 4 * UNIT);
        let swap = Swap::of_the_pool();
        let clusters = swap.clusters();
        let lost = |page: usize| match r.read_at(page * PAGE, &mut [0; PAGE]) {
            Err(e @ Error::Lost { .. }) => {
                let text = e.to_string();
                let Error::Lost { loss, .. } = e else {
                    unreachable!()
                };
                (loss.expect("it is known why"), text)
            }
            done => panic!("page {page}: {done:?}"),
        };
        clusters.iter().for_each(|c| swap.flip(c + 5));
        let (loss, text) = lost(5);
        assert_eq!((loss.cause, loss.area), (Cause::Changed, 0));
        assert_eq!(loss.offset / PAGE as u64 % 512, 5);
        assert!(clusters.contains(&(loss.offset / PAGE as u64 - 5)));
        for word in ["checksum mismatch", &loss.offset.to_string(), "area 0"] {
            assert!(text.contains(word), "{text}");
        }
        let s = pool.stats();
        assert_eq!(
            counter(&s, "swap_corrupt") > 0,
            counter(&s, "swap_read_error") > 0
        );
        let corrupt = counter(&s, "swap_corrupt");
        assert!(corrupt > 0);
        // Another unit, of which nothing was read yet.
        pool.set("debug.swap_read_fail=1").unwrap();
        let (loss, text) = lost(3 * 512 + 9);
        assert_eq!((loss.cause, loss.area), (Cause::Unreadable(5), 0));
        assert!(
            text.contains("could not read") && text.contains("EIO"),
            "{text}"
        );
        assert_eq!(counter(&pool.stats(), "swap_corrupt"), corrupt);
    });
}

fn scrub_saves_what_is_in_memory() {
    both_modes(|mode| {
        let pool = builder(64)
            .fault_mode(mode)
            .set("thp.swapin=always")
            .build()
            .unwrap();
        let r = swapped(&pool, 3 * UNIT);
        check(&r, 1);
        let swap = Swap::of_the_pool();
        swap.used().into_iter().for_each(|b| swap.flip(b));
        let found = pool.scrub();
        assert_eq!(
            (found.bad, found.recovered, found.lost),
            (3 * 512, 3 * 512, 0)
        );
        page_out(&r);
        assert_eq!(pool.scrub().bad, 0);
        check(&r, 1);
        let s = pool.stats();
        assert_eq!(counter(&s, "hwpoison"), 0);
        assert_eq!(s.swap_bad_bytes, 3 * UNIT as u64);
        pool.audit().unwrap();
    });
}

/// Every other 64 KiB of a region in swap come in. Then, of each unit, 32 pages that are in memory
/// and one that is not are spoilt in swap.
pub fn spoil_half_of_it(r: &Region) {
    let here = |page: usize| (page / 16).is_multiple_of(2);
    for i in (0..r.len() / 4096)
        .filter(|&p| here(p))
        .map(|page| page * 512)
    {
        assert_eq!(words(r)[i].load(Relaxed), value(i, 1));
    }
    let swap = Swap::of_the_pool();
    for c in swap.clusters() {
        let half = (0..512).filter(|&p| here(p as usize) && p % 8 == 0);
        half.for_each(|p| swap.flip(c + p));
        swap.flip(c + 23);
    }
}

fn scrub_saves_base_pages() {
    need_pages();
    let pool = builder(64).set("thp.swapin=never").build().unwrap();
    let mut r = swapped(&pool, 4 * UNIT);
    spoil_half_of_it(&r);
    let found = pool.scrub();
    assert_eq!(
        (found.bad, found.recovered, found.lost),
        (4 * 33, 4 * 32, 4)
    );
    page_out(&r);
    all_but_one_page_is_there(&mut r, 23);
    pool.audit().unwrap();
}

fn scrub_of_scattered_pages() {
    need_pages();
    let pool = pool_of_pages();
    let r = pool.region(16 * UNIT).unwrap();
    let all = (0..16).flat_map(|u| [u * 512 + 5, u * 512 + 99]);
    let all: Vec<usize> = all.map(|page| page * 512).collect();
    let put = |r: &Region, g| {
        all.iter()
            .for_each(|&i| words(r)[i].store(value(i, g), Relaxed))
    };
    let holds = |r: &Region, g| {
        all.iter()
            .all(|&i| words(r)[i].load(Relaxed) == value(i, g))
    };
    put(&r, 1);
    page_out(&r);
    let swap = Swap::of_the_pool();
    let used = swap.used();
    used.iter().for_each(|&b| swap.flip(b));
    let found = pool.scrub();
    assert_eq!((found.good, found.bad, found.lost), (0, 32, 32));
    // Put right they can be read after all, but are not used again.
    used.iter().for_each(|&b| swap.flip(b));
    assert!(holds(&r, 1));
    assert_eq!(pool.stats().swap_bad_bytes, 32 * PAGE as u64);
    put(&r, 2);
    page_out(&r);
    assert_eq!(pool.scrub().bad, 0);
    assert!(holds(&r, 2));
    drop(r);
    pool.audit().unwrap();
    assert_eq!(pool.stats().swap_bad_bytes, 32 * PAGE as u64);
}

fn bad_slots_are_not_used_again() {
    let pool = builder(32).build().unwrap();
    let r = swapped(&pool, 8 * UNIT);
    let swap = Swap::of_the_pool();
    let bad = swap.clusters();
    bad.iter().for_each(|&c| swap.flip(c + 1));
    assert_eq!(pool.scrub().lost, 8);
    drop(r);
    let s = pool.stats();
    assert_eq!(s.swap_used_bytes, 0);
    assert_eq!(s.swap_bad_bytes, 8 * UNIT as u64);
    let held = || -> Vec<Block> { bad.iter().map(|&c| swap.read(c + 9)).collect() };
    let before = held();
    for g in 2..5 {
        let r = pool.region(96 * MIB).unwrap();
        fill(&r, g);
        check(&r, g);
    }
    // (The first cluster is none of them if it is only what the device was measured with.)
    let changed = before.iter().zip(held()).filter(|(a, b)| **a != *b).count();
    assert!(changed <= bad.len() - 8, "a bad slot was written to");
    pool.audit().unwrap();
}

fn unwritable_slots_are_not_used_again() {
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        let r = pool.region(64 * MIB).unwrap();
        std::thread::scope(|s| {
            pool.set("debug.swap_write_fail=1").unwrap();
            s.spawn(|| fill(&r, 1));
            while pool.stats().swap_bad_bytes == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            pool.set("debug.swap_write_fail=0").unwrap();
        });
        check(&r, 1);
        fill(&r, 2);
        check(&r, 2);
        let s = pool.stats();
        assert!(s.swap_bad_bytes > 0);
        assert_eq!(counter(&s, "hwpoison"), 0);
        drop(r);
        pool.audit().unwrap();
        assert_eq!(pool.stats().swap_used_bytes, 0);
    });
}

/// Blocks are exchanged: every page is one that the pool wrote, but at another place.
fn blocks_exchanged_are_noticed() {
    let pool = builder(32).build().unwrap();
    let r = swapped(&pool, 8 * UNIT);
    let swap = Swap::of_the_pool();
    for c in swap.clusters() {
        let (a, b) = (swap.read(c + 10), swap.read(c + 11));
        swap.write(c + 10, &b);
        swap.write(c + 11, &a);
    }
    assert_eq!(pool.scrub().lost, 16);
    for u in 0..8 {
        let i = u * (UNIT / 8) + 12 * 512;
        assert_eq!(words(&r)[i].load(Relaxed), value(i, 1));
    }
}

//! Writes to shared memory are reported, whichever process makes them, and nothing else is.

use crate::shared::{Board, shared};
use crate::util::*;
use hugeswap::{Advice, Categories, Epoch, Error, Granularity, Pool, SharedRegion};
use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

tests! {
    #[long]
    shared_tracking_is_exact => shared_tracking_is_exact(Granularity::Units),
    shared_tracking_is_exact_by_pages => shared_tracking_is_exact(Granularity::Pages),
    #[long]
    shared_tracking_survives_kills,
    shared_tracking_ends,
    shared_regions_have_snapshots,
}

const PAGE: usize = 4096;
/// Orders to a helper process, in the first word of its part of the board.
const READ: u64 = 1;
const WRITE: u64 = 2;
const OUT: u64 = 3;
const DISCARD: u64 = 4;
const END: u64 = 5;

/// A helper process that carries out orders. In its part of the board, word 0 is the number of the
/// order, word 1 the order, word 2 the page, and word 3 the last order that is done.
fn helper(r: &mut SharedRegion, board: &Board, part: usize) {
    for order in 1.. {
        board.await_(part, order);
        let page = board.of(part + 2).load(SeqCst) as usize;
        match board.of(part + 1).load(SeqCst) {
            READ => drop(words(r)[page * 512].load(Relaxed)),
            WRITE => words(r)[page * 512].store(order, Relaxed),
            OUT => page_out_unit(r, page / 512),
            DISCARD => r.remove(page / 512 * UNIT, UNIT).unwrap(),
            _ => return,
        }
        board.say(part + 3, order);
    }
}

fn page_out_unit(r: &mut SharedRegion, unit: usize) {
    r.advise(unit * UNIT, UNIT, Advice::PageOut).unwrap();
}

/// True if that range is all that is reported.
fn is_all(r: &SharedRegion, epoch: &Epoch, range: Range<usize>) -> bool {
    r.changed_since(epoch).unwrap().into_iter().eq([range])
}

fn tell(board: &Board, part: usize, order: &mut u64, what: u64, page: usize) {
    *order += 1;
    board.say(part + 1, what);
    board.say(part + 2, page as u64);
    board.say(part, *order);
    if what != END {
        board.await_(part + 3, *order);
    }
}

fn told(r: &SharedRegion, epoch: &Epoch, grain: usize) -> Vec<bool> {
    let mut told = vec![false; r.len() / grain];
    let mut last = None;
    for range in r.changed_since(epoch).unwrap() {
        assert!(last.is_none_or(|l| range.start > l), "one range each");
        last = Some(range.end);
        assert!(range.start % grain == 0 && range.end % grain == 0);
        told[range.start / grain..range.end / grain].fill(true);
    }
    told
}

/// Writers in turn are a forked child, a process that joined before there was a region, and this
/// process.
fn shared_tracking_is_exact(by: Granularity) {
    let grain = match by {
        Granularity::Units => UNIT,
        Granularity::Pages => PAGE,
    };
    let pool = builder(16).build().unwrap();
    let (board, ticket) = (Board::new(), pool.ticket());
    let stranger = child(|| {
        board.await_(40, 1);
        let other = Pool::join(&ticket).unwrap();
        let mut r = other.attach_shared("t").unwrap();
        board.say(41, 1);
        helper(&mut r, &board, 0);
    });
    let mut r = shared(&pool, 32 * MIB, "t");
    let pages = r.len() / PAGE;
    let mut epochs = vec![r.track_writes(by).unwrap()];
    // One comes after the first epoch has begun, and one is forked.
    board.say(40, 1);
    board.await_(41, 1);
    let kin = child(|| {
        // SAFETY: the parent's region is not dropped by the child, which ends without unwinding.
        let mut theirs = std::mem::ManuallyDrop::new(unsafe { std::ptr::read(&raw const r) });
        helper(&mut theirs, &board, 10);
    });
    // Which epoch each grain was last written in.
    let mut written = vec![0usize; r.len() / grain];
    let mut orders = [0u64; 2];
    let mut x = 88172645463325252u64;
    for step in 0..400 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let page = (x >> 16) as usize % pages;
        let what = match x % 16 {
            0..7 => WRITE,
            7..13 => READ,
            13 | 14 => OUT,
            _ => DISCARD,
        };
        match x >> 8 & 3 {
            0 if what == WRITE => words(&r)[page * 512].store(step, Relaxed),
            0 if what == READ => drop(words(&r)[page * 512].load(Relaxed)),
            0 if what == OUT => page_out_unit(&mut r, page / 512),
            0 => r.remove(page / 512 * UNIT, UNIT).unwrap(),
            1 => tell(&board, 10, &mut orders[1], what, page),
            _ => tell(&board, 0, &mut orders[0], what, page),
        }
        match what {
            WRITE => written[page * PAGE / grain] = epochs.len(),
            DISCARD => {
                let first = page / 512 * UNIT / grain;
                written[first..first + UNIT / grain].fill(epochs.len());
            }
            _ => {}
        }
        if step % 50 == 49 {
            for (n, epoch) in epochs.iter().enumerate() {
                let want: Vec<_> = written.iter().map(|&w| w > n).collect();
                let told = told(&r, epoch, grain);
                let wrong: Vec<_> = (0..want.len()).filter(|&i| want[i] != told[i]).collect();
                let first = wrong.first().map(|&i| (i, want[i]));
                assert!(
                    wrong.is_empty(),
                    "step {step}, epoch {n}: {first:?} of {}",
                    wrong.len()
                );
            }
            let n = epochs.len();
            for (page, state) in r.pagemap().enumerate() {
                assert!(state.categories.has(Categories::TRACKED));
                let told = state.categories.has(Categories::WRITTEN);
                assert_eq!(told, written[page * PAGE / grain] == n, "page {page}");
            }
            epochs.push(r.track_writes(by).unwrap());
            assert_eq!(r.changed_since(&epochs[n]).unwrap(), []);
        }
    }
    tell(&board, 0, &mut orders[0], END, 0);
    tell(&board, 10, &mut orders[1], END, 0);
    ended_well(stranger);
    ended_well(kin);
    no_harm(&pool);
}

/// Writers are killed at any moment. A copy that is kept up to date by the reported changes is the
/// same at the end.
fn shared_tracking_survives_kills() {
    for by in [Granularity::Units, Granularity::Pages] {
        let pool = builder(16).build().unwrap();
        let r = shared(&pool, 32 * MIB, "k");
        let writer = |seed: u64| {
            let pages = r.len() / PAGE;
            let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            loop {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                // (Somewhere for a while, so that there are pages that were not written.)
                let page = ((x >> 20) % 64 + seed * 977) as usize % pages;
                words(&r)[page * 512 + (x % 512) as usize].store(x, Relaxed);
            }
        };
        let start = |seed| child(|| writer(seed));
        let mut writers: Vec<_> = (1..4).map(start).collect();
        let mut copy = vec![0u8; r.len()];
        let mut epoch = r.track_writes(by).unwrap();
        // What was written before.
        r.read_at(0, &mut copy).unwrap();
        let bring_up = |copy: &mut [u8], since: &Epoch| {
            for range in r.changed_since(since).unwrap() {
                r.read_at(range.start, &mut copy[range]).unwrap();
            }
        };
        for round in 0..20u64 {
            let next = r.track_writes(by).unwrap();
            bring_up(&mut copy, &epoch);
            epoch = next;
            std::thread::sleep(std::time::Duration::from_millis(5));
            let gone = writers.remove(0);
            // SAFETY: our own child.
            unsafe { libc::kill(gone, libc::SIGKILL) };
            ended(gone);
            writers.push(start(round + 4));
        }
        for pid in writers {
            // SAFETY: our own child.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            ended(pid);
        }
        bring_up(&mut copy, &epoch);
        let mut page = [0; PAGE];
        for (n, copied) in copy.chunks(PAGE).enumerate() {
            r.read_at(n * PAGE, &mut page).unwrap();
            assert!(
                page[..] == *copied,
                "page {n} was written, and that was not told ({by:?})"
            );
        }
    }
}

/// Each process tracks for itself, and tracking ends with the last of them.
fn shared_tracking_ends() {
    let pool = builder(32).build().unwrap();
    let r = shared(&pool, 8 * MIB, "e");
    let tracked = |r: &SharedRegion| r.pagemap().all(|s| s.categories.has(Categories::TRACKED));
    fill(&r, 1);
    assert!(!tracked(&r));
    ended_well(child(|| {
        let epoch = r.track_writes(Granularity::Pages).unwrap();
        words(&r)[512].store(1, Relaxed);
        assert!(is_all(&r, &epoch, PAGE..2 * PAGE));
        assert!(tracked(&r));
    }));
    until("a dead process does not track any more", || {
        pool.stats();
        !tracked(&r)
    });
    let epoch = r.track_writes(Granularity::Units).unwrap();
    let theirs = child(|| {
        // The parent's epoch is the child's.
        words(&r)[UNIT / 8].store(1, Relaxed);
        assert!(is_all(&r, &epoch, UNIT..2 * UNIT));
        r.stop_tracking();
        assert!(matches!(r.changed_since(&epoch), Err(Error::Epoch)));
    });
    ended_well(theirs);
    assert!(is_all(&r, &epoch, UNIT..2 * UNIT));
    assert!(tracked(&r));
    r.stop_tracking();
    assert!(!tracked(&r));
    let again = r.track_writes(Granularity::Units).unwrap();
    assert_eq!(r.changed_since(&again).unwrap(), []);
    words(&r)[0].store(7, Relaxed);
    assert!(is_all(&r, &again, 0..UNIT));
}

fn shared_regions_have_snapshots() {
    // (Of a unit that a process was dropping when it died all is told: none is dropped.)
    let pool = builder(64).build().unwrap();
    let r = shared(&pool, 24 * MIB, "s");
    fill(&r, 1);
    r.track_writes(Granularity::Pages).unwrap();
    let (mut full, mut more) = (Vec::new(), Vec::new());
    let first = r.snapshot(&mut full).unwrap();
    ended_well(child(|| words(&r)[512 * 99].store(42, Relaxed)));
    r.snapshot_since(&first, &mut more).unwrap();
    assert!(more.len() < 3 * PAGE, "{} bytes", more.len());
    let mut copy = pool.region(24 * MIB).unwrap();
    let files = &mut [std::io::Cursor::new(&full), std::io::Cursor::new(&more)];
    copy.restore(files).unwrap();
    for (i, (a, b)) in words(&r).iter().zip(words(&copy)).enumerate() {
        assert_eq!(a.load(Relaxed), b.load(Relaxed), "word {i}");
    }
    assert_eq!(words(&copy)[512 * 99].load(Relaxed), 42);
}

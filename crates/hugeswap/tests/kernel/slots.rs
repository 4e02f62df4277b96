//! Swap by the page: units scattered over single slots, and whole clusters found again.

use crate::util::*;
use hugeswap::{Advice, Builder, FaultMode, Pool, Region, SwapSpec};
use std::sync::atomic::Ordering::Relaxed;

tests! {
    slots_scattered_come_back,
    slots_are_few_for_few_pages,
    slots_grown_past_half_are_whole,
    slots_of_a_nearly_full_swap,
    slots_discarded_are_free,
    slots_survive_forks,
    slots_read_by_relatives_stay,
    #[long]
    slots_survive_random_work,
    #[long]
    slots_of_old_are_used_again,
}

const PAGE: usize = 4096;

fn with_swap(memory: usize, swap: usize) -> Builder {
    match hugeswap_sys::uffd::open(hugeswap_sys::uffd::USER_MODE_ONLY, 0) {
        Ok((fd, _)) => hugeswap_sys::fs::close(fd),
        Err(e) => skip(&format!("no userfaultfd: {e}")),
    }
    let mut spec = SwapSpec::new("/var/tmp");
    spec.size = Some((swap * MIB) as u64);
    Pool::builder()
        .memory((memory * MIB) as u64)
        .swap_area(spec)
        .fault_mode(FaultMode::Signal)
        .encrypt(encrypted())
        .set("thp.enabled=never")
        .set("thp.swapin=never")
}

/// A region of zeros with `pages` of every unit written in generation `g`; everything is in swap,
/// scattered.
fn sparse(pool: &Pool, len: usize, pages: &[usize], g: u64) -> Region {
    let mut r = pool.region(len).unwrap();
    fill(&r, 0);
    out(&mut r);
    // Nothing of a unit but some pages is kept: what was its slot's is given up by the page.
    for u in 0..len / UNIT {
        assert_ne!(
            words(&r)[u * UNIT / 8].load(Relaxed),
            0,
            "base-mapped from here on"
        );
        r.discard(u * UNIT, UNIT - PAGE).unwrap();
        r.discard(u * UNIT + PAGE, UNIT - PAGE).unwrap();
    }
    put(&r, pages, g);
    out(&mut r);
    r
}

fn put(r: &Region, pages: &[usize], g: u64) {
    for u in 0..r.len() / UNIT {
        for &p in pages {
            let from = (u * UNIT + p * PAGE) / 8;
            (from..from + 512).for_each(|i| words(r)[i].store(value(i, g), Relaxed));
        }
    }
}

fn out(r: &mut Region) {
    r.advise(0, r.len(), Advice::PageOut).unwrap();
    let away = |r: &Region| (0..r.len() / PAGE).all(|p| !r.is_resident(p * PAGE));
    until("all of it away", || {
        away(r) || {
            r.advise(0, r.len(), Advice::PageOut).unwrap();
            false
        }
    });
}

/// Checks that all words of `r` are zero, except those of `pages` in every unit.
fn holds(r: &Region, pages: &[usize], g: u64) -> bool {
    words(r).iter().enumerate().all(|(i, w)| {
        let here = pages.contains(&(i / 512 % 512));
        w.load(Relaxed) == if here { value(i, g) } else { 0 }
    })
}

fn settled(pool: &Pool, what: &str, good: impl Fn(&hugeswap::Stats) -> bool) {
    until(what, || good(&pool.stats()));
}

/// [`holds`], after the pages `changed` were written again in generation `h`.
fn holds_both(r: &Region, pages: &[usize], g: u64, changed: &[usize], h: u64) -> bool {
    words(r).iter().enumerate().all(|(i, w)| {
        let p = i / 512 % 512;
        let want = match (changed.contains(&p), pages.contains(&p)) {
            (true, _) => value(i, h),
            (_, true) => value(i, g),
            _ => 0,
        };
        w.load(Relaxed) == want
    })
}

/// Checks that no swap is in use, and that all of it is whole again. Slots that were put aside for
/// children are free only once a process has noticed that the last child is gone.
fn nothing_left(pool: &Pool) {
    pool.audit().unwrap();
    settled(pool, "slots have leaked", |s| {
        (s.swap_used_bytes, s.swap_free_bytes) == (0, s.swap_bytes)
    });
}

fn slots_scattered_come_back() {
    let pool = with_swap(32, 256).build().unwrap();
    let pages = [0, 3, 4, 5, 100, 200, 201, 511];
    let mut r = sparse(&pool, 64 * MIB, &pages, 1);
    assert!(holds(&r, &pages, 1));
    pool.audit().unwrap();
    // Changed where they are, others with them, and out again.
    let changed = [3, 4, 7, 300];
    put(&r, &changed, 2);
    out(&mut r);
    assert!(holds_both(&r, &pages, 1, &changed, 2));
    out(&mut r);
    // As huge pages: by a pin, and all of them.
    drop(r.pin(3 * UNIT, 2 * UNIT, false).unwrap());
    assert!(holds_both(&r, &pages, 1, &changed, 2));
    pool.set("thp.enabled=always").unwrap();
    pool.set("thp.swapin=always").unwrap();
    out(&mut r);
    let before = pool.stats();
    assert!(holds_both(&r, &pages, 1, &changed, 2));
    out(&mut r);
    let s = pool.stats();
    assert_eq!(s.pswpout, before.pswpout, "what was only read was written");
    assert!(holds_both(&r, &pages, 1, &changed, 2));
    // Whole units that change get clusters.
    fill(&r, 3);
    out(&mut r);
    assert_eq!(pool.stats().swap_used_bytes, 64 * MIB as u64);
    check(&r, 3);
    drop(r);
    nothing_left(&pool);
}

fn slots_are_few_for_few_pages() {
    let pool = with_swap(32, 256).build().unwrap();
    let pages = [1, 9, 77];
    let r = sparse(&pool, 128 * MIB, &pages, 1);
    let s = pool.stats();
    assert_eq!(
        s.swap_used_bytes,
        (64 * 3 * PAGE) as u64,
        "exactly the pages: {s:?}"
    );
    assert!(
        s.swap_free_bytes >= s.swap_bytes - UNIT as u64,
        "in one cluster: {s:?}"
    );
    assert!(holds(&r, &pages, 1));
    drop(r);
    nothing_left(&pool);
}

fn slots_grown_past_half_are_whole() {
    let pool = with_swap(64, 256).build().unwrap();
    let pages = [1, 9, 77];
    let mut r = sparse(&pool, 16 * MIB, &pages, 1);
    let more: Vec<usize> = (100..300).collect();
    put(&r, &more, 2);
    out(&mut r);
    let s = pool.stats();
    // (In sequence a first touch brings up to 16 zeros ahead.)
    let each = s.swap_used_bytes / PAGE as u64 / 8;
    assert!((203..=219).contains(&each), "scattered still: {s:?}");
    let most: Vec<usize> = (90..360).collect();
    put(&r, &most, 3);
    out(&mut r);
    let s = pool.stats();
    assert_eq!(
        s.swap_used_bytes,
        16 * MIB as u64,
        "clusters of their own: {s:?}"
    );
    assert_eq!(s.swap_used_bytes + s.swap_free_bytes, s.swap_bytes, "{s:?}");
    assert!(holds_both(&r, &pages, 1, &most, 3));
    drop(r);
    nothing_left(&pool);
}

/// Swap is filled as far as possible, so that whole units find room only in clusters that are found
/// again.
pub fn slots_of_a_nearly_full_swap() {
    // 32 clusters.
    let pool = with_swap(16, 64).build().unwrap();
    let pages: Vec<usize> = (0..60).map(|p| p * 8).collect();
    // One cluster for all the pages of these, and then the others.
    let few = sparse(&pool, 8 * UNIT, &pages, 1);
    let mut whole = pool.region(31 * UNIT).unwrap();
    fill(&whole, 2);
    out(&mut whole);
    let s = pool.stats();
    assert_eq!(s.swap_free_bytes, 0, "{s:?}");
    // What is scattered grows, and there is no cluster to grow into; what is whole gives up pages
    // for it.
    let more: Vec<usize> = (0..90).map(|p| p * 4 + 1).collect();
    for u in 0..14 {
        assert_eq!(
            words(&whole)[u * UNIT / 8].load(Relaxed),
            value(u * UNIT / 8, 2)
        );
        whole
            .discard(u * UNIT + 200 * PAGE, UNIT - 200 * PAGE)
            .unwrap();
    }
    let mut few = few;
    put(&few, &more, 3);
    out(&mut few);
    assert!(holds_both(&few, &pages, 1, &more, 3));
    for (i, w) in words(&whole).iter().enumerate() {
        let gone = i < 14 * UNIT / 8 && i / 512 % 512 >= 200;
        assert_eq!(
            w.load(Relaxed),
            if gone { 0 } else { value(i, 2) },
            "word {i}"
        );
    }
    pool.audit().unwrap();
    drop((few, whole));
    nothing_left(&pool);
}

fn slots_discarded_are_free() {
    let pool = with_swap(64, 256).build().unwrap();
    let mut r = pool.region(32 * MIB).unwrap();
    fill(&r, 1);
    out(&mut r);
    assert_eq!(pool.stats().swap_used_bytes, 32 * MIB as u64);
    for u in 0..16 {
        assert_ne!(words(&r)[u * UNIT / 8].load(Relaxed), 0);
        // All but 40 pages.
        r.discard(u * UNIT + 20 * PAGE, UNIT - 40 * PAGE).unwrap();
    }
    let used = (16 * 40 * PAGE) as u64;
    assert_eq!(
        pool.stats().swap_used_bytes,
        used,
        "the rest of each cluster is free at once"
    );
    // Two clusters hold them all; kswapd moves them together.
    settled(&pool, "whole clusters found again", |s| {
        s.swap_used_bytes == used && s.swap_free_bytes >= s.swap_bytes - (5 * UNIT) as u64
    });
    pool.audit().unwrap();
    out(&mut r);
    for (i, w) in words(&r).iter().enumerate() {
        let kept = !(20..492).contains(&(i / 512 % 512));
        assert_eq!(
            w.load(Relaxed),
            if kept { value(i, 1) } else { 0 },
            "word {i}"
        );
    }
    for u in 0..16 {
        r.discard(u * UNIT, UNIT - PAGE).unwrap();
        r.discard(u * UNIT + PAGE, UNIT - PAGE).unwrap();
    }
    nothing_left(&pool);
}

/// Forks a child that checks that `f` is true.
fn finds(f: impl FnOnce() -> bool) -> libc::pid_t {
    child(|| assert!(f(), "it is not"))
}

pub fn slots_survive_forks() {
    let pool = with_swap(32, 256).build().unwrap();
    let pages = [0, 30, 31, 500];
    let mut r = sparse(&pool, 32 * MIB, &pages, 1);
    let mut g = 1;
    for round in 0..3u64 {
        // Some of it dirty in memory, some in swap.
        let next = 2 + 3 * round;
        put(&r, &pages, next);
        if round != 1 {
            out(&mut r);
        }
        g = next.max(g);
        let grand = || {
            let pid = finds(|| {
                let ok = holds(&r, &pages, g);
                put(&r, &pages[..2], g + 1);
                ok && holds_both(&r, &pages, g, &pages[..2], g + 1)
            });
            ended_well(pid);
            true
        };
        let pid = finds(|| {
            grand() && holds(&r, &pages, g) && {
                put(&r, &[7, 30], 50);
                holds_both(&r, &pages, g, &[7, 30], 50)
            }
        });
        // Meanwhile the parent overwrites, discards and swaps.
        let mine = [30, 200];
        put(&r, &mine, g + 2);
        out(&mut r);
        assert!(holds_both(&r, &pages, g, &mine, g + 2));
        out(&mut r);
        ended_well(pid);
        assert!(holds_both(&r, &pages, g, &mine, g + 2));
        for u in 0..16 {
            r.discard(u * UNIT + 200 * PAGE, 2 * PAGE).unwrap();
        }
        out(&mut r);
        pool.audit().unwrap();
    }
    // What was put aside for children comes back.
    settled(&pool, "slots put aside", |s| {
        // Four pages of each unit, and what zeros came with them.
        (16 * 4..16 * 8).contains(&(s.swap_used_bytes as usize / PAGE))
    });
    drop(r);
    nothing_left(&pool);
}

/// Memory that is discarded on one side of a fork stays on the other, whichever process forks
/// again.
pub fn slots_read_by_relatives_stay() {
    let pool = with_swap(64, 256).build().unwrap();
    let mut r = pool.region(16 * MIB).unwrap();
    fill(&r, 1);
    out(&mut r);
    let touch = |r: &Region| {
        for u in 0..8 {
            assert_eq!(words(r)[u * UNIT / 8].load(Relaxed), value(u * UNIT / 8, 1));
        }
    };
    let holed = |r: &Region, from: usize, to: usize| {
        words(r).iter().enumerate().all(|(i, w)| {
            let gone = (from..to).contains(&(i / 512 % 512));
            w.load(Relaxed) == if gone { 0 } else { value(i, 1) }
        })
    };
    let discard = |r: &mut Region, from: usize, to: usize| {
        for u in 0..8 {
            let at = u * UNIT + from * PAGE;
            r.discard(at, (to - from) * PAGE).unwrap();
        }
    };
    touch(&r);
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: the child only touches managed memory and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut ok = false;
        let fell = panics(|| {
            drop(writer);
            let mut go = [0];
            std::io::Read::read_exact(&mut reader, &mut go).unwrap();
            ok = holed(&r, 0, 0);
            // The same the other way round.
            discard(&mut r, 300, 400);
            ended_well(finds(|| holed(&r, 300, 400)));
            ok &= holed(&r, 300, 400);
        });
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(fell || !ok)) };
    }
    drop(reader);
    discard(&mut r, 100, 200);
    ended_well(finds(|| holed(&r, 100, 200)));
    std::io::Write::write_all(&mut writer, &[1]).unwrap();
    ended_well(pid);
    out(&mut r);
    assert!(holed(&r, 100, 200));
    drop(r);
    settled(&pool, "slots put aside", |s| s.swap_used_bytes == 0);
    nothing_left(&pool);
}

/// Random operations, checked against a model of every page.
pub fn slots_survive_random_work() {
    for swapin in ["thp.swapin=never", "thp.swapin=auto"] {
        // Little swap to spare: 24 units of memory and swap for 20.
        let pool = with_swap(16, 48).set(swapin).build().unwrap();
        let mut r = pool.region(24 * UNIT).unwrap();
        let n = r.len() / PAGE;
        let mut model = vec![0u64; n];
        let mut x = 7u64;
        let mut random = |below: usize| {
            x = x
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (x >> 33) as usize % below
        };
        let stamp = |r: &Region, p: usize, v: u64| {
            for k in [0, 100, 511] {
                words(r)[p * 512 + k]
                    .store(if v == 0 { 0 } else { value(p * 512 + k, v) }, Relaxed);
            }
        };
        let holds = |r: &Region, p: usize, v: u64| {
            for k in [0, 100, 511] {
                let want = if v == 0 { 0 } else { value(p * 512 + k, v) };
                assert_eq!(
                    words(r)[p * 512 + k].load(Relaxed),
                    want,
                    "word {k} of page {p}"
                );
            }
        };
        for turn in 1..6_000u64 {
            let p = random(n);
            match random(16) {
                0..6 => {
                    let end = (p + 1 + random(24)).min(n);
                    (p..end).for_each(|q| stamp(&r, q, turn));
                    model[p..end].fill(turn);
                }
                6..12 => holds(&r, p, model[p]),
                12..14 => {
                    let end = (p + 1 + random(700)).min(n);
                    r.discard(p * PAGE, (end - p) * PAGE).unwrap();
                    model[p..end].fill(0);
                }
                14 if random(8) == 0 => {
                    let from = random(20) * UNIT;
                    r.advise(from, 4 * UNIT, Advice::PageOut).unwrap();
                }
                15 if random(400) == 0 => {
                    let pid = finds(|| {
                        model
                            .iter()
                            .enumerate()
                            .step_by(7)
                            .for_each(|(p, &v)| holds(&r, p, v));
                        true
                    });
                    (0..40).for_each(|_| {
                        let p = random(n);
                        stamp(&r, p, turn);
                        model[p] = turn;
                    });
                    ended_well(pid);
                }
                _ => {}
            }
        }
        model.iter().enumerate().for_each(|(p, &v)| holds(&r, p, v));
        pool.audit().unwrap();
        drop(r);
        settled(&pool, "slots put aside", |s| s.swap_used_bytes == 0);
        nothing_left(&pool);
    }
}

/// Resident memory of the pool's segment, in KiB.
fn segment_kib() -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let segment = smaps.split("hugeswap-pool").nth(1).expect("the segment");
    let rss = segment.lines().find_map(|l| l.strip_prefix("Rss:"));
    rss.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}

/// A pool that swaps little for a long time does not go through all of swap: the checksums of slots
/// freed long ago would stay in memory.
fn slots_of_old_are_used_again() {
    let pool = with_swap(64, 2048).build().unwrap();
    pool.set("thp.enabled=always").unwrap();
    pool.set("thp.swapin=always").unwrap();
    let mut first = 0;
    for turn in 0..20 {
        let mut r = pool.region(64 * MIB).unwrap();
        fill(&r, turn + 1);
        out(&mut r);
        if turn == 0 {
            first = segment_kib();
        }
        check(&r, turn + 1);
    }
    // 32 clusters in use, so claims go 64 and 256 far; 4 KiB of sums for each.
    let more = segment_kib() - first;
    assert!(more <= (64 + 256 + 8) * 4, "{more} KiB more than at first");
    nothing_left(&pool);
}

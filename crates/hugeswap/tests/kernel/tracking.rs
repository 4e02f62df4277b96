//! Written memory is reported, and nothing else.

use crate::util::*;
use hugeswap::{Advice, Categories, Epoch, FaultMode, Filter, Granularity, Pool, Region};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

tests! {
    #[long]
    tracking_is_exact,
    #[long]
    tracking_is_exact_by_pages,
    #[long]
    tracking_is_exact_by_pieces => with_pieces(tracking_is_exact_by_pieces),
    #[long]
    tracking_is_exact_in_base_pages,
    tracking_in_a_child,
    #[long]
    tracking_loses_no_write,
    #[long]
    tracking_keeps_nothing_in_memory,
    tracking_survives_a_collapse,
    tracking_of_pinned_memory,
    tracking_of_what_becomes_zero,
    tracking_is_refused,
    tracking_sees_what_the_kernel_writes,
    tracking_shows_in_the_pagemap,
}

const PAGE: usize = 4096;

/// The pages or units, of `grain` bytes, that are reported.
fn told(r: &Region, epoch: &Epoch, grain: usize) -> Vec<bool> {
    let mut told = vec![false; r.len() / grain];
    let mut last = 0;
    for range in r.changed_since(epoch).unwrap() {
        assert!(range.start >= last && range.end > range.start, "in order");
        assert!(range.start % grain == 0 && range.end % grain == 0);
        last = range.end;
        told[range.start / grain..range.end / grain].fill(true);
    }
    told
}

/// The epochs, and for each grain of `grain` bytes the number of the epoch in which it was last
/// written.
struct Model {
    grain: usize,
    by: Granularity,
    written: Vec<usize>,
    epochs: Vec<Epoch>,
    words: Vec<u64>,
    x: u64,
}

impl Model {
    fn new(r: &Region, by: Granularity, grain: usize) -> Model {
        Model {
            grain,
            by,
            written: vec![0; r.len() / grain],
            epochs: vec![],
            words: words(r)
                .iter()
                .step_by(512)
                .map(|w| w.load(Relaxed))
                .collect(),
            x: 88172645463325252,
        }
    }

    fn random(&mut self) -> u64 {
        self.x ^= self.x << 13;
        self.x ^= self.x >> 7;
        self.x ^= self.x << 17;
        self.x
    }

    fn wrote(&mut self, page: usize, value: u64) {
        self.words[page] = value;
        self.written[page * PAGE / self.grain] = self.epochs.len();
    }

    fn check(&self, r: &Region) {
        for (n, epoch) in self.epochs.iter().enumerate() {
            let want: Vec<_> = self.written.iter().map(|&w| w > n).collect();
            let told = told(r, epoch, self.grain);
            let wrong: Vec<_> = (0..want.len()).filter(|&i| want[i] != told[i]).collect();
            let first = wrong.first().map(|&i| (i, want[i]));
            assert!(
                wrong.is_empty(),
                "epoch {n} of {}: {} wrong, {first:?}",
                self.epochs.len(),
                wrong.len()
            );
        }
    }

    /// Makes a few hundred random operations of all kinds.
    fn step(&mut self, pool: &Pool, r: &mut Region) {
        let pages = r.len() / PAGE;
        for _ in 0..300 {
            let x = self.random();
            let page = (x >> 16) as usize % pages;
            let unit = page * PAGE / UNIT;
            match x % 64 {
                0 => r.advise(unit * UNIT, UNIT, Advice::PageOut).unwrap(),
                1 => r.advise(unit * UNIT, UNIT, Advice::WillNeed).unwrap(),
                2 => {
                    r.discard(unit * UNIT, UNIT).unwrap();
                    (0..512).for_each(|p| self.wrote(unit * 512 + p, 0));
                }
                3 | 4 if self.grain <= PAGE => {
                    r.discard(page * PAGE, PAGE).unwrap();
                    self.wrote(page, 0);
                }
                5 => pool.set("thp.swapin=always").unwrap(),
                6 => pool.set("thp.swapin=auto").unwrap(),
                7 => pool.set("thp.swapin=never").unwrap(),
                8 if x >> 40 & 7 == 0 => {
                    let status = in_child(|| self.check(r));
                    assert!(status.success(), "the child: {status}");
                }
                9..24 => {
                    words(r)[page * 512].store(x, Relaxed);
                    self.wrote(page, x);
                }
                _ => assert_eq!(words(r)[page * 512].load(Relaxed), self.words[page]),
            }
        }
        // Some epochs begin without anybody having asked what was written.
        if self.epochs.len().is_multiple_of(2) {
            self.check(r);
        }
    }

    fn run(mut self, pool: &Pool, r: &mut Region, rounds: usize) {
        for _ in 0..rounds {
            self.epochs.push(r.track_writes(self.by).unwrap());
            assert_eq!(r.changed_since(self.epochs.last().unwrap()).unwrap(), []);
            self.step(pool, r);
        }
        for (page, value) in self.words.iter().enumerate() {
            assert_eq!(words(r)[page * 512].load(Relaxed), *value, "page {page}");
        }
        self.check(r);
        pool.audit().unwrap();
        r.stop_tracking();
        words(r)[0].store(1, Relaxed);
        pool.audit().unwrap();
    }
}

fn model(mode: FaultMode, by: Granularity, grain: usize) {
    let pool = builder(24).fault_mode(mode).build().unwrap();
    for filled in [true, false] {
        let mut r = pool.region(48 * MIB).unwrap();
        if filled {
            fill(&r, 1);
        }
        Model::new(&r, by, grain).run(&pool, &mut r, 12);
    }
}

fn tracking_is_exact() {
    both_modes(|mode| model(mode, Granularity::Units, UNIT));
}

fn tracking_is_exact_by_pages() {
    need_pages();
    both_modes(|mode| model(mode, Granularity::Pages, PAGE));
}

/// Tracking where userfaultfd is refused.
fn tracking_is_exact_by_pieces() {
    model(FaultMode::Signal, Granularity::Units, UNIT);
    // Discarding pages is not told by more than pages, and writing is.
    let pool = builder(24).build().unwrap();
    let mut r = pool.region(48 * MIB).unwrap();
    fill(&r, 1);
    Model::new(&r, Granularity::Pages, 16 * PAGE).run(&pool, &mut r, 12);
}

fn tracking_is_exact_in_base_pages() {
    need_pages();
    let pool = builder(24).set("thp.enabled=never").build().unwrap();
    for (by, grain) in [(Granularity::Pages, PAGE), (Granularity::Units, UNIT)] {
        let mut r = pool.region(48 * MIB).unwrap();
        fill(&r, 1);
        Model::new(&r, by, grain).run(&pool, &mut r, 8);
    }
}

fn tracking_in_a_child() {
    both_modes(in_a_child);
}

fn in_a_child(mode: FaultMode) {
    for (by, grain) in [(Granularity::Units, UNIT), (Granularity::Pages, PAGE)] {
        if grain == PAGE {
            need_pages();
        }
        let pool = builder(64).fault_mode(mode).build().unwrap();
        let r = pool.region(32 * MIB).unwrap();
        fill(&r, 1);
        let epoch = r.track_writes(by).unwrap();
        // (Something else each time: in message mode the same again is not told.)
        let write = |page: usize| _ = words(&r)[page * 512 + 3].fetch_add(1, Relaxed);
        let count = |epoch: &Epoch| told(&r, epoch, grain).iter().filter(|t| **t).count();
        let is = |epoch: &Epoch, page: usize| told(&r, epoch, grain)[page * PAGE / grain];
        write(600);
        let child = || {
            assert_eq!(count(&epoch), 1);
            assert!(is(&epoch, 600));
            write(3000);
            write(3001);
            assert!(is(&epoch, 3000) && is(&epoch, 3001));
            let own = r.track_writes(by).unwrap();
            assert_eq!(count(&own), 0);
            write(3000);
            assert_eq!((count(&own), is(&own, 3000)), (1, true));
        };
        assert!(in_child(child).success());
        assert_eq!(count(&epoch), 1, "what the child wrote is its own");
        // What is shared is written, and copied.
        write(5000);
        assert_eq!((count(&epoch), is(&epoch, 5000)), (2, true));
        let after = r.track_writes(by).unwrap();
        assert_eq!(count(&after), 0);
        write(5000);
        write(600);
        assert_eq!(count(&after), 2);
        pool.audit().unwrap();
    }
}

/// Threads write while epochs begin and the reported memory is copied: at the end the copy equals
/// the region.
fn tracking_loses_no_write() {
    both_modes(loses_no_write);
}

fn loses_no_write(mode: FaultMode) {
    for (by, memory) in [
        (Granularity::Units, 96),
        (Granularity::Units, 24),
        (Granularity::Pages, 96),
        (Granularity::Pages, 24),
    ] {
        let pool = builder(memory).fault_mode(mode).build().unwrap();
        let r = pool.region(48 * MIB).unwrap();
        fill(&r, 1);
        let stop = AtomicBool::new(false);
        let mut epoch = r.track_writes(by).unwrap();
        let copy_of = |copy: &mut [u64], ranges: &[std::ops::Range<usize>]| {
            for range in ranges {
                let part = range.start / 8..range.end / 8;
                let now = words(&r)[part.clone()].iter().map(|w| w.load(Relaxed));
                copy[part].iter_mut().zip(now).for_each(|(c, w)| *c = w);
            }
        };
        let mut copy = vec![0; r.len() / 8];
        copy_of(&mut copy, std::slice::from_ref(&(0..r.len())));
        std::thread::scope(|s| {
            for thread in 0..3u64 {
                let (r, stop) = (&r, &stop);
                s.spawn(move || {
                    let mut x = thread + 77;
                    while !stop.load(Acquire) {
                        for _ in 0..64 {
                            x ^= x << 13;
                            x ^= x >> 7;
                            x ^= x << 17;
                            words(r)[(x >> 8) as usize % (r.len() / 8)].store(x, Relaxed);
                        }
                        std::thread::sleep(std::time::Duration::from_micros(300));
                    }
                });
            }
            for _ in 0..16 {
                let next = r.track_writes(by).unwrap();
                let ranges = r.changed_since(&epoch).unwrap();
                copy_of(&mut copy, &ranges);
                epoch = next;
            }
            stop.store(true, Release);
        });
        copy_of(&mut copy, &r.changed_since(&epoch).unwrap());
        for (i, c) in copy.iter().enumerate() {
            assert_eq!(*c, words(&r)[i].load(Relaxed), "word {i}, {by:?}");
        }
        pool.audit().unwrap();
    }
}

/// Memory that is locked for an epoch when reclaim or a fault comes by can still leave memory
/// later.
fn tracking_keeps_nothing_in_memory() {
    both_modes(|mode| {
        let pool = builder(24).fault_mode(mode).build().unwrap();
        let r = pool.region(48 * MIB).unwrap();
        fill(&r, 1);
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            let (r, stop) = (&r, &stop);
            s.spawn(move || {
                while !stop.load(Acquire) {
                    r.track_writes(Granularity::Units).unwrap();
                }
            });
            let rounds = 60;
            for round in 0..rounds {
                for unit in 0..r.len() / UNIT {
                    words(r)[unit * UNIT / 8 + 7].store(round, Relaxed);
                }
            }
            stop.store(true, Release);
        });
        pool.audit().unwrap();
    });
}

fn tracking_survives_a_collapse() {
    need_pages();
    let pool = builder(64)
        .set("thp.enabled=never")
        .set("khugepaged.scan_sleep_ms=1")
        .set("khugepaged.pages_to_scan=1000000")
        .build()
        .unwrap();
    let r = pool.region(16 * MIB).unwrap();
    fill(&r, 1);
    let epoch = r.track_writes(Granularity::Units).unwrap();
    words(&r)[5].store(9, Relaxed);
    pool.set("thp.enabled=always").unwrap();
    let before = counter(&pool, "khugepaged_pages_collapsed");
    let start = std::time::Instant::now();
    let units = (r.len() / UNIT) as u64;
    while counter(&pool, "khugepaged_pages_collapsed") < before + units {
        if start.elapsed().as_secs() > 60 {
            skip("khugepaged had no huge pages");
        }
        std::thread::yield_now();
    }
    assert_eq!(
        r.changed_since(&epoch).unwrap(),
        std::iter::once(0..UNIT).collect::<Vec<_>>()
    );
    words(&r)[3 * UNIT / 8].store(9, Relaxed);
    assert_eq!(
        r.changed_since(&epoch).unwrap(),
        [0..UNIT, 3 * UNIT..4 * UNIT]
    );
    r.advise(0, UNIT, Advice::PageOut).unwrap();
    assert_eq!(
        r.changed_since(&epoch).unwrap(),
        [0..UNIT, 3 * UNIT..4 * UNIT]
    );
}

fn tracking_of_pinned_memory() {
    both_modes(of_pinned_memory);
}

fn of_pinned_memory(mode: FaultMode) {
    for by in [Granularity::Units, Granularity::Pages] {
        let pool = builder(64).fault_mode(mode).build().unwrap();
        let r = pool.region(16 * MIB).unwrap();
        fill(&r, 1);
        let first = r.track_writes(by).unwrap();
        let read = r.pin(UNIT, PAGE, false).unwrap();
        assert_eq!(r.changed_since(&first).unwrap(), []);
        let pin = r.pin(3 * UNIT, PAGE, true).unwrap();
        let all = vec![std::ops::Range {
            start: 3 * UNIT,
            end: 4 * UNIT,
        }];
        assert_eq!(r.changed_since(&first).unwrap(), all);
        // The call that it is held for may write at any time.
        let second = r.track_writes(by).unwrap();
        assert_eq!(r.changed_since(&second).unwrap(), all);
        drop((pin, read));
        let third = r.track_writes(by).unwrap();
        assert_eq!(r.changed_since(&third).unwrap(), []);
        words(&r)[3 * UNIT / 8].store(1, Relaxed);
        let found = r.changed_since(&third).unwrap();
        assert!(found[0].start == 3 * UNIT && found[0].len() <= UNIT);
        pool.audit().unwrap();
    }
}

/// Memory that becomes zero leaves without being written to swap.
fn tracking_of_what_becomes_zero() {
    both_modes(|mode| {
        for by in [Granularity::Units, Granularity::Pages] {
            let pool = builder(24).fault_mode(mode).build().unwrap();
            let r = pool.region(16 * MIB).unwrap();
            fill(&r, 1);
            for unit in [1, 3] {
                let epoch = r.track_writes(by).unwrap();
                if unit > 1 {
                    page_out(&r);
                }
                let range = unit * UNIT..(unit + 1) * UNIT;
                let bytes = &words(&r)[range.start / 8..range.end / 8];
                bytes.iter().for_each(|w| w.store(0, Relaxed));
                page_out(&r);
                assert_eq!(r.changed_since(&epoch).unwrap(), [range], "{by:?}");
            }
            assert!(mode == FaultMode::Signal || counter(&pool, "zero_drop") > 0);
            pool.audit().unwrap();
        }
    });
}

fn tracking_is_refused() {
    let pool = builder(64).build().unwrap();
    let r = pool.region(8 * MIB).unwrap();
    let other = pool.region(8 * MIB).unwrap();
    let epoch = r.track_writes(Granularity::Units).unwrap();
    assert!(other.changed_since(&epoch).is_err(), "another region's");
    r.stop_tracking();
    assert!(r.changed_since(&epoch).is_err(), "stopped");
    let again = r.track_writes(Granularity::Units).unwrap();
    assert!(r.changed_since(&epoch).is_err(), "of the time before");
    assert_eq!(r.changed_since(&again).unwrap(), []);
    let path = format!("/var/tmp/hugeswap-track-{}", std::process::id());
    std::fs::write(&path, vec![1; UNIT]).unwrap();
    let file = pool.map_file(&path, 0, UNIT, hugeswap::FileMode::WriteBack);
    std::fs::remove_file(&path).unwrap();
    let refused = file.unwrap().track_writes(Granularity::Units);
    assert!(refused.unwrap_err().to_string().contains("mapped file"));
}

fn tracking_shows_in_the_pagemap() {
    need_pages();
    both_modes(shows_in_the_pagemap);
}

fn shows_in_the_pagemap(mode: FaultMode) {
    let pool = builder(24).fault_mode(mode).build().unwrap();
    let r = pool.region(48 * MIB).unwrap();
    fill(&r, 1);
    let filter = Filter {
        all: Categories::WRITTEN,
        told: Categories::WRITTEN,
        ..Filter::default()
    };
    assert_eq!(r.scan(0, r.len(), &filter).unwrap(), []);
    for by in [Granularity::Units, Granularity::Pages] {
        let epoch = r.track_writes(by).unwrap();
        for page in [10, 11, 5000, 12287] {
            words(&r)[page * 512].store(1, Relaxed);
        }
        for _ in 0..2 {
            let found = r.scan(0, r.len(), &filter).unwrap();
            let ranges: Vec<_> = found.into_iter().map(|f| f.range).collect();
            assert_eq!(ranges, r.changed_since(&epoch).unwrap());
            let mut entries = vec![0; r.len() / PAGE];
            r.pagemap_entries(0, &mut entries).unwrap();
            for (page, entry) in entries.iter().enumerate() {
                let told = ranges.iter().any(|f| f.contains(&(page * PAGE)));
                assert_eq!(entry >> 55 & 1 == 1, told, "page {page}: soft-dirty");
                assert_eq!(entry >> 57 & 1 == 0, told, "page {page}: write-protected");
            }
            page_out(&r);
        }
    }
}

/// System calls that write are tracked. In message mode, nothing tells the engine of such a call.
fn tracking_sees_what_the_kernel_writes() {
    let path = format!("/var/tmp/hugeswap-track-{}", std::process::id());
    std::fs::write(&path, vec![7; 2 * PAGE]).unwrap();
    let open = |flags| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).custom_flags(flags).open(&path)
    };
    let files = [open(0), open(libc::O_DIRECT)];
    std::fs::remove_file(&path).unwrap();
    for (by, grain) in [(Granularity::Units, UNIT), (Granularity::Pages, PAGE)] {
        let builder = builder(24).fault_mode(FaultMode::Message);
        let built = builder.build();
        let pool = built.unwrap_or_else(|e| skip(&format!("no message mode: {e}")));
        let mut r = pool.region(48 * MIB).unwrap();
        for file in &files {
            let Ok(file) = file else {
                println!("skipped: no direct I/O in /var/tmp");
                continue;
            };
            fill(&r, 1);
            // Of memory that is there, in swap, and read back by another page of it.
            for round in 0..3 {
                let epoch = r.track_writes(by).unwrap();
                let page = 700 + round * 512;
                if round > 0 {
                    page_out(&r);
                }
                if round > 1 {
                    assert_eq!(words(&r)[page * 512].load(Relaxed), value(page * 512, 1));
                }
                let to = &mut r.as_mut_slice()[page * PAGE..][..2 * PAGE];
                assert_eq!(file.read_at(to, 0).unwrap(), 2 * PAGE);
                let want = std::ops::Range {
                    start: page * PAGE / grain * grain,
                    end: (page * PAGE + 2 * PAGE).next_multiple_of(grain),
                };
                assert_eq!(r.changed_since(&epoch).unwrap(), [want], "{by:?} {round}");
            }
        }
        pool.audit().unwrap();
    }
}

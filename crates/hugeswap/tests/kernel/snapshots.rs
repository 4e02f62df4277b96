//! A region comes back from its snapshots as it was, and from nothing else.

use crate::util::*;
use hugeswap::{Advice, FaultMode, Granularity, Pool, Region, Snapshot};
use std::io::Cursor;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

tests! {
    #[long]
    snapshots_bring_a_region_back,
    #[long]
    snapshots_while_threads_write,
    snapshots_that_are_bad,
}

const PAGE: usize = 4096;

fn content(r: &Region) -> Vec<u64> {
    words(r).iter().map(|w| w.load(Relaxed)).collect()
}

fn same(r: &Region, want: &[u64], what: &str) {
    for (i, (w, want)) in words(r).iter().zip(want).enumerate() {
        assert_eq!(w.load(Relaxed), *want, "word {i}, {what}");
    }
}

fn restore(r: &mut Region, files: &[&Vec<u8>]) -> Result<(), String> {
    let mut files: Vec<_> = files.iter().map(Cursor::new).collect();
    r.restore(&mut files).map_err(|e| e.to_string())
}

fn change(r: &mut Region, round: u64) {
    let mut x = round * 77 + 5;
    for _ in 0..200 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let page = (x >> 8) as usize % (r.len() / PAGE);
        match x % 8 {
            0 => r.discard(page * PAGE, PAGE).unwrap(),
            1 => words(r)[page * 512..][..512]
                .iter()
                .for_each(|w| w.store(0, Relaxed)),
            _ => words(r)[page * 512 + (x >> 50) as usize % 512].store(x, Relaxed),
        }
    }
    let unit = round as usize * 3 % (r.len() / UNIT);
    r.discard(unit * UNIT, UNIT).unwrap();
    r.advise(0, r.len(), Advice::PageOut).unwrap();
}

fn round_trip(pool: &Pool, by: Option<Granularity>) {
    // (Its last page is not whole.)
    let mut r = pool.region(40 * MIB + 100).unwrap();
    let half = 24 * MIB / 8;
    words(&r)[..half]
        .iter()
        .enumerate()
        .for_each(|(i, w)| w.store(value(i, 1), Relaxed));
    r.as_mut_slice()[40 * MIB + 99] = 7;
    if let Some(by) = by {
        r.track_writes(by).unwrap();
    }
    let mut full = Vec::new();
    let mut last = r.snapshot(&mut full).unwrap();
    assert_eq!(last.bytes(), full.len() as u64);
    assert!(
        full.len() < 25 * MIB,
        "what was never written takes no bytes"
    );
    let (mut files, mut contents) = (vec![full], vec![content(&r)]);
    for round in 0..4 {
        if by.is_none() {
            let refused = r.snapshot_since(&last, &mut Vec::new()).unwrap_err();
            assert!(refused.to_string().contains("not tracked"), "{refused}");
            break;
        }
        change(&mut r, round);
        let mut more = Vec::new();
        last = r.snapshot_since(&last, &mut more).unwrap();
        assert_eq!(last.sequence() as usize, files.len());
        if by == Some(Granularity::Pages) {
            assert!(more.len() < 4 * MIB, "{} bytes", more.len());
        }
        files.push(more);
        contents.push(content(&r));
    }
    for (n, want) in contents.iter().enumerate() {
        let files: Vec<_> = files[..=n].iter().collect();
        restore(&mut r, &files).unwrap();
        same(&r, want, &format!("after {n} more"));
        assert_eq!(r.as_slice()[40 * MIB + 99], 7);
        let mut other = pool.region(r.len()).unwrap();
        restore(&mut other, &files).unwrap();
        same(&other, want, "in another region");
    }
    pool.audit().unwrap();
}

fn snapshots_bring_a_region_back() {
    need_pages();
    both_modes(|mode| {
        let pool = builder(24).fault_mode(mode).build().unwrap();
        for by in [None, Some(Granularity::Units), Some(Granularity::Pages)] {
            round_trip(&pool, by);
        }
    });
}

/// Each snapshot is made while threads write, so its pages are of different times. A last snapshot
/// without writes completes it.
fn snapshots_while_threads_write() {
    need_pages();
    both_modes(while_threads_write);
}

fn while_threads_write(mode: FaultMode) {
    for by in [Granularity::Units, Granularity::Pages] {
        let pool = builder(24).fault_mode(mode).build().unwrap();
        let mut r = pool.region(32 * MIB).unwrap();
        fill(&r, 1);
        r.track_writes(by).unwrap();
        let stop = AtomicBool::new(false);
        let mut files = Vec::new();
        let mut last: Option<Snapshot> = None;
        let mut take = |r: &Region, files: &mut Vec<Vec<u8>>| {
            let mut file = Vec::new();
            last = Some(match &last {
                Some(last) => r.snapshot_since(last, &mut file).unwrap(),
                None => r.snapshot(&mut file).unwrap(),
            });
            files.push(file);
        };
        std::thread::scope(|s| {
            let (region, stop) = (&r, &stop);
            s.spawn(move || {
                let mut x = 5u64;
                while !stop.load(Acquire) {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    words(region)[(x >> 8) as usize % (region.len() / 8)].store(x, Relaxed);
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            });
            for _ in 0..5 {
                take(region, &mut files);
            }
            stop.store(true, Release);
        });
        take(&r, &mut files);
        let want = content(&r);
        fill(&r, 2);
        restore(&mut r, &files.iter().collect::<Vec<_>>()).unwrap();
        same(&r, &want, "what it was in the end");
    }
}

fn snapshots_that_are_bad() {
    let pool = builder(64).build().unwrap();
    let mut r = pool.region(8 * MIB).unwrap();
    fill(&r, 1);
    r.track_writes(Granularity::Units).unwrap();
    let mut files = vec![Vec::new(); 3];
    let mut last = r.snapshot(&mut files[0]).unwrap();
    for (n, file) in files.iter_mut().enumerate().skip(1) {
        words(&r)[n * UNIT / 8].store(n as u64, Relaxed);
        last = r.snapshot_since(&last, file).unwrap();
    }
    fill(&r, 3);
    let mut refuse = |files: &[&Vec<u8>], why: &str| {
        let said = restore(&mut r, files).unwrap_err();
        assert!(said.contains(why) && !said.contains('\n'), "{why}: {said}");
        check(&r, 3);
    };
    let [full, one, two] = &files[..] else {
        unreachable!()
    };
    refuse(&[], "no snapshot");
    refuse(&[one], "full one first");
    refuse(&[full, two], "does not follow");
    refuse(&[full, one, one], "does not follow");
    refuse(&[full, two, one], "does not follow");
    refuse(&[full, full], "does not follow");
    refuse(&[&Vec::new()], "cut short");
    refuse(&[&vec![7; 1000]], "not a snapshot");
    for cut in [
        7,
        8,
        60,
        71,
        72,
        80,
        5000,
        full.len() - 33,
        full.len() - 32,
        full.len() - 1,
    ] {
        refuse(&[&full[..cut].to_vec()], "cut short");
        if let Some(part) = one.get(..cut) {
            refuse(&[full, &part.to_vec()], "cut short");
        }
    }
    let mut more = full.clone();
    more.push(0);
    refuse(&[&more], "altered");
    // Any bit, of the header, of a run's, of data, of the end's.
    for at in [
        13,
        20,
        40,
        50,
        57,
        70,
        73,
        81,
        89,
        97,
        104,
        5000,
        full.len() - 20,
        full.len() - 1,
    ] {
        let mut bad = full.clone();
        bad[at] ^= 0x10;
        let said = restore(&mut r, &[&bad]).unwrap_err();
        assert!(
            said.contains("altered") || said.contains("cut"),
            "{at}: {said}"
        );
        check(&r, 3);
    }
    let mut refuse = |file: &Vec<u8>, why: &str| {
        let said = restore(&mut r, &[file]).unwrap_err();
        assert!(said.contains(why), "{why}: {said}");
        check(&r, 3);
    };
    let mut version = full.clone();
    version[8] = 2;
    refuse(&version, "version 2");
    // A part of the one in the other.
    let mut mixed = full[..72].to_vec();
    mixed.extend_from_slice(&one[72..]);
    refuse(&mixed, "altered");
    let mut small = pool.region(6 * MIB).unwrap();
    let said = restore(&mut small, &[full]).unwrap_err();
    assert!(said.contains("8388608 bytes"), "{said}");
    restore(&mut r, &[full, one, two]).unwrap();
    let want: Vec<_> = (0..r.len() / 8)
        .map(|i| match i % (UNIT / 8) {
            0 if (1..3).contains(&(i * 8 / UNIT)) => (i * 8 / UNIT) as u64,
            _ => value(i, 1),
        })
        .collect();
    same(&r, &want, "what is not bad");
}

//! Whole units that the program has no access to: they come and go as others do, and no touch and
//! no call of the kernel's gets at what they hold.

use crate::util::*;
use hugeswap::FaultMode;
use hugeswap_engine::{Engine, Prot};
use hugeswap_policy::knobs::{Knob, swapin};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    access_none_is_written_out,
    access_none_is_not_opened_by_advice,
    access_none_stays_while_it_is_written_out,
    access_none_stays_over_a_fork,
}

/// Does the kernel read memory at an address for this program?
fn is_readable(at: usize) -> bool {
    let mut byte = 0u8;
    let [to, from] = [&raw mut byte as usize, at].map(|at| libc::iovec {
        iov_base: at as *mut _,
        iov_len: 1,
    });
    // SAFETY: what is read may be without access: then the call fails.
    unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) == 1 }
}

/// The first of the units from `at` on that is readable.
fn readable(at: usize, units: usize) -> Option<usize> {
    (0..units).find(|unit| is_readable(at + unit * UNIT + 5000))
}

/// Writes units, and takes all access from them. Some are in memory, and of these some watched.
fn write_and_close(engine: &Engine, at: usize, units: usize, byte: u8) {
    engine.protect(at, units * UNIT, Prot::ReadWrite).unwrap();
    for unit in 0..units {
        // SAFETY: mapped, writable.
        unsafe { std::ptr::write_bytes((at + unit * UNIT) as *mut u8, byte, UNIT) };
    }
    engine.protect(at, units * UNIT, Prot::None).unwrap();
}

/// Gives access again, and looks whether all is as it was written.
fn open_and_check(engine: &Engine, at: usize, units: usize, byte: u8) {
    engine.protect(at, units * UNIT, Prot::ReadWrite).unwrap();
    // SAFETY: readable again.
    let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, units * UNIT) };
    assert!(bytes.iter().all(|&b| b == byte));
}

/// A write of 2 MiB takes up to 15 ms here, while another thread asks for the bytes.
fn access_none_stays_while_it_is_written_out() {
    const UNITS: usize = 4;
    let slow = [(Knob::FaultDelay, 1_000_000), (Knob::FaultSeed, 3)];
    let engine = engine(32, FaultMode::Signal, &slow);
    let at = engine.map(UNITS * UNIT, UNIT, true).unwrap();
    let closed = Mutex::new(false);
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        let asks = s.spawn(|| {
            while !over.load(Relaxed) {
                let closed = closed.lock().unwrap();
                if *closed && let Some(unit) = readable(at, UNITS) {
                    return Some(unit);
                }
                drop(closed);
                std::thread::yield_now();
            }
            None
        });
        for round in 1..12 {
            write_and_close(engine, at, UNITS, round);
            *closed.lock().unwrap() = true;
            engine.pageout(at, UNITS * UNIT);
            *closed.lock().unwrap() = false;
            open_and_check(engine, at, UNITS, round);
        }
        over.store(true, Relaxed);
        assert_eq!(asks.join().unwrap(), None, "a unit was readable");
    });
    let out = hugeswap_policy::counters::Counter::PswpOut as usize;
    let out = engine.pool().report().counters[out];
    assert!(out >= 11 * UNITS as u64 * 512, "{out} pages were written");
    engine.audit().unwrap();
    // SAFETY: nothing of the engine's is used any more.
    unsafe { engine.stop() };
}

fn access_none_stays_over_a_fork() {
    const UNITS: usize = 12;
    let engine = engine(32, FaultMode::Signal, &[]);
    let at = engine.map(UNITS * UNIT, UNIT, true).unwrap();
    let other = engine.map(6 * UNIT, UNIT, true).unwrap();
    for round in 1..10 {
        write_and_close(engine, at, UNITS, round);
        write_and_close(engine, other, 6, round);
        // SAFETY: the child asks the kernel and exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let closed = readable(at, UNITS).is_none();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!closed)) };
        }
        assert_eq!(readable(at, UNITS), None, "round {round}");
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0, "readable in the child of round {round}");
        open_and_check(engine, at, UNITS, round);
        open_and_check(engine, other, 6, round);
    }
    // SAFETY: nothing of the engine's is used any more.
    unsafe { engine.stop() };
}

fn access_none_is_written_out() {
    let engine = engine(32, hugeswap::FaultMode::Signal, &[]);
    let len = 24 * MIB;
    let hidden = engine.map(len, UNIT, true).unwrap();
    // SAFETY: just mapped.
    unsafe { std::ptr::write_bytes(hidden as *mut u8, 0x5a, len) };
    engine.protect(hidden, len, Prot::None).unwrap();
    let other = engine.map(96 * MIB, UNIT, true).unwrap();
    // SAFETY: just mapped.
    unsafe { std::ptr::write_bytes(other as *mut u8, 0xa5, 96 * MIB) };
    engine.protect(hidden, len, Prot::ReadWrite).unwrap();
    // SAFETY: readable again.
    let back = unsafe { std::slice::from_raw_parts(hidden as *const u8, len) };
    assert!(back.iter().all(|&b| b == 0x5a));
    assert!(
        engine.pool().report().counters[0] > 0,
        "nothing came back from swap"
    );
    // SAFETY: nothing of the engine's is used any more.
    unsafe { engine.stop() };
}

/// The kernel's access to the mapping of an address: `rw-p` and the like.
fn mapped_as(at: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let bound = |s| usize::from_str_radix(s, 16).ok();
        (bound(from)? <= at && at < bound(to)?).then(|| rest[..4].to_owned())
    };
    maps.lines().find_map(of).expect("it is mapped")
}

/// Memory in swap stays without access after advice that parts of it are wanted soon or can be
/// given up.
fn access_none_is_not_opened_by_advice() {
    need_pages();
    for swapin in [swapin::NEVER, swapin::AUTO] {
        let engine = engine(
            32,
            hugeswap::FaultMode::Signal,
            &[(Knob::ThpSwapin, swapin)],
        );
        let at = engine.map(3 * UNIT, UNIT, true).unwrap();
        // SAFETY: just mapped.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0x5a, 3 * UNIT) };
        engine.pageout(at, 3 * UNIT);
        engine.protect(at, 3 * UNIT, Prot::None).unwrap();
        // The end of one unit and the beginning of the next.
        engine.willneed(at + UNIT - 8 * 4096, 16 * 4096);
        engine.discard(at + 2 * UNIT + 4096, 4096).unwrap();
        for unit in 0..3 {
            assert_eq!(mapped_as(at + unit * UNIT), "---p", "unit {unit}");
        }
        engine.audit().unwrap();
        engine.protect(at, 3 * UNIT, Prot::ReadWrite).unwrap();
        // SAFETY: readable again.
        let bytes = unsafe { std::slice::from_raw_parts(at as *const u8, 3 * UNIT) };
        let gone = 2 * UNIT + 4096..2 * UNIT + 8192;
        let want = |i| if gone.contains(&i) { 0 } else { 0x5a };
        assert!(bytes.iter().enumerate().all(|(i, &b)| b == want(i)));
        // SAFETY: nothing of the engine's is used any more.
        unsafe { engine.stop() };
    }
}

//! Small mappings of programs that were loaded, cut one after the other from units of 2 MiB: their allocators map what
//! they would take from the break, by pages. So the heap is in whole units, and most of its growth needs no engine.
//!
//! What is left of a unit is not the program's: before it asks for anything there, or unmaps it, that
//! is given up.
//!
//! (Other programs map more than they want, and unmap what is not aligned, as Ruby does: that would stay empty here.)

use crate::state;
use hugeswap_engine::{Engine, MapError};
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;
const UNIT: usize = 2 << 20;
/// Longer ones are mapped by themselves.
const LONGEST: usize = UNIT / 8;

/// Where the next one goes, up to the end of its unit; at the start of a unit: there is none. (A child that is forked
/// has its own memory there.)
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The end of what is left of a unit at `next`.
fn end(next: usize) -> usize {
    next.next_multiple_of(UNIT)
}

/// Maps `len` bytes (whole pages) of managed memory that reads as zero.
pub fn map(engine: &Engine, len: usize) -> Result<usize, MapError> {
    let len = len.next_multiple_of(PAGE);
    if len == 0 || len > LONGEST {
        return engine.map(len, PAGE, true);
    }
    let after = |next: usize| (next + len <= end(next)).then_some(next + len);
    if let Ok(at) = NEXT.fetch_update(Relaxed, Relaxed, after) {
        return Ok(at);
    }
    let Ok(unit) = engine.map(UNIT, UNIT, true) else {
        // (There may be room for less.)
        return engine.map(len, PAGE, true);
    };
    give_up(engine, NEXT.swap(unit + len, Relaxed));
    Ok(unit)
}

/// The program makes a call on these addresses: what it did not map is not mapped.
pub fn leave(range: &Range<usize>) {
    let next = NEXT.load(Relaxed);
    if range.start < end(next)
        && range.end > next
        && next < end(next)
        && let Some(engine) = state::engine()
    {
        give_up(engine, NEXT.swap(0, Relaxed));
    }
}

/// Unmaps what is left of a unit from `left` on.
fn give_up(engine: &Engine, left: usize) {
    if left < end(left) {
        let _ = engine.try_unmap(left, end(left) - left);
    }
}

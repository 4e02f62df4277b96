//! Calls on a range of addresses, made part by part: a range may be partly in shared memory and
//! partly managed, the kernel's or free, and reach over parts of the window.

use crate::mmap::pages;
use crate::owners::keep;
use crate::real::{self, set_errno};
use crate::runs::{Owner, runs};
use crate::{extent, shared, state};
use hugeswap_engine::Engine;
use libc::c_int;
use std::ops::Range;

/// The engine and the range in whole pages, if `addr` is in a shared region that the engine
/// manages.
pub fn shared(addr: usize, len: usize) -> Option<(&'static Engine, Range<usize>)> {
    if !extent::in_shared(addr) || !shared::is_managed(addr) {
        return None;
    }
    Some((state::engine()?, addr..addr + pages(addr, len)?))
}

/// The engine and the length in whole pages, if the range meets the window.
pub fn managed(addr: usize, len: usize) -> Option<(&'static Engine, usize)> {
    let engine = state::engine()?;
    let len = pages(addr, len)?;
    let window = engine.window_at(addr, len);
    (addr < window.end && addr + len > window.start).then_some((engine, len))
}

/// Makes a call on each part of a range that may reach from other memory into the window or shared
/// memory, or over several parts or regions of these: each by itself, and what is before and behind.
/// `holes`: pages that are not mapped do not stop the call. It ends with the first error; the error is
/// ENOMEM if a page was not mapped.
pub fn by_parts(
    at: usize,
    len: usize,
    holes: bool,
    mut call: impl FnMut(usize, usize) -> c_int,
) -> c_int {
    if !extent::crosses_border(at, len) {
        return by_regions(at, len, holes, call);
    }
    let mut hole = false;
    for (at, len) in extent::pieces(at, len) {
        if by_regions(at, len, holes, &mut call) != 0 {
            if !holes || real::errno() != libc::ENOMEM {
                return -1;
            }
            hole = true;
        }
    }
    if hole { error(libc::ENOMEM) } else { 0 }
}

/// [`by_parts`] of a range that is in one part of the window, or in none.
fn by_regions(
    at: usize,
    len: usize,
    holes: bool,
    mut call: impl FnMut(usize, usize) -> c_int,
) -> c_int {
    let managed = extent::shared_range();
    let base = managed.start;
    let end = match pages(at, len) {
        Some(whole) if at + whole > base && at < managed.end => at + whole,
        _ => return call(at, len),
    };
    let (mut next, mut hole) = (at, false);
    while next < end {
        let part = match next {
            before if before < base => Ok(base),
            behind if behind >= managed.end => Ok(end),
            inside => shared::end_of_region(inside),
        };
        let (Ok(to) | Err(to)) = part.map_err(|to| to.min(managed.end));
        let to = to.min(end);
        // (The length need not be one of whole pages.)
        let rest = if to == end {
            at + len - next
        } else {
            to - next
        };
        if part.is_err() {
            hole = true;
        } else if call(next, rest) != 0 {
            if !holes || real::errno() != libc::ENOMEM {
                return -1;
            }
            hole = true;
        }
        if hole && !holes {
            break;
        }
        next = to;
    }
    if hole { error(libc::ENOMEM) } else { 0 }
}

/// Applies a call to a range of one part of the window, or one that meets it, owner by owner in address
/// order, as the kernel does: `ours` to what is managed, `reserved` to what is reserved, `kernels` to what the kernel
/// owns and to what is outside the window. `holes`: pages that are not mapped do not stop the call.
/// It ends with the first error; the error is ENOMEM if a page was not mapped.
pub fn each(
    engine: &Engine,
    at: usize,
    len: usize,
    holes: bool,
    mut kernels: impl FnMut(usize, usize) -> c_int,
    mut ours: impl FnMut(usize, usize) -> c_int,
    mut reserved: impl FnMut(usize, usize) -> c_int,
) -> c_int {
    let _kept = keep();
    let window = engine.window_at(at, len);
    let (from, to) = (at.max(window.start), (at + len).min(window.end));
    if at < from {
        let done = kernels(at, from - at);
        if done != 0 {
            return done;
        }
    }
    let mut next = from;
    let mut hole = false;
    for run in runs(engine, from, to - from) {
        hole |= run.at > next;
        next = run.at + run.len;
        if hole && !holes {
            break;
        }
        let done = match run.owner {
            Owner::Kernel => kernels(run.at, run.len),
            Owner::Engine => ours(run.at, run.len),
            Owner::Reserved => reserved(run.at, run.len),
        };
        if done != 0 {
            return done;
        }
    }
    hole |= next < to;
    if to < at + len && (holes || !hole) {
        let done = kernels(to, at + len - to);
        if done != 0 {
            return done;
        }
    }
    if hole { error(libc::ENOMEM) } else { 0 }
}

/// -1, with errno.
pub fn error(e: c_int) -> c_int {
    set_errno(e);
    -1
}

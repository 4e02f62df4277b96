//! The access (read, write, execute) that a program has to memory in the window. The engine knows
//! it for managed memory; /proc/self/maps tells it for memory that was handed to the kernel.

use crate::advise::protect_managed;
use crate::marks::units;
use crate::mmap::{RW, kernel};
use crate::real;
use crate::runs::{Owner, Run, runs};
use hugeswap_engine::{Engine, Prot};
use hugeswap_sys::Errno;
use hugeswap_sys::maps::{Mapping, Text};
use libc::c_int;
use std::ops::Range;

const PAGE: usize = 4096;
const UNIT: usize = 2 << 20;

/// The access to `[at, at+len)`, all of which is mapped; `None` if it is not the same everywhere,
/// or cannot be determined.
pub fn of(engine: &Engine, at: usize, len: usize) -> Option<c_int> {
    let mut all = None;
    let mut same = |prot: c_int| *all.get_or_insert(prot) == prot;
    let mut maps: Option<Text> = None;
    for run in runs(engine, at, len) {
        let known = match run.owner {
            Owner::Kernel => None,
            Owner::Reserved => Some(libc::PROT_NONE),
            Owner::Engine => Some(bits(engine.access(run.at, run.len)?)),
        };
        if let Some(prot) = known {
            if !same(prot) {
                return None;
            }
            continue;
        }
        if maps.is_none() {
            maps = Text::read().ok();
        }
        if !maps
            .as_ref()?
            .mappings(run.at, run.len)
            .all(|m| same(m.prot))
        {
            return None;
        }
    }
    all
}

/// An access in the kernel's terms.
pub fn bits(access: Prot) -> c_int {
    match access {
        Prot::None => libc::PROT_NONE,
        Prot::Read => libc::PROT_READ,
        Prot::ReadWrite => RW,
    }
}

/// Gives the program read and write access to `[at, at+len)`. After an error, a part of the range
/// may have this access already.
pub fn open(engine: &Engine, at: usize, len: usize) -> Result<(), Errno> {
    for run in runs(engine, at, len) {
        let a = [run.at, run.len, RW as usize, 0, 0, 0];
        let done = match run.owner {
            Owner::Kernel => kernel(libc::SYS_mprotect, a) as c_int,
            Owner::Engine => protect_managed(engine, run.at, run.len, RW),
            Owner::Reserved => {
                engine.commit(run.at, run.len)?;
                0
            }
        };
        if done != 0 {
            return Err(Errno(real::errno()));
        }
    }
    Ok(())
}

/// The mapped parts of `[at, at+len)`, in order, as address and length in bytes: each has one owner,
/// and one access; `None` if that cannot be determined.
pub fn parts(engine: &Engine, at: usize, len: usize) -> Option<Vec<(usize, usize)>> {
    let mut all: Vec<(usize, usize)> = Vec::new();
    for Run { at, len, owner } in runs(engine, at, len) {
        match owner {
            Owner::Reserved => all.push((at, len)),
            Owner::Kernel => {
                for m in mappings(at, len)? {
                    let from = m.start.max(at);
                    all.push((from, m.end.min(at + len) - from));
                }
            }
            Owner::Engine => {
                let spans = spans(engine, at..at + len).into_iter();
                all.extend(spans.map(|(span, _)| (span.start, span.len())));
            }
        }
    }
    Some(all)
}

/// The parts of a managed range to which the program has one access each, in order.
pub fn spans(engine: &Engine, range: Range<usize>) -> Vec<(Range<usize>, Prot)> {
    let mut all: Vec<(Range<usize>, Prot)> = Vec::new();
    let mut add = |span: Range<usize>, access| match all.last_mut() {
        Some((last, same)) if *same == access && last.end == span.start => last.end = span.end,
        _ => all.push((span, access)),
    };
    if let Some(access) = engine.access(range.start, range.len()) {
        return vec![(range, access)];
    }
    for unit in units(range.start, range.end) {
        let part = unit.max(range.start)..(unit + UNIT).min(range.end);
        if let Some(access) = engine.access(part.start, part.len()) {
            add(part, access);
            continue;
        }
        for page in part.step_by(PAGE) {
            // (That of one page is known, unless it has just been unmapped.)
            let access = engine.access(page, PAGE).unwrap_or(Prot::None);
            add(page..page + PAGE, access);
        }
    }
    all
}

/// The mappings that `[at, at+len)` meets, in order; `None` if they cannot be determined.
pub fn mappings(at: usize, len: usize) -> Option<Vec<Mapping>> {
    Some(Text::read().ok()?.mappings(at, len).collect())
}

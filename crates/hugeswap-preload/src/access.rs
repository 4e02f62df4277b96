//! The access (read, write, execute) that a program has to memory in the window. The engine knows
//! it for managed memory; /proc/self/maps tells it for memory that was handed to the kernel.

use crate::advise::protect_managed;
use crate::mmap::{RW, kernel};
use crate::real;
use crate::runs::{Owner, Run, runs};
use hugeswap_engine::{Engine, Prot};
use hugeswap_sys::Errno;
use hugeswap_sys::maps::{Mapping, Text};
use libc::c_int;

const PAGE: usize = 4096;

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
            Owner::Engine => Some(match engine.access(run.at, run.len)? {
                Prot::None => libc::PROT_NONE,
                Prot::Read => libc::PROT_READ,
                Prot::ReadWrite => RW,
            }),
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
    let mut all: Vec<(usize, usize, Option<Prot>)> = Vec::new();
    for Run { at, len, owner } in runs(engine, at, len) {
        match owner {
            Owner::Reserved => all.push((at, len, None)),
            Owner::Kernel => {
                for m in mappings(at, len)? {
                    let from = m.start.max(at);
                    all.push((from, m.end.min(at + len) - from, None));
                }
            }
            Owner::Engine => {
                let steps = match engine.access(at, len) {
                    Some(_) => len,
                    None => PAGE,
                };
                let first = all.len();
                for page in (at..at + len).step_by(steps) {
                    let access = engine.access(page, steps);
                    match all[first..].last_mut() {
                        Some(last) if last.2 == access => last.1 += steps,
                        _ => all.push((page, steps, access)),
                    }
                }
            }
        }
    }
    Some(all.into_iter().map(|(at, len, _)| (at, len)).collect())
}

/// The mappings that `[at, at+len)` meets, in order; `None` if they cannot be determined.
pub fn mappings(at: usize, len: usize) -> Option<Vec<Mapping>> {
    Some(Text::read().ok()?.mappings(at, len).collect())
}

//! The access (read, write, execute) that a program has to memory in the window. The engine knows
//! it for managed memory; /proc/self/maps tells it for memory that was handed to the kernel.

use crate::advise::protect_managed;
use crate::mmap::{RW, kernel};
use crate::real;
use crate::runs::{Owner, runs};
use hugeswap_engine::{Engine, Prot};
use hugeswap_sys::Errno;
use hugeswap_sys::maps::{Mapping, Text};
use libc::c_int;

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

/// The mappings that `[at, at+len)` meets, in order; `None` if they cannot be determined.
pub fn mappings(at: usize, len: usize) -> Option<Vec<Mapping>> {
    Some(Text::read().ok()?.mappings(at, len).collect())
}

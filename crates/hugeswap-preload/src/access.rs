//! The access (read, write, execute) that a program has to memory in the window. The engine knows
//! it for managed memory; /proc/self/maps tells it for memory that was handed to the kernel.

use crate::advise::protect_managed;
use crate::mmap::{RW, kernel};
use crate::real;
use crate::runs::{Owner, runs};
use hugeswap_engine::{Engine, Prot};
use hugeswap_sys::{Errno, fs};
use libc::c_int;

/// The access to `[at, at+len)`, all of which is mapped; `None` if it is not the same everywhere,
/// or cannot be determined.
pub fn of(engine: &Engine, at: usize, len: usize) -> Option<c_int> {
    let mut all = None;
    let mut same = |prot: c_int| *all.get_or_insert(prot) == prot;
    let mut maps: Option<Vec<u8>> = None;
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
            maps = Some(read_maps()?);
        }
        let text = maps.as_deref().unwrap_or_default();
        if !mappings_in(text, run.at, run.len).all(|m| same(m.prot)) {
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

fn read_maps() -> Option<Vec<u8>> {
    let fd = fs::open(c"/proc/self/maps", libc::O_RDONLY | libc::O_CLOEXEC, 0).ok()?;
    let mut text = Vec::new();
    loop {
        let at = text.len();
        text.resize(at + (64 << 10), 0);
        let room = text.as_mut_ptr() as usize + at;
        let a = [fd as usize, room, 64 << 10, 0, 0, 0];
        // (A raw system call: what the wrappers do for the program's descriptors must not be done
        // for ours.)
        let n = kernel(libc::SYS_read, a);
        text.truncate(at + if n == usize::MAX { 0 } else { n });
        if n == 0 || n == usize::MAX {
            fs::close(fd);
            return (n == 0).then_some(text);
        }
    }
}

/// A mapping, as /proc/self/maps tells it.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub prot: c_int,
    /// Private, and of no file.
    pub is_anonymous: bool,
}

/// The mappings that `[at, at+len)` meets, in order; `None` if they cannot be determined.
pub fn mappings(at: usize, len: usize) -> Option<Vec<Mapping>> {
    Some(mappings_in(&read_maps()?, at, len).collect())
}

fn mappings_in(text: &[u8], at: usize, len: usize) -> impl Iterator<Item = Mapping> {
    let lines = text.split(|&b| b == b'\n').filter_map(mapping);
    lines.filter(move |m| m.start < at + len && m.end > at)
}

/// The mapping that a line of /proc/self/maps tells; `None` if it is not such a line.
fn mapping(line: &[u8]) -> Option<Mapping> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |s| usize::from_str_radix(s, 16).ok();
    let access = words.next()?;
    let mut prot = 0;
    for (has, flag) in access.bytes().zip([
        (b'r', libc::PROT_READ),
        (b'w', libc::PROT_WRITE),
        (b'x', libc::PROT_EXEC),
    ]) {
        if has == flag.0 {
            prot |= flag.1;
        }
    }
    // (Offset and device come before the inode.)
    let inode = words.nth(2)?;
    Some(Mapping {
        start: number(start)?,
        end: number(end)?,
        prot,
        is_anonymous: access.ends_with('p') && inode == "0",
    })
}

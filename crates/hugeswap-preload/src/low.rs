//! Mappings that are to be below 2 GiB (MAP_32BIT).
//!
//! The window has a part there in a process that asked for such a mapping before it joined the pool.
//! In that part nothing is mapped but what is asked for so. What is not managed (code, files, small
//! pieces) the kernel places, in the 256 MiB of such addresses that are not the window's.

use crate::mmap::{NEVER, RW, placed};
use crate::{real, state};
use hugeswap_policy::knobs::Knob;
use libc::{c_int, c_void, off_t};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The program has asked for such a mapping.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// The end of the addresses that the kernel takes for such a mapping.
pub const END: usize = 2 << 30;

/// How often another thread may take the addresses that were found free a moment ago.
const TRIES: u32 = 16;

/// Is the window to have a part below 2 GiB?
pub fn is_wanted() -> bool {
    IS_WANTED.load(Relaxed)
}

/// Makes a mapping that is to be below 2 GiB, wherever there; `None`: it is the kernel's.
pub fn map(len: usize, prot: c_int, flags: c_int, fd: c_int, offset: off_t) -> Option<*mut c_void> {
    IS_WANTED.store(true, Relaxed);
    let knob = match prot {
        RW => Knob::MmapMin,
        libc::PROT_NONE => Knob::ReserveMin,
        _ => return None,
    };
    const PLAIN: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    const OTHER: c_int = NEVER & !libc::MAP_32BIT | libc::MAP_SHARED | PLAIN;
    if flags & OTHER != PLAIN || !state::may_manage_mapping(len) {
        return None;
    }
    let engine = state::engine_for(len, knob)?;
    let errno = real::errno();
    let flags = flags & !libc::MAP_32BIT | libc::MAP_FIXED_NOREPLACE;
    for _ in 0..TRIES {
        let Some(at) = engine.hole_in_low(len) else {
            break;
        };
        let made = placed(engine, at, len, prot, flags, fd, offset);
        if made != Some(libc::MAP_FAILED) || real::errno() != libc::EEXIST {
            return made;
        }
        real::set_errno(errno);
    }
    None
}

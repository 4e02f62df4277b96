//! Maps the segments of an executable, and of its dynamic loader, as the kernel does.

use super::elf::{Image, Segment};
use super::{LOW_END, MOVABLE, MOVABLE_END, MOVABLE_PLACES};
use hugeswap_sys::raw::call;
use hugeswap_sys::{Errno, Result, mm};

const PAGE: usize = 4096;

/// Maps the segments of `fd`; returns what is to be added to the addresses in the file. EEXIST: something else is at
/// those addresses. EFBIG: they do not lie, or have no room, where the filter knows a loaded program's calls from
/// others. `random` chooses the place of an image that may be anywhere; `is_interpreter`: it is none that a program has.
pub fn map(fd: i32, image: &Image, random: usize, is_interpreter: bool) -> Result<usize> {
    let (Some(first), Some(last)) = (image.segments.first(), image.segments.last()) else {
        return Err(Errno(libc::ENOEXEC));
    };
    let low = first.at as usize & !(PAGE - 1);
    let high = (last.at + last.len).next_multiple_of(PAGE as u64) as usize;
    const ROOM: usize = (MOVABLE_END - MOVABLE - 2 * MOVABLE_PLACES * PAGE) / 2;
    let fits = match image.movable {
        true => high - low <= ROOM,
        false => high <= LOW_END,
    };
    if !fits {
        return Err(Errno(libc::EFBIG));
    }
    let offset = random % MOVABLE_PLACES * PAGE;
    // Programs from below, their loaders from above.
    let place = match is_interpreter {
        true => MOVABLE_END - (high - low) - offset,
        false => MOVABLE + offset,
    };
    let base = if image.movable {
        place.wrapping_sub(low)
    } else {
        0
    };
    // All of it at once, so that nothing of ours comes to lie between two segments.
    // SAFETY: a new mapping, only where nothing is.
    unsafe { mm::map_anon(base.wrapping_add(low), high - low, mm::PROT_NONE, false) }?;
    let mut end = base.wrapping_add(low);
    for segment in &image.segments {
        let at = base.wrapping_add(segment.at as usize);
        let from = at & !(PAGE - 1);
        // SAFETY: part of the mapping made above: between two segments is nothing.
        unsafe {
            if end < from {
                mm::unmap(end, from - end)?;
            }
            map_segment(fd, at, segment)?;
        }
        end = (at + segment.len as usize).next_multiple_of(PAGE);
    }
    Ok(base)
}

/// # Safety
/// The pages of the segment are nobody's.
unsafe fn map_segment(fd: i32, at: usize, s: &Segment) -> Result<()> {
    let from = at & !(PAGE - 1);
    let filled_to = at + s.filled as usize;
    let end = (at + s.len as usize).next_multiple_of(PAGE);
    let mut mapped_to = from;
    let kind = libc::MAP_PRIVATE | libc::MAP_FIXED;
    if s.filled > 0 {
        mapped_to = filled_to.next_multiple_of(PAGE);
        let a = [
            from,
            mapped_to - from,
            s.access as usize,
            kind as usize,
            fd as usize,
            s.offset as usize & !(PAGE - 1),
        ];
        // SAFETY: the caller's promise.
        unsafe { call(libc::SYS_mmap, a) }?;
        let writable = s.access & libc::PROT_WRITE != 0;
        if writable && s.len > s.filled {
            // SAFETY: the rest of the last page, mapped writable a moment ago.
            unsafe { (filled_to as *mut u8).write_bytes(0, mapped_to - filled_to) };
        }
    }
    if mapped_to < end {
        let anonymous = kind | libc::MAP_ANONYMOUS;
        let a = [
            mapped_to,
            end - mapped_to,
            s.access as usize,
            anonymous as usize,
            usize::MAX,
            0,
        ];
        // SAFETY: the caller's promise.
        unsafe { call(libc::SYS_mmap, a) }?;
    }
    Ok(())
}

//! Addresses for the mappings of hugeswap itself, apart from those where the kernel puts the
//! mappings of a program.
//!
//! A program with one thread may rely on memory that it unmapped staying unmapped until it maps
//! something itself: it maps over it again (MAP_FIXED), or asks for it by a hint. Threads of
//! hugeswap map stacks, buffers and rings at any time. These mappings therefore never take
//! addresses that a program may have used: they come from a range of their own, in which each
//! address is used once before any is used again.

use crate::{Errno, Result, mm, raw};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// First address of the range. (The windows of `hugeswap run` end well below.)
pub const BASE: usize = 0x4a00_0000_0000;
/// Length of the range in bytes.
pub const LEN: usize = 0x0100_0000_0000;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
/// Number of used places that are tried before the kernel chooses the address.
const TRIES: usize = 64;

/// Offset from [`BASE`] of the next mapping; 0 before the first. (A forked child goes on where its
/// parent was.)
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// The offset of a mapping of `len` bytes: a multiple of 2 MiB if it is as large, of a page
/// otherwise.
fn take(len: usize) -> usize {
    let align = if len >= HUGE { HUGE } else { PAGE };
    let fits = |from: usize| {
        let at = from.next_multiple_of(align);
        if at + len <= LEN { at } else { 0 }
    };
    let before = NEXT.fetch_update(Relaxed, Relaxed, |next| {
        Some(fits(first(next)) + len.next_multiple_of(PAGE))
    });
    fits(first(before.unwrap_or_else(|next| next)))
}

/// Chooses the place of the first mapping by the kernel's randomization of this object.
fn first(next: usize) -> usize {
    match next {
        0 => (&raw const NEXT).addr() % (LEN / 2) / PAGE * PAGE,
        _ => next,
    }
}

/// Makes a mapping at an address of this range, or at one that the kernel chooses if the range has
/// none.
pub(crate) fn map(len: usize, prot: u32, flags: i32, fd: i32, offset: usize) -> Result<usize> {
    let mmap = |at: usize, flags: i32| {
        // SAFETY: a new mapping that replaces nothing disturbs nothing.
        unsafe {
            raw::call(
                libc::SYS_mmap,
                [at, len, prot as usize, flags as usize, fd as usize, offset],
            )
        }
    };
    for _ in 0..TRIES {
        if len > LEN / 2 {
            break;
        }
        match mmap(BASE + take(len), flags | libc::MAP_FIXED_NOREPLACE) {
            Err(Errno::EEXIST) => {}
            // The address space ends below, or the range is used up: the error is the one for the
            // kernel's own choice.
            Err(_) => break,
            made => return made,
        }
    }
    mmap(0, flags)
}

/// Moves a mapping that the kernel has just made at a place of its choice to this range.
///
/// # Safety
/// Nobody may know the old address.
pub(crate) unsafe fn adopt(at: usize, len: usize) -> Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let to = map(len, mm::PROT_NONE, flags, -1, 0)?;
    let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as usize;
    // SAFETY: the mapping that is replaced was made above.
    let moved = unsafe { raw::call(libc::SYS_mremap, [at, len, len, flags, to, 0]) };
    moved.inspect_err(|_| {
        // SAFETY: as above.
        let _ = unsafe { mm::unmap(to, len) };
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_not_used_again_at_once() {
        let one = mm::map_own(3 * PAGE, mm::PROT_RW).unwrap();
        assert!((BASE..BASE + LEN).contains(&one));
        // SAFETY: just mapped, unused.
        unsafe { mm::unmap(one, 3 * PAGE) }.unwrap();
        let two = mm::map_own(PAGE, mm::PROT_RW).unwrap();
        assert_ne!(one, two);
        let huge = mm::map_own(HUGE, mm::PROT_RW).unwrap();
        assert_eq!(huge % HUGE, 0);
        // SAFETY: mapped above, unused.
        unsafe {
            mm::unmap(two, PAGE).unwrap();
            mm::unmap(huge, HUGE).unwrap();
        }
    }
}

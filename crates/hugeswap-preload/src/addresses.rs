//! System calls on the address space that a program makes by number, or that the filter sent back: those that
//! concern managed addresses go the way of the C library's functions of the same names.

use crate::static_program::attached;
use crate::{advise, cut, extent, locked, mmap, mremap, real, shm};
use libc::{c_int, c_uchar, c_uint, c_void, off_t};
use std::ops::Range;

/// The calls, and which of their arguments are addresses, a bit each.
pub static CALLS: &[(i64, u8)] = &[
    (libc::SYS_mprotect, 0b1),
    (libc::SYS_madvise, 0b1),
    (libc::SYS_mremap, 0b1_0001),
    (libc::SYS_mmap, 0b1),
    (libc::SYS_munmap, 0b1),
    (libc::SYS_msync, 0b1),
    (libc::SYS_mlock, 0b1),
    (libc::SYS_mlock2, 0b1),
    (libc::SYS_munlock, 0b1),
    (libc::SYS_pkey_mprotect, 0b1),
    (libc::SYS_mincore, 0b101),
    (libc::SYS_shmat, 0b10),
    (libc::SYS_shmdt, 0b1),
];

/// The raw answer to such a call; `None`: it is another one, or not about managed addresses.
///
/// # Safety
/// As for the call.
pub unsafe fn by_number(nr: i64, a: [usize; 6]) -> Option<isize> {
    let &(_, mask) = CALLS.iter().find(|c| c.0 == nr)?;
    // (What mincore writes to is no place that is asked about.)
    let mask = if nr == libc::SYS_mincore { 1 } else { mask };
    let end = |i: usize| match nr {
        libc::SYS_shmat | libc::SYS_shmdt => a[i].saturating_add(1),
        libc::SYS_mremap if i == 4 => a[4].saturating_add(a[2].max(1)),
        _ => a[i].saturating_add(a[1].max(1)),
    };
    let mut addresses = (0..6).filter(|i| mask & 1 << i != 0 && a[*i] != 0);
    if !addresses.any(|i| extent::meets_managed(a[i], end(i) - a[i])) {
        return None;
    }
    // SAFETY: passed on.
    Some(unsafe { call(nr, a) })
}

/// The addresses that a call of [`CALLS`] may change, or ask about.
fn ranges(nr: i64, a: &[usize; 6]) -> [Range<usize>; 2] {
    /// Of a segment, which has the length that it has.
    const SEGMENT: usize = 1 << 40;
    let of = |at: usize, len: usize| at..at.saturating_add(len);
    match nr {
        libc::SYS_shmat => [of(a[1], SEGMENT), 0..0],
        libc::SYS_shmdt => [of(a[0], SEGMENT), 0..0],
        libc::SYS_mremap => [of(a[0], a[1].max(a[2])), of(a[4], a[2])],
        _ => [of(a[0], a[1]), 0..0],
    }
}

/// The raw answer to a call of [`CALLS`], whatever addresses it concerns.
///
/// # Safety
/// As for the call.
pub unsafe fn call(nr: i64, a: [usize; 6]) -> isize {
    let ranges = ranges(nr, &a);
    attached::note_change(nr, &ranges);
    ranges.iter().for_each(cut::leave);
    let errno = real::errno();
    let at = a[0] as *mut c_void;
    let (int, long) = (|i: usize| a[i] as c_int, |r: c_int| r as usize);
    // SAFETY: passed on.
    let r = unsafe {
        match nr {
            libc::SYS_mmap => mmap::mmap(at, a[1], int(2), int(3), int(4), a[5] as off_t) as usize,
            libc::SYS_munmap => long(mmap::munmap(at, a[1])),
            libc::SYS_mremap => {
                mremap::mremap(at, a[1], a[2], int(3), a[4] as *mut c_void) as usize
            }
            libc::SYS_mprotect => long(advise::mprotect(at, a[1], int(2))),
            libc::SYS_pkey_mprotect => long(advise::pkey_mprotect(at, a[1], int(2), int(3))),
            libc::SYS_madvise => long(advise::madvise(at, a[1], int(2))),
            libc::SYS_msync => long(advise::msync(at, a[1], int(2))),
            libc::SYS_mlock => long(locked::mlock(at, a[1])),
            libc::SYS_mlock2 => long(locked::mlock2(at, a[1], a[2] as c_uint)),
            libc::SYS_munlock => long(locked::munlock(at, a[1])),
            libc::SYS_mincore => long(advise::mincore(at, a[1], a[2] as *mut c_uchar)),
            libc::SYS_shmat => shm::shmat(int(0), a[1] as *const c_void, int(2)) as usize,
            _ => long(shm::shmdt(at)),
        }
    };
    let raw = if r == usize::MAX {
        -(real::errno() as isize)
    } else {
        r as isize
    };
    real::set_errno(errno);
    raw
}

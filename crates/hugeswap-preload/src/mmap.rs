//! mmap and munmap. Large private anonymous mappings are managed; what a program then does to them
//! works as if the kernel had made them.
//!
//! [`crate::shared`] makes large shared anonymous mappings, at addresses of their own behind the
//! window.
//!
//! Nothing is mapped inside the window without the engine's knowledge. Private anonymous memory at
//! an address that the program chooses is managed. Before anything else is mapped, its addresses
//! are claimed from the engine; their units are then the kernel's, and ordinary calls work on them.

use crate::marks::{self, forget, is_noted, note};
use crate::owners::{keep, note_unlocked};
use crate::real::{self, answer, set_errno};
use crate::{cut, extent, files, hint, inherit, low, shared, small, state, static_program};
use hugeswap_engine::pool::FaultMode;
use hugeswap_engine::{Claim, Contents, Engine, Prot};
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::{Errno, mm};
use libc::{c_int, c_void, off_t, size_t};
use std::ops::Range;

const PAGE: usize = 4096;
const UNIT: usize = 2 << 20;
/// The access that new managed memory has.
pub const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// The end of the addresses that a program can use.
pub const TASK_END: usize = 0x7fff_ffff_f000;

/// Flags of mappings that the engine does not place: fixed addresses, stacks, locked or special
/// memory.
pub const NEVER: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_GROWSDOWN
    | libc::MAP_STACK
    | libc::MAP_LOCKED
    | libc::MAP_HUGETLB
    | libc::MAP_32BIT;

/// Flags by which the program chooses the address.
const FIXED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;

/// Makes a system call and returns its result; `usize::MAX` (-1) with errno if it fails.
pub fn kernel(nr: libc::c_long, a: [usize; 6]) -> usize {
    // SAFETY: the program's own call, with the arguments that it gave; if the call concerns managed
    // memory, the caller has taken the units from the engine before.
    answer(unsafe { syscall6(nr as usize, a) }) as usize
}

fn failed(errno: c_int) -> *mut c_void {
    set_errno(errno);
    libc::MAP_FAILED
}

/// `len` rounded up to whole pages; `None` if `[addr, addr+len)` is empty, unaligned or past the
/// end.
pub fn pages(addr: usize, len: usize) -> Option<usize> {
    let len = len.checked_next_multiple_of(PAGE)?;
    (len > 0 && addr.is_multiple_of(PAGE) && addr.checked_add(len).is_some()).then_some(len)
}

/// Takes the units that hold any mapped page of `[addr, addr+len)` from the engine, for as long as
/// they are mapped; units of shared memory are kept in memory.
pub fn eject(engine: &Engine, addr: usize, len: usize) -> Result<(), Errno> {
    let _kept = keep();
    let window = engine.window_at(addr, len);
    let from = addr.max(window.start);
    let to = addr.saturating_add(len).min(window.end);
    if from < to {
        for (at, len) in engine.mapped_in(from, to - from) {
            marks::note_told(at, len);
        }
    }
    eject_to_lock(engine, addr, len)
}

/// The same for as long as they are locked ([`crate::locked`]).
pub fn eject_to_lock(engine: &Engine, addr: usize, len: usize) -> Result<(), Errno> {
    if !shared_part(addr, len).is_empty() {
        shared::keep(engine, addr, len)?;
    }
    let window = engine.window_at(addr, len);
    let (from, to) = (
        addr.max(window.start),
        addr.saturating_add(len).min(window.end),
    );
    if from >= to {
        return Ok(());
    }
    engine.eject(from, to - from)
}

/// The part of `[addr, addr+len)` that is at addresses of shared memory.
fn shared_part(addr: usize, len: usize) -> Range<usize> {
    let all = extent::shared_range();
    let start = addr.max(all.start);
    start..addr.saturating_add(len).min(all.end).max(start)
}

/// Sets the access to whole units of managed memory. False if the engine cannot.
pub fn protect(engine: &Engine, addr: usize, len: usize, access: Prot) -> bool {
    if access != Prot::ReadWrite {
        note(addr, len);
    }
    engine.protect(addr, len, access).is_ok()
}

/// Is all of `[addr, addr+len)` still as the engine gave it?
pub fn untouched(engine: &Engine, addr: usize, len: usize) -> bool {
    !engine.is_any_foreign(addr, len) && !is_noted(addr, len)
}

/// Gives reserved memory to the kernel, which maps it without access. The kernel's own calls work
/// on it then.
pub fn hand_over_reserved(engine: &Engine, addr: usize, len: usize) -> Result<(), Errno> {
    let claim = make_way(engine, addr, len, Contents::Keep)?;
    end_claim(engine, claim, true);
    Ok(())
}

/// [`hand_over_reserved`] of what is reserved in a range.
pub fn hand_over_all_reserved(engine: &Engine, addr: usize, len: usize) -> Result<(), Errno> {
    let mut reserved = engine.reserved_in(addr, len).into_iter();
    reserved.try_for_each(|(at, n)| hand_over_reserved(engine, at, n))
}

/// `[at, at+len)` is unmapped, or is mapped anew: what the program said of it before does not hold.
fn begin_anew(at: usize, len: usize) {
    inherit::include(at, len);
    note_unlocked(at, at.saturating_add(len));
}

/// Gives pages of the window back to the engine, whatever the program made of them. ENOMEM if the
/// limit on mappings is met; the pages are still the program's then.
pub fn try_release(engine: &Engine, addr: usize, len: usize) -> Result<(), Errno> {
    engine.try_unmap(addr, len)?;
    begin_anew(addr, len);
    if marks::is_any() {
        // (Notes of what is mapped there next are made after this.)
        engine.with_mapped(|is_any_mapped| forget(addr, len, |u| !is_any_mapped(u, UNIT)));
    }
    Ok(())
}

/// [`try_release`] without an error, for pages that the program has given up in any case.
pub fn release(engine: &Engine, addr: usize, len: usize) {
    let _ = try_release(engine, addr, len);
}

/// Is `fd` /dev/zero, whose private mappings are anonymous memory by another name?
fn dev_zero(fd: c_int) -> bool {
    // SAFETY: all zeros is a valid stat to be overwritten.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    let a = [fd as usize, &mut st as *mut _ as usize, 0, 0, 0, 0];
    // SAFETY: `st` is a writable stat.
    let r = unsafe { syscall6(libc::SYS_fstat as usize, a) };
    r == 0 && st.st_mode & libc::S_IFMT == libc::S_IFCHR && st.st_rdev == libc::makedev(1, 5)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let at = addr as usize;
    const TYPE: c_int = libc::MAP_SHARED | libc::MAP_PRIVATE;
    // (An address that is to be that one says it all.)
    let flags = match flags & FIXED {
        0 => flags,
        _ => flags & !libc::MAP_32BIT,
    };
    let is_low = flags & libc::MAP_32BIT != 0;
    if is_low && let Some(done) = low::map(len, prot, flags, fd, offset) {
        return done;
    }
    if flags & FIXED != 0 && extent::meets_several(at, len) {
        return over_several(at, len, prot, flags, fd, offset);
    }
    if (at != 0 || flags & libc::MAP_FIXED != 0)
        && (!is_low || at < low::END)
        && extent::meets_managed(at, len)
        && let Some(engine) = state::engine()
        && let Some(done) = placed(engine, at, len, prot, flags, fd, offset)
    {
        return done;
    }
    if state::may_manage_mapping(len)
        && flags & NEVER == 0
        && matches!(flags & TYPE, libc::MAP_SHARED | libc::MAP_PRIVATE)
        && prot == RW
    {
        let zero = flags & libc::MAP_ANONYMOUS != 0 || dev_zero(fd);
        if zero && let Some(engine) = state::engine_for(len, Knob::MmapMin) {
            if flags & TYPE == libc::MAP_SHARED {
                if let Some(whole) = pages(0, len)
                    && let Some(done) = shared::map(engine, whole, flags)
                {
                    return done;
                }
                return kernel_map(at, len, prot, flags, fd, offset);
            }
            let errno = real::errno();
            let made = match static_program::is_loaded() {
                true => cut::map(engine, len),
                false => engine.map(len, PAGE, true),
            };
            match made {
                Ok(at) => {
                    if flags & libc::MAP_POPULATE != 0 {
                        engine.willneed(at, len);
                    }
                    set_errno(errno);
                    return at as *mut c_void;
                }
                // MAP_NORESERVE asks for no promise of memory: the kernel may have addresses where
                // the engine has none.
                Err(_) if flags & libc::MAP_NORESERVE != 0 => {}
                Err(_) => return failed(libc::ENOMEM),
            }
        }
    }
    const KIND: c_int = NEVER & !libc::MAP_FIXED_NOREPLACE | TYPE | libc::MAP_ANONYMOUS;
    if prot == libc::PROT_NONE
        && state::may_manage_mapping(len)
        && flags & KIND == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
        && !hint::is_for_the_kernel(at, len)
        && let Some(engine) = state::engine_for(len, Knob::ReserveMin)
    {
        let is_exact = flags & libc::MAP_FIXED_NOREPLACE != 0;
        let is_valid = pages(at, len).is_some_and(|len| at + len <= TASK_END);
        if is_exact && is_valid && hint::may_be_refused(at, len) {
            return failed(libc::EEXIST);
        }
        let errno = real::errno();
        let reserved = (!is_exact).then(|| engine.reserve(len, PAGE));
        set_errno(errno);
        if let Some(Ok(given)) = reserved {
            if at != 0 {
                hint::note_given(given, len);
            }
            return given as *mut c_void;
        }
    }
    let made = kernel_map(at, len, prot, flags, fd, offset);
    const SMALL: c_int = NEVER & !libc::MAP_32BIT | TYPE | libc::MAP_ANONYMOUS;
    if prot == RW && flags & SMALL == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS {
        small::note_mapping(len);
    }
    after_kernel(made, len, prot, flags, fd, offset)
}

/// Makes a mapping at addresses that the program chooses, and that are of several parts of the window:
/// as several mappings.
fn over_several(
    at: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let whole = pages(at, len).filter(|len| at + len <= TASK_END);
    let (Some(engine), Some(len)) = (state::engine(), whole) else {
        // (It refuses an invalid call.)
        return kernel_map(at, len, prot, flags, fd, offset);
    };
    let taken = |(at, len): (usize, usize)| match extent::meets_managed(at, len) {
        true => is_any_mapped(engine, at, len),
        false => !is_free_at_kernel(at, len),
    };
    if flags & libc::MAP_FIXED_NOREPLACE != 0 && extent::pieces(at, len).any(taken) {
        return failed(libc::EEXIST);
    }
    let flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
    for (piece, n) in extent::pieces(at, len) {
        let (at, offset) = (piece as *mut c_void, offset + (piece - at) as off_t);
        // SAFETY: a part of the program's own call.
        let made = unsafe { mmap(at, n, prot, flags, fd, offset) };
        if made == libc::MAP_FAILED {
            return made;
        }
    }
    at as *mut c_void
}

/// The final result of a mapping that the kernel has answered: a file that it refused may be a
/// stand-in, which is mapped here.
fn after_kernel(
    made: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS == 0 {
        if made == libc::MAP_FAILED {
            return files::map(len, prot, flags, fd, offset as usize);
        }
        if files::is_any_expected() {
            files::mapped(fd);
        }
    }
    made
}

fn kernel_map(
    at: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let a = [
        at,
        len,
        prot as usize,
        flags as usize,
        fd as usize,
        offset as usize,
    ];
    kernel(libc::SYS_mmap, a) as *mut c_void
}

/// Makes a mapping at addresses that the program chooses and that meet managed ones. `None` if the
/// kernel is to make it: it refuses an invalid call, and takes other addresses for a hint that
/// cannot be followed.
pub fn placed(
    engine: &Engine,
    at: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Option<*mut c_void> {
    let exact = flags & FIXED != 0;
    let replace = exact && flags & libc::MAP_FIXED_NOREPLACE == 0;
    let at = if exact {
        at
    } else {
        at.checked_next_multiple_of(PAGE)?
    };
    let len = pages(at, len).filter(|len| at + len <= TASK_END)?;
    let window = engine.window_at(at, len);
    let inside = at >= window.start && at + len <= window.end;
    if !replace && is_any_mapped(engine, at, len) {
        return exact.then(|| failed(libc::EEXIST));
    }
    if !exact && !inside {
        return None;
    }
    let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let ours = inside && flags & (NEVER & !FIXED | libc::MAP_SHARED | plain) == plain;
    if ours && prot == libc::PROT_NONE {
        let errno = real::errno();
        match engine.reserve_at(at, len, replace) {
            Ok(()) => {
                begin_anew(at, len);
                forget(at, len, |u| u >= at && u + UNIT <= at + len);
                set_errno(errno);
                return Some(at as *mut c_void);
            }
            Err(Errno::EEXIST) => return exact.then(|| failed(libc::EEXIST)),
            Err(_) => {}
        }
    }
    if ours && let Some(access) = managed_access(engine, at, len, prot) {
        let errno = real::errno();
        match map_managed(engine, at, len, access, replace) {
            Ok(()) => {
                if flags & libc::MAP_POPULATE != 0 {
                    engine.willneed(at, len);
                }
                set_errno(errno);
                return Some(at as *mut c_void);
            }
            Err(Errno::EEXIST) => return exact.then(|| failed(libc::EEXIST)),
            Err(_) if flags & libc::MAP_NORESERVE != 0 || access != Prot::ReadWrite => {}
            Err(e) => return Some(failed(e.0)),
        }
    }
    // (No managed unit is given up to follow a hint.)
    if !exact && !engine.is_unmanaged(at, len) {
        return None;
    }
    let live = engine.is_any_mapped(at, len);
    if live {
        // A mapping that the kernel would refuse must not destroy the present one, so try it
        // elsewhere first.
        let tried = flags & !(libc::MAP_FIXED | libc::MAP_POPULATE | libc::MAP_LOCKED);
        let tried = kernel_map(0, len, prot, tried, fd, offset);
        if tried == libc::MAP_FAILED {
            return Some(after_kernel(tried, len, prot, flags, fd, offset));
        }
        kernel(libc::SYS_munmap, [tried as usize, len, 0, 0, 0, 0]);
    }
    let contents = if live { Contents::Drop } else { Contents::Keep };
    let claim = match make_way(engine, at, len, contents) {
        Ok(claim) => claim,
        Err(e) => return Some(failed(e.0)),
    };
    let flags = flags & !libc::MAP_FIXED_NOREPLACE | libc::MAP_FIXED;
    let made = kernel_map(at, len, prot, flags, fd, offset);
    if made != libc::MAP_FAILED {
        begin_anew(at, len);
    }
    end_claim(engine, claim, made != libc::MAP_FAILED);
    Some(after_kernel(made, len, prot, flags, fd, offset))
}

/// The access that managed memory can have for a mapping with `prot`; `None` if the mapping is the
/// kernel's.
fn managed_access(engine: &Engine, at: usize, len: usize, prot: c_int) -> Option<Prot> {
    let access = access(prot)?;
    let whole = engine.mode() == FaultMode::Signal && whole_units(engine, at, len);
    (access == Prot::ReadWrite || whole).then_some(access)
}

/// Maps managed memory, all zeros, at `[at, at+len)`; with `replace`, in the place of what is
/// mapped there.
fn map_managed(
    engine: &Engine,
    at: usize,
    len: usize,
    access: Prot,
    replace: bool,
) -> Result<(), Errno> {
    engine.map_at(at, len, replace)?;
    begin_anew(at, len);
    forget(at, len, |u| u >= at && u + UNIT <= at + len);
    if access != Prot::ReadWrite && !protect(engine, at, len, access) {
        release(engine, at, len);
        return Err(Errno::ENOMEM);
    }
    Ok(())
}

/// Is anything mapped in `[at, at+len)`, which meets managed addresses?
pub fn is_any_mapped(engine: &Engine, at: usize, len: usize) -> bool {
    let all = extent::managed_range(at, len);
    let outside = [(at, all.start.min(at + len)), (all.end.max(at), at + len)];
    let is_hole = |&(at, len): &(usize, usize)| is_hole(engine, at, len);
    let is_reserved = !extent::in_far_part(at);
    engine.is_any_mapped(at, len) && (is_reserved || !engine.mapped_in(at, len).iter().all(is_hole))
        || shared::first_used(&shared_part(at, len)).is_some()
        || outside
            .iter()
            .any(|&(from, to)| from < to && !is_free_at_kernel(from, to - from))
}

/// Is all of a range of a far part of the window a hole there? Such a part is the kernel's from start
/// to end at first, and nothing is reserved there.
fn is_hole(engine: &Engine, at: usize, len: usize) -> bool {
    engine.kernel_bytes(at, len) == len && is_free_at_kernel(at, len)
}

/// Does the kernel have nothing mapped in a range?
fn is_free_at_kernel(at: usize, len: usize) -> bool {
    // SAFETY: makes a new mapping, only if nothing is there, and removes it again.
    unsafe {
        match mm::map_anon(at, len, mm::PROT_NONE, false) {
            Ok(got) => {
                let _ = mm::unmap(got, len);
                got == at
            }
            Err(_) => false,
        }
    }
}

/// Claims addresses that the program chose, before the kernel maps something there. End the claim
/// by [`end_claim`].
pub fn make_way(
    engine: &Engine,
    at: usize,
    len: usize,
    contents: Contents,
) -> Result<Claim, Errno> {
    let claim = engine.claim(at, len, contents)?;
    let there = shared_part(at, len);
    if !there.is_empty()
        && let Err(e) = shared::make_way(engine, there)
    {
        engine.abandon_claim(claim);
        return Err(e);
    }
    Ok(claim)
}

/// Ends a claim, after the kernel has `mapped` something there or has failed to. Leaves errno as it
/// is.
pub fn end_claim(engine: &Engine, claim: Claim, mapped: bool) {
    let errno = real::errno();
    if mapped {
        engine.settle_claim(claim);
    } else {
        engine.abandon_claim(claim);
    }
    set_errno(errno);
}

/// The access that `prot` gives; `None` if managed memory cannot have it.
pub fn access(prot: c_int) -> Option<Prot> {
    match prot {
        libc::PROT_NONE => Some(Prot::None),
        libc::PROT_READ => Some(Prot::Read),
        RW | libc::PROT_WRITE => Some(Prot::ReadWrite),
        _ => None,
    }
}

/// Does `[addr, addr+len)` consist of whole units of the window?
pub fn whole_units(engine: &Engine, addr: usize, len: usize) -> bool {
    let window = engine.window_at(addr, len);
    addr >= window.start
        && addr + len <= window.end
        && addr.is_multiple_of(UNIT)
        && len.is_multiple_of(UNIT)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: passed on; both are one function on x86-64.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    let at = addr as usize;
    if extent::meets_several(at, len)
        && let Some(len) = pages(at, len).filter(|len| at + len <= TASK_END)
    {
        // SAFETY: parts of the program's own call.
        let unmap = |(at, len)| unsafe { munmap(at as *mut c_void, len) };
        let failed = extent::pieces(at, len).find(|&piece| unmap(piece) != 0);
        return if failed.is_some() { -1 } else { 0 };
    }
    if extent::meets_managed(at, len)
        && let (Some(engine), Some(len)) = (state::engine(), pages(at, len))
        && at + len <= TASK_END
    {
        hint::note_unmapped(at, len);
        let all = extent::managed_range(at, len);
        let (from, to) = (at.max(all.start), (at + len).min(all.end));
        let errno = real::errno();
        let there = shared_part(at, len);
        let private = from..to.min(engine.window_at(at, len).end);
        if !private.is_empty()
            && let Err(e) = try_release(engine, private.start, private.len())
        {
            set_errno(e.0);
            return -1;
        }
        if !there.is_empty() {
            shared::unmap(engine, there);
        }
        set_errno(errno);
        // The kernel unmaps what lies elsewhere.
        for (start, end) in [(at, from), (to, at + len)] {
            if start < end {
                kernel(libc::SYS_munmap, [start, end - start, 0, 0, 0, 0]);
            }
        }
        return 0;
    }
    kernel(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) as c_int
}

/// Passes a system call on addresses to the kernel as it is: 0, or -1 with errno.
pub fn pass(nr: libc::c_long, a: [usize; 6]) -> c_int {
    kernel(nr, a) as c_int
}

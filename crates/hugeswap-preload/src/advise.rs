//! What programs say about their memory: advice, protection, locking, and questions.
//!
//! What managed memory can honour is honoured; what only changes speed is accepted; what needs the kernel's own
//! pages (executable or partly protected units, locked memory, fork advice) takes the units from the engine first.

use crate::mmap::{access, any_ejected, discard, eject, pages, pass, protect, status, whole_units};
use crate::real::{self, set_errno};
use crate::{pagemap, shared, state};
use hugeswap_engine::Engine;
use hugeswap_policy::markers::Marker;
use hugeswap_policy::thp::Usage;
use libc::{c_int, c_uchar, c_void, size_t};
use std::ops::Range;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;
const UNIT: usize = 2 << 20;

// Advice that libc does not name everywhere.
const MADV_COLD: c_int = 20;
const MADV_PAGEOUT: c_int = 21;
const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;
const MADV_COLLAPSE: c_int = 25;
const MADV_GUARD_INSTALL: c_int = 102;
const MADV_GUARD_REMOVE: c_int = 103;

/// The same of shared memory, if all of it is in one region that is the engine's.
fn shared(addr: usize, len: usize) -> Option<(&'static Engine, Range<usize>)> {
    if !state::in_shared(addr) || !shared::is_managed(addr) {
        return None;
    }
    Some((state::engine()?, addr..addr + pages(addr, len)?))
}

/// The engine, and the range in whole pages, if the call is about managed memory.
fn managed(addr: usize, len: usize) -> Option<(&'static Engine, usize)> {
    if !state::in_window(addr) {
        return None;
    }
    Some((state::engine()?, pages(addr, len)?))
}

fn error(e: c_int) -> c_int {
    set_errno(e);
    -1
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let at = addr as usize;
    if let Some((engine, range)) = shared(at, len) {
        return advise_shared(engine, range, advice);
    }
    match managed(at, len) {
        Some((engine, whole)) => advise(engine, at, whole, advice),
        None => pass(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0]),
    }
}

fn advise(engine: &Engine, at: usize, len: usize, advice: c_int) -> c_int {
    if !engine.is_mapped(at, len) {
        return error(libc::ENOMEM);
    }
    let errno = real::errno();
    match advice {
        libc::MADV_DONTNEED => {
            if let Err(e) = discard(engine, at, len) {
                return error(e.0);
            }
        }
        libc::MADV_WILLNEED => engine.willneed(at, len),
        MADV_COLD | MADV_PAGEOUT => engine.pageout(at, len),
        libc::MADV_NORMAL => engine.advise_use(at, len, Usage::Normal),
        libc::MADV_RANDOM => engine.advise_use(at, len, Usage::Random),
        libc::MADV_SEQUENTIAL => engine.advise_use(at, len, Usage::Sequential),
        libc::MADV_HUGEPAGE => engine.advise_use(at, len, Usage::HugePage),
        libc::MADV_NOHUGEPAGE => engine.advise_use(at, len, Usage::NoHugePage),
        MADV_POPULATE_READ | MADV_POPULATE_WRITE if engine.first_marker(at, len).is_some() => {
            return error(libc::EFAULT);
        }
        MADV_POPULATE_READ => touch(engine, at, len, false),
        MADV_POPULATE_WRITE => touch(engine, at, len, true),
        // What the kernel has may stay: FREE allows the content to go, it does not ask for it.
        libc::MADV_FREE if any_ejected(at, len) => {}
        libc::MADV_FREE => engine.free_lazily(at, len),
        // About speed or dumps.
        MADV_COLLAPSE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP => {}
        MADV_GUARD_INSTALL if !any_ejected(at, len) => {
            match engine.install_markers(at, len, Marker::Guard) {
                Ok(()) => {}
                // Where they cannot be ours they can be the kernel's.
                Err(_) => return hand_over(engine, at, len, advice),
            }
        }
        MADV_GUARD_REMOVE => {
            engine.remove_markers(at, len, Marker::Guard);
            if any_ejected(at, len) {
                return pass(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0]);
            }
        }
        libc::MADV_REMOVE => return error(libc::EINVAL),
        _ => return hand_over(engine, at, len, advice),
    }
    set_errno(errno);
    0
}

/// Advice about shared memory, as the kernel takes it: nothing that another process wrote is lost, unless it is asked for that.
fn advise_shared(engine: &Engine, at: Range<usize>, advice: c_int) -> c_int {
    if !shared::is_mapped(at.start, at.len()) {
        return error(libc::ENOMEM);
    }
    let errno = real::errno();
    match advice {
        libc::MADV_REMOVE => {
            if !engine.discard_shared(at.start, at.len()) {
                return error(libc::EIO);
            }
        }
        libc::MADV_WILLNEED => engine.willneed(at.start, at.len()),
        MADV_COLD | MADV_PAGEOUT => engine.pageout(at.start, at.len()),
        MADV_POPULATE_READ => touch(engine, at.start, at.len(), false),
        MADV_POPULATE_WRITE => touch(engine, at.start, at.len(), true),
        libc::MADV_DONTFORK => shared::inherit(&at, false),
        libc::MADV_DOFORK => shared::inherit(&at, true),
        // About speed or dumps; and what this process alone gives up of shared memory is there still.
        libc::MADV_DONTNEED
        | libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | MADV_COLLAPSE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP => {}
        _ => return error(libc::EINVAL),
    }
    set_errno(errno);
    0
}

/// Advice for the kernel, which has the memory from now on.
fn hand_over(engine: &Engine, at: usize, len: usize, advice: c_int) -> c_int {
    match eject(engine, at, len) {
        Ok(()) => pass(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0]),
        Err(e) => error(e.0),
    }
}

/// Touches each unit once, and each page of those that came by pages, as a program would.
fn touch(engine: &Engine, at: usize, len: usize, write: bool) {
    let mut by_pages = false;
    for page in (at..at + len).step_by(PAGE) {
        if page != at && !page.is_multiple_of(UNIT) && !by_pages {
            continue;
        }
        // (Neither a load nor an addition of nothing would do: the compiler leaves out what has no effect.)
        // SAFETY: a mapped byte of the program's own.
        let now = unsafe { std::ptr::read_volatile(page as *const u8) };
        if write {
            // SAFETY: as above; putting what was there changes nothing, whoever else writes there.
            let byte = unsafe { AtomicU8::from_ptr(page as *mut u8) };
            let _ = byte.compare_exchange(now, now, Relaxed, Relaxed);
        }
        if page == at || page.is_multiple_of(UNIT) {
            by_pages = state::in_window(page) && engine.is_base_mapped(page);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    // POSIX's DONTNEED must not lose content: like glibc, do nothing.
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    let errno = real::errno();
    // SAFETY: passed on; the first four numbers are the same in both.
    let r = unsafe { madvise(addr, len, advice) };
    let result = if r == 0 { 0 } else { real::errno() };
    set_errno(errno);
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int {
    let at = addr as usize;
    if let Some((engine, range)) = shared(at, len) {
        return protect_shared(engine, range, prot);
    }
    let Some((engine, whole)) = managed(at, len) else {
        return pass(libc::SYS_mprotect, [at, len, prot as usize, 0, 0, 0]);
    };
    if !engine.is_mapped(at, whole) {
        return error(libc::ENOMEM);
    }
    let errno = real::errno();
    if whole_units(engine, at, whole)
        && !any_ejected(at, whole)
        && let Some(access) = access(prot)
        && protect(engine, at, whole, access)
    {
        set_errno(errno);
        return 0;
    }
    match eject(engine, at, whole) {
        Ok(()) => pass(libc::SYS_mprotect, [at, len, prot as usize, 0, 0, 0]),
        Err(e) => error(e.0),
    }
}

fn protect_shared(engine: &Engine, at: Range<usize>, prot: c_int) -> c_int {
    if let Err(e) = shared::before_protect(engine, &at) {
        return error(e.0);
    }
    let a = [at.start, at.len(), prot as usize, 0, 0, 0];
    let result = pass(libc::SYS_mprotect, a);
    if result == 0 {
        shared::protected(&at, prot);
    }
    result
}

/// Locked memory stays where it is, so it becomes the kernel's.
fn lock(nr: libc::c_long, addr: usize, len: usize, flags: usize) -> c_int {
    let start = addr & !(PAGE - 1);
    let end = addr
        .saturating_add(len.min(isize::MAX as usize))
        .next_multiple_of(PAGE);
    if let Some(engine) = state::engine().filter(|_| state::meets_managed(addr, len)) {
        let private = !state::in_shared(addr);
        if private && !engine.is_mapped(start, end - start) {
            return error(libc::ENOMEM);
        }
        if let Err(e) = eject(engine, start, end - start) {
            return error(e.0);
        }
    }
    pass(nr, [addr, len, flags, 0, 0, 0])
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock(addr: *const c_void, len: size_t) -> c_int {
    lock(libc::SYS_mlock, addr as usize, len, 0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock2(addr: *const c_void, len: size_t, flags: libc::c_uint) -> c_int {
    lock(libc::SYS_mlock2, addr as usize, len, flags as usize)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munlock(addr: *const c_void, len: size_t) -> c_int {
    // Memory that is still managed was never locked: the kernel then has nothing to undo, and says so.
    pass(libc::SYS_munlock, [addr as usize, len, 0, 0, 0, 0])
}

/// Locking everything would hold the budget's frames and the reserved window too; managed
/// memory keeps moving, the call is taken as advice.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if state::engine().is_some() {
        return 0;
    }
    pass(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0])
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mincore(addr: *mut c_void, len: size_t, vec: *mut c_uchar) -> c_int {
    let at = addr as usize;
    if let Some((engine, range)) = shared(at, len) {
        if !shared::is_mapped(at, range.len()) {
            return error(libc::ENOMEM);
        }
        // SAFETY: the caller's vector has a byte for each page.
        return unsafe { pagemap::in_memory(engine, at, range.len(), vec) };
    }
    let Some((engine, whole)) = managed(at, len) else {
        return pass(libc::SYS_mincore, [at, len, vec as usize, 0, 0, 0]);
    };
    if !engine.is_mapped(at, whole) {
        return error(libc::ENOMEM);
    }
    // SAFETY: the caller's vector has a byte for each page.
    unsafe { pagemap::in_memory(engine, at, whole, vec) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn msync(addr: *mut c_void, len: size_t, flags: c_int) -> c_int {
    let at = addr as usize;
    if let Some((_, range)) = shared(at, len) {
        let mapped = shared::is_mapped(at, range.len());
        return status(mapped.then_some(()).ok_or(hugeswap_sys::Errno::ENOMEM));
    }
    match managed(at, len) {
        // There is no file behind it.
        Some((engine, whole)) => status(
            engine
                .is_mapped(at, whole)
                .then_some(())
                .ok_or(hugeswap_sys::Errno::ENOMEM),
        ),
        None => pass(libc::SYS_msync, [at, len, flags as usize, 0, 0, 0]),
    }
}

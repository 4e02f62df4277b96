//! Calls by which a program advises on, protects and queries its memory.
//!
//! Managed memory honours the advice that it can. Advice that only affects speed is accepted. Some
//! calls need pages of the kernel's own (for executable memory, some fork advice,
//! and less access to some pages of a unit where single pages are not to be had): the engine first
//! hands these units to the kernel.

use crate::marks::{note, note_told};
use crate::mmap::{
    RW, TASK_END, access, eject, hand_over_all_reserved, hand_over_reserved, pass, protect,
    whole_units,
};
use crate::parts::{by_parts, each, error, managed, shared};
use crate::real::{self, set_errno};
use crate::runs::discard;
use crate::touch::touch;
use crate::{extent, inherit, pagemap, shared};
use hugeswap_engine::{Engine, Prot};
use hugeswap_policy::defrag::thp::Usage;
use hugeswap_policy::markers::Marker;
use hugeswap_sys::Errno;
use hugeswap_sys::raw::{check, syscall6};
use libc::{c_int, c_uchar, c_void, size_t};
use std::ops::Range;

const PAGE: usize = 4096;
const UNIT: usize = 2 << 20;

// Advice values that the libc crate does not define on every target.
pub const MADV_WIPEONFORK: c_int = 18;
const MADV_KEEPONFORK: c_int = 19;
const MADV_COLD: c_int = 20;
const MADV_PAGEOUT: c_int = 21;
const MADV_POPULATE_READ: c_int = 22;
const MADV_POPULATE_WRITE: c_int = 23;
const MADV_COLLAPSE: c_int = 25;
const MADV_GUARD_INSTALL: c_int = 102;
const MADV_GUARD_REMOVE: c_int = 103;
/// Memory for atomic operations: an access that has no meaning on this architecture.
const PROT_SEM: c_int = 8;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let done = by_parts(addr as usize, len, !populates(advice), |at, len| {
        if let Some((engine, range)) = shared(at, len) {
            return advise_shared(engine, range, advice);
        }
        match managed(at, len) {
            Some((engine, whole)) => advise(engine, at, whole, advice),
            None => pass(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0]),
        }
    });
    if done != 0 && real::errno() == libc::ENOMEM && !is_known(advice) {
        return -1;
    }
    done
}

/// Does the kernel know this advice? If not, errno is its answer to it. (It refuses an unknown
/// advice value even for an empty range.)
fn is_known(advice: c_int) -> bool {
    pass(libc::SYS_madvise, [0, 0, advice as usize, 0, 0, 0]) == 0
}

/// Is this advice to bring memory in? It ends where nothing is mapped.
fn populates(advice: c_int) -> bool {
    matches!(advice, MADV_POPULATE_READ | MADV_POPULATE_WRITE)
}

fn advise(engine: &Engine, at: usize, len: usize, advice: c_int) -> c_int {
    let kernels = |at: usize, len: usize| {
        if is_remembered(advice) && extent::in_window(at) {
            note_told(at, len);
        }
        let marked = extent::in_window(at) && engine.first_marker(at, len).is_some();
        match advice {
            libc::MADV_DOFORK => inherit::include(at, len),
            MADV_POPULATE_READ | MADV_POPULATE_WRITE if marked => return error(libc::EFAULT),
            // (It may be managed again by now.)
            MADV_POPULATE_READ | MADV_POPULATE_WRITE if extent::in_window(at) => {
                return populated(engine, at..at + len, advice);
            }
            MADV_GUARD_REMOVE if marked => engine.remove_markers(at, len, Marker::Guard),
            _ => {}
        }
        pass(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0])
    };
    let ours = |at, len| advise_managed(engine, at, len, advice);
    let reserved = |at, len| advise_reserved(engine, at, len, advice);
    let holes = !populates(advice);
    each(engine, at, len, holes, kernels, ours, reserved)
}

/// The use of a range that an advice value announces; `None` if it announces none.
fn usage(advice: c_int) -> Option<Usage> {
    match advice {
        libc::MADV_NORMAL => Some(Usage::Normal),
        libc::MADV_RANDOM => Some(Usage::Random),
        libc::MADV_SEQUENTIAL => Some(Usage::Sequential),
        libc::MADV_HUGEPAGE => Some(Usage::HugePage),
        libc::MADV_NOHUGEPAGE => Some(Usage::NoHugePage),
        _ => None,
    }
}

/// `madvise` of reserved memory, which holds no bytes. Advice about its use takes effect once the
/// memory is committed.
fn advise_reserved(engine: &Engine, at: usize, len: usize, advice: c_int) -> c_int {
    let errno = real::errno();
    match advice {
        libc::MADV_DONTNEED
        | libc::MADV_FREE
        | libc::MADV_WILLNEED
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP
        | MADV_COLD
        | MADV_PAGEOUT => {}
        libc::MADV_DONTFORK => inherit::exclude(at, len),
        libc::MADV_DOFORK => inherit::include(at, len),
        MADV_POPULATE_READ | MADV_POPULATE_WRITE | MADV_COLLAPSE | libc::MADV_REMOVE => {
            return error(libc::EINVAL);
        }
        _ => {
            if let Some(usage) = usage(advice) {
                engine.advise_use(at, len, usage);
            } else {
                if !is_known(advice) {
                    return -1;
                }
                note_told(at, len);
                if let Err(e) = hand_over_reserved(engine, at, len) {
                    return error(e.0);
                }
                return pass(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0]);
            }
        }
    }
    set_errno(errno);
    0
}

fn advise_managed(engine: &Engine, at: usize, len: usize, advice: c_int) -> c_int {
    let errno = real::errno();
    match advice {
        libc::MADV_DONTNEED => {
            if let Err(e) = discard(engine, at, len) {
                return error(e.0);
            }
        }
        libc::MADV_WILLNEED => engine.willneed(at, len),
        MADV_COLD => engine.cold(at, len),
        MADV_PAGEOUT => engine.pageout(at, len),
        MADV_POPULATE_READ | MADV_POPULATE_WRITE => return populated(engine, at..at + len, advice),
        libc::MADV_FREE => engine.free_lazily(at, len),
        // These affect only speed or core dumps.
        MADV_COLLAPSE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP => {}
        MADV_GUARD_INSTALL => {
            match engine.install_markers(at, len, Marker::Guard) {
                Ok(()) => {}
                // If the engine cannot install the guards, the kernel can.
                Err(_) => return hand_over(engine, at, len, advice),
            }
        }
        MADV_GUARD_REMOVE => engine.remove_markers(at, len, Marker::Guard),
        libc::MADV_REMOVE => return error(libc::EINVAL),
        libc::MADV_DONTFORK => inherit::exclude(at, len),
        libc::MADV_DOFORK => inherit::include(at, len),
        _ => match usage(advice) {
            Some(usage) => engine.advise_use(at, len, usage),
            None => return hand_over(engine, at, len, advice),
        },
    }
    set_errno(errno);
    0
}

/// `madvise` of shared memory, with the kernel's rules: bytes that another process wrote are lost
/// only by advice that asks for it (MADV_REMOVE).
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
        MADV_POPULATE_READ => touch_all(engine, at.start, at.len(), false),
        MADV_POPULATE_WRITE => touch_all(engine, at.start, at.len(), true),
        libc::MADV_DONTFORK => shared::inherit(&at, false),
        libc::MADV_DOFORK => shared::inherit(&at, true),
        // These affect only speed or core dumps. MADV_DONTNEED gives up only this process's view of
        // shared memory, whose content stays.
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

/// Does the kernel remember this advice for the mapping, or for its pages?
fn is_remembered(advice: c_int) -> bool {
    matches!(
        advice,
        libc::MADV_DONTFORK
            | libc::MADV_DOFORK
            | MADV_WIPEONFORK
            | MADV_KEEPONFORK
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_HUGEPAGE
            | libc::MADV_NOHUGEPAGE
            | libc::MADV_MERGEABLE
            | libc::MADV_DONTDUMP
            | MADV_GUARD_INSTALL
    )
}

/// Hands a range to the kernel for good, then gives the kernel the advice.
fn hand_over(engine: &Engine, at: usize, len: usize, advice: c_int) -> c_int {
    if !is_known(advice) {
        return -1;
    }
    note_told(at, len);
    match eject(engine, at, len) {
        Ok(()) => pass(libc::SYS_madvise, [at, len, advice as usize, 0, 0, 0]),
        Err(e) => error(e.0),
    }
}

/// [`populate`] as the call that asks for it: 0, or -1 with errno.
fn populated(engine: &Engine, at: Range<usize>, advice: c_int) -> c_int {
    let errno = real::errno();
    match populate(engine, at, advice) {
        Ok(()) => {
            set_errno(errno);
            0
        }
        Err(e) => error(e.0),
    }
}

/// Brings a range into memory, unit by unit: the kernel populates the units that it owns, the
/// engine the others. (Touching the range would not be safe: another thread may take its access
/// away.)
fn populate(engine: &Engine, at: Range<usize>, advice: c_int) -> Result<(), Errno> {
    for unit in (at.start & !(UNIT - 1)..at.end).step_by(UNIT) {
        let (from, to) = (unit.max(at.start), (unit + UNIT).min(at.end));
        loop {
            let is_foreign = engine.is_foreign(from, to - from);
            let done = if is_foreign {
                let a = [from, to - from, advice as usize, 0, 0, 0];
                // SAFETY: advice that changes no content.
                check(unsafe { syscall6(libc::SYS_madvise as usize, a) }).map(drop)
            } else {
                engine.populate(from, to - from, advice == MADV_POPULATE_WRITE)
            };
            // (Another thread may have locked or unlocked a page of the unit meanwhile.)
            if engine.is_foreign(from, to - from) == is_foreign {
                done?;
                break;
            }
        }
    }
    Ok(())
}

/// Touches each unit once, as a program would; in a unit that is mapped by base pages, touches each
/// page.
fn touch_all(engine: &Engine, at: usize, len: usize, write: bool) {
    let mut by_pages = false;
    for page in (at..at + len).step_by(PAGE) {
        if page != at && !page.is_multiple_of(UNIT) && !by_pages {
            continue;
        }
        // SAFETY: a mapped byte of the program's own, which asked for this access.
        unsafe { touch(page, write) };
        if page == at || page.is_multiple_of(UNIT) {
            by_pages = extent::in_window(page) && engine.is_base_mapped(page);
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
    // SAFETY: passed on; the first four advice numbers are the same in both.
    let r = unsafe { madvise(addr, len, advice) };
    let result = if r == 0 { 0 } else { real::errno() };
    set_errno(errno);
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mprotect(addr: *mut c_void, len: size_t, prot: c_int) -> c_int {
    by_parts(addr as usize, len, false, |at, len| {
        change_access(at, len, prot)
    })
}

/// `mprotect` of a range that is in one region of shared memory, or in none.
fn change_access(at: usize, len: usize, prot: c_int) -> c_int {
    if let Some((engine, range)) = shared(at, len) {
        return protect_shared(engine, range, prot);
    }
    let Some((engine, whole)) = managed(at, len) else {
        return pass(libc::SYS_mprotect, [at, len, prot as usize, 0, 0, 0]);
    };
    const GROWS: c_int = libc::PROT_GROWSDOWN | libc::PROT_GROWSUP;
    if prot & !(GROWS | RW | libc::PROT_EXEC | PROT_SEM) != 0 {
        return error(libc::EINVAL);
    }
    if prot & GROWS != 0 && extent::in_window(at) {
        // (No mapping there grows.)
        return error(match engine.is_any_mapped(at, whole) {
            true => libc::EINVAL,
            false => libc::ENOMEM,
        });
    }
    let kernels = |at: usize, len: usize| {
        if prot != RW && extent::in_window(at) {
            note(at, len);
        }
        pass(libc::SYS_mprotect, [at, len, prot as usize, 0, 0, 0])
    };
    let ours = |at, len| protect_managed(engine, at, len, prot);
    let reserved = |at, len| protect_reserved(engine, at, len, prot);
    each(engine, at, whole, false, kernels, ours, reserved)
}

/// Changes the access to reserved memory: 0, or -1 with errno. Memory that becomes accessible is
/// managed from then on if the engine can give it that access; otherwise it becomes the kernel's.
fn protect_reserved(engine: &Engine, at: usize, len: usize, prot: c_int) -> c_int {
    let errno = real::errno();
    let wanted = access(prot);
    // Pages that can only be read hold nothing, and no memory is spent on their units: a part of a
    // unit that holds nothing else is the kernel's, as is memory that can be executed.
    let (first, last) = match wanted {
        Some(Prot::None) => return 0,
        Some(Prot::ReadWrite) => (at, at + len),
        Some(Prot::Read) => {
            let first = at.next_multiple_of(UNIT).min(at + len);
            (first, ((at + len) & !(UNIT - 1)).max(first))
        }
        None => (at + len, at + len),
    };
    for (from, to) in [(at, first), (first, last), (last, at + len)] {
        if from == to {
            continue;
        }
        let (from, len) = (from, to - from);
        let is_beside_others = wanted == Some(Prot::Read) && !engine.is_unmanaged(from, len);
        let ours = from == first && to == last || is_beside_others;
        let done = match ours {
            true => engine.commit(from, len),
            false => hand_over_reserved(engine, from, len),
        };
        if let Err(e) = done {
            return error(e.0);
        }
        let protected = match ours {
            true if wanted == Some(Prot::ReadWrite) => 0,
            true => protect_managed(engine, from, len, prot),
            false => {
                note(from, len);
                pass(libc::SYS_mprotect, [from, len, prot as usize, 0, 0, 0])
            }
        };
        if protected != 0 {
            return protected;
        }
    }
    set_errno(errno);
    0
}

/// Changes the access to managed memory: 0, or -1 with errno. Whole units stay managed if the
/// engine can give them that access.
pub fn protect_managed(engine: &Engine, at: usize, len: usize, prot: c_int) -> c_int {
    let errno = real::errno();
    let first = at.next_multiple_of(UNIT).min(at + len);
    let last = ((at + len) & !(UNIT - 1)).max(first);
    for (from, to) in [(at, first), (first, last), (last, at + len)] {
        if from == to {
            continue;
        }
        let (at, len) = (from, to - from);
        if whole_units(engine, at, len)
            && let Some(access) = access(prot)
            && protect(engine, at, len, access)
        {
            continue;
        }
        // Units that have full access already need not be handed to the kernel to get it.
        let all = Some(Prot::ReadWrite);
        if access(prot) == all && engine.access(at, len) == all {
            continue;
        }
        // (Noted before the access changes: memory without a note has full access.)
        note(at, len);
        if len < UNIT
            && let Some(access) = access(prot)
            && engine.protect_part(at, len, access)
        {
            continue;
        }
        let ejected = eject(engine, at, len);
        if let Err(e) = ejected {
            return error(e.0);
        }
        let done = pass(libc::SYS_mprotect, [at, len, prot as usize, 0, 0, 0]);
        if done != 0 {
            return done;
        }
    }
    set_errno(errno);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pkey_mprotect(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    key: c_int,
) -> c_int {
    if key == -1 {
        // SAFETY: passed on; the C library does the same.
        return unsafe { mprotect(addr, len, prot) };
    }
    let at = addr as usize;
    let a = [at, len, prot as usize, key as usize, 0, 0];
    if let Some((engine, whole)) = managed(at, len) {
        if !engine.is_mapped(at, whole) {
            return error(libc::ENOMEM);
        }
        note_told(at, whole);
        let handed = hand_over_all_reserved(engine, at, whole);
        if let Err(e) = handed.and_then(|()| eject(engine, at, whole)) {
            return error(e.0);
        }
    }
    pass(libc::SYS_pkey_mprotect, a)
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

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mincore(addr: *mut c_void, len: size_t, vec: *mut c_uchar) -> c_int {
    let first = addr as usize;
    if first.checked_add(len).is_none_or(|end| end > TASK_END) {
        // (The range is looked at first, and then where the answer goes.)
        return pass(libc::SYS_mincore, [first, len, 0, 0, 0, 0]);
    }
    by_parts(first, len, false, |at, len| {
        // SAFETY: the caller's vector has a byte for each page of the whole range.
        unsafe { residence(at, len, vec.add((at - first) / PAGE)) }
    })
}

/// How many bytes from the beginning of a range of the window on are mapped.
fn mapped_from(engine: &Engine, at: usize, len: usize) -> usize {
    let mut end = at;
    for (start, n) in engine.mapped_in(at, len) {
        if start > end {
            break;
        }
        end = start + n;
    }
    end - at
}

/// `mincore` of a range that is in one region of shared memory, or in none.
///
/// # Safety
/// `vec` has a byte for each page.
unsafe fn residence(at: usize, len: usize, vec: *mut c_uchar) -> c_int {
    if let Some((engine, range)) = shared(at, len) {
        if !shared::is_mapped(at, range.len()) {
            return error(libc::ENOMEM);
        }
        // SAFETY: the caller's vector has a byte for each page.
        return unsafe { pagemap::in_memory(engine, at, range.len(), vec) };
    }
    let Some((engine, whole)) = managed(at, len).filter(|_| extent::in_window(at)) else {
        // SAFETY: the caller's vector has a byte for each page.
        return unsafe { pagemap::in_kernels_memory(at, len, vec) };
    };
    // (The kernel, too, answers for what is before a hole.)
    let mapped = mapped_from(engine, at, whole);
    // SAFETY: the caller's vector has a byte for each page.
    let done = unsafe { pagemap::in_memory(engine, at, mapped, vec) };
    match done == 0 && mapped < whole {
        true => error(libc::ENOMEM),
        false => done,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn msync(addr: *mut c_void, len: size_t, flags: c_int) -> c_int {
    by_parts(addr as usize, len, true, |at, len| {
        write_back(at, len, flags)
    })
}

/// `msync` of a range that is in one region of shared memory, or in none.
fn write_back(at: usize, len: usize, flags: c_int) -> c_int {
    if let Some((_, range)) = shared(at, len) {
        let mapped = shared::is_mapped(at, range.len());
        return if mapped { 0 } else { error(libc::ENOMEM) };
    }
    let pass = |at, len| pass(libc::SYS_msync, [at, len, flags as usize, 0, 0, 0]);
    match managed(at, len) {
        // There is no file behind managed memory. (The call for an empty range lets the kernel
        // refuse invalid flags.)
        Some((engine, whole)) => match pass(at, 0) {
            0 => each(engine, at, whole, true, pass, |_, _| 0, |_, _| 0),
            refused => refused,
        },
        None => pass(at, len),
    }
}

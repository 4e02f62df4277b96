//! mmap, munmap and mremap: large private anonymous mappings are managed, and what a program then
//! does to them works as if the kernel had made them.
//!
//! Large shared anonymous ones are [`crate::shared`]'s, in addresses of their own behind the window.
//!
//! Inside the window nothing may be mapped behind the engine's back: a fixed mapping over managed memory first takes
//! the units from the engine (`eject`), after which they are the kernel's and ordinary calls work on them.

use crate::lock::Lock;
use crate::real::{self, answer, set_errno};
use crate::{files, shared, state};
use hugeswap_engine::{Engine, Prot, SHARED_BASE};
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::{Errno, mm};
use libc::{c_int, c_void, off_t, size_t};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;
const UNIT: usize = 2 << 20;
const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;
const DONTUNMAP: usize = 4;

/// Flags of mappings that are not ours to take: fixed places, stacks, locked or special memory.
const NEVER: c_int = libc::MAP_FIXED
    | libc::MAP_FIXED_NOREPLACE
    | libc::MAP_GROWSDOWN
    | libc::MAP_STACK
    | libc::MAP_LOCKED
    | libc::MAP_HUGETLB
    | libc::MAP_32BIT;

/// The kernel's answer to a call of the program's.
pub fn kernel(nr: libc::c_long, a: [usize; 6]) -> usize {
    // SAFETY: the program's own call, with the arguments it gave; where it concerns managed
    // memory the caller has taken the units from the engine before.
    answer(unsafe { syscall6(nr as usize, a) }) as usize
}

fn failed(errno: c_int) -> *mut c_void {
    set_errno(errno);
    libc::MAP_FAILED
}

/// `[addr, addr+len)` with `len` rounded up to pages; `None` if it is empty, unaligned or past the end.
pub fn pages(addr: usize, len: usize) -> Option<usize> {
    let len = len.checked_next_multiple_of(PAGE)?;
    (len > 0 && addr.is_multiple_of(PAGE) && addr.checked_add(len).is_some()).then_some(len)
}

/// What is not as the engine gave it, by unit.
struct Marks {
    /// Taken from the engine; some may be managed again since.
    ejected: BTreeSet<usize>,
    /// Less than readable and writable.
    protected: BTreeSet<usize>,
}

static MARKS: Lock<Marks> = Lock::new(Marks {
    ejected: BTreeSet::new(),
    protected: BTreeSet::new(),
});
/// How many marks there are.
static MARKED: AtomicUsize = AtomicUsize::new(0);

impl Marks {
    fn count(&self) {
        MARKED.store(self.ejected.len() + self.protected.len(), Relaxed);
    }
}

/// First addresses of the units that `[from, to)` meets.
fn units(from: usize, to: usize) -> impl Iterator<Item = usize> {
    (from & !(UNIT - 1)..to).step_by(UNIT)
}

/// Takes the units that hold any mapped page of `[addr, addr+len)` from the engine; of shared memory they are kept.
pub fn eject(engine: &Engine, addr: usize, len: usize) -> Result<(), Errno> {
    if !shared_part(addr, len).is_empty() {
        shared::keep(engine, addr, len)?;
    }
    let window = engine.window();
    let (from, to) = (
        addr.max(window.start),
        addr.saturating_add(len).min(window.end),
    );
    if from >= to {
        return Ok(());
    }
    engine.eject(from, to - from)?;
    let mut marks = MARKS.lock();
    marks.ejected.extend(units(from, to));
    marks.count();
    Ok(())
}

/// What of `[addr, addr+len)` is where shared memory may be.
fn shared_part(addr: usize, len: usize) -> Range<usize> {
    let all = state::managed_range();
    let base = SHARED_BASE.min(all.end);
    let start = addr.max(base);
    start..addr.saturating_add(len).min(all.end).max(start)
}

/// Sets the access to whole units of managed memory.
pub fn protect(engine: &Engine, addr: usize, len: usize, access: Prot) -> bool {
    let done = engine.protect(addr, len, access).is_ok();
    if access != Prot::ReadWrite {
        let mut marks = MARKS.lock();
        marks.protected.extend(units(addr, addr + len));
        marks.count();
    }
    done
}

/// Is all of `[addr, addr+len)` still as the engine gave it?
pub fn untouched(addr: usize, len: usize) -> bool {
    if MARKED.load(Relaxed) == 0 {
        return true;
    }
    let marks = MARKS.lock();
    !units(addr, addr + len).any(|u| marks.ejected.contains(&u) || marks.protected.contains(&u))
}

/// Has any unit of `[addr, addr+len)` been taken from the engine? Then the kernel is to be asked about all of it.
pub fn any_ejected(addr: usize, len: usize) -> bool {
    MARKED.load(Relaxed) != 0 && {
        let marks = MARKS.lock();
        units(addr, addr + len).any(|u| marks.ejected.contains(&u))
    }
}

/// The bytes of `[addr, addr+len)` become zero, each by whoever has its unit.
pub fn discard(engine: &Engine, addr: usize, len: usize) -> Result<(), Errno> {
    if !any_ejected(addr, len) {
        return engine.discard(addr, len);
    }
    for unit in units(addr, addr + len) {
        let (from, to) = (unit.max(addr), (unit + UNIT).min(addr + len));
        if any_ejected(unit, UNIT) {
            // The mark may be older than the unit's present life.
            engine.eject(from, to - from)?;
            // SAFETY: the kernel's pages, whose content the program gives up.
            unsafe { mm::advise(from, to - from, libc::MADV_DONTNEED) }?;
        } else {
            engine.discard(from, to - from)?;
        }
    }
    Ok(())
}

/// Gives managed pages back to the engine. Whatever the program made of those that were taken from it (files
/// mapped over them, protections) is undone first, for their addresses will be somebody's memory again.
pub fn release(engine: &Engine, addr: usize, len: usize) {
    if untouched(addr, len) {
        engine.unmap(addr, len);
        return;
    }
    let mut ejected: Vec<usize> = Vec::new();
    let marks = MARKS.lock();
    ejected.extend(units(addr, addr + len).filter(|u| marks.ejected.contains(u)));
    drop(marks);
    for &unit in &ejected {
        let (from, to) = (unit.max(addr), (unit + UNIT).min(addr + len));
        // A unit that is the engine's again becomes the kernel's once more, which is rare and does no harm.
        if engine.eject(from, to - from).is_ok() {
            // SAFETY: pages of the kernel's that the program gives up.
            let _ = unsafe { mm::map_anon(from, to - from, mm::PROT_RW, true) };
        }
    }
    engine.unmap(addr, len);
    let live = |unit: usize| {
        (unit..unit + UNIT)
            .step_by(PAGE)
            .any(|p| engine.is_mapped(p, PAGE))
    };
    ejected.retain(|&u| !live(u));
    let mut marks = MARKS.lock();
    for u in units(addr, addr + len) {
        marks.protected.remove(&u);
    }
    for u in &ejected {
        marks.ejected.remove(u);
    }
    marks.count();
}

/// Around a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    MARKS.before_fork();
}

/// Around a fork, in parent and child.
pub fn after_fork() {
    MARKS.after_fork();
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
unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let at = addr as usize;
    const TYPE: c_int = libc::MAP_SHARED | libc::MAP_PRIVATE;
    if flags & libc::MAP_FIXED != 0 && state::meets_managed(at, len) {
        if let Some(done) = over_managed(at, len, prot, flags) {
            return done;
        }
    } else if state::may_manage(len)
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
            match engine.map(len, PAGE, true) {
                Ok(at) => {
                    if flags & libc::MAP_POPULATE != 0 {
                        engine.willneed(at, len);
                    }
                    set_errno(errno);
                    return at as *mut c_void;
                }
                // Asked for without a promise of memory: the kernel may give addresses we cannot.
                Err(_) if flags & libc::MAP_NORESERVE != 0 => {}
                Err(_) => return failed(libc::ENOMEM),
            }
        }
    }
    let made = kernel_map(at, len, prot, flags, fd, offset);
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

/// A fixed mapping that meets managed addresses. `None`: the kernel may make it now.
fn over_managed(at: usize, len: usize, prot: c_int, flags: c_int) -> Option<*mut c_void> {
    let engine = state::engine()?;
    let len = pages(at, len)?;
    let plain = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let special = libc::MAP_SHARED | libc::MAP_GROWSDOWN | libc::MAP_LOCKED | libc::MAP_HUGETLB;
    // Fresh zeros over managed memory, as programs do to give memory back: it stays managed.
    if flags & (plain | special) == plain
        && engine.is_mapped(at, len)
        && whole_units(engine, at, len)
        && !any_ejected(at, len)
    {
        let access = access(prot)?;
        if let Err(e) = engine.discard(at, len) {
            return Some(failed(e.0));
        }
        if protect(engine, at, len, access) {
            return Some(at as *mut c_void);
        }
    }
    match make_way(engine, at, len) {
        Ok(()) => None,
        Err(e) => Some(failed(e.0)),
    }
}

/// Before the kernel maps something at addresses of the program's choice.
fn make_way(engine: &Engine, at: usize, len: usize) -> Result<(), Errno> {
    let there = shared_part(at, len);
    if !there.is_empty() {
        shared::make_way(engine, there)?;
    }
    eject(engine, at, len)
}

/// The access `prot` gives, if managed memory can have it.
pub fn access(prot: c_int) -> Option<Prot> {
    match prot {
        libc::PROT_NONE => Some(Prot::None),
        libc::PROT_READ => Some(Prot::Read),
        RW | libc::PROT_WRITE => Some(Prot::ReadWrite),
        _ => None,
    }
}

/// Is `[addr, addr+len)` made of whole units?
pub fn whole_units(engine: &Engine, addr: usize, len: usize) -> bool {
    let window = engine.window();
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
unsafe extern "C" fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    let at = addr as usize;
    if state::meets_managed(at, len)
        && let (Some(engine), Some(len)) = (state::engine(), pages(at, len))
    {
        let all = state::managed_range();
        let (from, to) = (at.max(all.start), (at + len).min(all.end));
        let errno = real::errno();
        let there = shared_part(at, len);
        let private = from..to.min(engine.window().end);
        if !private.is_empty() {
            release(engine, private.start, private.len());
        }
        if !there.is_empty() {
            shared::unmap(engine, there);
        }
        set_errno(errno);
        // What lies elsewhere is the kernel's.
        for (start, end) in [(at, from), (to, at + len)] {
            if start < end {
                kernel(libc::SYS_munmap, [start, end - start, 0, 0, 0, 0]);
            }
        }
        return 0;
    }
    kernel(libc::SYS_munmap, [at, len, 0, 0, 0, 0]) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let (at, to) = (old as usize, target as usize);
    if state::in_window(at)
        && let Some(engine) = state::engine()
    {
        return remap_managed(engine, at, old_len, new_len, flags as usize, to);
    }
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if fixed
        && state::meets_managed(to, new_len)
        && let Some(engine) = state::engine()
        && let Err(e) = make_way(engine, to, new_len)
    {
        return failed(e.0);
    }
    if state::in_shared(at)
        && shared::is_managed(at)
        && let Some(engine) = state::engine()
        && let (Some(old), Some(new)) = (
            old_len.checked_next_multiple_of(PAGE),
            new_len.checked_next_multiple_of(PAGE),
        )
    {
        return shared::remap(engine, at, old, new, flags as usize, to);
    }
    kernel(
        libc::SYS_mremap,
        [at, old_len, new_len, flags as usize, to, 0],
    ) as *mut c_void
}

/// `mremap` of managed memory.
fn remap_managed(
    engine: &Engine,
    at: usize,
    old_len: usize,
    new_len: usize,
    flags: usize,
    to: usize,
) -> *mut c_void {
    let (may_move, fixed) = (
        flags & libc::MREMAP_MAYMOVE as usize != 0,
        flags & libc::MREMAP_FIXED as usize != 0,
    );
    let keep = flags & DONTUNMAP != 0;
    let (Some(old), Some(new)) = (pages(at, old_len), pages(0, new_len)) else {
        return failed(libc::EINVAL);
    };
    if flags > 7 || ((fixed || keep) && !may_move) || (keep && old != new) {
        return failed(libc::EINVAL);
    }
    if !engine.is_mapped(at, old) {
        return failed(libc::EFAULT);
    }
    let errno = real::errno();
    let result = if fixed {
        let overlaps = to < at.saturating_add(old) && at < to.saturating_add(new);
        if pages(to, new).is_none() || overlaps {
            return failed(libc::EINVAL);
        }
        to_fixed(engine, at, old, new, to)
    } else if keep {
        to_elsewhere(engine, at, old, new)
    } else if new <= old {
        if new < old {
            release(engine, at + new, old - new);
        }
        Ok(at)
    } else if engine.grow(at, old, new) {
        Ok(at)
    } else if may_move {
        to_elsewhere(engine, at, old, new)
    } else {
        Err(libc::ENOMEM)
    };
    match result {
        Ok(now) => {
            if keep {
                let _ = discard(engine, at, old);
            } else if now != at {
                release(engine, at, old);
            }
            set_errno(errno);
            now as *mut c_void
        }
        Err(e) => failed(e),
    }
}

fn to_elsewhere(engine: &Engine, at: usize, old: usize, new: usize) -> Result<usize, c_int> {
    let to = engine.map(new, PAGE, true).map_err(|_| libc::ENOMEM)?;
    engine.carry_advice(at, old, to, new);
    engine.move_range(at, to, old.min(new));
    Ok(to)
}

/// To an address of the program's choice: within managed memory pages move, anywhere else they are copied.
fn to_fixed(engine: &Engine, at: usize, old: usize, new: usize, to: usize) -> Result<usize, c_int> {
    if state::in_window(to) && engine.is_mapped(to, new) && !any_ejected(to, new) {
        engine.discard(to, new).map_err(|e| e.0)?;
        engine.carry_advice(at, old, to, new);
        engine.move_range(at, to, old.min(new));
        return Ok(to);
    }
    make_way(engine, to, new).map_err(|e| e.0)?;
    // SAFETY: the program asked that whatever is mapped at `to` be replaced.
    unsafe { mm::map_anon(to, new, mm::PROT_RW, true) }.map_err(|e| e.0)?;
    // SAFETY: both ranges are mapped, do not overlap, and the program gives up the first.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, to as *mut u8, old.min(new)) };
    Ok(to)
}

/// The errno-style answer for `r`.
pub fn status(r: Result<(), Errno>) -> c_int {
    match r {
        Ok(()) => 0,
        Err(e) => {
            set_errno(e.0);
            -1
        }
    }
}

/// A system call on addresses, passed to the kernel as it is.
pub fn pass(nr: libc::c_long, a: [usize; 6]) -> c_int {
    kernel(nr, a) as c_int
}

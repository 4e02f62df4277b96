//! mremap of memory in the window, and into the window.
//!
//! The engine moves managed memory. The kernel moves what it has mapped in the window. The
//! addresses that it moves to are claimed from the engine before; those that it leaves are given
//! back afterwards, and are without access again before they are used anew. Memory that was managed
//! may be several mappings for the kernel where it is one for the program, so the engine moves it
//! too, whatever the program has said of it meanwhile.

mod several;

use crate::advise::{MADV_WIPEONFORK, madvise, mprotect};
use crate::locked::{mlock, munlock};
use crate::marks::is_noted;
use crate::mmap::{RW, TASK_END, end_claim, kernel, make_way, munmap, pages, release};
use crate::owners::keep;
use crate::real::{self, set_errno};
use crate::runs::discard;
use crate::{access, extent, inherit, shared, state};
use hugeswap_engine::{Contents, Engine};
use hugeswap_sys::maps::{Flags, Mapping, Text};
use hugeswap_sys::{Errno, mm, raw};
use libc::{c_int, c_void, size_t};
use several::{flags_of, is_one_mapping, several};

const PAGE: usize = 4096;
const MAYMOVE: usize = libc::MREMAP_MAYMOVE as usize;
const FIXED: usize = libc::MREMAP_FIXED as usize;
const DONTUNMAP: usize = 4;

/// A checked call of the program.
#[derive(Clone, Copy)]
struct Move {
    at: usize,
    /// Length in bytes, whole pages; 0 asks for a second mapping of shared memory.
    old: usize,
    new: usize,
    flags: usize,
    to: usize,
}

impl Move {
    fn has(&self, flag: usize) -> bool {
        self.flags & flag != 0
    }

    /// Do the old addresses stay mapped, too?
    fn keeps(&self) -> bool {
        self.has(DONTUNMAP) || self.old == 0
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: size_t,
    new_len: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let (at, to, flags) = (old as usize, target as usize, flags as usize);
    let a = [at, old_len, new_len, flags, to, 0];
    let Some(engine) = state::engine() else {
        return kernel(libc::SYS_mremap, a) as *mut c_void;
    };
    let ours = meets_window(engine, at, old_len.max(1));
    let into = flags & FIXED != 0 && extent::meets_managed(to, new_len);
    if !ours && !into && !extent::in_shared(at) {
        return kernel(libc::SYS_mremap, a) as *mut c_void;
    }
    let errno = real::errno();
    let _kept = keep();
    let result = checked(engine, at, old_len, new_len, flags, to).and_then(|m| {
        let is_target = m.has(FIXED) && extent::meets_several(m.to, m.new);
        if is_target || extent::meets_several(m.at, m.old) {
            return Err(Errno::ENOMEM);
        }
        if ours {
            with_flags(engine, m)
        } else {
            elsewhere(engine, m)
        }
    });
    match result {
        Ok(now) => {
            set_errno(errno);
            now as *mut c_void
        }
        Err(e) => {
            set_errno(e.0);
            libc::MAP_FAILED
        }
    }
}

fn meets_window(engine: &Engine, at: usize, len: usize) -> bool {
    let window = engine.window_at(at, len);
    at < window.end && at.saturating_add(len) > window.start
}

fn is_inside(engine: &Engine, at: usize, len: usize) -> bool {
    let window = engine.window_at(at, len);
    at >= window.start && at + len <= window.end
}

/// The call with its lengths rounded up to whole pages; EINVAL, as from the kernel, if it is
/// invalid.
fn checked(
    engine: &Engine,
    at: usize,
    old_len: usize,
    new_len: usize,
    flags: usize,
    to: usize,
) -> Result<Move, Errno> {
    let new = pages(0, new_len).ok_or(Errno::EINVAL)?;
    // (As in the kernel, a length that exceeds all addresses by less than a page is 0.)
    let old = old_len.wrapping_add(PAGE - 1) & !(PAGE - 1);
    let m = Move {
        at,
        old,
        new,
        flags,
        to,
    };
    let moves = m.has(FIXED | DONTUNMAP);
    let overlaps = to < at.saturating_add(old) && at < to.saturating_add(new);
    // (The new address is a hint with MREMAP_DONTUNMAP alone, and is checked as if it were not.)
    let is_good = pages(to, new).is_some() && to + new <= TASK_END && !overlaps;
    if flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0
        || !at.is_multiple_of(PAGE)
        || new > TASK_END
        || (moves && !(m.has(MAYMOVE) && is_good))
        || (m.has(DONTUNMAP) && old != new)
    {
        return Err(Errno::EINVAL);
    }
    match at.checked_add(old) {
        Some(_) => Ok(m),
        None if meets_window(engine, at, PAGE) && !engine.is_mapped(at, PAGE) => Err(Errno::EFAULT),
        None => Err(Errno::EINVAL),
    }
}

/// Lets the kernel make the move; the new address.
fn by_kernel(m: Move) -> Result<usize, Errno> {
    let a = [m.at, m.old, m.new, m.flags, m.to, 0];
    // SAFETY: the program's own call, or a part of it, on memory that the kernel has.
    unsafe { raw::call(libc::SYS_mremap, a) }
}

/// Moves memory outside the window, which is in shared memory or goes to managed addresses; the new
/// address.
fn elsewhere(engine: &Engine, m: Move) -> Result<usize, Errno> {
    let claim = match m.has(FIXED) && extent::meets_managed(m.to, m.new) {
        true => match make_way(engine, m.to, m.new, Contents::Keep) {
            Ok(claim) => Some(claim),
            Err(e) => return copied(engine, m).ok_or(e),
        },
        false => None,
    };
    let moved = if extent::in_shared(m.at) && shared::is_managed(m.at) {
        match shared::remap(engine, m.at, m.old, m.new, m.flags, m.to) {
            libc::MAP_FAILED => Err(Errno(real::errno())),
            now => Ok(now as usize),
        }
    } else {
        by_kernel(m)
    };
    if let Some(claim) = claim {
        end_claim(engine, claim, moved.is_ok());
    }
    moved
}

/// Moves memory in the window; the new address. A child has what was moved, or does not, as before.
fn with_flags(engine: &Engine, m: Move) -> Result<usize, Errno> {
    let flags = flags_of(engine, m.at, m.old);
    in_window(engine, m).inspect(|&now| match flags {
        Some(flags) if flags.is_not_inherited => inherit::exclude(now, m.new),
        Some(_) => inherit::include(now, m.new),
        // (Its parts were moved one by one.)
        None => {}
    })
}

/// [`with_flags`], without what the program said of children.
fn in_window(engine: &Engine, m: Move) -> Result<usize, Errno> {
    let Move { at, old, new, .. } = m;
    // (The kernel, too, makes any range shorter, whatever mappings it consists of, and does so
    // before it moves what is left, which must be one mapping.)
    if new < old && is_page_mapped(engine, at) {
        if m.has(FIXED) && !is_one_mapping(engine, at, new) {
            return Err(Errno::EFAULT);
        }
        // SAFETY: what the program gives up.
        if unsafe { munmap((at + new) as *mut c_void, old - new) } != 0 {
            return Err(Errno(real::errno()));
        }
        return in_window(engine, Move { old: new, ..m });
    }
    if new == old && !m.has(FIXED | DONTUNMAP) && is_page_mapped(engine, at) {
        return Ok(at);
    }
    let len = old.max(PAGE);
    let is_mapped = engine.is_mapped(at, len);
    let reserved_bytes = engine.reserved_bytes(at, len);
    let kernel_bytes = engine.kernel_bytes(at, len);
    match (reserved_bytes, kernel_bytes) {
        _ if !is_mapped || flags_of(engine, at, len).is_none() => several(engine, m),
        // Private memory cannot be mapped a second time.
        (_, n) if old == 0 && n == 0 => Err(Errno::EINVAL),
        (n, _) if n == len => reserved(engine, m),
        (0, 0) if is_noted(at, old) => with_access(engine, m),
        (0, 0) => managed(engine, m),
        (_, n) if n == len => of_kernel(engine, m),
        _ => several(engine, m),
    }
}

/// Is the page at `at` mapped? (Where the window is not all reserved, the kernel knows of its own.)
fn is_page_mapped(engine: &Engine, at: usize) -> bool {
    let as_it_is = Move {
        at,
        old: PAGE,
        new: PAGE,
        flags: 0,
        to: 0,
    };
    engine.is_mapped(at, PAGE)
        && (!extent::in_far_part(at)
            || engine.kernel_bytes(at, PAGE) == 0
            || by_kernel(as_it_is).is_ok())
}

/// Moves managed memory to which the program may have another access than read and write, and gives
/// its new place the same access. (Any other note is out of date: memory with such a property
/// became the kernel's, and this memory is managed now.)
fn with_access(engine: &Engine, m: Move) -> Result<usize, Errno> {
    let Move { at, old, new, .. } = m;
    let Some(prot) = access::of(engine, at, old) else {
        return several(engine, m);
    };
    let set = |at: usize, len: usize, prot: c_int| {
        let (at, prot) = (at as *mut c_void, prot);
        // SAFETY: the program's memory, to which it has this access in the end.
        match prot == RW || unsafe { mprotect(at, len, prot) } == 0 {
            true => Ok(()),
            false => Err(Errno(real::errno())),
        }
    };
    if prot != RW {
        access::open(engine, at, old)?;
    }
    // (Locked memory that stays mapped loses its lock, as at the kernel.)
    let told = flags_of(engine, at, old).unwrap_or_default();
    if told.is_locked {
        // SAFETY: the program's memory; what it holds does not change.
        unsafe { munlock(at as *const c_void, old) };
    }
    let tell = |at: usize, len: usize| {
        // SAFETY: as above.
        unsafe {
            if told.is_wiped_on_fork {
                madvise(at as *mut c_void, len, MADV_WIPEONFORK);
            }
            if told.is_locked {
                mlock(at as *const c_void, len);
            }
        }
    };
    let now = managed(engine, m).inspect_err(|_| {
        tell(at, old);
        let _ = set(at, old, prot);
    })?;
    if m.keeps() {
        let _ = set(at, old, prot);
    }
    // (The program can do without this: the move does not fail if it fails.)
    tell(now, new);
    let _ = set(now, new, prot);
    Ok(now)
}

/// Moves reserved memory, which holds no bytes; the new address.
fn reserved(engine: &Engine, m: Move) -> Result<usize, Errno> {
    let Move {
        at, old, new, to, ..
    } = m;
    let now = if m.has(FIXED) && is_inside(engine, to, new) {
        engine.reserve_at(to, new, true)?;
        to
    } else if m.has(FIXED) {
        let claim = make_way(engine, to, new, Contents::Keep)?;
        // SAFETY: the program asked that whatever is mapped at `to` be replaced.
        let made = unsafe { mm::map_anon(to, new, mm::PROT_NONE, true) };
        end_claim(engine, claim, made.is_ok());
        made?
    } else if !m.has(DONTUNMAP) && engine.grow_reserved(at, old, new) {
        return Ok(at);
    } else if m.has(MAYMOVE) {
        engine.reserve(new, PAGE)?
    } else {
        return Err(Errno::ENOMEM);
    };
    if !m.keeps() {
        release(engine, at, old);
    }
    Ok(now)
}

/// Moves managed memory that the program can read and write; the new address.
fn managed(engine: &Engine, m: Move) -> Result<usize, Errno> {
    let Move { at, old, new, .. } = m;
    let now = if m.has(FIXED) {
        to_fixed(engine, at, old, new, m.to)?
    } else if m.has(DONTUNMAP) {
        to_elsewhere(engine, at, old, new)?
    } else if engine.grow(at, old, new) {
        return Ok(at);
    } else if m.has(MAYMOVE) {
        to_elsewhere(engine, at, old, new)?
    } else {
        return Err(Errno::ENOMEM);
    };
    if m.keeps() {
        let _ = discard(engine, at, old);
    } else {
        release(engine, at, old);
    }
    Ok(now)
}

fn to_elsewhere(engine: &Engine, at: usize, old: usize, new: usize) -> Result<usize, Errno> {
    let to = engine.map(new, PAGE, true).map_err(|_| Errno::ENOMEM)?;
    engine.carry_advice(at, old, to, new);
    engine.move_range(at, to, old.min(new));
    Ok(to)
}

/// Moves managed memory to an address that the program chooses: pages move within the window, and
/// are copied to any other place.
fn to_fixed(engine: &Engine, at: usize, old: usize, new: usize, to: usize) -> Result<usize, Errno> {
    if is_inside(engine, to, new) {
        engine.map_at(to, new, true)?;
        engine.carry_advice(at, old, to, new);
        engine.move_range(at, to, old.min(new));
        return Ok(to);
    }
    let claim = make_way(engine, to, new, Contents::Keep)?;
    // SAFETY: the program asked that whatever is mapped at `to` be replaced.
    let made = unsafe { mm::map_anon(to, new, mm::PROT_RW, true) };
    end_claim(engine, claim, made.is_ok());
    made?;
    // SAFETY: both ranges are mapped, do not overlap, and the program gives up the first.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, to as *mut u8, old.min(new)) };
    Ok(to)
}

/// Moves memory in the window that the kernel mapped for the program; the new address.
fn of_kernel(engine: &Engine, m: Move) -> Result<usize, Errno> {
    let Move { at, old, new, .. } = m;
    if m.has(FIXED) {
        let claim = match make_way(engine, m.to, new, Contents::Keep) {
            Ok(claim) => claim,
            Err(e) => return copied(engine, m).ok_or(e),
        };
        let moved = by_kernel(m).or_else(|e| in_pieces(engine, m, e));
        end_claim(engine, claim, moved.is_ok());
        let now = moved?;
        if !m.keeps() {
            release(engine, at, old);
        }
        return Ok(now);
    }
    if new > old && old > 0 && grow_by_kernel(engine, at, old, new) {
        return Ok(at);
    }
    if !m.has(MAYMOVE) && old == 0 {
        return by_kernel(m);
    }
    if !m.has(MAYMOVE) {
        return Err(match is_one_mapping(engine, at, old.max(PAGE)) {
            true => Errno::ENOMEM,
            false => Errno::EFAULT,
        });
    }
    let now = by_kernel(m).or_else(|e| in_pieces(engine, m, e))?;
    if !m.keeps() {
        release(engine, at, old);
    }
    Ok(now)
}

/// Copies memory of the kernel's to managed memory: what else is in its units cannot become the
/// kernel's. The new address; `None` if the move is another one, or cannot be made.
fn copied(engine: &Engine, m: Move) -> Option<usize> {
    let Move { at, old, to, .. } = m;
    if !m.has(FIXED) || m.keeps() || old != m.new || !is_inside(engine, to, old) {
        return None;
    }
    let text = Text::read_with_flags().ok()?;
    let inside = |m: &Mapping| m.end.min(at + old) - m.start.max(at);
    let is_plain = { text.mappings(at, old) }.all(|m| m.is_anonymous && m.prot == RW)
        && text.flags(at, old).all(|flags| flags == Flags::default())
        && text.mappings(at, old).map(|m| inside(&m)).sum::<usize>() == old;
    if !is_plain || engine.map_at(to, old, true).is_err() {
        return None;
    }
    // SAFETY: both ranges are mapped, do not overlap, and the program gives up the first.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, to as *mut u8, old) };
    // SAFETY: what the program gives up.
    unsafe { munmap(at as *mut c_void, old) };
    Some(to)
}

/// Moves memory that the kernel refused to move with this error, if that is because it consists of
/// several mappings that are one for the program: memory that was managed when it was first touched
/// is not one mapping again when it becomes the kernel's. What was moved is moved back after an
/// error.
fn in_pieces(engine: &Engine, m: Move, error: Errno) -> Result<usize, Errno> {
    let is_one = error == Errno::EFAULT && flags_of(engine, m.at, m.old).is_some();
    let pieces = { pieces_of(m.at, m.old) }.filter(|_| is_one).ok_or(error)?;
    let to = match m.has(FIXED) {
        true => m.to,
        // (The kernel chooses addresses that are free.)
        false => {
            let a = [0, m.new, 0, RESERVATION as usize, usize::MAX, 0];
            // SAFETY: a mapping of its own.
            unsafe { raw::call(libc::SYS_mmap, a) }?
        }
    };
    let flags = MAYMOVE | FIXED | m.flags & DONTUNMAP;
    let mut done = Vec::with_capacity(pieces.len());
    for (at, old) in pieces {
        let Some(left) = m.new.checked_sub(at - m.at).filter(|&left| left > 0) else {
            break;
        };
        let is_last = at + old == m.at + m.old;
        let new = if is_last { left } else { old.min(left) };
        let piece = Move {
            at,
            old,
            new,
            flags,
            to: to + (at - m.at),
        };
        if let Err(e) = by_kernel(piece) {
            for Move {
                at, old, new, to, ..
            } in done
            {
                let _ = by_kernel(Move {
                    at: to,
                    old: new,
                    new: old,
                    flags: MAYMOVE | FIXED,
                    to: at,
                });
            }
            if !m.has(FIXED) {
                // SAFETY: addresses that were chosen above, at which nothing is left.
                let _ = unsafe { mm::unmap(to, m.new) };
            }
            return Err(e);
        }
        done.push(piece);
    }
    Ok(to)
}

/// Addresses without access.
const RESERVATION: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// The parts of `[at, at+len)` that are one mapping each, as address and length in bytes; `None` if
/// that is all of it, or if the program, too, sees several mappings.
fn pieces_of(at: usize, len: usize) -> Option<Vec<(usize, usize)>> {
    let mappings = access::mappings(at, len)?;
    let first = *mappings.first()?;
    let alike = |m: &Mapping| m.is_anonymous && m.prot == first.prot;
    if mappings.len() < 2 || !mappings.iter().all(alike) {
        return None;
    }
    let piece = |m: &Mapping| {
        let start = m.start.max(at);
        (start, m.end.min(at + len) - start)
    };
    Some(mappings.iter().map(piece).collect())
}

/// Makes the kernel's mapping that ends at `at + old` longer in place. False if the addresses
/// behind it are not free, or the kernel fails.
fn grow_by_kernel(engine: &Engine, at: usize, old: usize, new: usize) -> bool {
    let (end, more) = (at + old, new - old);
    if end + more > engine.window_at(at, old).end || engine.is_any_mapped(end, more) {
        return false;
    }
    let Ok(claim) = engine.claim(end, more, Contents::Keep) else {
        return false;
    };
    // (A mapping can only grow into unmapped addresses.)
    // SAFETY: addresses that were claimed, and that nobody uses.
    let opened = unsafe { mm::unmap(end, more) };
    let longer = |at, old| Move {
        at,
        old,
        new: old + more,
        flags: 0,
        to: 0,
    };
    let grown = opened.and_then(|()| {
        by_kernel(longer(at, old)).or_else(|e| {
            // Of several mappings, the last grows.
            let pieces = pieces_of(at, old).filter(|_| e == Errno::EFAULT);
            let &(at, old) = pieces.as_ref().and_then(|p| p.last()).ok_or(e)?;
            by_kernel(longer(at, old))
        })
    });
    let grown = grown.is_ok();
    end_claim(engine, claim, grown);
    grown
}

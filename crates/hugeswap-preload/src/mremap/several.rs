//! mremap of memory that has several owners or kinds of access: part by part.

use super::{DONTUNMAP, FIXED, MAYMOVE, Move, by_kernel, in_window, with_flags};
use crate::marks::is_told;
use crate::mmap::release;
use crate::runs::{Owner, Run, runs};
use crate::{access, inherit};
use hugeswap_engine::Engine;
use hugeswap_sys::maps::{Flags, Mapping, Text};
use hugeswap_sys::{Errno, mm};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: usize = 4096;

/// Is `[at, at+len)` one mapping for the program? (Memory of the kernel's that was managed may be
/// several for it, all of them anonymous.)
pub(super) fn is_one_mapping(engine: &Engine, at: usize, len: usize) -> bool {
    if !engine.is_mapped(at, len) || access::of(engine, at, len).is_none() {
        return false;
    }
    if flags_of(engine, at, len).is_none() {
        return false;
    }
    let of_kernel = |run: &Run| run.owner == Owner::Kernel;
    let mut mappings = { runs(engine, at, len).into_iter() }
        .filter(of_kernel)
        .map(|run| access::mappings(run.at, run.len).unwrap_or_default())
        .collect::<Vec<_>>()
        .concat();
    // (Two neighbours may be parts of one.)
    mappings.dedup();
    let is_whole = |m: &Mapping| m.start <= at && at + len <= m.end;
    mappings.iter().all(|m| m.is_anonymous || is_whole(m))
}

/// What the kernel, or in its place this library, was told to do with a range, all of which is
/// mapped; `None` if that is not the same everywhere, or cannot be determined.
pub(super) fn flags_of(engine: &Engine, at: usize, len: usize) -> Option<Flags> {
    if !is_told(at, len) && !inherit::is_excluded(at, len) {
        return Some(Flags::default());
    }
    let mut text = None;
    let mut all = None;
    for run in runs(engine, at, len) {
        let mut is_same = |flags| *all.get_or_insert(flags) == flags;
        let done = match run.owner {
            Owner::Kernel => {
                if text.is_none() {
                    text = Some(Text::read_with_flags().ok()?);
                }
                // (It may be the kernel's since the program said that a child is not to have it.)
                let text = text.as_ref()?;
                let mut parts = inherit::parts(run.at, run.len).into_iter();
                parts.all(|(part, is_excluded)| {
                    let mut flags = text.flags(part.start, part.len());
                    flags.all(|flags| {
                        is_same(Flags {
                            is_not_inherited: flags.is_not_inherited || is_excluded,
                            ..flags
                        })
                    })
                })
            }
            // (Managed memory can have one flag only.)
            Owner::Engine | Owner::Reserved => {
                let mut parts = inherit::parts(run.at, run.len).into_iter();
                parts.all(|(_, is_not_inherited)| {
                    is_same(Flags {
                        is_not_inherited,
                        ..Flags::default()
                    })
                })
            }
        };
        if !done {
            return None;
        }
    }
    all
}

/// The parts of `[at, at+len)`, as address and length in bytes, each of which has one owner, one
/// access and one set of flags.
fn parts(engine: &Engine, at: usize, len: usize) -> Option<Vec<(usize, usize)>> {
    let of_access = access::parts(engine, at, len)?.into_iter();
    let by_flags = of_access.flat_map(|(at, len)| inherit::parts(at, len));
    Some(by_flags.map(|(part, _)| (part.start, part.len())).collect())
}

/// Moves memory that has several owners, or that the program has several kinds of access to, part
/// by part. That is one mapping for the program, or the kernel moves several at a time (since Linux
/// 6.17, of equal length, to an address that is given); then there may be holes between them. After
/// an error of the latter, as in the kernel, a part has moved.
pub(super) fn several(engine: &Engine, m: Move) -> Result<usize, Errno> {
    let Move { at, old, new, .. } = m;
    let is_one = is_one_mapping(engine, at, old);
    let only_moves = m.has(FIXED) && old == new && old > 0 && engine.is_mapped(at, PAGE);
    if !(is_one || only_moves && kernel_moves_several()) {
        return Err(Errno::EFAULT);
    }
    // (What is one part, and could not be moved as such, cannot be moved.)
    let parts = parts(engine, at, old).filter(|parts| parts[..] != [(at, old)]);
    let parts = parts.ok_or(Errno::EFAULT)?;
    let &(last, last_len) = parts.last().ok_or(Errno::EFAULT)?;
    let longer = new - old;
    if !m.has(FIXED | DONTUNMAP) {
        let grown = Move {
            at: last,
            old: last_len,
            new: last_len + longer,
            flags: 0,
            to: 0,
        };
        match in_window(engine, grown) {
            Ok(_) => return Ok(at),
            Err(e) if !m.has(MAYMOVE) => return Err(e),
            Err(_) => {}
        }
    }
    let to = match m.has(FIXED) {
        true => m.to,
        false => engine.reserve(new, PAGE)?,
    };
    let mut moved = Vec::with_capacity(parts.len());
    for (from, len) in parts {
        let part = Move {
            at: from,
            old: len,
            new: if from == last { len + longer } else { len },
            flags: MAYMOVE | FIXED | m.flags & DONTUNMAP,
            to: to + (from - at),
        };
        if let Err(e) = with_flags(engine, part) {
            // (With MREMAP_DONTUNMAP their old addresses are mapped, and replaced.)
            for Move { at, old, to, .. } in moved.into_iter().filter(|_| is_one) {
                let back = Move {
                    at: to,
                    old,
                    new: old,
                    flags: MAYMOVE | FIXED,
                    to: at,
                };
                let _ = with_flags(engine, back);
            }
            if !m.has(FIXED) {
                release(engine, to, new);
            }
            return Err(e);
        }
        moved.push(part);
    }
    Ok(to)
}

/// Does the kernel move several mappings by one call? (Tried once.)
fn kernel_moves_several() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Relaxed) {
        0 => {
            let does = try_to_move_two().unwrap_or(false);
            KNOWN.store(1 + u8::from(does), Relaxed);
            does
        }
        known => known == 2,
    }
}

fn try_to_move_two() -> Result<bool, Errno> {
    // SAFETY: mappings of its own, which nobody else knows.
    unsafe {
        let at = mm::map_anon(0, 4 * PAGE, mm::PROT_NONE, false)?;
        let done = mm::protect(at, PAGE, mm::PROT_READ).and_then(|()| {
            by_kernel(Move {
                at,
                old: 2 * PAGE,
                new: 2 * PAGE,
                flags: MAYMOVE | FIXED,
                to: at + 2 * PAGE,
            })
        });
        let _ = mm::unmap(at, 4 * PAGE);
        Ok(done.is_ok())
    }
}

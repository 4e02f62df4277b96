//! /proc/self/maps, as the program sees it: what it has mapped of the window, with the access that it
//! has given, in the place of the engine's mappings.
//!
//! The text is made when the file is opened, and is a file in memory from then on, in the place of
//! the kernel's behind the same descriptor. What is elsewhere, and what the kernel has in the
//! window, is told as the kernel tells it.

use crate::access::{bits, spans};
use crate::owners::keep;
use crate::runs::{Owner, runs};
use hugeswap_engine::Engine;
use hugeswap_sys::maps::{Mapping, Text};
use hugeswap_sys::{Result, fs, mm, raw};
use libc::c_int;
use std::ffi::CString;
use std::io::Write;
use std::ops::Range;

/// The rest of the line of a mapping of no file, behind its offset.
const ANONYMOUS: &[u8] = b"00:00 0 ";

/// A line.
struct Line<'a> {
    at: Range<usize>,
    /// As the kernel writes it, `rw-p`.
    access: [u8; 4],
    offset: usize,
    rest: &'a [u8],
}

impl<'a> Line<'a> {
    /// The part of a mapping of the kernel's that is in `within`; `None` if its line is not one.
    fn of_kernel(m: &Mapping, line: &'a [u8], within: &Range<usize>) -> Option<Line<'a>> {
        let at = m.start.max(within.start)..m.end.min(within.end);
        let mut words = line.splitn(3, |&b| b == b' ');
        let access = words.next()?.try_into().ok()?;
        let offset = std::str::from_utf8(words.next()?).ok()?;
        let offset = usize::from_str_radix(offset, 16).ok()?;
        let rest = words.next()?;
        let before = if m.is_anonymous {
            0
        } else {
            at.start - m.start
        };
        Some(Line {
            at,
            access,
            offset: offset + before,
            rest,
        })
    }

    /// Managed memory.
    fn managed(at: Range<usize>, prot: c_int) -> Line<'a> {
        let has = |bit, letter| if prot & bit != 0 { letter } else { b'-' };
        Line {
            at,
            access: [
                has(libc::PROT_READ, b'r'),
                has(libc::PROT_WRITE, b'w'),
                b'-',
                b'p',
            ],
            offset: 0,
            rest: ANONYMOUS,
        }
    }
}

/// Puts our text in the place of the kernel's file `fd`. (If it cannot be made, the kernel's stays.)
pub fn replace(engine: &Engine, fd: c_int) {
    let _ = try_to_replace(engine, fd);
}

fn try_to_replace(engine: &Engine, fd: c_int) -> Result<()> {
    let kept = keep();
    let kernels = Text::read()?;
    let lines = lines(engine, &kernels);
    drop(kept);
    let mut text = Vec::new();
    for Line {
        at,
        access,
        offset,
        rest,
    } in lines
    {
        // (Writing to a vector does not fail.)
        let _ = write!(text, "{:08x}-{:08x} ", at.start, at.end);
        text.extend(access);
        let _ = write!(text, " {offset:08x} ");
        text.extend(rest);
        text.push(b'\n');
    }
    let made = mm::memfd(c"maps", false)?;
    let done = fill(made, &text, fd);
    fs::close(made);
    done
}

/// Writes the text to the file `made`, and has `fd` refer to that, to be read from its beginning.
fn fill(made: c_int, text: &[u8], fd: c_int) -> Result<()> {
    // SAFETY: bytes of ours.
    unsafe { fs::write_all_at(made, text.as_ptr() as usize, text.len(), 0) }?;
    let path = CString::new(format!("/proc/thread-self/fd/{made}")).unwrap_or_default();
    let read_only = fs::open(&path, libc::O_RDONLY | libc::O_CLOEXEC, 0)?;
    // SAFETY: calls that take numbers.
    let done = unsafe {
        raw::call(
            libc::SYS_fcntl,
            [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0],
        )
        .and_then(|flags| {
            let closes = flags as c_int & libc::FD_CLOEXEC != 0;
            let flags = if closes { libc::O_CLOEXEC } else { 0 };
            let a = [read_only as usize, fd as usize, flags as usize, 0, 0, 0];
            raw::call(libc::SYS_dup3, a)
        })
    };
    fs::close(read_only);
    done.map(drop)
}

/// What is mapped, in order. The engine's mappings are left out.
fn lines<'a>(engine: &Engine, kernels: &'a Text) -> Vec<Line<'a>> {
    let mut parts: Vec<Range<usize>> = engine.window_parts().collect();
    parts.sort_unstable_by_key(|p| p.start);
    let outside = |from: usize, to: usize| kernels_in(kernels, from..to);
    let mut all: Vec<Line<'a>> = Vec::new();
    let mut next = 0;
    for part in parts {
        all.extend(outside(next, part.start));
        next = part.end;
        for run in runs(engine, part.start, part.len()) {
            let range = run.at..run.at + run.len;
            match run.owner {
                Owner::Kernel => all.extend(kernels_in(kernels, range)),
                Owner::Reserved => all.push(Line::managed(range, libc::PROT_NONE)),
                Owner::Engine => {
                    let spans = spans(engine, range).into_iter();
                    all.extend(spans.map(|(span, access)| Line::managed(span, bits(access))));
                }
            }
        }
    }
    all.extend(outside(next, usize::MAX));
    // What is one mapping to the program can have several owners.
    all.dedup_by(|line, last| {
        let joins = last.at.end == line.at.start
            && last.access == line.access
            && last.rest == ANONYMOUS
            && line.rest == ANONYMOUS;
        if joins {
            last.at.end = line.at.end;
        }
        joins
    });
    all
}

fn kernels_in(kernels: &Text, range: Range<usize>) -> impl Iterator<Item = Line<'_>> {
    kernels.all().filter_map(move |(m, line)| {
        let is_met = m.start < range.end && m.end > range.start;
        is_met.then(|| Line::of_kernel(&m, line, &range)).flatten()
    })
}

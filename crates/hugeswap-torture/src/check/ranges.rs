//! Operations on ranges of a slot and on whole slots, with what each does to the model.
//!
//! The caller holds the slot's structure lock, for writing where the operation is structural.

use super::operation::Op;
use super::random::Random;
use super::slot::{CHUNK, Kind, LINE, PAGE, Slot};
use super::walker::Failure;
use std::io::Error;
use std::time::Duration;

const UNIT: usize = 2 << 20;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// The least a slot holds.
pub const LEAST: usize = CHUNK;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    Yes,
    /// The system had not enough of something, or there was nothing to do it to.
    Refused,
}

/// Part of a slot: whole pages, at least one.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    /// Offset of the first byte.
    pub from: usize,
    /// Offset past the last byte.
    pub to: usize,
}

impl Range {
    /// A range of whole pages of the slot, short or long, at times from a unit's boundary on.
    pub fn draw(slot: &Slot, r: &mut Random) -> Option<Range> {
        let first = slot.base().next_multiple_of(PAGE) - slot.base();
        let pages = slot.len().checked_sub(first)? / PAGE;
        if pages == 0 {
            return None;
        }
        let mut page = r.below(pages);
        if r.one_in(4) {
            let unit = (slot.base() + first + page * PAGE) & !(UNIT - 1);
            page = unit.saturating_sub(slot.base() + first) / PAGE;
        }
        let longest = if r.one_in(4) { pages } else { 700 };
        let n = (r.below(longest) + 1).min(pages - page);
        let from = first + page * PAGE;
        Some(Range {
            from,
            to: from + n * PAGE,
        })
    }

    fn at_most(self, len: usize) -> Range {
        Range {
            from: self.from,
            to: self.to.min(self.from + len),
        }
    }

    fn len(self) -> usize {
        self.to - self.from
    }

    fn lines(self) -> std::ops::Range<usize> {
        self.from / LINE..self.to / LINE
    }
}

fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// What a call that returned `ok` comes to.
fn judge(op: Op, ok: bool) -> Result<Done, Failure> {
    if ok {
        return Ok(Done::Yes);
    }
    let moved = matches!(op, Op::MremapMove | Op::MremapGrow | Op::MremapShrink);
    match errno() {
        libc::ENOMEM | libc::EAGAIN => Ok(Done::Refused),
        // The kernel moves nothing that earlier operations have made several mappings of.
        libc::EFAULT if moved => Ok(Done::Refused),
        _ => Err(Failure::Call(op.name(), Error::last_os_error())),
    }
}

fn advise(op: Op, slot: &Slot, range: Range, advice: i32) -> Result<Done, Failure> {
    let at = (slot.base() + range.from) as *mut libc::c_void;
    // SAFETY: pages of the slot; advice that discards is given with the range locked.
    let ok = unsafe { libc::madvise(at, range.len(), advice) } == 0;
    judge(op, ok)
}

/// Does something while no other thread of this process uses the range.
fn alone<T>(slot: &Slot, range: Range, does: impl FnOnce() -> T) -> T {
    slot.lock_range(range.from, range.to);
    let done = does();
    slot.unlock_range(range.from, range.to);
    done
}

fn protect(op: Op, slot: &Slot, range: Range, access: i32) -> Result<Done, Failure> {
    let at = (slot.base() + range.from) as *mut libc::c_void;
    // SAFETY: pages of the slot, locked by the caller while their access is less than it was.
    let ok = unsafe { libc::mprotect(at, range.len(), access) } == 0;
    judge(op, ok)
}

/// Maps fresh private memory; null if there is none.
fn map(op: Op, at: usize, len: usize, access: i32, flags: i32) -> Result<usize, Failure> {
    // SAFETY: a new mapping, or one in place of pages that the caller gives up.
    let p = unsafe { libc::mmap(at as *mut _, len, access, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return judge(op, false).map(|_| 0);
    }
    Ok(p as usize)
}

fn unmap(at: usize, len: usize) -> Result<(), Failure> {
    // SAFETY: pages that the caller gives up.
    match len == 0 || unsafe { libc::munmap(at as *mut _, len) } == 0 {
        true => Ok(()),
        false => Err(Failure::Call("munmap", Error::last_os_error())),
    }
}

/// Gives a slot without memory memory of a random length, zeros.
pub fn make(slot: &Slot, r: &mut Random, full: bool) -> Result<Done, Failure> {
    let len = match (full, r.below(4)) {
        (true, _) => slot.cap,
        (_, 0) => LEAST + r.below(UNIT / PAGE) * PAGE,
        _ => (r.below(slot.cap / PAGE) + 1) * PAGE,
    };
    let len = len.clamp(LEAST, slot.cap);
    let raw = match slot.kind {
        Kind::Map => map(Op::Remake, 0, len, RW, PRIVATE)?,
        Kind::Shared => map(
            Op::Remake,
            0,
            len,
            RW,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        )?,
        Kind::Malloc => block(len + LINE, r),
    };
    if raw == 0 {
        return Ok(Done::Refused);
    }
    slot.place(raw, len);
    slot.note_zero(0, slot.cap / LINE);
    Ok(Done::Yes)
}

/// A block of zeros from one of the functions that give them; 0: there is none.
fn block(size: usize, r: &mut Random) -> usize {
    // SAFETY: plain calls; the block is as long as it is cleared.
    unsafe {
        let p = match r.below(3) {
            0 => return libc::calloc(1, size) as usize,
            1 => libc::malloc(size),
            _ => libc::aligned_alloc(PAGE, size.next_multiple_of(PAGE)),
        };
        if !p.is_null() {
            libc::memset(p, 0, size);
        }
        p as usize
    }
}

/// Gives a slot's memory back.
pub fn give_back(slot: &Slot) -> Result<(), Failure> {
    if slot.len() == 0 {
        return Ok(());
    }
    let (raw, len) = (slot.raw(), slot.len());
    slot.place(0, 0);
    match slot.kind {
        // SAFETY: the slot's block, which nobody uses from now on.
        Kind::Malloc => unsafe { libc::free(raw as *mut _) },
        _ => unmap(raw, len)?,
    }
    Ok(())
}

/// Does `op` to a slot, or a range of it. The structure lock is the caller's.
pub fn operate(op: Op, slot: &Slot, range: Range, r: &mut Random) -> Result<Done, Failure> {
    match op {
        Op::Cold => advise(op, slot, range, libc::MADV_COLD),
        Op::PageOut => advise(op, slot, range, libc::MADV_PAGEOUT),
        Op::WillNeed => advise(op, slot, range, libc::MADV_WILLNEED),
        Op::Huge => advise(op, slot, range, libc::MADV_HUGEPAGE),
        Op::NoHuge => advise(op, slot, range, libc::MADV_NOHUGEPAGE),
        Op::Random => advise(op, slot, range, libc::MADV_RANDOM),
        Op::Sequential => advise(op, slot, range, libc::MADV_SEQUENTIAL),
        Op::Normal => advise(op, slot, range, libc::MADV_NORMAL),
        // What another thread has made inaccessible for a moment cannot be populated.
        Op::PopulateRead => alone(slot, range, || {
            advise(op, slot, range, libc::MADV_POPULATE_READ)
        }),
        Op::PopulateWrite => alone(slot, range, || {
            advise(op, slot, range, libc::MADV_POPULATE_WRITE)
        }),
        Op::Mincore => mincore(slot, range),
        Op::Msync => {
            let at = (slot.base() + range.from) as *mut libc::c_void;
            // SAFETY: pages of the slot.
            let ok = unsafe { libc::msync(at, range.len(), libc::MS_ASYNC) } == 0;
            judge(op, ok)
        }
        Op::Mlock => lock(slot, range.at_most(4 << 20), r),
        Op::DontNeed | Op::Free => discard(op, slot, range),
        // Seldom and short: where single pages are not to be had, units that have several protections
        // at a time are handed to the kernel, which keeps them in memory until they are unmapped.
        Op::ProtectRead | Op::ProtectNone if !r.one_in(8) => Ok(Done::Refused),
        Op::ProtectRead | Op::ProtectNone => restrict(op, slot, range.at_most(UNIT), r),
        Op::ProtectUnits => restrict(op, slot, units(slot, range), r),
        Op::MremapMove | Op::MremapGrow | Op::MremapShrink => remap(op, slot, r),
        Op::CutOut | Op::MapOver => renew(op, slot, range),
        Op::Realloc => reallocate(slot, r),
        Op::Remake => {
            give_back(slot)?;
            make(slot, r, false)
        }
        Op::WriteCall
        | Op::RawWriteCall
        | Op::ReadCall
        | Op::VectorCalls
        | Op::FileWrite
        | Op::FileRead => super::calls::call(op, slot, range, r),
        Op::Fork => unreachable!("a fork is of no slot"),
    }
}

/// The whole units in a range; the range itself if there are none.
fn units(slot: &Slot, range: Range) -> Range {
    let from = (slot.base() + range.from).next_multiple_of(UNIT) - slot.base();
    let to = ((slot.base() + range.to) & !(UNIT - 1)).saturating_sub(slot.base());
    if from < to { Range { from, to } } else { range }
}

fn mincore(slot: &Slot, range: Range) -> Result<Done, Failure> {
    let mut present = vec![0u8; range.len() / PAGE];
    let at = (slot.base() + range.from) as *mut libc::c_void;
    // SAFETY: pages of the slot, and a byte for each.
    let ok = unsafe { libc::mincore(at, range.len(), present.as_mut_ptr()) } == 0;
    judge(Op::Mincore, ok)
}

fn lock(slot: &Slot, range: Range, r: &mut Random) -> Result<Done, Failure> {
    if !r.one_in(16) {
        return Ok(Done::Refused);
    }
    let at = (slot.base() + range.from) as *mut libc::c_void;
    // SAFETY: pages of the slot.
    if unsafe { libc::mlock(at, range.len()) } != 0 {
        return match errno() {
            libc::EPERM => Ok(Done::Refused),
            _ => judge(Op::Mlock, false),
        };
    }
    // SAFETY: as above.
    let ok = unsafe { libc::munlock(at, range.len()) } == 0;
    judge(Op::Mlock, ok)
}

fn discard(op: Op, slot: &Slot, range: Range) -> Result<Done, Failure> {
    if op == Op::DontNeed {
        slot.lock_range(range.from, range.to);
        let done = advise(op, slot, range, libc::MADV_DONTNEED);
        if matches!(done, Ok(Done::Yes)) {
            slot.note_zero(range.lines().start, range.lines().end);
        }
        slot.unlock_range(range.from, range.to);
        return done;
    }
    let range = range.at_most(64 * PAGE);
    slot.lock_range(range.from, range.to);
    let done = advise(op, slot, range, libc::MADV_FREE);
    let looked = match &done {
        Ok(Done::Yes) => range
            .lines()
            .step_by(PAGE / LINE)
            .try_for_each(|first| freed_page(slot, first)),
        _ => Ok(()),
    };
    slot.unlock_range(range.from, range.to);
    looked.and(done)
}

/// A page that was given up by MADV_FREE has its old bytes or none of them, and after a write to it
/// it stays as it is.
fn freed_page(slot: &Slot, first: usize) -> Result<(), Failure> {
    slot.write(first);
    let rest = first + 1..first + PAGE / LINE;
    let is_zero = |line: usize| slot.read_line(line) == [0; LINE / 8];
    let was_zero = |line: &usize| slot.expected(*line) == [0; LINE / 8];
    if let Some(line) = rest.clone().find(|l| !was_zero(l))
        && is_zero(line)
    {
        slot.note_zero(rest.start, rest.end);
    }
    rest.into_iter()
        .try_for_each(|line| slot.check(line).map_err(Failure::Line))
}

fn restrict(op: Op, slot: &Slot, range: Range, r: &mut Random) -> Result<Done, Failure> {
    let access = match op {
        Op::ProtectRead => libc::PROT_READ,
        _ => libc::PROT_NONE,
    };
    slot.lock_range(range.from, range.to);
    let done = protect(op, slot, range, access);
    let mut looked = Ok(());
    if matches!(done, Ok(Done::Yes)) {
        if op == Op::ProtectRead {
            looked = range
                .at_most(16 * PAGE)
                .lines()
                .try_for_each(|line| slot.check(line).map_err(Failure::Line));
        } else if r.one_in(2) {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
    // Also after a call that failed: it may have done a part.
    let back = protect(op, slot, range, RW);
    slot.unlock_range(range.from, range.to);
    looked?;
    match back? {
        Done::Yes => done,
        // Without access to it nothing can go on.
        Done::Refused => Err(Failure::Call("mprotect back", Error::last_os_error())),
    }
}

fn remap(op: Op, slot: &Slot, r: &mut Random) -> Result<Done, Failure> {
    let (at, len) = (slot.base(), slot.len());
    let call = |new_len: usize, flags: i32, to: usize| {
        // SAFETY: the slot's memory, held for writing by the caller; `to` is reserved for it.
        let p = unsafe { libc::mremap(at as *mut _, len, new_len, flags, to) };
        (p != libc::MAP_FAILED).then_some(p as usize)
    };
    match op {
        Op::MremapMove => {
            let reserve = PRIVATE | libc::MAP_NORESERVE;
            let room = map(op, 0, len + (4 << 20), libc::PROT_NONE, reserve)?;
            if room == 0 {
                return Ok(Done::Refused);
            }
            let off = match r.below(3) {
                0 => UNIT,
                _ => r.below(512) * PAGE,
            };
            let moved = call(len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, room + off);
            let Some(now) = moved else {
                let done = judge(op, false);
                unmap(room, len + (4 << 20))?;
                return done;
            };
            slot.place(now, len);
            unmap(room, off)?;
            unmap(room + off + len, (4 << 20) - off)?;
            Ok(Done::Yes)
        }
        Op::MremapGrow => {
            let new_len = (len + (r.below(2048) + 1) * PAGE).min(slot.cap);
            let Some(now) = call(new_len, libc::MREMAP_MAYMOVE, 0) else {
                return judge(op, false);
            };
            slot.place(now, new_len);
            slot.note_zero(len / LINE, new_len / LINE);
            Ok(Done::Yes)
        }
        _ => {
            let new_len = (len / 2 + r.below(len / 2)).next_multiple_of(PAGE);
            if new_len < LEAST || new_len >= len {
                return Ok(Done::Refused);
            }
            let Some(now) = call(new_len, 0, 0) else {
                return judge(op, false);
            };
            slot.place(now, new_len);
            Ok(Done::Yes)
        }
    }
}

/// Fresh memory in place of a range: mapped over it, or where it was unmapped before.
fn renew(op: Op, slot: &Slot, range: Range) -> Result<Done, Failure> {
    let at = slot.base() + range.from;
    let how = match op {
        Op::MapOver => libc::MAP_FIXED,
        _ => {
            unmap(at, range.len())?;
            libc::MAP_FIXED_NOREPLACE
        }
    };
    // Another thread's mapping may have come to lie where the range was.
    // SAFETY: the range is the caller's, which gives up what is in it.
    let p = unsafe { libc::mmap(at as *mut _, range.len(), RW, PRIVATE | how, -1, 0) };
    let taken = op == Op::CutOut && errno() == libc::EEXIST;
    if p != at as *mut _ {
        if p != libc::MAP_FAILED {
            return Err(Failure::Elsewhere(op.name(), at, p as usize));
        }
        if !taken {
            judge(op, false)?;
        }
        // Without what is behind the hole, or the hole's content, the slot ends here.
        let behind = slot.len() - range.to;
        match op {
            Op::MapOver => unmap(at, range.len() + behind)?,
            _ => unmap(at + range.len(), behind)?,
        }
        if range.from < LEAST {
            unmap(slot.base(), range.from)?;
            slot.place(0, 0);
        } else {
            slot.place(slot.raw(), range.from);
        }
        return Ok(Done::Refused);
    }
    slot.note_zero(range.lines().start, range.lines().end);
    Ok(Done::Yes)
}

fn reallocate(slot: &Slot, r: &mut Random) -> Result<Done, Failure> {
    let old = slot.len();
    let new = (LEAST + r.below(slot.cap - LEAST)) & !(LINE - 1);
    let skipped = slot.base() - slot.raw();
    // SAFETY: the slot's block.
    let raw = unsafe { libc::realloc(slot.raw() as *mut _, new + LINE) } as usize;
    if raw == 0 {
        return judge(Op::Realloc, false);
    }
    slot.place(raw, new);
    let kept = old.min(new);
    // SAFETY: both ends lie in the block of `new + LINE` bytes; what is past the old end is cleared.
    unsafe {
        let from = (raw + skipped) as *const u8;
        std::ptr::copy(from, slot.base() as *mut u8, kept);
        std::ptr::write_bytes((slot.base() + kept) as *mut u8, 0, new - kept);
    }
    slot.note_zero(kept / LINE, new.max(kept) / LINE);
    Ok(Done::Yes)
}

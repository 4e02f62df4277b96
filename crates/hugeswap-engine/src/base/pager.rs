//! How base pages are installed, protected and dropped: two ways behind one interface, as the [`crate::mover`] is for
//! whole units.
//!
//! * *Uffd*: the unit is registered with a userfaultfd in SIGBUS mode; pages of 4 KiB are copied into place by UFFDIO_COPY, and
//!   write protection is userfaultfd's. Takes no mappings.
//! * *Remap*, where userfaultfd is refused: an absent page is mapped without access; 64 KiB at a time are filled elsewhere and moved
//!   into place by mremap ([`super::pieces`]), and protection is the mapping's. Present and dirty are always whole pieces.
//!
//! Both install a page read-only unless it is being written, atomically: other threads see it whole or fault. Every call here is made by the owner
//! of the unit's lock, with the rules of the fault path.

use super::record::{Bits, Record};
use super::{PAGE, pieces};
use crate::PAGES;
use crate::UNIT;
use crate::call::Call;
use crate::memory::Memory;
use hugeswap_policy::unit::{MAY_WRITE, Word};
use hugeswap_sys::{Errno, Result, mm, uffd};
use std::ops::Range;

/// See the file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pager {
    /// By this userfaultfd.
    Uffd(i32),
    /// By mremap and mprotect.
    Remap,
}

impl Pager {
    /// The smallest range with `page` in it that comes and goes by itself.
    pub fn smallest(self, page: usize) -> Range<usize> {
        match self {
            Pager::Uffd(_) => page..page + 1,
            Pager::Remap => pieces::around(page),
        }
    }
}

impl Memory {
    /// Makes an absent, locked unit one whose pages can come by themselves.
    pub(super) fn map_for_pages(&self, unit: u32, w: Word) -> Result<()> {
        let at = self.table.addr(unit);
        let fd = match self.pager().ok_or(Errno::ENOSYS)? {
            Pager::Uffd(fd) => fd,
            // An absent unit is without access, as its pieces are to be.
            Pager::Remap => return Ok(()),
        };
        let mode = uffd::mode::MISSING | uffd::mode::WP;
        // Writes that the program does not allow itself are to be SIGSEGV, as anywhere else.
        let access = if w.has(MAY_WRITE) {
            mm::PROT_RW
        } else {
            mm::PROT_READ
        };
        // A write to a hole in a range that may be huge would have the kernel make a huge page and throw it away.
        // And a child does not inherit the registration: holes would read as zeros there, so it inherits nothing.
        // SAFETY: advice that discards nothing.
        unsafe { mm::advise(at, UNIT, libc::MADV_NOHUGEPAGE) }
            // SAFETY: as above.
            .and_then(|()| unsafe { mm::advise(at, UNIT, libc::MADV_DONTFORK) })
            .and_then(|()| uffd::register(fd, at, UNIT, mode))
            // SAFETY: from now on a touch raises SIGBUS and waits for the unit's lock.
            .and_then(|()| unsafe { mm::protect(at, UNIT, access) })
            .inspect_err(|_| {
                // As it was: a fresh mapping is not registered.
                let _ = self.mover().drop_pages(at, UNIT);
            })
    }

    /// Installs absent pages of a unit with what stands at `from`; read-only but for `written`, which is dirty then.
    /// Of pieces each is whole or not at all. ENOMEM: mappings are short.
    pub(super) fn install(
        &self,
        unit: u32,
        record: &Record,
        run: Range<usize>,
        from: usize,
        written: &Range<usize>,
    ) -> Result<()> {
        let Some(Pager::Uffd(fd)) = self.pager() else {
            for start in run.clone().step_by(pieces::PAGES) {
                let piece = pieces::around(start);
                self.install_piece(unit, record, piece, written, |to| {
                    let from = from + (start - run.start) * PAGE;
                    // SAFETY: the slot is ours, `from` the caller's, and as long as the run.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            from as *const u8,
                            to as *mut u8,
                            pieces::PIECE,
                        )
                    };
                    Ok(())
                })?;
            }
            return Ok(());
        };
        let at = self.table.addr(unit);
        let copy = |pages: Range<usize>, protect| {
            if pages.is_empty() {
                return Ok(());
            }
            let source = from + (pages.start - run.start) * PAGE;
            uffd::copy(
                fd,
                at + pages.start * PAGE,
                source,
                pages.len() * PAGE,
                protect,
            )?;
            record.present.put(pages, true);
            Ok(())
        };
        let from_written = written.start.clamp(run.start, run.end);
        let to_written = written.end.clamp(from_written, run.end);
        self.track
            .note_pages_written(unit, from_written..to_written);
        copy(run.start..from_written, true)?;
        copy(from_written..to_written, false)?;
        record.dirty.put(from_written..to_written, true);
        copy(to_written..run.end, true)
    }

    /// Installs an absent piece with what `fill` puts at the address it is given. As [`Memory::install`].
    #[inline(never)]
    pub(super) fn install_piece(
        &self,
        unit: u32,
        record: &Record,
        piece: Range<usize>,
        written: &Range<usize>,
        fill: impl FnOnce(usize) -> Result<()>,
    ) -> Result<()> {
        let slot = self.base.pieces.take()?;
        fill(slot.addr())?;
        // (An empty range lies in no piece, wherever it is.)
        let write = !written.is_empty() && written.start < piece.end && piece.start < written.end;
        if write {
            self.track.note_pages_written(unit, piece.clone());
        }
        slot.install(self.table.addr(unit) + piece.start * PAGE, write)?;
        self.change_present(record, || record.present.put(piece.clone(), true));
        if write {
            record.dirty.put(piece, true);
        }
        Ok(())
    }

    /// Gives the access that a present page should have; if `write`, it is dirty then.
    pub(super) fn give_access(
        &self,
        unit: u32,
        record: &Record,
        page: usize,
        write: bool,
    ) -> Result<()> {
        let pager = self.pager().ok_or(Errno::ENOSYS)?;
        let pages = pager.smallest(page);
        let (at, len) = (
            self.table.addr(unit) + pages.start * PAGE,
            pages.len() * PAGE,
        );
        if write {
            self.track.note_pages_written(unit, pages.clone());
        }
        match pager {
            Pager::Uffd(fd) if write => uffd::write_protect(fd, at, len, false)?,
            Pager::Uffd(_) => {}
            Pager::Remap => {
                // (Dirty does not mean written since writes are told.)
                let dirty = record.dirty.get(page) && !self.track.is_tracked(unit);
                let access = if write || dirty {
                    mm::PROT_RW
                } else {
                    mm::PROT_READ
                };
                // SAFETY: the piece is the program's to read, and to write once it is dirty.
                unsafe { mm::protect(at, len, access) }?;
            }
        }
        if write {
            record.dirty.put(pages, true);
        }
        Ok(())
    }

    /// After this nobody changes the pages of `which`, which are present, until they are faulted on; they can be read.
    /// If it fails, some may be so. `others`: how many pages there are besides that can be written and had better stay so; as many calls are
    /// made for them at most, since each that does not costs a fault.
    pub(crate) fn freeze(&self, unit: u32, which: &Bits, others: u64) -> Result<()> {
        let at = self.table.addr(unit);
        if let Some(Pager::Uffd(fd)) = self.pager() {
            if others == 0 || which.runs() > others {
                return uffd::write_protect(fd, at, UNIT, true);
            }
            let mut next = 0;
            while let Some(run) = which.run(next, PAGES, true) {
                next = run.end;
                uffd::write_protect(fd, at + run.start * PAGE, run.len() * PAGE, true)?;
            }
            return Ok(());
        }
        // Not the whole unit at once: what is absent must stay without access.
        let mut next = 0;
        while let Some(run) = which.run(next, PAGES, true) {
            next = run.end;
            // SAFETY: the program may read what is present; writers fault and wait for the unit's lock.
            unsafe { mm::protect(at + run.start * PAGE, run.len() * PAGE, mm::PROT_READ) }?;
        }
        Ok(())
    }

    /// The call by which pages are put where they belong.
    pub(super) fn installing(&self) -> Call {
        match self.pager() {
            Some(Pager::Uffd(_)) => Call::Copy,
            _ => Call::Mremap,
        }
    }

    /// The call by which they are write-protected.
    pub(super) fn protecting(&self) -> Call {
        match self.pager() {
            Some(Pager::Uffd(_)) => Call::WriteProtect,
            _ => Call::Mprotect,
        }
    }

    /// Changes which pages of a locked unit are present, by `change`.
    pub(super) fn change_present(&self, record: &Record, change: impl FnOnce()) {
        match self.pager() {
            Some(Pager::Remap) => self.base.pieces.counted(record, change),
            _ => change(),
        }
    }

    /// Drops the memory of all present pages, which are clean; they are absent then. If it fails, all are present.
    pub(super) fn drop_present(&self, unit: u32, record: &Record) -> Result<()> {
        let at = self.table.addr(unit);
        if let Some(Pager::Uffd(_)) = self.pager() {
            // SAFETY: the slot holds what is dropped, or it is zeros.
            unsafe { mm::advise(at, UNIT, libc::MADV_DONTNEED) }?;
            record.present.fill(false);
            return Ok(());
        }
        // One call, and one interruption of other processors, before pieces are moved one by one. Should it
        // fail half way, a touch gives access again.
        // SAFETY: a touch faults and waits for the unit's lock.
        unsafe { mm::protect(at, UNIT, mm::PROT_NONE) }?;
        let mut next = 0;
        while let Some(run) = record.present.run(next, PAGES, true) {
            let piece = pieces::around(run.start);
            if !self.base.pieces.recycle(at + piece.start * PAGE) {
                break;
            }
            next = piece.end;
        }
        if self.mover().drop_pages(at, UNIT).is_err() {
            // For want of mappings: what is left of the pieces' own goes with the next.
            // SAFETY: as above: what is dropped is clean. Without access it is absent even if this fails.
            let _ = unsafe { mm::advise(at, UNIT, libc::MADV_DONTNEED) };
        }
        self.change_present(record, || record.present.fill(false));
        Ok(())
    }

    /// Drops the memory of the present pages in `going`, which are clean, and not of others. False, and nothing has changed, if
    /// that cannot be done by one call; if it stops half way, those that are dropped are absent.
    pub(super) fn drop_going(&self, unit: u32, record: &Record, going: &Bits) -> bool {
        const RUNS: usize = PAGES / 2;
        let mut spans = [mm::Span { at: 0, len: 0 }; RUNS];
        let (mut n, mut next) = (0, 0);
        while let Some(run) = going.run(next, PAGES, true) {
            next = run.end;
            spans[n] = mm::Span {
                at: self.table.addr(unit) + run.start * PAGE,
                len: run.len() * PAGE,
            };
            n += 1;
        }
        // SAFETY: the slot holds what is dropped, or it is zeros.
        let Ok(mut done) = (unsafe { mm::discard_ranges(&spans[..n]) }) else {
            return false;
        };
        for span in &spans[..n] {
            let first = (span.at - self.table.addr(unit)) / PAGE;
            let len = span.len.min(done);
            done -= len;
            record.present.put(first..first + len / PAGE, false);
        }
        true
    }

    /// Makes `pages` zero, and gives up memory behind them where pages come by themselves. How many pages' memory
    /// that was, and whether all are zero now.
    pub(super) fn drop_some(&self, unit: u32, record: &Record, pages: Range<usize>) -> (u64, bool) {
        let address = |page: usize| self.table.addr(unit) + page * PAGE;
        // What is not dropped becomes zero where it stands. A clean piece stays so: what is neither stored nor dirty
        // is zero when it comes back, too.
        let (at, len) = (address(pages.start), pages.len() * PAGE);
        // SAFETY: the caller gave the content up.
        if unsafe { mm::advise(at, len, libc::MADV_DONTNEED) }.is_err() {
            return (0, false);
        }
        record.stored.put(pages.clone(), false);
        let gone = if let Some(Pager::Uffd(_)) = self.pager() {
            pages
        } else {
            let first = pages.start.next_multiple_of(pieces::PAGES);
            let last = pages.end / pieces::PAGES * pieces::PAGES;
            let len = last.saturating_sub(first) * PAGE;
            if len == 0 || self.mover().drop_pages(address(first), len).is_err() {
                return (0, true);
            }
            first..last
        };
        let n = gone.clone().filter(|&p| record.present.get(p)).count();
        self.change_present(record, || record.present.put(gone.clone(), false));
        record.dirty.put(gone, false);
        (n as u64, true)
    }
}

//! Where a file lies on its device: FS_IOC_FIEMAP, asked in batches.
//!
//! Contract (Documentation/filesystems/fiemap.rst): extents come in the order of the file; what no
//! extent covers is a hole; offsets are in bytes. Data that is not yet on the device may have no
//! place. FIEMAP_FLAG_SYNC has it written first, which may take long, while another thread may
//! write more. Nothing keeps the file from changing between two calls, or after the last. Regular
//! files only: other files, and those of file systems that do not implement it (tmpfs, proc, FUSE),
//! give EOPNOTSUPP, descriptors without ioctls ENOTTY.

use crate::raw::call;
use crate::{Errno, Result};

/// Number of extents asked for by one call.
const BATCH: usize = 64;
/// `_IOWR('f', 11, struct fiemap)`, which has 32 bytes without extents.
const FS_IOC_FIEMAP: usize = 0xc020_660b;
const FIEMAP_FLAG_SYNC: u32 = 1;

const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const DELALLOC: u32 = 0x4;
const ENCODED: u32 = 0x8;
const NOT_ALIGNED: u32 = 0x100;
const DATA_INLINE: u32 = 0x200;
const DATA_TAIL: u32 = 0x400;
const UNWRITTEN: u32 = 0x800;
const SHARED: u32 = 0x2000;

/// An extent of a file, as the kernel reports it; offsets and lengths in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileExtent {
    /// Offset in the file.
    pub logical: u64,
    /// Offset on the device, if [`placed`](FileExtent::placed).
    pub physical: u64,
    /// Length.
    pub length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

impl FileExtent {
    /// True if the bytes themselves lie on the device at `physical`. False if the place is
    /// undecided or unknown, and for bytes that the file system packs, compresses or encrypts.
    pub fn placed(&self) -> bool {
        let without = UNKNOWN | DELALLOC | ENCODED | NOT_ALIGNED | DATA_INLINE | DATA_TAIL;
        self.flags & without == 0
    }

    /// True if the extent is allocated, but reads as zeros until it is first written, which the
    /// file system has to note.
    pub fn unwritten(&self) -> bool {
        self.flags & UNWRITTEN != 0
    }

    /// True if another file shares the extent, so that a write goes elsewhere.
    pub fn shared(&self) -> bool {
        self.flags & SHARED != 0
    }
}

/// The kernel's `struct fiemap`.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FileExtent; BATCH],
}

/// An iterator over the extents of a file, in order. Ends after the last one, or after the first
/// error.
pub struct FileExtents {
    fd: i32,
    batch: Request,
    /// Number of extents of the batch that were returned.
    given: usize,
    /// More extents are to be asked for after this batch.
    more: bool,
    /// Offset in the file at which to stop.
    end: u64,
}

/// The extents of the file `fd`, which is open in any mode. Data that is not yet on the device is
/// written first.
pub fn extents(fd: i32) -> FileExtents {
    ask(fd, 0, u64::MAX, FIEMAP_FLAG_SYNC)
}

/// The extents that contain bytes `start` to `end` (excluded), without waiting for anything to be
/// written. The first and the last may reach beyond the range.
pub fn extents_in(fd: i32, start: u64, end: u64) -> FileExtents {
    ask(fd, start, end, 0)
}

fn ask(fd: i32, start: u64, end: u64, flags: u32) -> FileExtents {
    FileExtents {
        fd,
        batch: Request {
            start,
            length: 0,
            flags,
            mapped_extents: 0,
            extent_count: BATCH as u32,
            reserved: 0,
            extents: [FileExtent::default(); BATCH],
        },
        given: 0,
        more: start < end,
        end,
    }
}

impl FileExtents {
    /// Asks for the extents from `start` on.
    fn fetch(&mut self, start: u64) -> Result<()> {
        self.batch.start = start;
        self.batch.length = self.end - start;
        self.given = 0;
        let request: *mut Request = &mut self.batch;
        // SAFETY: the kernel reads the head of `batch` and writes that and at most `extent_count`
        // extents, which is how many there are room for.
        unsafe {
            call(
                libc::SYS_ioctl,
                [self.fd as usize, FS_IOC_FIEMAP, request as usize, 0, 0, 0],
            )
        }?;
        self.batch.flags = 0;
        let found = (self.batch.mapped_extents as usize).min(BATCH);
        self.batch.mapped_extents = found as u32;
        let last = self.batch.extents[..found].last();
        let beyond = |e: &FileExtent| e.logical.saturating_add(e.length) >= self.end;
        self.more = last.is_some_and(|e| e.flags & LAST == 0 && !beyond(e));
        match last {
            // Without progress, going on from here would never end.
            Some(e)
                if e.logical
                    .checked_add(e.length)
                    .is_none_or(|end| end <= start) =>
            {
                Err(Errno::EIO)
            }
            _ => Ok(()),
        }
    }
}

impl Iterator for FileExtents {
    type Item = Result<FileExtent>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.given == self.batch.mapped_extents as usize {
            if !self.more {
                return None;
            }
            let last = self.batch.extents[..self.given].last();
            let start = last.map_or(self.batch.start, |e| e.logical + e.length);
            if let Err(e) = self.fetch(start) {
                self.more = false;
                self.batch.mapped_extents = 0;
                return Some(Err(e));
            }
        }
        let next = self.batch.extents[..self.batch.mapped_extents as usize].get(self.given)?;
        self.given += 1;
        // A batch may go on after the end of the range.
        (next.logical < self.end).then_some(Ok(*next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_request_is_laid_out_as_the_kernel_has_it() {
        assert_eq!(size_of::<FileExtent>(), 56);
        assert_eq!(std::mem::offset_of!(FileExtent, flags), 40);
        assert_eq!(std::mem::offset_of!(Request, extents), 32);
    }

    /// Allocates every other page of a file, which makes more extents than one call returns.
    #[test]
    fn holes_make_extents_and_batches_follow_each_other() {
        let file = crate::fs::unnamed("fiemap");
        const EXTENTS: u64 = 3 * BATCH as u64 + 1;
        for n in 0..EXTENTS {
            file.write_all_at(&[7; 4096], n * 8192)
                .expect("room for a file");
        }
        let found: Result<Vec<FileExtent>> = extents(file.as_raw_fd()).collect();
        match found {
            Err(e) => {
                assert_eq!(e, Errno::EOPNOTSUPP);
                println!("skipped: this file system has no FIEMAP");
            }
            Ok(found) => {
                let bytes: u64 = found.iter().map(|e| e.length).sum();
                assert!(found.is_sorted_by(|a, b| a.logical + a.length <= b.logical));
                let written = |at: u64| {
                    found
                        .iter()
                        .any(|e| e.logical <= at && at < e.logical + e.length)
                };
                assert!((0..EXTENTS).all(|n| written(n * 8192)));
                let (from, to) = (8192 * 50 + 100, 8192 * 150);
                let part: Result<Vec<_>> = extents_in(file.as_raw_fd(), from, to).collect();
                let part = part.expect("what was just told");
                let within = |e: &&FileExtent| e.logical < to && from < e.logical + e.length;
                // The extent that is flagged as the last may be the last of those asked for.
                let place = |e: &FileExtent| (e.logical, e.physical, e.length);
                let expected = found.iter().filter(within).map(place);
                assert!(part.iter().map(place).eq(expected));
                assert_eq!(extents_in(file.as_raw_fd(), 7, 7).count(), 0);
                // Larger blocks leave no holes.
                if found.len() as u64 == EXTENTS {
                    assert_eq!(bytes, EXTENTS * 4096);
                    assert!(found.iter().all(|e| e.placed() && !e.unwritten()));
                }
            }
        }
    }

    #[test]
    fn what_is_no_file_on_a_disk_is_refused() {
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let refused: Vec<_> = extents(reader.as_raw_fd()).collect();
        assert!(
            matches!(refused[..], [Err(Errno::EOPNOTSUPP | Errno::ENOTTY)]),
            "{refused:?}"
        );
        assert_eq!(extents(-1).next(), Some(Err(Errno::EBADF)));
        assert_eq!(extents(-1).count(), 1);
    }
}

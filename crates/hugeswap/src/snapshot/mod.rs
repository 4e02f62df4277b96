//! Regions as files: snapshots while the program runs, in full or of what has changed, and the way back. docs/snapshots.md tells what is promised.

mod format;

use crate::range::{Backing, ManagedRange};
use crate::{Categories, Epoch, Error, Region, SharedRegion};
use format::{Header, MOST, PAGE, Part, Reader, Run, Writer};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;

/// Why a snapshot could not be made or restored. Files are numbered from 1 on, in the order in
/// which [`Region::restore`] got them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file could not be written.
    #[error("the snapshot could not be written: {0}")]
    Write(std::io::Error),
    /// The file could not be read.
    #[error("snapshot {0} could not be read: {1}")]
    Read(usize, std::io::Error),
    /// The kernel gave no random bytes.
    #[error("no random bytes for the snapshot's id: {0}")]
    Id(std::io::Error),
    /// The file does not begin as a snapshot does.
    #[error("file {0} is not a snapshot of hugeswap's")]
    NotOne(usize),
    /// The file has another version of the format.
    #[error("snapshot {0} has format version {1}, and this hugeswap reads 1")]
    Version(usize, u32),
    /// The file ends early.
    #[error("snapshot {0} is cut short: take another copy of it")]
    Cut(usize),
    /// A checksum does not match.
    #[error("snapshot {0} was altered or damaged: take another copy of it")]
    Altered(usize),
    /// The first file is not a full snapshot.
    #[error("snapshot 1 says only what changed since another: give the full one first")]
    NotFull,
    /// The file does not follow the one before it.
    #[error(
        "snapshot {0} does not follow the one before it: give the full one and all that were made since, in that order"
    )]
    Order(usize),
    /// The file is of a region of another length.
    #[error("snapshot {0} is of a region of {1} bytes, and this one has {2}")]
    Length(usize, u64, u64),
    /// No file was given.
    #[error("no snapshot is given")]
    Nothing,
    /// The region is a mapped file's.
    #[error("a region of a mapped file has no snapshots: copy the file")]
    File,
    /// Writes were not tracked when the parent was made.
    #[error("writes were not tracked when that snapshot was made: call track_writes before it")]
    Untracked,
    /// The file changed between verifying and restoring.
    #[error("snapshot {0} was changed while it was being restored; the region holds a part of it")]
    Changed(usize),
}

/// A snapshot that was made: [`ManagedRange::snapshot_since`] needs it to write what has changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    header: Header,
    epoch: Option<Epoch>,
    bytes: u64,
}

impl Snapshot {
    /// Its id, which no other snapshot has.
    pub fn id(&self) -> [u8; 16] {
        self.header.id
    }

    /// 0 for a full snapshot, n for the n-th after it.
    pub fn sequence(&self) -> u32 {
        self.header.sequence
    }

    /// Length of the file that was written, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The epoch that began with it, if writes are tracked.
    pub fn epoch(&self) -> Option<&Epoch> {
        self.epoch.as_ref()
    }
}

impl ManagedRange {
    /// Writes all that the range holds to `to`, while the program runs. Pages of zeros take no bytes.
    /// `to` is written from start to end, also in small pieces: a `BufWriter` helps.
    ///
    /// If writes are tracked ([`ManagedRange::track_writes`]), an epoch begins first: each page is
    /// as it was at some moment of this call, and what is written after the call began is in the
    /// next snapshot of [`ManagedRange::snapshot_since`].
    ///
    /// ```no_run
    /// use hugeswap::{Granularity, Pool};
    /// use std::{fs::File, io::BufWriter};
    /// let pool = Pool::builder().memory(64 << 20).build()?;
    /// let mut region = pool.region(256 << 20)?;
    /// region.track_writes(Granularity::Pages)?;
    /// let full = region.snapshot(&mut BufWriter::new(File::create("full")?))?;
    /// region.as_mut_slice()[0] = 1;
    /// region.snapshot_since(&full, &mut BufWriter::new(File::create("changes")?))?;
    /// region.restore(&mut [File::open("full")?, File::open("changes")?])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Snapshot`] with the cause, for instance that the range is a mapped file's;
    /// [`Error::Lost`] if some of the content cannot be read back.
    pub fn snapshot(&self, to: &mut impl Write) -> Result<Snapshot, Error> {
        self.write_snapshot(None, to)
    }

    /// Writes what has changed since the snapshot `parent` of this range began. It can be restored
    /// only together with that one and those before it.
    ///
    /// # Errors
    /// As of [`ManagedRange::snapshot`]; [`Error::Epoch`] if tracking was stopped since.
    pub fn snapshot_since(
        &self,
        parent: &Snapshot,
        to: &mut impl Write,
    ) -> Result<Snapshot, Error> {
        self.write_snapshot(Some(parent), to)
    }

    fn write_snapshot(
        &self,
        parent: Option<&Snapshot>,
        to: &mut impl Write,
    ) -> Result<Snapshot, Error> {
        if matches!(self.backing, Backing::File(_)) {
            return Err(SnapshotError::File.into());
        }
        let since = match parent {
            Some(p) => Some(p.epoch.ok_or(SnapshotError::Untracked)?),
            None => None,
        };
        // First, so that a snapshot that is worth nothing begins no epoch.
        if let Some(since) = &since {
            self.knows(since)?;
        }
        let header = Header {
            sequence: parent.map_or(0, |p| p.header.sequence + 1),
            id: random_id().map_err(SnapshotError::Id)?,
            parent: parent.map_or([0; 16], |p| p.header.id),
            len: self.len() as u64,
        };
        let epoch = self.tracked().map(|(_, by)| self.track_writes(by));
        let epoch = epoch.transpose()?;
        let mut out = Writer::begin(to, &header)?;
        let mut buffer = vec![0; MOST.min(self.len())];
        match &since {
            Some(since) => {
                for range in self.changed_since(since)? {
                    self.write_range(range, true, &mut buffer, &mut out)?;
                }
            }
            None => self.write_range(0..self.len(), false, &mut buffer, &mut out)?,
        }
        Ok(Snapshot {
            header,
            epoch,
            bytes: out.end()?,
        })
    }

    /// Writes a range of whole pages; zeros only if they are news.
    fn write_range(
        &self,
        range: Range<usize>,
        zeros: bool,
        buffer: &mut [u8],
        out: &mut Writer<impl Write>,
    ) -> Result<(), Error> {
        let mut start = range.start;
        while start < range.end {
            // What has never been written is not to come to memory for this. Looked at a unit at a time: it is as at a moment of this call.
            let look = (start + (2 << 20)).min(range.end);
            let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
            self.states(start, look - start, |run, state| {
                let zero = state.categories.has(Categories::ZERO);
                let run = run.start..run.end.min(range.end);
                match runs.last_mut() {
                    Some((last, z)) if *z == zero && last.end == run.start => last.end = run.end,
                    _ => runs.push((run, zero)),
                }
            });
            for (run, zero) in runs {
                if !zero {
                    self.write_bytes(run, zeros, buffer, out)?;
                } else if zeros {
                    write_zeros(run, out)?;
                }
            }
            start = look;
        }
        Ok(())
    }

    fn write_bytes(
        &self,
        range: Range<usize>,
        zeros: bool,
        buffer: &mut [u8],
        out: &mut Writer<impl Write>,
    ) -> Result<(), Error> {
        for at in range.clone().step_by(MOST) {
            let len = MOST.min(range.end - at);
            let bytes = &mut buffer[..len];
            self.read_at(at, bytes)?;
            let is_zero = |from: usize| bytes[from..len.min(from + PAGE)].iter().all(|&b| b == 0);
            let mut from = 0;
            while from < len {
                let zero = is_zero(from);
                let end = (from..len).step_by(PAGE).find(|&p| is_zero(p) != zero);
                let end = end.unwrap_or(len);
                if !zero {
                    let run = Run {
                        part: Part::Data,
                        offset: (at + from) as u64,
                        len: (end - from) as u64,
                    };
                    out.run(run, &bytes[from..end])?;
                } else if zeros {
                    write_zeros(at + from..at + end, out)?;
                }
                from = end;
            }
        }
        Ok(())
    }

    /// [`Region::restore`] and [`SharedRegion::restore`].
    ///
    /// # Safety
    /// Nobody may have a slice of the range.
    unsafe fn restore_range<R: Read + Seek>(&self, files: &mut [R]) -> Result<(), Error> {
        if matches!(self.backing, Backing::File(_)) {
            return Err(SnapshotError::File.into());
        }
        let mut before: Option<Header> = None;
        let mut starts = Vec::new();
        for (i, file) in files.iter_mut().enumerate() {
            let n = i + 1;
            let start = file.stream_position();
            starts.push(start.map_err(|e| SnapshotError::Read(n, e))?);
            let mut reader = Reader::begin(&mut *file, n)?;
            let header = *reader.header();
            follows(before.as_ref(), &header, n)?;
            let own = self.len() as u64;
            if header.len != own {
                return Err(SnapshotError::Length(n, header.len, own).into());
            }
            while reader.next()?.is_some() {}
            before = Some(header);
        }
        if before.is_none() {
            return Err(SnapshotError::Nothing.into());
        }
        // SAFETY: as the caller promises.
        unsafe { self.give_up(0, self.len()) }?;
        for (i, (file, start)) in files.iter_mut().zip(starts).enumerate() {
            let again = file.seek(SeekFrom::Start(start));
            again.map_err(|e| SnapshotError::Read(i + 1, e))?;
            // SAFETY: as the caller promises.
            unsafe { self.apply(file, i + 1) }.map_err(|e| match e {
                Error::Snapshot(_) => SnapshotError::Changed(i + 1).into(),
                e => e,
            })?;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`ManagedRange::restore_range`].
    unsafe fn apply(&self, file: &mut impl Read, n: usize) -> Result<(), Error> {
        let mut reader = Reader::begin(file, n)?;
        while let Some((run, data)) = reader.next()? {
            // (Within the region: what was verified has changed otherwise.)
            let (offset, len) = (run.offset as usize, run.len as usize);
            match run.part {
                // SAFETY: as the caller promises.
                Part::Data => unsafe { self.copy_in(offset, data) }?,
                // SAFETY: as the caller promises.
                _ => unsafe { self.give_up(offset, len) }?,
            }
        }
        Ok(())
    }
}

impl Region {
    /// Makes the region what a full snapshot and those that follow it say, in order. All of them are
    /// read and verified first: if one is bad, nothing of the region is changed. Everything the
    /// region held is gone; for tracking, all of it is written. Restore a region of the same length
    /// as the one that was saved.
    ///
    /// # Errors
    /// [`Error::Snapshot`] with the number of the file, from 1 on, and what is wrong with it.
    pub fn restore<R: Read + Seek>(&mut self, files: &mut [R]) -> Result<(), Error> {
        // SAFETY: the region is borrowed uniquely.
        unsafe { self.restore_range(files) }
    }
}

impl SharedRegion {
    /// [`Region::restore`], for every process that has the region.
    ///
    /// # Errors
    /// As of [`Region::restore`]; [`Error::Stuck`].
    pub fn restore<R: Read + Seek>(&mut self, files: &mut [R]) -> Result<(), Error> {
        // SAFETY: there are no slices of a shared region.
        unsafe { self.restore_range(files) }
    }
}

fn write_zeros(range: Range<usize>, out: &mut Writer<impl Write>) -> Result<(), SnapshotError> {
    let run = Run {
        part: Part::Zeros,
        offset: range.start as u64,
        len: range.len() as u64,
    };
    out.run(run, &[])
}

/// Is this the one to come after `before`?
fn follows(before: Option<&Header>, header: &Header, n: usize) -> Result<(), SnapshotError> {
    match before {
        None if header.sequence == 0 => Ok(()),
        None => Err(SnapshotError::NotFull),
        Some(b) if header.parent == b.id && Some(header.sequence) == b.sequence.checked_add(1) => {
            Ok(())
        }
        Some(_) => Err(SnapshotError::Order(n)),
    }
}

fn random_id() -> std::io::Result<[u8; 16]> {
    let mut id = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut id)?;
    Ok(id)
}

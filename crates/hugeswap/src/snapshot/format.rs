//! The format of a snapshot: a header, runs of pages, an end; docs/snapshots.md has it for others.
//!
//! Every part carries a sum over itself and the sum before it, so that a file that was cut, altered or put together from parts of others is noticed. The sums
//! keep errors out, not attackers: their key is known.

use super::SnapshotError;
use highway::{HighwayHash, HighwayHasher, Key};
use std::io::{Read, Write};

const MAGIC: &[u8; 8] = b"HUGESNAP";
const VERSION: u32 = 1;
const KEY: [u64; 4] = [
    0x6875_6765_7377_6170,
    0x736e_6170_7368_6f74,
    0x9e37_79b9_7f4a_7c15,
    0x0001_0203_0405_0607,
];
pub const PAGE: usize = 4096;
/// Most bytes of a run of data.
pub const MOST: usize = 1 << 20;
/// Bytes of a header, and of what is before a run's data; each a sum longer in the file.
const HEADER: usize = 64;
const RUN: usize = 24;

/// What a snapshot says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// 0: it is full; n: the n-th after that.
    pub sequence: u32,
    pub id: [u8; 16],
    /// The one before it; zeros if it is full.
    pub parent: [u8; 16],
    /// Bytes of the region.
    pub len: u64,
}

/// What a part of a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The bytes that follow it.
    Data,
    /// Zeros.
    Zeros,
    /// There are no more; in the place of a length, how many there were.
    End,
}

/// A part, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub part: Part,
    pub offset: u64,
    pub len: u64,
}

fn sum(before: u64, head: &[u8], data: &[u8]) -> u64 {
    let mut hasher = HighwayHasher::new(Key(KEY));
    hasher.append(&before.to_le_bytes());
    hasher.append(head);
    hasher.append(data);
    hasher.finalize64()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

/// Writes the parts of a snapshot, in order.
pub struct Writer<W> {
    to: W,
    sum: u64,
    runs: u64,
    pub bytes: u64,
}

impl<W: Write> Writer<W> {
    pub fn begin(mut to: W, header: &Header) -> Result<Writer<W>, SnapshotError> {
        let mut head = Vec::with_capacity(HEADER + 8);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&header.sequence.to_le_bytes());
        head.extend_from_slice(&header.id);
        head.extend_from_slice(&header.parent);
        head.extend_from_slice(&header.len.to_le_bytes());
        head.extend_from_slice(&(PAGE as u64).to_le_bytes());
        let sum = sum(0, &head, &[]);
        head.extend_from_slice(&sum.to_le_bytes());
        to.write_all(&head).map_err(SnapshotError::Write)?;
        Ok(Writer {
            to,
            sum,
            runs: 0,
            bytes: head.len() as u64,
        })
    }

    /// Writes a run; `data` is empty but for [`Part::Data`].
    pub fn run(&mut self, run: Run, data: &[u8]) -> Result<(), SnapshotError> {
        let part: u64 = match run.part {
            Part::Data => 1,
            Part::Zeros => 2,
            Part::End => 3,
        };
        let mut head = [0; RUN + 8];
        head[..8].copy_from_slice(&part.to_le_bytes());
        head[8..16].copy_from_slice(&run.offset.to_le_bytes());
        head[16..24].copy_from_slice(&run.len.to_le_bytes());
        self.sum = sum(self.sum, &head[..RUN], data);
        head[RUN..].copy_from_slice(&self.sum.to_le_bytes());
        let written = self.to.write_all(&head);
        written
            .and_then(|()| self.to.write_all(data))
            .map_err(SnapshotError::Write)?;
        self.runs += 1;
        self.bytes += (head.len() + data.len()) as u64;
        Ok(())
    }

    pub fn end(mut self) -> Result<u64, SnapshotError> {
        let end = Run {
            part: Part::End,
            offset: 0,
            len: self.runs,
        };
        self.run(end, &[])?;
        self.to.flush().map_err(SnapshotError::Write)?;
        Ok(self.bytes)
    }
}

/// Reads the parts of a snapshot in order, and is content with nothing that [`Writer`] does not write.
pub struct Reader<R> {
    from: R,
    /// Which of the files given it is, from 1 on.
    file: usize,
    header: Header,
    sum: u64,
    runs: u64,
    next: u64,
    data: Vec<u8>,
}

impl<R: Read> Reader<R> {
    pub fn begin(from: R, file: usize) -> Result<Reader<R>, SnapshotError> {
        let none = Header {
            sequence: 0,
            id: [0; 16],
            parent: [0; 16],
            len: 0,
        };
        let mut reader = Reader {
            from,
            file,
            header: none,
            sum: 0,
            runs: 0,
            next: 0,
            data: Vec::new(),
        };
        let mut head = [0; HEADER + 8];
        reader.fill(&mut head[..8])?;
        if &head[..8] != MAGIC {
            return Err(SnapshotError::NotOne(file));
        }
        reader.fill(&mut head[8..])?;
        let version = number(&head[8..12]) as u32;
        if version != VERSION {
            return Err(SnapshotError::Version(file, version));
        }
        reader.sum = sum(0, &head[..HEADER], &[]);
        if number(&head[HEADER..]) != reader.sum || number(&head[56..64]) != PAGE as u64 {
            return Err(SnapshotError::Altered(file));
        }
        reader.header = Header {
            sequence: number(&head[12..16]) as u32,
            id: std::array::from_fn(|i| head[16 + i]),
            parent: std::array::from_fn(|i| head[32 + i]),
            len: number(&head[48..56]),
        };
        Ok(reader)
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    fn fill(&mut self, to: &mut [u8]) -> Result<(), SnapshotError> {
        let cut = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => SnapshotError::Cut(self.file),
            _ => SnapshotError::Read(self.file, e),
        };
        self.from.read_exact(to).map_err(cut)
    }

    /// The next run, and its data; `None` at the end of the file.
    pub fn next(&mut self) -> Result<Option<(Run, &[u8])>, SnapshotError> {
        let mut head = [0; RUN + 8];
        self.fill(&mut head)?;
        let altered = SnapshotError::Altered(self.file);
        let (offset, len) = (number(&head[8..16]), number(&head[16..24]));
        let part = match number(&head[..8]) {
            1 if len <= MOST as u64 => Part::Data,
            2 => Part::Zeros,
            3 => Part::End,
            _ => return Err(altered),
        };
        let bytes = if part == Part::Data { len as usize } else { 0 };
        let mut data = std::mem::take(&mut self.data);
        data.resize(bytes, 0);
        self.fill(&mut data)?;
        self.data = data;
        self.sum = sum(self.sum, &head[..RUN], &self.data);
        if number(&head[RUN..]) != self.sum {
            return Err(altered);
        }
        if part == Part::End {
            let more = self.from.read(&mut [0]);
            let more = more.map_err(|e| SnapshotError::Read(self.file, e))?;
            let as_said = (offset, len) == (0, self.runs) && more == 0;
            return if as_said { Ok(None) } else { Err(altered) };
        }
        let end = offset.checked_add(len).filter(|&end| {
            let whole = end.is_multiple_of(PAGE as u64) || end == self.header.len;
            let placed = offset >= self.next && offset.is_multiple_of(PAGE as u64);
            len > 0 && end <= self.header.len && whole && placed
        });
        let Some(end) = end else {
            return Err(altered);
        };
        self.next = end;
        self.runs += 1;
        Ok(Some((Run { part, offset, len }, &self.data)))
    }
}

//! What the device itself can do: whole huge pages, read and written in sequence with direct I/O.
//!
//! The files have no names, so none is left behind. They are written once before a transfer is timed:
//! the first write to a block is slower than the rest.

use crate::generate::words::{UNIT, fill, seed};
use anyhow::{Context, Result};
use hugeswap_support::interrupt::check_interrupted;
use memmap2::MmapMut;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long each kind of transfer is measured.
const SPELL: Duration = Duration::from_millis(1200);

/// 10^6 bytes a second, 2 MiB a transfer, one transfer at a time (mixed: one reader and one writer).
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Ceiling {
    pub read_mb_s: f64,
    pub write_mb_s: f64,
    /// Reads and writes together.
    pub mixed_mb_s: f64,
}

/// Measures a directory's device with two files of `bytes` each.
pub fn measure(dir: &Path, bytes: u64) -> Result<Ceiling> {
    let blocks = (bytes / UNIT as u64).max(8);
    let (a, b) = (Run::new(dir, blocks)?, Run::new(dir, blocks)?);
    let write_mb_s = a.timed(Kind::Write)?;
    let read_mb_s = a.timed(Kind::Read)?;
    let (reads, writes) = std::thread::scope(|s| {
        let writer = s.spawn(|| b.timed(Kind::Write));
        let reads = a.timed(Kind::Read);
        (reads, writer.join().unwrap_or(Ok(0.0)))
    });
    Ok(Ceiling {
        read_mb_s,
        write_mb_s,
        mixed_mb_s: reads? + writes?,
    })
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
}

struct Run {
    file: File,
    blocks: u64,
}

impl Run {
    fn new(dir: &Path, blocks: u64) -> Result<Run> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE | libc::O_DIRECT)
            .mode(0o600)
            .open(dir)
            .with_context(|| {
                format!("{} takes no nameless files with direct I/O", dir.display())
            })?;
        let run = Run { file, blocks };
        let block = Self::block()?;
        for n in 0..blocks {
            check_interrupted()?;
            run.file
                .write_all_at(&block, n * UNIT as u64)
                .with_context(|| format!("cannot write to {}", dir.display()))?;
        }
        Ok(run)
    }

    /// A page-aligned buffer that is not all zeros.
    fn block() -> Result<MmapMut> {
        let mut block = MmapMut::map_anon(UNIT)?;
        fill(&mut block, seed(0, 0));
        Ok(block)
    }

    /// Transfers blocks in sequence, again and again. Returns 10^6 bytes a second.
    fn timed(&self, kind: Kind) -> Result<f64> {
        let mut block = Self::block()?;
        let started = Instant::now();
        let mut done = 0u64;
        while started.elapsed() < SPELL {
            check_interrupted()?;
            let at = done % self.blocks * UNIT as u64;
            match kind {
                Kind::Read => self.file.read_exact_at(&mut block, at)?,
                Kind::Write => self.file.write_all_at(&block, at)?,
            }
            done += 1;
        }
        Ok(done as f64 * UNIT as f64 / 1e6 / started.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_directory_can_be_measured() {
        // A file system without nameless files or direct I/O has no ceiling.
        match super::measure(std::path::Path::new("."), 16 << 20) {
            Ok(c) => assert!(c.read_mb_s > 0.0 && c.write_mb_s > 0.0 && c.mixed_mb_s > 0.0),
            Err(e) => println!("skipped: {e:#}"),
        }
    }
}

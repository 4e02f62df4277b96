//! The memory of one task of a worker: one piece for each thread, written, read and verified in
//! rounds. Every read verifies what it reads.

use super::phases;
use super::plan::{Phase, Thp, Work};
use super::played::Played;
use super::shared::{self, Map};
use super::versions::Versions;
use super::words::{Corrupt, PAGE, UNIT, differs, fill, first_value, search, seed};
use anyhow::{Context, Result};
use hugeswap_support::random::{STEP, index};
use memmap2::{Advice, MmapMut};
use std::ops::Range;

/// A task's memory, in one piece for each thread.
pub struct Memory {
    map: Map,
    threads: usize,
    task: u32,
    /// The bytes of `map` that this task writes, and the task whose bytes it reads.
    mine: Range<usize>,
    other: (u32, Range<usize>),
    /// What phases have written, once there was one.
    versions: Option<Versions>,
}

impl Memory {
    /// Maps `len` bytes for `work.threads` threads.
    pub fn map(len: usize, work: &Work) -> Result<Memory> {
        if work.shared.is_some() {
            let part = |task: u32| task as usize * len..(task as usize + 1) * len;
            let other = (work.task + 1) % work.tasks;
            return Ok(Memory {
                map: shared::map(len * work.tasks as usize, work)?,
                threads: work.threads as usize,
                task: work.task,
                mine: part(work.task),
                other: (other, part(other)),
                versions: None,
            });
        }
        let map =
            MmapMut::map_anon(len).with_context(|| format!("cannot map {} MiB", len >> 20))?;
        let advised = work.thp_part.units(len / UNIT);
        let (start, bytes) = (advised.start * UNIT, advised.len() * UNIT);
        let advice = match work.thp {
            Thp::Unadvised => None,
            Thp::On => Some(Advice::HugePage),
            Thp::Off => Some(Advice::NoHugePage),
        };
        if let Some(advice) = advice {
            map.advise_range(advice, start, bytes)
                .with_context(|| format!("cannot advise {advice:?}"))?;
        }
        Ok(Memory {
            map: Map::Own(map),
            threads: work.threads as usize,
            task: work.task,
            mine: 0..len,
            other: (work.task, 0..len),
            versions: None,
        })
    }

    /// Writes all of it.
    pub fn write(&mut self, round: u32) {
        let seed = seed(self.task, round);
        let piece = self.mine.len() / self.threads;
        let mine = self.mine.clone();
        std::thread::scope(|s| {
            let pieces = self.map[mine].chunks_exact_mut(piece).enumerate();
            // The first piece is this thread's own work.
            let mut rest = pieces.map(|(n, p)| (first_value(seed, n * piece), p));
            let mine = rest.next();
            rest.for_each(|(v, p)| drop(s.spawn(move || fill(p, v))));
            if let Some((v, p)) = mine {
                fill(p, v);
            }
        });
    }

    /// Reads and verifies one unit in `one_in`.
    pub fn read(&self, round: u32, one_in: u32) -> Result<()> {
        let (seed, there) = (seed(self.other.0, round), &self.map[self.other.1.clone()]);
        let piece = there.len() / self.threads;
        let wrong = search(self.threads, |n| {
            let start = n * piece;
            let units = there[start..start + piece].chunks(UNIT).enumerate();
            units.step_by(one_in as usize).find_map(|(n, unit)| {
                let at = start + n * UNIT;
                differs(unit, first_value(seed, at)).map(|word| at + word * 8)
            })
        });
        self.judge(wrong, round)
    }

    /// Reads and verifies `count` words at random, shared among the threads.
    pub fn random(&self, round: u32, count: u64) -> Result<()> {
        let (seed, there) = (seed(self.other.0, round), &self.map[self.other.1.clone()]);
        let words = there.as_chunks::<8>().0;
        let wrong = search(self.threads, |n| {
            let mut state = (n as u64 + 1).wrapping_mul(STEP) ^ seed;
            for _ in 0..count / self.threads as u64 {
                let i = index(words.len(), &mut state);
                if u64::from_ne_bytes(words[i]) != first_value(seed, i * 8) {
                    return Some(i * 8);
                }
            }
            None
        });
        self.judge(wrong, round)
    }

    /// Plays one phase; all memory was written in `round` before the first.
    pub fn play(&mut self, phase: &Phase, round: u32, tasks: u32) -> Result<Played> {
        let pages = self.map.len() / PAGE;
        let written = || Versions::new(self.task, round, pages);
        let versions = self.versions.get_or_insert_with(written);
        phases::play(versions, &mut self.map, phase, tasks)?.map_err(|at| self.corrupt(at, round))
    }

    /// Verifies one unit in `one_in` against what the rounds up to `round` and the phases wrote.
    pub fn verify(&mut self, round: u32, one_in: u32) -> Result<()> {
        let Some(versions) = &self.versions else {
            return self.read(round, one_in);
        };
        let wrong = versions.verify(&mut self.map, self.threads, one_in as usize)?;
        self.judge(wrong, round)
    }

    /// [`Corrupt`] if a wrong word was found.
    fn judge(&self, wrong: Option<usize>, round: u32) -> Result<()> {
        wrong.map_or(Ok(()), |at| Err(self.corrupt(at, round)))
    }

    fn corrupt(&self, at: usize, round: u32) -> anyhow::Error {
        Corrupt(format!(
            "task {} found a wrong word at byte {at} of {} after round {round}",
            self.task,
            self.map.len()
        ))
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(threads: u32) -> Memory {
        let work = Work {
            threads,
            ..Work::default()
        };
        Memory::map(4 * UNIT, &work).unwrap()
    }

    #[test]
    fn what_was_written_is_found() {
        for threads in [1, 2, 4] {
            let mut m = memory(threads);
            m.write(1);
            m.write(2);
            m.read(2, 1).unwrap();
            m.read(2, 3).unwrap();
            m.random(2, 1000).unwrap();
            assert!(m.read(1, 1).unwrap_err().is::<Corrupt>());
            assert!(m.random(1, 1000).is_err());
        }
    }

    #[test]
    fn one_wrong_bit_is_found_and_named() {
        let mut m = memory(2);
        m.write(1);
        let at = 3 * UNIT + 8 * 77;
        m.map[at] ^= 1;
        let e = m.read(1, 1).unwrap_err();
        assert!(e.to_string().contains(&format!("byte {at}")), "{e}");
        m.map[at] ^= 1;
        // A page that came back as zeros.
        m.map[UNIT..UNIT + 4096].fill(0);
        assert!(m.read(1, 1).is_err());
    }
}

//! The memory of one task of a worker: written, read and verified in one piece for each thread.
//!
//! The word at index `i` holds `seed(task, round) + i * K`: a function of its address, of the round and of the
//! task, and nothing that compresses. Whatever reads, verifies.

use super::pattern::below;
use super::phases::{Phase, Phases, Played};
use super::together::{self, Map};
use super::worker::{Corrupt, Thp, Work};
use anyhow::{Context, Result};
use memmap2::{Advice, MmapMut};
use std::ops::Range;

/// Bytes of a huge page: what shares and samples are made of.
pub const UNIT: usize = hugeswap_policy::UNIT_BYTES as usize;
const K: u64 = 0x9e37_79b9_7f4a_7c15;

/// A task's memory, in one piece for each thread.
pub struct Memory {
    map: Map,
    threads: usize,
    task: u32,
    /// Where in `map` this task writes; and of whom it reads what, at random or from end to end.
    mine: Range<usize>,
    other: (u32, Range<usize>),
    /// What phases have written, once there was one.
    phases: Option<Phases>,
}

/// Has each of so many threads look for a wrong word; the byte where one was found. The first is this thread.
pub fn search(threads: usize, check: impl Fn(usize) -> Option<usize> + Sync) -> Option<usize> {
    std::thread::scope(|s| {
        let check = &check;
        let others: Vec<_> = (1..threads).map(|n| s.spawn(move || check(n))).collect();
        let mine = check(0);
        others
            .into_iter()
            .fold(mine, |found, t| found.or(t.join().unwrap_or(Some(0))))
    })
}

impl Memory {
    /// Maps so many bytes for `work.threads` threads.
    pub fn map(len: usize, work: &Work) -> Result<Memory> {
        if work.shared.is_some() {
            let part = |task: u32| task as usize * len..(task as usize + 1) * len;
            let other = (work.task + 1) % work.tasks;
            return Ok(Memory {
                map: together::map(len * work.tasks as usize, work)?,
                threads: work.threads as usize,
                task: work.task,
                mine: part(work.task),
                other: (other, part(other)),
                phases: None,
            });
        }
        let map =
            MmapMut::map_anon(len).with_context(|| format!("cannot map {} MiB", len >> 20))?;
        let advised = work.thp_part.units(len / UNIT);
        let (start, bytes) = (advised.start * UNIT, advised.len() * UNIT);
        match work.thp {
            Thp::Unadvised => {}
            Thp::On => map
                .advise_range(Advice::HugePage, start, bytes)
                .context("cannot ask for huge pages")?,
            Thp::Off => map
                .advise_range(Advice::NoHugePage, start, bytes)
                .context("cannot ask for base pages")?,
        }
        Ok(Memory {
            map: Map::Own(map),
            threads: work.threads as usize,
            task: work.task,
            mine: 0..len,
            other: (work.task, 0..len),
            phases: None,
        })
    }

    /// Writes it all.
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

    /// Reads one unit in `one_in` and compares every word of it.
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
        wrong.map_or(Ok(()), |at| Err(self.corrupt(at, round)))
    }

    /// Reads `count` words at random, shared among the threads, and compares them.
    pub fn random(&self, round: u32, count: u64) -> Result<()> {
        let (seed, there) = (seed(self.other.0, round), &self.map[self.other.1.clone()]);
        let words = there.as_chunks::<8>().0;
        let wrong = search(self.threads, |n| {
            let mut state = (n as u64 + 1).wrapping_mul(K) ^ seed;
            for _ in 0..count / self.threads as u64 {
                let i = below(words.len() as u64, &mut state) as usize;
                if u64::from_ne_bytes(words[i]) != first_value(seed, i * 8) {
                    return Some(i * 8);
                }
            }
            None
        });
        wrong.map_or(Ok(()), |at| Err(self.corrupt(at, round)))
    }

    /// Plays one phase; everything was written in `round` before the first.
    pub fn play(&mut self, phase: &Phase, round: u32, tasks: u32) -> Result<Played> {
        let pages = self.map.len() / hugeswap_policy::PAGE_BYTES as usize;
        let phases = self
            .phases
            .get_or_insert_with(|| Phases::new(self.task, round, pages));
        phases
            .play(&mut self.map, phase, tasks)?
            .map_err(|at| self.corrupt(at, round))
    }

    /// Compares one unit in `one_in` with what rounds up to `round` and phases wrote.
    pub fn verify(&mut self, round: u32, one_in: u32) -> Result<()> {
        let Some(phases) = &self.phases else {
            return self.read(round, one_in);
        };
        let wrong = phases.verify(&mut self.map, self.threads, one_in as usize)?;
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

/// What the words of a task start from in a round; never 0, so that a page of zeros is always wrong.
pub fn seed(task: u32, round: u32) -> u64 {
    let mut state = (u64::from(task) << 32 | u64::from(round)).wrapping_add(1);
    next_random(&mut state) | 1
}

/// The word at byte `at`.
pub fn first_value(seed: u64, at: usize) -> u64 {
    seed.wrapping_add((at as u64 / 8).wrapping_mul(K))
}

/// Writes consecutive words, of which `first` is the first.
pub fn fill(bytes: &mut [u8], first: u64) {
    let mut value = first;
    for word in bytes.as_chunks_mut::<8>().0 {
        *word = value.to_ne_bytes();
        value = value.wrapping_add(K);
    }
}

/// The index of the first word that is not what [`fill`] wrote.
pub fn differs(bytes: &[u8], first: u64) -> Option<usize> {
    let words = bytes.as_chunks::<8>().0;
    let mut value = first;
    let mut difference = 0;
    for word in words {
        difference |= u64::from_ne_bytes(*word) ^ value;
        value = value.wrapping_add(K);
    }
    if difference == 0 {
        return None;
    }
    let right = |i: usize| first.wrapping_add((i as u64).wrapping_mul(K)).to_ne_bytes();
    // A word that was wrong a moment ago and is right now is wrong all the same.
    Some(
        (0..words.len())
            .find(|&i| words[i] != right(i))
            .unwrap_or(0),
    )
}

/// splitmix64 (Steele, Lea and Flood, 2014).
pub fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(K);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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

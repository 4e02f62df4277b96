//! The checks in a quiet moment, and at the end.

use super::board::{Job, REGIONS, WORDS};
use super::client::{PRESENT, SWAPPED, ZERO, name};
use super::{Driver, PATIENCE};
use crate::util::*;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::shared::{Kind, Word};
use hugeswap_policy::thp_swap::clusters;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

impl Driver {
    /// In a quiet moment, checks that every process tells the same state of every unit, and that it
    /// is true.
    pub(super) fn check(&mut self) {
        for region in 0..REGIONS {
            let all = self.who_has(region);
            let Some(units) = self.regions[region].as_ref().map(|m| m.units) else {
                continue;
            };
            let start = Instant::now();
            let seen = loop {
                if start.elapsed() > PATIENCE {
                    self.fail("there is no quiet moment");
                }
                self.engine.pool().reap();
                let before = self.words_of(region, units);
                let told: Vec<Vec<u8>> = all
                    .iter()
                    .map(|&w| self.told_by(w, region, units))
                    .collect();
                let held = self.really_held(region, units, all[0]);
                let after = self.words_of(region, units);
                if before.is_some() && before == after {
                    break (told, held, before.unwrap_or_default());
                }
                std::thread::sleep(Duration::from_micros(200));
            };
            let (told, held, words) = seen;
            let truth: Vec<u8> = words
                .iter()
                .map(|w| match w.kind() {
                    Kind::None => ZERO,
                    Kind::Resident | Kind::Kept => PRESENT,
                    Kind::Swapped => SWAPPED,
                    Kind::Lost => 0,
                })
                .collect();
            for (who, told) in all.iter().zip(&told) {
                if *told != truth {
                    self.fail(&format!(
                        "process {who} says {told:?} of region {region}, not {truth:?}"
                    ));
                }
            }
            let in_memory: Vec<_> = truth
                .iter()
                .map(|s| u64::from(*s == PRESENT) * UNIT as u64)
                .collect();
            if held != in_memory {
                self.fail(&format!(
                    "region {region} has {held:?} bytes in memory, and says {truth:?}"
                ));
            }
            let model = self.regions[region]
                .as_mut()
                .map(|m| &mut m.may)
                .expect("looked at");
            let wrong = (0..units).find(|&u| model[u] & truth[u] == 0);
            if let Some(u) = wrong {
                let may = model[u];
                self.fail(&format!(
                    "unit {u} of region {region} is {}, and may be {may}",
                    truth[u]
                ));
            }
            model[..units].copy_from_slice(&truth);
        }
        self.reclaim();
    }

    /// The state words of a region's units, if no process is working on any of them.
    fn words_of(&self, region: usize, units: usize) -> Option<Vec<Word>> {
        let pool = self.engine.pool();
        let found = pool.shared_table().unwrap().find(&name(region));
        let Ok(found) = found else {
            self.fail(&format!("region {region} is not there: {found:?}"));
        };
        assert_eq!(found.units as usize, units);
        let all = &pool.shared_words()[found.first as usize..][..units];
        let words: Vec<_> = all
            .iter()
            .map(|w| Word(w.load(Acquire)).referenced(false))
            .collect();
        let charged = |(u, w): (usize, &Word)| {
            pool.is_charged_shared(found.first + u as u32) == (w.kind() == Kind::Resident)
        };
        let quiet = words.iter().all(|w| !w.is_locked()) && words.iter().enumerate().all(charged);
        quiet.then_some(words)
    }

    fn told_by(&self, who: usize, region: usize, units: usize) -> Vec<u8> {
        self.place(who).ask(Job::Tell, &[region as u64]);
        self.wait(who);
        let states = &self.place(who).states;
        states[..units].iter().map(|s| s.load(Relaxed)).collect()
    }

    /// Bytes that the region's memory file has of each unit, read through the open file of a
    /// process that has the region.
    fn really_held(&self, region: usize, units: usize, who: usize) -> Vec<u64> {
        let pool = self.engine.pool();
        let Ok(found) = pool.shared_table().unwrap().find(&name(region)) else {
            return Vec::new();
        };
        let pid = self.place(who).pid.load(Relaxed);
        let clients = &pool.header().shared[found.index].clients;
        let number = clients
            .iter()
            .find(|c| c.owner.load(Relaxed) != 0 && c.pid.load(Relaxed) == pid)
            .map(|c| c.memory.load(Relaxed));
        let Some(number) = number else {
            self.fail(&format!(
                "process {who} is not known to have region {region}"
            ));
        };
        let file = std::fs::File::open(format!("/proc/{pid}/fd/{number}")).unwrap();
        let mut held = vec![0; units];
        let mut at = 0;
        loop {
            // SAFETY: only moves the offset of our own open file.
            let seek = |at: i64, to| unsafe { libc::lseek(file.as_raw_fd(), at, to) };
            let from = seek(at, libc::SEEK_DATA);
            if from < 0 {
                return held;
            }
            at = seek(from, libc::SEEK_HOLE);
            for (unit, held) in held.iter_mut().enumerate() {
                let (start, end) = ((unit * UNIT) as i64, ((unit + 1) * UNIT) as i64);
                *held += (at.min(end) - from.max(start)).max(0) as u64;
            }
        }
    }

    /// Every process compares everything and ends; checks that nothing is left.
    pub(super) fn end(mut self) {
        self.step += 1;
        for who in self.there() {
            for region in 0..REGIONS {
                if let (true, Some(m)) = (self.has[who][region], &self.regions[region]) {
                    let all = [region as u64, 0, (m.units * WORDS) as u64, 0];
                    self.tell(who, Job::Compare, &all);
                    self.follow(Job::Compare, &all);
                }
            }
        }
        for who in self.there() {
            for region in 0..REGIONS {
                if self.has[who][region] {
                    self.tell(who, Job::Detach, &[region as u64]);
                    self.gave_up(who, region);
                }
            }
            self.tell(who, Job::CountDescriptors, &[]);
        }
        let pool = self.engine.pool();
        (0..REGIONS).for_each(|r| self.region_ends(r));
        if pool.shared_frames() != 0 {
            self.fail("memory is left");
        }
        for who in self.there() {
            self.tell(who, Job::Leave, &[]);
            self.is_gone(who);
        }
        self.until("nobody but the driver is in the pool", || {
            pool.reap();
            let records = pool.records().iter();
            records.filter(|r| r.state.load(SeqCst) != 0).count() == 1
        });
        self.until("swap is free", || clusters::used(pool.cluster_words()) == 0);
        if let Err(e) = self.engine.audit() {
            self.fail(&e);
        }
        let r = pool.report();
        let right = r.get(Counter::SwapReadError) == 0
            && r.get(Counter::SwapWriteError) == 0
            && r.get(Counter::Poisoned) == 0
            && r.exhausted == 0;
        if !right || pool.shared_frames() != 0 {
            self.fail(&format!("{r:?}"));
        }
        self.until("no memory file is open", || {
            memory_files_of(std::process::id()).iter().all(|n| *n == 0)
        });
        // SAFETY: nothing of the engine's is used any more.
        unsafe { self.engine.stop() };
    }
}

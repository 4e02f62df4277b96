//! `faults`: how long page faults take, by class, in signal and in message mode.
//!
//! One thread touches one word of one huge page at a time, in an order that provokes each class:
//! everything once in sequence (first touches), everything in random order (whole reads from swap, too
//! random to be read ahead), and after each of those a page that was touched a while ago, which the
//! engine has begun to watch or has put in the swap cache (soft faults). The classes and latencies are
//! the engine's own; beside them stands what the program saw.

mod first_touch;

pub use first_touch::worker as first_touch;

use crate::child::{self, Ended, tell};
use crate::engines::hugeswap::{Hugeswap, check_managed};
use crate::error::wrong;
use crate::generate::plan::Work;
use crate::generate::words::{Corrupt, UNIT, differs, seed};
use crate::options::{Common, FaultMode, Named, check_memory, check_work, size};
use crate::output::{Benchmark, Outcome, Progress, Run, Table, cell, median, rounded};
use anyhow::{Context, Result, bail};
use hugeswap_policy::histogram;
use hugeswap_support::random::{index, next, permutation};
use memmap2::MmapMut;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::time::Instant;

// Arguments of `hugeswap bench faults`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLE:
  hugeswap bench faults --memory 256M

Without --fault-mode, signal and message mode are measured; a mode that is not permitted is skipped, with the reason.
Then first touches of huge pages are measured beside the kernel's own, in turn, with a third of the memory in use.
Run it on an idle machine: a busy neighbour adds interrupts to every fault.")]
pub struct Faults {
    /// What the program touches [default: twice the memory]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    region: Option<u64>,
    /// hugeswap's budget
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size)]
    memory: u64,
    /// Times the region is gone through in random order
    #[arg(long, value_name = "N", default_value_t = 4)]
    rounds: u32,
    #[command(flatten)]
    common: Common,
}

impl Benchmark for Faults {
    const NAME: &'static str = "faults";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        check_work(self.region(), 1, 1, self.rounds)?;
        check_memory(self.memory)?;
        if self.region() <= self.memory {
            return wrong("--region must be larger than --memory, or nothing is ever swapped");
        }
        Ok(())
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let given = self.common.fault_mode;
        let modes = given.map_or(vec![FaultMode::Signal, FaultMode::Message], |mode| {
            vec![mode]
        });
        let pairs = self.common.pairs();
        let mut progress = Progress::new(pairs as usize * modes.len());
        for pair in 1..=pairs {
            for mode in &modes {
                let name = mode.name();
                if outcome.more.contains_key(&name) {
                    continue;
                }
                progress.begin(format!("{name} mode, {pair} of {pairs}"));
                match self.run_in(&name)? {
                    Ok(run) => outcome.runs.push(run.with("pair", pair)),
                    // A mode that was asked for by name has to be there.
                    Err(reason) if given.is_some() => bail!("{name} mode: {reason}"),
                    Err(reason) => {
                        outcome.add(&name, json!({ "skipped": reason }));
                        outcome.skip(format!("{name} mode: {reason}"));
                    }
                }
                progress.end();
            }
        }
        drop(progress);
        let mut table = table(&outcome.runs);
        let beside = first_touch::measure(self.memory, self.common.limit(), outcome)?;
        if let Some(first_touches) = beside {
            table = table.below(first_touches);
        }
        compare(outcome);
        outcome.note("engine: in the fault path, by its class; program: a whole touch as the program sees it");
        Ok(table)
    }
}

impl Faults {
    /// Bytes that the program touches.
    fn region(&self) -> u64 {
        self.region.unwrap_or(self.memory * 2)
    }

    /// One run in one mode. The inner error is the reason why the mode is not available.
    fn run_in(&self, mode: &str) -> Result<Result<Run, String>> {
        let (region, memory, rounds) = (self.region(), self.memory, self.rounds);
        let hugeswap = Hugeswap {
            fault_mode: Some(mode.into()),
            ..Hugeswap::new(memory, &self.common.swap, &self.common)
        };
        let mut seen = Value::Null;
        let touches = Touches {
            region,
            memory,
            rounds,
        };
        let (ended, report) = hugeswap.report_of("faults", &touches, |line| {
            seen = child::figure(line)?;
            Ok(())
        })?;
        // Status 2 is `hugeswap run` itself, before the program was started.
        if ended.status.code() == Some(2) {
            return Ok(Err(reason_of(&ended)));
        }
        let work = Work {
            region,
            rounds,
            ..Work::default()
        };
        let mut run = Run::new("hugeswap", &work).with("memory_bytes", memory);
        (run.verified, run.verified_share) = (!seen.is_null(), 1.0);
        run.finish(&ended)?;
        check_managed(&report)?;
        let run = run
            .with("faults", report["faults"].clone())
            .with("program", seen);
        Ok(Ok(run.reported(report)))
    }
}

fn reason_of(ended: &Ended) -> String {
    let reason = ended.reason();
    let reason = reason.strip_prefix("hugeswap: ").unwrap_or(&reason);
    reason.trim_end_matches(" (exit status 2)").to_owned()
}

fn compare(outcome: &mut Outcome) {
    for class in ["first_touch", "soft", "major_2m"] {
        let p50 = |mode: &str| {
            let p50 = |r: &Run| r.params["faults"][class]["p50_us"].as_f64();
            let runs = outcome
                .runs
                .iter()
                .filter(|r| r.word("fault_mode") == Some(mode));
            median(&runs.filter_map(p50).collect::<Vec<_>>())
        };
        let ratio = p50("message") / p50("signal");
        if ratio > 0.0 {
            outcome.ratio(&format!("message_p50_vs_signal_{class}"), ratio);
        }
    }
}

fn table(runs: &[Run]) -> Table {
    let empty = Map::new();
    let mut rows = Vec::new();
    for r in runs {
        for (by, key) in [("engine", "faults"), ("program", "program")] {
            let classes = r.params[key].as_object().unwrap_or(&empty).iter();
            let met = classes.filter(|(_, f)| f["count"].as_u64() > Some(0));
            rows.extend(met.map(|(class, f)| (r, by, class, f)));
        }
    }
    let us = |f: &Value, name: &str| cell(f[name].as_f64(), 1);
    Table::of(
        rows,
        &[
            ("mode", &|(r, ..)| r.cell("fault_mode")),
            ("pair", &|(r, ..)| r.cell("pair")),
            ("measured by", &|(_, by, ..)| (*by).to_owned()),
            ("touches", &|(_, _, class, _)| class.replace('_', " ")),
            ("count", &|(_, _, _, f)| f["count"].to_string()),
            ("p50 us", &|(_, _, _, f)| us(f, "p50_us")),
            ("p99 us", &|(_, _, _, f)| us(f, "p99_us")),
            ("max us", &|(_, _, _, f)| us(f, "max_us")),
        ],
    )
}

/// The task of the program.
#[derive(Serialize, Deserialize)]
pub struct Touches {
    region: u64,
    memory: u64,
    rounds: u32,
}

/// Latencies of one kind of touch, as the program sees them.
struct Seen {
    counts: Vec<u64>,
    max_ns: u64,
}

impl Seen {
    fn new() -> Seen {
        Seen {
            counts: vec![0; histogram::BUCKETS],
            max_ns: 0,
        }
    }

    fn note(&mut self, started: Instant) {
        let ns = started.elapsed().as_nanos() as u64;
        self.counts[histogram::bucket(ns)] += 1;
        self.max_ns = self.max_ns.max(ns);
    }

    fn figures(&self) -> Value {
        let us = |ns: u64| rounded(ns.min(self.max_ns) as f64 / 1e3, 1);
        json!({
            "count": self.counts.iter().sum::<u64>(),
            "p50_us": us(histogram::percentile_ns(&self.counts, 0.5)),
            "p99_us": us(histogram::percentile_ns(&self.counts, 0.99)),
            "max_us": us(self.max_ns),
        })
    }
}

/// The program that provokes the faults.
pub fn worker(task: &Touches) -> Result<()> {
    let units = (task.region as usize / UNIT).max(1);
    let mut map =
        MmapMut::map_anon(units * UNIT).with_context(|| format!("cannot map {} MiB", units * 2))?;
    // What each unit's word must be; too small for hugeswap to manage.
    let mut held: Vec<u64> = (0..units).map(|u| seed(0, u as u32)).collect();
    let mut random = 1;
    let (mut first, mut far, mut recent) = (Seen::new(), Seen::new(), Seen::new());
    for (unit, &value) in held.iter().enumerate() {
        let started = Instant::now();
        put(&mut map, unit, value);
        first.note(started);
    }
    // Units touched lately, oldest first, as many as fit in memory.
    let in_memory = (task.memory as usize / UNIT).clamp(2, units);
    let mut lately = VecDeque::with_capacity(in_memory + 1);
    for _ in 0..task.rounds {
        for unit in permutation(units, &mut random) {
            let started = Instant::now();
            touch(&mut map, unit, &mut held, &mut random)?;
            far.note(started);
            lately.push_back(unit);
            if lately.len() < in_memory {
                continue;
            }
            lately.pop_front();
            // From the older part of those: watched, or swapped out and still cached.
            let old = lately[index(lately.len() * 3 / 4, &mut random)];
            let started = Instant::now();
            touch(&mut map, old, &mut held, &mut random)?;
            recent.note(started);
        }
    }
    for (unit, &value) in held.iter().enumerate() {
        check(&map, unit, value)?;
    }
    tell(&json!({
        "first_touches": first.figures(), "at_random": far.figures(), "of_a_while_ago": recent.figures(),
    }))
}

fn put(map: &mut MmapMut, unit: usize, value: u64) {
    map[unit * UNIT..unit * UNIT + 8].copy_from_slice(&value.to_ne_bytes());
}

fn check(map: &MmapMut, unit: usize, value: u64) -> Result<()> {
    if differs(&map[unit * UNIT..unit * UNIT + 8], value).is_some() {
        return Err(Corrupt(format!("a wrong word at byte {}", unit * UNIT)).into());
    }
    Ok(())
}

/// Reads a unit's word; every other time writes a new one.
fn touch(map: &mut MmapMut, unit: usize, held: &mut [u64], random: &mut u64) -> Result<()> {
    check(map, unit, held[unit])?;
    let value = next(random);
    if value & 1 == 1 {
        held[unit] = value;
        put(map, unit, value);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_found() {
        let mut map = MmapMut::map_anon(2 * UNIT).unwrap();
        let mut held = vec![3, 5];
        put(&mut map, 0, 3);
        put(&mut map, 1, 5);
        let mut random = 1;
        for _ in 0..10 {
            touch(&mut map, 1, &mut held, &mut random).unwrap();
        }
        put(&mut map, 0, 4);
        let wrong = touch(&mut map, 0, &mut held, &mut random).unwrap_err();
        assert!(wrong.is::<Corrupt>());
    }
}

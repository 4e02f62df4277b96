//! `faults`: how long page faults take, by class, in signal and in message mode.
//!
//! One thread touches one word of one huge page at a time, in an order that provokes each class:
//! everything once in sequence (first touches), everything in random order (whole reads from swap: too random to be read ahead), and
//! after each of those a page touched a while ago, which the engine has begun to watch or has put in the
//! swap cache (soft faults). The classes and latencies are the engine's own; beside them
//! stands what the program saw.

use super::args::{FaultMode, Faults};
use super::child;
use super::first_touch;
use super::memory::{differs, next_random, seed};
use super::output::{self, Outcome, Progress, Table, rounded};
use super::pattern::below;
use super::runner::{Hugeswap, Run, check_managed};
use super::worker::{Corrupt, Work, tell};
use anyhow::{Context, Result, bail};
use hugeswap_policy::histogram;
use memmap2::MmapMut;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::time::Instant;

const UNIT: usize = hugeswap_policy::UNIT_BYTES as usize;

/// Runs it.
pub fn run(args: &Faults) -> Result<()> {
    args.check()?;
    output::measured("faults", args.common.json, |outcome| measure(args, outcome))
}

fn measure(args: &Faults, outcome: &mut Outcome) -> Result<Table> {
    let modes = match args.common.fault_mode {
        Some(mode) => vec![mode],
        None => vec![FaultMode::Signal, FaultMode::Message],
    };
    let mut progress = Progress::new(u64::from(args.common.pairs()) * modes.len() as u64);
    for pair in 1..=args.common.pairs() {
        for &mode in &modes {
            if outcome.more.contains_key(mode.name()) {
                continue;
            }
            progress.begin(format!(
                "{} mode, {pair} of {}",
                mode.name(),
                args.common.pairs()
            ));
            match one(args, mode)? {
                Ok(run) => outcome.runs.push(run.with("pair", pair)),
                // Asked for by name, it has to be there.
                Err(reason) if args.common.fault_mode.is_some() => {
                    bail!("{} mode: {reason}", mode.name())
                }
                Err(reason) => {
                    outcome
                        .more
                        .insert(mode.name().into(), json!({ "skipped": reason }));
                    outcome.skip(format!("{} mode: {reason}", mode.name()));
                }
            }
            progress.end();
        }
    }
    drop(progress);
    let mut table = table(&outcome.runs);
    if let Some(first_touches) = first_touch::measure(args, outcome)? {
        table = table.below(first_touches);
    }
    compare(outcome);
    outcome.notes.push(
        "engine: in the fault path, by its class; program: a whole touch as the program sees it"
            .into(),
    );
    Ok(table)
}

/// One run in one mode; the inner error is the reason why the mode is not to be had.
fn one(args: &Faults, mode: FaultMode) -> Result<Result<Run, String>> {
    let task = Touches {
        region: args.region_bytes(),
        memory: args.memory,
        rounds: args.rounds,
    };
    let hugeswap = Hugeswap {
        fault_mode: Some(mode.name()),
        ..Hugeswap::new(args.memory, &args.common.swap, &args.common)
    };
    let mut seen = Value::Null;
    let (ended, report) =
        hugeswap.report_of(&["faults", &serde_json::to_string(&task)?], |line| {
            seen = serde_json::from_str(line)
                .with_context(|| format!("not a worker's figure: {line}"))?;
            Ok(())
        })?;
    // Status 2 is `hugeswap run` itself, before the program was started.
    if ended.status.code() == Some(2) {
        return Ok(Err(reason_of(&ended)));
    }
    let work = Work {
        region: task.region,
        tasks: 1,
        threads: 1,
        rounds: task.rounds,
        ..Work::default()
    };
    let mut run = Run::new("hugeswap", &work).with("memory_bytes", args.memory);
    (run.verified, run.verified_share) = (!seen.is_null(), 1.0);
    run.finish(&ended)?;
    check_managed(&report)?;
    run.huge_share = report["huge_share"].as_f64();
    run = run
        .with("fault_mode", report["fault_mode"].clone())
        .with("faults", report["faults"].clone());
    run = run.with("program", seen);
    run.counters = report;
    Ok(Ok(run))
}

fn reason_of(ended: &child::Ended) -> String {
    let reason = ended.reason();
    let reason = reason.strip_prefix("hugeswap: ").unwrap_or(&reason);
    reason.trim_end_matches(" (exit status 2)").to_owned()
}

fn compare(outcome: &mut Outcome) {
    let p50 = |mode: &str, class: &str| {
        let runs = outcome
            .runs
            .iter()
            .filter(|r| r.params["fault_mode"] == mode);
        let values: Vec<f64> = runs
            .filter_map(|r| r.params["faults"][class]["p50_us"].as_f64())
            .collect();
        super::runner::median(&values)
    };
    let mut ratios = Vec::new();
    for class in ["first_touch", "soft", "major_2m"] {
        ratios.push((
            format!("message_p50_vs_signal_{class}"),
            p50("message", class) / p50("signal", class),
        ));
    }
    for (name, value) in ratios.into_iter().filter(|(_, v)| *v > 0.0) {
        outcome.ratio(&name, value);
    }
}

fn table(runs: &[Run]) -> Table {
    let mut t = Table::new(&[
        "mode",
        "pair",
        "measured by",
        "touches",
        "count",
        "p50 us",
        "p99 us",
        "max us",
    ]);
    let empty = Map::new();
    for r in runs {
        for (by, key) in [("engine", "faults"), ("program", "program")] {
            for (class, f) in r.params[key].as_object().unwrap_or(&empty) {
                let count = f["count"].as_u64().unwrap_or(0);
                if count == 0 {
                    continue;
                }
                let us = |name: &str| f[name].as_f64().map_or("-".into(), |v| format!("{v:.1}"));
                t.row(vec![
                    r.params["fault_mode"].as_str().unwrap_or("-").to_owned(),
                    r.params["pair"].to_string(),
                    by.into(),
                    class.replace('_', " "),
                    count.to_string(),
                    us("p50_us"),
                    us("p99_us"),
                    us("max_us"),
                ]);
            }
        }
    }
    t
}

#[derive(Serialize, Deserialize)]
struct Touches {
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
pub fn worker(task: &str) -> Result<()> {
    let task: Touches = serde_json::from_str(task).context("not a worker's task")?;
    let units = (task.region as usize / UNIT).max(1);
    let mut map =
        MmapMut::map_anon(units * UNIT).with_context(|| format!("cannot map {} MiB", units * 2))?;
    // What each unit's word must be; small enough to be nobody's managed memory.
    let mut held: Vec<u64> = (0..units).map(|u| seed(0, u as u32)).collect();
    let mut random = 1;
    let (mut first, mut far, mut recent) = (Seen::new(), Seen::new(), Seen::new());
    for (unit, &value) in held.iter().enumerate() {
        let started = Instant::now();
        put(&mut map, unit, value);
        first.note(started);
    }
    // Pages touched lately, oldest first, as many as fit in memory.
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
            // From the older part of what fits: watched, or swapped out and still cached.
            let old = lately[below(lately.len() as u64 * 3 / 4, &mut random) as usize];
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
    let value = next_random(random);
    if value & 1 == 1 {
        held[unit] = value;
        put(map, unit, value);
    }
    Ok(())
}

/// Fisher and Yates.
fn permutation(n: usize, random: &mut u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, below(i as u64 + 1, random) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_has_everything_once() {
        let mut random = 7;
        let mut p = permutation(1000, &mut random);
        assert_ne!(p, (0..1000).collect::<Vec<_>>());
        p.sort_unstable();
        assert_eq!(p, (0..1000).collect::<Vec<_>>());
    }

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
        assert!(
            touch(&mut map, 0, &mut held, &mut random)
                .unwrap_err()
                .is::<Corrupt>()
        );
    }
}

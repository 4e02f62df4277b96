//! `chaos`: does a faulty device ever make wrong bytes, or stop a program?
//!
//! Threads write and verify memory whose swap is on several areas of a device that fails in all the ways of `debug.fault_*`, and fork children
//! that do the same with their copy. They know what every page must hold. A page may be lost, and say so, where the device did not keep it; it may never
//! hold anything else. The engine
//! keeps account of every read that brought something else than was written; what it did not notice, or cannot explain, fails the run.

mod children;
mod model;
mod work;

pub use work::worker;

use super::args::Chaos;
use super::child;
use super::output::{self, Outcome, Progress, Table};
use super::runner::Run;
use super::worker::Work;
use anyhow::{Context, Result, bail};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::device::faulty::Kind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

/// What the program is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Task {
    region: u64,
    memory: u64,
    seconds: u64,
    operations: u64,
    threads: u32,
    areas: u32,
    seed: u64,
    swap: Vec<String>,
    message: bool,
    set: Vec<String>,
    /// Faults, as settings.
    faults: Vec<String>,
}

/// What came of it: the program's only line.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Told {
    seconds: f64,
    operations: u64,
    /// Pages read and compared.
    verified: u64,
    /// Pages that held something else than what was written. The first of them is told on stderr.
    wrong: u64,
    /// Pages that could not be read, and said so.
    lost: u64,
    /// Accesses that were refused once, and not the second time.
    refused: u64,
    /// Children that threads forked, which did the same and ended.
    children: u64,
    /// Threads that did nothing for too long, and children that did not end.
    hangs: u64,
    /// Milliseconds that the longest operation took.
    longest_ms: f64,
    counters: BTreeMap<String, u64>,
}

/// How often, of a million operations (bad: pages).
fn rate(kind: Kind) -> u64 {
    match kind {
        Kind::Eio | Kind::Short => 4000,
        Kind::Flip | Kind::Misread | Kind::NoSpace => 2000,
        Kind::Miswrite | Kind::Torn | Kind::Lost => 500,
        Kind::Bad => 20,
        Kind::Delay => 4000,
        Kind::Hang => 200,
        // After so many transfers.
        Kind::Gone => 20_000,
    }
}

/// Does it pass, if one tries again?
fn is_transient(kind: Kind) -> bool {
    use Kind::{Bad, Gone, Lost, Miswrite, Torn};
    !matches!(kind, Bad | Gone | Lost | Miswrite | Torn)
}

impl Told {
    fn get(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// What must not be.
    fn failures(&self, kinds: &[Kind]) -> Vec<String> {
        let mut all = Vec::new();
        let mut must_be = |n: u64, want: u64, what: &str| {
            if n != want {
                all.push(format!("{n} {what}"));
            }
        };
        must_be(self.wrong, 0, "pages with wrong bytes");
        must_be(self.hangs, 0, "threads or children that hung");
        must_be(self.get("fault_undetected"), 0, "spoilt reads not noticed");
        must_be(self.get("fault_unexplained"), 0, "failures without a fault");
        let sums = self.get("swap_sum_error");
        must_be(
            self.get("fault_detected"),
            sums,
            &format!("of {sums} wrong sums explained"),
        );
        if kinds.iter().copied().all(is_transient) {
            must_be(self.lost, 0, "pages lost to faults that pass");
        }
        all
    }
}

/// Runs it.
pub fn run(args: &Chaos) -> Result<()> {
    let kinds = args.check()?;
    let mut failures = Vec::new();
    output::measured("chaos", args.common.json, |outcome| {
        let told = measure(args, &kinds, outcome)?;
        failures = told.failures(&kinds);
        Ok(table(&told))
    })?;
    if !failures.is_empty() {
        bail!("chaos, seed {}: {}", args.seed, failures.join("; "));
    }
    Ok(())
}

fn measure(args: &Chaos, kinds: &[Kind], outcome: &mut Outcome) -> Result<Told> {
    let faults = kinds.iter().map(|&k| (k.name(), rate(k)));
    let task = Task {
        region: args.region,
        memory: args.memory,
        seconds: args.seconds,
        operations: args.operations.unwrap_or(u64::MAX),
        threads: args.threads,
        areas: args.areas,
        seed: args.seed,
        swap: args.common.swap.clone(),
        message: args.common.fault_mode == Some(super::args::FaultMode::Message),
        set: args.common.set.clone(),
        faults: faults
            .map(|(name, rate)| format!("debug.fault_{name}={rate}"))
            .collect(),
    };
    let mut progress = Progress::new(1);
    progress.begin(format!("{} seconds, seed {}", args.seconds, args.seed));
    let mut c = Command::new(std::env::current_exe()?);
    c.args(["__worker", "chaos", &serde_json::to_string(&task)?]);
    let mut told = None;
    // The last look at everything takes its time.
    let limit = Duration::from_secs(args.seconds) + args.common.limit();
    let ended = child::run(&mut c, limit, |line| {
        told = Some(serde_json::from_str::<Told>(line).with_context(|| line.to_owned())?);
        Ok(())
    })
    .context("the chaos run")?;
    progress.end();
    drop(progress);
    let Some(told) = told else {
        bail!("chaos, seed {}: {}", args.seed, ended.reason());
    };
    if told.wrong > 0 {
        outcome.notes.push(ended.reason());
    }
    let work = Work {
        region: task.region,
        tasks: 1,
        threads: task.threads,
        ..Work::default()
    };
    let mut run = Run::new("hugeswap", &work)
        .with("memory_bytes", task.memory)
        .with("seed", task.seed)
        .with("told", serde_json::to_value(&told)?);
    run.elapsed_s = ended.elapsed.as_secs_f64();
    (run.verified, run.verified_share) = (told.wrong == 0, 1.0);
    outcome.runs.push(run);
    Ok(told)
}

fn table(told: &Told) -> Table {
    let mut t = Table::new(&["what", "count"]);
    let mut row = |what: &str, n: u64| t.row(vec![what.into(), n.to_string()]);
    row("operations", told.operations);
    row("pages verified", told.verified);
    row("forked children", told.children);
    for &kind in Kind::ALL {
        let n = told.get(Counter::of_fault(kind).name());
        row(&format!("faults: {}", kind.name()), n);
    }
    row("reads spoilt and noticed", told.get("fault_detected"));
    row("reads spoilt, not noticed", told.get("fault_undetected"));
    row("failures without a fault", told.get("fault_unexplained"));
    row("transfers tried again", told.get("swap_retry"));
    row(
        "writes that went elsewhere, or stayed",
        told.get("swap_write_error"),
    );
    row("pages and units lost (hwpoison)", told.get("hwpoison"));
    row("pages found lost", told.lost);
    row("accesses refused once", told.refused);
    row("pages with wrong bytes", told.wrong);
    row("hangs", told.hangs);
    row("longest operation, ms", told.longest_ms.ceil() as u64);
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(counters: &[(&str, u64)]) -> Told {
        Told {
            counters: counters.iter().map(|&(k, v)| (k.into(), v)).collect(),
            ..Told::default()
        }
    }

    #[test]
    fn what_must_not_be_is_told() {
        let sums = [("fault_detected", 5), ("swap_sum_error", 5)];
        assert_eq!(told(&sums).failures(Kind::ALL), [""; 0]);
        let wrong = |t: Told, kinds| t.failures(kinds).len();
        let all = Kind::ALL;
        assert_eq!(wrong(told(&[("swap_sum_error", 1)]), all), 1);
        assert_eq!(wrong(told(&[("fault_undetected", 1)]), all), 1);
        assert_eq!(wrong(told(&[("fault_unexplained", 1)]), all), 1);
        let mut t = told(&sums);
        t.lost = 3;
        assert_eq!(wrong(t.clone(), all), 0, "the device lost them");
        assert_eq!(wrong(t.clone(), &[Kind::Eio, Kind::Flip]), 1);
        (t.wrong, t.hangs) = (1, 1);
        assert_eq!(wrong(t, all), 2);
    }
}

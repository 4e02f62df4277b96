//! `chaos`: does a faulty device ever cause wrong bytes, or stop a program?
//!
//! Threads write and verify memory whose swap is on several areas of a device that fails in all the ways
//! of `debug.fault_*`, and fork children that do the same with their copy. They know what every page
//! must hold. A page that the device did not keep may be lost, which is an error; it may never hold
//! anything else. The engine accounts for every read that brought something else than was written; one
//! that it did not notice, or cannot explain, fails the benchmark.

mod children;
mod model;
mod task;
mod work;

pub use work::worker;

use crate::child;
use crate::error::{within, wrong};
use crate::generate::plan::Work;
use crate::options::{Common, FaultMode, check_memory, size};
use crate::output::{Benchmark, Outcome, Progress, Run, Table};
use anyhow::{Context, Result, bail};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::device::faulty::Kind;
use std::time::Duration;
use task::{Report, Task};

// Arguments of `hugeswap bench chaos`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench chaos --seconds 60 --seed 7
  hugeswap bench chaos --operations 20000 --kinds eio,flip,lost

Kinds: eio, short, nospace, flip, misread, miswrite, torn, lost, bad, gone, delay, hang (docs/swap.md explains them).
A minute stands for an hour: a device that hangs for 30 seconds, as long as Linux waits for one, does so for half a second here. Faults come
much oftener than on any device that is still in use. Wrong bytes, a hang of the program, or a fault that is not accounted for: exit status 1.")]
pub struct Chaos {
    /// What the threads use, together
    #[arg(long, value_name = "SIZE", default_value = "192M", value_parser = size)]
    region: u64,
    /// hugeswap's budget
    #[arg(long, value_name = "SIZE", default_value = "48M", value_parser = size)]
    memory: u64,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Stop after so many operations, of all threads together
    #[arg(long, value_name = "N")]
    operations: Option<u64>,
    /// Threads, each with its share of the region
    #[arg(long, value_name = "N", default_value_t = 4)]
    threads: u32,
    /// Swap areas, where --swap names none
    #[arg(long, value_name = "N", default_value_t = 3)]
    areas: u32,
    /// What the faults follow from
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seed: u64,
    /// Kinds of faults, with commas between [default: all]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Faults of a million operations (bad: of a million pages).
fn rate(kind: Kind) -> u64 {
    match kind {
        Kind::Eio | Kind::Short => 4000,
        Kind::Flip | Kind::Misread | Kind::NoSpace => 2000,
        Kind::Miswrite | Kind::Torn | Kind::Lost => 500,
        Kind::Bad => 20,
        Kind::Delay => 4000,
        Kind::Hang => 200,
        // The number of transfers after which it happens.
        Kind::Gone => 20_000,
    }
}

/// Does the operation succeed when it is repeated?
fn is_transient(kind: Kind) -> bool {
    use Kind::{Bad, Gone, Lost, Miswrite, Torn};
    !matches!(kind, Bad | Gone | Lost | Miswrite | Torn)
}

impl Report {
    fn get(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// What went wrong.
    fn failures(&self, kinds: &[Kind]) -> Vec<String> {
        let mut all = Vec::new();
        let mut must_be = |n: u64, want: u64, what: &str| {
            if n != want {
                all.push(format!("{n} {what}"));
            }
        };
        must_be(self.pages.wrong, 0, "pages with wrong bytes");
        must_be(self.hangs, 0, "threads or children that hung");
        must_be(self.get("fault_undetected"), 0, "spoilt reads not noticed");
        must_be(self.get("fault_unexplained"), 0, "failures without a fault");
        let sums = self.get("swap_sum_error");
        let explained = format!("of {sums} wrong sums explained");
        must_be(self.get("fault_detected"), sums, &explained);
        if kinds.iter().copied().all(is_transient) {
            must_be(self.pages.lost, 0, "pages lost to faults that pass");
        }
        all
    }
}

impl Benchmark for Chaos {
    const NAME: &'static str = "chaos";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        check_memory(self.memory * 2)?;
        if self.memory < 32 << 20 {
            return wrong("--memory must be at least 32M");
        }
        within("--areas", [self.areas], 1..=16)?;
        within("--threads", [self.threads], 1..=64)?;
        if self.region / u64::from(self.threads) < 4 << 20 {
            return wrong("--region must be at least 4M for each thread");
        }
        within("--seconds", [self.seconds], 1..=86_400)?;
        self.kinds().map(drop)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let kinds = self.kinds()?;
        let report = self.run(&kinds, outcome)?;
        let failures = report.failures(&kinds).join("; ");
        if !failures.is_empty() {
            outcome.failure = Some(format!("chaos, seed {}: {failures}", self.seed));
        }
        Ok(table(&report))
    }
}

impl Chaos {
    fn kinds(&self) -> Result<Vec<Kind>> {
        if self.kinds.is_empty() {
            return Ok(Kind::ALL.to_vec());
        }
        let find = |name: &String| {
            let found = Kind::ALL.iter().copied().find(|k| k.name() == name.trim());
            let none = || wrong(format!("--kinds: there is no '{name}' (see --help)"));
            found.map_or_else(none, Ok)
        };
        self.kinds.iter().map(find).collect()
    }

    fn run(&self, kinds: &[Kind], outcome: &mut Outcome) -> Result<Report> {
        let fault = |&k: &Kind| format!("debug.fault_{}={}", k.name(), rate(k));
        let task = Task {
            region: self.region,
            memory: self.memory,
            seconds: self.seconds,
            operations: self.operations.unwrap_or(u64::MAX),
            threads: self.threads,
            areas: self.areas,
            seed: self.seed,
            swap: self.common.swap.clone(),
            message: self.common.fault_mode == Some(FaultMode::Message),
            set: self.common.set.clone(),
            faults: kinds.iter().map(fault).collect(),
        };
        let mut progress = Progress::new(1);
        progress.begin(format!("{} seconds, seed {}", self.seconds, self.seed));
        let mut report: Option<Report> = None;
        // The last verification of all memory takes its time.
        let limit = Duration::from_secs(self.seconds) + self.common.limit();
        let ended = child::figures(&mut child::worker("chaos", &task)?, limit, |found| {
            report = Some(found);
            Ok(())
        })
        .context("the chaos run")?;
        progress.end();
        drop(progress);
        let Some(report) = report else {
            bail!("chaos, seed {}: {}", self.seed, ended.reason());
        };
        for line in ended.stderr.lines().filter(|l| l.contains("not explained")) {
            eprintln!("{line}");
        }
        if report.pages.wrong > 0 {
            outcome.note(ended.reason());
        }
        let (region, threads) = (self.region, self.threads);
        let work = Work {
            region,
            threads,
            ..Work::default()
        };
        let mut run = Run::new("hugeswap", &work)
            .with("memory_bytes", self.memory)
            .with("seed", self.seed)
            .with("told", serde_json::to_value(&report)?);
        run.elapsed_s = ended.elapsed.as_secs_f64();
        (run.verified, run.verified_share) = (report.pages.wrong == 0, 1.0);
        outcome.runs.push(run);
        Ok(report)
    }
}

fn table(report: &Report) -> Table {
    let mut t = Table::new(&["what", "count"]);
    let mut row = |what: &str, n: u64| t.row(vec![what.into(), n.to_string()]);
    row("operations", report.operations);
    row("pages verified", report.pages.verified);
    row("forked children", report.children);
    for &kind in Kind::ALL {
        let n = report.get(Counter::of_fault(kind).name());
        row(&format!("faults: {}", kind.name()), n);
    }
    row("reads spoilt and noticed", report.get("fault_detected"));
    row("reads spoilt, not noticed", report.get("fault_undetected"));
    row("failures without a fault", report.get("fault_unexplained"));
    row("transfers tried again", report.get("swap_retry"));
    row(
        "writes that went elsewhere, or stayed",
        report.get("swap_write_error"),
    );
    row("pages and units lost (hwpoison)", report.get("hwpoison"));
    row("pages found lost", report.pages.lost);
    row("accesses refused once", report.pages.refused);
    row("pages with wrong bytes", report.pages.wrong);
    row("hangs", report.hangs);
    row("longest operation, ms", report.longest_ms.ceil() as u64);
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(counters: &[(&str, u64)]) -> Report {
        Report {
            counters: counters.iter().map(|&(k, v)| (k.into(), v)).collect(),
            ..Report::default()
        }
    }

    #[test]
    fn what_went_wrong_is_named() {
        let sums = [("fault_detected", 5), ("swap_sum_error", 5)];
        assert_eq!(report(&sums).failures(Kind::ALL), [""; 0]);
        let wrong = |t: Report, kinds| t.failures(kinds).len();
        let all = Kind::ALL;
        assert_eq!(wrong(report(&[("swap_sum_error", 1)]), all), 1);
        assert_eq!(wrong(report(&[("fault_undetected", 1)]), all), 1);
        assert_eq!(wrong(report(&[("fault_unexplained", 1)]), all), 1);
        let mut t = report(&sums);
        t.pages.lost = 3;
        assert_eq!(wrong(t.clone(), all), 0, "the device lost them");
        assert_eq!(wrong(t.clone(), &[Kind::Eio, Kind::Flip]), 1);
        (t.pages.wrong, t.hangs) = (1, 1);
        assert_eq!(wrong(t, all), 2);
    }
}

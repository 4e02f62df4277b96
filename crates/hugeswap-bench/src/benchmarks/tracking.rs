//! `tracking`: what it costs to know which memory is written, and what a snapshot of what has changed
//! costs against a full one.

use crate::error::wrong;
use crate::generate::words::PAGE;
use crate::options::{Common, check_memory, check_work, pool, size, swap_specs};
use crate::output::{Benchmark, Outcome, Progress, Table, median, rounded};
use anyhow::{Context, Result};
use hugeswap::{FaultMode, Granularity, Region, Snapshot};
use hugeswap_support::interrupt::check_interrupted;
use hugeswap_support::random::index;
use hugeswap_sys::mm;
use serde_json::json;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Instant;

// Arguments of `hugeswap bench tracking`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench tracking
  hugeswap bench tracking --region 2G --pairs 8

A region that fits in memory, in huge pages, is written from start to end again and again: plain, and with its writes tracked by units, with an epoch
before each pass; in turn. Then full snapshots of it are made, and snapshots of what has changed since after 1% of its pages was written: in a row, and here
and there. They are written nowhere: what is measured is to find, copy and sum.")]
pub struct Tracking {
    /// What is written
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size)]
    region: u64,
    /// Passes of each kind in each pair
    #[arg(long, value_name = "N", default_value_t = 10)]
    rounds: u32,
    #[command(flatten)]
    common: Common,
}

impl Benchmark for Tracking {
    const NAME: &'static str = "tracking";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        if self.common.fault_mode.is_some() {
            return wrong("--fault-mode is not for this one: writes are tracked in signal mode");
        }
        check_memory(self.memory())?;
        check_work(self.region, 1, 1, self.rounds)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let swap = swap_specs(&self.common.swap)?;
        let builder = pool(self.memory(), swap, &self.common.set);
        let pool = builder.fault_mode(FaultMode::Signal).build()?;
        let pairs = self.common.pairs();
        let mut progress = Progress::new(1 + 2 * pairs as usize);
        progress.begin("writing memory");
        let mut region = pool.region(self.region as usize)?;
        write_all(&mut region, 1);
        write_all(&mut region, 2);
        progress.end();
        let pagemap = File::open("/proc/self/pagemap").context("/proc/self/pagemap")?;
        let at = region.as_ptr() as usize;
        let huge = mm::huge_bytes(pagemap.as_raw_fd(), at, at + region.len())?;
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for pair in 1..=pairs {
            progress.begin(format!("writes, pair {pair}"));
            off.push(passes(&mut region, self.rounds, false)?);
            on.push(passes(&mut region, self.rounds, true)?);
            progress.end();
        }
        let (units, pages) = (Granularity::Units, Granularity::Pages);
        let ways = [
            ("units, in a row", units, Where::InARow),
            ("units, here and there", units, Where::HereAndThere),
            ("pages, in a row", pages, Where::InARow),
            ("pages, here and there", pages, Where::HereAndThere),
        ];
        // Different words: memory of one value might be recognised at once.
        for (n, word) in region.as_mut_slice().chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(n as u64 | 1 << 60).to_ne_bytes());
        }
        let mut found: Vec<Took> = ways.iter().map(|_| Took::default()).collect();
        let mut state = 1;
        for pair in 1..=pairs {
            progress.begin(format!("snapshots, pair {pair}"));
            for ((_, by, which), took) in ways.iter().zip(&mut found) {
                snapshots(&mut region, *by, *which, &mut state, took)?;
            }
            progress.end();
        }
        drop(progress);
        let mut table = Table::new(&["what", "figure", "of full"]);
        for (name, speeds) in [("plain", &off), ("tracked", &on)] {
            let speed = format!("{:.0} MB/s", median(speeds));
            table.row(vec![format!("writing, {name}"), speed, String::new()]);
        }
        outcome.ratio_of_pairs("tracked_vs_plain", &on, &off);
        let mut rows = Vec::new();
        for ((name, ..), took) in ways.iter().zip(&found) {
            let (full, change) = (median(&took.full_ms), median(&took.change_ms));
            table.row(vec![
                format!("snapshot of 1%, {name}"),
                format!("{change:.1} ms, {:.1} MB", took.change_bytes / 1e6),
                format!(
                    "{:.1}% of the time, {:.1}% of the bytes",
                    change / full * 100.0,
                    took.change_bytes / took.full_bytes * 100.0
                ),
            ]);
            let key = name.replace(", ", "_").replace(' ', "_");
            outcome.ratio_of_pairs(&format!("time_{key}"), &took.change_ms, &took.full_ms);
            outcome.ratio(&format!("bytes_{key}"), took.change_bytes / took.full_bytes);
            rows.push(json!({
                "what": name,
                "full_ms": rounded(full, 3),
                "change_ms": rounded(change, 3),
                "full_bytes": took.full_bytes,
                "change_bytes": took.change_bytes,
                "write_us": rounded(median(&took.write_us), 3),
            }));
        }
        outcome.add("snapshots", rows);
        outcome.note(format!(
            "{:.0}% of the region was in huge pages when writing was measured",
            huge as f64 / self.region as f64 * 100.0
        ));
        Ok(table)
    }
}

impl Tracking {
    /// hugeswap's budget, in which everything fits.
    fn memory(&self) -> u64 {
        self.region + self.region / 3 + (64 << 20)
    }
}

/// Writes every word of a region.
fn write_all(region: &mut Region, x: u64) {
    for word in region.as_mut_slice().chunks_exact_mut(8) {
        word.copy_from_slice(&x.to_ne_bytes());
    }
}

/// Makes passes over the region, each with an epoch before it if `tracked`. Returns megabytes a second.
fn passes(region: &mut Region, rounds: u32, tracked: bool) -> Result<f64> {
    let start = Instant::now();
    for round in 0..rounds {
        check_interrupted()?;
        if tracked {
            region.track_writes(Granularity::Units)?;
        }
        write_all(region, u64::from(round) + 1);
    }
    let seconds = start.elapsed().as_secs_f64();
    if tracked {
        region.stop_tracking();
        // Write access comes back with the next pass, which is not measured.
        write_all(region, 1);
    }
    Ok(region.len() as f64 * f64::from(rounds) / 1e6 / seconds)
}

/// The place of 1% of the pages.
#[derive(Clone, Copy)]
enum Where {
    InARow,
    HereAndThere,
}

/// What snapshots, and the writes before them, took.
#[derive(Default)]
struct Took {
    write_us: Vec<f64>,
    full_ms: Vec<f64>,
    full_bytes: f64,
    change_ms: Vec<f64>,
    change_bytes: f64,
}

/// Writes 1% of the pages. Returns microseconds a page.
fn one_percent(region: &mut Region, which: Where, state: &mut u64) -> f64 {
    let pages = region.len() / PAGE;
    let n = (pages / 100).max(1);
    let first = index(pages - n + 1, state);
    let chosen: Vec<_> = (0..n)
        .map(|i| match which {
            Where::InARow => first + i,
            Where::HereAndThere => index(pages, state),
        })
        .collect();
    let start = Instant::now();
    let bytes = region.as_mut_slice();
    for page in chosen {
        bytes[page * PAGE] ^= 0x55;
    }
    start.elapsed().as_secs_f64() * 1e6 / n as f64
}

/// Makes a snapshot that is written nowhere. Returns it, and the milliseconds it took.
fn timed(make: impl FnOnce() -> Result<Snapshot, hugeswap::Error>) -> Result<(Snapshot, f64)> {
    check_interrupted()?;
    let start = Instant::now();
    let made = make()?;
    Ok((made, start.elapsed().as_secs_f64() * 1e3))
}

fn snapshots(
    region: &mut Region,
    by: Granularity,
    which: Where,
    state: &mut u64,
    took: &mut Took,
) -> Result<()> {
    let mut nowhere = std::io::sink();
    region.track_writes(by)?;
    let (full, full_ms) = timed(|| region.snapshot(&mut nowhere))?;
    took.write_us.push(one_percent(region, which, state));
    let (change, change_ms) = timed(|| region.snapshot_since(&full, &mut nowhere))?;
    took.full_ms.push(full_ms);
    took.change_ms.push(change_ms);
    took.full_bytes = full.bytes() as f64;
    took.change_bytes = change.bytes() as f64;
    region.stop_tracking();
    Ok(())
}

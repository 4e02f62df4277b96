//! `tracking`: what it costs to know which memory is written, and what a snapshot of what has changed costs against a full one.

use super::args::Tracking;
use super::output::{self, Outcome, Progress, Table, rounded};
use super::runner::median;
use anyhow::{Context, Result};
use hugeswap::{FaultMode, Granularity, Pool, Region, Snapshot, SwapSpec};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_support::interrupt::check_interrupted;
use hugeswap_sys::mm;
use serde_json::json;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Instant;

const PAGE: usize = PAGE_BYTES as usize;

/// Runs it.
pub fn run(args: &Tracking) -> Result<()> {
    args.check()?;
    output::measured("tracking", args.common.json, |outcome| {
        measure(args, outcome)
    })
}

fn pool(args: &Tracking) -> Result<Pool> {
    let mut builder = Pool::builder()
        .memory(args.memory())
        .fault_mode(FaultMode::Signal);
    for text in &args.common.swap {
        let spec = SwapSpec::parse(text).map_err(|e| anyhow::anyhow!("--swap {text}: {e}"))?;
        builder = builder.swap_area(spec);
    }
    for setting in &args.common.set {
        builder = builder.set(setting);
    }
    Ok(builder.build()?)
}

/// Writes every word of a region.
fn write_all(region: &mut Region, x: u64) {
    for word in region.as_mut_slice().chunks_exact_mut(8) {
        word.copy_from_slice(&x.to_ne_bytes());
    }
}

/// Megabytes a second of passes over the region, each with an epoch before it if `tracked`.
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

/// Where 1% of the pages is.
#[derive(Clone, Copy)]
enum Where {
    InARow,
    HereAndThere,
}

/// What a snapshot, or what comes before it, took.
#[derive(Default)]
struct Took {
    write_us: Vec<f64>,
    full_ms: Vec<f64>,
    full_bytes: f64,
    change_ms: Vec<f64>,
    change_bytes: f64,
}

fn one_percent(region: &mut Region, which: Where, x: &mut u64) -> f64 {
    let pages = region.len() / PAGE;
    let n = (pages / 100).max(1);
    let mut random = || {
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        (*x >> 8) as usize
    };
    let first = random() % (pages - n + 1);
    let chosen: Vec<_> = (0..n)
        .map(|i| match which {
            Where::InARow => first + i,
            Where::HereAndThere => random() % pages,
        })
        .collect();
    let start = Instant::now();
    let bytes = region.as_mut_slice();
    for page in chosen {
        bytes[page * PAGE] ^= 0x55;
    }
    start.elapsed().as_secs_f64() * 1e6 / n as f64
}

/// A snapshot that is written nowhere; how many milliseconds it took.
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
    x: &mut u64,
    took: &mut Took,
) -> Result<()> {
    let mut nowhere = std::io::sink();
    region.track_writes(by)?;
    let (full, full_ms) = timed(|| region.snapshot(&mut nowhere))?;
    took.write_us.push(one_percent(region, which, x));
    let (change, change_ms) = timed(|| region.snapshot_since(&full, &mut nowhere))?;
    took.full_ms.push(full_ms);
    took.change_ms.push(change_ms);
    took.full_bytes = full.bytes() as f64;
    took.change_bytes = change.bytes() as f64;
    region.stop_tracking();
    Ok(())
}

fn measure(args: &Tracking, outcome: &mut Outcome) -> Result<Table> {
    let pool = pool(args)?;
    let pairs = args.common.pairs();
    let mut progress = Progress::new(1 + 2 * u64::from(pairs));
    progress.begin("writing memory");
    let mut region = pool.region(args.region as usize)?;
    write_all(&mut region, 1);
    write_all(&mut region, 2);
    progress.end();
    let pagemap = File::open("/proc/self/pagemap").context("/proc/self/pagemap")?;
    let at = region.as_ptr() as usize;
    let huge = mm::huge_bytes(pagemap.as_raw_fd(), at, at + region.len())?;
    let (mut off, mut on) = (Vec::new(), Vec::new());
    for pair in 1..=pairs {
        progress.begin(format!("writes, pair {pair}"));
        off.push(passes(&mut region, args.rounds, false)?);
        on.push(passes(&mut region, args.rounds, true)?);
        progress.end();
    }
    let ways = [
        ("units, in a row", Granularity::Units, Where::InARow),
        (
            "units, here and there",
            Granularity::Units,
            Where::HereAndThere,
        ),
        ("pages, in a row", Granularity::Pages, Where::InARow),
        (
            "pages, here and there",
            Granularity::Pages,
            Where::HereAndThere,
        ),
    ];
    // (Bytes of one value would be told from zeros at once.)
    for (n, word) in region.as_mut_slice().chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(n as u64 | 1 << 60).to_ne_bytes());
    }
    let mut found: Vec<Took> = ways.iter().map(|_| Took::default()).collect();
    let mut x = 0x9e37_79b9_7f4a_7c15;
    for pair in 1..=pairs {
        progress.begin(format!("snapshots, pair {pair}"));
        for ((_, by, which), took) in ways.iter().zip(&mut found) {
            snapshots(&mut region, *by, *which, &mut x, took)?;
        }
        progress.end();
    }
    drop(progress);
    let mut table = Table::new(&["what", "figure", "of full"]);
    table.row(vec![
        "writing, plain".into(),
        format!("{:.0} MB/s", median(&off)),
        String::new(),
    ]);
    table.row(vec![
        "writing, tracked".into(),
        format!("{:.0} MB/s", median(&on)),
        String::new(),
    ]);
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
    outcome.more.insert("snapshots".into(), rows.into());
    outcome.notes.push(format!(
        "{:.0}% of the region was in huge pages when writing was measured",
        huge as f64 / args.region as f64 * 100.0
    ));
    Ok(table)
}

//! `swap-seq`: tasks write a range from start to end, again and again, in less memory than it takes.

use super::args::SwapSeq;
use super::ceiling::{self, Ceiling};
use super::output::{self, Outcome, Progress, Table, cell};
use super::runner::{Run, median};
use super::turns::{Engine, KERNEL_VERIFIES_ONE_IN, Turns};
use super::worker::Work;
use anyhow::{Context, Result};
use std::path::PathBuf;

/// Read rounds of `--read-only-pass`; the first still writes out what is dirty.
const READ_ROUNDS: u32 = 3;
/// Bytes of each of the two files of a ceiling, at most.
const CEILING_BYTES: u64 = 512 << 20;

/// Runs it.
pub fn run(args: &SwapSeq) -> Result<()> {
    args.check()?;
    output::measured("swap-seq", args.common.json, |outcome| {
        measure(args, outcome)
    })
}

fn measure(args: &SwapSeq, outcome: &mut Outcome) -> Result<Table> {
    let ceiling_bytes = if args.ceiling {
        2 * args.span.region.min(CEILING_BYTES)
    } else {
        0
    };
    let device = (args.device()?, ceiling_bytes);
    let mut turns = Turns::set_up(&args.span, &args.against, &args.common, device, outcome)?;
    let engines = turns.engines();
    let mut progress = Progress::new(u64::from(turns.pairs()) * engines.len() as u64);
    let mut ceilings = Vec::new();
    for pair in 1..=turns.pairs() {
        for (n, engine) in engines.iter().enumerate() {
            let work = match engine {
                Engine::Hugeswap { .. } => work(args, args.rounds, 1),
                Engine::Kernel(_) => work(args, args.rounds_of_kernel(), KERNEL_VERIFIES_ONE_IN),
            };
            // Before and after: what the device can do changes with what else the machine does.
            if n == 0 {
                ceilings.extend(ceiling(args, &turns, &mut progress)?);
            }
            outcome
                .runs
                .push(turns.run(engine, &work, (pair, ""), &mut progress)?);
            if n == 0 {
                ceilings.extend(ceiling(args, &turns, &mut progress)?);
            }
        }
    }
    turns.close(&mut progress)?;
    drop(progress);
    compare(outcome);
    compare_ceilings(outcome, &ceilings)?;
    if engines.iter().any(|e| matches!(e, Engine::Kernel(_))) {
        let verified = if args.read_only_pass {
            "every word verified in the read rounds".to_owned()
        } else {
            format!("one huge page in {KERNEL_VERIFIES_ONE_IN} verified (hugeswap: every word)")
        };
        let rounds = args.rounds_of_kernel();
        outcome.notes.push(format!(
            "the kernel's runs: {rounds} rounds, the fill included; {verified}"
        ));
    }
    Ok(table(&outcome.runs))
}

/// What the device can do, if that is asked for.
fn ceiling(args: &SwapSeq, turns: &Turns, progress: &mut Progress) -> Result<Option<Ceiling>> {
    let (true, Some(dir)) = (args.ceiling, turns.dir()) else {
        return Ok(None);
    };
    progress.begin(format!("{}: what the device can do", dir.display()));
    let measured = ceiling::measure(dir, args.span.region.min(CEILING_BYTES));
    measured.context("--ceiling").map(Some)
}

fn work(args: &SwapSeq, rounds: u32, verify_one_in: u32) -> Work {
    Work {
        region: args.span.region,
        tasks: args.tasks,
        threads: args.threads,
        rounds,
        read_rounds: if args.read_only_pass { READ_ROUNDS } else { 0 },
        // Read rounds verify every word.
        verify_one_in: if args.read_only_pass {
            0
        } else {
            verify_one_in
        },
        // Where it is, the worker finds out.
        shared: args.shared.then(PathBuf::new),
        ..Work::default()
    }
}

fn compare(outcome: &mut Outcome) {
    for (rival, name) in outcome.rivals("hugeswap") {
        let mut over = |what: &str, f: fn(&Run) -> f64| {
            let name = format!("{what}_vs_{name}");
            outcome.compare(&name, "hugeswap", &rival, |r| Some(f(r)));
        };
        over("write", Run::steady);
        over("read", Run::steady_read);
    }
}

fn compare_ceilings(outcome: &mut Outcome, ceilings: &[Ceiling]) -> Result<()> {
    if ceilings.is_empty() {
        return Ok(());
    }
    let middle = |f: fn(&Ceiling) -> f64| median(&ceilings.iter().map(f).collect::<Vec<_>>());
    let c = Ceiling {
        read_mb_s: middle(|c| c.read_mb_s),
        write_mb_s: middle(|c| c.write_mb_s),
        mixed_mb_s: middle(|c| c.mixed_mb_s),
    };
    outcome.notes.push(format!(
        "the device, in whole huge pages, direct: reads {:.0}, writes {:.0}, both at once {:.0} MB/s",
        c.read_mb_s, c.write_mb_s, c.mixed_mb_s
    ));
    outcome
        .more
        .insert("ceiling".into(), serde_json::to_value(c)?);
    let of = |f: &dyn Fn(&Run) -> Option<f64>| {
        let runs = outcome.runs.iter().filter(|r| r.label() == "hugeswap");
        runs.filter_map(f).collect::<Vec<_>>()
    };
    let traffic = of(&|r| Some(r.steady() * traffic(r)? / c.mixed_mb_s));
    let reads = of(&|r| Some(r.steady_read() / c.read_mb_s));
    let writes = of(&|r| Some(r.steady() / c.mixed_mb_s));
    outcome.median_ratio("write_traffic_vs_mixed_ceiling", &traffic);
    if median(&reads) > 0.0 {
        outcome.median_ratio("read_vs_read_ceiling", &reads);
    }
    outcome.median_ratio("write_vs_mixed_ceiling", &writes);
    Ok(())
}

/// Bytes moved in or out for each byte written, in the rounds after the fill. Swap is read in every pass but the
/// first, and what a round wrote is written out once, in that round or in the next pass.
fn traffic(run: &Run) -> Option<f64> {
    let bytes = |name: &str| {
        Some(run.counters[name].as_f64()? * 4096.0 / run.params["region_bytes"].as_f64()?)
    };
    let writes = run.mb_s.len() as f64;
    // Reading at the end is verification, or the read-only rounds, which verify.
    let reads = run.read_mb_s.len().max(1) as f64;
    Some(bytes("pswpin")? / (writes - 1.0 + reads) + bytes("pswpout")? / writes)
}

fn table(runs: &[Run]) -> Table {
    let mut t = Table::new(&[
        "engine",
        "pair",
        "tasks",
        "write MB/s by round",
        "rounds 2+",
        "read MB/s",
        "huge %",
        "swapped in GiB",
        "out GiB",
        "s",
    ]);
    for r in runs {
        let list = |v: &[f64]| {
            v.iter()
                .map(|n| format!("{n:.0}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let gib = |name: &str| {
            let pages = r.counters[name].as_f64();
            cell(pages.map(|p| p * 4096.0 / f64::from(1 << 30)), 2)
        };
        t.row(vec![
            r.label(),
            r.params["pair"].to_string(),
            r.params["tasks"].to_string(),
            list(&r.mb_s),
            format!("{:.0}", r.steady()),
            if r.read_mb_s.is_empty() {
                "-".into()
            } else {
                list(&r.read_mb_s)
            },
            cell(r.huge_share.map(|s| s * 100.0), 1),
            gib("pswpin"),
            gib("pswpout"),
            format!("{:.1}", r.elapsed_s),
        ]);
    }
    t
}

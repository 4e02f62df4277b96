//! `fit`: everything fits in the budget. What does hugeswap cost against plain memory?
//!
//! The same program runs under hugeswap, plain with huge pages and plain with base pages, in turn. Who is first changes from pair to
//! pair, and before each run as much memory is touched and freed: the host of a virtual machine takes its time
//! for memory that nobody used lately.

use super::args::Fit;
use super::output::{self, Outcome, Progress, Table, cell};
use super::runner::{self, Hugeswap, Run};
use super::worker::{Thp, Work};
use anyhow::Result;

/// Runs it.
pub fn run(args: &Fit) -> Result<()> {
    args.check()?;
    output::measured("fit", args.common.json, |outcome| measure(args, outcome))
}

fn measure(args: &Fit, outcome: &mut Outcome) -> Result<Table> {
    let pairs = args.common.pairs.unwrap_or(4);
    let mut progress = Progress::new(u64::from(pairs) * 3);
    let work = |thp| Work {
        region: args.region,
        tasks: args.tasks,
        threads: args.threads,
        rounds: args.rounds,
        random_reads: args.reads,
        verify_one_in: 1,
        thp,
        ..Work::default()
    };
    let hugeswap = Hugeswap::new(args.budget(), &args.common.swap, &args.common);
    let engines = [None, Some((Thp::On, "on")), Some((Thp::Off, "off"))];
    for pair in 1..=pairs {
        for turn in 0..engines.len() {
            let backwards = engines.len() - 1 - turn;
            let engine = engines[if pair % 2 == 1 { turn } else { backwards }];
            progress.begin("touching memory");
            runner::warm_up(args.budget(), args.common.limit())?;
            let run = if let Some((thp, name)) = engine {
                progress.begin(format!("plain, huge pages {name}, {pair} of {pairs}"));
                let run = runner::plain(&work(thp), args.common.limit(), |l| progress.figure(l))?;
                run.with("thp", name)
            } else {
                progress.begin(format!("hugeswap {pair} of {pairs}"));
                hugeswap.run(&work(Thp::Unadvised), |l| progress.figure(l))?
            };
            outcome.runs.push(run.with("pair", pair));
            progress.end();
        }
    }
    drop(progress);
    compare(outcome);
    outcome.notes.push("work is from the first write to the last random read; steady is work without the first write; program is from its start to its end, with verification".into());
    Ok(table(&outcome.runs))
}

/// hugeswap's time over plain's, pair by pair: below 1 hugeswap is faster.
fn compare(outcome: &mut Outcome) {
    for (rival, name) in outcome.rivals("hugeswap") {
        let mut over = |what: &str, f: fn(&Run) -> Option<f64>| {
            outcome.compare(&format!("{what}_time_vs_{name}"), "hugeswap", &rival, f);
        };
        over("work", |r| r.work_s);
        over("program", |r| Some(r.elapsed_s));
        over("steady", |r| Some(steady_s(r)));
        over("rewrite", |r| Some(1.0 / r.steady()));
        over("random_read", |r| r.us_per_access);
    }
}

/// The work without the first write, whose time is mostly the host's when this is a virtual machine.
fn steady_s(run: &Run) -> f64 {
    let region = run.params["region_bytes"].as_f64().unwrap_or(f64::NAN);
    let first = run
        .mb_s
        .first()
        .map_or(f64::NAN, |mb_s| region / 1e6 / mb_s);
    run.work_s.unwrap_or(f64::NAN) - first
}

fn table(runs: &[Run]) -> Table {
    let mut t = Table::new(&[
        "engine",
        "pair",
        "first write MB/s",
        "rewrites MB/s",
        "random read us",
        "huge %",
        "work s",
        "program s",
    ]);
    for r in runs {
        t.row(vec![
            r.label(),
            r.params["pair"].to_string(),
            cell(r.mb_s.first().copied(), 0),
            format!("{:.0}", r.steady()),
            cell(r.us_per_access, 3),
            cell(r.huge_share.map(|s| s * 100.0), 1),
            cell(r.work_s, 3),
            format!("{:.3}", r.elapsed_s),
        ]);
    }
    t
}

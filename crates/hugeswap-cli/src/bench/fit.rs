//! `fit`: everything fits in the budget. What does hugeswap cost against plain memory?
//!
//! The same program runs under hugeswap, plain with huge pages and plain with base pages, in turn. Who is first changes from pair to
//! pair, and before each run as much memory is touched and freed: the host of a virtual machine takes its time
//! for memory that nobody used lately.

use super::args::Fit;
use super::output::{Outcome, Progress, Table};
use super::runner::{self, Hugeswap, Run, median};
use super::worker::{Thp, Work};
use anyhow::Result;

/// Runs it.
pub fn run(args: &Fit) -> Result<()> {
    args.check()?;
    let mut outcome = Outcome::new("fit")?;
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
    let hugeswap = Hugeswap {
        memory: args.budget(),
        swap: &args.common.swap,
        common: &args.common,
        fault_mode: args.common.fault_mode.map(super::args::FaultMode::name),
    };
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
    compare(&mut outcome);
    let table = table(&outcome.runs);
    outcome.notes.push("work is from the first write to the last random read; steady is work without the first write; program is from its start to its end, with verification".into());
    outcome.print(args.common.json, &table)
}

/// hugeswap's time over plain's, pair by pair: below 1 hugeswap is faster.
fn compare(outcome: &mut Outcome) {
    let runs = std::mem::take(&mut outcome.runs);
    let hugeswap: Vec<&Run> = runs.iter().filter(|r| r.engine == "hugeswap").collect();
    for thp in ["on", "off"] {
        let plain: Vec<&Run> = runs
            .iter()
            .filter(|r| r.params.get("thp").is_some_and(|t| t == thp))
            .collect();
        let over = |f: fn(&Run) -> f64| {
            median(
                &hugeswap
                    .iter()
                    .zip(&plain)
                    .map(|(h, p)| f(h) / f(p))
                    .collect::<Vec<_>>(),
            )
        };
        outcome.ratio(
            &format!("work_time_vs_plain_thp_{thp}"),
            over(|r| r.work_s.unwrap_or(f64::NAN)),
        );
        outcome.ratio(
            &format!("program_time_vs_plain_thp_{thp}"),
            over(|r| r.elapsed_s),
        );
        outcome.ratio(&format!("steady_time_vs_plain_thp_{thp}"), over(steady_s));
        outcome.ratio(
            &format!("rewrite_time_vs_plain_thp_{thp}"),
            over(|r| 1.0 / r.steady()),
        );
        outcome.ratio(
            &format!("random_read_time_vs_plain_thp_{thp}"),
            over(|r| r.us_per_access.unwrap_or(f64::NAN)),
        );
    }
    outcome.runs = runs;
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
        let thp = r
            .params
            .get("thp")
            .and_then(|t| t.as_str())
            .map(|t| format!(", THP {t}"));
        t.row(vec![
            format!("{}{}", r.engine, thp.unwrap_or_default()),
            r.params["pair"].to_string(),
            r.mb_s.first().map_or("-".into(), |n| format!("{n:.0}")),
            format!("{:.0}", r.steady()),
            r.us_per_access.map_or("-".into(), |n| format!("{n:.3}")),
            r.huge_share
                .map_or("-".into(), |s| format!("{:.1}", s * 100.0)),
            r.work_s.map_or("-".into(), |n| format!("{n:.3}")),
            format!("{:.3}", r.elapsed_s),
        ]);
    }
    t
}

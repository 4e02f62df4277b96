//! `swap-rand`: threads read or write 4 KiB here and there, uniformly or by Zipf's law, in less memory than it takes.

use super::args::{Access, SwapRand};
use super::figures::PhaseRun;
use super::output::{self, Outcome, Progress, Table, cell};
use super::phases::{Doing, Group, Part, Phase};
use super::runner::Run;
use super::turns::{Engine, KERNEL_VERIFIES_ONE_IN, Turns};
use super::worker::Work;
use super::zipf_table;
use anyhow::Result;

/// The phase that counts.
pub const PHASE: &str = "random";

/// Runs it.
pub fn run(args: &SwapRand) -> Result<()> {
    args.check()?;
    output::measured("swap-rand", args.common.json, |outcome| {
        measure(args, outcome)
    })
}

fn measure(args: &SwapRand, outcome: &mut Outcome) -> Result<Table> {
    if args.table.table {
        return zipf_table::measure(args, outcome);
    }
    let device = (args.against.device(&args.common, false)?, 0);
    let mut turns = Turns::set_up(&args.span, &args.against, &args.common, device, outcome)?;
    let engines = turns.engines();
    let mut progress = Progress::new(u64::from(turns.pairs()) * engines.len() as u64);
    for pair in 1..=turns.pairs() {
        for engine in &engines {
            let run = turns.run(engine, &work(args, engine), (pair, ""), &mut progress)?;
            outcome.runs.push(told(args, run));
        }
    }
    turns.close(&mut progress)?;
    drop(progress);
    for (rival, name) in outcome.rivals("hugeswap") {
        // How many times faster: the rival's time of an access over hugeswap's.
        let speed = |r: &Run| Some(1.0 / random(r)?.us_per_access?);
        outcome.compare(&format!("speed_vs_{name}"), "hugeswap", &rival, speed);
    }
    outcome
        .notes
        .push("everything read was verified; in the end all of it, of the kernel's runs a share (verified_share)".into());
    Ok(table(&outcome.runs))
}

fn work(args: &SwapRand, engine: &Engine) -> Work {
    let threads = args.threads()[0];
    let doing = Doing::Random {
        pattern: args.pattern(),
        write: args.access == Access::Write,
        accesses: args.accesses,
    };
    let group = Group {
        doing,
        threads,
        part: Part::All,
    };
    Work {
        region: args.span.region,
        tasks: args.tasks,
        threads,
        rounds: 1,
        phases: vec![Phase {
            name: PHASE.into(),
            seconds: args.seconds(),
            every_s: 1.0,
            groups: vec![group],
        }],
        verify_one_in: verify_one_in(engine),
        ..Work::default()
    }
}

/// How much is verified in the end.
pub fn verify_one_in(engine: &Engine) -> u32 {
    match engine {
        Engine::Hugeswap { .. } => 1,
        Engine::Kernel(_) => KERNEL_VERIFIES_ONE_IN,
    }
}

/// With the parameters and the figures of the phase at the top, where they are looked for.
fn told(args: &SwapRand, mut run: Run) -> Run {
    use super::pattern::Pattern;
    run = match args.pattern() {
        Pattern::Uniform => run.with("pattern", "uniform"),
        Pattern::Zipf { theta, clustered } => run
            .with("pattern", "zipf")
            .with("theta", theta)
            .with("clustered", clustered),
    };
    let access = match args.access {
        Access::Read => "read",
        Access::Write => "write",
    };
    run = run.with("access", access);
    let figures = random(&run);
    run.us_per_access = figures.and_then(|f| f.us_per_access);
    let miss_share = run.phase(PHASE).and_then(|p| p.miss_share);
    run.with("accesses_s", figures.and_then(|f| f.accesses_s))
        .with("miss_share", miss_share)
}

fn random(run: &Run) -> Option<super::figures::Figures> {
    run.phase(PHASE)?.figures(false)
}

fn table(runs: &[Run]) -> Table {
    let mut t = Table::new(&[
        "engine",
        "pair",
        "tasks",
        "threads",
        "fill MB/s",
        "us an access",
        "accesses/s",
        "misses %",
        "swapped in MiB",
        "out MiB",
        "verified %",
    ]);
    for r in runs {
        let phase = r.phase(PHASE);
        let mib = |name: &str| {
            let pages = phase.and_then(|p: &PhaseRun| p.counters.as_ref()?.get(name).copied());
            cell(pages.map(|p| p as f64 / 256.0), 0)
        };
        let share = phase.and_then(|p| p.miss_share);
        t.row(vec![
            r.label(),
            r.params["pair"].to_string(),
            r.params["tasks"].to_string(),
            r.params["threads"].to_string(),
            cell(r.mb_s.first().copied(), 0),
            cell(r.us_per_access, 2),
            cell(random(r).and_then(|f| f.accesses_s), 0),
            cell(share.map(|s| s * 100.0), 1),
            mib("pswpin"),
            mib("pswpout"),
            cell(Some(r.verified_share * 100.0), 1),
        ]);
    }
    t
}

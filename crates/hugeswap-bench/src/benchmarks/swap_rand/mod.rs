//! `swap-rand`: threads read or write 4 KiB here and there, uniformly or by Zipf's law, in less memory
//! than it takes.

mod args;
mod table;

pub use args::SwapRand;

use crate::engines::turns::Turns;
use crate::generate::pattern::Pattern;
use crate::generate::plan::{Phase, Work};
use crate::options::Named;
use crate::output::figures::Figures;
use crate::output::{Benchmark, Outcome, Run, Table, cell, percent};
use anyhow::Result;

/// The phase that counts.
const PHASE: &str = "random";

impl Benchmark for SwapRand {
    const NAME: &'static str = "swap-rand";

    fn check(&self) -> Result<()> {
        SwapRand::check(self)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        if self.table.table {
            return table::measure(self, PHASE, outcome);
        }
        let device = (self.against.device(&self.common, false)?, 0);
        let turns = Turns::set_up(&self.span, &self.against, &self.common, device, outcome)?;
        let threads = self.threads()[0];
        let engines = turns.engines();
        turns.take(
            (&engines, &[()]),
            outcome,
            |()| String::new(),
            |(), engine| Work {
                region: self.span.region,
                tasks: self.tasks,
                threads,
                rounds: 1,
                phases: vec![Phase::of_one(
                    PHASE,
                    self.seconds(),
                    self.doing(self.pattern()),
                    threads,
                )],
                verify_one_in: engine.verify_one_in(),
                ..Work::default()
            },
            |(), _, run| Ok(described(self, run)),
        )?;
        for (rival, name) in outcome.rivals() {
            // How many times faster: the rival's time of an access over hugeswap's.
            let speed = |r: &Run| Some(1.0 / random(r)?.us_per_access?);
            outcome.compare(&format!("speed_vs_{name}"), "hugeswap", &rival, speed);
        }
        outcome.note("everything read was verified; in the end all of it, of the kernel's runs a share (verified_share)");
        Ok(table(&outcome.runs))
    }
}

/// A run with its parameters and the figures of its phase at the top of the JSON.
fn described(args: &SwapRand, mut run: Run) -> Run {
    run = run.with("pattern", args.pattern.name());
    if let Pattern::Zipf { theta, clustered } = args.pattern() {
        run = run.with("theta", theta).with("clustered", clustered);
    }
    run = run.with("access", args.access.name());
    let figures = random(&run);
    run.us_per_access = figures.and_then(|f| f.us_per_access);
    let miss_share = run.phase(PHASE).and_then(|p| p.miss_share);
    run.with("accesses_s", figures.and_then(|f| f.accesses_s))
        .with("miss_share", miss_share)
}

fn random(run: &Run) -> Option<Figures> {
    run.phase(PHASE)?.figures(false)
}

fn table(runs: &[Run]) -> Table {
    let mib = |r: &Run, name: &str| cell(r.counted(PHASE, name).map(|pages| pages / 256.0), 0);
    Table::of(
        runs,
        &[
            ("engine", &|r| r.label()),
            ("pair", &|r| r.cell("pair")),
            ("tasks", &|r| r.cell("tasks")),
            ("threads", &|r| r.cell("threads")),
            ("fill MB/s", &|r| cell(r.mb_s.first().copied(), 0)),
            ("us an access", &|r| cell(r.us_per_access, 2)),
            ("accesses/s", &|r| cell(r.number("accesses_s"), 0)),
            ("misses %", &|r| percent(r.number("miss_share"), 1)),
            ("swapped in MiB", &|r| mib(r, "pswpin")),
            ("out MiB", &|r| mib(r, "pswpout")),
            ("verified %", &|r| percent(r.verified_share, 1)),
        ],
    )
}

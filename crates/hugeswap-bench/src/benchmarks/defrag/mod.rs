//! `defrag`: what `thp.defrag` does to programs that touch new memory while none is free. Three programs,
//! after those that the kernel's stall-free defrag was published with (usemem, thpscale, stutter), each
//! under every policy in turn.
//!
//! A worker has memory that competes (its first units: `region`) and memory that was never touched (the
//! rest), which is touched while threads stream through the first. The worker is a plain program:
//! `/proc/self/pagemap` tells it whether a touch brought 2 MiB.

mod args;
mod report;

pub use args::Defrag;

use crate::engines::turns::{Engine, Turns};
use crate::generate::pattern::Pattern;
use crate::generate::plan::{self, Doing, Group, NewMap, Phase, Thp, Work};
use crate::options::{Named, threads_in_words};
use crate::output::{Benchmark, Outcome, Run, Table};
use anyhow::{Context, Result, bail};
use args::{Part, SCATTERED, SETTLED, settings_of};
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};

/// Between two maps of `stutter`, as in mmtests.
const PAUSE_US: u64 = 5000;
/// Threads that scatter memory over base pages, at random.
const SCATTERERS: u32 = 8;
/// Their reads, for each page of memory: about half of them miss.
const SCATTER_TIMES: u64 = 4;

impl Benchmark for Defrag {
    const NAME: &'static str = "defrag";

    fn check(&self) -> Result<()> {
        Defrag::check(self)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let (span, against) = (self.span(), self.against());
        let device = (self.device()?, 0);
        let pairs = self.common.pairs.unwrap_or(1);
        let turns = Turns::set_up(&span, &against, &self.common, device, outcome)?.of_pairs(pairs);
        let each = |&part: &Part| self.threads_of(part).iter().map(move |&n| (part, n));
        let plan: Vec<(Part, u32)> = self.parts.iter().flat_map(each).collect();
        let engine = |policy: &String| Engine::Hugeswap {
            also: Some(settings_of(policy)),
        };
        let engines: Vec<Engine> = self.policies.iter().map(engine).collect();
        turns.take(
            (&engines, &plan),
            outcome,
            |(part, threads)| format!(", {}, {}", part.name(), threads_in_words(*threads)),
            |(part, threads), _| work(self, *part, *threads),
            |(part, threads), engine, run| {
                check_measured(&run, *part)?;
                let at = engines.iter().position(|e| e == engine);
                let policy = at.map(|at| self.policies[at].as_str());
                Ok(run
                    .with("part", part.name())
                    .with("policy", policy.context("no such policy")?)
                    .with("threads", *threads)
                    .with("advised", self.advise))
            },
        )?;
        report::compare(self, &plan, outcome);
        Ok(report::table(self, &plan, &outcome.runs))
    }
}

/// An error if no memory was measured.
fn check_measured(run: &Run, part: Part) -> Result<()> {
    let part = part.name();
    let done = run.phase(&part).and_then(|p| p.groups.first());
    if done.is_none_or(|g| g.accesses == 0) {
        bail!("{part}: no memory could be mapped: give more swap, or a smaller --region or --map");
    }
    Ok(())
}

fn work(args: &Defrag, part: Part, threads: u32) -> Work {
    let units = |bytes: u64| (bytes / UNIT_BYTES) as usize;
    let region = args.region_of(part);
    let competing = plan::Part::First(units(region));
    let new = plan::Part::AllBut(units(region));
    let streams = |write| Group::new(Doing::Stream { write }, args.streams_of(part), competing);
    let set_up = Phase::new("set-up", None, vec![Group::new(Doing::Fill, 1, competing)]);
    let measured = |seconds, doing, threads, write| {
        let groups = vec![Group::new(doing, threads, new), streams(write)];
        Phase::new(&part.name(), seconds, groups)
    };
    let mut phases = vec![set_up];
    match part {
        Part::Fill => phases.push(measured(None, Doing::Fill, threads, false)),
        Part::Touch => {
            let scatter = Doing::Random {
                pattern: Pattern::Uniform,
                write: false,
                accesses: Some(SCATTER_TIMES * args.memory / PAGE_BYTES),
            };
            let groups = vec![
                Group::new(scatter, SCATTERERS, competing),
                Group::new(Doing::Rest, 1, competing),
            ];
            phases.push(Phase::new(SCATTERED, Some(args.seconds), groups));
            phases.push(measured(None, Doing::Touch, threads, false));
        }
        Part::Stutter => {
            let map = Doing::Map(NewMap {
                bytes: args.map() as usize,
                pause_us: PAUSE_US,
                advise: args.advise,
            });
            phases.push(measured(Some(args.seconds), map, threads, true));
        }
    }
    let counted = if args.touch_of(part) > 0 {
        new
    } else {
        competing
    };
    let rest = vec![Group::new(Doing::Rest, 1, counted)];
    phases.push(Phase::new(SETTLED, Some(args.settle), rest));
    Work {
        region: region + args.touch_of(part),
        phases,
        verify_one_in: 1,
        thp: if args.advise { Thp::On } else { Thp::Unadvised },
        thp_part: new,
        ..Work::default()
    }
}

//! `defrag`: what `thp.defrag` does to programs that touch new memory while none is free. Three programs, after those that the
//! kernel's stall-free defrag was published with (usemem, thpscale, stutter), each under every policy in turn.
//!
//! A worker has memory that competes (its first units: `region`) and memory that was never touched (the rest), which is touched while
//! threads stream through the first. It is a plain program: whether a touch brought 2 MiB it sees in `/proc/self/pagemap`.

mod told;

use super::args::{Defrag, DefragPart, settings_of};
use super::output::{self, Outcome, Progress, Table};
use super::pattern::Pattern;
use super::phases::{Doing, Group, Map, Part, Phase};
use super::runner::Run;
use super::turns::{Engine, Turns};
use super::worker::{Thp, Work};
use anyhow::{Result, bail};
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};

/// Between two maps of `stutter`, as in mmtests.
const PAUSE_US: u64 = 5000;
/// The phase after the one that is measured, which has the name of its part.
const SETTLED: &str = "settled";
/// Memory is scattered over base pages: by so many threads, at random.
const SCATTERED: &str = "scattered";
const SCATTERERS: u32 = 8;
/// Reads, in pages of memory: about half of them miss.
const SCATTER_TIMES: u64 = 4;

/// Runs it.
pub fn run(args: &Defrag) -> Result<()> {
    args.check()?;
    output::measured("defrag", args.common.json, |outcome| measure(args, outcome))
}

fn measure(args: &Defrag, outcome: &mut Outcome) -> Result<Table> {
    let (span, against) = (args.span(), args.against());
    let device = (args.device()?, 0);
    let pairs = args.common.pairs.unwrap_or(1);
    let mut turns = Turns::set_up(&span, &against, &args.common, device, outcome)?.of_pairs(pairs);
    let each = |&part: &DefragPart| {
        let threads = args.threads_of(part).iter();
        threads.map(move |&n| (part, n))
    };
    let plan: Vec<_> = args.parts.iter().flat_map(each).collect();
    let runs = u64::from(pairs) * (plan.len() * args.policies.len()) as u64;
    let mut progress = Progress::new(runs);
    for pair in 1..=pairs {
        for &(part, threads) in &plan {
            for policy in &args.policies {
                let engine = Engine::Hugeswap {
                    also: Some(settings_of(policy)),
                };
                let what = format!(", {}, {}", part.name(), told::threads_in_words(threads));
                let work = work(args, part, threads);
                let run = turns.run(&engine, &work, (pair, &what), &mut progress)?;
                check_measured(&run, part)?;
                outcome.runs.push(
                    run.with("part", part.name())
                        .with("policy", policy.as_str())
                        .with("threads", threads)
                        .with("advised", args.advise),
                );
            }
        }
    }
    turns.close(&mut progress)?;
    drop(progress);
    told::compare(args, &plan, outcome);
    Ok(told::table(args, &plan, &outcome.runs))
}

/// Nothing measured is no figure.
fn check_measured(run: &Run, part: DefragPart) -> Result<()> {
    let done = run.phase(part.name()).and_then(|p| p.groups.first());
    if done.is_none_or(|g| g.accesses == 0) {
        bail!(
            "{}: no memory could be mapped: give more swap, or a smaller --region or --map",
            part.name()
        );
    }
    Ok(())
}

fn work(args: &Defrag, part: DefragPart, threads: u32) -> Work {
    let units = |bytes: u64| (bytes / UNIT_BYTES) as usize;
    let region = args.region_of(part);
    let (competing, new) = (Part::First(units(region)), Part::AllBut(units(region)));
    let group = |doing, threads, part| Group {
        doing,
        threads,
        part,
    };
    let phase = |name: &str, seconds, groups| Phase {
        name: name.into(),
        seconds,
        every_s: 1.0,
        groups,
    };
    let streams = |write| group(Doing::Stream { write }, args.streams_of(part), competing);
    let set_up = phase("set-up", None, vec![group(Doing::Fill, 1, competing)]);
    let measured = |seconds, doing, threads, write| {
        let groups = vec![group(doing, threads, new), streams(write)];
        phase(part.name(), seconds, groups)
    };
    let mut phases = vec![set_up];
    match part {
        DefragPart::Fill => phases.push(measured(None, Doing::Fill, threads, false)),
        DefragPart::Touch => {
            let scatter = Doing::Random {
                pattern: Pattern::Uniform,
                write: false,
                accesses: Some(SCATTER_TIMES * args.memory / PAGE_BYTES),
            };
            let groups = vec![
                group(scatter, SCATTERERS, competing),
                group(Doing::Rest, 1, competing),
            ];
            phases.push(phase(SCATTERED, Some(args.seconds), groups));
            phases.push(measured(None, Doing::Touch, threads, false));
        }
        DefragPart::Stutter => {
            let map = Doing::Map(Map {
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
    let rest = vec![group(Doing::Rest, 1, counted)];
    phases.push(phase(SETTLED, Some(args.settle), rest));
    Work {
        region: region + args.touch_of(part),
        tasks: 1,
        threads: 1,
        phases,
        verify_one_in: 1,
        thp: if args.advise { Thp::On } else { Thp::Unadvised },
        thp_part: new,
        ..Work::default()
    }
}

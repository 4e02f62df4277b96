//! What `defrag` prints: figures of each part, counters by policy, and ratios to the first policy.

use super::args::{Defrag, Part, SCATTERED, SETTLED, settings_of};
use crate::options::{Named, threads_in_words};
use crate::output::figures::{GroupRun, Latency, Percentiles, PhaseRun};
use crate::output::{Outcome, Run, Table, cell, median, percent};

/// Counters of waits, of reclaim and of huge pages, by the start of their names.
const COUNTERS: &[&str] = &[
    "alloc",
    "compact_",
    "pgscan",
    "pgsteal",
    "thp_fault",
    "thp_swpin",
    "thp_collapse",
    "khugepaged",
    "pswpin",
    "pswpout",
    "fault_major",
    "fault_wait",
];

/// The part and the number of threads of a kind of runs.
type Kind = (Part, u32);

fn is_of(run: &Run, (part, threads): Kind) -> bool {
    run.params["part"] == part.name() && run.params["threads"] == threads
}

fn measured(run: &Run, part: Part) -> Option<(&PhaseRun, &GroupRun)> {
    let phase = run.phase(&part.name())?;
    Some((phase, phase.groups.first()?))
}

/// Share of memory that was mapped by huge pages at the end of the rest.
fn huge_after(run: &Run) -> Option<f64> {
    run.phase(SETTLED)?.groups.first()?.huge_share
}

/// The same of the memory that competes, once it was read at random.
fn huge_before(run: &Run) -> Option<f64> {
    run.phase(SCATTERED)?.groups.last()?.huge_share
}

/// Events in the phase that was measured and in the rest after it.
fn counted(run: &Run, name: &str) -> Option<f64> {
    Some(run.counted(run.word("part")?, name)? + run.counted(SETTLED, name)?)
}

fn major_faults(run: &Run) -> Option<f64> {
    Some(counted(run, "fault_major_2m")? + counted(run, "fault_major_4k")?)
}

fn label(policy: &str) -> String {
    format!("hugeswap, {}", settings_of(policy))
}

/// Ratios to the first policy.
pub fn compare(args: &Defrag, plan: &[Kind], outcome: &mut Outcome) {
    let Some((first, others)) = args.policies.split_first() else {
        return;
    };
    let word = |policy: &str| policy.replace('+', "_");
    for &kind in plan {
        let (part, threads) = kind;
        let with = match threads {
            1 => String::new(),
            n => format!("_{n}_threads"),
        };
        for policy in others {
            let mut ratio = |what: &str, figure: &dyn Fn(&Run) -> Option<f64>| {
                let (policy_word, first_word) = (word(policy), word(first));
                let name = format!("{}_{what}{with}_{policy_word}_vs_{first_word}", part.name());
                let of_kind = |r: &Run| figure(r).filter(|_| is_of(r, kind));
                outcome.compare(&name, &label(policy), &label(first), of_kind);
            };
            let seconds = |r: &Run| Some(measured(r, part)?.0.seconds);
            let p50 = |r: &Run| Some(measured(r, part)?.1.figures.times?.p50_us);
            let p99 = |r: &Run| Some(measured(r, part)?.1.figures.times?.p99_us);
            let base = |r: &Run| Some(measured(r, part)?.1.base?.times.p99_us);
            let huge = |r: &Run| Some(measured(r, part)?.1.huge?.times.p99_us);
            match part {
                Part::Fill => {
                    ratio("elapsed", &seconds);
                    ratio("major_faults", &major_faults);
                    ratio("pages_in", &|r| counted(r, "pswpin"));
                }
                Part::Touch => {
                    ratio("elapsed", &seconds);
                    ratio("p50", &p50);
                    ratio("p99", &p99);
                    ratio("base_p99", &base);
                    ratio("huge_p99", &huge);
                }
                Part::Stutter => {
                    ratio("p50", &p50);
                    ratio("p99", &p99);
                }
            }
            ratio("huge_after", &huge_after);
        }
    }
}

/// Figures of each part, and counters of each kind of runs.
pub fn table(args: &Defrag, plan: &[Kind], runs: &[Run]) -> Table {
    let figures = args.parts.iter().map(|&part| part_table(part, runs));
    let counters = plan.iter().map(|&kind| counter_table(args, kind, runs));
    let tables = figures.chain(counters).rev();
    let all = tables.reduce(|below, above| above.below(below));
    all.unwrap_or_else(|| Table::new(&[]))
}

fn part_table(part: Part, runs: &[Run]) -> Table {
    let own: &[&str] = match part {
        Part::Fill => &["seconds", "MB/s", "major faults", "pages in"],
        Part::Touch => &[
            "huge before %",
            "seconds",
            "2 MiB: p50",
            "p99",
            "p99.9 us",
            "huge %",
            "huge: p50",
            "p99",
            "p99.9 us",
            "base: p50",
            "p99",
            "p99.9 us",
        ],
        Part::Stutter => &["maps/s", "a MiB: p50", "p99", "p99.9", "most us"],
    };
    let ends = ["huge after %", "verified %"];
    let name = part.name();
    let headings = [&[&name[..], "threads", "pair"], own, &ends].concat();
    let three = |t: Option<Percentiles>| {
        [
            cell(t.map(|t| t.p50_us), 1),
            cell(t.map(|t| t.p99_us), 1),
            cell(t.map(|t| t.p99_9_us), 1),
        ]
    };
    let times = |l: Option<Latency>| l.map(|l| l.times);
    let mut t = Table::new(&headings);
    for r in runs.iter().filter(|r| r.params["part"] == name) {
        let Some((phase, group)) = measured(r, part) else {
            continue;
        };
        let f = group.figures;
        let mut row = vec![r.cell("policy"), r.cell("threads"), r.cell("pair")];
        match part {
            Part::Fill => row.extend([
                cell(phase.seconds, 3),
                cell(f.mb_s, 0),
                cell(major_faults(r), 0),
                cell(counted(r, "pswpin"), 0),
            ]),
            Part::Touch => {
                let units = (group.accesses / hugeswap_policy::UNIT_PAGES).max(1) as f64;
                let huge = group.huge.map_or(0, |l| l.count) as f64 / units;
                row.extend([percent(huge_before(r), 1), cell(phase.seconds, 3)]);
                row.extend(three(f.times));
                row.push(percent(huge, 1));
                row.extend(three(times(group.huge)));
                row.extend(three(times(group.base)));
            }
            Part::Stutter => {
                row.push(cell(f.accesses_s, 1));
                row.extend(three(f.times));
                row.push(cell(f.times.map(|t| t.max_us), 0));
            }
        }
        row.extend([percent(huge_after(r), 1), percent(r.verified_share, 1)]);
        t.row(row);
    }
    t
}

/// Counters of a kind of runs: the medians of the pairs.
fn counter_table(args: &Defrag, kind: Kind, runs: &[Run]) -> Table {
    let (part, threads) = kind;
    let title = match args.threads_of(part) {
        [_] => format!("{}: counters", part.name()),
        _ => format!("{}, {}: counters", part.name(), threads_in_words(threads)),
    };
    let policies = args.policies.iter().map(String::as_str);
    let headings: Vec<&str> = std::iter::once(title.as_str()).chain(policies).collect();
    let mut t = Table::new(&headings);
    let ours: Vec<&Run> = runs.iter().filter(|r| is_of(r, kind)).collect();
    let phase = ours.first().and_then(|r| r.phase(&part.name()));
    let names = phase.and_then(|p| p.counters.as_ref());
    for start in COUNTERS {
        for name in names.into_iter().flat_map(|n| n.keys()) {
            if !name.starts_with(start) {
                continue;
            }
            let figure = |policy: &String| {
                let of_policy = ours.iter().filter(|r| r.word("policy") == Some(policy));
                let found: Vec<f64> = of_policy.filter_map(|r| counted(r, name)).collect();
                cell((!found.is_empty()).then(|| median(&found)), 0)
            };
            let cells = args.policies.iter().map(figure);
            t.row(std::iter::once(name.clone()).chain(cells).collect());
        }
    }
    t
}

//! What `defrag` prints: figures of each part, counters by policy, and ratios to the first policy.

use super::super::args::{Defrag, DefragPart, settings_of};
use super::super::figures::{GroupRun, Latency, PhaseRun};
use super::super::output::{Outcome, Table, cell};
use super::super::runner::{Run, median};
use super::{SCATTERED, SETTLED};

/// What tells who waited, who reclaimed and who got huge pages: those that there are, by the start of their names.
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
type Kind = (DefragPart, u32);

fn is_of(run: &Run, (part, threads): Kind) -> bool {
    run.params["part"] == part.name() && run.params["threads"] == threads
}

fn measured(run: &Run, part: DefragPart) -> Option<(&PhaseRun, &GroupRun)> {
    let phase = run.phase(part.name())?;
    Some((phase, phase.groups.first()?))
}

/// Share of memory that was mapped by huge pages after the rest.
fn huge_after(run: &Run) -> Option<f64> {
    run.phase(SETTLED)?.groups.first()?.huge_share
}

/// The same of what competes, once it was read at random.
fn huge_before(run: &Run) -> Option<f64> {
    run.phase(SCATTERED)?.groups.last()?.huge_share
}

/// Events of what was measured and of the rest after it.
fn counted(run: &Run, name: &str) -> Option<u64> {
    let part = run.params["part"].as_str()?;
    let of = |phase: &str| run.phase(phase)?.counters.as_ref()?.get(name).copied();
    Some(of(part)? + of(SETTLED)?)
}

fn major_faults(run: &Run) -> Option<f64> {
    let of = |name| counted(run, name);
    Some((of("fault_major_2m")? + of("fault_major_4k")?) as f64)
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
            let p50 = |r: &Run| measured(r, part)?.1.figures.p50_us;
            let p99 = |r: &Run| measured(r, part)?.1.figures.p99_us;
            let base = |r: &Run| Some(measured(r, part)?.1.base?.p99_us);
            let huge = |r: &Run| Some(measured(r, part)?.1.huge?.p99_us);
            match part {
                DefragPart::Fill => {
                    ratio("elapsed", &seconds);
                    ratio("major_faults", &major_faults);
                    ratio("pages_in", &|r| counted(r, "pswpin").map(|n| n as f64));
                }
                DefragPart::Touch => {
                    ratio("elapsed", &seconds);
                    ratio("p50", &p50);
                    ratio("p99", &p99);
                    ratio("base_p99", &base);
                    ratio("huge_p99", &huge);
                }
                DefragPart::Stutter => {
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
    let mut tables: Vec<Table> = figures.chain(counters).collect();
    let mut all = tables.pop();
    while let Some(above) = tables.pop() {
        all = Some(match all {
            Some(below) => above.below(below),
            None => above,
        });
    }
    all.unwrap_or_else(|| Table::new(&[]))
}

fn part_table(part: DefragPart, runs: &[Run]) -> Table {
    let own: &[&str] = match part {
        DefragPart::Fill => &["seconds", "MB/s", "major faults", "pages in"],
        DefragPart::Touch => &[
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
        DefragPart::Stutter => &["maps/s", "a MiB: p50", "p99", "p99.9", "most us"],
    };
    let ends = ["huge after %", "verified %"];
    let headings = [&[part.name(), "threads", "pair"], own, &ends].concat();
    let mut t = Table::new(&headings);
    for r in runs.iter().filter(|r| r.params["part"] == part.name()) {
        let Some((phase, group)) = measured(r, part) else {
            continue;
        };
        let f = group.figures;
        let mut row = vec![
            r.params["policy"].as_str().unwrap_or("-").to_owned(),
            r.params["threads"].to_string(),
            r.params["pair"].to_string(),
        ];
        let three = |l: Option<Latency>| {
            [
                cell(l.map(|l| l.p50_us), 1),
                cell(l.map(|l| l.p99_us), 1),
                cell(l.map(|l| l.p99_9_us), 1),
            ]
        };
        let all = [cell(f.p50_us, 1), cell(f.p99_us, 1), cell(f.p99_9_us, 1)];
        match part {
            DefragPart::Fill => row.extend([
                cell(Some(phase.seconds), 3),
                cell(f.mb_s, 0),
                cell(major_faults(r), 0),
                cell(counted(r, "pswpin").map(|n| n as f64), 0),
            ]),
            DefragPart::Touch => {
                let units = (group.accesses / hugeswap_policy::UNIT_PAGES).max(1) as f64;
                let huge = group.huge.map_or(0, |l| l.count) as f64 / units;
                row.push(cell(huge_before(r).map(|s| s * 100.0), 1));
                row.push(cell(Some(phase.seconds), 3));
                row.extend(all);
                row.push(cell(Some(huge * 100.0), 1));
                row.extend(three(group.huge));
                row.extend(three(group.base));
            }
            DefragPart::Stutter => {
                row.push(cell(f.accesses_s, 1));
                row.extend(all);
                row.push(cell(f.max_us, 0));
            }
        }
        row.push(cell(huge_after(r).map(|s| s * 100.0), 1));
        row.push(cell(Some(r.verified_share * 100.0), 1));
        t.row(row);
    }
    t
}

/// So many threads, in words.
pub fn threads_in_words(n: u32) -> String {
    match n {
        1 => "1 thread".into(),
        n => format!("{n} threads"),
    }
}

/// Medians of the pairs.
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
    let phase = ours.first().and_then(|r| r.phase(part.name()));
    let names = phase.and_then(|p| p.counters.as_ref());
    for start in COUNTERS {
        for name in names.into_iter().flat_map(|n| n.keys()) {
            if !name.starts_with(start) {
                continue;
            }
            let figure = |policy: &String| {
                let of_policy = ours
                    .iter()
                    .filter(|r| r.params["policy"] == policy.as_str());
                let found: Vec<f64> = of_policy
                    .filter_map(|r| counted(r, name))
                    .map(|n| n as f64)
                    .collect();
                cell((!found.is_empty()).then(|| median(&found)), 0)
            };
            let cells = args.policies.iter().map(figure);
            t.row(std::iter::once(name.clone()).chain(cells).collect());
        }
    }
    t
}

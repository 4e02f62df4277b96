//! `extents`: what it costs to find where on the device a page of swap lies.
//!
//! The maps take turns over the same made-up extents: look-ups with transfers from a file in memory, by
//! tasks and number of extents; and look-ups alone. Before a map is measured the maps have to agree.

mod load;
mod maps;

use crate::error::{within, wrong};
use crate::options::Named;
use crate::output::{Benchmark, Outcome, Progress, Table, cell, median, rounded};
use anyhow::{Result, bail};
use hugeswap_policy::extents::{self, Extent};
use hugeswap_policy::{PAGE_BYTES, knobs};
use hugeswap_support::interrupt::check_interrupted;
use hugeswap_support::random::below;
use hugeswap_support::text;
use load::{Order, Pace, Plan, Transferred};
use maps::{Array, List, Map, Tree};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::time::Duration;

/// Pages of the transfers: 4 KiB and 2 MiB.
const TRANSFERS: [u32; 2] = [1, 512];
const LIST: &str = "list";
const TREE: &str = "ordered map";
const OURS: &str = "hugeswap";
const ARRAY: &str = "array index";

// Arguments of `hugeswap bench extents`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench extents
  hugeswap bench extents --extents 84656 --tasks 1,4 --access random --json

What it measures: finding the place of a page on the device before each transfer, by a linear list that
remembers where it found the last page, by the standard library's ordered map, and by hugeswap's map.

What is real and what is not: tasks are threads; the extents are made up (random sizes, places on the
device in random order); the device is a file of 256 MiB in memory, read with pread, and an offset is taken
modulo its size. Nothing is swapped, and no disk is touched. The list's entries lie side by side in
memory, which is kinder to it than a linked list.

The share of look-ups is that of the time between the begin of a look-up and the end of the transfer,
of every 8th transfer. A look-up that waits begins when the one before has ended; those in a row overlap.")]
pub struct Extents {
    /// Numbers of extents
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 2_000, 20_000, 84_656])]
    extents: Vec<u32>,
    /// Numbers of tasks, all at once
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 4, 8])]
    tasks: Vec<u32>,
    /// Size of the area that the extents make up
    #[arg(long, value_name = "SIZE", default_value = "80G", value_parser = knobs::parse_size)]
    area: u64,
    /// Which pages a task transfers
    #[arg(long, value_name = "WHICH", value_enum, default_value = "seq")]
    access: Order,
    /// Threads that look up at once, in the figures of look-ups alone
    #[arg(long, value_name = "N", default_value_t = 8)]
    threads: u32,
    /// How long each figure is measured
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    seconds: f64,
    /// How often everything is measured, the maps in turn
    #[arg(long, value_name = "N", default_value_t = 3)]
    pairs: u32,
}

/// The figures of all pairs.
#[derive(Default)]
struct Figures {
    /// By number of extents, tasks, pages of a transfer, and map.
    transfers: BTreeMap<(u32, u32, u32, &'static str), Vec<Transferred>>,
    /// By number of extents and map.
    look_ups: BTreeMap<(u32, &'static str), Vec<LookUps>>,
    /// Memory, by number of extents and map.
    bytes: BTreeMap<(u32, &'static str), usize>,
}

/// Times of look-ups alone, nanoseconds of a thread.
#[derive(Clone, Copy)]
struct LookUps {
    waiting: f64,
    in_a_row: f64,
    /// With many threads at once.
    at_once: f64,
}

impl Benchmark for Extents {
    const NAME: &'static str = "extents";

    fn check(&self) -> Result<()> {
        within("--extents", self.extents.iter().copied(), 1..=1_000_000)?;
        within("--tasks", self.tasks.iter().copied(), 1..=1024)?;
        within("--threads", [self.threads], 1..=1024)?;
        if !(1 << 30..=16 << 40).contains(&self.area) {
            return wrong("--area must be from 1G to 16T");
        }
        if self.most_extents() * 2 > self.pages() {
            return wrong("--area is too small for so many extents: 8 KiB for each at the least");
        }
        let tasks = self.tasks.iter().copied().max().unwrap_or(1);
        if u64::from(tasks) * (2 << 20) > self.area {
            return wrong("--area is too small for so many tasks: 2 MiB for each at the least");
        }
        within("--seconds", [self.seconds], 0.001..=3600.0)?;
        within("--pairs", [self.pairs], 1..=100)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let device = load::device()?;
        let mut figures = Figures::default();
        let mut progress = Progress::new(self.pairs as usize * self.extents.len() * 4);
        for pair in 1..=self.pairs {
            for &count in &self.extents {
                let extents = maps::made_up(count, self.pages());
                let all = All::new(&extents, self.pages())?;
                let mut turns = [LIST, TREE, OURS, ARRAY];
                if pair % 2 == 0 {
                    turns.reverse();
                }
                for name in turns {
                    progress.begin(format!("{name}, {count} extents, {pair} of {}", self.pairs));
                    let (args, device, figures) = (self, &device, &mut figures);
                    let mut one = One {
                        args,
                        device,
                        count,
                        name,
                        figures,
                    };
                    match name {
                        LIST => one.measure(&all.list, Some(all.list.bytes()))?,
                        TREE => one.measure(&all.tree, None)?,
                        OURS => one.measure(&all.ours, Some(all.ours.bytes()))?,
                        _ => one.look_ups(&all.array, Some(all.array.bytes()))?,
                    }
                    progress.end();
                }
            }
        }
        drop(progress);
        report(self, &figures, outcome);
        Ok(table(self, &figures))
    }
}

impl Extents {
    /// Pages of the area.
    fn pages(&self) -> u32 {
        u32::try_from(self.area / PAGE_BYTES).unwrap_or(u32::MAX)
    }

    fn most_extents(&self) -> u32 {
        self.extents.iter().copied().max().unwrap_or(0)
    }
}

/// All maps, over the same extents.
struct All {
    list: List,
    tree: Tree,
    ours: extents::Extents,
    array: Array,
}

impl All {
    /// Makes the maps and checks that they agree.
    fn new(extents: &[Extent], pages: u32) -> Result<All> {
        let all = All {
            list: List::new(extents),
            tree: Tree::new(extents),
            ours: extents::Extents::new(extents.iter().copied())?,
            array: Array::new(extents, pages),
        };
        let mut state = 5;
        for _ in 0..1000 {
            let page = below(pages.into(), &mut state) as u32;
            let found = all.tree.look_up(page);
            if all.list.look_up(page) != found || Map::look_up(&all.ours, page) != found {
                bail!("the maps do not agree where page {page} is");
            }
        }
        Ok(all)
    }
}

/// The turn of one map.
struct One<'a> {
    args: &'a Extents,
    device: &'a File,
    count: u32,
    name: &'static str,
    figures: &'a mut Figures,
}

impl One<'_> {
    fn measure<M: Map>(&mut self, map: &M, bytes: Option<usize>) -> Result<()> {
        self.look_ups(map, bytes)?;
        for &tasks in &self.args.tasks {
            for transfer in TRANSFERS {
                check_interrupted()?;
                let plan = Plan {
                    tasks,
                    transfer,
                    access: self.args.access,
                    pages: self.args.pages(),
                    time: self.time(),
                };
                let key = (self.count, tasks, transfer, self.name);
                let done = load::transfers(map, self.device, plan)?;
                self.figures.transfers.entry(key).or_default().push(done);
            }
        }
        Ok(())
    }

    fn look_ups<M: Map>(&mut self, map: &M, bytes: Option<usize>) -> Result<()> {
        let figure = |pace, threads| {
            check_interrupted()?;
            load::look_ups(map, self.args.pages(), pace, threads, self.time())
        };
        let found = LookUps {
            waiting: figure(Pace::Waiting, 1)?,
            in_a_row: figure(Pace::InARow, 1)?,
            at_once: figure(Pace::InARow, self.args.threads)?,
        };
        let key = (self.count, self.name);
        self.figures.look_ups.entry(key).or_default().push(found);
        if let Some(bytes) = bytes {
            self.figures.bytes.insert(key, bytes);
        }
        Ok(())
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.args.seconds)
    }
}

/// The median of a figure of all pairs.
fn middle<T: Copy>(all: &[T], of: impl Fn(T) -> f64) -> f64 {
    median(&all.iter().map(|&t| of(t)).collect::<Vec<_>>())
}

/// The speed of many threads over that of one, divided by the processors that they have.
fn efficiency(l: LookUps, threads: u32, cpus: usize) -> f64 {
    let gain = f64::from(threads) * l.in_a_row / l.at_once;
    gain / f64::from(threads.min(cpus as u32))
}

/// Adds the figures and the ratios.
fn report(args: &Extents, figures: &Figures, outcome: &mut Outcome) {
    let cpus = outcome.machine.cpus;
    let transfers = figures.transfers.iter().map(|(&(count, tasks, transfer, map), all)| {
        json!({
            "extents": count, "tasks": tasks, "transfer_bytes": u64::from(transfer) * 4096, "map": map,
            "mb_s": rounded(middle(all, |t| t.mb_s), 1),
            "look_up_share": rounded(middle(all, |t| t.look_up_share), 4),
        })
    });
    let transfers: Vec<Value> = transfers.collect();
    let look_ups = figures.look_ups.iter().map(|(&(count, map), all)| {
        json!({
            "extents": count, "map": map,
            "waiting_ns": rounded(middle(all, |l| l.waiting), 2),
            "in_a_row_ns": rounded(middle(all, |l| l.in_a_row), 2),
            "threads": args.threads,
            "threads_ns": rounded(middle(all, |l| l.at_once), 2),
            "threads_efficiency": rounded(middle(all, |l| efficiency(l, args.threads, cpus)), 3),
            "bytes": figures.bytes.get(&(count, map)),
        })
    });
    let look_ups: Vec<Value> = look_ups.collect();
    outcome.add("area_bytes", args.area);
    outcome.add("access", args.access.name());
    outcome.add("simulated", "extents and device; tasks are threads");
    outcome.add("transfers", transfers);
    outcome.add("look_ups", look_ups);
    outcome
        .note("extents are made up, the device is a file in memory, tasks are threads: see --help");
    ratios(args, figures, outcome);
}

/// Adds ratios pair by pair, for the largest number of extents.
fn ratios(args: &Extents, figures: &Figures, outcome: &mut Outcome) {
    let most = args.most_extents();
    let cpus = outcome.machine.cpus;
    let all = |name, of: fn(LookUps) -> f64| -> Vec<f64> {
        figures
            .look_ups(most, name)
            .iter()
            .map(|&l| of(l))
            .collect()
    };
    let waiting = |name| all(name, |l| l.waiting);
    let in_a_row = |name| all(name, |l| l.in_a_row);
    for (name, a, b) in [
        ("look_up_speed_vs_list", waiting(LIST), waiting(OURS)),
        ("look_up_speed_vs_ordered_map", waiting(TREE), waiting(OURS)),
        (
            "look_up_speed_vs_ordered_map_in_a_row",
            in_a_row(TREE),
            in_a_row(OURS),
        ),
        ("look_up_time_vs_array_index", waiting(OURS), waiting(ARRAY)),
        (
            "look_up_time_vs_array_index_in_a_row",
            in_a_row(OURS),
            in_a_row(ARRAY),
        ),
    ] {
        outcome.ratio_of_pairs(name, &a, &b);
    }
    let ours = figures.look_ups(most, OURS).iter();
    let efficiencies: Vec<f64> = ours.map(|&l| efficiency(l, args.threads, cpus)).collect();
    let name = format!("look_up_efficiency_of_{}_threads", args.threads);
    outcome.median_ratio(&name, &efficiencies);
    for &tasks in &args.tasks {
        let mb_s = |name| -> Vec<f64> {
            let found = figures.transfers(most, tasks, TRANSFERS[0], name);
            found.iter().map(|t| t.mb_s).collect()
        };
        let name = format!("transfers_4k_vs_list_{tasks}_tasks");
        outcome.ratio_of_pairs(&name, &mb_s(OURS), &mb_s(LIST));
    }
}

impl Figures {
    fn transfers(
        &self,
        count: u32,
        tasks: u32,
        transfer: u32,
        map: &'static str,
    ) -> &[Transferred] {
        let found = self.transfers.get(&(count, tasks, transfer, map));
        found.map_or(&[], Vec::as_slice)
    }

    fn look_ups(&self, count: u32, map: &'static str) -> &[LookUps] {
        let found = self.look_ups.get(&(count, map));
        found.map_or(&[], Vec::as_slice)
    }
}

/// Transfers, and below them look-ups alone.
fn table(args: &Extents, figures: &Figures) -> Table {
    let mut rows = Vec::new();
    for &count in &args.extents {
        for &tasks in &args.tasks {
            rows.extend(TRANSFERS.map(|transfer| (count, tasks, transfer)));
        }
    }
    type Row = (u32, u32, u32);
    let speed = |&(count, tasks, transfer): &Row, map| {
        cell(
            middle(figures.transfers(count, tasks, transfer, map), |t| t.mb_s),
            0,
        )
    };
    let share = |&(count, tasks, transfer): &Row, map| {
        let found = figures.transfers(count, tasks, transfer, map);
        cell(middle(found, |t| t.look_up_share * 100.0), 1)
    };
    let transfers = Table::of(
        rows,
        &[
            ("extents", &|r| r.0.to_string()),
            ("tasks", &|r| r.1.to_string()),
            ("transfer", &|r| text::bytes(u64::from(r.2) * PAGE_BYTES)),
            ("list MB/s", &|r| speed(r, LIST)),
            ("look-up %", &|r| share(r, LIST)),
            ("ordered map MB/s", &|r| speed(r, TREE)),
            ("look-up %", &|r| share(r, TREE)),
            ("hugeswap MB/s", &|r| speed(r, OURS)),
            ("look-up %", &|r| share(r, OURS)),
        ],
    );
    let maps = |&count: &u32| [LIST, TREE, OURS, ARRAY].map(|map| (count, map));
    let at_once = format!("{} threads ns", args.threads);
    let ns = |&(count, map): &(u32, &'static str), of: fn(LookUps) -> f64| {
        cell(middle(figures.look_ups(count, map), of), 1)
    };
    let bytes = |r: &(u32, &'static str)| {
        let bytes = figures.bytes.get(r);
        cell(bytes.map(|&b| b as f64 / f64::from(r.0)), 1)
    };
    transfers.below(Table::of(
        args.extents.iter().flat_map(maps),
        &[
            ("look-ups at random", &|r| r.1.into()),
            ("extents", &|r| r.0.to_string()),
            ("waiting ns", &|r| ns(r, |l| l.waiting)),
            ("in a row ns", &|r| ns(r, |l| l.in_a_row)),
            (&at_once, &|r| ns(r, |l| l.at_once)),
            ("bytes an extent", &|r| bytes(r)),
        ],
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn efficiency_is_over_the_processors_there_are() {
        let l = |at_once| LookUps {
            waiting: 0.0,
            in_a_row: 10.0,
            at_once,
        };
        // 8 threads on 2 processors: each takes 4 times as long if nothing is lost.
        assert_eq!(efficiency(l(40.0), 8, 2), 1.0);
        assert_eq!(efficiency(l(80.0), 8, 2), 0.5);
        assert_eq!(efficiency(l(10.0), 2, 64), 1.0);
    }
}

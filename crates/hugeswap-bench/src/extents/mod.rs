//! `extents`: what it costs to find where on the device a page of swap lies.
//!
//! The maps in turn, over the same made-up extents: look-ups with transfers from a file in memory, by tasks and number of
//! extents; and look-ups alone. Before anything is measured the maps have to agree.

mod load;
mod maps;

use super::args::Extents as Args;
use super::output::{self, Outcome, Progress, Table, cell, rounded};
use super::runner::median;
use anyhow::{Result, bail};
use hugeswap_policy::extents::{Extent, Extents};
use hugeswap_support::interrupt::check_interrupted;
use load::{Pace, Plan, Transferred};
use maps::{Array, List, Map, Random, Tree};
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

/// Runs it.
pub fn run(args: &Args) -> Result<()> {
    args.check()?;
    output::measured("extents", args.json, |outcome| measure(args, outcome))
}

/// Figures of all pairs.
#[derive(Default)]
struct Figures {
    /// By number of extents, tasks, pages of a transfer, and map.
    transfers: BTreeMap<(u32, u32, u32, &'static str), Vec<Transferred>>,
    /// By number of extents and map.
    look_ups: BTreeMap<(u32, &'static str), Vec<LookUps>>,
    /// Memory, by number of extents and map.
    bytes: BTreeMap<(u32, &'static str), usize>,
}

/// Look-ups alone, nanoseconds of a thread.
#[derive(Clone, Copy)]
struct LookUps {
    waiting: f64,
    in_a_row: f64,
    /// With many threads at once.
    at_once: f64,
}

fn measure(args: &Args, outcome: &mut Outcome) -> Result<Table> {
    let device = load::device()?;
    let mut figures = Figures::default();
    let mut progress = Progress::new(u64::from(args.pairs) * args.extents.len() as u64 * 4);
    for pair in 1..=args.pairs {
        for &count in &args.extents {
            let extents = maps::made_up(count, args.pages());
            let all = All::new(&extents, args.pages())?;
            let mut turns = [LIST, TREE, OURS, ARRAY];
            if pair % 2 == 0 {
                turns.reverse();
            }
            for name in turns {
                progress.begin(format!("{name}, {count} extents, {pair} of {}", args.pairs));
                let mut one = One {
                    args,
                    device: &device,
                    count,
                    name,
                    figures: &mut figures,
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
    report(args, &figures, outcome);
    Ok(table(args, &figures))
}

/// The maps over the same extents.
struct All {
    list: List,
    tree: Tree,
    ours: Extents,
    array: Array,
}

impl All {
    /// Makes them and has them agree.
    fn new(extents: &[Extent], pages: u32) -> Result<All> {
        let all = All {
            list: List::new(extents),
            tree: Tree::new(extents),
            ours: Extents::new(extents.iter().copied())?,
            array: Array::new(extents, pages),
        };
        let mut random = Random::new(5);
        for _ in 0..1000 {
            let page = random.below(pages);
            let found = all.tree.look_up(page);
            if all.list.look_up(page) != found || Map::look_up(&all.ours, page) != found {
                bail!("the maps do not agree where page {page} is");
            }
        }
        Ok(all)
    }
}

/// One map's turn.
struct One<'a> {
    args: &'a Args,
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

/// The median of a figure.
fn middle<T: Copy>(all: &[T], of: impl Fn(T) -> f64) -> f64 {
    median(&all.iter().map(|&t| of(t)).collect::<Vec<_>>())
}

/// Speed of many threads over that of one, and over the processors they have.
fn efficiency(l: LookUps, threads: u32, cpus: usize) -> f64 {
    let gain = f64::from(threads) * l.in_a_row / l.at_once;
    gain / f64::from(threads.min(cpus as u32))
}

/// The JSON and the ratios.
fn report(args: &Args, figures: &Figures, outcome: &mut Outcome) {
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
    let more = [
        ("area_bytes", json!(args.area)),
        ("access", json!(args.access.name())),
        ("simulated", json!("extents and device; tasks are threads")),
        ("transfers", json!(transfers)),
        ("look_ups", json!(look_ups)),
    ];
    outcome.more.extend(more.map(|(k, v)| (k.to_owned(), v)));
    outcome.notes.push(
        "extents are made up, the device is a file in memory, tasks are threads: see --help".into(),
    );
    ratios(args, figures, outcome);
}

/// Pair by pair, of the largest number of extents.
fn ratios(args: &Args, figures: &Figures, outcome: &mut Outcome) {
    let Some(&most) = args.extents.iter().max() else {
        return;
    };
    let cpus = outcome.machine.cpus;
    let all = |name, of: &dyn Fn(LookUps) -> f64| -> Vec<f64> {
        let found = figures.look_ups.get(&(most, name));
        found.map_or(Vec::new(), |v| v.iter().map(|&l| of(l)).collect())
    };
    let waiting = |name| all(name, &|l| l.waiting);
    let in_a_row = |name| all(name, &|l| l.in_a_row);
    outcome.ratio_of_pairs("look_up_speed_vs_list", &waiting(LIST), &waiting(OURS));
    outcome.ratio_of_pairs(
        "look_up_speed_vs_ordered_map",
        &waiting(TREE),
        &waiting(OURS),
    );
    outcome.ratio_of_pairs(
        "look_up_speed_vs_ordered_map_in_a_row",
        &in_a_row(TREE),
        &in_a_row(OURS),
    );
    outcome.ratio_of_pairs(
        "look_up_time_vs_array_index",
        &waiting(OURS),
        &waiting(ARRAY),
    );
    outcome.ratio_of_pairs(
        "look_up_time_vs_array_index_in_a_row",
        &in_a_row(OURS),
        &in_a_row(ARRAY),
    );
    let efficiencies = all(OURS, &|l| efficiency(l, args.threads, cpus));
    let name = format!("look_up_efficiency_of_{}_threads", args.threads);
    outcome.median_ratio(&name, &efficiencies);
    for &tasks in &args.tasks {
        let mb_s = |name| -> Vec<f64> {
            let found = figures.transfers.get(&(most, tasks, TRANSFERS[0], name));
            found.map_or(Vec::new(), |v| v.iter().map(|t| t.mb_s).collect())
        };
        let name = format!("transfers_4k_vs_list_{tasks}_tasks");
        outcome.ratio_of_pairs(&name, &mb_s(OURS), &mb_s(LIST));
    }
}

/// Transfers, and below them look-ups alone.
fn table(args: &Args, figures: &Figures) -> Table {
    let mut t = Table::new(&[
        "extents",
        "tasks",
        "transfer",
        "list MB/s",
        "look-up %",
        "ordered map MB/s",
        "look-up %",
        "hugeswap MB/s",
        "look-up %",
    ]);
    for &count in &args.extents {
        for &tasks in &args.tasks {
            for transfer in TRANSFERS {
                let mut row = vec![
                    count.to_string(),
                    tasks.to_string(),
                    hugeswap_support::text::bytes(u64::from(transfer) * 4096),
                ];
                for map in [LIST, TREE, OURS] {
                    let found = figures.transfers.get(&(count, tasks, transfer, map));
                    let found = found.map_or(&[][..], |v| v);
                    row.push(cell(Some(middle(found, |t| t.mb_s)), 0));
                    row.push(cell(Some(middle(found, |t| t.look_up_share * 100.0)), 1));
                }
                t.row(row);
            }
        }
    }
    let at_once = format!("{} threads ns", args.threads);
    let mut alone = Table::new(&[
        "look-ups at random",
        "extents",
        "waiting ns",
        "in a row ns",
        &at_once,
        "bytes an extent",
    ]);
    for &count in &args.extents {
        for map in [LIST, TREE, OURS, ARRAY] {
            let found = figures.look_ups.get(&(count, map));
            let found = found.map_or(&[][..], |v| v);
            let bytes = figures.bytes.get(&(count, map));
            alone.row(vec![
                map.into(),
                count.to_string(),
                cell(Some(middle(found, |l| l.waiting)), 1),
                cell(Some(middle(found, |l| l.in_a_row)), 1),
                cell(Some(middle(found, |l| l.at_once)), 1),
                cell(bytes.map(|&b| b as f64 / f64::from(count)), 1),
            ]);
        }
    }
    t.below(alone)
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

//! `ageing`: does swap fragment as it ages? A program keeps objects of mixed sizes for a long time. After
//! each round the shares of swap that are in use, free in whole units, and free in single pages are
//! noted. Streams before and after, and in a new pool, show the effect on speed.
//!
//! The program uses the library, with a pool of its own whose state it can read, and verifies what it
//! reads.

use crate::child::{self, tell};
use crate::error::{within, writable_chart, wrong};
use crate::generate::plan::Work;
use crate::generate::words::{Corrupt, PAGE, UNIT};
use crate::options::{Common, check_memory, pool, size, swap_specs};
use crate::output::plot::Shares as Chart;
use crate::output::{
    Benchmark, Outcome, Progress, Run, Table, cell, median, percent, rounded, save_chart,
};
use anyhow::{Context, Result};
use hugeswap::{Advice, FaultMode, Pool, Region, SwapSpec};
use hugeswap_support::random::{STEP, index, next};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;

/// How often speed is measured, at the start and at the end.
const SPEEDS: u32 = 5;
/// Lines of the table for each pair.
const LINES: usize = 12;

// Arguments of `hugeswap bench ageing`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench ageing
  hugeswap bench ageing --rounds 1000 --swap /mnt/fast --plot ageing.svg --json

A program keeps objects of mixed sizes, 2M to a tenth of the region, in a pool of its own. In each round it frees some and makes others,
writes some from end to end and pages of others, discards parts, and pages out. Before and after, a
stream goes through twice the memory; afterwards also in a pool that is new, in turn.

whole %: of all swap, what is free in whole 2M; used %: in use, by the page; split %: free only in
single pages. A fragmented swap has little whole and much split.")]
pub struct Ageing {
    /// What the objects take, together
    #[arg(long, value_name = "SIZE", default_value = "600M", value_parser = size)]
    region: u64,
    /// hugeswap's budget
    #[arg(long, value_name = "SIZE", default_value = "200M", value_parser = size)]
    memory: u64,
    /// How often everything is done
    #[arg(long, value_name = "N", default_value_t = 200)]
    rounds: u32,
    /// Draw the shares of swap over the rounds
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

/// The task of the program.
#[derive(Serialize, Deserialize)]
pub struct Task {
    region: u64,
    memory: u64,
    rounds: u32,
    swap: Vec<String>,
    set: Vec<String>,
}

impl Task {
    /// Swap areas: those that were asked for, of a size that makes room tight, so that what is freed has to
    /// be used again.
    fn areas(&self) -> Result<Vec<SwapSpec>> {
        let mut specs = swap_specs(&self.swap)?;
        if specs.is_empty() {
            specs.push(hugeswap_engine::pool::swap::default_area()?);
        }
        let room = (self.region + self.region / 4 + self.memory * 2) / specs.len() as u64;
        for s in &mut specs {
            s.size.get_or_insert(room);
        }
        Ok(specs)
    }

    fn pool(&self) -> Result<Pool> {
        let builder = pool(self.memory, self.areas()?, &self.set);
        Ok(builder.fault_mode(FaultMode::Signal).build()?)
    }
}

/// A figure of the program.
#[derive(Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "lowercase")]
enum Figure {
    Speed { when: When, mb_s: f64 },
    Round(Shares),
    Verified,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum When {
    /// Before anything else.
    Start,
    /// After the last round.
    End,
    /// In a new pool, in turn with [`When::End`].
    New,
}

/// Shares of all swap after a round.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Shares {
    round: u32,
    seconds: f64,
    used: f64,
    whole: f64,
    /// Memory that is free, as a share of the budget.
    free: f64,
    /// The share of that which is free in whole units.
    free_whole: f64,
}

impl Shares {
    /// Free, but only in single pages.
    fn split(&self) -> f64 {
        (1.0 - self.used - self.whole).max(0.0)
    }
}

impl Benchmark for Ageing {
    const NAME: &'static str = "ageing";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        check_memory(self.memory * 2)?;
        within("--rounds", [self.rounds], 5..=1_000_000)?;
        if self.region < 40 << 20 || self.memory < hugeswap_engine::pool::MIN_MEMORY {
            return wrong("--region must be at least 40M, and --memory at least 16M");
        }
        if self.region <= self.memory {
            return wrong("--region must be larger than --memory, or little is ever swapped");
        }
        if self.common.fault_mode.is_some() {
            return wrong("--fault-mode: ageing runs in signal mode, which swaps mixed sizes");
        }
        writable_chart(self.plot.as_deref())?;
        self.task().areas().map(drop)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let pairs = self.common.pairs.unwrap_or(1);
        let mut progress = Progress::new(pairs as usize);
        let mut rows = Vec::new();
        let mut chart = Chart::default();
        for pair in 1..=pairs {
            progress.begin(format!("{pair} of {pairs}"));
            let (run, series) = self.run(&progress)?;
            progress.end();
            let last = series.len().saturating_sub(1);
            for (n, s) in series.iter().enumerate() {
                // About as many as fit on a screen, the last among them.
                if n == last || n % (series.len() / LINES).max(1) == 0 {
                    rows.push((pair, *s));
                }
                if pair == pairs {
                    chart.add("in use", f64::from(s.round), s.used);
                    chart.add("free, whole", f64::from(s.round), s.whole);
                    chart.add("free, single pages", f64::from(s.round), s.split());
                }
            }
            outcome.runs.push(run.with("pair", pair));
        }
        drop(progress);
        compare(outcome);
        if let Some(file) = &self.plot {
            save_chart(file, &chart.draw())?;
        }
        Ok(table(rows))
    }
}

impl Ageing {
    fn task(&self) -> Task {
        Task {
            region: self.region,
            memory: self.memory,
            rounds: self.rounds,
            swap: self.common.swap.clone(),
            set: self.common.set.clone(),
        }
    }

    fn run(&self, progress: &Progress) -> Result<(Run, Vec<Shares>)> {
        let (mut speeds, mut series, mut verified) = (Vec::new(), Vec::new(), false);
        let mut command = child::worker("ageing", &self.task())?;
        let ended = child::figures(&mut command, self.common.limit(), |figure| {
            match figure {
                Figure::Speed { when, mb_s } => speeds.push((when, mb_s)),
                Figure::Round(s) => {
                    progress.say(format!("round {} of {}", s.round, self.rounds));
                    series.push(s);
                }
                Figure::Verified => verified = true,
            }
            Ok(())
        })
        .context("the ageing run")?;
        let (region, rounds) = (self.region, self.rounds);
        let work = Work {
            region,
            rounds,
            ..Work::default()
        };
        let of = |when: When| -> Vec<f64> {
            let those = speeds.iter().filter(|s| s.0 == when);
            those.map(|s| rounded(s.1, 1)).collect()
        };
        let mut run = Run::new("hugeswap", &work)
            .with("memory_bytes", self.memory)
            .with("start_mb_s", of(When::Start))
            .with("end_mb_s", of(When::End))
            .with("new_mb_s", of(When::New));
        (run.verified, run.verified_share) = (verified, 1.0);
        run.finish(&ended)?;
        let points = series.iter().map(|s| {
            json!({
                "round": s.round,
                "t_s": rounded(s.seconds, 3),
                "used": rounded(s.used, 4),
                "whole": rounded(s.whole, 4),
                "split": rounded(s.split(), 4),
                "memory_free": rounded(s.free, 4),
                "memory_free_whole": rounded(s.free_whole, 4),
            })
        });
        let points: Vec<_> = points.collect();
        Ok((run.with("series", points), series))
    }
}

fn table(rows: Vec<(u32, Shares)>) -> Table {
    Table::of(
        rows,
        &[
            ("pair", &|(pair, _)| pair.to_string()),
            ("round", &|(_, s)| s.round.to_string()),
            ("s", &|(_, s)| cell(s.seconds, 1)),
            ("used %", &|(_, s)| percent(s.used, 1)),
            ("whole %", &|(_, s)| percent(s.whole, 1)),
            ("split %", &|(_, s)| percent(s.split(), 1)),
            ("memory: free %", &|(_, s)| percent(s.free, 1)),
            ("whole of that %", &|(_, s)| percent(s.free_whole, 1)),
        ],
    )
}

fn compare(outcome: &mut Outcome) {
    let middle = |r: &Run, name: &str| {
        let all = r.params[name].as_array()?;
        Some(median(
            &all.iter().filter_map(Value::as_f64).collect::<Vec<_>>(),
        ))
    };
    for (name, rival) in [("end_vs_start", "start_mb_s"), ("end_vs_new", "new_mb_s")] {
        let ends = outcome.figures("hugeswap", |r| middle(r, "end_mb_s"));
        let rivals = outcome.figures("hugeswap", |r| middle(r, rival));
        outcome.ratio_of_pairs(name, &ends, &rivals);
    }
    // The whole share of what is free: the means of the first and of the last quarter of the rounds.
    let whole_of_free = |r: &Run, last: bool| {
        let all = r.params["series"].as_array()?;
        let quarter = (all.len() / 4).max(1);
        let from = if last { all.len() - quarter } else { 0 };
        let part = &all[from..from + quarter];
        let share = |p: &Value| Some(p["whole"].as_f64()? / (1.0 - p["used"].as_f64()?));
        let shares: Vec<f64> = part.iter().filter_map(share).collect();
        Some(shares.iter().sum::<f64>() / shares.len() as f64)
    };
    for (name, last) in [
        ("whole_of_free_first_quarter", false),
        ("whole_of_free_last_quarter", true),
    ] {
        let values = outcome.figures("hugeswap", |r| whole_of_free(r, last));
        outcome.median_ratio(name, &values);
    }
    // The same of memory, hardly any of which is free in most rounds: over all rounds together.
    let memory_whole = |r: &Run| {
        let free = |p: &Value| p["memory_free"].as_f64();
        let whole = |p: &Value| Some(free(p)? * p["memory_free_whole"].as_f64()?);
        let all = r.params["series"].as_array()?;
        let sum: f64 = all.iter().filter_map(free).sum();
        Some(all.iter().filter_map(whole).sum::<f64>() / sum).filter(|_| sum > 0.0)
    };
    let values = outcome.figures("hugeswap", memory_whole);
    outcome.median_ratio("whole_of_free_memory", &values);
    if let Some(first) = outcome.runs.first() {
        let names = ["start_mb_s", "end_mb_s", "new_mb_s"];
        let [start, end, new] = names.map(|n| cell(middle(first, n), 0));
        outcome.note(format!(
            "streams, MB/s: {start} at the start, {end} at the end, {new} in a new pool (medians of the first pair)"
        ));
    }
}

/// A region of the program, and what each page of it must hold: 0, or the turn in which it was
/// written.
struct Object {
    region: Region,
    held: Vec<u32>,
}

/// A page of bytes that do not compress.
fn block(random: &mut u64) -> Vec<u8> {
    let words = std::iter::repeat_with(|| next(random).to_ne_bytes());
    words.take(PAGE / 8).flatten().collect()
}

impl Object {
    fn new(pool: &Pool, units: usize) -> Result<Object> {
        let region = pool.region(units * UNIT)?;
        let held = vec![0; units * UNIT / PAGE];
        Ok(Object { region, held })
    }

    fn put(&mut self, page: usize, turn: u32, block: &[u8]) {
        let bytes = &mut self.region.as_mut_slice()[page * PAGE..(page + 1) * PAGE];
        bytes.copy_from_slice(block);
        for at in [0, PAGE - 8] {
            bytes[at..at + 8].copy_from_slice(&stamp(page, turn).to_ne_bytes());
        }
        self.held[page] = turn;
    }

    fn check(&self, page: usize) -> Result<()> {
        let bytes = &self.region.as_slice()[page * PAGE..(page + 1) * PAGE];
        let turn = self.held[page];
        let want = if turn == 0 { 0 } else { stamp(page, turn) };
        for at in [0, PAGE - 8] {
            if bytes[at..at + 8] != want.to_ne_bytes() {
                return Err(Corrupt(format!("a wrong word at byte {at} of page {page}")).into());
            }
        }
        Ok(())
    }

    fn page_out(&self) -> Result<()> {
        Ok(self.region.advise(0, self.region.len(), Advice::PageOut)?)
    }

    fn discard(&mut self, pages: std::ops::Range<usize>) -> Result<()> {
        let (start, len) = (pages.start * PAGE, pages.len() * PAGE);
        Ok(self.region.discard(start, len)?)
    }
}

/// The first and the last word of a page that was written in a turn.
fn stamp(page: usize, turn: u32) -> u64 {
    (page as u64 ^ u64::from(turn) << 32).wrapping_mul(STEP) | 1
}

/// The program.
pub fn worker(task: &Task) -> Result<()> {
    let pool = task.pool()?;
    for _ in 0..SPEEDS {
        let mb_s = stream(&pool, task)?;
        let when = When::Start;
        tell(&Figure::Speed { when, mb_s })?;
    }
    let mut objects = Objects::new(&pool, task)?;
    let started = Instant::now();
    for round in 1..=task.rounds {
        objects.live()?;
        let s = pool.stats();
        let share = |n: u64| n as f64 / s.swap_bytes as f64;
        tell(&Figure::Round(Shares {
            round,
            seconds: started.elapsed().as_secs_f64(),
            used: share(s.swap_used_bytes),
            whole: share(s.swap_free_bytes),
            free: s.free_bytes as f64 / task.memory as f64,
            free_whole: s.free_huge_bytes as f64 / (s.free_bytes as f64).max(1.0),
        }))?;
    }
    let new = task.pool()?;
    for _ in 0..SPEEDS {
        for (when, pool) in [(When::End, &pool), (When::New, &new)] {
            let mb_s = stream(pool, task)?;
            tell(&Figure::Speed { when, mb_s })?;
        }
    }
    objects.verify()?;
    tell(&Figure::Verified)
}

/// Writes twice the memory from start to end, several times. Returns MB/s, without the first time.
fn stream(pool: &Pool, task: &Task) -> Result<f64> {
    const ROUNDS: u32 = 4;
    let units = task.memory as usize / UNIT * 2;
    let mut object = Object::new(pool, units)?;
    let mut random = 1;
    let block = block(&mut random);
    let mut seconds = Vec::new();
    for round in 1..=ROUNDS {
        let started = Instant::now();
        for page in 0..object.held.len() {
            if round > 1 {
                object.check(page)?;
            }
            object.put(page, round, &block);
        }
        seconds.push(started.elapsed().as_secs_f64());
    }
    Ok((units * UNIT) as f64 / 1e6 / median(&seconds[1..]))
}

/// The objects of the program.
struct Objects<'a> {
    pool: &'a Pool,
    all: Vec<Object>,
    random: u64,
    block: Vec<u8>,
    turn: u32,
}

impl<'a> Objects<'a> {
    const MANY: usize = 20;

    fn new(pool: &'a Pool, task: &Task) -> Result<Objects<'a>> {
        let mut random = 7;
        let block = block(&mut random);
        let (all, turn) = (Vec::new(), 0);
        let mut objects = Objects {
            pool,
            all,
            random,
            block,
            turn,
        };
        // A twentieth of the region each, on average.
        let most = task.region as usize / UNIT / Self::MANY * 2;
        for _ in 0..Self::MANY {
            let units = 1 + objects.below(most.saturating_sub(1).max(1));
            objects.all.push(Object::new(pool, units)?);
            objects.rewrite(objects.all.len() - 1);
        }
        Ok(objects)
    }

    fn below(&mut self, n: usize) -> usize {
        index(n, &mut self.random)
    }

    fn pages(&self, i: usize) -> usize {
        self.all[i].held.len()
    }

    /// A round: what programs do to memory, done to objects chosen at random.
    fn live(&mut self) -> Result<()> {
        // Two objects change places and size.
        let (a, b) = (self.below(Self::MANY), self.below(Self::MANY));
        if a != b {
            let (x, y) = (self.pages(a) * PAGE / UNIT, self.pages(b) * PAGE / UNIT);
            let new = 1 + self.below(x + y - 1);
            // The old ones are freed first: there is no room for both.
            for i in [a, b] {
                self.all[i] = Object::new(self.pool, 1)?;
            }
            self.all[a] = Object::new(self.pool, new)?;
            self.all[b] = Object::new(self.pool, (x + y - new).max(1))?;
            self.rewrite(a);
            // Of the other one page in so many is written.
            let step = 1 + self.below(40);
            for page in (0..self.pages(b)).step_by(step) {
                self.write(b, page);
            }
        }
        for _ in 0..Self::MANY {
            let i = self.below(Self::MANY);
            let n = self.pages(i);
            match self.below(12) {
                0 => self.rewrite(i),
                1..5 => {
                    for _ in 0..40 {
                        let page = self.below(n);
                        self.write(i, page);
                    }
                }
                5..8 => {
                    for _ in 0..40 {
                        let page = self.below(n);
                        self.all[i].check(page)?;
                    }
                }
                8..11 => {
                    let from = self.below(n);
                    let to = n.min(from + 1 + self.below(1500));
                    self.all[i].discard(from..to)?;
                    self.all[i].held[from..to].fill(0);
                }
                _ => self.all[i].page_out()?,
            }
        }
        Ok(())
    }

    fn write(&mut self, i: usize, page: usize) {
        self.turn += 1;
        self.all[i].put(page, self.turn, &self.block);
    }

    fn rewrite(&mut self, i: usize) {
        self.turn += 1;
        for page in 0..self.pages(i) {
            self.all[i].put(page, self.turn, &self.block);
        }
    }

    fn verify(&self) -> Result<()> {
        let mut all = self.all.iter();
        all.try_for_each(|o| (0..o.held.len()).try_for_each(|page| o.check(page)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_which_nothing_was_free_has_no_share() {
        for (free, share) in [(0.0, None), (0.5, Some(0.25))] {
            let points = json!([
                { "used": 0.5, "whole": 0.25, "memory_free": 0.0, "memory_free_whole": 0.0 },
                { "used": 0.5, "whole": 0.25, "memory_free": free, "memory_free_whole": 0.25 },
            ]);
            let mut outcome = Outcome::new("ageing").unwrap();
            let mut run = Run::new("hugeswap", &Work::default()).with("series", points);
            for name in ["start_mb_s", "end_mb_s", "new_mb_s"] {
                run = run.with(name, [100.0]);
            }
            outcome.runs.push(run);
            compare(&mut outcome);
            let found = outcome.ratios.get("whole_of_free_memory");
            assert_eq!(found.and_then(Value::as_f64), share);
            assert!(outcome.ratios.contains_key("whole_of_free_first_quarter"));
        }
    }
}

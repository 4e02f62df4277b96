//! `ageing`: does swap fragment as it ages? A program keeps objects of mixed sizes for a long time, and swap is looked at after each
//! round: how much of it is in use, free in whole, and free only in single pages. Streams before and after, and
//! in a pool that is new, tell what that does to speed.
//!
//! The program uses the library, for a pool of its own that it can look into, and verifies what it reads.

use super::args::Ageing;
use super::child;
use super::memory::next_random;
use super::output::{self, Outcome, Progress, Table, rounded};
use super::pattern::below;
use super::runner::{Run, median};
use super::worker::{Corrupt, Work, tell};
use anyhow::{Context, Result};
use hugeswap::{Advice, FaultMode, Pool, Region, SwapSpec};
use hugeswap_support::plot;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::process::Command;
use std::time::Instant;

const UNIT: usize = hugeswap_policy::UNIT_BYTES as usize;
const PAGE: usize = hugeswap_policy::PAGE_BYTES as usize;
/// How often speed is measured, at the start and at the end.
const SPEEDS: u32 = 5;
/// Lines of the table.
const LINES: usize = 12;

/// What the program is to do.
#[derive(Serialize, Deserialize)]
struct Task {
    region: u64,
    memory: u64,
    rounds: u32,
    /// Directories and sizes.
    swap: Vec<(std::path::PathBuf, u64, bool)>,
    set: Vec<String>,
}

/// One line of its output.
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
    /// In a pool that is new, in turn with [`When::End`].
    New,
}

/// Swap after a round, in shares of all of it.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Shares {
    round: u32,
    seconds: f64,
    used: f64,
    whole: f64,
    /// Memory that is free, as a share of the budget.
    free: f64,
    /// Of that, what is free in whole units.
    free_whole: f64,
}

impl Shares {
    /// Free, but only in single pages.
    fn split(&self) -> f64 {
        (1.0 - self.used - self.whole).max(0.0)
    }
}

/// Runs it.
pub fn run(args: &Ageing) -> Result<()> {
    args.check()?;
    output::measured("ageing", args.common.json, |outcome| measure(args, outcome))
}

fn measure(args: &Ageing, outcome: &mut Outcome) -> Result<Table> {
    let task = Task {
        region: args.region,
        memory: args.memory,
        rounds: args.rounds,
        swap: args
            .swap()?
            .into_iter()
            .map(|s| (s.path, s.size.unwrap_or(0), s.allow_tmpfs))
            .collect(),
        set: args.common.set.clone(),
    };
    let pairs = args.common.pairs.unwrap_or(1);
    let mut progress = Progress::new(u64::from(pairs));
    let mut drawn = plot::Shares::default();
    let mut table = Table::new(&[
        "pair",
        "round",
        "s",
        "used %",
        "whole %",
        "split %",
        "memory: free %",
        "whole of that %",
    ]);
    for pair in 1..=pairs {
        progress.begin(format!("{pair} of {pairs}"));
        let (run, series) = one(args, &task, &progress)?;
        progress.end();
        let last = series.len().saturating_sub(1);
        for (n, s) in series.iter().enumerate() {
            // About as many as fit on a screen, the last among them.
            if n == last || n % (series.len() / LINES).max(1) == 0 {
                let percent = |v: f64| format!("{:.1}", v * 100.0);
                table.row(vec![
                    pair.to_string(),
                    s.round.to_string(),
                    format!("{:.1}", s.seconds),
                    percent(s.used),
                    percent(s.whole),
                    percent(s.split()),
                    percent(s.free),
                    percent(s.free_whole),
                ]);
            }
            if pair == pairs {
                drawn.add("in use", f64::from(s.round), s.used);
                drawn.add("free, whole", f64::from(s.round), s.whole);
                drawn.add("free, single pages", f64::from(s.round), s.split());
            }
        }
        outcome.runs.push(run.with("pair", pair));
    }
    drop(progress);
    compare(outcome);
    if let Some(file) = &args.plot {
        std::fs::write(file, drawn.draw())
            .with_context(|| format!("--plot {} cannot be written", file.display()))?;
    }
    Ok(table)
}

fn one(args: &Ageing, task: &Task, progress: &Progress) -> Result<(Run, Vec<Shares>)> {
    let mut c = Command::new(std::env::current_exe()?);
    c.args(["__worker", "ageing", &serde_json::to_string(task)?]);
    let (mut speeds, mut series, mut verified) = (Vec::new(), Vec::new(), false);
    let ended = child::run(&mut c, args.common.limit(), |line| {
        let figure =
            serde_json::from_str(line).with_context(|| format!("not a worker's figure: {line}"))?;
        match figure {
            Figure::Speed { when, mb_s } => speeds.push((when, mb_s)),
            Figure::Round(s) => {
                progress.say(format!("round {} of {}", s.round, args.rounds));
                series.push(s);
            }
            Figure::Verified => verified = true,
        }
        Ok(())
    })
    .context("the ageing run")?;
    let work = Work {
        region: task.region,
        tasks: 1,
        threads: 1,
        rounds: task.rounds,
        ..Work::default()
    };
    let of = |when: When| -> Vec<f64> {
        let those = speeds.iter().filter(|s| s.0 == when);
        those.map(|s| rounded(s.1, 1)).collect()
    };
    let mut run = Run::new("hugeswap", &work)
        .with("memory_bytes", task.memory)
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

fn compare(outcome: &mut Outcome) {
    let speeds = |r: &Run, name: &str| -> Vec<f64> {
        let all = r.params[name].as_array();
        all.map_or(Vec::new(), |v| {
            v.iter().filter_map(|v| v.as_f64()).collect()
        })
    };
    let middle = |r: &Run, name: &str| Some(median(&speeds(r, name)));
    for (name, rival) in [("end_vs_start", "start_mb_s"), ("end_vs_new", "new_mb_s")] {
        let ends = outcome.figures("hugeswap", |r| middle(r, "end_mb_s"));
        let rivals = outcome.figures("hugeswap", |r| middle(r, rival));
        outcome.ratio_of_pairs(name, &ends, &rivals);
    }
    // Of what is free, how much is whole: the means of the first and of the last quarter of the rounds.
    let whole_of_free = |r: &Run, last: bool| {
        let all = r.params["series"].as_array()?;
        let quarter = (all.len() / 4).max(1);
        let part = if last {
            &all[all.len() - quarter..]
        } else {
            &all[..quarter]
        };
        let share =
            |p: &serde_json::Value| Some(p["whole"].as_f64()? / (1.0 - p["used"].as_f64()?));
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
    // The same of memory, of which hardly any is free in most rounds: of all that was free at any of these moments.
    let memory_whole = |r: &Run| {
        let free = |p: &serde_json::Value| p["memory_free"].as_f64();
        let whole = |p: &serde_json::Value| Some(free(p)? * p["memory_free_whole"].as_f64()?);
        let all = r.params["series"].as_array()?;
        let sum: f64 = all.iter().filter_map(free).sum();
        Some(all.iter().filter_map(whole).sum::<f64>() / sum).filter(|_| sum > 0.0)
    };
    let values = outcome.figures("hugeswap", memory_whole);
    outcome.median_ratio("whole_of_free_memory", &values);
    let first = outcome.runs.first();
    let speeds = first.map(|r| {
        ["start_mb_s", "end_mb_s", "new_mb_s"].map(|n| format!("{:.0}", median(&speeds(r, n))))
    });
    if let Some([start, end, new]) = speeds {
        outcome.notes.push(format!(
            "streams, MB/s: {start} at the start, {end} at the end, {new} in a new pool (medians of the first pair)"
        ));
    }
}

/// A range of the program's, and what each page of it must hold: 0, or the turn in which it was written.
struct Object {
    region: Region,
    held: Vec<u32>,
}

/// Bytes that do not compress, of one page.
fn block(random: &mut u64) -> Vec<u8> {
    let words = std::iter::repeat_with(|| next_random(random).to_ne_bytes());
    words.take(PAGE / 8).flatten().collect()
}

impl Object {
    fn new(pool: &Pool, units: usize) -> Result<Object> {
        Ok(Object {
            region: pool.region(units * UNIT)?,
            held: vec![0; units * UNIT / PAGE],
        })
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
        let (offset, len) = (pages.start * PAGE, pages.len() * PAGE);
        Ok(self.region.discard(offset, len)?)
    }
}

/// What a page written in a turn begins and ends with.
fn stamp(page: usize, turn: u32) -> u64 {
    (page as u64 ^ u64::from(turn) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn new_pool(task: &Task) -> Result<Pool> {
    let mut builder = Pool::builder()
        .memory(task.memory)
        .fault_mode(FaultMode::Signal);
    for (path, size, allow_tmpfs) in &task.swap {
        let mut spec = SwapSpec::new(path);
        (spec.size, spec.allow_tmpfs) = (Some(*size), *allow_tmpfs);
        builder = builder.swap_area(spec);
    }
    for s in &task.set {
        builder = builder.set(s);
    }
    Ok(builder.build()?)
}

/// The program.
pub fn worker(task: &str) -> Result<()> {
    let task: Task = serde_json::from_str(task).context("not a worker's task")?;
    let pool = new_pool(&task)?;
    for _ in 0..SPEEDS {
        let mb_s = stream(&pool, &task)?;
        tell(&Figure::Speed {
            when: When::Start,
            mb_s,
        })?;
    }
    let mut objects = Objects::new(&pool, &task)?;
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
    let new = new_pool(&task)?;
    for _ in 0..SPEEDS {
        for (when, pool) in [(When::End, &pool), (When::New, &new)] {
            let mb_s = stream(pool, &task)?;
            tell(&Figure::Speed { when, mb_s })?;
        }
    }
    objects.verify()?;
    tell(&Figure::Verified)
}

/// Goes through twice the memory from end to end, writing, several times; MB/s, without the first time.
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

/// The objects that live in swap for a while.
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
        let mut objects = Objects {
            pool,
            all: Vec::new(),
            random,
            block,
            turn: 0,
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
        below(n as u64, &mut self.random) as usize
    }

    fn pages(&self, i: usize) -> usize {
        self.all[i].held.len()
    }

    /// A round: everything that programs do to memory, to objects chosen at random.
    fn live(&mut self) -> Result<()> {
        // Two objects change places and size.
        let (a, b) = (self.below(Self::MANY), self.below(Self::MANY));
        if a != b {
            let (x, y) = (self.pages(a) * PAGE / UNIT, self.pages(b) * PAGE / UNIT);
            let new = 1 + self.below(x + y - 1);
            // Freed first: there is room for the old ones or for the new.
            for i in [a, b] {
                self.all[i] = Object::new(self.pool, 1)?;
            }
            self.all[a] = Object::new(self.pool, new)?;
            self.all[b] = Object::new(self.pool, (x + y - new).max(1))?;
            self.rewrite(a);
            // The other has a page here and there.
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
        self.all
            .iter()
            .try_for_each(|o| (0..o.held.len()).try_for_each(|page| o.check(page)))
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
            assert_eq!(found.and_then(serde_json::Value::as_f64), share);
            assert!(outcome.ratios.contains_key("whole_of_free_first_quarter"));
        }
    }
}

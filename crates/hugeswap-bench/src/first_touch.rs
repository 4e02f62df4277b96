//! What the first touch of a huge page takes while memory is plentiful, beside the kernel's own: part of `faults`.
//!
//! Both are measured in one process in turn, one huge page at a time, in sequence and in random order, of memory that was used before (a guest's
//! first use of memory is its host's to give). Memory of the program's own is advised MADV_HUGEPAGE, ours is a region of a pool that it fits in
//! three times.

use super::args::Faults;
use super::child;
use super::machine;
use super::memory::{UNIT, next_random};
use super::output::{Outcome, Table, rounded};
use super::pattern::below;
use super::runner::median;
use super::worker::tell;
use anyhow::{Context, Result};
use hugeswap::{FaultMode, Pool};
use memmap2::{Advice, MmapMut};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::process::Command;
use std::time::Instant;

/// Pairs of turns; what was touched first of all is not counted.
const TURNS: u32 = 15;

#[derive(Serialize, Deserialize)]
struct Task {
    units: usize,
}

/// Medians of one turn, microseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Turn {
    random: bool,
    ours: f64,
    kernel: f64,
}

/// Measures it.
pub fn measure(args: &Faults, outcome: &mut Outcome) -> Result<Option<Table>> {
    if machine::describe()?.thp == "never" {
        outcome.skip("first touches: the kernel gives no huge pages here".into());
        return Ok(None);
    }
    let task = Task {
        units: (args.memory as usize / UNIT / 3).max(1),
    };
    let mut c = Command::new(std::env::current_exe()?);
    c.args(["__worker", "first-touch", &serde_json::to_string(&task)?]);
    let mut turns: Vec<Turn> = Vec::new();
    let ended = child::run(&mut c, args.common.limit(), |line| {
        turns.push(serde_json::from_str(line).with_context(|| format!("not a turn: {line}"))?);
        Ok(())
    })
    .context("first touches")?;
    if !ended.status.success() {
        outcome.skip(format!("first touches: {}", ended.reason()));
        return Ok(None);
    }
    let mut t = Table::new(&[
        "first touch of 2 MiB",
        "turns",
        "ours us",
        "kernel us",
        "ratio",
    ]);
    for (random, name) in [(false, "in sequence"), (true, "in random order")] {
        let of: Vec<&Turn> = turns.iter().filter(|t| t.random == random).collect();
        let figures = |f: fn(&Turn) -> f64| of.iter().map(|t| f(t)).collect::<Vec<f64>>();
        let (ours, kernel) = (figures(|t| t.ours), figures(|t| t.kernel));
        let ratio = median(&figures(|t| t.ours / t.kernel));
        let word = name.replace(' ', "_");
        outcome.ratio(&format!("first_touch_vs_kernel_{word}"), ratio);
        let all = json!({ "ours_us": ours, "kernel_us": kernel });
        outcome.more.insert(format!("first_touch_{word}"), all);
        t.row(vec![
            name.into(),
            of.len().to_string(),
            format!("{:.1}", median(&ours)),
            format!("{:.1}", median(&kernel)),
            format!("{ratio:.3}"),
        ]);
    }
    Ok(Some(t))
}

/// The median of a first touch of each unit, microseconds.
fn touch(memory: &mut [u8], order: &[usize]) -> f64 {
    let mut us = Vec::with_capacity(order.len());
    for &unit in order {
        let started = Instant::now();
        memory[unit * UNIT + 64] = 1;
        std::hint::black_box(&memory);
        us.push(started.elapsed().as_nanos() as f64 / 1e3);
    }
    median(&us)
}

fn kernels(order: &[usize]) -> Result<f64> {
    let len = order.len() * UNIT;
    let mut map = MmapMut::map_anon(len + UNIT).context("cannot map memory")?;
    map.advise(Advice::HugePage)
        .context("cannot ask for huge pages")?;
    let start = map.as_ptr().align_offset(UNIT);
    Ok(touch(&mut map[start..start + len], order))
}

fn ours(pool: &Pool, order: &[usize]) -> Result<f64> {
    let mut region = pool.region(order.len() * UNIT)?;
    Ok(touch(region.as_mut_slice(), order))
}

/// The program.
pub fn worker(task: &str) -> Result<()> {
    let task: Task = serde_json::from_str(task).context("not a worker's task")?;
    let pool = Pool::builder()
        .memory((task.units * UNIT * 3) as u64)
        .fault_mode(FaultMode::Signal)
        .build()?;
    let mut random = 11;
    let in_sequence: Vec<usize> = (0..task.units).collect();
    for turn in 0..=TURNS {
        let mut shuffled = in_sequence.clone();
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, below(i as u64 + 1, &mut random) as usize);
        }
        next_random(&mut random);
        for (random, order) in [(false, &in_sequence), (true, &shuffled)] {
            let (ours, kernel) = (ours(&pool, order)?, kernels(order)?);
            if turn > 0 {
                let (ours, kernel) = (rounded(ours, 2), rounded(kernel, 2));
                tell(&Turn {
                    random,
                    ours,
                    kernel,
                })?;
            }
        }
    }
    Ok(())
}

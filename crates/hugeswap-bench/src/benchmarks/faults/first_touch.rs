//! How long the first touch of a huge page takes while memory is plentiful, beside the kernel's own.
//!
//! Both are measured in one process in turn, one huge page at a time, in sequence and in random order,
//! on memory that was used before (the host of a virtual machine provides memory at its first use). The
//! kernel's memory is advised MADV_HUGEPAGE. hugeswap's is a region of a pool with room for three of
//! them.

use crate::child::{self, tell};
use crate::generate::words::UNIT;
use crate::machine;
use crate::output::{Outcome, Table, cell, median, rounded};
use anyhow::{Context, Result};
use hugeswap::{FaultMode, Pool};
use hugeswap_support::random::permutation;
use memmap2::{Advice, MmapMut};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::{Duration, Instant};

/// Pairs of turns that count; one more comes before them.
const TURNS: u32 = 15;

/// Medians of one turn, microseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Turn {
    random: bool,
    ours: f64,
    kernel: f64,
}

/// Measures with a pool of `memory` bytes. `None` if it was skipped.
pub fn measure(memory: u64, limit: Duration, outcome: &mut Outcome) -> Result<Option<Table>> {
    if machine::describe()?.thp == "never" {
        outcome.skip("first touches: the kernel gives no huge pages here".into());
        return Ok(None);
    }
    let units = (memory as usize / UNIT / 3).max(1);
    let mut turns: Vec<Turn> = Vec::new();
    let ended = child::figures(&mut child::worker("first-touch", &units)?, limit, |turn| {
        turns.push(turn);
        Ok(())
    })
    .context("first touches")?;
    if !ended.status.success() {
        outcome.skip(format!("first touches: {}", ended.reason()));
        return Ok(None);
    }
    let headings = [
        "first touch of 2 MiB",
        "turns",
        "ours us",
        "kernel us",
        "ratio",
    ];
    let mut t = Table::new(&headings);
    for (random, name) in [(false, "in sequence"), (true, "in random order")] {
        let of: Vec<&Turn> = turns.iter().filter(|t| t.random == random).collect();
        let figures = |f: fn(&Turn) -> f64| of.iter().map(|t| f(t)).collect::<Vec<f64>>();
        let (ours, kernel) = (figures(|t| t.ours), figures(|t| t.kernel));
        let ratio = median(&figures(|t| t.ours / t.kernel));
        let word = name.replace(' ', "_");
        outcome.ratio(&format!("first_touch_vs_kernel_{word}"), ratio);
        let (ours_us, kernel_us) = (cell(median(&ours), 1), cell(median(&kernel), 1));
        let all = json!({ "ours_us": ours, "kernel_us": kernel });
        outcome.add(&format!("first_touch_{word}"), all);
        let turns = of.len().to_string();
        t.row(vec![name.into(), turns, ours_us, kernel_us, cell(ratio, 3)]);
    }
    Ok(Some(t))
}

/// Touches each unit for the first time. Returns the median time, microseconds.
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
pub fn worker(units: usize) -> Result<()> {
    let pool = Pool::builder()
        .memory((units * UNIT * 3) as u64)
        .fault_mode(FaultMode::Signal)
        .build()?;
    let mut state = 11;
    let in_sequence: Vec<usize> = (0..units).collect();
    for turn in 0..=TURNS {
        let shuffled = permutation(units, &mut state);
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

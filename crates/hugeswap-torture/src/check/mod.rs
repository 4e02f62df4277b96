//! The program that checks its own memory.
//!
//! Slots of memory ([`slot`]) are read, written, moved, cut, advised, protected and given to
//! system calls by threads and forked children ([`walker`]) at random from a seed; every byte that
//! is read is compared with a model. The first thing that is wrong ends the process with a line
//! that says what, and status 3.

mod calls;
mod lock;
mod memory;
mod operation;
mod random;
mod ranges;
mod slot;
mod walker;
mod world;

use crate::board::Word;
use anyhow::{Result, ensure};
use operation::Op;
use random::Random;
use std::path::PathBuf;
use walker::Walker;
use world::World;

/// How the checker's memory is to be used.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// What everything follows from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Threads
    #[arg(long, default_value_t = 4)]
    pub threads: usize,
    /// Memory, in all
    #[arg(long, default_value = "256M", value_parser = crate::size)]
    pub bytes: usize,
    /// Pieces the memory is in
    #[arg(long, default_value_t = 12)]
    pub slots: usize,
    /// How many of them are shared with children
    #[arg(long, default_value_t = 0)]
    pub shared: usize,
    /// Steps of each thread
    #[arg(long, default_value_t = u64::MAX)]
    pub steps: u64,
    /// End after so many seconds
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Only these operations (default: all)
    #[arg(long, value_delimiter = ',', value_parser = Op::named)]
    pub ops: Vec<Op>,
    /// All operations but these
    #[arg(long, value_delimiter = ',', value_parser = Op::named)]
    pub without: Vec<Op>,
    /// Leave steps out: THREAD:FIRST-END
    #[arg(long, value_delimiter = ',', value_parser = skipped)]
    pub skip: Vec<(u64, u64, u64)>,
    /// Say each step on standard error before it is made
    #[arg(long)]
    pub trace: bool,
    /// File for the counters, and to be told to end (see `sweep`)
    #[arg(long)]
    pub board: Option<PathBuf>,
}

/// The names of all operations.
pub fn operations() -> impl Iterator<Item = &'static str> {
    Op::ALL.iter().map(|op| op.name())
}

fn skipped(text: &str) -> Result<(u64, u64, u64), String> {
    let parse = || {
        let (thread, steps) = text.split_once(':')?;
        let (first, end) = steps.split_once('-')?;
        Some((thread.parse().ok()?, first.parse().ok()?, end.parse().ok()?))
    };
    parse().ok_or_else(|| format!("{text} is not THREAD:FIRST-END"))
}

/// Runs the checker; false if something was wrong.
pub fn run(args: &Args) -> Result<bool> {
    ensure!(
        (1..=16).contains(&args.threads),
        "--threads is from 1 to 16, not {}",
        args.threads
    );
    ensure!(
        args.slots > 0 && args.shared <= args.slots,
        "--slots is at least 1, and --shared no more than that"
    );
    ensure!(
        args.steps != u64::MAX || args.seconds.is_some() || args.board.is_some(),
        "say how long: --seconds or --steps"
    );
    let board = match &args.board {
        Some(path) => Some(
            std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)?,
        ),
        None => None,
    };
    let world = World::new(args, board.as_ref())?;
    let world: &World = Box::leak(Box::new(world));
    let main = Walker {
        world,
        stream: u64::MAX,
        class: 0,
        alone: true,
        shared_class: Some(0),
        depth: 0,
    };
    let or_fail = |r: Result<(), walker::Failure>| {
        if let Err(f) = r {
            main.fail(0, &f);
        }
    };
    let mut r = Random::new(world.other_seed(), 0, 0);
    for slot in &world.slots {
        or_fail(ranges::make(slot, &mut r, true).map(|_| ()));
        for line in 0..slot.lines() {
            slot.write(line);
            if line % 4096 == 0 {
                world.count(Word::Steps, 1);
            }
        }
    }
    std::thread::scope(|s| {
        for class in 0..args.threads {
            s.spawn(move || {
                let walker = Walker {
                    world,
                    stream: World::stream(class),
                    class,
                    alone: false,
                    shared_class: Some(class),
                    depth: 0,
                };
                walker.walk(args.steps);
            });
        }
    });
    for slot in &world.slots {
        or_fail(world.check_slot(slot));
        or_fail(ranges::give_back(slot));
    }
    println!(
        "{} steps, {} accesses, {} operations ({} refused), {} forks, {} failures",
        world.counted(Word::Steps),
        world.counted(Word::Accesses),
        world.counted(Word::RangeOps),
        world.counted(Word::Refused),
        world.counted(Word::Forks),
        world.counted(Word::Wrong)
    );
    if board.is_some() {
        world.wait_for_release();
    }
    Ok(world.counted(Word::Wrong) == 0)
}

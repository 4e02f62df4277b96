//! The program of `chaos`: a pool of its own on a faulty device, threads at work on it, and a watch over them.

use super::super::worker::tell;
use super::model::{Counts, Model};
use super::{Task, Told};
use anyhow::{Context, Result, anyhow};
use hugeswap::{FaultMode, Pool, SwapSpec};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// A thread that does nothing for so long hangs: many times what the device does.
pub const PATIENCE: Duration = Duration::from_secs(40);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The worker's process.
pub fn worker(json: &str) -> Result<()> {
    let task: Task = serde_json::from_str(json).context("not a worker's task")?;
    let pool = pool(&task)?;
    let counts = Counts::default();
    let stop = AtomicBool::new(false);
    let alive: Vec<AtomicU64> = (0..task.threads).map(|_| AtomicU64::new(0)).collect();
    let done: Vec<AtomicBool> = (0..task.threads).map(|_| AtomicBool::new(false)).collect();
    let bytes = (task.region / u64::from(task.threads)) as usize & !(2 * 1024 * 1024 - 1);
    let start = Instant::now();
    let mut failed = None;
    std::thread::scope(|s| {
        let each = alive.iter().zip(&done).zip(0u64..);
        let threads: Vec<_> = each
            .map(|((alive, done), n)| {
                let (pool, counts, stop, task) = (&pool, &counts, &stop, &task);
                s.spawn(move || {
                    let mut model = Model::new(pool, bytes, n, task.seed, counts, alive)?;
                    let result = at_work(&mut model, task, counts, stop);
                    // Also if it stopped early: who waits for it would wait for ever.
                    done.store(true, Release);
                    result
                })
            })
            .collect();
        watch(&task, &alive, &done, &stop, start, |hangs| {
            // What hangs cannot be waited for.
            let _ = tell(&told(&pool, &counts, start, hangs));
            std::process::exit(1);
        });
        for t in threads {
            let ended = t
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
            failed = failed.take().or(ended.err());
        }
    });
    match failed {
        Some(e) => Err(e),
        None => tell(&told(&pool, &counts, start, 0)),
    }
}

fn at_work(model: &mut Model<'_>, task: &Task, counts: &Counts, stop: &AtomicBool) -> Result<()> {
    while !stop.load(Acquire) && counts.operations.load(Relaxed) < task.operations {
        model.step()?;
        if let Some(said) = model.take_said() {
            eprintln!("{said}");
        }
    }
    model.verify_all()?;
    model.look_at_child(true)?;
    if let Some(said) = model.take_said() {
        eprintln!("{said}");
    }
    Ok(())
}

/// Ends the work when it is time, and calls `hung` if threads do nothing any more.
fn watch(
    task: &Task,
    alive: &[AtomicU64],
    done: &[AtomicBool],
    stop: &AtomicBool,
    start: Instant,
    hung: impl Fn(u64),
) {
    let mut seen: Vec<(u64, Instant)> = alive.iter().map(|_| (0, start)).collect();
    while done.iter().any(|d| !d.load(Acquire)) {
        std::thread::sleep(LOOK_EVERY);
        if start.elapsed().as_secs() >= task.seconds {
            stop.store(true, Release);
        }
        let mut hangs = 0;
        for ((now, last), done) in alive.iter().zip(&mut seen).zip(done) {
            let now = now.load(Relaxed);
            if now != last.0 || done.load(Acquire) {
                *last = (now, Instant::now());
            }
            hangs += u64::from(last.1.elapsed() > PATIENCE);
        }
        if hangs > 0 {
            hung(hangs);
        }
    }
}

fn pool(task: &Task) -> Result<Pool> {
    let mut specs = Vec::new();
    for text in &task.swap {
        specs.push(SwapSpec::parse(text).map_err(|e| anyhow!("--swap: {e}"))?);
    }
    if specs.is_empty() {
        let one = hugeswap_engine::pool::swap::default_area()?;
        specs = vec![one; task.areas as usize];
    }
    let mut builder = Pool::builder()
        .memory(task.memory)
        .set(&format!("debug.fault_seed={}", task.seed))
        .fault_mode(if task.message {
            FaultMode::Message
        } else {
            FaultMode::Signal
        });
    for mut spec in specs {
        // Where one is gone and others have bad pages there must be room left.
        spec.size.get_or_insert(task.region * 2);
        builder = builder.swap_area(spec);
    }
    for setting in task.faults.iter().chain(&task.set) {
        builder = builder.set(setting);
    }
    Ok(builder.build()?)
}

fn told(pool: &Pool, counts: &Counts, start: Instant, hangs: u64) -> Told {
    let counters = pool.stats().counters;
    Told {
        seconds: start.elapsed().as_secs_f64(),
        operations: counts.operations.load(Relaxed),
        verified: counts.verified.load(Relaxed),
        wrong: counts.wrong.load(Relaxed),
        lost: counts.lost.load(Relaxed),
        refused: counts.refused.load(Relaxed),
        children: counts.children.load(Relaxed),
        hangs: hangs + counts.hangs.load(Relaxed),
        longest_ms: counts.longest_ns.load(Relaxed) as f64 / 1e6,
        counters: counters.into_iter().map(|(k, v)| (k.into(), v)).collect(),
    }
}

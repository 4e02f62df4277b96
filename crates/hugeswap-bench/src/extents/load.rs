//! What is done with a map: look-ups alone, and look-ups with transfers.

use super::maps::{Map, Random};
use crate::args::Order;
use anyhow::{Context, Result};
use hugeswap_policy::PAGE_BYTES;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes of the device.
const DEVICE: u64 = 256 << 20;
/// Every so many transfers one is timed in its parts.
const TIMED_ONE_IN: u64 = 8;
/// Pages drawn beforehand for look-ups alone.
const DRAWN: usize = 1 << 16;

/// Do look-ups wait for each other?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each begins when the one before has ended.
    Waiting,
    /// The processor may begin the next before.
    InARow,
}

/// Nanoseconds of a thread for one look-up at a random page, with so many threads at once.
pub fn look_ups<M: Map>(
    map: &M,
    pages: u32,
    pace: Pace,
    threads: u32,
    time: Duration,
) -> Result<f64> {
    let (start, stop) = (Barrier::new(threads as usize + 1), AtomicBool::new(false));
    let rates = std::thread::scope(|s| {
        let workers: Vec<_> = (0..threads)
            .map(|n| {
                let (start, stop) = (&start, &stop);
                s.spawn(move || {
                    let mut random = Random::new(u64::from(n) + 11);
                    let drawn: Vec<u32> = (0..DRAWN).map(|_| random.below(pages)).collect();
                    start.wait();
                    one_after_another(map, &drawn, pace, stop)
                })
            })
            .collect();
        start.wait();
        std::thread::sleep(time);
        stop.store(true, Relaxed);
        workers.into_iter().map(|w| w.join()).collect::<Vec<_>>()
    });
    let mut sum = 0.0;
    for rate in rates {
        sum += rate.ok().context("a thread that looked up has failed")?;
    }
    Ok(f64::from(threads) / sum * 1e9)
}

/// Look-ups until told to stop; how many a second.
fn one_after_another<M: Map>(map: &M, drawn: &[u32], pace: Pace, stop: &AtomicBool) -> f64 {
    // Not known to the compiler: what a look-up found becomes part of the next one's page.
    let none = black_box(0);
    let link = if pace == Pace::Waiting { u64::MAX } else { 0 };
    let (mut found, mut done) = (0u64, 0u64);
    let started = Instant::now();
    'all: loop {
        for chunk in drawn.chunks(M::CHUNK) {
            if link == 0 {
                for &page in chunk {
                    let (place, left) = map.look_up(page);
                    found = found.wrapping_add(place ^ u64::from(left));
                }
            } else {
                for &page in chunk {
                    let (place, left) = map.look_up(page + (found & none) as u32);
                    found = place.wrapping_add(left.into());
                }
            }
            done += chunk.len() as u64;
            if stop.load(Relaxed) {
                break 'all;
            }
        }
    }
    black_box(found);
    done as f64 / started.elapsed().as_secs_f64()
}

/// A file in memory that stands for a device.
pub fn device() -> Result<File> {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("hugeswap-bench-device", flags);
    let file = File::from(file.context("no file in memory can be made")?);
    let block = vec![0x5a; 2 << 20];
    for at in (0..DEVICE).step_by(block.len()) {
        file.write_all_at(&block, at)
            .context("no memory for the device")?;
    }
    Ok(file)
}

/// What tasks came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transferred {
    /// All together, 10^6 bytes a second.
    pub mb_s: f64,
    /// Of the time of a look-up and its transfer, that of the look-up.
    pub look_up_share: f64,
}

/// What tasks are to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub tasks: u32,
    /// Pages of a transfer.
    pub transfer: u32,
    pub access: Order,
    /// Pages of the area.
    pub pages: u32,
    pub time: Duration,
}

/// What one task did.
#[derive(Default)]
struct Done {
    transfers: u64,
    look_up: Duration,
    timed: Duration,
}

/// Tasks look up and read, piece by piece, for a while.
pub fn transfers<M: Map>(map: &M, device: &File, plan: Plan) -> Result<Transferred> {
    let (start, stop) = (
        Barrier::new(plan.tasks as usize + 1),
        AtomicBool::new(false),
    );
    let (done, elapsed) = std::thread::scope(|s| {
        let workers: Vec<_> = (0..plan.tasks)
            .map(|n| {
                let (start, stop) = (&start, &stop);
                s.spawn(move || {
                    start.wait();
                    task(map, device, plan, n, stop)
                })
            })
            .collect();
        start.wait();
        let started = Instant::now();
        std::thread::sleep(plan.time);
        stop.store(true, Relaxed);
        let done: Vec<_> = workers.into_iter().map(|w| w.join()).collect();
        (done, started.elapsed())
    });
    let mut all = Done::default();
    for d in done {
        let d = d.ok().context("a task has failed")??;
        all.transfers += d.transfers;
        all.look_up += d.look_up;
        all.timed += d.timed;
    }
    let bytes = (all.transfers * u64::from(plan.transfer) * PAGE_BYTES) as f64;
    Ok(Transferred {
        mb_s: bytes / 1e6 / elapsed.as_secs_f64(),
        look_up_share: all.look_up.as_secs_f64() / all.timed.as_secs_f64().max(1e-9),
    })
}

/// What it takes to look at the clock.
fn clock() -> Duration {
    let looks = (0..1000).map(|_| Instant::now().elapsed());
    looks.min().unwrap_or_default()
}

fn task<M: Map>(
    map: &M,
    device: &File,
    plan: Plan,
    number: u32,
    stop: &AtomicBool,
) -> Result<Done> {
    let mut random = Random::new(u64::from(number) + 7);
    let mut buffer = vec![0; plan.transfer as usize * PAGE_BYTES as usize];
    let share = plan.pages / plan.tasks;
    let places = share / plan.transfer;
    let (clock, mut done, mut next) = (clock(), Done::default(), 0);
    while !stop.load(Relaxed) || done.transfers == 0 {
        let first = match plan.access {
            Order::Seq => share * number + next * plan.transfer,
            Order::Random => random.below(plan.pages / plan.transfer) * plan.transfer,
        };
        next = (next + 1) % places;
        let timed = done.transfers % TIMED_ONE_IN == 0;
        let mut at = 0;
        while at < plan.transfer {
            let begun = timed.then(Instant::now);
            let (place, left) = map.look_up(first + at);
            let found = timed.then(Instant::now);
            let pages = left.min(plan.transfer - at);
            let offset = place % (DEVICE / PAGE_BYTES - u64::from(pages) + 1) * PAGE_BYTES;
            let from = at as usize * PAGE_BYTES as usize;
            let to = from + pages as usize * PAGE_BYTES as usize;
            device.read_exact_at(&mut buffer[from..to], offset)?;
            if let (Some(begun), Some(found)) = (begun, found) {
                let (look_up, rest) = (found - begun, found.elapsed());
                done.look_up += look_up.saturating_sub(clock);
                done.timed += look_up.saturating_sub(clock) + rest.saturating_sub(clock);
            }
            at += pages;
        }
        done.transfers += 1;
    }
    black_box(&buffer);
    Ok(done)
}

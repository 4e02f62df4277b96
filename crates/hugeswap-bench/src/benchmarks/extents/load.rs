//! Look-ups in a map alone, and look-ups with transfers.

use super::maps::Map;
use anyhow::{Context, Result};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_support::random::below;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes of the device.
const DEVICE: u64 = 256 << 20;
/// One in so many transfers is timed in its parts.
const TIMED_ONE_IN: u64 = 8;
/// Random pages that are drawn before look-ups alone.
const DRAWN: usize = 1 << 16;

/// The order in which pages are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Each task goes through its share of the area
    Seq,
    /// Anywhere in the area
    Random,
}

/// Whether look-ups wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Each begins when the one before has ended.
    Waiting,
    /// The processor may begin the next before that.
    InARow,
}

/// Nanoseconds that a thread takes for one look-up at a random page, with `threads` threads at once.
pub fn look_ups<M: Map>(
    map: &M,
    pages: u32,
    pace: Pace,
    threads: u32,
    time: Duration,
) -> Result<f64> {
    let (rates, _) = at_once(threads, time, |n, start, stop| {
        let mut state = u64::from(n) + 11;
        let page = |_| below(pages.into(), &mut state) as u32;
        let drawn: Vec<u32> = (0..DRAWN).map(page).collect();
        start.wait();
        one_after_another(map, &drawn, pace, stop)
    })?;
    Ok(f64::from(threads) / rates.iter().sum::<f64>() * 1e9)
}

/// Runs `work` in `threads` threads, which begin together at the barrier, and has them stop after
/// `time`. Returns their results, and the time from the barrier to the end of the last.
fn at_once<T: Send>(
    threads: u32,
    time: Duration,
    work: impl Fn(u32, &Barrier, &AtomicBool) -> T + Sync,
) -> Result<(Vec<T>, Duration)> {
    let (start, stop) = (Barrier::new(threads as usize + 1), AtomicBool::new(false));
    std::thread::scope(|s| {
        let (work, start, stop) = (&work, &start, &stop);
        let spawn = |n| s.spawn(move || work(n, start, stop));
        let workers: Vec<_> = (0..threads).map(spawn).collect();
        start.wait();
        let started = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Relaxed);
        let done = workers
            .into_iter()
            .map(|w| w.join().ok().context("a thread has failed"));
        Ok((done.collect::<Result<_>>()?, started.elapsed()))
    })
}

/// Look-ups until `stop`. Returns how many a second.
fn one_after_another<M: Map>(map: &M, drawn: &[u32], pace: Pace, stop: &AtomicBool) -> f64 {
    // The compiler does not know that this is 0: the result of a look-up becomes part of the next page.
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

/// A file in memory in place of a device.
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

/// The figures of transfers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transferred {
    /// All tasks together, 10^6 bytes a second.
    pub mb_s: f64,
    /// The share of the look-up in the time of a look-up and its transfer.
    pub look_up_share: f64,
}

/// The work of the tasks.
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

/// Tasks look up and read, piece by piece, for `plan.time`.
pub fn transfers<M: Map>(map: &M, device: &File, plan: Plan) -> Result<Transferred> {
    let (done, elapsed) = at_once(plan.tasks, plan.time, |n, start, stop| {
        start.wait();
        task(map, device, plan, n, stop)
    })?;
    let mut all = Done::default();
    for d in done {
        let d = d?;
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

/// The time that reading the clock takes.
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
    let mut state = u64::from(number) + 7;
    let mut buffer = vec![0; plan.transfer as usize * PAGE_BYTES as usize];
    let share = plan.pages / plan.tasks;
    let places = share / plan.transfer;
    let (clock, mut done, mut next) = (clock(), Done::default(), 0);
    while !stop.load(Relaxed) || done.transfers == 0 {
        let first = match plan.access {
            Order::Seq => share * number + next * plan.transfer,
            Order::Random => {
                let pieces = plan.pages / plan.transfer;
                below(pieces.into(), &mut state) as u32 * plan.transfer
            }
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

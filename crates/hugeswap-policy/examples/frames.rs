//! What it costs to take a free frame and give it back, when several threads do so at once: by one
//! stack behind a mutex, by one stack without a lock, and by a line for each processor. `cargo run
//! --release -p hugeswap-policy --example frames`

use hugeswap_policy::defrag::frames::{Here, Lists};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

const FRAMES: u32 = 512;
const TIME: Duration = Duration::from_millis(300);
const ROUNDS: usize = 5;

/// Nanoseconds of processor time that a thread needs for a frame, taken and given back: the best of
/// some rounds.
fn measure(threads: usize, cpus: usize, step: impl Fn(usize) + Sync) -> f64 {
    (0..ROUNDS)
        .map(|_| {
            let (over, barrier) = (AtomicBool::new(false), Barrier::new(threads));
            let done = AtomicU64::new(0);
            let start = Instant::now();
            std::thread::scope(|s| {
                for t in 0..threads {
                    let (over, barrier, done, step) = (&over, &barrier, &done, &step);
                    s.spawn(move || {
                        barrier.wait();
                        let mut n = 0;
                        while !over.load(Relaxed) {
                            (0..64).for_each(|_| step(t));
                            n += 64;
                        }
                        done.fetch_add(n, Relaxed);
                    });
                }
                std::thread::sleep(TIME);
                over.store(true, Relaxed);
            });
            let busy = start.elapsed().as_nanos() as f64 * threads.min(cpus) as f64;
            busy / done.load(Relaxed) as f64
        })
        .fold(f64::INFINITY, f64::min)
}

fn lists(shards: usize) -> Lists<AtomicU64, Vec<AtomicU32>, AtomicU32> {
    let next = (0..FRAMES).map(|_| AtomicU32::new(0)).collect();
    let lists = Lists::new(|| AtomicU64::new(0), next, 1, shards, FRAMES);
    for i in 0..FRAMES {
        let shard = (i as usize % shards) as u8;
        let here = Here { node: 0, shard };
        if let Some(place) = lists.take_empty(here) {
            lists.put_free(here, place, false);
        }
    }
    lists
}

fn main() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{cpus} processors; ns for each frame taken and given back");
    println!("threads   mutex  one list  a line for each processor");
    for threads in [1, 2, 4, 8] {
        let stack = Mutex::new((0..FRAMES).collect::<Vec<_>>());
        let free = AtomicU64::new(FRAMES.into());
        let mutex = measure(threads, cpus, |_| {
            let place = stack.lock().ok().and_then(|mut s| s.pop());
            free.fetch_sub(1, Relaxed);
            if let (Some(place), Ok(mut s)) = (place, stack.lock()) {
                s.push(place);
            }
            free.fetch_add(1, Relaxed);
        });
        let by = |shards: usize| {
            let lists = lists(shards);
            measure(threads, cpus, |t| {
                let shard = (t % shards) as u8;
                let here = Here { node: 0, shard };
                if let Some(place) = lists.take_free(here, &[0]) {
                    lists.put_free(here, place, false);
                }
            })
        };
        println!("{threads:7} {mutex:7.0} {:9.0} {:9.0}", by(1), by(cpus));
    }
}

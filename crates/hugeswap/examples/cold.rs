//! Finds what of a program's memory nobody has touched lately, and pages it out, beside the program's own work.
//!
//! `cargo run --release -p hugeswap --example cold`

use hugeswap::{Advice, Categories, Error, Filter, Pool, Region};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Pages out what is idle; how many bytes of it have left memory.
fn page_out_cold(region: &Region) -> Result<usize, Error> {
    let cold = Filter {
        all: Categories::PRESENT | Categories::IDLE,
        ..Filter::default()
    };
    let mut given = 0;
    for found in region.scan(0, region.len(), &cold)? {
        region.advise(found.range.start, found.range.len(), Advice::PageOut)?;
        let pages = found.range.clone().step_by(4096);
        given += pages.filter(|&at| !region.is_resident(at)).count() * 4096;
    }
    Ok(given)
}

fn main() -> Result<(), Error> {
    let pool = Pool::builder().memory(64 * MIB as u64).build()?;
    let mut region = pool.region(128 * MIB)?;
    region.as_mut_slice().fill(1);
    // SAFETY: the region is aligned and initialised, and lives until the threads below have ended.
    let hot: &[AtomicU64] = unsafe { std::slice::from_raw_parts(region.as_ptr().cast(), MIB) };
    let done = AtomicBool::new(false);
    let given = std::thread::scope(|s| {
        // The program: works on the first 8 MiB, again and again.
        s.spawn(|| {
            while !done.load(Relaxed) {
                hot.iter()
                    .for_each(|w| w.store(w.load(Relaxed) + 1, Relaxed));
            }
        });
        let mut given = 0;
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(100));
            match page_out_cold(&region) {
                Ok(n) => given += n,
                Err(e) => eprintln!("cold: {e}"),
            }
        }
        done.store(true, Relaxed);
        given
    });
    let s = pool.stats();
    println!(
        "{} MiB were idle and have left memory; {} of 64 MiB are free now",
        given / MIB,
        s.free_bytes >> 20,
    );
    Ok(())
}

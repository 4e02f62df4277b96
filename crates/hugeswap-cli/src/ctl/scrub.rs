//! `hugeswap ctl scrub`: reads and verifies everything that a pool has in swap.

use crate::text;
use anyhow::Result;
use hugeswap_engine::pool::losses::Loss;
use hugeswap_engine::pool::{Pool, ScrubReport};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_support::interrupt::{check_interrupted, watch_signals};
use serde_json::json;
use std::time::Duration;

const LOOK: Duration = Duration::from_millis(20);

/// Read and verify everything in swap; save what is bad there and still in memory
#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object, sizes in bytes
    #[arg(long)]
    json: bool,
}

/// Runs the command. Returns the exit status: 1 if something is lost.
pub fn run(pool: &Pool, args: &Args) -> Result<i32> {
    watch_signals()?;
    let number = pool.request_scrub();
    let found = loop {
        if let Some(found) = pool.scrubbed(number) {
            break found;
        }
        check_interrupted()?;
        std::thread::sleep(LOOK);
        pool.reap();
    };
    if args.json {
        let places = pool.losses();
        println!(
            "{}",
            serde_json::to_string_pretty(&as_json(&found, &places))?
        );
    } else {
        let size = |pages: u64| text::bytes(pages * PAGE_BYTES);
        println!("good       {}", size(found.good));
        println!("bad        {}", size(found.bad));
        println!("recovered  {}", size(found.recovered));
        println!("lost       {}", size(found.lost));
        // The last places, found by this scrub or before.
        for place in pool.losses() {
            println!("place      {place}");
        }
    }
    Ok(i32::from(found.lost > 0))
}

fn as_json(found: &ScrubReport, places: &[Loss]) -> serde_json::Value {
    json!({
        "good_bytes": found.good * PAGE_BYTES,
        "bad_bytes": found.bad * PAGE_BYTES,
        "recovered_bytes": found.recovered * PAGE_BYTES,
        "lost_bytes": found.lost * PAGE_BYTES,
        "places": places.iter().map(text::loss_json).collect::<Vec<_>>(),
    })
}

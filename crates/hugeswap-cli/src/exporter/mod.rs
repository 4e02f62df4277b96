//! `hugeswap exporter`: the figures of running pools, for Prometheus and whatever else reads
//! OpenMetrics. They are read where they stand, when they are asked for: no program is stopped or
//! slowed down.

pub mod metrics;
pub mod serve;

use crate::ctl::pools;
use anyhow::Result;
use hugeswap_engine::pool::Pool;
use hugeswap_support::interrupt::{check_interrupted, watch_signals};
use serve::{Address, Listening};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap exporter
  hugeswap exporter --listen unix:/run/hugeswap.sock
  hugeswap exporter --once > /var/lib/node_exporter/hugeswap.prom
  hugeswap run --memory 2G --metrics 127.0.0.1:9402 -- python3 job.py          of one run, for as long as it takes

Prometheus' part of it:
  scrape_configs:
    - job_name: hugeswap
      static_configs: [{targets: ['127.0.0.1:9402']}]

Metrics are those of the pools of this user (of all users, for root). Any user of the machine can read what is served \
at a port; a Unix socket is this user's only. `hugeswap explain NAME` says what hugeswap_vmstat_NAME counts.";

/// How long it takes until a signal is noticed.
const LOOK: Duration = Duration::from_millis(100);

/// Serve the figures of running pools to Prometheus
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where: a port of this machine, or unix:PATH
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9402")]
    listen: Address,
    /// Print them once, and end
    #[arg(long, conflicts_with = "listen")]
    once: bool,
    /// Only the pool of this process: hugeswap run, or a program under it
    #[arg(long, value_name = "PID")]
    pool: Option<i32>,
}

/// Serves until the user stops it, or the pool that was named ends. Returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    let named = args.pool.map(pools::of).transpose()?;
    let metrics = || match &named {
        Some(pool) => metrics::text([pool].into_iter()),
        None => metrics::text(pools::all().values()),
    };
    if args.once {
        print!("{}", metrics());
        return Ok(0);
    }
    watch_signals()?;
    let listening = Listening::at(&args.listen)?;
    eprintln!("hugeswap: metrics are at {}", listening.at);
    let is_there = |pool: &Pool| std::path::Path::new(&format!("/proc/{}", pool.maker())).exists();
    while check_interrupted().is_ok() && named.as_ref().is_none_or(is_there) {
        listening.answer(LOOK, metrics);
    }
    Ok(0)
}

/// Does `what` while a pool's figures are served, if they are to be.
pub fn beside<T>(listening: Option<Listening>, pool: &Pool, what: impl FnOnce() -> T) -> T {
    let Some(listening) = listening else {
        return what();
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let serve = || {
            while !stop.load(Relaxed) {
                listening.answer(LOOK, || metrics::text([pool].into_iter()));
            }
        };
        let thread = std::thread::Builder::new().name("hs-metrics".into());
        if let Err(e) = thread.spawn_scoped(scope, serve) {
            crate::complain(&format!("metrics are not served: {e}"));
        }
        let done = what();
        stop.store(true, Relaxed);
        listening.wake();
        done
    })
}

//! `hugeswap bench`: ratios measured side by side in one run.
//!
//! The work is done by *workers*: this executable again, as a plain program that maps memory,
//! writes, reads and verifies it and knows nothing of hugeswap. The same worker
//! runs under `hugeswap run` and in a memory cgroup with the kernel's swap, in turn, so both engines do the
//! same work under the same load. A worker whose memory does not hold what was written fails
//! the benchmark.
//!
//! Everything that must be undone (swap areas, mounts, loop devices, cgroups) is done by one more
//! process, the *keeper*, which undoes it when told to or when this process ends in any way.

#![deny(unsafe_code)]

mod advisor;
mod ageing;
mod args;
mod bars;
mod ceiling;
mod chaos;
mod child;
mod defrag;
mod extents;
mod faults;
mod figures;
mod first_touch;
mod fit;
mod fragments;
mod keeper;
mod kernel;
mod machine;
mod memory;
mod mixed;
mod output;
mod pagemap;
mod pattern;
mod phases;
mod program;
mod runner;
mod swap_rand;
mod swap_seq;
mod together;
mod tracking;
mod turns;
mod worker;
mod workingset;
mod zipf_table;

pub use args::Args;
use hugeswap_support::interrupt::{Interrupted, watch_signals};

/// Arguments of the hidden `hugeswap __worker`.
#[derive(clap::Args)]
pub struct WorkerArgs {
    /// The kind of worker and its task.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// A mistake in how the benchmark was called: exit status 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Runs a benchmark. The exit status: 0, 1 if a run failed or its data did not verify, 2 if it was called wrongly,
/// 130 if it was interrupted. Failures are told in one line on stderr.
pub fn run(args: Args) -> anyhow::Result<i32> {
    let done = watch_signals().and_then(|()| match args.bench {
        args::Bench::SwapSeq(a) => swap_seq::run(&a),
        args::Bench::SwapRand(a) => swap_rand::run(&a),
        args::Bench::Mixed(a) => mixed::run(&a),
        args::Bench::Fit(a) => fit::run(&a),
        args::Bench::Faults(a) => faults::run(&a),
        args::Bench::Chaos(a) => chaos::run(&a),
        args::Bench::Extents(a) => extents::run(&a),
        args::Bench::Fragments(a) => fragments::run(&a),
        args::Bench::Advisor(a) => advisor::run(&a),
        args::Bench::Defrag(a) => defrag::run(&a),
        args::Bench::Program(a) => program::run(&a),
        args::Bench::Pagemap(a) => pagemap::run(&a),
        args::Bench::Tracking(a) => tracking::run(&a),
        args::Bench::Ageing(a) => ageing::run(&a),
        args::Bench::Workingset(a) => workingset::run(&a),
    });
    let Err(e) = done else { return Ok(0) };
    let status = if e.is::<Usage>() {
        2
    } else if e.is::<Interrupted>() {
        130
    } else {
        1
    };
    eprintln!(
        "hugeswap: {}",
        hugeswap_support::text::one_line(&format!("{e:#}"))
    );
    Ok(status)
}

/// A worker process of a benchmark; its exit status is 0, 1 if it could not work and 3 if memory
/// did not hold what was written.
pub fn worker(args: WorkerArgs) -> anyhow::Result<i32> {
    Ok(worker::main(&args.args))
}

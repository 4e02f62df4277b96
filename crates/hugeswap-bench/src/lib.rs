//! `hugeswap bench`: ratios measured side by side in one run.
//!
//! The work is done by *workers*: this executable again, as a plain program that maps memory,
//! writes, reads and verifies it, and knows nothing of hugeswap. The same worker runs under
//! `hugeswap run` and in a memory cgroup with the kernel's swap, in turn, so both engines do the
//! same work under the same load. A worker whose memory does not hold what was written fails the
//! benchmark.
//!
//! Everything that must be undone (swap areas, mounts, loop devices, cgroups) is done by one more
//! process, the *keeper*, which undoes it when told to or when this process ends in any way.
//!
//! # Rooms
//!
//! Each names only those before it in this list, and a benchmark names no other benchmark;
//! `.ci/walls` checks both.
//!
//! 1. `error`: mistakes in how a benchmark is called
//! 2. `machine`: the machine that figures are measured on
//! 3. `child`: child processes with a time limit
//! 4. `generate`: what workers do: patterns, programs, memory
//! 5. `options`: options that several benchmarks take
//! 6. `output`: figures, tables, charts and JSON
//! 7. `kernel`: the opponent, and its keeper
//! 8. `engines`: runs of all engines, in turn
//! 9. `benchmarks`: one file or folder each
#![forbid(unsafe_code)]

mod benchmarks;
mod child;
mod engines;
mod error;
mod generate;
mod kernel;
mod machine;
mod options;
mod output;

use anyhow::Result;
use benchmarks::{
    advisor, ageing, chaos, compressed, defrag, extents, faults, fit, fragments, mixed, pagemap,
    program, swap_rand, swap_seq, tracking, workingset,
};
use clap::Subcommand;
use error::Usage;
use generate::words::Corrupt;
use generate::worker::{self, CORRUPT};
use hugeswap_support::interrupt::{Interrupted, watch_signals};
use hugeswap_support::text::one_line;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap bench swap-seq --vs kernel
  hugeswap bench swap-rand --vs kernel --pattern zipf --theta 0.9
  hugeswap bench fit --json

MB/s are 10^6 bytes a second; sizes (SIZE) take K, M, G or T, powers of 1024. Every figure is
measured side by side in one run: quote the ratios, and look at the load printed with them.";

/// Measure swapping, side by side with the kernel's own where possible
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
    /// Print one JSON object
    #[arg(long, global = true, display_order = 998)]
    json: bool,
}

/// The benchmarks.
#[derive(Subcommand)]
enum Bench {
    /// Tasks write a range from start to end again and again in less memory than it takes
    SwapSeq(swap_seq::SwapSeq),
    /// Threads read or write 4 KiB here and there in less memory than it takes
    SwapRand(swap_rand::SwapRand),
    /// Half the threads stream while the others read at random; and one after the other
    Mixed(mixed::Mixed),
    /// Any program, plain and with a part of its memory, under hugeswap and with the kernel's swap
    Program(program::Program),
    /// How short pages become by each codec, and how long that takes: of data of known kinds, or of
    /// a program's memory
    Compressed(compressed::Compressed),
    /// Everything fits in the budget: what hugeswap costs against plain memory
    Fit(fit::Fit),
    /// Latencies of page faults by class, in signal and in message mode
    Faults(faults::Faults),
    /// What it costs to find where on the device a page of swap lies, in a file of many pieces
    Extents(extents::Extents),
    /// Swapping to a file in many pieces, against one in one piece, and against the kernel on the
    /// same file
    Fragments(fragments::Fragments),
    /// Huge pages where none is free: first touches under pressure, with each value of thp.defrag
    Defrag(defrag::Defrag),
    /// How fast a region tells what its pages are, against the kernel's pagemap
    Pagemap(pagemap::Pagemap),
    /// What it costs to know which memory is written, and snapshots of what has changed
    Tracking(tracking::Tracking),
    /// Objects of mixed sizes come and go for a long time: does swap fragment?
    Ageing(ageing::Ageing),
    /// Is what is in use kept in memory, and recognised when it was not?
    Workingset(workingset::WorkingSet),
    /// A device that fails in every way: no wrong byte, no hang, every fault accounted for
    Chaos(chaos::Chaos),
    /// What one run says of other budgets, against runs with those budgets
    Advisor(advisor::Advisor),
}

/// Arguments of the hidden `hugeswap __worker`.
#[derive(clap::Args)]
pub struct WorkerArgs {
    /// The kind of worker and its task.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Runs a benchmark. Returns the exit status: 0, 1 if a run failed or its data did not verify, 2 if
/// it was called wrongly, 130 if it was interrupted. The reason of a failure is one line on stderr.
pub fn run(Args { bench, json }: Args) -> Result<i32> {
    for line in kernel::undo_what_is_left() {
        eprintln!("hugeswap: {line}");
    }
    let done = watch_signals().and_then(|()| match bench {
        Bench::SwapSeq(b) => output::run(&b, json),
        Bench::SwapRand(b) => output::run(&b, json),
        Bench::Mixed(b) => output::run(&b, json),
        Bench::Program(b) => output::run(&b, json),
        Bench::Compressed(b) => output::run(&b, json),
        Bench::Fit(b) => output::run(&b, json),
        Bench::Faults(b) => output::run(&b, json),
        Bench::Extents(b) => output::run(&b, json),
        Bench::Fragments(b) => output::run(&b, json),
        Bench::Defrag(b) => output::run(&b, json),
        Bench::Pagemap(b) => output::run(&b, json),
        Bench::Tracking(b) => output::run(&b, json),
        Bench::Ageing(b) => output::run(&b, json),
        Bench::Workingset(b) => output::run(&b, json),
        Bench::Chaos(b) => output::run(&b, json),
        Bench::Advisor(b) => output::run(&b, json),
    });
    let Err(e) = done else { return Ok(0) };
    eprintln!("hugeswap: {}", one_line(&format!("{e:#}")));
    Ok(match () {
        () if e.is::<Usage>() => 2,
        () if e.is::<Interrupted>() => 130,
        () => 1,
    })
}

/// A worker process of a benchmark. Returns its exit status: 0, 1 if it could not work, 3 if memory
/// did not hold what was written.
pub fn worker(args: WorkerArgs) -> Result<i32> {
    let [kind, task, more @ ..] = &args.args[..] else {
        anyhow::bail!("this is for hugeswap bench only: use `hugeswap bench`");
    };
    hugeswap_support::panic::tell_from_all_threads();
    let done = match kind.as_str() {
        "work" => child::task(task).and_then(|work| worker::coordinate(&work)),
        "task" => child::task(task).and_then(|work| worker::task(&work)),
        "faults" => child::task(task).and_then(|task| faults::worker(&task)),
        "first-touch" => child::task(task).and_then(faults::first_touch),
        "ageing" => child::task(task).and_then(|task| ageing::worker(&task)),
        "chaos" => child::task(task).and_then(|task| chaos::worker(&task)),
        "exec" => {
            child::task(task).and_then(|procs: std::path::PathBuf| worker::exec(&procs, more))
        }
        "keeper" => kernel::keeper::main(),
        kind => Err(anyhow::anyhow!("there is no worker of the kind {kind}")),
    };
    let Err(e) = done else { return Ok(0) };
    eprintln!("hugeswap: worker: {e:#}");
    Ok(if e.is::<Corrupt>() { CORRUPT } else { 1 })
}

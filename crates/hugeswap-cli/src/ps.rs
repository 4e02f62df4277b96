//! `hugeswap ps`: pools and their processes.

use crate::ctl::pools;
use crate::stat::show::short;
use anyhow::Result;
use hugeswap_engine::pool::Pool;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::counters::Counter;
use serde_json::{Value, json};
use std::fmt::Write as _;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap ps
  hugeswap ps --json | jq '.[].processes[].pid'

Columns: managed memory in use, the budget of the pool, what is in swap (of a process: about).";

/// List running pools and their processes
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print one JSON array, sizes in bytes
    #[arg(long)]
    json: bool,
}

/// Prints the pools that this user may look at. Returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    let all = pools::all();
    if args.json {
        let all: Vec<_> = all.values().map(as_json).collect();
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else if all.is_empty() {
        println!("no pool is running that this user may look at");
    } else {
        let mut text = "     PID   IN USE   BUDGET  SWAPPED  COMMAND\n".to_owned();
        all.values().for_each(|pool| add(&mut text, pool));
        print!("{text}");
    }
    Ok(0)
}

fn add(text: &mut String, pool: &Pool) {
    let mut line = |pid: i32, in_use: u64, budget: &str, swapped: u64, command: &str| {
        let (in_use, swapped) = (short(in_use), short(swapped));
        let _ = writeln!(
            text,
            "{pid:>8} {in_use:>8} {budget:>8} {swapped:>8}  {command}"
        );
    };
    let maker = pool.maker();
    line(
        maker,
        pool.used_frames() * UNIT_BYTES,
        &short(pool.frames() * UNIT_BYTES),
        pool.swap_usage().used_bytes(),
        &pools::short_command_of(maker),
    );
    let mut processes: Vec<_> = pool.processes().collect();
    processes.sort_by_key(|p| p.pid);
    for p in processes {
        let command = format!("  {}", pools::short_command_of(p.pid));
        line(p.pid, p.resident_bytes, "", p.swapped_bytes, &command);
    }
}

fn as_json(pool: &Pool) -> Value {
    let processes = pool.processes().map(|p| {
        json!({
            "pid": p.pid,
            "command": pools::command_of(p.pid),
            "resident_bytes": p.resident_bytes,
            "zswap_bytes": p.zswap_bytes,
            "foreign_bytes": p.foreign_bytes,
            "swapped_bytes": p.swapped_bytes,
            Counter::PswpIn.name(): p.pages_in,
            Counter::PswpOut.name(): p.pages_out,
            "faults_major": p.major_faults,
            "fault_s": p.fault_ns as f64 / 1e9,
        })
    });
    json!({
        "pid": pool.maker(),
        "command": pools::command_of(pool.maker()),
        "memory_bytes": pool.frames() * UNIT_BYTES,
        "resident_bytes": pool.used_frames() * UNIT_BYTES,
        "swap_used_bytes": pool.swap_usage().used_bytes(),
        "processes": processes.collect::<Vec<_>>(),
    })
}

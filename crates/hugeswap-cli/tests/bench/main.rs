//! `hugeswap bench`: what it prints, what it refuses, and that it leaves nothing behind.

mod compressed;
mod defrag;
mod kernel;
mod mistakes;
mod patterns;
mod program;
mod swap;
mod workingset;

use assert_cmd::Command;
use serde_json::Value;

fn bench(args: &[&str]) -> Command {
    let mut c = Command::cargo_bin("hugeswap").expect("the command is built");
    c.arg("bench")
        .args(args)
        .timeout(std::time::Duration::from_secs(300));
    c
}

/// Runs a benchmark with `--json`; its one object.
fn json(args: &[&str]) -> Value {
    let done = bench(args).arg("--json").assert().success();
    serde_json::from_slice(&done.get_output().stdout).expect("one JSON object")
}

fn runs<'a>(found: &'a Value, engine: &str) -> Vec<&'a Value> {
    let runs = found["runs"].as_array().expect("a list of runs");
    runs.iter().filter(|r| r["engine"] == engine).collect()
}

/// The phases of a run, by name.
fn phases(run: &Value) -> std::collections::BTreeMap<&str, &Value> {
    let phases = run["phases"].as_array().expect("a list of phases");
    let named = phases
        .iter()
        .map(|p| (p["name"].as_str().expect("a name"), p));
    named.collect()
}

const SMALL: [&str; 6] = ["--region", "48M", "--memory", "24M", "--pairs", "1"];

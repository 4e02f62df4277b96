//! `hugeswap bench`: what it prints, what it refuses, and that it leaves nothing behind.

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

fn areas_on() -> String {
    std::fs::read_to_string("/proc/swaps").unwrap_or_default()
}

#[test]
fn swap_seq_swaps_and_verifies() {
    let args = [
        "swap-seq", "--region", "128M", "--memory", "64M", "--pairs", "1",
    ];
    let found = json(
        &[
            &args[..],
            &["--tasks", "2", "--rounds", "3", "--read-only-pass"],
        ]
        .concat(),
    );
    assert_eq!(found["bench"], "swap-seq");
    assert!(found["machine"]["cpus"].as_u64() > Some(0));
    assert_eq!(found["load"].as_array().map(Vec::len), Some(3));
    let runs = runs(&found, "hugeswap");
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0]["verified"], true);
    assert_eq!(runs[0]["verified_share"], 1.0);
    assert_eq!(runs[0]["mb_s"].as_array().map(Vec::len), Some(3));
    assert_eq!(runs[0]["read_mb_s"].as_array().map(Vec::len), Some(3));
    assert!(runs[0]["counters"]["thp_swpin"].as_u64() > Some(0));
}

#[test]
fn fit_compares_with_plain_memory() {
    let args = [
        "fit", "--region", "64M", "--rounds", "2", "--reads", "1000", "--pairs", "1",
    ];
    let found = json(&args);
    assert_eq!(runs(&found, "hugeswap").len(), 1);
    assert_eq!(runs(&found, "plain").len(), 2);
    assert!(found["ratios"]["work_time_vs_plain_thp_on"].as_f64() > Some(0.0));
}

#[test]
fn faults_come_by_class() {
    let found = json(&[
        "faults",
        "--memory",
        "64M",
        "--fault-mode",
        "signal",
        "--pairs",
        "1",
    ]);
    let run = runs(&found, "hugeswap")[0];
    assert_eq!(run["fault_mode"], "signal");
    for class in ["first_touch", "soft", "major_2m"] {
        assert!(run["faults"][class]["count"].is_u64(), "{class}");
    }
}

#[test]
fn the_kernel_is_measured_and_everything_undone() {
    let before = areas_on();
    let args = [
        "swap-seq", "--region", "64M", "--memory", "32M", "--vs", "kernel", "--pairs", "1",
    ];
    let found = json(&args);
    assert_eq!(areas_on(), before);
    let kernel = runs(&found, "kernel");
    if let Some(reason) = found["skipped"].as_array().and_then(|s| s.first()) {
        println!("skipped: {reason}");
        assert!(kernel.is_empty());
        return;
    }
    assert_eq!(kernel.len(), 2);
    for run in kernel {
        assert_eq!(run["verified"], true);
        assert!(run["counters"]["pswpout"].as_u64() > Some(0));
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let devices = found["runs"].as_array().map_or(0, Vec::len);
    assert_eq!(devices, 3);
    assert!(!mounts.contains("hugeswap-bench"), "{mounts}");
}

#[test]
fn mistakes_are_one_line_and_status_2() {
    for args in [
        &["swap-seq", "--region", "0"][..],
        &["swap-seq", "--region", "lots"],
        &["swap-seq", "--tasks", "0"],
        &["swap-seq", "--memory", "900T"],
        &["swap-seq", "--rounds", "0"],
        &["swap-seq", "--pairs", "0"],
        &["swap-seq", "--device", "/nonexistent"],
        &["swap-seq", "--device", "ram", "--swap", "/tmp"],
        &["swap-seq", "--region", "4M", "--tasks", "3"],
        &["swap-seq", "--vs", "nobody"],
        &["swap-seq", "--set", "nothing=1"],
        &["fit", "--memory", "2M"],
        &["faults", "--region", "2M"],
    ] {
        let done = bench(args).assert().code(2);
        let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        assert!(text.starts_with("hugeswap: "), "{args:?}: {text}");
    }
}

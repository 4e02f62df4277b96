//! Against the kernel, which leaves nothing behind.

use crate::{bench, runs};
use serde_json::Value;
use std::sync::{PoisonError, RwLock};

/// zswap is before every swap area of the machine, and so held for writing by the test that turns it on.
static AREAS: RwLock<()> = RwLock::new(());

/// What a benchmark against the kernel found, and how many kernel runs there were (none where that is not permitted);
/// nothing may be left of what was set up for them.
fn against_kernel(args: &[&str]) -> (Value, usize) {
    let _held = AREAS.read().unwrap_or_else(PoisonError::into_inner);
    measured(args)
}

fn measured(args: &[&str]) -> (Value, usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let (name, rest) = args.split_first().expect("a benchmark");
    let done = bench(&[*name])
        .args(["--vs", "kernel", "--pairs", "1", "--json"])
        .args(rest)
        .env("TMPDIR", dir.path())
        .assert()
        .success();
    let found: Value = serde_json::from_slice(&done.get_output().stdout).expect("one JSON object");
    let place = dir.path().to_str().expect("a path in UTF-8");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    assert!(!mounts.contains(place), "{mounts}");
    for disk in std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten()
    {
        let file = std::fs::read_to_string(disk.path().join("loop/backing_file"));
        assert!(
            !file.unwrap_or_default().contains(place),
            "{:?}",
            disk.path()
        );
    }
    let left = std::fs::read_dir(place).expect("the directory").count();
    assert_eq!(left, 0);
    let kernel = runs(&found, "kernel");
    if let Some(reason) = found["skipped"].as_array().and_then(|s| s.first()) {
        println!("skipped: {reason}");
        assert!(kernel.is_empty());
    }
    for run in &kernel {
        assert_eq!(run["verified"], true);
        assert!(run["counters"]["pswpout"].as_u64() > Some(0));
    }
    let count = kernel.len();
    (found, count)
}

#[test]
fn the_kernel_is_measured_and_everything_undone() {
    let (found, kernel) = against_kernel(&["swap-seq", "--region", "64M", "--memory", "32M"]);
    if kernel > 0 {
        assert_eq!(kernel, 2);
        assert_eq!(found["runs"].as_array().map(Vec::len), Some(3));
        assert!(found["ratios"]["write_vs_kernel_thp_on"].is_number());
    }
}

#[test]
fn the_kernel_reads_at_random_from_zram() {
    let args = [
        "swap-rand",
        "--region",
        "256M",
        "--memory",
        "128M",
        "--seconds",
        "0.5",
        "--device",
        "zram",
    ];
    let (found, kernel) = against_kernel(&[&args[..], &["--kernel-thp", "off"]].concat());
    if kernel > 0 {
        assert_eq!(kernel, 1);
        let run = runs(&found, "kernel")[0];
        assert_eq!(run["device"], "zram");
        assert!(run["miss_share"].as_f64() > Some(0.0), "{run}");
        assert!(found["ratios"]["speed_vs_kernel_thp_off"].is_number());
    }
}

#[test]
fn the_kernel_has_zram_within_its_limit() {
    // Some 90 MiB of objects and short texts, and a word that comes of them.
    let script = "d = {i: str(i) * 3 for i in range(500_000)}\nprint(sum(map(len, d.values())))";
    let args = [
        "program",
        "--memory",
        "64M",
        "--device",
        "mem",
        "--kernel-thp",
        "off",
    ];
    let (found, kernel) = against_kernel(&[&args[..], &["--", "python3", "-c", script]].concat());
    let managed = &runs(&found, "hugeswap")[0]["counters"];
    assert!(managed["zswpout"].as_u64() > Some(0), "{managed}");
    assert_eq!(managed["zswpout"], managed["pswpout"]);
    if kernel > 0 {
        assert_eq!(kernel, 1);
        assert!(
            found["ratios"]["time_vs_kernel_thp_off_at_64 MiB"].is_number(),
            "{found}"
        );
    }
}

#[test]
fn the_kernel_has_zswap_before_its_area() {
    let _alone = AREAS.write().unwrap_or_else(PoisonError::into_inner);
    let enabled = || std::fs::read_to_string("/sys/module/zswap/parameters/enabled").ok();
    let before = enabled();
    let args = [
        "swap-seq",
        "--region",
        "64M",
        "--memory",
        "32M",
        "--compressible",
        "3",
    ];
    let (found, kernel) =
        measured(&[&args[..], &["--kernel-zswap", "--kernel-thp", "off"]].concat());
    if kernel > 0 {
        assert_eq!(kernel, 1);
        let run = runs(&found, "kernel")[0];
        assert_eq!(run["zswap"], true);
        assert!(run["counters"]["zswpout"].as_u64() > Some(0), "{run}");
    }
    assert_eq!(enabled(), before);
}

#[test]
fn the_kernel_thrashes_too() {
    let part = [
        "workingset",
        "--parts",
        "thrash",
        "--also",
        "thp.enabled=never",
    ];
    let sizes = [
        "--memory",
        "128M",
        "--cold",
        "160M",
        "--hot",
        "16M",
        "--reads",
        "40M",
        "--repeats",
        "2",
    ];
    let (found, kernel) = against_kernel(&[&part[..], &sizes, &["--kernel-thp", "off"]].concat());
    assert_eq!(runs(&found, "hugeswap").len(), 2);
    if kernel > 0 {
        assert_eq!(kernel, 1);
        let run = runs(&found, "kernel")[0];
        assert!(run["pages_in"].as_u64() > Some(0), "{run}");
        assert!(found["ratios"]["thrash_pages_in_vs_kernel_thp_off"].is_number());
    }
}

/// A benchmark is killed with all its processes, as by the end of a container: the next one undoes what it has set up.
#[test]
fn what_a_killed_benchmark_left_is_undone_by_the_next() {
    use std::process::{Command, Stdio};
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().to_str().expect("a path in UTF-8");
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("hugeswap"))
        .args(["bench", "swap-seq", "--vs", "kernel", "--pairs", "1"])
        .args(["--region", "300M", "--memory", "150M", "--rounds", "1"])
        .args(["--kernel-rounds", "1000"])
        .env("TMPDIR", place)
        .stdout(Stdio::null())
        .spawn()
        .expect("the command is built");
    let of = |pid: u32| format!("/proc/{pid}/task/{pid}/children");
    let journal = |pid: &str| format!("/run/hugeswap-bench-{pid}.undo");
    let swapping = |pid: &&str| {
        let noted = std::fs::read_to_string(journal(pid)).unwrap_or_default();
        noted.contains("Swap") && noted.contains(place)
    };
    let keeper = loop {
        if child.try_wait().expect("it can be waited for").is_some() {
            println!("skipped: the kernel is not measured here");
            return;
        }
        let children = std::fs::read_to_string(of(child.id())).unwrap_or_default();
        if let Some(pid) = children.split_whitespace().find(swapping) {
            break pid.to_owned();
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let kill = |pid: &str| Command::new("kill").args(["-9", pid]).status();
    kill(&keeper).expect("kill is there");
    child.kill().expect("it runs");
    child.wait().expect("it is dead");
    let mounted = || {
        let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
        mounts.contains(place)
    };
    assert!(mounted(), "nothing was left: the test tests nothing");
    let next = ["swap-seq", "--region", "64M", "--memory", "32M"];
    bench(&next)
        .args(["--pairs", "1", "--rounds", "1"])
        .assert()
        .success();
    // (A benchmark of another test may have been faster, and be at it still.)
    let start = std::time::Instant::now();
    while mounted() || std::fs::read_dir(place).expect("the directory").count() > 0 {
        assert!(start.elapsed().as_secs() < 60, "{place} is mounted still");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(!std::path::Path::new(&journal(&keeper)).exists());
}

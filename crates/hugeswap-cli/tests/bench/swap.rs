//! Benchmarks of swap itself: faulty devices, files in pieces, and how swap ages.

use crate::{bench, json, runs};
use serde_json::Value;

/// A short run, the same each time as far as threads allow.
const CHAOS: &[&str] = &[
    "chaos",
    "--region",
    "96M",
    "--memory",
    "32M",
    "--seconds",
    "4",
];

#[test]
fn chaos_makes_no_wrong_bytes() {
    for (seed, mode) in [("1", "signal"), ("2", "signal"), ("3", "message")] {
        let args = [CHAOS, &["--seed", seed, "--fault-mode", mode, "--json"]].concat();
        let done = bench(&args).output().expect("it runs");
        let why = String::from_utf8_lossy(&done.stderr).into_owned();
        if mode == "message" && why.contains("message mode needs") {
            continue;
        }
        assert!(done.status.success(), "seed {seed}: {why}");
        let found: Value = serde_json::from_slice(&done.stdout).expect("one JSON object");
        let told = &runs(&found, "hugeswap")[0]["told"];
        let count = |name: &str| told["counters"][name].as_u64().expect(name);
        assert!(told["verified"].as_u64() > Some(0));
        assert!(told["children"].as_u64() > Some(0), "{mode}: {told}");
        assert!(count("fault_injected_eio") + count("fault_injected_flip") > 0);
        assert!(count("pswpin") > 0 && count("pswpout") > 0);
    }
}

/// That it would be told.
#[test]
fn chaos_without_checksums_is_noticed() {
    let kinds = ["--kinds", "flip,misread", "--set", "swap.checksum=off"];
    let done = bench(&[CHAOS, &kinds].concat()).assert().code(1);
    let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(text.contains("pages with wrong bytes"), "{text}");
    assert!(text.contains("spoilt reads not noticed"), "{text}");
}

#[test]
fn extents_are_looked_up_in_every_map() {
    let found = json(&[
        "extents",
        "--extents",
        "1,300",
        "--tasks",
        "1,3",
        "--area",
        "1G",
        "--seconds",
        "0.01",
        "--threads",
        "2",
        "--pairs",
        "1",
    ]);
    assert_eq!(
        (&found["bench"], &found["access"]),
        (&"extents".into(), &"seq".into())
    );
    let transfers = found["transfers"].as_array().expect("a list");
    assert_eq!(transfers.len(), 2 * 2 * 2 * 3);
    for t in transfers {
        assert!(t["mb_s"].as_f64() > Some(0.0), "{t}");
        let share = t["look_up_share"].as_f64().expect("a number");
        assert!((0.0..=1.0).contains(&share), "{t}");
    }
    let look_ups = found["look_ups"].as_array().expect("a list");
    assert_eq!(look_ups.len(), 2 * 4);
    for l in look_ups {
        assert!(l["waiting_ns"].as_f64() > Some(0.0), "{l}");
        assert!(l["threads_ns"].as_f64() > Some(0.0), "{l}");
    }
    let ours = look_ups
        .iter()
        .find(|l| l["map"] == "hugeswap" && l["extents"] == 300);
    let bytes = ours.expect("hugeswap's map")["bytes"]
        .as_u64()
        .expect("a number");
    assert!((300 * 10..300 * 13).contains(&bytes), "{bytes}");
    assert!(found["ratios"]["look_up_speed_vs_ordered_map"].is_number());
    assert!(found["ratios"]["transfers_4k_vs_list_3_tasks"].is_number());
}

#[test]
fn fragments_swaps_to_files_in_pieces() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let place = dir.path().to_str().expect("a path of text");
    let sizes = ["--region", "48M", "--memory", "24M", "--rounds", "2"];
    let args = [
        "fragments",
        "--extents",
        "100",
        "--tasks",
        "1,2",
        "--swap",
        place,
    ];
    let found = json(&[&args[..], &sizes, &["--pairs", "1"]].concat());
    assert_eq!(found["bench"], "fragments");
    let runs = runs(&found, "hugeswap");
    if found["skipped"].is_array() {
        return println!("skipped: {}", found["skipped"]);
    }
    assert_eq!(runs.len(), 4);
    for run in &runs {
        assert_eq!(run["verified"], true);
        assert!(run["counters"]["pswpout"].as_u64() > Some(0));
    }
    assert_eq!(runs[1]["extents"], 100);
    assert!(runs[0]["extents"].as_u64() < Some(100));
    assert!(found["ratios"]["2_tasks_100_extents_vs_contiguous"].is_number());
    let left = std::fs::read_dir(dir.path()).expect("it is there").count();
    assert_eq!(left, 0, "something was left behind");
}

#[test]
fn ageing_looks_at_swap_after_each_round() {
    let dir = tempfile::tempdir().expect("a directory");
    let plot = dir.path().join("ageing.svg");
    let plot = plot.to_str().expect("a path of text");
    let sizes = ["--region", "48M", "--memory", "24M", "--rounds", "6"];
    let found = json(&[&["ageing", "--plot", plot][..], &sizes].concat());
    let run = runs(&found, "hugeswap")[0];
    assert_eq!(run["verified"], true);
    let series = run["series"].as_array().expect("a list");
    assert_eq!(series.len(), 6);
    for point in series {
        let share = |name: &str| point[name].as_f64().expect("a share");
        let all = share("used") + share("whole") + share("split");
        assert!((all - 1.0).abs() < 0.01, "{point}");
    }
    for name in ["end_vs_start", "end_vs_new", "whole_of_free_last_quarter"] {
        assert!(found["ratios"][name].as_f64() > Some(0.0), "{name}");
    }
    // Of so little memory nothing may be free, or nothing in whole units, whenever it is looked at.
    let some_free = series.iter().any(|p| p["memory_free"].as_f64() > Some(0.0));
    let share = found["ratios"]["whole_of_free_memory"].as_f64();
    assert_eq!(share.is_some(), some_free);
    assert!(share.is_none_or(|s| (0.0..=1.0).contains(&s)), "{share:?}");
    let svg = std::fs::read_to_string(plot).expect("a plot");
    assert_eq!(svg.matches("<polyline").count(), 3);
}

#[test]
fn what_pages_are_is_asked_in_every_way() {
    for kind in [&[][..], &["--shared"]] {
        let args = ["pagemap", "--region", "64M", "--memory", "16M"];
        let found = json(&[&args[..], &["--pairs", "1"], kind].concat());
        let rates = found["rates"].as_array().expect("a list");
        assert_eq!(rates.len(), 6);
        assert!(rates.iter().all(|r| r["pages_s"].as_f64() > Some(0.0)));
        assert!(found["ratios"]["ranges_vs_kernel_scan"].is_number());
    }
}

#[test]
fn what_is_written_is_tracked_and_snapshots_are_made() {
    let found = json(&[
        "tracking", "--region", "32M", "--rounds", "1", "--pairs", "1",
    ]);
    assert!(found["ratios"]["tracked_vs_plain"].as_f64() > Some(0.0));
    let made = found["snapshots"].as_array().expect("a list");
    assert_eq!(made.len(), 4);
    let all = made[0]["full_bytes"].as_f64().expect("a number");
    assert!(all > 32e6);
    // Of single pages, where there are any, no more than what was written.
    assert!(made.iter().all(|m| m["change_bytes"].as_f64() <= Some(all)));
}

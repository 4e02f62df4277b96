//! `defrag`: each of its programs, small.

use crate::{json, phases, runs};
use serde_json::Value;

/// One part; what every run of it has to have.
fn defrag(part: &str, more: &[&str]) -> Value {
    let small = ["--memory", "24M", "--seconds", "0.5", "--settle", "0.1"];
    let found = json(&[&["defrag", "--parts", part][..], &small, more].concat());
    assert_eq!(found["bench"], "defrag");
    for run in runs(&found, "hugeswap") {
        assert_eq!(
            (&run["part"], &run["verified_share"]),
            (&part.into(), &1.0.into())
        );
        let phases = phases(run);
        for name in [part, "settled"] {
            for counter in [
                "allocstall",
                "compact_stall",
                "thp_fault_alloc",
                "thp_fault_fallback",
            ] {
                assert!(
                    phases[name]["counters"][counter].is_u64(),
                    "{counter}: {run}"
                );
            }
        }
        let settled = &phases["settled"]["groups"][0];
        if let Some(present) = settled["present_bytes"].as_u64() {
            assert!((1..=24 << 20).contains(&present), "{settled}");
            let share = settled["huge_share"].as_f64().expect("a share");
            assert!((0.0..=1.0).contains(&share), "{settled}");
        }
    }
    found
}

#[test]
fn fill_runs_under_every_policy() {
    let found = defrag("fill", &["--threads", "1,2"]);
    let runs = runs(&found, "hugeswap");
    let policies: Vec<_> = runs.iter().map(|r| &r["policy"]).collect();
    let all = [
        "direct",
        "always",
        "defer",
        "defer+madvise",
        "madvise",
        "never",
    ];
    assert_eq!(policies, [all, all].concat());
    for (n, run) in runs.iter().enumerate() {
        let groups = &phases(run)["fill"]["groups"];
        // 80% of 24 MiB, in whole huge pages.
        let filled = (&groups[0]["work"], &groups[0]["accesses"]);
        assert_eq!(filled, (&"fill".into(), &(18 << 8).into()));
        assert_eq!(groups[0]["threads"], 1 + n as u64 / 6);
        assert_eq!(groups[1]["work"], "stream read");
        assert_eq!(run["region_bytes"], 42 << 20);
    }
    let ratios = &found["ratios"];
    for name in [
        "fill_elapsed_madvise_vs_direct",
        "fill_elapsed_2_threads_defer_madvise_vs_direct",
    ] {
        assert!(ratios[name].as_f64() > Some(0.0), "{name}: {ratios}");
    }
}

#[test]
fn first_touches_are_told_by_what_they_brought() {
    let more = ["--threads", "2", "--policies", "always,defer", "--advise"];
    let found = defrag("touch", &more);
    let runs = runs(&found, "hugeswap");
    assert_eq!(runs.len(), 2);
    for run in &runs {
        assert_eq!(run["advised"], true);
        let phases = phases(run);
        assert!(phases["scattered"]["counters"]["fault_major_4k"].as_u64() > Some(0));
        let touched = &phases["touch"]["groups"][0];
        assert_eq!(touched["accesses"], 48 << 8);
        assert!(touched["p50_us"].as_f64() <= touched["p99_us"].as_f64());
        let count = |kind: &str| touched[kind]["count"].as_u64().unwrap_or(0);
        // A unit came whole, or at least its first page was waited for.
        assert!(count("huge") + count("base") >= 24, "{touched}");
        let counted = |name: &str| phases["touch"]["counters"][name].as_u64().expect(name);
        let whole = [
            "thp_fault_alloc",
            "thp_collapse_alloc",
            "khugepaged_pages_collapsed",
        ];
        let whole = whole.into_iter().map(counted).sum();
        assert!(count("huge") <= whole, "{run}");
    }
    assert!(found["ratios"]["touch_p99_2_threads_defer_vs_always"].as_f64() > Some(0.0));
}

#[test]
fn stutter_maps_again_and_again_beside_writers() {
    let found = defrag("stutter", &["--policies", "madvise,never", "--map", "4M"]);
    let runs = runs(&found, "hugeswap");
    assert_eq!(runs.len(), 2);
    for run in &runs {
        let groups = &phases(run)["stutter"]["groups"];
        assert_eq!(
            (&groups[0]["work"], &groups[0]["threads"]),
            (&"map and touch".into(), &1.into())
        );
        assert!(groups[0]["accesses"].as_u64() > Some(0));
        assert!(groups[0]["p99_us"].as_f64() <= groups[0]["max_us"].as_f64());
        assert_eq!(
            (&groups[1]["work"], &groups[1]["threads"]),
            (&"stream write".into(), &2.into())
        );
        assert!(phases(run)["stutter"]["counters"]["pswpout"].as_u64() > Some(0));
    }
    assert!(found["ratios"]["stutter_p99_never_vs_madvise"].as_f64() > Some(0.0));
}

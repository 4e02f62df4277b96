//! Work on memory: in sequence, at random, mixed, fitting, and fault by fault.

use crate::{SMALL, json, phases, runs};

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
fn swap_seq_shares_and_verifies() {
    let features = hugeswap_sys::uffd::feature::WP_SHMEM;
    match hugeswap_sys::uffd::open(hugeswap_sys::uffd::USER_MODE_ONLY, features) {
        Ok((fd, _)) => hugeswap_sys::fs::close(fd),
        Err(e) => return println!("skipped: no userfaultfd: {e}"),
    }
    let args = ["swap-seq", "--shared", "--tasks", "2", "--read-only-pass"];
    let found = json(&[&args[..], &SMALL].concat());
    let runs = runs(&found, "hugeswap");
    assert_eq!(runs[0]["verified"], true);
    // Nothing that is not shared is managed: it was shared memory that was swapped.
    assert_eq!(runs[0]["counters"]["peak_managed_bytes"], 48 << 20);
    assert!(runs[0]["counters"]["pswpin"].as_u64() > Some(0));
}

#[test]
fn swap_rand_reads_for_a_time_and_verifies() {
    let args = ["swap-rand", "--seconds", "1", "--threads", "2"];
    let found = json(&[&args[..], &SMALL].concat());
    assert_eq!(found["bench"], "swap-rand");
    let run = runs(&found, "hugeswap")[0];
    assert_eq!(
        (&run["pattern"], &run["access"], &run["verified_share"]),
        (&"uniform".into(), &"read".into(), &1.0.into())
    );
    assert!(run["us_per_access"].as_f64() > Some(0.0));
    assert!(run["accesses_s"].as_f64() > Some(0.0));
    // Half the region does not fit.
    assert!(run["miss_share"].as_f64() > Some(0.0), "{run}");
    let phase = phases(run)["random"];
    assert!(phase["counters"]["pswpin"].as_u64() > Some(0));
    assert_eq!(phase["groups"][0]["work"], "random read");
    assert!(
        !phase["groups"][0]["series"]
            .as_array()
            .expect("a list")
            .is_empty()
    );
}

#[test]
fn swap_rand_writes_so_many_times_under_several_settings() {
    let args = [
        "swap-rand",
        "--access",
        "write",
        "--accesses",
        "240",
        "--tasks",
        "2",
        "--threads",
        "2",
    ];
    let pattern = [
        "--pattern",
        "zipf",
        "--theta",
        "1",
        "--also",
        "readahead.max=0",
    ];
    let found = json(&[&args[..], &pattern, &SMALL].concat());
    let runs = runs(&found, "hugeswap");
    assert_eq!(runs.len(), 2);
    for run in &runs {
        let group = &phases(run)["random"]["groups"][0];
        assert_eq!(
            (&group["accesses"], &group["threads"]),
            (&240.into(), &4.into())
        );
        assert_eq!(run["verified_share"], 1.0);
    }
    assert_eq!(runs[1]["also"], "readahead.max=0");
    let speed = &found["ratios"]["speed_vs_hugeswap_readahead_max_0"];
    assert!(speed.as_f64() > Some(0.0), "{found}");
}

#[test]
fn swap_rand_fills_a_table() {
    let dir = tempfile::tempdir().expect("a directory");
    let plot = dir.path().join("zipf.svg");
    let plot = plot.to_str().expect("a path in UTF-8");
    let args = [
        "swap-rand",
        "--table",
        "--plot",
        plot,
        "--memory",
        "24M",
        "--thetas",
        "0.5,1.1",
        "--ratios",
        "0.5,2",
        "--threads",
        "1,2",
        "--seconds",
        "0.2",
        "--pairs",
        "1",
    ];
    let found = json(&args);
    let cells = found["cells"].as_array().expect("a list");
    assert_eq!(cells.len(), 8);
    for c in cells {
        for engine in ["hugeswap", "hugeswap, workingset.detection=off"] {
            assert!(c["accesses_s"][engine].as_f64() > Some(0.0), "{c}");
        }
        let ratio = &c["hugeswap_vs"]["hugeswap, workingset.detection=off"];
        assert!(ratio.as_f64() > Some(0.0), "{c}");
    }
    let runs = runs(&found, "hugeswap");
    assert_eq!(runs.len(), 16);
    let last = runs[15];
    assert_eq!(
        (&last["threads"], &last["ratio"], &last["theta"]),
        (&2.into(), &2.0.into(), &1.1.into())
    );
    assert_eq!(
        (&last["region_bytes"], &last["verified_share"]),
        (&(48 << 20).into(), &1.0.into())
    );
    assert!(last["pages_in"].as_u64() > Some(0), "{last}");
    let picture = std::fs::read_to_string(plot).expect("a picture");
    // Two engines, four panels of two rows, and what they are called.
    assert_eq!(picture.matches("<rect").count(), 1 + 4 * (2 + 2 * 2));
}

#[test]
fn mixed_work_has_figures_for_each_half_and_a_picture() {
    let dir = tempfile::tempdir().expect("a directory");
    let plot = dir.path().join("mixed.svg");
    let plot = plot.to_str().expect("a path in UTF-8");
    let args = ["mixed", "--seconds", "0.5", "--plot", plot];
    let found = json(&[&args[..], &SMALL].concat());
    let runs = runs(&found, "hugeswap");
    let parts: Vec<_> = runs.iter().map(|r| &r["part"]).collect();
    assert_eq!(parts, ["stream", "random", "together", "change"]);
    let together = &phases(runs[2])["together"]["groups"];
    assert!(together[0]["mb_s"].as_f64() > Some(0.0));
    assert!(together[1]["us_per_access"].as_f64() > Some(0.0));
    let changes = phases(runs[3]);
    for name in ["streamed", "read at random", "streamed again"] {
        let group = &changes[name]["groups"][0];
        assert_eq!(group["threads"], 2);
        assert!(
            group["series"].as_array().map(Vec::len) > Some(1),
            "{group}"
        );
    }
    for run in runs {
        assert_eq!(run["verified_share"], 1.0);
    }
    for name in ["stream_together_vs_alone", "random_together_vs_alone"] {
        assert!(found["ratios"][name].is_number(), "{name}");
    }
    let picture = std::fs::read_to_string(plot).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("<polyline"));
}

#[test]
fn reads_beside_write_behind_are_timed() {
    let args = ["mixed", "--seconds", "0.5", "--parts", "write-behind"];
    let found = json(&[&args[..], &SMALL].concat());
    let groups = &phases(runs(&found, "hugeswap")[0])["write-behind"]["groups"];
    assert_eq!(groups[0]["work"], "fresh write");
    let us = |name: &str| {
        groups[1][name]
            .as_f64()
            .unwrap_or_else(|| panic!("{groups}"))
    };
    assert!(us("p50_us") <= us("p99_us") && us("p99_us") <= us("p99_9_us"));
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

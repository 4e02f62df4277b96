//! `workingset`.

use crate::{json, phases, runs};
use serde_json::Value;

const SMALL_PROGRAMS: [&str; 14] = [
    "--memory",
    "24M",
    "--stream",
    "3",
    "--cold",
    "44M",
    "--hot",
    "8M",
    "--reads",
    "12M",
    "--repeats",
    "4",
    "--pairs",
    "1",
];

#[test]
fn workingset_counts_pages() {
    let off = ["workingset", "--also", "workingset.detection=off"];
    let found = json(&[&off[..], &SMALL_PROGRAMS].concat());
    assert_eq!(found["bench"], "workingset");
    let runs = runs(&found, "hugeswap");
    // Two programs, each with detection and without.
    assert_eq!(runs.len(), 4);
    for run in &runs {
        assert_eq!(run["verified_share"], 1.0);
        for name in [
            "pages_in",
            "pages_out",
            "set_up_pages_in",
            "set_up_pages_out",
        ] {
            assert!(run[name].is_u64(), "{name}: {run}");
        }
    }
    for run in &runs[..2] {
        assert_eq!(
            (&run["part"], &run["hot_pages"]),
            (&"stream".into(), &(12 << 8).into())
        );
        // 12M and 72M are written, and 24M stay.
        let out = run["pages_out"].as_u64().expect("a number");
        assert!(out + 512 >= 48 << 8, "{run}");
        assert!(run["hot_back_share"].is_number());
        assert_eq!(phases(run)["measured"]["groups"][0]["work"], "program");
    }
    for run in &runs[2..] {
        assert_eq!(
            (&run["part"], &run["floor_pages"]),
            (&"thrash".into(), &(48 << 8).into())
        );
        // Of 12M of cold memory that is new each time, hardly any can be there.
        assert!(run["pages_in"].as_u64() > Some(4 << 8), "{run}");
        assert!(run["share_of_floor"].is_number());
    }
    let ratio = &found["ratios"]["thrash_pages_in_without_detection"];
    assert!(ratio.as_f64() > Some(0.0), "{found}");
}

#[test]
fn workingset_compares_on_traces_and_draws() {
    let dir = tempfile::tempdir().expect("a directory");
    let plot = dir.path().join("traces.svg");
    let plot = plot.to_str().expect("a path in UTF-8");
    let args = [
        "workingset",
        "--parts",
        "traces",
        "--units",
        "256",
        "--plot",
        plot,
    ];
    let found = json(&args);
    assert_eq!(found["runs"], Value::Array(Vec::new()));
    let traces = found["traces"].as_array().expect("a list");
    assert!(traces.len() > 30);
    for t in traces {
        let rate = |name: &str| t[name].as_f64().expect("a rate");
        for name in ["hugeswap", "without_detection", "lru", "hottest"] {
            assert!((0.0..=rate("best")).contains(&rate(name)), "{name}: {t}");
        }
    }
    assert_eq!(found["traces"], json(&args)["traces"]);
    let picture = std::fs::read_to_string(plot).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("zipf 0.9"));
}

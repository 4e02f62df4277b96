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

/// The phases of a run, by name.
fn phases(run: &Value) -> std::collections::BTreeMap<&str, &Value> {
    let phases = run["phases"].as_array().expect("a list of phases");
    let named = phases
        .iter()
        .map(|p| (p["name"].as_str().expect("a name"), p));
    named.collect()
}

const SMALL: [&str; 6] = ["--region", "48M", "--memory", "24M", "--pairs", "1"];

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
    let svg = std::fs::read_to_string(plot).expect("a plot");
    assert_eq!(svg.matches("<polyline").count(), 3);
}

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

/// What a benchmark against the kernel found, and how many kernel runs there were (none where that is not permitted);
/// nothing may be left of what was set up for them.
fn against_kernel(args: &[&str]) -> (Value, usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let done = bench(args)
        .args(["--vs", "kernel", "--pairs", "1", "--json"])
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
        &["swap-seq", "--also", "nothing=1"],
        &["swap-seq", "--device", "zram"],
        &["swap-rand", "--region", "0"],
        &["swap-rand", "--pattern", "normal"],
        &["swap-rand", "--pattern", "zipf", "--theta", "2"],
        &["swap-rand", "--pattern", "zipf", "--theta", "NaN"],
        &["swap-rand", "--theta", "0"],
        &["swap-rand", "--clustered"],
        &["swap-rand", "--access", "append"],
        &["swap-rand", "--threads", "0"],
        &["swap-rand", "--seconds", "0"],
        &["swap-rand", "--seconds", "inf"],
        &["swap-rand", "--seconds", "400"],
        &["swap-rand", "--seconds", "1", "--accesses", "10"],
        &["swap-rand", "--accesses", "3", "--threads", "4"],
        &["swap-rand", "--device", "/nonexistent"],
        &["swap-rand", "--threads", "1,2"],
        &["swap-rand", "--thetas", "0.9"],
        &["swap-rand", "--table", "--thetas", "2"],
        &["swap-rand", "--table", "--ratios", "0"],
        &["swap-rand", "--table", "--threads", "0"],
        &["swap-rand", "--table", "--region", "1G"],
        &["swap-rand", "--table", "--accesses", "100"],
        &["mixed", "--threads", "3"],
        &["mixed", "--threads", "0"],
        &["mixed", "--parts", "stream,stream"],
        &["mixed", "--parts", "nothing"],
        &["mixed", "--parts", "stream", "--plot", "p.svg"],
        &["mixed", "--plot", "/nonexistent/p.svg"],
        &["mixed", "--plot", "/tmp"],
        &["mixed", "--region", "2M"],
        &["fit", "--memory", "2M"],
        &["faults", "--region", "2M"],
        &["chaos", "--kinds", "eio,love"],
        &["chaos", "--seed", "0"],
        &["chaos", "--areas", "17"],
        &["chaos", "--region", "8M"],
        &["chaos", "--seconds", "0"],
        &["extents", "--extents", "0"],
        &["extents", "--extents", "many"],
        &["extents", "--tasks", "0"],
        &["extents", "--threads", "0"],
        &["extents", "--area", "4K"],
        &["extents", "--area", "17T"],
        &["extents", "--area", "1G", "--extents", "200000"],
        &["extents", "--seconds", "0"],
        &["extents", "--pairs", "0"],
        &["extents", "--access", "backwards"],
        &["fragments", "--extents", "1"],
        &["fragments", "--region", "64M", "--extents", "100000"],
        &["fragments", "--tasks", "0"],
        &["fragments", "--swap", "/no/such/place"],
        &["fragments", "--swap", "/tmp", "--swap", "/var/tmp"],
        &["fragments", "--rounds", "0"],
        &["workingset", "--parts", "nothing"],
        &["workingset", "--parts", "thrash,thrash"],
        &["workingset", "--memory", "4M"],
        &["workingset", "--stream", "0"],
        &["workingset", "--repeats", "0"],
        &["workingset", "--cold", "64M", "--reads", "128M"],
        &["workingset", "--units", "1"],
        &["workingset", "--parts", "stream", "--plot", "p.svg"],
    ] {
        let done = bench(args).assert().code(2);
        let text = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
        assert!(text.starts_with("hugeswap: "), "{args:?}: {text}");
    }
}

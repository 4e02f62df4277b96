//! Any program, plain and with less memory than it needs.

use crate::{bench, runs};
use serde_json::Value;

#[test]
fn any_program_runs_plain_and_with_less_memory() {
    // 96 MiB written and read twice, kept for as long as the peak takes to be seen, and a word that comes of it.
    let script = "import time\nb = bytearray(96 << 20)\nfor r in (1, 2):\n    for i in range(0, len(b), 4096): b[i] = (b[i] + i // 4096 + r) % 251\ntime.sleep(0.5)\nprint(sum(b[::4096]))";
    let args = "program --json --memory 50%,48M --pairs 1 -- python3 -c";
    let args: Vec<_> = args.split(' ').chain([script]).collect();
    let out = bench(&args).assert().success();
    let found: Value = serde_json::from_slice(&out.get_output().stdout).unwrap();
    let plain = runs(&found, "plain");
    let need = plain[0]["peak_bytes"].as_u64().unwrap();
    assert!(need >= 96 << 20, "{need}");
    let managed = runs(&found, "hugeswap");
    assert_eq!((plain.len(), managed.len()), (2, 2));
    for run in managed {
        assert_eq!(run["verified"], true);
        assert_eq!(run["ended"], true);
        assert!(run["memory_bytes"].as_u64().unwrap() < 64 << 20);
        assert!(run["counters"]["pswpout"].as_u64().unwrap() > 0);
    }
    for share in ["50%", "48 MiB"] {
        let ratio = &found["ratios"][format!("time_vs_plain_at_{share}")];
        assert!(ratio.as_f64().unwrap() > 0.0, "{found}");
    }
}

#[test]
fn a_program_that_goes_wrong_fails_the_benchmark() {
    let wrong = |program: &[&str], why: &str| {
        let mut args = vec!["program", "--memory", "48M", "--pairs", "1", "--"];
        args.extend(program);
        bench(&args)
            .assert()
            .code(1)
            .stderr(predicates::str::contains(why))
            .stderr(predicates::str::is_match("^[^\n]*\n$").unwrap());
    };
    wrong(&["/no/such/program"], "cannot start");
    // What it writes differs from run to run.
    wrong(&["sh", "-c", "echo $$"], "wrote something else");
    wrong(
        &["sh", "-c", "test -z \"$HUGESWAP_POOL\""],
        "ended otherwise",
    );
}

#[test]
fn what_was_not_managed_is_noted() {
    bench(&["program", "--memory", "48M", "--pairs", "1", "--", "true"])
        .assert()
        .success()
        .stdout(predicates::str::contains(
            "managed none of the program's memory",
        ));
}

//! The checker plainly, which checks the checker, and a slice of the sweep: every mode, a few
//! seconds each. The whole is `hugeswap-torture sweep --seconds 60 --seeds 20`.

use std::path::{Path, PathBuf};
use std::process::Command;

const TORTURE: &str = env!("CARGO_BIN_EXE_hugeswap-torture");

fn sweep(args: &[&str]) -> std::process::Output {
    Command::new(TORTURE)
        .arg("sweep")
        .args(args)
        .env_remove("HUGESWAP_POOL")
        .output()
        .expect("the sweep starts")
}

fn must_pass(args: &[&str]) {
    let out = sweep(args);
    let said = String::from_utf8_lossy(&out.stdout);
    let complained = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}{complained}");
    println!("{said}");
}

/// `hugeswap` in the same target directory, as this test was built; built now if it is not there.
fn hugeswap() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    // With the features that a test of the workspace gives to its dependencies: `cargo build` would
    // build half of it anew, and put another executable into the place of the one that is tested.
    build.args(["test", "--locked", "--workspace", "--no-run"]);
    build.args(["--test", "standing_in"]);
    // (And with those that this test was built with, which it cannot see.)
    if let Some(features) = std::env::var_os("HUGESWAP_TEST_FEATURES") {
        build.arg("--features").arg(features);
    }
    // What cargo tells a test about its package makes build scripts that look at it run again.
    let of_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(of_package) {
            build.env_remove(name);
        }
    }
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    let out = build.output().expect("cargo starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let path = Path::new(TORTURE).with_file_name("hugeswap");
    assert!(path.exists(), "{} is not there", path.display());
    path
}

fn is_permitted(hugeswap: &Path, faults: &str) -> bool {
    let out = Command::new(hugeswap)
        .args([
            "run",
            "--memory",
            "64M",
            "--report",
            "none",
            "--fault-mode",
            faults,
        ])
        .args(["--", "true"])
        .output()
        .expect("hugeswap starts");
    if !out.status.success() {
        let why = String::from_utf8_lossy(&out.stderr);
        println!("skipped in {faults} mode: {}", why.trim());
    }
    out.status.success()
}

#[test]
fn the_checker_passes_plainly() {
    must_pass(&[
        "--plain",
        "--modes",
        "signal,shared",
        "--seconds",
        "2",
        "--shrink",
        "0",
    ]);
}

#[test]
fn every_mode() {
    let path = hugeswap();
    let list = sweep(&["--list"]);
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let names = list.lines().filter_map(|l| l.split_whitespace().next());
    let message = is_permitted(&path, "message");
    let modes: Vec<_> = names
        .filter(|name| message || !name.starts_with("message"))
        .collect();
    assert!(modes.len() > 10, "{list}");
    must_pass(&[
        "--hugeswap",
        path.to_str().expect("a path of letters"),
        "--modes",
        &modes.join(","),
        "--seconds",
        "2",
        "--bytes",
        "96M",
        "--stall",
        "120",
        "--shrink",
        "0",
    ]);
}

#[test]
fn wrong_words_are_refused_in_one_line() {
    for args in [
        &["--modes", "nothing"][..],
        &["--seconds", "0"],
        &["--dir", "/nowhere/at/all"],
    ] {
        let out = sweep(args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

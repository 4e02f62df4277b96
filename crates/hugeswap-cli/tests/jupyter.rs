//! `hugeswap jupyter install`: what Jupyter finds, and that it starts the kernel in its budget.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn jupyter(data: &Path) -> Command {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"));
    c.env_remove("HUGESWAP_POOL")
        .env("JUPYTER_DATA_DIR", data)
        .timeout(Duration::from_secs(60))
        .args(["jupyter", "install"]);
    c
}

/// An interpreter that has ipykernel, or has not, and otherwise says what it is to do.
fn interpreter(dir: &Path, has_it: bool) -> PathBuf {
    let path = dir.join(if has_it { "python" } else { "bare" });
    let code = u8::from(!has_it);
    let script = format!("#!/bin/sh\n[ \"$1\" = -c ] && exit {code}\necho $HUGESWAP_POOL \"$@\"\n");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_kernel_is_installed_that_starts_under_hugeswap() {
    let dir = tempfile::tempdir().unwrap();
    let python = interpreter(dir.path(), true);
    let data = dir.path().join("data");
    jupyter(&data)
        .args([
            "--memory",
            "64M",
            "--swap",
            "mem",
            "--set",
            "readahead.max=3",
        ])
        .arg("--python")
        .arg(&python)
        .assert()
        .code(0)
        .stdout(
            contains("installed as hugeswap-64m in ").and(contains("\"Python 3 (hugeswap, 64M)\"")),
        );
    let file = data.join("kernels/hugeswap-64m/kernel.json");
    let kernel: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(kernel["language"], "python");
    let argv: Vec<String> = serde_json::from_value(kernel["argv"].clone()).unwrap();
    let argv: Vec<_> = argv
        .iter()
        .map(|a| a.replace("{connection_file}", "/run/c.json"))
        .collect();
    let mut start = Command::new(&argv[0]);
    start
        .env_remove("HUGESWAP_POOL")
        .args(&argv[1..])
        .timeout(Duration::from_secs(60));
    let started = start
        .assert()
        .code(0)
        .stdout(contains(" -m ipykernel_launcher -f /run/c.json\n"));
    // (It names its pool.)
    started.stdout(predicate::str::starts_with(" ").not());
}

#[test]
fn other_places_and_names() {
    let dir = tempfile::tempdir().unwrap();
    let python = interpreter(dir.path(), true);
    let data = dir.path().join("data");
    let ok = |args: &[&str], at: &str| {
        let mut c = jupyter(&data);
        c.arg("--python").arg(&python).args(args).assert().code(0);
        let file = dir.path().join(at).join("kernel.json");
        std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file:?}: {e}"))
    };
    let kernel = ok(&["--total", "2G"], "data/kernels/hugeswap-2g");
    assert!(
        kernel.contains("--total") && !kernel.contains("--memory"),
        "{kernel}"
    );
    let kernel = ok(&[], "data/kernels/hugeswap");
    assert!(
        !kernel.contains("--total") && !kernel.contains("--memory"),
        "{kernel}"
    );
    let prefix = dir.path().join("all");
    let prefix = prefix.to_str().unwrap();
    ok(
        &["--prefix", prefix, "--name", "big-data"],
        "all/share/jupyter/kernels/big-data",
    );
}

#[test]
fn what_would_not_start_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (python, bare) = (
        interpreter(dir.path(), true),
        interpreter(dir.path(), false),
    );
    let refused = |python: &Path, args: &[&str], why: &str| {
        let mut c = jupyter(&dir.path().join("data"));
        let said = contains(why).and(predicate::function(|s: &str| s.lines().count() == 1));
        c.arg("--python")
            .arg(python)
            .args(args)
            .assert()
            .code(2)
            .stdout("")
            .stderr(said);
    };
    refused(&bare, &[], "-m pip install ipykernel");
    refused(&dir.path().join("none"), &[], "none");
    refused(&python, &["--memory", "much"], "--memory");
    refused(
        &python,
        &["--memory", "1G", "--total", "2G"],
        "cannot be used with",
    );
    refused(&python, &["--swap", "/tmp,size=x"], "--swap");
    refused(&python, &["--set", "no.such=1"], "--set");
    refused(&python, &["--name", "a/b"], "--name");
    assert!(!dir.path().join("data").exists(), "nothing is installed");
}

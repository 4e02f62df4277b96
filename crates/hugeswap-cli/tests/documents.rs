//! Pages of docs whose commands are to work as they stand: blocks that begin with "```sh", in their order, each page in
//! a directory of its own.

use std::path::Path;
use std::process::Command;

/// The blocks of commands of a page, each with the number of its first line.
fn blocks(page: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((n, line)) = lines.next() {
        if line == "```sh" {
            let block = lines.by_ref().map(|(_, l)| l);
            let block: Vec<_> = block.take_while(|l| *l != "```").collect();
            all.push((n + 2, block.join("\n")));
        }
    }
    all
}

/// Does this interpreter have numpy, which guides use? (`.ci/install` sees to it that one has.)
fn has_numpy(python: &str) -> bool {
    let asked = Command::new(python).args(["-c", "import numpy"]).output();
    asked.is_ok_and(|o| o.status.success())
}

/// Runs the commands of a page, of which there are so many blocks at least: the directory that they have left, and
/// what they have printed.
fn run(page: &str, least: usize) -> (tempfile::TempDir, String) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = std::fs::read_to_string(docs.join(page)).unwrap();
    let hugeswap = Path::new(env!("CARGO_BIN_EXE_hugeswap"));
    let path = std::env::var("PATH").unwrap();
    let python = match has_numpy("python3") {
        true => "",
        false => "/usr/bin:",
    };
    let path = format!("{}:{python}{path}", hugeswap.parent().unwrap().display());
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let blocks = blocks(&text);
    assert!(blocks.len() >= least, "docs/{page} is not as it was");
    let mut all = String::new();
    for (line, block) in &blocks {
        let mut shell = Command::new("timeout");
        shell.args(["-k", "5", "120", "bash", "-euo", "pipefail", "-c"]);
        let out = shell
            .arg(block)
            .env("PATH", &path)
            .current_dir(dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        let printed = String::from_utf8_lossy(&out.stdout);
        let whole = format!("docs/{page}:{line}: {}: {said}{printed}", out.status);
        assert!(out.status.success(), "{whole}");
        // (A `wait` without arguments tells nothing of what it waited for.)
        assert!(!said.contains("panicked"), "{whole}");
        all += &printed;
    }
    (dir, all)
}

#[test]
fn the_tutorial() {
    let (dir, printed) = run("tutorial.md", 9);
    let html = std::fs::read_to_string(dir.path().join("sort.html")).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>"), "sort.html is no page");
    for said in [
        "hugeswap is usable here.",
        "suggested",
        "memory: 96.0 MiB (was 128 MiB)",
    ] {
        assert!(printed.contains(said), "{said} is missing: {printed}");
    }
}

#[test]
fn the_guides() {
    if !has_numpy("python3") && !has_numpy("/usr/bin/python3") {
        let complete = std::env::var_os("HUGESWAP_TESTS_COMPLETE").is_some();
        assert!(!complete, "python3 with numpy is missing");
        return eprintln!("skipped: python3 with numpy is not installed");
    }
    let (dir, printed) = run("guides.md", 2);
    assert!(printed.contains("True"), "{printed}");
    let sorted = std::fs::read_to_string(dir.path().join("sorted4")).unwrap();
    assert_eq!(sorted.lines().count(), 400_000);
}

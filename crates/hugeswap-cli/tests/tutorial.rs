//! docs/tutorial.md: its commands, in its order, in a directory of their own.

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

#[test]
fn every_command_of_the_tutorial_does_what_it_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tutorial.md");
    let page = std::fs::read_to_string(page).unwrap();
    let hugeswap = Path::new(env!("CARGO_BIN_EXE_hugeswap"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", hugeswap.parent().unwrap().display());
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let blocks = blocks(&page);
    assert!(blocks.len() >= 9, "the page is not as it was");
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
        assert!(
            out.status.success(),
            "docs/tutorial.md:{line}: {}: {said}{printed}",
            out.status
        );
        // (A `wait` without arguments tells nothing of what it waited for.)
        assert!(
            !said.contains("panicked") && !said.contains("refused"),
            "docs/tutorial.md:{line}: {said}"
        );
    }
    let html = std::fs::read_to_string(dir.path().join("sort.html")).unwrap();
    assert!(
        html.starts_with("<!DOCTYPE html>"),
        "{}",
        &html[..40.min(html.len())]
    );
}

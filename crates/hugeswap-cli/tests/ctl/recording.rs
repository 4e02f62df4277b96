//! `hugeswap record` and the page of a recording: what a person would look for in it is on it, and a
//! browser has nothing to complain about.

use super::{Running, hugeswap};
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Touches memory of which most is in swap, from a function with a name.
const PROGRAM: &str = "
#include <stdlib.h>
#include <stdio.h>
#define N (96ul << 20)
__attribute__((noinline)) unsigned long touches_pages(volatile char *p, int round) {
    unsigned long sum = 0;
    for (size_t i = 0; i < N; i += 4096) {
        size_t at = (i / 4096 * 7919 % (N / 4096)) * 4096;
        sum += p[at];
        p[at] = (char)(at / 4096 + round);
    }
    return sum;
}
__attribute__((noinline)) int works(volatile char *p) {
    unsigned long sum = 0;
    for (int round = 0; round < 6; round++)
        sum += touches_pages(p, round);
    return (int)(sum % 7 * 0) + 3;
}
int main(void) {
    char *p = malloc(N);
    return p ? works(p) : 1;
}
";

fn compiled(dir: &Path) -> PathBuf {
    let (source, program) = (dir.join("p.c"), dir.join("p"));
    std::fs::write(&source, PROGRAM).unwrap();
    let made = std::process::Command::new("cc")
        .args(["-O1", "-o"])
        .args([&program, &source])
        .status();
    assert!(made.unwrap().success());
    program
}

/// What a browser makes of a page, as text; `None`: there is no browser.
fn drawn(page: &Path) -> Option<String> {
    let profile = tempfile::tempdir().unwrap();
    let out = assert_cmd::Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .args(["--enable-logging=stderr", "--window-size=1200,2000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}", page.display()))
        .timeout(Duration::from_secs(60))
        .ok();
    let out = match out {
        Ok(out) => out,
        Err(e) if e.as_output().is_none() => {
            println!("skipped: chromium cannot be started: {e}");
            return None;
        }
        Err(e) => panic!("{e}"),
    };
    let said = String::from_utf8_lossy(&out.stderr);
    // (What the page's script says, or what is thrown in it.)
    let console: Vec<_> = said.lines().filter(|l| l.contains("CONSOLE")).collect();
    assert!(console.is_empty(), "{console:?}");
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The data of a page.
fn data(page: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(page).unwrap();
    let data = text.split("id=\"data\">").nth(1).unwrap();
    serde_json::from_str(data.split("</script>").next().unwrap()).unwrap()
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| panic!("{v} is no number"))
}

/// All names in a flame graph.
fn names(node: &Value, into: &mut Vec<String>) {
    into.push(node["name"].as_str().unwrap().to_owned());
    for child in node["children"].as_array().unwrap() {
        names(child, into);
    }
}

#[test]
fn a_program_is_recorded_and_drawn() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let program = compiled(dir.path());
    let (file, page) = (dir.path().join("r.rec"), dir.path().join("r.html"));
    let recorded = hugeswap()
        .args(["record", "--memory", "32M", "-o"])
        .arg(&file)
        .args(["--swap", &format!("{},size=1G", dir.path().display()), "--"])
        .arg(&program)
        .assert()
        .code(3);
    let said = format!("faults: hugeswap report {}", file.display());
    recorded.stderr(contains("hugeswap: recorded ").and(contains(said)));
    let named = hugeswap().arg("report").arg(&file).assert().code(0);
    named.stdout(format!("{}\n", page.display()));

    let [run] = &data(&page)[..] else {
        panic!("one run");
    };
    let most = |v: &Value| {
        v.as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_f64)
            .fold(0.0, f64::max)
    };
    let resident = most(&run["levels"][1]);
    assert!(
        (24e6..=33.6e6).contains(&resident),
        "{resident} bytes in memory"
    );
    let swapped = most(&run["levels"][3]);
    assert!((32e6..=256e6).contains(&swapped), "{swapped} bytes in swap");
    assert!(most(&run["moved"][0]) > 0.0 && most(&run["faults"][0]) > 0.0);
    assert!(
        run["notes"][0]
            .as_str()
            .unwrap()
            .contains("exited with status 3")
    );
    // What came from swap is where the program's memory is: 48 units in a row.
    let heat = &run["heat"];
    assert!(
        (40.0..=52.0).contains(&number(&heat["rows"])),
        "{}",
        heat["rows"]
    );
    assert!(!heat["layers"][0]["cells"].as_array().unwrap().is_empty());
    let mut functions = Vec::new();
    names(&run["flame"], &mut functions);
    for name in ["touches_pages", "works", "main"] {
        assert!(functions.iter().any(|f| f == name), "{name}: {functions:?}");
    }
    let faults = |node: &Value| number(&node["faults"]);
    let under = |node: &Value, name: &str| -> Value {
        fn find<'a>(node: &'a Value, name: &str) -> Option<&'a Value> {
            if node["name"] == name {
                return Some(node);
            }
            let mut children = node["children"].as_array()?.iter();
            children.find_map(|c| find(c, name))
        }
        find(node, name).unwrap().clone()
    };
    let (all, pages) = (
        faults(&run["flame"]),
        faults(&under(&run["flame"], "touches_pages")),
    );
    assert!(pages > 0.9 * all, "{pages} of {all}");

    if let Some(page) = drawn(&page) {
        for text in [
            "Memory over time",
            "Addresses over time",
            "Where faults come from",
            "touches_pages: ",
            "major_4k",
            "Threads were in faults for",
            "The first memory is managed.",
        ] {
            assert!(page.contains(text), "{text} is not on the page");
        }
        assert!(
            page.contains("data-drawn=\"7\"") || page.contains("data-drawn=\"6\""),
            "charts"
        );
        assert!(page.matches("<canvas").count() >= 7, "pictures");
    }

    // Two side by side.
    let both = dir.path().join("both.html");
    let mut report = hugeswap();
    report
        .arg("report")
        .args([&file, &file])
        .arg("-o")
        .arg(&both);
    report.assert().code(0);
    if let Some(page) = drawn(&both) {
        assert_eq!(page.matches("<article>").count(), 2);
    }
}

#[test]
fn a_pool_that_runs_is_recorded() {
    let running = Running::start("24M", 48);
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let record = |name: &str, args: &[&str]| {
        let mut c = hugeswap();
        c.args(["record", "--pid", &running.pid()]).args(args);
        c.arg("-o").arg(file(name));
        c
    };
    record("a.rec", &["--for", "0.6"]).assert().code(0);
    // One at a time; and what the second does changes nothing for the first.
    let mut first = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"));
    first
        .args(["record", "--pid", &running.pid(), "-o"])
        .arg(file("b.rec"));
    let mut first = first.stderr(Stdio::null()).spawn().unwrap();
    running.wait_for(|_| file("b.rec").metadata().is_ok_and(|m| m.len() > 0));
    let refused = record("c.rec", &["--for", "0.1"]).assert().code(2);
    refused.stderr(contains(format!(
        "process {} records this pool already",
        first.id()
    )));
    assert!(!file("c.rec").exists());
    // Killed, it leaves what it has written; then another one can record.
    running.wait_for(|_| file("b.rec").metadata().is_ok_and(|m| m.len() > 2000));
    first.kill().unwrap();
    first.wait().unwrap();
    record("d.rec", &["--for", "0.3"]).assert().code(0);

    for (name, note) in [
        ("a", "ran on when the recording ended"),
        ("b", "was cut off"),
        ("d", "ran on when the recording ended"),
    ] {
        let recording = file(&format!("{name}.rec"));
        hugeswap().arg("report").arg(&recording).assert().code(0);
        let [run] = &data(&file(&format!("{name}.html")))[..] else {
            panic!("one run");
        };
        assert!(
            run["notes"][0].as_str().unwrap().contains(note),
            "{}",
            run["notes"]
        );
        assert!(run["title"].as_str().unwrap().contains("hugeswap run"));
        let cells = run["heat"]["layers"][0]["cells"].as_array().unwrap();
        assert!(!cells.is_empty(), "{name}: no faults");
        let areas = run["areas"].as_array().unwrap();
        assert_eq!(areas.len(), usize::from(name != "b"), "{name}: {areas:?}");
    }
    running.ends_well();
}

#[test]
fn mistakes_are_told_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("r.rec");
    let fails = |args: &[&str], why: &str| {
        let mut c = hugeswap();
        let out = c.current_dir(dir.path()).args(args).assert().code(2);
        let said = String::from_utf8_lossy(&out.get_output().stderr).into_owned();
        assert!(
            said.contains(why) && said.lines().count() == 1,
            "{args:?}: {said}"
        );
    };
    fails(&["record"], "PROG");
    fails(
        &["record", "--pid", "1", "--", "true"],
        "cannot be used with",
    );
    fails(
        &["record", "--for", "3", "--", "true"],
        "cannot be used with",
    );
    fails(&["record", "--for", "3"], "--pid");
    fails(
        &["record", "--pid", "2000000000"],
        "there is no process 2000000000",
    );
    fails(&["record", "--pid", "1", "--for", "0"], "give seconds");
    fails(
        &[
            "record", "-o", "/none/r", "--memory", "64M", "--swap", "mem", "--", "true",
        ],
        "/none/r cannot be written",
    );
    std::fs::write(&file, "hugeswap recording\n\x01\0\0\0rest").unwrap();
    fails(&["report", "r.rec"], "cut off before it began");
    fails(
        &["report", "r.rec", "-o", "r.rec"],
        "cut off before it began",
    );
    fails(
        &["report", "r.rec", "--svg", "x.svg"],
        "--svg draws a report",
    );
    std::fs::write(&file, "{}").unwrap();
    fails(&["report", "r.rec"], "is JSON, but no report");
    fails(&["report", "r.rec", "-o", "x.html"], "is no recording");
    fails(
        &["report", "r.rec", "r.rec"],
        "recordings of `hugeswap record`",
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"{}");
}

/// A recording that cannot go on ends, and not the program.
#[test]
fn the_program_goes_on_without_its_recording() {
    let mut c = hugeswap();
    c.args([
        "record",
        "--memory",
        "64M",
        "--swap",
        "mem",
        "-o",
        "/dev/full",
        "--",
        "true",
    ]);
    c.assert().code(2).stderr(contains("/dev/full"));
    let mut c = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"));
    c.env_remove("HUGESWAP_POOL");
    c.args([
        "record",
        "--memory",
        "64M",
        "--swap",
        "mem",
        "-o",
        "/dev/stdout",
        "--",
    ]);
    // (Longer than it takes until the recording is written to for the second time.)
    c.args([
        "python3",
        "-c",
        "import time; x = bytearray(9 << 20); time.sleep(4); exit(7)",
    ]);
    let piped = Stdio::piped;
    let mut child = c.stdout(piped()).stderr(piped()).spawn().unwrap();
    // Whoever reads it has had enough.
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(7), "{said}");
    assert!(
        said.contains("the recording /dev/stdout is not whole"),
        "{said}"
    );
}

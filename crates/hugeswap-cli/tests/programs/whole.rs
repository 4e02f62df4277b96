//! The whole program in a limit: of a memory control group, or of `--total`. The program needs three
//! times as much, with a part that is not managed and grows and shrinks, a forked child, and a file that
//! is read beside it. It is never killed.

use crate::limited::ControlGroup;
use crate::util::*;
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output};

const LIMIT_MIB: u64 = 320;
/// What the program goes through, and how much of its memory is small blocks, MiB.
const BIG: u64 = 3 * LIMIT_MIB;
const SMALL: u64 = LIMIT_MIB / 5;
const FILE_MIB: usize = 200;

pub fn cases() -> Vec<Case> {
    vec![
        case("whole program, in a control group", in_a_group),
        case("whole program, --total", in_a_total),
        case("whole program, --total too small", too_small),
        case("whole program, no limit", no_limit),
    ]
}

fn growing(dir: &Path) -> Program {
    let file = dir.join("beside");
    std::fs::write(&file, vec![7; FILE_MIB << 20]).expect("a file to read");
    Program::new(dir, compile("growing", dir))
        .args([BIG.to_string(), SMALL.to_string(), "2".into()])
        .arg(&file)
}

/// Runs it with these options, started by a shell after `first`, and returns what it did and the report.
fn run(program: &Program, first: &str, options: &[&str]) -> (Output, Value) {
    let report = program.dir.join("report.json");
    let mut argv: Vec<OsString> = [
        "-c",
        &format!("{first}\nexec \"$@\""),
        "sh",
        HUGESWAP,
        "run",
    ]
    .into_iter()
    .map(OsString::from)
    .collect();
    argv.extend(options.iter().map(OsString::from));
    argv.extend(["--swap", "/var/tmp", "--report", "json", "--report-file"].map(OsString::from));
    argv.extend([report.clone().into(), "--".into()]);
    argv.extend(program.argv.iter().cloned());
    let out = Command::new("sh").args(argv).output().expect("sh starts");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let text = std::fs::read(&report).unwrap_or_else(|e| panic!("no report: {e}: {said}"));
    (out, serde_json::from_slice(&text).expect("JSON"))
}

/// The limit was kept by a budget that moved with what was left of it. The figure of what is in use may be
/// `inexact` by so many bytes.
fn followed(out: &Output, plain: &Output, report: &Value, inexact: u64) {
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status, plain.status, "{said}");
    assert_eq!(out.stdout, plain.stdout, "{said}");
    assert!(said.is_empty(), "{said}");
    let limit = &report["limit"];
    let number = |key: &str| {
        limit[key]
            .as_u64()
            .unwrap_or_else(|| panic!("no {key}: {report}"))
    };
    assert_eq!(number("limit_bytes"), LIMIT_MIB << 20);
    assert!(
        number("peak_used_bytes") <= number("limit_bytes") + inexact,
        "{report}"
    );
    let moved = number("budget_highest_bytes") - number("budget_lowest_bytes");
    assert!(moved >= (SMALL / 2) << 20, "{report}");
    assert!(report["pswpout"].as_u64() > Some(0), "{report}");
}

fn in_a_group() {
    let dir = directory();
    let program = growing(dir.path());
    let limit = (LIMIT_MIB << 20).to_string();
    let group = ControlGroup::new("memory", "memory.limit_in_bytes", &limit);
    let plain = program.plain();
    let (out, report) = run(&program, &group.enter(), &[]);
    followed(&out, &plain, &report, 0);
    let oom = std::fs::read_to_string(group.0.join("memory.oom_control")).expect("the group");
    assert!(
        !oom.contains("oom_kill ") || oom.contains("oom_kill 0"),
        "{oom}"
    );
}

fn in_a_total() {
    let dir = directory();
    let program = growing(dir.path());
    let plain = program.plain();
    let (out, report) = run(&program, "", &["--total", &format!("{LIMIT_MIB}M")]);
    // Of what a parent and a child share, a part may be counted twice.
    followed(&out, &plain, &report, SMALL << 20);
}

/// One line says that there is no room for a budget; the program runs.
fn too_small() {
    let dir = directory();
    let program = growing(dir.path());
    let plain = program.plain();
    // (Small blocks that are managed before long would take the room for a moment only.)
    let unmanaged = ["--total", "64M", "--set", "route.small=off"];
    let (out, report) = run(&program, "", &unmanaged);
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.stdout, plain.stdout, "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("the budget is as small as it can be (16.0 MiB)")
            && said.contains("give at least"),
        "{said}"
    );
    assert_eq!(report["limit"]["budget_lowest_bytes"], 16 << 20);
}

fn no_limit() {
    let dir = directory();
    let program = Program::new(dir.path(), "true");
    let (out, report) = run(&program, "", &["--memory", "auto"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    if report["limit"]["described"]
        .as_str()
        .is_some_and(|d| d.contains("control group"))
    {
        skip("this process is in a control group with a limit");
    }
    assert!(
        said.lines().count() == 1 && said.contains("no limit is set for memory"),
        "{said}"
    );
}

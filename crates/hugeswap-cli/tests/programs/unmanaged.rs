//! The report's figures for memory that is not managed, and for programs that the preloaded object
//! is not in.

use crate::util::*;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;
/// Seconds for which programs without the object run, so that they are looked at several times.
const STAY: &str = "4";

pub fn cases() -> Vec<Case> {
    vec![
        case("unmanaged, small blocks", small_blocks),
        case("unmanaged, small blocks, forks", small_blocks_of_forks),
        case("unmanaged, mapped and not touched", mapped),
        case("unmanaged, forks of managed memory", mapped_and_forked),
        case("unmanaged, static program", static_program),
        case("unmanaged, environment", without_environment),
        case("unmanaged, sandbox", in_sandbox),
        case("unmanaged, other user", as_other_user),
        case("unmanaged, valgrind", under_valgrind),
        case("unmanaged, thread sanitizer", thread_sanitizer),
        case("address sanitizer", address_sanitizer),
    ]
}

/// Runs c/unmanaged.c under a budget of 64 MiB, for the figures of its report.
fn figures(what: &str, mib: u64, children: u64) -> Managed {
    figures_within(64, what, mib, children)
}

/// The same under a budget of `memory` MiB.
fn figures_within(memory: u64, what: &str, mib: u64, children: u64) -> Managed {
    let dir = directory();
    let program = Program::new(dir.path(), compile("unmanaged", dir.path())).args([
        what,
        &mib.to_string(),
        &children.to_string(),
    ]);
    let setup = Setup::new(Mode::Signal, memory).option("--set", "route.small=off");
    let managed = program.managed(&setup);
    assert_eq!(managed.output.stdout, b"good\n", "{}", managed.report);
    managed
}

fn within(managed: &Managed, key: &str, mib: std::ops::RangeInclusive<u64>) {
    let n = managed.number(key);
    let bounds = mib.start() * MIB..=mib.end() * MIB;
    assert!(
        bounds.contains(&n),
        "{key} is {n}, not within {mib:?} MiB: {}",
        managed.report
    );
}

fn small_blocks() {
    let managed = figures("small", 150, 0);
    within(&managed, "peak_unmanaged_bytes", 140..=170);
    assert_eq!(managed.number("peak_managed_bytes"), 0);
}

/// Memory that children share with their parent counts once.
fn small_blocks_of_forks() {
    let managed = figures("small", 150, 6);
    within(&managed, "peak_unmanaged_bytes", 140..=200);
    let first = &managed.report["unmanaged"]["processes"][0];
    assert!(
        first["program"].as_str().unwrap().ends_with("/unmanaged"),
        "{first}"
    );
}

/// Memory that is mapped and never touched is neither managed nor unmanaged memory.
fn mapped() {
    let managed = figures("mapped", 90, 0);
    within(&managed, "peak_managed_bytes", 88..=100);
    within(&managed, "peak_unmanaged_bytes", 0..=20);
}

/// Nothing has to leave, for what a child brings in again is a copy of its own, and counts.
fn mapped_and_forked() {
    let managed = figures_within(256, "mapped", 90, 5);
    managed.processes(6);
    // (Units are taken ahead of a thread that touches one unit after the other, 32 at most.)
    within(&managed, "peak_managed_bytes", 88..=155);
    assert_eq!(managed.number("pswpout"), 0, "{}", managed.report);
    within(&managed, "peak_unmanaged_bytes", 0..=30);
}

/// The reason that the report gives why the object was not in `program`, which is started by
/// `before`.
fn outsider(before: &[&str], program: &[OsString]) -> String {
    outsider_by(&Setup::new(Mode::Signal, 64), before, program)
}

fn outsider_by(setup: &Setup, before: &[&str], program: &[OsString]) -> String {
    let dir = directory();
    let mut argv: Vec<OsString> = before.iter().map(OsString::from).collect();
    argv.extend(program.iter().cloned());
    let first = argv.remove(0);
    let managed = Program::new(dir.path(), first).args(argv).managed(setup);
    assert!(managed.output.status.success(), "{}", managed.report);
    let all = managed.report["outside"].as_array().unwrap();
    let name = PathBuf::from(&program[0]);
    let name = std::fs::canonicalize(&name).unwrap_or(name);
    let it = all.iter().find(|o| o["program"] == *name.to_string_lossy());
    let it = it.unwrap_or_else(|| panic!("{} is not among {all:?}", name.display()));
    it["why"].as_str().unwrap().to_owned()
}

fn sleep() -> [OsString; 2] {
    ["/bin/sleep".into(), STAY.into()]
}

fn static_program() {
    let dir = directory();
    let (source, program) = (dir.path().join("stay.c"), dir.path().join("stay"));
    let text = "#include <unistd.h>\nint main(void) { sleep(4); return 0; }\n";
    std::fs::write(&source, text).expect("write");
    let out = Command::new(compiler())
        .args(["-static", "-o"])
        .args([&program, &source])
        .output()
        .expect("the compiler starts");
    if !out.status.success() {
        skip("the C library is not there to be linked statically");
    }
    let mut setup = Setup::new(Mode::Signal, 64);
    setup.options.push("--static=off".into());
    let why = outsider_by(&setup, &["/usr/bin/env"], &[program.into()]);
    assert!(why.contains("statically linked"), "{why}");
}

fn without_environment() {
    let why = outsider(&["/usr/bin/env", "-i"], &sleep());
    assert!(why.contains("LD_PRELOAD"), "{why}");
}

fn in_sandbox() {
    let before = [
        "unshare",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
    ];
    let works = Command::new(before[0])
        .args(&before[1..])
        .arg("true")
        .output();
    if !works.is_ok_and(|o| o.status.success()) {
        skip("no namespaces can be made here");
    }
    let why = outsider(&before, &sleep());
    assert!(why.contains("PID namespace"), "{why}");
}

fn as_other_user() {
    let before = ["setpriv", "--reuid", "65534", "--clear-groups"];
    let works = Command::new(before[0])
        .args(&before[1..])
        .arg("true")
        .output();
    if !works.is_ok_and(|o| o.status.success()) {
        skip("this user cannot become another one (only root can)");
    }
    let why = outsider(&before, &sleep());
    assert!(why.contains("another user (65534)"), "{why}");
}

/// Compiles, with `options`, a program that maps more than the budget and writes there.
fn compiled(dir: &Path, options: &[&str]) -> PathBuf {
    let program = dir.join("checked");
    let out = Command::new(compiler())
        .args(["-g", "-O1", "-pthread"])
        .args(options)
        .arg("-o")
        .args([&program, &source("c/unmanaged.c")])
        .output()
        .expect("the compiler starts");
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        skip(&format!("cannot be compiled with {options:?} here: {said}"));
    }
    program
}

/// Valgrind runs a program without managed memory: its memory checker would need a note for each of
/// the window's addresses.
fn under_valgrind() {
    if !Command::new("valgrind")
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success())
    {
        skip("valgrind is not installed");
    }
    let dir = directory();
    let program = Program::new(dir.path(), "valgrind")
        .arg("--error-exitcode=9")
        .arg(compiled(dir.path(), &[]))
        .args(["mapped", "90", "0"]);
    let managed = program.managed(&Setup::new(Mode::Auto, 64));
    let said = String::from_utf8_lossy(&managed.output.stderr);
    assert_eq!(managed.output.stdout, b"good\n", "{said}");
    assert!(
        said.contains("hugeswap: valgrind cannot follow managed memory"),
        "{said}"
    );
    assert_eq!(managed.number("processes"), 0);
}

fn thread_sanitizer() {
    let dir = directory();
    let program = compiled(dir.path(), &["-fsanitize=thread"]);
    let program = Program::new(dir.path(), program).args(["mapped", "90", "0"]);
    // (On some kernels the sanitizer's own shadow memory does not fit.)
    if program.try_plain().is_none() {
        skip("a program built with -fsanitize=thread does not run here");
    }
    let managed = program.managed(&Setup::new(Mode::Auto, 64));
    let said = String::from_utf8_lossy(&managed.output.stderr);
    assert_eq!(managed.output.stdout, b"good\n", "{said}");
    assert!(
        said.contains("ThreadSanitizer") && !said.contains("ulimit"),
        "{said}"
    );
}

fn address_sanitizer() {
    let dir = directory();
    let program = compiled(dir.path(), &["-fsanitize=address"]);
    let needed = Command::new("readelf").arg("-d").arg(&program).output();
    if !needed.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("libasan.so")) {
        skip("this compiler links AddressSanitizer statically");
    }
    let run = Command::new(HUGESWAP)
        .args(["run", "--memory", "64M", "--"])
        .arg(&program)
        .env_remove("ASAN_OPTIONS")
        .output()
        .expect("hugeswap starts");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(2), "{said}");
    assert!(
        said.contains("ASAN_OPTIONS=verify_asan_link_order=0"),
        "{said}"
    );
    // With the setting that the message names.
    let program = Program::new(dir.path(), program)
        .args(["mapped", "90", "0"])
        .env("ASAN_OPTIONS", "verify_asan_link_order=0");
    let setup = Setup::new(Mode::Signal, 64).option("--set", "route.small=off");
    let managed = program.managed(&setup);
    assert_eq!(managed.output.stdout, b"good\n", "{}", managed.report);
    assert!(managed.number("pswpout") > 0, "{}", managed.report);
}

//! Programs in C that verify their own memory: threads, workers, and every way to treat memory that we know of.

use crate::util::*;

/// More than the budget, so that walking through it pushes out the rest.
const BALLAST_MIB: &str = "96";
const MEMORY_MIB: u64 = 64;

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for mode in Mode::ALL {
        all.push(case(format!("threads, {mode}"), move || threads(mode)));
        all.push(case(format!("workers, {mode}"), move || workers(mode)));
        for (program, least_absent) in [("memory", 30), ("calls", 150), ("forks", 10)] {
            for storm in [false, true] {
                let name = format!("{program}, {mode}{}", if storm { ", storm" } else { "" });
                all.push(case(name, move || {
                    exercise(program, least_absent, mode, storm)
                }));
            }
        }
    }
    for program in ["memory", "calls", "forks"] {
        all.push(case(format!("{program}, base pages"), move || {
            base_pages(program)
        }));
    }
    all.push(case("huge", huge));
    all
}

/// Eight threads that each fill and verify a part of their own, and share another.
fn threads(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("threads", dir.path())).args(["16", "32", "4"]);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(mode, MEMORY_MIB));
    managed.same_as(&plain);
}

/// Four processes that each map memory of their own: one budget for all of them.
fn workers(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("workers", dir.path())).args(["4", "60", "3"]);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(mode, MEMORY_MIB));
    managed.same_as(&plain).processes(4);
}

/// `storm`: units are evicted at random all the time.
fn exercise(program: &str, least_absent: u64, mode: Mode, storm: bool) {
    mode.need();
    let dir = directory();
    let files = dir.path().join("files");
    std::fs::create_dir(&files).expect("a directory in a directory of ours");
    let program = Program::new(dir.path(), compile(program, dir.path()))
        .arg(BALLAST_MIB)
        .args((program == "calls").then_some(&files));
    let plain = program.plain();
    let mut setup = Setup::new(mode, MEMORY_MIB);
    if storm {
        setup = setup.option("--set", "debug.storm=50");
    }
    let managed = program.managed(&setup);
    managed.same_as(&plain);
    let absent = managed.absent();
    assert!(
        absent >= least_absent,
        "memory was absent only {absent} times before it was used: this tests little"
    );
}

/// All by base pages: nothing is whole but what system calls and forks hold.
fn base_pages(program: &str) {
    let dir = directory();
    let files = dir.path().join("files");
    std::fs::create_dir(&files).expect("a directory in a directory of ours");
    let program = Program::new(dir.path(), compile(program, dir.path()))
        .arg(BALLAST_MIB)
        .args((program == "calls").then_some(&files));
    let plain = program.plain();
    let setup = Setup::new(Mode::Signal, MEMORY_MIB).option("--set", "thp.enabled=never");
    let managed = program.managed(&setup);
    managed.same_as(&plain);
    assert_eq!(managed.number("thp_fault_alloc"), 0);
}

/// A program that says where it wants huge pages.
fn huge() {
    let dir = directory();
    let program = Program::new(dir.path(), compile("huge", dir.path())).arg(BALLAST_MIB);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, MEMORY_MIB));
    managed.same_as(&plain);
}

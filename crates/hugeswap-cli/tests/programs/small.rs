//! Small blocks in managed memory (`--small`, and `route.small=auto`, the default): what a program
//! prints is the same, and nearly all of its memory is managed.

use crate::threads::BLOCKED;
use crate::util::*;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for mode in Mode::ALL {
        for storm in [false, true] {
            let name = |what: &str| {
                let storm = if storm { ", storm" } else { "" };
                format!("small, {what}, {mode}{storm}")
            };
            all.push(case(name("blocks"), move || {
                same(mode, 48, storm, &|dir| {
                    Program::new(dir, compile("blocks", dir)).args(["3", "4"])
                });
            }));
            all.push(case(name("edges"), move || {
                same(mode, 48, storm, &|dir| {
                    Program::new(dir, compile("edges", dir))
                });
            }));
            for part in BLOCKED {
                all.push(case(name(&format!("blocked, {part}")), move || {
                    same(mode, 32, storm, &|dir| {
                        Program::new(dir, compile("blocked", dir)).arg(part)
                    });
                }));
            }
        }
    }
    // (Random access to single pages takes minutes in message mode, which brings in 2 MiB at once.)
    for storm in [false, true] {
        let with = if storm { ", storm" } else { "" };
        all.push(case(format!("small, map{with}"), move || {
            // (With a unit each 50 us nearly every access is a fault: that takes minutes.)
            let every = if storm { 5000 } else { 0 };
            same_in_storm(Mode::Signal, 24, every, &|dir| map(dir, "400000"));
        }));
        all.push(case(format!("small, python{with}"), move || {
            let (mib, objects) = if storm { (32, "60000") } else { (32, "100000") };
            same(Mode::Signal, mib, storm, &|dir| python(dir, objects));
        }));
    }
    for mode in Mode::ALL {
        all.push(case(format!("small, share of a map, {mode}"), move || {
            share(mode, &|dir| map(dir, "1400000"));
        }));
        all.push(case(format!("small, share of python, {mode}"), move || {
            share(mode, &|dir| python(dir, "200000"));
        }));
    }
    all.push(case("small, processes that need little", little));
    all.push(case("small, when they grow", when_they_grow));
    all.push(case("small, when chunks grow", when_chunks_grow));
    all.push(case("small, when they do not grow", when_they_do_not_grow));
    all
}

/// Runs a program plain and with `--small` in less memory than it needs; the results are the same.
fn same(mode: Mode, mib: u64, storm: bool, program: &dyn Fn(&Path) -> Program) {
    same_in_storm(mode, mib, if storm { 50 } else { 0 }, program);
}

/// The same while a unit is evicted every so many microseconds; 0: none.
fn same_in_storm(mode: Mode, mib: u64, every: u32, program: &dyn Fn(&Path) -> Program) {
    mode.need();
    let dir = directory();
    let program = program(dir.path());
    let plain = program.plain();
    let setup = Setup::new(mode, mib)
        .option("--set", "route.small=on")
        .option("--set", format!("debug.storm={every}"));
    program.managed(&setup).same_as(&plain);
}

/// Where everything fits at least nine tenths of the program's memory are managed.
fn share(mode: Mode, program: &dyn Fn(&Path) -> Program) {
    mode.need();
    let dir = directory();
    let program = program(dir.path());
    let plain = program.plain();
    let managed = program.managed(&Setup::new(mode, 1024).option("--set", "route.small=on"));
    assert_eq!(managed.output.stdout, plain.stdout);
    let ours = managed.number("peak_managed_bytes");
    let others = managed.number("peak_unmanaged_bytes");
    assert!(
        ours >= 9 * others,
        "{ours} bytes are managed, {others} are not: {}",
        managed.report
    );
}

fn map(dir: &Path, nodes: &str) -> Program {
    let options = ["-O1", "-g", "-Wall", "-Wextra"];
    Program::new(dir, compile_once("g++", &options, "cpp/map.cpp", dir)).arg(nodes)
}

fn python(dir: &Path, objects: &str) -> Program {
    let script = source("py").join("objects.py");
    Program::new(dir, interpreter())
        .arg("-B")
        .arg(script)
        .arg(objects)
}

/// The path of an interpreter: the interpreter itself, not a script that looks for it.
fn interpreter() -> PathBuf {
    let out = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    match out {
        Ok(out) if out.status.success() => {
            PathBuf::from(String::from_utf8_lossy(&out.stdout).trim())
        }
        _ => missing("python3"),
    }
}

/// A process that asks for little does not join the pool.
fn little() {
    let dir = directory();
    let program = Program::new(dir.path(), "sh").args(["-c", "for i in 1 2 3; do date +%Y; done"]);
    let plain = program.plain();
    let setup = Setup::new(Mode::Signal, 32).option("--set", "route.small=on");
    let managed = program.managed(&setup);
    assert_eq!(managed.output.stdout, plain.stdout);
    assert_eq!(managed.number("processes"), 0);
}

/// Without a word about small blocks: those of a process that has much in them are managed.
fn when_they_grow() {
    Mode::Signal.need();
    let dir = directory();
    let program = map(dir.path(), "600000");
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, 128));
    assert_eq!(managed.output.stdout, plain.stdout, "{}", managed.said());
    let ours = managed.number("peak_managed_bytes");
    let others = managed.number("peak_unmanaged_bytes");
    // A sixteenth of the budget, and what the process has by itself.
    assert!(others < 20 << 20 && ours > 2 * others, "{}", managed.report);
}

/// Blocks that are short of a mapping of their own (`route.malloc_min`) count, too. (How much the
/// process has is looked at each 10 ms, in which such a program asks for tens of MiB.)
fn when_chunks_grow() {
    Mode::Signal.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("unmanaged", dir.path()));
    let program = program.args(["chunks", "200", "0"]);
    let managed = program.managed(&Setup::new(Mode::Signal, 128));
    assert_eq!(managed.output.stdout, b"good\n", "{}", managed.said());
    let ours = managed.number("peak_managed_bytes");
    let others = managed.number("peak_unmanaged_bytes");
    assert!(ours > 2 * others, "{}", managed.report);
}

/// Those of a process that never has much stay with the C library, which the pool is not told of.
fn when_they_do_not_grow() {
    let dir = directory();
    let program = Program::new(dir.path(), compile("churning", dir.path()));
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, 256));
    assert_eq!(managed.output.stdout, plain.stdout, "{}", managed.said());
    assert_eq!(managed.number("processes"), 0, "{}", managed.report);
}

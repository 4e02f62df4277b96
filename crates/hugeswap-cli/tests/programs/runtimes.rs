//! Programs whose runtime has a heap of its own, which it reserves and makes accessible by parts: the JVM, V8.

use crate::util::*;
use std::path::Path;
use std::process::Command;

const MEMORY_MIB: u64 = 96;

pub fn cases() -> Vec<Case> {
    let collectors = ["Serial", "Parallel", "G1"];
    let java = collectors.map(|c| case(format!("java, {c}"), move || java(c)));
    let mut all = Vec::from(java);
    all.push(case("node", node));
    all
}

fn is_there(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok()
}

/// A heap of twice the budget: the same result, and nearly all of the program's memory is managed.
fn heap(program: &Program) {
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, MEMORY_MIB));
    managed.same_as(&plain);
    let (ours, others) = (
        managed.number("peak_managed_bytes"),
        managed.number("peak_unmanaged_bytes"),
    );
    assert!(others * 3 < ours, "{}", managed.report);
}

fn java(collector: &str) {
    if !is_there("javac") {
        missing("a JDK");
    }
    let dir = directory();
    let compiled = Command::new("javac")
        .arg("-d")
        .arg(dir.path())
        .arg(source("java").join("Heap.java"))
        .output()
        .expect("javac starts");
    assert!(compiled.status.success(), "{compiled:?}");
    let program = Program::new(dir.path(), "java")
        .args(["-Xms16m", "-Xmx400m", "-XX:TieredStopAtLevel=1"])
        .arg(format!("-XX:+Use{collector}GC"))
        .arg("-cp")
        .arg(dir.path())
        .args(["Heap", "500000"]);
    heap(&program);
}

fn node() {
    if !is_there("node") {
        missing("node");
    }
    let dir = directory();
    let script: &Path = &source("js").join("heap.js");
    heap(&Program::new(dir.path(), "node").arg(script).arg("500000"));
}

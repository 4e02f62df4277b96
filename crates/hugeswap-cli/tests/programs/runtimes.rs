//! Programs whose runtime has a heap of its own, which it reserves and makes accessible by parts:
//! the JVM, V8.

use crate::util::*;
use std::ffi::OsStr;
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use std::process::Command;

const MEMORY_MIB: u64 = 64;

pub fn cases() -> Vec<Case> {
    let collectors = ["Serial", "Parallel", "G1"];
    let java = collectors.map(|c| case(format!("java, {c}"), move || java(c)));
    let mut all = Vec::from(java);
    all.push(case("java, Z", java_z));
    all.push(case("node", node));
    all
}

fn is_there(command: &str) -> bool {
    Command::new(command).arg("--version").output().is_ok()
}

/// A program with a heap of twice the budget has the same result, and nearly all of its memory is
/// managed.
fn heap(program: &Program) {
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, MEMORY_MIB).on_disk());
    managed.same_as(&plain);
    let (ours, others) = (
        managed.number("peak_managed_bytes"),
        managed.number("peak_unmanaged_bytes"),
    );
    assert!(others * 3 < ours, "{}", managed.report);
}

/// Compiles java/NAME.java in `dir`, and returns the directory of its classes. (Once, as
/// [`compile_once`].)
pub fn compile_java(name: &str, dir: &Path) -> PathBuf {
    let text = source("java").join(format!("{name}.java"));
    let kept = format!("java-{name}-{:016x}", hash_of(&text).finish());
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(kept);
    if kept.exists() {
        return kept;
    }
    if !is_there("javac") {
        missing("a JDK");
    }
    let classes = dir.join("classes");
    let compiled = Command::new("javac")
        .args([OsStr::new("-d"), classes.as_os_str(), text.as_os_str()])
        .output()
        .expect("javac starts");
    assert!(compiled.status.success(), "{compiled:?}");
    // (Whole or not at all, whichever case is first.)
    let own = kept.with_extension(std::process::id().to_string());
    let copied = Command::new("cp")
        .arg("-r")
        .arg(&classes)
        .arg(&own)
        .status();
    assert!(copied.expect("cp starts").success());
    match std::fs::rename(&own, &kept) {
        Ok(()) => kept,
        Err(_) => classes,
    }
}

/// The program with a collector and so many entries.
fn java_heap(dir: &Path, collector: &str, entries: &str) -> Program {
    let classes = compile_java("Heap", dir);
    Program::new(dir, "java")
        .args(["-Xms16m", "-Xmx400m", "-XX:TieredStopAtLevel=1"])
        .arg(format!("-XX:+Use{collector}GC"))
        .arg("-cp")
        .arg(classes)
        .args(["Heap", entries])
}

fn java(collector: &str) {
    let dir = directory();
    heap(&java_heap(dir.path(), collector, "330000"));
}

/// Its heap must be where it asks for it, and is a memory file: the kernel's.
fn java_z() {
    let dir = directory();
    let program = java_heap(dir.path(), "Z", "20000");
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, MEMORY_MIB).on_disk());
    assert_eq!(managed.output.status, plain.status, "{}", managed.said());
    assert_eq!(managed.output.stdout, plain.stdout);
}

fn node() {
    if !is_there("node") {
        missing("node");
    }
    let dir = directory();
    let script: &Path = &source("js").join("heap.js");
    heap(&Program::new(dir.path(), "node").arg(script).arg("330000"));
}

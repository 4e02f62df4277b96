//! CPython's own tests of what hugeswap stands in the way of: memory, files, signals, threads, processes.

use crate::compare::*;
use crate::util::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// In the slice: those that take a second or two.
const SLICE: [&str; 7] = [
    "test_mmap",
    "test_memoryview",
    "test_buffer",
    "test_fork1",
    "test_threading_local",
    "test_posix",
    "test_sqlite3",
];
const REST: [&str; 10] = [
    "test_os",
    "test_io",
    "test_signal",
    "test_subprocess",
    "test_threading",
    "test_multiprocessing_fork",
    "test_multiprocessing_spawn",
    "test_array",
    "test_bytes",
    "test_select",
];

/// What differs and may.
const KNOWN: &[Exception] = &[];

pub fn cases() -> Vec<Case> {
    let rest: &[&str] = if whole("cpython") { &REST } else { &[] };
    SLICE
        .iter()
        .chain(rest)
        .map(|&module| case(format!("cpython, {module}"), move || compare(module)))
        .collect()
}

/// The first interpreter that has its tests.
fn python() -> PathBuf {
    let ask = |python: &str| {
        let out = Command::new(python)
            .args(["-c", "import sys, test.test_mmap; print(sys.executable)"])
            .output()
            .ok()?;
        let path = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
        (out.status.success() && path.is_absolute()).then_some(path)
    };
    match ["python3", "/usr/bin/python3"].into_iter().find_map(ask) {
        Some(path) => path,
        None => missing("python3 with its own tests"),
    }
}

struct Module {
    python: PathBuf,
    name: &'static str,
}

impl Module {
    fn program(&self, dir: &Path) -> Program {
        let script = Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/suites/py/suite.py"
        ));
        Program::new(dir, &self.python)
            .arg("-B")
            .arg(script)
            .arg(self.name)
            // Tests about locales want the one that everybody has.
            .env("LC_ALL", "C.UTF-8")
            .env("TMPDIR", dir)
    }
}

impl Suite for Module {
    fn run(&self, dir: &Path, setup: Option<&Setup>, only: Option<&[String]>) -> Ran {
        let file = dir.join("outcomes");
        let program = self.program(dir).arg(&file).args(only.unwrap_or_default());
        let (status, mut ran) = run(&program, setup);
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        for (outcome, test) in text.lines().filter_map(|l| l.split_once('\t')) {
            ran.outcomes.insert(test.into(), outcome.into());
        }
        ran.outcomes
            .insert("the interpreter".into(), status.to_string());
        ran
    }
}

fn compare(name: &'static str) {
    let module = Module {
        python: python(),
        name,
    };
    let dir = directory();
    let there = module.program(dir.path()).arg("-").any();
    if !there.status.success() {
        let said = String::from_utf8_lossy(&there.stderr);
        skip(&format!(
            "{name} is not to be had: {}",
            said.lines().last().unwrap_or_default()
        ));
    }
    // test_mmap is quick: more of the same.
    let setups = match name {
        "test_mmap" => setups_with_storm(16, 200),
        // Many processes share it; those that are started by themselves have each their own copy of what they import.
        "test_multiprocessing_spawn" => setups(128),
        _ if name.starts_with("test_multiprocessing") => setups(64),
        _ => setups(16),
    };
    same(name, &module, &setups, KNOWN);
}

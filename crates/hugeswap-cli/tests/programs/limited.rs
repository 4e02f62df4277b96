//! Programs under limits: of the process (ulimit), of its control group, of mappings. Either the
//! program works as it does without hugeswap, or one line says which limit is too low.

use crate::util::*;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The commands of a shell before it executes hugeswap.
const PROCESS: &[&str] = &[
    "ulimit -n 64",
    "ulimit -n 24",
    "ulimit -l 0",
    "ulimit -s 256",
    "ulimit -S -v 16000000",
    "ulimit -S -v 4000000",
    "ulimit -S -f 300000",
    "ulimit -t 1000",
];
/// Arguments with which the program needs more than the budget.
const THREADS: [&str; 3] = ["8", "16", "2"];
const MEMORY_MIB: u64 = 32;

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for limit in PROCESS {
        all.push(case(format!("limited, {limit}"), || by_shell(limit)));
    }
    all.push(case("limited, too short a file", too_short_a_file));
    all.push(case("limited, two frames to spare", smallest_budget));
    for (userfaultfd, left) in [("on", "40"), ("off", "40"), ("on", "1000")] {
        let name = format!("limited, {left} mappings left, userfaultfd {userfaultfd}");
        all.push(case(name, move || crowded(userfaultfd, left)));
    }
    for compress in ["auto", "always"] {
        all.push(case(
            format!("limited, memory of a control group, swap.compress={compress}"),
            move || memory_group(compress),
        ));
    }
    all.push(case("limited, processes of a control group", process_group));
    all
}

fn shell(script: &str) -> Vec<OsString> {
    let script = format!("{script} && exec \"$@\"");
    ["sh", "-c", &script, "sh", HUGESWAP]
        .into_iter()
        .map(OsString::from)
        .collect()
}

fn threads(dir: &Path) -> Program {
    Program::new(dir, compile("threads", dir)).args(THREADS)
}

fn by_shell(limit: &str) {
    let dir = directory();
    let program = threads(dir.path());
    let plain = program.plain();
    let managed = program.managed_by(
        &shell(limit),
        &Setup::new(Mode::Signal, MEMORY_MIB).on_disk(),
    );
    managed.same_as(&plain);
}

/// If the pool itself cannot be made, one line says which limit is too low.
fn too_short_a_file() {
    for limit in ["100", "100000"] {
        let out = Command::new("sh")
            .args(["-c", &format!("ulimit -f {limit} && exec \"$0\" \"$@\"")])
            .args([
                HUGESWAP, "run", "--memory", "64M", "--swap", "/var/tmp", "--", "true",
            ])
            .output()
            .expect("sh starts");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(
            said.lines().count() == 1 && said.contains("ulimit -f"),
            "{said}"
        );
    }
}

/// A program works in the smallest budget, most of which is kept for the next faults.
fn smallest_budget() {
    let dir = directory();
    let program = Program::new(dir.path(), compile("threads", dir.path())).args(["3", "8", "2"]);
    let plain = program.plain();
    for mode in Mode::permitted() {
        program
            .managed(&Setup::new(mode, 16).on_disk())
            .same_as(&plain);
    }
}

fn crowded(userfaultfd: &str, left: &str) {
    let dir = directory();
    let program = Program::new(dir.path(), compile("crowd", dir.path())).args(["80", left]);
    let plain = program.plain();
    let setting = format!("debug.userfaultfd={userfaultfd}");
    let setup = Setup::new(Mode::Signal, 40).option("--set", setting);
    // Without userfaultfd, and without mappings, each page here and there is read with its whole unit.
    let setup = match userfaultfd {
        "off" => setup,
        _ => setup.on_disk(),
    };
    program.managed(&setup).same_as(&plain);
}

/// A control group of a hierarchy of version 1, removed when the value is dropped.
pub struct ControlGroup(pub PathBuf);

impl ControlGroup {
    /// Makes a group with one limit; ends the case as skipped if that is not possible.
    pub fn new(controller: &str, limit: &str, value: &str) -> ControlGroup {
        let at = Path::new("/sys/fs/cgroup").join(controller);
        let name = format!("hugeswap-test-{}", std::process::id());
        let group = ControlGroup(at.join(name));
        let made =
            std::fs::create_dir(&group.0).and_then(|()| std::fs::write(group.0.join(limit), value));
        if let Err(e) = made {
            drop(group);
            skip(&format!("no control group under {}: {e}", at.display()));
        }
        group
    }

    pub fn enter(&self) -> String {
        format!("echo $$ >\"{}/cgroup.procs\"", self.0.display())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // The group's last process may take a moment to be gone.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// The control group has 5% more than the budget, and what the program needs besides: nothing is
/// killed.
fn memory_group(compress: &str) {
    const MEMORY_MIB: u64 = 64;
    let dir = directory();
    let program = Program::new(dir.path(), compile("workers", dir.path())).args(["2", "72", "2"]);
    let plain = program.plain();
    let limit = (MEMORY_MIB * 105 / 100 + 16) << 20;
    let group = ControlGroup::new("memory", "memory.limit_in_bytes", &limit.to_string());
    let setup = Setup::new(Mode::Signal, MEMORY_MIB)
        .on_disk()
        .option("--set", format!("swap.compress={compress}"));
    let managed = program.managed_by(&shell(&group.enter()), &setup);
    managed.same_as(&plain);
}

/// Hardly any threads may be created. The program's threads come first, and hugeswap's own are
/// enough.
fn process_group() {
    let dir = directory();
    let program = threads(dir.path());
    let plain = program.plain();
    let group = ControlGroup::new("pids", "pids.max", "16");
    let setup = Setup::new(Mode::Signal, MEMORY_MIB).on_disk();
    let managed = program.managed_by(&shell(&group.enter()), &setup);
    managed.same_as(&plain);
}

//! Python with numpy: programs that print hashes of what they compute, read and receive.

use crate::util::*;
use std::path::PathBuf;
use std::process::Command;

pub fn cases() -> Vec<Case> {
    [
        ("arrays", 1, 24),
        ("files", 1, 48),
        ("processes", 8, 64),
        ("streams", 1, 48),
    ]
    .map(|(name, processes, mib)| {
        case(format!("python {name}"), move || {
            script(name, processes, mib)
        })
    })
    .into_iter()
    .chain(["fork", "spawn"].map(|how| {
        case(format!("python shared_memory, {how}"), move || {
            shared_memory(how)
        })
    }))
    .collect()
}

/// multiprocessing.shared_memory is larger than the budget, and used by workers that are started by
/// the method `how`.
fn shared_memory(how: &str) {
    let dir = directory();
    let program = Program::new(dir.path(), python())
        .arg("-B")
        .arg(source("py").join("shared_memory.py"))
        .arg(how);
    let plain = program.plain();
    let setup = Setup::new(Mode::Signal, 48)
        .on_disk()
        .option("--set", "shared.files=on");
    program.managed(&setup).same_as(&plain).processes(5);
}

/// The path of an interpreter that has numpy: the interpreter itself, not a script that looks for
/// it.
pub fn python() -> PathBuf {
    let ask = |python: &str| {
        let out = Command::new(python)
            .args(["-c", "import sys, numpy; print(sys.executable)"])
            .output()
            .ok()?;
        let path = PathBuf::from(String::from_utf8(out.stdout).ok()?.trim());
        (out.status.success() && path.is_absolute()).then_some(path)
    };
    match ["python3", "/usr/bin/python3"].into_iter().find_map(ask) {
        Some(path) => path,
        None => missing("python3 with numpy"),
    }
}

fn script(name: &str, processes: u64, mib: u64) {
    let dir = directory();
    let program = Program::new(dir.path(), python())
        .arg("-B")
        .arg(source("py").join(format!("{name}.py")))
        .arg(dir.path())
        // One thread, so that sums are the same every time.
        .env("OPENBLAS_NUM_THREADS", "1");
    let plain = program.plain();
    for mode in Mode::permitted() {
        let managed = program.managed(&Setup::new(mode, mib).on_disk());
        managed.same_as(&plain).processes(processes);
    }
    if processes > 1 {
        // Less memory, and more of it managed: many units are held by calls that wait for each
        // other.
        let setup = Setup::new(Mode::Signal, 48)
            .on_disk()
            .option("--set", "route.malloc_min=128K")
            .option("--set", "route.mmap_min=128K");
        program.managed(&setup).same_as(&plain).processes(processes);
    }
}

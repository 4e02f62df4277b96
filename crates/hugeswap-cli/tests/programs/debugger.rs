//! gdb on programs whose memory is in swap, and the contents of core dumps.

use crate::util::*;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const MIB: usize = 160;
/// The same where all of it is read by gdb, which takes long.
const READ_MIB: usize = 64;

pub fn cases() -> Vec<Case> {
    vec![
        case("gdb, memory in swap", || {
            memory_in_swap(Mode::Signal, "auto")
        }),
        case("gdb, memory in swap, message", || {
            memory_in_swap(Mode::Message, "auto")
        }),
        // In which casts are written otherwise.
        case("gdb, memory in swap, rust", || {
            memory_in_swap(Mode::Signal, "rust")
        }),
        case("gdb, the program's own fault", own_fault),
        case("core dump", core_dump),
    ]
}

/// Writes hugeswap's gdb script to `dir`, and returns its path. Ends the case as skipped without a
/// gdb that has Python.
fn script(dir: &Path) -> PathBuf {
    if !Command::new("gdb")
        .arg("--version")
        .output()
        .is_ok_and(|o| o.status.success())
    {
        skip("gdb is not installed");
    }
    let python = Command::new("gdb")
        .args(["-q", "-batch", "-ex", "python print(1)"])
        .output();
    if !python.is_ok_and(|o| o.stdout == b"1\n") {
        skip("this gdb has no python");
    }
    let out = Command::new(HUGESWAP)
        .args(["debug", "gdb-script"])
        .output()
        .expect("hugeswap starts");
    let path = dir.join("hugeswap.gdb");
    std::fs::write(&path, out.stdout).expect("write");
    path
}

fn managed(mode: Mode, program: &Path, then: &str) -> Command {
    let mut c = Command::new(HUGESWAP);
    c.args([
        "run",
        "--memory",
        "32M",
        "--report",
        "none",
        "--fault-mode",
        &mode.to_string(),
        "--",
    ])
    .arg(program)
    .args([&READ_MIB.to_string(), then])
    .stdin(Stdio::null())
    .stdout(Stdio::piped());
    c
}

/// Skips the case where gdb, by what it has said, cannot have any program call a function: gdb 13 writes the registers of
/// processors with AMX in a length that the kernel refuses.
fn need_calls(said: &str) {
    if said.contains("Couldn't write extended state status") {
        skip("this gdb cannot set the registers of this processor");
    }
}

/// Every page, also one that is in swap, reads as it was written, with gdb set to a `language`.
fn memory_in_swap(mode: Mode, language: &str) {
    mode.need();
    let dir = directory();
    let script = script(dir.path());
    let program = compile("stopped", dir.path());
    let mut child = managed(mode, &program, "wait")
        .spawn()
        .expect("hugeswap starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe"))
        .read_line(&mut line)
        .expect("read");
    let (pid, address) = line.trim().split_once(' ').expect("two words");
    let file = dir.path().join("found");
    let gdb = Command::new("gdb")
        .args(["-q", "-batch", "-p", pid, "-x"])
        .arg(&script)
        .args([
            "-ex",
            &format!("set language {language}"),
            "-ex",
            &format!(
                "hugeswap-read {address} {} {}",
                READ_MIB << 20,
                file.display()
            ),
        ])
        .args([
            "-ex",
            &format!("hugeswap-bring-in {address} 8"),
            "-ex",
            &format!("x/gx {address}"),
        ])
        .args(["-ex", "hugeswap-read 4096 8", "-ex", "show language"])
        .stdin(Stdio::null())
        .output()
        .expect("gdb starts");
    let said = [gdb.stdout, gdb.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    child.kill().expect("kill of a child");
    child.wait().expect("wait for a child");
    if said.contains("ptrace: Operation not permitted") {
        skip("gdb may not attach here");
    }
    need_calls(&said);
    let found = std::fs::read(&file).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(found.len(), READ_MIB << 20, "{said}");
    let (words, _) = found.as_chunks::<8>();
    let wrong = (0..words.len()).find(|&i| u64::from_ne_bytes(words[i]) != i as u64 * 8 * 7 + 1);
    assert_eq!(wrong, None, "{said}");
    assert!(said.contains("0x0000000000000001"), "{said}");
    assert!(said.contains("0x1000: no managed memory"), "{said}");
    // As it was.
    let set = format!("source language is \"{language}");
    assert!(said.contains(&set), "{said}");
}

/// gdb does not stop at our faults. It stops at a fault of the program, and can read memory there
/// too.
fn own_fault() {
    let dir = directory();
    let script = script(dir.path());
    let program = compile("stopped", dir.path());
    let gdb = Command::new(HUGESWAP)
        .args([
            "run", "--memory", "32M", "--report", "none", "--", "gdb", "-q", "-batch", "-x",
        ])
        .arg(&script)
        .args([
            "-ex",
            "run",
            "-ex",
            "bt",
            "-ex",
            "hugeswap-read 0x400000000008 8",
            "--args",
        ])
        .arg(&program)
        .args([&MIB.to_string(), "fault"])
        .stdin(Stdio::null())
        .output()
        .expect("gdb starts");
    let said = [gdb.stdout, gdb.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    if said.contains("ptrace: Operation not permitted") {
        skip("gdb may not trace here");
    }
    need_calls(&said);
    assert!(said.contains("hit Breakpoint 1"), "{said}");
    assert!(
        said.contains("<signal handler called>") && said.contains("stopped.c:"),
        "{said}"
    );
    assert!(said.contains("39 00 00 00 00 00 00 00"), "{said}");
}

/// A core dump has the program's memory in it, not gigabytes of tables.
fn core_dump() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        skip(&format!("core dumps go elsewhere: {}", pattern.trim()));
    }
    let dir = directory();
    let program = compile("stopped", dir.path());
    let out = Command::new("sh")
        .args(["-c", "ulimit -c unlimited && exec \"$@\"", "sh", HUGESWAP])
        .args(["run", "--memory", "64M", "--"])
        .arg(&program)
        .args([&MIB.to_string(), "abort"])
        .current_dir(dir.path())
        .output()
        .expect("sh starts");
    let said = String::from_utf8_lossy(&out.stderr);
    let core = std::fs::read_dir(dir.path())
        .expect("a directory")
        .flatten();
    let core = core
        .map(|e| e.path())
        .find(|p| p.to_string_lossy().contains("core"));
    let Some(core) = core else {
        skip("no core dump was made");
    };
    assert!(
        said.contains("the core dump has zeros for memory that was in swap"),
        "{said}"
    );
    let held = core.metadata().expect("a file").blocks() * 512;
    assert!(held < 300 << 20, "the dump takes {held} bytes");
}

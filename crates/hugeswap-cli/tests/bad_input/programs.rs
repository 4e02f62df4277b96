//! Programs that cannot be run, or into which nothing can be injected.

use crate::{Place, run_program};
use predicates::str::contains;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_program_that_is_not_there() {
    let p = Place::new();
    p.refuses(&run_program("/no/such/program"), "does not exist");
    p.refuses(
        &run_program("no-such-program-anywhere"),
        "not found in PATH",
    );
    p.refuses(&run_program(""), "empty");
}

#[test]
fn a_program_that_is_a_directory_or_not_executable() {
    let p = Place::new();
    p.refuses(&run_program("/etc"), "is a directory");
    let file = p.file("data", b"#!/bin/sh\n", 0o644);
    p.refuses(&run_program(&file), "may not be executed");
}

#[test]
fn a_text_file_that_names_no_interpreter() {
    let p = Place::new();
    let file = p.file("text", b"echo hello\n", 0o755);
    p.refuses(&run_program(&file), "neither a program");
}

#[test]
fn scripts_run_their_interpreter() {
    let p = Place::new();
    let script = p.file("script", b"#!/bin/sh\necho \"$0 ran\"\nexit 7\n", 0o755);
    p.hugeswap()
        .args(run_program(&script))
        .assert()
        .code(7)
        .stdout(contains("script ran"));
    let script = p.file("by-env", b"#!/usr/bin/env sh\necho ran\n", 0o755);
    p.hugeswap()
        .args(run_program(&script))
        .assert()
        .success()
        .stdout("ran\n");
    let script = p.file("orphan", b"#!/no/such/interpreter\n", 0o755);
    p.refuses(
        &run_program(&script),
        "/no/such/interpreter, which does not exist",
    );
    let script = p.file("env-orphan", b"#!/usr/bin/env no-such-program\n", 0o755);
    p.refuses(&run_program(&script), "no-such-program is not found");
}

/// The head of a copy of /bin/true, changed.
fn changed(edit: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = std::fs::read("/bin/true").unwrap();
    edit(&mut bytes);
    bytes
}

/// Offsets of the program headers of a 64-bit ELF file.
fn headers(elf: &[u8]) -> Vec<usize> {
    let start = u64::from_le_bytes(elf[32..40].try_into().unwrap()) as usize;
    let count = u16::from_le_bytes(elf[56..58].try_into().unwrap()) as usize;
    (0..count).map(|i| start + i * 56).collect()
}

const PT_INTERP: u8 = 3;

/// A copy of /bin/true that names another loader (which must not be longer).
fn with_loader(loader: &[u8]) -> Vec<u8> {
    changed(|b| {
        for h in headers(b)
            .into_iter()
            .filter(|&h| b[h] == PT_INTERP)
            .collect::<Vec<_>>()
        {
            let at = u64::from_le_bytes(b[h + 8..h + 16].try_into().unwrap()) as usize;
            b[at..at + loader.len()].copy_from_slice(loader);
            b[h + 32..h + 40].copy_from_slice(&(loader.len() as u64).to_le_bytes());
        }
    })
}

#[test]
fn a_program_that_has_libraries_but_no_loader() {
    let p = Place::new();
    // Without PT_INTERP the kernel starts the program by itself, without a loader.
    let file = changed(|b| {
        for h in headers(b) {
            if b[h] == PT_INTERP {
                b[h] = 0;
            }
        }
    });
    let file = p.file("static", &file, 0o755);
    p.refuses(&run_program(&file), "names no loader");
}

#[test]
fn a_program_for_musl() {
    let p = Place::new();
    let file = with_loader(b"/lib/ld-musl-none.so.1\0");
    let file = p.file("musl", &file, 0o755);
    p.refuses(&run_program(&file), "needs the loader");
}

#[test]
fn a_program_for_another_machine() {
    let p = Place::new();
    let arm = p.file("arm", &changed(|b| b[18] = 183), 0o755);
    p.refuses(&run_program(&arm), "another kind of processor");
    let narrow = p.file("narrow", &changed(|b| b[4] = 1), 0o755);
    p.refuses(&run_program(&narrow), "32-bit");
    let cut = p.file("cut", &changed(|b| b.truncate(70)), 0o755);
    p.refuses(&run_program(&cut), "damaged");
}

#[test]
fn a_program_that_gains_privilege() {
    let p = Place::new();
    for (name, mode) in [("setuid", 0o4755), ("setgid", 0o2755)] {
        let file = p.file(name, &std::fs::read("/bin/true").unwrap(), 0o755);
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        p.refuses(&run_program(&file), name);
    }
}

#[test]
fn a_program_with_file_capabilities() {
    let p = Place::new();
    let file = p.file("capable", &std::fs::read("/bin/true").unwrap(), 0o755);
    // Version 2, effective; CAP_NET_RAW permitted.
    let value: Vec<u8> = [0x0200_0001u32, 1 << 13, 0, 0, 0]
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    let set = rustix::fs::setxattr(
        &file,
        c"security.capability",
        &value,
        rustix::fs::XattrFlags::empty(),
    );
    if let Err(e) = set {
        println!("skipped: file capabilities cannot be set here ({e})");
        return;
    }
    p.refuses(&run_program(&file), "file capabilities");
}

#[test]
fn no_report_file_is_left_when_the_program_cannot_start() {
    let p = Place::new();
    // Passes every check, but the loader it names may not be executed.
    let file = with_loader(b"/etc/passwd\0");
    let file = p.file("odd", &file, 0o755);
    let mut run = p.hugeswap();
    let args = [
        "run",
        "--memory",
        "64M",
        "--report-file",
        "report",
        "--",
        &file,
    ];
    p.refused(&mut run, &args, "could not be started");
}

//! The engine's threads do not count as the program's: a process ends with the program's last
//! thread, and the program's permissions are all that any thread of the process has.

use crate::util::*;
use std::process::Command;

/// The parts of c/blocked.c.
pub const BLOCKED: [&str; 5] = ["detached", "stacks", "timers", "queue", "requests"];

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for mode in Mode::ALL {
        for end in ["main", "last", "child", "term"] {
            all.push(case(format!("ends, {end}, {mode}"), move || {
                ends(end, mode)
            }));
        }
        all.push(case(format!("ends, python, {mode}"), move || python(mode)));
        for part in BLOCKED {
            all.push(case(format!("blocked, {part}, {mode}"), move || {
                blocked(part, mode)
            }));
        }
        all.push(case(format!("asynchronous, {mode}"), move || {
            asynchronous(mode)
        }));
        all.push(case(format!("requests, {mode}"), move || requests(mode)));
        all.push(case(format!("submitted, {mode}"), move || submitted(mode)));
        for threads in ["0", "4"] {
            all.push(case(
                format!("credentials, {threads} threads, {mode}"),
                move || credentials(threads, mode),
            ));
        }
    }
    all.push(case("ends, by the bare system call", bare));
    all.push(case("gdb sees all threads", debugger));
    all
}

fn ends(end: &str, mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("ends", dir.path())).args([end, "96"]);
    let plain = program.plain();
    program.managed(&Setup::new(mode, 64)).same_as(&plain);
}

/// Code of the C library that runs with every signal blocked, in threads that end and in threads
/// that it makes itself, uses memory that would be in swap.
fn blocked(part: &str, mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("blocked", dir.path())).arg(part);
    let plain = program.plain();
    let setup = Setup::new(mode, 32).option("--set", "debug.storm=100");
    program.managed(&setup).same_as(&plain);
}

/// Asynchronous input and output, and look-ups of names, with memory that would be in swap.
fn asynchronous(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("asynchronous", dir.path()));
    let plain = program.plain();
    let setup = Setup::new(mode, 64).option("--set", "debug.storm=20");
    program.managed(&setup).same_as(&plain);
    let forks = program.arg("child").managed(&setup);
    assert_eq!(forks.output.status, plain.status, "{}", forks.said());
    assert_eq!(forks.output.stdout, plain.stdout);
}

/// Settings under which memory leaves while it is transferred to. (Without any, transfers are tried where what
/// was transferred to is to leave. Message mode has no pages.)
fn hard_for_transfers(mode: Mode) -> &'static [&'static str] {
    match mode {
        Mode::Message => &["debug.storm=50"],
        _ => &["debug.storm=50", "thp.enabled=never"],
    }
}

/// c/submitted.c: transfers by io_submit.
fn submitted(mode: Mode) {
    mode.need();
    let dir = directory();
    let file = dir.path().join("file");
    let program = Program::new(dir.path(), compile("submitted", dir.path())).arg(file);
    let plain = program.plain();
    for &setting in hard_for_transfers(mode) {
        let setup = Setup::new(mode, 64).option("--set", setting);
        program.managed(&setup).same_output_as(&plain);
    }
    let leaves = program.arg("leaves").managed(&Setup::new(mode, 64));
    assert!(leaves.output.status.success(), "{}", leaves.said());
}

/// c/requests.c: transfers by an io_uring.
fn requests(mode: Mode) {
    mode.need();
    if let Err(e) = hugeswap_sys::probe::io_uring() {
        skip(&format!("no io_uring ({e})"));
    }
    let dir = directory();
    let file = dir.path().join("file");
    let program = || Program::new(dir.path(), compile("requests", dir.path())).arg(&file);
    let plain = program().plain();
    let setup = || Setup::new(mode, 64).option("--set", "syscall.io_uring=on");
    for &setting in hard_for_transfers(mode) {
        program()
            .managed(&setup().option("--set", setting))
            .same_output_as(&plain);
    }
    let leaves = program().arg("leaves").managed(&setup());
    assert!(leaves.output.status.success(), "{}", leaves.said());
    if mode == Mode::Signal {
        let refused = program().arg("refused").managed(&Setup::new(mode, 64));
        assert!(refused.output.status.success(), "{}", refused.said());
        let early = program().arg("early");
        let plain = early.plain();
        let early = early.managed(&Setup::new(mode, 64));
        assert_eq!(early.output.stdout, plain.stdout, "{}", early.said());
        let said = String::from_utf8_lossy(&early.output.stderr);
        assert!(said.contains("an io_uring from before"), "{said}");
    }
}

/// When the program's only thread ends by the bare system call, the process ends with its status.
fn bare() {
    let dir = directory();
    let program = Program::new(dir.path(), compile("ends", dir.path())).args(["last-raw", "96"]);
    let managed = program.managed(&Setup::new(Mode::Signal, 64));
    assert_eq!(managed.output.status.code(), Some(9));
    managed.kept_its_budget();
}

/// A thread forks a child that returns from it, after a pool of workers.
fn python(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), crate::python::python())
        .arg("-B")
        .arg(source("py").join("ends.py"));
    let plain = program.plain();
    program.managed(&Setup::new(mode, 64)).same_as(&plain);
}

fn credentials(threads: &str, mode: Mode) {
    if !rustix::process::geteuid().is_root() {
        skip("only root can change its user");
    }
    mode.need();
    let dir = directory();
    let program =
        Program::new(dir.path(), compile("credentials", dir.path())).args(["96", threads]);
    let plain = program.plain();
    program.managed(&Setup::new(mode, 64)).same_as(&plain);
}

/// A debugger attaches to a managed process and sees where each of its threads is.
fn debugger() {
    let dir = directory();
    if Command::new("gdb").arg("--version").output().is_err() {
        missing("gdb");
    }
    let program = Program::new(dir.path(), "sh")
        .arg(source("gdb.sh"))
        .arg(compile("ends", dir.path()));
    let managed = program.managed(&Setup::new(Mode::Signal, 64));
    let printed = String::from_utf8_lossy(&managed.output.stdout);
    if printed.contains("Operation not permitted") {
        skip("a debugger may not attach to a process that is no child of its own here");
    }
    assert!(managed.output.status.success(), "{printed}");
    for what in ["hs-kswapd", "hs-io/1", "kswapd", "sleeper"] {
        assert!(printed.contains(what), "no {what}: {printed}");
    }
    managed.kept_its_budget();
}

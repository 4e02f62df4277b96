//! Programs that run already, and are attached: what they had keeps its contents, what they do goes on,
//! and they go on by themselves when their memory is given back.

use crate::limited::ControlGroup;
use crate::loaded::{self, Linked};
use crate::runtimes::compile_java;
use crate::util::*;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

/// What becomes of a program half way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    /// It stays attached.
    Stays,
    /// Its memory is given back.
    GivenBack,
    /// `hugeswap attach` is killed.
    Orphaned,
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Half::Stays => "stays",
            Half::GivenBack => "is given back",
            Half::Orphaned => "loses hugeswap",
        })
    }
}

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for half in [Half::Stays, Half::GivenBack, Half::Orphaned] {
        all.push(case(format!("attached, a C program {half}"), move || {
            let dir = directory();
            let program = Program::new(dir.path(), compile("attached", dir.path()));
            attached(&program.arg("96"), 48, half);
        }));
    }
    for linked in [Linked::Static, Linked::Musl, Linked::MuslDynamic] {
        all.push(case(format!("attached, {linked}"), move || {
            let dir = directory();
            let program = Program::new(dir.path(), linked.compile("attached", dir.path()));
            attached(&program.arg("96"), 48, Half::GivenBack);
        }));
    }
    for (linked, half) in [
        (None, Half::Stays),
        (None, Half::GivenBack),
        (Some(Linked::Static), Half::GivenBack),
    ] {
        let kind = linked.map_or("dynamic".into(), |l| l.to_string());
        let name = format!("attached, a heap of small blocks, {kind}, {half}");
        all.push(case(name, move || {
            let dir = directory();
            let path = match linked {
                None => compile("brk", dir.path()),
                Some(linked) => linked.compile("brk", dir.path()),
            };
            attached(&Program::new(dir.path(), path).arg("96"), 48, half);
        }));
    }
    for half in [Half::Stays, Half::GivenBack] {
        let name = format!("attached, any calls on addresses, {half}");
        all.push(case(name, move || {
            let dir = directory();
            let program = Program::new(dir.path(), compile("space", dir.path()));
            let steps = crate::addresses::space_steps();
            attached(&program.args(["1", "2", &steps, "3", "96"]), 48, half);
        }));
    }
    all.push(case("attached, Go", || {
        let dir = directory();
        let program = Program::new(dir.path(), loaded::compile_go("attached", dir.path()));
        attached(&program.arg("525000"), 24, Half::GivenBack);
    }));
    all.push(case("attached, java", || {
        let dir = directory();
        let classes = compile_java("Attached", dir.path());
        let program = Program::new(dir.path(), "java").args(["-Xmx300m", "-cp"]);
        attached(
            &program.arg(classes).args(["Attached", "400000"]),
            64,
            Half::GivenBack,
        );
    }));
    for half in [Half::Stays, Half::GivenBack] {
        all.push(case(format!("attached, python {half}"), move || {
            let dir = directory();
            let program = Program::new(dir.path(), "python3");
            attached(&program.arg(source("py").join("attached.py")), 32, half);
        }));
    }
    all.push(case("attached, more than there is room for", too_much));
    all.push(case("attached, in a sandbox", in_a_sandbox));
    all.push(case("attached, not killed for its memory", not_killed));
    all.push(case("attached, executes another program", executes));
    all.push(case("attached, and reported", reports));
    all.push(case("attached, what cannot be", refused));
    all
}

/// A program that has begun, and says how far it is.
struct Running {
    child: Child,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn start(program: &Program) -> Running {
        let mut child = Command::new(&program.argv[0])
            .args(&program.argv[1..])
            .current_dir(&program.dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", program.argv[0].display()));
        let input = child.stdin.take().expect("a pipe");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Running {
            child,
            input,
            lines,
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says this.
    fn says(&mut self, wanted: &str) {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        if line.trim_end() != wanted {
            let _ = self.child.kill();
            let status = self.child.wait();
            panic!("{line:?} where {wanted:?} was expected; {status:?}");
        }
    }

    fn go_on(&mut self) {
        self.input.write_all(b"go\n").expect("it reads");
    }

    /// Bytes of anonymous memory that it has in memory.
    fn anonymous(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
        let kib = line.and_then(|l| l.trim().split(' ').next()?.parse::<u64>().ok());
        kib.expect("a number") << 10
    }

    fn ends(mut self) {
        self.says("end");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }
}

/// A `hugeswap attach`.
struct Attach {
    child: Child,
    lines: BufReader<std::process::ChildStderr>,
}

impl Attach {
    fn start(pid: u32, memory_mib: u64) -> Attach {
        Attach::start_with(pid, &["--memory", &format!("{memory_mib}M")])
    }

    fn start_with(pid: u32, options: &[&str]) -> Attach {
        Attach::start_by(&[HUGESWAP.into()], "/var/tmp", pid, options)
    }

    /// By this command line, with swap in this directory.
    fn start_by(hugeswap: &[OsString], swap: &str, pid: u32, options: &[&str]) -> Attach {
        let mut child = Command::new(&hugeswap[0])
            .args(&hugeswap[1..])
            .args(["attach", &pid.to_string()])
            .args(options)
            .args(["--swap", &format!("{swap},size=2G")])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("hugeswap starts");
        let lines = BufReader::new(child.stderr.take().expect("a pipe"));
        Attach { child, lines }
    }

    /// Waits until memory was taken over.
    fn has_taken_over(&mut self) {
        let mut said = String::new();
        while !said.contains("are managed, after") {
            let read = self.lines.read_line(&mut said).expect("a line");
            assert!(read > 0, "{said}");
        }
        assert!(said.contains("can be managed"), "{said}");
    }

    /// Asks it to give the memory back, as Ctrl-C does.
    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
    }

    /// What it says until it ends.
    fn ends(mut self) -> String {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("text");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}: {rest}");
        rest
    }
}

/// Runs a program that is attached when it is ready, with a budget of less than it has.
fn attached(program: &Program, memory_mib: u64, half: Half) {
    let mut running = Running::start(program);
    running.says("ready");
    let (before, handled) = (running.anonymous(), caught(&running));
    let mut attach = Attach::start(running.pid(), memory_mib);
    attach.has_taken_over();
    let limit = memory_mib << 20;
    assert!(before > limit, "{before} bytes are too few");
    running.go_on();
    running.says("half");
    let now = running.anonymous();
    assert!(
        now < before.min(2 * limit),
        "{before} bytes before, {now} now"
    );
    match half {
        Half::Stays => {}
        Half::GivenBack => {
            detach(&running, attach, memory_mib);
            assert_eq!(caught(&running), handled, "handlers");
            let mut again = Attach::start(running.pid(), memory_mib);
            again.has_taken_over();
            detach(&running, again, memory_mib);
            assert_eq!(caught(&running), handled, "handlers");
            running.go_on();
            return running.ends();
        }
        Half::Orphaned => {
            let pid = Pid::from_child(&attach.child);
            kill_process(pid, Signal::KILL).expect("it runs");
            attach.child.wait().expect("it ends");
        }
    }
    running.go_on();
    running.ends();
    if half == Half::Stays {
        let report = attach.ends();
        assert!(report.contains(" ended, attached, after "), "{report}");
    }
}

/// A program has more memory, which does not compress, than memory alone has room for. It goes on.
fn too_much() {
    let dir = directory();
    let script = source("py").join("incompressible.py");
    let mut running = Running::start(&Program::new(dir.path(), "python3").arg(script));
    running.says("ready");
    let out = Command::new(HUGESWAP)
        .args(["attach", &running.pid().to_string()])
        .args(["--memory", "48M", "--swap", "mem"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hugeswap starts");
    running.go_on();
    running.ends();
    let out = out.wait_with_output().expect("it ends");
    let told = said(&out);
    assert!(told.contains("swap has no room for the rest"), "{told}");
    assert!(told.contains("[swap-full]"), "{told}");
    assert!(out.status.success(), "{told}");
}

/// Has a program's memory given back.
fn detach(running: &Running, attach: Attach, memory_mib: u64) {
    let out = Command::new(HUGESWAP)
        .args(["detach", &running.pid().to_string()])
        .output();
    let out = out.expect("hugeswap starts");
    assert!(out.status.success(), "{}", said(&out));
    let report = attach.ends();
    assert!(report.contains(" has its memory back, after "), "{report}");
    // (Not what there was for giving it back.)
    let budget = format!("budget {memory_mib}.0 MiB, ");
    assert!(report.contains(&budget), "{report}");
    assert!(!report.contains("code stays in it"), "{report}");
    nothing_is_left(running);
}

/// A program whose memory was given back has no thread, no descriptor and no mapping of hugeswap's.
fn nothing_is_left(running: &Running) {
    let dir = format!("/proc/{}", running.pid());
    let entries = |what: &str| {
        let list = std::fs::read_dir(format!("{dir}/{what}")).expect("it runs");
        list.flatten().map(|e| e.path()).collect::<Vec<_>>()
    };
    let maps = std::fs::read_to_string(format!("{dir}/maps")).expect("it runs");
    for line in maps.lines() {
        let ours = ["[aio]", "hugeswap-preload", "hugeswap-pool", HUGESWAP];
        // (Where it maps memory of its own.)
        let is_ours = line.starts_with("4a") && line.find('-') == Some(12);
        assert!(!is_ours && !ours.iter().any(|o| line.contains(o)), "{line}");
    }
    for task in entries("task") {
        let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        assert!(!name.starts_with("hs-"), "{name}");
    }
    for fd in entries("fd") {
        let to = std::fs::read_link(&fd).unwrap_or_default();
        let to = to.to_string_lossy();
        let ours = ["hugeswap", "userfaultfd", "/proc/", ".swap"];
        assert!(!ours.iter().any(|o| to.contains(o)), "{fd:?}: {to}");
    }
}

/// The signals that a process has handlers for.
fn caught(running: &Running) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", running.pid()));
    let status = status.expect("it runs");
    let caught = status
        .lines()
        .find_map(|l| l.strip_prefix("SigCgt:"))
        .expect("signals");
    u64::from_str_radix(caught.trim(), 16).expect("a number")
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).trim_end().to_owned()
}

/// Why a process is not attached.
fn refusal(pid: impl ToString) -> String {
    let out = Command::new(HUGESWAP)
        .args(["attach", &pid.to_string(), "--memory", "64M"])
        .output()
        .expect("hugeswap starts");
    let text = said(&out);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// An ordinary user's, under a filter like those of containers, which hugeswap runs under, too. From
/// outside it is a filter of the program's own.
fn in_a_sandbox() {
    let (dir, start) = crate::sandbox::sandbox();
    let path = compile("attached", dir.path());
    let start = [start[0].clone(), "-t".into(), start[1].clone()];
    let program = Program::new(dir.path(), &start[0]).arg("-t").arg(path);
    let program = program.arg("96");
    let mut running = Running::start(&program);
    running.says("ready");
    assert!(refusal(running.pid()).contains("seccomp"));
    let swap = dir.path().to_string_lossy().into_owned();
    let mut attach = Attach::start_by(&start, &swap, running.pid(), &["--memory", "48M"]);
    attach.has_taken_over();
    running.go_on();
    running.says("half");
    running.go_on();
    running.ends();
    attach.ends();
}

/// What it is for: a program outgrows its control group, and is killed; attached in time, it ends.
fn not_killed() {
    const SCRIPT: &str = "
import sys
parts = [bytearray(b'%d' % (i % 10)) * (20 << 20) for i in range(5)]
print('ready', flush=True)
sys.stdin.readline()
parts += [bytearray(b'%d' % (i % 10)) * (20 << 20) for i in range(5, 14)]
print('half', flush=True)
sys.stdin.readline()
assert all(p.count(b'%d' % (i % 10)) == len(p) for i, p in enumerate(parts))
print('end')
";
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() > 1 {
        skip("the kernel has swap, to which a control group's memory goes before it is killed");
    }
    let dir = directory();
    let limit = (180 << 20).to_string();
    let group = ControlGroup::new("memory", "memory.limit_in_bytes", &limit);
    let enter = format!("{} && exec \"$@\"", group.enter());
    let program =
        Program::new(dir.path(), "sh").args(["-c", &enter, "sh", "python3", "-c", SCRIPT]);
    let mut plain = Running::start(&program);
    plain.says("ready");
    plain.go_on();
    // (So it ends in any case.)
    let Running {
        mut child, input, ..
    } = plain;
    drop(input);
    let status = child.wait().expect("it ends");
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
    // (Of the limit some 20 MiB are a Python's that are not managed.)
    for options in [&["--memory", "96M"][..], &["--total", "160M"], &[]] {
        let mut running = Running::start(&program);
        running.says("ready");
        let mut attach = Attach::start_with(running.pid(), options);
        attach.has_taken_over();
        running.go_on();
        running.says("half");
        // Given back, it would be killed.
        let pid = running.pid().to_string();
        let out = Command::new(HUGESWAP).args(["detach", &pid]).output();
        let out = out.expect("hugeswap starts");
        assert_eq!(out.status.code(), Some(2), "{}", said(&out));
        assert!(
            said(&out).contains("the control group has room for"),
            "{}",
            said(&out)
        );
        attach.interrupt();
        running.go_on();
        running.ends();
        let told = attach.ends();
        assert!(told.contains("stays attached: "), "{told}");
    }
}

/// What a program executes that is attached is not managed, and runs.
fn executes() {
    let dir = directory();
    let script = "import os, sys; x = bytearray(64 << 20); print('ready', flush=True); \
                  sys.stdin.readline(); os.execvp('echo', ['echo', 'end'])";
    let mut running = Running::start(&Program::new(dir.path(), "python3").args(["-c", script]));
    running.says("ready");
    let mut attach = Attach::start(running.pid(), 32);
    attach.has_taken_over();
    running.go_on();
    running.ends();
    attach.ends();
}

/// The report as JSON: how a program ended that is not its child, hugeswap does not know.
fn reports() {
    let dir = directory();
    let file = dir.path().join("report.json");
    let path = file.to_str().expect("a name");
    let program = Program::new(dir.path(), compile("attached", dir.path())).arg("96");
    for given_back in [false, true] {
        let mut running = Running::start(&program);
        running.says("ready");
        let options = ["--memory", "48M", "--quiet", "--report", "json"];
        let options = [&options[..], &["--report-file", path]].concat();
        let attach = Attach::start_with(running.pid(), &options);
        while running.anonymous() > 80 << 20 {
            std::thread::yield_now();
        }
        running.go_on();
        running.says("half");
        if given_back {
            attach.interrupt();
            assert_eq!(attach.ends(), "");
            running.go_on();
            running.ends();
        } else {
            running.go_on();
            running.ends();
            assert_eq!(attach.ends(), "");
        }
        let report = std::fs::read_to_string(&file).expect("a report");
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        assert_eq!(report["given_back"], given_back);
        assert!(report["exit_code"].is_null());
        assert_eq!(report["memory_bytes"], 48 << 20);
        assert!(report["peak_managed_bytes"].as_u64() > Some(90 << 20));
        let beside = report["peak_unmanaged_bytes"].as_u64();
        assert!(beside < Some(96 << 20), "{beside:?}");
        assert!(report["pswpout"].as_u64() > Some(0));
    }
}

/// Each is refused in one line, and goes on as if nothing had been.
fn refused() {
    let dir = directory();
    let program = Program::new(dir.path(), compile("attached", dir.path()));
    let program = program.args(["96", "may be stopped"]);
    assert!(refusal(999_999_999).contains("there is no process"));
    assert!(refusal(1 << 30).contains("there is no process"));
    // Little memory.
    let mut cat = Command::new("cat")
        .stdin(Stdio::piped())
        .spawn()
        .expect("cat starts");
    assert!(refusal(cat.id()).contains("no memory that can be managed"));
    drop(cat.stdin.take());
    assert!(cat.wait().expect("it ends").success());
    // One that is stopped.
    let mut running = Running::start(&program);
    running.says("ready");
    let pid = Pid::from_child(&running.child);
    kill_process(pid, Signal::STOP).expect("it runs");
    while !is_stopped(running.pid()) {
        std::thread::yield_now();
    }
    assert!(refusal(running.pid()).contains("is stopped: continue it first"));
    kill_process(pid, Signal::CONT).expect("it runs");
    // One whose new memory is locked.
    let script = "import ctypes, sys; x = bytearray(64 << 20); assert ctypes.CDLL(None).mlockall(2) == 0; \
                  print('ready', flush=True); sys.stdin.readline(); print('end')";
    let mut locks = Running::start(&Program::new(dir.path(), "python3").args(["-c", script]));
    locks.says("ready");
    assert!(refusal(locks.pid()).contains("locks all memory that it will have"));
    locks.go_on();
    locks.ends();
    // One that is attached already.
    let mut attach = Attach::start(running.pid(), 64);
    attach.has_taken_over();
    assert!(refusal(running.pid()).contains("is managed already"));
    running.go_on();
    running.says("half");
    running.go_on();
    running.ends();
    attach.ends();
    // One that hugeswap has started.
    let mut run = Command::new(HUGESWAP)
        .args(["run", "--memory", "64M", "--report", "none", "--"])
        .args(&program.argv)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("hugeswap starts");
    let mut lines = BufReader::new(run.stdout.take().expect("a pipe"));
    let mut line = String::new();
    lines.read_line(&mut line).expect("a line");
    let children = format!("/proc/{0}/task/{0}/children", run.id());
    let child = std::fs::read_to_string(children).expect("it runs");
    assert!(refusal(child.trim()).contains("is managed already"));
    let out = Command::new(HUGESWAP)
        .args(["detach", child.trim()])
        .output();
    let out = out.expect("hugeswap starts");
    assert!(
        said(&out).contains("was started by `hugeswap run`"),
        "{}",
        said(&out)
    );
    run.stdin
        .take()
        .expect("a pipe")
        .write_all(b"go\ngo\n")
        .expect("it reads");
    assert!(run.wait().expect("it ends").success());
}

fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
}

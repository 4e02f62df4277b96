//! `hugeswap run` is the program, as far as anybody can tell: status, signals, streams, stops; and
//! nothing stays when it is killed.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const HUGESWAP: &str = env!("CARGO_BIN_EXE_hugeswap");

fn run(options: &[&str], script: &str) -> Command {
    let mut c = Command::new(HUGESWAP);
    c.args(["run", "--memory", "64M"])
        .args(options)
        .args(["--", "/bin/sh", "-c", script]);
    c.env_remove("HUGESWAP_POOL")
        .timeout(Duration::from_secs(60));
    c
}

/// Starts a script and waits until it has said its first line.
fn started(script: &str) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut c = std::process::Command::new(HUGESWAP);
    c.args([
        "run", "--memory", "64M", "--report", "none", "--", "/bin/sh", "-c", script,
    ]);
    c.env_remove("HUGESWAP_POOL")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .process_group(0);
    let mut child = c.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (child, out, line.trim().to_owned())
}

fn send(pid: u32, signal: i32) {
    hugeswap_sys::spawn::send(pid as i32, signal).unwrap();
}

/// The state letter of a process; `None` if it is gone.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat[stat.rfind(')')? + 2..].chars().next()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(100),
            "waited in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn exit_status_and_streams_are_the_programs() {
    run(&["--report", "none"], "cat; echo err >&2; exit 42")
        .write_stdin("in\n")
        .assert()
        .code(42)
        .stdout("in\n")
        .stderr("err\n");
}

#[test]
fn the_working_directory_and_environment_are_the_programs() {
    run(&["--report", "none"], "pwd; echo $MINE")
        .current_dir("/usr")
        .env("MINE", "kept")
        .assert()
        .stdout("/usr\nkept\n");
}

#[test]
fn death_by_signal_is_the_programs() {
    for signal in [libc::SIGTERM, libc::SIGSEGV, libc::SIGKILL, libc::SIGPIPE] {
        let out = run(&["--report", "none"], &format!("kill -{signal} $$"))
            .output()
            .unwrap();
        assert_eq!(out.status.signal(), Some(signal));
        assert!(!out.status.core_dumped());
    }
}

#[test]
fn an_argument_list_with_options_and_spaces_arrives() {
    let mut c = Command::new(HUGESWAP);
    c.args([
        "run", "--memory", "64M", "--report", "none", "--", "printf", "[%s]", "-x", "a b", "", "--",
    ]);
    c.assert().success().stdout("[-x][a b][][--]");
}

#[test]
fn signals_sent_to_us_reach_the_program() {
    for signal in [
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGHUP,
        libc::SIGUSR1,
        libc::SIGQUIT,
        libc::SIGWINCH,
    ] {
        let script =
            format!("trap 'echo got; exit 5' {signal}; echo ready; while :; do sleep 0.05; done");
        let (mut child, mut out, line) = started(&script);
        assert_eq!(line, "ready");
        send(child.id(), signal);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "got\n", "signal {signal}");
        assert_eq!(child.wait().unwrap().code(), Some(5));
    }
}

#[test]
fn stops_are_mirrored_and_continued() {
    let (mut child, mut out, program) = started("echo $$; read x; echo done");
    // Waiting would close it, and the program would come to its end by itself.
    let _stdin = child.stdin.take();
    let program: u32 = program.parse().unwrap();
    for signal in [libc::SIGSTOP, libc::SIGTSTP] {
        send(program, signal);
        wait_until("the supervisor is stopped", || {
            state(child.id()) == Some('T')
        });
        send(child.id(), libc::SIGCONT);
        wait_until("both run again", || {
            state(child.id()) != Some('T') && state(program) != Some('T')
        });
    }
    send(child.id(), libc::SIGTERM);
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGTERM));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

#[test]
fn the_program_sees_the_signal_state_it_would_see_without_us() {
    // Ignored and blocked signals are inherited: those of the program must be those handed to us.
    let look = "grep -E 'Sig(Ign|Blk)' /proc/self/status";
    for setup in [
        "",
        "trap '' PIPE; ",
        "trap '' INT QUIT; ",
        "trap '' HUP PIPE; ",
    ] {
        let shell = |program: String| {
            let out = std::process::Command::new("/bin/sh")
                .args(["-c", &program])
                .output()
                .unwrap();
            String::from_utf8(out.stdout).unwrap()
        };
        let plain = shell(format!("{setup}exec {look}"));
        let managed = shell(format!(
            "{setup}exec {HUGESWAP} run --memory 64M --report none -- {look}"
        ));
        assert_eq!(plain, managed, "{setup}");
        assert!(!plain.is_empty());
    }
}

#[test]
fn readers_see_the_end_when_the_program_closes_its_output() {
    let (mut child, mut out, line) = started("echo first; exec >&-; read x");
    assert_eq!(line, "first");
    let mut rest = String::new();
    // Would wait for ever if the supervisor kept the pipe.
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(state(child.id()).map(|s| s != 'Z'), Some(true));
    send(child.id(), libc::SIGKILL);
    child.wait().unwrap();
}

#[test]
fn killing_us_ends_the_program() {
    let (mut child, _out, program) = started("echo $$; while :; do sleep 0.05; done");
    let program: u32 = program.parse().unwrap();
    send(child.id(), libc::SIGKILL);
    child.wait().unwrap();
    wait_until("the program is gone", || {
        state(program).is_none_or(|s| s == 'Z')
    });
}

#[test]
fn killing_us_leaves_no_file() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let swap = format!("{},size=64M", dir.path().display());
    let mut c = std::process::Command::new(HUGESWAP);
    c.args([
        "run", "--memory", "64M", "--swap", &swap, "--", "sleep", "60",
    ])
    .env("TMPDIR", dir.path());
    let mut child = c.spawn().unwrap();
    wait_until("the program runs", || {
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()))
            .is_ok_and(|c| !c.is_empty())
    });
    send(child.id(), libc::SIGKILL);
    child.wait().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_preload_of_the_users_own_stays_behind_ours() {
    let mut c = run(&["--report", "none"], "echo $LD_PRELOAD");
    c.env("LD_PRELOAD", "libm.so.6");
    c.assert()
        .success()
        .stdout(predicate::str::is_match(r"^(/proc/\d+/fd/\d+:){2}libm.so.6\n$").unwrap());
}

#[test]
fn reports_go_where_they_are_told_to() {
    run(&[], "exit 0")
        .assert()
        .success()
        .stdout("")
        .stderr(predicate::str::starts_with("hugeswap: sh finished"));
    run(&["--report", "none"], "exit 0")
        .assert()
        .success()
        .stdout("")
        .stderr("");

    let out = run(&["--report", "json"], "exit 9")
        .assert()
        .code(9)
        .get_output()
        .stderr
        .clone();
    let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(v["exit_code"], 9);
    assert_eq!(v["memory_bytes"], 64 << 20);

    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join("report");
    let name = file.display().to_string();
    run(&["--report", "json", "--report-file", &name], "kill -9 $$")
        .assert()
        .stderr("");
    let v: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(v["signal"], 9);
    assert_eq!(v["exit_code"], 137);
    run(&["--report-file", &name], "exit 0").assert().stderr("");
    assert!(
        std::fs::read_to_string(&file)
            .unwrap()
            .starts_with("hugeswap: sh finished")
    );
}

#[test]
fn nearly_full_swap_is_told_when_it_happens_and_at_the_end() {
    let run = |size: &str| {
        let swap = format!("/var/tmp,size={size}");
        let out = Command::new(HUGESWAP)
            .args(["run", "--memory", "16M", "--swap", &swap, "--"])
            .args([
                "dd",
                "if=/dev/urandom",
                "of=/dev/null",
                "bs=74M",
                "count=8",
                "iflag=fullblock",
                "status=none",
            ])
            .timeout(std::time::Duration::from_secs(120))
            .assert()
            .success()
            .get_output()
            .clone();
        String::from_utf8(out.stderr).unwrap()
    };
    let told = run("64M");
    assert!(told.starts_with("hugeswap: swap is 90% full"), "{told}");
    assert_eq!(told.matches("hugeswap: swap is 90% full").count(), 1);
    assert!(
        told.contains("WARNING   swap was more than 90% full"),
        "{told}"
    );
    assert!(!run("1G").contains("90% full"));
}

#[test]
fn doctor_answers_people_and_programs() {
    let out = Command::new(HUGESWAP)
        .args(["doctor", "--json"])
        .assert()
        .get_output()
        .clone();
    let v: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(v["usable"].as_bool(), Some(out.status.success()));
    let names: Vec<_> = v["checks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    for wanted in [
        "huge pages",
        "mremap mover",
        "userfaultfd",
        "UFFDIO_MOVE",
        "mappings",
        "swap directory",
        "io_uring",
    ] {
        assert!(names.contains(&wanted), "{wanted}");
    }
    Command::new(HUGESWAP)
        .arg("doctor")
        .assert()
        .stdout(contains("What hugeswap run will use"));
    Command::new(HUGESWAP)
        .args(["doctor", "--swap", "/no/such/place"])
        .assert()
        .code(1)
        .stdout(contains("not usable here: see swap directory"));
}

#[test]
fn doctor_tells_of_a_program() {
    let doctor = |program: &str| {
        let mut c = Command::new(HUGESWAP);
        c.args(["doctor", "--json", "--", program]);
        let out = c.output().unwrap();
        let v: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let checks = v["checks"].as_array().unwrap().clone();
        let of = |name: &str| checks.iter().find(|c| c["name"] == name).cloned();
        (v["usable"].clone(), of("program"), of("its memory"))
    };
    let (usable, program, memory) = doctor("sh");
    assert_eq!(usable, true);
    let finding = program.unwrap()["finding"].to_string();
    assert!(finding.contains("preloads the object"), "{finding}");
    assert_eq!(memory.unwrap()["status"], "ok");
    // A script stands for what runs it.
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let script = dir.path().join("script");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (_, program, _) = doctor(script.to_str().unwrap());
    let finding = program.unwrap()["finding"].to_string();
    assert!(finding.contains("a script for /bin/sh"), "{finding}");
    let (usable, program, memory) = doctor("no-such-program");
    assert_eq!((usable, memory), (false.into(), None));
    let finding = program.unwrap()["finding"].to_string();
    assert!(finding.contains("not found in PATH"), "{finding}");
}

#[test]
fn messages_end_with_what_explains_them() {
    let random = "memory = bytearray(200 << 20)
for i in range(0, len(memory), 1 << 20):
    memory[i:i + (1 << 20)] = __import__('os').urandom(1 << 20)";
    let out = Command::new(HUGESWAP)
        .args(["run", "--memory", "32M", "--swap", "mem"])
        .args([
            "--set",
            "vm.full_patience_ms=100",
            "--",
            "python3",
            "-c",
            random,
        ])
        .timeout(Duration::from_secs(60))
        .assert()
        .failure()
        .get_output()
        .clone();
    let said = String::from_utf8(out.stderr).unwrap();
    let marked = said.lines().filter(|l| l.ends_with(" [out-of-memory]"));
    let marked: Vec<_> = marked.collect();
    assert!(
        marked
            .iter()
            .any(|l| l.contains(" is lost: neither memory")),
        "{said}"
    );
    assert!(marked.iter().any(|l| l.contains("WARNING ")), "{said}");
}

#[test]
fn names_are_explained() {
    let explain = |names: &[&str]| {
        let mut c = Command::new(HUGESWAP);
        c.arg("explain").args(names);
        c.assert()
    };
    let one = "pswpin                       Base pages read from swap (a huge page counts 512).\n";
    explain(&["pswpin"]).success().stdout(one);
    explain(&["zswap"])
        .success()
        .stdout(contains("zswap_moved").and(contains("zswap.enabled")));
    explain(&[])
        .success()
        .stdout(contains("thp_swpout_fallback").and(contains("major_4k")));
    let long = explain(&["swap-full"]).success();
    long.stdout(
        contains("swap-full\n\nSwap is nearly full").and(contains("hugeswap ctl swap add")),
    );
    explain(&["nowhere"]).code(2).stdout("").stderr(contains(
        "no figure, setting or message begins with 'nowhere'",
    ));
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [
        &["--help"][..],
        &["--version"],
        &["run", "--help"],
        &["doctor", "-h"],
        &["demo", "--help"],
        &["bench", "--help"],
        &["stat", "--help"],
        &["explain", "--help"],
    ] {
        Command::new(HUGESWAP)
            .args(args)
            .assert()
            .success()
            .stderr("");
    }
    Command::new(HUGESWAP)
        .args(["run", "--help"])
        .assert()
        .stdout(contains("route.malloc_min"));
    Command::new(HUGESWAP)
        .arg("--help")
        .assert()
        .stdout(contains("__worker").not());
}

#[test]
fn what_is_left_in_the_background_is_told() {
    let (child, _out, pid) = {
        let mut c = std::process::Command::new(HUGESWAP);
        c.args(["run", "--memory", "64M", "--", "/bin/sh", "-c"])
            .arg("sleep 100 >/dev/null 2>&1 & echo $!; sleep 1");
        c.env_remove("HUGESWAP_POOL")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = c.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        (child, out, line.trim().to_owned())
    };
    let done = child.wait_with_output().unwrap();
    send(pid.parse().unwrap(), libc::SIGKILL);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    let told = format!("1 process was left in the background (sleep {pid})");
    assert!(said.contains(&told), "{said}");
}

#[test]
fn all_that_is_left_is_waited_for_if_asked_to() {
    // It is orphaned, and starts another one that is managed too.
    let script = "(sh -c 'sleep 1; sh -c \"echo $LD_PRELOAD\"; exit 9' &) ; exit 5";
    run(&["--wait-all", "--report", "none"], script)
        .assert()
        .code(5)
        .stdout(contains("/proc/"));
}

#[test]
fn waiting_for_all_ends_when_it_is_told_to() {
    let mut c = std::process::Command::new(HUGESWAP);
    c.args(["run", "--memory", "64M", "--report", "none", "--wait-all"])
        .args([
            "--",
            "/bin/sh",
            "-c",
            "sleep 100 & echo $!; echo $$; exit 6",
        ])
        .env_remove("HUGESWAP_POOL")
        .stdout(Stdio::piped());
    let mut child = c.spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut pid = || -> u32 { out.next().unwrap().unwrap().parse().unwrap() };
    let (left, first) = (pid(), pid());
    wait_until("the program has ended", || state(first).is_none());
    send(child.id(), libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(6));
    send(left, libc::SIGKILL);
}

//! The main function of tests whose cases run in a process group of their own, with a time limit.

use crate::util::{Case, SKIP, Skipped};
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// From so many seconds on, what a case took is told.
const SLOW: u64 = 10;

/// The environment variable that tells a process which case it runs.
const CASE: &str = "HUGESWAP_TEST_CASE";

pub fn main(all: Vec<Case>, limit: Duration) {
    if let Ok(name) = std::env::var(CASE) {
        let case = all.into_iter().find(|c| c.name == name);
        let run = AssertUnwindSafe(case.expect("no such case").run);
        return match catch_unwind(run) {
            Ok(()) => {}
            Err(ended) if ended.is::<Skipped>() => std::process::exit(SKIP),
            Err(panic) => resume_unwind(panic),
        };
    }
    let mut args = Arguments::from_args();
    // Cases wait for the disk most of the time.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    args.test_threads.get_or_insert(2 * processors);
    let trials = all
        .into_iter()
        .map(|c| Trial::test(c.name.clone(), move || in_own_process(&c.name, limit)))
        .collect();
    libtest_mimic::run(&args, trials).exit();
}

fn in_own_process(name: &str, limit: Duration) -> Result<(), Failed> {
    let mut said = tempfile::tempfile()?;
    let mut child = Command::new(std::env::current_exe()?)
        .env(CASE, name)
        .env_remove("HUGESWAP_POOL")
        .stdin(Stdio::null())
        .stderr(said.try_clone()?)
        .process_group(0)
        .spawn()?;
    let group = Pid::from_child(&child);
    let start = Instant::now();
    let status = loop {
        if let Some(s) = child.try_wait()? {
            break s;
        }
        if start.elapsed() > limit {
            let doing = what_they_do(group);
            kill_process_group(group, Signal::KILL)?;
            child.wait()?;
            let why = why(&mut said)?;
            return Err(format!("did not end within {limit:?}:\n{doing}{why}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    // A failed case may have left processes running.
    let _ = kill_process_group(group, Signal::KILL);
    let why = why(&mut said)?;
    let seconds = start.elapsed().as_secs();
    if seconds >= SLOW {
        eprintln!("{name} took {seconds} s");
    }
    match status.code() {
        Some(0 | SKIP) => Ok(()),
        _ => Err(format!("ended with {status}\n{why}").into()),
    }
}

/// Copies what a case wrote to standard error to our own, and returns the lines that say why the
/// case failed (no traces).
fn why(said: &mut File) -> io::Result<String> {
    let mut text = Vec::new();
    said.rewind()?;
    said.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    eprint!("{text}");
    let told = |l: &&str| !l.starts_with(' ') && !l.trim().is_empty();
    let lines: Vec<&str> = text.lines().filter(told).take(40).collect();
    Ok(lines.join("\n"))
}

/// A line for each thread of the processes of a group: where in the kernel it waits, and in which
/// system call.
fn what_they_do(group: Pid) -> String {
    let mut lines = String::new();
    let numbers = |dir: &str| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let name = |e: std::fs::DirEntry| e.file_name().into_string().ok()?.parse::<i32>().ok();
        entries.filter_map(name).collect::<Vec<_>>()
    };
    let read = |path: String| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.replace('\0', " ").trim().to_owned()
    };
    for pid in numbers("/proc") {
        let stat = read(format!("/proc/{pid}/stat"));
        let of_group = stat.rsplit(") ").next().and_then(|s| s.split(' ').nth(2));
        if of_group != Some(&group.as_raw_nonzero().to_string()) {
            continue;
        }
        lines += &format!("{pid}: {}\n", read(format!("/proc/{pid}/cmdline")));
        for tid in numbers(&format!("/proc/{pid}/task")) {
            let of = |what| read(format!("/proc/{pid}/task/{tid}/{what}"));
            lines += &format!(
                "  {tid} {}: {} {}\n",
                of("comm"),
                of("wchan"),
                of("syscall")
            );
        }
    }
    lines
}

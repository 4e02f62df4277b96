//! Tests on the real kernel, a process each: faults, signals and userfaultfd are process-wide.
//!
//! The harness runs this very executable again for each test, with a time limit; a test that cannot run here
//! prints why and counts as passed ("skipped").

mod advisor;
mod areas;
mod changed;
mod content;
mod defrag;
mod enabled;
mod failure;
mod faulty;
mod files;
mod fork_locks;
mod forks;
mod groups;
mod hostile;
mod huge_entries;
mod integrity;
mod joining;
mod kcompactd;
mod khugepaged;
mod life;
mod losing;
mod markers;
mod model;
mod numa;
mod pagemap;
mod pages;
mod parts;
mod pieces;
mod report;
mod secrecy;
mod shared;
mod shared_ahead;
mod shared_life;
mod shared_tracking;
mod slots;
mod snapshots;
mod storm;
mod swaps;
mod tracking;
mod util;
mod wbt;

use libtest_mimic::{Arguments, Failed, Trial};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::FromRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a test's process says when it cannot run here.
pub const SKIP: i32 = 77;
/// For hangs only: what takes a minute on a busy machine takes several where the disk is slow as well.
const LIMIT: Duration = Duration::from_secs(400);
/// What takes longer is told, so that it is seen what all of them take.
const LONG: Duration = Duration::from_secs(6);
/// So many lines of what a test said are shown when it has failed, the last ones.
const LINES: usize = 40;

type Test = (&'static str, fn());

fn all() -> Vec<Test> {
    [
        content::TESTS,
        pages::TESTS,
        changed::TESTS,
        markers::TESTS,
        pagemap::TESTS,
        pieces::TESTS,
        numa::TESTS,
        enabled::TESTS,
        defrag::TESTS,
        khugepaged::TESTS,
        kcompactd::TESTS,
        parts::TESTS,
        slots::TESTS,
        swaps::TESTS,
        tracking::TESTS,
        snapshots::TESTS,
        groups::TESTS,
        storm::TESTS,
        failure::TESTS,
        areas::TESTS,
        faulty::TESTS,
        wbt::TESTS,
        &files::tests(),
        life::TESTS,
        fork_locks::TESTS,
        forks::TESTS,
        joining::TESTS,
        huge_entries::TESTS,
        model::TESTS,
        advisor::TESTS,
        secrecy::TESTS,
        shared::TESTS,
        shared_ahead::TESTS,
        shared_life::TESTS,
        hostile::TESTS,
        shared_tracking::TESTS,
        integrity::TESTS,
        losing::TESTS,
    ]
    .concat()
}

fn main() {
    if let Ok(name) = std::env::var("HUGESWAP_TEST_CHILD") {
        let test = all()
            .into_iter()
            .find(|(n, _)| *n == name)
            .expect("no such test");
        report::install();
        pauses();
        (test.1)();
        return;
    }
    let mut args = Arguments::from_args();
    // One more than there are processors: most of them wait for a device, or for time to pass.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    args.test_threads.get_or_insert(processors + 1);
    let quiet = !args.nocapture;
    let trials = all()
        .into_iter()
        .map(|(name, _)| Trial::test(name, move || in_own_process(name, quiet)))
        .collect();
    libtest_mimic::run(&args, trials).exit();
}

/// Has system calls pause, if the environment says so: see docs/testing.md.
fn pauses() {
    let seed = std::env::var("HUGESWAP_TEST_PAUSES");
    #[cfg(feature = "inject")]
    if let Ok(seed) = &seed {
        let seed = seed.parse().expect("HUGESWAP_TEST_PAUSES is a number");
        hugeswap_sys::inject::set(Some(hugeswap_sys::inject::Plan::Pause(seed)));
    }
    #[cfg(not(feature = "inject"))]
    assert!(seed.is_err(), "pauses need --features inject");
}

/// Runs a test. What it says is heard if it fails, and why it could not run in full; with `--nocapture`, all of it.
fn in_own_process(name: &str, quiet: bool) -> Result<(), Failed> {
    let mut child = Command::new(std::env::current_exe()?);
    child.env("HUGESWAP_TEST_CHILD", name).stdin(Stdio::null());
    // A memory file and no pipe: what the test leaves running holds nobody up.
    let mut said = None;
    if quiet {
        let file = memory_file()?;
        child.stdout(file.try_clone()?).stderr(file.try_clone()?);
        said = Some(file);
    }
    let mut child = child.spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(s) = child.try_wait()? {
            break Some(s);
        }
        if start.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if start.elapsed() > LONG {
        println!("{name} took {} s", start.elapsed().as_secs());
    }
    let said = said.map_or(Ok(String::new()), all_of)?;
    let how = match status {
        None => format!("did not end within {LIMIT:?}"),
        Some(s) if matches!(s.code(), Some(0 | SKIP)) => {
            for line in said.lines().filter(|l| l.starts_with("skipped")) {
                println!("{name}: {line}");
            }
            return Ok(());
        }
        Some(s) => format!("ended with {s}"),
    };
    let lines: Vec<&str> = said.lines().collect();
    let left_out = lines.len().saturating_sub(LINES);
    let mut what = how;
    if left_out > 0 {
        what += &format!("\n({left_out} lines)");
    }
    for line in &lines[left_out..] {
        what.push('\n');
        what += line;
    }
    Err(what.into())
}

fn memory_file() -> Result<File, Failed> {
    let fd = hugeswap_sys::mm::memfd(c"said", false)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn all_of(mut file: File) -> Result<String, Failed> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

//! Tests on the real kernel, a process each: faults, signals and userfaultfd are process-wide.
//!
//! The harness runs this executable again for each test, with a time limit. A test that cannot run
//! here prints why and counts as passed ("skipped"). Each file names its tests in `tests!`; a
//! function that no table names does not compile.

#![deny(dead_code)]

/// Makes `TESTS`, the table of the tests of a file. A test is a function of the file, or, after
/// `=>`, any expression. Those marked `#[long]` take longest or move most, are begun first, and
/// have their swap in memory; `#[disk]`: the same with swap on a disk, without which the test tests
/// nothing.
macro_rules! tests {
    ($($(#[$long:ident])? $name:ident $(=> $run:expr)?,)*) => {
        pub const TESTS: &[crate::Test] = &[$(crate::Test {
            name: stringify!($name),
            run: tests!(@run $name $($run)?),
            is_long: tests!(@is_long $($long)?),
            needs_disk: tests!(@needs_disk $($long)?),
        },)*];
    };
    (@run $name:ident) => { $name };
    (@run $name:ident $run:expr) => { || $run };
    (@is_long) => { false };
    (@is_long $long:ident) => { true };
    (@needs_disk) => { false };
    (@needs_disk long) => { false };
    (@needs_disk disk) => { true };
}

mod access_none;
mod adopt;
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
mod packed;
mod pagemap;
mod pages;
mod parts;
mod pieces;
mod report;
mod rests;
mod rewrites;
mod room;
mod secrecy;
mod shared;
mod shared_ahead;
mod shared_dead;
mod shared_life;
mod shared_tracking;
mod slots;
mod snapshots;
mod sparse;
mod storm;
mod swaps;
mod tracking;
mod trials;
mod util;
mod wbt;
mod zswap;
mod zswap_alone;

use libtest_mimic::{Arguments, Failed, Trial};
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::FromRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Exit status of the process of a test that cannot run here.
pub const SKIP: i32 = 77;
/// Time limit of a test. It is for hangs: a test that takes a minute on a busy machine takes
/// several where the disk is slow as well.
const LIMIT: Duration = Duration::from_secs(400);
/// A test that takes longer is reported with its time.
const LONG: Duration = Duration::from_secs(6);
/// The number of lines that are shown of a failed test's output, the first (which say what failed) and
/// the last ones.
const FIRST_LINES: usize = 8;
const LAST_LINES: usize = 32;

/// A test, as `tests!` makes it.
#[derive(Clone, Copy)]
pub struct Test {
    name: &'static str,
    run: fn(),
    is_long: bool,
    needs_disk: bool,
}

/// All tests, the long ones first.
fn all() -> Vec<Test> {
    let mut all = [
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
        sparse::TESTS,
        swaps::TESTS,
        tracking::TESTS,
        rests::TESTS,
        adopt::TESTS,
        rewrites::TESTS,
        trials::TESTS,
        snapshots::TESTS,
        groups::TESTS,
        storm::TESTS,
        failure::TESTS,
        areas::TESTS,
        faulty::TESTS,
        wbt::TESTS,
        packed::TESTS,
        zswap::TESTS,
        zswap_alone::TESTS,
        files::TESTS,
        files::bad::TESTS,
        files::model::TESTS,
        life::TESTS,
        fork_locks::TESTS,
        forks::TESTS,
        joining::TESTS,
        huge_entries::TESTS,
        model::TESTS,
        access_none::TESTS,
        advisor::TESTS,
        secrecy::TESTS,
        shared::TESTS,
        shared_ahead::TESTS,
        shared_dead::TESTS,
        shared_life::TESTS,
        hostile::TESTS,
        shared_tracking::TESTS,
        integrity::TESTS,
        losing::TESTS,
    ]
    .concat();
    all.sort_by_key(|test| !test.is_long);
    all
}

fn main() {
    if let Ok(name) = std::env::var("HUGESWAP_TEST_CHILD") {
        let test = all()
            .into_iter()
            .find(|test| test.name == name)
            .expect("a test of this name");
        report::install();
        hugeswap_support::panic::tell_from_all_threads();
        pauses();
        if test.is_long && !test.needs_disk {
            util::have_swap_in_memory();
        }
        (test.run)();
        return;
    }
    let mut args = Arguments::from_args();
    // Tests use a processor a fifth of their time: the rest is waiting for a device, or for time to
    // pass.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    args.test_threads.get_or_insert(processors * 3);
    let quiet = !args.nocapture;
    let trials = all()
        .into_iter()
        .map(|test| Trial::test(test.name, move || in_own_process(test.name, quiet)))
        .collect();
    libtest_mimic::run(&args, trials).exit();
}

/// Makes system calls pause if the environment asks for it: see docs/testing.md.
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

/// Runs a test in a process of its own. Its output is shown if it fails, and what it skipped; with
/// `--nocapture`, all of it.
fn in_own_process(name: &str, quiet: bool) -> Result<(), Failed> {
    let mut child = Command::new(std::env::current_exe()?);
    child.env("HUGESWAP_TEST_CHILD", name).stdin(Stdio::null());
    // A memory file and not a pipe: a process that the test leaves running holds nothing up.
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
    let (first, rest) = lines.split_at(lines.len().min(FIRST_LINES));
    let (left_out, last) = rest.split_at(rest.len().saturating_sub(LAST_LINES));
    let mut what = vec![how];
    what.extend(first.iter().map(|&l| l.to_owned()));
    if !left_out.is_empty() {
        what.push(format!("({} lines)", left_out.len()));
    }
    what.extend(last.iter().map(|&l| l.to_owned()));
    Err(what.join("\n").into())
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

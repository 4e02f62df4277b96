//! Tests on the real kernel, a process each: faults, signals and userfaultfd are process-wide.
//!
//! The harness runs this very executable again for each test, with a time limit; a test that cannot run here
//! prints why and counts as passed ("skipped").

mod advisor;
mod areas;
mod content;
mod enabled;
mod failure;
mod faulty;
mod files;
mod forks;
mod groups;
mod huge_entries;
mod integrity;
mod life;
mod model;
mod pages;
mod parts;
mod pieces;
mod report;
mod secrecy;
mod slots;
mod storm;
mod swaps;
mod util;

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a test's process says when it cannot run here.
pub const SKIP: i32 = 77;
const LIMIT: Duration = Duration::from_secs(120);

type Test = (&'static str, fn());

fn all() -> Vec<Test> {
    [
        content::TESTS,
        pages::TESTS,
        pieces::TESTS,
        enabled::TESTS,
        parts::TESTS,
        slots::TESTS,
        swaps::TESTS,
        groups::TESTS,
        storm::TESTS,
        failure::TESTS,
        areas::TESTS,
        faulty::TESTS,
        &files::tests(),
        life::TESTS,
        forks::TESTS,
        huge_entries::TESTS,
        model::TESTS,
        advisor::TESTS,
        secrecy::TESTS,
        integrity::TESTS,
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
        (test.1)();
        return;
    }
    let args = Arguments::from_args();
    let trials = all()
        .into_iter()
        .map(|(name, _)| Trial::test(name, move || in_own_process(name)))
        .collect();
    libtest_mimic::run(&args, trials).exit();
}

fn in_own_process(name: &str) -> Result<(), Failed> {
    let mut child = Command::new(std::env::current_exe()?)
        .env("HUGESWAP_TEST_CHILD", name)
        .stdin(Stdio::null())
        .spawn()?;
    let start = Instant::now();
    let status = loop {
        if let Some(s) = child.try_wait()? {
            break s;
        }
        if start.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Err(format!("did not end within {LIMIT:?}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    match status.code() {
        Some(0 | SKIP) => Ok(()),
        _ => Err(format!("ended with {status}").into()),
    }
}

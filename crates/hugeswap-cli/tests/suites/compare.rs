//! A suite's outcome, test by test, plain and under `hugeswap run`: it must be the same.
//!
//! A test that comes out otherwise is run again, alone with those like it, plain and managed, up to [`TRIES`] times. It
//! counts as different only if it is so each time: suites have tests that fail now and then by themselves.

use crate::util::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often a test is run again.
const TRIES: usize = 2;
/// A run that takes longer is ended, and counts as different. Not run again: that would take as long.
const LIMIT: Duration = Duration::from_secs(1800);
/// What `timeout` ends with then.
const TIMED_OUT: i32 = 124;

/// The suites, as HUGESWAP_TEST_SUITES names them.
const SUITES: [&str; 5] = ["cpython", "stress-ng", "sqlite", "redis", "glibc"];

/// What came of each test.
pub type Outcomes = BTreeMap<String, String>;

/// One run of a suite.
pub struct Ran {
    pub outcomes: Outcomes,
    /// What it printed.
    pub log: String,
    /// Bytes swapped out, of a managed run.
    pub swapped: u64,
    /// Did it end by itself? Else it was ended after [`LIMIT`].
    pub ended: bool,
}

/// A suite, or a part of one.
pub trait Suite {
    /// Runs it in `dir`, which is empty: managed if there is a setup. If there is an `only`, just those tests, or more.
    fn run(&self, dir: &Path, setup: Option<&Setup>, only: Option<&[String]>) -> Ran;
}

/// A difference that is known, and why it is there.
pub struct Exception {
    /// How the test's name begins.
    pub test: &'static str,
    /// Where it differs; `None`: everywhere.
    pub mode: Option<Mode>,
    pub why: &'static str,
}

impl Exception {
    fn covers(&self, test: &str, mode: Mode) -> bool {
        test.starts_with(self.test) && self.mode.is_none_or(|m| m == mode)
    }
}

/// Runs a suite plain, and managed with each of the setups whose mode is permitted here. Prints a line for each
/// managed run and each test that differs; panics if one does that is no exception.
pub fn same(name: &str, suite: &dyn Suite, setups: &[Setup], exceptions: &[Exception]) {
    let run = |setup: Option<&Setup>, only: Option<&[String]>| {
        let how = setup.map_or("plain".into(), Setup::to_string);
        let part = only.map_or("all".into(), |o| format!("{} of its tests", o.len()));
        println!("{name}, {how}: running {part}");
        let (dir, start) = (directory(), Instant::now());
        let ran = suite.run(dir.path(), setup, only);
        let (n, took) = (ran.outcomes.len(), start.elapsed().as_secs());
        println!("{name}, {how}: {n} outcomes in {took} s");
        ran
    };
    let plain = run(None, None);
    assert!(
        !plain.outcomes.is_empty(),
        "{name}: no tests: {}",
        plain.log
    );
    if !plain.ended {
        skip(&format!("{name} does not end within {LIMIT:?}, plain"));
    }
    let permitted: Vec<Mode> = Mode::permitted().collect();
    let mut bad = 0;
    for setup in setups.iter().filter(|s| permitted.contains(&s.mode)) {
        let mut managed = run(Some(setup), None);
        let swapped = managed.swapped;
        if !managed.ended {
            println!("{name}, {setup}: DIFFERS: did not end within {LIMIT:?}");
            println!("{}", tail(&managed.log));
            bad += 1;
            continue;
        }
        let first = differing(&plain.outcomes, &managed.outcomes);
        let (mut open, mut before) = (first.clone(), plain.outcomes.clone());
        for _ in 0..TRIES {
            let (known, unknown) = split(&open, exceptions, setup.mode);
            if unknown.is_empty() {
                break;
            }
            println!("{name}, {setup}: again: {}", unknown.join(", "));
            let again = run(None, Some(&unknown));
            managed = run(Some(setup), Some(&unknown));
            let still = differing(&again.outcomes, &managed.outcomes);
            before.extend(again.outcomes);
            open = known;
            open.extend(unknown.into_iter().filter(|t| still.contains(t)));
        }
        let (known, unknown) = split(&open, exceptions, setup.mode);
        println!(
            "{name}, {setup}: {} tests, {} the same, {} after another try, {} differ as known, {} differ; {} MiB out",
            plain.outcomes.len(),
            plain.outcomes.len().saturating_sub(first.len()),
            first.len() - open.len(),
            known.len(),
            unknown.len(),
            swapped >> 20,
        );
        for test in &known {
            let why = exceptions.iter().find(|e| e.covers(test, setup.mode));
            println!("  known: {test}: {}", why.expect("it is known").why);
        }
        for test in &unknown {
            println!(
                "  DIFFERS: {test}: plain {}, managed {}",
                outcome(&before, test),
                outcome(&managed.outcomes, test)
            );
        }
        if !unknown.is_empty() {
            println!("{}", tail(&managed.log));
        }
        bad += unknown.len();
    }
    assert!(bad == 0, "{name}: {bad} differences");
}

fn outcome<'a>(of: &'a Outcomes, test: &str) -> &'a str {
    of.get(test).map_or("(nothing)", String::as_str)
}

/// The tests that have not the same outcome in both.
fn differing(a: &Outcomes, b: &Outcomes) -> Vec<String> {
    let mut all: Vec<&String> = a.keys().chain(b.keys()).collect();
    all.sort();
    all.dedup();
    all.into_iter()
        .filter(|t| a.get(*t) != b.get(*t))
        .cloned()
        .collect()
}

/// Those that an exception covers, and the others.
fn split(tests: &[String], exceptions: &[Exception], mode: Mode) -> (Vec<String>, Vec<String>) {
    tests
        .iter()
        .cloned()
        .partition(|t| exceptions.iter().any(|e| e.covers(t, mode)))
}

/// The end of what was printed.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(80);
    lines[from..].join("\n")
}

/// A setup under which much is managed, and little is in memory.
pub fn tight(mode: Mode, memory_mib: u64) -> Setup {
    Setup::new(mode, memory_mib)
        .option("--set", "route.malloc_min=128K")
        .option("--set", "route.mmap_min=128K")
}

/// Both modes, with a budget that leaves little in memory.
pub fn setups(memory_mib: u64) -> Vec<Setup> {
    Mode::ALL.map(|m| tight(m, memory_mib)).into()
}

/// Also with a random unit evicted every so many microseconds.
pub fn setups_with_storm(memory_mib: u64, storm: u64) -> Vec<Setup> {
    let mut all = setups(memory_mib);
    for mode in Mode::ALL {
        all.push(tight(mode, memory_mib).option("--set", format!("debug.storm={storm}")));
    }
    all
}

/// Is all of this suite to be run, not only the slice?
pub fn whole(suite: &str) -> bool {
    let Ok(wanted) = std::env::var("HUGESWAP_TEST_SUITES") else {
        return false;
    };
    let mut wanted = wanted.split(',');
    let known = |w: &str| w == "all" || SUITES.contains(&w);
    assert!(
        wanted.clone().all(known),
        "HUGESWAP_TEST_SUITES is not set, all, or names out of {SUITES:?} with commas between"
    );
    wanted.any(|w| w == "all" || w == suite)
}

/// Is all of any suite to be run?
pub fn any_whole() -> bool {
    SUITES.iter().any(|s| whole(s))
}

/// Runs a program, plain or managed: its status if it was managed or not, and what it printed.
pub fn run(program: &Program, setup: Option<&Setup>) -> (std::process::ExitStatus, Ran) {
    let mut program = program.clone();
    let limit = LIMIT.as_secs().to_string();
    program
        .argv
        .splice(0..0, ["timeout", "--kill-after=10", &limit].map(Into::into));
    let (output, swapped) = match setup {
        None => (program.any(), 0),
        Some(setup) => {
            let managed = program.managed(setup);
            let pages = managed.number("pswpout");
            (managed.output, pages * 4096)
        }
    };
    let mut log = String::from_utf8_lossy(&output.stdout).into_owned();
    log.push_str(&String::from_utf8_lossy(&output.stderr));
    let ran = Ran {
        outcomes: Outcomes::new(),
        log,
        swapped,
        ended: output.status.code() != Some(TIMED_OUT),
    };
    (output.status, ran)
}

//! SQLite's own tests, those in TCL, of what takes memory and files: run by its `testfixture`, one process for all of them.

use crate::compare::*;
use crate::source::source_of;
use crate::util::*;
use std::path::{Path, PathBuf};

/// Files of tests, with % for anything. Not those that run for minutes, or not as root.
const FILES: &[&str] = &[
    "select1%",
    "select6%",
    "selectA%",
    "join%",
    "where.%",
    "where2%",
    "where9%",
    "insert.%",
    "insert4%",
    "update.%",
    "delete.%",
    "trigger1%",
    "trigger2%",
    "bigrow%",
    "blob%",
    "vacuum.%",
    "wal.test",
    "wal2%",
    "mmap1%",
    "pcache%",
    "memdb.%",
    "memsubsys%",
    "cache%",
    "sort.test",
    "sort5%",
    "zeroblob%",
    "temptable.%",
    "malloc5%",
    "incrblob.%",
    "savepoint.%",
    "shared2%",
    "json1%",
];

const KNOWN: &[Exception] = &[];

pub fn cases() -> Vec<Case> {
    if !whole("sqlite") {
        return Vec::new();
    }
    vec![case("sqlite", || {
        let source = source_of(
            "sqlite3",
            "./configure --enable-all CFLAGS=-O1 && make testfixture",
        );
        same(
            "sqlite",
            &Files { source },
            &setups_with_storm(16, 200),
            KNOWN,
        );
    })]
}

struct Files {
    source: PathBuf,
}

impl Suite for Files {
    fn run(&self, dir: &Path, setup: Option<&Setup>, only: Option<&[String]>) -> Ran {
        // A test is called FILE TEST: its file is run again.
        let mut files: Vec<String> = match only {
            None => FILES.iter().map(|f| f.to_string()).collect(),
            Some(tests) => tests
                .iter()
                .filter_map(|t| t.split_once(' ').map(|(file, _)| file.to_owned()))
                .collect(),
        };
        files.dedup();
        let program = Program::new(dir, self.source.join("testfixture"))
            .arg(self.source.join("test/permutations.test"))
            .arg("veryquick")
            .args(files);
        let (status, mut ran) = run(&program, setup);
        let mut tests: Vec<(String, &str)> = Vec::new();
        for line in ran.log.lines() {
            if let Some(test) = line.strip_suffix("... Ok") {
                tests.push((test.into(), "ok"));
            } else if let Some(rest) = line.strip_prefix("! ")
                && let Some((test, _)) = rest.split_once(" expected")
            {
                tests.push((test.into(), "fail"));
            } else if let Some(rest) = line.strip_prefix("Time: ") {
                // The file that has ended.
                let file = rest.split(' ').next().unwrap_or_default();
                for (test, outcome) in tests.drain(..) {
                    let entry = ran.outcomes.entry(format!("{file} {test}"));
                    let entry = entry.or_insert_with(|| outcome.into());
                    if outcome == "fail" {
                        *entry = outcome.into();
                    }
                }
            }
        }
        ran.outcomes
            .insert("all.test status".into(), status.to_string());
        ran
    }
}

//! Redis's own tests: its runner, and the servers that it starts, are children under one budget.

use crate::compare::*;
use crate::source::source_of;
use crate::util::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Those of what forks, saves and holds much, and that run for some seconds each.
const UNITS: &[&str] = &[
    "unit/type/list",
    "unit/type/hash",
    "unit/sort",
    "unit/scan",
    "unit/keyspace",
    "unit/lazyfree",
    "unit/multi",
    "unit/limits",
    "integration/aof",
    "integration/rdb",
    "integration/dismiss-mem",
];

const KNOWN: &[Exception] = &[Exception {
    test: "integration/rdb client freed during loading",
    mode: Some(Mode::Message),
    why: "random access over more than the budget thrashes in message mode: the server is killed before it has saved its data",
}];

pub fn cases() -> Vec<Case> {
    if !whole("redis") {
        return Vec::new();
    }
    vec![case("redis", || {
        for tool in ["redis-server", "redis-cli", "redis-benchmark", "tclsh"] {
            let there = Command::new("sh")
                .args(["-c", "command -v \"$0\"", tool])
                .output();
            if !there.is_ok_and(|o| o.status.success()) {
                skip(&format!("{tool} is missing"));
            }
        }
        let source = source_of("redis", "true");
        // With less a server that saves 100 MiB in the order of a hash table, at random, takes longer than the ten seconds that
        // the tests give it before they kill it.
        same("redis", &Units { source }, &setups(96), KNOWN);
    })]
}

struct Units {
    source: PathBuf,
}

impl Suite for Units {
    fn run(&self, dir: &Path, setup: Option<&Setup>, only: Option<&[String]>) -> Ran {
        // The tests, and the installed programs where they look for them.
        let made = Command::new("sh")
            .arg("-euc")
            .arg(
                "cp -r \"$0\"/tests \"$0\"/redis.conf .; mkdir src; for p in server cli benchmark check-aof check-rdb; do \
                 ln -s \"$(command -v redis-$p)\" src/; done",
            )
            .arg(&self.source)
            .current_dir(dir)
            .status();
        assert!(made.is_ok_and(|s| s.success()), "no copy of the tests");
        let units: Vec<String> = match only {
            None => UNITS.iter().map(|u| u.to_string()).collect(),
            Some(tests) => {
                let unit = |t: &String| t.split_once(' ').map(|(unit, _)| unit.to_owned());
                let mut units: Vec<String> = tests.iter().filter_map(unit).collect();
                units.dedup();
                units.retain(|u| UNITS.contains(&u.as_str()));
                units
            }
        };
        let program = Program::new(dir, "tclsh")
            .args(["tests/test_helper.tcl", "--clients", "1", "--durable"])
            .args(units.iter().flat_map(|u| ["--single", u]))
            .env("TERM", "dumb");
        let (_, mut ran) = run(&program, setup);
        // One client: what comes after a unit's name is of that unit.
        let mut unit = "";
        for line in ran.log.lines() {
            if let Some(name) = line.strip_prefix("Testing ") {
                unit = name.trim();
            } else if let Some((outcome, rest)) =
                line.strip_prefix('[').and_then(|l| l.split_once("]: "))
                && ["ok", "err", "ignore", "exception"].contains(&outcome)
            {
                // Without the time it took, and the place of a failure.
                let test = rest.rsplit_once(if outcome == "ok" { " (" } else { " in tests" });
                let test = test.map_or(rest, |(test, _)| test);
                ran.outcomes
                    .insert(format!("{unit} {test}"), outcome.into());
            }
        }
        ran
    }
}

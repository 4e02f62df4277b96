//! `hugeswap ctl memory` and `hugeswap ps` of a program that works.

use super::{Running, hugeswap};
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

#[test]
fn the_budget_shrinks_and_grows_again() {
    let running = Running::start("40M", 64);
    let memory = |args: &[&str]| running.ctl(&[&["memory"], args].concat());
    memory(&[])
        .assert()
        .code(0)
        .stdout(contains("memory: 40.0 MiB, "));
    let smaller = memory(&["24M"]).assert().code(0);
    smaller.stdout("memory: 24.0 MiB (was 40.0 MiB)\n");
    let all = hugeswap().args(["ps", "--json"]).output().unwrap();
    let all: Vec<Value> = serde_json::from_slice(&all.stdout).unwrap();
    let pid: Value = running.child.id().into();
    let mine = all.iter().find(|pool| pool["pid"] == pid).unwrap();
    assert_eq!(mine["memory_bytes"], 24 << 20);
    assert!(
        mine["resident_bytes"].as_u64().unwrap() <= 24 << 20,
        "{mine}"
    );
    let [process] = &mine["processes"].as_array().unwrap()[..] else {
        panic!("{mine}");
    };
    assert_eq!(process["resident_bytes"], mine["resident_bytes"], "{mine}");
    let swapped = process["swapped_bytes"].as_u64().unwrap();
    assert!((16 << 20..80 << 20).contains(&swapped), "{mine}");
    assert!(process["pswpout"].as_u64().unwrap() > 0 && process["faults_major"].as_u64() > Some(0));
    assert!(
        process["command"].as_str().unwrap().contains("python3 -c"),
        "{mine}"
    );
    let text = hugeswap().arg("ps").output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    let at = text.find(&format!("{:>8}", running.pid())).unwrap();
    let mine: Vec<_> = text[at..].lines().take(2).collect();
    assert!(
        mine[0].contains("24.0M") && mine[0].contains("hugeswap run"),
        "{text}"
    );
    assert!(mine[1].contains("   python3 -c"), "{text}");
    memory(&["40M"])
        .assert()
        .code(0)
        .stdout("memory: 40.0 MiB (was 24.0 MiB)\n");
    running.refuses(
        &["memory", "1G"],
        "more than the 40.0 MiB that the pool was made for",
    );
    running.refuses(&["memory", "1M"], "1M is too little: at least ");
    running.refuses(&["memory", "much"], "SIZE");
    running.ends_well();
}

/// Sleeps with its memory until a file appears.
const RESTS: &str = "
import os, sys, time
stop, memory = sys.argv[1], bytearray(int(sys.argv[2]) << 20)
for p in range(0, len(memory), 4096):
    memory[p] = p >> 12 & 0xff | 1
open(stop + '.ready', 'w').close()
while not os.path.exists(stop):
    time.sleep(0.02)
assert all(memory[p] == p >> 12 & 0xff | 1 for p in range(0, len(memory), 4096))
";

#[test]
fn what_rests_is_paged_out_when_that_is_asked() {
    let running = Running::start_program(RESTS, &[], "64M", 48);
    let pageout = |args: &[&str]| running.ctl(&[&["pageout"], args].concat());
    let resident = || {
        let all = hugeswap().args(["ps", "--json"]).output().unwrap();
        let all: Vec<Value> = serde_json::from_slice(&all.stdout).unwrap();
        let pid: Value = running.child.id().into();
        let mine = all.iter().find(|pool| pool["pid"] == pid).unwrap();
        mine["resident_bytes"].as_u64().unwrap()
    };
    let before = resident();
    assert!(before >= 46 << 20, "{before}");
    pageout(&["20M"])
        .assert()
        .code(0)
        .stdout(contains("paged out: 2"));
    // The program wakes each 20 ms, and some of what it runs on has come back by now.
    let now = resident();
    assert!(
        (before - (28 << 20)..=before - (12 << 20)).contains(&now),
        "{before}, {now}"
    );
    // More than there is.
    pageout(&["1G"])
        .assert()
        .code(1)
        .stdout(contains("no more than ").and(contains("could leave")));
    let left = resident();
    assert!(left <= 8 << 20, "{left}");
    running.refuses(&["pageout", "much"], "SIZE");
    running.refuses(
        &["pageout", "1M", "--pid", "1"],
        "process 1 manages no memory of this pool",
    );
    running.ends_well();
}

//! `hugeswap ctl memory` and `hugeswap ps` of a program that works.

use super::{Running, hugeswap};
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

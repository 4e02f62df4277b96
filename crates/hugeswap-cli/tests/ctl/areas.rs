//! `hugeswap ctl swap` and `hugeswap ctl scrub`: areas that come and go while programs run, and what is bad in them.

use crate::{Running, hugeswap};
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[test]
fn what_is_in_swap_is_verified() {
    for options in [&[] as &[&str], &["--encrypt"]] {
        let running = Running::start_with(options, "32M", 96);
        let out = running.ctl(&["scrub", "--json"]).assert().code(0);
        let found: Value = serde_json::from_slice(&out.get_output().stdout).unwrap();
        let bytes = |what: &str| found[what].as_u64().unwrap();
        assert!(bytes("good_bytes") > 16 << 20, "{found}");
        assert_eq!((bytes("bad_bytes"), bytes("lost_bytes")), (0, 0));
        running
            .ctl(&["scrub"])
            .assert()
            .code(0)
            .stdout(contains("lost       0 B"));
        running.ends_well();
    }
}

/// Spoils one page in so many of what a process has in its only swap file; how many.
fn spoil(pid: &str, dir: &Path, one_in: usize) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut fds = fds.map(|e| e.unwrap().path());
    let ours = |p: &PathBuf| std::fs::read_link(p).is_ok_and(|l| l.starts_with(dir));
    let path = fds.find(ours).expect("the swap file");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let pages = file.metadata().unwrap().len() / 4096;
    let mut bytes = [0; 4096];
    let mut spoilt = 0;
    for (n, page) in (0..pages).enumerate() {
        file.read_exact_at(&mut bytes, page * 4096).unwrap();
        // The last of them: in the first ones the program has what it goes on using.
        if n % one_in == one_in - 1 && bytes.iter().any(|&b| b != 0) {
            bytes[17] ^= 1;
            file.write_all_at(&bytes, page * 4096).unwrap();
            spoilt += 1;
        }
    }
    spoilt
}

/// Fills memory, and leaves it alone: also at its end, when to free it would be to read the block's head.
const STILL: &str = "
import os, sys, time
stop, mib = sys.argv[1], int(sys.argv[2])
memory = bytearray(os.urandom(4096) * (mib << 8))
open(stop + '.ready', 'w').close()
while not os.path.exists(stop):
    time.sleep(0.02)
os._exit(0)
";

#[test]
fn what_cannot_be_read_is_lost_only_if_asked() {
    let r = Running::start_program(STILL, &[], "32M", 128);
    let other = tempfile::tempdir_in("/var/tmp").unwrap();
    let other = format!("{},size=512M", other.path().display());
    r.ctl(&["swap", "add", &other]).assert().success();
    assert!(spoil(&r.pid(), r.dir.path(), 2048) > 2);
    let off = ["swap", "off", "0"];
    // That is seen as soon as the rest has moved.
    r.ctl(&off).assert().code(2).stdout("").stderr(
        contains("cannot be read (`hugeswap ctl swap off 0 --lose-unreadable`")
            .and(contains("for 30 s").not()),
    );
    assert_eq!(r.areas()[0]["draining"], false);
    r.ctl(&[&off as &[&str], &["--lose-unreadable"]].concat())
        .assert()
        .success()
        .stdout(contains("area 0 is off; ").and(contains("could not be read, and are lost")));
    assert_eq!(r.areas().len(), 1);
    r.ends_well();
}

#[test]
fn bytes_that_changed_are_told_by_their_places() {
    let r = Running::start_program(STILL, &[], "32M", 96);
    assert!(spoil(&r.pid(), r.dir.path(), 2048) > 2);
    let out = r.ctl(&["scrub", "--json"]).assert().code(1);
    let found: Value = serde_json::from_slice(&out.get_output().stdout).unwrap();
    let places = found["places"].as_array().unwrap();
    let lost = found["lost_bytes"].as_u64().unwrap() as usize / 4096;
    assert!(lost > 2 && places.len() >= lost.min(64), "{found}");
    for place in places {
        assert_eq!(
            (&place["area"], &place["cause"]),
            (&0.into(), &"changed".into())
        );
        assert_eq!(
            place["offset"].as_u64().unwrap() % (2048 * 4096),
            2047 * 4096,
            "{found}"
        );
    }
    r.ctl(&["scrub"])
        .assert()
        .code(1)
        .stdout(contains("place      the bytes at offset ").and(contains("(checksum mismatch)")));
    r.ends_well();
}

/// The files without a name that a process has open in a directory.
fn nameless(pid: &str, dir: &Path) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = fds.filter_map(|e| std::fs::read_link(e.ok()?.path()).ok());
    links.filter(|l: &PathBuf| l.starts_with(dir)).count()
}

#[test]
fn compressed_memory_is_an_area_as_others_are() {
    let r = Running::start_with(&["--swap", "mem,pri=5"], "48M", 192);
    let memory = |r: &Running| {
        let areas = r.areas();
        let of_memory = areas.iter().find(|a| a["path"] == "mem");
        of_memory.map(|a| (a["area"].to_string(), a["used_bytes"].as_u64().unwrap()))
    };
    r.wait_for(|r| memory(r).is_some_and(|(_, used)| used > 8 << 20));
    let (area, _) = memory(&r).expect("an area without a device");
    r.refuses(&["swap", "add", "mem,size=1M"], "too small");
    r.ctl(&["swap", "off", &area]).assert().success();
    assert!(memory(&r).is_none());
    r.ctl(&["swap", "add", "mem,pri=9"]).assert().success();
    assert!(memory(&r).is_some());
    r.ends_well();
}

#[test]
fn areas_are_added_and_taken_off_while_the_program_runs() {
    let r = Running::start("64M", 256);
    let second = tempfile::tempdir_in("/var/tmp").unwrap();
    let second = second.path().to_str().unwrap();
    let before = r.areas();
    assert_eq!(before.len(), 1);
    assert_eq!(before[0]["path"], r.dir.path().to_str().unwrap());
    assert!(
        before[0]["used_bytes"].as_u64().unwrap() > 100 << 20,
        "{before:?}"
    );

    r.refuses(&["swap", "off", "0"], "too few; add an area first");
    r.refuses(&["swap", "off", "3"], "has no swap area 3");
    r.refuses(&["swap", "add", "/nonexistent"], "does not exist");
    r.refuses(&["swap", "add", "/dev/shm"], "in memory (tmpfs)");
    r.refuses(&["swap", "add", &format!("{second},size=1")], "too small");
    r.refuses(&["swap", "add", &format!("{second},pri=x")], "priority");
    r.refuses(
        &["swap", "add", &format!("/{}", "x".repeat(5000))],
        "use a shorter path",
    );

    r.ctl(&["swap", "add", &format!("{second},size=512M,pri=7")])
        .assert()
        .success()
        .stdout("area 1 is on\n");
    r.ctl(&["swap", "off", "0"])
        .assert()
        .success()
        .stdout("area 0 is off\n");
    let after = r.areas();
    assert_eq!(after.len(), 1, "{after:?}");
    assert_eq!(after[0]["area"], 1);
    assert_eq!(after[0]["priority"], 7);
    assert!(
        after[0]["used_bytes"].as_u64().unwrap() > 100 << 20,
        "{after:?}"
    );
    assert_eq!(
        nameless(&r.pid(), r.dir.path()),
        0,
        "the old area is let go of"
    );

    r.ctl(&["swap", "list"])
        .assert()
        .success()
        .stdout(contains("512 MiB").and(contains(second)));
    hugeswap()
        .args(["ctl", "list"])
        .assert()
        .success()
        .stdout(contains(r.pid()).and(contains("of 64.0 MiB")));
    r.ends_well();
}

#[test]
fn a_relative_path_is_the_callers() {
    let r = Running::start("64M", 96);
    let here = tempfile::tempdir_in("/var/tmp").unwrap();
    r.ctl(&["swap", "add", "."])
        .current_dir(here.path())
        .assert()
        .success();
    assert_eq!(r.areas()[1]["path"], here.path().to_str().unwrap());
    r.ends_well();
}

#[test]
fn a_program_that_is_stopped_keeps_its_area() {
    let r = Running::start("64M", 192);
    let task = format!("/proc/{0}/task/{0}/children", r.pid());
    let program = std::fs::read_to_string(task).unwrap();
    let signal = |s: &str, pid: &str| {
        let status = std::process::Command::new("kill").args([s, pid]).status();
        assert!(status.unwrap().success());
    };
    let other = tempfile::tempdir_in("/var/tmp").unwrap();
    let other = format!("{},size=512M", other.path().display());
    r.ctl(&["swap", "add", &other]).assert().success();
    signal("-STOP", program.trim());
    r.refuses(
        &["swap", "off", "0", "--patience", "1"],
        "nothing has moved for 1 s",
    );
    // Who stands in for the program stopped with it, and passes this on.
    signal("-CONT", &r.pid());
    assert_eq!(r.areas()[0]["draining"], false);
    r.ctl(&["swap", "off", "0"]).assert().success();
    r.ends_well();
}

/// A program that needs more than memory and swap hold waits, and goes on once there is more.
#[test]
fn a_full_swap_is_waited_for_as_long_as_is_said() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let more = format!("{},size=1G", dir.path().display());
    let patient = ["--set", "vm.full_patience_ms=600000"];
    let options = [&["--memory", "32M", "--swap", "mem"], &patient[..]].concat();
    // (It does not compress.)
    let r = Running::begin(dir, &options, STILL, 96);
    r.wait_for(|r| r.said().contains("waits for memory since swap is full"));
    assert!(!r.is_ready());
    r.ctl(&["swap", "add", &more]).assert().success();
    r.wait_for(Running::is_ready);
    assert_eq!(r.said().lines().count(), 1, "{}", r.said());
    r.ends_well();
}

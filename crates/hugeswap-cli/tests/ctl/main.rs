//! `hugeswap ctl` on running programs: what it shows, what it changes, and what it refuses.

mod areas;
mod budget;
mod metrics;
mod recording;
mod top;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Fills memory, then reads and changes it until a file appears; fails if a page is not what it was.
const PROGRAM: &str = "
import os, random, struct, sys
stop, pages = sys.argv[1], int(sys.argv[2]) << 8
memory, now = bytearray(pages << 12), {}
for p in range(pages):
    struct.pack_into('<Q', memory, p << 12, p + 1)
open(stop + '.ready', 'w').close()
draw = random.Random(1)
for n in range(1 << 40):
    if n % 1000 == 0 and os.path.exists(stop):
        break
    p = draw.randrange(pages)
    found = struct.unpack_from('<Q', memory, p << 12)[0]
    assert found == now.get(p, p + 1), (p, found)
    if n % 3 == 0:
        now[p] = n + 7
        struct.pack_into('<Q', memory, p << 12, n + 7)
for p in range(pages):
    found = struct.unpack_from('<Q', memory, p << 12)[0]
    assert found == now.get(p, p + 1), (p, found)
";

fn hugeswap() -> Command {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"));
    c.env_remove("HUGESWAP_POOL");
    c.timeout(Duration::from_secs(60));
    c
}

/// A program under `hugeswap run`, with a directory of its own; ended in any case.
struct Running {
    child: Child,
    dir: tempfile::TempDir,
    /// What it says. (Not in the directory, where swap's files are counted.)
    said: tempfile::NamedTempFile,
}

impl Running {
    fn start(memory: &str, mib: usize) -> Running {
        Running::start_with(&[], memory, mib)
    }

    fn start_with(options: &[&str], memory: &str, mib: usize) -> Running {
        Running::start_program(PROGRAM, options, memory, mib)
    }

    fn start_program(program: &str, options: &[&str], memory: &str, mib: usize) -> Running {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let swap = format!("{},size=1G", dir.path().display());
        let options = [options, &["--memory", memory, "--swap", &swap]].concat();
        let running = Running::begin(dir, &options, program, mib);
        running.wait_for(Running::is_ready);
        running
    }

    /// Starts a program, and does not wait until it is ready.
    fn begin(dir: tempfile::TempDir, options: &[&str], program: &str, mib: usize) -> Running {
        let said = tempfile::NamedTempFile::new().unwrap();
        let child = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"))
            .env_remove("HUGESWAP_POOL")
            .args(["run", "--report", "none"])
            .args(options)
            .args(["--", "python3", "-c", program])
            .arg(dir.path().join("stop"))
            .arg(mib.to_string())
            .stdout(Stdio::null())
            .stderr(said.reopen().unwrap())
            .spawn()
            .unwrap();
        Running { child, dir, said }
    }

    fn is_ready(&self) -> bool {
        self.dir.path().join("stop.ready").exists()
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.said.path()).unwrap()
    }

    fn wait_for(&self, is: impl Fn(&Running) -> bool) {
        let start = Instant::now();
        while !is(self) {
            assert!(start.elapsed() < Duration::from_secs(60), "nothing comes");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// `hugeswap ctl --pool PID ARGS`.
    fn ctl(&self, args: &[&str]) -> Command {
        let mut c = hugeswap();
        c.args(["ctl", "--pool", &self.pid()]).args(args);
        c
    }

    fn areas(&self) -> Vec<Value> {
        let out = self.ctl(&["swap", "list", "--json"]).output().unwrap();
        serde_json::from_slice(&out.stdout).unwrap()
    }

    fn refuses(&self, args: &[&str], why: &str) {
        refused(&mut self.ctl(args), why);
    }

    fn ends_well(mut self) {
        std::fs::write(self.dir.path().join("stop"), "").unwrap();
        let said = || std::fs::read_to_string(self.said.path()).unwrap();
        ends_well(&mut self.child, said);
    }
}

/// Waits until a process has ended, and well. (The limit is one for hangs.)
fn ends_well(child: &mut Child, said: impl Fn() -> String) {
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(60) {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}: {}", said());
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn refused(command: &mut Command, why: &str) {
    let one_line =
        predicate::function(|text: &str| text.ends_with('\n') && text.lines().count() == 1);
    command
        .assert()
        .code(2)
        .stdout("")
        .stderr(one_line.and(contains(why)));
}

#[test]
fn stat_shows_what_a_pool_does() {
    let running = Running::start("32M", 96);
    let pid = running.pid();
    let stat = |args: &[&str]| {
        let mut c = hugeswap();
        c.args(["stat", "--pool", &pid]).args(args);
        c
    };
    // (Its first accesses may bring whole units.)
    running.wait_for(|_| {
        let out = stat(&[]).output().unwrap().stdout;
        String::from_utf8_lossy(&out).contains("major_4k")
    });
    stat(&[]).assert().success().stdout(
        contains("in use of 32.0 MiB")
            .and(contains("major_4k"))
            .and(contains(
                "Base pages written to swap (a huge page counts 512).",
            )),
    );
    let out = stat(&["--json"]).output().unwrap();
    let so_far: Value = serde_json::from_slice(&out.stdout).unwrap();
    let number = |v: &Value, key: &str| v[key].as_u64().unwrap_or_else(|| panic!("{key}: {v}"));
    assert_eq!(number(&so_far, "memory_bytes"), 32 << 20);
    // (What was filled is 64 MiB more than the budget.)
    assert!(number(&so_far, "pswpout") > (48 << 20) / 4096, "{so_far}");
    assert!(number(&so_far["faults"]["first_touch"], "count") > 0);

    let out = stat(&["-i", "0.2", "-c", "3", "--json"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    // Intervals have what was done in them, not what was done before.
    let total = number(&so_far, "pswpout");
    let came: u64 = lines.iter().map(|l| number(l, "pswpin")).sum();
    let majors: u64 = lines.iter().map(|l| number(l, "faults_major")).sum();
    assert!(came > 0 && majors > 0, "{text}");
    assert!(lines.iter().all(|l| l["interval_s"].as_f64() > Some(0.1)));
    let out = stat(&["--json"]).output().unwrap();
    let later: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(number(&later, "pswpin") >= number(&so_far, "pswpin") + came);
    assert!(number(&later, "pswpout") >= total);

    let out = stat(&["-i", "0.1", "-c", "2"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let widths: Vec<_> = text.lines().map(str::len).collect();
    assert!(widths.len() == 3 && text.starts_with("PROCS"), "{text}");

    refused(&mut stat(&["-i", "0"]), "give seconds, 0.1 to 86400");
    refused(&mut stat(&["-c", "3"]), "--interval");
    // It ends with the pool.
    let mut watching = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"))
        .args(["stat", "--pool", &pid, "-i", "0.1"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    running.ends_well();
    ends_well(&mut watching, String::new);
    let mut gone = hugeswap();
    gone.args(["stat", "--pool", &pid]);
    refused(&mut gone, "there is no process");
}

#[test]
fn what_is_no_pool_is_refused() {
    refused(
        hugeswap().args(["ctl", "--pool", "999999999", "swap", "list"]),
        "there is no process 999999999",
    );
    let me = std::process::id().to_string();
    refused(
        hugeswap().args(["ctl", "--pool", &me, "swap", "list"]),
        "belongs to no pool",
    );
    refused(hugeswap().arg("ctl"), "requires a subcommand");
    refused(
        hugeswap().args(["ctl", "swap", "off", "x"]),
        "invalid value 'x'",
    );
}

/// The program under `hugeswap run`, by its number.
fn program_of(running: &Running) -> String {
    let out = hugeswap()
        .args(["pagemap", &running.pid()])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    let said = String::from_utf8(out.stderr).unwrap();
    let pid = said.trim().rsplit(' ').next().unwrap();
    assert!(pid.parse::<i32>().is_ok(), "{said}");
    pid.to_owned()
}

#[test]
fn pagemap_shows_what_a_running_program_has() {
    let running = Running::start("32M", 96);
    let pid = program_of(&running);
    let look = |more: &[&str]| {
        let mut c = hugeswap();
        c.args(["pagemap", &pid]).args(more);
        let out = c.assert().code(0).stderr("").get_output().stdout.clone();
        String::from_utf8(out).unwrap()
    };
    // While the program goes on, and others look.
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                for _ in 0..5 {
                    let found: Value = serde_json::from_str(&look(&["--json"])).unwrap();
                    let bytes = |name: &str| found["by_category"][name].as_u64().unwrap_or(0);
                    let all = found["bytes"].as_u64().unwrap();
                    assert!((96 << 20..128 << 20).contains(&all), "{all}");
                    let (present, swapped) = (bytes("present"), bytes("swapped"));
                    // (The budget, and what came while the others were looked at.)
                    assert!(present > 0 && present < 64 << 20, "{present}");
                    assert!(swapped > 32 << 20 && present + swapped <= all, "{swapped}");
                    let mut end = 0;
                    for range in found["ranges"].as_array().unwrap() {
                        let start = range["start"].as_u64().unwrap();
                        assert!(start >= end, "in order");
                        end = range["end"].as_u64().unwrap();
                        let words = range["categories"].as_array().unwrap();
                        let away = words.contains(&"swapped".into());
                        assert_eq!(away, range["swap_offset"].is_u64(), "{range}");
                    }
                }
            });
        }
    });
    let map = look(&[]);
    assert!(
        map.contains("in swap") && map.contains("each sign"),
        "{map}"
    );
    assert!(!map.contains('\x1b'), "no colours but on a terminal");
    let ranges = look(&["--ranges", "--only", "swapped"]);
    assert!(ranges.lines().count() > 0);
    assert!(
        ranges
            .lines()
            .all(|l| l.contains("swapped") && l.contains("area 0 at"))
    );
    // From the middle of a unit to the middle of another: what lies outside is not shown.
    let first = ranges.split(' ').next().unwrap();
    let first = u64::from_str_radix(first.split('-').next().unwrap(), 16).unwrap();
    let asked = (first | 0x1f_ffff) - 0x0f_efff..(first | 0x1f_ffff) + 0x3001;
    let found = look(&[
        "--range",
        &format!("{:x}-{:x}", asked.start, asked.end),
        "--json",
    ]);
    let found: Value = serde_json::from_str(&found).unwrap();
    let found = found["ranges"].as_array().unwrap();
    let (one, other) = (found.first().unwrap(), found.last().unwrap());
    assert_eq!(one["start"], asked.start, "{found:?}");
    assert_eq!(other["end"], asked.end, "{found:?}");
    assert!(look(&["--summary"]).starts_with("all"));
    for (wrong, why) in [
        (&["pagemap", "99999999"][..], "there is no process"),
        (
            &["pagemap", &pid, "--range", "5-3"],
            "ends before it begins",
        ),
        (&["pagemap", &pid, "--range", "five"], "START-END"),
        (&["pagemap", &pid, "--only", "nice"], "no category"),
        (
            &["pagemap", &pid, "--range", "1000-2000"],
            "no such managed memory",
        ),
        (
            &["pagemap", &pid, "--json", "--ranges"],
            "cannot be used with",
        ),
    ] {
        refused(hugeswap().args(wrong), why);
    }
    running.ends_well();
}

#[test]
fn a_stopped_program_is_not_waited_for() {
    let running = Running::start("32M", 48);
    let pid = program_of(&running);
    let signal = |name: &str| {
        let mut kill = std::process::Command::new("kill");
        assert!(kill.args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    refused(hugeswap().args(["pagemap", &pid]), "does not answer");
    signal("-CONT");
    let mut run = std::process::Command::new("kill");
    assert!(
        run.args(["-CONT", &running.pid()])
            .status()
            .unwrap()
            .success()
    );
    hugeswap().args(["pagemap", &pid]).assert().code(0);
    running.ends_well();
}

#[test]
fn settings_change_while_the_program_runs() {
    let r = Running::start_with(&["--set", "readahead.max=3"], "32M", 64);
    let get = |args: &[&str]| -> Value {
        let out = r.ctl(&[&["get", "--json"], args].concat()).assert().code(0);
        serde_json::from_slice(&out.get_output().stdout).unwrap()
    };
    let all = get(&[]);
    assert_eq!(all["readahead.max"], 3);
    assert_eq!(all["route.malloc_min"], 1 << 20);
    assert_eq!(all["swap.encrypt"], false);
    r.ctl(&["set", "thp.defrag=defer", "readahead.max=5"])
        .assert()
        .code(0)
        .stdout("thp.defrag: defer (was madvise)\nreadahead.max: 5 (was 3)\n");
    assert_eq!(
        get(&["thp.defrag", "readahead"]),
        serde_json::json!({"thp.defrag": "defer", "readahead.max": 5})
    );
    r.ctl(&["get", "thp.d"])
        .assert()
        .code(0)
        .stdout("thp.defrag                   defer  (default madvise)\n");

    // All of it or nothing.
    r.refuses(
        &["set", "readahead.max=1", "thp.defrag=later"],
        "'later' is not allowed: one of always, defer",
    );
    r.refuses(
        &["set", "readahead.max=1", "swap.encrypt=on"],
        "only be set for a new pool",
    );
    r.refuses(&["set", "readahead=1"], "no setting is called 'readahead'");
    r.refuses(&["get", "speed"], "no setting begins with 'speed'");
    assert_eq!(get(&["readahead.max"])["readahead.max"], 5);
    r.ends_well();
}

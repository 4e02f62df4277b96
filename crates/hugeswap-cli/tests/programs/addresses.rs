//! Programs in C that make calls on their address space, and are answered as without hugeswap
//! (docs/testing.md).

use crate::c::LESS_MEMORY_MIB;
use crate::util::*;
use std::path::{Path, PathBuf};

const MEMORY_MIB: u64 = 64;

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for mode in Mode::ALL {
        all.push(case(format!("space, {mode}"), move || space(mode)));
        all.push(case(format!("moved, {mode}"), move || {
            compared("moved", "pswpin", mode, None)
        }));
        all.push(case(format!("lockall, {mode}"), move || {
            let dir = directory();
            lockall(dir.path(), compile("lockall", dir.path()), mode);
        }));
        all.push(case(format!("maps, {mode}"), move || {
            compared("maps", "pswpout", mode, None)
        }));
        all.push(case(format!("low, {mode}"), move || low(mode)));
        all.push(case(format!("unlocked, {mode}"), move || {
            unlocked(mode, None)
        }));
        all.push(case(format!("refusals, {mode}"), move || {
            refusals(mode, &[])
        }));
        all.push(case(format!("closing, {mode}"), move || {
            side_by_side("closing", &[], mode, MEMORY_MIB)
        }));
        all.push(case(format!("unlocking, {mode}"), move || {
            side_by_side("unlocking", &["100"], mode, MEMORY_MIB)
        }));
        all.push(case(format!("together, {mode}"), move || {
            // (Each takes ten seconds; in message mode they do the same by other means.)
            let heaps = if mode == Mode::Message { "1" } else { "2" };
            side_by_side("together", &["1", heaps, "1500"], mode, MEMORY_MIB)
        }));
    }
    // (Where pages can have less access by themselves. Without, they are the kernel's, and could take
    // all of this memory.)
    all.push(case("together, little memory", || {
        side_by_side("together", &["7", "2", "1500"], Mode::Signal, 24)
    }));
    all.push(case("moved, without userfaultfd", || {
        compared(
            "moved",
            "pswpin",
            Mode::Signal,
            Some("debug.userfaultfd=off"),
        )
    }));
    all.push(case("maps, without userfaultfd", || {
        compared(
            "maps",
            "pswpout",
            Mode::Signal,
            Some("debug.userfaultfd=off"),
        )
    }));
    all.push(case("unlocked, without userfaultfd", || {
        unlocked(Mode::Signal, Some("debug.userfaultfd=off"))
    }));
    all.push(case("refusals, without userfaultfd", || {
        refusals(Mode::Signal, &["debug.userfaultfd=off"])
    }));
    all.push(case("space, plain", || {
        let dir = directory();
        random_calls(dir.path(), "1").plain();
    }));
    all
}

/// c/space.c, with as many steps for each seed as `HUGESWAP_SPACE_STEPS` says.
fn random_calls(dir: &Path, raw: &str) -> Program {
    Program::new(dir, compile("space", dir)).args(["1", "4", &space_steps(), raw])
}

/// Steps of c/space.c for each seed.
pub fn space_steps() -> String {
    std::env::var("HUGESWAP_SPACE_STEPS").unwrap_or("1500".into())
}

/// c/refusals.c: calls with all kinds of arguments are answered, and leave memory, as without
/// hugeswap.
fn refusals(mode: Mode, settings: &[&str]) {
    mode.need();
    let dir = directory();
    let setup = { settings.iter() }.fold(Setup::new(mode, MEMORY_MIB), |setup, set| {
        setup.option("--set", set)
    });
    // System calls that do not go through the C library are seen in signal mode only.
    for raw in ["0", "1"]
        .into_iter()
        .take(1 + usize::from(mode == Mode::Signal))
    {
        answered(dir.path(), compile("refusals", dir.path()), raw, &setup);
    }
}

/// One of 48 calls is made; `HUGESWAP_TEST_REFUSALS=all`: all. `raw`: "1" for calls that do not go
/// through the C library.
pub fn answered(dir: &Path, refusals: PathBuf, raw: &str, setup: &Setup) {
    let every = match std::env::var("HUGESWAP_TEST_REFUSALS").as_deref() {
        Ok("all") => "1",
        _ => "48",
    };
    let program = Program::new(dir, refusals).args([raw, "1", every]);
    let managed = program.managed(setup);
    managed.same_output_as(&program.plain());
    assert!(managed.number("pswpout") > 0, "nothing was swapped");
}

/// c/moved.c: mremap of what is one mapping for the program, and several for the kernel; and
/// c/maps.c: what a program reads of /proc/self/maps. Both print the same as without hugeswap, while
/// `swapped` counts pages.
fn compared(name: &str, swapped: &str, mode: Mode, setting: Option<&str>) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile(name, dir.path()));
    let setup = Setup::new(mode, LESS_MEMORY_MIB);
    let setup = { setting.into_iter() }.fold(setup, |setup, s| setup.option("--set", s));
    let managed = program.managed(&setup);
    managed.same_output_as(&program.plain());
    assert!(managed.number(swapped) > 0, "nothing was swapped");
}

/// c/closing.c: threads that give up the last piece of a huge page, and touch it; and c/together.c:
/// threads that make random calls on pages of the same huge pages; and c/unlocking.c: a thread that
/// unlocks pages beside those on which others make calls. All check what they find, while units leave
/// at random and not, in each way to bring pages.
fn side_by_side(name: &str, args: &[&str], mode: Mode, memory_mib: u64) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile(name, dir.path())).args(args);
    let plain = program.plain();
    let settings = [
        &[][..],
        &["debug.storm=20"],
        &["debug.storm=50", "thp.enabled=never"],
        &["debug.userfaultfd=off"],
    ];
    for settings in settings {
        let has_no_pages = settings == ["debug.userfaultfd=off"];
        if has_no_pages && (mode == Mode::Message || memory_mib < MEMORY_MIB) {
            continue;
        }
        // (Small blocks that are managed would be where a page was just unmapped.)
        let setup = Setup::new(mode, memory_mib).option("--set", "route.small=off");
        let setup = settings.iter().fold(setup, |s, set| s.option("--set", set));
        program.managed(&setup).same_output_as(&plain);
    }
}

/// c/lockall.c: a program that locks all memory goes on in less.
pub fn lockall(dir: &Path, lockall: PathBuf, mode: Mode) {
    mode.need();
    // System calls that do not go through the C library are seen in signal mode only.
    let ways = ["libc", "raw"].into_iter();
    for how in ways.take(1 + usize::from(mode == Mode::Signal)) {
        for when in ["early", "late"] {
            let program = Program::new(dir, &lockall).args([when, how]);
            let managed = program.managed(&Setup::new(mode, LESS_MEMORY_MIB));
            managed.same_output_as(&program.plain());
            assert!(managed.number("pswpin") > 0, "nothing was swapped");
        }
    }
}

/// c/low.c: memory below 2 GiB, in a program and in what it becomes by exec. In message mode such memory
/// is the kernel's.
fn low(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("low", dir.path())).args(["2"]);
    let plain = program.plain();
    for setting in [None, Some("debug.storm=50"), Some("debug.userfaultfd=off")] {
        let setup = Setup::new(mode, MEMORY_MIB);
        let setup = { setting.into_iter() }.fold(setup, |setup, s| setup.option("--set", s));
        if mode == Mode::Message && setting == Some("debug.userfaultfd=off") {
            continue;
        }
        let managed = program.managed(&setup);
        managed.same_output_as(&plain);
        let swapped = managed.number("pswpin");
        assert!(mode == Mode::Message || swapped > 0, "nothing was swapped");
    }
}

/// c/unlocked.c: what was locked leaves memory again once it is unlocked.
fn unlocked(mode: Mode, setting: Option<&str>) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("unlocked", dir.path()));
    // The rest of what it says is how much stays of what the kernel has.
    let stays = |said: &str| {
        let (what, n) = said.split_once(": ").expect("what, and how many");
        (what.to_owned(), n.split(' ').next().map(str::to_owned))
    };
    for storm in [None, Some("debug.storm=50")] {
        let setup = Setup::new(mode, MEMORY_MIB);
        let settings = setting.into_iter().chain(storm);
        let setup = settings.fold(setup, |setup, s| setup.option("--set", s));
        let managed = program.managed(&setup);
        assert!(managed.output.status.success(), "{}", managed.said());
        let said = String::from_utf8_lossy(&managed.output.stdout);
        let stays: Vec<_> = said.lines().map(stays).collect();
        let expected = [
            ("locked", "4"),
            ("all", "0"),
            ("a page", "0"),
            ("what is locked in part", "2"),
            // (In message mode what is mapped over a part of the kernel's unit is the kernel's.)
            ("mapped over", if mode == Mode::Message { "1" } else { "0" }),
            (
                "all mapped over",
                if mode == Mode::Message { "1" } else { "0" },
            ),
            ("used by a call", "0"),
            ("by munlockall", "0"),
            ("with advice, with access", "2"),
            ("a stack", "1"),
            ("after a fork", "4"),
            ("again and again", "1"),
            ("failed", "0"),
        ];
        let expected = expected.map(|(what, n)| (what.to_owned(), Some(n.to_owned())));
        assert_eq!(stays, expected, "{storm:?}");
    }
}

/// A program makes random calls on its address space while units are evicted at random. The budget
/// holds all of its memory, because the memory that is left to the kernel is not swapped. (Small
/// blocks that are managed would be where it has just unmapped something.)
fn space(mode: Mode) {
    mode.need();
    let dir = directory();
    // System calls that do not go through the C library are seen in signal mode only.
    let raw = if mode == Mode::Message { "2" } else { "1" };
    let program = random_calls(dir.path(), raw);
    let plain = program.plain();
    let setup = { Setup::new(mode, 2 * MEMORY_MIB).option("--set", "debug.storm=50") }
        .option("--set", "route.small=off");
    let managed = program.managed(&setup);
    assert_eq!(managed.output.status, plain.status, "{}", managed.said());
    assert_eq!(managed.output.stdout, plain.stdout);
    assert!(managed.number("pswpin") > 0, "nothing was swapped");
}

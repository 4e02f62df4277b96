//! Programs in C that verify their own memory: threads, workers, and every way to treat memory that
//! we know of.

use crate::util::*;
use std::path::Path;

/// More than the budget, so that walking through it pushes out all other memory.
const BALLAST_MIB: &str = "96";
const MEMORY_MIB: u64 = 64;

/// The same of programs that have it pushed out many times, or go through all of it.
pub const LESS_BALLAST_MIB: &str = "48";
pub const LESS_MEMORY_MIB: u64 = 32;

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for mode in Mode::ALL {
        all.push(case(format!("threads, {mode}"), move || threads(mode)));
        all.push(case(format!("workers, {mode}"), move || workers(mode)));
        all.push(case(format!("resting, {mode}"), move || resting(mode)));
        for (program, least_absent) in [("memory", 30), ("calls", 150), ("forks", 10)] {
            for storm in [false, true] {
                let name = format!("{program}, {mode}{}", if storm { ", storm" } else { "" });
                all.push(case(name, move || {
                    exercise(program, least_absent, mode, storm)
                }));
            }
        }
    }
    for program in ["memory", "calls", "forks"] {
        all.push(case(format!("{program}, base pages"), move || {
            base_pages(program)
        }));
    }
    for mode in Mode::ALL {
        all.push(case(format!("pagemap, {mode}"), move || {
            let parts = match mode {
                Mode::Signal => "huge",
                _ => "whole",
            };
            pagemap(&Setup::new(mode, MEMORY_MIB), parts)
        }));
    }
    all.push(case("pagemap, base pages", || {
        let setup = Setup::new(Mode::Signal, MEMORY_MIB).option("--set", "thp.enabled=never");
        pagemap(&setup, "pages")
    }));
    for mode in Mode::ALL {
        all.push(case(format!("handed, {mode}"), move || handed(mode)));
    }
    for mode in Mode::ALL {
        all.push(case(format!("asks, {mode}"), move || asks(mode)));
        all.push(case(format!("handlers, {mode}"), move || handlers(mode)));
    }
    for mode in Mode::ALL {
        all.push(case(format!("narrow, {mode}"), move || narrow(mode)));
    }
    for mode in Mode::ALL {
        all.push(case(format!("transfers, {mode}"), move || transfers(mode)));
    }
    all.push(case("a name cut within a letter", cut_name));
    all.push(case("huge", huge));
    all.push(case("rings", rings));
    for part in [
        "counters", "ring", "locks", "orphan", "calls", "parts", "user", "images", "pagemap",
    ] {
        all.push(case(format!("shared, {part}"), move || shared(part)));
    }
    all.push(case("shared, crossing", crossing));
    all.push(case("shared, left to the kernel", shared_unmanaged));
    for part in ["workers", "passed", "flying", "named", "ways", "many"] {
        all.push(case(format!("files, {part}"), move || files(part)));
    }
    all.push(case("files, left to the kernel", files_unmanaged));
    all.push(case("files, names left behind", files_left));
    for mode in Mode::ALL {
        all.push(case(format!("guard, {mode}"), move || guard(mode)));
        all.push(case(format!("fixed, {mode}"), move || fixed(mode)));
        all.push(case(format!("hole, {mode}"), move || hole(mode)));
        all.push(case(format!("reserved, {mode}"), move || reserved(mode)));
        all.push(case(format!("access, {mode}"), move || access(mode)));
    }
    all.push(case("exact", || heap("exact")));
    all.push(case("mapped", || heap("mapped")));
    all.push(case("coroutine", coroutine));
    all.push(case("pieces", pieces));
    all
}

/// A child never waits for a lock that a thread of its parent held.
fn asks(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("asks", dir.path())).args(["24", "100"]);
    let plain = program.plain();
    program.managed(&Setup::new(mode, 16)).same_as(&plain);
}

/// Handlers of faults of the program's own run on the stack that they are for.
fn handlers(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("handlers", dir.path()));
    let plain = program.plain();
    let managed = program.managed(&Setup::new(mode, 16));
    managed.same_as(&plain);
}

/// What is done for a thread with little stack, on it or on its alternate stack, stays within.
fn narrow(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("narrow", dir.path())).arg("64");
    let plain = program.plain();
    for options in [None, Some("debug.storm=50"), Some("zswap.enabled=always")] {
        let setup = Setup::new(mode, LESS_MEMORY_MIB);
        let setup = options.into_iter().fold(setup, |s, o| s.option("--set", o));
        program.managed(&setup).same_as(&plain);
    }
}

/// Threads that each fill and verify memory of their own and memory that they share.
fn threads(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("threads", dir.path())).args(["8", "16", "4"]);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(mode, LESS_MEMORY_MIB));
    managed.same_as(&plain);
}

/// A program that asks the kernel to keep more of its memory than the budget gets an error, and
/// goes on.
fn handed(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("handed", dir.path())).args(["128"]);
    let plain = program.plain();
    program
        .managed(&Setup::new(mode, MEMORY_MIB))
        .same_as(&plain);
}

/// Threads that each hold some of what their calls need leave memory for one another, also where
/// most of it is the kernel's.
fn transfers(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("transfers", dir.path())).args(["96"]);
    let plain = program.plain();
    program.managed(&Setup::new(mode, 26)).same_as(&plain);
}

/// Four processes that each map memory of their own keep one budget together.
/// The kernel keeps 15 bytes of a program's name, and here half a letter at their end: no UTF-8.
fn cut_name() {
    let dir = directory();
    let path = dir.path().join("программа");
    std::fs::rename(compile("workers", dir.path()), &path).expect("a file of ours");
    let program = Program::new(dir.path(), path).args(["4", "30", "3"]);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, 32));
    managed.same_as(&plain).processes(4);
}

fn workers(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("workers", dir.path())).args(["4", "30", "3"]);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(mode, LESS_MEMORY_MIB));
    managed.same_as(&plain).processes(4);
}

/// There are more children than the budget has units, each with a little memory that it does not
/// use. The budget is there for the parent, which works.
fn resting(mode: Mode) {
    const ROUNDS: u64 = 40;
    const UNITS: u64 = 16;
    mode.need();
    let dir = directory();
    let mib = (UNITS * 2).to_string();
    let program = Program::new(dir.path(), compile("resting", dir.path())).args([
        "48",
        &mib,
        &ROUNDS.to_string(),
    ]);
    let plain = program.plain();
    let setup = Setup::new(mode, 64).option("--set", "thp.swapin=always");
    let managed = program.managed(&setup);
    let came_back = managed.same_as(&plain).number("thp_swpin");
    assert!(
        came_back < ROUNDS * UNITS / 2,
        "the parent had its memory back from swap {came_back} times"
    );
}

/// Single pages are written several at a time, by an io_uring that the program itself does not get.
fn rings() {
    Mode::Signal.need();
    if let Err(e) = hugeswap_sys::probe::io_uring() {
        skip(&format!("no io_uring ({e})"));
    }
    let dir = directory();
    let program = Program::new(dir.path(), compile("rings", dir.path())).args(["128", "3"]);
    let plain = program.plain();
    let setup = Setup::new(Mode::Signal, MEMORY_MIB)
        .on_disk()
        .option("--set", "thp.enabled=never")
        .option("--set", "thp.swapin=never")
        // (What is gathered goes in fewer writes.)
        .option("--set", "swap.gather=never");
    let managed = program.managed(&setup);
    let batched = managed.same_as(&plain).number("swap_write_batched");
    // (A disk that is as fast as memory would need none.)
    assert!(batched > 1000, "{batched}: {}", managed.report);
}

/// The program verifies its memory while it is swapped. `storm`: units are evicted at random all
/// the time.
fn exercise(program: &str, least_absent: u64, mode: Mode, storm: bool) {
    mode.need();
    let dir = directory();
    let files = dir.path().join("files");
    std::fs::create_dir(&files).expect("a directory in a directory of ours");
    let program = Program::new(dir.path(), compile(program, dir.path()))
        .arg(LESS_BALLAST_MIB)
        .args((program == "calls").then_some(&files));
    let program = match mode {
        Mode::Message => program.env("WORDS_NOT_CHANGED", "1"),
        _ => program,
    };
    let plain = program.plain();
    let mut setup = Setup::new(mode, LESS_MEMORY_MIB);
    if storm {
        setup = setup.option("--set", "debug.storm=50");
    }
    let managed = program.managed(&setup);
    managed.same_as(&plain);
    let absent = managed.absent();
    assert!(
        absent >= least_absent,
        "memory was absent only {absent} times before it was used: this tests little"
    );
}

/// Everything is mapped by base pages, except units that system calls and forks hold. (The budget
/// is larger than in other cases, because swapping by the page takes long on a slow disk.)
fn base_pages(program: &str) {
    let dir = directory();
    let files = dir.path().join("files");
    std::fs::create_dir(&files).expect("a directory in a directory of ours");
    let program = Program::new(dir.path(), compile(program, dir.path()))
        .arg(LESS_BALLAST_MIB)
        .args((program == "calls").then_some(&files));
    let plain = program.plain();
    let setup =
        Setup::new(Mode::Signal, LESS_MEMORY_MIB * 3 / 2).option("--set", "thp.enabled=never");
    let managed = program.managed(&setup);
    managed.same_as(&plain);
    assert_eq!(managed.number("thp_fault_alloc"), 0);
}

/// A program gives advice on where it wants huge pages.
fn huge() {
    let dir = directory();
    let program = Program::new(dir.path(), compile("huge", dir.path())).arg(BALLAST_MIB);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, MEMORY_MIB));
    managed.same_as(&plain);
}

/// A program reads its own pagemap and sees which of its pages are in swap here. `parts`: how pages
/// leave that it advises to; see the program.
fn pagemap(setup: &Setup, parts: &str) {
    setup.mode.need();
    let dir = directory();
    let path = compile("pagemap", dir.path());
    let size = BALLAST_MIB;
    let program = |budget: u64, parts: &str| {
        let name = Program::new(dir.path(), &path);
        name.arg(size).arg(budget.to_string()).arg(parts)
    };
    let plain = program(0, "whole").plain();
    let managed = program(setup.memory_mib, parts).managed(setup);
    managed.same_as(&plain);
}

fn sharing(dir: &Path, part: &str) -> Program {
    Program::new(dir, compile("shared", dir))
        .arg(part)
        .args((part == "calls").then_some(dir))
}

/// Processes share memory that is larger than the budget.
fn shared(part: &str) {
    let dir = directory();
    let program = sharing(dir.path(), part);
    let plain = program.plain();
    let setup = Setup::new(Mode::Signal, MEMORY_MIB).option("--set", "shared.anonymous=on");
    program.managed(&setup).same_as(&plain);
}

/// A program makes calls on ranges that are partly shared memory.
fn crossing() {
    let dir = directory();
    let program = Program::new(dir.path(), compile("crossing", dir.path()));
    let plain = program.plain();
    let setup = Setup::new(Mode::Signal, MEMORY_MIB).option("--set", "shared.anonymous=on");
    program.managed(&setup).same_as(&plain);
}

/// Shared memory is left to the kernel in message mode, and if the setting is off.
fn shared_unmanaged() {
    let dir = directory();
    let program = sharing(dir.path(), "counters");
    let plain = program.plain();
    for mode in Mode::permitted() {
        let on = if mode == Mode::Message { "on" } else { "off" };
        let setup = Setup::new(mode, MEMORY_MIB).option("--set", format!("shared.anonymous={on}"));
        let managed = program.managed(&setup);
        assert_eq!(managed.output.status, plain.status);
        assert_eq!(managed.output.stdout, plain.stdout);
        assert_eq!(managed.number("pswpout"), 0);
    }
}

const FILES: &str = "shared.files=on";

/// Processes share memory files that are larger than the budget.
fn files(part: &str) {
    let dir = directory();
    let program = Program::new(dir.path(), compile("files", dir.path())).arg(part);
    let plain = program.plain();
    let memory_mib = if part == "many" {
        LESS_MEMORY_MIB
    } else {
        MEMORY_MIB
    };
    let setup = Setup::new(Mode::Signal, memory_mib).option("--set", FILES);
    let managed = program.managed(&setup);
    managed.same_as(&plain);
    if part == "many" {
        // Every file went out as a whole: none was left to the kernel for want of a place.
        assert!(managed.number("pswpout") >= 20 * (40 << 20) / 4096);
    }
}

/// Memory files are left to the kernel in message mode, where the setting is not on, and below the
/// threshold.
fn files_unmanaged() {
    let dir = directory();
    let program = Program::new(dir.path(), compile("files", dir.path())).arg("workers");
    let plain = program.plain();
    let mut setups = vec![
        Setup::new(Mode::Signal, MEMORY_MIB),
        Setup::new(Mode::Signal, MEMORY_MIB).option("--set", "shared.files=off"),
        Setup::new(Mode::Signal, MEMORY_MIB)
            .option("--set", FILES)
            .option("--set", "shared.files_min=97M"),
    ];
    if Mode::permitted().any(|m| m == Mode::Message) {
        setups.push(Setup::new(Mode::Message, MEMORY_MIB).option("--set", FILES));
    }
    for setup in setups {
        let managed = program.managed(&setup);
        assert_eq!(managed.output.status, plain.status);
        assert_eq!(managed.output.stdout, plain.stdout);
        assert_eq!(managed.number("pswpout"), 0);
    }
}

/// The name of a memory file goes when the run ends and its memory is gone.
fn files_left() {
    let dir = directory();
    let name = format!("hugeswap-test-left-{}", std::process::id());
    let program = Program::new(dir.path(), compile("files", dir.path())).args(["leave", &name]);
    let setup = Setup::new(Mode::Signal, MEMORY_MIB).option("--set", FILES);
    let managed = program.managed(&setup);
    let left = std::path::Path::new("/dev/shm").join(&name);
    let there = left.symlink_metadata();
    let _ = std::fs::remove_file(left);
    assert!(managed.output.status.success());
    assert!(managed.number("pswpout") > 0);
    assert!(there.is_err(), "{name} is there still");
}

/// A program has guard pages of its own.
fn guard(mode: Mode) {
    mode.need();
    let dir = directory();
    // (In message mode, which `auto` may be, memory with guards is left to the kernel, and must
    // fit.)
    let size = match mode {
        Mode::Signal => LESS_BALLAST_MIB,
        _ => "16",
    };
    let program = Program::new(dir.path(), compile("guard", dir.path())).arg(size);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(mode, LESS_MEMORY_MIB));
    if mode == Mode::Signal {
        managed.same_as(&plain);
    } else {
        assert_eq!(managed.output.status, plain.status);
        assert_eq!(managed.output.stdout, plain.stdout);
    }
}

/// A heap grows by pieces of 256 KiB: no unit becomes huge to be split at the next piece.
fn pieces() {
    Mode::Signal.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("pieces", dir.path())).arg("400");
    let plain = program.plain();
    let roomy = program.managed(
        &Setup::new(Mode::Signal, 4 * MEMORY_MIB)
            .option("--set", "khugepaged.scan_sleep_ms=3600000"),
    );
    assert_eq!(roomy.output.stdout, plain.stdout, "{}", roomy.said());
    assert_eq!(roomy.number("thp_split_pmd"), 0, "{}", roomy.report);
    program
        .managed(&Setup::new(Mode::Signal, MEMORY_MIB))
        .same_as(&plain);
}

/// A program maps memory at addresses of its choice.
fn fixed(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("fixed", dir.path()));
    let plain = program.plain();
    let managed = program.managed(&Setup::new(mode, MEMORY_MIB));
    assert_eq!(managed.output.status, plain.status, "{}", managed.said());
    assert_eq!(managed.output.stdout, plain.stdout);
}

/// A program has given up addresses that nobody else may take.
fn hole(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("hole", dir.path())).arg(BALLAST_MIB);
    let plain = program.plain();
    program
        .managed(&Setup::new(mode, MEMORY_MIB))
        .same_as(&plain);
}

/// Small blocks come to be managed while a thread is on a stack that is managed.
fn coroutine() {
    let dir = directory();
    let program = Program::new(dir.path(), compile("coroutine", dir.path()));
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, 24));
    managed.same_as(&plain);
}

/// A heap is managed though its address was to be another and only that, or though it is mapped in small pieces.
fn heap(name: &str) {
    let dir = directory();
    let program = Program::new(dir.path(), compile(name, dir.path()));
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, MEMORY_MIB));
    managed.same_as(&plain);
    let unmanaged = managed.number("peak_unmanaged_bytes");
    assert!(unmanaged < 32 << 20, "{}", managed.report);
}

/// A program reserves heaps and commits them by parts.
fn reserved(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("reserved", dir.path())).arg(BALLAST_MIB);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(mode, MEMORY_MIB));
    assert_eq!(managed.output.status, plain.status, "{}", managed.said());
    assert_eq!(managed.output.stdout, plain.stdout);
    if mode == Mode::Signal {
        // (In message mode a unit that is accessible in part is left to the kernel.)
        managed.same_as(&plain);
        let unmanaged = managed.number("peak_unmanaged_bytes");
        assert!(unmanaged < 16 << 20, "{}", managed.report);
    }
    let setup = Setup::new(mode, 2 * MEMORY_MIB).option("--set", "debug.storm=20");
    let stormed = program.managed(&setup);
    assert_eq!(stormed.output.status, plain.status, "{}", stormed.said());
    assert_eq!(stormed.output.stdout, plain.stdout);
}

/// Access by pages, as random calls, forks and a garbage collector set it. In signal mode it is
/// kept by us: nothing is left to the kernel for it.
fn access(mode: Mode) {
    mode.need();
    let dir = directory();
    let built = compile("access", dir.path());
    let runs = [
        (["random", "1", "2000"], None),
        (["random", "2", "2000"], Some("thp.enabled=never")),
        (["random", "3", "2000"], Some("zswap.enabled=always")),
        (["random", "4", "2000"], Some("debug.storm=50")),
        (["barrier", "1", "4"], None),
    ];
    for (arguments, option) in runs {
        let program = Program::new(dir.path(), built.clone()).args(arguments);
        let plain = program.plain();
        let stormed = option == Some("debug.storm=50");
        // (In message mode the kernel has what is protected by pages.)
        let roomy = stormed || mode == Mode::Message;
        let setup = Setup::new(mode, if roomy { MEMORY_MIB } else { 16 });
        let managed = program.managed(&option.into_iter().fold(setup, |s, o| s.option("--set", o)));
        assert_eq!(managed.output.status, plain.status, "{}", managed.said());
        assert_eq!(managed.output.stdout, plain.stdout);
        if !roomy {
            managed.same_as(&plain);
            assert_eq!(managed.number("ejected"), 0, "{}", managed.report);
        }
    }
}

//! Programs that find neither memory nor swap left, and programs that are killed at work.

use crate::util::*;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for mode in Mode::ALL {
        all.push(case(format!("swap full, {mode}"), move || swap_full(mode)));
        all.push(case(format!("killed, {mode}"), move || killed(mode)));
        all.push(case(format!("a child stays, {mode}"), move || {
            child_stays(mode)
        }));
    }
    all.push(case("killed, space given back", space_given_back));
    all
}

/// An allocation that cannot be honoured is refused, and the program goes on.
fn swap_full(mode: Mode) {
    mode.need();
    let dir = directory();
    let swap = format!("{},size=96M", dir.path().display());
    let program = Program::new(dir.path(), compile("hog", dir.path())).args(["6", "1000"]);
    let managed = program.managed(&Setup::new(mode, 32).option("--swap", swap));
    let said = String::from_utf8_lossy(&managed.output.stderr);
    assert!(managed.output.status.success(), "{said}");
    managed.kept_its_budget();
    let printed = String::from_utf8_lossy(&managed.output.stdout);
    let mut lines = printed.lines();
    let pieces = lines.next().and_then(|l| l.strip_prefix("refused after "));
    let pieces: u64 = pieces
        .and_then(|n| n.parse().ok())
        .expect("how many pieces there were");
    // Memory and swap together hold 128 MiB: 21 pieces of 6 MiB.
    assert!((15..=21).contains(&pieces), "{pieces} pieces");
    assert_eq!(lines.next(), Some("went on"));
    assert_eq!(managed.number("processes_out_of_memory"), 0);
}

/// What swap keeps for forked children is bounded by what they were forked with.
fn child_stays(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("staying", dir.path()));
    let plain = program.plain();
    // The parent has 32 MiB, and so have a child that stays and, now and then, a child that does
    // not.
    let swap = format!("{},size=192M", dir.path().display());
    for setting in ["debug.storm=0", "debug.storm=200"] {
        let setup = Setup::new(mode, 16).option("--swap", &swap);
        let managed = program.managed(&setup.option("--set", setting));
        managed.same_as(&plain).processes(3);
        assert!(
            managed.number("pswpout") > (256 << 20) / 4096,
            "too little was swapped to tell: {}",
            managed.report
        );
    }
}

/// Starts four workers that never end, with swap in `dir`, and returns when they have begun to
/// swap.
fn start_workers(mode: Mode, dir: &Path, swap: &str) -> std::process::Child {
    let mut child = Command::new(HUGESWAP)
        .args(["run", "--memory", "64M", "--report", "none", "--swap", swap])
        .args(["--fault-mode", &mode.to_string(), "--"])
        .arg(compile("workers", dir))
        .args(["4", "60", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .expect("hugeswap starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    for _ in 0..4 {
        let mut line = String::new();
        out.read_line(&mut line).expect("read");
        assert_eq!(line, "turning\n");
    }
    child
}

/// After a SIGKILL for all processes at once no file is left, and no process that has one open.
fn killed(mode: Mode) {
    mode.need();
    let (dir, swap_dir) = (directory(), directory());
    let swap = swap_dir.path().display().to_string();
    let mut child = start_workers(mode, dir.path(), &swap);
    let group = Pid::from_child(&child);
    assert!(
        !holders(swap_dir.path()).is_empty(),
        "there is no swap file"
    );
    assert!(
        std::fs::read_dir(swap_dir.path())
            .expect("read_dir")
            .next()
            .is_none()
    );
    kill_process_group(group, Signal::KILL).expect("kill");
    child.wait().expect("wait");
    wait_until("the last process is gone", || members(group).is_empty());
    wait_until("nobody holds the swap file", || {
        holders(swap_dir.path()).is_empty()
    });
    assert!(
        std::fs::read_dir(swap_dir.path())
            .expect("read_dir")
            .next()
            .is_none()
    );
}

/// The same on a file system of its own, which is empty again afterwards. The mount needs root.
fn space_given_back() {
    const HERE: &str = "HUGESWAP_TEST_MOUNT";
    let Some(place) = std::env::var_os(HERE) else {
        if !rustix::process::geteuid().is_root() {
            skip("only root may mount a file system");
        }
        // Runs this case again in a mount namespace of its own, so that the mount goes with it.
        let place = directory();
        let script = format!("mount -t tmpfs -o size=400M none \"${HERE}\" && exec \"$0\"");
        let status = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .arg(std::env::current_exe().expect("the test's own path"))
            .env(HERE, place.path())
            .status();
        match status {
            Ok(s) if s.success() => return,
            Ok(s) => panic!("ended with {s}"),
            Err(_) => missing("unshare"),
        }
    };
    let (place, dir) = (Path::new(&place), directory());
    let used = || {
        let s = rustix::fs::statvfs(place).expect("statvfs");
        (s.f_blocks - s.f_bfree) * s.f_frsize
    };
    assert_eq!(used(), 0);
    let swap = format!("{},size=300M,tmpfs=allow", place.display());
    let mut child = start_workers(Mode::Signal, dir.path(), &swap);
    assert!(used() > 64 << 20, "{} bytes of swap", used());
    let group = Pid::from_child(&child);
    kill_process_group(group, Signal::KILL).expect("kill");
    child.wait().expect("wait");
    wait_until("the space is given back", || used() == 0);
}

/// The processes that have a file of `dir` open, with or without a name.
fn holders(dir: &Path) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes
        .filter(|p| {
            let open = std::fs::read_dir(p.path().join("fd"))
                .into_iter()
                .flatten()
                .flatten();
            open.flat_map(|f| std::fs::read_link(f.path()))
                .any(|to| to.starts_with(dir))
        })
        .map(|p| p.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The processes of a group that are not gone yet; zombies count as gone.
fn members(group: Pid) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    processes
        .filter_map(|p| std::fs::read_to_string(p.path().join("stat")).ok())
        .filter(|stat| {
            let mut fields = stat[stat.rfind(')').map_or(0, |i| i + 2)..].split(' ');
            let (state, of) = (fields.next(), fields.nth(1));
            state != Some("Z") && of == Some(&group.as_raw_nonzero().to_string())
        })
        .collect()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(100),
            "waited in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

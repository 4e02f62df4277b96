//! What `hugeswap run` refuses: each row ends with status 2, one line on stderr that says what to do,
//! nothing on stdout, and nothing left behind.

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// A directory on a disk, empty but for what a test puts there.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Place(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn file(&self, name: &str, content: &[u8], mode: u32) -> String {
        let path = self.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path.display().to_string()
    }

    fn entries(&self) -> Vec<PathBuf> {
        let mut list: Vec<_> = std::fs::read_dir(self.path())
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        list.sort();
        list
    }

    fn hugeswap(&self) -> Command {
        let mut c = Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"));
        c.current_dir(self.path())
            .env("TMPDIR", self.path())
            .env_remove("HUGESWAP_POOL");
        c.timeout(std::time::Duration::from_secs(60));
        c
    }

    /// `hugeswap ARGS` is refused, with `why` in the one line it says.
    fn refuses(&self, args: &[&str], why: &str) {
        self.refused(&mut self.hugeswap(), args, why);
    }

    fn refused(&self, command: &mut Command, args: &[&str], why: &str) {
        let before = self.entries();
        let one_line =
            predicate::function(|text: &str| text.ends_with('\n') && text.lines().count() == 1);
        command.args(args).assert().code(2).stdout("").stderr(
            predicate::str::starts_with("hugeswap: ")
                .and(one_line)
                .and(contains(why)),
        );
        assert_eq!(self.entries(), before, "something was left behind");
    }
}

fn run_with<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--memory", "64M"], options, &["--", "/bin/true"]].concat()
}

fn run_program(program: &str) -> Vec<&str> {
    vec!["run", "--memory", "64M", "--", program]
}

#[test]
fn a_size_that_does_not_parse() {
    let p = Place::new();
    for size in ["", "lots", "12Q", "-5M", "1.2.3G", "99999999999T"] {
        p.refuses(
            &["run", &format!("--memory={size}"), "--", "/bin/true"],
            "--memory",
        );
    }
}

#[test]
fn a_size_of_nothing() {
    Place::new().refuses(
        &["run", "--memory", "0", "--", "/bin/true"],
        "at least 16 MiB",
    );
}

#[test]
fn a_budget_below_the_minimum() {
    Place::new().refuses(
        &["run", "--memory", "4M", "--", "/bin/true"],
        "at least 16 MiB",
    );
}

#[test]
fn a_budget_above_the_machines_memory() {
    Place::new().refuses(
        &["run", "--memory", "9000T", "--", "/bin/true"],
        "more than this machine has",
    );
}

#[test]
fn arguments_that_are_missing_or_unknown() {
    let p = Place::new();
    p.refuses(&[], "a command is missing");
    p.refuses(&["run"], "--memory");
    p.refuses(&["run", "--memory", "64M"], "PROG");
    p.refuses(&["run", "--memory", "64M", "/bin/true"], "/bin/true");
    p.refuses(&["walk"], "walk");
    p.refuses(&run_with(&["--fault-mode", "psychic"]), "psychic");
    p.refuses(&run_with(&["--report", "poem"]), "poem");
    p.refuses(&run_with(&["--no-such-option"]), "--no-such-option");
}

#[test]
fn settings_that_do_not_exist_or_are_out_of_bounds() {
    let p = Place::new();
    p.refuses(
        &run_with(&["--set", "no.such=1"]),
        "no setting is called 'no.such'",
    );
    p.refuses(&run_with(&["--set", "route.malloc_min"]), "KEY=VALUE");
    p.refuses(&run_with(&["--set", "route.malloc_min=1"]), "outside");
    p.refuses(
        &run_with(&["--set", "swap.checksum=perhaps"]),
        "neither on nor off",
    );
}

#[test]
fn a_swap_path_that_does_not_exist() {
    Place::new().refuses(
        &run_with(&["--swap", "/no/such/place"]),
        "/no/such/place does not exist",
    );
}

#[test]
fn a_swap_file_that_is_not_ours_alone() {
    let p = Place::new();
    let sized = |name: &str, mode, bytes| {
        let file = p.file(name, b"", mode);
        std::fs::File::options()
            .write(true)
            .open(&file)
            .and_then(|f| f.set_len(bytes))
            .unwrap();
        file
    };
    let refuses = |file: &str, why| p.refuses(&run_with(&["--swap", file]), why);
    refuses(&sized("small", 0o600, 0), "a swap area has at least 2 MiB");
    refuses(&sized("open", 0o644, 4 << 20), "chmod 600");
    let file = sized("swap", 0o600, 4 << 20);
    refuses(
        &format!("{file},size=6M"),
        "less than the size asked for: give a smaller size=",
    );
    let link = p.path().join("link").display().to_string();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    refuses(&link, "is a symbolic link: name the file itself");
    let second = p.path().join("second").display().to_string();
    std::fs::hard_link(&file, &second).unwrap();
    refuses(&second, "has several names");
    std::fs::remove_file(&second).unwrap();
    p.refuses(
        &run_with(&["--swap", &file, "--swap", &file]),
        "is in use by another pool",
    );
    refuses("/dev/null", "neither a directory nor a file");
    // As it should be, it is taken, and left as it was but for its bytes.
    p.hugeswap()
        .args(run_with(&["--swap", &file]))
        .assert()
        .success();
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 4 << 20);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(NOBODY), None).unwrap();
        refuses(&file, "belongs to another user");
    }
}

#[test]
fn a_second_pool_on_the_same_swap_file() {
    let p = Place::new();
    let file = p.file("swap", &vec![0; 4 << 20], 0o600);
    let mut first = std::process::Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"))
        .args(["run", "--memory", "64M", "--swap", &file, "--"])
        .args(["/bin/sh", "-c", "echo ready; read line"])
        .env_remove("HUGESWAP_POOL")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    let out = first.stdout.as_mut().unwrap();
    std::io::Read::read_exact(out, &mut ready).unwrap();
    p.refuses(&run_with(&["--swap", &file]), "is in use by another pool");
    drop(first.stdin.take());
    first.wait().unwrap();
    p.hugeswap()
        .args(run_with(&["--swap", &file]))
        .assert()
        .success();
}

#[test]
fn a_swap_device_that_was_not_allowed_or_is_in_use() {
    let p = Place::new();
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let disk = mounts.lines().find_map(|l| {
        let name = l.split(' ').next().filter(|n| n.starts_with("/dev/"))?;
        Path::new(name).exists().then(|| name.to_owned())
    });
    let Some(disk) = disk else {
        return println!("skipped: no device is mounted here that has a name");
    };
    p.refuses(&run_with(&["--swap", &disk]), "add ,device=allow");
    let allowed = format!("{disk},device=allow");
    p.refuses(&run_with(&["--swap", &allowed]), "it is mounted at");
}

#[test]
fn a_swap_path_on_a_file_system_in_memory() {
    let p = Place::new();
    if !is_tmpfs("/dev/shm") {
        println!("skipped: /dev/shm is not a tmpfs here");
        return;
    }
    p.refuses(&run_with(&["--swap", "/dev/shm"]), "tmpfs=allow");
    // Said explicitly, it is allowed.
    let swap = "/dev/shm,size=64M,tmpfs=allow";
    p.hugeswap()
        .args(run_with(&["--swap", swap]))
        .assert()
        .success();
}

fn is_tmpfs(path: &str) -> bool {
    rustix::fs::statfs(path).is_ok_and(|s| s.f_type == libc::TMPFS_MAGIC)
}

#[test]
fn a_swap_directory_without_nameless_files() {
    for dir in ["/sys", "/proc"] {
        Place::new().refuses(&run_with(&["--swap", dir]), "without nameless files");
    }
}

#[test]
fn swap_options_that_make_no_sense() {
    let p = Place::new();
    p.refuses(&run_with(&["--swap", "/var/tmp,size=0"]), "too small");
    p.refuses(
        &run_with(&["--swap", "/var/tmp,size=many"]),
        "is not a size",
    );
    p.refuses(&run_with(&["--swap", "/var/tmp,size=15T"]), "free");
    for absurd in ["8000000T", "17T"] {
        let size = format!("/var/tmp,size={absurd}");
        p.refuses(&run_with(&["--swap", &size]), "too large");
    }
    for priority in ["-2", "32768", "high", ""] {
        let pri = format!("/var/tmp,pri={priority}");
        p.refuses(&run_with(&["--swap", &pri]), "is not a swap priority");
    }
    p.refuses(
        &run_with(&["--swap", "/var/tmp,colour=red"]),
        "not a swap option",
    );
    p.refuses(&run_with(&["--swap", ",size=1G"]), "needs a directory");
}

#[test]
fn a_program_that_is_not_there() {
    let p = Place::new();
    p.refuses(&run_program("/no/such/program"), "does not exist");
    p.refuses(
        &run_program("no-such-program-anywhere"),
        "not found in PATH",
    );
    p.refuses(&run_program(""), "empty");
}

#[test]
fn a_program_that_is_a_directory_or_not_executable() {
    let p = Place::new();
    p.refuses(&run_program("/etc"), "is a directory");
    let file = p.file("data", b"#!/bin/sh\n", 0o644);
    p.refuses(&run_program(&file), "may not be executed");
}

#[test]
fn a_text_file_that_names_no_interpreter() {
    let p = Place::new();
    let file = p.file("text", b"echo hello\n", 0o755);
    p.refuses(&run_program(&file), "neither a program");
}

#[test]
fn scripts_run_their_interpreter() {
    let p = Place::new();
    let script = p.file("script", b"#!/bin/sh\necho \"$0 ran\"\nexit 7\n", 0o755);
    p.hugeswap()
        .args(run_program(&script))
        .assert()
        .code(7)
        .stdout(contains("script ran"));
    let script = p.file("by-env", b"#!/usr/bin/env sh\necho ran\n", 0o755);
    p.hugeswap()
        .args(run_program(&script))
        .assert()
        .success()
        .stdout("ran\n");
    let script = p.file("orphan", b"#!/no/such/interpreter\n", 0o755);
    p.refuses(
        &run_program(&script),
        "/no/such/interpreter, which does not exist",
    );
    let script = p.file("env-orphan", b"#!/usr/bin/env no-such-program\n", 0o755);
    p.refuses(&run_program(&script), "no-such-program is not found");
}

/// The head of a copy of /bin/true, changed.
fn changed(edit: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = std::fs::read("/bin/true").unwrap();
    edit(&mut bytes);
    bytes
}

/// Offsets of the program headers of a 64-bit ELF file.
fn headers(elf: &[u8]) -> Vec<usize> {
    let start = u64::from_le_bytes(elf[32..40].try_into().unwrap()) as usize;
    let count = u16::from_le_bytes(elf[56..58].try_into().unwrap()) as usize;
    (0..count).map(|i| start + i * 56).collect()
}

const PT_INTERP: u8 = 3;

/// A copy of /bin/true that names another loader (which must not be longer).
fn with_loader(loader: &[u8]) -> Vec<u8> {
    changed(|b| {
        for h in headers(b)
            .into_iter()
            .filter(|&h| b[h] == PT_INTERP)
            .collect::<Vec<_>>()
        {
            let at = u64::from_le_bytes(b[h + 8..h + 16].try_into().unwrap()) as usize;
            b[at..at + loader.len()].copy_from_slice(loader);
            b[h + 32..h + 40].copy_from_slice(&(loader.len() as u64).to_le_bytes());
        }
    })
}

#[test]
fn a_static_program() {
    let p = Place::new();
    // Without PT_INTERP the kernel starts the program by itself, without a loader.
    let file = changed(|b| {
        for h in headers(b) {
            if b[h] == PT_INTERP {
                b[h] = 0;
            }
        }
    });
    let file = p.file("static", &file, 0o755);
    p.refuses(&run_program(&file), "statically linked");
}

#[test]
fn a_program_for_musl() {
    let p = Place::new();
    let file = with_loader(b"/lib/ld-musl-x86_64.so.1\0");
    let file = p.file("musl", &file, 0o755);
    p.refuses(&run_program(&file), "musl");
}

#[test]
fn a_program_for_another_machine() {
    let p = Place::new();
    let arm = p.file("arm", &changed(|b| b[18] = 183), 0o755);
    p.refuses(&run_program(&arm), "another kind of processor");
    let narrow = p.file("narrow", &changed(|b| b[4] = 1), 0o755);
    p.refuses(&run_program(&narrow), "32-bit");
    let cut = p.file("cut", &changed(|b| b.truncate(70)), 0o755);
    p.refuses(&run_program(&cut), "damaged");
}

#[test]
fn a_program_that_gains_privilege() {
    let p = Place::new();
    for (name, mode) in [("setuid", 0o4755), ("setgid", 0o2755)] {
        let file = p.file(name, &std::fs::read("/bin/true").unwrap(), 0o755);
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        p.refuses(&run_program(&file), name);
    }
}

#[test]
fn a_program_with_file_capabilities() {
    let p = Place::new();
    let file = p.file("capable", &std::fs::read("/bin/true").unwrap(), 0o755);
    // Version 2, effective; CAP_NET_RAW permitted.
    let value: Vec<u8> = [0x0200_0001u32, 1 << 13, 0, 0, 0]
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    let set = rustix::fs::setxattr(
        &file,
        c"security.capability",
        &value,
        rustix::fs::XattrFlags::empty(),
    );
    if let Err(e) = set {
        println!("skipped: file capabilities cannot be set here ({e})");
        return;
    }
    p.refuses(&run_program(&file), "file capabilities");
}

#[test]
fn a_report_file_that_cannot_be_written() {
    let p = Place::new();
    p.refuses(
        &run_with(&["--report-file", "/no/such/dir/report"]),
        "/no/such/dir/report",
    );
    p.refuses(&run_with(&["--report-file", "/etc"]), "--report-file");
}

#[test]
fn no_report_file_is_left_when_the_program_cannot_start() {
    let p = Place::new();
    // Passes every check, but the loader it names may not be executed.
    let file = with_loader(b"/etc/passwd\0");
    let file = p.file("odd", &file, 0o755);
    let mut run = p.hugeswap();
    let args = [
        "run",
        "--memory",
        "64M",
        "--report-file",
        "report",
        "--",
        &file,
    ];
    p.refused(&mut run, &args, "could not be started");
}

#[test]
fn reports_that_cannot_be_drawn() {
    let p = Place::new();
    p.refuses(&["report", "/no/such/report"], "cannot be read");
    for (text, why) in [
        ("", "is not a report"),
        ("{\"memory_bytes\": 1,", "is not a report"),
        ("{\"bench\": \"fit\"}", "no report of"),
        ("{\"memory_bytes\": 1, \"pswpin\": 1}", "older hugeswap"),
    ] {
        let file = p.file("report.json", text.as_bytes(), 0o600);
        p.refuses(&["report", &file], why);
    }
    let whole = "{\"memory_bytes\": 2097152, \"pswpin\": 1, \"advisor\": {\"budgets\": \
                 [{\"memory_bytes\": 2097152, \"pages_in\": 1, \"estimated\": false}]}}";
    let file = p.file("report.json", whole.as_bytes(), 0o600);
    let svg = ["report", &file, "--svg", "/no/such/directory/a.svg"];
    p.refuses(&svg, "--svg /no/such/directory/a.svg cannot be written");
}

#[test]
fn a_run_inside_a_run() {
    let p = Place::new();
    let mut inner = p.hugeswap();
    inner.env("HUGESWAP_POOL", "1:3");
    p.refused(&mut inner, &run_with(&[]), "already runs inside");
}

/// Somebody without any privilege.
const NOBODY: u32 = 65_534;

/// `hugeswap ARGS` as that user; `None`, with the reason printed, if that cannot be.
fn as_nobody(p: &Place) -> Option<Command> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return None;
    }
    // The build directory may be closed to others.
    let copy = p.path().join("hugeswap");
    // By a process of its own: a file this one has open for writing may be inherited by what another
    // test starts at that moment, and then cannot be executed.
    let made = std::process::Command::new("install")
        .args(["-m", "755", "--"])
        .args([assert_cmd::cargo::cargo_bin!("hugeswap"), &copy])
        .status();
    assert!(made.unwrap().success());
    let mut c = std::process::Command::new(&copy);
    c.uid(NOBODY)
        .gid(NOBODY)
        .current_dir(p.path())
        .env_remove("HUGESWAP_POOL");
    Some(Command::from_std(c))
}

#[test]
fn a_swap_directory_that_is_not_writable() {
    let p = Place::new();
    let Some(mut run) = as_nobody(&p) else { return };
    let swap = p.path().display().to_string();
    p.refused(
        &mut run,
        &run_with(&["--swap", &swap]),
        "is not writable for this user",
    );
}

#[test]
fn message_mode_where_it_is_not_permitted() {
    let p = Place::new();
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if allowed.is_ok_and(|v| v.trim() == "1") {
        println!("skipped: vm.unprivileged_userfaultfd=1 permits it to everybody");
        return;
    }
    let Some(mut run) = as_nobody(&p) else { return };
    p.refused(
        &mut run,
        &run_with(&["--fault-mode", "message"]),
        "--fault-mode signal",
    );
}

/// Runs `work` on a thread where the named system calls give `error`, as an old kernel or a
/// container's profile does; programs started by it inherit that.
fn without(
    calls: &[(i64, Vec<seccompiler::SeccompRule>)],
    error: i32,
    work: impl FnOnce() + Send + 'static,
) {
    use seccompiler::{SeccompAction, SeccompFilter, TargetArch};
    let rules: BTreeMap<_, _> = calls.iter().cloned().collect();
    let deny = SeccompAction::Errno(error as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, deny, TargetArch::x86_64).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    let thread = std::thread::spawn(move || {
        seccompiler::apply_filter(&program).unwrap();
        work();
    });
    thread.join().unwrap();
}

#[test]
fn message_mode_where_a_profile_forbids_userfaultfd() {
    without(&[(libc::SYS_userfaultfd, vec![])], libc::EPERM, || {
        let p = Place::new();
        p.refuses(
            &run_with(&["--fault-mode", "message"]),
            "--fault-mode signal",
        );
        p.hugeswap()
            .args(run_with(&["--fault-mode", "signal"]))
            .assert()
            .success();
    });
}

#[test]
fn a_kernel_too_old_for_any_mover() {
    use seccompiler::{
        SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq, SeccompCondition, SeccompRule,
    };
    const DONTUNMAP: u64 = 4;
    let flagged = SeccompCondition::new(3, Dword, MaskedEq(DONTUNMAP), DONTUNMAP).unwrap();
    let mremap = (
        libc::SYS_mremap,
        vec![SeccompRule::new(vec![flagged]).unwrap()],
    );
    without(
        &[mremap, (libc::SYS_userfaultfd, vec![])],
        libc::EINVAL,
        || {
            let p = Place::new();
            for mode in ["auto", "signal"] {
                p.refuses(&run_with(&["--fault-mode", mode]), "use Linux 5.7 or later");
            }
            p.refuses(
                &run_with(&["--fault-mode", "message"]),
                "use Linux 6.8 or later",
            );
            p.hugeswap()
                .arg("doctor")
                .assert()
                .code(1)
                .stdout(contains("not usable here: see mremap mover"));
        },
    );
}

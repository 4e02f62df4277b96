//! Programs of an ordinary user under a filter like those of containers: no userfaultfd, no
//! io_uring, no privilege.

use crate::c::{LESS_BALLAST_MIB, LESS_MEMORY_MIB};
use crate::util::*;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn cases() -> Vec<Case> {
    vec![
        case("sandbox, threads", threads),
        case("sandbox, calls", calls),
        case("sandbox, doctor", doctor),
        case("sandbox, control group", control_group),
        case("sandbox, pieces, threads", || pieces("threads")),
        case("sandbox, pieces, memory", || pieces("memory")),
        case("sandbox, pieces, calls", || pieces("calls")),
        case("sandbox, pieces, forks", || pieces("forks")),
    ]
}

/// Makes a directory that everybody may use, with the launcher and a copy of hugeswap in it.
/// Returns it, and the beginning of the command line.
pub fn sandbox() -> (tempfile::TempDir, Vec<OsString>) {
    let dir = directory();
    open_to_all(dir.path());
    let launcher = compile("sandbox", dir.path());
    let hugeswap = dir.path().join("hugeswap");
    // Another process copies the file: this one might leak the open file to a child, and then the
    // copy could not be executed.
    let copied = Command::new("cp").arg(HUGESWAP).arg(&hugeswap).status();
    assert!(copied.expect("cp").success());
    (dir, vec![launcher.into(), hugeswap.into()])
}

fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("chmod of ours");
}

fn threads() {
    let (dir, start) = sandbox();
    let program = Program::new(dir.path(), compile("threads", dir.path())).args(["8", "16", "4"]);
    let plain = program.plain();
    let whole = Setup::new(Mode::Signal, 32).option("--set", "thp.swapin=always");
    let managed = program.managed_by(&start, &whole);
    managed.same_as(&plain);
    // At full speed, memory moves only in whole huge pages, where there are such.
    if hugeswap_support::proc::gives_huge_pages() {
        let moved = |key| managed.number(key);
        assert!(moved("thp_swpout") > 0 && moved("thp_swpin") > 0);
        assert_eq!(moved("thp_swpin_fallback"), 0, "{}", managed.report);
        assert_eq!(moved("thp_swpout_fallback"), 0, "{}", managed.report);
    }
    let auto = program.managed_by(&start, &Setup::new(Mode::Auto, 32));
    assert_eq!(auto.same_as(&plain).report["fault_mode"], "signal");
}

fn calls() {
    let (dir, start) = sandbox();
    let files = dir.path().join("files");
    std::fs::create_dir(&files).expect("a directory in a directory of ours");
    open_to_all(&files);
    let program = Program::new(dir.path(), compile("calls", dir.path()))
        .arg(LESS_BALLAST_MIB)
        .arg(&files);
    let plain = program.plain();
    program
        .managed_by(&start, &Setup::new(Mode::Signal, LESS_MEMORY_MIB))
        .same_as(&plain);
}

/// Without userfaultfd, memory moves in pieces of at least 64 KiB. Here it moves only in such
/// pieces, while units are evicted at random.
fn pieces(name: &str) {
    let (dir, start) = sandbox();
    let files = dir.path().join("files");
    std::fs::create_dir(&files).expect("a directory in a directory of ours");
    open_to_all(&files);
    let program = Program::new(dir.path(), compile(name, dir.path()));
    let program = match name {
        "threads" => program.args(["8", "16", "1"]),
        "calls" => program.arg(LESS_BALLAST_MIB).arg(&files),
        _ => program.arg(LESS_BALLAST_MIB),
    };
    let setup = Setup::new(Mode::Signal, LESS_MEMORY_MIB)
        .option("--set", "thp.swapin=never")
        .option("--set", "debug.storm=200");
    let plain = program.plain();
    let managed = program.managed_by(&start, &setup);
    managed.same_as(&plain);
    assert!(managed.number("thp_split_pmd") > 0, "{}", managed.report);
}

fn doctor() {
    let (dir, start) = sandbox();
    let out = Command::new(&start[0])
        .args(&start[1..])
        .args(["doctor", "--json", "--swap"])
        .arg(dir.path())
        .output()
        .expect("the launcher starts");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
    let v: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(v["usable"], true, "{text}");
    assert!(text.contains("64 KiB or 2 MiB"), "{text}");
}

/// Workers in a control group that is too small for them, as a container's memory limit is.
fn control_group() {
    const LIMIT_MIB: u64 = 112;
    let Some(group) = Group::new(LIMIT_MIB << 20) else {
        skip("no control group for memory can be made here (only root can)");
    };
    let dir = directory();
    let enter: Vec<OsString> = ["sh", "-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]
        .iter()
        .map(OsString::from)
        .chain([group.0.clone().into()])
        .collect();
    let workers = compile("workers", dir.path());
    let program = Program::new(dir.path(), &workers).args(["4", "40", "2"]);
    let plain = program.plain();
    let start = [enter.clone(), vec![HUGESWAP.into()]].concat();
    // (Swap in memory would be the group's, too.)
    let setup = Setup::new(Mode::Signal, 64).on_disk();
    let managed = program.managed_by(&start, &setup);
    managed.same_as(&plain).processes(4);
    // A budget that the group could not hold is refused.
    let refused = Command::new(&start[0])
        .args(&start[1..])
        .args(["run", "--memory", "200M", "--", "/bin/true"])
        .output()
        .expect("sh starts");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("control group"), "{said}");
}

/// A control group with a limit on memory.
struct Group(PathBuf);

impl Group {
    fn new(limit: u64) -> Option<Group> {
        let name = format!("hugeswap-test-{}", std::process::id());
        [("memory", "memory.limit_in_bytes"), ("", "memory.max")]
            .into_iter()
            .find_map(|(controller, file)| {
                let path = Path::new("/sys/fs/cgroup").join(controller).join(&name);
                std::fs::create_dir(&path).ok()?;
                let group = Group(path);
                // The file is there if the controller is.
                let limited = group.0.join(file).exists()
                    && std::fs::write(group.0.join(file), limit.to_string()).is_ok();
                limited.then_some(group)
            })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The group is empty as soon as its last process is reaped.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

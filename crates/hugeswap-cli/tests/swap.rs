//! `hugeswap swap inspect`: what it says about files whose layout is known, and what it refuses.

use assert_cmd::Command;
use rustix::fs::FallocateFlags;
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

fn place() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").expect("a directory")
}

fn inspect(file: &Path, options: &[&str]) -> Command {
    let mut c = Command::new(assert_cmd::cargo::cargo_bin!("hugeswap"));
    c.args(["swap", "inspect"])
        .arg(file)
        .args(options)
        .timeout(std::time::Duration::from_secs(60));
    c
}

/// What `--json` says; `None`, with a line, where the file system has no FIEMAP.
fn json(file: &Path, options: &[&str]) -> Option<Value> {
    let done = inspect(file, options)
        .arg("--json")
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&done.stderr);
    if said.contains("FIEMAP") {
        println!("skipped: {said}");
        return None;
    }
    assert!(done.status.success(), "{said}");
    Some(serde_json::from_slice(&done.stdout).expect("one JSON object"))
}

/// A file with these MiB of it written, and the rest holes.
fn written(dir: &Path, size: u64, mib: impl Iterator<Item = u64>) -> PathBuf {
    let path = dir.join("file");
    let file = File::create(&path).expect("a file");
    file.set_len(size).expect("room");
    for n in mib {
        file.write_all_at(&[0x5a; MIB as usize], n * MIB)
            .expect("room");
    }
    path
}

/// The parts of a file add up to the whole.
fn adds_up(found: &Value, size: u64) {
    let bars = found["histogram"].as_array().expect("a list");
    let sum = |of: &str| {
        bars.iter()
            .map(|b| b[of].as_u64().expect("a number"))
            .sum::<u64>()
    };
    let rest = ["hole_bytes", "unplaced_bytes"].map(|n| found[n].as_u64().expect("a number"));
    assert_eq!(sum("bytes") + rest.iter().sum::<u64>(), size, "{found}");
    assert_eq!(found["pieces"], sum("pieces"));
    for b in bars {
        let n = b["pieces"].as_u64().expect("a number");
        let range = b["from_bytes"].as_u64().expect("a number") * n
            ..=b["below_bytes"].as_u64().expect("a number") * n;
        assert!(
            range.contains(&b["bytes"].as_u64().expect("a number")),
            "{b}"
        );
    }
    let c = &found["clusters"];
    let kinds = ["whole", "split", "incomplete"].map(|k| c[k].as_u64().expect("a number"));
    assert_eq!(c["total"], kinds.iter().sum::<u64>());
    assert_eq!(c["total"], size / (2 * MIB));
}

#[test]
fn a_written_file_is_all_clusters() {
    let dir = place();
    let path = written(dir.path(), 16 * MIB, 0..16);
    let Some(found) = json(&path, &[]) else {
        return;
    };
    adds_up(&found, 16 * MIB);
    assert_eq!(
        (&found["bytes"], &found["hole_bytes"]),
        (&(16 * MIB).into(), &0.into())
    );
    assert_eq!(found["clusters"]["incomplete"], 0);
    assert!(found["clusters"]["pieces_mean"].as_f64() >= Some(1.0));
    assert!(found["clusters"]["requests_mean"].as_f64() >= Some(1.0));
    assert!(found["extent_list"].is_null() && found["cluster_list"].is_null());

    let text = inspect(&path, &[]).assert().success();
    let text = String::from_utf8_lossy(&text.get_output().stdout).into_owned();
    for part in [
        "16.0 MiB on ",
        " or more",
        "####",
        "of 8 are in one piece",
        "One 2 MiB read is ",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(
        !text.contains("device offset"),
        "no list was asked for:\n{text}"
    );
}

#[test]
fn holes_and_lists_are_told() {
    let dir = place();
    // 0 to 4 MiB, 5 MiB, and the last half MiB of 9.5.
    let size = 19 * MIB / 2;
    let path = written(dir.path(), size, [0, 1, 2, 3, 5].into_iter());
    let file = File::options().write(true).open(&path).expect("the file");
    file.write_all_at(&[1; MIB as usize / 2], 9 * MIB)
        .expect("room");
    let Some(found) = json(&path, &["--extents", "--clusters"]) else {
        return;
    };
    adds_up(&found, size);
    assert_eq!(found["hole_bytes"], 4 * MIB);
    assert_eq!(
        (
            &found["clusters"]["total"],
            &found["clusters"]["incomplete"]
        ),
        (&4.into(), &2.into())
    );
    let at = |list: &str| {
        let list = found[list].as_array().expect("a list");
        let at = list.iter().map(|e| e["offset"].as_u64().expect("a number"));
        at.collect::<Vec<_>>()
    };
    let extents = at("extent_list");
    assert!(extents.contains(&0) && extents.contains(&(5 * MIB)) && extents.contains(&(9 * MIB)));
    assert_eq!(found["extents"], extents.len());
    let mut clusters = at("cluster_list");
    clusters.sort_unstable();
    assert_eq!(clusters, [0, 2 * MIB]);
    let text = inspect(&path, &["--extents", "--clusters"])
        .assert()
        .success();
    let text = String::from_utf8_lossy(&text.get_output().stdout).into_owned();
    assert!(text.contains("swapon refuses files with holes"), "{text}");
    let list = text
        .split("device offset\n")
        .nth(1)
        .expect("the list of extents");
    assert!(list.contains(&(5 * MIB).to_string()), "{list}");
    assert!(text.contains("cluster at"), "{text}");
}

#[test]
fn what_is_allocated_but_not_written_is_told() {
    let dir = place();
    let path = dir.path().join("file");
    let file = File::create(&path).expect("a file");
    if let Err(e) = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8 * MIB) {
        println!("skipped: no fallocate here ({e})");
        return;
    }
    file.write_all_at(&[1; MIB as usize], 0).expect("room");
    let Some(found) = json(&path, &["--extents"]) else {
        return;
    };
    adds_up(&found, 8 * MIB);
    assert_eq!(
        (&found["unwritten_bytes"], &found["hole_bytes"]),
        (&(7 * MIB).into(), &0.into())
    );
    let list = found["extent_list"].as_array().expect("a list");
    assert!(list.iter().any(|e| e["unwritten"] == true));
    assert!(list.iter().any(|e| e["unwritten"] == false));
    let said = inspect(&path, &[]).assert().success();
    let said = String::from_utf8_lossy(&said.get_output().stdout).into_owned();
    assert!(
        said.contains("unwritten  7.00 MiB (87.5%)") && said.contains("is slower"),
        "{said}"
    );
}

#[test]
fn a_link_leads_to_its_file_and_a_nameless_file_is_found_by_its_descriptor() {
    let dir = place();
    let path = written(dir.path(), 2 * MIB, 0..2);
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let Some(found) = json(&link, &[]) else {
        return;
    };
    assert_eq!(found["bytes"], 2 * MIB);
    let open = File::open(&path).expect("the file");
    std::fs::remove_file(&path).expect("it can be removed");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&open);
    let by_fd = PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()));
    assert_eq!(json(&by_fd, &[]).expect("as before")["bytes"], 2 * MIB);
}

/// It ends with status 2 and one line that says `why`.
fn refused(command: &mut Command, why: &str) {
    let done = command.assert().code(2).stdout("");
    let said = String::from_utf8_lossy(&done.get_output().stderr).into_owned();
    assert!(
        said.starts_with("hugeswap: ") && said.lines().count() == 1,
        "{said}"
    );
    assert!(said.contains(why), "{why}: {said}");
}

#[test]
fn what_cannot_be_inspected_is_said_in_one_line() {
    let dir = place();
    let refuses = |file: &Path, why: &str| refused(&mut inspect(file, &[]), why);
    refuses(&dir.path().join("nothing"), "does not exist");
    refuses(Path::new(""), "a value is required");
    refuses(dir.path(), "is a directory");
    refuses(Path::new("/dev/null"), "is not a regular file");
    refuses(Path::new("/proc/self/mem"), "is empty");
    let pipe = dir.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    refuses(&pipe, "is not a regular file");
    let empty = dir.path().join("empty");
    File::create(&empty).expect("a file");
    refuses(&empty, "is empty");
    let memory = File::from(
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::empty()).expect("a memory file"),
    );
    memory.set_len(MIB).expect("a size");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&memory);
    let by_fd = format!("/proc/{}/fd/{fd}", std::process::id());
    refuses(
        Path::new(&by_fd),
        "is on tmpfs, which does not report where files lie",
    );
    let disk = std::fs::read_dir("/dev")
        .expect("/dev")
        .flatten()
        .find(|e| {
            let kind = e.file_type().expect("a type");
            std::os::unix::fs::FileTypeExt::is_block_device(&kind)
        });
    if let Some(disk) = disk {
        refuses(&disk.path(), "is a device");
    }
    let hole = written(dir.path(), 5 * MIB, 0..0);
    if json_possible(dir.path()) {
        refuses(&hole, "is one hole of 5.00 MiB");
    }
    refused(
        Command::new(assert_cmd::cargo::cargo_bin!("hugeswap")).args(["swap"]),
        "requires a subcommand",
    );
    refused(
        Command::new(assert_cmd::cargo::cargo_bin!("hugeswap")).args(["swap", "inspect"]),
        "FILE",
    );
}

/// Has this file system FIEMAP?
fn json_possible(dir: &Path) -> bool {
    let path = dir.join("probe");
    std::fs::write(&path, [1; 8192]).expect("room");
    json(&path, &[]).is_some()
}

#[test]
fn a_file_of_somebody_else_is_refused() {
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let dir = place();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("our directory");
    let path = written(dir.path(), MIB, 0..1);
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, closed).expect("our file");
    // The build directory may be closed to others; made by a process of its own, for a file that this one has
    // open for writing may be inherited by what another test starts, and then cannot be executed.
    let copy = dir.path().join("hugeswap");
    let made = std::process::Command::new("install")
        .args(["-m", "755", "--"])
        .args([assert_cmd::cargo::cargo_bin!("hugeswap"), &copy])
        .status();
    assert!(made.expect("install(1)").success());
    let mut c = std::process::Command::new(&copy);
    c.uid(NOBODY).gid(NOBODY).current_dir(dir.path());
    c.args(["swap", "inspect"]).arg(&path);
    refused(&mut Command::from_std(c), "may not be read by this user");
}

//! Places that are not to be swapped to.

use crate::{NOBODY, Place, as_nobody, run_with};
use std::path::Path;

#[test]
fn a_swap_path_that_does_not_exist() {
    Place::new().refuses(
        &run_with(&["--swap", "/no/such/place"]),
        "/no/such/place does not exist",
    );
}

#[test]
fn compressed_memory_that_is_misspelt() {
    let p = Place::new();
    p.refuses(&run_with(&["--swap", "mem,size=1M"]), "too small");
    p.refuses(
        &run_with(&["--swap", "mem,share=30%"]),
        "'share=30%' is not a swap option",
    );
    p.refuses(&run_with(&["--swap", "memory"]), "memory does not exist");
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

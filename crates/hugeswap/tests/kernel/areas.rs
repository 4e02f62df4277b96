//! Areas of every kind, and what befalls them from outside.

use crate::Test;
use crate::util::*;
use hugeswap::{Builder, Pool, SwapSpec};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const TESTS: &[Test] = &[
    (
        "a_file_with_a_name_is_swapped_to",
        a_file_with_a_name_is_swapped_to,
    ),
    ("a_device_is_swapped_to", a_device_is_swapped_to),
    (
        "a_second_process_grows_its_own_part",
        a_second_process_grows_its_own_part,
    ),
    (
        "a_file_made_shorter_is_sigbus",
        a_file_made_shorter_is_sigbus,
    ),
];

fn a_second_process_grows_its_own_part() {
    let mut spec = SwapSpec::new("/var/tmp");
    spec.size = Some(16 << 30);
    let built = Pool::builder().memory(32 << 20).swap_area(spec).build();
    let pool = match built {
        Err(e) if e.to_string().contains("free") => skip("not enough free space"),
        built => built.unwrap(),
    };
    let r = pool.region(128 * MIB).unwrap();
    fill(&r, 1);
    // SAFETY: the child ends at once, without running what is the parent's.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        fill(&r, 2);
        check(&r, 2);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    check(&r, 1);
    let fds = swap_fds();
    let file = std::fs::metadata(format!("/proc/self/fd/{}", fds[0])).unwrap();
    // Each 128 MiB, in steps of 64 MiB, and not what lies between them.
    let bytes = std::os::unix::fs::MetadataExt::blocks(&file) * 512;
    assert!(bytes < 640 << 20, "{} MiB", bytes >> 20);
}

/// A sparse file of so many MiB that only we may read; removed at the end.
struct Swap(PathBuf);

impl Swap {
    fn new(mib: usize) -> Swap {
        let path = format!("/var/tmp/hugeswap-kernel-test-{}", std::process::id());
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len((mib * MIB) as u64).unwrap();
        file.set_permissions(PermissionsExt::from_mode(0o600))
            .unwrap();
        Swap(path.into())
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

fn on(path: &Path) -> Builder {
    let mut spec = SwapSpec::new(path);
    spec.allow_device = true;
    Pool::builder().memory(32 << 20).swap_area(spec)
}

fn rounds(pool: &Pool) {
    let r = pool.region(128 * MIB).unwrap();
    for g in 0..3 {
        fill(&r, g);
        check(&r, g);
    }
    assert!(pool.stats().pswpout > 0);
    assert_eq!(pool.audit(), Ok(()));
}

fn a_file_with_a_name_is_swapped_to() {
    let swap = Swap::new(161);
    for _ in 0..2 {
        both_modes(|mode| {
            let pool = on(&swap.0).fault_mode(mode).build().unwrap();
            rounds(&pool);
            let second = on(&swap.0).build();
            assert!(second.unwrap_err().to_string().contains("another pool"));
        });
        assert_eq!(std::fs::metadata(&swap.0).unwrap().len(), 161 << 20);
    }
}

fn a_device_is_swapped_to() {
    let swap = Swap::new(162);
    let made = Command::new("losetup")
        .args(["--find", "--show"])
        .arg(&swap.0)
        .output();
    let Some(out) = made.ok().filter(|o| o.status.success()) else {
        drop(swap);
        skip("no loop device is to be had");
    };
    let device = PathBuf::from(String::from_utf8(out.stdout).unwrap().trim());
    struct Detach(PathBuf);
    impl Drop for Detach {
        fn drop(&mut self) {
            let detached = Command::new("losetup")
                .arg("--detach")
                .arg(&self.0)
                .status();
            assert!(detached.unwrap().success());
        }
    }
    let device = Detach(device);
    let pool = on(&device.0).build().unwrap();
    rounds(&pool);
}

fn a_file_made_shorter_is_sigbus() {
    let swap = Swap::new(256);
    // In a child, whose end we look at.
    // SAFETY: no threads yet.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let pool = on(&swap.0).build().unwrap();
        let r = pool.region(128 * MIB).unwrap();
        fill(&r, 1);
        let file = std::fs::File::options().write(true).open(&swap.0).unwrap();
        file.set_len(0).unwrap();
        // Wrong bytes would be a panic.
        check(&r, 1);
        println!("read bytes that are nowhere");
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    let status = std::process::ExitStatus::from_raw(status);
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

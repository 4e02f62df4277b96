//! Areas of every kind, and what befalls them from outside.

use crate::Test;
use crate::files::apart;
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
    ("full_at_every_step_of_growth", full_at_every_step_of_growth),
    ("a_disk_that_others_fill", a_disk_that_others_fill),
    ("nearly_full_is_noticed_once", nearly_full_is_noticed_once),
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

fn counter(pool: &Pool, name: &str) -> u64 {
    let all = pool.stats().counters;
    all.iter().find(|c| c.0 == name).unwrap().1
}

/// Nobody has seen an error, and nothing is lost.
fn no_harm(pool: &Pool) {
    for name in ["swap_write_error", "swap_read_error", "hwpoison"] {
        assert_eq!(counter(pool, name), 0, "{name}");
    }
}

/// The disk is full at any place of a step of growth: the next area is used, and only when all are full is swap full.
fn full_at_every_step_of_growth() {
    for mib in [40, 46, 50, 62, 66] {
        let mut builder = Pool::builder().memory(32 << 20);
        for _ in 0..3 {
            let mut spec = SwapSpec::new("/var/tmp");
            spec.size = Some(256 << 20);
            builder = builder.swap_area(spec);
        }
        let space = format!("debug.swap_space={mib}M");
        let pool = builder.set(&space).build().unwrap();
        let r = pool.region(140 * MIB).unwrap();
        for g in 0..2 {
            fill(&r, g);
            check(&r, g);
        }
        no_harm(&pool);
        drop(r);
        assert_eq!(pool.audit(), Ok(()));
    }
}

/// A file system of so many MiB, which goes with this process however that ends.
fn small_disk(mib: usize) -> Option<PathBuf> {
    let dir = format!("/var/tmp/hugeswap-disk-{}", std::process::id());
    let image = format!("{dir}.img");
    // SAFETY: a namespace of our own; the mounts in it are nobody else's, and made private before any is made.
    let alone = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                c"none".as_ptr(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
    };
    if !alone {
        return None;
    }
    std::fs::create_dir(&dir).unwrap();
    let file = std::fs::File::create_new(&image).unwrap();
    file.set_len((mib * MIB) as u64).unwrap();
    let does = |program: &str, args: &[&str]| {
        let done = Command::new(program).args(args).output();
        done.is_ok_and(|o| o.status.success())
    };
    let mounted = does(
        "mkfs.ext4",
        &["-q", "-O", "^has_journal", "-m", "0", &image],
    ) && does("mount", &["-o", "loop", &image, &dir]);
    // What is mounted keeps it.
    std::fs::remove_file(&image).unwrap();
    if !mounted {
        std::fs::remove_dir(&dir).unwrap();
    }
    mounted.then(|| dir.into())
}

/// Somebody else fills the disk of one area while it grows, and frees it again.
fn a_disk_that_others_fill() {
    let Some(dir) = small_disk(160) else {
        skip("no file system can be made and mounted here");
    };
    let area = |path: &Path, mib: u64| {
        let mut spec = SwapSpec::new(path);
        spec.size = Some(mib << 20);
        spec
    };
    let first = SwapSpec {
        priority: 5,
        ..area(&dir, 128)
    };
    let pool = Pool::builder()
        .memory(32 << 20)
        .swap_area(first)
        .swap_area(area(Path::new("/var/tmp"), 256))
        .build()
        .unwrap();
    let r = pool.region(180 * MIB).unwrap();
    let others = std::fs::File::create(dir.join("others")).unwrap();
    use std::os::fd::AsRawFd;
    // All but 21 MiB, after what was written to measure.
    let free = hugeswap_sys::fs::file_system(others.as_raw_fd())
        .unwrap()
        .free_bytes;
    hugeswap_sys::fs::allocate(others.as_raw_fd(), 0, free - (21 << 20)).unwrap();
    for g in 0..2 {
        fill(&r, g);
        check(&r, g);
    }
    no_harm(&pool);
    let used = |path: &Path| {
        hugeswap_sys::fs::file_system(std::fs::File::open(path).unwrap().as_raw_fd())
            .unwrap()
            .free_bytes
    };
    assert!(used(&dir) < 4 << 20, "it did not take what there was");
    others.set_len(0).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    for g in 2..4 {
        fill(&r, g);
        check(&r, g);
    }
    no_harm(&pool);
    drop((r, pool, others));
    // The mount goes with the process; its place does not.
    Command::new("umount").arg(&dir).status().unwrap();
    std::fs::remove_dir(&dir).unwrap();
}

/// When nine tenths of swap are in use, that is counted once.
fn nearly_full_is_noticed_once() {
    let mut spec = SwapSpec::new("/var/tmp");
    spec.size = Some(64 << 20);
    let pool = Pool::builder()
        .memory(32 << 20)
        .swap_area(spec)
        .build()
        .unwrap();
    let half = pool.region(40 * MIB).unwrap();
    fill(&half, 1);
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(counter(&pool, "swap_soft_full"), 0);
    let rest = pool.region(52 * MIB).unwrap();
    for g in 0..200 {
        fill(&rest, g);
        check(&half, 1);
        if counter(&pool, "swap_soft_full") > 0 && g > 3 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(counter(&pool, "swap_soft_full"), 1);
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
    let status = apart(|| {
        let pool = on(&swap.0).build().unwrap();
        let r = pool.region(128 * MIB).unwrap();
        fill(&r, 1);
        let file = std::fs::File::options().write(true).open(&swap.0).unwrap();
        file.set_len(0).unwrap();
        // Wrong bytes would be a panic.
        check(&r, 1);
        println!("read bytes that are nowhere");
    });
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

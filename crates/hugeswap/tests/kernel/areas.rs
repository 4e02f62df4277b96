//! Swap areas of every kind, and what happens to them from outside.

use crate::util::*;
use hugeswap::{Builder, Pool, SwapOffError, SwapSpec};
use hugeswap_sys::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

tests! {
    a_file_with_a_name_is_swapped_to,
    a_device_is_swapped_to,
    a_second_process_grows_its_own_part,
    full_at_every_step_of_growth,
    a_disk_that_others_fill,
    areas_on_one_disk_share_its_space,
    nearly_full_is_noticed_once,
    what_comes_next_is_initialised_once,
    nobody_meets_the_initialiser,
    a_file_made_shorter_is_sigbus,
}

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

/// The disk becomes full at any point of a step of growth: the next area is used, and swap is full
/// only when all areas are.
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

/// A file system of so many MiB. The mount goes with this process, in whatever way it ends, and the
/// mount point with this value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Makes and mounts the file system; ends the test as skipped if that is not possible.
    fn new(mib: usize) -> SmallDisk {
        let why = "no file system can be made and mounted here";
        // SAFETY: a namespace of our own; the mounts in it are nobody else's, and made private
        // before any is made.
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
            skip(why);
        }
        let dir = format!("/var/tmp/hugeswap-disk-{}", std::process::id());
        let image = format!("{dir}.img");
        std::fs::create_dir(&dir).unwrap();
        let disk = SmallDisk(PathBuf::from(&dir));
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
            drop(disk);
            skip(why);
        }
        disk
    }

    fn free_bytes(&self) -> u64 {
        let there = std::fs::File::open(&self.0).unwrap();
        fs::file_system(there.as_raw_fd()).unwrap().free_bytes
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // From here at once, although threads that are about to end may have something open there.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
        let gone = std::fs::remove_dir(&self.0);
        assert!(gone.is_ok() || std::thread::panicking(), "{gone:?}");
    }
}

/// Another program fills the disk of one area while it grows, and frees it again.
fn a_disk_that_others_fill() {
    let disk = SmallDisk::new(160);
    let area = |path: &Path, mib: u64| {
        let mut spec = SwapSpec::new(path);
        spec.size = Some(mib << 20);
        spec
    };
    let first = SwapSpec {
        priority: 5,
        ..area(&disk.0, 128)
    };
    let pool = Pool::builder()
        .memory(32 << 20)
        .swap_area(first)
        .swap_area(area(Path::new("/var/tmp"), 256))
        .build()
        .unwrap();
    let r = pool.region(180 * MIB).unwrap();
    let others = std::fs::File::create(disk.0.join("others")).unwrap();
    // All but 21 MiB, after what was written to measure.
    let free = disk.free_bytes();
    fs::allocate(others.as_raw_fd(), 0, free - (21 << 20)).unwrap();
    for g in 0..2 {
        fill(&r, g);
        check(&r, g);
    }
    no_harm(&pool);
    assert!(
        disk.free_bytes() < 4 << 20,
        "it did not take what there was"
    );
    others.set_len(0).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    for g in 2..4 {
        fill(&r, g);
        check(&r, g);
    }
    no_harm(&pool);
    drop((r, pool, others));
}

/// Each area may take all the space that is free on the disk; together they cannot.
fn areas_on_one_disk_share_its_space() {
    let disk = SmallDisk::new(200);
    let area = |priority| {
        let mut spec = SwapSpec::new(&disk.0);
        spec.size = Some(160 << 20);
        spec.priority = priority;
        spec
    };
    let before = disk.free_bytes() as usize;
    let pool = Pool::builder()
        .memory(32 << 20)
        .swap_area(area(5))
        .swap_area(area(0))
        .build()
        .unwrap();
    // What could not be held is not promised.
    assert!(pool.region(before + 33 * MIB).is_err());
    let r = pool.region(before - 40 * MIB).unwrap();
    fill(&r, 1);
    check(&r, 1);
    // The other one has no room for what the first holds: there is less left on the disk.
    let held = pool.swap_areas()[0].used_bytes;
    let refused = pool.swap_off(0, |_| true).unwrap_err();
    let SwapOffError::NoRoom { room, .. } = refused else {
        panic!("{refused}");
    };
    assert!(
        held > 80 << 20 && room.elsewhere <= disk.free_bytes(),
        "{room:?}"
    );
    // Nearly full is the disk, not the sum of the areas.
    let all = pool.region(60 * MIB).unwrap();
    let mut g = 1;
    until("swap is nearly full", || {
        g += 1;
        fill(&all, g);
        check(&r, 1);
        counter(&pool, "swap_soft_full") > 0
    });
    no_harm(&pool);
    drop((r, all, pool));
}

/// When nine tenths of swap are in use, the warning is counted once.
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

/// Skips the test where the file system writes to new blocks each time, or does not report its
/// extents.
fn need_unwritten_extents() {
    let dir = std::fs::File::open("/var/tmp").unwrap();
    let magic = fs::file_system(dir.as_raw_fd()).unwrap().magic;
    if ![0xef53, 0x5846_5342].contains(&magic) {
        skip("neither ext4 nor xfs");
    }
}

/// Bytes of the only swap file that are allocated, and how many of these were never written.
fn allocated_and_unwritten() -> (u64, u64) {
    let (mut all, mut unwritten) = (0, 0);
    for e in hugeswap_sys::fiemap::extents(swap_fds()[0]) {
        let e = e.unwrap();
        all += e.length;
        unwritten += if e.unwritten() { e.length } else { 0 };
    }
    (all, unwritten)
}

fn what_comes_next_is_initialised_once() {
    need_unwritten_extents();
    let pool = builder(32).build().unwrap();
    let r = pool.region(48 * MIB).unwrap();
    fill(&r, 1);
    page_out(&r);
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert_eq!(counter(&pool, "swap_initialised"), 0, "it is off");
    let (_, before) = allocated_and_unwritten();
    assert!(before >= 16 << 20, "{before}");
    pool.set("swap.initialise=on").unwrap();
    let start = std::time::Instant::now();
    let (mut last, mut same) = (0, 0);
    while same < 20 {
        assert!(start.elapsed().as_secs() < 60, "it does not end");
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = counter(&pool, "swap_initialised");
        same = if now == last && now > 0 { same + 1 } else { 0 };
        last = now;
    }
    // As much as is in use, and no more.
    let used = pool.stats().swap_used_bytes;
    assert!(last * 4096 <= used.min(64 << 20), "{last} pages of {used}");
    let (_, after) = allocated_and_unwritten();
    assert!(after <= before - last * 4096, "{before}, {after}, {last}");
    // All of that is used next, and was in nobody's way.
    let s = pool.region(40 * MIB).unwrap();
    fill(&s, 2);
    check(&r, 1);
    check(&s, 2);
    drop((r, s));
    pool.set("swap.initialise=off").unwrap();
    // It waits for who is at it.
    assert_eq!(pool.audit(), Ok(()));
    assert_eq!(pool.stats().swap_used_bytes, 0);
}

/// Areas come and go, children are forked and units leave, while slots are initialised.
fn nobody_meets_the_initialiser() {
    need_unwritten_extents();
    let area = || {
        let mut spec = SwapSpec::new("/var/tmp");
        spec.size = Some(512 << 20);
        spec
    };
    let pool = Pool::builder()
        .memory(32 << 20)
        .swap_area(area())
        .set("swap.initialise=on")
        .set("debug.storm=2000")
        .build()
        .unwrap();
    let r = pool.region(96 * MIB).unwrap();
    let mut now = 0;
    for g in 0..3 {
        fill(&r, g);
        let kid = child(|| {
            check(&r, g);
            fill(&r, g + 100);
            check(&r, g + 100);
        });
        let next = pool.swap_on(&area()).unwrap();
        check(&r, g);
        ended_well(kid);
        pool.swap_off(now, |_| true).unwrap();
        check(&r, g);
        now = next;
    }
    no_harm(&pool);
    println!("{} pages", counter(&pool, "swap_initialised"));
    drop(r);
    pool.set("swap.initialise=off").unwrap();
    assert_eq!(pool.audit(), Ok(()));
    assert_eq!(pool.stats().swap_used_bytes, 0);
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
    let status = in_child(|| {
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

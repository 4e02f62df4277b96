//! Which files and devices are taken, and which are not.

use super::*;
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

const MIB: u64 = 1 << 20;

/// A directory on a disk, removed at the end.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        static N: AtomicU32 = AtomicU32::new(0);
        let n = N.fetch_add(1, Ordering::Relaxed);
        let dir = format!("/var/tmp/hugeswap-area-{}-{n}", std::process::id());
        std::fs::create_dir(&dir).unwrap();
        Place(dir.into())
    }

    /// A sparse file.
    fn file(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.0.join(name);
        let file = File::create(&path).unwrap();
        file.set_len(bytes).unwrap();
        file.set_permissions(Permissions::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What is left of a directory of ours is all that can go wrong.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn refused(spec: &SwapSpec, why: &str) {
    match open_area(spec) {
        Ok(a) => {
            fs::close(a.fd);
            panic!("{spec:?} was taken, not refused: {why}");
        }
        Err(e) => {
            let e = e.to_string();
            assert!(e.contains(why) && e.lines().count() == 1, "{e}");
        }
    }
}

/// Opens what is to be had, and closes it. A process that another test starts may have what was
/// just closed for a moment, until it executes its program.
fn taken(spec: &SwapSpec) -> OpenArea {
    let found = (0..500).find_map(|_| {
        let found = open_area(spec).ok();
        if found.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        found
    });
    let area = found.unwrap_or_else(|| open_area(spec).unwrap());
    fs::close(area.fd);
    area
}

#[test]
fn a_file_with_a_name_is_one_pools() {
    let place = Place::new();
    let path = place.file("swap", 7 * MIB);
    let spec = SwapSpec::new(&path);
    let area = open_area(&spec).unwrap();
    assert_eq!(
        (area.kind, area.clusters, area.priority),
        (Kind::Named, 3, -1)
    );
    refused(&spec, "in use by another pool");
    // One that joins holds it too, and as long as it likes.
    let joined = File::options().read(true).write(true).open(&path).unwrap();
    use std::os::fd::AsRawFd;
    hold(joined.as_raw_fd(), area.kind as u32).unwrap();
    fs::close(area.fd);
    refused(&spec, "in use by another pool");
    drop(joined);
    let mut smaller = spec.clone();
    (smaller.size, smaller.priority) = (Some(5 * MIB), 9);
    let area = taken(&smaller);
    assert_eq!((area.clusters, area.priority), (2, 9));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 7 * MIB);
    smaller.size = Some(8 * MIB);
    refused(&smaller, "less than the size asked for");
}

#[test]
fn files_that_are_not_ours_alone_are_refused() {
    let place = Place::new();
    let path = place.file("swap", 4 * MIB);
    let spec = SwapSpec::new(&path);
    for mode in [0o640, 0o620, 0o604, 0o602] {
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        refused(&spec, "chmod 600");
    }
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    let link = place.0.join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    refused(&SwapSpec::new(&link), "is a symbolic link");
    let hard = place.0.join("hard");
    std::fs::hard_link(&path, &hard).unwrap();
    refused(&spec, "several names");
    std::fs::remove_file(&hard).unwrap();
    refused(&SwapSpec::new(place.0.join("none")), "does not exist");
    refused(&SwapSpec::new("/dev/null"), "neither a directory");
    refused(
        &SwapSpec::new(place.file("small", 2 * MIB - 1)),
        "at least 2 MiB",
    );
    if process_is_root() {
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        refused(&spec, "belongs to another user");
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        // Not every file system can do that.
        let immutable = |how: &str| {
            let done = Command::new("chattr").arg(how).arg(&path).status();
            done.is_ok_and(|s| s.success())
        };
        if immutable("+i") {
            refused(&spec, "immutable");
            assert!(immutable("-i"));
        }
    }
    taken(&spec);
}

#[test]
fn a_file_that_holds_something_is_refused() {
    let place = Place::new();
    let path = place.file("image", 4 * MIB);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"SWAPSPACE2", 4086).unwrap();
    taken(&SwapSpec::new(&path));
    file.write_all_at(&[0x53, 0xef], 0x438).unwrap();
    refused(&SwapSpec::new(&path), "holds ext2, ext3 or ext4");
}

#[test]
fn numbers_out_of_bounds_are_refused_in_the_library_too() {
    let mut spec = SwapSpec::new("/var/tmp");
    spec.priority = 40_000;
    refused(&spec, "priority");
    (spec.priority, spec.size) = (0, Some(u64::MAX));
    refused(&spec, "too large");
    spec.size = Some(4096);
    refused(&spec, "too small");
}

fn process_is_root() -> bool {
    hugeswap_sys::process::effective_user() == 0
}

/// A loop device over a file; detached at the end.
struct Loop(PathBuf);

impl Loop {
    /// `None`, with the reason printed, where there is none to be had.
    fn over(file: &Path, options: &[&str]) -> Option<Loop> {
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .args(options)
            .arg(file)
            .output();
        match made {
            Ok(o) if o.status.success() => {
                let name = String::from_utf8_lossy(&o.stdout).trim().to_owned();
                Some(Loop(name.into()))
            }
            _ => {
                println!("skipped: no loop device is to be had");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // It goes by itself with its last user otherwise.
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

#[test]
fn a_device_must_be_allowed_unused_and_blank() {
    let place = Place::new();
    let file = place.file("disk", 9 * MIB);
    let Some(device) = Loop::over(&file, &[]) else {
        return;
    };
    let mut spec = SwapSpec::new(&device.0);
    refused(&spec, "device=allow");
    spec.allow_device = true;
    let area = open_area(&spec).unwrap();
    assert_eq!((area.kind, area.clusters), (Kind::Device, 4));
    refused(&spec, "is in use");
    fs::close(area.fd);
    // By a link, as those in /dev/disk/by-id are.
    let link = place.0.join("by-id");
    std::os::unix::fs::symlink(&device.0, &link).unwrap();
    let by_link = SwapSpec {
        path: link,
        size: Some(4 * MIB),
        ..spec.clone()
    };
    assert_eq!(taken(&by_link).clusters, 2);
    let disk = File::options().write(true).open(&device.0).unwrap();
    disk.write_all_at(b"SWAPSPACE2", 4086).unwrap();
    disk.sync_all().unwrap();
    refused(&spec, "holds kernel swap");
    disk.write_all_at(&[0; 10], 4086).unwrap();
    disk.write_all_at(b"EFI PART", 9 * MIB - 512).unwrap();
    disk.sync_all().unwrap();
    refused(&spec, "holds a GPT partition table");
    drop((disk, device));
    let Some(device) = Loop::over(&file, &["--read-only"]) else {
        return;
    };
    spec.path.clone_from(&device.0);
    refused(&spec, "read-only");
}

#[test]
fn a_mounted_device_is_refused() {
    let root = std::fs::metadata("/var/tmp").unwrap().dev();
    let id = format!("{}:{}", libc::major(root), libc::minor(root));
    let event = std::fs::read_to_string(format!("/sys/dev/block/{id}/uevent")).unwrap_or_default();
    let name = event.lines().find_map(|l| l.strip_prefix("DEVNAME="));
    let Some(path) = name
        .map(|n| Path::new("/dev").join(n))
        .filter(|p| p.exists())
    else {
        return println!("skipped: /var/tmp is on no device that can be named");
    };
    let mut spec = SwapSpec::new(path);
    spec.allow_device = true;
    refused(&spec, "it is mounted at");
}

#[test]
fn blanks_of_proc_are_understood() {
    assert_eq!(unescaped(br"/a\040b\134c\0"), r"/a b\c\0");
}

//! The objects that programs load, each in a file without a name.
//!
//! The file is on a disk if there is one that may hold executables: what a program has loaded are
//! then pages of a file, as those of any library, which the kernel drops and reads again if it is
//! short of memory. Otherwise it is a memory file, all of which stays in memory; where these may
//! hold no executables (`vm.memfd_noexec=2`), a file in any directory.

use anyhow::{Context, Result};
use hugeswap_engine::pool::is_memory;
use hugeswap_sys::fs::file_system;
use rustix::fs::{MemfdFlags, SealFlags, StatVfsMountFlags};
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Name of the memory file, and how the names of other files began while they had one.
const NAME: &str = "hugeswap-preload";

/// Is the object mapped in a process that has these mappings (the text of `/proc/PID/maps`)?
pub fn is_mapped(maps: &str) -> bool {
    let (in_memory, on_disk) = (format!("/memfd:{NAME} "), format!("/.{NAME}-"));
    let of_ours = |line: &str| line.contains(&in_memory) || line.contains(&on_disk);
    maps.lines()
        .any(|line| line.ends_with(" (deleted)") && of_ours(line))
}

/// An object in a file without a name that can be mapped executable. Not where swap is: whoever takes a
/// swap area off may want to unmount its disk.
pub fn file(object: &[u8]) -> Result<File> {
    let all = [PathBuf::from("/var/tmp"), std::env::temp_dir()];
    let first = |disk| all.iter().find_map(|d| in_directory(object, d, disk));
    if let Some(file) = first(true) {
        return Ok(file);
    }
    let in_memory = in_memory(object).or_else(|e| first(false).ok_or(e));
    in_memory.context("cannot store the injected object: allow memfd_create, or set TMPDIR to a directory that may hold executables")
}

/// In a directory, if that may hold executables, and is on a disk where that is asked for.
fn in_directory(object: &[u8], directory: &Path, disk: bool) -> Option<File> {
    let named = tempfile::Builder::new()
        .prefix(&format!(".{NAME}-"))
        .tempfile_in(directory)
        .ok()?;
    let (mut file, path) = named.into_parts();
    path.close().ok()?;
    let flags = rustix::fs::fstatvfs(&file).ok()?.f_flag;
    let magic = file_system(file.as_raw_fd()).ok()?.magic;
    if disk && is_memory(magic) || flags.contains(StatVfsMountFlags::NOEXEC) {
        return None;
    }
    file.write_all(object).ok()?;
    file.set_permissions(Permissions::from_mode(0o555)).ok()?;
    // Nobody can write to it by the descriptor that stays.
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

fn in_memory(object: &[u8]) -> Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag and make executable files anyway.
    let made = rustix::fs::memfd_create(NAME, flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(NAME, flags));
    let mut file = File::from(made?);
    file.write_all(object)?;
    // A precaution against writers.
    let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    let _ = rustix::fs::fcntl_add_seals(&file, all);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn it_is_on_a_disk_and_nobody_writes_to_it() {
        let file = file(b"object").expect("a file");
        assert_eq!(std::fs::read(path(&file)).expect("a reader"), b"object");
        let (made, disk) = (
            file.metadata().expect("a file"),
            std::fs::metadata("/var/tmp"),
        );
        assert_eq!(
            (made.dev(), made.nlink()),
            (disk.expect("a directory").dev(), 0)
        );
        assert!((&file).write_all(b"x").is_err());
    }

    #[test]
    fn without_a_disk_it_is_in_memory() {
        for (directory, disk) in [
            ("/dev/shm", true),
            ("/proc/self", false),
            ("/not/there", false),
        ] {
            assert!(in_directory(b"object", Path::new(directory), disk).is_none());
        }
        let file = in_memory(b"object").expect("a memory file");
        assert!((&file).write_all(b"x").is_err());
        assert_eq!(std::fs::read(path(&file)).expect("a reader"), b"object");
    }

    #[test]
    fn it_is_found_by_its_name_wherever_it_is() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 fe:00 12 {path}\n");
        for path in [
            "/memfd:hugeswap-preload (deleted)",
            "/var/tmp/.hugeswap-preload-a1b2 (deleted)",
        ] {
            assert!(is_mapped(&(line("/usr/lib/libc.so.6") + &line(path))));
        }
        for path in [
            "/memfd:hugeswap-pool (deleted)",
            "/home/hugeswap-preload/a.so",
            "[heap]",
        ] {
            assert!(!is_mapped(&line(path)), "{path}");
        }
    }

    fn path(file: &File) -> String {
        format!("/proc/self/fd/{}", file.as_raw_fd())
    }
}

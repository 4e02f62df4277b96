//! Other processes, as /proc shows them. What cannot be read is `None` or empty: a process may end at any
//! time, or belong to another user.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Figures of `/proc/PID/status`, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Its parent.
    pub parent: i32,
    /// It has ended, and its parent has not waited for it.
    pub is_zombie: bool,
    /// It waits in the kernel, and only a fatal signal wakes it.
    pub is_waiting: bool,
    /// Its effective user.
    pub user: u32,
    /// Bytes of addresses.
    pub size: u64,
    /// Anonymous memory.
    pub anonymous: u64,
    /// Memory of files.
    pub file: u64,
    /// Shared memory.
    pub shared: u64,
    /// In the kernel's swap.
    pub swapped: u64,
    /// Page tables.
    pub page_tables: u64,
}

impl Status {
    fn parse(text: &str) -> Status {
        let mut s = Status::default();
        for line in text.lines() {
            let Some((key, rest)) = line.split_once(':') else {
                continue;
            };
            let mut words = rest.split_whitespace();
            let mut next = || words.next().unwrap_or_default();
            let mut kib = || next().parse::<u64>().unwrap_or(0) << 10;
            match key {
                "State" => match next() {
                    "Z" | "X" => s.is_zombie = true,
                    "D" => s.is_waiting = true,
                    _ => {}
                },
                "PPid" => s.parent = next().parse().unwrap_or(0),
                "Uid" => {
                    next();
                    s.user = next().parse().unwrap_or(0);
                }
                "VmSize" => s.size = kib(),
                "RssAnon" => s.anonymous = kib(),
                "RssFile" => s.file = kib(),
                "RssShmem" => s.shared = kib(),
                "VmSwap" => s.swapped = kib(),
                "VmPTE" => s.page_tables = kib(),
                _ => {}
            }
        }
        s
    }
}

/// A process's status file, open: it belongs to that process even after another gets its number.
pub struct StatusFile(File);

impl StatusFile {
    /// Opens the status of a process.
    pub fn open(pid: i32) -> Option<StatusFile> {
        File::open(format!("/proc/{pid}/status"))
            .ok()
            .map(StatusFile)
    }

    /// Reads the status. `None`: the process has ended.
    pub fn read(&self) -> Option<Status> {
        let mut text = [0; 4096];
        let n = self.0.read_at(&mut text, 0).ok().filter(|&n| n > 0)?;
        Some(Status::parse(&String::from_utf8_lossy(&text[..n])))
    }
}

/// The children of a process, of all its threads.
pub fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = threads
        .flatten()
        .map(|t| std::fs::read_to_string(t.path().join("children")).unwrap_or_default());
    lists
        .flat_map(|l| {
            l.split_whitespace()
                .flat_map(str::parse)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The text of a file of /proc. Names in it may be any bytes: what is no UTF-8 is replaced.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The path of a process's program, or else its name.
pub fn program(pid: i32) -> PathBuf {
    let name = || text(format!("/proc/{pid}/comm")).unwrap_or_default();
    std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_else(|_| name().trim_end().into())
}

/// What a process was called by: its program and arguments. Empty if it has ended, or is not this
/// user's to look at.
pub fn arguments(pid: i32) -> Vec<OsString> {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if text.is_empty() {
        return Vec::new();
    }
    let words = text.strip_suffix(b"\0").unwrap_or(&text);
    let words = words.split(|&b| b == 0);
    words.map(|w| OsStr::from_bytes(w).to_owned()).collect()
}

/// A process's proportional share of anonymous memory, with its part in the kernel's swap, bytes. Takes
/// longer the more the process has mapped.
pub fn proportional(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    sum_of_shares(&text)
}

fn sum_of_shares(text: &str) -> Option<u64> {
    Some((kib(text, "Pss_Anon:")? + kib(text, "SwapPss:").unwrap_or(0)) << 10)
}

/// A process's proportional share of anonymous and shared memory that is in memory, bytes. Takes
/// longer the more the process has mapped.
pub fn proportional_in_memory(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    Some((kib(&text, "Pss_Anon:")? + kib(&text, "Pss_Shmem:").unwrap_or(0)) << 10)
}

fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Memory of the machine, and what of it is available to programs without swapping, bytes.
pub fn machine_memory() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some((
        kib(&text, "MemTotal:")? << 10,
        kib(&text, "MemAvailable:")? << 10,
    ))
}

/// Memory of a memory file of this process, bytes.
pub fn held_by_file(fd: i32) -> u64 {
    let path = format!("/proc/self/fd/{fd}");
    std::fs::metadata(path).map_or(0, |m| m.blocks() * 512)
}

/// The word in brackets, by which sysfs shows a choice: `always [madvise] never` gives `madvise`.
pub fn chosen(text: &str) -> Option<&str> {
    text.split_once('[')?
        .1
        .split_once(']')
        .map(|(word, _)| word)
}

/// Does this machine give huge pages to memory that asks for them?
pub fn gives_huge_pages() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|text| chosen(&text) != Some("never"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_bytes() {
        let s = Status::parse(
            "Name:\tx y\nState:\tD (disk sleep)\nPPid:\t7\nUid:\t1\t1000\t1\t1\nVmSize:\t  40 kB\nRssAnon:\t       8 kB\nRssFile:\t 4 kB\nRssShmem:\t 12 kB\nVmSwap:\t 16 kB\nVmPTE:\t 20 kB\n",
        );
        assert_eq!(
            (s.parent, s.user, s.is_waiting, s.is_zombie),
            (7, 1000, true, false)
        );
        assert_eq!(s.page_tables, 20 << 10);
        assert_eq!((s.size, s.anonymous, s.file), (40 << 10, 8 << 10, 4 << 10));
        assert_eq!((s.shared, s.swapped), (12 << 10, 16 << 10));
        let rollup = "0-1 ---p 0 00:00 0 [rollup]\nPss:  9 kB\nPss_Anon:   5 kB\nSwapPss:   2 kB\n";
        assert_eq!(sum_of_shares(rollup), Some(7 << 10));
        assert_eq!(sum_of_shares("Pss: 1 kB\n"), None);
    }

    #[test]
    fn a_choice_is_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen("1\n"), None);
    }

    #[test]
    fn a_child_is_found_and_looked_at() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        assert!(children(std::process::id() as i32).contains(&pid));
        let status = StatusFile::open(pid).unwrap();
        let s = status.read().unwrap();
        assert_eq!(s.parent, std::process::id() as i32);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(status.read(), None);
    }
}

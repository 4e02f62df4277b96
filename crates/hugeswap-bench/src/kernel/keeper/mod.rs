//! The process that sets up what the kernel's runs need, and undoes it however they end.
//!
//! It reads requests from stdin, one JSON object a line, and answers each with one line. At the end of
//! its input (the benchmark has ended, was killed, or has crashed) it undoes everything that is still
//! set up, newest first, and ends. It ignores the signals that end the benchmark. It undoes only what
//! it did: an undo step is noted before or when its effect begins ([`journal`]: what it leaves when it
//! is killed itself is undone by the next benchmark).
//!
//! Swap is never on a tmpfs that could itself be swapped, because the kernel would deadlock: the RAM
//! device is a file on a tmpfs mounted `noswap`, and a kernel without that option has no RAM device.

pub mod journal;
mod undo;

pub use undo::is_on;

use crate::child::tell;
use anyhow::{Context, Result, bail};
use hugeswap_support::proc::chosen;
use journal::Journal;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use undo::{PRIORITY, Undo, ZRAM, empty_cgroup, patiently, tool, undo};

/// A request to the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Mount a private tmpfs of so many bytes that is never swapped. Answer: its directory.
    Ram { bytes: u64 },
    /// Make a swap area of so many bytes in a directory: on a loop device over a fully written file, or on
    /// the file itself. Answer: the path to turn on.
    Area {
        dir: PathBuf,
        bytes: u64,
        on_loop: bool,
    },
    /// Make a swap area of an existing file.
    Format { file: PathBuf },
    /// Make a swap area of so many bytes in a new zram device. Answer: the device.
    Zram { bytes: u64 },
    /// Make a memory cgroup with a limit. Answer: its directory.
    Cgroup { memory: u64 },
    /// Choose a value in a sysfs file. Answer: the value before.
    Choose { file: PathBuf, value: String },
    /// Turn an area on, with the highest priority.
    On { area: PathBuf },
    /// Turn an area off.
    Off { area: PathBuf },
    /// Undo everything.
    End,
}

/// The answer to a request.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    Done(String),
    Failed(String),
}

/// The keeper process.
pub fn main() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
    let ignored = std::sync::Arc::default();
    for signal in [SIGHUP, SIGINT, SIGPIPE, SIGTERM] {
        signal_hook::flag::register(signal, std::sync::Arc::clone(&ignored))?;
    }
    let mut keeper = Keeper {
        undo: Journal::in_dir(Path::new(journal::RUN)),
        ..Keeper::default()
    };
    for line in std::io::stdin().lines() {
        let Ok(line) = line else { break };
        let done = serde_json::from_str(&line)
            .map_err(Into::into)
            .and_then(|r| keeper.serve(r));
        let answer = done.map_or_else(|e| Answer::Failed(format!("{e:#}")), Answer::Done);
        if tell(&answer).is_err() {
            break;
        }
    }
    keeper.undo_all()
}

#[derive(Default)]
struct Keeper {
    undo: Journal,
    /// Files in which a value was chosen, locked: two keepers would each restore the choice of the other.
    chosen: Vec<(PathBuf, std::fs::File)>,
}

impl Keeper {
    fn serve(&mut self, request: Request) -> Result<String> {
        match request {
            Request::Ram { bytes } => self.ram(bytes).map(text),
            Request::Area {
                dir,
                bytes,
                on_loop,
            } => self.area(&dir, bytes, on_loop).map(text),
            Request::Format { file } => {
                tool(Command::new("mkswap").arg(&file), 60).map(|_| String::new())
            }
            Request::Zram { bytes } => self.zram(bytes),
            Request::Cgroup { memory } => self.cgroup(memory).map(text),
            Request::Choose { file, value } => self.choose(&file, &value),
            Request::On { area } => {
                // Noted first: a swapon that exceeds its time limit may still succeed.
                self.undo.note(Undo::Swap(area.clone()));
                tool(Command::new("swapon").args(["-p", PRIORITY]).arg(&area), 60)
                    .map(|_| String::new())
            }
            Request::Off { area } => {
                let wanted = Undo::Swap(area);
                let at = self.undo.steps().iter().rposition(|u| *u == wanted);
                let at = at.context("that area is not on")?;
                // Processes left in the cgroup would have to be brought back first.
                self.undo.steps().iter().try_for_each(empty_cgroup)?;
                undo(&wanted)?;
                self.undo.forget(at);
                Ok(String::new())
            }
            Request::End => self.undo_all().map(|()| String::new()),
        }
    }

    /// A private directory in the place for temporary files.
    fn directory(&mut self) -> Result<PathBuf> {
        let dir = tempfile::Builder::new()
            .prefix("hugeswap-bench-")
            .tempdir()
            .context("no place for a mount point")?
            .keep();
        self.undo.note(Undo::Directory(dir.clone()));
        Ok(dir)
    }

    fn ram(&mut self, bytes: u64) -> Result<PathBuf> {
        let dir = self.directory()?;
        let options = |extra: &str| format!("noswap,size={bytes},mode=0700{extra}");
        let flags = rustix::mount::MountFlags::NOSUID | rustix::mount::MountFlags::NODEV;
        let mount = |data: String| {
            let data = std::ffi::CString::new(data).map_err(|_| rustix::io::Errno::INVAL)?;
            rustix::mount::mount("hugeswap-bench", &dir, "tmpfs", flags, data.as_c_str())
        };
        // Huge pages in the tmpfs make copies to and from it cheaper, for both engines.
        mount(options(",huge=always"))
            .or_else(|_| mount(options("")))
            .context("cannot mount a tmpfs with `noswap` (Linux 6.4 or later, as root)")?;
        self.undo.note(Undo::Mount(dir.clone()));
        Ok(dir)
    }

    fn area(&mut self, dir: &Path, bytes: u64, on_loop: bool) -> Result<PathBuf> {
        let file = tempfile::Builder::new()
            .prefix("hugeswap-bench-")
            .suffix(".swap")
            .tempfile_in(dir);
        let (out, path) = file
            .with_context(|| format!("cannot make a file in {}", dir.display()))?
            .keep()?;
        self.undo.note(Undo::File(path.clone()));
        write_fully(out, bytes)
            .with_context(|| format!("cannot write {} MiB to {}", bytes >> 20, path.display()))?;
        let area = if on_loop {
            let mut losetup = Command::new("losetup");
            let made = tool(losetup.args(["--find", "--show"]).arg(&path), 60)?;
            let device = PathBuf::from(made.trim());
            self.undo.note(Undo::Loop(device.clone()));
            device
        } else {
            path
        };
        tool(Command::new("mkswap").arg(&area), 60)?;
        Ok(area)
    }

    fn zram(&mut self, bytes: u64) -> Result<String> {
        let number = std::fs::read_to_string(format!("{ZRAM}/hot_add"))
            .context("no zram device can be had (is the kernel's zram module loaded?)")?;
        let number = number.trim().to_owned();
        self.undo.note(Undo::Zram(number.clone()));
        let size = format!("/sys/block/zram{number}/disksize");
        std::fs::write(size, bytes.to_string())
            .with_context(|| format!("cannot make a zram device of {} MiB", bytes >> 20))?;
        let device = format!("/dev/zram{number}");
        // udev makes the node, a little later.
        patiently(5, || Ok(std::fs::metadata(&device).map(drop)?))
            .with_context(|| format!("{device} does not appear"))?;
        tool(Command::new("mkswap").arg(&device), 60)?;
        Ok(device)
    }

    fn cgroup(&mut self, memory: u64) -> Result<PathBuf> {
        let root = Hierarchy::find()?;
        if let Hierarchy::V2(root) = &root {
            let control = root.join("cgroup.subtree_control");
            let on = std::fs::read_to_string(&control).unwrap_or_default();
            if !on.split_whitespace().any(|c| c == "memory") {
                std::fs::write(&control, "+memory")
                    .context("cannot turn on the memory controller of cgroups")?;
                self.undo.note(Undo::Controller(control));
            }
        }
        let dir = root
            .path()
            .join(format!("hugeswap-bench-{}", std::process::id()));
        std::fs::create_dir(&dir)
            .with_context(|| format!("cannot make the memory cgroup {}", dir.display()))?;
        self.undo.note(Undo::Cgroup(dir.clone()));
        let limit = Hierarchy::limit_of(&dir);
        std::fs::write(&limit, memory.to_string())
            .with_context(|| format!("cannot set {}", limit.display()))?;
        Ok(dir)
    }

    fn choose(&mut self, file: &Path, value: &str) -> Result<String> {
        if !self.chosen.iter().any(|(f, _)| f == file) {
            let at = file.display();
            let open = std::fs::File::open(file).with_context(|| format!("cannot read {at}"))?;
            rustix::fs::flock(&open, rustix::fs::FlockOperation::NonBlockingLockExclusive)
                .with_context(|| {
                    format!("another benchmark has changed {at}: wait until it has ended")
                })?;
            self.chosen.push((file.to_owned(), open));
        }
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        let before = chosen(&text).unwrap_or(text.trim()).to_owned();
        self.undo.note(Undo::Choice {
            file: file.to_owned(),
            before: before.clone(),
            value: value.to_owned(),
        });
        std::fs::write(file, value)
            .with_context(|| format!("cannot set {} to {value}", file.display()))?;
        Ok(before)
    }

    /// Undoes everything, newest first. It goes on after a failure and returns the first.
    fn undo_all(&mut self) -> Result<()> {
        let mut failed = None;
        // No process may use a mount, an area or a cgroup that is about to be removed.
        for step in self.undo.steps() {
            failed = failed.or(empty_cgroup(step).err());
        }
        while let [.., step] = self.undo.steps() {
            if let Err(e) = undo(step) {
                eprintln!("hugeswap: left behind: {step}: {e:#}");
                failed = failed.or(Some(e));
            }
            self.undo.forget(self.undo.steps().len() - 1);
        }
        for (_, file) in self.chosen.drain(..) {
            // (Closing it would not do while a child that has not yet executed its program has it too.)
            let _ = rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock);
        }
        failed.map_or(Ok(()), Err)
    }
}

/// The limit of a cgroup of version 1.
const V1_LIMIT: &str = "memory.limit_in_bytes";

/// The hierarchy of memory cgroups.
pub enum Hierarchy {
    V1(PathBuf),
    V2(PathBuf),
}

impl Hierarchy {
    /// Finds the hierarchy that has the memory controller.
    pub fn find() -> Result<Hierarchy> {
        let mounts = std::fs::read_to_string("/proc/self/mounts")
            .context("cannot read /proc/self/mounts")?;
        let fields = mounts
            .lines()
            .map(|l| l.split_whitespace().collect::<Vec<_>>());
        for f in fields.filter(|f| f.len() >= 4) {
            let path = PathBuf::from(f[1]);
            if f[2] == "cgroup" && f[3].split(',').any(|o| o == "memory") {
                return Ok(Hierarchy::V1(path));
            }
            let controllers =
                || std::fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
            if f[2] == "cgroup2" && controllers().split_whitespace().any(|c| c == "memory") {
                return Ok(Hierarchy::V2(path));
            }
        }
        bail!("no memory cgroups: mount cgroup2 at /sys/fs/cgroup with the memory controller")
    }

    fn path(&self) -> &Path {
        match self {
            Hierarchy::V1(p) | Hierarchy::V2(p) => p,
        }
    }

    /// The file with the limit of a cgroup.
    pub fn limit_of(group: &Path) -> PathBuf {
        let file = match Hierarchy::is_v1(group) {
            true => V1_LIMIT,
            false => "memory.max",
        };
        group.join(file)
    }

    /// Is the cgroup of version 1?
    pub fn is_v1(group: &Path) -> bool {
        group.join(V1_LIMIT).exists()
    }
}

/// Writes every byte, so that swapping never has to allocate blocks or pages.
fn write_fully(mut file: std::fs::File, bytes: u64) -> Result<()> {
    let block = vec![0xa5u8; 2 << 20];
    let mut left = bytes;
    while left > 0 {
        let n = left.min(block.len() as u64);
        file.write_all(&block[..n as usize])?;
        left -= n;
    }
    file.sync_all()?;
    Ok(())
}

fn text(path: PathBuf) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_whole_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write_fully(std::fs::File::create(&path).unwrap(), (3 << 20) + 5).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), (3 << 20) + 5);
        let mut keeper = Keeper::default();
        keeper.undo.note(Undo::File(path.clone()));
        keeper.undo_all().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_choice_is_restored() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "always madvise [never]").unwrap();
        let mut keeper = Keeper::default();
        assert_eq!(keeper.choose(file.path(), "madvise").unwrap(), "never");
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "madvise");
        keeper.undo_all().unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "never");
    }

    #[test]
    fn two_keepers_do_not_choose_at_the_same_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "always [madvise] never").unwrap();
        let (mut first, mut second) = (Keeper::default(), Keeper::default());
        first.choose(file.path(), "never").unwrap();
        first.choose(file.path(), "always").unwrap();
        let refused = second.choose(file.path(), "never").unwrap_err();
        assert!(format!("{refused:#}").contains("another benchmark"));
        second.undo_all().unwrap();
        // As a child has it between fork and exec.
        let _inherited = first.chosen[0].1.try_clone().unwrap();
        first.undo_all().unwrap();
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "madvise");
        second.choose(file.path(), "never").unwrap();
        second.undo_all().unwrap();
    }

    #[test]
    fn a_failure_does_not_stop_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("d");
        std::fs::create_dir(&inner).unwrap();
        let missing = dir.path().join("missing");
        let mut keeper = Keeper::default();
        keeper.undo.note(Undo::Directory(inner.clone()));
        keeper.undo.note(Undo::File(missing));
        assert!(keeper.undo_all().is_err());
        assert!(!inner.exists());
    }
}

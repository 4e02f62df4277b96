//! The steps that undo what a keeper has set up.

use anyhow::{Context, Result, bail};
use hugeswap_support::proc::chosen;
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The directory that makes and removes zram devices.
pub const ZRAM: &str = "/sys/class/zram-control";
/// The priority that a keeper gives to swap: the highest.
pub const PRIORITY: &str = "32767";
const SWAPS: &str = "/proc/swaps";

/// A step that undoes something.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Undo {
    Directory(PathBuf),
    Mount(PathBuf),
    File(PathBuf),
    Loop(PathBuf),
    Zram(String),
    Swap(PathBuf),
    Cgroup(PathBuf),
    /// The value before in a file in which one was chosen.
    Choice {
        file: PathBuf,
        before: String,
        value: String,
    },
    Controller(PathBuf),
}

impl std::fmt::Display for Undo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Undo::Directory(path) | Undo::File(path) => write!(f, "{}", path.display()),
            Undo::Mount(dir) => write!(f, "the mount at {}", dir.display()),
            Undo::Loop(device) => write!(f, "{}", device.display()),
            Undo::Zram(number) => write!(f, "/dev/zram{number}"),
            Undo::Swap(area) => write!(f, "swap on {}", area.display()),
            Undo::Cgroup(dir) => write!(f, "the cgroup {}", dir.display()),
            Undo::Choice {
                file,
                before,
                value,
            } => {
                write!(f, "{} (from {value} to {before})", file.display())
            }
            Undo::Controller(file) => write!(f, "{}", file.display()),
        }
    }
}

impl Undo {
    /// Is what a keeper has set up as it left it, as far as can be told? (Others may have changed
    /// it since it was killed, or rely on it.)
    pub fn is_as_left(&self) -> bool {
        let name = |path: &Path| path.to_string_lossy().contains("hugeswap-bench-");
        match self {
            Undo::Directory(path) | Undo::Mount(path) | Undo::File(path) | Undo::Cgroup(path) => {
                name(path) && path.exists()
            }
            Undo::Loop(device) => std::fs::read_to_string(backing_file(device))
                .is_ok_and(|backing| name(Path::new(&backing))),
            Undo::Zram(number) => Path::new("/sys/block")
                .join(format!("zram{number}"))
                .exists(),
            Undo::Swap(area) => priority(area).is_some_and(|p| p == PRIORITY),
            Undo::Choice { file, value, .. } => std::fs::read_to_string(file)
                .is_ok_and(|text| chosen(&text).unwrap_or(text.trim()) == value),
            Undo::Controller(_) => false,
        }
    }
}

/// Kills the processes in a cgroup of the keeper and waits until they are gone.
pub fn empty_cgroup(step: &Undo) -> Result<()> {
    let Undo::Cgroup(dir) = step else {
        return Ok(());
    };
    let procs = dir.join("cgroup.procs");
    patiently(30, || {
        let members = std::fs::read_to_string(&procs).unwrap_or_default();
        let pids = members
            .lines()
            .filter_map(|l| l.parse().ok())
            .filter_map(rustix::process::Pid::from_raw);
        let mut left = 0;
        for pid in pids {
            // It may have ended on its own.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            left += 1;
        }
        if left > 0 {
            bail!("{left} processes in {} do not end", dir.display())
        }
        Ok(())
    })
}

/// Takes the step.
pub fn undo(step: &Undo) -> Result<()> {
    match step {
        // (It may be off already, or never have been on.)
        Undo::Swap(area) => match tool(Command::new("swapoff").arg(area), 300) {
            Err(e) if is_on(area) => Err(e),
            _ => Ok(()),
        },
        Undo::Loop(device) => {
            tool(Command::new("losetup").arg("-d").arg(device), 60)?;
            // Detaching is completed when the last user of the device has closed it.
            let backing = backing_file(device);
            patiently(10, || match backing.exists() {
                true => bail!("{} is still in use", device.display()),
                false => Ok(()),
            })
        }
        // It is busy while a process has it open.
        Undo::Zram(number) => patiently(10, || {
            Ok(std::fs::write(format!("{ZRAM}/hot_remove"), number)?)
        }),
        Undo::Mount(dir) => {
            let unmount = |flags| Ok(rustix::mount::unmount(dir, flags)?);
            patiently(5, || unmount(UnmountFlags::empty()))
                // A program that still has a file open there keeps the memory, not the mount.
                .or_else(|_| unmount(UnmountFlags::DETACH))
        }
        Undo::File(path) => Ok(std::fs::remove_file(path)?),
        Undo::Directory(dir) => Ok(std::fs::remove_dir(dir)?),
        Undo::Cgroup(dir) => patiently(10, || Ok(std::fs::remove_dir(dir)?)),
        Undo::Choice { file, before, .. } => Ok(std::fs::write(file, before)?),
        Undo::Controller(file) => Ok(std::fs::write(file, "-memory")?),
    }
}

/// Is this device or file in use as swap? (If that cannot be told, it may be.)
pub fn is_on(area: &Path) -> bool {
    swaps().is_err() || priority(area).is_some()
}

/// The kernel's list of swap areas, by one read: in several, an area is left out if one before it is
/// turned off between them.
fn swaps() -> std::io::Result<String> {
    let mut text = vec![0; 64 << 10];
    let read = std::fs::File::open(SWAPS)?.read(&mut text)?;
    text.truncate(read);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The priority of swap on a device or file; `None`: there is none.
fn priority(area: &Path) -> Option<String> {
    let swaps = swaps().ok()?;
    let area = area.to_string_lossy();
    let mut lines = swaps.lines().map(|l| l.split_whitespace());
    let found = lines.find_map(|mut line| (line.next()? == area).then(|| line.last()))?;
    found.map(str::to_owned)
}

/// The file that tells which file is behind a loop device.
fn backing_file(device: &Path) -> PathBuf {
    let name = device.file_name().unwrap_or_default();
    Path::new("/sys/block").join(name).join("loop/backing_file")
}

/// Repeats a step until it succeeds, for at most so many seconds.
pub fn patiently(seconds: u64, mut step: impl FnMut() -> Result<()>) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(seconds);
    loop {
        match step() {
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            done => return done,
        }
    }
}

/// Runs a tool of util-linux. Returns its stdout, or its stderr as the error.
pub fn tool(command: &mut Command, limit: u64) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{path}:/usr/sbin:/sbin"))
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run {name} (it is part of util-linux)"))?;
    let ended = patiently(limit, || match child.try_wait()? {
        Some(_) => Ok(()),
        None => bail!("{name} did not end within {limit} seconds"),
    });
    if ended.is_err() {
        // To wait for a process that hangs in the kernel would hang the keeper, which has more to undo.
        let _ = child.kill();
        return ended.map(|()| String::new());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{name}: {}", why.lines().next().unwrap_or("failed").trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_tool_is_its_stderr() {
        let e = tool(
            Command::new("sh").args(["-c", "echo broken >&2; exit 1"]),
            10,
        )
        .unwrap_err();
        assert_eq!(e.to_string(), "sh: broken");
    }
}

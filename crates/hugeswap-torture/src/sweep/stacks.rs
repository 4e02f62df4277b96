//! Where the threads of a process group stand, for the account of a hang.

use super::modes::Mode;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Writes the stacks of a process group to a file that stays; its path.
pub fn keep(group: u32, mode: &Mode, seed: u64) -> Result<PathBuf> {
    let name = format!("hugeswap-torture-{}-{seed}.stacks", mode.name);
    let path = std::env::temp_dir().join(name);
    fs::write(&path, of_group(group))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Between two looks at what processor time a thread has had: it spins, or it waits.
const APART: Duration = Duration::from_secs(2);

/// A line for each thread, and what gdb says of each process where there is one.
fn of_group(group: u32) -> String {
    let mut said = String::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for p in processes {
        let name = p.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let stat = fs::read_to_string(p.path().join("stat")).unwrap_or_default();
        let fields = stat.rfind(')').map_or("", |i| &stat[i + 1..]);
        let of = fields.split_whitespace().nth(2);
        if of != Some(group.to_string().as_str()) || pid == group {
            continue;
        }
        let threads: Vec<_> = (fs::read_dir(p.path().join("task")).into_iter())
            .flatten()
            .flatten()
            .map(|t| (ticks(&t.path()), t))
            .collect();
        std::thread::sleep(APART);
        for (before, t) in threads {
            let word = |file: &str| {
                let text = fs::read_to_string(t.path().join(file)).unwrap_or_default();
                text.trim().to_owned()
            };
            let (name, waits, call) = (word("comm"), word("wchan"), word("syscall"));
            let ran = ticks(&t.path()).saturating_sub(before);
            let id = t.file_name();
            let _ = writeln!(
                said,
                "{pid} {id:?} {name}: {waits}, {call}, {ran} ticks in 2 s"
            );
        }
        said += &by_gdb(pid);
    }
    said
}

/// The processor time of a thread so far.
fn ticks(thread: &Path) -> u64 {
    let stat = fs::read_to_string(thread.join("stat")).unwrap_or_default();
    let fields = stat.rfind(')').map_or("", |i| &stat[i + 1..]);
    let times = fields.split_whitespace().skip(11).take(2);
    times.filter_map(|n| n.parse::<u64>().ok()).sum()
}

fn by_gdb(pid: u32) -> String {
    let out = Command::new("timeout")
        .args(["60", "gdb", "-batch", "-nx", "-p", &pid.to_string()])
        .args(["-ex", "thread apply all backtrace 14"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match out {
        Ok(o) => String::from_utf8_lossy(&o.stdout)
            .lines()
            .filter(|l| l.starts_with('#') || l.starts_with("Thread"))
            .fold(String::new(), |all, l| all + l + "\n"),
        Err(_) => String::new(),
    }
}

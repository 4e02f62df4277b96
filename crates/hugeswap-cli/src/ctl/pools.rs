//! Finding pools: each is a memory file that its processes hold open.

use crate::text;
use anyhow::{Context, Result, bail};
use hugeswap_engine::pool::{Pool, SEGMENT_LINK};
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use hugeswap_support::proc;
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// The descriptor of the pool's segment in process `pid`. `None`: the process has no pool, or this user
/// may not read its descriptors.
fn segment_of(pid: i32) -> Option<i32> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut named = fds.filter_map(|e| {
        let e = e.ok()?;
        let number = e.file_name().to_str()?.parse::<i32>().ok()?;
        let link = std::fs::read_link(e.path()).ok()?;
        link.to_str()?.starts_with(SEGMENT_LINK).then_some(number)
    });
    named.next()
}

/// The pool of process `pid`.
pub fn of(pid: i32) -> Result<Pool> {
    let proc = format!("/proc/{pid}/fd");
    if !Path::new(&proc).exists() {
        bail!("there is no process {pid}");
    }
    std::fs::read_dir(&proc)
        .map(drop)
        .with_context(|| format!("process {pid} may not be looked at by this user"))?;
    let Some(fd) = segment_of(pid) else {
        bail!("process {pid} belongs to no pool: `hugeswap ctl list` shows those that do");
    };
    Ok(Pool::attach_alone(pid, fd, 3)?)
}

/// Every pool whose processes this user may read, by the process that made it.
pub fn all() -> BTreeMap<i32, Pool> {
    let mut found = BTreeMap::new();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return found;
    };
    let pids = processes.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for pid in pids {
        // A process that has just ended, or a pool of another version, is left out.
        if let Some(fd) = segment_of(pid)
            && let Ok(pool) = Pool::attach_alone(pid, fd, 3)
        {
            found.entry(pool.maker()).or_insert(pool);
        }
    }
    found
}

/// The only pool there is.
pub fn only() -> Result<Pool> {
    let mut pools = all();
    match (pools.len(), pools.pop_first()) {
        (1, Some((_, pool))) => Ok(pool),
        (0, _) => bail!(
            "no pool is running that this user may look at: start a program with `hugeswap run`"
        ),
        (n, _) => bail!(
            "{n} pools are running: say which with --pool PID (`hugeswap ctl list` shows them)"
        ),
    }
}

/// The command line of a process.
pub fn command_of(pid: i32) -> String {
    let line = proc::arguments(pid).join(OsStr::new(" "));
    text::one_line(line.to_string_lossy().trim())
}

/// The same without the directory of the program.
pub fn short_command_of(pid: i32) -> String {
    without_directory(&command_of(pid))
}

/// Prints all pools.
pub fn list(as_json: bool) -> Result<i32> {
    let pools = all();
    if as_json {
        let rows: Vec<_> = pools
            .iter()
            .map(|(maker, p)| {
                let swap = p.swap_usage();
                let limit = p.followed_limit();
                let moves = p.budget_moves();
                let zswap = p.zswap_usage();
                json!({
                    "zswap_bytes": zswap.bytes,
                    "zswapped_bytes": zswap.pages * PAGE_BYTES,
                    "limit_bytes": limit.map(|l| l.limit_bytes),
                    "limit_used_bytes": limit.map(|l| l.used_bytes),
                    "limit_peak_bytes": limit.map(|l| l.peak_bytes),
                    "memory_lowest_bytes": moves.lowest_bytes,
                    "memory_highest_bytes": moves.highest_bytes,
                    "pid": maker,
                    "command": command_of(*maker),
                    "processes": p.live().count(),
                    "memory_bytes": p.frames() * UNIT_BYTES,
                    "resident_bytes": p.used_frames() * UNIT_BYTES,
                    "swap_bytes": swap.clusters * UNIT_BYTES,
                    "swap_used_bytes": swap.used_bytes(),
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(0);
    }
    if pools.is_empty() {
        println!("no pool is running that this user may look at");
        return Ok(0);
    }
    println!(
        "{:>8}  {:>5}  {:>21}  {:>21}  {:>21}  COMMAND",
        "PID", "PROCS", "MEMORY IN USE", "LIMIT IN USE", "SWAP IN USE"
    );
    for (maker, p) in &pools {
        let swap = p.swap_usage();
        let of = |used, all| format!("{} of {}", text::bytes(used), text::bytes(all));
        println!(
            "{maker:>8}  {:>5}  {:>21}  {:>21}  {:>21}  {}",
            p.live().count(),
            of(p.used_frames() * UNIT_BYTES, p.frames() * UNIT_BYTES),
            p.followed_limit()
                .map_or_else(|| "-".into(), |l| of(l.used_bytes, l.limit_bytes)),
            of(swap.used_bytes(), swap.clusters * UNIT_BYTES),
            command_of(*maker),
        );
    }
    Ok(0)
}

fn without_directory(line: &str) -> String {
    let (program, rest) = line.split_once(' ').unwrap_or((line, ""));
    let name = program.rsplit_once('/').map_or(program, |(_, name)| name);
    format!("{name} {rest}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_short_names() {
        for (line, short) in [
            ("/usr/bin/python3 -c x/y", "python3 -c x/y"),
            ("./sort", "sort"),
            ("sort -S 2G", "sort -S 2G"),
            ("", ""),
        ] {
            assert_eq!(without_directory(line), short);
        }
    }
}

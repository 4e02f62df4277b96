//! The program that is to be attached: whether that can be done, and why not.

use super::ranges::{self, Mapping};
use crate::ctl::pools;
use crate::run::outside;
use anyhow::{Context, Result, bail};
use hugeswap_support::proc;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;

/// A running process.
pub struct Target {
    pub pid: i32,
    /// What it is called.
    pub name: String,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// A field of the text of /proc/PID/status, by its name with a colon; empty: there is none.
pub fn field<'a>(status: &'a str, key: &str) -> &'a str {
    let line = status.lines().find_map(|l| l.strip_prefix(key));
    line.map(str::trim).unwrap_or_default()
}

/// How many filters of system calls a process has, from the text of its status: those of its container
/// among them, which this process has, too. (Before Linux 5.9 it says only whether it has any.)
fn filters(status: &str) -> u32 {
    let count = field(status, "Seccomp_filters:").parse();
    count.unwrap_or(u32::from(!matches!(field(status, "Seccomp:"), "" | "0")))
}

impl Target {
    /// Looks at process `pid`; an error says why it cannot be attached.
    pub fn of(pid: i32) -> Result<Target> {
        let dir = format!("/proc/{pid}");
        if pid <= 0 || !Path::new(&dir).exists() {
            bail!("there is no process {pid}");
        }
        let name = std::fs::read_to_string(format!("{dir}/comm")).unwrap_or_default();
        let target = Target {
            pid,
            name: name.trim_end().into(),
        };
        target.check()?;
        Ok(target)
    }

    /// Its program and arguments.
    pub fn command(&self) -> Vec<OsString> {
        match proc::arguments(self.pid) {
            none if none.is_empty() => vec![self.name.clone().into()],
            arguments => arguments,
        }
    }

    /// How much of its memory is locked, in the kernel's words.
    pub fn locked_memory(&self) -> Result<String> {
        let status = proc::text(format!("/proc/{}/status", self.pid))?;
        Ok(field(&status, "VmLck:").to_owned())
    }

    fn check(&self) -> Result<()> {
        let pid = self.pid;
        let status = proc::text(format!("/proc/{pid}/status"))?;
        let field = |key: &str| field(&status, key);
        if field("Tgid:") != pid.to_string() {
            bail!(
                "{pid} is a thread of process {}: give that number",
                field("Tgid:")
            );
        }
        if field("State:").starts_with(['Z', 'X']) {
            bail!("{self} has ended");
        }
        if field("State:").starts_with('T') {
            bail!("{self} is stopped: continue it first (kill -CONT {pid})");
        }
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
        let maps = maps.with_context(|| format!("{self} may not be looked at by this user"))?;
        if maps.is_empty() {
            bail!("{self} is a thread of the kernel's");
        }
        if outside::has_object(pid).is_some_and(|has| has) {
            let what = match pools::of(pid) {
                Ok(_) => "is managed already",
                Err(_) => {
                    "has hugeswap's code in it, which manages nothing: start it by `hugeswap run`"
                }
            };
            bail!("{self} {what}");
        }
        let tracer = field("TracerPid:");
        if tracer != "0" {
            bail!("{self} is traced by process {tracer}, a debugger perhaps: detach that first");
        }
        let own = proc::text("/proc/self/status")?;
        if filters(&status) > filters(&own) {
            bail!(
                "{self} has a filter of system calls (seccomp) of its own, which may not let hugeswap's pass: start it by `hugeswap run`"
            );
        }
        if !maps.lines().any(|l| l.ends_with("[vdso]")) {
            bail!("{self} has no vDSO: start it by `hugeswap run`");
        }
        let is_32_bit =
            std::fs::read(format!("/proc/{pid}/exe")).is_ok_and(|b| b.get(4) == Some(&1));
        if is_32_bit {
            bail!("{self} is a 32-bit program: its memory cannot be managed");
        }
        for kind in ["pid", "mnt"] {
            let ns = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/{kind}")).ok();
            if ns(&pid.to_string()) != ns("self") {
                bail!(
                    "{self} is in a container ({kind} namespace) of its own: start hugeswap in that"
                );
            }
        }
        let pinned = field("VmPin:").trim_start_matches('0').trim_start();
        if !pinned.is_empty() && pinned != "kB" {
            bail!("{self} has memory that devices use ({pinned}): it has to stay where it is");
        }
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .with_context(|| format!("{self} may not be looked at by this user"))?;
        for fd in fds.flatten() {
            let to = std::fs::read_link(fd.path()).unwrap_or_default();
            let to = to.to_string_lossy();
            if to.contains("[io_uring]") || to.contains("[userfaultfd]") {
                bail!(
                    "{self} uses {to}, by which the kernel knows its memory by address: start it by `hugeswap run`"
                );
            }
        }
        if maps
            .lines()
            .any(|l| l.ends_with("/[aio] (deleted)") || l.ends_with("[aio]"))
        {
            bail!(
                "{self} uses asynchronous I/O of the kernel, which knows its memory by address: start it by `hugeswap run`"
            );
        }
        Ok(())
    }

    /// Its mappings.
    pub fn mappings(&self) -> Result<Vec<Mapping>> {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps", self.pid));
        Ok(ranges::parse(&text.with_context(|| self.gone())?))
    }

    /// Its mappings as they are now, of which those are plain of which nothing else was known: see
    /// [`ranges::as_known`]. (To read what the kernel knows of each takes long for a large program.)
    pub fn mappings_as_of(&self, known: &[Mapping]) -> Result<Vec<Mapping>> {
        let text = std::fs::read_to_string(format!("/proc/{}/maps", self.pid));
        let now = ranges::parse(&text.with_context(|| self.gone())?);
        Ok(ranges::as_known(now, known))
    }

    /// The ids of its threads.
    pub fn threads(&self) -> Result<Vec<i32>> {
        let list = std::fs::read_dir(format!("/proc/{}/task", self.pid));
        let list = list.with_context(|| self.gone())?;
        Ok(list
            .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
            .collect())
    }

    /// What is said of it when it cannot be found any more.
    pub fn gone(&self) -> String {
        format!("{self} has ended")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_counted() {
        let of = |lines: &str| filters(&format!("Name:\tx\n{lines}Threads:\t1\n"));
        assert_eq!(of("Seccomp:\t2\nSeccomp_filters:\t3\n"), 3);
        assert_eq!(of("Seccomp:\t0\nSeccomp_filters:\t0\n"), 0);
        assert_eq!(
            (of("Seccomp:\t2\n"), of("Seccomp:\t0\n"), of("")),
            (1, 0, 0)
        );
    }
}

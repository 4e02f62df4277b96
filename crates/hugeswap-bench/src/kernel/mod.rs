//! The opponent: the same worker in a memory cgroup, with the kernel's own swap.
//!
//! Swap is on only while a worker runs. The keeper process ([`keeper`]) owns what is set up. It undoes
//! everything when its [`Keeper`] is dropped, and also when this process ends without a drop.

pub mod keeper;
mod within;

use crate::child::{self, Ended, TICK};
use crate::error::Usage;
use crate::generate::plan::{Thp, Work};
use crate::generate::worker;
use crate::machine;
use crate::output::Run;
use crate::output::figures::{self, Counters};
use anyhow::{Context, Result, bail};
use hugeswap_support::interrupt::check_interrupted;
use hugeswap_support::proc::chosen;
use keeper::{Answer, Hierarchy, Request, is_on};
use std::fs::read_to_string;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use within::Taker;

/// Events of `/proc/vmstat` that are reported, as differences over a run.
const EVENTS: [&str; 22] = [
    "pswpin",
    "pswpout",
    "thp_swpin",
    "thp_swpout",
    "thp_swpin_fallback",
    "thp_swpout_fallback",
    "swpin_zero",
    "swpout_zero",
    "swap_ra",
    "swap_ra_hit",
    "pgmajfault",
    "pgsteal_direct",
    "pgscan_direct",
    "thp_fault_alloc",
    "thp_fault_fallback",
    "thp_split_page",
    "workingset_refault_anon",
    "workingset_activate_anon",
    "workingset_restore_anon",
    "zswpin",
    "zswpout",
    "zswpwb",
];

/// Whether what leaves memory goes to zswap first.
const ZSWAP_ENABLED: &str = "/sys/module/zswap/parameters/enabled";
/// The kernel's choice of the memory that gets huge pages.
const THP_ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// The client of a keeper process.
pub struct Keeper {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<String>,
}

impl Keeper {
    /// Starts a keeper.
    pub fn start() -> Result<Keeper> {
        let mut child = child::worker("keeper", &())?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .context("cannot start the keeper of what is set up")?;
        let to = child.stdin.take();
        let from = child::lines_of(child.stdout.take());
        Ok(Keeper { child, to, from })
    }

    /// Makes a request and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<String> {
        let line = serde_json::to_string(request)? + "\n";
        let to = self.to.as_mut().context("the keeper has ended")?;
        to.write_all(line.as_bytes())
            .context("the keeper is gone")?;
        loop {
            match self.from.recv_timeout(TICK) {
                Ok(line) => match serde_json::from_str(&line)? {
                    Answer::Done(text) => return Ok(text),
                    Answer::Failed(why) => bail!(why),
                },
                Err(RecvTimeoutError::Timeout) => check_interrupted()?,
                Err(RecvTimeoutError::Disconnected) => bail!("the keeper has ended"),
            }
        }
    }

    /// Has everything undone. An error if something could not be undone.
    pub fn close(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        if self.to.take().is_none() {
            return Ok(());
        }
        let until = Instant::now() + Duration::from_secs(600);
        while Instant::now() < until {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(_) => bail!("not everything that was set up could be undone"),
                None => std::thread::sleep(TICK),
            }
        }
        bail!(
            "process {} is still undoing what was set up: look at /proc/swaps",
            self.child.id()
        )
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Err(e) = self.finish() {
            eprintln!("hugeswap: {e:#}");
        }
    }
}

/// May this user mount and turn swap on?
pub fn permitted() -> bool {
    rustix::process::geteuid().is_root()
}

/// Undoes what a benchmark that was killed, with its keeper, has left of its set-up. Returns what
/// there is to say of it.
pub fn undo_what_is_left() -> Vec<String> {
    if !permitted() {
        return Vec::new();
    }
    keeper::journal::undo_what_is_left(Path::new(keeper::journal::RUN))
}

/// Mounts a private tmpfs for `swap_bytes` of swap, if the machine has that much memory beside the
/// `memory` of a worker.
pub fn ram_device(keeper: &mut Keeper, swap_bytes: u64, memory: u64) -> Result<PathBuf> {
    let wanted = swap_bytes + memory + (1 << 30);
    let there = machine::available_bytes()?;
    if there < wanted {
        let (wanted, there) = (wanted >> 20, there >> 20);
        return Err(Usage(format!("the RAM device needs {wanted} MiB of free memory and {there} MiB are free: give a smaller --region, or --device DIR on a disk")).into());
    }
    Ok(keeper.ask(&Request::Ram { bytes: swap_bytes })?.into())
}

/// Bytes of swap for a region: a quarter more and 64 MiB, so that no engine is short of slots.
pub fn swap_bytes(region: u64) -> u64 {
    (region / 4 * 5 + (64 << 20)).next_multiple_of(2 << 20)
}

/// The device that the kernel swaps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A file on a disk.
    File,
    /// A loop device over a file in memory.
    Loop,
    /// A zram device.
    Zram,
    /// A zram device, whose memory is taken off the limit of the workers.
    Within,
}

impl Medium {
    fn name(self) -> &'static str {
        match self {
            Medium::File => "swap file",
            Medium::Loop => "loop on tmpfs",
            Medium::Zram => "zram",
            Medium::Within => "zram within the limit",
        }
    }
}

/// A swap area, and a cgroup for workers.
pub struct Opponent {
    area: PathBuf,
    cgroup: PathBuf,
    memory: u64,
    medium: Medium,
    /// zswap is before the area.
    zswap: bool,
    /// Other engines write to the area between the kernel's runs.
    shared: bool,
}

impl Opponent {
    /// Makes the area (on a file in `dir`, or in zram) and the cgroup. Swap stays off.
    pub fn new(
        keeper: &mut Keeper,
        dir: &Path,
        region: u64,
        memory: u64,
        medium: Medium,
    ) -> Result<Opponent> {
        let bytes = swap_bytes(region);
        let area = match medium {
            Medium::Zram | Medium::Within => Request::Zram { bytes },
            Medium::File | Medium::Loop => Request::Area {
                dir: dir.to_owned(),
                bytes,
                on_loop: medium == Medium::Loop,
            },
        };
        let area: PathBuf = keeper.ask(&area)?.into();
        // Not every file system takes swap files, and not every root may turn swap on.
        keeper.ask(&Request::On { area: area.clone() })?;
        keeper.ask(&Request::Off { area: area.clone() })?;
        let cgroup = keeper.ask(&Request::Cgroup { memory })?.into();
        let shared = false;
        Ok(Opponent {
            area,
            cgroup,
            memory,
            medium,
            zswap: false,
            shared,
        })
    }

    /// The same with zswap before the area.
    pub fn behind_zswap(self, keeper: &mut Keeper) -> Result<Opponent> {
        let before = choose_zswap(keeper, "Y".into()).context("zswap")?;
        choose_zswap(keeper, before)?;
        Ok(Opponent {
            zswap: true,
            ..self
        })
    }

    /// The same on an existing file, which other engines use in turn.
    pub fn on_file(keeper: &mut Keeper, file: &Path, memory: u64) -> Result<Opponent> {
        Ok(Opponent {
            area: file.to_owned(),
            cgroup: keeper.ask(&Request::Cgroup { memory })?.into(),
            memory,
            medium: Medium::File,
            zswap: false,
            shared: true,
        })
    }

    /// An error if the area is on, which it may be during a run only.
    pub fn check_off(&self) -> Result<()> {
        if is_on(&self.area) {
            bail!(
                "swap on {} is on after the run: look at /proc/swaps",
                self.area.display()
            );
        }
        Ok(())
    }

    /// Runs a worker with swap on.
    pub fn run(
        &self,
        keeper: &mut Keeper,
        work: &Work,
        limit: Duration,
        mut on_line: impl FnMut(&str),
    ) -> Result<Run> {
        let huge = Path::new(THP_ENABLED);
        let may = read_to_string(huge).unwrap_or_default();
        if work.thp == Thp::On && chosen(&may) == Some("never") {
            let (file, value) = (huge.to_owned(), "madvise".into());
            keeper.ask(&Request::Choose { file, value })?;
        }
        let work = Work {
            join: Some(self.cgroup.join("cgroup.procs")),
            ..work.clone()
        };
        let thp = if work.thp == Thp::On { "on" } else { "off" };
        let mut run = Run::new("kernel", &work)
            .with("memory_bytes", self.memory)
            .with("thp", thp)
            .with("zswap", self.zswap)
            .with("device", self.medium.name());
        let (ended, counters) = self.swapping(keeper, self.memory, || {
            child::run(&mut worker::command(&work)?, limit, |line| {
                run.take(line, Some(events()))?;
                if line.contains("\"write\"") {
                    run.huge_share = self.huge_share().or(run.huge_share);
                }
                on_line(line);
                Ok(())
            })
        })?;
        run.counters = serde_json::to_value(counters)?;
        run.finish(&ended.context("the kernel's run")?)?;
        Ok(run)
    }

    /// Does some work with swap on. Returns its result, and what was counted meanwhile.
    /// The limit, `memory` bytes, is for what the device takes as well where it is within it.
    fn swapping<T>(
        &self,
        keeper: &mut Keeper,
        memory: u64,
        work: impl FnOnce() -> T,
    ) -> Result<(T, Counters)> {
        let area = || self.area.clone();
        if self.shared {
            keeper.ask(&Request::Format { file: area() })?;
        }
        let zswap = match self.zswap {
            true => Some(choose_zswap(keeper, "Y".into())?),
            false => None,
        };
        keeper.ask(&Request::On { area: area() })?;
        let (before, failures) = (events(), self.limit_failures());
        let taker = match self.medium {
            Medium::Within => Some(Taker::zram(&self.area)),
            _ if self.zswap && Hierarchy::is_v1(&self.cgroup) => Some(Taker::zswap()),
            _ => None,
        };
        let done = match taker {
            Some(taker) => within::limited(&taker, &self.cgroup, memory, work),
            None => work(),
        };
        let mut counters = figures::since(&before, &events());
        if self.zswap {
            count_zswap_as_swap(&mut counters);
        }
        let failures = self.limit_failures().saturating_sub(failures);
        counters.insert("memory_limit_hit".into(), failures);
        // Also after a failure: the other engines may still have turns.
        keeper.ask(&Request::Off { area: area() })?;
        if let Some(before) = zswap {
            choose_zswap(keeper, before)?;
        }
        Ok((done, counters))
    }

    /// Runs a program in the cgroup, with swap on and a limit of `memory` bytes. Returns how it ended, and
    /// what was counted.
    pub fn run_program(
        &self,
        keeper: &mut Keeper,
        (argv, thp): (&[String], Thp),
        memory: u64,
        limit: Duration,
    ) -> Result<(Result<(Ended, u64)>, Counters)> {
        let file = Hierarchy::limit_of(&self.cgroup);
        let value = memory.to_string();
        keeper.ask(&Request::Choose { file, value })?;
        let choose = |keeper: &mut Keeper, value: String| {
            let file = PathBuf::from(THP_ENABLED);
            keeper.ask(&Request::Choose { file, value })
        };
        let value = if thp == Thp::On { "always" } else { "never" };
        let before = choose(keeper, value.into())?;
        let procs = self.cgroup.join("cgroup.procs");
        let mut command = child::worker("exec", &procs)?;
        command.args(argv);
        let done = self.swapping(keeper, memory, || {
            child::digest(&mut command, limit, |_| ())
        });
        // The other engines have their turns with the machine's own setting.
        choose(keeper, before)?;
        done
    }

    /// Share of the cgroup's anonymous memory that is huge now.
    fn huge_share(&self) -> Option<f64> {
        let stat = self.file("memory.stat")?;
        let value = |names: [&str; 2]| {
            let word = |l: &str, i| l.split_whitespace().nth(i).map(str::to_owned);
            let line = stat
                .lines()
                .find(|l| names.iter().any(|n| word(l, 0).as_deref() == Some(n)))?;
            word(line, 1)?.parse::<f64>().ok()
        };
        // Version 1's names, then version 2's.
        let (huge, all) = (value(["rss_huge", "anon_thp"])?, value(["rss", "anon"])?);
        (all > 0.0).then(|| (huge / all).min(1.0))
    }

    /// How often the cgroup met its limit.
    fn limit_failures(&self) -> u64 {
        let one = self
            .file("memory.failcnt")
            .and_then(|t| t.trim().parse().ok());
        let two = || {
            let text = self.file("memory.events")?;
            text.lines()
                .find_map(|l| l.strip_prefix("max "))
                .and_then(|n| n.trim().parse().ok())
        };
        one.or_else(two).unwrap_or(0)
    }

    fn file(&self, name: &str) -> Option<String> {
        read_to_string(self.cgroup.join(name)).ok()
    }
}

/// Whether zswap is on, from now on: "Y" or "N". Returns what was so before.
fn choose_zswap(keeper: &mut Keeper, value: String) -> Result<String> {
    let file = PathBuf::from(ZSWAP_ENABLED);
    keeper.ask(&Request::Choose { file, value })
}

/// What went to zswap and came from there counts as swapped, too, as it does with hugeswap's compressed
/// memory: the kernel's `pswpin` and `pswpout` are of the device alone.
fn count_zswap_as_swap(counters: &mut Counters) {
    let [came, went, written_back] =
        ["zswpin", "zswpout", "zswpwb"].map(|n| counters.get(n).copied().unwrap_or(0));
    *counters.entry("pswpin".into()).or_default() += came;
    let out = counters.entry("pswpout".into()).or_default();
    *out = (*out + went).saturating_sub(written_back);
}

fn events() -> Counters {
    let text = read_to_string("/proc/vmstat").unwrap_or_default();
    let fields = text.lines().filter_map(|l| l.split_once(' '));
    fields
        .filter(|(name, _)| EVENTS.contains(name))
        .filter_map(|(name, n)| Some((name.to_owned(), n.trim().parse().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_in_zswap_are_swapped_once() {
        let counts = [
            ("pswpin", 5),
            ("pswpout", 30),
            ("zswpin", 100),
            ("zswpout", 200),
            ("zswpwb", 20),
        ];
        let mut counters: Counters = counts.map(|(n, v)| (n.to_owned(), v)).into_iter().collect();
        count_zswap_as_swap(&mut counters);
        assert_eq!((counters["pswpin"], counters["pswpout"]), (105, 210));
        let mut none = Counters::default();
        count_zswap_as_swap(&mut none);
        assert_eq!((none["pswpin"], none["pswpout"]), (0, 0));
    }
}

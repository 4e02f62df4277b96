//! The whole program in a limit: the pool's budget follows what the limit leaves beside memory that is
//! not managed.
//!
//! The limits are those of the memory control groups that this process is in, that of `--total`, and the
//! machine's memory ([`Limits`]). A thread of its own ([`follow`]) samples what is in use of each, every
//! 4 to 100 ms: the less room there is, the more often, and at once when the kernel tells of pressure
//! ([`wakers`]). Samples cost less than a hundredth of the time. [`decide`] has the arithmetic.

pub mod decide;
mod follow;
mod tree;
mod wakers;

use super::options::Options;
use crate::text;
use anyhow::{Context, Result, bail};
use decide::Level;
pub use follow::{Follower, Stop};
use hugeswap_engine::pool::{MIN_MEMORY, machine_memory};
use hugeswap_policy::knobs;
use hugeswap_support::{cgroup, proc};
pub use tree::held_by;

/// The word for the limit of the control group.
pub const AUTO: &str = "auto";
/// The smallest `--total`, bytes.
const MIN_TOTAL: u64 = 2 * MIN_MEMORY;

/// What the user asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A budget for managed memory, bytes.
    Memory(u64),
    /// A limit for everything, bytes.
    Total(u64),
    /// The limit that the processes are in anyway.
    Auto,
}

impl Wanted {
    /// What `--memory` and `--total` say.
    pub fn of(options: &Options) -> Result<Wanted> {
        parse(options.memory.as_deref(), options.total.as_deref())
    }
}

/// What `--memory` and `--total` say that are these texts.
pub fn parse(memory: Option<&str>, total: Option<&str>) -> Result<Wanted> {
    match (memory, total) {
        (None | Some(AUTO), None) => Ok(Wanted::Auto),
        (Some(memory), None) => {
            let bytes = knobs::parse_size(memory).context("--memory")?;
            Ok(Wanted::Memory(bytes))
        }
        (None, Some(total)) => {
            let bytes = knobs::parse_size(total).context("--total")?;
            if bytes < MIN_TOTAL {
                bail!(
                    "--total of {} is too small: at least {} MiB (write {1}M)",
                    text::bytes(bytes),
                    MIN_TOTAL >> 20
                );
            }
            if bytes > machine_memory() {
                bail!(
                    "--total of {} is more than this machine has ({}): give less",
                    text::bytes(bytes),
                    text::bytes(machine_memory())
                );
            }
            Ok(Wanted::Total(bytes))
        }
        (Some(_), Some(_)) => bail!(
            "--memory and --total exclude each other: use --total for all memory of the program, --memory for a budget of managed memory only"
        ),
    }
}

/// Where a limit comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A control group.
    Group(cgroup::Group),
    /// `--total`.
    Total,
    /// The machine's memory.
    Machine,
}

impl Source {
    fn whose(&self) -> &'static str {
        match self {
            Source::Group(_) => "the control group",
            Source::Total => "--total",
            Source::Machine => "the machine",
        }
    }
}

/// A limit that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Where it comes from.
    pub source: Source,
    /// Bytes.
    pub bytes: u64,
    /// Bytes that are left free.
    pub reserve: u64,
}

/// The limits of a run, the tightest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits(Vec<Limit>);

impl Limits {
    /// The limits for what was asked for; `None` for a fixed budget.
    pub fn of(wanted: Wanted) -> Option<Limits> {
        Limits::within(wanted, cgroup::limited())
    }

    /// The same for a program that runs already.
    pub fn of_process(wanted: Wanted, pid: i32) -> Option<Limits> {
        Limits::within(wanted, cgroup::limited_of(&pid.to_string()))
    }

    fn within(wanted: Wanted, mut groups: Vec<cgroup::Group>) -> Option<Limits> {
        let machine = machine_memory();
        groups.retain(|g| g.limit < machine);
        match wanted {
            Wanted::Memory(_) => None,
            Wanted::Total(bytes) => Some(Limits::new(groups, Some(bytes), None)),
            Wanted::Auto => Some(Limits::new(groups, None, Some(machine))),
        }
    }

    fn new(groups: Vec<cgroup::Group>, total: Option<u64>, machine: Option<u64>) -> Limits {
        let group = |g: cgroup::Group| Limit {
            bytes: g.limit,
            reserve: decide::reserve_of(g.limit),
            source: Source::Group(g),
        };
        let mut all: Vec<Limit> = groups.into_iter().map(group).collect();
        all.extend(total.map(|bytes| Limit {
            source: Source::Total,
            bytes,
            reserve: decide::reserve_of(bytes),
        }));
        all.extend(machine.map(|bytes| Limit {
            source: Source::Machine,
            bytes,
            reserve: decide::reserve_of_machine(bytes),
        }));
        all.sort_by_key(|l| l.bytes);
        Limits(all)
    }

    /// The tightest limit.
    pub fn tightest(&self) -> &Limit {
        &self.0[0]
    }

    /// The first budget, before anything is managed, and the largest that there may be; bytes. `held`:
    /// what the program has in memory already.
    pub fn first_budget(&self, held: u64) -> (u64, u64) {
        let budget = self.levels(held).map(|level| level.budget(0, 0));
        let ceiling = self
            .tightest()
            .bytes
            .saturating_sub(self.tightest().reserve);
        let ceiling = ceiling.max(MIN_MEMORY);
        (
            budget.min().unwrap_or(0).clamp(MIN_MEMORY, ceiling),
            ceiling,
        )
    }

    /// Free memory below the limit that has the least of it, and what that is of; `held` as above.
    pub fn room(&self, held: u64) -> (u64, &'static str) {
        let rooms = self.levels(held).map(|l| l.room());
        let of = self.0.iter().map(|l| l.source.whose());
        rooms.zip(of).min().unwrap_or_default()
    }

    fn levels(&self, held: u64) -> impl Iterator<Item = Level> + '_ {
        self.0.iter().map(move |l| Level {
            limit: l.bytes,
            held: match &l.source {
                Source::Group(g) => cgroup::Gauge::open(g).map_or(0, |gauge| {
                    let usage = cgroup::Usage {
                        total: gauge.total().unwrap_or(0),
                        droppable: gauge.droppable().unwrap_or(0),
                    };
                    usage.held()
                }),
                Source::Total => held,
                Source::Machine => held_of_machine(l.bytes),
            },
            reserve: l.reserve,
        })
    }

    /// The limit in words.
    pub fn describe(&self) -> String {
        let bytes = text::bytes(self.tightest().bytes);
        match &self.tightest().source {
            Source::Total => format!("{bytes} (--total)"),
            source => format!("{bytes} of {}", source.whose()),
        }
    }

    /// One line where there is no limit but the machine's memory.
    pub fn note(&self) -> Option<String> {
        let is_machine = self.tightest().source == Source::Machine;
        is_machine.then(|| {
            format!(
                "no limit is set for memory (no control group with one, no --memory or --total): the budget follows what the machine has available, {} now",
                text::bytes(self.first_budget(0).0)
            )
        })
    }
}

/// Memory of the machine that is not available, bytes.
fn held_of_machine(memory: u64) -> u64 {
    proc::machine_memory().map_or(0, |(total, available)| {
        // The kernel's figure of the total is a little less than the pages it counts, or the same.
        memory.min(total).saturating_sub(available)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for() {
        assert_eq!(parse(None, None).unwrap(), Wanted::Auto);
        assert_eq!(parse(Some("auto"), None).unwrap(), Wanted::Auto);
        assert_eq!(parse(Some("64M"), None).unwrap(), Wanted::Memory(64 << 20));
        assert_eq!(parse(None, Some("64M")).unwrap(), Wanted::Total(64 << 20));
        let why = |memory, total| parse(memory, total).unwrap_err().to_string();
        assert!(why(Some("64M"), Some("1G")).contains("use --total for"));
        assert!(why(Some("auto"), Some("1G")).contains("exclude each other"));
        assert!(why(None, Some("31M")).contains("at least 32 MiB (write 32M)"));
        assert!(why(None, Some("9000T")).contains("more than this machine has"));
        assert!(why(None, Some("auto")).contains("--total"));
    }

    #[test]
    fn the_tightest_limit_comes_first() {
        let group = |limit| cgroup::Group {
            directory: "/nowhere".into(),
            version: cgroup::Version::Two,
            limit,
        };
        let limits = Limits::new(vec![group(3 << 30), group(1 << 30)], Some(2 << 30), None);
        assert_eq!(limits.tightest().bytes, 1 << 30);
        assert_eq!(limits.describe(), "1.00 GiB of the control group");
        assert_eq!(limits.note(), None);
        let (first, ceiling) = limits.first_budget(0);
        assert_eq!(first, ceiling);
        assert_eq!(ceiling, (1 << 30) - decide::reserve_of(1 << 30));
        // Of a program that runs already.
        let total = Limits::new(vec![], Some(2 << 30), None);
        let first = total.first_budget(1 << 30).0;
        assert_eq!(first, (1 << 30) - decide::reserve_of(2 << 30));
        assert_eq!(total.first_budget(2 << 30).0, MIN_MEMORY);
        assert_eq!(total.room(1 << 30), (1 << 30, "--total"));
        assert_eq!(total.room(3 << 30).0, 0);
        // The one that has the least room need not be the tightest.
        let both = Limits::new(vec![group(1 << 30)], Some(2 << 30), None);
        assert_eq!(both.room((2 << 30) - 5), (5, "--total"));
        let machine = Limits::new(vec![], None, Some(machine_memory()));
        assert!(machine.note().unwrap().contains("no limit is set"));
        assert!(machine.first_budget(0).0 < machine_memory());
    }
}

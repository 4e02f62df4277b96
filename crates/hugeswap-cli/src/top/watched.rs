//! What `hugeswap top` knows of pools: their figures at the last two looks, those of their processes,
//! and how much went to swap and came back in the looks before.

use crate::ctl::{pools, swap};
use crate::stat::sample::{Difference, Sample};
use anyhow::Result;
use hugeswap_engine::health::AreaReport;
use hugeswap_engine::pool::{AreaUsage, Pool, ProcessReport};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// Most looks that are remembered.
pub const MOST_LOOKS: usize = 600;
/// Pools that begin are found within this time.
const FIND_EVERY: Duration = Duration::from_secs(2);

/// The pools that are watched, by the process that made each.
pub struct Pools {
    all: BTreeMap<i32, Watched>,
    /// The one that is shown.
    shown: Option<i32>,
    /// The process by which the user chose a pool. Others are not looked for.
    chosen: Option<i32>,
    found: Instant,
}

impl Pools {
    /// The pool of process `pid`, or all that this user may look at.
    pub fn of(pid: Option<i32>) -> Result<Pools> {
        let found: Vec<Pool> = match pid {
            Some(pid) => vec![pools::of(pid)?],
            None => pools::all().into_values().collect(),
        };
        let all: BTreeMap<_, _> = { found.into_iter() }
            .map(|pool| (pool.maker(), Watched::new(pool)))
            .collect();
        Ok(Pools {
            shown: all.keys().next().copied(),
            all,
            chosen: pid,
            found: Instant::now(),
        })
    }

    /// Reads the figures of all, finds new ones, and forgets those that have ended.
    pub fn look(&mut self) {
        if self.chosen.is_none() && self.found.elapsed() >= FIND_EVERY {
            self.found = Instant::now();
            for (maker, pool) in pools::all() {
                self.all.entry(maker).or_insert_with(|| Watched::new(pool));
            }
        }
        self.all
            .retain(|maker, _| Path::new(&format!("/proc/{maker}")).exists());
        self.all.values_mut().for_each(Watched::look);
        if self
            .shown
            .is_none_or(|shown| !self.all.contains_key(&shown))
        {
            self.shown = self.all.keys().next().copied();
        }
    }

    /// The pool that was chosen is there no more: what to say.
    pub fn ended(&self) -> Option<String> {
        let pid = self.chosen.filter(|_| self.all.is_empty())?;
        Some(format!("the pool of process {pid} has ended"))
    }

    /// The one that is shown.
    pub fn shown(&self) -> Option<&Watched> {
        self.all.get(&self.shown?)
    }

    /// Which it is, from 1 on, and of how many.
    pub fn position(&self) -> (usize, usize) {
        let before = self.all.keys().position(|&k| Some(k) == self.shown);
        (before.map_or(0, |n| n + 1), self.all.len())
    }

    /// Shows the next one, or the one before.
    pub fn turn(&mut self, forwards: bool) {
        let keys: Vec<i32> = self.all.keys().copied().collect();
        let (at, all) = self.position();
        if all > 1 {
            let next = if forwards { at } else { at + all - 2 };
            self.shown = keys.get(next % all).copied();
        }
    }
}

/// A pool.
pub struct Watched {
    pub pool: Pool,
    pub command: String,
    pub now: Sample,
    before: Option<Sample>,
    pub processes: Vec<Process>,
    /// Swap areas, if they are on devices.
    pub areas: Vec<Area>,
    reports: HashMap<i32, ProcessReport>,
    /// Bytes each second that came in and went out, the newest last.
    pub history: VecDeque<(u64, u64)>,
}

/// A process of a pool; sizes in bytes.
#[derive(Clone, Debug, Default)]
pub struct Process {
    pub pid: i32,
    /// Its command line, without the directory of the program.
    pub command: String,
    /// Managed memory in use.
    pub in_memory: u64,
    /// Of that, what is the kernel's.
    pub of_kernel: u64,
    /// About what it has in swap.
    pub swapped: u64,
    /// Bytes each second.
    pub comes: u64,
    /// Bytes each second.
    pub goes: u64,
    /// Faults each second that read swap.
    pub major: f64,
    /// How many of its threads were in faults at a time.
    pub in_faults: f64,
}

/// A swap area; sizes in bytes.
#[derive(Clone, Debug, Default)]
pub struct Area {
    pub index: usize,
    /// What it is called.
    pub place: String,
    pub size: u64,
    pub used: u64,
    /// Bytes each second that are read from it.
    pub comes: u64,
    /// Bytes each second that are written to it.
    pub goes: u64,
    /// Reads each second.
    pub reads: f64,
    /// The 99th percentile of all reads so far, nanoseconds.
    pub p99_ns: u64,
}

impl Watched {
    fn new(pool: Pool) -> Watched {
        let now = Sample::of(&pool);
        let mut new = Watched {
            command: pools::command_of(now.maker),
            now,
            before: None,
            processes: Vec::new(),
            areas: Vec::new(),
            reports: HashMap::new(),
            history: VecDeque::new(),
            pool,
        };
        new.look_at_processes(None);
        new
    }

    fn look(&mut self) {
        let before = std::mem::replace(&mut self.now, Sample::of(&self.pool));
        self.before = Some(before);
        let seconds = self.difference().map(|d| {
            let rate = |c| (d.bytes_of(c) as f64 / d.seconds()) as u64;
            (d.seconds(), (rate(Counter::PswpIn), rate(Counter::PswpOut)))
        });
        if let Some((_, rates)) = seconds {
            self.history.push_back(rates);
            if self.history.len() > MOST_LOOKS {
                self.history.pop_front();
            }
        }
        self.look_at_processes(seconds.map(|(seconds, _)| seconds));
        self.look_at_areas();
    }

    fn look_at_areas(&mut self) {
        let difference = self.difference();
        let area = |a: &AreaUsage| {
            // (Another area may have this number since.)
            let of = |s: &Sample| s.totals.areas.iter().find(|r| r.index == a.index).cloned();
            let now = difference.as_ref().and_then(|d| of(d.now));
            let before = difference.as_ref().and_then(|d| of(d.before));
            let rate = |figure: fn(&AreaReport) -> u64| match (&difference, &before, &now) {
                (Some(d), Some(before), Some(now)) => {
                    figure(now).saturating_sub(figure(before)) as f64 / d.seconds()
                }
                _ => 0.0,
            };
            Area {
                index: a.index,
                place: swap::place_of(&self.pool, a),
                size: a.usage.clusters * UNIT_BYTES,
                used: a.usage.used_bytes(),
                comes: rate(|a| a.read_bytes) as u64,
                goes: rate(|a| a.written_bytes) as u64,
                reads: rate(|a| a.reads.count),
                p99_ns: now.as_ref().map_or(0, |a| a.reads.p99_ns),
            }
        };
        self.areas = match self.now.no_device {
            true => Vec::new(),
            false => self.pool.area_usage().iter().map(area).collect(),
        };
    }

    /// What was done between the last two looks.
    pub fn difference(&self) -> Option<Difference<'_>> {
        let before = self.before.as_ref()?;
        Some(Difference {
            before,
            now: &self.now,
        })
    }

    fn look_at_processes(&mut self, seconds: Option<f64>) {
        let last = std::mem::take(&mut self.reports);
        let known: HashMap<i32, String> = { self.processes.drain(..) }
            .map(|p| (p.pid, p.command))
            .collect();
        for now in self.pool.processes() {
            let before = last.get(&now.pid).copied().unwrap_or(now);
            let rate = |of: fn(&ProcessReport) -> u64| {
                let done = of(&now).saturating_sub(of(&before));
                seconds.map_or(0.0, |s| done as f64 / s)
            };
            let bytes = |of| (rate(of) * PAGE_BYTES as f64) as u64;
            self.processes.push(Process {
                pid: now.pid,
                // (It may become another program.)
                command: match pools::short_command_of(now.pid) {
                    line if line.is_empty() => known.get(&now.pid).cloned().unwrap_or_default(),
                    line => line,
                },
                in_memory: now.resident_bytes,
                of_kernel: now.foreign_bytes,
                swapped: now.swapped_bytes,
                comes: bytes(|r| r.pages_in),
                goes: bytes(|r| r.pages_out),
                major: rate(|r| r.major_faults),
                in_faults: rate(|r| r.fault_ns) / 1e9,
            });
            self.reports.insert(now.pid, now);
        }
    }
}

//! The work of a worker: JSON on its command line.

use super::pattern::Pattern;
use super::steps::Program;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;

/// Advice on huge pages that a task gives for its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Thp {
    /// None.
    #[default]
    Unadvised,
    /// MADV_HUGEPAGE.
    On,
    /// MADV_NOHUGEPAGE.
    Off,
}

/// The work of one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Work {
    /// Bytes of memory, all tasks together.
    pub region: u64,
    /// Processes.
    pub tasks: u32,
    /// Threads of each process.
    pub threads: u32,
    /// Times all memory is written.
    pub rounds: u32,
    /// Times all memory is read after that.
    pub read_rounds: u32,
    /// Random reads of one word, all tasks together.
    pub random_reads: u64,
    /// Phases after that, one after the other.
    pub phases: Vec<Phase>,
    /// At the end one huge page in so many is verified: 1 verifies all, 0 none. Reads verify what
    /// they read in any case.
    pub verify_one_in: u32,
    /// Memory compresses so many times, about; 1: not at all.
    pub compressible: u32,
    /// Advice on huge pages.
    pub thp: Thp,
    /// The part of the memory that the advice is for.
    pub thp_part: Part,
    /// The `cgroup.procs` file of a group to enter before memory is mapped.
    pub join: Option<PathBuf>,
    /// The tasks share their memory. Where there is no pool it is this file.
    pub shared: Option<PathBuf>,
    /// Index of a task.
    pub task: u32,
}

impl Default for Work {
    /// One thread that does nothing with no memory.
    fn default() -> Work {
        Work {
            region: 0,
            tasks: 1,
            threads: 1,
            rounds: 0,
            read_rounds: 0,
            random_reads: 0,
            phases: Vec::new(),
            verify_one_in: 0,
            compressible: 1,
            thp: Thp::default(),
            thp_part: Part::All,
            join: None,
            shared: None,
            task: 0,
        }
    }
}

/// What groups of threads do at the same time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// Its name in the output.
    pub name: String,
    /// Its longest duration. A phase ends as soon as each group that ends by itself
    /// ([`Doing::ends`]) has ended.
    pub seconds: Option<f64>,
    /// Seconds between points of the time series.
    pub every_s: f64,
    /// The groups.
    pub groups: Vec<Group>,
}

impl Phase {
    /// A phase with a point of the time series each second.
    pub fn new(name: &str, seconds: Option<f64>, groups: Vec<Group>) -> Phase {
        let (name, every_s) = (name.to_owned(), 1.0);
        Phase {
            name,
            seconds,
            every_s,
            groups,
        }
    }

    /// A phase of one group, over all memory.
    pub fn of_one(name: &str, seconds: Option<f64>, doing: Doing, threads: u32) -> Phase {
        Phase::new(name, seconds, vec![Group::new(doing, threads, Part::All)])
    }
}

/// Threads that do the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Group {
    /// What they do.
    pub doing: Doing,
    /// Threads in each task.
    pub threads: u32,
    /// The part of the memory that they use.
    pub part: Part,
}

impl Group {
    /// A group.
    pub fn new(doing: Doing, threads: u32, part: Part) -> Group {
        Group {
            doing,
            threads,
            part,
        }
    }
}

/// What a thread does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Doing {
    /// Reads or writes all words of its piece from start to end, again and again.
    Stream { write: bool },
    /// Reads or changes one word of a page, anywhere in its group's part, again and again.
    Random {
        pattern: Pattern,
        write: bool,
        /// Accesses of all tasks and threads together; `None` has no end.
        accesses: Option<u64>,
    },
    /// Reads one word of a page, anywhere in its group's part, and notes how long each read took.
    Timed { pattern: Pattern },
    /// Maps memory of the size of its piece, writes all words of it, and unmaps it, again and again.
    Fresh,
    /// Runs a program once, on all of the memory, in one thread.
    Program(Program),
    /// Writes its piece once, from start to end.
    Fill,
    /// The same for memory that was not touched before; notes how long the touch of each absent page
    /// took.
    Touch,
    /// Maps memory, touches every page, and unmaps it, again and again; notes the time for a MiB.
    Map(NewMap),
    /// Nothing.
    Rest,
}

impl Doing {
    /// Does it end by itself?
    pub fn ends(self) -> bool {
        match self {
            Doing::Random { accesses, .. } => accesses.is_some(),
            Doing::Program(_) | Doing::Fill | Doing::Touch => true,
            Doing::Stream { .. } | Doing::Timed { .. } => false,
            Doing::Fresh | Doing::Map(_) | Doing::Rest => false,
        }
    }

    /// Is the memory of its part that is present counted at the end?
    pub fn counts_present(self) -> bool {
        matches!(self, Doing::Fill | Doing::Touch | Doing::Rest)
    }
}

/// The mapping of [`Doing::Map`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMap {
    /// Its size.
    pub bytes: usize,
    /// Microseconds between one mapping and the next.
    pub pause_us: u64,
    /// Whether it is advised MADV_HUGEPAGE.
    pub advise: bool,
}

/// A part of a task's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    #[default]
    All,
    FirstHalf,
    SecondHalf,
    /// So many units of 2 MiB from the start.
    First(usize),
    /// All but those.
    AllBut(usize),
}

impl Part {
    /// The units of the part, of `all` units.
    pub fn units(self, all: usize) -> Range<usize> {
        match self {
            Part::All => 0..all,
            Part::FirstHalf => 0..all / 2,
            Part::SecondHalf => all / 2..all,
            Part::First(n) => 0..n.min(all),
            Part::AllBut(n) => n.min(all)..all,
        }
    }
}

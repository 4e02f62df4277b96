//! The board on which the driver and its processes tell each other, in plain shared memory of the
//! kernel: jobs, the changes in progress, and the models.

use crate::util::{UNIT, value};
use hugeswap_sys::futex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64};

/// The number of places for processes.
pub const PLACES: usize = 12;
pub const REGIONS: usize = 2;
/// Most units of a region.
pub const UNITS: usize = 6;
pub const WORDS: usize = UNIT / 8;

/// A job of a process; the numbers are its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Job {
    /// The first process makes another one: place.
    Spawn,
    /// The process joins the pool: whose ticket it is (pid, fd).
    Join,
    /// Makes a region: region, bytes.
    Make,
    Attach,
    Detach,
    /// Words get new values: region, first, number, generation.
    Write,
    /// Words are compared with the model: region, first, number.
    Compare,
    /// Becomes zero: region, first word, number.
    Discard,
    /// Whole units leave memory: region, first, number. The job ends when they have left.
    PageOut,

    /// The process tells the state of each unit: region.
    Tell,
    /// Forks: place of the child.
    Fork,
    /// The process works on its share of a region: region, share, of how many, seed, steps.
    Churn,
    /// Each word that a killed process was changing is old or new, and the model is told which:
    /// place.
    Settle,
    /// The process writes new values to its private memory and compares them.
    Own,
    /// The process checks that nothing is left of regions that it has given up.
    CountDescriptors,
    Leave,
}

/// One process.
#[repr(C)]
pub struct Place {
    /// Its process id; 0 if there is none.
    pub pid: AtomicI32,
    job: AtomicU32,
    args: [AtomicU64; 5],
    asked: AtomicU32,
    done: AtomicU32,
    /// The states of its units, as it told them.
    pub states: [AtomicU8; UNITS],
    /// The words that it is changing: 0: none, 1: to values, 2: to zero.
    changing: AtomicU32,
    region: AtomicU32,
    first: AtomicU64,
    number: AtomicU64,
    generation: AtomicU64,
}

#[repr(C)]
pub struct Board {
    pub places: [Place; PLACES],
    /// The process id of the driver.
    pub driver: AtomicI32,
    /// The model of the words of each region.
    pub models: [[AtomicU64; UNITS * WORDS]; REGIONS],
}

impl Board {
    pub fn new() -> &'static Board {
        // SAFETY: a new mapping, never unmapped.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Board>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        // SAFETY: zeros, which are valid atomics, and long enough.
        let board = unsafe { &*at.cast::<Board>() };
        board.driver.store(std::process::id() as i32, Relaxed);
        board
    }

    pub fn model(&self, region: usize) -> &[AtomicU64] {
        &self.models[region]
    }
}

/// Words of a region that are being changed, and their new content.
pub struct Change {
    pub region: usize,
    pub first: usize,
    pub number: usize,
    /// 0: zero.
    pub generation: u64,
}

impl Change {
    pub fn new_value(&self, word: usize) -> u64 {
        match self.generation {
            0 => 0,
            g => value(word, g),
        }
    }
}

impl Place {
    /// Gives a job to the process at this place, which has none.
    pub fn ask(&self, job: Job, args: &[u64]) {
        self.job.store(job as u32, Relaxed);
        for (i, to) in self.args.iter().enumerate() {
            to.store(args.get(i).copied().unwrap_or(0), Relaxed);
        }
        self.asked.fetch_add(1, Release);
        futex::wake(&self.asked, 1, true);
    }

    /// Is the job done?
    pub fn is_idle(&self) -> bool {
        self.done.load(Acquire) == self.asked.load(Relaxed)
    }

    /// Prepares the place for a new process.
    pub fn reset(&self) {
        self.pid.store(0, Relaxed);
        self.changing.store(0, Relaxed);
        self.done.store(self.asked.load(Relaxed), Release);
    }

    /// For the process: its next job, or `None` if there is none now.
    pub fn next(&self) -> Option<(Job, [u64; 5])> {
        let done = self.done.load(Relaxed);
        futex::wait(&self.asked, done, Some(100_000_000), true);
        if self.asked.load(Acquire) == done {
            return None;
        }
        // SAFETY: `ask` wrote a job.
        let job = unsafe { std::mem::transmute::<u32, Job>(self.job.load(Relaxed)) };
        Some((
            job,
            [0, 1, 2, 3, 4].map(|i: usize| self.args[i].load(Relaxed)),
        ))
    }

    pub fn end(&self) {
        self.done.fetch_add(1, Release);
    }

    /// From here until [`Place::changed`] the words may be old or new.
    pub fn change(&self, c: &Change) {
        self.region.store(c.region as u32, Relaxed);
        self.first.store(c.first as u64, Relaxed);
        self.number.store(c.number as u64, Relaxed);
        self.generation.store(c.generation, Relaxed);
        self.changing.store(1, Release);
    }

    /// The region's words are new; now the model's words follow.
    pub fn changed(&self, board: &Board, c: &Change) {
        let model = board.model(c.region);
        for (i, word) in model.iter().enumerate().skip(c.first).take(c.number) {
            word.store(c.new_value(i), Relaxed);
        }
        self.changing.store(0, Release);
    }

    /// The words that it was changing when it was killed.
    pub fn was_changing(&self) -> Option<Change> {
        (self.changing.load(Acquire) != 0).then(|| Change {
            region: self.region.load(Relaxed) as usize,
            first: self.first.load(Relaxed) as usize,
            number: self.number.load(Relaxed) as usize,
            generation: self.generation.load(Relaxed),
        })
    }

    pub fn settled(&self) {
        self.changing.store(0, Release);
    }
}

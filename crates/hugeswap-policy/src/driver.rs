//! The whole policy on a machine of counters that replays a trace of accesses, for tests and
//! simulation.
//!
//! [`Machine`] has frames, units, swap clusters and slow devices, but no memory: the content of a
//! unit is a version number that each write increases. It drives the modules of this crate through
//! the decisions that an engine takes on real faults, reports each to a listener, and keeps a truth
//! beside them that [`Machine::check`] compares.
//!
//! Promises: the same configuration and trace give the same decisions. A step allocates nothing. A
//! refused access changes no content.
//!
//! Time is counted in accesses: an I/O in the background takes [`Config::io_steps`] of them.
//!
//! How a unit leaves memory: it comes off the end of the LRU list. If swap does not hold its bytes,
//! it is write-protected and written in place, while the program goes on using it. Once clean it is
//! *watched* (mapped without access): a touch saves it, and a unit that is not touched is dropped
//! when its frame is needed.

mod check;
pub mod offline;
mod reclaim;

use crate::UNIT_PAGES;
use crate::counters::{Counter, FaultClass};
use crate::swapin::readahead::Streams;
use crate::thp_swap::clusters;
use crate::unit::step::{Event, step};
use crate::unit::{Kind, LOCKED, Place, WATCHED, WRITABLE, WRITEBACK, Word};
use crate::watermark::Watermarks;
use crate::workingset::lru::{Lru, Reclaim};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;

/// The process record of the machine.
const OWNER: u16 = 1;
/// Number of units isolated at a time.
const BATCH: usize = 32;
/// Content of a cluster whose write-out was overtaken by a write: neither version.
const TORN: u64 = u64::MAX;

/// The size of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of units of managed memory, in one mapping.
    pub units: u32,
    /// Number of frames: the most units in memory at once.
    pub budget: u32,
    /// Number of swap clusters, of one unit each.
    pub clusters: u32,
    /// Largest readahead window, in units.
    pub readahead_max: u32,
    /// Number of accesses that a background I/O takes; 0: it is done at once.
    pub io_steps: u64,
}

/// One step of a trace; the number is the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The program reads.
    Read(u32),
    /// The program writes.
    Write(u32),
    /// The program discards the content (`MADV_DONTNEED`): zeros from now on.
    Discard(u32),
    /// The unit is brought in, writable, and pinned for a system call.
    Pin(u32),
    /// One pin less.
    Unpin(u32),
}

/// A decision of the policy; units and clusters by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// An access faulted.
    Fault(u32, FaultClass),
    /// The faulting thread reads a unit from a cluster.
    SwapIn(u32, usize),
    /// A read of a unit from a cluster begins in the background.
    ReadAhead(u32, usize),
    /// A unit is mapped before it is touched, because its neighbours were.
    Around(u32),
    /// A unit is write-protected, and a write to a cluster begins.
    WriteOut(u32, usize),
    /// A write overtook the write-out: the cluster is not clean.
    Redirtied(u32),
    /// A unit loses its access; the next touch counts as a reference.
    Watch(u32),
    /// The frame of a unit is taken; swap holds its bytes.
    Drop(u32),
    /// The frame of a unit is taken; it was all zeros.
    DropZero(u32),
    /// A fault waits for memory.
    Stall,
}

/// Why an access was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The number is beyond the managed units.
    NotManaged,
    /// Every frame is pinned, or holds bytes for which there is no swap cluster.
    OutOfMemory,
    /// The unit has as many pins as a word can count, or (for an unpin) none.
    Pins,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refused::NotManaged => "the unit is not managed: use a number below Config::units",
            Refused::OutOfMemory => {
                "no frame can be freed: give the machine more clusters or fewer pins"
            }
            Refused::Pins => {
                "the unit cannot be pinned or unpinned once more: pair pins and unpins"
            }
        })
    }
}

impl std::error::Error for Refused {}

/// A read or write in the background.
#[derive(Clone, Copy)]
struct Io {
    unit: u32,
    cluster: usize,
    /// The content of the unit when the write began.
    version: u64,
    /// The step at which it is done.
    due: u64,
}

/// Receives the decisions.
type Sink<'a> = &'a mut dyn FnMut(Decision);

/// Frames, units, clusters and devices under the policy `R`; see the module.
pub struct Machine<R = Lru> {
    config: Config,
    marks: Watermarks,
    words: Vec<Word>,
    active: R,
    watched: Lru,
    streams: Streams,
    map: Vec<AtomicU32>,
    hint: usize,
    clusters_used: u32,
    frames_used: u32,
    reads: VecDeque<Io>,
    writes: VecDeque<Io>,
    step: u64,
    counters: [u64; Counter::COUNT],
    faults: [u64; FaultClass::COUNT],
    /// Content of each unit as the program would see it; 0 is zeros.
    truth: Vec<u64>,
    /// Content of the frame of each unit.
    memory: Vec<u64>,
    /// Content of each cluster.
    stored: Vec<u64>,
}

impl Machine<Lru> {
    /// A machine that reclaims by plain LRU.
    ///
    /// # Panics
    /// If there are no units or no frames.
    pub fn new(config: Config) -> Machine<Lru> {
        Machine::with_policy(config, Lru::new(config.units))
    }
}

impl<R: Reclaim> Machine<R> {
    /// A machine that reclaims in the order of `policy`, which has room for `config.units`.
    ///
    /// # Panics
    /// If there are no units or no frames.
    pub fn with_policy(config: Config, policy: R) -> Machine<R> {
        assert!(
            config.units > 0 && config.budget > 0,
            "a machine needs units and frames"
        );
        let units = config.units as usize;
        Machine {
            config,
            marks: Watermarks::for_budget(config.budget.into()),
            words: vec![Word::none(); units],
            active: policy,
            watched: Lru::new(config.units),
            streams: Streams::new(config.readahead_max),
            map: (0..config.clusters).map(|_| AtomicU32::new(0)).collect(),
            hint: 0,
            clusters_used: 0,
            frames_used: 0,
            reads: VecDeque::with_capacity(config.budget as usize),
            writes: VecDeque::with_capacity(config.budget as usize),
            step: 0,
            counters: [0; Counter::COUNT],
            faults: [0; FaultClass::COUNT],
            truth: vec![0; units],
            memory: vec![0; units],
            stored: vec![0; config.clusters as usize],
        }
    }

    /// Plays one access, and passes the decisions to `sink` in order. Returns the class of the
    /// fault that was taken, if any.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn step(&mut self, access: Access, sink: Sink<'_>) -> Result<Option<FaultClass>, Refused> {
        let (Access::Read(u)
        | Access::Write(u)
        | Access::Discard(u)
        | Access::Pin(u)
        | Access::Unpin(u)) = access;
        if u >= self.config.units {
            return Err(Refused::NotManaged);
        }
        self.step += 1;
        while self.reads.front().is_some_and(|io| io.due <= self.step) {
            self.finish_read();
        }
        while self.writes.front().is_some_and(|io| io.due <= self.step) {
            self.finish_write(sink);
        }
        let done = match access {
            Access::Read(u) => self.touch(u, false, sink),
            Access::Write(u) => self.touch(u, true, sink).inspect(|_| {
                self.truth[u as usize] += 1;
                self.memory[u as usize] = self.truth[u as usize];
            }),
            Access::Pin(u) if self.words[u as usize].pinned().is_none() => Err(Refused::Pins),
            Access::Pin(u) => self.touch(u, true, sink).inspect(|_| {
                let w = &mut self.words[u as usize];
                *w = w.pinned().unwrap_or(*w);
                self.counters[Counter::Pinned as usize] += 1;
            }),
            Access::Unpin(u) => match self.words[u as usize].unpinned() {
                Some(w) => {
                    self.words[u as usize] = w;
                    Ok(None)
                }
                None => Err(Refused::Pins),
            },
            Access::Discard(u) => {
                self.discard(u, sink);
                Ok(None)
            }
        };
        if self.available() * UNIT_PAGES < self.marks.low {
            self.kswapd(sink);
        }
        done
    }

    /// How often an event happened.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// How many faults of a class were taken.
    pub fn faults(&self, class: FaultClass) -> u64 {
        self.faults[class as usize]
    }

    /// Number of frames in use.
    pub fn resident(&self) -> u32 {
        self.frames_used
    }

    /// State word of a unit.
    pub fn word(&self, unit: u32) -> Word {
        self.words[unit as usize]
    }

    /// Number of frames that a fault can have at once.
    fn available(&self) -> u64 {
        u64::from(self.config.budget - self.frames_used) + self.watched.len() as u64
    }

    fn count(&mut self, counter: Counter, n: u64) {
        self.counters[counter as usize] += n;
    }

    fn fault(&mut self, unit: u32, class: FaultClass, sink: Sink<'_>) -> FaultClass {
        self.faults[class as usize] += 1;
        sink(Decision::Fault(unit, class));
        class
    }

    /// Makes a unit accessible, as the fault path does.
    fn touch(
        &mut self,
        u: u32,
        write: bool,
        sink: Sink<'_>,
    ) -> Result<Option<FaultClass>, Refused> {
        let i = u as usize;
        let waited = self.words[i].has(LOCKED);
        while self.words[i].has(LOCKED) {
            self.finish_read();
        }
        let w = self.words[i];
        match w.kind() {
            Kind::Present if !w.has(WATCHED) && (w.has(WRITABLE) || !write) => Ok(None),
            Kind::Present => {
                let class = self.fault(u, FaultClass::Soft, sink);
                self.watched.remove(u);
                if !w.has(WRITEBACK) {
                    self.active.reference(u);
                }
                self.map_present(u, write);
                Ok(Some(class))
            }
            Kind::Cached => {
                let class = if waited {
                    FaultClass::Wait
                } else {
                    FaultClass::Soft
                };
                let class = self.fault(u, class, sink);
                self.active.reference(u);
                self.happens(u, Event::Arrived { writable: false });
                self.map_present(u, write);
                self.read_ahead(u, true, sink);
                Ok(Some(class))
            }
            Kind::Swapped => {
                if !self.take_frame(sink) {
                    return Err(Refused::OutOfMemory);
                }
                let class = self.fault(u, FaultClass::Major, sink);
                let cluster = self.cluster(u);
                sink(Decision::SwapIn(u, cluster));
                self.memory[i] = self.stored[cluster];
                self.count(Counter::PswpIn, UNIT_PAGES);
                self.count(Counter::ThpSwpIn, 1);
                self.happens(u, Event::Arrived { writable: false });
                self.active.insert(u);
                self.map_present(u, write);
                self.read_ahead(u, false, sink);
                Ok(Some(class))
            }
            Kind::None => {
                if !self.take_frame(sink) {
                    return Err(Refused::OutOfMemory);
                }
                let class = self.fault(u, FaultClass::FirstTouch, sink);
                let around = self
                    .streams
                    .on_first_touch(u.into(), self.config.units.into());
                for next in u..u + around {
                    if next != u {
                        // Units that were not asked for get idle frames only.
                        let spare = self.config.budget - self.frames_used;
                        let new = self.words[next as usize].kind() == Kind::None;
                        if !new || u64::from(spare) * UNIT_PAGES <= self.marks.low {
                            break;
                        }
                        self.frames_used += 1;
                        sink(Decision::Around(next));
                    }
                    self.memory[next as usize] = 0;
                    self.happens(next, Event::FirstTouched { writable: false });
                    self.active.insert(next);
                }
                self.map_present(u, write);
                Ok(Some(class))
            }
            Kind::Free | Kind::Foreign | Kind::Poisoned | Kind::Base => Err(Refused::NotManaged),
        }
    }

    /// Gives a present unit the access that was asked for.
    fn map_present(&mut self, u: u32, write: bool) {
        let was = self.words[u as usize];
        self.happens(u, Event::Touched { write });
        // A cluster is kept for the next write-out unless swap is half full.
        let full = 2 * self.clusters_used > self.config.clusters;
        if write && !was.has(WRITABLE) && !was.has(WRITEBACK) && full {
            self.release(was.place());
            self.happens(u, Event::Placed(Place::Nothing));
        }
    }

    /// Takes a step of the unit's life, and carries its effects out. (What the lists are told here
    /// is the machine's, which sees more.)
    ///
    /// # Panics
    /// If this cannot happen to the unit: the machine contradicts itself.
    fn happens(&mut self, u: u32, event: Event) {
        let step = match step(self.words[u as usize], event) {
            Ok(step) => step,
            Err(illegal) => panic!("unit {u}: {illegal}"),
        };
        self.words[u as usize] = step.word;
        for &counter in step.effects.counts {
            self.count(counter, 1);
        }
        self.release(step.effects.frees);
    }

    fn cluster(&self, u: u32) -> usize {
        self.words[u as usize]
            .cluster()
            .expect("swap holds the unit") as usize
    }

    fn release(&mut self, place: Place) {
        if let Place::Cluster(cluster) = place {
            clusters::release(&self.map, cluster as usize, OWNER);
            self.clusters_used -= 1;
        }
    }

    fn read_ahead(&mut self, u: u32, cached: bool, sink: Sink<'_>) {
        let window = self
            .streams
            .on_fault(u.into(), self.config.units.into(), cached);
        for next in window.units(u.into()) {
            let n = next as usize;
            let w = self.words[n];
            if w.kind() != Kind::Swapped || w.has(LOCKED) {
                continue;
            }
            if self.config.budget == self.frames_used && !self.drop_watched(sink) {
                self.streams.on_cut_short(next);
                break;
            }
            self.frames_used += 1;
            let (unit, cluster) = (next as u32, self.cluster(next as u32));
            sink(Decision::ReadAhead(unit, cluster));
            self.count(Counter::SwapRa, 1);
            self.words[n] = w.set(LOCKED);
            let due = self.step + self.config.io_steps;
            self.reads.push_back(Io {
                unit,
                cluster,
                version: 0,
                due,
            });
        }
        while self.config.io_steps == 0 && !self.reads.is_empty() {
            self.finish_read();
        }
    }
}

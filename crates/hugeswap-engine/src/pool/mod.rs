//! The pool: one budget, one set of swap areas and one set of counters for every process that joins
//! it, in a memory file of fixed layout that each of them maps (the *segment*, [`layout`]).
//!
//! * [`segment`], [`records`], [`holder`]: the segment, the records of processes, and what happens
//!   when one dies
//! * [`budget`], [`charge`]: the budget, memory charged against it, and memory promised
//! * [`areas`], [`joining`], [`swap`], [`extents`], [`probe`], [`room`]: swap areas
//! * [`control`], [`looking`], [`scrub`], [`losses`], [`report`]: what is asked and told from
//!   outside
//! * [`recording`]: what happens, for a process that records it
//! * [`shared`], [`shared_table`]: shared regions, and the table of them
//! * [`zswap`], [`packs`]: compressed memory, and what is compressed on devices
//! * [`secret`]: the key that swap is encrypted with
//!
//! Concurrency: everything in the segment is an atomic. What a process holds is in its own record,
//! and a total is the sum over the records of live processes. So a process that dies at any instant
//! takes nothing with it: the first process that finds it dead (`reap`) frees its record and its
//! swap slots.

mod areas;
pub mod budget;
mod charge;
mod config;
mod control;
mod extents;
pub mod holder;
mod joining;
pub mod layout;
pub mod looking;
pub mod losses;
mod member;
mod offsets;
pub(crate) mod packs;
pub mod probe;
pub mod recording;
mod records;
mod report;
mod room;
mod scrub;
pub(crate) mod secret;
mod segment;
pub mod shared;
mod shared_table;
pub mod swap;
mod zswap;

pub use areas::{AreaUsage, JoinedArea};
pub use config::{FaultMode, MIN_MEMORY, PoolConfig, PoolError, machine_memory};
pub use control::{NoAnswer, Room};
pub use member::Member;
pub use records::Reservation;
pub use report::{FaultReport, ProcessReport, Report};
pub use room::SOFT_FULL_PERCENT;
pub use scrub::ScrubReport;
pub use segment::SEGMENT_LINK;
pub use swap::{SwapSpec, SwapSpecError, is_memory};
pub use zswap::ZswapUsage;

use crate::checksum::Sums;
use crate::lock::Lock;
use crate::store::seal::{Cipher, Seals};
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::thp_swap::slots::{Clusters, MAP_WORDS};
use hugeswap_policy::thp_swap::{area, clusters};
use hugeswap_policy::{UNIT_BYTES, histogram};
use layout::{Events, Header, MAX_PROCESSES, Record, state};
use offsets::Offsets;
pub use secret::Secret;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A pool, mapped. Shareable between threads; each process holds its own.
pub struct Pool {
    base: usize,
    length: usize,
    offsets: Offsets,
    /// Clusters there is room for.
    capacity: u64,
    /// Frames that compressed memory can have.
    zswap_frames: usize,
    /// The segment's descriptor.
    fd: i32,
    areas: areas::Areas,
    /// Held by a thread that adds or ends areas.
    changing_areas: Lock<()>,
    /// The key of a pool that encrypts, until an engine has taken it; with the maker of the pool
    /// for good.
    secret: Option<Secret>,
}

impl Pool {
    /// The segment's head.
    pub fn header(&self) -> &Header {
        // SAFETY: the segment is mapped for the life of `self`, page-aligned, and holds atomics
        // only.
        unsafe { &*(self.base as *const Header) }
    }

    /// All records, and nobody's ([`layout::NOBODY`]).
    pub fn records(&self) -> &[Record] {
        // SAFETY: as in `header`; `offsets` places so many records there.
        unsafe {
            std::slice::from_raw_parts(
                (self.base + self.offsets.records) as *const Record,
                layout::NOBODY + 1,
            )
        }
    }

    /// Clusters up to where the last area ends or ended. What lies beyond has no memory, and should
    /// not be looked at.
    fn clusters_high(&self) -> usize {
        self.header().clusters_high.load(Acquire).min(self.capacity) as usize
    }

    /// The cluster words ([`hugeswap_policy::thp_swap::clusters`]).
    pub fn cluster_words(&self) -> &[AtomicU32] {
        // SAFETY: as in `header`; `offsets` leaves room for `capacity` words.
        unsafe {
            std::slice::from_raw_parts(
                (self.base + self.offsets.cluster_words) as *const AtomicU32,
                self.clusters_high(),
            )
        }
    }

    /// The clusters as record `me` may split them ([`hugeswap_policy::thp_swap::slots`]).
    pub fn clusters(&self, me: usize) -> Clusters<'_, AtomicU32, AtomicU64> {
        let words = self.cluster_words();
        // SAFETY: as in `header`; `offsets` leaves room for so many words for each cluster.
        let bits = unsafe {
            std::slice::from_raw_parts(
                (self.base + self.offsets.split_maps) as *const AtomicU64,
                words.len() * MAP_WORDS,
            )
        };
        Clusters::new(words, bits, MAP_WORDS, me as u16 + 1)
    }

    /// How swap is used, over all areas.
    pub fn swap_usage(&self) -> clusters::Usage {
        let areas = self.area_usage();
        areas
            .iter()
            .fold(clusters::Usage::default(), |sum, a| sum + a.usage)
    }

    /// The checksums of each cluster's pages.
    pub fn cluster_sums(&self) -> &[Sums] {
        // SAFETY: as in `header`; `offsets` leaves room for `capacity` sums.
        unsafe {
            std::slice::from_raw_parts(
                (self.base + self.offsets.cluster_sums) as *const Sums,
                self.clusters_high(),
            )
        }
    }

    /// The seals of each cluster's pages, in a pool that encrypts.
    pub fn seals(&self) -> &[Seals] {
        // SAFETY: as in `header`; `offsets` leaves room for `capacity` of them.
        unsafe {
            std::slice::from_raw_parts(
                (self.base + self.offsets.seals) as *const Seals,
                self.clusters_high(),
            )
        }
    }

    /// A bit for each of a cluster's slots that is bad ([`crate::swap`]).
    pub(crate) fn bad_map(&self, cluster: u64) -> Option<&[AtomicU64; MAP_WORDS]> {
        let at = self.base + self.offsets.bad_maps + cluster as usize * MAP_WORDS * 8;
        // SAFETY: as in `header`; `offsets` leaves room for `capacity` of them.
        ((cluster as usize) < self.clusters_high()).then(|| unsafe { &*(at as *const _) })
    }

    /// Is what goes to swap encrypted?
    pub fn encrypts(&self) -> bool {
        self.header().key_fd.load(Relaxed) != 0
    }

    /// What encrypts, if that is wanted: for an engine that is about to start. A process that did
    /// not make the pool lets go of the key itself.
    pub(crate) fn take_cipher(&mut self) -> Result<Option<Cipher>, PoolError> {
        let Some(secret) = &self.secret else {
            return Ok(None);
        };
        let cipher = secret.cipher()?;
        if !secret.is_mine() {
            self.secret = None;
        }
        Ok(Some(cipher))
    }

    /// In a forked child: the key itself stays the parent's.
    pub(crate) fn leave_secret(&self) {
        if let Some(s) = &self.secret {
            s.leave();
        }
    }

    /// The segment's descriptor in this process.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// The current value of a setting.
    pub fn knob(&self, k: Knob) -> u64 {
        self.header().knobs[k as usize].load(Relaxed)
    }

    /// Changes a setting, for every process of the pool; `value` is within the setting's bounds.
    /// One that can only be set for a new pool stays as it is.
    pub fn set_knob(&self, k: Knob, value: u64) {
        if k.is_fixed() {
            return;
        }
        self.header().knobs[k as usize].store(value, Relaxed);
    }

    /// The budget in frames.
    pub fn frames(&self) -> u64 {
        self.header().frames.load(Relaxed)
    }

    /// Bytes that may be promised in all: the budget and all swap, as far as there is space for it.
    pub fn capacity_bytes(&self) -> u64 {
        let memory = self.frames().saturating_mul(UNIT_BYTES);
        memory.saturating_add(self.swap_promised())
    }

    /// Live records.
    pub fn live(&self) -> impl Iterator<Item = (usize, &Record)> {
        self.used().filter(|(_, r)| r.state() == state::LIVE)
    }

    /// The processes of the pool, and the frames that each is charged.
    pub fn members(&self) -> HashMap<i32, u64> {
        let live = self.live().map(|(_, r)| (r.pid.load(Relaxed), r));
        live.map(|(pid, r)| (pid, r.charged.load(Relaxed)))
            .collect()
    }

    /// Records that were ever in use.
    fn used(&self) -> impl Iterator<Item = (usize, &Record)> {
        let high = (self.header().records_high.load(Acquire) as usize).min(MAX_PROCESSES);
        self.records()[..high].iter().enumerate()
    }

    /// What transfers of its swap areas took when they were turned on, if that could be measured.
    pub fn measured(&self) -> Option<probe::Measured> {
        let on = self.segment_areas(area::ON);
        let all: Vec<_> = on.filter_map(|a| a.costs.load()).collect();
        probe::mean(&all)
    }

    /// Adds to a counter of record `me`.
    pub fn count(&self, me: usize, c: Counter, n: u64) {
        self.records()[me].events.counters[c as usize].fetch_add(n, Relaxed);
    }

    /// What the advisor was told so far, over the living and the gone: to be compared with an
    /// earlier state.
    pub fn advisor_tally(&self) -> [u64; hugeswap_policy::advisor::WORDS] {
        report::tally(self)
    }

    /// Everything counted so far, over the living and the gone.
    pub fn report(&self) -> Report {
        report::collect(self)
    }

    /// What each living process holds, and has done.
    pub fn processes(&self) -> impl Iterator<Item = ProcessReport> + '_ {
        self.live().map(|(_, r)| report::process(r))
    }
}

/// What the kernel takes to deliver a fault and to return from it, which is not seen from inside.
const DELIVERY_NS: u64 = 3_500;

/// A duration of a fault goes into the histogram of its class.
pub(crate) fn record_fault(events: &Events, class: FaultClass, ns: u64) {
    events.faults[class as usize][histogram::bucket(ns)].fetch_add(1, Relaxed);
    events.fault_ns.fetch_add(ns, Relaxed);
    if matches!(
        class,
        FaultClass::Major | FaultClass::Base | FaultClass::Wait
    ) {
        events.stalled_ns.fetch_add(ns + DELIVERY_NS, Relaxed);
    }
    if events.fault_max_ns[class as usize].load(Relaxed) < ns {
        events.fault_max_ns[class as usize].fetch_max(ns, Relaxed);
    }
}

/// For tests: a new pool with a budget of 64 MiB.
#[cfg(test)]
pub(crate) fn small_pool() -> Pool {
    Pool::create(&PoolConfig {
        memory: 64 << 20,
        swap: vec![SwapSpec::new("/var/tmp")],
        fault_mode: Default::default(),
        settings: vec![],
    })
    .unwrap()
}

//! The store: bytes between memory and swap. It claims places in swap for this process, and reads
//! and writes them.
//!
//! A place is a *cluster* of 2 MiB, page i of a unit in slot i, or single slots of 4 KiB.
//!
//! * [`claim`]: places claimed and given up; [`scatter`]: where the pages of scattered units are;
//!   [`place`]: the pages of a unit, whatever its place is
//! * [`gather`]: changed pages written side by side to new slots
//! * [`kept`]: what a forked child may still read
//! * [`transfer`]: pages read and written, verified, counted and tried again; [`backing`]: the
//!   device behind that; [`poll`]: reads polled for
//! * [`zswap`]: pages kept compressed in memory instead of written; [`compressed`]: their way there
//!   and back
//! * [`pack`]: whole units compressed on the device; [`codec`]: what compresses
//! * [`sealing`]: encryption; [`quarantine`]: slots that have failed are never used again
//!
//! The store knows pages, slots, areas and failures. It knows no engine, no state of a unit, no
//! page table, and no address of the program but those that it is given to read to and write from.
//! It has its process's part of the pool ([`Member`]: the segment, and the record of this process)
//! and nothing else.
//!
//! # Which units are scattered
//!
//! A unit whose place is `Place::Singles` is *scattered*: a table of 2 KiB ([`scatter`]) says where
//! each of its pages is. A page that the table leaves out is zero, or only in memory.
//!
//! | a unit | becomes |
//! | --- | --- |
//! | base-mapped, without a place, at most 64 dirty pages | scattered, when it is written |
//! | base-mapped, to be written, and there is no free cluster | scattered; if it has a cluster, that is split where it is, without I/O |
//! | base-mapped, discarded in part, at most 64 stored pages left | scattered where it is: the rest of its cluster is free at once |
//! | scattered, more than 256 pages with those to be written | placed whole: written to a cluster of its own, with what is not in memory copied there |
//! | scattered, brought in whole and changed | placed whole, when it is written |

mod apart;
pub(crate) mod backing;
pub(crate) mod batch;
pub(crate) mod buffers;
mod claim;
pub(crate) mod codec;
mod compressed;
mod cursor;
mod faulty;
pub(crate) mod gather;
mod growth;
pub(crate) mod holes;
pub(crate) mod initialise;
pub(crate) mod kept;
mod pack;
mod place;
mod poll;
mod quarantine;
pub(crate) mod scatter;
pub(crate) mod seal;
pub(crate) mod sealing;
mod transfer;
mod wbt;
pub(crate) mod zswap;

pub(crate) use crate::{PAGE, PAGES};
pub(crate) use transfer::may_try_again;

use crate::checksum::SumKey;
use crate::error::EngineError;
use crate::pool::Member;
use crate::pool::probe::Measured;
use apart::Apart;
use backing::Backing;
use batch::Batches;
use buffers::Buffers;
use claim::Claims;
use codec::Codecs;
use faulty::Faulty;
use gather::Gather;
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::swapin::granularity::{DeviceCost, Direction, PerSize, Size};
use hugeswap_policy::unit::Place;
use hugeswap_policy::zswap::packing::Packing;
use hugeswap_sys::{Result, mm};
use initialise::Initialiser;
use kept::Kept;
use poll::Pollers;
use scatter::Scatter;
use sealing::Sealing;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use zswap::Zswap;

/// What transfers cost at first if that could not be measured: a solid-state disk. Nanoseconds.
const DEVICE: PerSize = PerSize {
    page: 20_000,
    piece: 40_000,
    whole: 600_000,
};

/// Pages go through memory of the engine's own so many bytes at a time.
pub(crate) const BUFFER: usize = 64 << 10;

/// The places in swap that this process has, and the transfers to and from them. One for each
/// engine; shared by all threads.
pub(crate) struct Store {
    pool: Arc<Member>,
    /// The key of the pages' sums.
    pub key: SumKey,
    pub backing: Backing,
    /// What encrypts, in a pool that does.
    pub sealing: Option<Sealing>,
    claims: Claims,
    gather: Gather,
    apart: Apart,
    pub scatter: Scatter,
    pub kept: Kept,
    pub batches: Batches,
    initialiser: Initialiser,
    codecs: Arc<Codecs>,
    pub zswap: Zswap,
    packing: Packing,
    /// What is compressed, or was read compressed, is here on its way.
    buffers: Buffers,
    /// The last attempts to write found no slot.
    full: AtomicBool,
    /// What transfers cost now.
    pub cost: DeviceCost,
}

impl Store {
    /// For a process's part of a pool, with `units` units. `cipher`: the pool encrypts.
    pub fn new(
        pool: Arc<Member>,
        sealing: Option<Sealing>,
        units: u32,
    ) -> std::result::Result<Store, EngineError> {
        let sys = |what| move |e| EngineError::System(what, e);
        let clusters = pool.cluster_words().len();
        let tables = sys("cannot map the tables of scattered pages");
        let faulty = Faulty::new(&pool).map_err(sys("cannot map the account of faults"))?;
        let Measured { r#in, out } = pool.measured().unwrap_or(Measured {
            r#in: DEVICE,
            out: DEVICE,
        });
        let codecs = Arc::new(Codecs::new().map_err(tables)?);
        Ok(Store {
            key: SumKey(std::array::from_fn(|i| pool.header().key[i].load(Relaxed))),
            backing: Backing {
                faulty,
                pollers: Pollers::new(),
            },
            sealing,
            claims: Claims::new(),
            gather: Gather::default(),
            apart: Apart::new(r#in.page),
            scatter: Scatter::new(units).map_err(tables)?,
            kept: Kept::new(clusters).map_err(tables)?,
            batches: Batches::new(),
            initialiser: Initialiser::default(),
            zswap: Zswap::new(pool.clone(), codecs.clone()).map_err(tables)?,
            codecs,
            packing: Packing::new([r#in.whole, out.whole], zswap::COSTS),
            buffers: Buffers::new().map_err(tables)?,
            full: AtomicBool::new(false),
            cost: DeviceCost::new(r#in, out),
            pool,
        })
    }

    /// In a forked child: what is the parent's alone is not used here.
    pub fn reset_in_child(&self) {
        if let Some(sealing) = &self.sealing {
            sealing.reset_in_child();
        }
        self.buffers.reset_in_child();
        self.batches.forget_in_child();
        self.backing.pollers.forget_in_child();
        self.zswap.reset_in_child();
    }

    /// In a forked child, which owns nothing in swap yet.
    pub fn begin_in_child(&self) {
        self.claims.begin();
        self.gather.begin();
        self.kept.begin();
    }

    /// kswapd: is a frame of this process's wanted to pack units in?
    pub fn wants_buffer(&self) -> bool {
        self.buffers.is_one_wanted()
    }

    /// kswapd: a frame that this process is charged is such a buffer's now. False: there are enough.
    pub fn supply_buffer(&self) -> bool {
        self.buffers.supply(&self.pool)
    }

    /// kswapd, some times a second: buffers that are not in use give their memory back.
    pub fn rest_buffers(&self) {
        self.buffers.rest(&self.pool);
        if let Some(sealing) = &self.sealing {
            sealing.buffers.rest(&self.pool);
        }
    }

    /// Did the last attempts to write find no slot?
    pub fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// Swap has taken a write, or has not for want of a slot.
    pub fn note_full(&self, full: bool) {
        self.full.store(full, Relaxed);
    }

    /// A transfer of `pages` took `ns`.
    pub fn observe(&self, direction: Direction, pages: usize, ns: u64) {
        observe(&self.cost, direction, pages, ns);
    }

    /// What it costs now to write a whole unit, nanoseconds.
    pub fn unit_out_ns(&self) -> u32 {
        let cost = match self.zswap.admits_class(true) {
            true => self.zswap.cost(),
            false => &self.cost,
        };
        cost.per_size(Direction::Out).whole
    }

    /// Is a page of a unit in compressed memory?
    pub fn is_compressed(&self, unit: u32, place: Place, page: usize) -> bool {
        let slot = self.slot_of(unit, place, page);
        slot.is_some_and(|s| self.zswap.holds(s.cluster, s.at))
    }
}

fn observe(cost: &DeviceCost, direction: Direction, pages: usize, ns: u64) {
    let size = match pages as u64 {
        1 => Size::Page,
        16 => Size::Piece,
        UNIT_PAGES => Size::Whole,
        _ => return,
    };
    cost.observe(direction, size, ns);
}

/// Memory of the engine's own to put pages in.
pub(crate) struct Pages {
    at: usize,
    len: usize,
}

impl Pages {
    /// Maps `len` bytes of zeros.
    pub fn new(len: usize) -> Result<Pages> {
        let at = mm::map_own(len, mm::PROT_RW)?;
        Ok(Pages { at, len })
    }

    /// Where they are.
    pub fn addr(&self) -> usize {
        self.at
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and not used any more.
        let _ = unsafe { mm::unmap(self.at, self.len) };
    }
}

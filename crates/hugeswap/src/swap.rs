//! Swap areas of a running pool: what each holds, more of them, and fewer.

use crate::{Error, Pool};
use hugeswap_engine::pool::{AreaUsage, Room, SwapSpec};
use hugeswap_policy::UNIT_BYTES;
use std::time::Duration;

/// How often an area that is taken off is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// One swap area, as it was when it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwapArea {
    /// Its number in the pool. Numbers of areas that were taken off are used again.
    pub index: usize,
    /// Areas of a higher priority are filled first, those of the same in turn.
    pub priority: i32,
    /// How large it is, bytes.
    pub bytes: u64,
    /// What is in use, bytes.
    pub used_bytes: u64,
    /// It is being taken off.
    pub draining: bool,
    /// Writes to it that failed.
    pub write_errors: u64,
}

impl SwapArea {
    fn of(a: &AreaUsage) -> SwapArea {
        SwapArea {
            index: a.index,
            priority: a.priority,
            bytes: a.usage.clusters * UNIT_BYTES,
            used_bytes: a.usage.used_bytes(),
            draining: a.draining,
            write_errors: a.errors,
        }
    }
}

/// Why an area is not off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwapOffError {
    /// There is none of this number.
    #[error("the pool has no swap area {0}")]
    NoArea(usize),
    /// What it holds fits nowhere.
    #[error(
        "swap area {area} holds {} MiB, the other areas have {} MiB free and memory {} MiB: {} MiB too few; add an area first",
        .room.held >> 20, .room.elsewhere >> 20, .room.memory >> 20, .room.missing().div_ceil(1 << 20)
    )]
    NoRoom {
        /// Which.
        area: usize,
        /// What there is, bytes.
        room: Room,
    },
    /// It was to be kept on after all.
    #[error("swap area {area} stays on, with {left} bytes in it")]
    Interrupted {
        /// Which.
        area: usize,
        /// What is still there, bytes.
        left: u64,
    },
    /// It was to be kept on, since not all of it can be read.
    #[error(
        "swap area {area} stays on, with {left} bytes in it: {pages} pages cannot be read; Pool::swap_off_losing gives them up"
    )]
    Unreadable {
        /// Which.
        area: usize,
        /// What is still there, bytes.
        left: u64,
        /// Pages of 4 KiB that could not be read, and are nowhere else.
        pages: u64,
    },
}

impl Pool {
    /// The swap areas.
    pub fn swap_areas(&self) -> Vec<SwapArea> {
        let pool = self.inner.engine.pool();
        pool.area_usage().iter().map(SwapArea::of).collect()
    }

    /// Adds a swap area; its number. In the process that made the pool. Takes some milliseconds.
    pub fn swap_on(&self, spec: &SwapSpec) -> Result<usize, Error> {
        Ok(self.inner.engine.add_area(spec)?)
    }

    /// Takes a swap area off: what it holds is moved to the others, and to memory where those are full. Returns when it is empty and gone.
    /// `go_on` is told the bytes that are left, some times a second; if it says false, the area stays on. Nothing is begun
    /// if there is too little room. What cannot be read stays, and is tried again and again, so that the area would not become empty.
    ///
    /// Threads that use the pool go on meanwhile; who faults on a unit that is just being moved waits for that.
    pub fn swap_off(
        &self,
        area: usize,
        go_on: impl FnMut(u64) -> bool,
    ) -> Result<(), SwapOffError> {
        self.end_area(area, false, go_on).map(drop)
    }

    /// [`Pool::swap_off`], but what cannot be read is given up, also if the device would give it back later: it is lost, and touching it is
    /// SIGBUS. How many pages of 4 KiB that was; in message mode each costs its unit of 512.
    pub fn swap_off_losing(
        &self,
        area: usize,
        go_on: impl FnMut(u64) -> bool,
    ) -> Result<u64, SwapOffError> {
        self.end_area(area, true, go_on)
    }

    fn end_area(
        &self,
        area: usize,
        lose: bool,
        mut go_on: impl FnMut(u64) -> bool,
    ) -> Result<u64, SwapOffError> {
        let pool = self.inner.engine.pool();
        let room = pool.room_for(area).ok_or(SwapOffError::NoArea(area))?;
        if !room.suffices() {
            return Err(SwapOffError::NoRoom { area, room });
        }
        let engine = self.inner.engine;
        if !engine.take_area_off(area, lose) && !self.swap_areas().iter().any(|a| a.index == area) {
            return Err(SwapOffError::NoArea(area));
        }
        loop {
            let areas = self.swap_areas();
            let Some(now) = areas.iter().find(|a| a.index == area && a.draining) else {
                engine.close_past_areas();
                return Ok(pool.lost_in(area));
            };
            let left = now.used_bytes;
            if !go_on(left) && engine.keep_area_on(area) {
                return Err(match pool.unreadable_in(area) {
                    0 => SwapOffError::Interrupted { area, left },
                    pages => SwapOffError::Unreadable { area, left, pages },
                });
            }
            std::thread::sleep(LOOK);
        }
    }
}

//! Swap areas of a running pool: what each holds, adding one, taking one off.

use crate::{Error, Pool};
use hugeswap_engine::pool::{AreaUsage, Room, SwapSpec};
use hugeswap_policy::UNIT_BYTES;
use std::time::Duration;

/// How often an area that is taken off is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// One swap area, as it was when [`Pool::swap_areas`] was called.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SwapArea {
    /// Its number in the pool. The number of an area that was taken off is used again.
    pub index: usize,
    /// Areas of a higher priority are filled first, those of the same priority in turn.
    pub priority: i32,
    /// Its size, bytes.
    pub bytes: u64,
    /// The part in use, bytes.
    pub used_bytes: u64,
    /// True while it is being taken off.
    pub draining: bool,
    /// Number of writes to it that failed.
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

/// Why a swap area was not taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwapOffError {
    /// The pool has no area of this number.
    #[error("the pool has no swap area {0}")]
    NoArea(usize),
    /// The other areas and memory have no room for what it holds. Nothing was begun.
    #[error(
        "swap area {area} holds {} MiB, the other areas have {} MiB free and memory {} MiB: {} MiB too few; add an area first",
        .room.held >> 20, .room.elsewhere >> 20, .room.memory >> 20, .room.missing().div_ceil(1 << 20)
    )]
    NoRoom {
        /// Its number.
        area: usize,
        /// What it holds and what is free elsewhere, bytes.
        room: Room,
    },
    /// The caller stopped it.
    #[error("swap area {area} stays on, with {left} bytes in it")]
    Interrupted {
        /// Its number.
        area: usize,
        /// What it still holds, bytes.
        left: u64,
    },
    /// The caller stopped it, and some of what it holds cannot be read.
    #[error(
        "swap area {area} stays on, with {left} bytes in it: {pages} pages cannot be read; Pool::swap_off_losing gives them up"
    )]
    Unreadable {
        /// Its number.
        area: usize,
        /// What it still holds, bytes.
        left: u64,
        /// Number of pages of 4 KiB that cannot be read and are nowhere else.
        pages: u64,
    },
}

impl Pool {
    /// The swap areas of the pool, in the order of their numbers.
    pub fn swap_areas(&self) -> Vec<SwapArea> {
        let pool = self.inner.engine.pool();
        pool.area_usage().iter().map(SwapArea::of).collect()
    }

    /// Adds a swap area to the pool while it is in use, and returns its number. Only the process that
    /// made the pool can. Takes some milliseconds.
    ///
    /// # Errors
    /// [`Error::Pool`] with what is wrong with the place.
    pub fn swap_on(&self, spec: &SwapSpec) -> Result<usize, Error> {
        Ok(self.inner.engine.add_area(spec)?)
    }

    /// Takes a swap area off: what it holds is moved to the others, and to memory where those are full.
    /// Returns when the area is empty and gone. Other threads use the pool meanwhile; a fault on a unit
    /// that is being moved waits for it.
    ///
    /// `go_on` is called with the bytes that are left, many times a second; if it returns false, the
    /// area stays on. What cannot be read stays in the area and is tried again, so that without an end
    /// by `go_on` the call would not return.
    ///
    /// ```no_run
    /// # let pool = hugeswap::Pool::builder().memory(64 << 20).build()?;
    /// use std::time::{Duration, Instant};
    /// let end = Instant::now() + Duration::from_secs(60);
    /// pool.swap_off(0, |bytes_left| {
    ///     println!("{bytes_left} bytes to move");
    ///     Instant::now() < end
    /// })?;
    /// # Ok::<(), hugeswap::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`SwapOffError`]; the area stays on.
    pub fn swap_off(
        &self,
        area: usize,
        go_on: impl FnMut(u64) -> bool,
    ) -> Result<(), SwapOffError> {
        self.end_area(area, false, go_on).map(drop)
    }

    /// [`Pool::swap_off`], but what cannot be read is given up, even if the device could return it
    /// later: it is lost, and an access raises SIGBUS. Returns the number of pages of 4 KiB that were
    /// lost; in message mode each costs its unit of 512 pages.
    ///
    /// # Errors
    /// As of [`Pool::swap_off`].
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

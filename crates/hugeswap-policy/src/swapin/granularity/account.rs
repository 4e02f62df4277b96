//! What is remembered of a unit: its account while some of it came by small transfers, and its
//! density.
//!
//! Plain values of a few bytes, which the engine keeps with the unit and its slots.

use super::PAGES;

/// How many pages of a unit were touched while it was last in memory, in one byte that is kept with
/// its slots. Pages that came late in the stay of the unit, and took memory for the rest of it
/// only, count for less than one. 0 is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Density(pub u8);

impl Density {
    /// Nothing is known.
    pub const UNKNOWN: Density = Density(0);

    /// All pages, or nearly all.
    pub const FULL: Density = Density(u8::MAX);

    /// The density of a unit of which `pages` were touched: rounded to the nearest two above, at
    /// least 2 and at most 510.
    pub fn of(pages: u16) -> Density {
        Density(u8::try_from(pages.div_ceil(2).max(1)).unwrap_or(u8::MAX))
    }

    /// Number of pages touched; 0 if unknown.
    pub const fn pages(self) -> u16 {
        self.0 as u16 * 2
    }
}

/// The account of a unit while some of it was brought in by small transfers. Eight bytes; empty for
/// a unit that is whole or absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitHistory {
    /// Cost of the pages that are resident by small transfers, in nanoseconds.
    pub(super) paid: u32,
    /// Number of those pages.
    pub(super) brought: u16,
    /// Number of pages of a full stay that the touched ones amount to, in [`WORTH`] parts each, and
    /// [`TRIED`], [`LEAVING`].
    pub(super) touched: u16,
}

/// The unit is tried: advice says that it will pay for a whole transfer.
pub(super) const TRIED: u16 = 1 << 15;
/// With [`TRIED`]: the advice came from a stream, not from the density. Alone: the unit came
/// without anything known of it.
pub(super) const BY_STREAM: u16 = 1 << 14;
/// Pages have left, and none has come since.
const LEAVING: u16 = 1 << 13;
/// Flags that a transfer does not change.
pub(super) const TRIAL: u16 = TRIED | BY_STREAM;
const TOUCHED: u16 = LEAVING - 1;
/// Parts in which the worth of a touched page is counted.
pub(super) const WORTH: u16 = 8;

impl UnitHistory {
    /// An empty account.
    pub const NEW: UnitHistory = UnitHistory {
        paid: 0,
        brought: 0,
        touched: 0,
    };

    /// The account as one word.
    pub const fn to_bits(self) -> u64 {
        (self.paid as u64) << 32 | (self.brought as u64) << 16 | self.touched as u64
    }

    /// The inverse of [`UnitHistory::to_bits`].
    pub const fn from_bits(bits: u64) -> UnitHistory {
        UnitHistory {
            paid: (bits >> 32) as u32,
            brought: (bits >> 16) as u16,
            touched: bits as u16,
        }
    }

    /// Cost of the pages that are resident by small transfers, in nanoseconds.
    pub const fn paid(self) -> u64 {
        self.paid as u64
    }

    /// True if the unit is being tried.
    pub const fn is_tried(self) -> bool {
        self.touched & TRIED != 0
    }

    pub(super) const fn is_tried_stream(self) -> bool {
        self.touched & TRIAL == TRIAL
    }

    /// The account of a unit that is tried from now on: earlier transfers count as if their pages
    /// had always been there.
    pub(super) const fn trial(stream: bool) -> UnitHistory {
        UnitHistory {
            paid: 0,
            brought: 0,
            touched: TRIED | if stream { BY_STREAM } else { 0 },
        }
    }

    /// Marks the unit as tried because a run has reached it.
    pub(super) fn for_stream(self) -> UnitHistory {
        UnitHistory {
            touched: self.touched | BY_STREAM,
            ..self
        }
    }

    /// True if pages have left, and none has come since.
    pub(super) const fn is_leaving(self) -> bool {
        self.touched & LEAVING != 0
    }

    pub(super) const fn touched(self) -> u16 {
        self.touched & TOUCHED
    }

    /// The account after a transfer of `pages` to `present` ones for `ns`, which is worth `touched`
    /// parts of pages.
    pub(super) fn and(self, ns: u64, present: u16, pages: u16, touched: u16) -> UnitHistory {
        let ns = u32::try_from(ns).unwrap_or(u32::MAX);
        let touched = self.touched().saturating_add(touched).min(PAGES * WORTH);
        UnitHistory {
            paid: self.paid.saturating_add(ns),
            brought: self.brought.min(present).saturating_add(pages).min(PAGES),
            touched: self.touched & TRIAL | touched,
        }
    }

    /// The account with `left` of the pages it had brought, and no longer tried.
    pub(super) fn keep(self, left: u16) -> UnitHistory {
        let share =
            |n: u32| u64::from(n) * u64::from(left) / u64::from(self.brought.max(left).max(1));
        UnitHistory {
            paid: share(self.paid) as u32,
            brought: left,
            touched: LEAVING | share(u32::from(self.touched())) as u16,
        }
    }
}

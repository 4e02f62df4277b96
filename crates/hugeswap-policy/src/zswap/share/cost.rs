//! What a page costs the program on a device or in compressed memory.

use crate::UNIT_PAGES;
use crate::swapin::granularity::{DeviceCost, Direction};

/// What the processor does for a fault besides, nanoseconds.
const FAULT: f64 = 5_000.0;
/// What leaves memory does so in the background, and costs the program so much of its time.
const BACKGROUND: f64 = 0.5;

/// What a page costs, nanoseconds, in and out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Into memory, with the fault.
    pub r#in: f64,
    /// Out of memory.
    pub out: f64,
}

impl Cost {
    /// A page that comes by itself.
    pub fn paged(of: &DeviceCost) -> Cost {
        let ns = |d| f64::from(of.per_size(d).page);
        Cost {
            r#in: ns(Direction::In) + FAULT,
            out: ns(Direction::Out) * BACKGROUND,
        }
    }

    /// A page of a unit that comes as a whole.
    pub fn whole(of: &DeviceCost) -> Cost {
        let ns = |d| f64::from(of.per_size(d).whole) / UNIT_PAGES as f64;
        Cost {
            r#in: ns(Direction::In) + FAULT / UNIT_PAGES as f64,
            out: ns(Direction::Out) * BACKGROUND,
        }
    }
}

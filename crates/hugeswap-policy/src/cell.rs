//! The atomic integer that protocols without a lock are written over, so that loom explores the code that ships.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// An atomic integer, so that the protocol can be explored with others than the machine's.
pub trait Cell<T> {
    /// Reads, and sees what was written before the value was stored.
    fn get(&self) -> T;
    /// Stores.
    fn put(&self, to: T);
    /// Stores `to` if the value is `from`; else tells what it is.
    fn change(&self, from: T, to: T) -> Result<(), T>;
}

macro_rules! cell {
    ($atomic:ty, $value:ty) => {
        impl Cell<$value> for $atomic {
            fn get(&self) -> $value {
                self.load(Acquire)
            }
            fn put(&self, to: $value) {
                self.store(to, Release);
            }
            fn change(&self, from: $value, to: $value) -> Result<(), $value> {
                self.compare_exchange(from, to, AcqRel, Acquire).map(drop)
            }
        }
    };
}
cell!(AtomicU32, u32);
cell!(AtomicU64, u64);

//! The atomic integer that lock-free protocols are generic over, so that loom explores the code
//! that ships.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// An atomic integer.
pub trait Cell<T> {
    /// Loads the value (acquire).
    fn get(&self) -> T;
    /// Stores a value (release).
    fn put(&self, to: T);
    /// Stores `to` if the value is `from` (acquire and release). The error is the value as it is.
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

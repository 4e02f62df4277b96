//! The policy's atomic integer over loom's atomics.

/// Implements [`Cell`](hugeswap_policy::cell::Cell) for a type whose only field is an atomic of loom's,
/// with the orderings of the machine's atomics.
macro_rules! loom_cell {
    ($type:ty, $value:ty $(, $generics:tt)?) => {
        loom_cell!($type, $value, |value| value $(, $generics)?);
    };
    ($type:ty, $value:ty, |$seen:ident| $as_seen:expr $(, [$($generics:tt)*])?) => {
        impl $(<$($generics)*>)? hugeswap_policy::cell::Cell<$value> for $type {
            fn get(&self) -> $value {
                self.0.load(loom::sync::atomic::Ordering::Acquire)
            }
            fn put(&self, to: $value) {
                self.0.store(to, loom::sync::atomic::Ordering::Release);
            }
            fn change(&self, from: $value, to: $value) -> Result<(), $value> {
                use loom::sync::atomic::Ordering::{AcqRel, Acquire};
                let seen = |$seen: $value| $as_seen;
                let changed = self.0.compare_exchange(seen(from), seen(to), AcqRel, Acquire);
                changed.map(drop)
            }
        }
    };
}
pub(crate) use loom_cell;

//! When kcompactd tries again to make huge pages available after it failed.
//!
//! As the kernel defers compaction: each failure in a row doubles the number of occasions that are
//! passed over, up to 63; a success sets it back to none.

/// The number of failures in a row, and of occasions passed over since the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defer {
    shift: u8,
    considered: u8,
}

impl Defer {
    /// Largest power of two by which attempts are spaced.
    pub const MAX_SHIFT: u8 = 6;

    /// The state as one word, for shared memory.
    pub const fn to_bits(self) -> u32 {
        (self.shift as u32) << 8 | self.considered as u32
    }

    /// The inverse of [`Defer::to_bits`].
    pub const fn from_bits(bits: u32) -> Defer {
        let shift = (bits >> 8) as u8;
        Defer {
            shift: if shift > Defer::MAX_SHIFT {
                Defer::MAX_SHIFT
            } else {
                shift
            },
            considered: bits as u8,
        }
    }

    /// Counts an occasion. Returns whether it is passed over, and the state after it.
    #[must_use]
    pub const fn on_occasion(self) -> (bool, Defer) {
        let limit = 1 << self.shift;
        let considered = self.considered.saturating_add(1);
        let deferred = considered < limit;
        let considered = if deferred { considered } else { limit };
        (deferred, Defer { considered, ..self })
    }

    /// The state after an attempt that failed.
    #[must_use]
    pub const fn on_failure(self) -> Defer {
        let shift = if self.shift < Defer::MAX_SHIFT {
            self.shift + 1
        } else {
            self.shift
        };
        Defer {
            shift,
            considered: 0,
        }
    }

    /// The state after an attempt that succeeded.
    #[must_use]
    pub const fn on_success(self) -> Defer {
        Defer {
            shift: 0,
            considered: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Number of occasions until the next attempt.
    fn passed_by(d: &mut Defer) -> u32 {
        let mut n = 0;
        loop {
            let (deferred, next) = d.on_occasion();
            *d = next;
            if !deferred {
                return n;
            }
            n += 1;
        }
    }

    #[test]
    fn backs_off_by_powers_of_two() {
        let mut d = Defer::default();
        for expect in [0, 1, 3, 7, 15, 31, 63, 63, 63] {
            assert_eq!(passed_by(&mut d), expect);
            // A first occasion after a success is taken at once.
            assert_eq!(passed_by(&mut d), 0);
            d = d.on_failure();
        }
        d = d.on_success();
        assert_eq!(passed_by(&mut d), 0);
    }

    proptest! {
        #[test]
        fn any_word_is_one(bits: u32) {
            let mut d = Defer::from_bits(bits);
            prop_assert_eq!(Defer::from_bits(d.to_bits()), d);
            prop_assert!(passed_by(&mut d) < 1 << Defer::MAX_SHIFT);
        }
    }
}

//! When to try again to make huge pages available, after that failed: as the kernel defers compaction.
//!
//! Each failure in a row doubles how many occasions are passed by, up to 63; a success forgets them all.

/// How often it has failed, and how many occasions have been passed by since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defer {
    shift: u8,
    considered: u8,
}

impl Defer {
    /// Occasions double so often.
    pub const MAX_SHIFT: u8 = 6;

    /// For keeping in one word.
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

    /// There is an occasion: is it to be passed by? And what is known then.
    #[must_use]
    pub const fn on_occasion(self) -> (bool, Defer) {
        let limit = 1 << self.shift;
        let considered = self.considered.saturating_add(1);
        let deferred = considered < limit;
        let considered = if deferred { considered } else { limit };
        (deferred, Defer { considered, ..self })
    }

    /// It was tried, in vain.
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

    /// It was tried, with success.
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

    /// Occasions until it is tried.
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
            // Until it has failed again there is nothing to wait for.
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

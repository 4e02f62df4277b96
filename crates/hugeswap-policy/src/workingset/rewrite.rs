//! Whole units that are written to swap to no avail: the program changes one while it is written, or
//! before it has left.
//!
//! Whether a unit is in use is seen only once its memory is watched, and it can be watched only once
//! it is clean: so a unit that is written to all the time costs a write of 2 MiB at each of its turns
//! at the end of the inactive list. After a write to no avail it is left in memory at its next turn,
//! after the second in a row at the next three, and so on: 2^n - 1 turns, 15 at most. (The kernel's
//! accessed bit says the same for nothing, but a process cannot see it.)

/// What is known of one unit. Kept as a byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrites(u8);

/// Bits of the turns that are left; above them, how many writes in a row were to no avail.
const TURNS: u8 = 0xf;
const ONE: u8 = 0x10;
const MOST: u8 = 4;

impl Rewrites {
    /// Nothing is known: the unit is new in memory.
    pub const NONE: Rewrites = Rewrites(0);

    /// From what [`Rewrites::to_bits`] gave.
    pub fn from_bits(bits: u8) -> Rewrites {
        Rewrites(bits)
    }

    /// To keep it.
    pub fn to_bits(self) -> u8 {
        self.0
    }

    /// A write was to no avail.
    #[must_use]
    pub fn wasted(self) -> Rewrites {
        let n = (self.0 / ONE + 1).min(MOST);
        Rewrites(n * ONE + ((1 << n) - 1))
    }

    /// Its turn has come. `Some`: it stays in memory, and this is what is known then.
    #[must_use]
    pub fn stays(self) -> Option<Rewrites> {
        (self.0 & TURNS != 0).then(|| Rewrites(self.0 - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(mut r: Rewrites) -> (u32, Rewrites) {
        let mut n = 0;
        while let Some(next) = r.stays() {
            r = next;
            n += 1;
        }
        (n, r)
    }

    #[test]
    fn a_unit_stays_longer_after_each_write_to_no_avail() {
        let mut r = Rewrites::NONE;
        assert_eq!(turns(r).0, 0);
        for expected in [1, 3, 7, 15, 15, 15] {
            let (n, then) = turns(r.wasted());
            assert_eq!(n, expected);
            r = then;
        }
        assert_eq!(Rewrites::from_bits(r.to_bits()), r);
    }

    #[test]
    fn what_is_left_of_its_turns_is_not_added_to() {
        let r = Rewrites::NONE.wasted().wasted();
        assert_eq!(turns(r.stays().unwrap().wasted()).0, 7);
    }
}

//! What a unit of shared memory is: one 64-bit word in the pool segment, the same for every process that maps it.
//!
//! ```text
//!  63             32 31           16 15          8  7          6       5..3  2..0
//! | slot + 1        | generation    | record      | referenced | waiters | op | kind |
//! ```
//! A word with an op is locked by the process of that record and generation. Who dies with it names itself: whoever finds that out goes on
//! from what the op says. OUT alone may be taken from its owner while that lives: until it has become PUNCH nothing is lost by that.

/// A state word; see the file's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

/// Where a unit's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nowhere: zeros.
    None = 0,
    /// In memory; with a slot, perhaps there as well.
    Resident = 1,
    /// In swap.
    Swapped = 2,
    /// Lost.
    Lost = 3,
    /// In memory until its region ends: somebody reads or writes it by other ways than a program's own instructions.
    Kept = 4,
}

/// What the owner of a locked word is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Nobody owns it.
    None = 0,
    /// Bringing in what the kind says; pages may be there already, and be in use.
    In = 1,
    /// Writing it to swap. A slot in the word is one that holds older bytes.
    Out = 2,
    /// Dropping it from memory: what the kind says holds its bytes.
    Punch = 3,
    /// Making it writable for this process, or looking at it.
    Touch = 4,
    /// Giving its bytes up.
    Discard = 5,
}

const WAITERS: u64 = 1 << 6;
const REFERENCED: u64 = 1 << 7;
const OWNER: u64 = 0xffff_ff00;
const LOCK: u64 = 7 << 3 | OWNER;

/// A record of the pool, as its user of the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The record's index.
    pub record: u8,
    /// How often it has been handed out.
    pub generation: u16,
}

/// What a word cannot say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonsense {
    /// There is no such kind.
    Kind(u64),
    /// There is no such op.
    Op(u64),
    /// In swap, and nowhere there.
    NoSlot,
    /// Nobody's, and somebody is named.
    Owner,
}

impl std::fmt::Display for Nonsense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Nonsense::Kind(n) => write!(f, "there is no kind {n}"),
            Nonsense::Op(n) => write!(f, "there is no op {n}"),
            Nonsense::NoSlot => write!(f, "in swap, without a place there"),
            Nonsense::Owner => write!(f, "nobody's, with an owner"),
        }
    }
}

impl std::error::Error for Nonsense {}

impl Word {
    /// Does it say something that a word can say? The segment is others' to write, too.
    pub fn check(self) -> Result<(), Nonsense> {
        let (kind, op) = (self.0 & 7, self.0 >> 3 & 7);
        if kind > Kind::Kept as u64 {
            return Err(Nonsense::Kind(kind));
        }
        if op > Op::Discard as u64 {
            return Err(Nonsense::Op(op));
        }
        if self.kind() == Kind::Swapped && self.slot().is_none() {
            return Err(Nonsense::NoSlot);
        }
        if !self.is_locked() && self.0 & OWNER != 0 {
            return Err(Nonsense::Owner);
        }
        Ok(())
    }

    /// Zeros.
    pub const NONE: Word = Word(0);

    /// Where its bytes are. (Any number is one of the five, or lost.)
    pub fn kind(self) -> Kind {
        match self.0 & 7 {
            0 => Kind::None,
            1 => Kind::Resident,
            2 => Kind::Swapped,
            4 => Kind::Kept,
            _ => Kind::Lost,
        }
    }

    /// Are its bytes in memory?
    pub fn is_in_memory(self) -> bool {
        matches!(self.kind(), Kind::Resident | Kind::Kept)
    }

    /// What is being done with it. A number that is none counts as looking: its owner is waited for like any other.
    pub fn op(self) -> Op {
        match self.0 >> 3 & 7 {
            0 => Op::None,
            1 => Op::In,
            2 => Op::Out,
            3 => Op::Punch,
            5 => Op::Discard,
            _ => Op::Touch,
        }
    }

    /// Does somebody own it?
    pub fn is_locked(self) -> bool {
        self.op() != Op::None
    }

    /// Who, if somebody does.
    pub fn owner(self) -> Owner {
        Owner {
            record: (self.0 >> 8) as u8,
            generation: (self.0 >> 16) as u16,
        }
    }

    /// Is it locked so, by this owner?
    pub fn is_held(self, op: Op, owner: Owner) -> bool {
        self.op() == op && self.owner() == owner
    }

    /// Does anybody wait?
    pub fn has_waiters(self) -> bool {
        self.0 & WAITERS != 0
    }

    /// Was it used since reclaim last looked?
    pub fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    /// The cluster that holds its bytes, or older ones.
    pub fn slot(self) -> Option<u64> {
        (self.0 >> 32).checked_sub(1)
    }

    /// With another kind.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Word {
        Word(self.0 & !7 | kind as u64)
    }

    /// With another slot. One that does not fit is none.
    #[must_use]
    pub fn with_slot(self, slot: Option<u64>) -> Word {
        let field = slot
            .filter(|&s| s < u64::from(u32::MAX))
            .map_or(0, |s| s + 1);
        Word(self.0 & 0xffff_ffff | field << 32)
    }

    /// Locked; waiters stay.
    #[must_use]
    pub fn locked(self, op: Op, owner: Owner) -> Word {
        let by = u64::from(owner.record) << 8 | u64::from(owner.generation) << 16;
        Word(self.0 & !LOCK | (op as u64) << 3 | by)
    }

    /// Nobody's, and nobody waits.
    #[must_use]
    pub fn unlocked(self) -> Word {
        Word(self.0 & !(LOCK | WAITERS))
    }

    /// With somebody who waits.
    #[must_use]
    pub fn waited_for(self) -> Word {
        Word(self.0 | WAITERS)
    }

    /// Used, or not used since reclaim looked.
    #[must_use]
    pub fn referenced(self, yes: bool) -> Word {
        Word(self.0 & !REFERENCED | if yes { REFERENCED } else { 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_meet() {
        let me = Owner {
            record: 255,
            generation: 0xffff,
        };
        let w = Word::NONE
            .with_kind(Kind::Swapped)
            .with_slot(Some(0xffff_fffe))
            .referenced(true)
            .waited_for()
            .locked(Op::In, me);
        assert_eq!((w.kind(), w.op(), w.owner()), (Kind::Swapped, Op::In, me));
        assert_eq!(w.slot(), Some(0xffff_fffe));
        assert!(w.is_referenced() && w.has_waiters() && w.is_locked());
        assert!(w.is_held(Op::In, me) && !w.is_held(Op::Out, me));
        let w = w.unlocked();
        assert!(!w.is_locked() && !w.has_waiters() && w.is_referenced());
        assert_eq!((w.kind(), w.slot()), (Kind::Swapped, Some(0xffff_fffe)));
        assert_eq!(w.with_slot(None).slot(), None);
        assert_eq!(w.with_slot(Some(1 << 32)).slot(), None);
        assert_eq!(w.with_kind(Kind::Resident).kind(), Kind::Resident);
        for (kind, here) in [
            (Kind::None, false),
            (Kind::Resident, true),
            (Kind::Swapped, false),
            (Kind::Lost, false),
            (Kind::Kept, true),
        ] {
            assert_eq!(w.with_kind(kind).kind(), kind);
            assert_eq!(w.with_kind(kind).is_in_memory(), here);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let me = Owner {
            record: 3,
            generation: 9,
        };
        for kind in [
            Kind::None,
            Kind::Resident,
            Kind::Swapped,
            Kind::Lost,
            Kind::Kept,
        ] {
            for op in [Op::In, Op::Out, Op::Punch, Op::Touch, Op::Discard] {
                let w = Word::NONE.with_kind(kind).with_slot(Some(7));
                assert_eq!(w.referenced(true).check(), Ok(()));
                assert_eq!(w.waited_for().locked(op, me).check(), Ok(()));
            }
        }
        assert_eq!(Word(5).check(), Err(Nonsense::Kind(5)));
        assert_eq!(Word(6 << 3).check(), Err(Nonsense::Op(6)));
        assert_eq!(Word(2).check(), Err(Nonsense::NoSlot));
        assert_eq!(Word(1 | 5 << 8).check(), Err(Nonsense::Owner));
    }

    #[test]
    fn any_number_means_something() {
        for i in 0..64 {
            let w = Word(i);
            assert_eq!(w.is_locked(), i >> 3 != 0);
            assert!(!w.unlocked().is_locked());
            assert_eq!(w.unlocked().kind(), w.kind());
        }
    }
}

//! The state word of a unit of shared memory: a plain value.
//!
//! ```text
//!  63             32 31           16 15          8  7          6       5..3  2..0
//! | cluster + 1     | generation    | record      | referenced | waiters | op | kind |
//! ```

use crate::unit::lock::StateWord;

/// The state word of a unit of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

named! {
    /// Where the bytes of a unit are.
    Kind:
    None => "zero", "Nowhere: they are zeros.";
    Resident => "resident", "In memory. If the word has a cluster, that holds the same bytes or older ones.";
    Swapped => "swapped", "In swap.";
    Lost => "lost", "Nowhere: they are lost.";
    Kept => "kept", "In memory until the region ends: the unit is read or written in other ways than by a program's own instructions.";
}

named! {
    /// What the holder of a locked word is doing.
    Op:
    None => "not locked", "Nothing: the word is not locked.";
    In => "coming in", "Bringing the unit in. Pages of it may be in memory already, and be in use.";
    Out => "being written", "Writing the unit to swap. A cluster in the word holds older bytes.";
    Punch => "being dropped", "Dropping the unit from memory: the kind says where its bytes are.";
    Touch => "touched", "Making the unit writable for a process, or inspecting it.";
    Discard => "being discarded", "Discarding the bytes of the unit.";
}

const WAITERS: u64 = 1 << 6;
const REFERENCED: u64 = 1 << 7;
const OWNER: u64 = 0xffff_ff00;
const LOCK: u64 = 7 << 3 | OWNER;

/// A process of the pool: a record, and which of its users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The record's index.
    pub record: u8,
    /// How often it has been handed out.
    pub generation: u16,
}

/// What a locked word says of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What is being done.
    pub op: Op,
    /// The process that does it.
    pub owner: Owner,
}

/// What a word cannot say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonsense {
    /// There is no such kind.
    Kind(u64),
    /// There is no such op.
    Op(u64),
    /// It is in swap, and has no cluster.
    NoCluster,
    /// It is not locked, and names an owner.
    Owner,
}

impl std::fmt::Display for Nonsense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Nonsense::Kind(n) => write!(f, "there is no kind {n}"),
            Nonsense::Op(n) => write!(f, "there is no op {n}"),
            Nonsense::NoCluster => write!(f, "in swap, without a place there"),
            Nonsense::Owner => write!(f, "not locked, with an owner"),
        }
    }
}

impl std::error::Error for Nonsense {}

impl Word {
    /// Checks that it says something that a word can say. (Other processes can write to the
    /// segment, too.)
    pub fn check(self) -> Result<(), Nonsense> {
        let (kind, op) = (self.0 & 7, self.0 >> 3 & 7);
        if kind > Kind::Kept as u64 {
            return Err(Nonsense::Kind(kind));
        }
        if op > Op::Discard as u64 {
            return Err(Nonsense::Op(op));
        }
        if self.kind() == Kind::Swapped && self.cluster().is_none() {
            return Err(Nonsense::NoCluster);
        }
        if !self.is_locked() && self.0 & OWNER != 0 {
            return Err(Nonsense::Owner);
        }
        Ok(())
    }

    /// Zeros.
    pub const NONE: Word = Word(0);

    /// Where the bytes are. A number that stands for no kind counts as [`Kind::Lost`].
    pub fn kind(self) -> Kind {
        match self.0 & 7 {
            0 => Kind::None,
            1 => Kind::Resident,
            2 => Kind::Swapped,
            4 => Kind::Kept,
            _ => Kind::Lost,
        }
    }

    /// Are the bytes in memory?
    pub fn is_in_memory(self) -> bool {
        matches!(self.kind(), Kind::Resident | Kind::Kept)
    }

    /// What is being done with the unit. A number that stands for no op counts as [`Op::Touch`]: its
    /// owner is waited for like any other.
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

    /// Is the word locked?
    pub fn is_locked(self) -> bool {
        self.op() != Op::None
    }

    /// The process that has locked the word, if it is locked.
    pub fn owner(self) -> Owner {
        Owner {
            record: (self.0 >> 8) as u8,
            generation: (self.0 >> 16) as u16,
        }
    }

    /// Is it locked by this holder?
    pub fn is_held(self, by: Holder) -> bool {
        self.op() == by.op && self.owner() == by.owner
    }

    /// The same word with another op of the same owner.
    #[must_use]
    pub fn with_op(self, op: Op) -> Word {
        Word(self.0 & !(7 << 3) | (op as u64) << 3)
    }

    /// Was the unit used since reclaim last examined it?
    pub fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    /// The cluster that holds its bytes, or older ones.
    pub fn cluster(self) -> Option<u64> {
        (self.0 >> 32).checked_sub(1)
    }

    /// The same word with another kind.
    #[must_use]
    pub fn with_kind(self, kind: Kind) -> Word {
        Word(self.0 & !7 | kind as u64)
    }

    /// The same word with another cluster. A number that does not fit counts as none.
    #[must_use]
    pub fn with_cluster(self, cluster: Option<u64>) -> Word {
        let field = cluster
            .filter(|&c| c < u64::from(u32::MAX))
            .map_or(0, |c| c + 1);
        Word(self.0 & 0xffff_ffff | field << 32)
    }

    /// The same word, of a unit that was used since reclaim last examined it, or was not.
    #[must_use]
    pub fn referenced(self, yes: bool) -> Word {
        Word(self.0 & !REFERENCED | if yes { REFERENCED } else { 0 })
    }
}

impl StateWord for Word {
    type Holder = Holder;
    /// Each process of the pool can write to the segment.
    const IS_TRUSTED: bool = false;

    fn from_raw(raw: u64) -> Word {
        Word(raw)
    }

    fn raw(self) -> u64 {
        self.0
    }

    fn is_locked(self) -> bool {
        Word::is_locked(self)
    }

    fn locked(self, by: Holder) -> Word {
        let Owner { record, generation } = by.owner;
        let owner = u64::from(record) << 8 | u64::from(generation) << 16;
        Word(self.0 & !LOCK | (by.op as u64) << 3 | owner)
    }

    fn unlocked(self) -> Word {
        Word(self.0 & !(LOCK | WAITERS))
    }

    fn has_waiters(self) -> bool {
        self.0 & WAITERS != 0
    }

    fn with_waiters(self) -> Word {
        Word(self.0 | WAITERS)
    }

    fn is_consistent(self) -> bool {
        self.check().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(op: Op, owner: Owner) -> Holder {
        Holder { op, owner }
    }

    #[test]
    fn parts_do_not_meet() {
        let me = Owner {
            record: 255,
            generation: 0xffff,
        };
        let w = Word::NONE
            .with_kind(Kind::Swapped)
            .with_cluster(Some(0xffff_fffe))
            .referenced(true)
            .with_waiters()
            .locked(by(Op::In, me));
        assert_eq!((w.kind(), w.op(), w.owner()), (Kind::Swapped, Op::In, me));
        assert_eq!(w.cluster(), Some(0xffff_fffe));
        assert!(w.is_referenced() && w.has_waiters() && w.is_locked());
        assert!(w.is_held(by(Op::In, me)) && !w.is_held(by(Op::Out, me)));
        assert_eq!(w.with_op(Op::Out), w.locked(by(Op::Out, me)));
        let w = w.unlocked();
        assert!(!w.is_locked() && !w.has_waiters() && w.is_referenced());
        assert_eq!((w.kind(), w.cluster()), (Kind::Swapped, Some(0xffff_fffe)));
        assert_eq!(w.with_cluster(None).cluster(), None);
        assert_eq!(w.with_cluster(Some(1 << 32)).cluster(), None);
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
                let w = Word::NONE.with_kind(kind).with_cluster(Some(7));
                assert_eq!(w.referenced(true).check(), Ok(()));
                assert_eq!(w.with_waiters().locked(by(op, me)).check(), Ok(()));
            }
        }
        assert_eq!(Word(5).check(), Err(Nonsense::Kind(5)));
        assert_eq!(Word(6 << 3).check(), Err(Nonsense::Op(6)));
        assert_eq!(Word(2).check(), Err(Nonsense::NoCluster));
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

//! What the checker does to ranges: the names, and which kinds of slots each is for.

use super::slot::Kind;

macro_rules! operations {
    ($($op:ident $name:literal $group:ident,)*) => {
        /// An operation on a range, or on a whole slot.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op { $(#[doc = $name] $op,)* }

        impl Op {
            /// All of them.
            pub const ALL: &[Op] = &[$(Op::$op,)*];

            /// As on the command line.
            pub fn name(self) -> &'static str {
                match self { $(Op::$op => $name,)* }
            }

            fn group(self) -> Group {
                match self { $(Op::$op => Group::$group,)* }
            }
        }
    };
}

/// What an operation may be done to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    /// Anything: the bytes stay as they are.
    Harmless,
    /// Anything, whole: while it lasts the kernel refuses some other advice.
    Locking,
    /// Memory that no other process changes meanwhile.
    Private,
    /// A mapping of the program's own, in place.
    Mapping,
    /// A block of malloc.
    Block,
    /// A slot that is not shared, whole.
    Whole,
    /// No slot.
    Process,
}

operations! {
    Cold "cold" Harmless,
    PageOut "pageout" Harmless,
    WillNeed "willneed" Harmless,
    Huge "huge" Harmless,
    NoHuge "nohuge" Harmless,
    Random "random" Harmless,
    Sequential "sequential" Harmless,
    Normal "normal" Harmless,
    PopulateRead "populate-read" Harmless,
    PopulateWrite "populate-write" Harmless,
    Mincore "mincore" Harmless,
    Msync "msync" Harmless,
    Mlock "mlock" Locking,
    ProtectRead "protect-read" Harmless,
    ProtectNone "protect-none" Harmless,
    ProtectUnits "protect-units" Harmless,
    DontNeed "dontneed" Private,
    Free "free" Private,
    WriteCall "write-call" Private,
    RawWriteCall "raw-write-call" Private,
    ReadCall "read-call" Private,
    VectorCalls "vector-calls" Private,
    FileWrite "file-write" Private,
    FileRead "file-read" Private,
    MremapMove "mremap-move" Mapping,
    MremapGrow "mremap-grow" Mapping,
    MremapShrink "mremap-shrink" Mapping,
    CutOut "cut-out" Mapping,
    MapOver "map-over" Mapping,
    Realloc "realloc" Block,
    Remake "remake" Whole,
    Fork "fork" Process,
}

impl Op {
    /// The operation of this name.
    pub fn named(name: &str) -> Result<Op, String> {
        Op::ALL
            .iter()
            .copied()
            .find(|op| op.name() == name)
            .ok_or_else(|| {
                let all: Vec<_> = Op::ALL.iter().map(|op| op.name()).collect();
                format!("there is no operation {name}; there are {}", all.join(", "))
            })
    }

    /// May it be done to such a slot?
    pub fn fits(self, kind: Kind) -> bool {
        match self.group() {
            Group::Harmless | Group::Locking => true,
            Group::Private => kind != Kind::Shared,
            Group::Mapping => kind == Kind::Map,
            Group::Block => kind == Kind::Malloc,
            Group::Whole => kind != Kind::Shared,
            Group::Process => false,
        }
    }

    /// Does it move the slot, change its length, or exclude others for another reason?
    pub fn is_structural(self) -> bool {
        matches!(
            self.group(),
            Group::Locking | Group::Mapping | Group::Block | Group::Whole
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_name_and_fits_something() {
        for &op in Op::ALL {
            assert_eq!(Op::named(op.name()), Ok(op));
            let fits = [Kind::Map, Kind::Malloc, Kind::Shared]
                .into_iter()
                .any(|k| op.fits(k));
            assert_eq!(fits, op != Op::Fork, "{op:?}");
        }
        assert!(Op::named("nothing").is_err());
    }
}

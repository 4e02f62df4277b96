//! A fault as a value, and how it ends.

use crate::PAGE;
use crate::call::CallError;
use crate::table::Locked;
use hugeswap_policy::recording::Code;
use hugeswap_sys::now_ns;

/// The outcome of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The access can be tried again.
    Retry,
    /// The access is the program's own error.
    NotOurs,
    /// No page of the unit is mapped: the program's own error, by SIGSEGV.
    Free,
    /// A guard: the access is the program's own error, by SIGSEGV.
    Guard,
    /// A page without access in a unit that has some: the program's own error, by SIGSEGV.
    NoAccess,
    /// The bytes are lost.
    Poisoned,
    /// Neither memory nor swap is left.
    NoMemory,
    /// Another process holds it, and does not go on.
    Stuck,
    /// The kernel does not map it, again and again. The bytes are there still.
    Unmapped(CallError),
}

impl Outcome {
    /// Can the memory not be had, whichever thread touches it?
    pub fn is_lost(self) -> bool {
        matches!(
            self,
            Outcome::Poisoned | Outcome::NoMemory | Outcome::Stuck | Outcome::Unmapped(_)
        )
    }
}

/// An access that is to be made possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    /// Where.
    pub addr: usize,
    /// Is it a write?
    pub write: bool,
    /// When it began, nanoseconds.
    pub start: u64,
    /// Whose access it is.
    pub code: Code,
}

impl Fault {
    /// One that begins now.
    pub fn begin(addr: usize, write: bool, code: Code) -> Fault {
        Fault {
            addr,
            write,
            start: now_ns(),
            code,
        }
    }

    /// An access that the engine makes for a call of the program's, or for itself.
    pub fn by_engine(addr: usize, write: bool) -> Fault {
        Fault::begin(addr, write, Code::default())
    }

    /// The page of `unit` that it is on.
    pub fn page(&self, unit: &Locked<'_>) -> usize {
        (self.addr - unit.addr()) / PAGE
    }
}

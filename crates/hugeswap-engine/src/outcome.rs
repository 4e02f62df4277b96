//! How a fault ends.

use crate::call::CallError;

/// What came of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The access can be tried again.
    Retry,
    /// The access is the program's own error.
    NotOurs,
    /// A guard: the access is the program's own error, by SIGSEGV.
    Guard,
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
    /// Can the memory not be had, whoever touches it?
    pub fn is_lost(self) -> bool {
        matches!(
            self,
            Outcome::Poisoned | Outcome::NoMemory | Outcome::Stuck | Outcome::Unmapped(_)
        )
    }
}

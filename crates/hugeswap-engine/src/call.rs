//! Which system call failed, and with what error: for errors that a user is told of.

use hugeswap_sys::Errno;

/// A system call by which memory is mapped or moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Mmap,
    Mprotect,
    Mremap,
    Madvise,
    Register,
    Move,
    Copy,
    WriteProtect,
    Read,
}

/// A call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallError {
    pub call: Call,
    pub errno: Errno,
}

/// The result of a verb that returns no value.
pub(crate) type Done = Result<(), CallError>;

impl Call {
    /// The name that its manual page has.
    pub fn name(self) -> &'static str {
        match self {
            Call::Mmap => "mmap",
            Call::Mprotect => "mprotect",
            Call::Mremap => "mremap",
            Call::Madvise => "madvise",
            Call::Register => "UFFDIO_REGISTER",
            Call::Move => "UFFDIO_MOVE",
            Call::Copy => "UFFDIO_COPY",
            Call::WriteProtect => "UFFDIO_WRITEPROTECT",
            Call::Read => "read",
        }
    }

    /// The error of this call with `errno`.
    pub fn failed(self, errno: Errno) -> CallError {
        CallError { call: self, errno }
    }
}

impl From<CallError> for Errno {
    fn from(error: CallError) -> Errno {
        error.errno
    }
}

impl CallError {
    /// Does the kernel lack mappings, or memory of its own? Room can be made for both.
    pub fn is_shortage(self) -> bool {
        self.errno == Errno::ENOMEM
    }
}

//! The interface between the injected object that manages memory and the one that allocates small
//! blocks in it (`hugeswap-small`). Both are built together.

use std::ffi::{CStr, c_void};

/// The one name that the allocator's object exports: a [`Start`].
pub const START: &CStr = c"hugeswap_small_start";

/// The memory that the allocator asks for.
#[repr(C)]
pub struct Memory {
    /// New memory for records, all zeros, of so many bytes (whole pages) at a multiple of 2 MiB; it
    /// is not managed. 0 if there is none.
    pub records: extern "C" fn(len: usize) -> usize,
    /// New managed memory for blocks, all zeros, of so many bytes (whole pages) at a multiple of the
    /// alignment (less than 2 MiB); 0 if there is none.
    pub map: extern "C" fn(len: usize, align: usize) -> usize,
    /// Gives up what lies in a range (address, length). True: all of it reads as zeros now. False:
    /// some of it may be as it was.
    pub discard: extern "C" fn(addr: usize, len: usize) -> bool,
}

/// Called around a fork.
pub type Handler = unsafe extern "C" fn();

/// The allocator's functions, as C has them; no size is 0.
#[repr(C)]
pub struct Allocator {
    /// `malloc`.
    pub malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    /// `calloc`.
    pub calloc: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    /// `realloc`.
    pub realloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    /// Size and alignment, a power of two of less than 2 MiB.
    pub aligned: unsafe extern "C" fn(usize, usize) -> *mut c_void,
    /// `free`.
    pub free: unsafe extern "C" fn(*mut c_void),
    /// `malloc_usable_size`.
    pub usable_size: unsafe extern "C" fn(*mut c_void) -> usize,
    /// Gives up what free blocks hold.
    pub purge: unsafe extern "C" fn(),
    /// To be called before a fork; then one of the two below is.
    pub before_fork: Handler,
    /// To be called in the parent.
    pub after_fork_in_parent: Handler,
    /// To be called in the child.
    pub after_fork_in_child: Handler,
}

/// Sets the allocator up, at most once in a process; null if that fails. The memory's functions
/// may be called from then on, by any thread.
pub type Start = unsafe extern "C" fn(*const Memory) -> *const Allocator;

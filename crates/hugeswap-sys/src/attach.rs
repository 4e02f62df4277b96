//! What `hugeswap attach` and the object in a program that runs already tell each other: a [`Plan`]
//! in the program's memory.
//!
//! `hugeswap attach` stops the program, maps the plan and fills it, and starts a thread in the
//! program that loads the object. That thread (the *agent*) fills in what is its own, and says how
//! far it is by [`Plan::step`]; what it is to do next is said by [`Plan::command`]. Each field has
//! one writer: the plan lies in the memory of a program that may be broken, so `hugeswap attach`
//! takes nothing from it for true that it cannot check.

use std::sync::atomic::{AtomicU32, AtomicU64};

/// The environment variable that gives the agent the plan's address, in hexadecimal digits.
pub const VARIABLE: &std::ffi::CStr = c"HUGESWAP_ATTACH";

/// As many threads of the program there may be.
pub const MOST_THREADS: usize = 4096;
/// As many ranges are taken over.
pub const MOST_RANGES: usize = 4096;

/// As many far parts a window has.
pub const MOST_FAR: usize = 16;

/// The program's break may grow by so many bytes.
pub const BREAK_GROWTH: usize = 1 << 20;

/// A layout that both know.
pub const VERSION: u64 = 3;

/// How far the agent is.
pub mod step {
    /// It is being loaded.
    pub const STARTING: u32 = 0;
    /// It has been.
    pub const LOADED: u32 = 9;
    /// The engine runs, and what each thread is to have is in the plan.
    pub const PREPARED: u32 = 1;
    /// Memory is being taken over.
    pub const ADOPTING: u32 = 2;
    /// It has been.
    pub const ADOPTED: u32 = 3;
    /// Memory is being given back.
    pub const GIVING_BACK: u32 = 4;
    /// All of it is the kernel's, but for what the program has mapped meanwhile.
    pub const GIVEN_BACK: u32 = 5;
    /// The program's handlers are in place again.
    pub const ENDED: u32 = 6;
    /// Something failed: `Plan::complaint` says what. Nothing was changed.
    pub const FAILED: u32 = 7;
    /// Not all memory could be given back: `Plan::complaint` says why. It stays managed.
    pub const STAYS: u32 = 8;
}

/// What the agent is to do next.
pub mod command {
    /// Nothing: it stays as it is, or takes note of what was done.
    pub const NONE: u32 = 0;
    /// The threads have what the plan says: take memory over.
    pub const ADOPT: u32 = 1;
    /// Give it back.
    pub const GIVE_BACK: u32 = 2;
    /// The program's threads are stopped: give back the rest, and end.
    pub const END: u32 = 3;
}

/// A thread of the program, which is stopped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its id.
    pub tid: u64,
    /// The signals that it has blocked.
    pub mask: u64,
    /// Its alternate stack: address and length in bytes, which is 0 if it has none.
    pub stack: [u64; 2],
    /// From the agent: what GS is to be.
    pub gs: u64,
    /// From the agent: the alternate stack that it is to have; length 0: the one that it has.
    pub new_stack: [u64; 2],
}

/// Words that the object has for each of the program's threads: the distance of each from the thread
/// pointer of the object's C library.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// The signals that the program believes blocked, and the kernel does not block.
    pub mask: i64,
    /// The alternate stack that the thread has from the object: its address.
    pub stack: i64,
    /// The one that the program believes it has, where the kernel has that: its address.
    pub believed_stack: i64,
    /// Its length in bytes; 0: none.
    pub believed_size: i64,
    /// Address of the context that the handler of system calls was called with, if it runs; with
    /// [`DONE`].
    pub context: i64,
}

/// The handler of system calls has done something of the call that it was called for.
pub const DONE: u64 = 1;

/// The plan.
#[repr(C)]
pub struct Plan {
    /// [`VERSION`].
    pub version: u64,
    /// The main range of the window: start and end.
    pub window: [u64; 2],
    /// Its far parts: start and end of each.
    pub far: [[u64; 2]; MOST_FAR],
    /// How many there are of them.
    pub far_count: u64,
    /// Not 0: the budget grows by what is taken over.
    pub follows: u64,
    /// How many there are of `threads`.
    pub thread_count: u64,
    /// How many there are of `ranges`.
    pub range_count: u64,
    /// From the agent: the addresses (start and end) from which system calls are not watched.
    pub passing: [u64; 2],
    /// From the agent: the address of an instruction `syscall` among them.
    pub syscall: u64,
    /// From the agent.
    pub words: Words,
    /// How far the agent is.
    pub step: AtomicU32,
    /// What it is to do next.
    pub command: AtomicU32,
    /// From the agent: bytes that were taken over.
    pub adopted: AtomicU64,
    /// From the agent: a line, up to a NUL.
    pub complaint: [u8; 256],
    /// The program's threads.
    pub threads: [Thread; MOST_THREADS],
    /// Private anonymous memory that can be taken over: start and end of each.
    pub ranges: [[u64; 2]; MOST_RANGES],
}

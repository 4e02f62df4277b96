//! The words that this object keeps for each of the program's threads.
//!
//! A plain `thread_local!` in a shared object is found through the dynamic linker. If the program
//! has loaded objects since, the linker allocates memory by the program's `malloc`, which must not
//! happen inside that same `malloc`. These words have a fixed distance from the thread pointer
//! instead (the "initial-exec" model), which an object may use if it is loaded with the program.
//! They start as zeros, and nothing runs when the thread ends.

use std::arch::{asm, global_asm};

global_asm!(
    ".pushsection .tbss.hugeswap_local,\"awT\",@nobits",
    ".balign 8",
    ".hidden hugeswap_local",
    ".globl hugeswap_local",
    ".type hugeswap_local, @object",
    ".size hugeswap_local, 88",
    "hugeswap_local:",
    ".zero 88",
    ".popsection",
);

/// Names a word of the calling thread.
#[derive(Clone, Copy)]
pub enum Word {
    /// Signals of [`crate::mask::OURS`] that the program believes blocked.
    Mask = 0,
    /// Our alternate signal stack; 0 if there is none.
    Stack = 8,
    /// Address of the alternate stack that the program believes it has, while the kernel has ours.
    BelievedStack = 16,
    /// Size of that stack; 0 if there is none.
    BelievedSize = 24,
    /// Not 0 while this thread forks, and holds all of our locks for the fork.
    Forking = 32,
    /// Not 0 while the system calls of this thread, which ends, are watched ([`crate::ending`]).
    Ending = 40,
    /// Not 0 if this thread ends when it is asked to the next time.
    EndsNext = 48,
    /// Bytes in small blocks that this thread has asked for and that are not counted yet ([`crate::small`]).
    Asked = 56,
    /// How many calls of this thread, one within the other, keep owners as they are ([`crate::owners`]).
    Acting = 64,
    /// In a program that was running: address of the context that the innermost handler of system calls
    /// was called with, or was before it ended; 1 more when it has done something of the program's call
    /// ([`crate::static_program::attached`]).
    Context = 72,
    /// How many ranges this thread holds in memory for calls that it makes ([`crate::issue::Pins`]).
    Pins = 80,
}

fn address(word: Word) -> *mut usize {
    let base: usize;
    // SAFETY: the linker and the dynamic linker agree on the distance of `hugeswap_local` from the
    // thread pointer, which fs:0 holds.
    unsafe {
        asm!(
            "mov {at}, qword ptr [rip + hugeswap_local@GOTTPOFF]",
            "add {at}, qword ptr fs:[0]",
            at = out(reg) base,
            options(pure, readonly, nostack),
        );
    }
    (base + word as usize) as *mut usize
}

/// Where `word` is, from the thread pointer on.
pub fn distance(word: Word) -> isize {
    let own: usize;
    // SAFETY: the thread pointer begins with its own address.
    unsafe { asm!("mov {}, fs:[0]", out(reg) own, options(nostack, readonly)) };
    (address(word) as usize).wrapping_sub(own) as isize
}

/// The value of the calling thread's `word`.
pub fn get(word: Word) -> usize {
    // SAFETY: eleven words of this thread, used through this module only; a signal handler finds each
    // word as it was before or after a change.
    unsafe { address(word).read_volatile() }
}

/// Sets a `word` of the thread whose thread pointer is `pointer`.
///
/// # Safety
/// Its thread-locals are those of the objects that the program started with, and it does not run.
pub unsafe fn set_of(pointer: usize, word: Word, value: usize) {
    let at = pointer.wrapping_add_signed(distance(word));
    // SAFETY: the same distance in every thread; the caller's promise.
    unsafe { (at as *mut usize).write(value) };
}

/// Sets the calling thread's `word`.
pub fn set(word: Word, value: usize) {
    // SAFETY: as in `get`.
    unsafe { address(word).write_volatile(value) };
}

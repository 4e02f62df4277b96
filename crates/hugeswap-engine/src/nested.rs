//! Handlers of the program's that fault themselves.
//!
//! The kernel ends a process whose fault comes while its signal is blocked, as it is while a handler
//! of it runs. Here SIGSEGV and SIGBUS are never blocked, because a handler may touch managed memory;
//! so a handler that fails would run again and again, each time on top of the last, until its stack
//! is full. It is ended once it has failed at the same instruction a few times in a row, each deeper
//! than the last.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Faults in a row of which the last ends the process.
const ENOUGH: u64 = 3;
/// A handler that faults is no deeper than this below the code that it interrupted. (A frame may take
/// 11 KiB.)
const DEEPER: u64 = 1 << 20;

/// The last fault that went to a handler of the program's.
pub(crate) struct Nested {
    thread: AtomicU64,
    instruction: AtomicU64,
    stack: AtomicU64,
    times: AtomicU64,
}

impl Nested {
    pub(crate) const fn new() -> Nested {
        Nested {
            thread: AtomicU64::new(0),
            instruction: AtomicU64::new(0),
            stack: AtomicU64::new(0),
            times: AtomicU64::new(0),
        }
    }

    /// A fault of thread `thread` at `instruction`, whose stack pointer is `stack`, goes to a handler.
    /// True: it is to go to none any more. (Threads that fault at the same time forget each other's,
    /// and may go on for longer.)
    pub(crate) fn is_enough(&self, thread: i32, instruction: u64, stack: u64) -> bool {
        let thread = thread as u64;
        let last = self.stack.swap(stack, Relaxed);
        let same = self.thread.swap(thread, Relaxed) == thread
            && self.instruction.swap(instruction, Relaxed) == instruction;
        let deeper = last.wrapping_sub(stack);
        if !same || deeper == 0 || deeper > DEEPER {
            self.instruction.store(instruction, Relaxed);
            self.times.store(1, Relaxed);
            return false;
        }
        self.times.fetch_add(1, Relaxed) + 1 >= ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_faults_deeper_and_deeper_is_ended() {
        let nested = Nested::new();
        // The same fault again and again, as of a collector that protects memory.
        assert!((0..100).all(|_| !nested.is_enough(7, 0x1000, 0x8000)));
        // From other places of the program, and from shallower ones.
        assert!((0..100).all(|k| !nested.is_enough(7, 0x1000 + k, 0x8000 - 8 * k)));
        assert!((0..100).all(|k| !nested.is_enough(7, 0x1000, 0x8000 + 8 * k)));
        // Two threads at a time, on stacks far from each other.
        assert!((0..100).all(|k| !nested.is_enough(8 + k % 2, 0x1000, 0x9000_0000 << (k % 2))));
        let ended = (0..3).map(|k| nested.is_enough(7, 0x2000, 0x8000 - 0x1000 * k));
        assert_eq!(ended.collect::<Vec<_>>(), [false, false, true]);
    }
}

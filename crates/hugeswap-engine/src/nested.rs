//! Handlers of the program's that fault themselves.
//!
//! The kernel ends a process whose fault comes while its signal is blocked, as it is while a handler
//! of it runs. Here SIGSEGV and SIGBUS are never blocked, because a handler may touch managed memory;
//! so a handler that fails would run again and again, each time on top of the last, until its stack
//! is full. It is ended once that has happened a few times in a row: the same instruction fails at
//! the same address, each time as far below the context of the last signal, which is still there. A
//! fault that is resolved, and comes again deeper in the program's own calls, is not below that, or
//! not as far, or the calls have taken its place.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Faults in handlers in a row of which the last ends the process.
const ENOUGH: u64 = 5;
/// A handler that faults does so no further below its context.
const DEEPER: u64 = 1 << 20;

/// The last fault that went to a handler of the program's.
pub(crate) struct Nested {
    thread: AtomicU64,
    instruction: AtomicU64,
    address: AtomicU64,
    /// Its stack pointer.
    stack: AtomicU64,
    /// Where the context is that its handler has, on whichever stack that runs.
    context: AtomicU64,
    /// How far below the context before it was; 0: it was not.
    below: AtomicU64,
    times: AtomicU64,
}

impl Nested {
    pub(crate) const fn new() -> Nested {
        Nested {
            thread: AtomicU64::new(0),
            instruction: AtomicU64::new(0),
            address: AtomicU64::new(0),
            stack: AtomicU64::new(0),
            context: AtomicU64::new(0),
            below: AtomicU64::new(0),
            times: AtomicU64::new(0),
        }
    }

    /// A fault of thread `thread` (at this instruction, on this address, with this stack pointer) goes
    /// to a handler. True: it is to go to none any more. `is_there`: is at this address the context of
    /// a fault with this instruction and this stack pointer? (Threads that fault at the same time
    /// forget each other's, and may go on for longer.)
    pub(crate) fn is_enough(
        &self,
        thread: i32,
        [instruction, address, stack]: [u64; 3],
        is_there: impl FnOnce(usize, u64, u64) -> bool,
    ) -> bool {
        let thread = thread as u64;
        let now = [thread, instruction, address];
        let cells = [&self.thread, &self.instruction, &self.address];
        let last = cells.map(|cell| cell.load(Relaxed));
        cells
            .iter()
            .zip(now)
            .for_each(|(cell, n)| cell.store(n, Relaxed));
        let context = self.context.load(Relaxed);
        let former = self.stack.swap(stack, Relaxed);
        let below = match context.wrapping_sub(stack) {
            n @ 1..=DEEPER if last[0] == thread => n,
            _ => 0,
        };
        let as_before = self.below.swap(below, Relaxed) == below && last == now;
        let times = match (below, as_before) {
            (0, _) => 0,
            (_, true) => self.times.load(Relaxed) + 1,
            (_, false) => 1,
        };
        self.times.store(times, Relaxed);
        times >= ENOUGH && is_there(context as usize, last[1], former)
    }

    /// The handler of that fault has its context there.
    pub(crate) fn note_context(&self, at: usize) {
        self.context.store(at as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults in a row: the stack pointer of each, and where their handlers have a context; which of
    /// them were one too many.
    fn ended(is_there: bool, faults: impl Iterator<Item = (u64, u64)>) -> Vec<bool> {
        let nested = Nested::new();
        let mut last = (0, 0);
        let each = faults.map(|(stack, context)| {
            let ends = nested.is_enough(7, [0x1000, 0x10, stack], |at, instruction, former| {
                assert_eq!((former, at as u64, instruction), (last.0, last.1, 0x1000));
                is_there
            });
            nested.note_context(context as usize);
            last = (stack, context);
            ends
        });
        each.collect()
    }

    const TOP: u64 = 0x7fff_0000;
    const ENDED: [bool; 6] = [false, false, false, false, false, true];

    #[test]
    fn a_handler_that_fails_the_same_way_each_time_is_ended() {
        let own = || (0..6).map(|k| (TOP - 0x1000 * k, TOP - 0x1000 * k - 0xf00));
        assert_eq!(ended(true, own()), ENDED);
        assert_eq!(ended(false, own()), [false; 6]);
        // The same where handlers run on an alternate stack.
        let alternate = 0x2000_0000;
        let deeper = (0..6).map(|k| match k {
            0 => (TOP, alternate),
            _ => (alternate - 0x800 * k + 0x400, alternate - 0x800 * k),
        });
        assert_eq!(ended(true, deeper), ENDED);
    }

    #[test]
    fn what_the_program_does_itself_is_not() {
        let none =
            |faults: &mut dyn Iterator<Item = (u64, u64)>| !ended(true, faults).contains(&true);
        let at = |stack: u64| (stack, stack - 0xf00);
        // The same fault again and again; deeper and deeper calls, of little stack; of much, as it
        // comes; calls that return; handlers on a stack of their own.
        assert!(none(&mut (0..100).map(|_| at(TOP))));
        assert!(none(&mut (0..100).map(|k| at(TOP - 0x100 * k))));
        assert!(none(&mut (0..100).map(|k| at(TOP - 0x1000 * k * k))));
        assert!(none(&mut (0..100).map(|k| at(TOP + 0x1000 * k))));
        assert!(none(&mut (0..100).map(|k| (TOP - 0x1000 * k, 0x2000_0000))));
        // Deep calls of one size that fail at other addresses, or instructions.
        let nested = Nested::new();
        for k in 0..100 {
            let stack = TOP - 0x1000 * k;
            for fault in [[0x1000, 0x10 * k, stack], [0x1000 + k, 0x10, stack]] {
                assert!(!nested.is_enough(7, fault, |_, _, _| true));
                nested.note_context(stack as usize - 0xf00);
            }
        }
    }
}

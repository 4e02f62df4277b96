//! The end of a thread: the C library blocks every signal and then calls `free`.
//!
//! An allocator that the program brings may have its memory in swap, and a thread that has blocked
//! SIGSEGV is ended by its first touch of it. So a thread that ends, of a program with such an
//! allocator, has its own system calls sent to [`crate::trap`] (Syscall User Dispatch, Linux 5.11;
//! elsewhere nothing is done). There every signal is blocked but those of [`crate::mask::OURS`].
//! Only the calls from the gate page pass; our handlers return from there, too.

use crate::filter::{self, EXEMPT};
use crate::issue::{Args, Caller};
use crate::local::{self, Word};
use crate::static_program::signals;
use crate::{real, state};
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::signal::{self, Mask, SA_RESTORER};
use libc::c_int;
use std::ops::Range;

const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const OFF: usize = 0;
/// For [`dispatch`].
pub const ON: usize = 1;

/// Length of the instruction `syscall`.
const SYSCALL: i64 = 2;

/// Is there anything to do for the threads of this process?
pub fn is_needed() -> bool {
    !real::libc_allocates() && state::careful().is_some() && filter::on()
}

/// Watches the system calls of the calling thread, which ends.
pub fn watch() {
    let signals = [libc::SIGSYS, libc::SIGSEGV, libc::SIGBUS];
    if !signals.into_iter().all(returns_through_gate) {
        return;
    }
    local::set(Word::Ending, 1);
    if dispatch(ON, filter::GATE_PAGE) != 0 {
        local::set(Word::Ending, 0);
    }
}

/// Has our handler of `signal` return by an instruction in the gate page. False: that cannot be.
fn returns_through_gate(signal: c_int) -> bool {
    let Ok(mut action) = signal::action(signal) else {
        return false;
    };
    if action.restorer == filter::RESTORER {
        return true;
    }
    action.flags |= SA_RESTORER;
    action.restorer = filter::RESTORER;
    // SAFETY: the action there is, with another address of the same code.
    unsafe { signal::set_action(signal, &action) }.is_ok()
}

/// Are the calling thread's system calls watched?
pub fn is_watched() -> bool {
    local::get(Word::Ending) != 0
}

/// Has the calling thread's system calls sent to [`crate::trap`], but those that `passing` makes, or not any more. 0, or
/// a negative errno.
pub fn dispatch(what: usize, passing: Range<usize>) -> isize {
    let a = [
        PR_SET_SYSCALL_USER_DISPATCH,
        what,
        passing.start,
        passing.len(),
        0,
        0,
    ];
    // SAFETY: no memory is involved: there is no selector.
    unsafe { syscall6(libc::SYS_prctl as usize, a) }
}

/// Makes a system call of a watched thread. `mask` is the one that the thread goes on with.
pub fn make(nr: i64, a: Args, caller: Option<&Caller>, uc: &mut libc::ucontext_t) {
    let registers = &mut uc.uc_mcontext.gregs;
    let result = match nr {
        libc::SYS_rt_sigprocmask => {
            // SAFETY: sigset_t is larger than 8 bytes and 8-aligned.
            let mask = unsafe { &mut *(&raw mut uc.uc_sigmask).cast::<Mask>() };
            if a[0] == libc::SIG_BLOCK as usize && a[2] == 0 {
                // What the thread was watched for.
                stop();
            }
            signals::mask(a, mask)
        }
        // It cannot be made here. The thread makes it again.
        nr if EXEMPT.contains(&nr) => {
            stop();
            registers[libc::REG_RIP as usize] -= SYSCALL;
            registers[libc::REG_RAX as usize] = nr;
            return;
        }
        _ => match caller {
            Some(caller) => caller.issue(nr, a),
            // SAFETY: the program's own call.
            None => unsafe { syscall6(nr as usize, a) },
        },
    };
    registers[libc::REG_RAX as usize] = result as i64;
}

fn stop() {
    dispatch(OFF, 0..0);
    local::set(Word::Ending, 0);
}

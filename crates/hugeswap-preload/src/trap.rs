//! SIGSYS: system calls that the filter sent back, since an argument lies in managed memory.
//!
//! The handler makes the call in the program's place ([`crate::issue`]) and puts the answer where the kernel
//! would have. It runs on the alternate stack with every signal blocked but those of [`crate::mask::OURS`]: it touches
//! managed memory, and code it is interrupted by may be trapped again. A SIGSYS by which our own
//! threads are told of new credentials goes to [`crate::credentials`], one of anybody else to the program's own action.

use crate::credentials;
use crate::filter::{self, MARK, MARK_EXTENDED};
use crate::issue::Caller;
use crate::lock::Lock;
use crate::mask::OURS;
use crate::real;
use crate::static_program::attached;
use crate::{ending, locked, state, static_program};
use hugeswap_policy::counters::Counter;
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::signal::{self, Action, Mask, bit};
use hugeswap_sys::{Result, process, program_fs};
use libc::{REG_R8, REG_R9, REG_R10, REG_RAX, REG_RDI, REG_RDX, REG_RSI, c_int, c_void};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const SYS_SECCOMP: c_int = 1;
/// As [`SYS_SECCOMP`], for a thread that has asked for it ([`crate::ending`]).
const SYS_USER_DISPATCH: c_int = 2;

hot! {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    /// Set by the handler when [`install_if_trapped`]'s call is trapped.
    static PROBED: AtomicBool = AtomicBool::new(false);
    /// Then: is it one for loaded programs?
    static PROBED_EXTENDED: AtomicBool = AtomicBool::new(false);
    /// What the program believes it installed for SIGSYS.
    static PROGRAM: Lock<Action> = Lock::new(Action {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    });
}

/// Is SIGSYS ours?
pub fn installed() -> bool {
    INSTALLED.load(Acquire)
}

/// Takes SIGSYS, remembering the program's action.
pub fn install() -> bool {
    if installed() {
        return true;
    }
    let Ok(former) = take_signal() else {
        return false;
    };
    *PROGRAM.lock() = former;
    INSTALLED.store(true, Release);
    true
}

/// Has the kernel call our handler; returns the action there was.
fn take_signal() -> Result<Action> {
    let ours = Action {
        handler: on_sys as *const () as usize,
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART) as u64,
        restorer: 0,
        mask: signal::ALL & !OURS,
    };
    // SAFETY: the handler is fit to run wherever a system call is made.
    unsafe { signal::set_action(libc::SIGSYS, &ours) }
}

/// Takes SIGSYS if there is a filter that traps calls on the window at `window`: asks by a write of nothing to
/// nowhere. In the constructor, so that no other thread comes between; most programs have no filter.
pub fn install_if_trapped(window: usize) -> bool {
    let Ok(former) = take_signal() else {
        return false;
    };
    // SAFETY: descriptor -1 is never open, so nothing is read from the address.
    let _ = unsafe { filter::ungated(libc::SYS_write as usize, [usize::MAX, window, 0]) };
    if PROBED.load(Relaxed) {
        *PROGRAM.lock() = former;
        INSTALLED.store(true, Release);
        return true;
    }
    // SAFETY: the program's own action.
    let _ = unsafe { signal::set_action(libc::SIGSYS, &former) };
    false
}

/// Was the filter that [`install_if_trapped`] has found extended for loaded programs?
pub fn found_extended() -> bool {
    PROBED_EXTENDED.load(Relaxed)
}

/// Gives SIGSYS back.
pub fn uninstall() {
    if INSTALLED.swap(false, Relaxed) {
        let action = *PROGRAM.lock();
        // SAFETY: the program's own action.
        let _ = unsafe { signal::set_action(libc::SIGSYS, &action) };
    }
}

/// Reads, and with `new` replaces, what the program believes it installed.
pub fn exchange_program_action(new: Option<Action>) -> Action {
    let mut program = PROGRAM.lock();
    let former = *program;
    if let Some(new) = new {
        *program = new;
    }
    former
}

/// Around a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    PROGRAM.before_fork();
}

/// Around a fork, in parent and child.
pub fn after_fork() {
    PROGRAM.after_fork();
}

/// The mask the interrupted code goes on with.
fn interrupted_mask(uc: &mut libc::ucontext_t) -> &mut Mask {
    // SAFETY: sigset_t is larger than 8 bytes and 8-aligned.
    unsafe { &mut *(&raw mut uc.uc_sigmask).cast::<Mask>() }
}

extern "C" fn on_sys(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let _inside = program_fs::enter();
    handle(signal, info, context);
}

fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid siginfo and ucontext to an SA_SIGINFO handler. For
    // SYS_SECCOMP the siginfo goes on with the call's address, number and architecture.
    let (ours, extended, watched, attached, nr, uc) = unsafe {
        let extended = (*info).si_errno == MARK_EXTENDED;
        let ours = (*info).si_code == SYS_SECCOMP && ((*info).si_errno == MARK || extended);
        let dispatched = (*info).si_code == SYS_USER_DISPATCH;
        let attached = dispatched && attached::is_on();
        let watched = dispatched && !attached && ending::is_watched();
        let nr = (info as *const u8).add(24).cast::<c_int>().read();
        (
            ours || watched || attached,
            extended,
            watched,
            attached,
            nr as i64,
            &mut *(context as *mut libc::ucontext_t),
        )
    };
    // SAFETY: as above.
    if !ours && credentials::answer(unsafe { &*info }) {
        return;
    }
    if !ours {
        return pass_on(signal, info, context);
    }
    let errno = real::errno();
    let r = |i: c_int| uc.uc_mcontext.gregs[i as usize] as usize;
    let a = [
        r(REG_RDI),
        r(REG_RSI),
        r(REG_RDX),
        r(REG_R10),
        r(REG_R8),
        r(REG_R9),
    ];
    let mask = *interrupted_mask(uc);
    let caller = state::engine().map(|engine| {
        engine.pool().count(Counter::SyscallTrapped, 1);
        Caller {
            engine,
            mask: Some(mask),
            cancellable: false,
        }
    });
    let _here = attached.then(|| attached::note_context(uc));
    if watched {
        ending::make(nr, a, caller.as_ref(), uc);
        return real::set_errno(errno);
    }
    if attached && nr == libc::SYS_rt_sigreturn {
        attached::return_from_signal(uc);
        return real::set_errno(errno);
    }
    let result = if nr == libc::SYS_write && a[0] == usize::MAX && a[2] == 0 {
        PROBED.store(true, Relaxed);
        PROBED_EXTENDED.store(extended, Relaxed);
        -(libc::EBADF as isize)
    } else {
        let of_program = (extended || attached)
            .then(|| static_program::by_number(nr, &a, caller.as_ref(), uc))
            .flatten();
        let answered = of_program.or_else(|| locked::by_number(nr, a[0]));
        answered.unwrap_or_else(|| match caller {
            Some(caller) if attached && !attached::concerns_us(nr, &a) => caller.raw(nr, a),
            Some(caller) => caller.issue(nr, a),
            // A filter inherited by an image that manages nothing: the register only looked like an address of ours.
            // SAFETY: the program's own call.
            None => unsafe { syscall6(nr as usize, a) },
        })
    };
    uc.uc_mcontext.gregs[REG_RAX as usize] = result as i64;
    real::set_errno(errno);
}

/// Does what the program's own action says.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let mut program = PROGRAM.lock();
    let action = *program;
    if action.flags & libc::SA_RESETHAND as u32 as u64 != 0 {
        *program = Action::default();
    }
    drop(program);
    match action.handler {
        libc::SIG_IGN => {}
        libc::SIG_DFL => {
            // SAFETY: the default action is always fit.
            let _ = unsafe { signal::set_action(signal, &Action::default()) };
            let _ = process::signal_thread(process::tid(), signal);
        }
        handler => {
            // SAFETY: the kernel's context.
            let mut mask = unsafe { *interrupted_mask(&mut *(context as *mut libc::ucontext_t)) }
                | action.mask;
            if action.flags & libc::SA_NODEFER as u32 as u64 == 0 {
                mask |= bit(signal);
            }
            let outside = program_fs::outside();
            signal::set_mask(mask & !OURS);
            // A handler that takes one argument ignores the others.
            // SAFETY: the program installed this address as a handler.
            let f: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            f(signal, info, context);
            signal::set_mask(signal::ALL & !OURS);
            drop(outside);
        }
    }
}

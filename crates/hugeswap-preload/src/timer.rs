//! Timers that call a function in a thread (SIGEV_THREAD).
//!
//! The C library makes these threads itself, and leaves nearly every signal blocked in them: a
//! fault or a trapped system call there would end the process. So the C library is given a function
//! of ours to call. It prepares the thread for both, and goes on to the program's function.

use crate::lock::Lock;
use crate::{real, state, thread};
use libc::{c_int, c_void};
use std::arch::naked_asm;
use std::collections::BTreeMap;

/// `struct sigevent`, whose part for SIGEV_THREAD the libc crate does not name.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    value: usize,
    signal: c_int,
    notify: c_int,
    function: usize,
    attributes: *const libc::pthread_attr_t,
    _rest: [usize; 4],
}

const _: () = assert!(size_of::<Event>() == size_of::<libc::sigevent>());

/// A function of the program and its argument.
type Call = (usize, usize);

hot! {
    /// Every call that a timer was ever made for. Calls are never removed, because a thread may be
    /// about to make one when its timer is deleted. Programs have few.
    static CALLS: Lock<BTreeMap<Call, &'static Call>> = Lock::new(BTreeMap::new());
}

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
#[unsafe(link_section = "hugeswap_start")]
pub fn before_fork() {
    CALLS.before_fork();
}

/// Releases the lock after a fork, in parent and child.
#[unsafe(link_section = "hugeswap_start")]
pub fn after_fork() {
    CALLS.after_fork();
}

/// The function that the C library calls: it prepares the thread and jumps to the program's
/// function.
#[unsafe(naked)]
extern "C" fn called(call: *const Call) {
    naked_asm!(
        "sub rsp, 24",
        "mov rsi, rsp",
        "call {prepare}",
        "mov rax, [rsp]",
        "mov rdi, [rsp + 8]",
        "add rsp, 24",
        // Nothing of ours stays on the stack: unwinding and cancellation see the program's frames
        // only.
        "jmp rax",
        prepare = sym prepare,
    )
}

extern "C" fn prepare(call: *const Call, next: *mut Call) {
    thread::prepare_foreign();
    // SAFETY: one of `CALLS`, which stay; `next` is room on the thread's stack.
    unsafe { *next = *call };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn timer_create(
    clock: libc::clockid_t,
    event: *const Event,
    timer: *mut libc::timer_t,
) -> c_int {
    // SAFETY: the program's structure, if any.
    let given = unsafe { event.as_ref() }.filter(|e| e.notify == libc::SIGEV_THREAD);
    let Some(given) = given.filter(|_| state::armed()) else {
        // SAFETY: passed on.
        return unsafe { real::timer_create()(clock, event.cast(), timer) };
    };
    thread::before_thread(given.attributes);
    let call = (given.function, given.value);
    let known = *CALLS
        .lock()
        .entry(call)
        .or_insert_with(|| Box::leak(Box::new(call)));
    let ours = Event {
        value: known as *const Call as usize,
        function: called as *const () as usize,
        ..*given
    };
    // SAFETY: passed on, with a structure that the C library copies.
    unsafe { real::timer_create()(clock, (&raw const ours).cast::<c_void>(), timer) }
}

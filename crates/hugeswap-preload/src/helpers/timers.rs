//! Timers that call a function in a thread (SIGEV_THREAD).
//!
//! The kernel signals one thread of ours, which starts a thread for each call. The timer itself is
//! the C library's, made for a signal, so all other calls on it are the C library's too.

use super::notice::{Call, Event, MASK_OF_TIMERS};
use super::{BLOCKED, Waiter};
use crate::lock::Lock;
use crate::mask::OURS;
use crate::{real, state};
use hugeswap_sys::process;
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::signal::{self, bit};
use libc::{c_int, c_void};
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// The signal that the kernel sends: the C library's own for timers.
const SIGNAL: c_int = 32;
/// `SI_TIMER`.
const FROM_TIMER: c_int = -2;

/// A timer's call.
struct Timer {
    /// The C library's name for the timer, once it is known.
    name: Option<usize>,
    call: Call,
}

static WAITER: Waiter = Waiter::new();
static NEXT: AtomicUsize = AtomicUsize::new(1);

hot! {
    /// The timers, by the value that the kernel's signal has.
    static TIMERS: Lock<BTreeMap<usize, Timer>> = Lock::new(BTreeMap::new());
}

pub fn before_fork() {
    TIMERS.before_fork();
}

pub fn after_fork() {
    TIMERS.after_fork();
}

/// A child inherits no timers.
pub fn forget() {
    if WAITER.is_none() {
        return;
    }
    WAITER.set(Waiter::NONE);
    std::mem::forget(std::mem::take(&mut *TIMERS.lock()));
}

extern "C" fn wait_for_timers(_: *mut c_void) -> *mut c_void {
    let set = bit(SIGNAL);
    signal::set_mask((BLOCKED | set) & !OURS);
    WAITER.set(process::tid() as u32);
    // SAFETY: all zeros is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let a = [
        &raw const set as usize,
        &raw mut info as usize,
        0,
        size_of_val(&set),
        0,
        0,
    ];
    loop {
        // SAFETY: the set and the result are as long as the kernel's.
        let number = unsafe { syscall6(libc::SYS_rt_sigtimedwait as usize, a) };
        // SAFETY: a siginfo_t has its code at 8 and, of a timer, the value at 24.
        let (code, value) = unsafe {
            let at = (&raw const info).cast::<u8>();
            (
                at.add(8).cast::<c_int>().read(),
                at.add(24).cast::<usize>().read(),
            )
        };
        if number != SIGNAL as isize || code != FROM_TIMER {
            continue;
        }
        let call = TIMERS.lock().get(&value).map(|t| t.call.clone());
        if let Some(call) = call {
            call.start(MASK_OF_TIMERS);
        }
    }
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
    let Ok(waiter) = WAITER.find(wait_for_timers) else {
        real::set_errno(libc::EAGAIN);
        return -1;
    };
    let value = NEXT.fetch_add(1, Relaxed);
    // SAFETY: the program's event.
    let call = unsafe { Call::of(given) };
    TIMERS.lock().insert(value, Timer { name: None, call });
    let ours = Event {
        value,
        signal: SIGNAL,
        notify: libc::SIGEV_THREAD_ID,
        function: waiter as usize,
        attributes: null_mut(),
        _rest: [0; 4],
    };
    // SAFETY: passed on, with a structure that the kernel copies.
    let result = unsafe { real::timer_create()(clock, (&raw const ours).cast(), timer) };
    if result != 0 {
        let unused = TIMERS.lock().remove(&value);
        drop(unused);
        return result;
    }
    // SAFETY: written by the call.
    let name = unsafe { *timer } as usize;
    if let Some(timer) = TIMERS.lock().get_mut(&value) {
        timer.name = Some(name);
    }
    result
}

#[unsafe(no_mangle)]
unsafe extern "C" fn timer_delete(timer: libc::timer_t) -> c_int {
    let deleted = if WAITER.is_none() {
        None
    } else {
        let mut timers = TIMERS.lock();
        let name = Some(timer as usize);
        let value = timers.iter().find(|(_, t)| t.name == name).map(|(&v, _)| v);
        value.and_then(|value| timers.remove(&value))
    };
    // SAFETY: passed on.
    let result = unsafe { real::timer_delete()(timer) };
    drop(deleted);
    result
}

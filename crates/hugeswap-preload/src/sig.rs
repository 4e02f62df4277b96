//! Signal actions: SIGSEGV and SIGBUS are the engine's and SIGSYS ours, while the program goes on as if it had them.
//!
//! What it installs for them is remembered and called when the signal is not ours. The masks of its other actions
//! leave [`crate::mask::OURS`] out; what was asked for is told back.

use crate::mask::{OURS, bits, set_bits};
use crate::real::{self, set_errno};
use crate::{state, trap};
use hugeswap_engine::handler;
use hugeswap_sys::signal::{self, Action, Mask, bit};
use libc::{SIG_DFL, SIG_ERR, SIG_IGN, c_int};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

pub const SIGNALS: usize = 65;
/// Of [`OURS`], those each action's mask was asked to have.
pub static ASKED: [AtomicU64; SIGNALS] = [const { AtomicU64::new(0) }; SIGNALS];

/// Does the program only believe that it sets the action of `signal`?
pub fn is_virtual(signal: c_int) -> bool {
    match signal {
        libc::SIGSEGV | libc::SIGBUS => state::engine().is_some(),
        libc::SIGSYS => trap::installed(),
        _ => false,
    }
}

pub fn exchange(signal: c_int, new: Option<Action>) -> Action {
    // A vfork child has actions of its own, but our memory is its parent's.
    let new = new.filter(|_| !state::in_vfork_child());
    match (signal, new) {
        (libc::SIGSYS, new) => trap::exchange_program_action(new),
        (_, Some(action)) => handler::set_program_action(signal, action),
        (_, None) => handler::program_action(signal),
    }
}

/// Takes [`OURS`] out of the masks of the actions that the program has installed before. Its threads are stopped.
pub fn strip_masks() {
    change_masks(|signal, mask| {
        ASKED[signal].store(mask & OURS, Relaxed);
        mask & !OURS
    });
}

/// Undoes what was done to the masks of the program's actions. Its threads are stopped.
pub fn restore_masks() {
    change_masks(|signal, mask| mask | ASKED[signal].load(Relaxed));
}

fn change_masks(change: impl Fn(usize, Mask) -> Mask) {
    let others = (1..SIGNALS).filter(|&s| !is_virtual(s as c_int) && OURS & bit(s as c_int) == 0);
    for signal in others {
        let number = signal as c_int;
        let Ok(action) = signal::action(number) else {
            continue;
        };
        let mask = change(signal, action.mask);
        if action.handler > SIG_IGN && mask != action.mask {
            // SAFETY: the program's own action, with another mask.
            let _ = unsafe { signal::set_action(number, &Action { mask, ..action }) };
        }
    }
}

fn from_libc(a: &libc::sigaction) -> Action {
    Action {
        handler: a.sa_sigaction,
        flags: a.sa_flags as u32 as u64,
        restorer: 0,
        // SAFETY: a valid set.
        mask: unsafe { bits(&a.sa_mask) },
    }
}

fn to_libc(a: &Action) -> libc::sigaction {
    // SAFETY: all zeros is a valid sigaction: default, no flags, an empty set.
    let mut out: libc::sigaction = unsafe { std::mem::zeroed() };
    out.sa_sigaction = a.handler;
    // The restorer is the C library's business; it is never told.
    out.sa_flags = a.flags as c_int & !0x0400_0000;
    // SAFETY: `out` is ours.
    unsafe { set_bits(&mut out.sa_mask, a.mask) };
    out
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !state::armed() || !(1..SIGNALS as c_int).contains(&signal) {
        // SAFETY: passed on.
        return unsafe { real::sigaction()(signal, new, old) };
    }
    // SAFETY: the caller's structure, if any.
    let given = unsafe { new.as_ref() }.copied();
    if is_virtual(signal) {
        let former = exchange(signal, given.as_ref().map(from_libc));
        // SAFETY: the caller's structure to write to, if any.
        if let Some(out) = unsafe { old.as_mut() } {
            *out = to_libc(&former);
        }
        return 0;
    }
    let mut asked: Mask = 0;
    let stripped = given.map(|mut a| {
        // SAFETY: a copy of ours.
        unsafe {
            asked = bits(&a.sa_mask) & OURS;
            set_bits(&mut a.sa_mask, bits(&a.sa_mask) & !OURS);
        }
        a
    });
    // SAFETY: all zeros is a valid sigaction.
    let mut former: libc::sigaction = unsafe { std::mem::zeroed() };
    let pass = stripped
        .as_ref()
        .map_or(std::ptr::null(), |a| a as *const _);
    // SAFETY: both structures are ours.
    let result = unsafe { real::sigaction()(signal, pass, &mut former) };
    if result != 0 {
        return result;
    }
    let slot = &ASKED[signal as usize];
    let was = if given.is_some() && !state::in_vfork_child() {
        slot.swap(asked, Relaxed)
    } else {
        slot.load(Relaxed)
    };
    // SAFETY: the caller's structure to write to, if any.
    if let Some(out) = unsafe { old.as_mut() } {
        *out = former;
        // SAFETY: as above.
        unsafe { set_bits(&mut out.sa_mask, bits(&former.sa_mask) | was) };
    }
    0
}

/// `signal` and its kin, for a virtual signal: installs `handler` with `flags`.
fn install(signal: c_int, handler: usize, flags: c_int, masks_itself: bool) -> usize {
    let action = Action {
        handler,
        flags: flags as u32 as u64,
        restorer: 0,
        mask: if masks_itself { bit(signal) } else { 0 },
    };
    exchange(signal, Some(action)).handler
}

#[unsafe(no_mangle)]
unsafe extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    if is_virtual(signal) && handler != SIG_ERR {
        return install(signal, handler, libc::SA_RESTART, true);
    }
    // SAFETY: passed on.
    unsafe { real::signal()(signal, handler) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bsd_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: passed on.
    unsafe { signal(number, handler) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sysv_signal(signal: c_int, handler: usize) -> usize {
    if is_virtual(signal) && handler != SIG_ERR {
        return install(
            signal,
            handler,
            libc::SA_RESETHAND | libc::SA_NODEFER,
            false,
        );
    }
    // SAFETY: passed on.
    unsafe { real::sysv_signal()(signal, handler) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __sysv_signal(number: c_int, handler: usize) -> usize {
    // SAFETY: passed on.
    unsafe { sysv_signal(number, handler) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigset(signal: c_int, handler: usize) -> usize {
    const SIG_HOLD: usize = 2;
    if is_virtual(signal) {
        return match handler {
            SIG_ERR => {
                set_errno(libc::EINVAL);
                SIG_ERR
            }
            // Holding it back is what we never do.
            SIG_HOLD => exchange(signal, None).handler,
            _ => install(signal, handler, 0, false),
        };
    }
    // SAFETY: passed on.
    unsafe { real::sigset()(signal, handler) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigignore(signal: c_int) -> c_int {
    if is_virtual(signal) {
        install(signal, SIG_IGN, 0, false);
        return 0;
    }
    // SAFETY: passed on.
    unsafe { real::sigignore()(signal) }
}

const _: () = assert!(SIG_DFL == 0 && SIG_IGN == 1);

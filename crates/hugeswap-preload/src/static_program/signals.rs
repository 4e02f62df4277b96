//! Actions, masks and alternate stacks that a program sets by system calls of its own: as
//! [`crate::sig`], [`crate::mask`] and [`crate::thread`] do it for those that the C library sets.
//!
//! The call was trapped, so the mask is the one in the trap's context, from which the kernel sets it
//! when the handler returns.

use super::thread::STACK_LEN;
use crate::issue::{Args, EINVAL};
use crate::local::{self, Word};
use crate::mask::{self, OURS};
use crate::thread::ENOUGH;
use crate::{extent, mmap, sig, state};
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::signal::{Action, Blocked, Mask, bit};
use std::arch::asm;
use std::sync::atomic::Ordering::Relaxed;

/// Length of the kernel's sets.
const SET: usize = 8;
const NEVER_BLOCKED: Mask = bit(libc::SIGKILL) | bit(libc::SIGSTOP);

/// rt_sigaction(2).
pub fn action(a: Args) -> isize {
    let number = a[0] as i32;
    if a[3] != SET || !(1..sig::SIGNALS as i32).contains(&number) {
        return EINVAL;
    }
    // SAFETY: the program's structure, if any.
    let given = (a[1] != 0).then(|| unsafe { (a[1] as *const Action).read_unaligned() });
    let mut former = Action::default();
    if sig::is_virtual(number) {
        former = sig::exchange(number, given);
    } else {
        let asked = given.map_or(0, |g| g.mask & OURS);
        let stripped = given.map(|g| Action {
            mask: g.mask & !OURS,
            ..g
        });
        let new = stripped.as_ref().map_or(0, |s| s as *const Action as usize);
        let args = [a[0], new, &raw mut former as usize, SET, 0, 0];
        // SAFETY: the program's own call; both structures are ours.
        let result = unsafe { syscall6(libc::SYS_rt_sigaction as usize, args) };
        if result != 0 {
            return result;
        }
        let slot = &sig::ASKED[number as usize];
        former.mask |= if given.is_some() && !state::in_vfork_child() {
            slot.swap(asked, Relaxed)
        } else {
            slot.load(Relaxed)
        };
    }
    if a[2] != 0 {
        // SAFETY: the program's structure to write to.
        unsafe { (a[2] as *mut Action).write_unaligned(former) };
    }
    0
}

/// rt_sigprocmask(2). `interrupted` is the mask that the program goes on with.
pub fn mask(a: Args, interrupted: &mut Mask) -> isize {
    if a[3] != SET {
        return EINVAL;
    }
    let was = *interrupted | mask::believed();
    if a[1] != 0 {
        // SAFETY: the program's set.
        let set = unsafe { (a[1] as *const Mask).read_unaligned() };
        let new = match a[0] as i32 {
            libc::SIG_BLOCK => was | set,
            libc::SIG_UNBLOCK => was & !set,
            libc::SIG_SETMASK => set,
            _ => return EINVAL,
        };
        *interrupted = new & !(OURS | NEVER_BLOCKED);
        mask::believe(new);
    }
    if a[2] != 0 {
        // SAFETY: the program's set to write to.
        unsafe { (a[2] as *mut Mask).write_unaligned(was) };
    }
    0
}

/// A set, as pselect6(2) is given one.
#[repr(C)]
struct Sized {
    set: usize,
    len: usize,
}

/// A call that waits under a mask, with that mask stripped.
pub struct Waiting {
    set: Mask,
    sized: Sized,
}

impl Waiting {
    /// Makes `a` the arguments to call with, which point to what is returned.
    pub fn prepare(nr: i64, a: &mut Args) -> Option<Box<Waiting>> {
        let i = match nr {
            libc::SYS_rt_sigsuspend => 0,
            libc::SYS_ppoll => 3,
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => 4,
            libc::SYS_pselect6 => 5,
            _ => return None,
        };
        let mut at = a[i];
        if at == 0 {
            return None;
        }
        let mut new = Box::new(Waiting {
            set: 0,
            sized: Sized { set: 0, len: SET },
        });
        if nr == libc::SYS_pselect6 {
            // SAFETY: the program's structure.
            let sized = unsafe { (at as *const Sized).read_unaligned() };
            if sized.set == 0 {
                return None;
            }
            at = sized.set;
            new.sized.len = sized.len;
        }
        // SAFETY: the program's set.
        new.set = unsafe { (at as *const Mask).read_unaligned() } & !OURS;
        new.sized.set = &raw const new.set as usize;
        a[i] = match nr {
            libc::SYS_pselect6 => &raw const new.sized as usize,
            _ => new.sized.set,
        };
        Some(new)
    }
}

/// sigaltstack(2).
pub fn alternate_stack(a: Args, context: &mut libc::ucontext_t) -> isize {
    let ours = local::get(Word::Stack);
    let sp = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    let mut former = context.uc_stack;
    if former.ss_sp as usize == ours {
        former.ss_sp = local::get(Word::BelievedStack) as *mut _;
        former.ss_size = local::get(Word::BelievedSize);
    }
    // A program runs on ours when it has one that is too small for us.
    let on = |stack: &libc::stack_t| sp.wrapping_sub(stack.ss_sp as usize) < stack.ss_size;
    let active = former.ss_size != 0 && (on(&former) || on(&context.uc_stack));
    former.ss_flags = match (former.ss_size, active) {
        (0, _) => libc::SS_DISABLE,
        (_, true) => libc::SS_ONSTACK,
        _ => 0,
    };
    if a[0] != 0 {
        // SAFETY: the program's structure.
        let wanted = unsafe { (a[0] as *const libc::stack_t).read_unaligned() };
        let result = set_alternate_stack(wanted, ours, active, context);
        if result != 0 {
            return result;
        }
    }
    if a[1] != 0 {
        // SAFETY: the program's structure to write to.
        unsafe { (a[1] as *mut libc::stack_t).write_unaligned(former) };
    }
    0
}

fn set_alternate_stack(
    wanted: libc::stack_t,
    ours: usize,
    active: bool,
    context: &mut libc::ucontext_t,
) -> isize {
    const AUTODISARM: i32 = 1 << 31;
    let flags = wanted.ss_flags & !AUTODISARM;
    if active {
        return -(libc::EPERM as isize);
    }
    if ![0, libc::SS_ONSTACK, libc::SS_DISABLE].contains(&flags) {
        return EINVAL;
    }
    let off = flags == libc::SS_DISABLE;
    if !off && wanted.ss_size < libc::MINSIGSTKSZ {
        return -(libc::ENOMEM as isize);
    }
    let (at, len) = (wanted.ss_sp as usize, wanted.ss_size);
    let used = !off && len >= ENOUGH;
    if used
        && extent::meets_managed(at, len)
        && let Some(engine) = state::engine()
        && let Err(e) = mmap::eject(engine, at, len)
    {
        return -(e.0 as isize);
    }
    let (believed_at, believed_len) = if used || off { (0, 0) } else { (at, len) };
    local::set(Word::BelievedStack, believed_at);
    local::set(Word::BelievedSize, believed_len);
    let new = libc::stack_t {
        ss_sp: if used { wanted.ss_sp } else { ours as *mut _ },
        ss_flags: 0,
        ss_size: if used { len } else { STACK_LEN },
    };
    let result = set_from_elsewhere(&new, context);
    if result == 0 {
        context.uc_stack = new;
    }
    result
}

/// sigaltstack(2) in a handler that runs on the alternate stack, which the kernel does not change
/// under it, nor at its end: it is asked with the stack pointer of the interrupted code, which does
/// not.
fn set_from_elsewhere(new: &libc::stack_t, context: &libc::ucontext_t) -> isize {
    let sp = context.uc_mcontext.gregs[libc::REG_RSP as usize];
    // A signal would be taken at the end of the stack that the caller runs on.
    let _blocked = Blocked::all();
    let result: isize;
    // SAFETY: a stack that the program gave, or ours. Nothing is pushed while the stack pointer is
    // another; the kernel clobbers rcx and r11 only.
    unsafe {
        asm!(
            "mov {kept}, rsp",
            "mov rsp, {sp}",
            "syscall",
            "mov rsp, {kept}",
            kept = out(reg) _,
            sp = in(reg) sp,
            inlateout("rax") libc::SYS_sigaltstack as isize => result,
            in("rdi") new,
            in("rsi") 0,
            out("rcx") _,
            out("r11") _,
        );
    }
    result
}

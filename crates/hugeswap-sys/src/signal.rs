//! Signals, straight from the kernel: without libc's state, and past anything interposed.

use crate::Result;
use crate::raw::call;
use std::arch::global_asm;

/// A set of signals: bit n-1 stands for signal n.
pub type Mask = u64;

/// Every signal.
pub const ALL: Mask = u64::MAX;

/// The bit of `signal` in a [`Mask`].
pub const fn bit(signal: i32) -> Mask {
    1 << (signal - 1)
}

/// The signals by which faults and trapped system calls are told: hugeswap never blocks them in
/// threads of the program.
pub const TOLD: Mask = bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGSYS);

/// The kernel's `struct sigaction` on x86-64.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Address of the handler, or SIG_DFL (0) or SIG_IGN (1).
    pub handler: usize,
    /// SA_* flags.
    pub flags: u64,
    /// Where the handler returns to (filled in by [`set_action`]).
    pub restorer: usize,
    /// The signals that are blocked while the handler runs.
    pub mask: Mask,
}

/// In [`Action::flags`]: the restorer is given.
pub const SA_RESTORER: u64 = 0x0400_0000;

global_asm!(
    ".pushsection .text.hugeswap_restorer,\"ax\",@progbits",
    ".balign 16",
    ".hidden __restore_rt",
    ".globl __restore_rt",
    // Unwinders recognise a signal frame by exactly these bytes, gdb also by the name of the C
    // library's function.
    "nop",
    "__restore_rt:",
    "mov rax, 15",
    "syscall",
    ".popsection",
);

/// The machine code that a signal handler may return to, and the offset in it of the address to
/// return to: `nop; mov rax, 15; syscall`.
pub const RESTORER_CODE: ([u8; 10], usize) = (
    [0x90, 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05],
    1,
);

unsafe extern "C" {
    fn __restore_rt();
}

/// The address in this object that a signal handler may return to.
pub fn restorer() -> usize {
    __restore_rt as *const () as usize
}

/// Sets the action of `signal`, and returns the former one.
///
/// # Safety
/// The handler must be fit to run whenever the signal comes.
#[unsafe(link_section = "hugeswap_start")]
pub unsafe fn set_action(signal: i32, action: &Action) -> Result<Action> {
    let mut new = *action;
    if new.flags & SA_RESTORER == 0 {
        new.flags |= SA_RESTORER;
        new.restorer = __restore_rt as *const () as usize;
    }
    let mut old = Action::default();
    // SAFETY: both structs are the kernel's layout with an 8-byte mask.
    unsafe {
        call(
            libc::SYS_rt_sigaction,
            [
                signal as usize,
                &new as *const _ as usize,
                &mut old as *mut _ as usize,
                8,
                0,
                0,
            ],
        )
    }?;
    Ok(old)
}

/// The action of `signal`.
pub fn action(signal: i32) -> Result<Action> {
    let mut old = Action::default();
    // SAFETY: `old` is writable and of the kernel's layout.
    unsafe {
        call(
            libc::SYS_rt_sigaction,
            [signal as usize, 0, &mut old as *mut _ as usize, 8, 0, 0],
        )
    }?;
    Ok(old)
}

/// Sets the calling thread's mask, and returns the former one.
#[unsafe(link_section = "hugeswap_start")]
pub fn set_mask(mask: Mask) -> Mask {
    let mut old: Mask = 0;
    // SAFETY: both masks are 8 bytes.
    let _ = unsafe {
        call(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                &mask as *const _ as usize,
                &mut old as *mut _ as usize,
                8,
                0,
                0,
            ],
        )
    };
    old
}

/// The calling thread's mask.
#[unsafe(link_section = "hugeswap_start")]
pub fn mask() -> Mask {
    let mut mask: Mask = 0;
    let out = &raw mut mask as usize;
    // SAFETY: the mask is 8 bytes; nothing is changed.
    let _ = unsafe { call(libc::SYS_rt_sigprocmask, [0, 0, out, 8, 0, 0]) };
    mask
}

/// Blocks signals until dropped. An engine call by a thread of the program runs under this, so that
/// no handler of the program can fault while the engine's locks are held.
pub struct Blocked(Mask);

impl Blocked {
    /// Blocks every signal that can be blocked.
    #[must_use]
    pub fn all() -> Blocked {
        Blocked(set_mask(ALL))
    }

    /// Blocks all signals but those by which the kernel tells a thread that it cannot go on: the
    /// stack of the thread may be managed memory.
    #[must_use]
    pub fn all_but_faults() -> Blocked {
        let faults = bit(libc::SIGSEGV) | bit(libc::SIGBUS) | bit(libc::SIGSYS);
        Blocked(set_mask(ALL & !faults))
    }

    /// Blocks all signals but the one by which the C library has every thread change its user.
    #[must_use]
    pub fn all_but_user() -> Blocked {
        const SIGSETXID: i32 = 33;
        Blocked(set_mask(ALL & !bit(SIGSETXID)))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

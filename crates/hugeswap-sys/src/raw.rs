//! The only `syscall` instruction, behind a *gate* that can be moved.
//!
//! Under `hugeswap run` a seccomp filter traps system calls whose arguments point into managed
//! memory, except those from one fixed page. [`set_gate`] names that page once it is mapped; before
//! that, the gate is a stub in this object.

use crate::{Errno, Result};
use std::arch::{asm, global_asm};
use std::sync::atomic::{AtomicUsize, Ordering};

global_asm!(
    ".pushsection hugeswap_start,\"ax\",@progbits",
    ".balign 64",
    ".hidden hugeswap_syscall_gate",
    ".globl hugeswap_syscall_gate",
    "hugeswap_syscall_gate:",
    "syscall",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn hugeswap_syscall_gate();
}

/// Address of the gate; 0 for the stub in this object. (Every start reads it.)
#[unsafe(link_section = "hugeswap_hot")]
static GATE: AtomicUsize = AtomicUsize::new(0);

/// The machine code of a gate: `syscall; ret`.
pub const GATE_CODE: [u8; 3] = [0x0f, 0x05, 0xc3];

/// Routes every later call through the code at `address`.
///
/// # Safety
/// `address` must hold [`GATE_CODE`], executable, for the rest of the process's life.
pub unsafe fn set_gate(address: usize) {
    GATE.store(address, Ordering::Release);
}

/// The address of the instruction `syscall` in this object.
pub fn own_gate() -> usize {
    hugeswap_syscall_gate as *const () as usize
}

/// Issues system call `nr`; returns the kernel's raw answer (-4095..=-1 are errors).
///
/// # Safety
/// The arguments must be what that call asks for; the caller answers for whatever
/// memory the call reads, writes or remaps.
#[inline]
pub unsafe fn syscall6(nr: usize, a: [usize; 6]) -> isize {
    #[cfg(feature = "inject")]
    if let Some(answer) = crate::inject::before(nr, &a) {
        return answer;
    }
    // SAFETY: passed on to the caller.
    unsafe { issue(nr, a) }
}

/// Like [`syscall6`], whatever a test has planned for the call.
///
/// # Safety
/// As for [`syscall6`].
#[inline]
pub(crate) unsafe fn issue(nr: usize, a: [usize; 6]) -> isize {
    let mut gate = GATE.load(Ordering::Relaxed);
    if gate == 0 {
        gate = own_gate();
    }
    let ret: isize;
    // SAFETY: the gate is `syscall; ret` (invariant of set_gate); the kernel clobbers
    // rcx and r11 only, the call pushes one word, hence no nostack and no red zone use.
    unsafe {
        asm!(
            "call {gate}",
            gate = in(reg) gate,
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
        );
    }
    ret
}

/// The kernel's raw answer as a value or an [`Errno`].
#[inline]
pub fn check(ret: isize) -> Result<usize> {
    if (-4095..0).contains(&ret) {
        Err(Errno(-ret as i32))
    } else {
        Ok(ret as usize)
    }
}

/// Like [`syscall6`], with the answer checked.
///
/// # Safety
/// As for [`syscall6`].
#[inline]
pub unsafe fn call(nr: libc::c_long, a: [usize; 6]) -> Result<usize> {
    // SAFETY: passed on to the caller.
    check(unsafe { syscall6(nr as usize, a) })
}

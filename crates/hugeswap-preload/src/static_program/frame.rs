//! The kernel's signal frame on x86-64: copied to another stack, and returned from there.

use hugeswap_sys::program_fs;
use std::arch::asm;

/// The part of `ucontext_t` that the kernel writes and reads: up to its 8 bytes of mask.
const CONTEXT: usize = 304;
/// The state of the floating-point registers where nothing says that it is longer.
const LEGACY: usize = 512;
/// Where that says how long it is: `struct _fpx_sw_bytes`.
const SOFTWARE: usize = 464;
const EXTENDED: u32 = 0x4650_5853;

/// Copies a frame to the end of the memory below `top`. Returns the address of the copied context,
/// and the lowest address that is used (a multiple of 16).
///
/// # Safety
/// `context` is in a frame of the kernel's; below `top` there is room (a few pages), and it is the
/// caller's.
pub unsafe fn copy(context: &libc::ucontext_t, top: usize) -> (usize, usize) {
    let state = context.uc_mcontext.fpregs as usize;
    let mut len = 0;
    if state != 0 {
        // SAFETY: the kernel's frame: the magic number and the length.
        let [magic, extended] = unsafe { ((state + SOFTWARE) as *const [u32; 2]).read_unaligned() };
        len = if magic == EXTENDED {
            extended as usize
        } else {
            LEGACY
        };
    }
    let new_state = (top - len) & !63;
    let new = (new_state - CONTEXT) & !15;
    // SAFETY: by contract.
    unsafe {
        std::ptr::copy_nonoverlapping(state as *const u8, new_state as *mut u8, len);
        let from = (context as *const libc::ucontext_t).cast::<u8>();
        std::ptr::copy_nonoverlapping(from, new as *mut u8, CONTEXT);
        let at = &raw mut (*(new as *mut libc::ucontext_t)).uc_mcontext.fpregs;
        at.write(if len == 0 {
            std::ptr::null_mut()
        } else {
            new_state as *mut _
        });
    }
    // (The word below is where the kernel looks for the frame's return address.)
    (new, new - 16)
}

/// Returns from the frame of a copied context, with FS as the program has it.
///
/// # Safety
/// A context that [`copy`] has made, with what the thread is to go on with.
pub unsafe fn resume(context: usize) -> ! {
    // SAFETY: the kernel takes every register from the frame; no thread-locals are used before.
    unsafe {
        program_fs::leave();
        asm!(
            "mov rsp, {}",
            "mov eax, 15",
            "syscall",
            "ud2",
            in(reg) context,
            options(noreturn),
        )
    }
}

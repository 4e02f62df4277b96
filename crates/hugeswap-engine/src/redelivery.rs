//! A signal that is the program's, moved to the stack that its handler is to run on.
//!
//! Our handler of SIGSEGV and SIGBUS runs on the thread's alternate stack. A handler of the program
//! that is not installed with `SA_ONSTACK` runs on the stack that was interrupted, as long as that
//! may be: a backtrace does not fit the 8 KiB that many threads have as their alternate stack, of
//! which the kernel's frame takes 3 to 11. And a signal that is sent meanwhile begins at the top of
//! the alternate stack, where our frame would be.
//!
//! So the kernel's frame is copied to where the kernel would have put it, and our own frame is made
//! to return into the program's handler. That returns to `rt_sigreturn` on the copy. Nothing of ours
//! is on any stack meanwhile, and the alternate stack is free.

use crate::careful;
use hugeswap_sys::signal::{self, Action, Mask, SA_RESTORER};
use std::mem::offset_of;

/// `struct rt_sigframe` of the kernel on x86-64, without the state of the floating-point unit, which
/// lies above it.
#[repr(C)]
struct Frame {
    restorer: usize,
    context: Context,
    info: [u64; 16],
}

/// The kernel's `struct ucontext`: the first 304 bytes of the C library's.
#[repr(C)]
#[derive(Clone, Copy)]
struct Context {
    flags: u64,
    link: u64,
    stack: libc::stack_t,
    registers: [u64; 23],
    fp_state: usize,
    reserved: [u64; 8],
    mask: Mask,
}

const _: () = assert!(size_of::<Frame>() == 440 && size_of::<Context>() == 304);

/// Below the stack pointer of the code that was interrupted: its red zone.
const RED_ZONE: usize = 128;

/// What the kernel leaves in the state of the floating-point unit, from its byte 464 on
/// (`struct _fpx_sw_bytes`), for those who copy it.
const SOFTWARE_BYTES: usize = 464;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
/// Without that: as FXSAVE has it.
const FXSAVE_BYTES: usize = 512;
/// Where the header of XSAVE says which parts are not as they are initially.
const XSTATE_BV: usize = 512;
const MXCSR: usize = 24;
const MXCSR_INITIAL: u32 = 0x1f80;

/// Flags that the kernel clears for a handler: direction, trap, resume.
const EFLAGS_CLEARED: u64 = 0x400 | 0x100 | 0x1_0000;

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redelivery {
    /// The handler runs when our own handler returns; its context is at this address.
    At(usize),
    /// It is to run on the stack that we are on.
    Here,
    /// There is no room on its stack.
    NoRoom,
}

/// Has `action` of the program's run for `signal` once the caller, which is the handler that has
/// `info` and `context` of the kernel's, returns. `mask`: what is blocked meanwhile.
///
/// # Safety
///
/// `info` and `context` must be those of the signal frame that this thread is in, and the action's
/// handler a function of the program's.
pub(crate) unsafe fn redeliver(
    signal: i32,
    action: &Action,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    mask: Mask,
) -> Redelivery {
    // SAFETY: of the kernel, whose layout it has.
    let context = unsafe { &mut *context.cast::<Context>() };
    let sp = context.registers[libc::REG_RSP as usize] as usize;
    if action.flags & libc::SA_ONSTACK as u64 != 0 || !leaves_alternate(&context.stack, sp) {
        return Redelivery::Here;
    }
    let (from, len) = (context.fp_state, fp_bytes(context.fp_state));
    let below = sp.wrapping_sub(RED_ZONE);
    let fp_state = match from {
        0 => 0,
        _ => below.wrapping_sub(len) & !63,
    };
    let top = if fp_state == 0 { below } else { fp_state };
    // As after a call: 8 bytes below a multiple of 16.
    let frame = (top.wrapping_sub(size_of::<Frame>()) & !15).wrapping_sub(8);
    let copied = Frame {
        restorer: match action.flags & SA_RESTORER {
            0 => signal::restorer(),
            _ => action.restorer,
        },
        context: Context {
            fp_state,
            ..*context
        },
        // SAFETY: the kernel's, 128 bytes.
        info: unsafe { *info.cast() },
    };
    // (That stack may be managed memory, which is absent.)
    let blocked = signal::set_mask(signal::ALL & !signal::TOLD);
    // SAFETY: below what the interrupted code uses of its stack; a signal frame would be there.
    let there = unsafe {
        careful::copy(fp_state, from, len)
            .and_then(|()| careful::copy(frame, &raw const copied as usize, size_of::<Frame>()))
    };
    signal::set_mask(blocked);
    if there.is_err() {
        return Redelivery::NoRoom;
    }
    let registers = &mut context.registers;
    for (register, value) in [
        (libc::REG_RIP, action.handler),
        (libc::REG_RSP, frame),
        (libc::REG_RDI, signal as usize),
        (libc::REG_RSI, frame + offset_of!(Frame, info)),
        (libc::REG_RDX, frame + offset_of!(Frame, context)),
        (libc::REG_RAX, 0),
    ] {
        registers[register as usize] = value as u64;
    }
    registers[libc::REG_EFL as usize] &= !EFLAGS_CLEARED;
    context.mask = mask;
    if len > FXSAVE_BYTES {
        // A handler begins with the unit as it is initially.
        // SAFETY: in the kernel's frame, within what `fp_bytes` has found there.
        unsafe {
            ((from + XSTATE_BV) as *mut u64).write(0);
            ((from + MXCSR) as *mut u32).write(MXCSR_INITIAL);
        }
    }
    Redelivery::At(frame + offset_of!(Frame, context))
}

/// Is there an alternate stack, and was code interrupted that is not on it?
fn leaves_alternate(stack: &libc::stack_t, sp: usize) -> bool {
    let used = sp.wrapping_sub(stack.ss_sp as usize);
    let within = used != 0 && used <= stack.ss_size;
    stack.ss_flags & libc::SS_DISABLE == 0 && stack.ss_size != 0 && !within
}

/// Bytes of the floating-point unit's state in the kernel's frame.
fn fp_bytes(at: usize) -> usize {
    if at == 0 {
        return 0;
    }
    // SAFETY: the kernel's, at least as long as FXSAVE has it.
    let (magic, extended) = unsafe {
        let words = (at + SOFTWARE_BYTES) as *const u32;
        (words.read(), words.add(1).read())
    };
    match magic {
        FP_XSTATE_MAGIC1 => extended as usize,
        _ => FXSAVE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_on_the_alternate_stack_leaves_it() {
        let stack = |flags, size| libc::stack_t {
            ss_sp: 0x10000 as *mut libc::c_void,
            ss_flags: flags,
            ss_size: size,
        };
        for (sp, leaves) in [
            (0x10000, true),
            (0x10008, false),
            (0x12000, false),
            (0x12008, true),
            (0x8000, true),
        ] {
            assert_eq!(leaves_alternate(&stack(0, 0x2000), sp), leaves, "{sp:#x}");
        }
        assert!(!leaves_alternate(&stack(libc::SS_DISABLE, 0), 0x8000));
        assert!(!leaves_alternate(&stack(0, 0), 0x8000));
    }

    #[test]
    fn the_state_has_the_length_that_the_kernel_says() {
        let mut state = [0u32; 1024];
        let at = state.as_ptr() as usize;
        assert_eq!(fp_bytes(0), 0);
        assert_eq!(fp_bytes(at), FXSAVE_BYTES);
        state[SOFTWARE_BYTES / 4] = FP_XSTATE_MAGIC1;
        state[SOFTWARE_BYTES / 4 + 1] = 2700;
        assert_eq!(
            fp_bytes(std::hint::black_box(&state).as_ptr() as usize),
            2700
        );
    }
}

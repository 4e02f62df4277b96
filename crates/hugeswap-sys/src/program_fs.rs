//! The FS register in a process whose program has a C library of its own, which hugeswap's code
//! does not know: a statically linked program that `hugeswap run` has loaded.
//!
//! FS points to the thread-locals of whichever code runs. The program sets it for its own code. Our
//! handlers need the thread-locals of the C library that *they* are linked with, so each of them
//! begins by [`enter`] and puts FS back at its end; where a handler runs code of the program, or
//! lets a signal come that runs such code, it does so under [`outside`].
//!
//! GS, which programs leave alone, points to the calling thread's [`Thread`], where both values of
//! FS are. In any other process nothing of this is switched on, and each function is one test.

use crate::raw::syscall6;
use std::arch::asm;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU8, AtomicUsize};

/// What GS points to.
#[repr(C, align(64))]
pub struct Thread {
    /// FS in code of ours; 0 in a thread of hugeswap itself, whose FS never changes.
    ours: AtomicUsize,
    /// FS in code of the program.
    program: AtomicUsize,
}

impl Thread {
    /// Where FS in code of ours is, and FS in code of the program: for who reads another process.
    pub const FIELDS: [usize; 2] = [
        std::mem::offset_of!(Thread, ours),
        std::mem::offset_of!(Thread, program),
    ];

    /// For a thread of the program whose handlers use the thread-locals at `ours`.
    pub const fn new(ours: usize) -> Thread {
        Thread {
            ours: AtomicUsize::new(ours),
            program: AtomicUsize::new(0),
        }
    }

    /// FS in code of the program. A change holds from the end of the handler on.
    pub fn program(&self) -> &AtomicUsize {
        &self.program
    }

    /// FS in code of ours.
    pub fn ours(&self) -> usize {
        self.ours.load(Relaxed)
    }
}

/// Of the threads of hugeswap.
static NOBODY: Thread = Thread::new(0);

const OFF: u8 = 0;
/// FS and GS are set by system calls.
const BY_CALLS: u8 = 1;
/// FS and GS are set by instructions, which the kernel permits.
const BY_INSTRUCTIONS: u8 = 2;

static HOW: AtomicU8 = AtomicU8::new(OFF);

const ARCH_SET_GS: usize = 0x1001;
const ARCH_SET_FS: usize = 0x1002;
const ARCH_GET_FS: usize = 0x1003;

/// Is this process one whose FS is switched?
#[inline]
pub fn is_on() -> bool {
    HOW.load(Relaxed) != OFF
}

/// Switches FS from now on; the calling thread, which runs code of ours, is `thread`. To be called
/// while the process has no other threads.
pub fn switch_on(thread: &'static Thread) {
    /// `HWCAP2_FSGSBASE`.
    const PERMITTED: u64 = 1 << 1;
    // SAFETY: reads the auxiliary vector.
    let permitted = unsafe { libc::getauxval(libc::AT_HWCAP2) } & PERMITTED != 0;
    let how = if permitted { BY_INSTRUCTIONS } else { BY_CALLS };
    // GS first: a handler that finds FS switched looks where GS points.
    set_gs(thread, how);
    HOW.store(how, SeqCst);
}

/// The calling thread is `thread` from now on.
pub fn become_thread(thread: &'static Thread) {
    set_gs(thread, HOW.load(Relaxed));
}

/// The calling thread is one of hugeswap's. (It has GS from the thread that made it.)
pub fn become_ours() {
    if is_on() {
        become_thread(&NOBODY);
    }
}

/// The calling thread. Only where FS is switched.
pub fn current() -> &'static Thread {
    debug_assert!(is_on());
    // SAFETY: where FS is switched GS is what `set_gs` was given, which is never freed while its
    // thread runs.
    unsafe { &*(gs_base() as *const Thread) }
}

fn gs_base() -> usize {
    if HOW.load(Relaxed) == BY_INSTRUCTIONS {
        let base: usize;
        // SAFETY: reads a register; the kernel permits it.
        unsafe { asm!("rdgsbase {}", out(reg) base, options(nomem, nostack)) };
        return base;
    }
    const ARCH_GET_GS: usize = 0x1004;
    get_base(ARCH_GET_GS)
}

fn get_base(what: usize) -> usize {
    let mut base = 0usize;
    let args = [what, &raw mut base as usize, 0, 0, 0, 0];
    // SAFETY: writes the register's value to `base`.
    unsafe { syscall6(libc::SYS_arch_prctl as usize, args) };
    base
}

fn set_gs(thread: &'static Thread, how: u8) {
    let base = thread as *const Thread as usize;
    if how == BY_INSTRUCTIONS {
        // SAFETY: nothing but this module uses GS.
        unsafe { asm!("wrgsbase {}", in(reg) base, options(nostack)) };
    } else {
        let args = [ARCH_SET_GS, base, 0, 0, 0, 0];
        // SAFETY: as above.
        unsafe { syscall6(libc::SYS_arch_prctl as usize, args) };
    }
}

fn fs() -> usize {
    if HOW.load(Relaxed) == BY_INSTRUCTIONS {
        let base: usize;
        // SAFETY: reads a register; the kernel permits it.
        unsafe { asm!("rdfsbase {}", out(reg) base, options(nomem, nostack)) };
        return base;
    }
    get_base(ARCH_GET_FS)
}

/// Sets FS.
///
/// # Safety
/// The code that runs next uses the thread-locals at `base`, or none.
unsafe fn set_fs(base: usize) {
    if HOW.load(Relaxed) == BY_INSTRUCTIONS {
        // SAFETY: the caller's promise. (What is in memory may be found by FS: it is clobbered.)
        unsafe { asm!("wrfsbase {}", in(reg) base, options(nostack)) };
    } else {
        // SAFETY: as above.
        unsafe {
            syscall6(
                libc::SYS_arch_prctl as usize,
                [ARCH_SET_FS, base, 0, 0, 0, 0],
            )
        };
    }
}

/// Code of ours runs until this is dropped.
#[must_use]
pub struct Inside(bool);

/// A handler of ours begins. Uses no thread-locals, and leaves `errno` alone.
#[inline]
pub fn enter() -> Inside {
    Inside(is_on() && enter_ours())
}

#[cold]
fn enter_ours() -> bool {
    let thread = current();
    let (ours, now) = (thread.ours(), fs());
    if ours == 0 || now == ours {
        return false;
    }
    thread.program.store(now, Relaxed);
    // SAFETY: code of ours runs next, up to the drop of what `enter` returns.
    unsafe { set_fs(ours) };
    true
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: the handler returns to code of the program.
            unsafe { set_fs(current().program.load(Relaxed)) };
        }
    }
}

/// Code of the program may run until this is dropped.
#[must_use]
pub struct Outside(bool);

/// In a handler that has called [`enter`]: code of the program runs next, or a signal may come that
/// has the kernel run such code. Until the drop the caller uses no thread-locals.
#[inline]
pub fn outside() -> Outside {
    let switched = is_on() && current().ours() != 0;
    if switched {
        // SAFETY: the caller uses no thread-locals until the drop.
        unsafe { set_fs(current().program.load(Relaxed)) };
    }
    Outside(switched)
}

impl Drop for Outside {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: code of ours runs again.
            unsafe { set_fs(current().ours()) };
        }
    }
}

/// FS is the program's for good: the caller leaves for code of the program and does not come back.
///
/// # Safety
/// The caller uses no thread-locals from here on.
pub unsafe fn leave() {
    if is_on() && current().ours() != 0 {
        // SAFETY: the caller's promise.
        unsafe { set_fs(current().program.load(Relaxed)) };
    }
}

//! How a program is told that something happened: by a signal, or by a call in a thread of its own.

use super::OF_THE_LIBRARY;
use crate::mask::{self, OURS};
use crate::thread;
use hugeswap_sys::process;
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::signal::{self, Mask};
use libc::{c_int, c_void};
use std::arch::naked_asm;
use std::sync::Arc;

/// `struct sigevent`, whose part for SIGEV_THREAD the libc crate does not name.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Event {
    pub value: usize,
    pub signal: c_int,
    pub notify: c_int,
    /// The function to call; for SIGEV_THREAD_ID the thread.
    pub function: usize,
    pub attributes: *const libc::pthread_attr_t,
    pub _rest: [usize; 4],
}

const _: () = assert!(size_of::<Event>() == size_of::<libc::sigevent>());

/// The mask of the threads that timers make, as the C library has it.
pub const MASK_OF_TIMERS: Mask = signal::ALL & !OF_THE_LIBRARY;

/// What the program asked for.
pub enum Notice {
    Nothing,
    Signal { number: c_int, value: usize },
    Call(Call),
}

impl Notice {
    /// What `event` asks for.
    ///
    /// # Safety
    /// The event's attributes are null or initialised.
    pub unsafe fn of(event: &Event) -> Notice {
        match event.notify {
            libc::SIGEV_SIGNAL => Notice::Signal {
                number: event.signal,
                value: event.value,
            },
            // SAFETY: passed on.
            libc::SIGEV_THREAD => Notice::Call(unsafe { Call::of(event) }),
            _ => Notice::Nothing,
        }
    }

    /// Tells the program. `code` is the `si_code` of a signal.
    pub fn give(&self, code: c_int) {
        match self {
            Notice::Nothing => {}
            Notice::Signal { number, value } => send(*number, code, *value),
            Notice::Call(call) => call.start(0),
        }
    }
}

/// Queues a signal to this process.
fn send(number: c_int, code: c_int, value: usize) {
    /// `siginfo_t` of a queued signal.
    #[repr(C)]
    struct Info {
        number: c_int,
        error: c_int,
        code: c_int,
        _pad: c_int,
        pid: c_int,
        user: u32,
        value: usize,
        _rest: [usize; 12],
    }
    const _: () = assert!(size_of::<Info>() == size_of::<libc::siginfo_t>());
    let pid = process::pid();
    let info = Info {
        number,
        error: 0,
        code,
        _pad: 0,
        pid,
        // SAFETY: touches no memory.
        user: unsafe { libc::getuid() },
        value,
        _rest: [0; 12],
    };
    let a = [
        pid as usize,
        number as usize,
        &raw const info as usize,
        0,
        0,
        0,
    ];
    // SAFETY: `info` is as long as the kernel's.
    unsafe { syscall6(libc::SYS_rt_sigqueueinfo as usize, a) };
}

/// A copy of a program's attributes for threads, with which a thread is detached.
struct Attributes(libc::pthread_attr_t);

// SAFETY: attributes are memory that any thread may read, and destroy if no other thread uses it.
unsafe impl Send for Attributes {}
// SAFETY: as above.
unsafe impl Sync for Attributes {}

impl Attributes {
    /// # Safety
    /// `given` is null or initialised.
    unsafe fn of(given: *const libc::pthread_attr_t) -> Attributes {
        use libc::*;
        // SAFETY: `new` is initialised first; the others are results, or the caller's attributes.
        unsafe {
            let mut new = std::mem::zeroed();
            pthread_attr_init(&mut new);
            pthread_attr_setdetachstate(&mut new, PTHREAD_CREATE_DETACHED);
            if given.is_null() {
                return Attributes(new);
            }
            let (mut number, mut size) = (0, 0);
            let mut at = std::ptr::null_mut();
            let mut priority = std::mem::zeroed();
            let mut processors: cpu_set_t = std::mem::zeroed();
            pthread_attr_getschedpolicy(given, &mut number);
            pthread_attr_setschedpolicy(&mut new, number);
            pthread_attr_getschedparam(given, &mut priority);
            pthread_attr_setschedparam(&mut new, &priority);
            pthread_attr_getinheritsched(given, &mut number);
            pthread_attr_setinheritsched(&mut new, number);
            pthread_attr_getguardsize(given, &mut size);
            pthread_attr_setguardsize(&mut new, size);
            pthread_attr_getstacksize(given, &mut size);
            pthread_attr_setstacksize(&mut new, size);
            // (Without a stack of the program's the end of the stack is 0.)
            if pthread_attr_getstack(given, &mut at, &mut size) == 0
                && (at as usize).wrapping_add(size) != 0
            {
                pthread_attr_setstack(&mut new, at, size);
            }
            let all = size_of_val(&processors);
            // (All processors: nothing was set.)
            if pthread_attr_getaffinity_np(given, all, &mut processors) == 0
                && CPU_COUNT(&processors) < 8 * all as c_int
            {
                pthread_attr_setaffinity_np(&mut new, all, &processors);
            }
            Attributes(new)
        }
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: initialised by `of`.
        unsafe { libc::pthread_attr_destroy(&mut self.0) };
    }
}

/// A function of the program's that is called in a thread of its own. A value may be dropped only
/// where the program's `free` may be called: outside of locks.
#[derive(Clone)]
pub struct Call {
    function: usize,
    value: usize,
    attributes: Arc<Attributes>,
}

/// What a thread that makes a call is given.
struct Begin {
    next: Next,
    mask: Mask,
}

/// The program's function and its argument.
#[repr(C)]
#[derive(Clone, Copy)]
struct Next {
    function: usize,
    value: usize,
}

impl Call {
    /// # Safety
    /// The event's attributes are null or initialised.
    pub unsafe fn of(event: &Event) -> Call {
        Call {
            function: event.function,
            value: event.value,
            // SAFETY: passed on.
            attributes: Arc::new(unsafe { Attributes::of(event.attributes) }),
        }
    }

    /// Starts a thread with this mask that makes the call. If the C library cannot start one, the
    /// call is not made.
    pub fn start(&self, mask: Mask) {
        let next = Next {
            function: self.function,
            value: self.value,
        };
        let begin = Box::into_raw(Box::new(Begin { next, mask }));
        let mut id = 0;
        // SAFETY: the new thread frees `begin`, unless there is none.
        unsafe {
            if thread::pthread_create(&mut id, &self.attributes.0, called, begin.cast()) != 0 {
                drop(Box::from_raw(begin));
            }
        }
    }
}

/// The thread's routine. It jumps to the program's function.
#[unsafe(naked)]
extern "C" fn called(begin: *mut c_void) -> *mut c_void {
    naked_asm!(
        "sub rsp, 24",
        "mov rsi, rsp",
        "call {begin}",
        "mov rax, [rsp]",
        "mov rdi, [rsp + 8]",
        "add rsp, 24",
        // Nothing of ours stays on the stack: unwinding and cancellation see the program's frames
        // only.
        "jmp rax",
        begin = sym begin_call,
    )
}

extern "C" fn begin_call(begin: *mut Begin, next: *mut Next) {
    // SAFETY: given to this thread alone.
    let begin = unsafe { Box::from_raw(begin) };
    mask::believe(begin.mask);
    signal::set_mask(begin.mask & !OURS);
    // SAFETY: `next` is room on the thread's stack.
    unsafe { *next = begin.next };
}

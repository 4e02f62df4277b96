//! Threads and their alternate stacks.
//!
//! Every thread gets an alternate signal stack of ours, so that a fault can be taken wherever its
//! own stack is, and starts with [`crate::mask::OURS`] unblocked. A program's alternate stack
//! replaces ours while it is set, if it is large enough for our handlers. A smaller one is not set:
//! the program is only told that it is.

use crate::local::{self, Word};
use crate::real::{self, answer, set_errno};
use crate::{ending, extent, mask, mmap, shared, state};
use hugeswap_engine::Engine;
use hugeswap_sys::raw::{call, syscall6};
use hugeswap_sys::{mm, signal};
use libc::{c_int, c_void};
use std::arch::naked_asm;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicUsize};

type Routine = extern "C" fn(*mut c_void) -> *mut c_void;

const STACK: usize = 64 << 10;
/// Length in bytes of the smallest alternate stack that our handlers run on.
pub const ENOUGH: usize = 32 << 10;
const NO_KEY: u32 = u32::MAX;

/// The key whose destructor unmaps a thread's alternate stack. The main thread sets no value for
/// it, because its stack is not a mapping.
static KEY: AtomicU32 = AtomicU32::new(NO_KEY);

/// The main thread's alternate stack. A mapping of its own would be one more at every start and
/// fork.
#[repr(align(16))]
struct MainStack(UnsafeCell<[u8; STACK]>);
// SAFETY: used by the kernel alone, for the main thread.
unsafe impl Sync for MainStack {}
static MAIN_STACK: MainStack = MainStack(UnsafeCell::new([0; STACK]));

/// What a new thread gets from its creator.
struct Start {
    routine: Routine,
    argument: *mut c_void,
    believed: signal::Mask,
}

/// The program's routine and its argument, which the first instructions of a thread go on to.
#[repr(C)]
struct Next {
    routine: usize,
    argument: usize,
}

/// The first instructions of a thread: they prepare it and jump to the program's routine.
#[unsafe(naked)]
extern "C" fn first(start: *mut c_void) -> *mut c_void {
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

/// Unblocks our signals in the main thread and sets its alternate stack. Called by the constructor.
pub fn start_main() {
    // The mask may be inherited from the program that started this one.
    let inherited = signal::mask();
    if inherited & mask::OURS != 0 {
        signal::set_mask(inherited & !mask::OURS);
        mask::believe(inherited);
    }
    set_stack(MAIN_STACK.0.get() as usize);
}

fn set_kernel(ss: &libc::stack_t) -> isize {
    // SAFETY: a valid stack_t of memory that stays mapped while it is the alternate stack.
    unsafe {
        syscall6(
            libc::SYS_sigaltstack as usize,
            [ss as *const _ as usize, 0, 0, 0, 0, 0],
        )
    }
}

fn kernel_stack() -> libc::stack_t {
    let mut now = libc::stack_t {
        ss_sp: std::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: `now` is writable.
    let _ = unsafe {
        call(
            libc::SYS_sigaltstack,
            [0, &mut now as *mut _ as usize, 0, 0, 0, 0],
        )
    };
    now
}

/// Gives the calling thread an alternate stack, if there is memory for one.
fn give_stack() {
    if let Ok(at) = mm::map_own(STACK, mm::PROT_RW) {
        if !set_stack(at) {
            // SAFETY: mapped a moment ago, used by nobody.
            let _ = unsafe { mm::unmap(at, STACK) };
            return;
        }
        let key = KEY.load(Acquire);
        if key != NO_KEY {
            // SAFETY: the key was created and is never deleted.
            unsafe { libc::pthread_setspecific(key, at as *const c_void) };
        }
    }
}

/// Creates the key, before the first thread that needs it. If the program has created many keys
/// before, the C library allocates memory for this key in each new thread, as it does for the
/// program's own.
fn create_key() {
    let mut key = 0;
    if KEY.load(Acquire) == NO_KEY
        // SAFETY: `key` is writable; the destructor is fit to run at a thread's end.
        && unsafe { libc::pthread_key_create(&mut key, Some(end_thread)) } == 0
        && KEY.compare_exchange(NO_KEY, key, AcqRel, Relaxed).is_err()
    {
        // Another thread was faster.
        // SAFETY: the key made above, which nobody knows.
        unsafe { libc::pthread_key_delete(key) };
    }
}

/// Makes the memory at `at` the calling thread's alternate stack; false if the kernel refuses.
fn set_stack(at: usize) -> bool {
    let ours = libc::stack_t {
        ss_sp: at as *mut c_void,
        ss_flags: 0,
        ss_size: STACK,
    };
    if set_kernel(&ours) != 0 {
        return false;
    }
    local::set(Word::Stack, at);
    true
}

/// Unmaps a thread's alternate stack when the thread ends, in whatever way, and sees to it that
/// signals of ours reach the thread to its end.
extern "C" fn end_thread(stack: *mut c_void) {
    if ending::is_needed() {
        if local::get(Word::EndsNext) == 0 {
            // The C library calls this again when the destructors of other keys have run.
            local::set(Word::EndsNext, 1);
            // SAFETY: the key exists, because this is its destructor.
            unsafe { libc::pthread_setspecific(KEY.load(Acquire), stack) };
            return;
        }
        ending::watch();
    }
    let now = kernel_stack();
    if now.ss_sp == stack {
        let none = libc::stack_t {
            ss_sp: std::ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        if set_kernel(&none) != 0 {
            return;
        }
    }
    local::set(Word::Stack, 0);
    // SAFETY: mapped by `give_stack`, and no longer the alternate stack.
    let _ = unsafe { mm::unmap(stack as usize, STACK) };
}

extern "C" fn prepare(start: *mut Start, next: *mut Next) {
    // SAFETY: `start` was leaked by pthread_create below for this thread alone.
    let start = unsafe { Box::from_raw(start) };
    // A thread that is created with signals blocked (pthread_attr_setsigmask_np) believes them
    // blocked.
    let given = signal::set_mask(signal::ALL);
    mask::believe(start.believed | (given & mask::OURS));
    give_stack();
    signal::set_mask(given & !mask::OURS);
    // SAFETY: `next` is room on the new thread's stack.
    unsafe {
        *next = Next {
            routine: start.routine as usize,
            argument: start.argument as usize,
        };
    }
}

/// Prepares for the C library to start a thread with `attr`, which may be null.
fn before_thread(attr: *const libc::pthread_attr_t) {
    if !attr.is_null() {
        eject_stack(attr);
    }
    if let Some(engine) = state::engine() {
        eject_locale(engine);
    }
    create_key();
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attr: *const libc::pthread_attr_t,
    routine: Routine,
    argument: *mut c_void,
) -> c_int {
    if !state::armed() {
        // SAFETY: passed on.
        return unsafe { real::pthread_create()(thread, attr, routine, argument) };
    }
    before_thread(attr);
    let start = Box::into_raw(Box::new(Start {
        routine,
        argument,
        believed: mask::believed(),
    }));
    // SAFETY: passed on; `first` frees `start`, unless it is never run.
    unsafe {
        let result = real::pthread_create()(thread, attr, first, start.cast());
        if result != 0 {
            drop(Box::from_raw(start));
        }
        result
    }
}

/// Keeps a lock in memory if the kernel writes to it: when the holder of a robust lock dies, or
/// when the kernel hands a priority-inheriting lock from one thread to another.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attr: *const libc::pthread_mutexattr_t,
) -> c_int {
    unsafe extern "C" {
        fn pthread_mutexattr_getrobust(
            attr: *const libc::pthread_mutexattr_t,
            to: *mut c_int,
        ) -> c_int;
        fn pthread_mutexattr_getprotocol(
            attr: *const libc::pthread_mutexattr_t,
            to: *mut c_int,
        ) -> c_int;
    }
    let at = mutex as usize;
    if !attr.is_null()
        && extent::in_shared(at)
        && let Some(engine) = state::engine()
    {
        let (mut robust, mut protocol) = (0, 0);
        // SAFETY: the program's initialised attributes; both results are writable.
        unsafe {
            pthread_mutexattr_getrobust(attr, &mut robust);
            pthread_mutexattr_getprotocol(attr, &mut protocol);
        }
        let special =
            robust == libc::PTHREAD_MUTEX_ROBUST || protocol == libc::PTHREAD_PRIO_INHERIT;
        if special && shared::keep(engine, at, size_of::<libc::pthread_mutex_t>()).is_err() {
            return libc::ENOMEM;
        }
    }
    // SAFETY: passed on.
    unsafe { real::pthread_mutex_init()(mutex, attr) }
}

/// Ejects a stack that the program allocated itself, because the kernel may need it at any time.
fn eject_stack(attr: *const libc::pthread_attr_t) {
    let (mut at, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: the program's initialised attributes; both results are writable.
    if unsafe { libc::pthread_attr_getstack(attr, &mut at, &mut len) } == 0
        && extent::meets_managed(at as usize, len)
        && let Some(engine) = state::engine()
    {
        let _ = mmap::eject(engine, at as usize, len);
    }
}

/// Ejects the data of the global locale. A new thread reads them (the character classes) before the
/// C library unblocks its signals: a fault there would end the process. The data come from
/// `malloc`, and an allocator other than the C library's may have them in managed memory.
fn eject_locale(engine: &'static Engine) {
    /// Length in bytes of the part that is read: the addresses of the tables of characters.
    const READ: usize = 256;
    /// `LC_GLOBAL_LOCALE`, which the libc crate does not name.
    const GLOBAL: libc::locale_t = std::ptr::without_provenance_mut(usize::MAX);
    /// Address of the data that were ejected last.
    static EJECTED: AtomicUsize = AtomicUsize::new(0);
    if real::libc_allocates() {
        return;
    }
    // SAFETY: the global locale is always valid.
    let copy = unsafe { libc::duplocale(GLOBAL) };
    if copy.is_null() {
        return;
    }
    // SAFETY: the copy begins with the addresses of its categories' data, of which LC_CTYPE is the
    // first (`struct __locale_struct` of glibc); the data are the global locale's own.
    let at = unsafe {
        let at = copy.cast::<usize>().read();
        libc::freelocale(copy);
        at
    };
    if EJECTED.load(Relaxed) != at && extent::meets_managed(at, READ) {
        let _ = mmap::eject(engine, at, READ);
    }
    EJECTED.store(at, Relaxed);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    let ours = local::get(Word::Stack);
    if !state::armed() || ours == 0 {
        // SAFETY: passed on.
        return answer(unsafe {
            syscall6(
                libc::SYS_sigaltstack as usize,
                [new as usize, old as usize, 0, 0, 0, 0],
            )
        }) as c_int;
    }
    let mut former = kernel_stack();
    let active = former.ss_flags & libc::SS_ONSTACK;
    if former.ss_sp as usize == ours {
        let at = local::get(Word::BelievedStack);
        let len = local::get(Word::BelievedSize);
        former = libc::stack_t {
            ss_sp: at as *mut c_void,
            ss_flags: if len == 0 { libc::SS_DISABLE } else { active },
            ss_size: len,
        };
    }
    // SAFETY: the caller's structure, if any.
    if let Some(&wanted) = unsafe { new.as_ref() } {
        let result = set_program_stack(wanted, ours, active != 0);
        if result != 0 {
            set_errno(-result);
            return -1;
        }
    }
    // SAFETY: the caller's structure to write to, if any.
    if let Some(out) = unsafe { old.as_mut() } {
        *out = former;
    }
    0
}

/// Sets the program's alternate stack. Returns 0 or a negative errno.
fn set_program_stack(wanted: libc::stack_t, ours: usize, active: bool) -> c_int {
    let off = wanted.ss_flags & libc::SS_DISABLE != 0;
    let small = !off && (libc::MINSIGSTKSZ..ENOUGH).contains(&wanted.ss_size);
    if !off && !small {
        if extent::meets_managed(wanted.ss_sp as usize, wanted.ss_size)
            && let Some(engine) = state::engine()
            && let Err(e) = mmap::eject(engine, wanted.ss_sp as usize, wanted.ss_size)
        {
            return -e.0;
        }
        return set_kernel(&wanted) as c_int;
    }
    if active {
        return -libc::EPERM;
    }
    let result = set_kernel(&libc::stack_t {
        ss_sp: ours as *mut c_void,
        ss_flags: 0,
        ss_size: STACK,
    });
    if result == 0 {
        let (at, len) = if off {
            (0, 0)
        } else {
            (wanted.ss_sp as usize, wanted.ss_size)
        };
        local::set(Word::BelievedStack, at);
        local::set(Word::BelievedSize, len);
    }
    result as c_int
}

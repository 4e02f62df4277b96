//! The shared object that `hugeswap run --small` injects beside the one that manages memory: an
//! allocator (jemalloc) whose blocks are in managed memory.
//!
//! jemalloc keeps its records apart from the blocks. The records stay in memory: they come from
//! `mmap` below. The blocks come from extent hooks, which ask for managed memory. (Before it knows
//! the hooks jemalloc may ask `mmap` for a few blocks.) So no lock of jemalloc's is held where a block is touched, and a block that
//! is freed is not brought in for that.
//!
//! Nothing here runs before [`hugeswap_small_start`], and nothing of the program calls this object
//! directly. It is an object of its own so that programs without `--small` do not load it.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use hugeswap_sys::small::{Allocator, Handler, Memory};
use libc::{c_char, c_int, c_uint, c_void};
use std::arch::global_asm;
use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use tikv_jemalloc_sys as je;

/// The alignment that jemalloc's arenas ask for their records, and for nothing else here: blocks of
/// an alignment as large as this are not asked of this allocator.
const OF_RECORDS: usize = 2 << 20;

/// * `narenas`: enough for threads not to wait for each other, and few enough to be set up at once
/// * `retain`: addresses are kept for good; what lies there is given up by purging
/// * `muzzy_decay_ms`: memory is given up in one step
const CONF: &[u8] = b"narenas:8,retain:true,background_thread:false,muzzy_decay_ms:0\0";

unsafe extern "C" {
    #[link_name = "_rjem_malloc_conf"]
    static mut MALLOC_CONF: *const c_char;
}

static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(null_mut());

/// What jemalloc asks to have called around a fork.
static FORK: [AtomicPtr<c_void>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];

// The names that jemalloc calls, which this object does not export: its records have a place of
// their own, and the object that manages memory sees to the order around a fork.
global_asm!(
    ".hidden mmap",
    ".globl mmap",
    "mmap: jmp {map}",
    ".hidden pthread_atfork",
    ".globl pthread_atfork",
    "pthread_atfork: jmp {at_fork}",
    map = sym map_records,
    at_fork = sym at_fork,
);

/// `mmap`, as jemalloc calls it: new memory, for records.
extern "C" fn map_records(_addr: *mut c_void, len: usize) -> *mut c_void {
    match memory().map_or(0, |m| (m.records)(len)) {
        0 => {
            // SAFETY: the C library's errno of this thread.
            unsafe { *libc::__errno_location() = libc::ENOMEM };
            libc::MAP_FAILED
        }
        at => at as *mut c_void,
    }
}

/// Notes what jemalloc wants to have called around a fork.
extern "C" fn at_fork(before: *mut c_void, parent: *mut c_void, child: *mut c_void) -> c_int {
    for (slot, f) in FORK.iter().zip([before, parent, child]) {
        slot.store(f, Release);
    }
    0
}

/// The memory to ask for. Set before jemalloc's first call.
fn memory() -> Option<&'static Memory> {
    // SAFETY: null, or the caller's of `hugeswap_small_start`, which stays.
    unsafe { MEMORY.load(Acquire).as_ref() }
}

unsafe extern "C" fn extent_alloc(
    _hooks: *mut je::extent_hooks_t,
    at: *mut c_void,
    size: usize,
    align: usize,
    zero: *mut bool,
    commit: *mut bool,
    _arena: c_uint,
) -> *mut c_void {
    let Some(memory) = memory().filter(|_| at.is_null()) else {
        return null_mut();
    };
    let got = match align {
        OF_RECORDS => (memory.records)(size),
        _ => (memory.map)(size, align),
    };
    if got != 0 {
        // SAFETY: jemalloc's variables to write to. New memory is zeros and can be touched.
        unsafe { (*zero, *commit) = (true, true) };
    }
    got as *mut c_void
}

unsafe extern "C" fn extent_purge(
    _hooks: *mut je::extent_hooks_t,
    at: *mut c_void,
    _size: usize,
    offset: usize,
    len: usize,
    _arena: c_uint,
) -> bool {
    // (True: it was not done.)
    !memory().is_some_and(|m| (m.discard)(at as usize + offset, len))
}

unsafe extern "C" fn extent_split(
    _hooks: *mut je::extent_hooks_t,
    _at: *mut c_void,
    _size: usize,
    _first: usize,
    _second: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}

unsafe extern "C" fn extent_merge(
    _hooks: *mut je::extent_hooks_t,
    _first: *mut c_void,
    _first_size: usize,
    _second: *mut c_void,
    _second_size: usize,
    _committed: bool,
    _arena: c_uint,
) -> bool {
    false
}

struct Hooks(je::extent_hooks_t);
// SAFETY: never changed.
unsafe impl Sync for Hooks {}

static HOOKS: Hooks = Hooks(je::extent_hooks_t {
    alloc: Some(extent_alloc),
    dalloc: None,
    destroy: None,
    commit: None,
    decommit: None,
    purge_lazy: None,
    purge_forced: Some(extent_purge),
    split: Some(extent_split),
    merge: Some(extent_merge),
});

unsafe extern "C" fn aligned(size: usize, align: usize) -> *mut c_void {
    // SAFETY: the size is not 0, and the flags are those of an alignment.
    unsafe { je::mallocx(size, je::MALLOCX_ALIGN(align)) }
}

unsafe extern "C" fn usable_size(p: *mut c_void) -> usize {
    // SAFETY: a block of this allocator's.
    unsafe { je::sallocx(p, 0) }
}

unsafe extern "C" fn purge() {
    // (4096: all arenas.)
    // SAFETY: this control takes no value.
    unsafe {
        je::mallctl(
            c"arena.4096.purge".as_ptr(),
            null_mut(),
            null_mut(),
            null_mut(),
            0,
        )
    };
}

fn call(which: usize) {
    let f = FORK[which].load(Acquire);
    if !f.is_null() {
        // SAFETY: one of the functions that jemalloc gave to `at_fork`.
        unsafe { std::mem::transmute::<*mut c_void, Handler>(f)() };
    }
}

unsafe extern "C" fn before_fork() {
    call(0);
}

unsafe extern "C" fn after_fork_in_parent() {
    call(1);
}

unsafe extern "C" fn after_fork_in_child() {
    call(2);
}

static ALLOCATOR: Allocator = Allocator {
    malloc: je::malloc,
    calloc: je::calloc,
    realloc: je::realloc,
    aligned,
    free: je::free,
    usable_size,
    purge,
    before_fork,
    after_fork_in_parent,
    after_fork_in_child,
};

/// Sets the allocator up, once; null if that fails.
///
/// # Safety
/// `memory` stays valid, and its functions are fit to be called from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugeswap_small_start(memory: *const Memory) -> *const Allocator {
    MEMORY.store(memory.cast_mut(), Release);
    // SAFETY: before jemalloc's first call, which reads it.
    unsafe { MALLOC_CONF = CONF.as_ptr().cast() };
    let mut arenas: c_uint = 0;
    let mut size = size_of::<c_uint>();
    // SAFETY: a variable of the control's type.
    let read = unsafe {
        je::mallctl(
            c"opt.narenas".as_ptr(),
            (&raw mut arenas).cast(),
            &mut size,
            null_mut(),
            0,
        )
    };
    if read != 0 || FORK[0].load(Relaxed).is_null() {
        return null();
    }
    let name = |n: u32| {
        let mut name = *b"arena.000.extent_hooks\0";
        for (at, unit) in [(6, 100), (7, 10), (8, 1)] {
            name[at] += (n / unit % 10) as u8;
        }
        name
    };
    let hooks = &HOOKS.0 as *const je::extent_hooks_t;
    for arena in 0..arenas.min(999) {
        // SAFETY: a hooks pointer is the control's type; the hooks stay.
        let set = unsafe {
            je::mallctl(
                name(arena).as_ptr().cast(),
                null_mut(),
                null_mut(),
                (&raw const hooks).cast_mut().cast(),
                size_of_val(&hooks),
            )
        };
        if set != 0 {
            return null();
        }
    }
    &ALLOCATOR
}

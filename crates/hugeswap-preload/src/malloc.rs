//! The malloc family. Large blocks are in managed memory; the others come from the program's
//! allocator, the next one in symbol lookup.
//!
//! A managed block is a mapping of its own. A table outside managed memory holds the address and
//! length of each. The table's lock is never held across a call of the engine.
//!
//! There are managed blocks only if the next allocator is the C library's own. An allocator that
//! the program brings (jemalloc, mimalloc, tcmalloc) keeps all its blocks, because it has entry
//! points of its own that would not know ours. Its memory is managed because it asks `mmap` for it
//! ([`crate::mmap`]); a block in the window is then one of its own.

use crate::lock::Lock;
use crate::mmap::{self, release};
use crate::real::{self, set_errno};
use crate::spare::{Gone, Spares};
use crate::{extent, small, state};
use hugeswap_engine::Engine;
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::fs;
use hugeswap_sys::small::Allocator;
use libc::{c_int, c_void, size_t};
use std::arch::naked_asm;
use std::collections::BTreeMap;
use std::ptr::null_mut;

const PAGE: usize = 4096;
const UNIT: usize = 2 << 20;

struct Blocks {
    /// Blocks in use: address to mapped length.
    used: BTreeMap<usize, usize>,
    spare: Spares,
}

static BLOCKS: Lock<Blocks> = Lock::new(Blocks {
    used: BTreeMap::new(),
    spare: Spares::new(),
});

/// The longest calloc, in bytes, that may take a spare block and clear it.
const CLEAR_MAX: usize = 2 << 20;

/// The address of a new managed block, or null with errno ENOMEM.
fn managed(engine: &Engine, size: usize, align: usize, zero: bool) -> *mut c_void {
    let errno = real::errno();
    let len = size.next_multiple_of(PAGE);
    if !zero || len <= CLEAR_MAX {
        let mut blocks = BLOCKS.lock();
        let align = align.max(if len >= UNIT { UNIT } else { PAGE });
        if let Some((at, whole)) = blocks.spare.take(len, align) {
            blocks.used.insert(at, whole);
            drop(blocks);
            if zero {
                // SAFETY: the block is this caller's alone.
                unsafe { std::ptr::write_bytes(at as *mut u8, 0, len) };
            }
            return at as *mut c_void;
        }
    }
    let mut got = engine.map(size, align, zero);
    if got.is_err() {
        // The spare blocks may hold the memory that is missing.
        let gone = BLOCKS.lock().spare.drain();
        gone.iter().for_each(|(at, len)| release(engine, at, len));
        got = engine.map(size, align, zero);
    }
    match got {
        Ok(at) => {
            BLOCKS.lock().used.insert(at, len);
            set_errno(errno);
            at as *mut c_void
        }
        Err(_) => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// The engine, if a block of `size` bytes that `caller` asks for is a mapping of its own.
#[inline]
fn engine_for(size: usize, caller: usize) -> Option<&'static Engine> {
    let may_be = size >= state::LEAST && state::may_manage(size) && size <= isize::MAX as usize;
    if !may_be || !real::libc_allocates() {
        return None;
    }
    let engine = state::engine_for(size, Knob::MallocMin);
    if engine.is_none() {
        small::note_block(size, caller);
    }
    engine
}

/// Can `p` be a managed block? Otherwise it belongs to the next allocator.
#[inline]
fn may_be_ours(p: *mut c_void) -> bool {
    extent::in_window(p as usize) && real::libc_allocates()
}

/// Length of the managed block at `p`; ends the process if there is none.
fn length_of(p: usize, call: &[u8]) -> usize {
    let len = BLOCKS.lock().used.get(&p).copied();
    len.unwrap_or_else(|| no_block(p, call))
}

fn no_block(p: usize, call: &[u8]) -> ! {
    let mut digits = [0; 20];
    fs::complain(&[
        b"hugeswap: ",
        call,
        b"(): 0x",
        fs::digits(p as u64, 16, &mut digits),
        b" is no block that malloc gave out, or was freed before\n",
    ]);
    // SAFETY: ends the process, as glibc does for the same error of a program.
    unsafe { libc::abort() }
}

#[cold]
fn free_managed(p: usize) {
    let Some(engine) = state::engine() else {
        return;
    };
    let errno = real::errno();
    // Spare blocks may hold a sixteenth of the budget.
    let limit = (engine.pool().frames() / 16) as usize * UNIT;
    let mut gone = Gone::NONE;
    let mut blocks = BLOCKS.lock();
    let Some(len) = blocks.used.remove(&p) else {
        drop(blocks);
        no_block(p, b"free");
    };
    // A block becomes a spare one only if its next owner gets it as new.
    let as_new = mmap::untouched(engine, p, len) && !engine.is_advised(p, len);
    let kept = as_new && blocks.spare.keep((p, len), limit, &mut gone);
    drop(blocks);
    if !kept {
        release(engine, p, len);
    }
    gone.iter().for_each(|(at, len)| release(engine, at, len));
    set_errno(errno);
}

/// Defines functions of C that are told the address they return to: it is the last argument of the
/// function that does the work, which returns in their place.
macro_rules! with_caller {
    ($($(#[$meta:meta])* $name:ident($($arg:ident: $type:ty),*) -> $ret:ty, $register:literal, $work:ident;)*) => {$(
        $(#[$meta])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $ret {
            naked_asm!(
                concat!("mov ", $register, ", [rsp]"),
                "jmp {work}",
                work = sym $work,
            )
        }
    )*};
}

with_caller! {
    malloc(size: size_t) -> *mut c_void, "rsi", allocate;
    calloc(count: size_t, each: size_t) -> *mut c_void, "rdx", allocate_zeros;
    realloc(p: *mut c_void, size: size_t) -> *mut c_void, "rdx", resize;
    reallocarray(p: *mut c_void, count: size_t, each: size_t) -> *mut c_void, "rcx", resize_array;
    aligned_alloc(align: size_t, size: size_t) -> *mut c_void, "rdx", allocate_aligned;
    memalign(align: size_t, size: size_t) -> *mut c_void, "rdx", allocate_at_multiple;
    posix_memalign(out: *mut *mut c_void, align: size_t, size: size_t) -> c_int, "rcx", allocate_posix;
    valloc(size: size_t) -> *mut c_void, "rsi", allocate_page;
    pvalloc(size: size_t) -> *mut c_void, "rsi", allocate_pages;
}

/// `malloc`, called from the address `caller`.
unsafe extern "C" fn allocate(size: size_t, caller: usize) -> *mut c_void {
    if state::may_manage(size) {
        if let Some(small) = small::for_request(size, caller) {
            // SAFETY: as specified for the program's allocator.
            return unsafe { (small.malloc)(small::at_least(size)) };
        }
        if let Some(e) = engine_for(size, caller) {
            return managed(e, size, PAGE, false);
        }
    }
    // SAFETY: passed on.
    unsafe { real::malloc()(size) }
}

/// `calloc`, called from the address `caller`.
unsafe extern "C" fn allocate_zeros(count: size_t, each: size_t, caller: usize) -> *mut c_void {
    let size = count.saturating_mul(each);
    if state::may_manage(size) {
        if let Some(small) = small::for_request(size, caller) {
            // SAFETY: as specified for the program's allocator.
            return unsafe { (small.calloc)(1, small::at_least(size)) };
        }
        if let Some(e) = engine_for(size, caller) {
            return managed(e, size, PAGE, true);
        }
    }
    // SAFETY: passed on.
    unsafe { real::calloc()(count, each) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(p: *mut c_void) {
    if let Some(small) = small::owner(p as usize) {
        let errno = real::errno();
        // SAFETY: a block of that allocator's.
        unsafe { (small.free)(p) };
        set_errno(errno);
    } else if may_be_ours(p) {
        free_managed(p as usize);
    } else {
        // SAFETY: passed on.
        unsafe { real::free()(p) }
    }
}

/// `realloc`, called from the address `caller`.
unsafe extern "C" fn resize(p: *mut c_void, size: size_t, caller: usize) -> *mut c_void {
    if p.is_null() {
        // SAFETY: as specified for a null pointer.
        return unsafe { allocate(size, caller) };
    }
    if let Some(small) = small::owner(p as usize) {
        // SAFETY: a block of that allocator's.
        return unsafe { resize_small(small, p, size) };
    }
    if may_be_ours(p) {
        return resize_managed(p as usize, size, caller);
    }
    let stays = size == 0
        || !state::may_manage(size)
        || small::for_request(size, caller).is_none() && engine_for(size, caller).is_none();
    if stays {
        // SAFETY: passed on.
        return unsafe { real::realloc()(p, size) };
    }
    // SAFETY: a block of the program's allocator.
    unsafe { move_block(p, real::malloc_usable_size()(p), size, caller) }
}

/// Moves a block of which `len` bytes can be used to a new one of `size` bytes, as `realloc` does.
///
/// # Safety
/// `p` is such a block.
unsafe fn move_block(p: *mut c_void, len: usize, size: usize, caller: usize) -> *mut c_void {
    // SAFETY: by contract.
    unsafe {
        let new = allocate(size, caller);
        if !new.is_null() {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), new.cast(), len.min(size));
            free(p);
        }
        new
    }
}

/// `realloc` of a small managed block, whoever calls.
///
/// # Safety
/// `p` is a block of `small`.
unsafe fn resize_small(small: &Allocator, p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: by contract.
    unsafe {
        if size == 0 {
            free(p);
            return null_mut();
        }
        if size >= state::LEAST && engine_for(size, 0).is_some() {
            return move_block(p, (small.usable_size)(p), size, 0);
        }
        (small.realloc)(p, small::at_least(size))
    }
}

/// `realloc` of a managed block.
#[cold]
fn resize_managed(p: usize, size: usize, caller: usize) -> *mut c_void {
    let Some(engine) = state::engine() else {
        return null_mut();
    };
    let errno = real::errno();
    if size == 0 {
        free_managed(p);
        return null_mut();
    }
    if size > isize::MAX as usize {
        set_errno(libc::ENOMEM);
        return null_mut();
    }
    let old = length_of(p, b"realloc");
    let new = size.next_multiple_of(PAGE);
    if new >= state::LEAST {
        if new <= old {
            if new < old {
                BLOCKS.lock().used.insert(p, new);
                release(engine, p + new, old - new);
            }
            set_errno(errno);
            return p as *mut c_void;
        }
        if engine.grow(p, old, new) {
            BLOCKS.lock().used.insert(p, new);
            set_errno(errno);
            return p as *mut c_void;
        }
        // A block that grows once is likely to grow again: leave it room to do so in place.
        let at = match engine.map(size, if old >= UNIT { UNIT } else { PAGE }, false) {
            Ok(at) => at,
            Err(_) => {
                set_errno(libc::ENOMEM);
                return null_mut();
            }
        };
        engine.carry_advice(p, old, at, new);
        engine.move_range(p, at, old);
        let mut blocks = BLOCKS.lock();
        blocks.used.remove(&p);
        blocks.used.insert(at, new);
        drop(blocks);
        release(engine, p, old);
        set_errno(errno);
        return at as *mut c_void;
    }
    // SAFETY: an ordinary block, filled from a longer managed one.
    unsafe {
        let q = allocate(size, caller);
        if !q.is_null() {
            std::ptr::copy_nonoverlapping(p as *const u8, q.cast(), size.min(old));
            free_managed(p);
        }
        q
    }
}

/// `reallocarray`, called from the address `caller`.
unsafe extern "C" fn resize_array(
    p: *mut c_void,
    count: size_t,
    each: size_t,
    caller: usize,
) -> *mut c_void {
    let Some(size) = count.checked_mul(each) else {
        set_errno(libc::ENOMEM);
        return null_mut();
    };
    // SAFETY: passed on. (An allocator in front of us may leave this function to the C library,
    // whose own calls that allocator's realloc.)
    unsafe {
        match real::realloc_in_front() {
            Some(other) => other(p, size),
            None => resize(p, size, caller),
        }
    }
}

/// A new block at a multiple of `align`, a power of two; `None` if it is the next allocator's.
fn aligned(size: usize, align: usize, caller: usize) -> Option<*mut c_void> {
    if !state::may_manage(size) {
        return None;
    }
    if align < small::ALIGN_END
        && let Some(small) = small::for_request(size, caller)
    {
        // SAFETY: as specified for the program's allocator.
        return Some(unsafe { (small.aligned)(small::at_least(size), align) });
    }
    engine_for(size, caller).map(|e| managed(e, size, align, false))
}

/// `aligned_alloc`, called from the address `caller`.
unsafe extern "C" fn allocate_aligned(align: size_t, size: size_t, caller: usize) -> *mut c_void {
    let ours = match align.is_power_of_two() {
        true => aligned(size, align, caller),
        false => None,
    };
    // SAFETY: passed on.
    ours.unwrap_or_else(|| unsafe { real::aligned_alloc()(align, size) })
}

/// `memalign`, called from the address `caller`.
unsafe extern "C" fn allocate_at_multiple(
    align: size_t,
    size: size_t,
    caller: usize,
) -> *mut c_void {
    let power = align.checked_next_power_of_two();
    let ours = power.and_then(|power| aligned(size, power, caller));
    // SAFETY: passed on.
    ours.unwrap_or_else(|| unsafe { real::memalign()(align, size) })
}

/// `posix_memalign`, called from the address `caller`.
unsafe extern "C" fn allocate_posix(
    out: *mut *mut c_void,
    align: size_t,
    size: size_t,
    caller: usize,
) -> c_int {
    let errno = real::errno();
    let ours = match align.is_power_of_two() && align.is_multiple_of(size_of::<usize>()) {
        true => aligned(size, align, caller),
        false => None,
    };
    let Some(p) = ours else {
        // SAFETY: passed on.
        return unsafe { real::posix_memalign()(out, align, size) };
    };
    set_errno(errno);
    if p.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's pointer to write to.
    unsafe { *out = p };
    0
}

/// `valloc`, called from the address `caller`.
unsafe extern "C" fn allocate_page(size: size_t, caller: usize) -> *mut c_void {
    // SAFETY: passed on.
    aligned(size, PAGE, caller).unwrap_or_else(|| unsafe { real::valloc()(size) })
}

/// `pvalloc`, called from the address `caller`.
unsafe extern "C" fn allocate_pages(size: size_t, caller: usize) -> *mut c_void {
    let whole = size.checked_next_multiple_of(PAGE).map(|w| w.max(PAGE));
    let ours = whole.and_then(|whole| aligned(whole, PAGE, caller));
    // SAFETY: passed on.
    ours.unwrap_or_else(|| unsafe { real::pvalloc()(size) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(p: *mut c_void) -> size_t {
    if let Some(small) = small::owner(p as usize) {
        // SAFETY: a block of that allocator's.
        return unsafe { (small.usable_size)(p) };
    }
    if may_be_ours(p) {
        return length_of(p as usize, b"malloc_usable_size");
    }
    // SAFETY: passed on.
    unsafe { real::malloc_usable_size()(p) }
}

/// Gives back the spare blocks, and has the next allocator give back what it keeps. 1 if anything
/// was given back.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_trim(pad: size_t) -> c_int {
    let mut given = 0;
    if let Some(engine) = state::engine() {
        let gone = BLOCKS.lock().spare.drain();
        for (at, len) in gone.iter() {
            release(engine, at, len);
            given = 1;
        }
    }
    small::trim();
    // SAFETY: passed on.
    given | unsafe { real::malloc_trim()(pad) }
}

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    BLOCKS.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    BLOCKS.after_fork();
}

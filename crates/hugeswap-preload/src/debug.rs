//! Reads managed memory for a debugger. A debugger cannot read memory that is in swap, so the
//! process reads it itself.
//!
//! gdb calls [`hugeswap_debug_read`] in a stopped program (`hugeswap debug gdb-script` has the
//! commands). The other threads run meanwhile, so that room can be made in memory.

use crate::state;
use hugeswap_sys::mm;
use hugeswap_sys::signal::Blocked;
use std::ptr::null;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// The most bytes that one call reads.
const PIECE: usize = 1 << 20;

/// Address of the buffer that the debugger reads, which is not in managed memory; 0 until it is
/// needed.
static BUFFER: AtomicUsize = AtomicUsize::new(0);

fn buffer() -> Option<usize> {
    if BUFFER.load(Relaxed) == 0 {
        BUFFER.store(mm::map_own(PIECE, mm::PROT_RW).ok()?, Relaxed);
    }
    Some(BUFFER.load(Relaxed))
}

/// Copies `len` bytes (at most 1 MiB) of managed memory at `addr` to a buffer that a debugger can
/// read, and returns the buffer, valid until the next call. Null if the range is not managed
/// memory, is lost, or is not readable. Must not be called in a thread that was stopped in
/// hugeswap's own code.
#[unsafe(no_mangle)]
extern "C" fn hugeswap_debug_read(addr: usize, len: usize) -> *const u8 {
    let Some(engine) = state::engine().filter(|_| len <= PIECE) else {
        return null();
    };
    if !engine.is_mapped(addr, len) && !engine.is_shared(addr) {
        return null();
    }
    let Some(at) = buffer() else {
        return null();
    };
    // The thread may have been stopped at a fault of the program's, with all signals blocked; what it
    // copies may be in swap, and then it is told so by a signal.
    let _blocked = Blocked::all_but_faults();
    // SAFETY: mapped above. The debugger has one thread call this, and reads the buffer when the
    // call is done.
    let buffer = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) };
    match engine.copy_out(addr, buffer) {
        Ok(()) => buffer.as_ptr(),
        Err(_) => null(),
    }
}

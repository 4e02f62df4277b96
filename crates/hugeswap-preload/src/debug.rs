//! For debuggers: memory that is in swap, which nobody outside can read, is read by the process itself.
//!
//! gdb calls [`hugeswap_debug_read`] in a stopped program (`hugeswap debug gdb-script` has the commands). The other threads run meanwhile,
//! so that room can be made.

use crate::state;
use hugeswap_sys::mm;
use std::ptr::null;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// Address of a mapping that is not managed, so that the debugger can read it; 0 until one is needed.
static BUFFER: AtomicUsize = AtomicUsize::new(0);

fn buffer() -> Option<usize> {
    if BUFFER.load(Relaxed) == 0 {
        BUFFER.store(mm::map_own(PIECE, mm::PROT_RW).ok()?, Relaxed);
    }
    Some(BUFFER.load(Relaxed))
}

/// Copies `len` bytes of managed memory from `addr` on, 1 MiB at most, to where a debugger can read them. Null: they are not managed memory,
/// lost, or not readable. Not to be called by a thread that is in the middle of code of ours.
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
    // SAFETY: mapped above. The debugger has one thread call this, and reads when that is done.
    let buffer = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) };
    match engine.copy_out(addr, buffer) {
        Ok(()) => buffer.as_ptr(),
        Err(_) => null(),
    }
}

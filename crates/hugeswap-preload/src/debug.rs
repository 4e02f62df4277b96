//! For debuggers: memory that is in swap, which nobody outside can read, is read by the process itself.
//!
//! gdb calls [`hugeswap_debug_read`] in a stopped program (`hugeswap debug gdb-script` has the commands). The other threads run meanwhile,
//! so that room can be made.

use crate::state;
use std::cell::UnsafeCell;
use std::ptr::null;

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// Never managed, so that the debugger can read it.
struct Piece(UnsafeCell<[u8; PIECE]>);

// SAFETY: written only by the one thread that a debugger has call.
unsafe impl Sync for Piece {}

static BUFFER: Piece = Piece(UnsafeCell::new([0; PIECE]));

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
    // SAFETY: the debugger has one thread call it, and reads when that is done.
    let buffer = unsafe { &mut *BUFFER.0.get() };
    match engine.copy_out(addr, &mut buffer[..len]) {
        Ok(()) => buffer.as_ptr(),
        Err(_) => null(),
    }
}

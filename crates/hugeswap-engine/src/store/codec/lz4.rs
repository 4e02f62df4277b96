//! Pages by LZ4. The library works in memory that it is given and allocates none.

use crate::PAGE;
use lz4_sys as _;

/// Memory that the compressor works in, bytes: `LZ4_sizeofState` is at most that.
const STATE: usize = 16448;

// SAFETY: the functions of the library that `lz4_sys` links, as lz4.h declares them.
unsafe extern "C" {
    fn LZ4_sizeofState() -> i32;
    fn LZ4_compress_fast_extState(
        state: *mut u64,
        from: *const u8,
        to: *mut u8,
        len: i32,
        room: i32,
        acceleration: i32,
    ) -> i32;
    fn LZ4_decompress_safe(from: *const u8, to: *mut u8, len: i32, room: i32) -> i32;
}

/// The memory that one thread compresses with. All zeros are valid.
#[repr(C, align(64))]
pub(super) struct State([u64; STATE / 8]);

/// [`State`] is as long as the library wants it.
pub(super) fn check() {
    // SAFETY: no arguments, no effects.
    assert!(unsafe { LZ4_sizeofState() } as usize <= STATE);
}

impl State {
    /// Compresses a page to `block`. The length; `None`: it is longer than `block`.
    pub fn compress(&mut self, page: &[u8; PAGE], block: &mut [u8]) -> Option<usize> {
        // SAFETY: the three are as long as is said, and the state as long as is needed (`check`).
        let n = unsafe {
            LZ4_compress_fast_extState(
                self.0.as_mut_ptr(),
                page.as_ptr(),
                block.as_mut_ptr(),
                PAGE as i32,
                block.len() as i32,
                1,
            )
        };
        (n > 0).then_some(n as usize)
    }
}

/// Decodes a block to a page at `to`. False: it is none.
///
/// # Safety
/// `to` is a page that the caller may write.
pub(super) unsafe fn decompress(block: &[u8], to: usize) -> bool {
    // SAFETY: a block, and the caller's page, of these lengths.
    let n = unsafe {
        LZ4_decompress_safe(
            block.as_ptr(),
            to as *mut u8,
            block.len() as i32,
            PAGE as i32,
        )
    };
    n == PAGE as i32
}

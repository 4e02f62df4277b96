//! Pages by Zstandard: one block of its format for each, without a frame around it, since the
//! length is known and the page has a sum of its own.
//!
//! The library works in memory that it is given (`ZSTD_initStaticCCtx`, `ZSTD_initStaticDCtx`) and
//! allocates none then; compression is not done on the fault path, decompression is.

use crate::PAGE;
use crate::lock::Lock;
use crate::zeroed::Zeroed;
use hugeswap_sys::Result;
use std::ffi::c_int;
use std::sync::atomic::AtomicU64;
use zstd_sys as zstd;

/// Memory that the compressor works in, bytes: `ZSTD_estimateCCtxSize_usingCParams` of [`params`] is
/// at most that.
const STATE: usize = 80 << 10;
/// Threads that can decompress at one time. Each takes some 100 KiB once it is used.
const DECODERS: usize = 16;
/// A block that holds one page, and tables for that: a larger one would only take longer to clear.
const HASH_LOG: u32 = 12;

/// The memory that one thread compresses with. All zeros are valid.
#[repr(C, align(64))]
pub(super) struct State {
    memory: [u64; STATE / 8],
    /// Within `memory`, which does not move; null: not yet.
    context: *mut zstd::ZSTD_CCtx,
}

// SAFETY: the context is in the memory, and used by one thread at a time.
unsafe impl Send for State {}

fn params(level: c_int) -> zstd::ZSTD_parameters {
    // SAFETY: no effects.
    let mut params = unsafe { zstd::ZSTD_getParams(level, PAGE as u64, 0) };
    params.cParams.hashLog = HASH_LOG;
    params.fParams.contentSizeFlag = 0;
    params
}

/// [`State`] is as long as the library wants it, and compressors are used that were built
/// (.cargo/config.toml).
pub(super) fn check() {
    for level in [-1, 1] {
        let params = params(level).cParams;
        assert_eq!(params.strategy, zstd::ZSTD_strategy::ZSTD_fast);
        // SAFETY: no effects.
        let need = unsafe { zstd::ZSTD_estimateCCtxSize_usingCParams(params) };
        assert!(need <= STATE, "{need} bytes for level {level}");
    }
}

impl State {
    /// Compresses a page to `block`. The length; `None`: it is longer than `block`, or no shorter
    /// than the page.
    pub fn compress(&mut self, level: c_int, page: &[u8; PAGE], block: &mut [u8]) -> Option<usize> {
        if self.context.is_null() {
            let memory = self.memory.as_mut_ptr().cast();
            // SAFETY: memory of that length, which stays where it is: `Scratch` is in a box.
            self.context = unsafe { zstd::ZSTD_initStaticCCtx(memory, STATE) };
        }
        if self.context.is_null() {
            return None;
        }
        // SAFETY: a context, a page, and a block of the length that is given.
        let n = unsafe {
            let begun = zstd::ZSTD_compressBegin_advanced(
                self.context,
                std::ptr::null(),
                0,
                params(level),
                PAGE as u64,
            );
            match zstd::ZSTD_isError(begun) {
                0 => zstd::ZSTD_compressBlock(
                    self.context,
                    block.as_mut_ptr().cast(),
                    block.len(),
                    page.as_ptr().cast(),
                    PAGE,
                ),
                _ => begun,
            }
        };
        // (0: not compressible. Errors are numbers that no block is as long as.)
        (1..=block.len()).contains(&n).then_some(n)
    }
}

/// What pages are decompressed with.
pub(super) struct Decoders {
    memory: Zeroed<AtomicU64>,
    /// Words of `memory` for each.
    words: usize,
    contexts: [Lock<Context>; DECODERS],
}

/// Within the memory; null: not yet.
struct Context(*mut zstd::ZSTD_DCtx);

// SAFETY: used by whoever holds the lock, and in memory that stays.
unsafe impl Send for Context {}

impl Decoders {
    pub fn new() -> Result<Decoders> {
        // SAFETY: no effects.
        let bytes = unsafe { zstd::ZSTD_estimateDCtxSize() };
        let words = bytes.next_multiple_of(PAGE) / 8;
        Ok(Decoders {
            memory: Zeroed::new(words * DECODERS)?,
            words,
            contexts: [const { Lock::new(Context(std::ptr::null_mut())) }; DECODERS],
        })
    }

    /// Decodes a block to a page at `to`. False: it is none.
    ///
    /// # Safety
    /// `to` is a page that the caller may write.
    pub unsafe fn decompress(&self, block: &[u8], to: usize) -> bool {
        let mut each = self.contexts.iter().enumerate();
        let free = each.find_map(|(i, c)| Some((i, c.try_lock()?)));
        let (i, mut context) = free.unwrap_or_else(|| (0, self.contexts[0].lock()));
        if context.0.is_null() {
            let memory = self.memory[i * self.words..].as_ptr().cast_mut().cast();
            // SAFETY: this context's part of the memory, which nothing else reads or writes.
            context.0 = unsafe { zstd::ZSTD_initStaticDCtx(memory, self.words * 8) };
        }
        if context.0.is_null() {
            return false;
        }
        // SAFETY: a context, a block, and the caller's page, of these lengths.
        let n = unsafe {
            zstd::ZSTD_decompressBegin(context.0);
            zstd::ZSTD_decompressBlock(
                context.0,
                to as *mut _,
                PAGE,
                block.as_ptr().cast(),
                block.len(),
            )
        };
        n == PAGE
    }
}

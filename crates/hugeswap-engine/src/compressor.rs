//! What codecs make of pages, for those who measure it.

use crate::PAGE;
use crate::gate::Alone;
use crate::store::codec::{Decoders, LONGEST, SHORT, Scratch};
use hugeswap_policy::zswap::codec::Codec;
use hugeswap_sys::Result;
use std::time::{Duration, Instant};

/// A block may be so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most {
    /// It is kept in memory beside a device: five eighths of a page.
    BesideDevice,
    /// There is no device: seven eighths.
    WithoutDevice,
}

/// What became of pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Made {
    /// Those that became short enough.
    pub short: usize,
    /// The lengths of their blocks, bytes.
    pub len: usize,
    /// What compressing all of them took.
    pub into: Duration,
    /// What decompressing those took that became short enough.
    pub out: Duration,
    /// Those that did not come back as they were: none, unless the codec is broken.
    pub wrong: usize,
}

/// Compresses pages as compressed memory does, by one thread.
pub struct Compressor {
    scratch: Box<Scratch>,
    decoders: Decoders,
}

impl Compressor {
    /// An error if there is no memory for the decoders.
    pub fn new() -> Result<Compressor> {
        Ok(Compressor {
            scratch: Scratch::new(),
            decoders: Decoders::new()?,
        })
    }

    /// Compresses and decompresses pages one by one, and adds what became of them to `made`. Signals wait
    /// until it is done.
    pub fn go_over(&mut self, pages: &[[u8; PAGE]], by: Codec, most: Most, made: &mut Made) {
        let most = match most {
            Most::BesideDevice => SHORT,
            Most::WithoutDevice => LONGEST,
        };
        // (Decoders have locks.)
        let _alone = Alone::new();
        for page in pages {
            self.scratch.page = *page;
            let start = Instant::now();
            let len = self.scratch.compress(by, most);
            let compressed = Instant::now();
            made.into += compressed - start;
            let Some(len) = len else { continue };
            let is_decoded = self.scratch.decompress(&self.decoders, len);
            made.out += compressed.elapsed();
            made.short += 1;
            made.len += len;
            made.wrong += usize::from(!is_decoded || self.scratch.page != *page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_comes_back_and_no_more_is_kept_than_asked_for() {
        let mut compressor = Compressor::new().unwrap();
        let mut page = [0; PAGE];
        let mut x = 1u64;
        for b in &mut page[..PAGE / 4 * 3] {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *b = (x >> 56) as u8;
        }
        let pages = [page, [7; PAGE]];
        for by in Codec::ALL {
            for (most, short) in [(Most::BesideDevice, 1), (Most::WithoutDevice, 2)] {
                let mut made = Made::default();
                compressor.go_over(&pages, by, most, &mut made);
                assert_eq!((made.short, made.wrong), (short, 0), "{by:?}");
                let block = made.len - 8;
                assert!(block == 0 || (PAGE / 2..PAGE / 8 * 7).contains(&block));
            }
        }
    }
}

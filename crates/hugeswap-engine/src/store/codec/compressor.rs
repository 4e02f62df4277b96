//! What codecs make of a page, for those who measure it.

use super::{Decoders, LONGEST, SHORT, Scratch};
use crate::PAGE;
use hugeswap_policy::zswap::codec::Codec;
use hugeswap_sys::Result;

/// A block may be so long, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Most {
    /// It is kept in memory beside a device: five eighths of a page.
    BesideDevice,
    /// There is no device: seven eighths.
    WithoutDevice,
}

/// Compresses pages as compressed memory does, one at a time.
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

    /// Compresses a page; the length of its block, bytes. `None`: it does not become as short.
    pub fn compress(&mut self, by: Codec, page: &[u8; PAGE], most: Most) -> Option<usize> {
        self.scratch.page = *page;
        let most = match most {
            Most::BesideDevice => SHORT,
            Most::WithoutDevice => LONGEST,
        };
        self.scratch.compress(by, most)
    }

    /// Decompresses the block of `len` bytes that [`Compressor::compress`] has made last; `None`: it was of
    /// another length.
    pub fn decompress(&mut self, len: usize) -> Option<&[u8; PAGE]> {
        let is_decoded = len <= LONGEST && self.scratch.decompress(&self.decoders, len);
        is_decoded.then_some(&self.scratch.page)
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
        for by in Codec::ALL {
            assert_eq!(compressor.compress(by, &page, Most::BesideDevice), None);
            let len = compressor.compress(by, &page, Most::WithoutDevice);
            let len = len.expect("a quarter are zeros");
            assert!((PAGE / 2..PAGE * 7 / 8).contains(&len), "{len}");
            assert_eq!(compressor.decompress(len), Some(&page));
            assert_eq!(compressor.decompress(PAGE), None);
        }
    }
}

//! Encryption of swapped pages: AES-256-GCM, each page by itself.
//!
//! A page in swap is its ciphertext, of the same length. Its *seal* (the number it was encrypted
//! under, and the tag) stays in memory, in the pool's segment. So a page reads back as what was
//! last written to that very place, or not at all: other bytes, bytes of another place or of an
//! earlier time, and half-written ones have another tag. The associated data names area and place
//! besides.
//!
//! No number is used twice under one key ([`Nonces`]). The rules of the fault path hold for all but
//! making a [`Cipher`].

use crate::PAGE;
use crate::pool::secret::{KEY_BYTES, hide, wipe};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_sys::{Result, mm};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Where in its page the cipher stands; before it is room for the key.
const CIPHER_AT: usize = 64;

/// What makes the page in a slot readable.
#[repr(C)]
pub struct Seal {
    /// The number it was encrypted under; 0: nothing is known of the slot.
    nonce: AtomicU64,
    tag: [AtomicU64; 2],
}

/// The seals of a cluster's slots.
pub type Seals = [Seal; UNIT_PAGES as usize];

impl Seal {
    /// Notes that nothing is known of the slot.
    pub(super) fn forget(&self) {
        self.nonce.store(0, Release);
    }
}

/// Where a page lies: its area, and its place there in bytes.
pub(super) type Place = (usize, u64);

fn associated((area, offset): Place) -> Aad<[u8; 16]> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(area as u64).to_le_bytes());
    bytes[8..].copy_from_slice(&offset.to_le_bytes());
    Aad::from(bytes)
}

fn number(nonce: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&nonce.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// The expanded key, in a page of its own that is locked in memory and left out of core dumps, and
/// wiped at the end. A forked child has it too.
pub(crate) struct Cipher {
    at: usize,
}

impl Cipher {
    /// `key` fills in the key; false: there is none, and no cipher then. An error: no memory for
    /// it, or none that can be locked.
    pub fn new(key: impl FnOnce(&mut [u8; KEY_BYTES]) -> bool) -> Result<Option<Cipher>> {
        let at = mm::map_own(PAGE, mm::PROT_RW)?;
        let cipher = Cipher { at };
        hide(at, PAGE)?;
        // SAFETY: the beginning of our page, which no other thread uses.
        let raw = unsafe { &mut *(at as *mut [u8; KEY_BYTES]) };
        let made = key(raw) && expand(raw, at + CIPHER_AT);
        // SAFETY: our page.
        unsafe { wipe(at, CIPHER_AT) };
        wipe_stack();
        Ok(made.then_some(cipher))
    }

    fn key(&self) -> &LessSafeKey {
        // SAFETY: `new` put it there, and it stays until `self` is dropped.
        unsafe { &*((self.at + CIPHER_AT) as *const LessSafeKey) }
    }

    /// In a forked child, which does not inherit that memory is locked. (It may have been left
    /// without a right to that; then the key could go to the kernel's swap.)
    pub fn lock_in_child(&self) {
        let _ = mm::lock(self.at, PAGE);
    }

    /// Encrypts a page where it is; its tag goes to `seal`, which stays unknown until
    /// [`Cipher::done`]. False: it could not be.
    #[inline(never)]
    pub(super) fn seal(&self, nonce: u64, place: Place, page: &mut [u8], seal: &Seal) -> bool {
        let sealed = self
            .key()
            .seal_in_place_separate_tag(number(nonce), associated(place), page);
        let Ok(tag) = sealed else {
            return false;
        };
        for (cell, part) in seal.tag.iter().zip(tag.as_ref().chunks_exact(8)) {
            let mut word = [0; 8];
            word.copy_from_slice(part);
            cell.store(u64::from_le_bytes(word), Relaxed);
        }
        true
    }

    /// The page is where it belongs, and can be read from now on.
    pub(super) fn done(nonce: u64, seal: &Seal) {
        seal.nonce.store(nonce, Release);
    }

    /// Decrypts a page where it is. False: it is not what was last written to this place; its bytes
    /// are of no use then.
    #[inline(never)]
    pub(super) fn open(&self, place: Place, page: &mut [u8], seal: &Seal) -> bool {
        let nonce = seal.nonce.load(Acquire);
        if nonce == 0 {
            return false;
        }
        let mut tag = [0; 16];
        for (part, cell) in tag.chunks_exact_mut(8).zip(&seal.tag) {
            part.copy_from_slice(&cell.load(Relaxed).to_le_bytes());
        }
        let (nonce, place) = (number(nonce), associated(place));
        self.key()
            .open_in_place_separate_tag(nonce, place, Tag::from(tag), page, 0..)
            .is_ok()
    }
}

impl Drop for Cipher {
    fn drop(&mut self) {
        // SAFETY: our page, which is not used any more; a cipher needs no dropping, it is numbers.
        unsafe {
            wipe(self.at, PAGE);
            let _ = mm::unmap(self.at, PAGE);
        }
    }
}

const _: () = assert!(CIPHER_AT + size_of::<LessSafeKey>() <= PAGE);
const _: () =
    assert!(CIPHER_AT >= KEY_BYTES && CIPHER_AT.is_multiple_of(align_of::<LessSafeKey>()));
const _: () = assert!(!std::mem::needs_drop::<LessSafeKey>());

/// Not inlined: what it leaves on the stack is wiped by [`wipe_stack`], called from where it was
/// called from.
#[inline(never)]
fn expand(key: &[u8; KEY_BYTES], to: usize) -> bool {
    let Ok(key) = UnboundKey::new(&AES_256_GCM, key) else {
        return false;
    };
    // SAFETY: within the caller's page, aligned (see above).
    unsafe { std::ptr::write(to as *mut LessSafeKey, LessSafeKey::new(key)) };
    true
}

/// Zeroes what [`expand`] may have left below its caller's frame.
#[inline(never)]
fn wipe_stack() {
    const DEPTH: usize = 8 << 10;
    let mut below = [0u64; DEPTH / 8];
    // SAFETY: our own array.
    unsafe { wipe(below.as_mut_ptr() as usize, DEPTH) };
    std::hint::black_box(&mut below);
}

/// Numbers to encrypt under, none of them twice in a pool's life.
///
/// A number of 64 bits is a writer's in the upper half, counted there in the lower half. A process
/// takes a new writer's number from the pool when it writes for the first time, and when it has
/// used one up; when those are used up (after 2^32), there is none, and nothing can be written. The
/// numbers are in a page that the kernel wipes in every forked child, however it was forked, so
/// that no child goes on with its parent's. Threads and vfork children share it.
pub(crate) struct Nonces {
    at: usize,
}

impl Nonces {
    /// With no number taken yet.
    pub fn new() -> Result<Nonces> {
        let at = mm::map_own(PAGE, mm::PROT_RW)?;
        let nonces = Nonces { at };
        // SAFETY: advice that discards nothing here.
        unsafe { mm::advise(at, PAGE, libc::MADV_WIPEONFORK) }?;
        Ok(nonces)
    }

    fn next(&self) -> &AtomicU64 {
        // SAFETY: mapped for the life of `self`, used as one atomic only.
        unsafe { &*(self.at as *const AtomicU64) }
    }

    /// The first of `n` numbers (1 to 512) that no other caller gets. `writers`: the pool's count
    /// of them.
    pub fn take(&self, n: u64, writers: &AtomicU32) -> Option<u64> {
        loop {
            let next = self.next().load(Relaxed);
            let (first, after) = if next != 0 && (next & LOW) + n <= LOW {
                (next, next + n)
            } else {
                let taken = writers.fetch_update(AcqRel, Relaxed, |w| w.checked_add(1));
                let first = u64::from(taken.ok()? + 1) << 32;
                (first, first + n)
            };
            if self
                .next()
                .compare_exchange(next, after, AcqRel, Relaxed)
                .is_ok()
            {
                return Some(first);
            }
        }
    }
}

/// The numbers of one writer.
const LOW: u64 = u32::MAX as u64;

impl Drop for Nonces {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which is not used any more.
        let _ = unsafe { mm::unmap(self.at, PAGE) };
    }
}

#[cfg(test)]
mod tests;

//! The key that a pool's swap is encrypted with: 32 random bytes in a memory file of their own.
//!
//! The process that makes the pool holds the file, in memory that is locked, left out of core dumps
//! and not inherited by forked children, and wipes it at the end. A process that joins opens the
//! file as it opens the segment (`/proc/PID/fd`), makes its cipher from the key and closes the file
//! again. Programs that do not join inherit nothing: the descriptor is closed on exec.

use super::PoolError;
use crate::PAGE;
use crate::store::seal::Cipher;
use hugeswap_sys::{Errno, fs, mm, process};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64};

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 32;
/// There is a key. (What was wiped, or never written, is 0.)
const HERE: u64 = u64::from_le_bytes(*b"swap key");

/// The content of the file.
#[repr(C)]
struct Content {
    /// [`HERE`], as long as the key is.
    mark: AtomicU64,
    key: [AtomicU8; KEY_BYTES],
}

/// The key's file, mapped, until it is dropped.
#[derive(Debug)]
pub struct Secret {
    fd: AtomicI32,
    at: usize,
    /// The process that made it; 0: another than this.
    maker: i32,
}

impl Secret {
    /// Draws a key. An error says that it could not be kept safe.
    pub(super) fn create() -> Result<Secret, PoolError> {
        let fd = mm::memfd(c"hugeswap-key", false)
            .map_err(|e| PoolError::System("cannot make a place for the key", e))?;
        let secret = fs::truncate(fd, PAGE as u64)
            .and_then(|()| Secret::map(fd, process::pid()))
            .map_err(|e| {
                fs::close(fd);
                PoolError::System("cannot map the key", e)
            })?;
        // SAFETY: advice that discards nothing.
        unsafe { mm::advise(secret.at, PAGE, libc::MADV_DONTFORK) }
            .and_then(|()| hide(secret.at, PAGE))
            .map_err(not_hidden)?;
        let content = secret.content();
        let mut done = 0;
        while done < KEY_BYTES {
            // SAFETY: the rest of the key, which no other thread has yet.
            let n = unsafe {
                libc::getrandom(
                    (&raw const content.key[done]).cast_mut().cast(),
                    KEY_BYTES - done,
                    0,
                )
            };
            match n {
                1.. => done += n as usize,
                _ if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
                _ => {
                    return Err(PoolError::System(
                        "cannot draw a key",
                        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
                    ));
                }
            }
        }
        content.mark.store(HERE, Release);
        Ok(secret)
    }

    /// The key of a pool that is joined, by its file, which is closed in any case, at the latest
    /// when this is dropped.
    pub(super) fn join(fd: i32) -> Result<Secret, PoolError> {
        // Behind the end of a file that is no key's there would be SIGBUS.
        let secret = match fs::size(fd) {
            Ok((n, _)) if n == PAGE as u64 => Secret::map(fd, 0),
            _ => Err(Errno::EINVAL),
        };
        let secret = secret.map_err(|_| {
            fs::close(fd);
            PoolError::BadSegment
        })?;
        hide(secret.at, PAGE).map_err(not_hidden)?;
        Ok(secret)
    }

    fn map(fd: i32, maker: i32) -> Result<Secret, Errno> {
        Ok(Secret {
            at: mm::map_shared(fd, PAGE, 0)?,
            fd: AtomicI32::new(fd),
            maker,
        })
    }

    fn content(&self) -> &Content {
        // SAFETY: mapped for the life of `self`, page-aligned, atomics only. (Not asked for in a
        // forked child.)
        unsafe { &*(self.at as *const Content) }
    }

    pub(super) fn fd(&self) -> i32 {
        self.fd.load(Relaxed)
    }

    /// Did this very process draw it?
    pub(super) fn is_mine(&self) -> bool {
        self.maker == process::pid()
    }

    /// What encrypts with this key. [`PoolError::BadSegment`]: it has been wiped.
    pub(super) fn cipher(&self) -> Result<Cipher, PoolError> {
        let content = self.content();
        let here = || content.mark.load(Acquire) == HERE;
        let cipher = Cipher::new(|key| {
            if !here() {
                return false;
            }
            for (to, from) in key.iter_mut().zip(&content.key) {
                *to = from.load(Acquire);
            }
            // Wiped meanwhile, it would be another key.
            here()
        });
        cipher.map_err(not_hidden)?.ok_or(PoolError::BadSegment)
    }

    /// In a forked child of its maker, which has no mapping of it and must not keep it alive.
    pub(super) fn leave(&self) {
        if !self.is_mine() {
            fs::close(self.fd.swap(-1, Relaxed));
        }
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        fs::close(self.fd());
        if self.maker != 0 && !self.is_mine() {
            return;
        }
        if self.is_mine() {
            let content = self.content();
            content.mark.store(0, Release);
            // SAFETY: our own mapping; a thread that reads it meanwhile finds that there is no key.
            unsafe { wipe(self.at, PAGE) };
        }
        // SAFETY: our own mapping, which is not used any more.
        let _ = unsafe { mm::unmap(self.at, PAGE) };
    }
}

fn not_hidden(e: Errno) -> PoolError {
    PoolError::System(
        "swap cannot be encrypted, for memory for the key cannot be locked: raise the limit (ulimit -l 64)",
        e,
    )
}

/// Keeps a range in memory, and out of core dumps.
pub(crate) fn hide(at: usize, len: usize) -> Result<(), Errno> {
    mm::lock(at, len)?;
    // SAFETY: advice that discards nothing.
    unsafe { mm::advise(at, len, libc::MADV_DONTDUMP) }
}

/// Zeroes a range so that the compiler does not leave it out.
///
/// # Safety
/// The range must be writable memory of the caller's, aligned to 8 bytes.
pub(crate) unsafe fn wipe(at: usize, len: usize) {
    for word in (at..at + len).step_by(8) {
        // SAFETY: passed on to the caller.
        unsafe { std::ptr::write_volatile(word as *mut u64, 0) };
    }
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

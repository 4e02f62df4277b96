//! Access to managed memory that may be lost, without a signal for it: as the kernel copies from
//! and to user memory.
//!
//! One instruction does the copying. The fault handler, where it would raise SIGBUS, sees that it
//! was this one and goes on behind it, and the copy tells that it was not finished. Nothing is
//! registered, so that any number of threads may copy at once.

use hugeswap_sys::{Errno, Result};

std::arch::global_asm!(
    ".hidden hugeswap_careful_copy",
    ".hidden hugeswap_careful_access",
    ".hidden hugeswap_careful_end",
    ".globl hugeswap_careful_copy",
    ".globl hugeswap_careful_access",
    ".globl hugeswap_careful_end",
    ".type hugeswap_careful_copy, @function",
    "hugeswap_careful_copy:",
    "mov rcx, rdx",
    "hugeswap_careful_access:",
    "rep movsb",
    "hugeswap_careful_end:",
    "mov rax, rcx",
    "ret",
    ".size hugeswap_careful_copy, . - hugeswap_careful_copy",
);

// SAFETY: these are the symbols defined above, with these types.
unsafe extern "sysv64" {
    /// Copies; how many bytes are left if it had to end early.
    fn hugeswap_careful_copy(to: usize, from: usize, len: usize) -> usize;
    static hugeswap_careful_access: u8;
    static hugeswap_careful_end: u8;
}

/// Copies `len` bytes. EIO: a byte of either side is lost; some were copied.
///
/// # Safety
/// `[from, from + len)` must be readable and `[to, to + len)` the caller's to overwrite, or managed
/// memory that is lost; they do not overlap.
pub(crate) unsafe fn copy(to: usize, from: usize, len: usize) -> Result<()> {
    // SAFETY: as the caller promises; it touches nothing else.
    match unsafe { hugeswap_careful_copy(to, from, len) } {
        0 => Ok(()),
        _ => Err(Errno::EIO),
    }
}

/// Where code goes on whose access at `ip` finds memory lost; `None`: it gets a signal.
pub(crate) fn recovery_address(ip: usize) -> Option<usize> {
    let (access, end) = (
        &raw const hugeswap_careful_access,
        &raw const hugeswap_careful_end,
    );
    (ip == access as usize).then_some(end as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_copied() {
        let from: Vec<u8> = (0..100).collect();
        let mut to = [0u8; 100];
        // SAFETY: two buffers of ours.
        unsafe { copy(to.as_mut_ptr() as usize, from.as_ptr() as usize, 90) }.unwrap();
        assert_eq!(to[..90], from[..90]);
        assert_eq!(to[90..], [0; 10]);
        assert_eq!(recovery_address(0), None);
    }
}

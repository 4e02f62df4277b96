//! Access to managed memory that may be lost, without a signal for it: as the kernel copies from and to user memory.
//!
//! One instruction does the copying. The fault handler, where it would raise SIGBUS, sees that it was this one and goes on behind it,
//! and the copy tells that it was not finished. Nothing is registered, so that any number of threads may copy at once.

use crate::UNIT;
use crate::paging::Paging;
use crate::pool::FaultMode;
use hugeswap_policy::unit::Kind;
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, Result, now_ns};

/// Who is refused memory has waited for longer.
const REFUSED_NS: u64 = 1_000_000_000;

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
/// `[from, from + len)` must be readable and `[to, to + len)` the caller's to overwrite, or managed memory that is lost; they do not overlap.
pub(crate) unsafe fn copy(to: usize, from: usize, len: usize) -> Result<()> {
    // SAFETY: as the caller promises; it touches nothing else.
    match unsafe { hugeswap_careful_copy(to, from, len) } {
        0 => Ok(()),
        _ => Err(Errno::EIO),
    }
}

/// Where code goes on whose access at `ip` finds memory lost; `None`: it gets a signal.
pub(crate) fn way_out(ip: usize) -> Option<usize> {
    let (access, end) = (
        &raw const hugeswap_careful_access,
        &raw const hugeswap_careful_end,
    );
    (ip == access as usize).then_some(end as usize)
}

impl Paging {
    /// Copies managed memory from `addr` on to `to`. EIO: some of it is lost. The range is mapped; what others write meanwhile comes
    /// or not, byte by byte.
    pub fn copy_out(&self, addr: usize, to: &mut [u8]) -> Result<()> {
        debug_assert!(to.is_empty() || self.contains(addr) || self.sharing.is_shared(addr));
        self.without_marks(addr, to.len(), || {
            // SAFETY: the engine's own memory, or lost, and a buffer.
            unsafe { copy(to.as_mut_ptr() as usize, addr, to.len()) }
        })
    }

    /// Copies `from` to managed memory from `addr` on. EIO: some of the memory is lost.
    ///
    /// # Safety
    /// The range must be mapped, writable, and the caller's.
    pub unsafe fn copy_in(&self, addr: usize, from: &[u8]) -> Result<()> {
        debug_assert!(from.is_empty() || self.contains(addr) || self.sharing.is_shared(addr));
        self.without_marks(addr, from.len(), || {
            // SAFETY: passed on to the caller.
            unsafe { copy(addr, from.as_ptr() as usize, from.len()) }
        })
    }

    /// Copies; once more where that failed at once in message mode, for then it met the mark of an earlier refusal.
    fn without_marks(
        &self,
        addr: usize,
        len: usize,
        mut copy: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let start = now_ns();
        let done = copy();
        if done.is_err() && self.unmark(addr, len) && now_ns() - start < REFUSED_NS {
            return copy();
        }
        done
    }

    /// Message mode: what was refused for want of memory, and is not lost, can be had as soon as there is some. (A page is marked there to have its toucher told.) False: all of the
    /// range is lost.
    fn unmark(&self, addr: usize, len: usize) -> bool {
        if self.mode() != FaultMode::Message {
            return false;
        }
        let mut any = false;
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in self.table.units_of(addr, len) {
            // (Who has it locked may be bringing it in for another fault on it.)
            let w = self.table.lock(unit);
            any |= match w.kind() {
                Kind::None | Kind::Swapped | Kind::Cached => {
                    self.mover().drop_pages(self.table.addr(unit), UNIT).is_ok()
                }
                kind => kind == Kind::Present,
            };
            w.settle();
        }
        any
    }
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
        assert_eq!(way_out(0), None);
    }
}

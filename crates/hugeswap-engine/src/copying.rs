//! Bytes copied from and to managed memory on a caller's behalf. A marker, or a loss, ends the copy
//! with an error.
use crate::UNIT;
use crate::careful::copy;
use crate::paging::Paging;
use hugeswap_policy::unit::Kind;
use hugeswap_sys::Result;
use hugeswap_sys::now_ns;
use hugeswap_sys::signal::Blocked;

/// A thread that is refused memory has waited for longer.
const REFUSED_NS: u64 = 1_000_000_000;

impl Paging {
    /// Copies managed memory from `addr` on to `to`. EIO: some of it is lost. The range is mapped;
    /// what others write meanwhile comes or not, byte by byte.
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

    /// Copies; once more where that failed at once in message mode, for then it met the mark of an
    /// earlier refusal.
    pub(crate) fn without_marks(
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

    /// Message mode: what was refused for want of memory, and is not lost, can be had as soon as
    /// there is some. (A page is marked there to have its toucher told.) False: all of the range is
    /// lost.
    pub(crate) fn unmark(&self, addr: usize, len: usize) -> bool {
        if !self.backend.can().faults_are_messages {
            return false;
        }
        let mut any = false;
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        for unit in self.table.units_of(addr, len) {
            // (The thread that has it locked may be bringing it in for another fault on it.)
            let w = self.table.lock(unit);
            any |= match w.kind() {
                Kind::None | Kind::Swapped | Kind::Cached => {
                    self.backend.drop_units(self.table.addr(unit), UNIT).is_ok()
                }
                kind => kind == Kind::Present,
            };
            w.settle();
        }
        any
    }
}

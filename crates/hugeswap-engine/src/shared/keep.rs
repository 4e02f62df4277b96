//! Units that stay in memory until their region ends, so that they can be used otherwise than by
//! the program's own instructions: by the kernel, for any time, or by mappings that no userfaultfd
//! watches.

use super::{Host, Map, Sharing};
use crate::outcome::{Fault, Outcome};
use hugeswap_policy::shared::step::Event;
use hugeswap_policy::shared::{Kind, Op};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, Result, process, uffd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

impl Sharing {
    /// Brings in what a range of a shared region meets, to stay there for good, writable in this
    /// process by the kernel too. (In another process only once that has written there itself.)
    pub(crate) fn keep_shared(&self, host: &impl Host, addr: usize, len: usize) -> Result<()> {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let (_, m) = self.map_of(addr).ok_or(Errno::ENOMEM)?;
        let units = m.units_in(addr, len, false);
        units
            .into_iter()
            .try_for_each(|unit| self.keep_unit(host, m, unit))
    }

    fn keep_unit(&self, host: &impl Host, m: &Map, unit: u32) -> Result<()> {
        loop {
            let w = self.load(unit);
            match (w.op(), w.kind()) {
                (_, Kind::Kept) => break,
                (Op::None, Kind::Resident) => {
                    if self.change(unit, w, Event::Kept) {
                        break;
                    }
                }
                _ => match self.fault(host, Fault::by_engine(m.addr_of(unit), true)) {
                    Outcome::Retry => {}
                    _ => return Err(Errno::ENOMEM),
                },
            }
        }
        // A process that had begun to take it out may still be write-protecting it; no process
        // begins any more.
        fence(SeqCst);
        let (mut looks, mut since) = (0u32, None);
        while self.pool.is_being_frozen(unit) {
            if self.is_stuck(&mut since) {
                return Err(Errno::EIO);
            }
            looks += 1;
            if looks.is_multiple_of(1024) {
                self.pool.reap();
            }
            process::yield_now();
        }
        match uffd::write_protect(m.fds().uffd, m.addr_of(unit), m.span_of(unit), false) {
            // Some of it is not mapped as it was: that was kept before.
            Err(Errno::ENOENT) => Ok(()),
            done => done,
        }
    }

    pub(super) fn is_kept(&self, unit: u32) -> bool {
        self.load(unit).kind() == Kind::Kept
    }
}

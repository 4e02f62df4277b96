//! A touch of a shared unit that is not in memory, or that is write-protected.
//!
//! The rules of the fault path hold. Besides, no thread holds a word while it waits for memory,
//! because other processes may need the word.

use super::lock::Locked;
use super::{Fds, Host, Map, Sharing};
use crate::doubts::{self, Doubt};
use crate::outcome::{Fault, Outcome};
use crate::{PAGE, PAGES, UNIT};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::shared::step::Event;
use hugeswap_policy::shared::{Kind, Op, Word};
use hugeswap_sys::{Errno, Result, uffd};

impl Sharing {
    /// Resolves a fault in a shared region. The caller is inside the gate.
    pub(crate) fn fault(&self, host: &impl Host, fault: Fault) -> Outcome {
        let Fault { addr, write, .. } = fault;
        let Some((region, m)) = self.map_of(addr) else {
            return Outcome::NotOurs;
        };
        let unit = m.unit_at(addr);
        let (mut waited, mut since) = (false, None);
        loop {
            if waited && self.is_stuck(&mut since) {
                return Outcome::Stuck;
            }
            let w = self.load(unit);
            match (w.op(), w.kind()) {
                // (It is there to be read, unless the word is nonsense.)
                (Op::Out, _) if !write && doubts::raise(addr) == Doubt::Open => {
                    return Outcome::Retry;
                }
                // A thread that writes takes it from the process that is taking it out.
                (Op::None, Kind::Resident | Kind::Kept) | (Op::Out, _) => {
                    let Some(mut held) = self.take(unit, w, Op::Touch) else {
                        continue;
                    };
                    let touched = self.touch_resident(region, m, unit, addr, write);
                    if matches!(touched, Err(Errno::EBADF | Errno::ENOTTY)) {
                        held = match self.hand_over(held) {
                            None => {
                                waited = true;
                                continue;
                            }
                            Some(held) => held,
                        };
                    }
                    let displaced = w.op() == Op::Out;
                    held.settle_by(Event::Touched { displaced });
                    if touched.is_err() {
                        return Outcome::NoMemory;
                    }
                    let class = if waited {
                        FaultClass::Wait
                    } else {
                        FaultClass::Soft
                    };
                    host.timed(class, fault);
                    return Outcome::Retry;
                }
                (Op::None, Kind::Lost) => return Outcome::Poisoned,
                (Op::None, Kind::None | Kind::Swapped) => {
                    let Some(mut held) = self.take(unit, w, Op::In) else {
                        continue;
                    };
                    if !self.charge(host, unit) {
                        held.settle();
                        match host.wait_for_memory(None, || self.has_room(host, unit)) {
                            Some(()) => continue,
                            None => return Outcome::NoMemory,
                        }
                    }
                    if w.kind() == Kind::Swapped {
                        self.read_ahead(host, m, unit, false);
                    }
                    let filled = self.fill(region, m.fds(), m, unit, w, true);
                    if matches!(filled, Err(Errno::EBADF | Errno::ENOTTY | Errno::EIO)) {
                        held = match self.hand_over(held) {
                            None => {
                                waited = true;
                                continue;
                            }
                            Some(held) => held,
                        };
                    }
                    if filled.is_err() {
                        // Pages that have come in stay, and are not filled again.
                        held.settle();
                        return Outcome::NoMemory;
                    }
                    held.settle_by(Event::Arrived { ahead: false });
                    host.check_watermark();
                    let class = match w.kind() {
                        Kind::None => FaultClass::FirstTouch,
                        _ => FaultClass::Major,
                    };
                    host.timed(class, fault);
                    return Outcome::Retry;
                }
                _ => {
                    if w.op() == Op::In && !waited {
                        self.read_ahead(host, m, unit, true);
                    }
                    waited = true;
                    self.wait(unit, w);
                }
            }
            if host.is_stopping() {
                return Outcome::NoMemory;
            }
        }
    }

    /// The unit, in memory and the caller's, can be used in this process: by writing, if that is
    /// wanted.
    fn touch_resident(
        &self,
        region: usize,
        m: &Map,
        unit: u32,
        addr: usize,
        write: bool,
    ) -> Result<()> {
        let fd = m.fds().uffd;
        let page = (addr - m.addr_of(unit)) / PAGE;
        if write && self.tracking_of(region) == 2 {
            self.stamp(region, unit, page..page + 1);
            uffd::write_protect(fd, addr & !(PAGE - 1), PAGE, false)?;
        } else if write {
            self.stamp(region, unit, 0..PAGES);
            uffd::write_protect(fd, m.addr_of(unit), m.span_of(unit), false)?;
        }
        if doubts::raise(addr) == Doubt::Settled {
            self.stamp(region, unit, page..page + 1);
            // Another process has made a hole where there was to be none: the page is zero.
            match uffd::zero(fd, addr & !(PAGE - 1), PAGE) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Charges a unit whose word is this thread's, giving up a frame of the process's own if need
    /// be.
    fn charge(&self, host: &impl Host, unit: u32) -> bool {
        // No thread can make room for a thread that is forking.
        let force = self.gate.is_forker();
        self.pool.charge_shared(unit, force)
            || host.hand_back_one() && self.pool.charge_shared(unit, false)
    }

    fn has_room(&self, host: &impl Host, unit: u32) -> Option<()> {
        let room = self.pool.used_frames() < self.pool.frames() || self.pool.is_left(unit);
        (room || host.hand_back_one()).then_some(())
    }

    /// Has kswapd do what the op of a unit says, with descriptors of its own. The unit itself if
    /// kswapd has too much to do.
    pub(super) fn hand_over<'s>(&self, held: Locked<'s>) -> Option<Locked<'s>> {
        if self.gate.is_forker() || self.handed.push(held.unit()).is_err() {
            return Some(held);
        }
        held.pass();
        self.pool.kick();
        None
    }

    /// Fills what is absent of a unit whose word is this thread's with what `w` says that it holds.
    /// `doubt`: as for [`Store::read`](crate::store::Store::read).
    pub(super) fn fill(
        &self,
        region: usize,
        fds: Fds,
        m: &Map,
        unit: u32,
        w: Word,
        doubt: bool,
    ) -> Result<()> {
        let (at, span) = (m.addr_of(unit), m.span_of(unit));
        if w.kind() == Kind::None && self.tracking_of(region) == 0 {
            return by_pages(span, uffd::zero(fds.uffd, at, span), |offset| {
                uffd::zero(fds.uffd, at + offset, PAGE)
            });
        }
        let buffer = self.buffers.take(&self.pool, UNIT);
        if w.kind() == Kind::None {
            // SAFETY: the buffer is ours, and as long.
            unsafe { std::ptr::write_bytes(buffer.at as *mut u8, 0, UNIT) };
            return self.copy(fds.uffd, region, m, unit, buffer.at);
        }
        let cluster = w.cluster().ok_or(Errno::EIO)?;
        self.store.read(cluster, 0..PAGES, buffer.at, doubt)?;
        self.copy(fds.uffd, region, m, unit, buffer.at)?;
        self.pool.count(Counter::PswpIn, UNIT_PAGES);
        Ok(())
    }

    /// Fills what is absent of a unit whose word is this thread's from a buffer.
    pub(super) fn copy(
        &self,
        fd: i32,
        region: usize,
        m: &Map,
        unit: u32,
        from: usize,
    ) -> Result<()> {
        let (at, span) = (m.addr_of(unit), m.span_of(unit));
        // What is tracked is written by another fault.
        let protect = self.tracking_of(region) != 0;
        let copy = |offset, len| uffd::copy(fd, at + offset, from + offset, len, protect);
        by_pages(span, copy(0, span), |offset| copy(offset, PAGE))
    }
}

/// Where some pages were there already, the others one by one.
fn by_pages(span: usize, whole: Result<()>, page: impl Fn(usize) -> Result<()>) -> Result<()> {
    match whole {
        Err(Errno::EEXIST) => {}
        done => return done,
    }
    for offset in (0..span).step_by(PAGE) {
        match page(offset) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

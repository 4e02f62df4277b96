//! Shared units that come in before they are touched: what a sequential stream will want next, and
//! what advice asks for.
//!
//! What is queued for the I/O threads are hints. They own a word only while they bring the unit in,
//! so that no thread is held up longer than by a fault, whichever process is stopped or dies
//! meanwhile. What cannot be had at once (memory, the word, a device that fails) is left to the
//! touch. A region is not unmapped under them ([`Map::hold`]).

use super::Map;
use super::evict::is_userfaultfd;
use super::{Host, Sharing};
use crate::{PAGES, UNIT};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::defrag::gfp::Gfp;
use hugeswap_policy::shared::step::Event;
use hugeswap_policy::shared::{Kind, Op};
use hugeswap_policy::swapin::readahead::run_before;
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{fs, process};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

/// Shared units among the streams of the others, which have numbers below.
const STREAMS: u64 = 1 << 32;

/// A mapping that stays until this is dropped.
struct Hold<'a>(&'a AtomicU32);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Release);
    }
}

impl Map {
    /// Keeps it mapped, if it is.
    fn hold(&self) -> Option<Hold<'_>> {
        // Said before the address is looked at: a thread that unmaps takes that away, and looks
        // then. (Explored in the policy's `tests/hold_loom.rs`.)
        self.holders.fetch_add(1, Relaxed);
        let hold = Hold(&self.holders);
        fence(SeqCst);
        (self.addr.load(Acquire) != 0).then_some(hold)
    }

    /// Waits until no thread holds it any more; its address has been taken away.
    pub(super) fn await_holders(&self) {
        fence(SeqCst);
        while self.holders.load(Acquire) > 0 {
            process::yield_now();
        }
    }
}

impl Sharing {
    /// Plans reads of what a stream will want after `unit`, which was touched and is in swap, or on
    /// its way in already (`coming`). The rules of the fault path hold.
    pub(super) fn read_ahead(&self, host: &impl Host, m: &Map, unit: u32, coming: bool) {
        if self.gate.is_forker() {
            return;
        }
        let Some(mut streams) = host.try_streams() else {
            return;
        };
        let units = m.units();
        let number = |u: u32| STREAMS + u64::from(u);
        let there = |u: u32| self.load(u).is_in_memory();
        let passed = run_before(unit, units.start, there);
        if passed < unit {
            streams.on_resident(number(passed), number(unit));
        }
        let window = streams.on_fault(number(unit), number(units.end), coming);
        drop(streams);
        let mut planned = 0;
        for n in window.units(number(unit)) {
            let Some(u) = n.checked_sub(STREAMS).map(|u| u as u32) else {
                break;
            };
            if !units.contains(&u) || !self.is_to_come(u) {
                continue;
            }
            if !host.queue_shared(u) {
                if let Some(mut streams) = host.try_streams() {
                    streams.on_cut_short(n);
                }
                break;
            }
            planned += 1;
        }
        host.wake_workers(planned.min(2));
    }

    /// Begins to bring in what of a range of a shared region is in swap.
    pub(crate) fn willneed(&self, host: &impl Host, addr: usize, len: usize) {
        let _blocked = Blocked::all();
        let _inside = self.gate.enter();
        let Some((_, m)) = self.map_of(addr) else {
            return;
        };
        for unit in m.units_in(addr, len, false) {
            if self.is_to_come(unit) && !host.queue_shared(unit) {
                break;
            }
        }
        host.wake_workers(2);
    }

    /// Is it in swap, and owned by no process?
    fn is_to_come(&self, unit: u32) -> bool {
        let w = self.load(unit);
        !w.is_locked() && w.kind() == Kind::Swapped
    }

    /// An I/O thread: brings in a unit that was asked for, if nothing stands in its way.
    pub(crate) fn bring(&self, host: &impl Host, unit: u32) {
        let Some((region, m)) = self.map_with(unit) else {
            return;
        };
        let Some(_hold) = m.hold() else {
            return;
        };
        if !m.units().contains(&unit)
            || !self.is_to_come(unit)
            || host.huge_room(Gfp::READAHEAD) == 0
        {
            return;
        }
        // This thread's table is not the program's.
        let Ok(fd) = process::descriptor_of(process::pid(), m.uffd.load(Relaxed)) else {
            return;
        };
        if is_userfaultfd(fd) {
            self.bring_by(host, fd, region, m, unit);
        }
        fs::close(fd);
    }

    fn bring_by(&self, host: &impl Host, fd: i32, region: usize, m: &Map, unit: u32) {
        let buffer = self.buffers.take(&self.pool, UNIT);
        let w = self.load(unit);
        if w.is_locked() || w.kind() != Kind::Swapped {
            return;
        }
        let Some(held) = self.take(unit, w, Op::In) else {
            return;
        };
        let charged = self.pool.is_charged_shared(unit);
        if !self.pool.charge_shared(unit, false) {
            return held.settle();
        }
        let read = w.cluster().is_some_and(|cluster| {
            self.store
                .read_until(cluster, 0..PAGES, buffer.at, false, |_| false)
                .is_ok()
        });
        if !read {
            if !charged {
                self.pool.uncharge_shared(unit);
            }
            return held.settle();
        }
        match self.copy(fd, region, m, unit, buffer.at) {
            Ok(()) => {
                self.pool.count(Counter::PswpIn, UNIT_PAGES);
                held.settle_by(Event::Arrived { ahead: true });
                host.check_watermark();
            }
            // Pages that have come in stay, and are not filled again.
            Err(_) => held.settle(),
        }
    }
}

//! Short reads of swap are polled for instead of slept for, while no other thread wants the
//! processor. When: [`hugeswap_policy::device::poll`]. And many of them are done at one time.
//!
//! A thread has one of a few contexts of Linux AIO meanwhile; where all are in use, threads read by
//! plain calls.
//! They are made when first needed, so a process that swaps nothing has none. The rules of the fault
//! path hold.

use super::backing::Transfer;
use crate::lock::Lock;
use crate::pool::Member;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::device::poll::Polling;
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::aio::Aio;
use hugeswap_sys::fs::Extent;
use hugeswap_sys::{Errno, Result, now_ns, process};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Threads of a process that have a context at one time.
const POLLERS: usize = 4;
/// After so many calls that were refused nothing is tried any more.
const REFUSALS: u32 = 16;

/// This process's contexts, and when it polls.
pub(crate) struct Pollers {
    contexts: [Lock<Option<Aio>>; POLLERS],
    polling: Polling,
    refused: AtomicU32,
    /// For how long threads have polled, nanoseconds: see [`Pollers::polled_ns`].
    polled_ns: AtomicU64,
}

impl Pollers {
    /// None yet.
    pub fn new() -> Pollers {
        Pollers {
            contexts: [const { Lock::new(None) }; POLLERS],
            polling: Polling::default(),
            refused: AtomicU32::new(0),
            polled_ns: AtomicU64::new(0),
        }
    }

    /// In a forked child, which has neither the contexts nor their mappings.
    pub fn forget_in_child(&self) {
        for context in &self.contexts {
            std::mem::forget(context.lock().take());
        }
        self.polled_ns.store(0, Relaxed);
    }

    /// Gives the contexts back to the kernel; there is nothing to read any more.
    pub fn close(&self) {
        for context in &self.contexts {
            drop(context.lock().take());
        }
    }

    /// Carries out a read of swap. False: it is to be done by a plain call, which also tells what
    /// is wrong.
    ///
    /// # Safety
    /// The transfer's memory must be the caller's to overwrite.
    pub unsafe fn read(&self, pool: &Member, t: &Transfer) -> bool {
        if self.refused.load(Relaxed) >= REFUSALS || pool.knob(Knob::SwapPoll) == 0 {
            return false;
        }
        let Some(mut poll) = self.polling.begin(now_ns(), t.expected_ns) else {
            return false;
        };
        let before = process::switches();
        let switched = || process::switches().is_none_or(|now| before != Some(now));
        let mut polled = (0, 0);
        let mut asleep = false;
        let read = self.with_context(|aio| {
            // SAFETY: passed on to the caller.
            unsafe {
                aio.read_at(t.fd, t.memory, t.len, t.offset, || {
                    let now = now_ns();
                    polled = (if polled.0 == 0 { now } else { polled.0 }, now);
                    asleep = !poll.look(now, switched);
                    !asleep
                })
            }
        });
        let Some(result) = read else {
            return false;
        };
        let now = now_ns();
        self.polled_ns.fetch_add(polled.1 - polled.0, Relaxed);
        if asleep {
            poll.slept(now);
        }
        if !self.polling.end(poll, now, switched) {
            pool.count(Counter::SwapPollYield, 1);
        }
        match result {
            Ok(n) if n == t.len => {
                self.refused.store(0, Relaxed);
                pool.count(Counter::SwapPolled, 1);
                return true;
            }
            // The device's, which a plain call meets again, or that of a descriptor.
            Ok(_) | Err(Errno::EIO | Errno::EBADF) => {}
            Err(_) => {
                self.refused.fetch_add(1, Relaxed);
            }
        }
        false
    }

    /// For how long threads have polled, all together, nanoseconds: processor time in the process's
    /// own code that gets its program no further. (What another thread had of it meanwhile is in it,
    /// and what threads of ours polled: both are little.)
    pub fn polled_ns(&self) -> u64 {
        self.polled_ns.load(Relaxed)
    }

    /// Carries out up to [`MOST`](hugeswap_sys::aio::MOST) reads of swap at one time, and sleeps until they have ended.
    /// `results`: the bytes read, or an error of each; those are to be done by plain calls.
    ///
    /// # Safety
    /// The memory of the extents must be the caller's to overwrite.
    pub unsafe fn read_together(&self, extents: &[Extent], results: &mut [Result<usize>]) {
        results.fill(Err(Errno::EAGAIN));
        if self.refused.load(Relaxed) < REFUSALS {
            // SAFETY: passed on to the caller.
            self.with_context(|aio| unsafe { aio.read(extents, results) });
        }
    }

    /// Does something with a context; `None`: none is to be had.
    fn with_context<T>(&self, what: impl FnOnce(&mut Aio) -> T) -> Option<T> {
        let mut context = self.contexts.iter().find_map(Lock::try_lock)?;
        if context.is_none() {
            *context = Aio::new().ok();
        }
        let Some(aio) = context.as_mut() else {
            self.refused.store(REFUSALS, Relaxed);
            return None;
        };
        Some(what(aio))
    }
}

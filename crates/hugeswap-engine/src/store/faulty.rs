//! A faulty device in front of the real one, for tests. It does to transfers what
//! `hugeswap_policy::device::faulty` says, and keeps account of it.
//!
//! It remembers a hash of what was last written to each page of swap (not the engine's sums), so it
//! knows of each read whether that brought the same, whatever has happened in between. So a test
//! can say of every fault whether the engine noticed. The memory for it is shared with forked
//! children, because they read their parent's slots.
//!
//! Without `debug.fault_seed` when the engine starts there are no faults by rate, and nothing is
//! remembered. The rules of the fault path hold.

use super::backing::{Failed, Moved, Transfer};
use crate::PAGE;
use crate::pool::{Member, Pool};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::device::faulty::{self, Error, Fault, Kind, Rules};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::{PAGE_BYTES, UNIT_PAGES};
use hugeswap_sys::{Errno, Result, fs, futex, mm, process};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Words before the hashes.
const HEAD: usize = 512;

/// A device that fails on purpose, and the account of what was written to it.
#[derive(Default)]
pub(crate) struct Faulty {
    operations: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    remembered: Option<Remembered>,
}

/// Transfers of the last area, then a hash for each page of swap; 0 is nothing known.
struct Remembered(&'static [AtomicU64]);

impl Remembered {
    fn new(pages: usize) -> Result<Remembered> {
        let words = HEAD + pages;
        let fd = mm::memfd(c"hugeswap-faulty", false)?;
        let map =
            fs::truncate(fd, words as u64 * 8).and_then(|()| mm::map_shared(fd, words * 8, 0));
        fs::close(fd);
        let at = map?;
        // SAFETY: zeroed, page-aligned, long enough, unmapped only in Drop; atomics may be shared.
        Ok(Remembered(unsafe {
            std::slice::from_raw_parts(at as *const AtomicU64, words)
        }))
    }

    fn pages(&self, first: u64, n: usize) -> Option<&'static [AtomicU64]> {
        let from = HEAD.checked_add(usize::try_from(first).ok()?)?;
        self.0.get(from..from.checked_add(n)?)
    }
}

impl Drop for Remembered {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; what it lends lives no longer than a transfer.
        let _ = unsafe { mm::unmap(self.0.as_ptr() as usize, size_of_val(self.0)) };
    }
}

/// Each step is one-to-one, so that pages that differ in one word have different hashes.
fn hash(page: &[u8]) -> u64 {
    let words = page.chunks_exact(8).map(|w| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(w);
        u64::from_ne_bytes(bytes)
    });
    let h = words.fold(1, |h: u64, w| {
        (h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    });
    h.max(1)
}

/// Waits; nothing wakes it.
pub(crate) fn rest(ns: u64) {
    futex::wait(&AtomicU32::new(0), 0, Some(ns), false);
}

/// Says of a read that failed though nothing was spoilt what there is to know: such a failure is
/// a fault of the engine's own, and may not come again. `kept`: compressed memory has some of it.
#[cold]
#[inline(never)]
pub(crate) fn tell_of_unexplained(
    pool: &Member,
    cluster: u64,
    pages: &Range<usize>,
    kept: bool,
    failed: Failed,
) {
    fn yes(is: bool, word: &[u8]) -> &[u8] {
        if is { word } else { b"" }
    }
    let numbers = [
        u64::from(process::pid() as u32),
        u64::from(failed.error.0 as u32),
        cluster,
        pages.start as u64,
        pages.end as u64,
        failed.changed.map_or(0, |page| page as u64),
    ];
    let mut digits = [[0; 20]; 6];
    let mut at = 0;
    let told = digits.each_mut().map(|to| {
        at += 1;
        fs::digits(numbers[at - 1], 10, to)
    });
    fs::complain(&[
        b"hugeswap: not explained: pid ",
        told[0],
        b", errno ",
        told[1],
        b", cluster ",
        told[2],
        b", pages ",
        told[3],
        b"..",
        told[4],
        yes(failed.changed.is_some(), b", changed from +"),
        yes(failed.changed.is_some(), told[5]),
        yes(pool.is_packed(cluster), b", packed"),
        yes(kept, b", kept"),
        yes(pool.owns_cluster(cluster), b", own"),
        yes(pool.is_bad(cluster, pages.clone()), b", bad"),
        b"\n",
    ]);
}

impl Faulty {
    /// As the settings of `pool` have it.
    pub fn new(pool: &Pool) -> Result<Faulty> {
        let mut faulty = Faulty::default();
        if pool.knob(Knob::FaultSeed) != 0 {
            let pages = (pool.header().clusters.load(Relaxed) * UNIT_PAGES) as usize;
            faulty.remembered = Some(Remembered::new(pages)?);
        }
        Ok(faulty)
    }

    pub fn operation(&self) -> u64 {
        self.operations.fetch_add(1, Relaxed)
    }

    /// Is account kept of what is spoilt?
    pub fn keeps_account(&self) -> bool {
        self.remembered.is_some()
    }

    /// What the settings ask for now.
    pub fn rules(&self, pool: &Pool) -> Rules {
        let mut rules = Rules {
            read_fail: pool.knob(Knob::SwapReadFail),
            write_fail: pool.knob(Knob::SwapWriteFail),
            read_flip: pool.knob(Knob::SwapReadFlip),
            space: pool.knob(Knob::SwapSpace),
            ..Rules::default()
        };
        if self.remembered.is_none() {
            return rules;
        }
        rules.seed = pool.knob(Knob::FaultSeed);
        rules.gone.1 = pool.knob(Knob::FaultGone);
        if rules.gone.1 != 0 {
            let last = pool.areas().map(|(i, _)| i).max();
            rules.gone.0 = last.unwrap_or(0) as u64;
        }
        rules.hang_ns = pool.knob(Knob::FaultHangMs) * 1_000_000;
        for &kind in Kind::ALL {
            if let Some(knob) = Knob::of_fault(kind) {
                rules.rates[kind as usize] = pool.knob(knob) as u32;
            }
        }
        rules
    }

    /// Carries out a transfer, or what is made of it.
    ///
    /// # Safety
    /// As for [`Backing::carry_out`](super::backing::Backing::carry_out).
    #[inline(never)]
    pub unsafe fn carry_out(
        &self,
        pool: &Member,
        rules: &Rules,
        t: &Transfer,
    ) -> Result<Moved, Failed> {
        let plan = rules.plan(&self.described(rules, t));
        if let Some((kind, ns)) = plan.wait {
            pool.count(Counter::of_fault(kind), 1);
            rest(ns);
        }
        if let Some((kind, _)) = plan.fault {
            pool.count(Counter::of_fault(kind), 1);
        }
        let fault = plan.fault.map(|(_, fault)| fault);
        let pages = match (&self.remembered, t.page) {
            (Some(r), Some(p)) => r.pages(p.number, t.len / PAGE),
            _ => None,
        };
        if t.write {
            // SAFETY: passed on to the caller.
            self.remember(pages, Some(unsafe { t.bytes() }));
        }
        // SAFETY: passed on to the caller.
        let result = unsafe { t.with(fault) };
        if result.is_err() && t.write {
            // A part may have been written.
            self.remember(pages, None);
        }
        let bytes = result.map_err(|error| Failed {
            error,
            on_purpose: fault.is_some(),
            changed: None,
        })?;
        // SAFETY: as above; it has been read.
        let spoilt = !t.write && pages.is_some_and(|p| differs(p, unsafe { t.bytes() }));
        Ok(Moved { bytes, spoilt })
    }

    fn described(&self, rules: &Rules, t: &Transfer) -> faulty::Transfer {
        let way = if t.write { &self.writes } else { &self.reads };
        let area = t.page.map_or(0, |p| p.area as u64);
        let of_area = match &self.remembered {
            Some(r) if t.page.is_some() && area == rules.gone.0 => r.0[0].fetch_add(1, Relaxed) + 1,
            _ => 0,
        };
        faulty::Transfer {
            write: t.write,
            file: t.page.is_none(),
            number: t.operation,
            attempt: t.attempt,
            area,
            offset: t.offset,
            len: t.len as u64,
            limit: t.page.map_or(0, |p| p.allocated),
            nth: way.fetch_add(1, Relaxed) + 1,
            of_area,
        }
    }

    fn remember(&self, pages: Option<&[AtomicU64]>, bytes: Option<&[u8]>) {
        let Some(pages) = pages else {
            return;
        };
        match bytes {
            Some(bytes) => {
                let all = pages.iter().zip(bytes.chunks_exact(PAGE));
                all.for_each(|(known, page)| known.store(hash(page), Relaxed));
            }
            None => pages.iter().for_each(|known| known.store(0, Relaxed)),
        }
    }
}

/// Are these bytes something else than what was last written there? Where that is not known,
/// nothing was.
fn differs(pages: &[AtomicU64], bytes: &[u8]) -> bool {
    let mut all = pages.iter().zip(bytes.chunks_exact(PAGE));
    all.any(|(known, page)| known.load(Relaxed) != hash(page))
}

impl Transfer {
    /// # Safety
    /// As for [`Backing::carry_out`](super::backing::Backing::carry_out).
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: passed on to the caller. (What is written may be changed by the program
        // meanwhile; then the result is thrown away.)
        unsafe { std::slice::from_raw_parts(self.memory as *const u8, self.len) }
    }

    /// Has the device do it, as far as `fault` allows.
    ///
    /// # Safety
    /// As for [`Backing::carry_out`](super::backing::Backing::carry_out).
    unsafe fn with(&self, fault: Option<Fault>) -> Result<usize> {
        const ALL: usize = usize::MAX;
        let part = |len: u64| Transfer {
            len: len as usize,
            enough: len as usize,
            ..*self
        };
        match fault {
            // SAFETY: passed on to the caller.
            None => unsafe { self.of_device(ALL) },
            // SAFETY: as above.
            Some(Fault::Short(first)) => unsafe { self.of_device(first as usize) },
            Some(Fault::Fail(error, after)) => {
                if after > 0 {
                    // SAFETY: a part of the caller's memory.
                    unsafe { part(after).of_device(ALL) }?;
                }
                Err(match error {
                    Error::Io => Errno::EIO,
                    Error::NoSpace => Errno::ENOSPC,
                    Error::Gone => Errno::ENODEV,
                })
            }
            Some(Fault::Flip(at, bit)) => {
                // SAFETY: passed on to the caller.
                let bytes = unsafe { self.of_device(ALL) }?;
                // SAFETY: of a read, within the caller's memory.
                unsafe { *((self.memory + at as usize) as *mut u8) ^= 1 << bit };
                Ok(bytes)
            }
            Some(Fault::Elsewhere(offset)) => {
                // SAFETY: passed on to the caller.
                unsafe { Transfer { offset, ..*self }.of_device(ALL) }
            }
            Some(Fault::Torn(first)) => {
                // SAFETY: a part of the caller's memory.
                let mut torn = unsafe { part(first).of_device(ALL) };
                if torn == Err(Errno::EINVAL) {
                    // Its blocks are larger.
                    // SAFETY: as above.
                    torn = unsafe { part(first / PAGE_BYTES * PAGE_BYTES).of_device(ALL) };
                }
                torn.map(|_| self.len)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_bit_is_another_hash() {
        let mut page = [0x5au8; PAGE];
        let whole = hash(&page);
        for at in 0..PAGE {
            page[at] ^= 1 << (at % 8);
            assert_ne!(hash(&page), whole, "byte {at}");
            page[at] ^= 1 << (at % 8);
        }
        assert_eq!(hash(&page), whole);
    }

    #[test]
    fn what_was_written_is_remembered() {
        let faulty = Faulty {
            remembered: Some(Remembered::new(8).unwrap()),
            ..Faulty::default()
        };
        let pages = faulty.remembered.as_ref().unwrap().pages(3, 2);
        let bytes = [7u8; 2 * PAGE];
        assert!(differs(pages.unwrap(), &bytes), "nothing was written yet");
        faulty.remember(pages, Some(&bytes));
        assert!(!differs(pages.unwrap(), &bytes));
        faulty.remember(pages, None);
        assert!(differs(pages.unwrap(), &bytes));
        let past = faulty.remembered.as_ref().unwrap().pages(7, 2);
        assert!(past.is_none() && faulty.keeps_account());
    }
}

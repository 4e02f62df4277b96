//! The addresses of an engine's window: which they are, and how they are reserved.
//!
//! Nothing but the engine maps memory in its window without asking it. So all of the window that is
//! free is mapped without access first, and the kernel finds no room there for mappings of others.

use crate::UNIT;
use crate::error::EngineError;
use crate::{LOW_BASE, LOW_LEN, PAGE, WINDOW_BASE, WINDOW_LEN};
use hugeswap_sys::maps::Text;
use hugeswap_sys::{Errno, mm, process};
use std::ops::Range;

/// Which addresses an engine manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// The fixed ones, from [`WINDOW_BASE`] on.
    Fixed {
        /// With those from [`LOW_BASE`] on, if they are free.
        low: bool,
    },
    /// As many bytes at any address.
    Anywhere(usize),
    /// These, whole units, in a process that has mappings there already. They are the kernel's
    /// until the engine's `adopt` takes them over, and stay when it stops.
    Over {
        /// Where new mappings are, too.
        main: Range<usize>,
        /// Elsewhere: each is mapped from start to end, and none meets or touches another.
        far: Vec<Range<usize>>,
    },
}

/// A window whose free addresses are mapped without access.
pub(crate) struct Addresses {
    /// The main range.
    pub all: Range<usize>,
    /// What of it was free, in order.
    pub free: Vec<Range<usize>>,
    /// The far parts.
    pub far: Vec<Range<usize>>,
    /// Addresses below 2 GiB, all of which were free.
    pub low: Option<Range<usize>>,
}

impl Addresses {
    /// Reserves what is free of a window.
    pub fn reserve(window: Window) -> Result<Addresses, EngineError> {
        let whole = |(base, len)| {
            let all = base..base + len;
            let free = Vec::from([all.clone()]);
            Addresses {
                all,
                free,
                far: Vec::new(),
                low: None,
            }
        };
        match window {
            Window::Fixed { low } => {
                let fixed = fixed().map(whole)?;
                let low = low.then(low_part).flatten();
                Ok(Addresses { low, ..fixed })
            }
            Window::Anywhere(len) => anywhere(len).map(whole),
            Window::Over { main, far } => over(main, far),
        }
    }

    /// Gives them back, before they are used.
    pub fn unmap(&self) {
        for free in self.reserved() {
            // SAFETY: reserved by `reserve`, and not in use yet.
            let _ = unsafe { mm::unmap(free.start, free.len()) };
        }
    }

    /// What was free, and is mapped without access.
    pub fn reserved(&self) -> impl Iterator<Item = &Range<usize>> {
        self.free.iter().chain(&self.low)
    }

    /// All parts but the main range.
    pub fn other_parts(&self) -> Vec<Range<usize>> {
        self.far.iter().chain(&self.low).cloned().collect()
    }

    /// Was anything mapped there before?
    pub fn has_others(&self) -> bool {
        self.free != [self.all.clone()] || !self.far.is_empty()
    }

    /// What was mapped there before, in order.
    pub fn of_others(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let ends = self.free.iter().map(|f| f.start).chain([self.all.end]);
        let starts = [self.all.start].into_iter();
        let starts = starts.chain(self.free.iter().map(|f| f.end));
        starts
            .zip(ends)
            .map(|(from, to)| from..to)
            .filter(|r| !r.is_empty())
            .chain(self.far.iter().cloned())
    }
}

fn fixed() -> Result<(usize, usize), EngineError> {
    // Where addresses are limited (ulimit -v) the program needs most of them.
    let addresses = process::limit(libc::RLIMIT_AS);
    let mut len = WINDOW_LEN.min((addresses / 2) as usize) & !(UNIT - 1);
    loop {
        // SAFETY: not replacing: fails if something is there.
        match unsafe { mm::map_anon(WINDOW_BASE, len, mm::PROT_NONE, false) } {
            Ok(at) if at == WINDOW_BASE => return Ok((at, len)),
            Ok(at) => {
                // Kernels before 4.17 take the address as a hint.
                // SAFETY: just mapped, unused.
                let _ = unsafe { mm::unmap(at, len) };
                return Err(EngineError::AddressesInUse);
            }
            // Other limits there may be, or little that is left of this one.
            Err(Errno::ENOMEM) if len > 256 << 20 => len = (len >> 1) & !(UNIT - 1),
            Err(Errno::EEXIST) => return Err(EngineError::AddressesInUse),
            Err(e) => return Err(EngineError::NoAddressSpace(e)),
        }
    }
}

/// As much as is free of the addresses below 2 GiB: all, or the upper half or quarter.
fn low_part() -> Option<Range<usize>> {
    let end = LOW_BASE + LOW_LEN;
    [LOW_LEN, LOW_LEN / 2, LOW_LEN / 4]
        .into_iter()
        .find_map(|len| {
            let part = end - len..end;
            // SAFETY: not replacing: fails if something is there.
            match unsafe { mm::map_anon(part.start, len, mm::PROT_NONE, false) } {
                Ok(at) if at == part.start => Some(part),
                Ok(at) => {
                    // SAFETY: just mapped, unused.
                    let _ = unsafe { mm::unmap(at, len) };
                    None
                }
                Err(_) => None,
            }
        })
}

fn anywhere(len: usize) -> Result<(usize, usize), EngineError> {
    let len = len.next_multiple_of(UNIT);
    let raw = mm::map_own(len + UNIT, mm::PROT_NONE).map_err(EngineError::NoAddressSpace)?;
    let base = raw.next_multiple_of(UNIT);
    // SAFETY: the slack before and after the aligned part, unused.
    unsafe {
        if base > raw {
            let _ = mm::unmap(raw, base - raw);
        }
        let _ = mm::unmap(base + len, raw + UNIT - base);
    }
    Ok((base, len))
}

fn over(all: Range<usize>, far: Vec<Range<usize>>) -> Result<Addresses, EngineError> {
    let is_whole = |r: &Range<usize>| {
        r.start.is_multiple_of(UNIT) && r.end.is_multiple_of(UNIT) && !r.is_empty()
    };
    let mut parts: Vec<_> = far.iter().chain([&all]).collect();
    parts.sort_unstable_by_key(|p| p.start);
    let touch = parts.windows(2).any(|p| p[0].end >= p[1].start);
    if !parts.into_iter().all(is_whole) || touch {
        return Err(EngineError::NoAddressSpace(Errno::EINVAL));
    }
    let mut window = Addresses {
        all: all.clone(),
        free: Vec::new(),
        far,
        low: None,
    };
    let filled = Text::read().and_then(|text| {
        let mut at = all.start;
        for there in text.mappings(all.start, all.len()) {
            window.fill(at..there.start.max(at))?;
            at = there.end.max(at);
        }
        window.fill(at.min(all.end)..all.end)
    });
    match filled {
        Ok(()) => Ok(window),
        Err(e) => {
            window.unmap();
            Err(EngineError::NoAddressSpace(e))
        }
    }
}

impl Addresses {
    /// Reserves a range in which nothing was mapped a moment ago. What is mapped there by now is
    /// found by halves: the kernel says only whether all of it is free.
    fn fill(&mut self, range: Range<usize>) -> Result<(), Errno> {
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: not replacing: fails if something is there.
        match unsafe { mm::map_anon(range.start, range.len(), mm::PROT_NONE, false) } {
            Ok(at) if at == range.start => {
                match self.free.last_mut() {
                    Some(last) if last.end == range.start => last.end = range.end,
                    _ => self.free.push(range),
                }
                Ok(())
            }
            Ok(at) => {
                // SAFETY: just mapped, unused.
                let _ = unsafe { mm::unmap(at, range.len()) };
                Err(Errno::EEXIST)
            }
            Err(Errno::EEXIST) if range.len() > PAGE => {
                let middle = (range.start + range.len() / 2) & !(PAGE - 1);
                self.fill(range.start..middle)?;
                self.fill(middle..range.end)
            }
            Err(Errno::EEXIST) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_stays_out_of_what_is_reserved() {
        let raw = mm::map_own(6 * UNIT, mm::PROT_NONE).expect("addresses");
        let base = raw.next_multiple_of(UNIT);
        let held = [
            base + 3 * PAGE..base + 5 * PAGE,
            base + 3 * UNIT..base + 4 * UNIT,
        ];
        let mut at = raw;
        let end = raw + 6 * UNIT..raw + 6 * UNIT;
        for h in held.iter().cloned().chain(std::iter::once(end)) {
            // SAFETY: mapped above, by this test alone.
            unsafe { mm::unmap(at, h.start - at) }.expect("unmapped");
            at = h.end;
        }
        let window = Addresses::reserve(over(base..base + 5 * UNIT, &[])).expect("reserved");
        assert!(window.has_others());
        let others: Vec<_> = window.of_others().collect();
        // (Another test's thread may map something there meanwhile.)
        for h in held {
            assert!(
                others.iter().any(|o| o.start <= h.start && h.end <= o.end),
                "{h:x?}"
            );
            assert!(
                window
                    .free
                    .iter()
                    .all(|f| f.end <= h.start || h.end <= f.start)
            );
        }
        let free: usize = window.free.iter().map(ExactSizeIterator::len).sum();
        let taken: usize = others.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(free + taken, 5 * UNIT);
        window.unmap();
    }

    #[test]
    fn what_is_mapped_far_away_is_not_reserved() {
        let raw = mm::map_own(4 * UNIT, mm::PROT_NONE).expect("addresses");
        let base = raw.next_multiple_of(UNIT);
        // SAFETY: mapped above, by this test alone.
        unsafe { mm::unmap(base, UNIT) }.expect("unmapped");
        let far = base + 2 * UNIT..base + 3 * UNIT;
        let window = over(base..base + UNIT, std::slice::from_ref(&far));
        let window = Addresses::reserve(window).expect("reserved");
        assert!(window.has_others() && window.of_others().any(|o| o == far));
        assert!(window.reserved().all(|r| r.end <= far.start));
        window.unmap();
        // SAFETY: this test's own.
        unsafe { mm::unmap(raw, 4 * UNIT) }.expect("unmapped");
    }

    fn over(main: Range<usize>, far: &[Range<usize>]) -> Window {
        let far = far.to_vec();
        Window::Over { main, far }
    }

    #[test]
    fn parts_of_units_and_parts_that_touch_are_refused() {
        let main = 8 * UNIT..9 * UNIT;
        let halves = [PAGE..UNIT, UNIT..UNIT, UNIT..UNIT + PAGE];
        let far = halves
            .clone()
            .map(|part| over(main.clone(), std::slice::from_ref(&part)));
        let before = 7 * UNIT..8 * UNIT;
        let touching = [
            over(main.clone(), std::slice::from_ref(&before)),
            over(main, &[UNIT..3 * UNIT, 2 * UNIT..4 * UNIT]),
        ];
        let all = halves.map(|part| over(part, &[])).into_iter();
        for window in all.chain(far).chain(touching) {
            let refused = Addresses::reserve(window);
            assert!(matches!(
                refused,
                Err(EngineError::NoAddressSpace(Errno::EINVAL))
            ));
        }
    }
}

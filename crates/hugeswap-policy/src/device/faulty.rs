//! What a faulty device does, for tests: a plan of faults that follows from a seed.
//!
//! [`Rules::plan`] is a pure function: the same seed, settings and transfer give the same fault, so
//! that a run can be repeated. The engine carries faults out and counts them. There are three
//! sorts:
//!
//! * *transient*, by the number of the operation: they last for one or two attempts, so an
//!   operation that is tried three times succeeds. Reads have errors, short transfers, changed bits
//!   and bytes from the wrong place; writes have errors, short transfers and no space.
//! * *silent*, by the number of the operation: a write that reports success, but went elsewhere, in
//!   part, or nowhere.
//! * *sticky*, by place: pages that cannot be read, every other one of which cannot be written
//!   either; and a device that is gone.
//!
//! Delays and hangs are independent of these.

use crate::PAGE_BYTES;

named! {
    /// A kind of fault.
    Kind:
    Eio => "eio", "An error (EIO), perhaps after a part was transferred.";
    Short => "short", "A transfer of a part, which has to be continued.";
    NoSpace => "nospace", "A write refused for want of space (ENOSPC).";
    Flip => "flip", "A bit changed on its way to memory.";
    Misread => "misread", "A read from the wrong place.";
    Miswrite => "miswrite", "A write to the wrong place.";
    Torn => "torn", "A write of the first sectors only, with success reported.";
    Lost => "lost", "A write of nothing, with success reported.";
    Bad => "bad", "A page that cannot be read, or neither read nor written, for good.";
    Gone => "gone", "A device that is not there any more (ENODEV).";
    Delay => "delay", "A transfer that takes some milliseconds longer.";
    Hang => "hang", "A transfer that takes very long.";
}

/// Largest number of attempts that a transient fault lasts for.
pub const LONGEST: u32 = 2;
/// The unit of rates: so many operations.
pub const MILLION: u32 = 1_000_000;
/// Bytes of a sector, which a device writes whole.
const SECTOR: u64 = 512;
/// A delay is this part of a hang.
const DELAY_PART: u64 = 32;

/// An error that a device reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// EIO.
    Io,
    /// ENOSPC.
    NoSpace,
    /// ENODEV.
    Gone,
}

/// The fault of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The transfer fails after so many bytes.
    Fail(Error, u64),
    /// The first call transfers so many bytes, fewer than asked for.
    Short(u64),
    /// One of the bytes read (at this offset) has one bit (0 to 7) changed.
    Flip(u64, u8),
    /// The transfer goes to, or comes from, this offset.
    Elsewhere(u64),
    /// Only so many bytes are written; 0: none.
    Torn(u64),
}

/// What happens to one transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The transfer waits so long first, in nanoseconds, as this kind has it.
    pub wait: Option<(Kind, u64)>,
    /// The fault, if any.
    pub fault: Option<(Kind, Fault)>,
}

/// One attempt of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// A write.
    pub write: bool,
    /// A transfer of a mapped file, for which no sums are kept: it gets only faults that it notices
    /// by itself.
    pub file: bool,
    /// Number of the operation among reads and writes.
    pub number: u64,
    /// Number of the attempt, from 0.
    pub attempt: u32,
    /// Number of the swap area.
    pub area: u64,
    /// Offset in bytes; whole pages.
    pub offset: u64,
    /// Length in bytes; whole pages, except in files.
    pub len: u64,
    /// Bytes of the area that may be written.
    pub limit: u64,
    /// Attempts in this direction so far, from 1, for faults of every Nth.
    pub nth: u64,
    /// Transfers so far of the whole area.
    pub of_area: u64,
}

/// Which faults there are. All zero: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The seed of everything else.
    pub seed: u64,
    /// Faults in a million operations, by [`Kind`] (for [`Kind::Bad`]: in a million pages).
    /// [`Kind::Gone`] has no rate.
    pub rates: [u32; Kind::COUNT],
    /// Longest hang in nanoseconds.
    pub hang_ns: u64,
    /// The area that goes away, and after how many transfers of it (0: none does).
    pub gone: (u64, u64),
    /// Every Nth attempt to read fails (0: none).
    pub read_fail: u64,
    /// Every Nth attempt to write fails (0: none).
    pub write_fail: u64,
    /// Every Nth read has a bit changed (0: none).
    pub read_flip: u64,
    /// Areas are full after so many bytes (0: they never are).
    pub space: u64,
}

/// splitmix64 (Steele, Lea and Flood, 2014) of several words.
fn hash(words: [u64; 4]) -> u64 {
    words.into_iter().fold(0, |h, w| {
        let mut z = (h ^ w).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

fn every(nth: u64, n: u64) -> bool {
    n != 0 && nth.is_multiple_of(n)
}

impl Rules {
    /// True if there are no faults at all.
    pub fn is_quiet(&self) -> bool {
        let counted = self.read_fail | self.write_fail | self.read_flip | self.space;
        counted == 0 && !self.has_rates()
    }

    /// True if there are faults by rate, or a device that goes away.
    pub fn has_rates(&self) -> bool {
        self.seed != 0 && (self.gone.1 != 0 || self.rates.iter().any(|&r| r != 0))
    }

    /// What happens to a transfer.
    pub fn plan(&self, t: &Transfer) -> Plan {
        Plan {
            wait: self.wait(t),
            fault: self.by_count(t).or_else(|| self.by_rate(t)),
        }
    }

    fn by_count(&self, t: &Transfer) -> Option<(Kind, Fault)> {
        let io = (Kind::Eio, Fault::Fail(Error::Io, 0));
        if every(
            t.nth,
            if t.write {
                self.write_fail
            } else {
                self.read_fail
            },
        ) {
            return Some(io);
        }
        if t.file {
            return None;
        }
        if t.write && self.space != 0 && t.offset + t.len > self.space {
            return Some((Kind::NoSpace, Fault::Fail(Error::NoSpace, 0)));
        }
        let flips = !t.write && every(t.nth, self.read_flip);
        flips.then(|| (Kind::Flip, Fault::Flip(t.nth * 4099 % t.len.max(1), 4)))
    }

    fn by_rate(&self, t: &Transfer) -> Option<(Kind, Fault)> {
        if !self.has_rates() {
            return None;
        }
        let (area, after) = self.gone;
        if !t.file && after != 0 && t.area == area && t.of_area > after {
            return Some((Kind::Gone, Fault::Fail(Error::Gone, 0)));
        }
        if !t.file && self.is_bad(t) {
            return Some((Kind::Bad, Fault::Fail(Error::Io, 0)));
        }
        let kinds: &[Kind] = match (t.file, t.write) {
            (true, _) => &[Kind::Eio, Kind::Short],
            (_, false) => &[Kind::Eio, Kind::Short, Kind::Flip, Kind::Misread],
            (_, true) => &[
                Kind::Eio,
                Kind::Short,
                Kind::NoSpace,
                Kind::Miswrite,
                Kind::Torn,
                Kind::Lost,
            ],
        };
        let h = hash([self.seed, 1, t.number, u64::from(t.write)]);
        // The first kind that the number falls to: no operation has two.
        let mut drawn = (h % u64::from(MILLION)) as u32;
        let kind = kinds.iter().copied().find(|&k| {
            let rate = self.rates[k as usize];
            let falls = drawn < rate;
            drawn = drawn.saturating_sub(rate);
            falls
        })?;
        let lasts = 1 + (h >> 40) as u32 % LONGEST;
        if t.attempt >= lasts {
            return None;
        }
        let detail = hash([self.seed, 2, t.number, u64::from(t.attempt)]);
        let pages = t.len / PAGE_BYTES;
        let part = |unit: u64| {
            (t.len / unit)
                .checked_sub(1)
                .map(|n| detail % (n + 1) * unit)
        };
        let fault = match kind {
            Kind::Eio => Fault::Fail(Error::Io, detail % pages.max(1) * PAGE_BYTES),
            Kind::NoSpace => Fault::Fail(Error::NoSpace, 0),
            Kind::Short if pages > 1 => Fault::Short((1 + detail % (pages - 1)) * PAGE_BYTES),
            Kind::Flip => Fault::Flip(detail % t.len.max(1), (detail >> 60) as u8 & 7),
            Kind::Misread | Kind::Miswrite => Fault::Elsewhere(elsewhere(t, detail)?),
            Kind::Torn => Fault::Torn(part(SECTOR)?),
            Kind::Lost => Fault::Torn(0),
            _ => return None,
        };
        Some((kind, fault))
    }

    fn is_bad(&self, t: &Transfer) -> bool {
        let rate = u64::from(self.rates[Kind::Bad as usize]);
        let first = t.offset / PAGE_BYTES;
        rate != 0
            && (first..first + t.len.div_ceil(PAGE_BYTES)).any(|page| {
                let h = hash([self.seed, 3, t.area, page]);
                h % u64::from(MILLION) < rate && (!t.write || h >> 63 == 1)
            })
    }

    fn wait(&self, t: &Transfer) -> Option<(Kind, u64)> {
        if !self.has_rates() {
            return None;
        }
        let h = hash([self.seed, 4, t.number, u64::from(t.write)]);
        let drawn = (h % u64::from(MILLION)) as u32;
        let (hang, delay) = (
            self.rates[Kind::Hang as usize],
            self.rates[Kind::Delay as usize],
        );
        let (kind, longest) = if drawn < hang {
            (Kind::Hang, self.hang_ns)
        } else if drawn < hang.saturating_add(delay) {
            (Kind::Delay, self.hang_ns / DELAY_PART)
        } else {
            return None;
        };
        // At least a quarter of the longest. Later attempts are let through.
        let ns = longest / 4 + (h >> 20) % (longest * 3 / 4).max(1);
        (t.attempt == 0).then_some((kind, ns))
    }
}

/// Another place of the area for as many bytes, or `None` if there is none.
fn elsewhere(t: &Transfer, detail: u64) -> Option<u64> {
    let pages = t.limit.checked_sub(t.len)? / PAGE_BYTES;
    let own = t.offset / PAGE_BYTES;
    // Any of 0..=pages except its own.
    let other = detail.checked_rem(pages)?;
    Some((other + u64::from(other >= own)) * PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn transfer() -> impl Strategy<Value = Transfer> {
        let place = (0u64..4, 0u64..4096, 1u64..=512);
        let number = (0u64..u64::MAX, 0u32..5, 1u64..u64::MAX);
        (any::<bool>(), any::<bool>(), place, number).prop_map(
            |(write, file, (area, page, pages), (number, attempt, nth))| Transfer {
                write,
                file,
                number,
                attempt,
                area,
                offset: page * PAGE_BYTES,
                len: pages * PAGE_BYTES,
                limit: (page + pages).max(600) * PAGE_BYTES,
                nth,
                of_area: nth,
            },
        )
    }

    fn rules() -> impl Strategy<Value = Rules> {
        let rates = prop::array::uniform12(0u32..=MILLION / 4);
        (1u64.., rates, 1u64..1 << 32).prop_map(|(seed, mut rates, hang_ns)| {
            rates[Kind::Gone as usize] = 0;
            Rules {
                seed,
                rates,
                hang_ns,
                ..Rules::default()
            }
        })
    }

    proptest! {
        #[test]
        fn a_plan_can_be_carried_out(rules in rules(), t in transfer()) {
            let plan = rules.plan(&t);
            prop_assert_eq!(plan, rules.plan(&t), "the same again");
            if let Some((kind, ns)) = plan.wait {
                prop_assert!(matches!(kind, Kind::Delay | Kind::Hang));
                prop_assert!(ns <= rules.hang_ns);
            }
            let Some((kind, fault)) = plan.fault else { return Ok(()) };
            match fault {
                Fault::Fail(_, after) => prop_assert!(after < t.len && after % PAGE_BYTES == 0),
                Fault::Short(n) => prop_assert!(n > 0 && n < t.len && n % PAGE_BYTES == 0),
                Fault::Flip(at, bit) => prop_assert!(at < t.len && bit < 8 && !t.write),
                Fault::Elsewhere(at) => {
                    prop_assert!(at != t.offset && at % PAGE_BYTES == 0 && at + t.len <= t.limit)
                }
                Fault::Torn(n) => prop_assert!(n < t.len && n % SECTOR == 0 && t.write),
            }
            if t.file {
                prop_assert!(matches!(kind, Kind::Eio | Kind::Short), "what nobody would notice");
            }
        }

        #[test]
        fn what_is_transient_passes(rules in rules(), t in transfer()) {
            let mut rules = rules;
            rules.rates[Kind::Bad as usize] = 0;
            let t = Transfer { attempt: LONGEST, ..t };
            prop_assert_eq!(rules.plan(&t), Plan::default());
        }

        #[test]
        fn what_is_bad_stays_so(seed in 1u64.., t in transfer(), again in transfer()) {
            let mut rules = Rules { seed, ..Rules::default() };
            rules.rates[Kind::Bad as usize] = MILLION / 100;
            let read = Transfer { write: false, file: false, ..t };
            let later = Transfer { number: again.number, attempt: again.attempt, nth: again.nth, ..read };
            prop_assert_eq!(rules.plan(&read), rules.plan(&later));
            let write = Transfer { write: true, ..read };
            prop_assert!(rules.plan(&write).fault.is_none() || rules.plan(&read).fault.is_some());
        }

        #[test]
        fn no_rates_no_faults(seed in 0u64.., t in transfer()) {
            let quiet = Rules { seed, hang_ns: 1 << 30, ..Rules::default() };
            prop_assert!(quiet.is_quiet());
            prop_assert_eq!(quiet.plan(&t), Plan::default());
        }
    }

    fn plain(write: bool, number: u64) -> Transfer {
        Transfer {
            write,
            file: false,
            number,
            attempt: 0,
            area: 0,
            offset: 0,
            len: 64 * PAGE_BYTES,
            limit: 1 << 30,
            nth: number + 1,
            of_area: number,
        }
    }

    #[test]
    fn every_kind_comes_as_often_as_it_is_to() {
        let mut rules = Rules {
            seed: 7,
            rates: [MILLION / 50; Kind::COUNT],
            hang_ns: 1000,
            ..Rules::default()
        };
        rules.rates[Kind::Bad as usize] = 0;
        for &kind in Kind::ALL {
            if matches!(kind, Kind::Bad | Kind::Gone) {
                continue;
            }
            let of = |write| {
                let all = (0..20_000).map(|n| rules.plan(&plain(write, n)));
                all.filter(|p| {
                    p.fault.is_some_and(|f| f.0 == kind) || p.wait.is_some_and(|w| w.0 == kind)
                })
                .count()
            };
            let most = of(false).max(of(true));
            assert!((320..480).contains(&most), "{}: {most}", kind.name());
        }
    }

    #[test]
    fn every_nth_is_counted() {
        let rules = Rules {
            read_fail: 5,
            write_fail: 1,
            read_flip: 3,
            space: 8 * PAGE_BYTES,
            ..Rules::default()
        };
        let kind = |t: &Transfer| rules.plan(t).fault.map(|f| f.0);
        let reads: Vec<_> = (0..6).map(|n| kind(&plain(false, n))).collect();
        let (eio, flip) = (Some(Kind::Eio), Some(Kind::Flip));
        assert_eq!(reads, [None, None, flip, None, eio, flip]);
        assert_eq!(kind(&plain(true, 0)), eio);
        let rules = Rules {
            write_fail: 0,
            ..rules
        };
        let full = rules.plan(&plain(true, 0)).fault;
        assert_eq!(full, Some((Kind::NoSpace, Fault::Fail(Error::NoSpace, 0))));
    }

    #[test]
    fn a_device_goes_away_for_good() {
        let rules = Rules {
            seed: 1,
            gone: (0, 100),
            ..Rules::default()
        };
        let gone = |n| rules.plan(&plain(n % 2 == 0, n)).fault.is_some();
        assert!((0..=100).all(|n| !gone(n)) && (101..300).all(gone));
        let other = Transfer {
            area: 1,
            ..plain(true, 500)
        };
        assert_eq!(rules.plan(&other), Plan::default());
    }
}

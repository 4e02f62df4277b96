//! The table of shared regions: which there are, and which processes have them mapped. For a thread
//! that holds the table's lock ([`Table`]).

use super::layout::{Client, MAX_SHARED, SHARED_NAME, SHARED_UNITS, Shared, shared};
use super::shared::{Found, Refused, Table, is_of_program};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::fs::Identity;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

impl Table<'_> {
    /// The region of this name.
    pub fn find(&self, name: &str) -> Result<Found, Refused> {
        let mut all = self.pool.shared_regions();
        let (index, _) = all
            .find(|(_, s)| is_called(s, name))
            .ok_or(Refused::Unknown)?;
        self.look(index).ok_or(Refused::Unknown)
    }

    /// The region of the library's whose memory this is.
    pub fn find_memory(&self, memory: &Identity) -> Result<Found, Refused> {
        let mut all = self.pool.shared_regions();
        let (index, _) = all
            .find(|(_, s)| s.identity.is(memory) && !is_of_program(s))
            .ok_or(Refused::Unknown)?;
        self.look(index).ok_or(Refused::Unknown)
    }

    /// The region at a place of the table, if what is said of it can be.
    pub fn look(&self, index: usize) -> Option<Found> {
        let s = self.pool.header().shared.get(index)?;
        let found = Found {
            index,
            serial: s.serial.load(Relaxed),
            first: s.first.load(Relaxed),
            units: s.units.load(Relaxed),
            len: s.len.load(Relaxed),
            nameless: is_of_program(s),
        };
        let end = found.first.checked_add(found.units)? as usize;
        let fits = found.len.div_ceil(UNIT_BYTES) == u64::from(found.units) && found.units > 0;
        (s.state.load(Acquire) == shared::LIVE && end <= SHARED_UNITS && fits).then_some(found)
    }

    /// Makes a region, which `add` must give its first client before the table is let go.
    pub fn create(&self, name: &str, len: u64, identity: &Identity) -> Result<Found, Refused> {
        let pool = self.pool;
        let h = pool.header();
        if !name.is_empty() && pool.shared_regions().any(|(_, s)| is_called(s, name)) {
            return Err(Refused::Exists);
        }
        let units = len.div_ceil(UNIT_BYTES);
        let own: u64 = pool.live().map(|(_, r)| r.managed.load(Relaxed)).sum();
        let total = own.saturating_add(pool.shared_bytes());
        let total = total.saturating_add(units * UNIT_BYTES);
        if total > pool.capacity_bytes() {
            return Err(Refused::NoRoom);
        }
        let index = (0..MAX_SHARED)
            .find(|&i| h.shared[i].state.load(Acquire) == shared::FREE)
            .ok_or(Refused::TableFull)?;
        let first = self.gap(units).ok_or(Refused::TableFull)?;
        let s = &h.shared[index];
        s.first.store(first, Relaxed);
        s.units.store(units as u32, Relaxed);
        s.len.store(len, Relaxed);
        s.left.store(0, Relaxed);
        s.identity.set(identity);
        s.name_len.store(name.len() as u32, Relaxed);
        for (to, from) in s.name.iter().zip(name.bytes()) {
            to.store(from, Relaxed);
        }
        let serial = h.shared_serial.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        s.serial.store(serial, Relaxed);
        h.shared_high.fetch_max(first + units as u32, AcqRel);
        s.state.store(shared::LIVE, Release);
        Ok(Found {
            index,
            serial,
            first,
            units: units as u32,
            len,
            nameless: is_of_program(s),
        })
    }

    /// The lowest run of so many units that no region has.
    fn gap(&self, units: u64) -> Option<u32> {
        let mut taken: Vec<(u64, u64)> = self
            .pool
            .shared_regions()
            .map(|(_, s)| (s.first.load(Relaxed), s.units.load(Relaxed)))
            .map(|(first, n)| (first.into(), u64::from(first) + u64::from(n)))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (from, to) in taken {
            if at + units <= from {
                break;
            }
            at = at.max(to);
        }
        (at + units <= SHARED_UNITS as u64).then_some(at as u32)
    }

    /// Record `record`'s process has the region: from now on a process that takes a unit out of
    /// memory must write-protect it there. Its number among the clients.
    pub fn add(
        &self,
        index: usize,
        record: usize,
        fill: impl FnOnce(&Client),
    ) -> Result<usize, Refused> {
        let s = &self.pool.header().shared[index];
        let owner = self.pool.client_word(record);
        let clients = || s.clients.iter().enumerate();
        let mine = clients().find(|(_, c)| c.owner.load(Relaxed) == owner);
        let free = || clients().find(|(_, c)| c.owner.load(Relaxed) == 0);
        let (i, c) = mine.or_else(free).ok_or(Refused::TooMany)?;
        if mine.is_none() {
            c.tracks.store(0, Relaxed);
        }
        fill(c);
        c.owner.store(owner, SeqCst);
        s.changes.fetch_add(1, SeqCst);
        Ok(i)
    }

    /// Record `record`'s process tracks writes to the region (1: by units, 2: by pages), from the
    /// epoch `from` on, or (0) does not any more.
    pub fn track(&self, index: usize, record: usize, how: u32, from: u32) {
        let s = &self.pool.header().shared[index];
        let owner = self.pool.client_word(record);
        for c in &s.clients {
            if c.owner.load(Relaxed) == owner {
                c.tracks.store(how, Relaxed);
            }
        }
        if s.tracked.load(Relaxed) == 0 {
            s.tracked_from.store(from, Relaxed);
        }
        settle_tracking(s);
    }

    /// How record `record`'s process tracks them.
    pub fn tracks(&self, index: usize, record: usize) -> u32 {
        let owner = self.pool.client_word(record);
        let mut clients = self.pool.clients(index);
        let mine = clients.find(|(_, c)| c.owner.load(Relaxed) == owner);
        mine.map_or(0, |(_, c)| c.tracks.load(Relaxed))
    }

    /// Record `record`'s process has not got the region any more.
    pub fn remove(&self, index: usize, record: usize) {
        self.pool.forget_client(index, record);
        self.pool.tidy_shared();
    }
}

/// Writes are tracked as closely as any process that has the region wants them to be.
pub(super) fn settle_tracking(s: &Shared) {
    let here = |c: &&Client| c.owner.load(Relaxed) != 0;
    let wanted = s.clients.iter().filter(here);
    let most = wanted.map(|c| c.tracks.load(Relaxed).min(2)).max();
    s.tracked.store(most.unwrap_or(0), SeqCst);
}

fn is_called(s: &Shared, name: &str) -> bool {
    let len = (s.name_len.load(Relaxed) as usize).min(SHARED_NAME);
    s.name[..len]
        .iter()
        .map(|b| b.load(Relaxed))
        .eq(name.bytes())
}

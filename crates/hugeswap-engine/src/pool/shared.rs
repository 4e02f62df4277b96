//! The table of shared regions: which there are, and which processes have them mapped. Their units
//! are the neighbour's ([`super::shared_units`]).
//!
//! A region is one memory file and a run of unit words ([`hugeswap_policy::shared`]). It belongs to
//! no process in particular, and it ends with the last process that has it mapped, whichever
//! process finds that out. Memory and clusters of swap are charged to no process either: a bit
//! stands for each unit in memory, and clusters have an owner of their own.
//!
//! The table is changed under a lock in the segment that names its holder, so that the lock can be
//! taken from a dead process. [`Pool::tidy_shared`] puts right every state of the table in between.

use super::Pool;
use super::holder::{is_gone, myself, status_of};
use super::layout::{
    Client, MAX_CLIENTS, MAX_SHARED, SHARED_NAME, SHARED_UNITS, Shared, shared, state,
};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::shared::step::{Event, step};
use hugeswap_policy::shared::{Owner, Word};
use hugeswap_policy::thp_swap::clusters;
use hugeswap_sys::fs::Identity;
use hugeswap_sys::{futex, now_ns};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// A thread that waits this long for the table checks whether its holder is still alive.
const DOUBT_NS: u64 = 50_000_000;
/// How long a thread that cleans up after the dead waits for it, or one that forks: others wait for
/// them.
const SHORT_NS: u64 = 1_000_000_000;

/// Why there is no such region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is one of that name.
    Exists,
    /// There is none.
    Unknown,
    /// [`MAX_SHARED`], or all their units, are taken.
    TableFull,
    /// [`MAX_CLIENTS`] have it.
    TooMany,
    /// Budget and swap cannot hold it.
    NoRoom,
    /// A process that is stopped, or hangs, has the table.
    Busy,
}

/// A region as it is to be mapped.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Its place in the table.
    pub index: usize,
    /// See [`Shared`].
    pub serial: u32,
    /// Its units.
    pub first: u32,
    /// How many.
    pub units: u32,
    /// Bytes asked for.
    pub len: u64,
    /// It has no name, or stands for a file: a program's, not the library's.
    pub nameless: bool,
}

/// A file of a program's that a region stands for: no other file has, or will have, all of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileKey {
    /// Its device.
    pub dev: u64,
    /// Its inode there.
    pub ino: u64,
    /// When it was last written to, seconds and nanoseconds: inode numbers are used again.
    pub mtime: (u64, u64),
}

/// What the names of files' regions begin with, and those of others do not.
const FILE_MARK: u8 = 1;

impl FileKey {
    /// What its region is called. At most [`SHARED_NAME`] bytes.
    pub(crate) fn name(&self) -> String {
        let (s, ns) = self.mtime;
        format!("\u{1}{:x}-{:x}-{s:x}-{ns:x}", self.dev, self.ino)
    }

    /// Is a region of this name a file's?
    pub(crate) fn is_name(name: &str) -> bool {
        name.as_bytes().first() == Some(&FILE_MARK)
    }
}

/// What symbolic links that stand for programs' files lead to begins with this. There is no such
/// directory, and no program can make it.
pub const LINKS: &str = "/proc/hugeswap-shared/";

pub(super) fn is_of_program(s: &Shared) -> bool {
    s.name_len.load(Relaxed) == 0 || s.name[0].load(Relaxed) == FILE_MARK
}

/// The table is this thread's until this is dropped.
pub struct Table<'a> {
    pool: &'a Pool,
    mine: u64,
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        let word = &self.pool.header().shared_lock;
        if word
            .compare_exchange(self.mine, 0, Release, Relaxed)
            .is_ok()
        {
            futex::wake(futex::low_half(word), 1, true);
        }
    }
}

impl Pool {
    /// What the symbolic links of this pool's files lead to, or `None` if its maker is gone.
    pub fn links(&self) -> Option<String> {
        let maker = self.maker();
        let start = status_of(maker)?.start_time;
        Some(format!("{LINKS}{maker}-{start}/"))
    }

    /// How long a thread waits for what another process holds of shared memory.
    pub(crate) fn shared_patience_ns(&self) -> u64 {
        self.knob(Knob::SharedPatience).min(600_000) * 1_000_000
    }

    /// Takes the table. Not in the fault path.
    pub fn shared_table(&self) -> Result<Table<'_>, Refused> {
        self.shared_table_within(self.shared_patience_ns())
            .ok_or(Refused::Busy)
    }

    /// The same, while others wait.
    pub(crate) fn shared_table_soon(&self) -> Option<Table<'_>> {
        self.shared_table_within(SHORT_NS.min(self.shared_patience_ns()))
    }

    fn shared_table_within(&self, patience_ns: u64) -> Option<Table<'_>> {
        let word = &self.header().shared_lock;
        let mine = myself();
        let start = now_ns();
        let mut since = start;
        loop {
            let held = word.load(Acquire);
            let dead = held != 0 && now_ns() - since > DOUBT_NS && {
                since = now_ns();
                is_gone(held)
            };
            if (held == 0 || dead) && word.compare_exchange(held, mine, AcqRel, Relaxed).is_ok() {
                let table = Table { pool: self, mine };
                self.tidy_shared();
                return Some(table);
            }
            if now_ns() - start > patience_ns {
                return None;
            }
            futex::wait(futex::low_half(word), held as u32, Some(5_000_000), true);
        }
    }

    /// The regions there are.
    pub fn shared_regions(&self) -> impl Iterator<Item = (usize, &Shared)> {
        let all = self.header().shared.iter().enumerate();
        all.filter(|(_, s)| s.state.load(Acquire) == shared::LIVE)
    }

    /// Record `i` as its user of now.
    pub fn owner(&self, i: usize) -> Owner {
        Owner {
            record: i as u8,
            generation: self.records()[i].generation.load(Acquire) as u16,
        }
    }

    /// Does the process live that a word's owner names, as far as is known?
    pub fn owner_lives(&self, o: Owner) -> bool {
        let r = &self.records()[usize::from(o.record)];
        let found = r.state();
        r.generation.load(Acquire) as u16 == o.generation
            && matches!(found, state::LIVE | state::JOINING | state::FILLING)
    }

    /// Has record `i` a shared region?
    pub fn has_shared(&self, i: usize) -> bool {
        let mine = |c: &Client| c.owner.load(Relaxed) as u32 as usize == i + 1;
        self.shared_regions()
            .any(|(_, s)| s.clients.iter().any(mine))
    }

    /// As it is in [`Client::owner`].
    pub(crate) fn client_word(&self, record: usize) -> u64 {
        let generation = u64::from(self.records()[record].generation.load(Acquire));
        generation << 32 | (record as u64 + 1)
    }

    /// Is this client, read from the segment, one that lives?
    pub fn client_lives(&self, word: u64) -> bool {
        let record = (word as u32 as usize).wrapping_sub(1);
        record < super::layout::MAX_PROCESSES
            && self.owner_lives(Owner {
                record: record as u8,
                generation: (word >> 32) as u16,
            })
    }
}

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
fn settle_tracking(s: &Shared) {
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

impl Pool {
    /// Record `record`'s process has not got the region any more; the next holder of the table
    /// finds out whether anybody has.
    pub(crate) fn forget_client(&self, index: usize, record: usize) {
        for c in &self.header().shared[index].clients {
            let owner = c.owner.load(Relaxed);
            if owner as u32 as usize == record + 1 {
                // (Of several that do this one does; by then it may be another's.)
                let _ = c.owner.compare_exchange(owner, 0, SeqCst, Relaxed);
            }
        }
    }

    /// Record `i`, whose process is gone or will use nothing more, has no shared region any more;
    /// and what it held of their swap is free.
    pub(super) fn leave_shared(&self, i: usize) {
        let has = |s: &Shared| {
            let mut clients = s.clients.iter();
            clients.any(|c| c.owner.load(Acquire) as u32 as usize == i + 1)
        };
        let regions = self.header().shared.iter();
        let any = regions
            .clone()
            .any(|s| s.state.load(Acquire) != shared::FREE && has(s));
        let in_hand = self.records()[i].in_hand.iter();
        let held: Vec<u64> = in_hand
            .filter_map(|h| h.swap(0, AcqRel).checked_sub(1))
            .collect();
        if !any && held.is_empty() {
            return;
        }
        let Some(table) = self.shared_table_soon() else {
            // What was in hand stays in use: two clusters, at most.
            return (0..regions.len()).for_each(|index| self.forget_client(index, i));
        };
        // Before its last region ends: what is referred to by none of its words is free.
        held.into_iter().for_each(|c| self.give_up_in_hand(c));
        for index in 0..regions.len() {
            table.remove(index, i);
        }
    }

    /// A cluster that a dead process had in hand is free, unless a word refers to it after all, or
    /// it has another owner.
    fn give_up_in_hand(&self, cluster: u64) {
        let words = &self.shared_words()[..self.shared_high()];
        let referred = words
            .iter()
            .any(|w| Word(w.load(Acquire)).cluster() == Some(cluster));
        let elsewhere = || {
            let hands = self.records().iter().flat_map(|r| &r.in_hand);
            hands.into_iter().any(|h| h.load(Acquire) == cluster + 1)
        };
        if !referred && !elsewhere() {
            clusters::release_shared(self.cluster_words(), cluster as usize);
        }
    }

    /// Regions that no process has any more end: memory, swap and words are free. The table is the
    /// caller's.
    fn tidy_shared(&self) {
        for s in &self.header().shared {
            settle_tracking(s);
            let used = || s.clients.iter().any(|c| c.owner.load(Acquire) != 0);
            match s.state.load(Acquire) {
                shared::LIVE if !used() => {
                    self.note_touched();
                    s.state.store(shared::ENDING, Release);
                }
                shared::ENDING => {}
                _ => continue,
            }
            let first = (s.first.load(Relaxed) as usize).min(SHARED_UNITS);
            let end = (first + s.units.load(Relaxed) as usize).min(SHARED_UNITS);
            for unit in first..end {
                let word = Word(self.shared_words()[unit].swap(Word::NONE.0, AcqRel));
                let freed = step(word, Event::Ended).ok().and_then(|s| s.effects.frees);
                if let Some(cluster) = freed {
                    clusters::release_shared(self.cluster_words(), cluster as usize);
                }
                self.uncharge_shared(unit as u32);
            }
            s.state.store(shared::FREE, Release);
        }
    }

    /// Clients of a region that there may be.
    pub fn clients(&self, index: usize) -> impl Iterator<Item = (usize, &Client)> {
        let s = self.header().shared.get(index);
        let all = s.into_iter().flat_map(|s| &s.clients).enumerate();
        all.take(MAX_CLIENTS)
    }
}

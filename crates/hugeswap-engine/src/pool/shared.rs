//! Shared regions: what each of their units is, which units are charged, and how a region ends.
//! What is found and changed in the table of the regions is [`super::shared_table`].
//!
//! A region is one memory file and a run of unit words ([`hugeswap_policy::shared`]). It belongs to
//! no process in particular, and it ends with the last process that has it mapped, whichever
//! process finds that out. Memory and clusters of swap are charged to no process either: a bit
//! stands for each unit in memory, and clusters have an owner of their own.
//!
//! The table is changed under a lock in the segment that names its holder, so that the lock can be
//! taken from a dead process. [`Pool::tidy_shared`] puts right every state of the table in between.
//! The owner of a word changes the word and its charge. A charge is a bit, set and cleared any
//! number of times by the processes that carry on what a dead one began: so the sum is exact.

use super::Pool;
use super::holder::{is_gone, look_at, myself};
use super::layout::{
    Client, MAX_CLIENTS, SHARED_UNITS, Shared, SharedPageStamps, SharedStamps, shared, state,
};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::shared::step::{Event, step};
use hugeswap_policy::shared::{Kind, Owner, Word};
use hugeswap_policy::thp_swap::clusters;
use hugeswap_sys::{futex, now_ns};
use std::sync::atomic::AtomicU64;
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
    /// [`MAX_SHARED`](super::layout::MAX_SHARED), or all their units, are taken.
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

/// First byte of the names of files' regions; other names do not begin with it.
const FILE_MARK: u8 = 1;

impl FileKey {
    /// The name of its region. At most [`SHARED_NAME`](super::layout::SHARED_NAME) bytes.
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
    pub(super) pool: &'a Pool,
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
        let start = look_at(maker).seen()?.start_time;
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

    /// The words of all shared units.
    pub fn shared_words(&self) -> &[AtomicU64] {
        let at = (self.base + self.offsets.shared_words) as *const AtomicU64;
        // SAFETY: the segment is mapped for the life of `self` and holds atomics only; `offsets`
        // leaves room for so many.
        unsafe { std::slice::from_raw_parts(at, SHARED_UNITS) }
    }

    /// When a shared unit was written.
    pub fn shared_stamps(&self, unit: u32) -> Option<&SharedStamps> {
        let at = (self.base + self.offsets.shared_stamps) as *const SharedStamps;
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(at, SHARED_UNITS) }.get(unit as usize)
    }

    /// When its pages were.
    pub fn shared_page_stamps(&self, unit: u32) -> Option<&SharedPageStamps> {
        let at = (self.base + self.offsets.shared_page_stamps) as *const SharedPageStamps;
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(at, SHARED_UNITS) }.get(unit as usize)
    }

    fn shared_bits(&self) -> &[AtomicU64] {
        let at = (self.base + self.offsets.shared_charged) as *const AtomicU64;
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(at, SHARED_UNITS / 64) }
    }

    fn shared_high(&self) -> usize {
        (self.header().shared_high.load(Acquire) as usize).min(SHARED_UNITS)
    }

    /// Frames charged to shared regions.
    pub fn shared_frames(&self) -> u64 {
        let words = self.shared_high().div_ceil(64);
        let bits = self.shared_bits()[..words].iter();
        bits.map(|b| u64::from(b.load(Relaxed).count_ones())).sum()
    }

    /// Those of them that `units` have.
    pub fn shared_frames_of(&self, units: std::ops::Range<u32>) -> u64 {
        units.filter(|&u| self.is_charged_shared(u)).count() as u64
    }

    /// Bytes promised to shared regions.
    pub fn shared_bytes(&self) -> u64 {
        let live = self.shared_regions();
        live.map(|(_, s)| u64::from(s.units.load(Relaxed)) * UNIT_BYTES)
            .sum()
    }

    /// Bytes of them that hold something, by whole units.
    pub fn shared_touched_bytes(&self) -> u64 {
        let units = |s: &Shared| {
            let first = s.first.load(Relaxed) as usize;
            first..first + s.units.load(Relaxed) as usize
        };
        let words = |s| self.shared_words().get(units(s)).unwrap_or_default();
        let holds = |w: &&AtomicU64| Word(w.load(Relaxed)).kind() != Kind::None;
        let live = self.shared_regions();
        live.map(|(_, s)| words(s).iter().filter(holds).count() as u64 * UNIT_BYTES)
            .sum()
    }

    /// Is a shared unit charged?
    pub fn is_charged_shared(&self, unit: u32) -> bool {
        let cell = self.shared_bits().get(unit as usize / 64);
        cell.is_some_and(|c| c.load(Acquire) >> (unit % 64) & 1 == 1)
    }

    /// Is the region of a unit the kernel's now?
    pub fn is_left(&self, unit: u32) -> bool {
        let has = |s: &Shared| unit.wrapping_sub(s.first.load(Relaxed)) < s.units.load(Relaxed);
        self.shared_regions()
            .any(|(_, s)| s.left.load(Acquire) != 0 && has(s))
    }

    /// A region of a program's becomes the kernel's, unless it is: nothing of it leaves memory any
    /// more, and it is not charged. Did it?
    pub fn leave_to_the_kernel(&self, index: usize) -> bool {
        let s = &self.header().shared[index];
        if !is_of_program(s) || s.left.swap(1, AcqRel) != 0 {
            return false;
        }
        let first = s.first.load(Relaxed);
        for unit in first
            ..first
                .saturating_add(s.units.load(Relaxed))
                .min(SHARED_UNITS as u32)
        {
            self.uncharge_shared(unit);
        }
        true
    }

    /// Is a process that lives about to write-protect a shared unit?
    pub fn is_being_frozen(&self, unit: u32) -> bool {
        self.live()
            .any(|(_, r)| r.freezing.load(SeqCst) == unit + 1)
    }

    /// Charges a frame to a unit whose word is the caller's. False: the budget is used up. `force`:
    /// whatever it says.
    pub fn charge_shared(&self, unit: u32, force: bool) -> bool {
        if self.is_left(unit) {
            return true;
        }
        let Some(cell) = self.shared_bits().get(unit as usize / 64) else {
            return false;
        };
        let bit = 1 << (unit % 64);
        if cell.fetch_or(bit, AcqRel) & bit != 0 {
            return true;
        }
        let used = self.used_frames();
        if used > self.frames() && !force {
            cell.fetch_and(!bit, AcqRel);
            return false;
        }
        self.header().peak_frames.fetch_max(used, Relaxed);
        true
    }

    /// The unit's memory is the pool's again.
    pub fn uncharge_shared(&self, unit: u32) {
        let bit = 1 << (unit % 64);
        let cell = self.shared_bits().get(unit as usize / 64);
        if cell.is_some_and(|c| c.fetch_and(!bit, AcqRel) & bit != 0) {
            self.note_release();
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

impl Pool {
    /// Record `record`'s process has not got the region any more; the next holder of the table
    /// finds out whether any process has.
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
    pub(super) fn tidy_shared(&self) {
        for s in &self.header().shared {
            super::shared_table::settle_tracking(s);
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

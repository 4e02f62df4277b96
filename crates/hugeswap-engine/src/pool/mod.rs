//! The pool: one budget, one set of swap areas, one set of counters, shared by every process
//! that joined, through a memory file of fixed layout ([`layout`]).
//!
//! Concurrency: everything shared is an atomic. A process's frames are what its own record says it
//! holds; the total is the sum over live records, so a process that dies at any instant
//! takes nothing with it: whoever finds it dead (`reap`) frees its record and its swap slots.

pub mod layout;
mod report;
pub mod swap;

pub use report::{FaultReport, Report};
pub use swap::SwapSpec;

use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::{UNIT_BYTES, histogram, slots};
use hugeswap_sys::{Errno, fs, futex, mm, now_ns, process};
use layout::{Events, Header, MAGIC, MAX_AREAS, MAX_PROCESSES, Offsets, Record, VERSION, state};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// How the faults of a pool are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum FaultMode {
    /// What the machine allows, signal first.
    #[default]
    Auto = 0,
    /// SIGSEGV in the faulting thread; units moved by mremap. No privilege.
    Signal = 1,
    /// A thread reads events from a userfaultfd; units moved by UFFDIO_MOVE. Privileged.
    Message = 2,
}

impl FaultMode {
    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            FaultMode::Auto => "auto",
            FaultMode::Signal => "signal",
            FaultMode::Message => "message",
        }
    }
}

/// What a pool is made from.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The budget, bytes; rounded down to whole units of 2 MiB.
    pub memory: u64,
    /// The swap areas; empty: [`swap::default_area`].
    pub swap: Vec<SwapSpec>,
    /// How faults are taken.
    pub fault_mode: FaultMode,
    /// Settings other than the defaults.
    pub settings: Vec<(Knob, u64)>,
}

/// The smallest budget, bytes.
pub const MIN_MEMORY: u64 = 16 << 20;

/// Why a pool could not be made or joined; one line each, telling what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PoolError {
    #[error("memory budget of {} KiB is too small: at least {} MiB", .0 >> 10, MIN_MEMORY >> 20)]
    TooSmall(u64),
    #[error("memory budget of {} MiB is more than this machine has ({} MiB): give less", asked >> 20, has >> 20)]
    TooLarge { asked: u64, has: u64 },
    #[error("swap directory {path} {what}: {hint}")]
    Swap {
        path: String,
        what: String,
        hint: String,
    },
    #[error("no directory for swap was found on a disk: name one with --swap DIR")]
    NoSwapDirectory,
    #[error("more than {MAX_AREAS} swap areas: name fewer")]
    TooManyAreas,
    #[error("more than {MAX_PROCESSES} processes share this pool: start fewer at a time")]
    TooManyProcesses,
    #[error(
        "the pool segment is damaged or from another version of hugeswap: start again with one version"
    )]
    BadSegment,
    #[error("the pool of process {0} cannot be reached: {1}")]
    Unreachable(i32, Errno),
    #[error("{0}: {1}")]
    System(&'static str, Errno),
}

/// A joined swap area, as this process uses it.
#[derive(Clone, Copy, Debug)]
pub struct JoinedArea {
    /// This process's descriptor.
    pub fd: i32,
    /// Who it is; checked before the number is trusted.
    pub identity: fs::Identity,
    /// First slot.
    pub first_slot: u64,
    /// Slots.
    pub slots: u64,
}

/// A pool, mapped. Shareable between threads; each process holds its own.
pub struct Pool {
    base: usize,
    length: usize,
    offsets: Offsets,
    slots: u64,
    /// The segment's descriptor.
    fd: i32,
    areas: Vec<JoinedArea>,
}

impl Pool {
    /// Makes a pool. Nothing is left behind on failure; dropping gives everything back.
    pub fn create(config: &PoolConfig) -> Result<Pool, PoolError> {
        if config.memory < MIN_MEMORY {
            return Err(PoolError::TooSmall(config.memory));
        }
        let has = machine_memory();
        if config.memory > has {
            return Err(PoolError::TooLarge {
                asked: config.memory,
                has,
            });
        }
        let specs = if config.swap.is_empty() {
            vec![swap::default_area()?]
        } else {
            config.swap.clone()
        };
        if specs.len() > MAX_AREAS {
            return Err(PoolError::TooManyAreas);
        }
        let mut opened: Vec<swap::OpenArea> = Vec::new();
        for spec in &specs {
            match swap::open_area(spec) {
                Ok(a) => opened.push(a),
                Err(e) => {
                    opened.iter().for_each(|a| fs::close(a.fd));
                    return Err(e);
                }
            }
        }
        let total: u64 = opened.iter().map(|a| a.slots).sum();
        let close_all = |e: PoolError| {
            opened.iter().for_each(|a| fs::close(a.fd));
            e
        };
        let offsets = layout::offsets(total)
            .ok_or(PoolError::BadSegment)
            .map_err(close_all)?;
        let fd = mm::memfd(c"hugeswap-pool", false)
            .map_err(|e| close_all(PoolError::System("cannot make the pool segment", e)))?;
        let map =
            fs::truncate(fd, offsets.end as u64).and_then(|()| mm::map_shared(fd, offsets.end, 0));
        let base = match map {
            Ok(b) => b,
            Err(e) => {
                fs::close(fd);
                return Err(close_all(PoolError::System(
                    "cannot map the pool segment",
                    e,
                )));
            }
        };
        let mut pool = Pool {
            base,
            length: offsets.end,
            offsets,
            slots: total,
            fd,
            areas: Vec::new(),
        };
        let h = pool.header();
        h.frames.store(config.memory / UNIT_BYTES, Relaxed);
        h.slots.store(total, Relaxed);
        h.length.store(offsets.end as u64, Relaxed);
        h.creator.store(process::pid(), Relaxed);
        h.fault_mode.store(config.fault_mode as u32, Relaxed);
        for k in Knob::ALL {
            h.knobs[*k as usize].store(k.default_value(), Relaxed);
        }
        for (k, v) in &config.settings {
            h.knobs[*k as usize].store(*v, Relaxed);
        }
        let mut key = [0u8; 32];
        fill_random(&mut key);
        for (word, bytes) in h.key.iter().zip(key.chunks_exact(8)) {
            word.store(
                u64::from_le_bytes(bytes.try_into().expect("chunks of 8")),
                Relaxed,
            );
        }
        let mut first = 0;
        let mut joined = Vec::new();
        for (a, slot) in opened.iter().zip(&h.areas) {
            slot.fd.store(a.fd, Relaxed);
            slot.direct.store(u32::from(a.direct), Relaxed);
            slot.first_slot.store(first, Relaxed);
            slot.slots.store(a.slots, Relaxed);
            let identity = fs::identity(a.fd).unwrap_or_default();
            joined.push(JoinedArea {
                fd: a.fd,
                identity,
                first_slot: first,
                slots: a.slots,
            });
            first += a.slots;
        }
        h.area_count.store(opened.len() as u32, Relaxed);
        h.version.store(VERSION, Relaxed);
        h.magic.store(MAGIC, Release);
        pool.areas = joined;
        Ok(pool)
    }

    /// Joins the pool whose segment process `creator` holds under number `segment_fd`.
    /// `min_fd`: the descriptors this process gets stand at or above this number.
    pub fn attach(creator: i32, segment_fd: i32, min_fd: i32) -> Result<Pool, PoolError> {
        let open_of = |fd: i32, flags: i32| -> Result<i32, Errno> {
            let path = std::ffi::CString::new(format!("/proc/{creator}/fd/{fd}"))
                .map_err(|_| Errno::EINVAL)?;
            let low = fs::open(&path, libc::O_RDWR | flags, 0)?;
            match fs::dup_above(low, min_fd) {
                Ok(high) => {
                    fs::close(low);
                    Ok(high)
                }
                Err(_) => Ok(low),
            }
        };
        let fd = open_of(segment_fd, 0).map_err(|e| PoolError::Unreachable(creator, e))?;
        let mut pool = match Self::map_checked(fd) {
            Ok(p) => p,
            Err(e) => {
                fs::close(fd);
                return Err(e);
            }
        };
        let mut areas = Vec::new();
        let count = pool.header().area_count.load(Acquire) as usize;
        for a in pool.header().areas.iter().take(count) {
            let flags = if a.direct.load(Relaxed) == 1 {
                libc::O_DIRECT
            } else {
                0
            };
            let fd = open_of(a.fd.load(Relaxed), flags)
                .map_err(|e| PoolError::Unreachable(creator, e))?;
            let (first_slot, slots) = (a.first_slot.load(Relaxed), a.slots.load(Relaxed));
            if first_slot
                .checked_add(slots)
                .is_none_or(|end| end > pool.slots)
            {
                return Err(PoolError::BadSegment);
            }
            areas.push(JoinedArea {
                fd,
                identity: fs::identity(fd).unwrap_or_default(),
                first_slot,
                slots,
            });
        }
        pool.areas = areas;
        Ok(pool)
    }

    fn map_checked(fd: i32) -> Result<Pool, PoolError> {
        let head = mm::map_shared(fd, size_of::<Header>().next_multiple_of(4096), 0)
            .map_err(|e| PoolError::System("cannot map the pool segment", e))?;
        // SAFETY: freshly mapped, all-atomic, at least a Header long (touching past the end of
        // a truncated file would be SIGBUS; the file was made by us and is never shrunk).
        let h = unsafe { &*(head as *const Header) };
        let ok = h.magic.load(Acquire) == MAGIC && h.version.load(Relaxed) == VERSION;
        let (slots, length) = (h.slots.load(Relaxed), h.length.load(Relaxed));
        // SAFETY: the mapping made above; `h` is not used again.
        let _ = unsafe { mm::unmap(head, size_of::<Header>().next_multiple_of(4096)) };
        let offsets = layout::offsets(slots)
            .filter(|o| ok && o.end as u64 == length)
            .ok_or(PoolError::BadSegment)?;
        let base = mm::map_shared(fd, offsets.end, 0)
            .map_err(|e| PoolError::System("cannot map the pool segment", e))?;
        Ok(Pool {
            base,
            length: offsets.end,
            offsets,
            slots,
            fd,
            areas: Vec::new(),
        })
    }

    /// The segment's head.
    pub fn header(&self) -> &Header {
        // SAFETY: the segment is mapped for the life of `self`, page-aligned, and holds atomics only.
        unsafe { &*(self.base as *const Header) }
    }

    /// All records.
    pub fn records(&self) -> &[Record] {
        // SAFETY: as in `header`; `offsets` places MAX_PROCESSES records there.
        unsafe {
            std::slice::from_raw_parts(
                (self.base + self.offsets.records) as *const Record,
                MAX_PROCESSES,
            )
        }
    }

    /// The slot words ([`slots`]).
    pub fn slot_words(&self) -> &[AtomicU32] {
        // SAFETY: as in `header`; `offsets` leaves room for `slots` words.
        unsafe {
            std::slice::from_raw_parts(
                (self.base + self.offsets.slot_words) as *const AtomicU32,
                self.slots as usize,
            )
        }
    }

    /// The checksum of each slot.
    pub fn slot_sums(&self) -> &[[AtomicU64; 2]] {
        // SAFETY: as in `header`; `offsets` leaves room for `slots` sums.
        unsafe {
            std::slice::from_raw_parts(
                (self.base + self.offsets.slot_sums) as *const [AtomicU64; 2],
                self.slots as usize,
            )
        }
    }

    /// The segment's descriptor in this process.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// The swap areas as joined by this process.
    pub fn areas(&self) -> &[JoinedArea] {
        &self.areas
    }

    /// The current value of a setting.
    pub fn knob(&self, k: Knob) -> u64 {
        self.header().knobs[k as usize].load(Relaxed)
    }

    /// The budget in frames.
    pub fn frames(&self) -> u64 {
        self.header().frames.load(Relaxed)
    }

    /// Bytes that may be promised in all: the budget and all swap.
    pub fn capacity_bytes(&self) -> u64 {
        (self.frames() + self.slots) * UNIT_BYTES
    }

    /// Live records.
    pub fn live(&self) -> impl Iterator<Item = (usize, &Record)> {
        let high = (self.header().records_high.load(Acquire) as usize).min(MAX_PROCESSES);
        self.records()[..high]
            .iter()
            .enumerate()
            .filter(|(_, r)| r.state.load(Acquire) == state::LIVE)
    }

    /// Frames charged over all processes.
    pub fn used_frames(&self) -> u64 {
        self.live().map(|(_, r)| r.charged.load(Relaxed)).sum()
    }

    /// Tries to charge `n` more frames to record `me`. Two processes that try for the last
    /// frames at once may both be refused; both then reclaim or try again.
    pub fn charge(&self, me: usize, n: u64) -> bool {
        let r = &self.records()[me];
        r.charged.fetch_add(n, AcqRel);
        let used = self.used_frames();
        if used > self.frames() {
            r.charged.fetch_sub(n, AcqRel);
            return false;
        }
        self.header().peak_frames.fetch_max(used, Relaxed);
        true
    }

    /// Charges a frame whatever the budget says: for a thread that is forking, which nobody can
    /// make room for.
    pub fn charge_over(&self, me: usize) {
        self.records()[me].charged.fetch_add(1, AcqRel);
    }

    /// Gives `n` frames of record `me` back to the pool and wakes whoever waits for them.
    pub fn uncharge(&self, me: usize, n: u64) {
        if n > 0 {
            // What a process inherited by fork it was never charged for.
            let charged = &self.records()[me].charged;
            let _ = charged.fetch_update(AcqRel, Relaxed, |c| Some(c.saturating_sub(n)));
            self.note_release();
        }
    }

    fn note_release(&self) {
        let word = &self.header().released;
        word.fetch_add(1, Release);
        futex::wake(word, i32::MAX as u32, true);
    }

    /// Changes the managed bytes of record `me`; false, and nothing changed, if the pool
    /// could not honour them.
    pub fn commit(&self, me: usize, bytes: u64) -> bool {
        let r = &self.records()[me];
        r.managed.fetch_add(bytes, AcqRel);
        let total: u64 = self.live().map(|(_, r)| r.managed.load(Relaxed)).sum();
        if total > self.capacity_bytes() {
            r.managed.fetch_sub(bytes, AcqRel);
            return false;
        }
        self.header().peak_managed.fetch_max(total, Relaxed);
        true
    }

    /// Takes managed bytes back.
    pub fn uncommit(&self, me: usize, bytes: u64) {
        self.records()[me].managed.fetch_sub(bytes, AcqRel);
    }

    /// Joins as this process: finds a record, first cleaning up one a former image of
    /// this very process left (exec).
    pub fn join(&self) -> Result<usize, PoolError> {
        self.reap();
        let i = self.reserve(0)?;
        self.fill(i);
        Ok(i)
    }

    /// Reserves a record for a child that record `parent` (index + 1; 0: none) is about to
    /// fork. From now until the child is gone or runs another image, the parent's slots
    /// stay as they are.
    pub fn reserve(&self, parent: u32) -> Result<usize, PoolError> {
        for (i, r) in self.records().iter().enumerate() {
            if r.state
                .compare_exchange(state::FREE, state::JOINING, AcqRel, Relaxed)
                .is_ok()
            {
                r.pid.store(0, Relaxed);
                r.charged.store(0, Relaxed);
                r.managed.store(0, Relaxed);
                r.give_back.store(0, Relaxed);
                r.responsive.store(0, Relaxed);
                r.parent.store(parent, Relaxed);
                // Until it is filled in, the time of the reservation.
                r.start_time.store(now_ns() / 1_000_000_000, Relaxed);
                self.header().records_high.fetch_max(i as u32 + 1, AcqRel);
                return Ok(i);
            }
        }
        Err(PoolError::TooManyProcesses)
    }

    /// Makes reserved record `i` this process's. False if the reservation was given up meanwhile.
    pub fn fill(&self, i: usize) -> bool {
        let r = &self.records()[i];
        let pid = process::pid();
        let status = status_of(pid);
        r.start_time
            .store(status.as_ref().map_or(0, |s| s.start_time), Relaxed);
        r.image
            .store(status.as_ref().map_or(0, |s| s.image), Relaxed);
        r.pid.store(pid, Relaxed);
        self.header().joined.fetch_add(1, Relaxed);
        r.state
            .compare_exchange(state::JOINING, state::LIVE, AcqRel, Relaxed)
            .is_ok()
    }

    /// Gives a reservation up (the fork failed).
    pub fn unreserve(&self, i: usize) {
        let r = &self.records()[i];
        if r.pid.load(Relaxed) == 0 {
            let _ = r
                .state
                .compare_exchange(state::JOINING, state::FREE, AcqRel, Relaxed);
        }
    }

    /// May a process forked from record `i` still read its slots?
    pub fn has_children(&self, i: usize) -> bool {
        let high = (self.header().records_high.load(Acquire) as usize).min(MAX_PROCESSES);
        self.records()[..high]
            .iter()
            .any(|r| r.parent.load(Relaxed) == i as u32 + 1 && r.state.load(Acquire) != state::FREE)
    }

    /// Ends record `i`: its counters join the retired ones, its frames are free, and so are its slots
    /// unless a forked child may still read them.
    pub fn retire(&self, i: usize) {
        let r = &self.records()[i];
        let taken = r
            .state
            .compare_exchange(state::LIVE, state::REAPING, AcqRel, Relaxed)
            .is_ok()
            || r.state
                .compare_exchange(state::ZOMBIE, state::REAPING, AcqRel, Relaxed)
                .is_ok();
        if !taken {
            return;
        }
        move_events(&r.events, &self.header().retired);
        r.charged.store(0, Relaxed);
        r.managed.store(0, Relaxed);
        r.responsive.store(0, Relaxed);
        if self.has_children(i) {
            r.state.store(state::ZOMBIE, Release);
        } else {
            slots::release_owner(self.slot_words(), i as u16 + 1);
            r.pid.store(0, Relaxed);
            r.parent.store(0, Relaxed);
            r.state.store(state::FREE, Release);
        }
        self.note_release();
    }

    /// Cleans up after processes that are gone (or run another image now); returns how many there were.
    pub fn reap(&self) -> usize {
        let dead: Vec<usize> = self
            .live()
            .filter(|(_, r)| {
                let s = status_of(r.pid.load(Relaxed));
                s.is_none_or(|s| {
                    s.gone
                        || s.start_time != r.start_time.load(Relaxed)
                        || s.image != r.image.load(Relaxed)
                })
            })
            .map(|(i, _)| i)
            .collect();
        dead.iter().for_each(|&i| self.retire(i));
        // A reservation that nobody filled in: the fork failed, or the child died at once.
        for r in self.records() {
            if r.state.load(Acquire) == state::JOINING
                && r.pid.load(Relaxed) == 0
                && now_ns() / 1_000_000_000 > r.start_time.load(Relaxed) + 10
            {
                let _ = r
                    .state
                    .compare_exchange(state::JOINING, state::FREE, AcqRel, Relaxed);
            }
        }
        // A zombie whose last child has gone can go too; children stand above nothing
        // in particular, so look until nothing changes.
        loop {
            let high = (self.header().records_high.load(Acquire) as usize).min(MAX_PROCESSES);
            let Some(z) = (0..high).find(|&i| {
                self.records()[i].state.load(Acquire) == state::ZOMBIE && !self.has_children(i)
            }) else {
                break;
            };
            self.retire(z);
        }
        dead.len()
    }

    /// Which area slot `slot` is in, and where in it (bytes).
    pub fn locate(&self, slot: u64) -> Option<(usize, u64)> {
        self.areas.iter().enumerate().find_map(|(i, a)| {
            (slot >= a.first_slot && slot < a.first_slot + a.slots)
                .then(|| (i, (slot - a.first_slot) * UNIT_BYTES))
        })
    }

    /// Adds to a counter of record `me`.
    pub fn count(&self, me: usize, c: Counter, n: u64) {
        self.records()[me].events.counters[c as usize].fetch_add(n, Relaxed);
    }

    /// Everything counted so far, over the living and the gone.
    pub fn report(&self) -> Report {
        report::collect(self)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for a in &self.areas {
            fs::close(a.fd);
        }
        fs::close(self.fd);
        // SAFETY: the segment was mapped by us and every borrow ends with `self`.
        let _ = unsafe { mm::unmap(self.base, self.length) };
    }
}

fn move_events(from: &Events, to: &Events) {
    let add = |a: &AtomicU64, b: &AtomicU64| {
        b.fetch_add(a.swap(0, AcqRel), Relaxed);
    };
    from.counters
        .iter()
        .zip(&to.counters)
        .for_each(|(a, b)| add(a, b));
    add(&from.fault_ns, &to.fault_ns);
    add(&from.sampled_present, &to.sampled_present);
    add(&from.sampled_huge, &to.sampled_huge);
    for (a, b) in from.fault_max_ns.iter().zip(&to.fault_max_ns) {
        b.fetch_max(a.swap(0, AcqRel), Relaxed);
    }
    for (x, y) in from.faults.iter().zip(&to.faults) {
        x.iter().zip(y).for_each(|(a, b)| add(a, b));
    }
}

/// A duration of a fault goes into the histogram of its class.
pub(crate) fn record_fault(events: &Events, class: hugeswap_policy::counters::FaultClass, ns: u64) {
    events.faults[class as usize][histogram::bucket(ns)].fetch_add(1, Relaxed);
    events.fault_ns.fetch_add(ns, Relaxed);
    if events.fault_max_ns[class as usize].load(Relaxed) < ns {
        events.fault_max_ns[class as usize].fetch_max(ns, Relaxed);
    }
}

struct Status {
    start_time: u64,
    image: u64,
    gone: bool,
}

/// What `/proc/PID/stat` says; `None` if there is no such process.
fn status_of(pid: i32) -> Option<Status> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &text[text.rfind(')')? + 2..];
    let f: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |i: usize| f.get(i).and_then(|v| v.parse::<u64>().ok());
    // Fields as proc(5) numbers them, less 3: num_threads 20, starttime 22, startcode 26, startstack 28,
    // start_data 45, start_brk 47, arg_start 48, env_end 51. The addresses are drawn anew at exec
    // and inherited at fork.
    let image = [23, 25, 42, 44, 45, 48].iter().fold(0u64, |h, &i| {
        (h ^ number(i).unwrap_or(0))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
    });
    // A zombie leader may still have living threads.
    let gone = matches!(*f.first()?, "Z" | "X") && number(17)? <= 1;
    // An exiting process loses its address space before it becomes a zombie.
    let exiting = number(25) == Some(0) && number(23) == Some(0) && number(17)? <= 1;
    Some(Status {
        start_time: number(19)?,
        image,
        gone: gone || exiting,
    })
}

/// Memory of the machine, bytes.
pub fn machine_memory() -> u64 {
    // SAFETY: sysconf only asks.
    let (pages, size) = unsafe {
        (
            libc::sysconf(libc::_SC_PHYS_PAGES),
            libc::sysconf(libc::_SC_PAGESIZE),
        )
    };
    (pages.max(0) as u64) * (size.max(0) as u64)
}

fn fill_random(buf: &mut [u8]) {
    let mut done = 0;
    while done < buf.len() {
        // SAFETY: the rest of a valid buffer.
        let n = unsafe { libc::getrandom(buf[done..].as_mut_ptr().cast(), buf.len() - done, 0) };
        if n > 0 {
            done += n as usize;
        }
    }
}

//! io_uring, where it is allowed (`syscall.io_uring`): the memory of requests is held until they are
//! done.
//!
//! The rings themselves are memory of the kernel's, which the program reads and writes. Before
//! requests are submitted, we read them and hold their memory; at each call we read which have been
//! completed since. A completion names its request by a number of the program's, which need not be
//! unique: what requests of the same number hold is let go of when all of them are done. Where
//! completions were missed, or may be of other requests (messages between rings), what is held stays
//! held for good: a device may still write to it.
//!
//! A ring is mapped for the time of a call only, since a mapping would keep it from ending when the
//! program closes it. What the kernel would use without a call of the program's is refused: polling of
//! submissions, rings in the program's memory, rings of buffers.

mod entry;

use crate::issue::{Args, Caller, Pins};
use crate::lock::Lock;
use crate::mask::OURS;
use crate::transfer::{Transfer, Wanted, answer, segments};
use crate::{extent, mmap};
use entry::Request;
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::maps::Text;
use hugeswap_sys::raw::{self, syscall6};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::uring::{ENTER_GETEVENTS, FEAT_SINGLE_MMAP, OFF_SQ_RING, OFF_SQES, Params, Sqe};
use hugeswap_sys::{Errno, fs, futex, mm};
use libc::iovec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

const EINVAL: isize = -(libc::EINVAL as isize);

/// Completions are not lost, and what a request names is read as it is submitted.
const FEATURES: u32 = FEAT_SINGLE_MMAP | 1 << 1 | 1 << 2;
/// Flags of rings that work so: IOPOLL, CQSIZE, CLAMP, ATTACH_WQ, R_DISABLED, SUBMIT_ALL,
/// COOP_TASKRUN, TASKRUN_FLAG, SQE128, CQE32, SINGLE_ISSUER, DEFER_TASKRUN, NO_SQARRAY.
const FLAGS: u32 = 1 | 0x3ff8 | NO_SQARRAY;
const SQPOLL: u32 = 1 << 1;
const SQE128: u32 = 1 << 10;
const CQE32: u32 = 1 << 11;
const NO_SQARRAY: u32 = 1 << 16;
/// Most buffers and files that the kernel takes at a time.
const MOST_REGISTERED: usize = 1 << 15;
/// So long a submission waits for others at most: they may wait for the program.
const PATIENCE_NS: u64 = 500_000_000;
/// Of a completion: more will come of the same request.
const MORE: u32 = 1 << 1;
/// Of io_uring_enter: the first argument is no descriptor.
const REGISTERED: usize = 1 << 4;
/// Of io_uring_enter: its last argument is a structure.
const EXT_ARG: usize = 1 << 3;

/// Requests of one number.
#[derive(Default)]
struct UnderWay {
    /// How many are to be completed.
    requests: u32,
    /// What each of them holds, also of those that are complete.
    held: Vec<Option<Transfer>>,
}

/// A ring of the program's.
struct Ring {
    shape: Params,
    /// Serialises what reads the rings, and submits.
    turn: Arc<Turn>,
    /// Up to where completions have been read.
    seen: u32,
    /// By the program's number.
    under_way: BTreeMap<u64, UnderWay>,
    /// Numbers of requests of which a completion may come, or not ([`Request::Silent`]).
    silent: BTreeSet<u64>,
}

/// Most numbers of that kind.
const MOST_SILENT: usize = 1024;

/// By descriptor.
static RINGS: Lock<BTreeMap<i32, Ring>> = Lock::new(BTreeMap::new());
/// Rings may say that a request is done that is not. From then on memory becomes the kernel's.
static IS_MISLED: AtomicBool = AtomicBool::new(false);

/// A mutex whose holder may call the engine, with signals blocked.
struct Turn(AtomicU32);

struct HasTurn<'a> {
    turn: &'a Turn,
    _blocked: Blocked,
}

impl Turn {
    fn take(&self) -> HasTurn<'_> {
        let blocked = Blocked::all();
        while self.0.swap(1, Acquire) != 0 {
            futex::wait(&self.0, 1, Some(1_000_000), false);
        }
        HasTurn {
            turn: self,
            _blocked: blocked,
        }
    }
}

impl Drop for HasTurn<'_> {
    fn drop(&mut self) {
        self.turn.0.store(0, Release);
        futex::wake(&self.turn.0, 1, false);
    }
}

/// A ring that is mapped.
struct Mapped {
    queues: (usize, usize),
    entries: (usize, usize),
    shape: Params,
}

impl Mapped {
    fn of(fd: i32, shape: &Params) -> Result<Mapped, Errno> {
        let array = match shape.flags & NO_SQARRAY {
            0 => shape.sq_off.array + shape.sq_entries * 4,
            _ => 0,
        };
        let mut mapped = Mapped {
            queues: (0, 0),
            entries: (0, 0),
            shape: *shape,
        };
        let completions = shape.cq_off.cqes as usize + shape.cq_entries as usize * mapped.cqe();
        let queues = completions.max(array as usize);
        let entries = shape.sq_entries as usize * mapped.sqe();
        mapped.queues = (map(fd, OFF_SQ_RING, queues)?, queues);
        mapped.entries = (map(fd, OFF_SQES, entries)?, entries);
        Ok(mapped)
    }

    /// Bytes of an entry.
    fn sqe(&self) -> usize {
        64 << usize::from(self.shape.flags & SQE128 != 0)
    }

    fn cqe(&self) -> usize {
        16 << usize::from(self.shape.flags & CQE32 != 0)
    }

    fn word(&self, offset: u32) -> u32 {
        // SAFETY: a word within the queues, which the kernel and the program change.
        unsafe { &*((self.queues.0 + offset as usize) as *const AtomicU32) }.load(Acquire)
    }

    fn sq_head(&self) -> u32 {
        self.word(self.shape.sq_off.head)
    }

    /// The address of the `n`th request from the beginning on; `None`: there is none such.
    fn request(&self, n: u32) -> Option<usize> {
        let place = n & (self.shape.sq_entries - 1);
        let index = match self.shape.flags & NO_SQARRAY {
            0 => self.word(self.shape.sq_off.array + place * 4),
            _ => place,
        };
        let is_one = index < self.shape.sq_entries;
        is_one.then(|| self.entries.0 + index as usize * self.sqe())
    }

    /// Number and flags of the `n`th completion from the beginning on.
    fn completion(&self, n: u32) -> (u64, u32) {
        let place = (n & (self.shape.cq_entries - 1)) as usize;
        let at = self.queues.0 + self.shape.cq_off.cqes as usize + place * self.cqe();
        // SAFETY: an entry within the queues.
        unsafe {
            (
                (at as *const u64).read_volatile(),
                ((at + 12) as *const u32).read_volatile(),
            )
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        for (at, len) in [self.queues, self.entries] {
            if at != 0 {
                // SAFETY: mapped by us, and used no more.
                let _ = unsafe { mm::unmap(at, len) };
            }
        }
    }
}

fn map(fd: i32, offset: usize, len: usize) -> Result<usize, Errno> {
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_SHARED | libc::MAP_POPULATE) as usize;
    // SAFETY: a new mapping.
    unsafe { raw::call(libc::SYS_mmap, [0, len, prot, flags, fd as usize, offset]) }
}

/// Reads which requests have been completed. To be called with the ring's turn.
fn look(fd: i32, mapped: &Mapped) {
    let mut done = Vec::new();
    let mut rings = RINGS.lock();
    let Some(ring) = rings.get_mut(&fd) else {
        return;
    };
    let tail = || mapped.word(mapped.shape.cq_off.tail);
    let (to, room) = (tail(), mapped.shape.cq_entries);
    let count = to.wrapping_sub(ring.seen).min(room);
    let completions: Vec<_> = (0..count)
        .map(|i| mapped.completion(ring.seen.wrapping_add(i)))
        .collect();
    // (The program may have let the kernel write over them meanwhile.)
    let is_missed = tail().wrapping_sub(ring.seen) > room;
    ring.seen = to;
    if is_missed {
        // (Those that were missed may be of any number, and come with that of a later request.)
        IS_MISLED.store(true, Relaxed);
    }
    if IS_MISLED.load(Relaxed) {
        std::mem::forget(std::mem::take(&mut ring.under_way));
        return;
    }
    for (number, flags) in completions {
        if flags & MORE == 0
            && let Some(those) = ring.under_way.get_mut(&number)
        {
            those.requests = those.requests.saturating_sub(1);
            if those.requests == 0 {
                done.extend(ring.under_way.remove(&number));
            }
        }
    }
    drop(rings);
    // (What they held is let go of here.)
}

/// Does a completion of this number say that its request is done?
fn may_be_held(fd: i32, number: u64) -> bool {
    let rings = RINGS.lock();
    let is_silent = |r: &Ring| r.silent.contains(&number);
    !IS_MISLED.load(Relaxed) && !rings.get(&fd).is_some_and(is_silent)
}

/// A completion of this number may come, or not.
fn note_silent(fd: i32, number: u64) {
    let mut rings = RINGS.lock();
    if let Some(ring) = rings.get_mut(&fd) {
        std::mem::forget(ring.under_way.remove(&number));
        if ring.silent.len() < MOST_SILENT {
            ring.silent.insert(number);
        } else {
            IS_MISLED.store(true, Relaxed);
        }
    }
}

/// Notes a request that is about to be submitted.
fn note(fd: i32, number: u64, transfer: Option<Transfer>) {
    let mut rings = RINGS.lock();
    if let Some(ring) = rings.get_mut(&fd) {
        let those = ring.under_way.entry(number).or_default();
        those.requests += 1;
        those.held.push(transfer);
    }
}

/// Submits `n` requests, of which the first have these numbers: how many, or a negative errno. To be
/// called with the ring's turn.
fn submit_held(fd: i32, mapped: &Mapped, n: u32, numbers: &[Option<u64>]) -> isize {
    if n == 0 {
        return 0;
    }
    let head = mapped.sq_head();
    let call = [fd as usize, n as usize, 0, 0, 0, 0];
    // SAFETY: the program's own call. (Signals stay blocked: it waits for no request.)
    let r = unsafe { syscall6(libc::SYS_io_uring_enter as usize, call) };
    let taken = mapped.sq_head().wrapping_sub(head) as usize;
    let mut left = Vec::new();
    let mut rings = RINGS.lock();
    if let Some(ring) = rings.get_mut(&fd) {
        for number in numbers.iter().skip(taken).rev().flatten() {
            if let Some(those) = ring.under_way.get_mut(number) {
                those.requests = those.requests.saturating_sub(1);
                left.extend(those.held.pop().flatten());
                if those.requests == 0 {
                    ring.under_way.remove(number);
                }
            }
        }
    }
    drop(rings);
    r
}

/// Has the process an io_uring?
pub fn is_any_mapped() -> bool {
    let is_ring = |line: &[u8]| line.ends_with(b"anon_inode:[io_uring]");
    Text::read().is_ok_and(|text| text.all().any(|(_, line)| is_ring(line)))
}

/// In a forked child: a ring belongs to the process that made it.
pub fn forget_all() {
    std::mem::forget(std::mem::take(&mut *RINGS.lock()));
}

/// Takes this module's lock for the time of a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    RINGS.before_fork();
}

/// Releases the lock after a fork, in parent and child.
pub fn after_fork() {
    RINGS.after_fork();
}

impl Caller {
    /// io_uring_setup.
    pub fn ring_setup(&self, a: Args) -> isize {
        if self.engine.pool().knob(Knob::SyscallIoUring) == 0 {
            return -(libc::ENOSYS as isize);
        }
        // SAFETY: the program's structure; a fault on it is taken as any other.
        let mut shape = unsafe { (a[1] as *const Params).read_unaligned() };
        if shape.flags & SQPOLL != 0 {
            return -(libc::EPERM as isize);
        }
        if shape.flags & !FLAGS != 0 {
            return EINVAL;
        }
        let call = [a[0], &raw mut shape as usize, 0, 0, 0, 0];
        let fd = self.raw(libc::SYS_io_uring_setup, call);
        if fd < 0 {
            return fd;
        }
        let fd = fd as i32;
        if shape.features & FEATURES != FEATURES {
            fs::close(fd);
            return -(libc::ENOSYS as isize);
        }
        // SAFETY: as above.
        unsafe { (a[1] as *mut Params).write_unaligned(shape) };
        let ring = Ring {
            shape,
            turn: Arc::new(Turn(AtomicU32::new(0))),
            seen: 0,
            under_way: BTreeMap::new(),
            silent: BTreeSet::new(),
        };
        // (One that was closed with requests under way: the kernel may still be ending them.)
        std::mem::forget(RINGS.lock().insert(fd, ring));
        fd as isize
    }

    /// io_uring_enter.
    pub fn ring_enter(&self, a: Args) -> isize {
        let [fd, to_submit, least, flags, arg, size] = a;
        let fd = fd as i32;
        let ring = |r: &Ring| (r.shape, r.turn.clone());
        let known = RINGS.lock().get(&fd).map(ring);
        // (A number of a registered one is none of ours.)
        let known = known.filter(|_| flags & REGISTERED == 0);
        let Some((shape, turn)) = known else {
            // (It was made before anything was managed, or it is another process's.)
            return self.raw(libc::SYS_io_uring_enter, a);
        };
        // (Mapped once for both, and only for what there is to read.)
        let is_any = |r: &Ring| !r.under_way.is_empty();
        let is_under_way = RINGS.lock().get(&fd).is_some_and(is_any);
        let mapped = match to_submit as u32 > 0 || is_under_way {
            true => Mapped::of(fd, &shape),
            false => Err(Errno::ENOENT),
        };
        let submitted = match (to_submit as u32, &mapped) {
            (0, _) => 0,
            (n, Ok(mapped)) => self.submit_requests(fd, n, mapped, &turn),
            (_, Err(e)) => -(e.0 as isize),
        };
        if submitted < 0 || submitted < to_submit as u32 as isize || flags & ENTER_GETEVENTS == 0 {
            let other = [fd as usize, 0, 0, flags, arg, size];
            return match to_submit {
                0 => self.raw(libc::SYS_io_uring_enter, other),
                _ => submitted,
            };
        }
        let mut own = Waiting::default();
        let (arg, size) = own.of(flags, arg, size);
        let r = self.raw(
            libc::SYS_io_uring_enter,
            [fd as usize, 0, least, flags, arg, size],
        );
        if let Ok(mapped) = mapped {
            let _turn = turn.take();
            look(fd, &mapped);
        }
        if submitted > 0 { submitted } else { r }
    }

    /// Submits up to `n` requests, whose memory is held: how many, or a negative errno.
    fn submit_requests(&self, fd: i32, n: u32, mapped: &Mapped, turn: &Turn) -> isize {
        let _turn = turn.take();
        let shape = &mapped.shape;
        look(fd, mapped);
        let head = mapped.sq_head();
        let there = mapped.word(shape.sq_off.tail).wrapping_sub(head);
        let mut numbers: Vec<Option<u64>> = Vec::new();
        let mut submitted = 0;
        // (A chain of requests must be submitted by one call.)
        let mut is_in_chain = false;
        for i in 0..n.min(there).min(shape.sq_entries) {
            let Some(at) = mapped.request(head.wrapping_add(i)) else {
                numbers.push(None);
                continue;
            };
            // SAFETY: an entry of the mapped ring.
            let sqe = unsafe { (at as *const Sqe).read_volatile() };
            let number = sqe.user_data;
            let (parts, is_held) = match entry::of(Some(self.engine), &sqe) {
                Request::Held(parts) => (parts, may_be_held(fd, number)),
                Request::GivenAway(parts) => (parts, false),
                Request::Silent(parts) => {
                    note_silent(fd, number);
                    (parts, false)
                }
                Request::Refused => {
                    // SAFETY: as above. (The program gives it to the kernel at this moment.)
                    unsafe { (at as *mut u8).write_volatile(entry::UNKNOWN) };
                    (Vec::new(), false)
                }
                Request::Message => {
                    IS_MISLED.store(true, Relaxed);
                    (Vec::new(), false)
                }
            };
            let wanted = Wanted::of(self.engine, parts);
            if is_held && !is_in_chain && wanted.is_too_much(self.engine) {
                // What waits for what this call holds would wait in vain.
                let held = numbers.len();
                let r = submit_held(fd, mapped, held as u32, &numbers);
                if r < held as isize {
                    return answer(submitted, r);
                }
                submitted += held;
                numbers.clear();
                wanted.make_room(self.engine, PATIENCE_NS, || {
                    let call = [fd as usize, 0, 0, ENTER_GETEVENTS, 0, 0];
                    // (Some rings end their requests only in such a call.)
                    // SAFETY: waits for nothing.
                    unsafe { syscall6(libc::SYS_io_uring_enter as usize, call) };
                    look(fd, mapped);
                });
            }
            is_in_chain = entry::is_linked(&sqe);
            let transfer = match is_held {
                true => Some(wanted.hold(self.engine)),
                false => {
                    wanted.give_away(self.engine);
                    None
                }
            };
            note(fd, number, transfer);
            numbers.push(Some(number));
        }
        let r = submit_held(fd, mapped, n - submitted as u32, &numbers);
        answer(submitted, r)
    }

    /// io_uring_register.
    pub fn ring_register(&self, a: Args) -> isize {
        const BUFFERS: usize = 0;
        const BUFFERS2: usize = 15;
        const BUFFERS_UPDATE: usize = 16;
        const RING_FDS: usize = 20;
        const PBUF_RING: usize = 22;
        // (Then come messages, and memory that is used without a call.)
        const LAST: usize = 30;
        const FILES_UPDATE: usize = 6;
        const FILES2: usize = 13;
        const FILES_UPDATE2: usize = 14;
        let word = |at: usize| {
            // SAFETY: the program's structure; a fault on it is taken as any other.
            unsafe { (at as *const u64).read_unaligned() as usize }
        };
        if matches!(a[1], RING_FDS | PBUF_RING) || a[1] > LAST {
            return EINVAL;
        }
        // Where a structure is given: the array that it names, of how many elements, and their tags.
        let (array, n, tags) = match a[1] {
            BUFFERS => (a[2], a[3], 0),
            FILES_UPDATE => (word(a[2] + 8), a[3], 0),
            BUFFERS2 | FILES2 => (word(a[2] + 16), word(a[2]) as u32 as usize, word(a[2] + 24)),
            BUFFERS_UPDATE | FILES_UPDATE2 => (
                word(a[2] + 8),
                word(a[2] + 24) as u32 as usize,
                word(a[2] + 16),
            ),
            _ => (0, 0, 0),
        };
        let n = n.min(MOST_REGISTERED);
        let is_of_buffers = matches!(a[1], BUFFERS | BUFFERS2 | BUFFERS_UPDATE);
        if is_of_buffers {
            // The kernel keeps them.
            let buffers = segments(array, n, true).filter(|b| extent::managed(b.at));
            for b in buffers {
                let _ = mmap::eject(self.engine, b.at, b.len);
            }
        }
        let element = if is_of_buffers {
            size_of::<iovec>()
        } else {
            size_of::<i32>()
        };
        let mut held = Pins::new(self.engine);
        held.insist(array, n * element, false);
        held.insist(tags, n * size_of::<u64>(), false);
        self.unknown(libc::SYS_io_uring_register, a)
    }
}

/// What io_uring_enter is to wait with, in memory of ours.
#[derive(Default)]
struct Waiting {
    mask: u64,
    time: [u64; 2],
    /// The kernel's io_uring_getevents_arg: mask, its size and more, time.
    all: [u64; 3],
}

impl Waiting {
    /// Copies what the program has given: where it is now, and its size.
    fn of(&mut self, flags: usize, arg: usize, size: usize) -> (usize, usize) {
        let mask = |at: usize| {
            // SAFETY: the program's mask; a fault on it is taken as any other.
            unsafe { (at as *const u64).read_unaligned() & !OURS }
        };
        if arg == 0 {
            return (arg, size);
        }
        if flags & EXT_ARG == 0 {
            self.mask = mask(arg);
            return (&raw const self.mask as usize, size);
        }
        if size != size_of_val(&self.all) {
            return (arg, size);
        }
        // SAFETY: as above, of the program's structures.
        unsafe {
            self.all = (arg as *const [u64; 3]).read_unaligned();
            if self.all[2] != 0 {
                self.time = (self.all[2] as *const [u64; 2]).read_unaligned();
                self.all[2] = &raw const self.time as u64;
            }
        }
        if self.all[0] != 0 {
            self.mask = mask(self.all[0] as usize);
            self.all[0] = &raw const self.mask as u64;
        }
        (self.all.as_ptr() as usize, size)
    }
}

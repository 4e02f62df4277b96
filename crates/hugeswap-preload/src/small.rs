//! Small blocks of malloc in managed memory (`route.small`), by an allocator in an object of its
//! own (`hugeswap-small`), which `hugeswap run` has loaded beside this one.
//!
//! ```text
//! OFF (no such object)
//! COUNTING --enough is asked for, or not managed--> STARTING --> ON
//!    ^---a fork is under way: later---------------------'   `--> OFF
//! ```
//! Enough is 4 MiB that the program has asked for (`route.small=on`), or a sixteenth of the budget that
//! the process has beside its managed memory (`auto`).
//!
//! What the program maps in small pieces counts, too, and is managed from then on, also where there is no such object,
//! or it does not start since the program is statically linked: heaps that grow by pages, and allocators of such programs.
//!
//! The program's own requests are the allocator's from ON on. The C library's requests stay with
//! its own allocator: it touches some of its memory where no fault can be taken (with every signal
//! blocked, at the start and end of a thread), and gives some to the kernel. A block knows its
//! allocator by its address: all small managed blocks are in one range of the window, which is
//! reserved when the allocator starts.
//!
//! The allocator's records are not managed, so its locks are never held where managed memory is
//! touched. They are taken before the engine's locks.

use crate::local::{self, Word};
use crate::mmap::kernel;
use crate::real;
use crate::state;
use crate::static_program;
use crate::symbols::{self, Name};
use hugeswap_engine::Engine;
use hugeswap_engine::pool::Pool;
use hugeswap_policy::knobs::{Knob, small};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::small::{Allocator, Memory, START, Start};
use hugeswap_sys::{fs, futex, mm, now_ns, stack};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

const OFF: u32 = 0;
const COUNTING: u32 = 1;
const STARTING: u32 = 2;
const ON: u32 = 3;

const PAGE: usize = 4096;
const UNIT: usize = 2 << 20;
/// Whether the allocator is to start is looked at when the program has asked for so many bytes more in
/// small blocks: most processes never do, and need no engine.
const ENOUGH: usize = 4 << 20;
/// A thread adds what it asks for to the others' in steps of so many bytes.
const STEP: usize = 64 << 10;
/// No sooner after the last look, which takes some microseconds.
const LOOK_EVERY_NS: u64 = 10_000_000;
/// The share of the budget (1/N), and its bounds in bytes, that a process may have beside its managed
/// memory until its small blocks are managed, too.
const SHARE: u64 = 16;
const OF_SHARE: Range<u64> = 4 << 20..64 << 20;
/// Bytes of addresses that are reserved for blocks, at least and at most.
const FOR_BLOCKS: Range<usize> = 64 << 30..1 << 40;
/// The same for records.
const FOR_RECORDS: Range<usize> = 1 << 30..64 << 30;
/// No block is smaller, so that all are aligned for any type.
const SMALLEST: usize = 16;
/// Alignments from here on are not the allocator's: such a block is a mapping of its own.
pub const ALIGN_END: usize = UNIT;

static PHASE: AtomicU32 = AtomicU32::new(OFF);
/// Bytes that the program has asked for before the allocator started.
static COUNTED: AtomicUsize = AtomicUsize::new(0);
/// When it was last looked whether the allocator is to start.
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);
/// Requests of fewer bytes are the allocator's: `route.malloc_min`; 0 until ON.
static BELOW: AtomicUsize = AtomicUsize::new(0);
static ALLOCATOR: AtomicPtr<Allocator> = AtomicPtr::new(std::ptr::null_mut());

/// A range of addresses of which the allocator gets one piece after the other, for good.
struct Area {
    base: AtomicUsize,
    len: AtomicUsize,
    /// Where the next piece may be.
    next: AtomicUsize,
}

impl Area {
    const fn new() -> Area {
        Area {
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
        }
    }

    /// Sets the range: the largest of the lengths in `lengths` that `reserve` has addresses for.
    /// False: it has none.
    fn reserve(&self, lengths: Range<usize>, reserve: impl Fn(usize) -> Option<usize>) -> bool {
        let mut len = lengths.end;
        let base = loop {
            match reserve(len) {
                Some(at) => break at,
                None if len > lengths.start => len /= 2,
                None => return false,
            }
        };
        self.next.store(base, Relaxed);
        self.base.store(base, Relaxed);
        self.len.store(len, Relaxed);
        true
    }

    #[inline]
    fn contains(&self, addr: usize) -> bool {
        addr.wrapping_sub(self.base.load(Relaxed)) < self.len.load(Relaxed)
    }

    /// Takes a piece of `len` bytes at a multiple of `align`.
    fn take(&self, len: usize, align: usize) -> Option<usize> {
        let end = self.base.load(Relaxed) + self.len.load(Relaxed);
        let after = |next: usize| {
            let at = next.next_multiple_of(align);
            at.checked_add(len).filter(|&e| e <= end)
        };
        let next = self.next.fetch_update(Relaxed, Relaxed, after);
        next.ok().map(|next| next.next_multiple_of(align))
    }
}

/// Where the blocks are: managed.
static BLOCKS: Area = Area::new();
/// Where the allocator's records are, and a few blocks from before it knew where blocks belong: not
/// managed.
static RECORDS: Area = Area::new();
/// The objects of the C library: address and length of each.
static LIBRARY: [[AtomicUsize; 2]; 4] = [const { [const { AtomicUsize::new(0) }; 2] }; 4];

static MEMORY: Memory = Memory {
    records: map_records,
    map,
    discard,
};

/// Looks for the allocator's object. Is there one, to be started later? Called by the constructor.
pub fn arm() -> bool {
    if symbols::first(&Name::new(START)).is_none() || !real::libc_allocates() {
        return false;
    }
    // In older C libraries threads and asynchronous calls are in objects of their own.
    let of_library = [
        c"gnu_get_libc_version",
        c"_dl_allocate_tls",
        c"pthread_join",
        c"aio_return",
    ];
    for (slot, name) in LIBRARY.iter().zip(of_library) {
        if let Some(found) = symbols::first(&Name::new(name)) {
            let extent = found.extent();
            slot[0].store(extent.start, Relaxed);
            slot[1].store(extent.len(), Relaxed);
        }
    }
    PHASE.store(COUNTING, Relaxed);
    true
}

/// Is the C library the caller, by a return address?
#[inline]
fn is_library(caller: usize) -> bool {
    let within = |slot: &[AtomicUsize; 2]| {
        caller.wrapping_sub(slot[0].load(Relaxed)) < slot[1].load(Relaxed)
    };
    LIBRARY.iter().any(within)
}

/// The allocator, if a request of `size` bytes from `caller` is its.
#[inline]
pub fn for_request(size: usize, caller: usize) -> Option<&'static Allocator> {
    if size < BELOW.load(Acquire) {
        return if is_library(caller) {
            None
        } else {
            allocator()
        };
    }
    if size < state::LEAST {
        note_block(size, caller);
    }
    None
}

/// A block of `size` bytes that `caller` asks for is not managed.
#[inline]
pub fn note_block(size: usize, caller: usize) {
    if PHASE.load(Relaxed) == COUNTING {
        count(size, caller);
    }
}

/// The allocator, if it has started.
#[inline]
fn allocator() -> Option<&'static Allocator> {
    // SAFETY: null, or the table in the allocator's object, which stays.
    unsafe { ALLOCATOR.load(Acquire).as_ref() }
}

/// The size to ask the allocator for.
#[inline]
pub fn at_least(size: usize) -> usize {
    size.max(SMALLEST)
}

/// The allocator, if `p` is one of its blocks.
#[inline]
pub fn owner(p: usize) -> Option<&'static Allocator> {
    let is_inside = BLOCKS.contains(p) || RECORDS.contains(p);
    is_inside.then(allocator).flatten()
}

/// A private mapping of `len` bytes is made that is too short to be managed.
pub fn note_mapping(len: usize) {
    if !state::are_small_mappings_managed() {
        count(len, 0);
    }
}

/// Adds to what the program has asked for.
#[inline]
fn count(size: usize, caller: usize) {
    let asked = local::get(Word::Asked) + size;
    local::set(Word::Asked, asked);
    if asked >= STEP {
        count_step(asked, caller);
    }
}

/// Starts the allocator, or has small mappings managed, if it is time for that.
#[cold]
fn count_step(asked: usize, caller: usize) {
    if is_library(caller) {
        return;
    }
    local::set(Word::Asked, 0);
    let before = COUNTED.fetch_add(asked, Relaxed);
    if before / ENOUGH == (before + asked) / ENOUGH {
        return;
    }
    let (now, last) = (now_ns(), LOOKED_NS.load(Relaxed));
    let due = last == 0 || now.saturating_sub(last) >= LOOK_EVERY_NS;
    if !due
        || LOOKED_NS
            .compare_exchange(last, now, Relaxed, Relaxed)
            .is_err()
    {
        return;
    }
    let Some(engine) = state::engine_for(unmanaged(), Knob::Small) else {
        return;
    };
    // A program that was loaded has an allocator of its own.
    if PHASE.load(Relaxed) == OFF || static_program::is_loaded() {
        return state::manage_small_mappings();
    }
    // A handler of the program's that asks for memory, or forks, must not find the thread starting
    // the allocator that it runs on.
    let blocked = Blocked::all();
    let claim = PHASE.compare_exchange(COUNTING, STARTING, SeqCst, Relaxed);
    if claim.is_ok() {
        let errno = real::errno();
        // (A fork under way does not know that it has to prepare the allocator.)
        let next = match () {
            () if state::is_forking() => COUNTING,
            () if start_elsewhere(engine) => ON,
            () => OFF,
        };
        PHASE.store(next, SeqCst);
        futex::wake(&PHASE, u32::MAX >> 1, false);
        real::set_errno(errno);
    }
    drop(blocked);
}

/// From how many bytes on that a process has beside its managed memory its small blocks are managed.
pub fn least(pool: &Pool) -> u64 {
    match pool.knob(Knob::Small) {
        small::OFF => u64::MAX,
        small::ON => 0,
        _ => (pool.frames() * UNIT as u64 / SHARE).clamp(OF_SHARE.start, OF_SHARE.end),
    }
}

/// The anonymous memory that this process has beside its managed memory, bytes; 0 if that cannot be told.
fn unmanaged() -> usize {
    let managed = state::engine().map_or(0, |e| e.pool().charged() as usize * UNIT);
    let errno = real::errno();
    let all = anonymous_pages().unwrap_or(0) * PAGE;
    real::set_errno(errno);
    all.saturating_sub(managed)
}

/// Pages of this process that are in memory, and of no file.
fn anonymous_pages() -> Option<usize> {
    let mut text = [0u8; 128];
    let fd = fs::open(c"/proc/self/statm", libc::O_RDONLY | libc::O_CLOEXEC, 0).ok()?;
    let a = [fd as usize, text.as_mut_ptr() as usize, text.len(), 0, 0, 0];
    let n = kernel(libc::SYS_read, a);
    fs::close(fd);
    let text = std::str::from_utf8(text.get(..n)?).ok()?;
    let mut pages = text.split(' ').skip(1).map(|n| n.parse::<usize>().ok());
    let (resident, shared) = (pages.next()??, pages.next()??);
    Some(resident.saturating_sub(shared))
}

/// [`start`] on a stack that is not managed: the program may have put the thread's there (a coroutine's,
/// a goroutine's), and what the allocator gives the kernel of its own stack then would raise a
/// SIGSYS, which is blocked.
fn start_elsewhere(engine: &'static Engine) -> bool {
    // SAFETY: signals are blocked, and the allocator starts in less: it reads its options.
    unsafe { stack::call_on_new(state::JOIN_STACK, || start(engine)) }.unwrap_or(false)
}

fn start(engine: &'static Engine) -> bool {
    let has_addresses = RECORDS.reserve(FOR_RECORDS, |len| mm::map_own(len, mm::PROT_NONE).ok())
        && BLOCKS.reserve(FOR_BLOCKS, |len| engine.reserve(len, UNIT).ok());
    if !has_addresses {
        return false;
    }
    let Some(found) = symbols::first(&Name::new(START)) else {
        return false;
    };
    // SAFETY: the function that the allocator's object exports by this name, called once.
    let allocator = unsafe {
        let start = std::mem::transmute::<usize, Start>(found.address);
        start(&MEMORY)
    };
    if allocator.is_null() {
        return false;
    }
    ALLOCATOR.store(allocator.cast_mut(), Release);
    let below = engine.pool().knob(Knob::MallocMin) as usize;
    BELOW.store(below, Release);
    state::manage_small_mappings();
    true
}

/// New managed memory for the allocator; see [`Memory::map`].
extern "C" fn map(len: usize, align: usize) -> usize {
    let Some(engine) = state::engine() else {
        return 0;
    };
    let errno = real::errno();
    let at = BLOCKS.take(len, align.max(PAGE)).filter(|&at| {
        // Whole units are made accessible, so that they can be huge. Pieces that share one do so in
        // turn; what is accessible already stays as it is.
        let (from, to) = (at & !(UNIT - 1), (at + len).next_multiple_of(UNIT));
        engine.commit(from, to - from).is_ok()
    });
    real::set_errno(errno);
    at.unwrap_or(0)
}

/// New memory for the allocator's records; see [`Memory::records`].
extern "C" fn map_records(len: usize) -> usize {
    let at = RECORDS.take(len.next_multiple_of(UNIT), UNIT);
    // SAFETY: addresses that are reserved for this, and that nobody uses.
    let at = at.filter(|&at| unsafe { mm::protect(at, len, mm::PROT_RW) }.is_ok());
    at.unwrap_or(0)
}

/// Gives up the contents of free memory of the allocator's; see [`Memory::discard`]. Only units of
/// 2 MiB are: of others the pages would have to be written.
extern "C" fn discard(addr: usize, len: usize) -> bool {
    let Some(engine) = state::engine() else {
        return false;
    };
    let errno = real::errno();
    let (from, to) = (addr.next_multiple_of(UNIT), (addr + len) & !(UNIT - 1));
    let done = from < to && engine.discard(from, to - from).is_ok();
    real::set_errno(errno);
    done && (from, to) == (addr, addr + len)
}

/// Gives up what free blocks hold.
pub fn trim() {
    if let Some(allocator) = allocator() {
        // SAFETY: the allocator has started.
        unsafe { (allocator.purge)() };
    }
}

/// Before a fork, when no thread begins to start the allocator any more: waits for one that does,
/// and takes the allocator's locks.
pub fn before_fork() {
    while PHASE.load(SeqCst) == STARTING {
        futex::wait(&PHASE, STARTING, Some(100_000_000), false);
    }
    if let Some(allocator) = allocator() {
        // SAFETY: paired with one of the two below.
        unsafe { (allocator.before_fork)() };
    }
}

/// After a fork, in the parent.
pub fn after_fork_in_parent() {
    if let Some(allocator) = allocator() {
        // SAFETY: `before_fork` came before.
        unsafe { (allocator.after_fork_in_parent)() };
    }
}

/// After a fork, in the child.
pub fn after_fork_in_child() {
    if let Some(allocator) = allocator() {
        // SAFETY: `before_fork` came before.
        unsafe { (allocator.after_fork_in_child)() };
    }
}

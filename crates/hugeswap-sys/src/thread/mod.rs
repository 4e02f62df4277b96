//! Threads made by a clone of our own: the C library does not know them.
//!
//! Such a thread is not among those that the C library counts, so the program ends with its own
//! last thread; it is not waited for, and no call that the C library repeats on every thread
//! reaches it. To make one nothing is allocated and no lock is taken, so it may be made inside the
//! program's `malloc`.
//!
//! In return it may not use what the C library keeps for each thread or leaves unlocked while the
//! program has one thread: `malloc`, stdio, `dlsym`, `std::thread`, thread-locals of objects that
//! were loaded later. It has thread-locals of the objects the program started with, as they are in
//! a new thread (`errno` is one), and the stack and pointer guards; functions that only touch these
//! may be called.
//!
//! Each thread has a slot: a stack with a guard below it, and above it the static thread-locals and
//! the thread control block. A slot's memory is mapped once and stays for the slot's next thread.
//! The kernel clears the slot's thread id when the thread is gone for good, and wakes
//! [`Thread::join`].

mod locals;

use crate::raw::{call, check, syscall6};
use crate::signal::{self, Blocked, Mask};
use crate::{Errno, Result, futex, mm, process, program_fs};
use locals::Locals;
use std::arch::naked_asm;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};

pub use locals::prepare;

/// As many threads of this kind as a process can have.
const SLOTS: usize = 64;
const PAGE: usize = 4096;
const STACK: usize = 256 << 10;
/// What a thread runs must fit here, with what it captures.
const BODY: usize = 256;

struct Slot {
    /// 0: free. 1: a thread's, from before it is made until it has been joined.
    taken: AtomicU32,
    /// Set by the kernel when the thread is made, cleared by it when the thread is gone.
    tid: AtomicU32,
    /// Start of the mapping; 0 until the slot's first use.
    memory: AtomicUsize,
    /// For [`Peer::mark`].
    mark: AtomicU32,
    start: UnsafeCell<Start>,
}

// SAFETY: `start` is written by the thread that took the slot, before it makes the one that reads
// it.
unsafe impl Sync for Slot {}

/// What a thread does first.
struct Start {
    /// Set before the thread is made. `None` in a slot that was never used, so that the table is
    /// zeros: one without addresses costs a program that does not use it neither relocations nor
    /// pages.
    run: Option<unsafe fn(*mut c_void)>,
    name: [u8; 16],
    mask: Mask,
    body: Body,
}

/// Room for what a thread runs.
#[repr(align(16))]
struct Body(MaybeUninit<[u8; BODY]>);

static THREADS: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicU32::new(0),
        tid: AtomicU32::new(0),
        memory: AtomicUsize::new(0),
        mark: AtomicU32::new(0),
        start: UnsafeCell::new(Start {
            run: None,
            name: [0; 16],
            mask: 0,
            body: Body(MaybeUninit::uninit()),
        }),
    }
}; SLOTS];

/// Slots from this one on have never been used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// The slots that are or were used.
fn slots() -> &'static [Slot] {
    &THREADS[..USED.load(Acquire)]
}

/// A slot's thread id between the moment it is taken and the moment the kernel has made the thread.
const BEING_MADE: u32 = u32::MAX;

/// A thread. It is not ended, nor its slot given back, when this is dropped; [`Thread::join`] does.
pub struct Thread(&'static Slot);

/// Makes a thread that runs `body` with the signals of `mask` blocked. Its name is cut at 15 bytes.
/// EAGAIN: there are too many; ENOSYS: [`prepare`] was not called, or failed.
///
/// # Safety
/// `body` must keep to what such a thread may do (see the file's head), and must not unwind.
pub unsafe fn spawn<F: FnOnce() + Send + 'static>(
    name: &str,
    mask: Mask,
    body: F,
) -> Result<Thread> {
    const { assert!(size_of::<F>() <= BODY && align_of::<F>() <= 16) };
    let locals = locals::get()?;
    // A handler of the program's must not run on top of a slot that is half filled, nor in the new
    // thread.
    let _blocked = Blocked::all();
    let free = |s: &&Slot| s.taken.compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
    let slot = THREADS.iter().position(|s| free(&s));
    let slot = slot.ok_or(Errno::EAGAIN)?;
    USED.fetch_max(slot + 1, AcqRel);
    let slot = &THREADS[slot];
    let pointer = slot
        .thread_pointer(locals)
        .inspect_err(|_| slot.give_back())?;
    // SAFETY: the slot is this call's alone until its thread runs, and the thread reads `start`
    // only then.
    let start = unsafe { &mut *slot.start.get() };
    start.run = Some(run::<F>);
    start.mask = mask;
    start.name = [0; 16];
    for (to, from) in start.name[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    let at = start.body.0.as_mut_ptr().cast::<F>();
    // SAFETY: large and aligned enough, by the assertion above.
    unsafe { at.write(body) };
    // SAFETY: the area above the stack is mapped, and nobody's but the thread's that is made now.
    unsafe { locals.fill(pointer) };
    slot.mark.store(0, Relaxed);
    slot.tid.store(BEING_MADE, Release);
    let top = slot.memory.load(Relaxed) + PAGE + STACK;
    // SAFETY: `top` is the end of a stack that is nobody else's; the first thing the thread pops is
    // the slot.
    let made = unsafe {
        let sp = (top - 8) as *mut usize;
        *sp = slot as *const Slot as usize;
        clone(FLAGS, sp as usize, &slot.tid, &slot.tid, pointer)
    };
    match check(made) {
        Ok(_) => Ok(Thread(slot)),
        Err(e) => {
            // SAFETY: written above; no thread took it.
            unsafe { at.drop_in_place() };
            slot.give_back();
            Err(e)
        }
    }
}

impl Thread {
    /// Has it ended?
    pub fn is_over(&self) -> bool {
        self.0.tid.load(Acquire) == 0
    }

    /// Waits until it has ended, and gives its slot back.
    pub fn join(self) {
        loop {
            match self.0.tid.load(Acquire) {
                0 => break,
                // The kernel's own wake at a thread's end is one for words shared by processes.
                tid => futex::wait(&self.0.tid, tid, None, true),
            }
        }
        self.0.give_back();
    }
}

/// A thread that somebody else made, while it lasts.
#[derive(Clone, Copy)]
pub struct Peer(&'static Slot);

impl Peer {
    /// Its id; `None`: the kernel has not made it yet, or it is gone.
    pub fn tid(self) -> Option<i32> {
        let tid = self.0.tid.load(Acquire);
        (tid != 0 && tid != BEING_MADE).then_some(tid as i32)
    }

    /// Is it gone?
    pub fn is_over(self) -> bool {
        self.0.tid.load(Acquire) == 0
    }

    /// A number of the caller's that goes with the thread; 0 when it starts.
    pub fn mark(self) -> &'static AtomicU32 {
        &self.0.mark
    }
}

/// Every thread of this kind that is there or being made.
pub fn all() -> impl Iterator<Item = Peer> {
    let there = |s: &&Slot| s.tid.load(Acquire) != 0;
    slots().iter().filter(there).map(Peer)
}

/// The calling thread, if it is of this kind: also in a signal handler, and on another stack than
/// its own ([`crate::stack`]).
pub fn current() -> Option<Peer> {
    let me = process::tid();
    // (The kernel writes the id before the thread runs.)
    all().find(|p| p.tid() == Some(me))
}

/// Has the program's last thread ended, so that only threads of this kind are left? Then this is
/// the status it ended with. (Where it ended by the C library's means there is no process left to
/// ask; a bare system call ends only its own thread.)
pub fn program_is_over() -> Option<i32> {
    let pid = process::pid();
    let mut byte = [0u8; 2];
    let (to, from) = byte.split_at_mut(1);
    let vector = |b: &mut [u8]| libc::iovec {
        iov_base: b.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let (to, from) = (vector(to), vector(from));
    let to_at = &raw const to as usize;
    let args = [pid as usize, to_at, 1, &raw const from as usize, 1, 0];
    // SAFETY: copies one byte of ours to another. The kernel looks for it through the main thread,
    // which has no memory if it has ended.
    if unsafe { call(libc::SYS_process_vm_readv, args) } != Err(Errno::ESRCH) {
        return None;
    }
    let is_ours = |tid: i32| all().any(|p| p.tid() == Some(tid));
    let tasks = crate::fs::numbers_in(c"/proc/self/task").ok()?;
    if tasks.is_empty() || tasks.iter().any(|&t| t != pid && !is_ours(t)) {
        return None;
    }
    let text = std::fs::read("/proc/self/stat").ok()?;
    let last = text.trim_ascii_end().rsplit(|&b| b == b' ').next()?;
    let status: i32 = std::str::from_utf8(last).ok()?.parse().ok()?;
    Some(status >> 8 & 0xff)
}

/// In a forked child: none of the threads is there, and their memory serves those that are made
/// now.
///
/// # Safety
/// The caller is the only thread of the process, and not one of this kind. Every [`Thread`] made
/// before is to be forgotten.
pub unsafe fn reset_in_child() {
    for slot in slots() {
        slot.tid.store(0, Relaxed);
        slot.taken.store(0, Release);
    }
}

impl Slot {
    fn give_back(&self) {
        self.tid.store(0, Relaxed);
        self.taken.store(0, Release);
    }

    /// Where a thread of this slot has its thread pointer; maps the slot's memory if it has none.
    fn thread_pointer(&self, locals: &Locals) -> Result<usize> {
        let below = PAGE + STACK + locals.bytes_below().next_multiple_of(PAGE);
        let mut memory = self.memory.load(Relaxed);
        if memory == 0 {
            memory = mm::map_own(below + locals.bytes_above(), mm::PROT_RW)?;
            // SAFETY: the first page of the mapping just made. Without a guard an overflow would
            // only be harder to find.
            let _ = unsafe { mm::protect(memory, PAGE, mm::PROT_NONE) };
            self.memory.store(memory, Release);
        }
        Ok(memory + below)
    }
}

/// Without CLONE_SYSVSEM: what the program's semaphores are to be undone (SEM_UNDO) must not wait
/// for the end of a thread of ours.
const FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// The system call. In the new thread it does not return: there [`begin`] is called with the word
/// on top of the stack.
///
/// # Safety
/// `sp` is the top of a stack that is the new thread's alone, and holds what `begin` asks for;
/// `pointer` is a thread control block.
#[unsafe(naked)]
unsafe extern "C" fn clone(
    flags: i32,
    sp: usize,
    parent_tid: *const AtomicU32,
    child_tid: *const AtomicU32,
    pointer: usize,
) -> isize {
    naked_asm!(
        ".cfi_startproc",
        "mov r10, rcx",
        "mov eax, {nr}",
        "syscall",
        "test rax, rax",
        "jnz 2f",
        // Unwinders stop here.
        ".cfi_remember_state",
        ".cfi_undefined rip",
        "xor ebp, ebp",
        "pop rdi",
        "call {begin}",
        "ud2",
        ".cfi_restore_state",
        "2:",
        "ret",
        ".cfi_endproc",
        nr = const libc::SYS_clone,
        begin = sym begin,
    )
}

unsafe fn run<F: FnOnce()>(body: *mut c_void) {
    // SAFETY: `spawn` wrote an F there, for this thread to take.
    let body = unsafe { body.cast::<F>().read() };
    body();
}

/// The new thread. Every signal is blocked, as in its maker.
extern "C" fn begin(slot: &'static Slot) -> ! {
    program_fs::become_ours();
    // SAFETY: `spawn` is done with it.
    let start = unsafe { &mut *slot.start.get() };
    if let Ok(locals) = locals::get() {
        // SAFETY: `spawn` filled this thread's control block.
        unsafe { locals.note_tid() };
    }
    if let Ok(name) = CStr::from_bytes_until_nul(&start.name) {
        process::name_thread(name);
    }
    signal::set_mask(start.mask);
    if let Some(run) = start.run {
        // SAFETY: the body that goes with this function.
        unsafe { run(start.body.0.as_mut_ptr().cast()) };
    }
    signal::set_mask(signal::ALL);
    loop {
        // SAFETY: ends this thread alone; nothing is left on its stack that anybody needs.
        unsafe { syscall6(libc::SYS_exit as usize, [0; 6]) };
    }
}

/// Thread-locals, of the objects that the program started with, for a thread that neither this
/// module nor the C library makes. Returns the thread pointer. They stay mapped; [`renew_locals`]
/// makes them fit for another thread. Errors: those of [`spawn`], or ENOMEM.
pub fn map_locals() -> Result<usize> {
    let locals = locals::get()?;
    let below = locals.bytes_below().next_multiple_of(PAGE);
    let pointer = mm::map_own(below + locals.bytes_above(), mm::PROT_RW)? + below;
    // SAFETY: mapped a moment ago, that long.
    unsafe { locals.fill(pointer) };
    Ok(pointer)
}

/// Makes what [`map_locals`] returned once more what they are in a new thread.
///
/// # Safety
/// No thread uses them.
pub unsafe fn renew_locals(pointer: usize) {
    if let Ok(locals) = locals::get() {
        // SAFETY: mapped by `map_locals`, used by nobody.
        unsafe { locals.fill(pointer) };
    }
}

/// From here on [`begin_with_locals`] allocates nothing.
pub fn assemble_locals() {
    let _ = locals::get();
}

/// The calling thread, whose thread-locals are of [`map_locals`], has begun. (Or it is a forked child,
/// where the allocator may be locked: see [`assemble_locals`].)
///
/// # Safety
/// As it says.
pub unsafe fn begin_with_locals() {
    if let Ok(locals) = locals::get() {
        // SAFETY: the caller's promise: `fill` made this thread's control block.
        unsafe { locals.note_tid() };
    }
}

/// Raises `signal` in `peer`, wherever it is.
pub fn signal_peer(peer: Peer, signal: i32) -> Result<()> {
    let tid = peer.tid().ok_or(Errno::ESRCH)?;
    process::signal_thread(tid, signal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    thread_local! {
        static HERE: Cell<u64> = const { Cell::new(7) };
    }

    /// The tests look at slots, of which there is one set.
    static ALONE: Mutex<()> = Mutex::new(());

    /// # Safety
    /// As for [`spawn`].
    unsafe fn make(body: impl FnOnce() + Send + 'static) -> Thread {
        prepare().unwrap();
        // SAFETY: passed on.
        unsafe { spawn("of-ours", signal::ALL, body) }.unwrap()
    }

    #[test]
    fn a_thread_is_known_on_another_stack() {
        let _alone = ALONE.lock().unwrap();
        static SEEN: AtomicU64 = AtomicU64::new(0);
        // SAFETY: raw calls only; no signal comes.
        let t = unsafe {
            make(|| {
                let known = || current().is_some() as u64;
                SEEN.store(
                    crate::stack::call_on_new(64 << 10, known).unwrap_or(2),
                    Relaxed,
                );
            })
        };
        t.join();
        assert_eq!(SEEN.load(Relaxed), 1);
    }

    #[test]
    fn a_thread_has_its_own_locals_id_and_name_and_is_not_the_c_librarys() {
        let _alone = ALONE.lock().unwrap();
        static SEEN: [AtomicU64; 5] = [const { AtomicU64::new(0) }; 5];
        HERE.set(8);
        for round in 0..3 {
            // SAFETY: thread-locals of the executable and raw calls only.
            let t = unsafe {
                make(move || {
                    SEEN[0].store(HERE.replace(9), Relaxed);
                    SEEN[1].store(process::tid() as u64, Relaxed);
                    *libc::__errno_location() = 5;
                    SEEN[2].store(current().and_then(Peer::tid).unwrap_or(0) as u64, Relaxed);
                    SEEN[3].store(signal::set_mask(signal::ALL), Relaxed);
                    let mut name = [0u8; 16];
                    let a = [
                        libc::PR_GET_NAME as usize,
                        name.as_mut_ptr() as usize,
                        0,
                        0,
                        0,
                        0,
                    ];
                    syscall6(libc::SYS_prctl as usize, a);
                    SEEN[4].store(u64::from_le_bytes(name[..8].try_into().unwrap()), Relaxed);
                })
            };
            t.join();
            assert_eq!(SEEN[0].swap(0, Relaxed), 7, "round {round}");
            let tid = SEEN[1].load(Relaxed);
            assert!(tid != process::tid() as u64 && tid == SEEN[2].load(Relaxed));
            // (The kernel never blocks two.)
            assert_eq!(SEEN[3].load(Relaxed) | 1 << 8 | 1 << 18, signal::ALL);
            assert_eq!(SEEN[4].load(Relaxed), u64::from_le_bytes(*b"of-ours\0"));
        }
        assert_eq!(HERE.get(), 8);
        assert!(current().is_none() && all().next().is_none());
    }

    #[test]
    fn slots_run_out_and_come_back() {
        let _alone = ALONE.lock().unwrap();
        static GO: AtomicU32 = AtomicU32::new(0);
        let wait = || {
            while GO.load(Acquire) == 0 {
                futex::wait(&GO, 0, None, false);
            }
        };
        for _ in 0..3 {
            GO.store(0, Release);
            // SAFETY: futex calls only.
            let threads: Vec<_> = (0..SLOTS).map(|_| unsafe { make(wait) }).collect();
            assert_eq!(all().count(), SLOTS);
            // SAFETY: as above.
            let one_more = unsafe { spawn("more", signal::ALL, wait) };
            assert!(matches!(one_more, Err(Errno::EAGAIN)));
            assert!(threads.iter().all(|t| !t.is_over()));
            GO.store(1, Release);
            futex::wake(&GO, SLOTS as u32, false);
            threads.into_iter().for_each(Thread::join);
            assert_eq!(all().count(), 0);
        }
    }
}

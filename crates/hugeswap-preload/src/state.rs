//! Whether this process manages memory, and how it comes to: `HUGESWAP_POOL` arms it, the first request large
//! enough makes it join the pool.
//!
//! ```text
//! COLD --constructor--> OFF (no HUGESWAP_POOL)
//!                    `-> ARMED --large request--> JOINING --> JOINED
//!                          ^--request was too small--'   `--> FAILED
//! ```
//! One thread joins; requests of others wait for it, its own nested ones pass through. OFF, JOINED and FAILED
//! are final. A fork waits for a thread that joins, and while a thread forks none begins to join: a request that would
//! have made it join is not managed, and a later one does.
//!
//! A program that asks for nothing large pays for starting only: what can wait for the joining is done there, and
//! what every start or fork writes lies together (`hot!`).

use crate::{
    alloc, credentials, extent, files, filter, helpers, inherit, issue, local, locked, low, malloc,
    marks, owners, real, rings, shared, shm, small, static_program, submitted, symbols, thread,
    transfer, trap, views,
};
use hugeswap_engine::pool::{FaultMode, Pool};
use hugeswap_engine::{Engine, EngineConfig, EngineError, Threads, Window, high_descriptor};
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::signal::{self, Blocked};
use hugeswap_sys::{fs, futex, process, stack};
use libc::{c_int, c_void};
use std::ffi::CStr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize};

const COLD: u32 = 0;
const OFF: u32 = 1;
const ARMED: u32 = 2;
const JOINING: u32 = 3;
const JOINED: u32 = 4;
const FAILED: u32 = 5;

hot! {
    static STATE: AtomicU32 = AtomicU32::new(COLD);
    /// The process this image runs as; a vfork child differs, for it runs in our memory.
    static PID: AtomicI32 = AtomicI32::new(0);
    /// Threads that are between [`prepare_fork`] and [`after_fork_in_parent`]. None joins meanwhile.
    static FORKS: AtomicU32 = AtomicU32::new(0);
    /// `HUGESWAP_POOL`.
    static CREATOR: AtomicI32 = AtomicI32::new(0);
    static SEGMENT: AtomicI32 = AtomicI32::new(-1);
    /// Requests from this many bytes on are looked at: [`LEAST`], or out of reach.
    static LOOK_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
    /// The same of mappings: [`LEAST`], or [`SMALL_FROM`].
    static MAP_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);
}
static JOINER: AtomicI32 = AtomicI32::new(0);
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(std::ptr::null_mut());
/// What sets the thresholds of the pool.
const ROUTES: [Knob; 4] = [
    Knob::MallocMin,
    Knob::MmapMin,
    Knob::ReserveMin,
    Knob::Small,
];
/// The pool's thresholds, once known, in the order of [`ROUTES`].
static KNOWN_MIN: [AtomicUsize; ROUTES.len()] = [const { AtomicUsize::new(0) }; ROUTES.len()];
/// Descriptors below this number are certainly not ours.
static FIRST_FD: AtomicI32 = AtomicI32::new(i32::MAX);

/// No request for a block below this many bytes is ever managed by itself.
pub const LEAST: usize = 128 << 10;
/// Where small blocks are managed, mappings from so many bytes on are, too: some allocators map each
/// of their pages (Ruby's heap has 16 KiB, mapped as 32 and cut).
const SMALL_MAPPING: usize = 32 << 10;
/// From how many bytes on mappings are, then: [`SMALL_MAPPING`], or a page in a program that was loaded, whose
/// allocators map what they would take from the break.
static SMALL_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Is a request of `len` bytes worth a look?
#[inline]
pub fn may_manage(len: usize) -> bool {
    len >= LOOK_FROM.load(Relaxed)
}

/// Is a mapping of `len` bytes worth a look?
#[inline]
pub fn may_manage_mapping(len: usize) -> bool {
    len >= MAP_FROM.load(Relaxed)
}

/// Small blocks are managed from now on, if there is an allocator for them, and small mappings.
pub fn manage_small_mappings() {
    let from = match static_program::is_loaded() {
        true => 4096,
        false => SMALL_MAPPING,
    };
    SMALL_FROM.store(from, Relaxed);
    MAP_FROM.store(from, Relaxed);
}

/// Are small mappings managed?
pub fn are_small_mappings_managed() -> bool {
    SMALL_FROM.load(Relaxed) != usize::MAX
}

/// Descriptors may have been added.
pub fn note_descriptors(engine: &Engine) {
    FIRST_FD.store(our_fds(engine).min().unwrap_or(i32::MAX), Relaxed);
}

/// Descriptors that the program is to leave alone.
pub fn our_fds(engine: &Engine) -> impl Iterator<Item = i32> {
    let watch = Some(views::descriptor()).filter(|&fd| fd >= 0);
    engine.protected_fds().chain(watch)
}

/// The engine, once joined.
#[inline]
pub fn engine() -> Option<&'static Engine> {
    // SAFETY: what stands here is the engine that `Engine::start` leaked; nobody stops it.
    unsafe { ENGINE.load(Acquire).as_ref() }
}

/// The engine, if system calls on its memory need care: in signal mode.
#[inline]
pub fn careful() -> Option<&'static Engine> {
    engine().filter(|e| e.mode() == FaultMode::Signal)
}

/// Will this process manage memory, or does it already?
#[inline]
pub fn armed() -> bool {
    matches!(STATE.load(Relaxed), ARMED | JOINING | JOINED)
}

/// Was this process started to manage memory, whatever has become of that?
#[inline]
pub fn was_armed() -> bool {
    !matches!(STATE.load(Relaxed), COLD | OFF)
}

/// Is descriptor `fd` one of hugeswap's?
#[inline]
pub fn is_our_fd(fd: i32) -> bool {
    fd >= FIRST_FD.load(Relaxed) && engine().is_some_and(|e| our_fds(e).any(|p| p == fd))
}

/// Is a thread of this process forking?
pub fn is_forking() -> bool {
    FORKS.load(SeqCst) != 0
}

/// Are we in a vfork child, which runs in its parent's memory?
pub fn in_vfork_child() -> bool {
    PID.load(Relaxed) != process::pid()
}

/// Does the pool have this setting at another value than 0? Without joining it, if that was not done yet.
pub fn is_set(knob: Knob) -> bool {
    match engine() {
        Some(engine) => engine.pool().knob(knob) != 0,
        None if STATE.load(Acquire) == ARMED => {
            let look = || {
                let (creator, segment) = (CREATOR.load(Relaxed), SEGMENT.load(Relaxed));
                let pool = Pool::attach(creator, segment, high_descriptor());
                pool.is_ok_and(|p| p.knob(knob) != 0)
            };
            let _blocked = Blocked::all();
            // SAFETY: signals are blocked, and attaching is a part of joining.
            unsafe { stack::call_on_new(JOIN_STACK, look) }.unwrap_or(false)
        }
        None => false,
    }
}

/// From how many bytes on a request is managed, by the setting `knob`.
fn least(pool: &Pool, knob: Knob) -> u64 {
    match knob {
        Knob::Small => small::least(pool),
        Knob::MmapMin => pool.knob(knob).min(SMALL_FROM.load(Relaxed) as u64),
        _ => pool.knob(knob),
    }
}

/// The engine, if a request of `len` bytes belongs to it by the setting `knob`; joins if need be.
#[cold]
pub fn engine_for(len: usize, knob: Knob) -> Option<&'static Engine> {
    loop {
        match STATE.load(Acquire) {
            JOINED => return engine().filter(|e| len as u64 >= least(e.pool(), knob)),
            ARMED => {
                let known = KNOWN_MIN.iter().zip(ROUTES).find(|(_, k)| *k == knob);
                let known = known.map_or(0, |(min, _)| min.load(Relaxed));
                if len < known || in_vfork_child() {
                    return None;
                }
                // A handler of the program's that asks for memory must not find a thread joining that it runs on.
                let errno = real::errno();
                let blocked = Blocked::all();
                let fork_goes_first = try_join(len, knob);
                drop(blocked);
                real::set_errno(errno);
                if fork_goes_first {
                    return None;
                }
            }
            JOINING if JOINER.load(Relaxed) != process::tid() => {
                futex::wait(&STATE, JOINING, Some(100_000_000), false);
            }
            _ => return None,
        }
    }
}

/// Of the stack on which a process joins: the engine is made there, and then moved to its place. The thread that
/// joins may have a few KiB left, for it may be in a handler on a small alternate stack.
pub const JOIN_STACK: usize = 512 << 10;

/// Joins the pool, unless another thread does; true: a thread forks, so nobody may join.
fn try_join(len: usize, knob: Knob) -> bool {
    let claim = STATE.compare_exchange(ARMED, JOINING, SeqCst, Relaxed);
    if claim.is_err() {
        return false;
    }
    // A fork under way has not taken what the child of a process that has joined needs.
    let forking = FORKS.load(SeqCst) != 0;
    let mut next = ARMED;
    if !forking {
        JOINER.store(process::tid(), Relaxed);
        // SAFETY: signals are blocked, and joining takes less (`.ci/fault-path` looks).
        let joined = unsafe { stack::call_on_new(JOIN_STACK, || join(len, knob)) };
        next = joined.unwrap_or_else(|e| give_up(&e));
        JOINER.store(0, Relaxed);
    }
    STATE.store(next, Release);
    futex::wake(&STATE, u32::MAX >> 1, false);
    forking
}

/// Joins the pool if `len` reaches its threshold; returns the next state. The request may be the program's allocator's own, with its locks
/// held: nothing here may allocate through it.
fn join(len: usize, knob: Knob) -> u32 {
    let (creator, segment) = (CREATOR.load(Relaxed), SEGMENT.load(Relaxed));
    std::panic::set_hook(Box::new(end));
    locked::before_engine();
    let pool = match Pool::attach(creator, segment, high_descriptor()) {
        Ok(pool) => pool,
        Err(e) => return give_up(&e),
    };
    for (known, knob) in KNOWN_MIN.iter().zip(ROUTES) {
        known.store(least(&pool, knob) as usize, Relaxed);
    }
    if (len as u64) < least(&pool, knob) {
        return ARMED;
    }
    let takes_messages = pool.header().fault_mode.load(Relaxed) == FaultMode::Message as u32;
    if !takes_messages && rings::is_any_mapped() {
        return give_up(&RING_FROM_BEFORE);
    }
    let window = Window::Fixed {
        low: low::is_wanted(),
    };
    match start_engine(pool, window) {
        Ok(()) => JOINED,
        Err(e) => give_up(&e),
    }
}

/// A device would write to what has been moved, or is somebody else's by then.
const RING_FROM_BEFORE: &str = "the program has an io_uring from before its memory was managed, and nobody sees what that transfers";

/// Joins the pool with an engine over addresses at which the program has mappings, which is stopped and was not started to manage
/// memory; or says why not.
pub fn join_over(window: Window) -> Result<&'static Engine, String> {
    let (creator, segment) = (CREATOR.load(Relaxed), SEGMENT.load(Relaxed));
    std::panic::set_hook(Box::new(end));
    let pool = Pool::attach(creator, segment, high_descriptor()).map_err(|e| e.to_string())?;
    for (known, knob) in KNOWN_MIN.iter().zip(ROUTES) {
        known.store(least(&pool, knob) as usize, Relaxed);
    }
    let blocked = Blocked::all_but_faults();
    let start = || start_engine(pool, window).map_err(|e| e.to_string());
    // SAFETY: signals are blocked, and joining takes less.
    let started = unsafe { stack::call_on_new(JOIN_STACK, start) };
    drop(blocked);
    started.map_err(|e| e.to_string())??;
    STATE.store(JOINED, Release);
    engine().ok_or_else(|| "the engine is gone".into())
}

/// From here on what is mapped is the kernel's, but for what the program maps at managed addresses.
pub fn manage_nothing_new() {
    LOOK_FROM.store(usize::MAX, Relaxed);
    MAP_FROM.store(usize::MAX, Relaxed);
}

/// Forgets the engine, which manages nothing any more. No thread of the program's runs.
pub fn leave() {
    manage_nothing_new();
    STATE.store(FAILED, Release);
    ENGINE.store(std::ptr::null_mut(), Release);
    extent::forget();
}

/// Starts the engine that the program's memory is managed by from now on.
fn start_engine(pool: Pool, window: Window) -> Result<(), EngineError> {
    hugeswap_engine::fork_is_registered();
    // Before there are threads of ours that it is sent to.
    let had_trap = trap::installed();
    trap::install();
    let config = EngineConfig {
        // SAFETY: this object's allocator is its own; what SIGSYS does is `credentials::answer`; the constructor has prepared.
        threads: unsafe { Threads::raw(signal::bit(libc::SIGSYS)) },
        window,
        ..EngineConfig::default()
    };
    let engine = match Engine::start(pool, config) {
        Ok(engine) => engine,
        Err(e) => {
            if !had_trap {
                trap::uninstall();
            }
            return Err(e);
        }
    };
    extent::note(engine);
    note_descriptors(engine);
    ENGINE.store(engine as *const Engine as *mut Engine, Release);
    filter::ensure();
    Ok(())
}

/// Says why there is no managed memory; returns the state for that.
fn give_up(why: &dyn std::fmt::Display) -> u32 {
    let line = format!("hugeswap: {why}; this process goes on without managed memory\n");
    fs::complain(&[line.as_bytes()]);
    LOOK_FROM.store(usize::MAX, Relaxed);
    MAP_FROM.store(usize::MAX, Relaxed);
    FAILED
}

/// In place of a pool's name, for a process that is to have none.
const WITHOUT_POOL: &[u8] = b"none";

/// Process and descriptor by which the pool is found; 0, 0: there is none.
pub fn pool_name() -> (i32, i32) {
    (CREATOR.load(Relaxed), SEGMENT.load(Relaxed))
}

/// Reads `HUGESWAP_POOL`; called once, by the constructor. Will this process manage memory?
pub fn start() -> bool {
    symbols::seal();
    #[cfg(debug_assertions)]
    real::check_all();
    // SAFETY: the constructor runs before the program's threads, so nobody changes the environment.
    let value = unsafe {
        let p = libc::getenv(c"HUGESWAP_POOL".as_ptr());
        (!p.is_null()).then(|| CStr::from_ptr(p).to_bytes())
    };
    let Some(value) = value else {
        STATE.store(OFF, Release);
        return false;
    };
    // The program of a run that has ended ([`crate::static_program`]): there is no memory to manage.
    let is_without = value == WITHOUT_POOL;
    let name = if is_without {
        Some((0, 0))
    } else {
        parse(value)
    };
    let Some((creator, segment)) = name else {
        fs::complain(&[
            b"hugeswap: HUGESWAP_POOL is not PID:FD; start the program with 'hugeswap run'\n",
        ]);
        STATE.store(OFF, Release);
        return false;
    };
    // (Of so many addresses valgrind would never be done taking note.)
    if process::runs_on_valgrind() {
        fs::complain(&[
            b"hugeswap: valgrind cannot follow managed memory; this process goes on without\n",
        ]);
        STATE.store(OFF, Release);
        return false;
    }
    CREATOR.store(creator, Relaxed);
    SEGMENT.store(segment, Relaxed);
    PID.store(process::pid(), Relaxed);
    register_handlers();
    // Where it fails, the engine says so when it starts.
    let _ = hugeswap_sys::thread::prepare();
    thread::start_main();
    filter::find_inherited();
    if is_without {
        STATE.store(FAILED, Release);
        return true;
    }
    STATE.store(ARMED, Release);
    let from = if small::arm() { 0 } else { LEAST };
    LOOK_FROM.store(from, Relaxed);
    MAP_FROM.store(LEAST, Relaxed);
    true
}

/// A panic: one line, by nothing that may be broken or locked. The runtime aborts after it.
fn end(info: &std::panic::PanicHookInfo<'_>) {
    let mut number = [0; 20];
    let (file, line) = info.location().map_or(("", 0), |l| (l.file(), l.line()));
    let payload = info.payload();
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    let said = payload.downcast_ref::<&str>().copied().or(owned);
    let said = said.unwrap_or("panic");
    fs::complain(&[
        b"hugeswap: internal error at ",
        file.as_bytes(),
        b":",
        fs::digits(line.into(), 10, &mut number),
        b": ",
        said.as_bytes(),
        b"\n",
    ]);
}

/// `PID:FD`.
fn parse(value: &[u8]) -> Option<(i32, i32)> {
    let colon = value.iter().position(|&b| b == b':')?;
    let (pid, fd) = (number(&value[..colon])?, number(&value[colon + 1..])?);
    (pid > 0).then_some((pid, fd))
}

fn number(digits: &[u8]) -> Option<i32> {
    let step = |n: i32, &b: &u8| {
        let digit = b.is_ascii_digit().then(|| i32::from(b - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    };
    let all = digits.iter().try_fold(0, step)?;
    (!digits.is_empty()).then_some(all)
}

/// Has fork call us, once. Our handlers are the first of the process: those that are registered later prepare for a fork before ours, while
/// the engine serves the threads that hold what they wait for, and run in the child when its engine has settled.
fn register_handlers() {
    hot! { static DONE: AtomicBool = AtomicBool::new(false); }
    if DONE.swap(true, AcqRel) {
        return;
    }
    // (Not by pthread_atfork, which is a part of every object that uses it: here it is the one below.)
    // SAFETY: all are fit to run around a fork, whether or not this process manages memory.
    unsafe {
        real::__register_atfork()(
            Some(prepare_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
            std::ptr::null_mut(),
        )
    };
}

/// What `pthread_atfork` calls, which is a part of every object that uses it.
#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    prepare: Option<unsafe extern "C" fn()>,
    parent: Option<unsafe extern "C" fn()>,
    child: Option<unsafe extern "C" fn()>,
    object: *mut c_void,
) -> c_int {
    register_handlers();
    // SAFETY: passed on.
    unsafe { real::__register_atfork()(prepare, parent, child, object) }
}

/// For objects that look for the C library's old one by name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_atfork(
    prepare: Option<unsafe extern "C" fn()>,
    parent: Option<unsafe extern "C" fn()>,
    child: Option<unsafe extern "C" fn()>,
) -> c_int {
    // SAFETY: passed on, for an object that stays.
    unsafe { __register_atfork(prepare, parent, child, std::ptr::null_mut()) }
}

/// Before a fork: brings the engine to rest and takes our locks. Most of them only in a process that has joined:
/// before that nothing is behind them, and each would be a page that is copied in parent and child, which takes
/// longer than the fork.
#[unsafe(link_section = "hugeswap_start")]
pub extern "C" fn prepare_fork() {
    FORKS.fetch_add(1, SeqCst);
    // A thread that joins needs nothing that this thread may hold, and from here on no thread begins to join.
    while STATE.load(SeqCst) == JOINING {
        futex::wait(&STATE, JOINING, Some(100_000_000), false);
    }
    let joined = STATE.load(Acquire) == JOINED;
    if joined {
        local::set(local::Word::Forking, 1);
        // While the engine serves the threads that hold the allocator's locks.
        small::before_fork();
        hugeswap_engine::fork_prepare();
    }
    credentials::before_fork();
    helpers::before_fork();
    trap::before_fork();
    if joined {
        malloc::before_fork();
        marks::before_fork();
        owners::before_fork();
        submitted::before_fork();
        rings::before_fork();
        transfer::before_fork();
        inherit::before_fork();
        shm::before_fork();
        files::before_fork();
        shared::before_fork();
    }
    alloc::before_fork();
}

/// Gives our locks back; were the others taken?
#[unsafe(link_section = "hugeswap_start")]
fn give_locks_back() -> bool {
    alloc::after_fork();
    let joined = local::get(local::Word::Forking) != 0;
    if joined {
        local::set(local::Word::Forking, 0);
        shared::after_fork();
        files::after_fork();
        shm::after_fork();
        inherit::after_fork();
        transfer::after_fork();
        rings::after_fork();
        submitted::after_fork();
        owners::after_fork();
        marks::after_fork();
        malloc::after_fork();
    }
    trap::after_fork();
    helpers::after_fork();
    credentials::after_fork();
    joined
}

/// After a fork, in the parent, also if it failed.
#[unsafe(link_section = "hugeswap_start")]
pub extern "C" fn after_fork_in_parent() {
    if give_locks_back() {
        hugeswap_engine::fork_parent();
        small::after_fork_in_parent();
    }
    FORKS.fetch_sub(1, SeqCst);
}

/// After a fork, in the child.
#[unsafe(link_section = "hugeswap_start")]
pub extern "C" fn after_fork_in_child() {
    PID.store(process::pid(), Relaxed);
    FORKS.store(0, Relaxed);
    // Another thread was about to notice the fork, and not to join.
    let _ = STATE.compare_exchange(JOINING, ARMED, Relaxed, Relaxed);
    issue::forget_held();
    owners::forget_others();
    let joined = give_locks_back();
    helpers::forget();
    if !joined {
        return;
    }
    submitted::forget_all();
    rings::forget_all();
    transfer::forget_all();
    hugeswap_engine::fork_child();
    small::after_fork_in_child();
    // The engine has settled: it may need the filter its parent did without.
    if let Some(e) = engine() {
        issue::let_go_of_others(e);
        inherit::settle_child(e);
        shared::settle_child(e);
        note_descriptors(e);
        filter::ensure();
    }
}

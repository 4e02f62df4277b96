//! A program that runs already, and that `hugeswap attach` has stopped.
//!
//! In its process runs one thread more, the *agent*: `hugeswap attach` has it start at the dynamic
//! loader, which loads the hugeswap executable, this object and a C library beside what the program
//! has. The object's constructor then does here what it does elsewhere for a program that it loads:
//! it starts the engine, makes a block for each of the program's threads, and takes the program's
//! memory over. So the program may be linked in any way, and neither its C library nor its locks are
//! used.
//!
//! Instead of a filter, which outlives exec and cannot be taken off, each thread of the program has
//! *all* of its system calls sent to [`crate::trap`] (Syscall User Dispatch, Linux 5.11), except
//! those from instructions of this object. A child has none of it at first: [`watch`] is called
//! where threads and children begin. What the program executes runs without hugeswap.
//!
//! The agent and `hugeswap attach` speak by a [`Plan`] in the program's memory.

use super::{INDIRECT, program_break, thread};
use crate::local::{self, Word};
use crate::lock::Lock;
use crate::mask::OURS;
use crate::thread::ENOUGH;
use crate::{ending, extent, sig, state, symbols, trap};
use hugeswap_engine::{Engine, Window, handler};
use hugeswap_sys::attach::{self, Plan, Words, command, step};
use hugeswap_sys::raw::{own_gate, syscall6};
use hugeswap_sys::{Errno, fs, process, signal};
use libc::c_int;
use std::ffi::CStr;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

const UNIT: usize = 2 << 20;

/// Where system calls pass: start and end of this object; 0 in any other program.
static PASSING: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Are the system calls of new threads watched?
static WATCHES: AtomicBool = AtomicBool::new(false);

/// Is, or was, this process a program that was running? (A thread that is given back may be in a
/// handler of ours.)
pub fn is_on() -> bool {
    PASSING[1].load(Relaxed) != 0
}

/// From here on the system calls of the calling thread, which is the program's, are watched, unless
/// the program was given back.
pub fn watch() {
    if !WATCHES.load(Acquire) {
        return;
    }
    let [from, to] = [&PASSING[0], &PASSING[1]].map(|w| w.load(Relaxed));
    ending::dispatch(ending::ON, from..to);
}

/// sched_yield(2), as code of others in this object calls it (queues, where they are contended). By the C
/// library's instruction it would be caught, which ends a program whose fault handler runs.
#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> c_int {
    process::yield_now();
    0
}

/// A signal handler of the program's returns: the kernel takes the thread's registers from the frame
/// at its stack pointer. It is to be asked by an instruction of ours.
pub fn return_from_signal(context: &mut libc::ucontext_t) {
    let registers = &mut context.uc_mcontext.gregs;
    registers[libc::REG_RIP as usize] = signal::restorer() as i64;
    let frame = registers[libc::REG_RSP as usize] as *mut libc::ucontext_t;
    // The mask may be from before this program was attached.
    // SAFETY: the kernel's frame, which the program's handler was called with, is there as it was;
    // the kernel uses the first 8 bytes of the mask.
    unsafe { *(&raw mut (*frame).uc_sigmask).cast::<signal::Mask>() &= !OURS };
}

/// A handler of system calls runs, until this is dropped.
pub struct Handles(usize);

/// The calling thread's handler of system calls begins, which was called with this context.
pub fn note_context(context: &libc::ucontext_t) -> Handles {
    let former = local::get(Word::Context);
    local::set(Word::Context, std::ptr::from_ref(context).addr());
    Handles(former)
}

/// Something of the program's call that the calling thread's handler makes was done.
pub fn note_done() {
    if is_on() {
        let context = local::get(Word::Context);
        local::set(Word::Context, context | usize::from(context != 0));
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        local::set(Word::Context, self.0);
    }
}

/// May a call concern managed memory?
pub fn concerns_us(nr: i64, a: &[usize; 6]) -> bool {
    // What is transferred is named by memory.
    const SUBMITS: [i64; 5] = [
        libc::SYS_io_submit,
        libc::SYS_io_destroy,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
    ];
    a.iter().any(|&a| extent::managed(a)) || SUBMITS.contains(&nr) || INDIRECT.contains(&nr)
}

/// The agent: see the file's head. In the constructor, in the place of a program's loading.
///
/// # Safety
/// The calling thread was made by `hugeswap attach`, which has stopped all others; the text is the
/// address of its plan.
pub unsafe fn run(plan: &CStr) -> ! {
    let digits = plan.to_str().unwrap_or_default();
    let Ok(at) = usize::from_str_radix(digits, 16) else {
        end();
    };
    process::name_thread(c"hs-attach");
    // SAFETY: by contract. What the other side changes meanwhile is atomic.
    let plan = unsafe { &mut *(at as *mut Plan) };
    plan.step.store(step::LOADED, Release);
    let engine = match prepare(plan) {
        Ok(engine) => engine,
        Err(why) => {
            give_handlers_back();
            complain(plan, &why);
            plan.step.store(step::FAILED, Release);
            end();
        }
    };
    // It touches nothing that is managed; and by this `hugeswap attach` knows it for hugeswap's.
    signal::set_mask(signal::ALL);
    plan.step.store(step::PREPARED, Release);
    wait_for(plan, command::ADOPT);
    plan.step.store(step::ADOPTING, Release);
    let adopted = adopt(engine, plan);
    let is_too_much = adopted == Err(Errno::ENOSPC);
    match adopted {
        Ok(()) => {}
        Err(_) if is_too_much => complain(plan, too_much(plan)),
        Err(e) => complain(plan, &format!("not all memory could be taken over: {e}")),
    }
    ADOPTING.store(false, Release);
    plan.step.store(step::ADOPTED, Release);
    loop {
        wait_until(plan, PAUSE, |now| {
            if is_too_much {
                make_room(engine, plan);
            }
            now >= command::GIVE_BACK
        });
        plan.step.store(step::GIVING_BACK, Release);
        let mut given = give_back(engine);
        if given.is_ok() {
            plan.step.store(step::GIVEN_BACK, Release);
            wait_for(plan, command::END);
            // What the program's threads, which are stopped now, have mapped meanwhile.
            given = give_back(engine);
        }
        let Err(e) = given else {
            break;
        };
        complain(plan, &format!("not all memory could be given back: {e}"));
        plan.step.store(step::STAYS, Release);
        wait_until(plan, Duration::from_millis(1), |now| now == command::NONE);
        plan.step.store(step::ADOPTED, Release);
    }
    program_break::end();
    let ours: Vec<_> = state::our_fds(engine).collect();
    state::leave();
    let left = || {
        // (No thread of the program's runs, so the numbers are nobody else's yet.)
        ours.into_iter().for_each(fs::close);
        give_handlers_back();
        WATCHES.store(false, Release);
        plan.step.store(step::ENDED, Release);
    };
    // SAFETY: no unit is managed. A thread of the program's may have begun a call by the engine, and
    // finds it there when the call is done.
    unsafe { engine.retire(left) };
    end()
}

/// The program's own handlers are in place again.
fn give_handlers_back() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let action = handler::program_action(signal);
        // SAFETY: the program's own action.
        let _ = unsafe { signal::set_action(signal, &action) };
    }
    trap::uninstall();
    sig::restore_masks();
}

fn end() -> ! {
    signal::set_mask(signal::ALL);
    loop {
        // SAFETY: ends this thread alone, which nobody waits for.
        unsafe { syscall6(libc::SYS_exit as usize, [0; 6]) };
    }
}

/// Between two looks whether there is something to do. (A look takes some microseconds: a thousandth
/// of a processor's time.)
const PAUSE: Duration = Duration::from_millis(20);

/// Waits until the agent is told this, or what comes after it.
fn wait_for(plan: &Plan, command: u32) {
    let longest = match command {
        // The program's threads stand still meanwhile.
        command::END => Duration::from_millis(1),
        _ => PAUSE,
    };
    wait_until(plan, longest, |now| now >= command);
}

fn wait_until(plan: &Plan, longest: Duration, is_told: impl Fn(u32) -> bool) {
    let mut pause = Duration::from_micros(100);
    while !is_told(plan.command.load(Acquire)) {
        std::thread::sleep(pause);
        pause = (pause * 2).min(longest);
    }
}

fn complain(plan: &mut Plan, why: &str) {
    let room = plan.complaint.len() - 1;
    let text = &why.as_bytes()[..why.len().min(room)];
    plan.complaint = [0; 256];
    plan.complaint[..text.len()].copy_from_slice(text);
}

/// Makes everything ready for the program's threads to go on in.
fn prepare(plan: &mut Plan) -> Result<&'static Engine, String> {
    if plan.version != attach::VERSION {
        return Err(
            "hugeswap and its object are of different versions: install hugeswap again".into(),
        );
    }
    let own = symbols::own_extent().ok_or("the object does not find itself")?;
    if !thread::begin() {
        return Err("no memory for the program's threads".into());
    }
    program_break::begin()?;
    let range = |ends: [u64; 2]| ends[0] as usize..ends[1] as usize;
    let far = plan.far.iter().take(plan.far_count as usize);
    let engine = state::join_over(Window::Over {
        main: range(plan.window),
        far: far.map(|&ends| range(ends)).collect(),
    })?;
    let count = (plan.thread_count as usize).min(plan.threads.len());
    for t in &mut plan.threads[..count] {
        // Ours, unless the program's is large enough for our handlers.
        let keeps = t.stack[1] >= ENOUGH as u64;
        let block = thread::for_running().ok_or("no memory for the program's threads")?;
        t.gs = block.gs as u64;
        let (new, believed) = match keeps {
            true => ([0; 2], [0; 2]),
            false => (block.stack, t.stack.map(|n| n as usize)),
        };
        t.new_stack = new.map(|n| n as u64);
        let words = [
            (Word::Mask, (t.mask & OURS) as usize),
            (Word::Stack, block.stack[0]),
            (Word::BelievedStack, believed[0]),
            (Word::BelievedSize, believed[1]),
        ];
        for (word, value) in words {
            // SAFETY: the thread-locals of a thread that does not run yet.
            unsafe { local::set_of(block.locals, word, value) };
        }
    }
    sig::strip_masks();
    plan.passing = [own.start as u64, own.end as u64];
    plan.syscall = own_gate() as u64;
    let distance = |word| local::distance(word) as i64;
    plan.words = Words {
        mask: distance(Word::Mask),
        stack: distance(Word::Stack),
        believed_stack: distance(Word::BelievedStack),
        believed_size: distance(Word::BelievedSize),
        context: distance(Word::Context),
    };
    PASSING[0].store(own.start, Relaxed);
    PASSING[1].store(own.end, Relaxed);
    WATCHES.store(true, Release);
    ADOPTING.store(true, Release);
    Ok(engine)
}

/// Is memory being taken over?
static ADOPTING: AtomicBool = AtomicBool::new(false);
/// Addresses whose mappings the program has changed since it was stopped, or is about to.
static CHANGED: Lock<Vec<Range<usize>>> = Lock::new(Vec::new());
/// Address of the unit that is being taken over, or 0. It is set before it is looked whether the
/// program has changed the unit; and a thread that is about to change it says so before it looks here.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// The program makes a call of [`addresses::CALLS`](crate::addresses::CALLS). What it changes of memory
/// that is the kernel's is not taken over: it may be anything then. Waits while that is just being done.
pub fn note_change(nr: i64, ranges: &[Range<usize>; 2]) {
    if !ADOPTING.load(Acquire) || matches!(nr, libc::SYS_mincore | libc::SYS_msync) {
        return;
    }
    CHANGED.lock().extend(ranges.iter().cloned());
    while ranges.iter().any(|r| meets(r, TAKEN.load(SeqCst))) {
        process::yield_now();
    }
}

/// Does a range meet the unit at an address?
fn meets(range: &Range<usize>, unit: usize) -> bool {
    unit != 0 && range.start < unit + UNIT && range.end > unit
}

/// Before a fork: no unit is taken over meanwhile.
pub fn before_fork() {
    CHANGED.before_fork();
}

/// After a fork, in parent and child.
pub fn after_fork() {
    CHANGED.after_fork();
}

/// In a forked child, which has no agent.
pub fn after_fork_in_child() {
    ADOPTING.store(false, Release);
}

/// Has the engine take over what the plan says.
fn adopt(engine: &Engine, plan: &Plan) -> Result<(), Errno> {
    let count = (plan.range_count as usize).min(plan.ranges.len());
    for &[from, to] in &plan.ranges[..count] {
        for at in (from as usize..to as usize).step_by(UNIT) {
            if plan.command.load(Acquire) != command::ADOPT {
                return Ok(());
            }
            // (So it takes no room of what the program may have beside it.)
            let grow = |bytes: i64| {
                let pool = engine.pool();
                let now = pool.frames() * UNIT as u64;
                if plan.follows != 0 {
                    pool.set_budget(now.saturating_add_signed(bytes));
                }
            };
            grow(UNIT as i64);
            TAKEN.store(at, SeqCst);
            let is_changed = CHANGED.lock().iter().any(|c| meets(c, at));
            let adopted = match is_changed {
                true => Ok(0),
                // SAFETY: the plan's ranges are private anonymous memory, and were not changed
                // since; every call of the program's is watched since before the agent was told to
                // go on, and one that is about to change the unit waits.
                false => unsafe { engine.adopt(at, UNIT) },
            };
            TAKEN.store(0, SeqCst);
            if adopted != Ok(UNIT) {
                grow(-(UNIT as i64));
            }
            plan.adopted.fetch_add(adopted? as u64, Relaxed);
        }
    }
    Ok(())
}

/// What is said where swap has less room than the program has memory.
fn too_much(plan: &Plan) -> &'static str {
    match plan.follows {
        0 => {
            "swap has no room for the rest, which stays in memory, and the budget gives way before the program does: give more --swap [swap-full]"
        }
        _ => "swap has no room for the rest, which stays in memory: give more --swap [swap-full]",
    }
}

/// The program had more memory when it was attached than there is room for: where a thread of its
/// own waits in vain for some, the budget gives way, and not the program. (A budget that follows a
/// limit is what that leaves.)
fn make_room(engine: &Engine, plan: &Plan) {
    if plan.follows == 0 && engine.is_starving() {
        let pool = engine.pool();
        pool.set_budget((pool.frames() + 1) * UNIT as u64);
    }
}

/// Hands all managed memory to the kernel, where it stands.
fn give_back(engine: &Engine) -> Result<(), Errno> {
    state::manage_nothing_new();
    let mut parts = engine.window_parts();
    parts.try_for_each(|part| engine.give_back(part.start, part.len()))
}

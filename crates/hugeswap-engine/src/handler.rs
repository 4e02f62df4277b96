//! SIGSEGV and SIGBUS in signal mode: which faults are the engine's, and what becomes of the
//! others.
//!
//! The handler runs with every signal blocked, on the thread's alternate stack if it has one, and
//! from there on a stack of ours ([`crate::stack`]). A fault outside the window goes to the action
//! that the program itself installed, as if hugeswap were not there. So does a fault that the
//! unit's word calls an error of the program, once the same thread has had it twice in a row:
//! another thread may just have resolved the first ([`crate::doubts`]).

use crate::engine::Engine;
use crate::error::EngineError;
use crate::fault::complain;
use crate::nested::Nested;
use crate::outcome::{Fault, Outcome};
use crate::redelivery::{Redelivery, redeliver};
use crate::{MAX_ENGINES, careful, lock::Lock, stack};
use hugeswap_policy::recording::Code;
use hugeswap_sys::signal::{self, Action, Blocked};
use hugeswap_sys::{process, program_fs};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicPtr};

const REG_ERR: usize = libc::REG_ERR as usize;
const REG_RIP: usize = libc::REG_RIP as usize;
const REG_RSP: usize = libc::REG_RSP as usize;
/// Page-fault error code bits.
const ERR_WRITE: i64 = 1 << 1;
const ERR_FETCH: i64 = 1 << 4;

static ENGINES: [AtomicPtr<Engine>; MAX_ENGINES] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_ENGINES];

/// What the program believes it installed, for the signals we take.
static PROGRAM: Lock<ProgramActions> = Lock::taken_by_forks(ProgramActions {
    segv: NO_ACTION,
    bus: NO_ACTION,
    installed: false,
});

static NESTED: Nested = Nested::new();

/// The thread that forks, which has that lock for so long.
static FORKER: AtomicI32 = AtomicI32::new(0);

/// Calls `f` with the program's actions. With signals blocked.
fn with_program<R>(f: impl FnOnce(&mut ProgramActions) -> R) -> R {
    let forker = FORKER.load(Acquire);
    if forker != 0 && forker == process::tid() {
        // SAFETY: this thread has the lock, and with signals blocked does nothing else meanwhile.
        return f(unsafe { PROGRAM.held_value() });
    }
    f(&mut PROGRAM.lock())
}

/// Before a fork: a child forked while another thread changes an action could never ask for one.
pub(crate) fn before_fork() {
    std::mem::forget(PROGRAM.lock());
    FORKER.store(process::tid(), Release);
}

/// After a fork, in parent and child.
pub(crate) fn after_fork() {
    FORKER.store(0, Release);
    // SAFETY: `before_fork` has taken it.
    unsafe { PROGRAM.release() };
}

const NO_ACTION: Action = Action {
    handler: 0,
    flags: 0,
    restorer: 0,
    mask: 0,
};

struct ProgramActions {
    segv: Action,
    bus: Action,
    installed: bool,
}

impl ProgramActions {
    /// For a signal that we take; `None` for any other, and before we take any.
    fn of(&mut self, signal: i32) -> Option<&mut Action> {
        match signal {
            libc::SIGSEGV if self.installed => Some(&mut self.segv),
            libc::SIGBUS if self.installed => Some(&mut self.bus),
            _ => None,
        }
    }
}

/// Every engine of this process.
pub(crate) fn engines() -> impl Iterator<Item = &'static Engine> {
    ENGINES.iter().filter_map(|e| {
        // SAFETY: a pointer stands here from `install` until `uninstall`, which its engine
        // outlives.
        unsafe { e.load(Acquire).as_ref() }
    })
}

/// Makes `engine` known to the handler, which is installed with the first one.
pub(crate) fn install(engine: &'static Engine) -> Result<(), EngineError> {
    let _blocked = Blocked::all();
    let free = ENGINES.iter().find(|e| {
        e.compare_exchange(
            std::ptr::null_mut(),
            engine as *const _ as *mut _,
            AcqRel,
            Relaxed,
        )
        .is_ok()
    });
    if free.is_none() {
        return Err(EngineError::TooMany);
    }
    // Without them the fault path has to do with the stack it finds.
    let _ = stack::prepare();
    with_program(|program| {
        if !program.installed {
            program.segv = set(libc::SIGSEGV, &ours())?;
            program.bus = set(libc::SIGBUS, &ours())?;
            program.installed = true;
        }
        Ok::<(), EngineError>(())
    })?;
    if engine.backend.can().faults_are_messages {
        crate::message::start(engine)?;
    }
    Ok(())
}

/// Takes `engine` out again; the handler stays (it passes everything on).
pub(crate) fn uninstall(engine: &'static Engine) {
    for e in &ENGINES {
        let _ = e.compare_exchange(
            engine as *const _ as *mut _,
            std::ptr::null_mut(),
            AcqRel,
            Relaxed,
        );
    }
}

fn ours() -> Action {
    Action {
        handler: on_fault as *const () as usize,
        flags: (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64,
        restorer: 0,
        mask: signal::ALL,
    }
}

fn set(signal: i32, action: &Action) -> Result<Action, EngineError> {
    // SAFETY: the handler installed is ours, fit for any moment, or one the program chose.
    unsafe { signal::set_action(signal, action) }
        .map_err(|e| EngineError::System("cannot install the fault handler", e))
}

/// What the program has installed for `signal` (as the kernel would tell it if we were not there).
pub fn program_action(signal: i32) -> Action {
    let _blocked = Blocked::all();
    let taken = with_program(|p| p.of(signal).copied());
    taken.unwrap_or_else(|| signal::action(signal).unwrap_or_default())
}

/// Installs an action on the program's behalf; returns the former one.
pub fn set_program_action(signal: i32, action: Action) -> Action {
    let _blocked = Blocked::all();
    let taken = with_program(|p| p.of(signal).map(|a| std::mem::replace(a, action)));
    taken.unwrap_or_else(|| set(signal, &action).unwrap_or_default())
}

/// `BUS_MCEERR_AR`: the code that the kernel uses for poisoned memory.
const BUS_MCEERR_AR: i32 = 4;

/// The handler. Obeys the rules of the fault path.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let _inside = program_fs::enter();
    resolve(signal, info, context);
}

fn resolve(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo and ucontext to an SA_SIGINFO handler.
    let (code, addr, uc) = unsafe {
        (
            (*info).si_code,
            (*info).si_addr() as usize,
            &mut *(context as *mut libc::ucontext_t),
        )
    };
    let error = uc.uc_mcontext.gregs[REG_ERR];
    // SEGV_MAPERR, SEGV_ACCERR and BUS_ADRERR come from the processor; anything else was sent by
    // somebody.
    let fault = code == 2 || code == 1 && signal == libc::SIGSEGV;
    if fault && error & ERR_FETCH == 0 {
        for engine in engines() {
            // In message mode a SIGBUS is the last word.
            let last = signal == libc::SIGBUS && engine.backend.can().faults_are_messages;
            // Of shared memory ours is what is absent or write-protected: SIGBUS. The rest is what
            // the program unmapped, or has no access to.
            let shared = engine.sharing.is_shared(addr) && signal == libc::SIGBUS;
            if !(engine.contains(addr) || shared) || last {
                continue;
            }
            let mut outcome = Outcome::Retry;
            let register = |n: i32| uc.uc_mcontext.gregs[n as usize] as u64;
            let code = Code {
                ip: register(libc::REG_RIP),
                sp: register(libc::REG_RSP),
                bp: register(libc::REG_RBP),
            };
            let fault = Fault::begin(addr, error & ERR_WRITE != 0, code);
            stack::call(|| outcome = engine.fault_by(fault));
            match outcome {
                Outcome::Retry => return,
                // (SIGBUS: the last of its unit was unmapped since it was touched.)
                Outcome::Free if signal == libc::SIGBUS => {
                    return no_access(info, context, SEGV_ACCERR);
                }
                Outcome::NotOurs | Outcome::Free => break,
                Outcome::Guard => return no_access(info, context, SEGV_MAPERR),
                Outcome::NoAccess => return no_access(info, context, SEGV_ACCERR),
                lost => return end_lost(engine, addr, lost, uc),
            }
        }
    }
    // Message mode: what is lost is SIGBUS from the kernel. And a careful copy may meet what the
    // program itself may not touch.
    if (fault || signal == libc::SIGBUS && code == BUS_MCEERR_AR) && leave(uc) {
        return;
    }
    pass_on(signal, info, context);
}

/// How the kernel tells of its own guards.
const SEGV_MAPERR: i32 = 1;
/// How it tells of memory that is mapped without access.
const SEGV_ACCERR: i32 = 2;

/// Where it was a careful copy that met lost memory, it ends there.
fn leave(uc: &mut libc::ucontext_t) -> bool {
    let ip = &mut uc.uc_mcontext.gregs[REG_RIP];
    let Some(out) = careful::recovery_address(*ip as usize) else {
        return false;
    };
    *ip = out as i64;
    true
}

/// A guard, or a page without access, was touched: SIGSEGV, whichever signal told of it.
fn no_access(info: *mut libc::siginfo_t, context: *mut libc::c_void, code: i32) {
    // SAFETY: the kernel's, see `on_fault`.
    let uc = unsafe { &mut *(context as *mut libc::ucontext_t) };
    if leave(uc) {
        return;
    }
    let action = program_action(libc::SIGSEGV);
    if action.handler > 1 {
        // SAFETY: as above.
        unsafe {
            (*info).si_signo = libc::SIGSEGV;
            (*info).si_code = code;
        }
        return pass_on(libc::SIGSEGV, info, context);
    }
    end_by(libc::SIGSEGV, uc);
}

/// Ends in SIGBUS, after one line that says why.
fn end_lost(engine: &Engine, addr: usize, outcome: Outcome, uc: &mut libc::ucontext_t) {
    if leave(uc) {
        return;
    }
    complain(engine, addr, outcome);
    end_by(libc::SIGBUS, uc);
}

/// Raises a signal that we take as the kernel would for a fault.
fn end_by(signal: i32, uc: &mut libc::ucontext_t) {
    let action = program_action(signal);
    if action.handler <= 1 || *uc_mask(uc) & signal::bit(signal) != 0 {
        // Default, ignored or blocked: the kernel would end the process too.
        return end_at_once(signal, uc);
    }
    raise(signal, uc);
}

/// Ends the process by a signal, whatever the program has installed for it.
fn end_at_once(signal: i32, uc: &mut libc::ucontext_t) {
    // SAFETY: the default action is always fit.
    let _ = unsafe { signal::set_action(signal, &Action::default()) };
    raise(signal, uc);
}

/// Sends this thread a signal, which it gets when the handler returns.
fn raise(signal: i32, uc: &mut libc::ucontext_t) {
    *uc_mask(uc) &= !signal::bit(signal);
    let _ = process::signal_thread(process::tid(), signal);
}

/// The signal mask the interrupted code goes on with: the kernel uses the first 8 bytes.
fn uc_mask(uc: &mut libc::ucontext_t) -> &mut u64 {
    // SAFETY: sigset_t is larger than 8 bytes and 8-aligned.
    unsafe { &mut *(&raw mut uc.uc_sigmask).cast::<u64>() }
}

/// Is at `at`, on the stack of this thread, the context of a signal that came at `ip` with stack
/// pointer `sp`?
fn is_context_of(at: usize, ip: u64, sp: u64) -> bool {
    let mut registers = [0i64; libc::REG_CR2 as usize + 1];
    let from = at + std::mem::offset_of!(libc::ucontext_t, uc_mcontext.gregs);
    let (to, len) = (&raw mut registers as usize, size_of_val(&registers));
    // (It may be managed memory, which is absent.)
    let blocked = signal::set_mask(signal::ALL & !signal::TOLD);
    // SAFETY: to a variable of ours.
    let read = unsafe { careful::copy(to, from, len) };
    signal::set_mask(blocked);
    read.is_ok() && [REG_RIP, REG_RSP].map(|n| registers[n] as u64) == [ip, sp]
}

/// Where debuggers stop: the program is about to end by a fault of its own.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn hugeswap_program_fault(signal: i32) {
    std::hint::black_box(signal);
}

/// Does what the program's own action says.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // The lock's holders have signals blocked and do not fault, so it is never held by this thread,
    // but over a fork.
    let action = with_program(|program| {
        let Some(a) = program.of(signal) else {
            return Action::default();
        };
        match a.flags & libc::SA_RESETHAND as u32 as u64 {
            0 => *a,
            _ => std::mem::take(a),
        }
    });
    if action.handler <= 1 {
        hugeswap_program_fault(signal);
        // Default (and ignoring a real fault means the same): let it happen again without us.
        // SAFETY: the default action is always fit.
        let _ = unsafe { signal::set_action(signal, &Action::default()) };
        // SAFETY: `info` is the kernel's.
        if unsafe { (*info).si_code } <= 0 && action.handler == 0 {
            // Another process, or thread, has sent it: it will not happen again by itself.
            let _ = process::signal_thread(process::tid(), signal);
        }
        return;
    }
    // SAFETY: the kernel's, see `on_fault`. (One at a time.)
    let uc = || unsafe { &mut *(context as *mut libc::ucontext_t) };
    let mut mask = *uc_mask(uc()) | action.mask;
    if action.flags & libc::SA_NODEFER as u32 as u64 == 0 {
        mask |= signal::bit(signal);
        let [ip, sp] = [REG_RIP, REG_RSP].map(|n| uc().uc_mcontext.gregs[n] as u64);
        // SAFETY: `info` is the kernel's.
        let addr = unsafe { (*info).si_addr() } as u64;
        if NESTED.is_enough(process::tid(), [ip, addr, sp], is_context_of) {
            return end_at_once(signal, uc());
        }
    }
    // A program's handler may touch managed memory: these are never blocked.
    mask &= !signal::TOLD;
    // SAFETY: the frame that we are in, and what the program has installed.
    match unsafe { redeliver(signal, &action, info, context, mask) } {
        Redelivery::At(copy) => return NESTED.note_context(copy),
        // As the kernel does where it cannot begin a handler.
        Redelivery::NoRoom => return end_at_once(libc::SIGSEGV, uc()),
        Redelivery::Here => NESTED.note_context(context as usize),
    }
    let outside = program_fs::outside();
    signal::set_mask(mask);
    if action.flags & libc::SA_SIGINFO as u32 as u64 != 0 {
        // SAFETY: the program installed this address as an SA_SIGINFO handler.
        let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(action.handler) };
        f(signal, info, context);
    } else {
        // SAFETY: the program installed this address as a plain handler.
        let f: extern "C" fn(i32) = unsafe { std::mem::transmute(action.handler) };
        f(signal);
    }
    signal::set_mask(signal::ALL);
    drop(outside);
}

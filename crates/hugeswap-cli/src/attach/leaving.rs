//! The end of an attachment. No memory is managed any more and no call is watched, but threads may be
//! in calls that they began before, in code of the object: when they have left it, all that hugeswap
//! has mapped in the program is unmapped, and the program can be attached again.
//!
//! A thread that waits in the kernel, in a call of the program's that the object makes for it, need not
//! wait until that ends: it goes back to before that call and makes it itself.

use super::agent::{self, Agent};
use super::stopped::{self, Stopped};
use super::target::Target;
use anyhow::{Context, Result};
use hugeswap_sys::attach::{DONE, Words};
use hugeswap_sys::trace::{self, Registers, Tracee};
use hugeswap_sys::{own, program_fs};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::mem::offset_of;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long threads may take to leave.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where hugeswap maps memory of its own.
const OWN: Range<u64> = own::BASE as u64..(own::BASE + own::LEN) as u64;

/// Calls that the kernel makes again, for the rest of a time, as restart_syscall(2).
const WAIT_FOR_A_TIME: [i64; 4] = [
    libc::SYS_poll,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_futex,
];

/// At the address in GS: FS in code of the object's, and in the program's.
const FS_OURS: u64 = program_fs::Thread::FIELDS[0] as u64;
const FS_OF_PROGRAM: u64 = program_fs::Thread::FIELDS[1] as u64;

/// Where a thread is.
enum Place {
    /// In code of the program's, with nothing of hugeswap's.
    Outside,
    /// In code of the object's, or of the program's that it calls; or about to leave it.
    Inside,
}

/// Has the program's threads leave the object, and unmaps that. `syscall` is an instruction of the
/// program's own. False: a thread does not leave it, so everything stays mapped.
pub fn leave(target: &Target, agent: &Agent, syscall: u64) -> Result<bool> {
    let memory = agent::memory(target.pid)?;
    let mut object = Object {
        memory: &memory,
        words: agent.words()?,
        passing: agent.passing()?,
        scratch: agent.scratch(),
        syscall,
        unwound: BTreeMap::new(),
    };
    let deadline = Instant::now() + PATIENCE;
    let mut outside = BTreeSet::new();
    loop {
        let is_hugeswaps = |&tid: &i32| stopped::is_hugeswaps(target, tid);
        let ours: Vec<_> = target.threads()?.into_iter().filter(is_hugeswaps).collect();
        let but: Vec<_> = ours.iter().chain(&outside).copied().collect();
        let mut all_left = ours.is_empty();
        let threads = stopped::stop_all(target, &but)?;
        if !threads.is_empty() {
            let mut stopped = Stopped::of(target, threads)?;
            stopped.begin_calls_anew();
            for t in &mut stopped.threads {
                match object.look_at(t)? {
                    Place::Outside => drop(outside.insert(t.tid())),
                    Place::Inside => all_left = false,
                }
            }
            stopped.let_go();
        }
        if all_left {
            break;
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    unmap(target, agent, syscall)?;
    Ok(true)
}

/// Has one thread unmap all that hugeswap has mapped.
fn unmap(target: &Target, agent: &Agent, syscall: u64) -> Result<()> {
    let first = target.threads()?.into_iter().next();
    let mut one = Tracee::seize(first.with_context(|| target.gone())?)?;
    one.interrupt(PATIENCE.as_nanos() as u64)?;
    let mut stopped = Stopped::of(target, vec![one])?;
    for r in agent.mapped().iter().chain([&OWN]) {
        agent::unmap(&mut stopped.threads[0], syscall, r.start, r.end - r.start)?;
    }
    stopped.let_go();
    Ok(())
}

/// The object in the program.
struct Object<'a> {
    memory: &'a File,
    words: Words,
    passing: Range<u64>,
    scratch: u64,
    syscall: u64,
    /// The alternate stacks that the program believes its threads have that were unwound, by their ids.
    unwound: BTreeMap<i32, [u64; 2]>,
}

impl Object<'_> {
    fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        let read = self.memory.read_exact_at(&mut bytes, at);
        read.context("cannot read the program's memory")?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn write(&self, at: u64, value: u64) -> Result<()> {
        let written = self.memory.write_all_at(&value.to_ne_bytes(), at);
        written.context("cannot write to the program's memory")
    }

    /// [`agent::alternate_stack`].
    fn alternate_stack(&self, t: &mut Tracee, new: Option<[u64; 2]>) -> Result<([u64; 2], bool)> {
        agent::alternate_stack(t, self.syscall, self.memory, self.scratch, new)
    }

    /// Takes from a stopped thread what it has of hugeswap's, if it is outside or can be brought there.
    fn look_at(&mut self, t: &mut Tracee) -> Result<Place> {
        let mut r = t.registers()?;
        if r.gs_base == 0 {
            // (One that was unwound may not have run since.)
            if OWN.contains(&r.rsp) || self.passing.contains(&r.rip) {
                return Ok(Place::Inside);
            }
            if let Some(stack) = self.unwound.remove(&t.tid()) {
                self.alternate_stack(t, Some(stack))?;
            }
            return Ok(Place::Outside);
        }
        let ours = self.word(r.gs_base + FS_OURS)?;
        let words = self.words;
        let word = |distance: i64| self.word(ours.wrapping_add_signed(distance));
        let (now, is_on_it) = self.alternate_stack(t, None)?;
        let believed = match now[0] == word(words.stack)? {
            true => Some([word(words.believed_stack)?, word(words.believed_size)?]),
            false => None,
        };
        let blocked = word(words.mask)?;
        if is_on_it || self.passing.contains(&r.rip) {
            let context = word(words.context)?;
            if !is_on_it || !self.is_at_call_of(context, &r, t.mask()?, now)? {
                return Ok(Place::Inside);
            }
            self.unwind(context, blocked)?;
            // (The kernel does not take that one's end from a frame.)
            self.unwound.extend(believed.map(|stack| (t.tid(), stack)));
            r.fs_base = self.word(r.gs_base + FS_OF_PROGRAM)?;
            r.rip = self.syscall;
            r.rsp = context;
            r.rax = libc::SYS_rt_sigreturn as u64;
            r.orig_rax = u64::MAX;
            r.gs_base = 0;
            t.set_registers(&r)?;
            return Ok(Place::Inside);
        }
        if believed.is_some() {
            self.alternate_stack(t, believed)?;
        }
        r.gs_base = 0;
        t.set_registers(&r)?;
        t.set_mask(t.mask()? | blocked)?;
        Ok(Place::Outside)
    }

    /// Is a thread with these registers about to make anew the call that its handler, which runs on
    /// `stack`, was called for with this context, by code that is not on that stack; and was nothing of
    /// it done? (What the call is given may differ: copies of the program's.)
    fn is_at_call_of(
        &self,
        context: u64,
        r: &Registers,
        mask: u64,
        stack: [u64; 2],
    ) -> Result<bool> {
        let [at, len] = stack;
        let stack = at..at.saturating_add(len);
        let called = self.register(context, libc::REG_RAX)?;
        // One that waits for a time is made again under another number by the kernel when something
        // else than a stop has interrupted it: the end of an io_uring that the thread has used, say. It
        // may then be the object's own call as well, which is made with signals blocked.
        let is_it = r.orig_rax == called
            || r.orig_rax == libc::SYS_restart_syscall as u64
                && WAIT_FOR_A_TIME.contains(&(called as i64))
                && !stopped::is_inside(mask);
        Ok(trace::makes_call_again(r)
            && self.passing.contains(&r.rip)
            && context & DONE == 0
            && stack.contains(&context)
            && is_it
            && !stack.contains(&self.register(context, libc::REG_RSP)?))
    }

    /// The address of a register in a context.
    fn address(context: u64, register: i32) -> u64 {
        let registers = offset_of!(libc::ucontext_t, uc_mcontext.gregs) as u64;
        context + registers + register as u64 * 8
    }

    fn register(&self, context: u64, register: i32) -> Result<u64> {
        self.word(Object::address(context, register))
    }

    /// Who returns from this context makes the call again, with the mask that the program believes it
    /// has.
    fn unwind(&self, context: u64, blocked: u64) -> Result<()> {
        /// Length of the instruction `syscall`.
        const SYSCALL: u64 = 2;
        let at = Object::address(context, libc::REG_RIP);
        self.write(at, self.word(at)? - SYSCALL)?;
        let mask = context + offset_of!(libc::ucontext_t, uc_sigmask) as u64;
        self.write(mask, self.word(mask)? | blocked)
    }
}

//! Stopping the threads of another process, and having them make system calls (ptrace).
//!
//! A thread is *seized*, which does not disturb it, and then *interrupted*: it stops outside the
//! kernel, and a call that it waited in is made again when it goes on. While it is stopped its
//! registers, its alternate stack and its mask can be read and changed. All of it must be done by
//! the thread that has seized it. When that one ends, the threads go on.

use crate::raw::call;
use crate::{Errno, Result, now_ns, signal};
use std::mem::MaybeUninit;

/// The registers of a stopped thread.
pub type Registers = libc::user_regs_struct;

const PTRACE_EVENT_STOP: i32 = 128;
const PTRACE_GETSIGMASK: usize = 0x420a;
const PTRACE_SETSIGMASK: usize = 0x420b;
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// Stops at system calls are told from signals.
const OPTIONS: i32 = libc::PTRACE_O_TRACESYSGOOD;

/// A call that is to be made again with the time that is left.
const ERESTART_RESTARTBLOCK: i64 = -516;
/// A call that is to be made again as it was.
const ERESTARTNOINTR: i64 = -513;
const EINTR: i64 = -(libc::EINTR as i64);
/// The answers of calls that are made again as the thread goes on.
const RESTARTS: std::ops::RangeInclusive<i64> = ERESTART_RESTARTBLOCK..=-512;
/// Calls that have done nothing when they fail with EINTR, and do so whether or not a handler was run
/// (signal(7): those that are never made again, and those of sockets with a time limit).
const FAIL_INTERRUPTED: [i64; 14] = [
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_msgrcv,
];
/// Flag TF: a trap after each instruction.
const TRAP_FLAG: u64 = 1 << 8;

/// A thread that this one has seized. It goes on when this is dropped.
#[derive(Debug)]
pub struct Tracee {
    tid: i32,
    /// Is it stopped?
    stopped: bool,
}

/// Why a seized thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It was interrupted, or has just been made.
    Interrupted,
    /// This signal is about to be delivered to it.
    Signal(i32),
    /// It begins or ends a system call.
    SystemCall,
    /// An event that was asked for.
    Event(i32),
    /// Its process is stopped, as by SIGSTOP.
    Group,
    /// It is gone.
    Gone,
}

fn request(what: u32, tid: i32, addr: usize, data: usize) -> Result<usize> {
    let a = [what as usize, tid as usize, addr, data, 0, 0];
    // SAFETY: the requests of this module read and write what their callers own; they change
    // another process, whose owner has asked for that.
    unsafe { call(libc::SYS_ptrace, a) }
}

impl Tracee {
    /// Seizes a thread. EPERM: this user may not trace it, or another process does.
    pub fn seize(tid: i32) -> Result<Tracee> {
        request(libc::PTRACE_SEIZE, tid, 0, OPTIONS as usize)?;
        Ok(Tracee {
            tid,
            stopped: false,
        })
    }

    /// Its id.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Stops it, within a time (nanoseconds). Signals that come before are delivered. ETIMEDOUT: it
    /// is in a call that cannot be interrupted; EBUSY: its process is stopped; ESRCH: it is gone.
    pub fn interrupt(&mut self, limit_ns: u64) -> Result<()> {
        let deadline = now_ns() + limit_ns;
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
        loop {
            match self.wait(deadline)? {
                Stop::Interrupted => return Ok(()),
                Stop::Group => return Err(Errno::EBUSY),
                Stop::Gone => return Err(Errno::ESRCH),
                Stop::Signal(signal) => self.go_on_with(libc::PTRACE_CONT, signal)?,
                Stop::SystemCall | Stop::Event(_) => self.go_on_with(libc::PTRACE_CONT, 0)?,
            }
        }
    }

    /// Waits until it stops. ETIMEDOUT: it did not, by `deadline` ([`now_ns`]).
    pub fn wait(&mut self, deadline: u64) -> Result<Stop> {
        // Most stops come at once.
        const SPINS: u32 = 200;
        let (mut spins, mut pause_us) = (0, 10);
        loop {
            let mut status = 0i32;
            let options = (libc::__WALL | libc::WNOHANG) as usize;
            let a = [
                self.tid as usize,
                &raw mut status as usize,
                options,
                0,
                0,
                0,
            ];
            // SAFETY: `status` is writable.
            let got = unsafe { call(libc::SYS_wait4, a) };
            match got {
                Ok(0) if now_ns() > deadline => return Err(Errno(libc::ETIMEDOUT)),
                Ok(0) if spins < SPINS => {
                    spins += 1;
                    crate::process::yield_now();
                }
                Ok(0) => {
                    std::thread::sleep(std::time::Duration::from_micros(pause_us));
                    pause_us = (pause_us * 2).min(1000);
                }
                Ok(_) => {
                    let stop = stop_of(status);
                    self.stopped = stop != Stop::Gone;
                    return Ok(stop);
                }
                Err(e) if e.0 == libc::ECHILD => {
                    self.stopped = false;
                    return Ok(Stop::Gone);
                }
                Err(e) if e.0 == libc::EINTR => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn go_on_with(&mut self, how: u32, signal: i32) -> Result<()> {
        self.stopped = false;
        request(how, self.tid, 0, signal as usize).map(drop)
    }

    /// It goes on.
    pub fn go_on(&mut self) -> Result<()> {
        self.go_on_with(libc::PTRACE_CONT, 0)
    }

    /// It goes on to the beginning or end of its next system call; a signal is delivered to it.
    pub fn to_system_call(&mut self, signal: i32) -> Result<()> {
        self.go_on_with(libc::PTRACE_SYSCALL, signal)
    }

    /// Its registers.
    pub fn registers(&self) -> Result<Registers> {
        let mut all = MaybeUninit::<Registers>::uninit();
        request(libc::PTRACE_GETREGS, self.tid, 0, all.as_mut_ptr() as usize)?;
        // SAFETY: the kernel has written all of it.
        Ok(unsafe { all.assume_init() })
    }

    /// Sets them.
    pub fn set_registers(&self, all: &Registers) -> Result<()> {
        request(
            libc::PTRACE_SETREGS,
            self.tid,
            0,
            std::ptr::from_ref(all) as usize,
        )
        .map(drop)
    }

    /// The signals that it has blocked.
    pub fn mask(&self) -> Result<u64> {
        let mut mask = 0u64;
        let to = &raw mut mask as usize;
        request(PTRACE_GETSIGMASK as u32, self.tid, 8, to)?;
        Ok(mask)
    }

    /// Sets them.
    pub fn set_mask(&self, mask: u64) -> Result<()> {
        let from = &raw const mask as usize;
        request(PTRACE_SETSIGMASK as u32, self.tid, 8, from).map(drop)
    }

    /// Has it make a system call, by the instruction `syscall` at `at`, with signals blocked,
    /// and leaves its registers as they were. The raw answer. ETIMEDOUT: it does not come back.
    pub fn call(&mut self, at: u64, nr: i64, a: [u64; 6]) -> Result<i64> {
        let (answer, _) = self.call_and_follow(at, nr, a)?;
        Ok(answer)
    }

    /// [`Tracee::call`] of clone(2): the answer, and the thread that was made, which is seized and
    /// stopped. (What that one makes is not.)
    pub fn call_clone(&mut self, at: u64, a: [u64; 6]) -> Result<(i64, Option<Tracee>)> {
        self.set_options(OPTIONS | libc::PTRACE_O_TRACECLONE)?;
        let done = self.call_and_follow(at, libc::SYS_clone, a);
        self.set_options(OPTIONS)?;
        if let Ok((_, Some(made))) = &done {
            made.set_options(OPTIONS)?;
        }
        done
    }

    fn set_options(&self, options: i32) -> Result<()> {
        request(libc::PTRACE_SETOPTIONS, self.tid, 0, options as usize).map(drop)
    }

    fn call_and_follow(&mut self, at: u64, nr: i64, a: [u64; 6]) -> Result<(i64, Option<Tracee>)> {
        let (before, mask) = (self.registers()?, self.mask()?);
        let mut new = before;
        new.rip = at;
        new.rax = nr as u64;
        new.orig_rax = u64::MAX;
        [new.rdi, new.rsi, new.rdx, new.r10, new.r8, new.r9] = a;
        // (A blocked SIGTRAP would lose its handler to the one that the step ends with.)
        self.set_mask(!signal::bit(libc::SIGTRAP))?;
        self.set_registers(&new)?;
        let done = self.step_over();
        if done.is_err() && !self.stopped {
            let _ = self.interrupt(1_000_000_000);
        }
        self.set_registers(&before)?;
        self.set_mask(mask)?;
        done
    }

    /// One instruction, which is `syscall`: the answer, and the thread that it made.
    fn step_over(&mut self) -> Result<(i64, Option<Tracee>)> {
        const LIMIT_NS: u64 = 10_000_000_000;
        let deadline = now_ns() + LIMIT_NS;
        let mut made = None;
        loop {
            self.go_on_with(libc::PTRACE_SINGLESTEP, 0)?;
            match self.wait(deadline)? {
                Stop::Signal(libc::SIGTRAP) => return Ok((self.registers()?.rax as i64, made)),
                Stop::Event(libc::PTRACE_EVENT_CLONE) => {
                    let mut tid = 0u64;
                    let to = &raw mut tid as usize;
                    request(libc::PTRACE_GETEVENTMSG, self.tid, 0, to)?;
                    let mut child = Tracee {
                        tid: tid as i32,
                        stopped: false,
                    };
                    child.wait(deadline)?;
                    made = Some(child);
                }
                Stop::Gone => return Err(Errno::ESRCH),
                _ => {}
            }
        }
    }

    /// A call that it is to make again for the rest of a time begins with the whole time: the kernel
    /// forgets what is left. One that would fail since it was interrupted is made again, too, unless the
    /// thread `has_signal` to handle.
    pub fn begin_call_anew(&self, has_signal: impl FnOnce() -> bool) -> Result<()> {
        let mut all = self.registers()?;
        let is_anew = match all.rax as i64 {
            ERESTART_RESTARTBLOCK => true,
            EINTR => FAIL_INTERRUPTED.contains(&(all.orig_rax as i64)) && !has_signal(),
            _ => false,
        };
        if all.orig_rax as i64 >= 0 && is_anew {
            all.rax = ERESTARTNOINTR as u64;
            self.set_registers(&all)?;
        }
        Ok(())
    }

    /// It goes on, and is not traced any more.
    pub fn let_go(mut self) -> Result<()> {
        self.detach()
    }

    fn detach(&mut self) -> Result<()> {
        self.stopped = false;
        request(libc::PTRACE_DETACH, self.tid, 0, 0).map(drop)
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        if self.stopped {
            let _ = self.detach();
        }
    }
}

fn stop_of(status: i32) -> Stop {
    if !libc::WIFSTOPPED(status) {
        return Stop::Gone;
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        0 if signal == SYSCALL_STOP => Stop::SystemCall,
        0 => Stop::Signal(signal),
        PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Interrupted,
        PTRACE_EVENT_STOP => Stop::Group,
        event => Stop::Event(event),
    }
}

/// Is a thread with these registers, which was interrupted, about to make its call again?
pub fn makes_call_again(r: &Registers) -> bool {
    r.orig_rax as i64 >= 0 && RESTARTS.contains(&(r.rax as i64))
}

/// Registers for the first instruction of a program at `entry`, with its stack pointer.
pub fn first_registers(of: &Registers, entry: u64, stack: u64) -> Registers {
    // SAFETY: numbers, of which zeros are valid.
    let zeros: Registers = unsafe { std::mem::zeroed() };
    Registers {
        rip: entry,
        rsp: stack,
        orig_rax: u64::MAX,
        cs: of.cs,
        ss: of.ss,
        ds: of.ds,
        es: of.es,
        eflags: of.eflags & !TRAP_FLAG,
        ..zeros
    }
}

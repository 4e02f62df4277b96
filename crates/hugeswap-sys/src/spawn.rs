//! Starting a program and standing in for it: fork and exec with the signal state that the *caller*
//! was started with, signals as a descriptor, waiting with resource usage, stopping and dying in
//! the same way.
//!
//! Concurrency: meant for a process with one thread. [`start`] is safe in a process with more
//! threads (the child makes only direct system calls between fork and exec).

use crate::raw::call;
use crate::signal::{self, Action, Mask};
use crate::{Errno, Result, process};
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// True if SIGPIPE was ignored when this process was started. Rust's runtime ignores it before
/// `main`, so it is read earlier, to give programs the state that this process was given.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

// SAFETY: the loader calls entries of this section as `extern "C"` functions, once, before main.
#[used]
#[unsafe(link_section = ".init_array")]
static SEE_PIPE: extern "C" fn() = {
    extern "C" fn see() {
        let ignored = signal::action(libc::SIGPIPE).is_ok_and(|a| a.handler == libc::SIG_IGN);
        PIPE_WAS_IGNORED.store(ignored, Ordering::Relaxed);
    }
    see
};

/// The program to start and its state.
#[derive(Debug)]
pub struct Program<'a> {
    /// The file to execute.
    pub path: &'a CStr,
    /// Its arguments, with its name first.
    pub argv: &'a [CString],
    /// Its whole environment, as `NAME=value`.
    pub env: &'a [CString],
    /// The signal mask it starts with.
    pub mask: Mask,
    /// Its standard input and output, or `None` for those of the caller.
    pub stdio: [Option<BorrowedFd<'a>>; 2],
}

/// Starts a program in the caller's process group with the caller's descriptors and working
/// directory, and returns its process id. The program is killed when the calling thread ends. The
/// error is that of execve or fork.
pub fn start(program: &Program<'_>) -> Result<i32> {
    let pointers = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter()
            .map(|s| s.as_ptr())
            .chain([std::ptr::null()])
            .collect()
    };
    let (argv, env) = (pointers(program.argv), pointers(program.env));
    let parent = process::pid();
    let mut pipe = [0i32; 2];
    // SAFETY: `pipe` takes two descriptors.
    unsafe {
        call(
            libc::SYS_pipe2,
            [
                pipe.as_mut_ptr() as usize,
                libc::O_CLOEXEC as usize,
                0,
                0,
                0,
                0,
            ],
        )
    }?;
    let kept = signal::set_mask(signal::ALL);
    // SAFETY: the child makes direct system calls only, on memory prepared above, until it is
    // another program or gone.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let error = become_program(program, &argv, &env, parent);
        // SAFETY: writes 4 initialised bytes; then nothing of this process's is used any more.
        unsafe {
            let _ = call(
                libc::SYS_write,
                [
                    pipe[1] as usize,
                    &error.0 as *const i32 as usize,
                    4,
                    0,
                    0,
                    0,
                ],
            );
            libc::_exit(127)
        }
    }
    signal::set_mask(kept);
    crate::fs::close(pipe[1]);
    if pid < 0 {
        crate::fs::close(pipe[0]);
        return Err(Errno::EAGAIN);
    }
    let mut code = 0i32;
    // End of file means that exec closed the other end.
    let answer = loop {
        // SAFETY: `code` is 4 writable bytes.
        match unsafe {
            call(
                libc::SYS_read,
                [pipe[0] as usize, &mut code as *mut i32 as usize, 4, 0, 0, 0],
            )
        } {
            Err(Errno::EINTR) => {}
            other => break other,
        }
    };
    crate::fs::close(pipe[0]);
    match answer {
        Ok(4) => {
            let _ = wait(pid, true);
            Err(Errno(code))
        }
        _ => Ok(pid),
    }
}

/// The part of [`start`] that the child runs; returns only if it failed.
fn become_program(
    program: &Program<'_>,
    argv: &[*const libc::c_char],
    env: &[*const libc::c_char],
    parent: i32,
) -> Errno {
    // SAFETY: prctl with plain numbers.
    if let Err(e) = unsafe {
        call(
            libc::SYS_prctl,
            [
                libc::PR_SET_PDEATHSIG as usize,
                libc::SIGKILL as usize,
                0,
                0,
                0,
                0,
            ],
        )
    } {
        return e;
    }
    // SAFETY: getppid has no arguments.
    if unsafe { call(libc::SYS_getppid, [0; 6]) } != Ok(parent as usize) {
        return Errno::ESRCH;
    }
    for (number, fd) in program.stdio.iter().enumerate() {
        let Some(fd) = fd.map(|fd| fd.as_raw_fd()) else {
            continue;
        };
        let again = if fd as usize == number {
            // dup2 onto itself would leave close-on-exec set.
            // SAFETY: fcntl with plain numbers.
            unsafe {
                call(
                    libc::SYS_fcntl,
                    [number, libc::F_SETFD as usize, 0, 0, 0, 0],
                )
            }
        } else {
            // SAFETY: dup2 touches no memory; the table is this process's own since fork.
            unsafe { call(libc::SYS_dup2, [fd as usize, number, 0, 0, 0, 0]) }
        };
        if let Err(e) = again {
            return e;
        }
    }
    let pipe_handler = if PIPE_WAS_IGNORED.load(Ordering::Relaxed) {
        libc::SIG_IGN
    } else {
        libc::SIG_DFL
    };
    // SAFETY: neither the default action nor ignoring runs any code.
    let _ = unsafe {
        signal::set_action(
            libc::SIGPIPE,
            &Action {
                handler: pipe_handler,
                ..Action::default()
            },
        )
    };
    signal::set_mask(program.mask);
    // SAFETY: path and both lists are NUL-terminated and outlive the call.
    unsafe {
        call(
            libc::SYS_execve,
            [
                program.path.as_ptr() as usize,
                argv.as_ptr() as usize,
                env.as_ptr() as usize,
                0,
                0,
                0,
            ],
        )
    }
    .err()
    .unwrap_or(Errno::EINVAL)
}

/// Blocks the signals of `mask` in this thread, and returns a descriptor that delivers them to
/// [`next_signal`] (readable when one is pending, closed on exec), and the former mask.
pub fn signal_descriptor(mask: Mask) -> Result<(OwnedFd, Mask)> {
    // SAFETY: the mask is 8 bytes.
    let fd = unsafe {
        call(
            libc::SYS_signalfd4,
            [
                usize::MAX,
                &mask as *const Mask as usize,
                8,
                (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize,
                0,
                0,
            ],
        )
    }?;
    // SAFETY: the kernel just made this descriptor; nobody else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    Ok((fd, signal::set_mask(mask)))
}

/// A signal that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub signal: i32,
    /// The kernel sent it (a terminal key, a hang-up), not a process.
    pub from_kernel: bool,
}

/// Takes the next pending signal from a [`signal_descriptor`], or `None` if there is none.
pub fn next_signal(fd: BorrowedFd<'_>) -> Option<Received> {
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    let len = size_of::<libc::signalfd_siginfo>();
    // SAFETY: `info` is `len` writable bytes.
    let n = unsafe {
        call(
            libc::SYS_read,
            [
                fd.as_raw_fd() as usize,
                &mut info as *mut _ as usize,
                len,
                0,
                0,
                0,
            ],
        )
    };
    (n == Ok(len)).then_some(Received {
        signal: info.ssi_signo as i32,
        from_kernel: info.ssi_code == libc::SI_KERNEL,
    })
}

/// Forks by the C library, so that handlers of pthread_atfork run, and returns the process id of
/// the child. The child runs `f` as the only thread, in its copy of everything, and ends with the
/// status that `f` returns, or with 101 if `f` panics. No other code of this program runs there.
///
/// Locks that other threads hold stay locked in the child (except the allocator's), so `f` should
/// need none of them; the locks of the standard streams are among them.
pub fn in_child(f: impl FnOnce() -> u8) -> Result<i32> {
    // SAFETY: the child's memory is a copy, in which nobody is in the middle of what `f` can reach
    // but by a lock, which stays locked; and the child never returns from here.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(101);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(code.into()) };
    }
    if pid < 0 { Err(Errno::EAGAIN) } else { Ok(pid) }
}

/// Sends `signal` to a process.
pub fn send(pid: i32, signal: i32) -> Result<()> {
    // SAFETY: touches no memory.
    unsafe { call(libc::SYS_kill, [pid as usize, signal as usize, 0, 0, 0, 0]) }.map(drop)
}

/// What became of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended with this status.
    Exited(i32),
    /// This signal ended it.
    Killed(i32),
    /// This signal stopped it.
    Stopped(i32),
}

/// A change of a child and, if it has ended, the resources that it used.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    /// Process id of the child.
    pub pid: i32,
    /// What became of it.
    pub change: Change,
    /// Largest resident set of the child, or of a descendant that it waited for, in bytes.
    pub max_rss_bytes: u64,
    /// It left a core dump.
    pub core_dumped: bool,
}

/// Asks for a change of child `pid` (-1: of any child), and waits for one if `block`. `None` if
/// nothing has changed yet.
pub fn wait(pid: i32, block: bool) -> Result<Option<Waited>> {
    let mut status = 0i32;
    // SAFETY: all zeros is a valid value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let options = libc::WUNTRACED | if block { 0 } else { libc::WNOHANG };
    let found = loop {
        // SAFETY: `status` and `usage` are writable.
        match unsafe {
            call(
                libc::SYS_wait4,
                [
                    pid as usize,
                    &mut status as *mut i32 as usize,
                    options as usize,
                    &mut usage as *mut _ as usize,
                    0,
                    0,
                ],
            )
        } {
            Err(Errno::EINTR) => {}
            other => break other?,
        }
    };
    if found == 0 {
        return Ok(None);
    }
    let change = if libc::WIFEXITED(status) {
        Change::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSTOPPED(status) {
        Change::Stopped(libc::WSTOPSIG(status))
    } else {
        Change::Killed(libc::WTERMSIG(status))
    };
    Ok(Some(Waited {
        pid: found as i32,
        change,
        max_rss_bytes: usage.ru_maxrss as u64 * 1024,
        core_dumped: libc::WIFSIGNALED(status) && libc::WCOREDUMP(status),
    }))
}

/// Stops this process in the way `signal` stops a program that does not handle it. Returns when it
/// is continued, with the thread's mask as before.
pub fn stop_like(signal: i32) {
    let kept = signal::set_mask(signal::ALL & !signal::bit(signal));
    let _ = process::signal_thread(process::tid(), signal);
    signal::set_mask(kept);
}

/// Ends this process by `signal`, without a core file (the program has left its own). Returns only
/// if the signal does not end processes.
pub fn die_like(signal: i32) {
    // SAFETY: prctl and sigaction with plain values; the default action runs no code of ours.
    unsafe {
        let _ = call(
            libc::SYS_prctl,
            [libc::PR_SET_DUMPABLE as usize, 0, 0, 0, 0, 0],
        );
        let _ = signal::set_action(signal, &Action::default());
    }
    let kept = signal::set_mask(signal::ALL & !signal::bit(signal));
    let _ = process::signal_thread(process::tid(), signal);
    signal::set_mask(kept);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    fn c(text: &str) -> CString {
        CString::new(text).unwrap()
    }

    fn shell(script: &str, stdio: [Option<BorrowedFd<'_>>; 2]) -> Waited {
        let argv = [c("sh"), c("-c"), c(script)];
        let env = [c("KEPT=yes")];
        let mask = signal::bit(libc::SIGUSR1);
        let request = Program {
            path: c"/bin/sh",
            argv: &argv,
            env: &env,
            mask,
            stdio,
        };
        let pid = start(&request).unwrap();
        wait(pid, true).unwrap().unwrap()
    }

    #[test]
    fn status_usage_and_signals_come_back() {
        let done = shell("exit 7", [None; 2]);
        assert_eq!(done.change, Change::Exited(7));
        assert!(done.max_rss_bytes > 0);
        assert_eq!(
            shell("kill -9 $$", [None; 2]).change,
            Change::Killed(libc::SIGKILL)
        );
    }

    #[test]
    fn streams_environment_and_mask_are_as_asked() {
        let (mut input, mut output) = (memory_file(), memory_file());
        input.write_all(b"text").unwrap();
        std::io::Seek::rewind(&mut input).unwrap();
        let script = "read x; echo $x $KEPT; while read l; do case $l in SigBlk*) echo $l;; esac; done < /proc/self/status";
        let done = shell(script, [Some(input.as_fd()), Some(output.as_fd())]);
        assert_eq!(done.change, Change::Exited(0));
        let mut text = String::new();
        std::io::Seek::rewind(&mut output).unwrap();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text yes\nSigBlk: 0000000000000200\n");
    }

    fn memory_file() -> std::fs::File {
        let fd = crate::mm::memfd(c"spawn-test", false).unwrap();
        // SAFETY: just made; nobody else owns it.
        unsafe { OwnedFd::from_raw_fd(fd) }.into()
    }

    #[test]
    fn what_execve_says_comes_back() {
        let request = Program {
            path: c"/no/such/program",
            argv: &[],
            env: &[],
            mask: 0,
            stdio: [None; 2],
        };
        assert_eq!(start(&request), Err(Errno::ENOENT));
    }
}

//! Processes and threads: who we are, private descriptor tables, pausing.

use crate::Result;
use crate::raw::call;

/// This process's id.
pub fn pid() -> i32 {
    // SAFETY: getpid has no arguments.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as i32
}

/// The user whose rights this process has.
pub fn effective_user() -> u32 {
    // SAFETY: geteuid has no arguments.
    unsafe { call(libc::SYS_geteuid, [0; 6]) }.unwrap_or(0) as u32
}

/// This thread's id.
pub fn tid() -> i32 {
    // SAFETY: gettid has no arguments.
    unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as i32
}

/// Does a process with this id exist (a zombie counts)?
pub fn exists(pid: i32) -> bool {
    // SAFETY: signal 0 only asks.
    !matches!(
        unsafe { call(libc::SYS_kill, [pid as usize, 0, 0, 0, 0, 0]) },
        Err(crate::Errno::ESRCH)
    )
}

/// Sends `signal` to one thread of this process.
pub fn signal_thread(tid: i32, signal: i32) -> Result<()> {
    // SAFETY: tgkill touches no memory.
    unsafe {
        call(
            libc::SYS_tgkill,
            [pid() as usize, tid as usize, signal as usize, 0, 0, 0],
        )
    }
    .map(drop)
}

/// Gives the calling thread a descriptor table of its own that holds only the descriptors
/// in `keep` (sorted, ascending).
pub fn private_descriptors(keep: &[i32]) -> Result<()> {
    // SAFETY: unshare(CLONE_FILES) only copies the table.
    unsafe {
        call(
            libc::SYS_unshare,
            [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0],
        )
    }?;
    let mut from = 0u32;
    for &fd in keep {
        if from < fd as u32 {
            close_range(from, fd as u32 - 1);
        }
        from = fd as u32 + 1;
    }
    close_range(from, u32::MAX);
    Ok(())
}

fn close_range(first: u32, last: u32) {
    // SAFETY: only closes numbers of this thread's private table.
    if unsafe {
        call(
            libc::SYS_close_range,
            [first as usize, last as usize, 0, 0, 0, 0],
        )
    }
    .is_err()
    {
        // Kernels before 5.9.
        for fd in first..=last.min(65_535) {
            crate::fs::close(fd as i32);
        }
    }
}

/// Ends the process where it stands (SIGKILL): for a state in which going on would lose data.
pub fn kill_self() {
    // SAFETY: no memory involved.
    let _ = unsafe {
        call(
            libc::SYS_kill,
            [pid() as usize, libc::SIGKILL as usize, 0, 0, 0, 0],
        )
    };
}

/// Lets another thread run.
pub fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Names the calling thread (15 bytes are kept).
pub fn name_thread(name: &std::ffi::CStr) {
    // SAFETY: `name` is NUL-terminated.
    let _ = unsafe {
        call(
            libc::SYS_prctl,
            [
                libc::PR_SET_NAME as usize,
                name.as_ptr() as usize,
                0,
                0,
                0,
                0,
            ],
        )
    };
}

/// The soft limit on open descriptors.
pub fn descriptor_limit() -> u64 {
    limit(libc::RLIMIT_NOFILE)
}

/// A soft limit of this process (`libc::RLIMIT_...`); `libc::RLIM_INFINITY`: none.
pub fn limit(resource: u32) -> u64 {
    let mut lim = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `lim` is a writable rlimit64-compatible pair on x86-64.
    let _ = unsafe {
        call(
            libc::SYS_prlimit64,
            [0, resource as usize, 0, &mut lim as *mut _ as usize, 0, 0],
        )
    };
    lim.rlim_cur
}

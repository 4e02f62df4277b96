//! Processes and threads: ids, limits, private descriptor tables, ends and pauses.

use crate::Result;
use crate::raw::call;

/// The id of this process.
pub fn pid() -> i32 {
    // SAFETY: getpid has no arguments.
    unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as i32
}

/// The effective user id of this process.
pub fn effective_user() -> u32 {
    // SAFETY: geteuid has no arguments.
    unsafe { call(libc::SYS_geteuid, [0; 6]) }.unwrap_or(0) as u32
}

/// The id of this thread.
pub fn tid() -> i32 {
    // SAFETY: gettid has no arguments.
    unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as i32
}

/// Nanoseconds for which a thread of this process, or all of it (`None`), has run outside the kernel,
/// as the kernel counts: often in ticks. `None`: there is no such thread.
pub fn user_ns(thread: Option<i32>) -> Option<u64> {
    /// What the kernel's number of a processor clock says: user time, of one thread.
    const USER: i32 = 1;
    const OF_THREAD: i32 = 4;
    let clock = match thread {
        Some(tid) => (!tid) << 3 | OF_THREAD | USER,
        None => !0 << 3 | USER,
    };
    crate::clock_ns(clock)
}

/// How often this thread was switched away though it could have run on. `None`: that is not told.
pub fn switches() -> Option<u64> {
    // SAFETY: zeros are a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let (whose, to) = (libc::RUSAGE_THREAD as usize, &raw mut usage as usize);
    // SAFETY: getrusage writes one rusage, to ours.
    let told = unsafe { call(libc::SYS_getrusage, [whose, to, 0, 0, 0, 0]) };
    told.is_ok().then_some(usage.ru_nivcsw as u64)
}

/// The processor that this thread was on a moment ago, and its node.
pub fn cpu_and_node() -> (u32, u32) {
    let (mut cpu, mut node) = (0u32, 0u32);
    let out = [&raw mut cpu as usize, &raw mut node as usize, 0, 0, 0, 0];
    // SAFETY: getcpu writes two numbers, to ours.
    let _ = unsafe { call(libc::SYS_getcpu, out) };
    (cpu, node)
}

/// Like [`cpu_and_node`] without a system call, as the vDSO does it: from the limit of a segment
/// that the kernel sets for that. `None` if there is no such segment. If the segment is something
/// else the answer is nonsense, so it must be compared with [`cpu_and_node`] once.
pub fn cpu_and_node_fast() -> Option<(u32, u32)> {
    const SEGMENT: u32 = 15 * 8 + 3;
    let (limit, valid): (u32, u8);
    // SAFETY: reads a segment's limit if it may, and says whether it did.
    unsafe {
        std::arch::asm!(
            "lsl {limit:e}, {segment:e}",
            "setz {valid}",
            segment = in(reg) SEGMENT,
            limit = inout(reg) 0u32 => limit,
            valid = out(reg_byte) valid,
            options(nomem, nostack),
        );
    }
    (valid != 0).then_some((limit & 0xfff, limit >> 12))
}

/// True if a process with this id exists; a zombie counts.
pub fn exists(pid: i32) -> bool {
    // SAFETY: signal 0 only asks.
    !matches!(
        unsafe { call(libc::SYS_kill, [pid as usize, 0, 0, 0, 0, 0]) },
        Err(crate::Errno::ESRCH)
    )
}

/// A new descriptor for the file that process `pid` has open as `fd` (pidfd_getfd: Linux 5.6, and
/// the right to trace that process).
pub fn descriptor_of(pid: i32, fd: i32) -> Result<i32> {
    // SAFETY: touches no memory of ours.
    let process = unsafe { call(libc::SYS_pidfd_open, [pid as usize, 0, 0, 0, 0, 0]) }? as i32;
    let args = [process as usize, fd as usize, 0, 0, 0, 0];
    // SAFETY: as above.
    let got = unsafe { call(libc::SYS_pidfd_getfd, args) };
    crate::fs::close(process);
    got.map(|fd| fd as i32)
}

/// Lets process `pid` and its descendants reach this process (and its descriptors) where the kernel
/// allows that to ancestors only (Yama).
pub fn let_trace(pid: i32) -> Result<()> {
    let args = [libc::PR_SET_PTRACER as usize, pid as usize, 0, 0, 0, 0];
    // SAFETY: no memory involved.
    unsafe { call(libc::SYS_prctl, args) }.map(drop)
}

/// True if this program runs under valgrind. (Its client request RUNNING_ON_VALGRIND: instructions
/// without effect elsewhere.)
pub fn runs_on_valgrind() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut answer = 0usize;
    // SAFETY: four rotations that add up to none, and a register exchanged with itself; valgrind
    // reads the request and writes the answer's register.
    unsafe {
        std::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") answer,
            options(nostack),
        );
    }
    answer != 0
}

/// Makes descendants of this process whose parents end its children, to be waited for, instead of
/// init's.
pub fn adopt_orphans() -> Result<()> {
    let args = [libc::PR_SET_CHILD_SUBREAPER as usize, 1, 0, 0, 0, 0];
    // SAFETY: no memory involved.
    unsafe { call(libc::SYS_prctl, args) }.map(drop)
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

/// Gives the calling thread a descriptor table of its own with only the descriptors in `keep` (in
/// ascending order).
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
        // Kernels before 5.9 have no close_range.
        for fd in first..=last.min(65_535) {
            crate::fs::close(fd as i32);
        }
    }
}

/// The numbers of the calling thread's open descriptors, possibly with the one that was open for
/// the search.
pub fn descriptors() -> Result<Vec<i32>> {
    crate::fs::numbers_in(c"/proc/thread-self/fd")
}

/// Ends the process with a status, without the C library's exit handlers.
pub fn end(status: i32) -> ! {
    loop {
        // SAFETY: no memory involved.
        let _ = unsafe { call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Ends the process at once (SIGKILL): for a state in which going on would lose data.
pub fn kill_self() -> ! {
    loop {
        let kill = [pid() as usize, libc::SIGKILL as usize, 0, 0, 0, 0];
        // SAFETY: no memory involved.
        let _ = unsafe { call(libc::SYS_kill, kill) };
        // A filter may refuse that.
        // SAFETY: as above.
        let _ = unsafe {
            call(
                libc::SYS_exit_group,
                [128 + libc::SIGKILL as usize, 0, 0, 0, 0, 0],
            )
        };
    }
}

/// Lets another thread run on this processor.
pub fn yield_now() {
    // SAFETY: no arguments.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Names the calling thread; 15 bytes are kept.
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

/// A soft limit of this process (`libc::RLIMIT_...`); `libc::RLIM_INFINITY` if there is none.
pub fn limit(resource: u32) -> u64 {
    swap_limit(resource, None).map_or(0, |l| l.rlim_cur)
}

/// Calls a function while a soft limit of this process is at least `least`, as far as the hard
/// limit allows. Other threads have the same limit meanwhile.
pub fn with_soft_limit<T>(resource: u32, least: u64, does: impl FnOnce() -> T) -> T {
    let former = swap_limit(resource, None).ok();
    let raised = former.filter(|l| l.rlim_cur < least).map(|l| libc::rlimit {
        rlim_cur: least.min(l.rlim_max),
        rlim_max: l.rlim_max,
    });
    if let Some(raised) = &raised {
        let _ = swap_limit(resource, Some(raised));
    }
    let done = does();
    if raised.is_some() {
        let _ = swap_limit(resource, former.as_ref());
    }
    done
}

/// The limits of this process; sets them if new ones are given.
fn swap_limit(resource: u32, new: Option<&libc::rlimit>) -> Result<libc::rlimit> {
    let mut old = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let new = new.map_or(0, |l| l as *const _ as usize);
    // SAFETY: both are rlimit64-compatible pairs on x86-64, and `old` is writable.
    unsafe {
        call(
            libc::SYS_prlimit64,
            [0, resource as usize, new, &mut old as *mut _ as usize, 0, 0],
        )
    }?;
    Ok(old)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_for_a_while_as_far_as_it_may_be() {
        let now = || swap_limit(libc::RLIMIT_CORE, None).unwrap();
        let before = now();
        let low = libc::rlimit {
            rlim_cur: before.rlim_max.min(4096) / 2,
            rlim_max: before.rlim_max,
        };
        swap_limit(libc::RLIMIT_CORE, Some(&low)).unwrap();
        let inside = with_soft_limit(libc::RLIMIT_CORE, 8192, || limit(libc::RLIMIT_CORE));
        assert_eq!(inside, before.rlim_max.min(8192));
        assert_eq!(limit(libc::RLIMIT_CORE), low.rlim_cur);
        let inside = with_soft_limit(libc::RLIMIT_CORE, 0, || limit(libc::RLIMIT_CORE));
        assert_eq!(inside, low.rlim_cur);
        swap_limit(libc::RLIMIT_CORE, Some(&before)).unwrap();
    }

    #[test]
    fn user_time_is_that_of_the_thread_and_in_that_of_the_process() {
        let mut n = 1u64;
        while user_ns(Some(tid())).unwrap() < 50_000_000 {
            (0..1 << 20).for_each(|i| n = n.wrapping_mul(31) ^ std::hint::black_box(i));
        }
        assert!(user_ns(None).unwrap() >= user_ns(Some(tid())).unwrap());
        let (idle, time) = std::thread::spawn(|| (tid(), user_ns(Some(tid()))))
            .join()
            .unwrap();
        assert!(time.unwrap() < 50_000_000);
        // (It may be on its way out still.)
        while user_ns(Some(idle)).is_some() {
            yield_now();
        }
    }

    #[test]
    fn open_descriptors_are_found() {
        let files: Vec<_> = (0..300)
            .map(|_| std::fs::File::open("/dev/null").unwrap())
            .collect();
        let found = descriptors().unwrap();
        use std::os::fd::AsRawFd;
        assert!(files.iter().all(|f| found.contains(&f.as_raw_fd())));
        assert!(found.iter().all(|fd| *fd >= 0));
    }

    #[test]
    fn where_this_thread_is() {
        // With one processor both ways must agree.
        let mut set = [0u64; 16];
        let args = [0, size_of_val(&set), set.as_mut_ptr() as usize, 0, 0, 0];
        // SAFETY: writes to `set`, of that size.
        if unsafe { call(libc::SYS_sched_getaffinity, args) }.is_err() {
            return println!("skipped: more processors than this test knows");
        }
        for cpu in (0..1024).filter(|c| set[c / 64] >> (c % 64) & 1 != 0) {
            let mut one = [0u64; 16];
            one[cpu / 64] = 1 << (cpu % 64);
            let args = [0, size_of_val(&one), one.as_ptr() as usize, 0, 0, 0];
            // SAFETY: reads `one`, of that size.
            unsafe { call(libc::SYS_sched_setaffinity, args) }.unwrap();
            let (at, node) = cpu_and_node();
            assert_eq!(at, cpu as u32);
            match cpu_and_node_fast() {
                Some(fast) => assert_eq!(fast, (at, node)),
                None => println!("skipped: there is no such segment"),
            }
        }
    }
}

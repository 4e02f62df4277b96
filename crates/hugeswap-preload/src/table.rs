//! What system calls do with the memory their arguments point to.
//!
//! This file is data only. [`crate::filter`] checks only the arguments of a call that are pointers:
//! a value left in another register may look like one, in code that has every signal blocked.
//! [`crate::issue`] learns from here how long the buffers behind the pointers are. A call that is
//! not listed here may have a pointer in any argument.

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The kernel reads them.
    In,
    /// The kernel writes (and perhaps reads) them.
    Out,
}

/// The length of a buffer.
#[derive(Clone, Copy)]
pub enum Len {
    /// This many bytes.
    Is(usize),
    /// As many bytes as this argument says.
    Arg(usize),
    /// An array: the first number is the argument with the count, the second the bytes of an
    /// element.
    Each(usize, usize),
    /// As many bits as this argument says, in whole words: a descriptor set.
    Bits(usize),
    /// A string, up to its NUL.
    Text,
    /// As many bytes as the 32-bit word says to which this argument points.
    At(usize),
}

/// A pointer argument: its index, and the direction and length of its buffer.
pub type Buffer = (usize, Way, Len);

use Len::{Arg, At, Bits, Each, Is, Text};
use Way::{In, Out};

const TIMESPEC: Len = Is(16);
const STAT: Len = Is(size_of::<libc::stat>());
const RUSAGE: Len = Is(size_of::<libc::rusage>());

/// The pointer arguments of calls, by call number; in no order.
pub static CALLS: &[(i64, &[Buffer])] = &[
    (libc::SYS_open, &[(0, In, Text)]),
    (libc::SYS_openat, &[(1, In, Text)]),
    (libc::SYS_creat, &[(0, In, Text)]),
    (libc::SYS_stat, &[(0, In, Text), (1, Out, STAT)]),
    (libc::SYS_lstat, &[(0, In, Text), (1, Out, STAT)]),
    (libc::SYS_fstat, &[(1, Out, STAT)]),
    (libc::SYS_newfstatat, &[(1, In, Text), (2, Out, STAT)]),
    (libc::SYS_statx, &[(1, In, Text), (4, Out, Is(256))]),
    (libc::SYS_statfs, &[(0, In, Text), (1, Out, Is(120))]),
    (libc::SYS_fstatfs, &[(1, Out, Is(120))]),
    (libc::SYS_access, &[(0, In, Text)]),
    (libc::SYS_faccessat, &[(1, In, Text)]),
    (libc::SYS_faccessat2, &[(1, In, Text)]),
    (libc::SYS_readlink, &[(0, In, Text), (1, Out, Arg(2))]),
    (libc::SYS_readlinkat, &[(1, In, Text), (2, Out, Arg(3))]),
    (libc::SYS_getcwd, &[(0, Out, Arg(1))]),
    (libc::SYS_chdir, &[(0, In, Text)]),
    (libc::SYS_mkdir, &[(0, In, Text)]),
    (libc::SYS_mkdirat, &[(1, In, Text)]),
    (libc::SYS_rmdir, &[(0, In, Text)]),
    (libc::SYS_unlink, &[(0, In, Text)]),
    (libc::SYS_unlinkat, &[(1, In, Text)]),
    (libc::SYS_rename, &[(0, In, Text), (1, In, Text)]),
    (libc::SYS_renameat, &[(1, In, Text), (3, In, Text)]),
    (libc::SYS_renameat2, &[(1, In, Text), (3, In, Text)]),
    (libc::SYS_link, &[(0, In, Text), (1, In, Text)]),
    (libc::SYS_linkat, &[(1, In, Text), (3, In, Text)]),
    (libc::SYS_symlink, &[(0, In, Text), (1, In, Text)]),
    (libc::SYS_symlinkat, &[(0, In, Text), (2, In, Text)]),
    (libc::SYS_chmod, &[(0, In, Text)]),
    (libc::SYS_chown, &[(0, In, Text)]),
    (libc::SYS_truncate, &[(0, In, Text)]),
    (libc::SYS_memfd_create, &[(0, In, Text)]),
    (libc::SYS_utimensat, &[(1, In, Text), (2, In, Is(32))]),
    (
        libc::SYS_getxattr,
        &[(0, In, Text), (1, In, Text), (2, Out, Arg(3))],
    ),
    (
        libc::SYS_setxattr,
        &[(0, In, Text), (1, In, Text), (2, In, Arg(3))],
    ),
    (libc::SYS_fgetxattr, &[(1, In, Text), (2, Out, Arg(3))]),
    (libc::SYS_getdents64, &[(1, Out, Arg(2))]),
    (libc::SYS_uname, &[(0, Out, Is(390))]),
    (libc::SYS_sysinfo, &[(0, Out, Is(112))]),
    (libc::SYS_poll, &[(0, Out, Each(1, 8))]),
    (
        libc::SYS_ppoll,
        &[(0, Out, Each(1, 8)), (2, Out, TIMESPEC), (3, In, Arg(4))],
    ),
    (
        libc::SYS_select,
        &[
            (1, Out, Bits(0)),
            (2, Out, Bits(0)),
            (3, Out, Bits(0)),
            (4, Out, Is(16)),
        ],
    ),
    (
        libc::SYS_pselect6,
        &[
            (1, Out, Bits(0)),
            (2, Out, Bits(0)),
            (3, Out, Bits(0)),
            (4, Out, TIMESPEC),
            (5, In, Is(16)),
        ],
    ),
    (libc::SYS_epoll_wait, &[(1, Out, Each(2, 12))]),
    (
        libc::SYS_epoll_pwait,
        &[(1, Out, Each(2, 12)), (4, In, Arg(5))],
    ),
    (
        libc::SYS_epoll_pwait2,
        &[(1, Out, Each(2, 12)), (3, In, TIMESPEC), (4, In, Arg(5))],
    ),
    (libc::SYS_epoll_ctl, &[(3, In, Is(12))]),
    (
        libc::SYS_nanosleep,
        &[(0, In, TIMESPEC), (1, Out, TIMESPEC)],
    ),
    (
        libc::SYS_clock_nanosleep,
        &[(2, In, TIMESPEC), (3, Out, TIMESPEC)],
    ),
    (libc::SYS_clock_gettime, &[(1, Out, TIMESPEC)]),
    (libc::SYS_clock_getres, &[(1, Out, TIMESPEC)]),
    (libc::SYS_gettimeofday, &[(0, Out, Is(16)), (1, Out, Is(8))]),
    (libc::SYS_time, &[(0, Out, Is(8))]),
    (libc::SYS_times, &[(0, Out, Is(32))]),
    (libc::SYS_wait4, &[(1, Out, Is(4)), (3, Out, RUSAGE)]),
    (libc::SYS_waitid, &[(2, Out, Is(128)), (4, Out, RUSAGE)]),
    (libc::SYS_getrusage, &[(1, Out, RUSAGE)]),
    (libc::SYS_getrlimit, &[(1, Out, Is(16))]),
    (libc::SYS_setrlimit, &[(1, In, Is(16))]),
    (libc::SYS_prlimit64, &[(2, In, Is(16)), (3, Out, Is(16))]),
    (libc::SYS_pipe, &[(0, Out, Is(8))]),
    (libc::SYS_pipe2, &[(0, Out, Is(8))]),
    (libc::SYS_socketpair, &[(3, Out, Is(8))]),
    (libc::SYS_connect, &[(1, In, Arg(2))]),
    (libc::SYS_bind, &[(1, In, Arg(2))]),
    (libc::SYS_accept, &[(1, Out, At(2)), (2, Out, Is(4))]),
    (libc::SYS_accept4, &[(1, Out, At(2)), (2, Out, Is(4))]),
    (libc::SYS_getsockname, &[(1, Out, At(2)), (2, Out, Is(4))]),
    (libc::SYS_getpeername, &[(1, Out, At(2)), (2, Out, Is(4))]),
    (libc::SYS_getsockopt, &[(3, Out, At(4)), (4, Out, Is(4))]),
    (libc::SYS_setsockopt, &[(3, In, Arg(4))]),
    (libc::SYS_sendfile, &[(2, Out, Is(8))]),
    (libc::SYS_splice, &[(1, Out, Is(8)), (3, Out, Is(8))]),
    (
        libc::SYS_copy_file_range,
        &[(1, Out, Is(8)), (3, Out, Is(8))],
    ),
    (libc::SYS_sched_getaffinity, &[(2, Out, Arg(1))]),
    (libc::SYS_sched_setaffinity, &[(2, In, Arg(1))]),
    (libc::SYS_getgroups, &[(1, Out, Each(0, 4))]),
    (libc::SYS_getitimer, &[(1, Out, Is(32))]),
    (libc::SYS_setitimer, &[(1, In, Is(32)), (2, Out, Is(32))]),
    (libc::SYS_timer_create, &[(1, In, Is(64)), (2, Out, Is(4))]),
    (
        libc::SYS_timer_settime,
        &[(2, In, Is(32)), (3, Out, Is(32))],
    ),
    (libc::SYS_timer_gettime, &[(1, Out, Is(32))]),
    (
        libc::SYS_timerfd_settime,
        &[(2, In, Is(32)), (3, Out, Is(32))],
    ),
    (libc::SYS_timerfd_gettime, &[(1, Out, Is(32))]),
    (libc::SYS_rt_sigaction, &[(1, In, Is(32)), (2, Out, Is(32))]),
    (libc::SYS_rt_sigpending, &[(0, Out, Arg(1))]),
    (libc::SYS_rt_sigsuspend, &[(0, In, Arg(1))]),
    (
        libc::SYS_rt_sigtimedwait,
        &[(0, In, Arg(3)), (1, Out, Is(128)), (2, In, TIMESPEC)],
    ),
    (libc::SYS_signalfd4, &[(1, In, Arg(2))]),
    (libc::SYS_io_setup, &[(1, Out, Is(8))]),
    (
        libc::SYS_io_getevents,
        &[(3, Out, Each(2, 32)), (4, In, TIMESPEC)],
    ),
    (libc::SYS_io_cancel, &[(2, Out, Is(32))]),
    (libc::SYS_getcpu, &[(0, Out, Is(4)), (1, Out, Is(4))]),
    (libc::SYS_mincore, &[(2, Out, Each(1, 1))]),
];

/// The buffers of call `nr`, if it is known.
pub fn buffers(nr: i64) -> Option<&'static [Buffer]> {
    CALLS.iter().find(|(n, _)| *n == nr).map(|(_, b)| *b)
}

/// Calls that [`crate::issue`] handles one by one, or as unknown, with a bit for each argument that
/// may be a pointer. The most frequent calls come first.
pub static SPECIAL: &[(i64, u8)] = &[
    (libc::SYS_read, 0b10),
    (libc::SYS_write, 0b10),
    (libc::SYS_pread64, 0b10),
    (libc::SYS_pwrite64, 0b10),
    (libc::SYS_recvfrom, 0b11_0010),
    (libc::SYS_sendto, 0b1_0010),
    (libc::SYS_getrandom, 0b1),
    (libc::SYS_readv, 0b10),
    (libc::SYS_writev, 0b10),
    (libc::SYS_preadv, 0b10),
    (libc::SYS_pwritev, 0b10),
    (libc::SYS_preadv2, 0b10),
    (libc::SYS_pwritev2, 0b10),
    (libc::SYS_vmsplice, 0b10),
    (libc::SYS_process_vm_readv, 0b1010),
    (libc::SYS_process_vm_writev, 0b1010),
    (libc::SYS_recvmsg, 0b10),
    (libc::SYS_sendmsg, 0b10),
    (libc::SYS_recvmmsg, 0b1_0010),
    (libc::SYS_sendmmsg, 0b10),
    (libc::SYS_ioctl, 0b100),
    (libc::SYS_fcntl, 0b100),
    (libc::SYS_prctl, 0b1_1110),
];

/// Calls without pointers.
pub static PLAIN: &[i64] = &[
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_kill,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getpgrp,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    libc::SYS_setpgid,
    libc::SYS_setsid,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_sched_yield,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getscheduler,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_syncfs,
    libc::SYS_sync,
    libc::SYS_sync_file_range,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_flock,
    libc::SYS_fchmod,
    libc::SYS_fchown,
    libc::SYS_fchdir,
    libc::SYS_umask,
    libc::SYS_socket,
    libc::SYS_listen,
    libc::SYS_shutdown,
    libc::SYS_epoll_create,
    libc::SYS_epoll_create1,
    libc::SYS_eventfd,
    libc::SYS_eventfd2,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_timerfd_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_getoverrun,
    libc::SYS_alarm,
    libc::SYS_pause,
    libc::SYS_membarrier,
    libc::SYS_munlockall,
    libc::SYS_tee,
    libc::SYS_pidfd_open,
    libc::SYS_shmget,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_personality,
    libc::SYS_arch_prctl,
];

/// A bit for each argument that is a pointer.
pub fn pointers(buffers: &[Buffer]) -> u8 {
    buffers.iter().fold(0, |m, &(i, _, _)| m | 1 << i)
}

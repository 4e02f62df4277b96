//! The errors that a system call can return by its manual page, except those that mean a wrong
//! call.

use hugeswap_sys::Errno;
use hugeswap_sys::inject::Kind;

const UFFD: u32 = 0xaa;

/// The requests of a userfaultfd, by their numbers.
fn uffd_request(request: u32) -> Option<&'static str> {
    if request >> 8 & 0xff != UFFD {
        return None;
    }
    Some(match request & 0xff {
        0x00 => "UFFDIO_REGISTER",
        0x01 => "UFFDIO_UNREGISTER",
        0x02 => "UFFDIO_WAKE",
        0x03 => "UFFDIO_COPY",
        0x04 => "UFFDIO_ZEROPAGE",
        0x05 => "UFFDIO_MOVE",
        0x06 => "UFFDIO_WRITEPROTECT",
        0x08 => "UFFDIO_POISON",
        0x3f => "UFFDIO_API",
        _ => "UFFDIO",
    })
}

/// The name of a call.
pub fn name_of(kind: Kind) -> String {
    if i64::from(kind.nr) == libc::SYS_ioctl
        && let Some(name) = uffd_request(kind.request)
    {
        return name.to_owned();
    }
    let name = CALLS.iter().find(|c| c.0 == i64::from(kind.nr));
    let name = name.map_or("call", |c| c.1);
    format!("{name} {:#x}", kind.request)
}

/// The errors that a kind of call can return, except those that mean a wrong call.
pub fn errors_of(kind: Kind) -> &'static [Errno] {
    if i64::from(kind.nr) == libc::SYS_ioctl {
        return match uffd_request(kind.request) {
            Some("UFFDIO_MOVE") => &[
                Errno::EAGAIN,
                Errno::EBUSY,
                Errno::EEXIST,
                Errno::ENOENT,
                Errno::ENOMEM,
                Errno::EINVAL,
            ],
            Some("UFFDIO_COPY" | "UFFDIO_ZEROPAGE" | "UFFDIO_POISON") => &[
                Errno::EAGAIN,
                Errno::EEXIST,
                Errno::ENOENT,
                Errno::ENOMEM,
                Errno::ENOSPC,
            ],
            Some("UFFDIO_WRITEPROTECT") => &[Errno::EAGAIN, Errno::ENOENT, Errno::ENOMEM],
            Some("UFFDIO_REGISTER") => &[Errno::EBUSY, Errno::ENOMEM, Errno::EPERM],
            Some("UFFDIO_UNREGISTER") => &[Errno::ENOMEM],
            Some("UFFDIO_WAKE") => &[],
            Some(_) => &[Errno::EINVAL],
            None => &[Errno::ENOTTY, Errno::ENOMEM, Errno::EIO],
        };
    }
    let call = CALLS.iter().find(|c| c.0 == i64::from(kind.nr));
    call.map_or(
        &[Errno::ENOMEM, Errno::EAGAIN, Errno::EINTR, Errno::EPERM],
        |c| c.2,
    )
}

type Call = (i64, &'static str, &'static [Errno]);

/// Those of a write to a file.
const WRITE: &[Errno] = &[
    Errno::EIO,
    Errno::EINTR,
    Errno::EAGAIN,
    Errno::ENOSPC,
    Errno::ENOMEM,
    Errno::EPERM,
];

const CALLS: &[Call] = &[
    (
        libc::SYS_mmap,
        "mmap",
        &[Errno::ENOMEM, Errno::EAGAIN, Errno::EPERM],
    ),
    (libc::SYS_munmap, "munmap", &[Errno::ENOMEM]),
    (
        libc::SYS_mremap,
        "mremap",
        &[Errno::ENOMEM, Errno::EAGAIN, Errno::EFAULT],
    ),
    (
        libc::SYS_mprotect,
        "mprotect",
        &[Errno::ENOMEM, Errno::EACCES],
    ),
    (
        libc::SYS_madvise,
        "madvise",
        &[Errno::ENOMEM, Errno::EAGAIN, Errno::EBUSY],
    ),
    (
        libc::SYS_process_madvise,
        "process_madvise",
        &[Errno::ENOMEM, Errno::EPERM, Errno::EINTR],
    ),
    (
        libc::SYS_mincore,
        "mincore",
        &[Errno::EAGAIN, Errno::ENOMEM],
    ),
    (
        libc::SYS_mlock,
        "mlock",
        &[Errno::ENOMEM, Errno::EAGAIN, Errno::EPERM],
    ),
    (
        libc::SYS_move_pages,
        "move_pages",
        &[Errno::ENOMEM, Errno::EPERM],
    ),
    (
        libc::SYS_pread64,
        "pread",
        &[Errno::EIO, Errno::EINTR, Errno::EAGAIN, Errno::ENOMEM],
    ),
    (libc::SYS_pwrite64, "pwrite", WRITE),
    (libc::SYS_pwritev, "pwritev", WRITE),
    (
        libc::SYS_read,
        "read",
        &[Errno::EAGAIN, Errno::EINTR, Errno::EIO],
    ),
    (
        libc::SYS_write,
        "write",
        &[Errno::EAGAIN, Errno::EINTR, Errno::EIO],
    ),
    (
        libc::SYS_fallocate,
        "fallocate",
        &[Errno::ENOSPC, Errno::EINTR, Errno::EIO, Errno::EPERM],
    ),
    (
        libc::SYS_ftruncate,
        "ftruncate",
        &[Errno::EINTR, Errno::EIO, Errno::EPERM],
    ),
    (
        libc::SYS_openat,
        "openat",
        &[
            Errno::EMFILE,
            Errno::ENFILE,
            Errno::ENOMEM,
            Errno::EACCES,
            Errno::EINTR,
        ],
    ),
    (libc::SYS_close, "close", &[Errno::EINTR, Errno::EIO]),
    (libc::SYS_fstat, "fstat", &[Errno::ENOMEM]),
    (libc::SYS_fstatfs, "fstatfs", &[Errno::ENOMEM, Errno::EINTR]),
    (
        libc::SYS_flock,
        "flock",
        &[Errno::EINTR, Errno::EAGAIN, Errno::ENOMEM],
    ),
    (
        libc::SYS_close_range,
        "close_range",
        &[Errno::EMFILE, Errno::ENOMEM],
    ),
    (libc::SYS_prlimit64, "prlimit", &[]),
    (libc::SYS_fcntl, "fcntl", &[Errno::EMFILE, Errno::EAGAIN]),
    (
        libc::SYS_memfd_create,
        "memfd_create",
        &[Errno::EMFILE, Errno::ENOMEM],
    ),
    (
        libc::SYS_userfaultfd,
        "userfaultfd",
        &[Errno::EPERM, Errno::EMFILE, Errno::ENOMEM],
    ),
    (libc::SYS_futex, "futex", &[Errno::EAGAIN, Errno::EINTR]),
    (
        libc::SYS_getrandom,
        "getrandom",
        &[Errno::EINTR, Errno::EAGAIN],
    ),
    (libc::SYS_rt_sigprocmask, "rt_sigprocmask", &[]),
    (libc::SYS_rt_sigaction, "rt_sigaction", &[]),
    (
        libc::SYS_sigaltstack,
        "sigaltstack",
        &[Errno::ENOMEM, Errno::EPERM],
    ),
    (libc::SYS_sched_yield, "sched_yield", &[]),
    (libc::SYS_getpid, "getpid", &[]),
    (libc::SYS_gettid, "gettid", &[]),
    (libc::SYS_getppid, "getppid", &[]),
    (libc::SYS_getcpu, "getcpu", &[]),
    (libc::SYS_getrusage, "getrusage", &[Errno::EPERM]),
    (libc::SYS_kill, "kill", &[Errno::EPERM]),
    (libc::SYS_tgkill, "tgkill", &[Errno::EAGAIN]),
    (
        libc::SYS_io_uring_setup,
        "io_uring_setup",
        &[Errno::ENOMEM, Errno::EPERM, Errno::EMFILE],
    ),
    (
        libc::SYS_io_uring_enter,
        "io_uring_enter",
        &[Errno::EAGAIN, Errno::EBUSY, Errno::EINTR],
    ),
    (
        libc::SYS_io_setup,
        "io_setup",
        &[Errno::EAGAIN, Errno::ENOSYS, Errno::EPERM],
    ),
    (
        libc::SYS_io_submit,
        "io_submit",
        &[Errno::EAGAIN, Errno::EINVAL, Errno::EPERM],
    ),
    (libc::SYS_io_getevents, "io_getevents", &[Errno::EINTR]),
    (libc::SYS_io_destroy, "io_destroy", &[]),
    (libc::SYS_unshare, "unshare", &[Errno::ENOMEM, Errno::EPERM]),
];

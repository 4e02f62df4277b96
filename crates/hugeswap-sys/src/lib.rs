//! Every system call that hugeswap makes, typed, with a line of contract each.
//!
//! All calls go straight to the kernel. They do not touch `errno`, allocate, lock or pass through
//! anything that a program may have interposed, so a signal handler may make any of them. x86-64
//! Linux only.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

pub mod aio;
pub mod attach;
pub mod block;
mod errno;
pub mod fiemap;
pub mod fs;
pub mod futex;
#[cfg(feature = "inject")]
pub mod inject;
pub mod maps;
pub mod mm;
pub mod own;
pub mod probe;
pub mod process;
pub mod program_fs;
pub mod raw;
pub mod signal;
pub mod small;
#[cfg(feature = "spawn")]
pub mod spawn;
pub mod stack;
pub mod thread;
#[cfg(feature = "spawn")]
pub mod trace;
pub mod uffd;
pub mod uring;

pub use errno::Errno;

/// The result of a call: a value, or the kernel's error number.
pub type Result<T, E = Errno> = std::result::Result<T, E>;

/// Nanoseconds of CLOCK_MONOTONIC, without a system call where the vDSO serves it.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// Nanoseconds of CLOCK_BOOTTIME, the clock of the start times of processes.
pub fn since_boot_ns() -> u64 {
    clock_ns(libc::CLOCK_BOOTTIME).unwrap_or(0)
}

fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is a valid, writable timespec; clock_gettime is async-signal-safe.
    let known = unsafe { libc::clock_gettime(clock, &mut ts) } == 0;
    known.then_some(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
}

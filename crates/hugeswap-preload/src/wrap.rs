//! The common transfer calls, as the C library names them.
//!
//! A call on a buffer that is not managed costs one comparison and goes on to the C library. A call
//! on a managed buffer in signal mode goes to [`crate::issue`] directly, which saves the trap. In
//! message mode the kernel waits for pages by itself.

use crate::issue::{Args, Caller};
use crate::pagemap::{self, pread, read};
use crate::real::{self, answer};
use crate::{addresses, extent, fds, files, locked, state};
use libc::{c_int, c_long, c_uint, c_void, iovec, off_t, size_t, socklen_t, ssize_t};

/// Makes the call through [`crate::issue`] if one of `pointers` is managed and this process is in
/// signal mode. `None`: the call is not made, and needs no care.
#[inline]
fn care(nr: c_long, a: Args, pointers: &[usize]) -> Option<isize> {
    if pointers.iter().any(|&p| extent::managed(p)) {
        with_care(nr, a)
    } else {
        None
    }
}

#[cold]
fn with_care(nr: c_long, a: Args) -> Option<isize> {
    care_as(nr, a, true)
}

fn care_as(nr: c_long, a: Args, cancellable: bool) -> Option<isize> {
    let engine = state::careful()?;
    let caller = Caller {
        engine,
        mask: None,
        cancellable,
    };
    Some(answer(caller.issue(nr, a)))
}

/// As [`care`], for calls whose vector may hold managed pointers.
#[inline]
fn care_vector(nr: c_long, a: Args, vector: usize, count: usize) -> Option<isize> {
    if vector_managed(vector, count) {
        with_care(nr, a)
    } else {
        None
    }
}

/// Does a vector, or anything it points to, lie in managed memory?
fn vector_managed(vector: usize, count: usize) -> bool {
    // SAFETY: the program's vector. If it is not readable, the kernel would return EFAULT, and we
    // fault.
    let base = |i: usize| unsafe { (*(vector as *const iovec).add(i)).iov_base as usize };
    state::engine().is_some()
        && (extent::managed(vector)
            || (vector != 0 && (0..count.min(1024)).any(|i| extent::managed(base(i)))))
}

macro_rules! wrap {
    ($($(#[$attr:meta])* $vis:vis fn $name:ident / $next:ident ($($arg:ident: $ty:ty),*) -> $ret:ty = $nr:ident [$($pointer:ident),*] ($($given:expr),*);)*) => {$(
        $(#[$attr])*
        $vis unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
            match care(libc::$nr, args(&[$($given as usize),*]), &[$($pointer as usize),*]) {
                Some(r) => r as $ret,
                // SAFETY: passed on.
                None => unsafe { wrap!(@call $next $($arg),*) },
            }
        }
    )*};
    (@call $next:ident $($arg:ident),*) => { real::$next()($($arg),*) };
}

fn args(given: &[usize]) -> Args {
    let mut a = [0; 6];
    a[..given.len()].copy_from_slice(given);
    a
}

wrap! {
    // [`crate::pagemap`] defines `read`, `pread` and `pread64`.
    pub fn plain_read / read (fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t = SYS_read [buf] (fd, buf, n);
    #[unsafe(no_mangle)]
    pub fn write / write (fd: c_int, buf: *const c_void, n: size_t) -> ssize_t = SYS_write [buf] (fd, buf, n);
    pub fn plain_pread / pread (fd: c_int, buf: *mut c_void, n: size_t, at: off_t) -> ssize_t = SYS_pread64 [buf] (fd, buf, n, at);
    #[unsafe(no_mangle)]
    pub fn pwrite / pwrite (fd: c_int, buf: *const c_void, n: size_t, at: off_t) -> ssize_t = SYS_pwrite64 [buf] (fd, buf, n, at);
    #[unsafe(no_mangle)]
    fn pwrite64 / pwrite (fd: c_int, buf: *const c_void, n: size_t, at: off_t) -> ssize_t = SYS_pwrite64 [buf] (fd, buf, n, at);
    #[unsafe(no_mangle)]
    fn recv / recv (fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t = SYS_recvfrom [buf] (fd, buf, n, flags, 0usize, 0usize);
    #[unsafe(no_mangle)]
    fn send / send (fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t = SYS_sendto [buf] (fd, buf, n, flags, 0usize, 0usize);
    #[unsafe(no_mangle)]
    fn recvfrom / recvfrom (fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: *mut c_void, len: *mut socklen_t) -> ssize_t
        = SYS_recvfrom [buf, addr, len] (fd, buf, n, flags, addr, len);
    #[unsafe(no_mangle)]
    fn sendto / sendto (fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: *const c_void, len: socklen_t) -> ssize_t
        = SYS_sendto [buf, addr] (fd, buf, n, flags, addr, len);
    #[unsafe(no_mangle)]
    fn getrandom / getrandom (buf: *mut c_void, n: size_t, flags: c_uint) -> ssize_t = SYS_getrandom [buf] (buf, n, flags);
}

/// The fortified variants check that the buffer has room, then do what the plain functions do.
macro_rules! fortified {
    ($($name:ident => $plain:ident ($($arg:ident: $ty:ty),*) $n:ident $room:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*, $room: size_t) -> ssize_t {
            unsafe extern "C" {
                fn __chk_fail() -> !;
            }
            if $n > $room {
                // SAFETY: glibc's end for programs that overflow a buffer.
                unsafe { __chk_fail() };
            }
            // SAFETY: passed on.
            unsafe { $plain($($arg),*) }
        }
    )*};
}

fortified! {
    __read_chk => read(fd: c_int, buf: *mut c_void, n: size_t) n room;
    __pread_chk => pread(fd: c_int, buf: *mut c_void, n: size_t, at: off_t) n room;
    __pread64_chk => pread(fd: c_int, buf: *mut c_void, n: size_t, at: off_t) n room;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: passed on; the check is that of __read_chk.
    unsafe {
        if n > room {
            return __read_chk(fd, buf, n, room);
        }
        recv(fd, buf, n, flags)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut c_void,
    len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: passed on; the check is that of __read_chk.
    unsafe {
        if n > room {
            return __read_chk(fd, buf, n, room);
        }
        recvfrom(fd, buf, n, flags, addr, len)
    }
}

macro_rules! wrap_vector {
    ($(fn $name:ident / $next:ident ($($arg:ident: $ty:ty),*) = $nr:ident ($($given:expr),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(fd: c_int, iov: *const iovec, count: c_int $(, $arg: $ty)*) -> ssize_t {
            let a = args(&[fd as usize, iov as usize, count as usize $(, $given as usize)*]);
            match care_vector(libc::$nr, a, iov as usize, count.max(0) as usize) {
                Some(r) => r,
                // SAFETY: passed on.
                None => unsafe { wrap_vector!(@call $next fd, iov, count $(, $arg)*) },
            }
        }
    )*};
    (@call $next:ident $($arg:ident),*) => { real::$next()($($arg),*) };
}

wrap_vector! {
    fn readv / readv () = SYS_readv ();
    fn writev / writev () = SYS_writev ();
    fn preadv / preadv (at: off_t) = SYS_preadv (at, 0usize);
    fn preadv64 / preadv (at: off_t) = SYS_preadv (at, 0usize);
    fn pwritev / pwritev (at: off_t) = SYS_pwritev (at, 0usize);
    fn pwritev64 / pwritev (at: off_t) = SYS_pwritev (at, 0usize);
    fn preadv2 / preadv2 (at: off_t, flags: c_int) = SYS_preadv2 (at, 0usize, flags);
    fn preadv64v2 / preadv2 (at: off_t, flags: c_int) = SYS_preadv2 (at, 0usize, flags);
    fn pwritev2 / pwritev2 (at: off_t, flags: c_int) = SYS_pwritev2 (at, 0usize, flags);
    fn pwritev64v2 / pwritev2 (at: off_t, flags: c_int) = SYS_pwritev2 (at, 0usize, flags);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn vmsplice(
    fd: c_int,
    iov: *const iovec,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    let a = [fd as usize, iov as usize, count, flags as usize, 0, 0];
    match care_vector(libc::SYS_vmsplice, a, iov as usize, count) {
        Some(r) => r,
        // SAFETY: passed on.
        None => unsafe { real::vmsplice()(fd, iov, count, flags) },
    }
}

macro_rules! process_vm {
    ($($name:ident = $nr:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            pid: libc::pid_t, local: *const iovec, n: libc::c_ulong, remote: *const iovec, m: libc::c_ulong, flags: libc::c_ulong,
        ) -> ssize_t {
            let a = [pid as usize, local as usize, n as usize, remote as usize, m as usize, flags as usize];
            care_vector(libc::$nr, a, local as usize, n as usize).unwrap_or_else(|| {
                // SAFETY: passed on.
                answer(unsafe { hugeswap_sys::raw::syscall6(libc::$nr as usize, a) })
            })
        }
    )*};
}

process_vm! {
    process_vm_readv = SYS_process_vm_readv;
    process_vm_writev = SYS_process_vm_writev;
}

/// Is any of a message's header, name, control data, vector and buffers in managed memory?
fn message_managed(m: usize) -> bool {
    if m == 0 || state::engine().is_none() {
        return false;
    }
    if extent::managed(m) {
        return true;
    }
    // SAFETY: the program's message header and vector.
    unsafe {
        let h = &*(m as *const libc::msghdr);
        [
            h.msg_name as usize,
            h.msg_control as usize,
            h.msg_iov as usize,
        ]
        .into_iter()
        .any(extent::managed)
            || (0..h.msg_iovlen.min(1024))
                .any(|i| extent::managed((*h.msg_iov.add(i)).iov_base as usize))
    }
}

fn messages_managed(v: usize, n: usize) -> bool {
    v != 0
        && state::engine().is_some()
        && (extent::managed(v)
            || (0..n.min(1024)).any(|i| message_managed(v + i * size_of::<libc::mmsghdr>())))
}

fn care_if(managed: bool, nr: c_long, a: Args) -> Option<isize> {
    if managed { with_care(nr, a) } else { None }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> ssize_t {
    let a = [fd as usize, message as usize, flags as usize, 0, 0, 0];
    // SAFETY: passed on.
    care_if(message_managed(message as usize), libc::SYS_recvmsg, a)
        .unwrap_or_else(|| unsafe { real::recvmsg()(fd, message, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> ssize_t {
    let a = [fd as usize, message as usize, flags as usize, 0, 0, 0];
    files::descriptors_leave();
    // SAFETY: passed on.
    care_if(message_managed(message as usize), libc::SYS_sendmsg, a)
        .unwrap_or_else(|| unsafe { real::sendmsg()(fd, message, flags) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> c_int {
    let a = [
        fd as usize,
        messages as usize,
        n as usize,
        flags as usize,
        timeout as usize,
        0,
    ];
    match care_if(
        messages_managed(messages as usize, n as usize),
        libc::SYS_recvmmsg,
        a,
    ) {
        Some(r) => r as c_int,
        // SAFETY: passed on.
        None => unsafe { real::recvmmsg()(fd, messages, n, flags, timeout) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    n: c_uint,
    flags: c_int,
) -> c_int {
    let a = [
        fd as usize,
        messages as usize,
        n as usize,
        flags as usize,
        0,
        0,
    ];
    files::descriptors_leave();
    match care_if(
        messages_managed(messages as usize, n as usize),
        libc::SYS_sendmmsg,
        a,
    ) {
        Some(r) => r as c_int,
        // SAFETY: passed on.
        None => unsafe { real::sendmmsg()(fd, messages, n, flags) },
    }
}

/// libc's `syscall`. A call that has a wrapper is handled as the wrapper does, because the filter
/// does not look into vectors.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    nr: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let all = [a, b, c, d, e, f];
    // SAFETY: passed on.
    if let Some(r) = unsafe { pagemap::by_number(nr, [a, b, c, d]) } {
        return r as c_long;
    }
    // SAFETY: passed on.
    let r = locked::by_number(nr, all[0]).or_else(|| unsafe { addresses::by_number(nr, all) });
    if let Some(r) = r {
        return answer(r) as c_long;
    }
    // Unlike the library's own functions, this one is not a cancellation point.
    let uncancelled = |managed: bool| {
        if managed {
            care_as(nr, all, false)
        } else {
            None
        }
    };
    if nr == libc::SYS_sendmsg || nr == libc::SYS_sendmmsg {
        files::descriptors_leave();
    }
    let cared = match nr {
        libc::SYS_close if state::is_our_fd(a as c_int) => Some(answer(-(libc::EBADF as isize))),
        libc::SYS_close_range => Some(answer(fds::close_range_raw(
            a as c_uint,
            b as c_uint,
            c as c_int,
        ))),
        libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_vmsplice
        | libc::SYS_process_vm_readv
        | libc::SYS_process_vm_writev => uncancelled(vector_managed(b, c)),
        libc::SYS_recvmsg | libc::SYS_sendmsg => uncancelled(message_managed(b)),
        libc::SYS_recvmmsg | libc::SYS_sendmmsg => uncancelled(messages_managed(b, c)),
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_recvfrom
        | libc::SYS_sendto => uncancelled(extent::managed(b)),
        libc::SYS_futex => uncancelled(extent::managed(a)),
        _ => None,
    };
    match cared {
        Some(r) => r as c_long,
        // SAFETY: passed on; libc takes its arguments from the same registers and the same place on
        // the stack.
        None => unsafe { real::syscall()(nr, a, b, c, d, e, f) },
    }
}

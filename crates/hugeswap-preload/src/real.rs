//! The functions that the program would call without this library: the definitions that come after
//! ours.
//!
//! Each is looked up at its first call ([`crate::symbols`]), which may happen anywhere: in a signal
//! handler, between vfork and exec, or inside the program's allocator.

use crate::symbols::{self, Name};
use hugeswap_sys::fs;
use libc::{c_char, c_int, c_long, c_uint, c_void, off_t, size_t, ssize_t};
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicUsize};

type Routine = extern "C" fn(*mut c_void) -> *mut c_void;
type Strings = *const *const c_char;
type Attr = *const libc::pthread_attr_t;
type SpawnActions = *const libc::posix_spawn_file_actions_t;
type SpawnAttr = *const libc::posix_spawnattr_t;
type Realloc = unsafe extern "C" fn(*mut c_void, size_t) -> *mut c_void;
type Timespec = *const libc::timespec;
type SigSet = *const libc::sigset_t;

macro_rules! next {
    ($($name:ident: fn($($arg:ty),*) -> $ret:ty;)*) => {
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        #[repr(usize)]
        enum Index { $($name,)* }
        /// All names, one after the other. A table of pointers would have to be relocated at every
        /// start.
        const NAMES: &str = concat!($(stringify!($name), "\0"),*);
        const COUNT: usize = [$(stringify!($name)),*].len();
        $(
            /// The next definition of the function of this name.
            #[inline]
            #[allow(non_snake_case)]
            pub fn $name() -> unsafe extern "C" fn($($arg),*) -> $ret {
                let at = address(Index::$name as usize);
                // SAFETY: an address that was found under this name, whose C prototype is the one
                // declared here.
                unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($arg),*) -> $ret>(at) }
            }
        )*
    };
}

next! {
    malloc: fn(size_t) -> *mut c_void;
    free: fn(*mut c_void) -> ();
    calloc: fn(size_t, size_t) -> *mut c_void;
    realloc: fn(*mut c_void, size_t) -> *mut c_void;
    aligned_alloc: fn(size_t, size_t) -> *mut c_void;
    memalign: fn(size_t, size_t) -> *mut c_void;
    posix_memalign: fn(*mut *mut c_void, size_t, size_t) -> c_int;
    valloc: fn(size_t) -> *mut c_void;
    pvalloc: fn(size_t) -> *mut c_void;
    malloc_usable_size: fn(*mut c_void) -> size_t;
    malloc_trim: fn(size_t) -> c_int;
    open: fn(*const c_char, c_int, c_uint) -> c_int;
    open64: fn(*const c_char, c_int, c_uint) -> c_int;
    openat: fn(c_int, *const c_char, c_int, c_uint) -> c_int;
    openat64: fn(c_int, *const c_char, c_int, c_uint) -> c_int;
    __open_2: fn(*const c_char, c_int) -> c_int;
    __open64_2: fn(*const c_char, c_int) -> c_int;
    __openat_2: fn(c_int, *const c_char, c_int) -> c_int;
    __openat64_2: fn(c_int, *const c_char, c_int) -> c_int;
    fopen: fn(*const c_char, *const c_char) -> *mut libc::FILE;
    fopen64: fn(*const c_char, *const c_char) -> *mut libc::FILE;
    read: fn(c_int, *mut c_void, size_t) -> ssize_t;
    write: fn(c_int, *const c_void, size_t) -> ssize_t;
    pread: fn(c_int, *mut c_void, size_t, off_t) -> ssize_t;
    pwrite: fn(c_int, *const c_void, size_t, off_t) -> ssize_t;
    readv: fn(c_int, *const libc::iovec, c_int) -> ssize_t;
    writev: fn(c_int, *const libc::iovec, c_int) -> ssize_t;
    preadv: fn(c_int, *const libc::iovec, c_int, off_t) -> ssize_t;
    pwritev: fn(c_int, *const libc::iovec, c_int, off_t) -> ssize_t;
    preadv2: fn(c_int, *const libc::iovec, c_int, off_t, c_int) -> ssize_t;
    pwritev2: fn(c_int, *const libc::iovec, c_int, off_t, c_int) -> ssize_t;
    vmsplice: fn(c_int, *const libc::iovec, size_t, c_uint) -> ssize_t;
    recv: fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
    recvfrom: fn(c_int, *mut c_void, size_t, c_int, *mut c_void, *mut libc::socklen_t) -> ssize_t;
    recvmsg: fn(c_int, *mut libc::msghdr, c_int) -> ssize_t;
    recvmmsg: fn(c_int, *mut libc::mmsghdr, c_uint, c_int, *mut libc::timespec) -> c_int;
    send: fn(c_int, *const c_void, size_t, c_int) -> ssize_t;
    sendto: fn(c_int, *const c_void, size_t, c_int, *const c_void, libc::socklen_t) -> ssize_t;
    sendmsg: fn(c_int, *const libc::msghdr, c_int) -> ssize_t;
    sendmmsg: fn(c_int, *mut libc::mmsghdr, c_uint, c_int) -> c_int;
    fread: fn(*mut c_void, size_t, size_t, *mut libc::FILE) -> size_t;
    fwrite: fn(*const c_void, size_t, size_t, *mut libc::FILE) -> size_t;
    fread_unlocked: fn(*mut c_void, size_t, size_t, *mut libc::FILE) -> size_t;
    fwrite_unlocked: fn(*const c_void, size_t, size_t, *mut libc::FILE) -> size_t;
    getrandom: fn(*mut c_void, size_t, c_uint) -> ssize_t;
    syscall: fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
    sigaction: fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    signal: fn(c_int, usize) -> usize;
    sysv_signal: fn(c_int, usize) -> usize;
    sigset: fn(c_int, usize) -> usize;
    sigignore: fn(c_int) -> c_int;
    sigprocmask: fn(c_int, SigSet, *mut libc::sigset_t) -> c_int;
    pthread_sigmask: fn(c_int, SigSet, *mut libc::sigset_t) -> c_int;
    sigsuspend: fn(SigSet) -> c_int;
    signalfd: fn(c_int, SigSet, c_int) -> c_int;
    ppoll: fn(*mut libc::pollfd, libc::nfds_t, Timespec, SigSet) -> c_int;
    __ppoll_chk: fn(*mut libc::pollfd, libc::nfds_t, Timespec, SigSet, size_t) -> c_int;
    pselect: fn(c_int, *mut libc::fd_set, *mut libc::fd_set, *mut libc::fd_set, Timespec, SigSet) -> c_int;
    epoll_pwait: fn(c_int, *mut libc::epoll_event, c_int, c_int, SigSet) -> c_int;
    epoll_pwait2: fn(c_int, *mut libc::epoll_event, c_int, Timespec, SigSet) -> c_int;
    pthread_create: fn(*mut libc::pthread_t, Attr, Routine, *mut c_void) -> c_int;
    pthread_mutex_init: fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;
    close: fn(c_int) -> c_int;
    memfd_create: fn(*const c_char, c_uint) -> c_int;
    shm_open: fn(*const c_char, c_int, libc::mode_t) -> c_int;
    shm_unlink: fn(*const c_char) -> c_int;
    ftruncate: fn(c_int, off_t) -> c_int;
    fstat: fn(c_int, *mut libc::stat) -> c_int;
    __fxstat: fn(c_int, c_int, *mut libc::stat) -> c_int;
    fstatat: fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    statx: fn(c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
    posix_fallocate: fn(c_int, off_t, off_t) -> c_int;
    dup2: fn(c_int, c_int) -> c_int;
    dup3: fn(c_int, c_int, c_int) -> c_int;
    _Fork: fn() -> libc::pid_t;
    execve: fn(*const c_char, Strings, Strings) -> c_int;
    execvpe: fn(*const c_char, Strings, Strings) -> c_int;
    fexecve: fn(c_int, Strings, Strings) -> c_int;
    timer_create: fn(libc::clockid_t, *const c_void, *mut libc::timer_t) -> c_int;
    timer_delete: fn(libc::timer_t) -> c_int;
    mq_notify: fn(libc::mqd_t, *const c_void) -> c_int;
    aio_read: fn(*mut c_void) -> c_int;
    aio_write: fn(*mut c_void) -> c_int;
    aio_fsync: fn(c_int, *mut c_void) -> c_int;
    aio_suspend: fn(*const *mut c_void, c_int, Timespec) -> c_int;
    aio_cancel: fn(c_int, *mut c_void) -> c_int;
    lio_listio: fn(c_int, *const *mut c_void, c_int, *mut c_void) -> c_int;
    getaddrinfo_a: fn(c_int, *const *mut c_void, c_int, *mut c_void) -> c_int;
    gai_suspend: fn(*const *mut c_void, c_int, Timespec) -> c_int;
    gai_cancel: fn(*mut c_void) -> c_int;
    posix_spawn: fn(*mut libc::pid_t, *const c_char, SpawnActions, SpawnAttr, Strings, Strings) -> c_int;
    posix_spawnp: fn(*mut libc::pid_t, *const c_char, SpawnActions, SpawnAttr, Strings, Strings) -> c_int;
    system: fn(*const c_char) -> c_int;
    popen: fn(*const c_char, *const c_char) -> *mut c_void;
    wordexp: fn(*const c_char, *mut c_void, c_int) -> c_int;
    setuid: fn(libc::uid_t) -> c_int;
    seteuid: fn(libc::uid_t) -> c_int;
    setreuid: fn(libc::uid_t, libc::uid_t) -> c_int;
    setresuid: fn(libc::uid_t, libc::uid_t, libc::uid_t) -> c_int;
    setgid: fn(libc::gid_t) -> c_int;
    setegid: fn(libc::gid_t) -> c_int;
    setregid: fn(libc::gid_t, libc::gid_t) -> c_int;
    setresgid: fn(libc::gid_t, libc::gid_t, libc::gid_t) -> c_int;
    setgroups: fn(size_t, *const libc::gid_t) -> c_int;
    initgroups: fn(*const c_char, libc::gid_t) -> c_int;
    __register_atfork: fn(Option<unsafe extern "C" fn()>, Option<unsafe extern "C" fn()>, Option<unsafe extern "C" fn()>, *mut c_void) -> c_int;
    capset: fn(*mut c_void, *const c_void) -> c_int;
}

hot! {
    /// The address that was found for each name; 0 if it was not looked up yet.
    static FOUND: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];
}

/// Offset of each name in `NAMES`.
static STARTS: [u16; COUNT] = {
    let (mut starts, mut i, mut at) = ([0; COUNT], 0, 0);
    while i < COUNT {
        starts[i] = at as u16;
        while NAMES.as_bytes()[at] != 0 {
            at += 1;
        }
        at += 1;
        i += 1;
    }
    starts
};

#[inline]
fn address(i: usize) -> usize {
    match FOUND[i].load(Relaxed) {
        0 => look_up(i),
        at => at,
    }
}

fn name(i: usize) -> Name<'static> {
    // SAFETY: each name in `NAMES` ends with NUL.
    Name::new(unsafe { CStr::from_ptr(NAMES.as_ptr().add(STARTS[i].into()).cast()) })
}

#[cold]
#[unsafe(link_section = "hugeswap_start")]
fn look_up(i: usize) -> usize {
    let name = name(i);
    let Some(found) = symbols::next(&name) else {
        fs::complain(&[
            b"hugeswap: no ",
            name.bytes(),
            b" in this program's C library; run the program without hugeswap\n",
        ]);
        // SAFETY: ends the process.
        unsafe { libc::_exit(127) };
    };
    FOUND[i].store(found.address, Relaxed);
    found.address
}

/// Checks that each name is found where the dynamic linker finds it; panics otherwise. For the
/// constructor only, because it may allocate.
#[cfg(debug_assertions)]
pub fn check_all() {
    for i in 0..COUNT {
        let name = name(i);
        let found = symbols::next(&name).map_or(0, |f| f.address);
        // SAFETY: the name is NUL-terminated; RTLD_NEXT is relative to this object.
        let expected = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
        assert_eq!(found, expected, "{:?}", name.bytes());
    }
}

/// True if the C library's own allocator comes right after ours. Any other allocator there keeps
/// all blocks to itself: it has entry points that this library does not replace, and those must
/// know every block.
#[inline]
pub fn libc_allocates() -> bool {
    const NO: u8 = 1;
    const YES: u8 = 2;
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    #[cold]
    fn ask() -> u8 {
        let behind = symbols::next(&Name::new(c"malloc"));
        // A name that only the C library defines.
        let libc = symbols::first(&Name::new(c"gnu_get_libc_version"));
        let same = behind.is_some_and(|b| libc.is_some_and(|l| b.same_object(&l)));
        let answer = if same { YES } else { NO };
        ANSWER.store(answer, Relaxed);
        answer
    }
    let answer = match ANSWER.load(Relaxed) {
        0 => ask(),
        known => known,
    };
    answer == YES
}

/// The `realloc` that the program's calls reach, if it is not ours.
pub fn realloc_in_front() -> Option<Realloc> {
    let at = symbols::first(&Name::new(c"realloc"))?.address;
    let ours = crate::malloc::realloc as *const () as usize;
    // SAFETY: the address was found under this name, whose C prototype this is.
    (at != ours).then(|| unsafe { std::mem::transmute::<usize, Realloc>(at) })
}

/// Sets the program's errno.
pub fn set_errno(e: i32) {
    // SAFETY: glibc's errno of the calling thread, valid while the thread lives.
    unsafe { *libc::__errno_location() = e };
}

/// The program's errno.
pub fn errno() -> i32 {
    // SAFETY: as in `set_errno`.
    unsafe { *libc::__errno_location() }
}

/// The result of a raw system call as libc returns it: the value, or -1 with errno set.
pub fn answer(raw: isize) -> isize {
    if (-4095..0).contains(&raw) {
        set_errno(-raw as i32);
        -1
    } else {
        raw
    }
}

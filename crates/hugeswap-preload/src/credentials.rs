//! User, groups and capabilities of the engine's threads: those of the program.
//!
//! The kernel keeps them by thread. The C library repeats a call that changes them on every thread it knows; ours it does
//! not know ([`hugeswap_sys::thread`]), and none of them may keep rights that the program gave up. So the calls are caught: once one has succeeded, each of our
//! threads is sent a SIGSYS and takes over what the caller has now, before the call returns. A thread that is inside a system call takes
//! it over when that is interrupted or done.
//!
//! One change at a time, by [`CHANGE`]; its holder waits for our threads, which need nothing that a program's thread holds. A
//! thread's mark (`Peer::mark`) says which change it was asked for and has made; a thread that starts has none, so it is asked too, and one
//! that was made meanwhile is found by looking again.

use crate::lock::Lock;
use crate::real;
use crate::{extent, state};
use hugeswap_sys::raw::call;
use hugeswap_sys::thread;
use hugeswap_sys::{Result, fs, futex, process};
use libc::{c_char, c_int, c_void, gid_t, size_t, uid_t};
use std::cell::UnsafeCell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// A user or group three times: real, effective, saved.
type Ids = [u32; 3];

/// The kernel's capability sets, low and high halves: effective, permitted, inheritable.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Capabilities([[u32; 3]; 2]);

const EFFECTIVE: usize = 0;
const PERMITTED: usize = 1;

/// What a thread has.
#[derive(Clone, Copy, Default)]
struct Rights {
    users: Ids,
    groups: Ids,
    capabilities: Capabilities,
}

/// What our threads are to take over.
struct Change {
    rights: Rights,
    /// Supplementary groups, if they are what changed.
    list: Option<Vec<gid_t>>,
}

struct Shared(UnsafeCell<Change>);
// SAFETY: written by the holder of CHANGE before it asks, read by those it asked until it has their answer.
unsafe impl Sync for Shared {}

static WANTED: Shared = Shared(UnsafeCell::new(Change {
    rights: Rights {
        users: [0; 3],
        groups: [0; 3],
        capabilities: Capabilities([[0; 3]; 2]),
    },
    list: None,
}));
hot! {
    /// Number of the latest change.
    static CHANGE: Lock<u32> = Lock::new(0);
}
/// Changes with each answer.
static ANSWERS: AtomicU32 = AtomicU32::new(0);

/// The marks of change `n`: asked for, and made.
const fn asked(n: u32) -> u32 {
    2 * n
}
const fn made(n: u32) -> u32 {
    2 * n + 1
}

fn ids(nr: libc::c_long) -> Ids {
    let mut ids: Ids = [0; 3];
    let at = ids.as_mut_ptr() as usize;
    // SAFETY: three numbers to be written, ours.
    let _ = unsafe { call(nr, [at, at + 4, at + 8, 0, 0, 0]) };
    ids
}

fn set_ids(nr: libc::c_long, [real, effective, saved]: Ids) {
    let args = [real as usize, effective as usize, saved as usize, 0, 0, 0];
    // SAFETY: plain numbers.
    let _ = unsafe { call(nr, args) };
}

/// Gets or sets the calling thread's capabilities.
fn capabilities(nr: libc::c_long, sets: &mut Capabilities) {
    const VERSION_3: u32 = 0x2008_0522;
    let mut header = [VERSION_3, 0];
    let args = [
        &raw mut header as usize,
        sets as *mut _ as usize,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: the header says two halves, and both structures are ours.
    let _ = unsafe { call(nr, args) };
}

impl Rights {
    fn of_this_thread() -> Rights {
        let mut rights = Rights {
            users: ids(libc::SYS_getresuid),
            groups: ids(libc::SYS_getresgid),
            capabilities: Capabilities::default(),
        };
        capabilities(libc::SYS_capget, &mut rights.capabilities);
        rights
    }

    /// Gives the calling thread these rights, as far as it had them; false: it could not take the users and groups.
    fn take(&self, list: Option<&[gid_t]>) -> bool {
        let keep = |on: usize| {
            let args = [libc::PR_SET_KEEPCAPS as usize, on, 0, 0, 0, 0];
            // SAFETY: a flag of this thread's.
            let _ = unsafe { call(libc::SYS_prctl, args) };
        };
        let own = || {
            let mut own = Capabilities::default();
            capabilities(libc::SYS_capget, &mut own);
            own
        };
        // The caller may have had in effect what this thread has only permitted.
        let raise = || {
            let mut all = own();
            for half in &mut all.0 {
                half[EFFECTIVE] = half[PERMITTED];
            }
            capabilities(libc::SYS_capset, &mut all);
        };
        keep(1);
        raise();
        let mut right = true;
        if let Some(list) = list {
            let args = [list.len(), list.as_ptr() as usize, 0, 0, 0, 0];
            // SAFETY: that many groups to be read, ours.
            right = unsafe { call(libc::SYS_setgroups, args) }.is_ok();
        }
        if ids(libc::SYS_getresgid) != self.groups {
            set_ids(libc::SYS_setresgid, self.groups);
        }
        if ids(libc::SYS_getresuid) != self.users {
            set_ids(libc::SYS_setresuid, self.users);
        }
        raise();
        let mut less = own();
        for (half, theirs) in less.0.iter_mut().zip(&self.capabilities.0) {
            for (set, limit) in half.iter_mut().zip(theirs) {
                *set &= limit;
            }
        }
        capabilities(libc::SYS_capset, &mut less);
        keep(0);
        right && ids(libc::SYS_getresgid) == self.groups && ids(libc::SYS_getresuid) == self.users
    }
}

/// The calling thread's supplementary groups.
fn group_list() -> Result<Vec<gid_t>> {
    // SAFETY: a size of 0 only asks how many there are.
    let n = unsafe { call(libc::SYS_getgroups, [0; 6]) }?;
    let mut list: Vec<gid_t> = vec![0; n];
    // SAFETY: room for `n` groups, ours.
    let n = unsafe {
        call(
            libc::SYS_getgroups,
            [n, list.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    }?;
    list.truncate(n);
    Ok(list)
}

/// After a call of the program's that changed what the calling thread may do, and what every thread of the program's may.
pub fn share(with_list: bool) {
    if state::in_vfork_child() || thread::all().next().is_none() {
        return;
    }
    let mut latest = CHANGE.lock();
    *latest += 1;
    let n = *latest;
    let change = Change {
        rights: Rights::of_this_thread(),
        list: with_list.then(|| group_list().unwrap_or_default()),
    };
    // SAFETY: the lock is held, and those that read the last change have answered.
    unsafe { *WANTED.0.get() = change };
    loop {
        let seen = ANSWERS.load(Acquire);
        let mut missing = false;
        for peer in thread::all() {
            let mark = peer.mark().load(Acquire);
            if mark == made(n) {
                continue;
            }
            missing = true;
            if mark != asked(n) && peer.tid().is_some() {
                peer.mark().store(asked(n), Release);
                let _ = thread::signal_peer(peer, libc::SIGSYS);
            }
        }
        if !missing {
            return;
        }
        // With a limit, for a thread that ends gives no answer.
        futex::wait(&ANSWERS, seen, Some(1_000_000), false);
    }
}

/// On SIGSYS: does it ask a thread of ours to take over what the program has? Then that is done.
pub fn answer(info: &libc::siginfo_t) -> bool {
    // SAFETY: a signal sent by a process says which.
    if info.si_code != libc::SI_TKILL || unsafe { info.si_pid() } != process::pid() {
        return false;
    }
    let Some(me) = thread::current() else {
        return false;
    };
    let mark = me.mark().load(Acquire);
    if mark == 0 || !mark.is_multiple_of(2) {
        // Sent by somebody else.
        return true;
    }
    // SAFETY: this thread was asked and has not answered.
    let change = unsafe { &*WANTED.0.get() };
    if !change.rights.take(change.list.as_deref()) {
        fs::complain(&[
            b"hugeswap: a thread of hugeswap's cannot take the user and the groups that the program has now; the process is ended, so that no rights stay behind\n",
        ]);
        process::kill_self();
    }
    me.mark().store(mark + 1, Release);
    ANSWERS.fetch_add(1, AcqRel);
    futex::wake(&ANSWERS, u32::MAX >> 1, false);
    true
}

/// Around a fork; see [`Lock::before_fork`].
pub fn before_fork() {
    CHANGE.before_fork();
}

/// Around a fork, in parent and child.
pub fn after_fork() {
    CHANGE.after_fork();
}

/// `result` of a call that changes what every thread of the program may do.
fn shared(result: c_int, with_list: bool) -> c_int {
    if result == 0 {
        let errno = real::errno();
        share(with_list);
        real::set_errno(errno);
    }
    result
}

macro_rules! identities {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $kind),*) -> c_int {
            // SAFETY: passed on.
            shared(unsafe { real::$name()($($arg),*) }, false)
        }
    )*};
}

identities! {
    setuid(user: uid_t);
    seteuid(user: uid_t);
    setreuid(real: uid_t, effective: uid_t);
    setresuid(real: uid_t, effective: uid_t, saved: uid_t);
    setgid(group: gid_t);
    setegid(group: gid_t);
    setregid(real: gid_t, effective: gid_t);
    setresgid(real: gid_t, effective: gid_t, saved: gid_t);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setgroups(n: size_t, list: *const gid_t) -> c_int {
    const MOST: usize = 65_536;
    // Every thread of the program's reads it, in a signal handler of the C library's.
    if n > 0 && n <= MOST && extent::meets_managed(list as usize, n * size_of::<gid_t>()) {
        // SAFETY: the program's list; a fault here is taken as any other.
        let copy = unsafe { std::slice::from_raw_parts(list, n) }.to_vec();
        // SAFETY: passed on, with a copy that lives until the call ends.
        return shared(unsafe { real::setgroups()(n, copy.as_ptr()) }, true);
    }
    // SAFETY: passed on.
    shared(unsafe { real::setgroups()(n, list) }, true)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn initgroups(user: *const c_char, group: gid_t) -> c_int {
    // SAFETY: passed on.
    shared(unsafe { real::initgroups()(user, group) }, true)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn capset(header: *mut c_void, sets: *const c_void) -> c_int {
    // SAFETY: passed on.
    shared(unsafe { real::capset()(header, sets) }, false)
}

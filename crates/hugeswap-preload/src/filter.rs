//! The seccomp filter that sends system calls on managed memory to [`crate::trap`], and the gate page
//! whose calls it lets through.
//!
//! The filter traps a call if an argument that is a pointer lies in the window, unless the call comes from the gate page
//! or could not be made again from a handler. Calls on the address space are trapped, too ([`crate::addresses`]). Filters survive exec, so window and gate
//! stand at fixed addresses, and a constructor asks whether there is a filter already by a call that
//! does nothing. The gate is mapped when there is a filter to pass. io_uring is refused
//! (ENOSYS) to all but the gate, unless it is asked for ([`crate::rings`]): its requests hold addresses no filter sees. mlockall does nothing there.

use crate::static_program::{LOW_END, MOVABLE, MOVABLE_END};
use crate::{addresses, state, static_program, table, trap};
use hugeswap_engine::{LOW_BASE, LOW_LEN, SHARED_BASE, SHARED_LEN, WINDOW_BASE, WINDOW_LEN};
use hugeswap_policy::knobs::Knob;
use hugeswap_sys::raw::{self, GATE_CODE, syscall6};
use hugeswap_sys::signal::RESTORER_CODE;
use hugeswap_sys::{fs, mm};
use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W,
    sock_filter,
};
use std::arch::asm;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

const PAGE: usize = 4096;
/// Where the gate stands: below the window, and not next to it, because a program may map something
/// of its own (MAP_FIXED) over the pages around a block that it has.
const GATE: usize = WINDOW_BASE - (1 << 30);
/// The page of the gate.
pub const GATE_PAGE: std::ops::Range<usize> = GATE..GATE + PAGE;
/// In that page: where a signal handler may return to.
pub const RESTORER: usize = GATE + 64;
/// In a trapped call's siginfo: the filter is ours.
pub const MARK: i32 = 0x4853;
/// As [`MARK`]: the filter also traps the calls of loaded programs ([`crate::static_program`]).
pub const MARK_EXTENDED: i32 = 0x4854;

const NONE: u32 = 0;
const BUSY: u32 = 1;
const ON: u32 = 2;
/// There can be no gate, so no filter.
const IMPOSSIBLE: u32 = 3;
static FILTER: AtomicU32 = AtomicU32::new(NONE);
/// Does the filter in place know of managed addresses below 2 GiB? (What was inherited over exec is
/// not asked.)
static LOW_TOO: AtomicBool = AtomicBool::new(false);
/// Is the filter in place one for loaded programs?
static EXTENDED: AtomicBool = AtomicBool::new(false);

/// Calls that pass whatever their arguments are: those whose effect on the calling thread a handler could not pass on, and the one by which the C library, with every signal
/// blocked, gets its mask back from a stack that may be managed (a trap would then kill).
pub const EXEMPT: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_restart_syscall,
];

/// Finds out whether a filter was inherited, and makes its calls answered; in the constructor.
pub fn find_inherited() {
    if !trap::install_if_trapped(WINDOW_BASE) {
        return;
    }
    let gate = map_gate();
    if !gate {
        trap::uninstall();
    }
    FILTER.store(if gate { ON } else { IMPOSSIBLE }, Relaxed);
    EXTENDED.store(gate && trap::found_extended(), Relaxed);
}

/// Sees to it that a filter for loaded programs is on, in a process with one thread that has
/// [`trap::install`]ed; false: there can be none.
pub fn extend() -> bool {
    if EXTENDED.load(Relaxed) {
        return true;
    }
    let has_gate = match FILTER.load(Acquire) {
        ON => true,
        NONE => map_gate(),
        _ => false,
    };
    let on = has_gate && load(true, false, false);
    if on {
        FILTER.store(ON, Release);
        EXTENDED.store(true, Relaxed);
    }
    on
}

/// Maps the gate, once.
fn map_gate() -> bool {
    // SAFETY: a new page, only if nothing is there.
    if unsafe { mm::map_anon(GATE, PAGE, mm::PROT_RW, false) } != Ok(GATE) {
        return false;
    }
    // SAFETY: the page mapped a moment ago; it is made executable and never changed again.
    unsafe {
        std::ptr::copy_nonoverlapping(GATE_CODE.as_ptr(), GATE as *mut u8, GATE_CODE.len());
        let restorer = (RESTORER as *mut u8).sub(RESTORER_CODE.1);
        std::ptr::copy_nonoverlapping(RESTORER_CODE.0.as_ptr(), restorer, RESTORER_CODE.0.len());
        if mm::protect(GATE, PAGE, (libc::PROT_READ | libc::PROT_EXEC) as u32).is_err() {
            let _ = mm::unmap(GATE, PAGE);
            return false;
        }
        raw::set_gate(GATE);
    }
    true
}

/// Sees to it that the filter is on if this process needs one: in signal mode, unless it is switched off.
pub fn ensure() {
    let Some(engine) = state::careful() else {
        return;
    };
    let window = engine.window();
    let rings = engine.pool().knob(Knob::SyscallIoUring) != 0;
    if engine.pool().knob(Knob::SyscallTrap) == 0
        || window != (WINDOW_BASE..WINDOW_BASE + WINDOW_LEN)
    {
        return;
    }
    let low = engine
        .window_parts()
        .any(|part| part.end == LOW_BASE + LOW_LEN);
    let has_low = low && LOW_TOO.swap(true, AcqRel);
    let on = match FILTER.compare_exchange(NONE, BUSY, AcqRel, Acquire) {
        Ok(_) => map_gate() && trap::installed() && load(false, rings, low),
        // One more, beside that which is there.
        Err(ON) if low && !has_low => load(EXTENDED.load(Relaxed), rings, true),
        Err(_) => return,
    };
    if !on {
        fs::complain(&[
            b"hugeswap: system calls cannot be watched here (no seccomp); only common calls work on swapped-out memory\n",
        ]);
    }
    FILTER.store(if on { ON } else { IMPOSSIBLE }, Relaxed);
}

const fn stmt(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

const fn jump(op: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: (BPF_JMP | op | BPF_K) as u16,
        jt,
        jf,
        k,
    }
}

/// Jump always; libc does not name it.
const BPF_JA: u32 = 0;
const LOAD: u32 = BPF_LD | BPF_W | BPF_ABS;
const NR: u32 = 0;
const ARCH: u32 = 4;
const IP: u32 = 8;
const ARGS: u32 = 16;

/// A program under construction.
struct Code {
    p: Vec<sock_filter>,
    /// Unconditional jumps whose distance is not known yet, and where they go.
    open: Vec<(usize, Label)>,
    /// Are there managed addresses below 2 GiB?
    low: bool,
}

/// Where long jumps go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    /// The call is none of those that always pass.
    NotPlain,
    /// The call is one of a loaded program's, if it comes from there.
    OfProgram,
    /// The call is none of those, or does not come from there.
    Any,
    /// The upper half of a search, by its lowest number.
    Upper(u32),
    /// Is the call from the gate? Trap it, if not.
    Gate,
    /// Only our own rings.
    Ring,
    /// To lock all memory.
    LockAll,
    /// The same with flags that are not refused.
    LockValid,
    /// Check these arguments.
    Check(u8),
    /// Check the arguments of a futex call.
    Futex,
}

const ALL_ARGS: u8 = 0b11_1111;
const LOW: u32 = (WINDOW_BASE >> 32) as u32;
/// (Shared memory is right behind the window.)
const HIGH: u32 = ((SHARED_BASE + SHARED_LEN) >> 32) as u32;
const _: () = assert!(SHARED_BASE == WINDOW_BASE + WINDOW_LEN);
// (Where a loaded program is, its filter tells by the upper half of an address.)
const _: () = assert!(
    LOW_END == 1 << 32 && MOVABLE.is_multiple_of(LOW_END) && MOVABLE_END.is_multiple_of(LOW_END)
);
const _: () = assert!(MOVABLE < MOVABLE_END && MOVABLE_END <= GATE);

impl Code {
    fn push(&mut self, f: sock_filter) {
        self.p.push(f);
    }

    fn allow(&mut self) {
        self.push(stmt(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW));
    }

    fn go(&mut self, to: Label) {
        self.open.push((self.p.len(), to));
        self.push(stmt(BPF_JMP | BPF_JA, 0));
    }

    fn here(&mut self, label: Label) {
        let here = self.p.len();
        for &(at, to) in &self.open {
            if to == label {
                self.p[at].k = (here - at - 1) as u32;
            }
        }
        self.open.retain(|&(_, to)| to != label);
    }

    /// `if accumulator == k { then }`, where `then` is one instruction.
    fn when(&mut self, k: u32, then: impl FnOnce(&mut Code)) {
        self.push(jump(BPF_JEQ, k, 0, 1));
        then(self);
    }

    /// Does `then`, which is one instruction, for the calls of `numbers` (ascending), by bisection; others go to
    /// `otherwise`.
    fn search(&mut self, numbers: &[u32], then: fn(&mut Code), otherwise: Label) {
        if numbers.len() <= 3 {
            for &nr in numbers {
                self.when(nr, then);
            }
            self.go(otherwise);
            return;
        }
        let (lower, upper) = numbers.split_at(numbers.len() / 2);
        self.push(jump(BPF_JGE, upper[0], 0, 1));
        self.go(Label::Upper(upper[0]));
        self.search(lower, then, otherwise);
        self.here(Label::Upper(upper[0]));
        self.search(upper, then, otherwise);
    }

    /// Allows the call if it comes from the gate page; `otherwise` for all others.
    fn only_from_gate(&mut self, otherwise: u32) {
        self.push(stmt(LOAD, IP + 4));
        self.push(jump(BPF_JEQ, (GATE >> 32) as u32, 0, 4));
        self.push(stmt(LOAD, IP));
        self.push(stmt(BPF_ALU | BPF_AND | BPF_K, !(PAGE as u32 - 1)));
        self.push(jump(BPF_JEQ, GATE as u32, 0, 1));
        self.allow();
        self.push(stmt(BPF_RET | BPF_K, otherwise));
    }

    /// Allows the call if none of the arguments of `mask` lies in the window (by its high half, but for
    /// the part below 2 GiB); goes on behind this otherwise.
    fn check(&mut self, mask: u8) {
        let of_low = if self.low { 4 } else { 0 };
        let each = 3 + of_low;
        let mut left = each * mask.count_ones() as u8;
        for arg in (0..6).filter(|a| mask & 1 << a != 0) {
            left -= each;
            self.push(stmt(LOAD, ARGS + arg * 8 + 4));
            self.push(jump(BPF_JGE, LOW, 0, 1));
            self.push(jump(BPF_JGE, HIGH, of_low, of_low + left + 1));
            if self.low {
                self.push(jump(BPF_JEQ, 0, 0, 3));
                self.push(stmt(LOAD, ARGS + arg * 8));
                self.push(jump(BPF_JGE, LOW_BASE as u32, 0, 1));
                self.push(jump(BPF_JGE, (LOW_BASE + LOW_LEN) as u32, 0, left + 1));
            }
        }
        self.allow();
    }
}

/// The program. Fast where nothing looks like a managed address: architecture, number, six comparisons. Only
/// otherwise does it ask which arguments of the call are pointers at all.
fn program(extended: bool, rings: bool, low: bool) -> Vec<sock_filter> {
    const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
    let mut c = Code {
        p: Vec::new(),
        open: Vec::new(),
        low,
    };
    c.push(stmt(LOAD, ARCH));
    c.push(jump(BPF_JEQ, AUDIT_ARCH_X86_64, 1, 0));
    c.allow();
    c.push(stmt(LOAD, NR));
    if !rings {
        c.when(libc::SYS_io_uring_setup as u32, |c| c.go(Label::Ring));
    }
    let mark = if extended { MARK_EXTENDED } else { MARK };
    let trap = libc::SECCOMP_RET_TRAP | mark as u32;
    if extended {
        let all = static_program::CALLS.iter().chain(static_program::INDIRECT);
        let mut of_program: Vec<u32> = all.map(|&n| n as u32).collect();
        of_program.sort_unstable();
        c.search(&of_program, |c| c.go(Label::OfProgram), Label::Any);
        c.here(Label::OfProgram);
        c.push(stmt(LOAD, IP + 4));
        c.when(0, |c| c.push(stmt(BPF_RET | BPF_K, trap)));
        c.push(jump(BPF_JGE, (MOVABLE >> 32) as u32, 0, 2));
        c.push(jump(BPF_JGE, (MOVABLE_END >> 32) as u32, 1, 0));
        c.push(stmt(BPF_RET | BPF_K, trap));
        c.push(stmt(LOAD, NR));
        c.here(Label::Any);
    }
    // What passes whatever its arguments are is asked first: the kernel notices that no argument is
    // looked at, and from then on lets these calls pass without running the program.
    let mut plain: Vec<u32> = EXEMPT
        .iter()
        .chain(table::PLAIN)
        .map(|&n| n as u32)
        .collect();
    plain.sort_unstable();
    c.search(&plain, Code::allow, Label::NotPlain);
    c.here(Label::NotPlain);
    // Its argument points to pointers, and those who call it do not call libc.
    c.when(libc::SYS_io_submit as u32, |c| c.go(Label::Gate));
    c.when(libc::SYS_io_destroy as u32, |c| c.go(Label::Gate));
    // Of a ring the addresses are in memory that no filter sees.
    if rings {
        for nr in [
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register,
        ] {
            c.when(nr as u32, |c| c.go(Label::Gate));
        }
    }
    c.when(libc::SYS_mlockall as u32, |c| c.go(Label::LockAll));
    c.check(ALL_ARGS);
    c.push(stmt(LOAD, NR));
    let mut masks = Vec::new();
    let known = table::CALLS.iter().map(|&(nr, b)| (nr, table::pointers(b)));
    let special = table::SPECIAL.iter().chain(addresses::CALLS).copied();
    for (nr, mask) in special.chain(known) {
        if !masks.contains(&mask) {
            masks.push(mask);
        }
        c.when(nr as u32, |c| c.go(Label::Check(mask)));
    }
    c.when(libc::SYS_futex as u32, |c| c.go(Label::Futex));
    c.go(Label::Gate);
    for mask in masks {
        c.here(Label::Check(mask));
        c.check(mask);
        c.go(Label::Gate);
    }
    c.here(Label::Futex);
    c.push(stmt(LOAD, ARGS + 8));
    // A private wake touches nothing.
    c.when(
        (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as u32,
        Code::allow,
    );
    c.push(stmt(
        BPF_ALU | BPF_AND | BPF_K,
        libc::FUTEX_CMD_MASK as u32 & 0xff,
    ));
    const LOCK_PI2: i32 = 13;
    for (op, mask) in [
        (libc::FUTEX_WAIT, 0b1001),
        (libc::FUTEX_WAIT_BITSET, 0b1001),
        (libc::FUTEX_LOCK_PI, 0b1001),
        (LOCK_PI2, 0b1001),
        (libc::FUTEX_WAIT_REQUEUE_PI, 0b1_1001),
        (libc::FUTEX_REQUEUE, 0b1_0001),
        (libc::FUTEX_CMP_REQUEUE, 0b1_0001),
        (libc::FUTEX_CMP_REQUEUE_PI, 0b1_0001),
        (libc::FUTEX_WAKE_OP, 0b1_0001),
    ] {
        c.when(op as u32, |c| c.go(Label::Check(mask)));
    }
    for mask in [1, 0b1001, 0b1_0001, 0b1_1001] {
        c.here(Label::Check(mask));
        c.check(mask);
        c.go(Label::Gate);
    }
    c.here(Label::Gate);
    c.only_from_gate(trap);
    c.here(Label::Ring);
    c.only_from_gate(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
    // All memory of the process is what we have reserved, too. As in [`crate::locked`] the call is
    // advice, also of a program that inherits the filter and nothing else of ours.
    c.here(Label::LockAll);
    c.push(stmt(LOAD, ARGS));
    c.push(stmt(BPF_ALU | BPF_AND | BPF_K, !(libc::MCL_ONFAULT as u32)));
    for valid in 1..=(libc::MCL_CURRENT | libc::MCL_FUTURE) as u32 {
        c.when(valid, |c| c.go(Label::LockValid));
    }
    c.allow();
    c.here(Label::LockValid);
    c.only_from_gate(libc::SECCOMP_RET_ERRNO);
    c.p
}

/// Loads the filter for every thread.
fn load(extended: bool, rings: bool, low: bool) -> bool {
    let mut p = program(extended, rings, low);
    let prog = libc::sock_fprog {
        len: p.len() as u16,
        filter: p.as_mut_ptr(),
    };
    let set = |flags: usize| {
        let a = [
            libc::SECCOMP_SET_MODE_FILTER as usize,
            flags,
            &prog as *const _ as usize,
            0,
            0,
            0,
        ];
        // SAFETY: a valid program of that length.
        unsafe { syscall6(libc::SYS_seccomp as usize, a) }
    };
    // For all threads, and without turning on mitigations that slow the program down.
    let tsync = (libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW) as usize;
    match set(tsync) {
        0 => return true,
        e if e == -(libc::EACCES as isize) => {
            // Without privilege a filter must not outlive a gain of privilege.
            // SAFETY: sets a flag of this process.
            unsafe {
                syscall6(
                    libc::SYS_prctl as usize,
                    [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0],
                )
            };
        }
        _ => {}
    }
    // Threads with filters of their own cannot be synchronised: then at least this one.
    set(tsync) == 0 || set(0) == 0
}

/// Is the filter in place one for loaded programs?
pub fn is_extended() -> bool {
    EXTENDED.load(Relaxed)
}

/// Is a filter in place?
pub fn on() -> bool {
    FILTER.load(Acquire) == ON
}

/// Issues a call from outside the gate, as the program does.
///
/// # Safety
/// As for `hugeswap_sys::raw::syscall6`.
pub unsafe fn ungated(nr: usize, a: [usize; 3]) -> isize {
    let ret: isize;
    // SAFETY: passed on to the caller; the kernel clobbers rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") 0, in("r8") 0, in("r9") 0,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    ret
}

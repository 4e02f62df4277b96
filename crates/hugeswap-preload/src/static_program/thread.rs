//! Threads and processes that a loaded program makes by system calls of its own.
//!
//! Each thread has a [`Block`]: thread-locals of our C library, between which and the program's own
//! every handler of ours switches ([`program_fs`]), and an alternate stack. The thread that makes
//! another one takes a block for it. The new thread begins in code of ours, on its block's stack
//! and with its block's thread-locals, and then *returns from the signal* by which the maker's
//! system call was trapped: from a copy of the kernel's signal frame, in which the call has answered
//! 0 and the stack pointer is the one that the program gave. So the kernel sets the registers and
//! the mask, and nothing of ours is left on the program's stack.
//!
//! A block serves another thread once its own is gone. A thread says that it ends and the kernel
//! answers whether it is gone; a child that shares the memory and stops its parent (vfork) is gone
//! when its parent goes on.

use super::{attached, frame};
use crate::issue::Args;
use crate::local::{self, Word};
use crate::lock::Lock;
use crate::{extent, mask, mmap, state};
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::signal::{self, Mask};
use hugeswap_sys::{mm, process, program_fs, thread};
use libc::c_void;
use std::arch::{asm, naked_asm};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const PAGE: usize = 4096;
/// Of an alternate stack: a handler of the program may run on it, on top of one of ours.
const STACK: usize = 256 << 10;

const EAGAIN: isize = -(libc::EAGAIN as isize);

/// What a thread of the program has of ours.
#[repr(C)]
struct Block {
    /// First, so that GS leads here.
    fs: program_fs::Thread,
    /// Lowest address of its alternate stack.
    stack: usize,
    /// 0: no thread has it. Otherwise the thread's id once that has said that it ends, or
    /// [`BEGUN`].
    ends: AtomicU32,
}

const BEGUN: u32 = u32::MAX;

/// Every block but those of threads that have one for good: the program's first.
static BLOCKS: Lock<Vec<&'static Block>> = Lock::new(Vec::new());

impl Block {
    fn new(ours: usize) -> Option<&'static Block> {
        let stack = mm::map_own(PAGE + STACK, mm::PROT_RW).ok()?;
        // SAFETY: the first page of the mapping made above: a guard.
        let _ = unsafe { mm::protect(stack, PAGE, mm::PROT_NONE) };
        Some(Box::leak(Box::new(Block {
            fs: program_fs::Thread::new(ours),
            stack: stack + PAGE,
            ends: AtomicU32::new(BEGUN),
        })))
    }

    /// A block for a thread that is to be made; `None`: there is no memory.
    fn take() -> Option<&'static Block> {
        let mut blocks = BLOCKS.lock();
        let free = blocks.iter().find(|b| b.is_free());
        if let Some(&block) = free {
            block.ends.store(BEGUN, Release);
            // SAFETY: the thread that used them is gone.
            unsafe { thread::renew_locals(block.fs.ours()) };
            return Some(block);
        }
        let block = Block::new(thread::map_locals().ok()?)?;
        blocks.push(block);
        Some(block)
    }

    fn is_free(&self) -> bool {
        match self.ends.load(Acquire) {
            0 => true,
            BEGUN => false,
            tid => process::signal_thread(tid as i32, 0).is_err(),
        }
    }

    fn give_back(&self) {
        self.ends.store(0, Release);
    }

    fn alternate_stack(&self) -> libc::stack_t {
        libc::stack_t {
            ss_sp: self.stack as *mut c_void,
            ss_flags: 0,
            ss_size: STACK,
        }
    }
}

/// The calling thread's block; `None` in a program that this module has not loaded.
fn current() -> Option<&'static Block> {
    let fs = program_fs::is_on().then(program_fs::current)?;
    // SAFETY: GS leads to a block in every thread of the program, and in no other is FS 0 for us.
    (fs.ours() != 0).then(|| unsafe { &*(fs as *const program_fs::Thread).cast::<Block>() })
}

/// What a thread gets that runs already.
pub struct ForRunning {
    /// What GS is to be.
    pub gs: usize,
    /// Its alternate stack: address and length.
    pub stack: [usize; 2],
    /// The thread pointer of its thread-locals of our C library.
    pub locals: usize,
}

/// A block for a thread that was there before this object was; `None`: there is no memory.
pub fn for_running() -> Option<ForRunning> {
    let block = Block::take()?;
    Some(ForRunning {
        gs: std::ptr::from_ref(block).addr(),
        stack: [block.stack, STACK],
        locals: block.fs.ours(),
    })
}

/// The first thread, which loads the program, gets its block. False: there is no memory.
pub fn begin() -> bool {
    let ours: usize;
    // SAFETY: the thread pointer begins with its own address.
    unsafe { asm!("mov {}, fs:[0]", out(reg) ours, options(nostack, readonly)) };
    let Some(block) = Block::new(ours) else {
        return false;
    };
    program_fs::switch_on(&block.fs);
    set_stack(block);
    thread::assemble_locals();
    true
}

/// The block's stack becomes the calling thread's alternate stack.
fn set_stack(block: &Block) {
    let stack = block.alternate_stack();
    let a = [&raw const stack as usize, 0, 0, 0, 0, 0];
    // SAFETY: a mapped stack of this thread's.
    unsafe { syscall6(libc::SYS_sigaltstack as usize, a) };
    if program_fs::is_on() {
        local::set(Word::Stack, block.stack);
    }
}

/// Length of the alternate stacks of ours.
pub const STACK_LEN: usize = STACK;

/// What the new thread finds on its stack.
struct Begin {
    block: &'static Block,
    /// The context to go on with.
    context: usize,
    believed: Mask,
    is_vfork: bool,
}

/// clone(2), as the program has called it in `context`.
pub fn clone(a: Args, context: &mut libc::ucontext_t) -> isize {
    let flags = a[0];
    let has = |flag: i32| flags & flag as usize != 0;
    if has(libc::CLONE_PARENT_SETTID) {
        keep_in_memory(a[2]);
    }
    if has(libc::CLONE_CHILD_SETTID) || has(libc::CLONE_CHILD_CLEARTID) {
        keep_in_memory(a[3]);
    }
    if !has(libc::CLONE_VM) {
        return fork(a, context);
    }
    let is_vfork = has(libc::CLONE_VFORK);
    let Some(block) = Block::take() else {
        return EAGAIN;
    };
    let mut tls = a[4];
    let mut flags = flags;
    if program_fs::is_on() {
        let program = program_fs::current().program().load(Relaxed);
        let set = has(libc::CLONE_SETTLS);
        block
            .fs
            .program()
            .store(if set { tls } else { program }, Relaxed);
        flags |= libc::CLONE_SETTLS as usize;
        tls = block.fs.ours();
    }
    let top = block.stack + STACK;
    // SAFETY: the kernel's frame, and the block's stack, which nobody uses.
    let (copy, below) = unsafe { frame::copy(context, top) };
    // SAFETY: the copy made above.
    let new = unsafe { &mut *(copy as *mut libc::ucontext_t) };
    new.uc_mcontext.gregs[libc::REG_RAX as usize] = 0;
    if a[1] != 0 {
        new.uc_mcontext.gregs[libc::REG_RSP as usize] = a[1] as i64;
    }
    new.uc_stack = block.alternate_stack();
    let begin = (below - size_of::<Begin>()) & !15;
    let sp = begin - 16;
    // SAFETY: the block's stack, as above; the first thing that the thread pops is what it finds.
    let made = unsafe {
        (begin as *mut Begin).write(Begin {
            block,
            context: copy,
            believed: mask::believed(),
            is_vfork,
        });
        (sp as *mut usize).write(begin);
        clone_to(flags, sp, a[2], a[3], tls)
    };
    if made < 0 || is_vfork {
        block.give_back();
    }
    made
}

/// The kernel writes to this word later, when nobody is there to bring its page in.
fn keep_in_memory(word: usize) {
    if extent::managed(word)
        && let Some(engine) = state::engine()
    {
        let _ = mmap::eject(engine, word, 4);
    }
}

/// clone(2) to a stack whose first word is the argument of [`go_on`].
///
/// # Safety
/// As for clone(2).
#[unsafe(naked)]
unsafe extern "C" fn clone_to(
    flags: usize,
    stack: usize,
    parent_word: usize,
    child_word: usize,
    tls: usize,
) -> isize {
    naked_asm!(
        "mov r10, rcx",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "xor ebp, ebp",
        "pop rdi",
        "call {go_on}",
        "ud2",
        clone = const libc::SYS_clone,
        go_on = sym go_on,
    )
}

/// The new thread. The signals that its maker's handler has blocked are blocked.
extern "C" fn go_on(begin: &Begin) -> ! {
    if program_fs::is_on() {
        program_fs::become_thread(&begin.block.fs);
        // SAFETY: this thread's locals are the block's.
        unsafe { thread::begin_with_locals() };
    }
    if program_fs::is_on() || begin.is_vfork {
        set_stack(begin.block);
    }
    if program_fs::is_on() {
        mask::believe(begin.believed);
    }
    attached::watch();
    // SAFETY: the frame that `clone` has copied for this thread.
    unsafe { frame::resume(begin.context) }
}

/// A child with memory of its own: a copy of this process, in which only this thread is.
fn fork(a: Args, context: &mut libc::ucontext_t) -> isize {
    let is_on = program_fs::is_on();
    // FS is ours here and stays so in the child; the program's goes to where the handler's end
    // finds it.
    let flags = match is_on {
        true => a[0] & !(libc::CLONE_SETTLS as usize),
        false => a[0],
    };
    attached::before_fork();
    BLOCKS.before_fork();
    state::prepare_fork();
    // SAFETY: the program's own call, but for the stack, which the child has to itself.
    let pid = unsafe { syscall6(libc::SYS_clone as usize, [flags, 0, a[2], a[3], a[4], 0]) };
    if pid != 0 {
        state::after_fork_in_parent();
        BLOCKS.after_fork();
        attached::after_fork();
        return pid;
    }
    if is_on {
        // SAFETY: the copy of a thread whose control block has room for its id.
        unsafe { thread::begin_with_locals() };
        if flags != a[0] {
            program_fs::current().program().store(a[4], Relaxed);
        }
    }
    state::after_fork_in_child();
    BLOCKS.after_fork();
    attached::after_fork();
    attached::after_fork_in_child();
    attached::watch();
    let mine = current().map(|b| b as *const Block);
    for block in BLOCKS.lock().iter() {
        if Some(*block as *const Block) != mine {
            block.give_back();
        }
    }
    if a[1] != 0 {
        context.uc_mcontext.gregs[libc::REG_RSP as usize] = a[1] as i64;
    }
    0
}

/// exit(2): ends the calling thread.
pub fn exit(status: usize) -> isize {
    signal::set_mask(signal::ALL);
    // (Whether a process that shares our memory is gone, its parent alone can tell.)
    let tid = process::tid();
    if let Some(block) = current()
        && tid != process::pid()
    {
        block.ends.store(tid as u32, Release);
    }
    // SAFETY: the program's own call. The block, where this runs, is nobody else's until the thread
    // is gone.
    unsafe { syscall6(libc::SYS_exit as usize, [status, 0, 0, 0, 0, 0]) }
}

/// arch_prctl(2): `None` for what is not about FS and GS, or not ours to answer.
pub fn base_register(a: Args) -> Option<isize> {
    const SET_GS: usize = 0x1001;
    const SET_FS: usize = 0x1002;
    const GET_FS: usize = 0x1003;
    const GET_GS: usize = 0x1004;
    const END: usize = 0x7fff_ffff_f000;
    let thread = current()?;
    match a[0] {
        SET_FS if a[1] >= END => Some(-(libc::EPERM as isize)),
        SET_FS => {
            thread.fs.program().store(a[1], Relaxed);
            Some(0)
        }
        GET_FS | GET_GS => {
            let fs = thread.fs.program().load(Relaxed);
            let value = if a[0] == GET_FS { fs } else { 0 };
            // SAFETY: the program's word.
            unsafe { (a[1] as *mut usize).write_unaligned(value) };
            Some(0)
        }
        SET_GS => {
            super::complain(&[b"the program sets the register GS, which hugeswap needs: refused"]);
            Some(-(libc::EPERM as isize))
        }
        _ => None,
    }
}

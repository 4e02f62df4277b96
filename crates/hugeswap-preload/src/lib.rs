//! The shared object that `hugeswap run` has the dynamic linker load into a program.
//!
//! It stands before the C library: large requests for memory go to managed memory, everything else
//! passes through. It catches what managed memory could not bear a program to do with memory,
//! signals, descriptors and processes, and makes that work. It joins the pool at the first request
//! that is large enough.
//!
//! * `state`: joining the pool; `real`: the functions behind ours; `alloc`, `lock`, `local`: memory
//!   of our own. There is an allocator of our own, and the few words that each thread has are at a
//!   fixed distance from the thread pointer
//! * `malloc` (with `spare` and `small`), `mmap` (with `runs` and `cut`), `mremap`, `advise`: memory. What the engine cannot do
//!   (mappings over managed memory, executable memory, locking, unusual advice, and protection of parts of
//!   units where single pages are not to be had) the kernel does, after the units were brought in and *ejected*: they stay
//!   charged, and are not swapped any more. Ejected memory is moved by the engine, because the
//!   kernel has several mappings where the program has one; its access and advice are set again.
//!   `locked`: what was ejected to be locked is taken back once it is unlocked, where `marks` say that
//!   the kernel knows nothing else of it, and while no call acts on who owns what (`owners`)
//! * `addresses`, `parts`: a range may be partly managed, partly the kernel's and partly free. Calls on it
//!   are made piece by piece, with the kernel's errors
//! * `shared`: shared memory (`files`, `views`: memory files; `shm`: segments); `pagemap`, `maps`: what the
//!   program reads of /proc/self/pagemap and /proc/self/maps is corrected; `debug`: what debuggers see
//! * `sig`, `mask`, `thread`: signals, and threads that can take them; `ending`: how threads end; `helpers`: what the C library
//!   does in threads of its own, which cannot; `credentials`: the engine's threads have the program's
//!   user, groups and capabilities
//! * `fds`, `exec`: descriptors and processes
//! * `issue`, `table`, `vectors`, `wrap`, `stdio`: system calls on managed memory (signal
//!   mode, where the kernel answers EFAULT for an absent page, and some calls have lost data by
//!   then). Small buffers, and those of calls that may wait long, are copied through memory of
//!   ours. Large ones are pinned piece by piece (in shared memory copied, because other processes
//!   take it out). Futex words are touched, and the call is tried again. Buffers of io_submit are
//!   pinned until their transfers are done (`submitted`, `transfer`), and so are
//!   those of io_uring, where it is asked for (`rings`)
//! * `static_program`: programs without a dynamic loader, which the object loads itself
//! * `trap`, `filter`: a seccomp filter catches what comes past the wrappers. In message mode there
//!   is none: a program that maps or unmaps memory in the window by a system-call instruction of
//!   its own takes that memory from the engine, and the engine does not see it
//!
//! Rules: no unwinding, no `thread_local!`, no standard streams; nothing here touches managed
//! memory under one of its locks. From the end of the constructor on nothing here calls what
//! allocates by the program's `malloc`: the call that brought us here may come from that `malloc`,
//! with its locks held.
//!
//! Functions that are exported are unsafe to call as the C library's of the same names are, whose
//! contracts are theirs: programs in C call them.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

/// Variables that every start or fork of a program writes, also of one that manages nothing:
/// together they are less than a page, which each process gets a copy of. (Functions that run then stand
/// together, too: the section `hugeswap_start`.)
macro_rules! hot {
    ($($(#[$meta:meta])* $vis:vis static $name:ident: $type:ty = $value:expr;)*) => {$(
        $(#[$meta])*
        #[unsafe(link_section = "hugeswap_hot")]
        $vis static $name: $type = $value;
    )*};
}

mod access;
mod addresses;
mod advise;
mod alloc;
mod credentials;
mod cut;
mod debug;
mod ending;
mod exec;
mod extent;
mod fds;
mod files;
mod filter;
mod helpers;
mod hint;
mod inherit;
mod issue;
mod local;
mod lock;
mod locked;
mod low;
mod malloc;
mod maps;
mod marks;
mod mask;
mod mmap;
mod mremap;
mod owners;
mod pagemap;
mod parts;
mod real;
mod rings;
mod runs;
mod shared;
mod shm;
mod sig;
mod small;
mod spare;
mod state;
mod static_program;
mod stdio;
mod submitted;
mod symbols;
mod table;
mod thread;
mod touch;
mod transfer;
mod trap;
mod vectors;
mod views;
mod wrap;

use exec::Strings;
use libc::c_int;

// What the start files would define: a name for this object, for what the C library registers on
// its behalf.
std::arch::global_asm!(
    ".pushsection .rodata.__dso_handle,\"a\"",
    ".hidden __dso_handle",
    ".weak __dso_handle",
    "__dso_handle: .quad 0",
    ".popsection",
);

#[global_allocator]
static ALLOCATOR: alloc::Own = alloc::Own;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn(c_int, Strings, Strings) = constructor;

#[unsafe(link_section = "hugeswap_start")]
unsafe extern "C" fn constructor(argc: c_int, argv: Strings, envp: Strings) {
    if state::start() {
        // SAFETY: what glibc passes to constructors: the arguments of `main`.
        unsafe { static_program::start(argc, argv, envp) };
    }
}

//! The shared object that `hugeswap run` has the dynamic linker load into a program.
//!
//! It stands before the C library: large requests for memory go to managed memory, everything
//! else passes through. What a program may do with memory, signals, descriptors and processes that managed
//! memory could not bear is caught here and made to work.
//!
//! * `state`: joining the pool; `real`: what stands behind; `alloc`, `lock`, `local`: our own memory
//! * `malloc` (with `spare`), `mmap`, `advise`: memory; `shared`: that which is shared (`files`, `views`: memory files); `pagemap`: where it is; `debug`: what is in it, for debuggers
//! * `sig`, `mask`, `thread`: signals, and threads that can take them; `credentials`: whose rights ours have
//! * `fds`, `exec`: descriptors and processes
//! * `issue`, `table`, `vectors`, `wrap`, `stdio`, `aio`: system calls on managed memory (signal mode)
//! * `trap`, `filter`: the net under them
//!
//! Rules: no unwinding, no `thread_local!`, no standard streams; nothing here touches managed memory under one of its
//! locks. From the end of the constructor on nothing here calls what allocates by the program's `malloc`: the call that brought us
//! here may come from that `malloc`, with its locks held.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

/// Variables that every start or fork of a program writes, also of one that manages nothing: together they are one
/// page, of which each process gets a copy. (Functions that run then stand together, too: the section
/// `hugeswap_start`.)
macro_rules! hot {
    ($($(#[$meta:meta])* $vis:vis static $name:ident: $type:ty = $value:expr;)*) => {$(
        $(#[$meta])*
        #[unsafe(link_section = "hugeswap_hot")]
        $vis static $name: $type = $value;
    )*};
}

/// So that the section begins with a page.
#[repr(align(4096))]
struct Aligned;
hot! {
    #[used]
    static HOT: Aligned = Aligned;
}

mod access;
mod addresses;
mod advise;
mod aio;
mod alloc;
mod credentials;
mod debug;
mod exec;
mod fds;
mod files;
mod filter;
mod issue;
mod local;
mod lock;
mod malloc;
mod mask;
mod mmap;
mod mremap;
mod pagemap;
mod real;
mod shared;
mod shm;
mod sig;
mod spare;
mod state;
mod stdio;
mod symbols;
mod table;
mod thread;
mod trap;
mod vectors;
mod views;
mod wrap;

// What the start files would define: a name for this object, for what the C library registers on its behalf.
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
static CONSTRUCTOR: extern "C" fn() = constructor;

#[unsafe(link_section = "hugeswap_start")]
extern "C" fn constructor() {
    state::start();
}

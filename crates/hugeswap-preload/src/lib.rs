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
mod table;
mod thread;
mod trap;
mod vectors;
mod views;
mod wrap;

#[global_allocator]
static ALLOCATOR: alloc::Own = alloc::Own;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    state::start();
}

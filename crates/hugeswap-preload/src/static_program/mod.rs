//! Programs that cannot have the object preloaded, because they have no dynamic loader (static glibc, static
//! musl, static-PIE, Go), or one that is not made for it (musl's).
//!
//! `hugeswap run` executes itself again for such a program, with the object preloaded as into any
//! other. The object's constructor then does what the kernel does for an executable: it maps the
//! program's segments, and those of its loader (`elf`, `load`), makes its first stack, and jumps to its
//! entry (`start`). From there on the process is the program's; of the executable that brought the object
//! in nothing runs any more.
//!
//! The program has a C library of its own, or none, and calls the kernel directly. So
//! * the seccomp filter sends back not only calls on managed memory but also those of [`CALLS`],
//!   from instructions of the program: below [`LOW_END`], where executables that cannot be moved
//!   are, or from [`MOVABLE`] on, where this module places those that can. Calls of ours and of
//!   other C libraries in later programs (a filter outlives exec) come from other addresses;
//! * the thread-locals that FS leads to are the program's, and every handler of ours switches to
//!   thread-locals of our own (`hugeswap_sys::program_fs`);
//! * threads, children and what they execute are made on the program's behalf (`thread`, `exec`),
//!   and signals are kept for it (`signals`).
//!
//! All of it needs signal mode and seccomp. A program that cannot be loaded is executed by the kernel,
//! after one line that says why; what is not supported later is answered with an error that the program
//! knows from the kernel.

pub mod attached;
mod elf;
mod exec;
mod frame;
mod load;
mod program_break;
pub mod signals;
mod start;
mod thread;

use crate::issue::{Args, Caller};
use crate::{addresses, credentials, filter, mask, symbols, trap};
use elf::{Image, Unfit};
pub use exec::{Kept, Replacement, is_ours_to_see, kept, replacement, replacement_of};
use hugeswap_sys::attach;
use hugeswap_sys::raw::syscall6;
use hugeswap_sys::signal::Mask;
use hugeswap_sys::{Errno, fs, process};
use libc::c_char;
use start::{Loaded, Vectors};
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

/// Executables that cannot be moved lie below this address.
pub const LOW_END: usize = 1 << 32;
/// Those that can be moved are placed from here on.
pub const MOVABLE: usize = 0x3fe0_0000_0000;
/// In as many places, a page apart.
const MOVABLE_PLACES: usize = 1 << 22;
/// And end below this address.
pub const MOVABLE_END: usize = 0x3ff0_0000_0000;

/// Calls of which the arguments point to pointers to memory: where that is, neither the filter sees, nor
/// who looks at the arguments.
pub static INDIRECT: &[i64] = &[
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_vmsplice,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
];

/// The calls of a loaded program that are ours to make, whatever their arguments are; so are those of
/// [`INDIRECT`].
pub static CALLS: &[i64] = &[
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_brk,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_arch_prctl,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
];

/// The file that was loaded, as /proc/self/exe names it.
static PATH: OnceLock<CString> = OnceLock::new();

/// One line about the program.
fn complain(parts: &[&[u8]]) {
    let name = PATH.get().map_or(&b"program"[..], |p| p.as_bytes());
    let mut all: Vec<&[u8]> = vec![b"hugeswap: ", name, b": "];
    all.extend_from_slice(parts);
    all.push(b"\n");
    fs::complain(&all);
}

/// The program cannot be loaded, and has not begun: the kernel executes it, as if there were no hugeswap; or, under
/// a filter that was inherited, and under which the program could not run, the process ends.
fn give_up(vectors: &Vectors, path: &CStr, parts: &[&[u8]]) -> ! {
    if !filter::is_extended() {
        let mut all = parts.to_vec();
        all.push(b"; it goes on without managed memory");
        complain(&all);
        // SAFETY: strings of this process's own vectors.
        unsafe { exec::execute(path, &vectors.arguments, &vectors.environment) };
    } else {
        complain(parts);
    }
    process::end(2)
}

/// In the constructor, at every start of a program: loads the program that the environment names and goes on as that program; or
/// returns, if it names none.
///
/// # Safety
/// The arguments of the constructor of an object that a process starts with.
#[unsafe(link_section = "hugeswap_start")]
pub unsafe fn start(argc: i32, argv: *const *const c_char, envp: *const *const c_char) {
    // SAFETY: by contract.
    unsafe { exec::note_environment(envp) };
    // SAFETY: before the program's threads, or while they are stopped.
    let plan = unsafe { libc::getenv(attach::VARIABLE.as_ptr()) };
    if !plan.is_null() {
        // SAFETY: a string of the environment that `hugeswap attach` has made.
        unsafe { attached::run(CStr::from_ptr(plan)) };
    }
    // SAFETY: before the program's threads.
    let path = unsafe { libc::getenv(exec::VARIABLE.as_ptr()) };
    if path.is_null() {
        return;
    }
    // SAFETY: by contract; the path is a string of the environment.
    unsafe { become_program(Vectors::read(argc as usize, argv, envp), path) }
}

/// # Safety
/// As for [`start()`].
#[cold]
#[inline(never)]
unsafe fn become_program(mut vectors: Vectors, path: *const c_char) -> ! {
    let is_variable = |e: *const c_char| {
        // SAFETY: a string of the environment.
        let entry = unsafe { CStr::from_ptr(e) }.to_bytes();
        let rest = entry.strip_prefix(exec::VARIABLE.to_bytes());
        rest.is_some_and(|r| r.starts_with(b"="))
    };
    vectors.environment.retain(|&e| !is_variable(e));
    // SAFETY: a string of the environment.
    let given = unsafe { CStr::from_ptr(path) };
    let _ = PATH.set(given.to_owned());
    let random = vectors.value(libc::AT_RANDOM).map_or([0; 2], |at| {
        // SAFETY: the kernel's 16 random bytes.
        unsafe { (at as *const [usize; 2]).read_unaligned() }
    });
    let opened = open(given, elf::read);
    let (fd, image) = opened.unwrap_or_else(|why| give_up(&vectors, given, &[&why]));
    if image.preloads {
        // SAFETY: the strings of this process's environment.
        vectors.environment = unsafe { exec::of_other_loader(&vectors.environment) };
    }
    let refuse = |parts: &[&[u8]]| -> ! { give_up(&vectors, given, parts) };
    let program = map(fd, image, random[0], false).unwrap_or_else(|why| refuse(&[&why]));
    let interpreter = program.image.interpreter.as_ref().map(|name| {
        let opened = open(name, elf::read_interpreter);
        let mapped = opened.and_then(|(fd, image)| {
            let mapped = map(fd, image, random[1], true);
            fs::close(fd);
            mapped
        });
        mapped.unwrap_or_else(|why| refuse(&[b"its loader ", name.as_bytes(), b" ", &why]))
    });
    let real = real_path(fd);
    fs::close(fd);
    if program.image.executable_stack {
        make_stack_executable();
    }
    if !thread::begin() {
        refuse(&[b"no memory for its first thread"]);
    }
    if !trap::install() || !filter::extend() {
        refuse(&[b"needs seccomp, which is not permitted here: use a dynamically linked build"]);
    }
    forget_restartable_sequences();
    let name = elf::name_in(given.to_bytes());
    if let Ok(name) = CString::new(&name[..name.len().min(15)]) {
        process::name_thread(&name);
    }
    program_break::limit();
    if let Some(real) = real {
        REAL_PATH.get_or_init(|| real);
    }
    // SAFETY: the images are mapped, and every handler is in place.
    unsafe { start::enter(&vectors, &program, interpreter.as_ref(), path) }
}

/// Opens a file and reads its header, or says why not.
fn open(path: &CStr, read: fn(i32) -> Result<Image, Unfit>) -> Result<(i32, Image), Vec<u8>> {
    let fd = fs::open(path, libc::O_RDONLY | libc::O_CLOEXEC, 0)
        .map_err(|e| format!("cannot be opened: {e}"))?;
    let image = read(fd).map_err(|e| match e {
        Unfit::NotElf => &b"is not an x86-64 program"[..],
        Unfit::Dynamic => b"has a dynamic loader",
        Unfit::Damaged => b"is a damaged ELF file: install it again",
    })?;
    Ok((fd, image))
}

/// Maps an image, or says why not.
fn map(fd: i32, image: Image, random: usize, is_interpreter: bool) -> Result<Loaded, Vec<u8>> {
    match load::map(fd, &image, random, is_interpreter) {
        Ok(base) => Ok(Loaded { image, base }),
        Err(Errno::EEXIST) => Err(b"has addresses at which something else is here".into()),
        Err(Errno(libc::EFBIG)) => {
            Err(b"has addresses above 4 GiB and cannot be moved: use another build".into())
        }
        Err(e) => Err(format!("cannot be mapped: {e}").into()),
    }
}

/// The absolute name of the loaded file.
static REAL_PATH: OnceLock<CString> = OnceLock::new();

fn real_path(fd: i32) -> Option<CString> {
    target_of(&CString::new(format!("/proc/self/fd/{fd}")).ok()?)
}

/// What a link names.
fn target_of(link: &CStr) -> Option<CString> {
    let mut name = vec![0u8; 4096];
    let a = [
        link.as_ptr() as usize,
        name.as_mut_ptr() as usize,
        name.len(),
        0,
        0,
        0,
    ];
    // SAFETY: a string and a buffer of ours.
    let n = unsafe { syscall6(libc::SYS_readlink as usize, a) };
    name.truncate(usize::try_from(n).ok()?);
    CString::new(name).ok()
}

fn make_stack_executable() {
    let here = 0u8;
    let at = &raw const here as usize & !4095;
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC | libc::PROT_GROWSDOWN;
    // SAFETY: adds a right to this thread's stack.
    unsafe {
        syscall6(
            libc::SYS_mprotect as usize,
            [at, 4096, all as usize, 0, 0, 0],
        )
    };
}

/// The program's C library registers an area of its own with the kernel, which has one already from
/// ours.
fn forget_restartable_sequences() {
    const UNREGISTER: usize = 1;
    const SIGNATURE: usize = 0x5305_3053;
    let find = |name: &CStr| Some(symbols::first(&symbols::Name::new(name))?.address);
    if let (Some(offset), Some(len)) = (find(c"__rseq_offset"), find(c"__rseq_size")) {
        let pointer: usize;
        // SAFETY: the thread pointer begins with its own address.
        unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly)) };
        // SAFETY: glibc's constants: a distance (`ptrdiff_t`) and a length (`unsigned int`).
        let (offset, len) = unsafe { (*(offset as *const isize), *(len as *const u32)) };
        // The length that was registered is at least the first one that the kernel knew.
        for len in [len as usize, 32] {
            let a = [
                pointer.wrapping_add_signed(offset),
                len,
                UNREGISTER,
                SIGNATURE,
                0,
                0,
            ];
            // SAFETY: ends what the C library began for this thread, which uses it no more.
            unsafe { syscall6(libc::SYS_rseq as usize, a) };
        }
    }
}

/// Is this process a program that the object has loaded?
pub fn is_loaded() -> bool {
    program_break::is_limited()
}

/// A trapped call of [`CALLS`]: the answer. `None`: it is another call, and goes the way of those
/// that concern managed memory. `context` is what the program goes on with.
pub fn by_number(
    nr: i64,
    a: &Args,
    caller: Option<&Caller>,
    context: &mut libc::ucontext_t,
) -> Option<isize> {
    const ENOSYS: isize = -(libc::ENOSYS as isize);
    let make = |a: Args| match caller {
        Some(c) => c.issue(nr, a),
        // SAFETY: the program's own call.
        None => unsafe { syscall6(nr as usize, a) },
    };
    Some(match nr {
        // SAFETY: the program's own call.
        libc::SYS_mmap | libc::SYS_mremap => unsafe { addresses::call(nr, *a) },
        libc::SYS_brk => program_break::set(a[0]) as isize,
        libc::SYS_rt_sigaction => signals::action(*a),
        libc::SYS_rt_sigprocmask => signals::mask(*a, mask_of(context)),
        libc::SYS_sigaltstack => signals::alternate_stack(*a, context),
        libc::SYS_rt_sigsuspend
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_epoll_pwait
        | libc::SYS_epoll_pwait2 => {
            let mut new = *a;
            let waiting = signals::Waiting::prepare(nr, &mut new);
            let result = make(new);
            drop(waiting);
            result
        }
        libc::SYS_clone => thread::clone(*a, context),
        libc::SYS_fork => thread::clone([libc::SIGCHLD as usize, 0, 0, 0, 0, 0], context),
        libc::SYS_vfork => {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            thread::clone([flags as usize, 0, 0, 0, 0, 0], context)
        }
        // C libraries then use clone, as they do on old kernels and in containers.
        libc::SYS_clone3 => ENOSYS,
        // SAFETY: the program's own call.
        libc::SYS_execve => unsafe { exec::execve(*a, *mask_of(context) | mask::believed()) },
        // C libraries then use execve with a path of /proc/self/fd.
        libc::SYS_execveat => ENOSYS,
        libc::SYS_exit => thread::exit(a[0]),
        libc::SYS_arch_prctl => thread::base_register(*a).unwrap_or_else(|| make(*a)),
        libc::SYS_readlink => read_link(a[0], a[1], a[2]).unwrap_or_else(|| make(*a)),
        libc::SYS_readlinkat => read_link(a[1], a[2], a[3]).unwrap_or_else(|| make(*a)),
        libc::SYS_setuid
        | libc::SYS_setgid
        | libc::SYS_setreuid
        | libc::SYS_setregid
        | libc::SYS_setresuid
        | libc::SYS_setresgid
        | libc::SYS_setgroups
        | libc::SYS_capset => {
            let result = make(*a);
            if result == 0 {
                credentials::share(nr == libc::SYS_setgroups);
            }
            result
        }
        _ => return None,
    })
}

fn mask_of(context: &mut libc::ucontext_t) -> &mut Mask {
    // SAFETY: the kernel uses the first 8 bytes of the set, which is larger and aligned.
    unsafe { &mut *(&raw mut context.uc_sigmask).cast::<Mask>() }
}

/// The loaded file, if `path` names what this process executes.
fn own_path(path: &CStr) -> Option<CString> {
    let rest = path.to_bytes().strip_prefix(b"/proc/")?;
    let who = rest.strip_suffix(b"/exe")?;
    let mut number = [0; 20];
    let pid = fs::digits(process::pid() as u64, 10, &mut number);
    let own = who == b"self" || who == b"thread-self" || who == pid;
    if own { REAL_PATH.get().cloned() } else { None }
}

/// readlink(2) of what this process executes: the file that was loaded.
fn read_link(path: usize, to: usize, room: usize) -> Option<isize> {
    REAL_PATH.get()?;
    const PREFIX: &[u8] = b"/proc/";
    // SAFETY: the program's string, of which no byte behind its end is read.
    let begins = |i: usize| unsafe { *((path + i) as *const u8) } == PREFIX[i];
    if path == 0 || !(0..PREFIX.len()).all(begins) {
        return None;
    }
    // SAFETY: the program's string.
    let own = own_path(unsafe { CStr::from_ptr(path as *const c_char) })?;
    let bytes = own.as_bytes();
    if room == 0 {
        return Some(-(libc::EINVAL as isize));
    }
    let n = bytes.len().min(room);
    // SAFETY: the program's buffer.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to as *mut u8, n) };
    Some(n as isize)
}

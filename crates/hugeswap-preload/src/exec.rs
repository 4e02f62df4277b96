//! New processes: what the kernel reads while it makes one must be there.
//!
//! exec and its kin get copies of strings and pointer arrays that lie in managed memory (the kernel would answer
//! EFAULT for an absent page, and posix_spawn's child could not take a fault). `fork` runs the
//! handlers of pthread_atfork; `_Fork` does not, so they are run here. A vfork child shares our memory and handlers.

use crate::real::{self, errno, set_errno};
use crate::state;
use libc::{c_char, c_int, c_void};
use std::arch::naked_asm;
use std::ffi::CStr;
use std::ptr::null;

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: *mut *mut c_char;
}

fn environment() -> Strings {
    // SAFETY: the C library's variable; a racing setenv is the program's error.
    unsafe { environ as Strings }
}

/// A string that the kernel can read: the program's own, or a copy.
struct Text {
    copy: Option<Vec<u8>>,
    original: *const c_char,
}

impl Text {
    /// # Safety
    /// `s` must be null or NUL-terminated.
    unsafe fn of(s: *const c_char) -> Text {
        let copy = state::managed(s as usize).then(|| {
            // SAFETY: NUL-terminated, by contract; a fault here is taken as any other.
            unsafe { CStr::from_ptr(s) }.to_bytes_with_nul().to_vec()
        });
        Text { copy, original: s }
    }

    fn as_ptr(&self) -> *const c_char {
        self.copy
            .as_ref()
            .map_or(self.original, |c| c.as_ptr().cast())
    }
}

/// A null-terminated array of strings that the kernel can read.
struct List {
    /// What the pointers point to, where it had to be copied.
    _texts: Vec<Text>,
    pointers: Option<Vec<*const c_char>>,
    original: Strings,
}

impl List {
    /// # Safety
    /// `list` must be null or a null-terminated array of NUL-terminated strings.
    unsafe fn of(list: Strings) -> List {
        let mut out = List {
            _texts: Vec::new(),
            pointers: None,
            original: list,
        };
        if list.is_null() || state::engine().is_none() {
            return out;
        }
        let mut n = 0;
        let mut managed = state::managed(list as usize);
        // SAFETY: null-terminated, by contract.
        unsafe {
            while !(*list.add(n)).is_null() {
                managed |= state::managed(*list.add(n) as usize);
                n += 1;
            }
        }
        if managed {
            // SAFETY: the first `n` entries are strings.
            out._texts = (0..n).map(|i| unsafe { Text::of(*list.add(i)) }).collect();
            out.pointers = Some(
                out._texts
                    .iter()
                    .map(Text::as_ptr)
                    .chain([null()])
                    .collect(),
            );
        }
        out
    }

    fn as_ptr(&self) -> Strings {
        self.pointers.as_ref().map_or(self.original, |p| p.as_ptr())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: passed on, with copies that live until the call returns (or for ever, if it does not).
    unsafe {
        let (path, argv, envp) = (Text::of(path), List::of(argv), List::of(envp));
        real::execve()(path.as_ptr(), argv.as_ptr(), envp.as_ptr())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe { execve(path, argv, environment()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as in `execve`.
    unsafe {
        let (file, argv, envp) = (Text::of(file), List::of(argv), List::of(envp));
        real::execvpe()(file.as_ptr(), argv.as_ptr(), envp.as_ptr())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe { execvpe(file, argv, environment()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: as in `execve`.
    unsafe {
        let (argv, envp) = (List::of(argv), List::of(envp));
        real::fexecve()(fd, argv.as_ptr(), envp.as_ptr())
    }
}

// The variadic three: the argument registers are pushed below the arguments on the stack, which makes one array
// of them; the return address is moved out of the way, and put back if exec fails.
macro_rules! variadic {
    ($($name:ident => $body:path;)*) => {$(
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {body}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                body = sym $body,
            )
        }
    )*};
}

variadic! {
    execl => list_path;
    execlp => list_file;
    execle => list_path_env;
}

unsafe extern "C" fn list_path(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe { execv(path, argv) }
}

unsafe extern "C" fn list_file(file: *const c_char, argv: Strings) -> c_int {
    // SAFETY: passed on.
    unsafe { execvp(file, argv) }
}

unsafe extern "C" fn list_path_env(path: *const c_char, argv: Strings) -> c_int {
    // SAFETY: the environment follows the null that ends the arguments.
    unsafe {
        let mut n = 0;
        while !(*argv.add(n)).is_null() {
            n += 1;
        }
        execve(path, argv, *argv.add(n + 1) as Strings)
    }
}

type SpawnActions = *const libc::posix_spawn_file_actions_t;
type SpawnAttr = *const libc::posix_spawnattr_t;

/// A structure that the child of posix_spawn, which takes no faults, can read: the program's, or a copy.
struct Plain<T: Copy> {
    copy: Option<T>,
    original: *const T,
}

impl<T: Copy> Plain<T> {
    /// # Safety
    /// `p` must be null or readable.
    unsafe fn of(p: *const T) -> Plain<T> {
        // SAFETY: readable, by contract.
        let copy = state::managed(p as usize).then(|| unsafe { p.read_unaligned() });
        Plain { copy, original: p }
    }

    fn as_ptr(&self) -> *const T {
        self.copy.as_ref().map_or(self.original, |c| c as *const T)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: *const c_char,
    actions: SpawnActions,
    attr: SpawnAttr,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: passed on, with copies that live until the child has its own memory.
    unsafe {
        let (path, argv, envp) = (Text::of(path), List::of(argv), List::of(envp));
        let (actions, attr) = (Plain::of(actions), Plain::of(attr));
        real::posix_spawn()(
            pid,
            path.as_ptr(),
            actions.as_ptr(),
            attr.as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    file: *const c_char,
    actions: SpawnActions,
    attr: SpawnAttr,
    argv: Strings,
    envp: Strings,
) -> c_int {
    // SAFETY: as in `posix_spawn`.
    unsafe {
        let (file, argv, envp) = (Text::of(file), List::of(argv), List::of(envp));
        let (actions, attr) = (Plain::of(actions), Plain::of(attr));
        real::posix_spawnp()(
            pid,
            file.as_ptr(),
            actions.as_ptr(),
            attr.as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: passed on.
    unsafe {
        let command = Text::of(command);
        real::system()(command.as_ptr())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    // SAFETY: passed on.
    unsafe {
        let command = Text::of(command);
        real::popen()(command.as_ptr(), kind)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> libc::pid_t {
    state::prepare_fork();
    // SAFETY: passed on.
    let pid = unsafe { real::_Fork()() };
    let e = errno();
    if pid == 0 {
        state::after_fork_in_child();
    } else {
        state::after_fork_in_parent();
    }
    set_errno(e);
    pid
}

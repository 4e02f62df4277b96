//! New processes: what the kernel reads while it makes one must be there.
//!
//! exec and its kin get copies of strings and pointer arrays that lie in managed memory (the kernel would answer
//! EFAULT for an absent page, and posix_spawn's child could not take a fault). Where the C library passes its
//! environment by itself (`system`, `popen`, `wordexp`), or its child reads it (`posix_spawnp`), that is held in memory. `fork` runs the
//! handlers of pthread_atfork; `_Fork` does not, so they are run here. A vfork child shares our memory and handlers.

use crate::issue::{Pins, UNIT};
use crate::real::{self, errno, set_errno};
use crate::static_program::{self, Kept, Replacement, is_ours_to_see, replacement};
use crate::{extent, filter, state};
use libc::{c_char, c_int, c_void};
use std::arch::naked_asm;
use std::ffi::{CStr, CString};
use std::ptr::null;

const PAGE: usize = 4096;

pub type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: *mut *mut c_char;
}

fn environment() -> Strings {
    // SAFETY: the C library's variable; a racing setenv is the program's error.
    unsafe { environ as Strings }
}

/// A string that the kernel can read: the program's own, or a copy.
pub struct Text {
    copy: Option<Vec<u8>>,
    original: *const c_char,
}

impl Text {
    /// # Safety
    /// `s` must be null or NUL-terminated.
    pub unsafe fn of(s: *const c_char) -> Text {
        let copy = extent::managed(s as usize).then(|| {
            // SAFETY: NUL-terminated, by contract; a fault here is taken as any other.
            unsafe { CStr::from_ptr(s) }.to_bytes_with_nul().to_vec()
        });
        Text { copy, original: s }
    }

    pub fn as_ptr(&self) -> *const c_char {
        self.copy
            .as_ref()
            .map_or(self.original, |c| c.as_ptr().cast())
    }
}

/// A null-terminated array of strings that the kernel can read.
pub struct List {
    /// What the pointers point to, where it had to be copied.
    _texts: Vec<Text>,
    pointers: Option<Vec<*const c_char>>,
    original: Strings,
}

impl List {
    /// # Safety
    /// `list` must be null or a null-terminated array of NUL-terminated strings.
    pub unsafe fn of(list: Strings) -> List {
        let mut out = List {
            _texts: Vec::new(),
            pointers: None,
            original: list,
        };
        if list.is_null() || state::engine().is_none() {
            return out;
        }
        let mut n = 0;
        let mut managed = extent::managed(list as usize);
        // SAFETY: null-terminated, by contract.
        unsafe {
            while !(*list.add(n)).is_null() {
                managed |= extent::managed(*list.add(n) as usize);
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

    pub fn as_ptr(&self) -> Strings {
        self.pointers.as_ref().map_or(self.original, |p| p.as_ptr())
    }
}

/// The environment in place of one that has lost what a program needs under the filter of this process.
///
/// # Safety
/// As for execve(2).
unsafe fn kept(envp: Strings) -> Option<Kept> {
    // SAFETY: passed on.
    filter::is_extended()
        .then(|| unsafe { static_program::kept(envp) })
        .flatten()
}

/// As [`replacement`], for a name that is looked for in PATH.
///
/// # Safety
/// As for execvpe(3).
unsafe fn found_replacement(
    file: *const c_char,
    argv: Strings,
    envp: Strings,
) -> Option<Replacement> {
    if !is_ours_to_see() || file.is_null() {
        return None;
    }
    // SAFETY: by contract.
    let name = unsafe { CStr::from_ptr(file) }.to_bytes();
    if name.contains(&b'/') {
        // SAFETY: passed on.
        return unsafe { replacement(file, argv, envp) };
    }
    // SAFETY: the C library's variable; a racing setenv is the program's error.
    let list = unsafe {
        let p = libc::getenv(c"PATH".as_ptr());
        if p.is_null() {
            c"/bin:/usr/bin"
        } else {
            CStr::from_ptr(p)
        }
    };
    list.to_bytes().split(|&b| b == b':').find_map(|dir| {
        let dir = if dir.is_empty() { b"." } else { dir };
        let path = CString::new([dir, b"/", name].concat()).ok()?;
        // SAFETY: access(2) of a string.
        let there = unsafe { libc::access(path.as_ptr(), libc::X_OK) } == 0;
        // The first that can be executed is what the C library would take.
        // SAFETY: passed on, with a path of ours.
        there.then(|| unsafe { replacement(path.as_ptr(), argv, envp) })
    })?
}

#[unsafe(no_mangle)]
unsafe extern "C" fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
    // SAFETY: passed on, with copies that live until the call returns (or for ever, if it does not).
    unsafe {
        if let Some(r) = replacement(path, argv, envp) {
            return real::execve()(r.path(), r.arguments(), r.environment());
        }
        let kept = kept(envp);
        let envp = kept.as_ref().map_or(envp, Kept::as_ptr);
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
        if let Some(r) = found_replacement(file, argv, envp) {
            return real::execve()(r.path(), r.arguments(), r.environment());
        }
        let kept = kept(envp);
        let envp = kept.as_ref().map_or(envp, Kept::as_ptr);
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
        if let Some(r) = static_program::replacement_of(fd, argv, envp) {
            return real::execve()(r.path(), r.arguments(), r.environment());
        }
        let kept = kept(envp);
        let envp = kept.as_ref().map_or(envp, Kept::as_ptr);
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
        let copy = extent::managed(p as usize).then(|| unsafe { p.read_unaligned() });
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
        let other = replacement(path, argv, envp);
        let (path, argv, envp) = other.as_ref().map_or((path, argv, envp), |r| {
            (r.path(), r.arguments(), r.environment())
        });
        let kept = kept(envp);
        let envp = kept.as_ref().map_or(envp, Kept::as_ptr);
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
        if let Some(r) = found_replacement(file, argv, envp) {
            let (argv, envp) = (r.arguments(), r.environment());
            let (actions, attr) = (Plain::of(actions), Plain::of(attr));
            let (actions, attr) = (actions.as_ptr(), attr.as_ptr());
            return real::posix_spawn()(pid, r.path(), actions, attr, argv, envp);
        }
        let kept = kept(envp);
        let envp = kept.as_ref().map_or(envp, Kept::as_ptr);
        let (file, argv, envp) = (Text::of(file), List::of(argv), List::of(envp));
        let (actions, attr) = (Plain::of(actions), Plain::of(attr));
        // (The child looks for PATH in the variable.)
        let _held = hold_environment();
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

/// Holds the environment in memory: where the C library starts a program by itself, it uses its
/// variable, not a copy of ours, and its child takes no faults. (A thread that is cancelled in [`system`] leaves it held.)
fn hold_environment() -> Option<Pins> {
    let mut pins = Pins::new(state::careful()?);
    let list = environment();
    let mut pages: Vec<usize> = Vec::new();
    let mut note = |addr: usize, len: usize| {
        let all = addr & !(PAGE - 1)..addr + len;
        pages.extend(all.step_by(PAGE).filter(|&page| extent::managed(page)));
    };
    if !list.is_null() {
        let mut n = 0;
        // SAFETY: the environment is a null-terminated array of strings.
        unsafe {
            while !(*list.add(n)).is_null() {
                let string = *list.add(n);
                if extent::managed(string as usize) {
                    note(string as usize, CStr::from_ptr(string).count_bytes() + 1);
                }
                n += 1;
            }
        }
        note(list as usize, (n + 1) * size_of::<*const c_char>());
    }
    pages.sort_unstable();
    // What is held is a whole unit, but in shared memory.
    pages.dedup_by_key(|page| match extent::in_shared(*page) {
        true => *page,
        false => *page & !(UNIT - 1),
    });
    for page in pages {
        // What cannot be held is what the kernel could not read either.
        pins.insist(page, PAGE, false);
    }
    Some(pins)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: passed on.
    unsafe {
        let command = Text::of(command);
        let _held = hold_environment();
        real::system()(command.as_ptr())
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn popen(command: *const c_char, kind: *const c_char) -> *mut c_void {
    // SAFETY: passed on.
    unsafe {
        let command = Text::of(command);
        let _held = hold_environment();
        real::popen()(command.as_ptr(), kind)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wordexp(words: *const c_char, to: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: passed on.
    unsafe {
        let _held = hold_environment();
        real::wordexp()(words, to, flags)
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

//! What this machine, kernel and user allow, found by trying it on a little memory.
//!
//! Every probe undoes what it did. It may run at any time, beside anything else.

use crate::raw::call;
use crate::{Errno, Result, fs, mm, uffd, uring};
use std::path::Path;

/// Bytes in a huge page.
pub const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;
const PATTERN: u64 = 0x6875_6765_7377_6170;

/// Private anonymous memory, unmapped when dropped.
struct Scratch {
    base: usize,
    len: usize,
}

impl Scratch {
    fn new(len: usize) -> Result<Scratch> {
        mm::map_own(len, mm::PROT_RW).map(|base| Scratch { base, len })
    }

    /// Memory for `n` huge pages, aligned; the first starts at the returned address.
    fn huge(n: usize) -> Result<(Scratch, usize)> {
        let s = Scratch::new((n + 1) * HUGE)?;
        // SAFETY: advice on our own fresh mapping discards nothing. A kernel without huge
        // pages says EINVAL: then they are not huge, which is what callers look at.
        let _ = unsafe { mm::advise(s.base, s.len, libc::MADV_HUGEPAGE) };
        let first = s.base.next_multiple_of(HUGE);
        Ok((s, first))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: nobody else knows of the mapping.
        let _ = unsafe { mm::unmap(self.base, self.len) };
    }
}

/// Writes the pattern to each page of `[at, at+len)`, which must be writable memory of ours.
fn fill(at: usize, len: usize) {
    for page in (0..len).step_by(PAGE) {
        // SAFETY: within a Scratch that the caller holds, mapped writable.
        unsafe { ((at + page) as *mut u64).write_volatile(PATTERN ^ page as u64) };
    }
}

/// True if the pattern is on each page. The range must be readable memory of ours.
fn filled(at: usize, len: usize) -> bool {
    (0..len).step_by(PAGE).all(|page| {
        // SAFETY: within a Scratch that the caller holds, mapped readable.
        unsafe { ((at + page) as *const u64).read_volatile() == PATTERN ^ page as u64 }
    })
}

/// True if the 2 MiB at `at` are mapped by one huge page, or `None` if the kernel cannot say.
fn is_huge(at: usize) -> Option<bool> {
    let fd = fs::open(c"/proc/self/pagemap", libc::O_RDONLY, 0).ok()?;
    let bytes = mm::huge_bytes(fd, at, at + HUGE);
    fs::close(fd);
    match bytes {
        Ok(n) => Some(n == HUGE as u64),
        Err(_) => huge_by_smaps(at),
    }
}

/// The same from the text of smaps, for kernels without PAGEMAP_SCAN (before 6.7).
fn huge_by_smaps(at: usize) -> Option<bool> {
    // (Names of files in it may be any bytes.)
    let text = std::fs::read("/proc/self/smaps").ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut inside = false;
    for line in text.lines() {
        let range = line.split(' ').next()?.split_once('-');
        let bounds = range.and_then(|(a, b)| {
            Some((
                usize::from_str_radix(a, 16).ok()?,
                usize::from_str_radix(b, 16).ok()?,
            ))
        });
        if let Some((start, end)) = bounds {
            inside = start <= at && at < end;
        } else if inside && let Some(kib) = line.strip_prefix("AnonHugePages:") {
            return Some(kib.trim().trim_end_matches(" kB").parse::<u64>().ok()? > 0);
        }
    }
    None
}

/// The result of moving one huge page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// It was one huge page before, or `None` if the kernel cannot say.
    pub was_huge: Option<bool>,
    /// It was one huge page afterwards, in the same way.
    pub stayed_huge: Option<bool>,
    /// Every byte that was checked was right, and nothing was left at the source.
    pub intact: bool,
}

/// True if an advised range of 2 MiB gets a huge page on first touch, or `None` if the kernel
/// cannot say.
pub fn huge_page() -> Result<Option<bool>> {
    let (_scratch, at) = Scratch::huge(1)?;
    fill(at, HUGE);
    Ok(is_huge(at))
}

/// Moves two base pages by mremap with DONTUNMAP: the least that signal mode needs (Linux 5.7).
pub fn mremap_pages() -> Result<()> {
    let scratch = Scratch::new(4 * PAGE)?;
    fill(scratch.base, 2 * PAGE);
    let to = scratch.base + 2 * PAGE;
    // SAFETY: both ranges lie in `scratch`.
    unsafe { mm::move_pages(scratch.base, to, 2 * PAGE) }?;
    if filled(to, 2 * PAGE) {
        Ok(())
    } else {
        Err(Errno::EIO)
    }
}

/// Moves a huge page onto a PROT_NONE range by mremap, as signal mode does.
pub fn mremap_huge() -> Result<Moved> {
    let (_scratch, from) = Scratch::huge(2)?;
    let to = from + HUGE;
    fill(from, HUGE);
    let was_huge = is_huge(from);
    // SAFETY: both ranges lie in `_scratch`, and nobody else touches them.
    unsafe {
        mm::protect(to, HUGE, mm::PROT_NONE)?;
        mm::move_pages(from, to, HUGE)?;
    }
    Ok(Moved {
        was_huge,
        stayed_huge: is_huge(to),
        intact: filled(to, HUGE) && is_zero(from),
    })
}

fn is_zero(at: usize) -> bool {
    // SAFETY: callers hold the Scratch that `at` lies in, mapped readable.
    unsafe { (at as *const u64).read_volatile() == 0 }
}

/// What userfaultfd offers this user.
#[derive(Clone, Copy, Debug)]
pub struct Userfaultfd {
    /// Features if faults of kernel mode are reported too (message mode needs that).
    pub full: Result<u64>,
    /// Features if only faults of user mode are reported.
    pub user_only: Result<u64>,
}

/// Asks for both kinds.
pub fn userfaultfd() -> Userfaultfd {
    let ask = |flags| {
        uffd::open(flags, 0).map(|(fd, features)| {
            fs::close(fd);
            features
        })
    };
    Userfaultfd {
        full: ask(0),
        user_only: ask(uffd::USER_MODE_ONLY),
    }
}

/// True if message mode can be used: faults of kernel mode are reported, with MOVE and write
/// protection.
pub fn message_mode() -> Result<()> {
    let wanted = uffd::feature::MOVE | uffd::feature::PAGEFAULT_FLAG_WP;
    uffd::open(0, wanted).map(|(fd, _)| fs::close(fd))
}

/// Moves a huge page by UFFDIO_MOVE into a registered range.
pub fn uffd_move() -> Result<Moved> {
    let (fd, _) = uffd::open(uffd::USER_MODE_ONLY, uffd::feature::MOVE)?;
    let moved = uffd_move_with(fd);
    fs::close(fd);
    moved
}

fn uffd_move_with(fd: i32) -> Result<Moved> {
    let (_source, from) = Scratch::huge(1)?;
    let (_target, to) = Scratch::huge(1)?;
    fill(from, HUGE);
    let was_huge = is_huge(from);
    uffd::register(fd, to, HUGE, uffd::mode::MISSING)?;
    // SAFETY: both ranges are ours, and nobody else touches them.
    let moved = unsafe { uffd::move_pages(fd, to, from, HUGE) };
    // Closing the descriptor would do as well; unregistering keeps the reads below from waiting.
    uffd::unregister(fd, to, HUGE)?;
    match moved.error {
        Some(e) => Err(e),
        None => Ok(Moved {
            was_huge,
            stayed_huge: is_huge(to),
            intact: filled(to, HUGE) && is_zero(from),
        }),
    }
}

/// True if an io_uring can be created.
pub fn io_uring() -> Result<()> {
    uring::Ring::new(2).map(drop)
}

/// True if a seccomp filter that traps can be installed. Tried on a thread of its own: filters and
/// "no new privileges" belong to a thread and end with it.
pub fn seccomp_filter() -> Result<()> {
    let attempt = || {
        // SAFETY: prctl with plain numbers.
        unsafe {
            call(
                libc::SYS_prctl,
                [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0],
            )
        }?;
        let mut allow = [libc::sock_filter {
            code: 0x06,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        }];
        let program = libc::sock_fprog {
            len: 1,
            filter: allow.as_mut_ptr(),
        };
        let trap = libc::SECCOMP_RET_TRAP;
        // SAFETY: both point at valid values that outlive the calls; the filter allows everything.
        unsafe {
            const GET_ACTION_AVAIL: usize = 2;
            call(
                libc::SYS_seccomp,
                [GET_ACTION_AVAIL, 0, &trap as *const u32 as usize, 0, 0, 0],
            )?;
            const SET_MODE_FILTER: usize = 1;
            call(
                libc::SYS_seccomp,
                [SET_MODE_FILTER, 0, &program as *const _ as usize, 0, 0, 0],
            )?;
        }
        Ok(())
    };
    match std::thread::Builder::new()
        .name("probe".into())
        .spawn(attempt)
    {
        Ok(thread) => thread.join().unwrap_or(Err(Errno::EFAULT)),
        Err(_) => Err(Errno::EAGAIN),
    }
}

/// Speed of the disk of a directory with units of 2 MiB, one at a time.
#[derive(Clone, Copy, Debug)]
pub struct DiskSpeed {
    /// Direct I/O was used; otherwise the page cache was measured.
    pub direct: bool,
    /// Bytes written, then read back and compared.
    pub bytes: u64,
    /// Nanoseconds of the writes.
    pub write_ns: u64,
    /// Nanoseconds of the reads.
    pub read_ns: u64,
}

/// Writes and reads `units` units of 2 MiB in a file without a name in `dir`. EIO if other bytes
/// came back.
pub fn disk(dir: &Path, units: usize) -> Result<DiskSpeed> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let flags = libc::O_RDWR | libc::O_TMPFILE;
    let (fd, direct) = match fs::open(&path, flags | libc::O_DIRECT, 0o600) {
        Err(Errno::EINVAL) => (fs::open(&path, flags, 0o600)?, false),
        other => (other?, true),
    };
    let speed = disk_with(fd, direct, units);
    fs::close(fd);
    speed
}

fn disk_with(fd: i32, direct: bool, units: usize) -> Result<DiskSpeed> {
    let (_scratch, buf) = Scratch::huge(1)?;
    fs::allocate(fd, 0, (units * HUGE) as u64).or_else(|e| match e {
        // Few file systems cannot allocate blocks ahead; writing shows whether there is room.
        Errno::EOPNOTSUPP => Ok(()),
        e => Err(e),
    })?;
    fill(buf, HUGE);
    let pass = |write: bool| -> Result<u64> {
        let start = crate::now_ns();
        for unit in 0..units {
            let offset = (unit * HUGE) as u64;
            // SAFETY: `buf` is 2 MiB of readable and writable memory of ours.
            unsafe {
                if write {
                    fs::write_all_at(fd, buf, HUGE, offset)?;
                } else {
                    fs::read_exact_at(fd, buf, HUGE, offset)?;
                }
            }
            if !write && !filled(buf, HUGE) {
                return Err(Errno::EIO);
            }
        }
        Ok(crate::now_ns() - start)
    };
    let write_ns = pass(true)?;
    let read_ns = pass(false)?;
    Ok(DiskSpeed {
        direct,
        bytes: (units * HUGE) as u64,
        write_ns,
        read_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mremap_moves_pages() {
        mremap_pages().unwrap();
        let moved = mremap_huge().unwrap();
        assert!(moved.intact);
        if moved.was_huge == Some(true) {
            assert_eq!(moved.stayed_huge, Some(true));
        }
    }

    #[test]
    fn smaps_and_the_scan_agree() {
        let (_scratch, at) = Scratch::huge(1).unwrap();
        fill(at, HUGE);
        assert_eq!(huge_by_smaps(at), is_huge(at));
    }

    #[test]
    fn a_filter_stays_on_its_thread() {
        let before = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let _ = seccomp_filter();
        let after = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = |t: &str| {
            t.lines()
                .find(|l| l.starts_with("Seccomp:"))
                .map(str::to_owned)
        };
        assert_eq!(line(&before), line(&after));
    }

    #[test]
    fn a_disk_gives_back_what_it_took() {
        let speed = disk(Path::new("/var/tmp"), 2).unwrap();
        assert_eq!(speed.bytes, 2 * HUGE as u64);
    }
}

//! The holder of something in the segment, as one word: if a process dies, or runs another image,
//! the process that finds that out can take over what the first one held.
//!
//! A holder's word has the process's id in bits 8..32, and a hash of its start time and of its
//! image above. The low 8 bits are 0; they are for the user of the word.

use hugeswap_sys::{Errno, Result, fs, process};
use std::ffi::CString;

pub(super) struct Status {
    /// In hundredths of a second since the machine was started.
    pub start_time: u64,
    pub parent: i32,
    /// `None`: it is not to be seen, for it is ending, or has other rights than this one.
    pub image: Option<u64>,
    pub gone: bool,
}

/// What can be said of a process.
pub(super) enum Look {
    /// There is none with that id.
    Absent,
    /// There is one, of which nothing can be read: this process has no free descriptor, or may not.
    Unseen(Errno),
    Seen(Status),
}

impl Look {
    pub fn seen(self) -> Option<Status> {
        match self {
            Look::Seen(status) => Some(status),
            _ => None,
        }
    }
}

/// What `/proc/PID/stat` says.
pub(super) fn look_at(pid: i32) -> Look {
    match read_stat(pid).map(|text| parse(&text)) {
        Ok(Some(status)) => Look::Seen(status),
        Ok(None) => Look::Unseen(Errno::EINVAL),
        // (ENOENT: or it is another user's, and hidden.)
        Err(e) if process::exists(pid) => Look::Unseen(e),
        Err(_) => Look::Absent,
    }
}

fn read_stat(pid: i32) -> Result<Vec<u8>> {
    let path = CString::new(format!("/proc/{pid}/stat")).map_err(|_| Errno::EINVAL)?;
    // Numbers of 52 fields, and a name.
    let mut text = vec![0u8; 2048];
    let fd = fs::open(&path, libc::O_RDONLY, 0)?;
    // SAFETY: `text` is that long.
    let len = unsafe { fs::read_at(fd, text.as_mut_ptr() as usize, text.len(), 0) };
    fs::close(fd);
    text.truncate(len?);
    Ok(text)
}

fn parse(text: &[u8]) -> Option<Status> {
    // The name ends at the last bracket. It may be any bytes: the kernel cuts it, within a letter, too.
    let name_end = text.iter().rposition(|&b| b == b')')?;
    let rest = std::str::from_utf8(text.get(name_end + 1..)?).ok()?;
    let f: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |i: usize| f.get(i).and_then(|v| v.parse::<u64>().ok());
    // Fields as proc(5) numbers them, less 3: num_threads 20, starttime 22, startcode 26,
    // startstack 28, start_data 45, start_brk 47, arg_start 48, env_end 51. The addresses are drawn
    // anew at exec and inherited at fork.
    let image = [23, 25, 42, 44, 45, 48].iter().fold(0u64, |h, &i| {
        (h ^ number(i).unwrap_or(0))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
    });
    // A zombie leader may still have living threads.
    let gone = matches!(*f.first()?, "Z" | "X") && number(17)? <= 1;
    // An exiting process loses its address space before it becomes a zombie.
    let exiting = number(25) == Some(0) && number(23) == Some(0) && number(17)? <= 1;
    // (1 stands for what this process may not see.)
    let seen = number(23).is_some_and(|start| start > 1);
    Some(Status {
        start_time: number(19)?,
        parent: f.get(1)?.parse().ok()?,
        image: seen.then_some(image),
        gone: gone || exiting,
    })
}

/// All processes that this one sees.
pub(super) fn processes() -> Result<Vec<i32>> {
    fs::numbers_in(c"/proc")
}

fn word(pid: i32, status: &Status) -> u64 {
    let short = |v: u64| v.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    let image = short(status.image.unwrap_or(0));
    image << 48 | short(status.start_time) << 32 | u64::from(pid as u32) << 8
}

/// Process `pid`, as a holder; `None` if there is none.
pub fn of(pid: i32) -> Option<u64> {
    look_at(pid).seen().map(|s| word(pid, &s))
}

/// Its process.
pub(super) fn pid(holder: u64) -> i32 {
    (holder as u32 >> 8) as i32
}

/// This process, as a holder. Not 0.
pub(super) fn myself() -> u64 {
    let pid = process::pid();
    of(pid).unwrap_or(u64::from(pid as u32) << 8)
}

/// Is what `holder` held free? (The user's own bits do not matter.)
pub(super) fn is_gone(holder: u64) -> bool {
    let pid = pid(holder);
    let status = match look_at(pid) {
        Look::Absent => return true,
        // What holds something may be at it.
        Look::Unseen(_) => return false,
        Look::Seen(status) => status,
    };
    // (It could not look at itself.)
    if holder >> 32 == 0 {
        return status.gone;
    }
    let differs = word(pid, &status) ^ holder;
    // Threads that exec ended hold nothing any more; an image that is not to be seen may be the
    // same one.
    status.gone
        || differs as u32 >> 8 != 0
        || differs >> 32 & 0xffff != 0
        || (status.image.is_some() && differs >> 48 != 0)
}

/// Runs `f` in a process that ends before it could do anything else.
#[cfg(test)]
pub(super) fn and_ends(f: impl FnOnce() -> bool) {
    // SAFETY: the child touches the segment and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let ok = f();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!ok)) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_there_whatever_its_name_is() {
        // Cut within a letter, as the kernel does at 15 bytes; with a bracket; none.
        for name in [&b"\xd0\xbf\xd0"[..], b"a) Z 1 1", b"", b"\xff\xfe"] {
            let there = |pid: i32| {
                let seen = look_at(pid).seen().is_some_and(|s| !s.gone);
                seen && !is_gone(of(pid).unwrap())
            };
            let (mut to_end, wait) = std::io::pipe().map(|(r, w)| (w, r)).unwrap();
            let (told, mut tell) = std::io::pipe().unwrap();
            // SAFETY: the child calls the kernel only, and ends.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let mut name = name.to_vec();
                name.push(0);
                // SAFETY: a string.
                unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
                let _ = tell.write_all(b"x");
                let _ = (&wait).read(&mut [0]);
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            (&told).read_exact(&mut [0]).unwrap();
            let is_there = there(pid);
            to_end.write_all(b"x").unwrap();
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
            assert!(is_there, "{name:?}");
        }
    }

    #[test]
    fn a_process_is_there_where_it_cannot_be_looked_at() {
        let (me, parent) = (myself(), of(std::os::unix::process::parent_id() as i32));
        and_ends(|| {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: a limit of the child's own: no descriptor is to be had.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) };
            let unseen = matches!(look_at(pid(me)), Look::Unseen(Errno::EMFILE));
            // One without an id of its own is told by its process alone.
            let itself = myself();
            let there = !is_gone(me) && parent.is_none_or(|p| !is_gone(p));
            unseen && there && itself == u64::from(process::pid() as u32) << 8 && !is_gone(itself)
        });
        // (An id that none has.)
        assert!(is_gone(u64::from(u32::MAX >> 10) << 8));
    }

    #[test]
    fn holders_are_gone_when_their_process_or_its_image_is() {
        let me = myself();
        assert!(me & 0xff == 0 && !is_gone(me) && !is_gone(me | 2));
        // (Its neighbours may be its threads.)
        for bit in 32..64 {
            assert!(is_gone(me ^ 1 << bit), "{bit}");
        }
        // One that waits, then runs another image under the same id, then ends.
        let mut child = Command::new("sh")
            .args(["-c", "echo; read x; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut said = || from.read_exact(&mut [0]).unwrap();
        // (The addresses of an image are there some time after exec has begun.)
        said();
        let pid = child.id() as i32;
        let holder = of(pid).unwrap();
        assert!(!is_gone(holder));
        to.write_all(b"\nx").unwrap();
        said();
        assert!(is_gone(holder), "it runs another image");
        let holder = of(pid).unwrap();
        assert!(!is_gone(holder));
        drop(to);
        child.wait().unwrap();
        assert!(is_gone(holder));
    }
}

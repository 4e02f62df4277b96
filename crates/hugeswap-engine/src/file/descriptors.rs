//! The descriptors of mapped files. The program's threads have one table of descriptors, the
//! engine's own have another (`Reclaim::take_private_descriptors`), so a file is opened for both,
//! under the same number.
//!
//! The engine opens the file behind the program's descriptor anew, through /proc: with flags of its
//! own (direct I/O would otherwise be the program's too), and never blocking. kswapd does it for
//! the engine's threads, on request.
//!
//! Concurrency: changes are made one at a time, under a lock. kswapd takes requests through atomics
//! and never waits for it. A number is closed in the engine's table first, then in the program's,
//! so that nothing else gets it in between.

use super::MapFileError;
use super::table::{Files, Mapping, state};
use crate::PAGE;
use crate::forked::is_raw_fork_child;
use crate::paging::Paging;
use crate::store::BUFFER;
use hugeswap_policy::unit::MAPPINGS;
use hugeswap_sys::{Errno, Result, fs, futex, now_ns, process};
use std::ffi::CString;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const NOTHING: u32 = 0;
const OPEN: u32 = 1;
const CLOSE: u32 = 2;
const BUSY: u32 = 3;
/// How long kswapd is waited for.
const PATIENCE_NS: u64 = 10_000_000_000;

/// Opens anew what thread `tid` has open as `fd`.
fn reopen(tid: i32, fd: i32, flags: i32) -> Result<i32> {
    let path = CString::new(format!("/proc/self/task/{tid}/fd/{fd}")).map_err(|_| Errno::EINVAL)?;
    fs::open(&path, flags | libc::O_NONBLOCK | libc::O_NOCTTY, 0)
}

/// Closes a descriptor of a mapping in the program's table, unless the program has, and the number
/// is another file's.
fn close_ours(m: &Mapping, fd: i32) {
    if fd >= 0 && m.size_by(fd).is_ok() {
        fs::close(fd);
    }
}

impl Files {
    /// kswapd has left the program's table, or could not.
    pub(crate) fn note_private_descriptors(&self, private: bool) {
        self.descriptors.private.store(private, Relaxed);
    }

    /// Closes all files, of an engine that has no threads any more.
    pub(crate) fn close_all_mappings(&self) {
        for m in self.known() {
            if m.state.load(Acquire) == state::USED {
                for fd in [&m.fd, &m.tail_fd] {
                    close_ours(m, fd.load(Relaxed));
                }
            }
        }
    }

    /// Descriptors of mapped files.
    pub(crate) fn fds(&self) -> impl Iterator<Item = i32> {
        let used = |m: &&Mapping| m.state.load(Acquire) == state::USED;
        let fds = |m: &Mapping| [m.fd.load(Relaxed), m.tail_fd.load(Relaxed)];
        let used = self.known().iter().filter(used);
        used.flat_map(fds).filter(|&fd| fd >= 0)
    }

    /// In a forked child, which has the program's descriptors and threads to come.
    pub(crate) fn reset_descriptors_in_child(&self) {
        // The holder of the lock was inside the engine, and no thread is inside at a fork.
        self.descriptors.what.store(NOTHING, Relaxed);
    }
}

impl Paging {
    /// Opens a mapping of `len` bytes from `offset` on of the file that the caller has open as
    /// `fd`, which `units` units are to refer to.
    pub(crate) fn open_mapping(
        &self,
        fd: i32,
        (offset, len): (u64, usize),
        writes: bool,
        units: u32,
    ) -> std::result::Result<u32, MapFileError> {
        let _changing = self.files.descriptors.changing.lock();
        let (size, who) = fs::size(fd)?;
        if who.mode & libc::S_IFMT != libc::S_IFREG {
            return Err(MapFileError::NotRegular);
        }
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > size.next_multiple_of(PAGE as u64)) {
            return Err(MapFileError::Outside);
        }
        let valid = (size - offset).min(len as u64);
        let free = |m: &Mapping| m.state.load(Acquire) == state::FREE;
        let mapping = (0..MAPPINGS)
            .find(|&i| free(&self.files.mappings[i as usize]))
            .ok_or(MapFileError::TooMany)?;
        let entry = &self.files.mappings[mapping as usize];
        let access = if writes { libc::O_RDWR } else { libc::O_RDONLY };
        let (ours, direct) = self.open_for_program(fd, access)?;
        let part = !valid.is_multiple_of(PAGE as u64);
        let tail = if writes && direct && part {
            let tail = reopen(process::tid(), fd, access).and_then(|fd| self.out_of_the_way(fd));
            tail.inspect_err(|_| fs::close(ours))?
        } else {
            -1
        };
        let flags = access | if direct { libc::O_DIRECT } else { 0 };
        let given = self.give_to_engine(ours, flags).and_then(|()| {
            if tail < 0 {
                return Ok(());
            }
            self.give_to_engine(tail, access)
                .inspect_err(|_| self.ask(CLOSE, ours, 0).unwrap_or(()))
        });
        if let Err(e) = given {
            [ours, tail]
                .into_iter()
                .filter(|&f| f >= 0)
                .for_each(fs::close);
            return Err(e.into());
        }
        entry.writes.store(u32::from(writes), Relaxed);
        entry.direct.store(u32::from(direct), Relaxed);
        entry.fd.store(ours, Relaxed);
        entry.tail_fd.store(tail, Relaxed);
        entry.dev.store(who.dev, Relaxed);
        entry.ino.store(who.ino, Relaxed);
        entry.offset.store(offset, Relaxed);
        entry.valid.store(valid, Relaxed);
        entry.units.store(units, Relaxed);
        entry.errors.store(0, Relaxed);
        entry.last_error.store(0, Relaxed);
        entry.state.store(state::USED, Release);
        self.files.high.fetch_max(mapping + 1, Release);
        self.files.count.fetch_add(1, Relaxed);
        Ok(mapping)
    }

    /// For direct I/O, if file and file system take that; and whether it is.
    fn open_for_program(&self, fd: i32, access: i32) -> Result<(i32, bool)> {
        let tid = process::tid();
        // There memory that changes while it is written makes a block that cannot be read (its
        // checksum).
        const BTRFS_MAGIC: u64 = 0x9123_683e;
        let copied =
            access == libc::O_RDWR && fs::file_system(fd).is_ok_and(|s| s.magic == BTRFS_MAGIC);
        if !copied && let Ok(ours) = reopen(tid, fd, access | libc::O_DIRECT) {
            let buffer = self.base.take_buffer();
            // SAFETY: the buffer is ours.
            let tried = unsafe { fs::read_at(ours, buffer.addr(), PAGE.min(BUFFER), 0) };
            if tried.is_ok() {
                return Ok((self.out_of_the_way(ours)?, true));
            }
            fs::close(ours);
        }
        Ok((self.out_of_the_way(reopen(tid, fd, access)?)?, false))
    }

    /// The same file under a number where programs do not look.
    fn out_of_the_way(&self, fd: i32) -> Result<i32> {
        let places = [self.low_fd, self.low_fd - 512, 10];
        let high = places
            .into_iter()
            .filter(|&at| at >= 10)
            .find_map(|at| fs::dup_above(fd, at).ok());
        fs::close(fd);
        high.ok_or(Errno::EMFILE)
    }

    fn give_to_engine(&self, fd: i32, flags: i32) -> Result<()> {
        self.ask(OPEN, fd, flags)
    }

    /// Has kswapd open or close `fd` in the engine's table. The caller holds the lock.
    fn ask(&self, what: u32, fd: i32, flags: i32) -> Result<()> {
        let d = &self.files.descriptors;
        d.fd.store(fd, Relaxed);
        d.tid.store(process::tid(), Relaxed);
        d.flags.store(flags, Relaxed);
        d.what.store(what, Release);
        let start = now_ns();
        loop {
            let now = d.what.load(Acquire);
            if now == NOTHING {
                return match d.answer.load(Relaxed) {
                    0 => Ok(()),
                    e => Err(Errno(e)),
                };
            }
            let late = now_ns() - start > PATIENCE_NS;
            if late
                && now == what
                && d.what
                    .compare_exchange(what, NOTHING, AcqRel, Relaxed)
                    .is_ok()
            {
                return Err(Errno::ETIMEDOUT);
            }
            self.pool.kick();
            futex::wait(&d.what, now, Some(1_000_000), false);
        }
    }

    /// kswapd's part; false if nothing was asked.
    pub(crate) fn serve_descriptors(&self) -> bool {
        let d = &self.files.descriptors;
        let what = d.what.load(Acquire);
        let ours = what == OPEN || what == CLOSE;
        if !ours
            || d.what
                .compare_exchange(what, BUSY, AcqRel, Relaxed)
                .is_err()
        {
            return false;
        }
        let fd = d.fd.load(Relaxed);
        let result = match what {
            // One table for all: it is there, or goes with the program's.
            _ if !d.private.load(Relaxed) => Ok(()),
            OPEN => reopen(d.tid.load(Relaxed), fd, d.flags.load(Relaxed)).and_then(|new| {
                // SAFETY: in this table the number is not in use, or stands for this file already.
                let result = unsafe { fs::dup_to(new, fd) };
                fs::close(new);
                result
            }),
            _ => {
                fs::close(fd);
                Ok(())
            }
        };
        d.answer.store(result.err().map_or(0, |e| e.0), Relaxed);
        d.what.store(NOTHING, Release);
        futex::wake(&d.what, 1, false);
        true
    }

    /// Closes the files of mappings that no unit refers to any more, and swap areas that are gone.
    pub(crate) fn close_unused_mappings(&self) {
        self.pool.close_past_areas();
        // Between the parts of a fork kswapd is at rest: the next call does it. In a child forked
        // by a raw system call there is none.
        if is_raw_fork_child(self.fork_mark) {
            return;
        }
        if self.gate.is_forker() || !self.files.idle.swap(false, Acquire) {
            return;
        }
        let _changing = self.files.descriptors.changing.lock();
        let unused =
            |m: &&Mapping| m.state.load(Acquire) == state::USED && m.units.load(Acquire) == 0;
        for m in self.files.known().iter().filter(unused) {
            for fd in [&m.fd, &m.tail_fd] {
                let fd = fd.swap(-1, Relaxed);
                // If it stays open there, it does no harm: the next of its number replaces it.
                if fd >= 0 {
                    let _ = self.ask(CLOSE, fd, 0);
                    close_ours(m, fd);
                }
            }
            self.files.count.fetch_sub(1, Relaxed);
            m.state.store(state::FREE, Release);
        }
    }
}

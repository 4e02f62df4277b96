//! How a process reaches a pool's swap areas: each by a descriptor of its own.
//!
//! The threads of the program have one table of descriptors, the engine's threads have another. At
//! the start both hold all areas. kswapd joins what is added later, in the engine's table. The
//! program's threads open such an area, under the same number, when they first meet it
//! ([`Pool::is_in_reach`]), and close what is gone when they are in the engine for something else.
//! The areas of a process are the same for all its threads, so a thread may know of an area before
//! it has a descriptor for it.

use super::areas::{Joined, JoinedArea};
use super::layout::Area;
use super::swap::hold;
use super::{Pool, PoolError};
use hugeswap_policy::thp_swap::area;
use hugeswap_sys::{Errno, Result, fs, process};
use std::ffi::CStr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

impl Pool {
    /// Joins areas that came, leaves those that went: `private`, this thread has a descriptor table
    /// of its own, so that the maker's numbers are not its. To be called by kswapd, at `first`, and
    /// when `areas_generation` has changed.
    pub fn follow_areas(&self, min_fd: i32, private: bool, first: bool) {
        let h = self.header();
        let generation = h.areas_generation.load(Acquire);
        if self.areas.generation.load(Acquire) == generation && !first {
            return;
        }
        self.areas.generation.store(generation, Release);
        let maker = h.creator.load(Relaxed);
        for (i, a) in h.areas.iter().enumerate() {
            let state = a.state.load(Acquire);
            let serial = a.serial.load(Relaxed);
            let j = &self.areas.joined[i];
            let known = j.serial.load(Acquire);
            if state == area::FREE {
                if known != 0 {
                    self.leave(j, private || maker != process::pid());
                }
                continue;
            }
            if known == serial && (!private || j.get().is_some_and(|j| reaches(&j))) {
                continue;
            }
            match self.join_area(
                a,
                (maker == process::pid()).then_some(a.fd.load(Relaxed)),
                min_fd,
            ) {
                Ok(joined) => {
                    j.put(&joined, serial);
                    self.areas.publish();
                }
                // Not joined, so nothing is claimed there; tried again when something changes.
                Err(_) if known != 0 => {}
                Err(_) => self
                    .areas
                    .generation
                    .store(generation.wrapping_sub(1), Relaxed),
            }
        }
    }

    pub(super) fn leave(&self, j: &Joined, close: bool) {
        let Some(joined) = j.get() else { return };
        j.serial.store(0, Release);
        self.areas.publish();
        self.areas
            .past
            .lock()
            .descriptors
            .push((joined.fd, joined.identity));
        if close && reaches(&joined) {
            fs::close(joined.fd);
        }
    }

    /// Opens an area of the segment; under number `at`, if given, else at or above `min_fd`.
    pub(super) fn join_area(&self, a: &Area, at: Option<i32>, min_fd: i32) -> Result<JoinedArea> {
        let range = self.range_of(a);
        if range.end - range.start != a.clusters.load(Relaxed) {
            return Err(Errno::EINVAL);
        }
        let maker = self.header().creator.load(Relaxed);
        let flags = match a.direct.load(Relaxed) {
            1 => libc::O_DIRECT,
            _ => 0,
        };
        let new = open_of(maker, a.fd.load(Relaxed), flags)?;
        // The maker's number may stand for a file of its program's by now, which is not to be
        // written to.
        if !fs::identity(new).is_ok_and(|f| a.identity.is(&f)) {
            fs::close(new);
            return Err(Errno::EBADF);
        }
        hold(new, a.kind.load(Relaxed)).inspect_err(|_| fs::close(new))?;
        let fd = match at {
            Some(at) if at == new => at,
            Some(at) => {
                // SAFETY: the number stands for this area in the maker's table, so in no other of
                // its threads' for anything else of ours.
                let moved = unsafe { fs::dup_to(new, at) };
                fs::close(new);
                moved.map(|()| at)?
            }
            None => out_of_the_way(new, first_free((min_fd - APART).max(10))),
        };
        Ok(JoinedArea {
            fd,
            identity: fs::identity(fd)?,
            first_cluster: range.start,
            clusters: range.end - range.start,
        })
    }

    /// Can the calling thread read and write area number `index`? It opens it if need be.
    /// Async-signal-safe.
    pub fn is_in_reach(&self, index: usize) -> bool {
        let there = || self.area(index).is_some_and(|j| reaches(&j));
        // (Or another process that has the same table does so at the same time.)
        there() || self.open_here(index) || there()
    }

    /// [`Pool::is_in_reach`], but it is tried only once to open an area: for the fault path, where
    /// the number may be the program's for good.
    pub fn reach(&self, index: usize) -> bool {
        let Some(j) = self.areas.joined.get(index) else {
            return false;
        };
        let serial = j.serial.load(Acquire);
        serial != 0 && j.reached.swap(serial, AcqRel) != serial && self.open_here(index)
    }

    /// Opens an area in the calling thread's table, under the number that it has in the other, if
    /// that is free. A thread does so when it meets an area that was added since: one of the
    /// program's; or one of the engine's in the maker, where the program's have it first, that
    /// comes before kswapd.
    fn open_here(&self, index: usize) -> bool {
        let (Some(joined), Some(a)) = (self.area(index), self.segment_area(index)) else {
            return false;
        };
        let (mut maker, mut number) = ([0u8; 20], [0u8; 20]);
        let mut path = [0u8; 64];
        let parts = [
            b"/proc/" as &[u8],
            fs::digits(self.maker().max(0) as u64, 10, &mut maker),
            b"/fd/",
            fs::digits(a.fd.load(Relaxed).max(0) as u64, 10, &mut number),
        ];
        for (to, from) in path.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        let Ok(path) = CStr::from_bytes_until_nul(&path) else {
            return false;
        };
        let direct = a.direct.load(Relaxed) == 1;
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let Ok(new) = fs::open(path, libc::O_RDWR | flags, 0) else {
            return false;
        };
        let held = hold(new, a.kind.load(Relaxed)).is_ok();
        let placed = held
            && fs::identity(new) == Ok(joined.identity)
            && fs::dup_above(new, joined.fd).is_ok_and(|at| {
                if at != joined.fd {
                    fs::close(at);
                }
                at == joined.fd
            });
        fs::close(new);
        placed
    }

    /// As [`Pool::follow_areas`] at the very beginning, in the program's table: all areas must be
    /// had.
    pub(super) fn join_areas(&self, min_fd: i32) -> std::result::Result<(), PoolError> {
        let h = self.header();
        self.areas
            .generation
            .store(h.areas_generation.load(Acquire), Relaxed);
        let maker = h.creator.load(Relaxed);
        for (i, a) in h.areas.iter().enumerate() {
            if a.state.load(Acquire) == area::FREE {
                continue;
            }
            let serial = a.serial.load(Relaxed);
            let joined = match self.join_area(a, None, min_fd) {
                Ok(joined) => joined,
                // It has just gone.
                Err(_) if a.state.load(Acquire) != area::ON => continue,
                Err(Errno::EINVAL) => return Err(PoolError::BadSegment),
                Err(e) => return Err(PoolError::Unreachable(maker, e)),
            };
            self.areas.joined[i].put(&joined, serial);
        }
        self.areas.publish();
        Ok(())
    }

    /// Closes what this process has open of areas that are gone. In a thread with the program's
    /// descriptors.
    pub fn close_past_areas(&self) {
        let mut past = self.areas.past.lock();
        for (fd, identity) in past.descriptors.drain(..) {
            if fs::identity(fd) == Ok(identity) {
                fs::close(fd);
            }
        }
    }
}

pub(super) fn reaches(j: &JoinedArea) -> bool {
    fs::identity(j.fd) == Ok(j.identity)
}

/// Opens what process `of` has open as `fd`.
pub(super) fn open_of(of: i32, fd: i32, flags: i32) -> Result<i32> {
    let path = std::ffi::CString::new(format!("/proc/{of}/fd/{fd}")).map_err(|_| Errno::EINVAL)?;
    fs::open(&path, libc::O_RDWR | flags, 0)
}

/// How far below other descriptors of ours those of areas that were added are. (They stand for
/// nothing yet in the program's table, where other threads take numbers of their own.)
const APART: i32 = 256;

/// The first number from `min_fd` on that stands for nothing in the program's table (in which a
/// thread of ours need not be).
fn first_free(min_fd: i32) -> i32 {
    let used = |fd: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
    (min_fd..min_fd + 64).find(|fd| !used(fd)).unwrap_or(min_fd)
}

/// The same under a number at or above `min_fd`, where programs do not look.
pub(super) fn out_of_the_way(low: i32, min_fd: i32) -> i32 {
    match fs::dup_above(low, min_fd) {
        Ok(high) => {
            fs::close(low);
            high
        }
        Err(_) => low,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{PoolConfig, SwapSpec};
    use std::os::fd::AsRawFd;

    /// A process that joins late, or a kswapd that starts late, took for swap whatever stood under
    /// the maker's number by then.
    #[test]
    fn what_is_the_programs_by_now_is_not_joined() {
        let pool = Pool::create(&PoolConfig {
            memory: 16 << 20,
            swap: vec![SwapSpec::new("/var/tmp")],
            fault_mode: Default::default(),
            settings: vec![],
        })
        .unwrap();
        let (me, area) = (process::pid(), &pool.header().areas[0]);
        let fd = area.fd.load(Relaxed);
        drop(Pool::attach(me, pool.fd(), 3).unwrap());
        let file = tempfile();
        let kept = fs::dup_above(fd, 3).unwrap();
        // SAFETY: the number is the pool's, which is not used meanwhile.
        unsafe { fs::dup_to(file.as_raw_fd(), fd) }.unwrap();
        let late = Pool::attach(me, pool.fd(), 3).err();
        assert!(matches!(
            late,
            Some(PoolError::Unreachable(_, Errno::EBADF))
        ));
        assert_eq!(pool.join_area(area, None, 3).err(), Some(Errno::EBADF));
        // SAFETY: it is the area's again.
        unsafe { fs::dup_to(kept, fd) }.unwrap();
        fs::close(kept);
    }

    fn tempfile() -> std::fs::File {
        let path = format!("/var/tmp/hugeswap-test-{}", process::pid());
        let mut new = std::fs::File::options();
        let file = new.read(true).write(true).create_new(true).open(&path);
        std::fs::remove_file(&path).unwrap();
        file.unwrap()
    }
}

//! Reads without waiting for each: submitted by one system call, and seen to have ended in a ring
//! that the kernel fills. One read can be polled for, without a second call; of many at once the
//! device does several at a time.
//!
//! Linux native AIO, not io_uring: default profiles of containers allow it. (It has been so for files
//! opened with O_DIRECT since Linux 2.6; for others the call itself reads.) The ring is that of
//! `struct aio_ring` in the kernel's fs/aio.c, which libaio reads in the same way.

use crate::fs::Extent;
use crate::raw::{call, check};
use crate::{Errno, Result, mm, own};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Reads at a time.
pub const MOST: usize = 32;

const PREAD: u16 = 0;
const MAGIC: u32 = 0xa10a_10a1;

/// The kernel's iocb, with the fields in use.
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: i32,
    buf: u64,
    len: u64,
    offset: u64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

impl Iocb {
    const NONE: Iocb = Iocb {
        data: 0,
        key: 0,
        rw_flags: 0,
        opcode: PREAD,
        priority: 0,
        fd: -1,
        buf: 0,
        len: 0,
        offset: 0,
        reserved: 0,
        flags: 0,
        eventfd: 0,
    };

    /// A read, whose event is to say `data`.
    fn read(extent: &Extent, data: usize) -> Iocb {
        Iocb {
            data: data as u64,
            fd: extent.fd,
            buf: extent.memory as u64,
            len: extent.len as u64,
            offset: extent.offset,
            ..Iocb::NONE
        }
    }
}

/// The kernel's io_event.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

impl Event {
    /// The `data` of the iocb, and the result.
    fn outcome(&self) -> (usize, Result<usize>) {
        (self.data as usize, check(self.result as isize))
    }
}

/// The head of the kernel's aio_ring; the events follow.
#[repr(C)]
struct Head {
    id: u32,
    entries: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
    compatible: u32,
    incompatible: u32,
    length: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64 && size_of::<Event>() == 32);
const _: () = assert!(size_of::<Head>() == 32);

/// A context for up to [`MOST`] reads at a time. Forked children do not inherit it; there it must be forgotten,
/// not dropped.
pub struct Aio {
    /// Its address, which is the context's name.
    ring: usize,
}

impl Aio {
    /// Creates a context. An error where the kernel or a sandbox has none, or one that is not known.
    pub fn new() -> Result<Aio> {
        let mut ring = 0usize;
        let args = [MOST, &raw mut ring as usize, 0, 0, 0, 0];
        // SAFETY: `ring` is a writable word, and 0.
        unsafe { call(libc::SYS_io_setup, args) }?;
        let mut aio = Aio { ring };
        let head = aio.head();
        let len = size_of::<Head>() + head.entries as usize * size_of::<Event>();
        let len = len.next_multiple_of(4096);
        if head.magic != MAGIC
            || head.incompatible != 0
            || head.length as usize != size_of::<Head>()
            || (head.entries as usize) <= MOST
        {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: nobody knows the ring yet. With it, the context gets the name of its new address.
        aio.ring = unsafe { own::adopt(ring, len) }?;
        // SAFETY: advice about the ring's own mapping that discards nothing.
        unsafe { mm::advise(aio.ring, len, libc::MADV_DONTFORK) }?;
        Ok(aio)
    }

    fn head(&self) -> &Head {
        // SAFETY: the kernel's mapping, which lives as long as the context. What changes there is
        // atomic.
        unsafe { &*(self.ring as *const Head) }
    }

    /// [`fs::read_at`](crate::fs::read_at), polled for: calls `poll` again and again meanwhile; once
    /// that says false, the caller sleeps until it is done. An error also where it was not begun.
    ///
    /// # Safety
    /// `[buf, buf+len)` must be memory the caller may overwrite.
    pub unsafe fn read_at(
        &mut self,
        fd: i32,
        buf: usize,
        len: usize,
        offset: u64,
        mut poll: impl FnMut() -> bool,
    ) -> Result<usize> {
        let extent = Extent {
            fd,
            memory: buf,
            len,
            offset,
        };
        let iocb = Iocb::read(&extent, 0);
        // SAFETY: the caller's memory, and the read has ended before this returns.
        if unsafe { self.submit(&[&raw const iocb]) }? == 0 {
            return Err(Errno::EAGAIN);
        }
        let mut polls = true;
        loop {
            if let Some((_, result)) = self.take() {
                return result;
            }
            if polls {
                polls = poll();
                std::hint::spin_loop();
            } else if let Some((_, result)) = self.wait() {
                return result;
            }
        }
    }

    /// Carries out up to [`MOST`] reads at a time, and waits for them. `results` gets the bytes read
    /// or the error of each, EAGAIN for one that was not begun.
    ///
    /// # Safety
    /// The memory of the extents must be the caller's to overwrite.
    pub unsafe fn read(&mut self, extents: &[Extent], results: &mut [Result<usize>]) {
        results.fill(Err(Errno::EAGAIN));
        let n = extents.len().min(results.len()).min(MOST);
        let mut iocbs = [const { Iocb::NONE }; MOST];
        let mut list = [std::ptr::null(); MOST];
        for (k, extent) in extents[..n].iter().enumerate() {
            iocbs[k] = Iocb::read(extent, k);
            list[k] = &raw const iocbs[k];
        }
        let mut begun = 0;
        while begun < n {
            // SAFETY: the caller's memory, and the reads have ended before this returns.
            match unsafe { self.submit(&list[begun..n]) } {
                Ok(0) => break,
                Ok(more) => begun += more,
                Err(e) => {
                    results[begun] = Err(e);
                    break;
                }
            }
        }
        let mut ended = 0;
        while ended < begun {
            let Some((k, result)) = self.take().or_else(|| self.wait()) else {
                continue;
            };
            if let Some(r) = results.get_mut(k) {
                *r = result;
            }
            ended += 1;
        }
    }

    /// Begins reads. How many were begun, the first ones; an error: none.
    ///
    /// # Safety
    /// Their memory must be the caller's to overwrite until they have ended.
    unsafe fn submit(&self, list: &[*const Iocb]) -> Result<usize> {
        let args = [self.ring, list.len(), list.as_ptr() as usize, 0, 0, 0];
        // SAFETY: pointers to iocbs, which the kernel copies; the rest is the caller's promise.
        unsafe { call(libc::SYS_io_submit, args) }
    }

    /// A read that has ended, if there is one: the `data` of its iocb, and its result.
    fn take(&self) -> Option<(usize, Result<usize>)> {
        let ring = self.head();
        let head = ring.head.load(Relaxed);
        if ring.tail.load(Acquire) == head {
            return None;
        }
        let at = self.ring + size_of::<Head>() + head as usize * size_of::<Event>();
        // SAFETY: an event that the kernel has published, within the mapping.
        let event = unsafe { (at as *const Event).read() };
        ring.head.store((head + 1) % ring.entries, Release);
        Some(event.outcome())
    }

    /// Sleeps until a read has ended, and takes it, if the kernel has given it out.
    fn wait(&self) -> Option<(usize, Result<usize>)> {
        let mut event = Event::default();
        let args = [self.ring, 1, 1, &raw mut event as usize, 0, 0];
        // SAFETY: room for one event.
        match unsafe { call(libc::SYS_io_getevents, args) } {
            Ok(1) => Some(event.outcome()),
            // Interrupted, or refused: the ring tells.
            _ => None,
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: nothing is going on there, and nobody uses the mapping any more.
        let _ = unsafe { call(libc::SYS_io_destroy, [self.ring, 0, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    /// A context, and a file of pages of 1, 2 and so on.
    fn context_and_file(name: &str, pages: u8) -> Option<(Aio, std::fs::File)> {
        let aio = Aio::new()
            .inspect_err(|e| println!("skipped: no AIO ({e})"))
            .ok()?;
        let file = crate::fs::unnamed(name);
        for page in 0..pages {
            let bytes = [page + 1; 4096];
            file.write_all_at(&bytes, u64::from(page) * 4096).unwrap();
        }
        Some((aio, file))
    }

    #[test]
    fn reads_are_those_of_pread_whether_polled_for_or_waited_for() {
        let Some((mut aio, file)) = context_and_file("aio", 16) else {
            return;
        };
        assert!((own::BASE..own::BASE + own::LEN).contains(&aio.ring));
        let mut memory = [0u8; 4096];
        // Far more than the ring has entries.
        for round in 0..3000u64 {
            let mut left = round % 5;
            let poll = || {
                left = left.saturating_sub(1);
                left > 0
            };
            let (fd, buf) = (file.as_raw_fd(), memory.as_mut_ptr() as usize);
            // SAFETY: the buffer of this test.
            let read = unsafe { aio.read_at(fd, buf, 4096, round % 16 * 4096, poll) };
            assert_eq!(read, Ok(4096));
            assert_eq!(memory, [(round % 16) as u8 + 1; 4096]);
        }
        let buf = memory.as_mut_ptr() as usize;
        let at_the_end = 15 * 4096 + 100;
        for (fd, expected) in [(file.as_raw_fd(), Ok(3996)), (-1, Err(Errno::EBADF))] {
            // SAFETY: as above.
            let read = unsafe { aio.read_at(fd, buf, 4096, at_the_end, || true) };
            assert_eq!(read, expected);
        }
    }
    #[test]
    fn many_reads_at_once_each_have_their_result() {
        let Some((mut aio, file)) = context_and_file("aio-many", 40) else {
            return;
        };
        let mut memory = vec![0u8; 40 * 4096];
        // Far more rounds than the ring has entries.
        for round in 0..100 {
            memory.fill(0);
            let buf = memory.as_mut_ptr() as usize;
            let n = 1 + round % 40;
            let extent = |k: usize| Extent {
                fd: if k == 5 { -1 } else { file.as_raw_fd() },
                memory: buf + k * 4096,
                len: 4096,
                offset: ((k + round) % 40 * 4096) as u64,
            };
            let extents: Vec<_> = (0..n).map(extent).collect();
            let mut results = vec![Ok(0); n];
            // SAFETY: the buffer of this test.
            unsafe { aio.read(&extents, &mut results) };
            // Those after one that cannot be begun are not, nor are those beyond the limit.
            for (k, result) in results.iter().enumerate() {
                let expected = match k {
                    0..5 => Ok(4096),
                    5 => Err(Errno::EBADF),
                    _ => Err(Errno::EAGAIN),
                };
                assert_eq!(*result, expected, "read {k} of {n}");
            }
            for k in 0..n {
                let expected = if k < 5 { (k + round) % 40 + 1 } else { 0 };
                assert!(
                    memory[k * 4096..][..4096]
                        .iter()
                        .all(|&b| usize::from(b) == expected)
                );
            }
            let some: Vec<_> = (6..n).map(extent).collect();
            let mut results = vec![Ok(0); some.len()];
            // SAFETY: as above.
            unsafe { aio.read(&some, &mut results) };
            let begun = some.len().min(MOST);
            assert!(results[..begun].iter().all(|r| *r == Ok(4096)));
            assert!(results[begun..].iter().all(|r| *r == Err(Errno::EAGAIN)));
        }
    }
}

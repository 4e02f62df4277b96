//! io_uring: many transfers by one system call that waits for all of them.
//!
//! The minimum: one ring, used by one thread at a time, without registered buffers or files, and
//! without transfers in progress between calls. Calls go through the gate like all others, so no
//! library serves: under `hugeswap run` a filter refuses io_uring to all other code.

use crate::fs::Extent;
use crate::raw::call;
use crate::{Errno, Result, fs, mm, own};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Offset for mmap of the queues of a ring.
pub const OFF_SQ_RING: usize = 0;
/// Offset for mmap of the entries of its submission queue.
pub const OFF_SQES: usize = 0x1000_0000;
/// Both queues are in one mapping (Linux 5.4).
pub const FEAT_SINGLE_MMAP: u32 = 1;
/// Of io_uring_setup: the queues are in memory of the caller's (Linux 6.5). A kernel that has this chooses itself where
/// it maps queues of its own.
const SETUP_NO_MMAP: u32 = 1 << 14;
/// Of io_uring_enter: it waits for completions.
pub const ENTER_GETEVENTS: usize = 1;
const OP_WRITE: u8 = 23;

/// The kernel's io_sqring_offsets.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct SqOffsets {
    pub head: u32,
    pub tail: u32,
    pub ring_mask: u32,
    pub ring_entries: u32,
    pub flags: u32,
    pub dropped: u32,
    pub array: u32,
    pub resv1: u32,
    pub user_addr: u64,
}

/// The kernel's io_cqring_offsets.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct CqOffsets {
    pub head: u32,
    pub tail: u32,
    pub ring_mask: u32,
    pub ring_entries: u32,
    pub overflow: u32,
    pub cqes: u32,
    pub flags: u32,
    pub resv1: u32,
    pub user_addr: u64,
}

/// The kernel's io_uring_params.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct Params {
    pub sq_entries: u32,
    pub cq_entries: u32,
    pub flags: u32,
    pub sq_thread_cpu: u32,
    pub sq_thread_idle: u32,
    pub features: u32,
    pub wq_fd: u32,
    pub resv: [u32; 3],
    pub sq_off: SqOffsets,
    pub cq_off: CqOffsets,
}

/// The kernel's io_uring_sqe, with the fields in use.
#[repr(C)]
#[derive(Clone, Copy, Default)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct Sqe {
    pub opcode: u8,
    pub flags: u8,
    pub ioprio: u16,
    pub fd: i32,
    pub offset: u64,
    pub addr: u64,
    pub len: u32,
    pub rw_flags: u32,
    pub user_data: u64,
    pub rest: [u64; 3],
}

/// The kernel's io_uring_cqe.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub struct Cqe {
    pub user_data: u64,
    pub res: i32,
    pub flags: u32,
}

const _: () = assert!(size_of::<Params>() == 120 && size_of::<Sqe>() == 64);

/// A ring for transfers. Forked children do not inherit it; there it must be forgotten, not
/// dropped.
pub struct Ring {
    fd: i32,
    entries: u32,
    queues: usize,
    queues_len: usize,
    sqes: usize,
    sqes_len: usize,
    sq: SqOffsets,
    cq: CqOffsets,
}

impl Ring {
    /// Creates a ring for up to `entries` transfers at a time (a power of two). ENOSYS or EPERM if
    /// io_uring is refused.
    pub fn new(entries: u32) -> Result<Ring> {
        match Ring::in_own_memory(entries) {
            Err(Errno::EINVAL) => Ring::in_kernels_memory(entries),
            made => made,
        }
    }

    /// With queues in memory at addresses of [`own`]. EINVAL before Linux 6.5.
    fn in_own_memory(entries: u32) -> Result<Ring> {
        let page_up = |len: usize| len.next_multiple_of(4096);
        // (What the kernel keeps before, between and behind the queues takes less than 1 KiB.)
        let queues_len = page_up(1024 + entries as usize * (2 * size_of::<Cqe>() + 4));
        let sqes_len = page_up(entries as usize * size_of::<Sqe>());
        let at = mm::map_own(queues_len + sqes_len, mm::PROT_RW)?;
        let mut p = Params {
            flags: SETUP_NO_MMAP,
            ..Params::default()
        };
        p.cq_off.user_addr = at as u64;
        p.sq_off.user_addr = (at + queues_len) as u64;
        let args = [entries as usize, &raw mut p as usize, 0, 0, 0, 0];
        // SAFETY: advice that discards nothing; `p` is a writable io_uring_params, and the memory that it
        // names is this ring's, as long as it lives.
        let made = unsafe {
            mm::advise(at, queues_len + sqes_len, libc::MADV_DONTFORK)
                .and_then(|()| call(libc::SYS_io_uring_setup, args))
        };
        let fd = made.inspect_err(|_| {
            // SAFETY: mapped above, and of no use.
            let _ = unsafe { mm::unmap(at, queues_len + sqes_len) };
        })? as i32;
        Ok(Ring {
            fd,
            entries: p.sq_entries,
            queues: at,
            queues_len,
            sqes: at + queues_len,
            sqes_len,
            sq: p.sq_off,
            cq: p.cq_off,
        })
    }

    /// With queues that the kernel has made.
    fn in_kernels_memory(entries: u32) -> Result<Ring> {
        let mut p = Params::default();
        let args = [entries as usize, &raw mut p as usize, 0, 0, 0, 0];
        // SAFETY: `p` is a writable io_uring_params.
        let fd = unsafe { call(libc::SYS_io_uring_setup, args) }? as i32;
        let map = |len: usize, offset: usize| {
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            own::map(len, mm::PROT_RW, flags, fd, offset)
        };
        let sq_end = p.sq_off.array as usize + p.sq_entries as usize * 4;
        let cq_end = p.cq_off.cqes as usize + p.cq_entries as usize * size_of::<Cqe>();
        let queues_len = sq_end.max(cq_end);
        let sqes_len = p.sq_entries as usize * size_of::<Sqe>();
        let close = |e| {
            fs::close(fd);
            e
        };
        if p.features & FEAT_SINGLE_MMAP == 0 {
            return Err(close(Errno::ENOSYS));
        }
        let queues = map(queues_len, OFF_SQ_RING).map_err(close)?;
        let mut ring = Ring {
            fd,
            entries: p.sq_entries,
            queues,
            queues_len,
            sqes: 0,
            sqes_len: 0,
            sq: p.sq_off,
            cq: p.cq_off,
        };
        ring.sqes = map(sqes_len, OFF_SQES)?;
        ring.sqes_len = sqes_len;
        for (at, len) in ring.mappings() {
            // SAFETY: advice about the ring's own mappings that discards nothing.
            unsafe { mm::advise(at, len, libc::MADV_DONTFORK) }?;
        }
        Ok(ring)
    }

    /// Largest number of transfers at a time.
    pub fn entries(&self) -> usize {
        self.entries as usize
    }

    fn mappings(&self) -> [(usize, usize); 2] {
        [(self.queues, self.queues_len), (self.sqes, self.sqes_len)]
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: the kernel's offset of an aligned 32-bit word of the mapping, which lives as long
        // as the ring and is shared with the kernel, so that it is only touched atomically.
        unsafe { &*((self.queues + offset as usize) as *const AtomicU32) }
    }

    /// Carries out as many of `writes` as fit in the ring, and waits for them. `results` gets the
    /// bytes written or the error of each, EAGAIN for one that was not begun.
    ///
    /// # Safety
    /// The memory of the writes must be readable until this returns.
    pub unsafe fn write(&mut self, writes: &[Extent], results: &mut [Result<usize>]) {
        let n = writes.len().min(results.len()).min(self.entries());
        results.fill(Err(Errno::EAGAIN));
        let tail = self.word(self.sq.tail).load(Relaxed);
        let mask = self.entries - 1;
        for (k, w) in writes[..n].iter().enumerate() {
            let slot = tail.wrapping_add(k as u32) & mask;
            let sqe = Sqe {
                opcode: OP_WRITE,
                fd: w.fd,
                offset: w.offset,
                addr: w.memory as u64,
                len: w.len as u32,
                user_data: k as u64,
                ..Sqe::default()
            };
            let at = self.sqes + slot as usize * size_of::<Sqe>();
            // SAFETY: entry `slot` of the mapping; the kernel has taken all entries that were there
            // before.
            unsafe { (at as *mut Sqe).write(sqe) };
            self.word(self.sq.array + 4 * slot).store(slot, Relaxed);
        }
        let end = tail.wrapping_add(n as u32);
        self.word(self.sq.tail).store(end, Release);
        let (mut begun, mut ended) = (0, 0);
        loop {
            let enter = self.enter(n - begun, n - ended);
            begun = self.word(self.sq.head).load(Acquire).wrapping_sub(tail) as usize;
            ended += self.reap(results);
            if ended >= n {
                return;
            }
            match enter {
                Ok(_) | Err(Errno::EINTR) => {}
                // The kernel takes no more: those it has are waited for, the rest is not done.
                Err(_) => break,
            }
        }
        let taken = tail.wrapping_add(begun as u32);
        self.word(self.sq.tail).store(taken, Release);
        while ended < begun {
            let _ = self.enter(0, begun - ended);
            ended += self.reap(results);
        }
    }

    fn enter(&self, submit: usize, wait: usize) -> Result<usize> {
        let args = [self.fd as usize, submit, wait, ENTER_GETEVENTS, 0, 0];
        // SAFETY: entries of the ring are whole, and their memory stays, as `write`'s caller
        // promises.
        unsafe { call(libc::SYS_io_uring_enter, args) }
    }

    /// Takes the transfers that have ended, and returns how many they are.
    fn reap(&self, results: &mut [Result<usize>]) -> usize {
        let tail = self.word(self.cq.tail).load(Acquire);
        let mask = self.word(self.cq.ring_mask).load(Relaxed);
        let mut head = self.word(self.cq.head).load(Relaxed);
        let mut n = 0;
        while head != tail {
            let at =
                self.queues + self.cq.cqes as usize + (head & mask) as usize * size_of::<Cqe>();
            // SAFETY: an entry that the kernel has published, within the mapping.
            let cqe = unsafe { (at as *const Cqe).read() };
            if let Some(result) = results.get_mut(cqe.user_data as usize) {
                *result = crate::raw::check(cqe.res as isize);
            }
            head = head.wrapping_add(1);
            n += 1;
        }
        self.word(self.cq.head).store(head, Release);
        n
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        for (at, len) in self.mappings() {
            if len > 0 {
                // SAFETY: the ring's own mappings, which nobody uses any more.
                let _ = unsafe { mm::unmap(at, len) };
            }
        }
        fs::close(self.fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    fn made(ring: Result<Ring>) -> Option<Ring> {
        ring.inspect_err(|e| println!("skipped: no such io_uring ({e})"))
            .ok()
    }

    #[test]
    fn queues_are_at_addresses_of_our_own() {
        let Some(ring) = made(Ring::in_own_memory(64)) else {
            return;
        };
        for (at, len) in ring.mappings() {
            assert!(
                own::BASE <= at && at + len <= own::BASE + own::LEN,
                "{at:#x}"
            );
        }
        let entries = (ring.entries * 2) as usize;
        assert!(ring.cq.cqes as usize + entries * size_of::<Cqe>() <= ring.queues_len);
        assert!(ring.sq.array as usize + ring.entries() * 4 <= ring.queues_len);
    }

    #[test]
    fn writes_go_where_they_should_and_failures_are_told() {
        let ways = [Ring::in_own_memory(8), Ring::in_kernels_memory(8)];
        ways.into_iter().filter_map(made).for_each(write_much);
    }

    fn write_much(mut ring: Ring) {
        let file = fs::unnamed("uring");
        let data: Vec<u8> = (0..8 * 512u32).map(|i| (i / 512 + 1) as u8).collect();
        // Far more rounds than entries, so that all counters wrap.
        for round in 0..50u64 {
            let write = |k: u64| Extent {
                fd: if k == 5 { -1 } else { file.as_raw_fd() },
                memory: data.as_ptr() as usize + 512 * k as usize,
                len: 512,
                offset: round * 8192 + 1024 * k,
            };
            let writes: Vec<_> = (0..6).map(write).collect();
            let mut results = [Ok(0); 6];
            // SAFETY: the buffer lives on.
            unsafe { ring.write(&writes, &mut results) };
            assert_eq!(results[..5], [Ok(512); 5]);
            assert_eq!(results[5], Err(Errno::EBADF));
            for k in 0..5 {
                let mut back = [0; 512];
                file.read_exact_at(&mut back, round * 8192 + 1024 * k)
                    .unwrap();
                assert_eq!(back, [k as u8 + 1; 512]);
            }
        }
        assert_eq!(file.metadata().unwrap().len(), 49 * 8192 + 4 * 1024 + 512);
    }

    #[test]
    fn what_does_not_fit_is_not_begun() {
        let Some(mut ring) = made(Ring::new(2)) else {
            return;
        };
        let write = Extent::NONE;
        let mut results = [Ok(0); 3];
        // SAFETY: no memory is read.
        unsafe { ring.write(&[write; 3], &mut results) };
        let [bad, again] = [Errno::EBADF, Errno::EAGAIN].map(Err);
        assert_eq!(results, [bad, bad, again]);
    }
}

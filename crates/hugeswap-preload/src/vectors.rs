//! Transfers on managed memory: read, write and related calls, with one buffer or many.
//!
//! A transfer is a list of segments. As much of it as may be held at once is pinned and
//! transferred, then the rest, if the descriptor allows that (a file, or any descriptor that is
//! written to). A read from a stream may return short, and a datagram must go in one call. Memory
//! that cannot be held goes through a buffer of ours.

use crate::issue::{Args, Caller, EFAULT, EINVAL, Pins};
use crate::{extent, mmap};
use hugeswap_sys::fs;
use libc::iovec;

/// Transfers of up to this many bytes go through a buffer on the stack and are not pinned, except
/// for direct I/O ([`Transfer::direct`]).
const SMALL: usize = 4096;
/// Vectors of up to this many segments are on the stack.
const FEW: usize = 8;
/// Most bytes copied through a buffer of ours in one call.
const BOUNCE: usize = 1 << 20;
const IOV_MAX: usize = 1024;
const PAGE: usize = 4096;

fn segment(base: usize, len: usize) -> iovec {
    iovec {
        iov_base: base as *mut libc::c_void,
        iov_len: len,
    }
}

fn at(segment: &iovec) -> usize {
    segment.iov_base as usize
}

/// True for a file or a block device: after a full read it may have more at once.
fn is_file(fd: usize) -> bool {
    fs::identity(fd as i32)
        .is_ok_and(|id| matches!(id.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFBLK))
}

/// Does the kernel write to the program's memory in this call?
fn fills(nr: i64) -> bool {
    matches!(
        nr,
        libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_recvfrom
            | libc::SYS_getrandom
            | libc::SYS_readv
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_recvmsg
            | libc::SYS_process_vm_readv
    )
}

/// Whether the rest of a transfer may follow after a piece that was transferred whole.
enum GoOn {
    /// No: a message goes in one call.
    Never,
    /// Only if the descriptor is a file: a stream may have no more for now.
    FromFile,
    /// Yes, with any descriptor.
    Always,
}

/// A transfer in progress.
struct Transfer<'a> {
    caller: &'a Caller,
    fills: bool,
    go_on: GoOn,
    /// The descriptor.
    fd: usize,
}

impl Transfer<'_> {
    /// Transfers all of `segments`, and returns the number of bytes or a negative errno. `call`
    /// makes one system call for some segments; its second argument is the number of bytes already
    /// transferred.
    fn run(&self, segments: &[iovec], call: &mut dyn FnMut(&mut [iovec], usize) -> isize) -> isize {
        let limit = self.caller.engine.pin_limit();
        // Where the next piece begins: in segment `i`, `skip` bytes into it.
        let (mut i, mut skip, mut done) = (0, 0, 0usize);
        let mut room = Vector::new(segments.len());
        let piece = room.slice();
        loop {
            let (mut n, mut count) = (0, 0);
            while i + count < segments.len() && n < limit {
                let s = segments[i + count];
                let from = if count == 0 { skip } else { 0 };
                let take = (s.iov_len - from).min(limit - n);
                piece[count] = segment(s.iov_base as usize + from, take);
                count += 1;
                n += take;
            }
            let (asked, r) = self.piece(&mut piece[..count], n, done, call);
            if r < 0 {
                return if done > 0 { done as isize } else { r };
            }
            done += r as usize;
            let mut left = r as usize;
            while i < segments.len() && left >= segments[i].iov_len - skip {
                left -= segments[i].iov_len - skip;
                (i, skip) = (i + 1, 0);
            }
            skip += left;
            if (r as usize) < asked || i >= segments.len() || !self.goes_on() {
                return done as isize;
            }
        }
    }

    fn goes_on(&self) -> bool {
        match self.go_on {
            GoOn::Never => false,
            GoOn::FromFile => is_file(self.fd),
            GoOn::Always => true,
        }
    }

    /// True for direct I/O, which bypasses the page cache and needs aligned memory.
    fn direct(&self, piece: &[iovec]) -> bool {
        let aligned = |s: &iovec| (s.iov_base as usize | s.iov_len).is_multiple_of(512);
        piece.iter().all(aligned) && file_flags(self.fd) & libc::O_DIRECT != 0
    }

    /// Transfers a piece of `n` bytes, or its beginning. Returns how many bytes were requested, and
    /// the kernel's answer.
    fn piece(
        &self,
        piece: &mut [iovec],
        n: usize,
        done: usize,
        call: &mut dyn FnMut(&mut [iovec], usize) -> isize,
    ) -> (usize, isize) {
        if n <= SMALL && piece.iter().all(|s| self.mapped(s)) && !self.direct(piece) {
            return (n, self.small(n, piece, done, call));
        }
        let held = |hold: &dyn Fn(&mut Pins, &iovec) -> bool| {
            let mut held = Pins::new(self.caller.engine);
            piece.iter().all(|s| hold(&mut held, s)).then_some(held)
        };
        let add =
            |make| move |held: &mut Pins, s: &iovec| held.add(at(s), s.iov_len, self.fills, make);
        if let Some(_held) = held(&add(false)) {
            return (n, call(piece, done));
        }
        // What is the kernel's goes by itself, where a transfer of this length need not go in one call:
        // nothing beside it need become the kernel's.
        let alike = |s: &&iovec| self.mapped(s) == self.mapped(&piece[0]);
        let first = piece.iter().take_while(alike).count();
        if first < piece.len() && n > BOUNCE && self.goes_on() {
            let n = piece[..first].iter().map(|s| s.iov_len).sum();
            return self.piece(&mut piece[..first], n, done, call);
        }
        if !piece.iter().all(|s| self.mapped(s)) {
            // The kernel answers for memory that it owns, and for a bad address. It finds the rest.
            let _held = held(&|held, s| {
                if self.is_closed(s) {
                    let caller = self.caller;
                    caller.bring_up_to_closed(at(s), s.iov_len, self.fills);
                    return true;
                }
                held.insist(at(s), s.iov_len, self.fills)
            });
            return (n, call(piece, done));
        }
        // A transfer that does not go on must go in one call.
        let asked = if n > BOUNCE && self.goes_on() {
            BOUNCE
        } else {
            n
        };
        if asked > BOUNCE
            && let Some(_held) = held(&add(true))
        {
            return (n, call(piece, done));
        }
        // Not filled, since only what is transferred is to be there; aligned, as direct I/O needs it.
        let mut large: Vec<u8> = Vec::with_capacity(asked + PAGE);
        let at = large.as_mut_ptr();
        let aligned = at.wrapping_add(at.align_offset(PAGE));
        (asked, self.through(aligned, asked, piece, done, call))
    }

    /// Is some of it ours, and may the program not touch it so?
    fn is_closed(&self, s: &iovec) -> bool {
        let engine = self.caller.engine;
        extent::in_window(at(s)) && s.iov_len > 0 && !engine.allows(at(s), s.iov_len, self.fills)
    }

    fn mapped(&self, s: &iovec) -> bool {
        let (at, len) = (s.iov_base as usize, s.iov_len);
        // (The kernel answers for memory that it owns, as in `Caller::by_table`.)
        self.caller.mapped(at, len, self.fills)
            && !(extent::in_window(at) && self.caller.is_foreign(at, len))
    }

    /// Transfers up to [`SMALL`] bytes through a buffer on the stack. (A function of its own: what
    /// is held instead takes more of the stack without it.)
    #[inline(never)]
    fn small(
        &self,
        n: usize,
        piece: &[iovec],
        done: usize,
        call: &mut dyn FnMut(&mut [iovec], usize) -> isize,
    ) -> isize {
        let mut small = [std::mem::MaybeUninit::<u8>::uninit(); SMALL];
        self.through(small.as_mut_ptr().cast(), n, piece, done, call)
    }

    /// Transfers through the `room` bytes at `buffer`, as much as they hold, and returns the
    /// kernel's answer.
    fn through(
        &self,
        buffer: *mut u8,
        room: usize,
        piece: &[iovec],
        done: usize,
        call: &mut dyn FnMut(&mut [iovec], usize) -> isize,
    ) -> isize {
        let copy = |n: usize, out: bool| {
            let mut at = 0;
            for s in piece {
                let len = s.iov_len.min(n - at);
                // SAFETY: `at + len <= n <= room`; the segment is the program's, and a fault on it
                // is taken as any other.
                unsafe {
                    let (ours, theirs) = (buffer.add(at), s.iov_base.cast::<u8>());
                    if out {
                        std::ptr::copy_nonoverlapping(ours, theirs, len);
                    } else {
                        std::ptr::copy_nonoverlapping(theirs, ours, len);
                    }
                }
                at += len;
            }
        };
        if !self.fills {
            copy(room, false);
        }
        let r = call(&mut [segment(buffer as usize, room)], done);
        if self.fills && r > 0 {
            copy((r as usize).min(room), true);
        }
        r
    }
}

/// Segments, on the stack if they are few.
struct Vector {
    few: [iovec; FEW],
    many: Vec<iovec>,
    n: usize,
}

impl Vector {
    fn new(n: usize) -> Vector {
        let mut v = Vector {
            few: [segment(0, 0); FEW],
            many: Vec::new(),
            n,
        };
        if n > FEW {
            v.many.resize(n, segment(0, 0));
        }
        v
    }

    fn slice(&mut self) -> &mut [iovec] {
        if self.n > FEW {
            &mut self.many
        } else {
            &mut self.few[..self.n]
        }
    }
}

/// A copy of a program's vector; `None` if it is longer than the kernel accepts.
fn vector_of(at: usize, count: usize) -> Option<Vector> {
    if count > IOV_MAX {
        return None;
    }
    let mut v = Vector::new(count);
    for (i, s) in v.slice().iter_mut().enumerate() {
        // SAFETY: the program's array of `count` segments; a fault on it is taken as any other.
        *s = unsafe { (at as *const iovec).add(i).read_unaligned() };
    }
    Some(v)
}

impl Caller {
    /// Makes a call that transfers one buffer, and returns the number of bytes or a negative errno.
    pub fn stream(&self, nr: i64, a: Args) -> isize {
        let (buf, len) = if nr == libc::SYS_getrandom {
            (0, 1)
        } else {
            (1, 2)
        };
        let positioned = matches!(nr, libc::SYS_pread64 | libc::SYS_pwrite64);
        let socket = matches!(nr, libc::SYS_recvfrom | libc::SYS_sendto);
        let total = a[len].min(0x7fff_f000);
        if nr == libc::SYS_sendto && a[3] & libc::MSG_ZEROCOPY as usize != 0 {
            // The kernel reads the pages after the call returns, so it must own them.
            let _ = mmap::eject(self.engine, a[buf], total);
        }
        let fills = fills(nr);
        let go_on = match nr {
            libc::SYS_recvfrom if a[3] & libc::MSG_WAITALL as usize == 0 => GoOn::Never,
            libc::SYS_read | libc::SYS_pread64 => GoOn::FromFile,
            _ => GoOn::Always,
        };
        // The address of a socket call goes through a buffer of ours.
        let mut address = [0u8; 128];
        let mut address_len = 0u32;
        let mut call = a;
        if nr == libc::SYS_sendto && extent::managed(a[4]) {
            let n = a[5].min(address.len());
            // SAFETY: the program's address, of that length.
            unsafe { std::ptr::copy_nonoverlapping(a[4] as *const u8, address.as_mut_ptr(), n) };
            call[4] = address.as_ptr() as usize;
        }
        let receive_address = nr == libc::SYS_recvfrom
            && a[4] != 0
            && a[5] != 0
            && (extent::managed(a[4]) || extent::managed(a[5]));
        if receive_address {
            address_len = address.len() as u32;
            call[4] = address.as_mut_ptr() as usize;
            call[5] = &raw mut address_len as usize;
        }
        let t = Transfer {
            caller: self,
            fills,
            go_on,
            fd: a[0],
        };
        let r = if !extent::managed(a[buf]) {
            self.raw(nr, call)
        } else {
            t.run(&[segment(a[buf], total)], &mut |piece, done| {
                let mut c = call;
                c[buf] = piece[0].iov_base as usize;
                c[len] = piece[0].iov_len;
                if positioned {
                    c[3] += done;
                }
                self.raw(nr, c)
            })
        };
        if socket && receive_address && r >= 0 {
            // SAFETY: the program's address buffer, and the length that the program gives for it.
            unsafe {
                let room = (a[5] as *const u32).read_unaligned() as usize;
                let n = room.min(address_len as usize).min(address.len());
                std::ptr::copy_nonoverlapping(address.as_ptr(), a[4] as *mut u8, n);
                (a[5] as *mut u32).write_unaligned(address_len);
            }
        }
        r
    }

    /// Makes a call that transfers many buffers, and returns the number of bytes or a negative
    /// errno.
    pub fn vector(&self, nr: i64, a: Args) -> isize {
        let process = matches!(nr, libc::SYS_process_vm_readv | libc::SYS_process_vm_writev);
        let Some(mut segments) = vector_of(a[1], a[2]) else {
            return self.raw(nr, a);
        };
        let segments = segments.slice();
        if process {
            return self.process_vm(nr, a, segments);
        }
        let mut fills = fills(nr);
        let mut number = nr;
        if nr == libc::SYS_vmsplice
            && segments
                .iter()
                .any(|s| extent::managed(s.iov_base as usize))
        {
            // A pipe's pages are read later, and managed pages may move before that. So they are
            // copied.
            fills = file_flags(a[0]) & libc::O_ACCMODE == libc::O_RDONLY;
            number = if fills {
                libc::SYS_readv
            } else {
                libc::SYS_writev
            };
        }
        let positioned = matches!(
            nr,
            libc::SYS_preadv | libc::SYS_preadv2 | libc::SYS_pwritev | libc::SYS_pwritev2
        ) && a[3] as isize != -1;
        let total: usize = segments
            .iter()
            .map(|s| s.iov_len)
            .fold(0, usize::saturating_add);
        if total > isize::MAX as usize {
            return EINVAL;
        }
        let go_on = if fills { GoOn::FromFile } else { GoOn::Always };
        let t = Transfer {
            caller: self,
            fills,
            go_on,
            fd: a[0],
        };
        t.run(segments, &mut |piece, done| {
            let mut c = a;
            if number != nr {
                c = [a[0], 0, 0, 0, 0, 0];
            }
            c[1] = piece.as_ptr() as usize;
            c[2] = piece.len();
            if positioned {
                c[3] += done;
            }
            self.raw(number, c)
        })
    }

    /// Makes a transfer to or from another process. Only the memory of this process is pinned.
    fn process_vm(&self, nr: i64, a: Args, segments: &[iovec]) -> isize {
        let Some(mut remote) = vector_of(a[3], a[4]) else {
            return self.raw(nr, a);
        };
        let remote = remote.slice();
        let mut held = Pins::new(self.engine);
        if !segments
            .iter()
            .all(|s| held.insist(at(s), s.iov_len, fills(nr)))
        {
            return EFAULT;
        }
        let r = self.raw(
            nr,
            [
                a[0],
                segments.as_ptr() as usize,
                segments.len(),
                remote.as_ptr() as usize,
                remote.len(),
                a[5],
            ],
        );
        drop(held);
        r
    }

    /// Makes a sendmsg or recvmsg call.
    pub fn message(&self, nr: i64, a: Args) -> isize {
        // SAFETY: the program's message header.
        let given = unsafe { (a[1] as *const libc::msghdr).read_unaligned() };
        let Some(mut segments) = vector_of(given.msg_iov as usize, given.msg_iovlen) else {
            return self.raw(nr, a);
        };
        let segments = segments.slice();
        let receiving = nr == libc::SYS_recvmsg;
        if a[2] & libc::MSG_ZEROCOPY as usize != 0 {
            for s in segments.iter() {
                let _ = mmap::eject(self.engine, s.iov_base as usize, s.iov_len);
            }
        }
        // Name and control data go through buffers of ours.
        let mut name = Copied::of(given.msg_name as usize, given.msg_namelen as usize);
        let mut control = Copied::of(given.msg_control as usize, given.msg_controllen);
        let mut now = given;
        now.msg_name = name.address() as *mut libc::c_void;
        now.msg_control = control.address() as *mut libc::c_void;
        let t = Transfer {
            caller: self,
            fills: receiving,
            go_on: GoOn::Never,
            fd: a[0],
        };
        let r = t.run(segments, &mut |piece, _| {
            now.msg_iov = piece.as_mut_ptr();
            now.msg_iovlen = piece.len();
            self.raw(nr, [a[0], &raw mut now as usize, a[2], 0, 0, 0])
        });
        if receiving && r >= 0 {
            name.give_back(now.msg_namelen as usize);
            control.give_back(now.msg_controllen);
            let told = libc::msghdr {
                msg_name: given.msg_name,
                msg_iov: given.msg_iov,
                msg_iovlen: given.msg_iovlen,
                msg_control: given.msg_control,
                ..now
            };
            // SAFETY: the program's message header.
            unsafe { (a[1] as *mut libc::msghdr).write_unaligned(told) };
        }
        r
    }

    /// Makes a sendmmsg or recvmmsg call, one message after the other.
    pub fn messages(&self, nr: i64, a: Args) -> isize {
        let receiving = nr == libc::SYS_recvmmsg;
        let one = if receiving {
            libc::SYS_recvmsg
        } else {
            libc::SYS_sendmsg
        };
        const WAITFORONE: usize = 0x10000;
        let mut flags = a[3] & !WAITFORONE;
        let deadline = (receiving && a[4] != 0).then(|| {
            // SAFETY: the program's timespec.
            let t = unsafe { (a[4] as *const [u64; 2]).read_unaligned() };
            hugeswap_sys::now_ns()
                .saturating_add(t[0].saturating_mul(1_000_000_000).saturating_add(t[1]))
        });
        let count = a[2].min(IOV_MAX);
        for i in 0..count {
            let at = a[1] + i * size_of::<libc::mmsghdr>();
            let r = self.message(one, [a[0], at, flags, 0, 0, 0]);
            if r < 0 {
                return if i > 0 { i as isize } else { r };
            }
            // SAFETY: the program's array.
            unsafe {
                let len = (at + std::mem::offset_of!(libc::mmsghdr, msg_len)) as *mut u32;
                len.write_unaligned(r as u32);
            }
            if a[3] & WAITFORONE != 0 {
                flags |= libc::MSG_DONTWAIT as usize;
            }
            // As in the kernel, the time is checked after each message only.
            if deadline.is_some_and(|d| hugeswap_sys::now_ns() >= d) {
                return i as isize + 1;
            }
        }
        count as isize
    }
}

/// The status flags of a descriptor; 0 if there are none.
fn file_flags(fd: usize) -> i32 {
    let a = [fd, libc::F_GETFL as usize, 0, 0, 0, 0];
    // SAFETY: asks for flags only.
    let flags = unsafe { hugeswap_sys::raw::syscall6(libc::SYS_fcntl as usize, a) };
    flags.max(0) as i32
}

/// A small buffer of the program, or a copy of it if it is managed.
struct Copied {
    original: usize,
    copy: Vec<u64>,
    len: usize,
}

impl Copied {
    fn of(original: usize, len: usize) -> Copied {
        let mut c = Copied {
            original,
            copy: Vec::new(),
            len: len.min(1 << 20),
        };
        if extent::managed(original) && c.len > 0 {
            c.copy.resize(c.len.div_ceil(8), 0);
            // SAFETY: the program's buffer of that length.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    original as *const u8,
                    c.copy.as_mut_ptr().cast(),
                    c.len,
                )
            };
        }
        c
    }

    fn address(&mut self) -> usize {
        if self.copy.is_empty() {
            self.original
        } else {
            self.copy.as_mut_ptr() as usize
        }
    }

    fn give_back(&mut self, len: usize) {
        if !self.copy.is_empty() {
            // SAFETY: the program's buffer, no more than its length.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    self.copy.as_ptr().cast::<u8>(),
                    self.original as *mut u8,
                    len.min(self.len),
                );
            }
        }
    }
}

//! What a request of a ring (a submission queue entry) does with the program's memory.

use crate::issue::is_mapped;
use crate::transfer::{IOV_MAX, Part, segments};
use crate::{extent, state};
use hugeswap_engine::Engine;
use hugeswap_sys::uring::Sqe;
use libc::iovec;

/// What is to be done for a request.
pub enum Request {
    /// Its memory is held until it is done.
    Held(Vec<Part>),
    /// Its memory is used later: it becomes the kernel's.
    GivenAway(Vec<Part>),
    /// As [`Request::GivenAway`]: nothing says when it is done, unless it fails.
    Silent(Vec<Part>),
    /// It is refused (EINVAL), as by a kernel that does not know it: what it does to memory is not
    /// seen.
    Refused,
    /// As [`Request::Held`], of nothing. Afterwards another ring may say of requests that they are
    /// done that are not.
    Message,
}

/// The number of a request that no kernel knows.
pub const UNKNOWN: u8 = 255;

/// A buffer is used that was provided before, and is the kernel's.
const BUFFER_SELECT: u8 = 1 << 5;
const SKIP_SUCCESS: u8 = 1 << 6;

fn part(at: u64, len: usize, fills: bool) -> Part {
    Part::new(at as usize, len, fills)
}

fn reads(at: u64, len: usize) -> Part {
    part(at, len, false)
}

fn fills(at: u64, len: usize) -> Part {
    part(at, len, true)
}

/// A path, or a name: up to its NUL.
fn text(engine: Option<&Engine>, at: u64) -> Part {
    let is_there = |engine| is_mapped(engine, at as usize, 1, false);
    let len = match extent::managed(at as usize) && engine.is_some_and(is_there) {
        // SAFETY: the program's string; a fault on it is taken as any other.
        true => unsafe { libc::strlen(at as *const libc::c_char) + 1 },
        false => 0,
    };
    reads(at, len)
}

/// A vector, and what it names.
fn vector(at: u64, n: usize, fills: bool, all: &mut Vec<Part>) {
    let n = n.min(IOV_MAX);
    all.push(reads(at, n * size_of::<iovec>()));
    all.extend(segments(at as usize, n, fills));
}

/// A message header, and what it names.
fn message(at: u64, fills: bool, all: &mut Vec<Part>) {
    all.push(part(at, size_of::<libc::msghdr>(), true));
    // SAFETY: the program's header; a fault on it is taken as any other.
    let m = unsafe { (at as *const libc::msghdr).read_unaligned() };
    all.push(part(m.msg_name as u64, m.msg_namelen as usize, fills));
    all.push(part(m.msg_control as u64, m.msg_controllen, fills));
    vector(m.msg_iov as u64, m.msg_iovlen, fills, all);
}

/// What a request does. Its fields are a copy.
pub fn of(engine: Option<&Engine>, sqe: &Sqe) -> Request {
    let len = sqe.len as usize;
    let (at, second, third) = (sqe.addr, sqe.offset, sqe.rest[1]);
    // (Bytes 44 and 45.)
    let address_len = (sqe.rest[0] >> 32) as u16 as usize;
    let selects = sqe.flags & BUFFER_SELECT != 0;
    let mut all = Vec::new();
    const TIMESPEC: usize = 16;
    // In the order of their numbers.
    match sqe.opcode {
        // close: none of ours.
        19 if state::is_our_fd(sqe.fd) => return Request::Refused,
        // Nothing, fsync, poll, sync_file_range, cancel, fallocate, close, fadvise, splice, remove
        // buffers, tee, shutdown, socket; registered buffers.
        0 | 3 | 4..=6 | 8 | 14 | 17 | 19 | 24 | 30 | 32 | 33 | 34 | 45 => {}
        1 => vector(at, len, true, &mut all),
        2 => vector(at, len, false, &mut all),
        // poll_remove and timeout_remove name a request, and may change its time.
        7 | 12 => all.push(reads(second, TIMESPEC)),
        9 | 48 => message(at, false, &mut all),
        10 => message(at, true, &mut all),
        11 | 15 => all.push(reads(at, TIMESPEC)),
        13 => {
            if at != 0 && second != 0 {
                // SAFETY: the program's word; a fault on it is taken as any other.
                let room = unsafe { (second as *const u32).read_unaligned() } as usize;
                all.extend([fills(at, room), fills(second, 4)]);
            }
        }
        16 => all.push(reads(at, second as usize)),
        18 | 36 | 37 => all.push(text(engine, at)),
        20 => all.push(fills(at, len * 4)),
        21 => all.extend([text(engine, at), fills(second, size_of::<libc::statx>())]),
        22 | 27 if selects => {}
        22 | 27 => all.push(fills(at, len)),
        23 => all.push(reads(at, len)),
        26 | 47 => all.extend([reads(at, len), reads(second, address_len)]),
        28 => all.extend([text(engine, at), reads(second, len)]),
        29 => all.push(reads(at, 12)),
        // As many buffers as the descriptor says.
        31 => {
            let n = usize::try_from(sqe.fd).unwrap_or(0);
            return Request::GivenAway(vec![fills(at, len.saturating_mul(n))]);
        }
        35 | 38 | 39 => all.extend([text(engine, at), text(engine, second)]),
        40 => return Request::Message,
        41 => all.extend([text(engine, at), reads(second, len)]),
        42 => all.extend([text(engine, at), reads(second, len), text(engine, third)]),
        43 => all.extend([text(engine, at), fills(second, len)]),
        44 => all.extend([text(engine, at), fills(second, len), text(engine, third)]),
        // read_multishot; waitid; futex_wake; fixed_fd_install, ftruncate; listen.
        49 | 52 | 54 | 55 | 57 => {}
        50 => all.push(fills(second, size_of::<libc::siginfo_t>())),
        51 => all.push(fills(at, 4)),
        56 => all.push(reads(at, second as usize)),
        59 => all.push(fills(at, len.saturating_mul(12))),
        62 => all.push(fills(at, 8)),
        // madvise, commands of devices, what came later.
        _ => return Request::Refused,
    }
    match sqe.flags & SKIP_SUCCESS {
        0 => Request::Held(all),
        _ => Request::Silent(all),
    }
}

/// Is the request that follows in the same submission to wait for this one?
pub fn is_linked(sqe: &Sqe) -> bool {
    const LINK: u8 = 1 << 2;
    const HARDLINK: u8 = 1 << 3;
    sqe.flags & (LINK | HARDLINK) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u8, flags: u8) -> Request {
        let sqe = Sqe {
            opcode,
            flags,
            addr: 0x1000,
            len: 64,
            ..Sqe::default()
        };
        of(None, &sqe)
    }

    fn is_held(request: Request, expected: &[(usize, usize, bool)]) -> bool {
        let Request::Held(parts) = request else {
            return false;
        };
        let parts = parts.iter().map(|p| (p.at, p.len, p.fills));
        parts.eq(expected.iter().copied())
    }

    #[test]
    fn requests_say_what_they_do_to_memory() {
        const READ: u8 = 22;
        const WRITE: u8 = 23;
        const MADVISE: u8 = 25;
        const MSG_RING: u8 = 40;
        const URING_CMD: u8 = 46;
        assert!(is_held(request(0, 0), &[]), "nothing");
        assert!(is_held(request(READ, 0), &[(0x1000, 64, true)]));
        assert!(is_held(request(WRITE, 0), &[(0x1000, 64, false)]));
        assert!(is_held(request(READ, BUFFER_SELECT), &[]));
        assert!(matches!(
            request(READ, SKIP_SUCCESS),
            Request::Silent(parts) if parts.len() == 1
        ));
        assert!(matches!(request(MSG_RING, 0), Request::Message));
        for refused in [MADVISE, URING_CMD, 63, UNKNOWN] {
            assert!(matches!(request(refused, 0), Request::Refused), "{refused}");
        }
    }
}

//! System calls that read or write a slot's memory: what the kernel is given must be there for it.

use super::memory;
use super::operation::Op;
use super::random::Random;
use super::ranges::{Done, Range};
use super::slot::{LINE, Slot};
use super::walker::Failure;
use std::fs::File;
use std::io::{Error, Read, Write};
use std::os::fd::AsRawFd;

/// What a pipe holds, at the least.
const PIPE: usize = 60 << 10;
/// The longest transfer to and from a file.
const FILE: usize = 6 << 20;

/// Does one of the calls with a part of `range`.
pub fn call(op: Op, slot: &Slot, range: Range, r: &mut Random) -> Result<Done, Failure> {
    let most = match op {
        Op::FileWrite | Op::FileRead => FILE,
        _ => PIPE,
    };
    // From the middle of a page to the middle of another, as programs do.
    let lines = (range.to - range.from) / LINE;
    let first = range.from / LINE + r.below(64).min(lines - 1);
    let last = (first + most / LINE).min(range.to / LINE);
    let end = first + 1 + r.below(last - first);
    slot.lock_range(first * LINE, end * LINE);
    let done = match op {
        Op::WriteCall | Op::RawWriteCall => write_call(op, slot, first, end),
        Op::ReadCall => read_call(slot, first, end),
        Op::VectorCalls => vector_calls(slot, first, end),
        Op::FileWrite => file_write(slot, first, end),
        _ => file_read(slot, first, end),
    };
    slot.unlock_range(first * LINE, end * LINE);
    done.map(|()| Done::Yes)
}

fn failed(what: &'static str) -> Failure {
    Failure::Call(what, Error::last_os_error())
}

fn short(what: &'static str, got: isize, len: usize) -> Failure {
    Failure::Short(what, got, len, Error::last_os_error())
}

/// What lines `first..end` are to be.
fn model(slot: &Slot, first: usize, end: usize) -> Vec<u8> {
    (first..end)
        .flat_map(|line| slot.expected(line))
        .flat_map(u64::to_ne_bytes)
        .collect()
}

fn same(slot: &Slot, first: usize, what: &'static str, found: &[u8]) -> Result<(), Failure> {
    let expected = model(slot, first, first + found.len() / LINE);
    match found.iter().zip(&expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(Failure::Bytes(what, slot.base() + first * LINE + at)),
    }
}

fn write_call(op: Op, slot: &Slot, first: usize, end: usize) -> Result<(), Failure> {
    let (mut from, to) = std::io::pipe().map_err(|e| Failure::Call("pipe", e))?;
    let (at, len) = (slot.base() + first * LINE, (end - first) * LINE);
    let sent = if op == Op::RawWriteCall {
        raw_write(to.as_raw_fd(), at, len)
    } else {
        // SAFETY: `len` bytes of the slot, locked by the caller.
        unsafe { libc::write(to.as_raw_fd(), at as *const _, len) }
    };
    if sent != len as isize {
        return Err(short(op.name(), sent, len));
    }
    let mut found = vec![0; len];
    from.read_exact(&mut found)
        .map_err(|e| Failure::Call("read of a pipe", e))?;
    same(slot, first, op.name(), &found)
}

/// write(2) without the C library.
fn raw_write(fd: i32, at: usize, len: usize) -> isize {
    let answer: isize;
    // SAFETY: the registers are those of write(fd, at, len), which reads memory of the slot.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_write => answer,
            in("rdi") fd as isize, in("rsi") at, in("rdx") len,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Counts a write of each line and returns what is to come there.
fn next(slot: &Slot, first: usize, end: usize) -> Vec<u8> {
    (first..end)
        .flat_map(|line| slot.note_write(line))
        .flat_map(u64::to_ne_bytes)
        .collect()
}

fn read_call(slot: &Slot, first: usize, end: usize) -> Result<(), Failure> {
    let (from, mut to) = std::io::pipe().map_err(|e| Failure::Call("pipe", e))?;
    let bytes = next(slot, first, end);
    to.write_all(&bytes)
        .map_err(|e| Failure::Call("write to a pipe", e))?;
    let at = (slot.base() + first * LINE) as *mut libc::c_void;
    // SAFETY: `bytes.len()` bytes of the slot, locked by the caller.
    let got = unsafe { libc::read(from.as_raw_fd(), at, bytes.len()) };
    if got != bytes.len() as isize {
        return Err(short("read-call", got, bytes.len()));
    }
    Ok(())
}

fn vector_calls(slot: &Slot, first: usize, end: usize) -> Result<(), Failure> {
    let (from, to) = std::io::pipe().map_err(|e| Failure::Call("pipe", e))?;
    let middle = first + (end - first) / 2;
    let part = |a: usize, b: usize| libc::iovec {
        iov_base: (slot.base() + a * LINE) as *mut _,
        iov_len: (b - a) * LINE,
    };
    let parts = [part(first, middle), part(middle, end)];
    let len = (end - first) * LINE;
    // SAFETY: two neighbouring parts of the slot, locked by the caller.
    let sent = unsafe { libc::writev(to.as_raw_fd(), parts.as_ptr(), 2) };
    if sent != len as isize {
        return Err(short("writev", sent, len));
    }
    // Back to where they were: the bytes do not change.
    // SAFETY: as above.
    let got = unsafe { libc::readv(from.as_raw_fd(), parts.as_ptr(), 2) };
    if got != len as isize {
        return Err(short("readv", got, len));
    }
    Ok(())
}

fn scratch(len: usize) -> Result<(File, *mut u8), Failure> {
    let file =
        tempfile::tempfile_in("/var/tmp").map_err(|e| Failure::Call("a file in /var/tmp", e))?;
    file.set_len(len as u64)
        .map_err(|e| Failure::Call("ftruncate", e))?;
    let view = memory::map_file(&file, len, true).map_err(|_| failed("mmap of a file"))?;
    Ok((file, view))
}

fn forget(view: *mut u8, len: usize) {
    // SAFETY: mapped by `scratch`, used by nobody from now on.
    unsafe { libc::munmap(view.cast(), len) };
}

fn file_write(slot: &Slot, first: usize, end: usize) -> Result<(), Failure> {
    let len = (end - first) * LINE;
    let (file, view) = scratch(len)?;
    let at = (slot.base() + first * LINE) as *const libc::c_void;
    // SAFETY: `len` bytes of the slot, locked by the caller.
    let sent = unsafe { libc::pwrite(file.as_raw_fd(), at, len, 0) };
    // SAFETY: `len` bytes that are mapped until `forget`, which nobody writes any more.
    let found = unsafe { std::slice::from_raw_parts(view, len) }.to_vec();
    forget(view, len);
    if sent != len as isize {
        return Err(short("pwrite", sent, len));
    }
    same(slot, first, "file-write", &found)
}

fn file_read(slot: &Slot, first: usize, end: usize) -> Result<(), Failure> {
    let bytes = next(slot, first, end);
    let (mut file, view) = scratch(bytes.len())?;
    forget(view, bytes.len());
    file.write_all(&bytes)
        .map_err(|e| Failure::Call("write to a file", e))?;
    let at = (slot.base() + first * LINE) as *mut libc::c_void;
    // SAFETY: `bytes.len()` bytes of the slot, locked by the caller.
    let got = unsafe { libc::pread(file.as_raw_fd(), at, bytes.len(), 0) };
    if got != bytes.len() as isize {
        return Err(short("pread", got, bytes.len()));
    }
    Ok(())
}

//! The line that tells why a touch of managed memory ends in a signal. The rules of the fault path
//! hold: it is put together from parts, without formatting. It ends with the name by which
//! `hugeswap explain` knows more of it.

use super::Outcome;
use crate::forked::{self, InheritanceLoss};
use crate::paging::Paging;
use crate::pool::losses::Cause;
use hugeswap_sys::{Errno, fs, process};

/// The names that lines end with, in brackets.
pub const MESSAGES: [&str; 5] = ["out-of-memory", "stuck", "unmapped", "file-lost", "lost"];

/// Most parts of a line.
const PARTS: usize = 16;

/// A line as it grows.
struct Line<'a> {
    parts: [&'a [u8]; PARTS],
    len: usize,
}

impl<'a> Line<'a> {
    #[inline(never)]
    fn add(&mut self, part: &'a [u8]) {
        if let Some(next) = self.parts.get_mut(self.len) {
            *next = part;
            self.len += 1;
        }
    }
}

/// Says what came of a touch of `addr` that does not end well.
#[inline(never)]
pub(crate) fn complain(engine: &Paging, addr: usize, outcome: Outcome) {
    let mut numbers = [[0u8; 20]; 5];
    let [a, b, c, d, e] = &mut numbers;
    let mut line = Line {
        parts: [b""; PARTS],
        len: 0,
    };
    line.add(b"hugeswap: process ");
    line.add(fs::digits(process::pid() as u64, 10, a));
    line.add(b": memory at 0x");
    line.add(fs::digits(addr as u64, 16, b));
    let mut failed = None;
    match outcome {
        Outcome::Retry | Outcome::Guard | Outcome::NoAccess => return,
        Outcome::NotOurs | Outcome::Free => line.add(b" was touched without being mapped"),
        Outcome::NoMemory => line
            .add(b" is lost: neither memory nor swap is left; give more with --memory or --swap"),
        Outcome::Stuck => line.add(
            b" is lost: another process of the pool, stopped or hanging, has held it for a minute",
        ),
        Outcome::Unmapped(error) => {
            line.add(b" cannot be mapped: the kernel refuses ");
            line.add(error.call.name().as_bytes());
            line.add(b" again and again");
            failed = Some(error.errno);
        }
        Outcome::Poisoned if engine.is_of_file(addr) => {
            line.add(b" is lost: its file could not be read, or is too short now");
        }
        Outcome::Poisoned => match engine.loss_at(addr) {
            Some(loss) => {
                line.add(match loss.cause {
                    Cause::Changed => b" is lost: its bytes on the device have changed (checksum mismatch) at offset " as &[u8],
                    Cause::Unreadable(_) => b" is lost: the device could not read it at offset ",
                });
                line.add(fs::digits(loss.offset, 10, c));
                line.add(b" of swap area ");
                line.add(fs::digits(loss.area as u64, 10, d));
                if let Cause::Unreadable(errno) = loss.cause {
                    failed = Some(Errno(errno));
                }
            }
            None => line.add(match forked::inheritance_loss() {
                Some(InheritanceLoss::NoRecord) => b" is lost: the pool had no record left when this process was forked, so it has nothing of what its parent had in swap" as &[u8],
                Some(InheritanceLoss::NotWritten) => b" is lost: neither swap nor memory took it when the process was forked",
                None => b" is lost: what swap has of it could not be read, or has changed",
            }),
        },
    }
    let Errno(number) = failed.unwrap_or(Errno(0));
    if let Some(errno) = failed {
        line.add(b": error ");
        line.add(fs::digits(number as u64, 10, e));
        line.add(b" ");
        line.add(errno.name().as_bytes());
    }
    let is_of_file = matches!(outcome, Outcome::Poisoned) && engine.is_of_file(addr);
    if let Some(message) = message(outcome, is_of_file) {
        line.add(b" [");
        line.add(message.as_bytes());
        line.add(b"]");
    }
    line.add(b"\n");
    fs::complain(&line.parts);
}

/// Which of [`MESSAGES`] says more.
fn message(outcome: Outcome, is_of_file: bool) -> Option<&'static str> {
    let [out_of_memory, stuck, unmapped, file_lost, lost] = MESSAGES;
    match outcome {
        Outcome::NoMemory => Some(out_of_memory),
        Outcome::Stuck => Some(stuck),
        Outcome::Unmapped(_) => Some(unmapped),
        Outcome::Poisoned if is_of_file => Some(file_lost),
        Outcome::Poisoned => Some(lost),
        _ => None,
    }
}

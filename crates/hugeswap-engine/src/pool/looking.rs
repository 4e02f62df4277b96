//! What the pages of a process are, told to another process without stopping the first.
//!
//! The asking process puts a number and an address into the other's record and wakes its kswapd.
//! That writes what it knows from the address on, some 65,536 runs of pages at most, to a memory
//! file, and says which of its descriptors that is. The asking process opens it through /proc, as
//! any process can that may look at the other. The answer names the request it is for: if two
//! processes ask at once, one asks again.
//!
//! The file was written by another process: its content is checked, and only shown.

use super::Pool;
use super::layout::Record;
use hugeswap_policy::markers::pagemap::{Categories, State, SwapPlace};
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use hugeswap_sys::{Errno, fs, futex, now_ns};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

/// Runs in one answer.
pub(crate) const MOST: usize = 1 << 16;
/// Bytes of the head of an answer, and of each run.
pub(crate) const ENTRY: usize = 32;
const MAGIC: u64 = u64::from_ne_bytes(*b"hs-pages");
/// No swap area.
const NOWHERE: u32 = u32::MAX;
/// kswapd, at work, may need so long.
const PATIENCE_NS: u64 = 5_000_000_000;
const POLL: Duration = Duration::from_millis(1);

/// Pages that follow each other and are the same: their addresses, and what they are.
pub type Run = (Range<u64>, State);

/// Why a process could not be looked at; one line, telling what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LookError {
    #[error("process {pid} manages no memory{}", others(there))]
    NotThere { pid: i32, there: Vec<i32> },
    #[error("process {0} does not answer: it is stopped, or has just ended; try again")]
    NoAnswer(i32),
    #[error("what process {0} answered cannot be opened by this user: {1}")]
    Unreachable(i32, std::io::Error),
    #[error("what process {0} answered makes no sense")]
    Nonsense(i32),
}

fn others(there: &[i32]) -> String {
    let pids: Vec<_> = there.iter().map(i32::to_string).collect();
    match pids.is_empty() {
        true => "; no process of its pool does".into(),
        false => format!("; of its pool these do: {}", pids.join(", ")),
    }
}

/// The head of an answer.
pub(crate) struct Head {
    pub number: u32,
    pub runs: u32,
    pub from: u64,
    /// Address at which to go on; 0 if that was all.
    pub next: u64,
}

impl Head {
    pub fn bytes(&self) -> [u8; ENTRY] {
        let mut to = [0; ENTRY];
        to[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        to[8..12].copy_from_slice(&self.number.to_ne_bytes());
        to[12..16].copy_from_slice(&self.runs.to_ne_bytes());
        to[16..24].copy_from_slice(&self.from.to_ne_bytes());
        to[24..].copy_from_slice(&self.next.to_ne_bytes());
        to
    }

    fn of(bytes: &[u8; ENTRY]) -> Option<Head> {
        (word(bytes, 0) == MAGIC).then(|| Head {
            number: word(bytes, 1) as u32,
            runs: (word(bytes, 1) >> 32) as u32,
            from: word(bytes, 2),
            next: word(bytes, 3),
        })
    }
}

fn word(bytes: &[u8; ENTRY], n: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[n * 8..n * 8 + 8]);
    u64::from_ne_bytes(word)
}

/// A run as it stands in an answer.
pub(crate) fn run_bytes((pages, state): &Run) -> [u8; ENTRY] {
    let mut to = [0; ENTRY];
    let area = state.swap.map_or(NOWHERE, |s| u32::from(s.area));
    to[..8].copy_from_slice(&pages.start.to_ne_bytes());
    to[8..16].copy_from_slice(&pages.end.to_ne_bytes());
    to[16..20].copy_from_slice(&state.categories.bits().to_ne_bytes());
    to[20..24].copy_from_slice(&area.to_ne_bytes());
    to[24..].copy_from_slice(&state.swap.map_or(0, |s| s.page).to_ne_bytes());
    to
}

/// A run that begins at or after `least`; `None`: it makes no sense.
fn run_of(bytes: &[u8; ENTRY], least: u64) -> Option<Run> {
    let (start, end) = (word(bytes, 0), word(bytes, 1));
    let (bits, area) = (word(bytes, 2) as u32, (word(bytes, 2) >> 32) as u32);
    let fits = start >= least && start < end && (start | end) % PAGE_BYTES == 0;
    let categories = Categories::from_bits(bits);
    let swap = match area {
        NOWHERE => None,
        n => Some(SwapPlace {
            area: u8::try_from(n).ok()?,
            page: word(bytes, 3),
        }),
    };
    let state = State { categories, swap };
    let sense = categories.bits() == bits && state.check().is_ok();
    (fits && sense).then_some((start..end, state))
}

impl Pool {
    /// What the pages of process `pid` of this pool are: of memory that it manages, within `range`,
    /// run by run in the order of addresses. It goes on meanwhile: later runs are of later moments.
    pub fn look_at(&self, pid: i32, range: Range<u64>) -> Result<Vec<Run>, LookError> {
        let pid_of = |r: &Record| r.pid.load(Relaxed);
        let (_, record) =
            self.live()
                .find(|(_, r)| pid_of(r) == pid)
                .ok_or_else(|| LookError::NotThere {
                    pid,
                    there: self.live().map(|(_, r)| pid_of(r)).collect(),
                })?;
        let last = range.end.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
        let mut found: Vec<Run> = Vec::new();
        let first = range.start / PAGE_BYTES * PAGE_BYTES;
        let mut from = first;
        while from < range.end {
            let (runs, next) = ask(record, pid, from)?;
            for (pages, state) in runs {
                // (An answer begins with a whole unit.)
                let (start, end) = (pages.start.max(first), pages.end.min(last));
                if start < end {
                    let skipped = (start - pages.start) / PAGE_BYTES;
                    found.push((start..end, state.nth(skipped)));
                }
            }
            if next <= from {
                break;
            }
            from = next;
        }
        Ok(found)
    }
}

fn ask(record: &Record, pid: i32, from: u64) -> Result<(Vec<Run>, u64), LookError> {
    let start = now_ns();
    loop {
        // Of two that ask at once, the numbers differ.
        let number = (now_ns() as u32 ^ std::process::id().rotate_left(16)) | 1;
        record.look.from.store(from, Relaxed);
        record.look.asked.store(number, Release);
        record.kick.fetch_add(1, Release);
        futex::wake(&record.kick, 1, true);
        while record.look.answered.load(Acquire) != number {
            if record.look.asked.load(Relaxed) != number {
                break;
            }
            if now_ns() - start > PATIENCE_NS || record.pid.load(Relaxed) != pid {
                return Err(LookError::NoAnswer(pid));
            }
            std::thread::sleep(POLL);
        }
        let answer = read(record, pid).and_then(|bytes| parse(&bytes, number, from));
        match answer {
            Ok(answer) => return Ok(answer),
            // For another process, or just replaced.
            Err(_) if now_ns() - start < PATIENCE_NS && record.pid.load(Relaxed) == pid => {
                std::thread::sleep(POLL);
            }
            Err(ReadError::Io(e)) => return Err(LookError::Unreachable(pid, e)),
            Err(ReadError::Nonsense) => return Err(LookError::Nonsense(pid)),
        }
    }
}

enum ReadError {
    Io(std::io::Error),
    Nonsense,
}

fn read(record: &Record, pid: i32) -> Result<Vec<u8>, ReadError> {
    let (tid, fd) = (&record.look.tid, &record.look.fd);
    let (tid, fd) = (tid.load(Relaxed), fd.load(Relaxed));
    let path = format!("/proc/{pid}/task/{tid}/fd/{fd}");
    let link = std::fs::read_link(&path).map_err(ReadError::Io)?;
    // Not whatever it may be else: a pipe would never end.
    if !link.to_string_lossy().starts_with("/memfd:hugeswap-look") {
        return Err(ReadError::Nonsense);
    }
    let file = File::open(&path).map_err(ReadError::Io)?;
    let mut bytes = Vec::new();
    let most = (MOST + 1) * ENTRY;
    file.take(most as u64)
        .read_to_end(&mut bytes)
        .map_err(ReadError::Io)?;
    Ok(bytes)
}

fn parse(bytes: &[u8], number: u32, from: u64) -> Result<(Vec<Run>, u64), ReadError> {
    let (entries, _) = bytes.as_chunks::<ENTRY>();
    let head = entries.first().and_then(Head::of);
    let head = head
        .filter(|h| h.number == number && h.from == from && h.runs as usize + 1 == entries.len());
    let head = head.ok_or(ReadError::Nonsense)?;
    let mut runs = Vec::with_capacity(entries.len());
    let mut least = from / UNIT_BYTES * UNIT_BYTES;
    for bytes in &entries[1..] {
        let run = run_of(bytes, least).ok_or(ReadError::Nonsense)?;
        least = run.0.end;
        runs.push(run);
    }
    Ok((runs, head.next))
}

/// A new file for an answer.
pub(crate) fn new_file() -> Result<i32, Errno> {
    hugeswap_sys::mm::memfd(c"hugeswap-look", false)
}

/// Writes to it.
pub(crate) fn write(fd: i32, bytes: &[u8], at: u64) -> Result<(), Errno> {
    // SAFETY: the slice's memory.
    unsafe { fs::write_all_at(fd, bytes.as_ptr() as usize, bytes.len(), at) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(runs: &[Run], number: u32, from: u64, next: u64) -> Vec<u8> {
        let head = Head {
            number,
            runs: runs.len() as u32,
            from,
            next,
        };
        let mut bytes = head.bytes().to_vec();
        runs.iter().for_each(|r| bytes.extend(run_bytes(r)));
        bytes
    }

    fn some() -> Vec<Run> {
        let state = State {
            categories: Categories::SWAPPED | Categories::HUGE,
            swap: Some(SwapPlace { area: 3, page: 99 }),
        };
        let present = State {
            categories: Categories::PRESENT,
            swap: None,
        };
        vec![
            (1 << 21..1 << 22, state),
            ((1 << 22) + 4096..(1 << 22) + 8192, present),
        ]
    }

    #[test]
    fn an_answer_is_what_was_told() {
        let bytes = answer(&some(), 7, 1 << 21, 1 << 30);
        let Ok((runs, next)) = parse(&bytes, 7, 1 << 21) else {
            panic!("no answer");
        };
        assert_eq!((runs, next), (some(), 1 << 30));
        // For another process, or of another address.
        assert!(parse(&bytes, 8, 1 << 21).is_err());
        assert!(parse(&bytes, 7, 0).is_err());
        assert!(parse(&bytes[..bytes.len() - ENTRY], 7, 1 << 21).is_err());
    }

    #[test]
    fn runs_out_of_order_are_refused() {
        let mut runs = some();
        runs.reverse();
        assert!(parse(&answer(&runs, 7, 1 << 21, 0), 7, 1 << 21).is_err());
    }

    proptest! {
        #[test]
        fn nonsense_is_refused_and_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300), keep in any::<bool>()) {
            let mut all = answer(&some(), 7, 1 << 21, 0);
            if keep {
                let at = bytes.len() % all.len();
                all[at] ^= bytes.first().copied().unwrap_or(1);
                if let Ok((runs, _)) = parse(&all, 7, 1 << 21) {
                    prop_assert!(runs.windows(2).all(|w| w[0].0.end <= w[1].0.start));
                }
            } else {
                prop_assert!(parse(&bytes, 7, 1 << 21).is_err());
            }
        }
    }
}

//! Pages of the memory of a program that runs, read from /proc/PID/mem.

use crate::child;
use crate::generate::kinds::Bytes;
use anyhow::{Result, bail};
use hugeswap_support::proc::{self, StatusFile};
use hugeswap_support::random::below;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

const PAGE: u64 = hugeswap_policy::PAGE_BYTES;
/// Pages that are read next to each other.
const RUN: u64 = 16;
/// Processes are looked for so often.
const EVERY: Duration = Duration::from_millis(100);
/// What memory holds changes also where it does not grow: it is read once more after so long.
const ANEW: Duration = Duration::from_secs(1);

/// What was found of a program.
pub struct Sample {
    pub pages: Vec<Bytes>,
    /// The anonymous memory of the process that they are of, bytes.
    pub of: u64,
}

/// Runs a program to its end, and reads so many pages of that of its processes that has most anonymous memory, when it
/// has most, about: the last time that they were read.
pub fn of_program(program: &[String], pages: usize, limit: Duration) -> Result<Sample> {
    let mut sample = Sample {
        pages: Vec::new(),
        of: 0,
    };
    let mut looked = Instant::now() - EVERY;
    let mut taken = looked;
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    let (ended, _) = child::digest(&mut command, limit, |pid| {
        if looked.elapsed() < EVERY {
            return;
        }
        let Some((pid, anonymous)) = largest(pid as i32) else {
            return;
        };
        let has_grown = anonymous > sample.of / 8 * 9;
        let is_as_large = anonymous > sample.of / 8 * 7 && taken.elapsed() > ANEW;
        if (has_grown || is_as_large)
            && let Some(read) = read(pid, anonymous, pages)
        {
            sample = Sample {
                pages: read,
                of: anonymous,
            };
            taken = Instant::now();
        }
        looked = Instant::now();
    })?;
    if !ended.status.success() {
        bail!("{} failed: {}", program[0], ended.reason());
    }
    Ok(sample)
}

/// The process that has most anonymous memory of `pid` and all that it has started, and how much.
fn largest(pid: i32) -> Option<(i32, u64)> {
    let own = StatusFile::open(pid).and_then(|s| s.read());
    let own = own.map(|status| (pid, status.anonymous));
    let below = proc::children(pid).into_iter().filter_map(largest);
    own.into_iter().chain(below).max_by_key(|&(_, bytes)| bytes)
}

/// Pages of a process, from runs in random places; what cannot be read is passed over.
fn read(pid: i32, anonymous: u64, pages: usize) -> Option<Vec<Bytes>> {
    let maps = proc::text(format!("/proc/{pid}/maps")).ok()?;
    let ranges: Vec<_> = maps.lines().filter_map(anonymous_range).collect();
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    // Of so many runs one is read.
    let one_of = (anonymous / PAGE / pages as u64).max(1);
    let mut state = anonymous;
    let mut found = Vec::new();
    let mut passed = 0;
    for range in ranges {
        for at in range.step_by((RUN * PAGE) as usize) {
            let mut entries = [0; (RUN * 8) as usize];
            if pagemap.read_exact_at(&mut entries, at / PAGE * 8).is_err() {
                continue;
            }
            let (entries, _) = entries.as_chunks::<8>();
            let present = |&(_, e): &(usize, &[u8; 8])| u64::from_ne_bytes(*e) >> 63 != 0;
            let mut there = entries.iter().enumerate().filter(present).peekable();
            if there.peek().is_none() {
                continue;
            }
            passed += 1;
            // (One of the first ones, so that there is one of little memory as well.)
            if passed != 1 && below(one_of, &mut state) != 0 {
                continue;
            }
            for (i, _) in there {
                let mut page = [0; PAGE as usize];
                let place = at + i as u64 * PAGE;
                if memory.read_exact_at(&mut page, place).is_ok() {
                    found.push(page);
                }
            }
        }
    }
    found.truncate(pages + pages / 4);
    Some(found)
}

/// The addresses of a line of /proc/PID/maps, if it is private writable memory of no file, and no stack.
fn anonymous_range(line: &str) -> Option<Range<u64>> {
    let mut words = line.split_ascii_whitespace();
    let (range, access) = (words.next()?, words.next()?);
    let name = words.nth(3).unwrap_or_default();
    let is_ours = access.starts_with("rw") && access.ends_with('p');
    if !is_ours || !(name.is_empty() || name == "[heap]" || name.starts_with("[anon")) {
        return None;
    }
    let (from, to) = range.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(number(from)?..number(to)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_memory_is_told_from_files_and_stacks() {
        let line = |access: &str, name: &str| format!("7f00-7fff {access} 00000000 00:00 0 {name}");
        for (access, name) in [("rw-p", ""), ("rw-p", "[heap]"), ("rwxp", "[anon:heap]")] {
            assert_eq!(anonymous_range(&line(access, name)), Some(0x7f00..0x7fff));
        }
        for (access, name) in [
            ("rw-s", ""),
            ("r--p", ""),
            ("---p", ""),
            ("rw-p", "[stack]"),
            ("rw-p", "/usr/lib/libc.so.6"),
        ] {
            assert_eq!(
                anonymous_range(&line(access, name)),
                None,
                "{access} {name}"
            );
        }
    }

    #[test]
    fn the_memory_of_a_child_is_read() {
        let script = "s=$(head -c 8000000 /dev/zero | tr '\\0' x); sleep 0.5; :";
        let program = ["bash", "-c", script].map(String::from);
        let sample = of_program(&program, 1000, Duration::from_secs(60)).expect("bash");
        assert!(sample.of > 7 << 20, "{} bytes", sample.of);
        let of_string = sample.pages.iter().filter(|p| p.iter().all(|&b| b == b'x'));
        assert!(of_string.count() > sample.pages.len() / 4);
    }

    #[test]
    fn a_program_that_fails_is_told() {
        let program = ["sh", "-c", "echo why >&2; exit 3"].map(String::from);
        let e = of_program(&program, 10, Duration::from_secs(60)).err();
        let said = e.expect("a failure").to_string();
        assert!(said.contains("sh failed: why (exit status 3)"), "{said}");
    }
}

//! Requests to a running pool from outside: one mailbox in the segment, served by the process that
//! made the pool, which looks at it ten times a second.
//!
//! A process that may open the segment (the same user, by the kernel's rule for /proc/PID/fd) may
//! do anything to the pool anyway. The mailbox is for what only the maker can do: open a swap area
//! that the pool's processes then find among its descriptors. A request is a line of text, and so
//! is the answer. There is one request at a time. Of a process that has died in the middle of one,
//! nothing is left.

use super::layout::{LETTER, Mailbox};
use super::{Pool, SwapSpec, holder};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::{futex, now_ns, process};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const FREE: u64 = 0;
const WRITING: u64 = 1;
const ASKED: u64 = 2;
const SERVING: u64 = 3;
const ANSWERED: u64 = 4;

/// How long an answer is waited for.
const PATIENCE_NS: u64 = 20_000_000_000;

/// Why there is no answer; one line each, telling what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// The maker of the pool is gone.
    #[error(
        "process {0}, which made the pool, is gone: what is left of the pool cannot be changed"
    )]
    Gone(i32),
    /// Another process has a request there.
    #[error("process {0} is asking the pool for something else: try again when it is done")]
    Busy(i32),
    /// The maker does not answer.
    #[error(
        "process {0} does not answer; one that uses the library has to add areas itself (Pool::swap_on)"
    )]
    Silent(i32),
    /// The request is too long.
    #[error("the request is longer than {LETTER} bytes: use a shorter path")]
    TooLong,
}

/// How much has to move when an area is taken off, and how much room there is for it; all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes that the area holds.
    pub held: u64,
    /// Bytes free in the other areas.
    pub elsewhere: u64,
    /// Bytes free in the budget.
    pub memory: u64,
}

impl Room {
    /// Does it fit?
    pub fn suffices(&self) -> bool {
        self.missing() == 0
    }

    /// Bytes that are missing.
    pub fn missing(&self) -> u64 {
        self.held
            .saturating_sub(self.elsewhere.saturating_add(self.memory))
    }
}

impl Mailbox {
    fn put(&self, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(LETTER)];
        for (cell, b) in self.text.iter().zip(bytes) {
            cell.store(*b, Relaxed);
        }
        self.len.store(bytes.len() as u32, Relaxed);
    }

    fn take(&self) -> String {
        let len = (self.len.load(Relaxed) as usize).min(LETTER);
        let bytes: Vec<u8> = self.text[..len].iter().map(|b| b.load(Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn change(&self, from: u64, to: u64) -> bool {
        self.state
            .compare_exchange(from, to, AcqRel, Acquire)
            .is_ok()
    }

    fn set(&self, to: u64) {
        self.state.store(to, Release);
        futex::wake(futex::low_half(&self.state), u32::MAX >> 1, true);
    }

    fn wait(&self, while_it_is: u64) {
        let low = futex::low_half(&self.state);
        futex::wait(low, while_it_is as u32, Some(50_000_000), true);
    }

    /// Gets it for `me` to write to.
    fn claim(&self, me: u64, maker: i32) -> Result<(), NoAnswer> {
        let start = now_ns();
        loop {
            let word = self.state.load(Acquire);
            if word != FREE && !holder::is_gone(word) {
                return Err(NoAnswer::Busy(holder::pid(word)));
            }
            // The asking process went without reading its answer, or before it had asked; what is
            // being done for it will end.
            if word & 0xff != SERVING && self.change(word, WRITING | me) {
                return Ok(());
            }
            if now_ns() - start > PATIENCE_NS {
                return Err(NoAnswer::Silent(maker));
            }
            self.wait(word);
        }
    }
}

impl Pool {
    /// The process that made the pool.
    pub fn maker(&self) -> i32 {
        self.header().creator.load(Relaxed)
    }

    /// Asks the maker to add the area that `spec` describes as `--swap` does, by an absolute path;
    /// its number, or why not.
    pub fn ask_to_add(&self, spec: &str) -> Result<Result<usize, String>, NoAnswer> {
        let answer = self.ask(spec)?;
        Ok(match answer.strip_prefix("ok ").map(str::parse) {
            Some(Ok(index)) => Ok(index),
            _ => Err(answer.strip_prefix("no ").unwrap_or(&answer).to_owned()),
        })
    }

    fn ask(&self, request: &str) -> Result<String, NoAnswer> {
        let (m, maker) = (&self.header().mailbox, self.maker());
        if request.len() > LETTER {
            return Err(NoAnswer::TooLong);
        }
        if !process::exists(maker) {
            return Err(NoAnswer::Gone(maker));
        }
        let me = holder::myself();
        m.claim(me, maker)?;
        m.put(request);
        m.set(ASKED | me);
        let start = now_ns();
        loop {
            let word = m.state.load(Acquire);
            if word == ANSWERED | me {
                let answer = m.take();
                m.set(FREE);
                return Ok(answer);
            }
            if !process::exists(maker) {
                return Err(NoAnswer::Gone(maker));
            }
            // What it has begun to do it will say.
            if now_ns() - start > PATIENCE_NS && m.change(ASKED | me, FREE) {
                return Err(NoAnswer::Silent(maker));
            }
            m.wait(word);
        }
    }

    /// Does what was asked for, and ends areas that are empty. For the process that made the pool,
    /// in a thread with the program's descriptors, a few times a second.
    pub fn serve(&self) {
        let m = &self.header().mailbox;
        let word = m.state.load(Acquire);
        let asker = word & !0xff;
        if word & 0xff == ASKED && m.change(word, SERVING | asker) {
            let spec = SwapSpec::parse(&m.take());
            let spec = spec.map_err(|e| e.to_string());
            let added = spec.and_then(|s| self.add_area(&s).map_err(|e| e.to_string()));
            m.put(&match added {
                Ok(index) => format!("ok {index}"),
                Err(e) => format!("no {e}"),
            });
            m.set(ANSWERED | asker);
        }
        self.end_emptied_areas();
        self.close_past_areas();
    }

    /// What taking off area `index` takes, and what there is; `None`: there is no such area.
    pub fn room_for(&self, index: usize) -> Option<Room> {
        let areas = self.area_usage();
        let held = areas.iter().find(|a| a.index == index)?.usage.used_bytes();
        let used = self.used_frames().saturating_sub(self.buffer_frames());
        Some(Room {
            held,
            elsewhere: self.free_but_in(index),
            memory: self.frames().saturating_sub(used) * UNIT_BYTES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::holder::and_ends;
    use super::*;
    use crate::pool::{FaultMode, PoolConfig};
    use std::sync::atomic::AtomicBool;

    #[test]
    fn who_went_in_the_middle_of_asking_keeps_nobody_out() {
        let pool = Pool::create(&PoolConfig {
            memory: 16 << 20,
            swap: Vec::new(),
            fault_mode: FaultMode::Auto,
            settings: Vec::new(),
        })
        .unwrap();
        let m = &pool.header().mailbox;
        let ask = |spec| pool.ask_to_add(spec);
        let ended = AtomicBool::new(false);
        std::thread::scope(|s| {
            for what in [WRITING, ASKED, SERVING, ANSWERED] {
                and_ends(|| m.change(FREE, what | holder::myself()));
                let dead = m.state.load(Relaxed);
                assert_eq!(dead & 0xff, what);
                if what == SERVING {
                    // The maker is at it, and ends it in its time.
                    s.spawn(move || {
                        std::thread::sleep(std::time::Duration::from_millis(100));
                        m.put("ok 77");
                        m.set(ANSWERED | dead & !0xff);
                    });
                }
                let serving = s.spawn(|| {
                    while !ended.swap(false, Acquire) {
                        pool.serve();
                        std::thread::yield_now();
                    }
                });
                let answer = ask("/nowhere/at/all").unwrap();
                assert!(answer.unwrap_err().contains("/nowhere/at/all"));
                assert_eq!(m.state.load(Relaxed), FREE);
                ended.store(true, Release);
                serving.join().unwrap();
            }
        });
        // A live holder keeps it.
        m.set(ASKED | holder::myself());
        assert_eq!(ask("/nowhere"), Err(NoAnswer::Busy(process::pid())));
    }
}

//! What is asked of a running pool from outside: one mailbox in the segment, served by the process that made the pool.
//!
//! Who may open the segment (the same user, by the kernel's rule for /proc/PID/fd) may do anything to the pool anyway; the mailbox is for what
//! only its maker can do, which is to open a swap area that the pool's processes then find among its descriptors. A request is a line of text,
//! and so is the answer. One request at a time; of a process that went in the middle of one, nothing is left.

use super::layout::{LETTER, Mailbox};
use super::{Pool, SwapSpec};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::{futex, now_ns, process};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const FREE: u32 = 0;
const WRITING: u32 = 1;
const ASKED: u32 = 2;
const SERVING: u32 = 3;
const ANSWERED: u32 = 4;

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
    /// Somebody else asks.
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

/// What there is to be moved and where it could go, when an area is to be taken off; all in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What the area holds.
    pub held: u64,
    /// What the other areas have free.
    pub elsewhere: u64,
    /// What the budget has free.
    pub memory: u64,
}

impl Room {
    /// Does it fit?
    pub fn suffices(&self) -> bool {
        self.missing() == 0
    }

    /// What is missing.
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

    fn change(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, AcqRel, Acquire)
            .is_ok()
    }

    fn set(&self, to: u32) {
        self.state.store(to, Release);
        futex::wake(&self.state, u32::MAX >> 1, true);
    }
}

impl Pool {
    /// The process that made the pool.
    pub fn maker(&self) -> i32 {
        self.header().creator.load(Relaxed)
    }

    /// Asks the maker to add the area that `spec` describes as `--swap` does, by an absolute path; its number, or why not.
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
        if !m.change(FREE, WRITING) {
            let other = m.from.load(Relaxed);
            if process::exists(other) {
                return Err(NoAnswer::Busy(other));
            }
            // It went without reading its answer, or before it had asked.
            m.set(WRITING);
        }
        m.from.store(process::pid(), Relaxed);
        m.put(request);
        m.set(ASKED);
        let start = now_ns();
        loop {
            let state = m.state.load(Acquire);
            if state == ANSWERED {
                let answer = m.take();
                m.set(FREE);
                return Ok(answer);
            }
            if !process::exists(maker) {
                return Err(NoAnswer::Gone(maker));
            }
            // What it has begun to do it will say.
            if now_ns() - start > PATIENCE_NS && m.change(ASKED, FREE) {
                return Err(NoAnswer::Silent(maker));
            }
            futex::wait(&m.state, state, Some(50_000_000), true);
        }
    }

    /// Does what was asked for, and ends areas that are empty. For the process that made the pool, in a thread with the program's descriptors, a few times a second.
    pub fn serve(&self) {
        let m = &self.header().mailbox;
        if m.change(ASKED, SERVING) {
            let spec = SwapSpec::parse(&m.take());
            let added = spec.and_then(|s| self.add_area(&s).map_err(|e| e.to_string()));
            m.put(&match added {
                Ok(index) => format!("ok {index}"),
                Err(e) => format!("no {e}"),
            });
            m.set(ANSWERED);
        }
        self.end_emptied_areas();
        self.close_past_areas();
    }

    /// What taking off area `index` takes, and what there is; `None`: there is no such area.
    pub fn room_for(&self, index: usize) -> Option<Room> {
        let areas = self.area_usage();
        let held = areas.iter().find(|a| a.index == index)?.usage.used_bytes();
        Some(Room {
            held,
            elsewhere: self.free_but_in(index),
            memory: self.frames().saturating_sub(self.used_frames()) * UNIT_BYTES,
        })
    }
}

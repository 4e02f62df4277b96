//! kswapd answers requests from outside about the pages of this process (`pool::looking`).

use crate::UNIT;
use crate::pool::looking::{self, ENTRY, Head, MOST, Run};
use crate::reclaim::Reclaim;
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::unit::Kind;
use hugeswap_sys::{Errno, fs, now_ns, process};
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU64};

/// An answer is kept for so long.
const KEPT_NS: u64 = 10_000_000_000;
/// Runs gathered for one write.
const GATHERED: usize = 64;

/// The last answer.
pub(crate) struct Answer {
    /// -1: there is none.
    fd: AtomicI32,
    at_ns: AtomicU64,
}

impl Answer {
    /// None.
    pub fn new() -> Answer {
        Answer {
            fd: AtomicI32::new(-1),
            at_ns: AtomicU64::new(0),
        }
    }

    /// Gives it up, in the thread that made it.
    fn close(&self) {
        let fd = self.fd.swap(-1, Relaxed);
        if fd >= 0 {
            fs::close(fd);
        }
    }

    /// In a forked child, which has not got it.
    pub fn forget_in_child(&self) {
        self.fd.store(-1, Relaxed);
    }
}

/// Runs on their way to a file, neighbours that are the same made one.
struct Gathering {
    fd: i32,
    buffer: [u8; GATHERED * ENTRY],
    filled: usize,
    /// Where in the file the buffer goes.
    at: u64,
    runs: u32,
    last: Option<Run>,
}

impl Gathering {
    fn add(&mut self, run: Run) -> Result<(), Errno> {
        if let Some((pages, state)) = &mut self.last {
            let n = (pages.end - pages.start) / PAGE_BYTES;
            if pages.end == run.0.start && state.nth(n) == run.1 {
                pages.end = run.0.end;
                return Ok(());
            }
        }
        self.put()?;
        self.last = Some(run);
        Ok(())
    }

    /// The last run can grow no more.
    fn put(&mut self) -> Result<(), Errno> {
        let Some(run) = self.last.take() else {
            return Ok(());
        };
        let to = self.filled * ENTRY;
        self.buffer[to..to + ENTRY].copy_from_slice(&looking::run_bytes(&run));
        self.filled += 1;
        self.runs += 1;
        if self.filled == GATHERED {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Errno> {
        let len = self.filled * ENTRY;
        looking::write(self.fd, &self.buffer[..len], self.at)?;
        self.at += len as u64;
        self.filled = 0;
        Ok(())
    }
}

impl Reclaim {
    /// kswapd: answers a process that asks. True if one did.
    pub(crate) fn answer_looks(&self) -> bool {
        let look = &self.pool.record().look;
        let number = look.asked.load(Acquire);
        if number == look.answered.load(Relaxed) {
            let kept = now_ns().saturating_sub(self.looked.at_ns.load(Relaxed)) < KEPT_NS;
            if !kept {
                self.looked.close();
            }
            return false;
        }
        self.looked.close();
        // Without a file there is no answer; the asking process will say so.
        if let Ok(fd) = self.tell_pages(number, look.from.load(Relaxed)) {
            self.looked.fd.store(fd, Relaxed);
            self.looked.at_ns.store(now_ns(), Relaxed);
            look.tid.store(process::tid(), Relaxed);
            look.fd.store(fd, Relaxed);
        }
        look.answered.store(number, Release);
        true
    }

    fn tell_pages(&self, number: u32, from: u64) -> Result<i32, Errno> {
        let fd = looking::new_file()?;
        self.write_pages_from(fd, number, from)
            .inspect_err(|_| fs::close(fd))?;
        Ok(fd)
    }

    /// Whole units, in the order of addresses: what was touched of the window, and the shared
    /// regions.
    fn ranges_in_use(&self) -> Vec<Range<usize>> {
        let mut all = self.sharing.ranges();
        all.extend(self.parts_in_use());
        all.sort_unstable_by_key(|r| r.start);
        all
    }

    fn write_pages_from(&self, fd: i32, number: u32, from: u64) -> Result<(), Errno> {
        let mut to = Gathering {
            fd,
            buffer: [0; GATHERED * ENTRY],
            filled: 0,
            at: ENTRY as u64,
            runs: 0,
            last: None,
        };
        let (mut next, mut failed) = (0, None);
        let from_unit = usize::try_from(from).unwrap_or(usize::MAX) / UNIT * UNIT;
        'all: for range in self.ranges_in_use() {
            for at in (range.start.max(from_unit)..range.end).step_by(UNIT) {
                // A unit has 512 runs at most.
                if to.runs as usize + 513 > MOST {
                    next = at as u64;
                    break 'all;
                }
                let own = self.table.unit_of(at);
                if own.is_some_and(|unit| self.table.load(unit).kind() == Kind::Free) {
                    continue;
                }
                if let Some(unit) = own {
                    // (This thread waits for no thread that may wait for it.)
                    self.try_look_for_writes(unit);
                }
                self.page_states(at, UNIT, |pages, state| {
                    let run = (pages.start as u64..pages.end as u64, state);
                    failed = failed.or(to.add(run).err());
                });
            }
        }
        if let Some(e) = failed {
            return Err(e);
        }
        to.put()?;
        to.flush()?;
        let head = Head {
            number,
            runs: to.runs,
            from,
            next,
        };
        looking::write(fd, &head.bytes(), 0)
    }
}

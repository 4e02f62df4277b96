//! A lock for readers and writers that a forked child can make anew: one word, no owner, no queue.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const WRITER: u32 = 1 << 31;
/// A writer waits: no new readers.
const PENDING: u32 = 1 << 30;

/// See the file's head.
#[derive(Debug, Default)]
pub struct Lock(AtomicU32);

impl Lock {
    /// Waits until there is no writer.
    pub fn read(&self) {
        self.wait_for(|w| (w & (WRITER | PENDING) == 0).then_some(w + 1), 0);
    }

    /// Waits until there is nobody.
    pub fn write(&self) {
        self.wait_for(|w| (w & !PENDING == 0).then_some(WRITER), PENDING);
    }

    /// Takes the word through `change` as soon as that allows it; sets `meanwhile` until then.
    fn wait_for(&self, change: impl Fn(u32) -> Option<u32>, meanwhile: u32) {
        for turn in 0u32.. {
            let w = self.0.load(Relaxed);
            let (next, done) = match change(w) {
                Some(next) => (next, true),
                None => (w | meanwhile, false),
            };
            let set = next == w || self.0.compare_exchange(w, next, Acquire, Relaxed).is_ok();
            if set && done {
                return;
            }
            if turn > 100 {
                std::thread::sleep(std::time::Duration::from_micros(50));
            } else if turn > 10 {
                std::thread::yield_now();
            }
        }
    }

    /// Gives up what [`Lock::read`] took.
    pub fn unlock_read(&self) {
        self.0.fetch_sub(1, Release);
    }

    /// Gives up what [`Lock::write`] took.
    pub fn unlock_write(&self) {
        self.0.fetch_and(!WRITER, Release);
    }

    /// Free again, whoever held it: in a forked child, whose threads are not its parent's.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

//! Shared regions at a fork: the child has what its parent had, at the same addresses.

use super::error::{Result, SharedError};
use super::{Host, Map, Sharing};
use hugeswap_sys::{fs, mm};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

impl Sharing {
    /// Before a fork, with every thread at rest: the child will have what this process has, also if
    /// this one is gone by then.
    pub(crate) fn share_with_child(&self, record: usize) {
        if !self.is_used() {
            return;
        }
        // Without it, or where there is no place left, the child finds nothing there.
        let Some(table) = self.pool.shared_table_soon() else {
            return;
        };
        for (index, _) in self.maps() {
            let how = table.tracks(index, self.pool.me());
            let _ = table.add(index, record, |c| {
                c.pid.store(0, Relaxed);
                c.memory.store(-1, Relaxed);
                c.uffd.store(-1, SeqCst);
                c.tracks.store(how, Relaxed);
            });
        }
    }

    /// In a forked child: maps what the parent had.
    pub(crate) fn in_child(&self, host: &impl Host, disowned: bool) {
        let mut state = self.maintenance.lock();
        state.peers.clear();
        drop(state);
        self.waiting.store(0, Relaxed);
        self.begin.reset();
        self.buffers.reset_in_child();
        while self.requests.pop().is_some() || self.handed.pop().is_some() {}
        for (index, m) in self.maps() {
            fs::close(m.uffd.load(Relaxed));
            let kept = if disowned {
                Err(SharedError::Unknown)
            } else {
                self.map_in_child(host, index, m)
            };
            if let Err(e) = kept {
                if !disowned {
                    self.pool.forget_client(index, self.pool.me());
                }
                let text = e.to_string();
                fs::complain(&[
                    b"hugeswap: a forked child cannot have a shared region: ",
                    text.as_bytes(),
                    b"\n",
                ]);
                let range = m.range();
                m.addr.store(0, Release);
                // It would keep the memory.
                let memory = m.memory.load(Relaxed);
                if super::evict::is_memory(m, memory) {
                    fs::close(memory);
                }
                // SAFETY: not inherited, so there is nothing to replace. Touching it is SIGSEGV.
                let _ = unsafe { mm::map_anon(range.start, range.len(), mm::PROT_NONE, true) };
            }
        }
    }

    fn map_in_child(&self, host: &impl Host, index: usize, m: &Map) -> Result<()> {
        let range = m.range();
        let memory = m.memory.load(Relaxed);
        let identity = fs::identity(memory).map_err(|e| SharedError::System("no memory", e))?;
        let same = super::evict::is_memory(m, memory);
        {
            let table = self.pool.shared_table_soon().ok_or(SharedError::Stuck)?;
            let found = table.look(index).ok_or(SharedError::Unknown)?;
            if !same
                || found.serial != m.serial.load(Relaxed)
                || found.units != m.units().len() as u32
            {
                return Err(SharedError::Unknown);
            }
            if found.nameless {
                self.let_relatives_in();
            }
            let new = self.new_mapping(memory, range.len(), Some(range.start))?;
            self.publish(&table, &found, memory, &identity, &new)?;
            new.keep();
        }
        self.settle(host, index)
            .inspect_err(|_| fs::close(m.uffd.load(Relaxed)))
    }
}

//! Shared units leave memory: by kswapd, or on request.
//!
//! Units are in no list. Each kswapd goes round the units of the regions that its process has
//! mapped, in turn with its own lists by what both have in memory.
//!
//! While a cluster is being written and no word refers to it, the process's record does
//! (`in_hand`), so that the cluster is found again should this process die. The order is: first the
//! record, then the word without the cluster; and first the word with the cluster, then the record
//! without it.

use super::lock::Leaving;
use super::{Host, Maintenance, Map, PeerDescriptor, Sharing};
use crate::checksum;
use crate::{PAGES, UNIT};
use hugeswap_policy::shared::Kind;
use hugeswap_policy::shared::step::Event;
use hugeswap_policy::thp_swap::clusters;
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use hugeswap_sys::signal::Blocked;
use hugeswap_sys::{Errno, Result, fs, futex, now_ns, process, uffd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;

/// A process that cannot be reached for so long never will be.
const HOPELESS_NS: u64 = 1_000_000_000;
/// Units that leave in one step of kswapd's.
const BATCH: usize = 4;
/// Of [`Record::in_hand`](crate::pool::layout::Record): kswapd's, and that of a thread that
/// discards.
pub(super) const KSWAPD: usize = 0;
pub(super) const DISCARD: usize = 1;

impl Sharing {
    /// kswapd: what it was asked for. Was there anything?
    pub(crate) fn serve(&self, host: &impl Host) -> bool {
        let used = self.is_used();
        // Once more after the last region: what is open of it keeps its memory.
        if !self.reaches.swap(used, AcqRel) && !used {
            return false;
        }
        let mut busy = false;
        let mut state = self.maintenance.lock();
        self.meet_clients(&mut state);
        busy |= self.begin_wanted_epoch(host, &mut state);
        while let Some(unit) = self.handed.pop() {
            self.carry_on_own(host, &mut state, unit);
            busy = true;
        }
        for _ in 0..16 {
            let Some(unit) = self.requests.pop() else {
                break;
            };
            if let Some((region, m)) = self.map_with(unit) {
                self.evict(host, &mut state, region, m, unit);
            }
            busy = true;
        }
        busy
    }

    /// kswapd: is it the turn of shared memory, of which `shared` units are in memory beside `own`
    /// frames of this process alone?
    pub(crate) fn has_turn(&self, shared: u64, own: u64) -> bool {
        let mut state = self.maintenance.lock();
        let all = shared.saturating_add(own).max(1);
        let due = |t: u64| t.saturating_mul(shared) / all;
        state.turn = state.turn.wrapping_add(1) & 0xffff_ffff;
        due(state.turn) != due(state.turn - u64::from(state.turn > 0))
    }

    /// kswapd: some units that were not used lately leave memory. False: none would.
    pub(crate) fn evict_some(&self, host: &impl Host) -> bool {
        let mut state = self.maintenance.lock();
        let mut freed = 0;
        for _ in 0..BATCH {
            let Some((region, m, unit)) = self.oldest(&mut state) else {
                break;
            };
            freed += u64::from(self.evict(host, &mut state, region, m, unit));
        }
        if freed > 0 {
            let owed = &self.pool.record().give_back;
            let _ = owed.fetch_update(Relaxed, Relaxed, |o| Some(o.saturating_sub(freed)));
        }
        freed > 0
    }

    /// The next unit in memory, going round, that was not brought in or written to since the last
    /// time round.
    fn oldest(&self, state: &mut Maintenance) -> Option<(usize, &Map, u32)> {
        let total: usize = self.maps().map(|(_, m)| m.units().len()).sum();
        for _ in 0..total * 2 {
            state.clock = (state.clock + 1) % total;
            let mut left = state.clock;
            let (region, m) = self.maps().find(|(_, m)| {
                let here = left < m.units().len();
                left -= if here { 0 } else { m.units().len() };
                here
            })?;
            let unit = m.units().start + left as u32;
            let w = self.load(unit);
            if w.is_locked() || w.kind() != Kind::Resident || self.pool.is_left(unit) {
                continue;
            }
            if !w.is_referenced() {
                return Some((region, m, unit));
            }
            self.change(unit, w, Event::Spared);
        }
        None
    }

    /// Takes a unit out of memory, if it is there and no thread writes to it meanwhile.
    pub(super) fn evict(
        &self,
        host: &impl Host,
        state: &mut Maintenance,
        region: usize,
        m: &Map,
        unit: u32,
    ) -> bool {
        let w = self.load(unit);
        if w.is_locked() || w.kind() != Kind::Resident || self.pool.is_left(unit) {
            return false;
        }
        // Said before the word is taken: a process that keeps the unit (`keep_shared`) changes the
        // word, and looks then.
        let freezing = &self.pool.record().freezing;
        freezing.store(unit + 1, SeqCst);
        let Some(mut leaving) = self.take_out(unit, w) else {
            freezing.store(0, SeqCst);
            return false;
        };
        // Locked before the table is read: see `settle`.
        fence(SeqCst);
        let saved = self.save(host, state, region, m, unit, &mut leaving);
        freezing.store(0, SeqCst);
        let Ok(memory) = saved else {
            leaving.stay();
            return false;
        };
        let held = leaving.secured();
        let punched = fs::punch_at_last(memory, m.offset_of(unit), UNIT_BYTES);
        self.protect_again(state, region, m, unit);
        if punched.is_err() {
            // The memory is there, and has the same bytes.
            held.settle_by(Event::NotDropped);
            return false;
        }
        self.end_in_memory(host, held, Event::Dropped);
        true
    }

    pub(super) fn in_hand(&self, which: usize, cluster: Option<u64>) {
        let word = cluster.map_or(0, |c| c + 1);
        self.pool.record().in_hand[which].store(word, SeqCst);
    }

    /// Frees a cluster that was in hand.
    pub(super) fn drop_in_hand(&self, which: usize, cluster: u64) {
        if clusters::is_shared(self.pool.cluster_words(), cluster as usize) {
            self.store.forget_stored(cluster, 0..PAGES);
            clusters::release_shared(self.pool.cluster_words(), cluster as usize);
        }
        self.in_hand(which, None);
    }

    /// Puts the bytes of a unit in swap. Then the word says so, and no process can displace this
    /// one. The memory file.
    fn save(
        &self,
        host: &impl Host,
        state: &mut Maintenance,
        region: usize,
        m: &Map,
        unit: u32,
        leaving: &mut Leaving<'_>,
    ) -> Result<i32> {
        let memory = self.memory_of(state, region, m)?;
        let before = self.changes_of(region);
        let frozen = self.freeze(state, region, m, unit);
        self.pool.record().freezing.store(0, SeqCst);
        if state.is_hopeless(region, frozen.is_err()) {
            self.pool.leave_to_the_kernel(region);
            host.note_available();
        }
        frozen?;
        let buffer = self.buffers.take(&self.pool, UNIT);
        // SAFETY: the buffer is ours.
        unsafe { fs::read_exact_at(memory, buffer.at, UNIT, m.offset_of(unit)) }?;
        // A process that has come meanwhile is not write-protected.
        let unchanged = || self.changes_of(region) == before;
        // SAFETY: the buffer is ours, and filled.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.at as *const u8, UNIT) };
        if checksum::is_zero(bytes) {
            if !unchanged() || !leaving.advance(Event::FoundZero) {
                return Err(Errno::EAGAIN);
            }
            return Ok(memory);
        }
        let mut sums = [0; PAGES];
        checksum::fill(&self.store.key, bytes, &mut sums);
        let shared = |c: &u64| clusters::is_shared(self.pool.cluster_words(), *c as usize);
        let old = leaving.cluster().filter(shared);
        let known = |c: &u64| {
            let known = self.pool.cluster_sums().get(*c as usize);
            known.is_some_and(|k| checksum::equal(k, &sums))
                && !self.pool.is_bad(*c, 0..PAGES)
                && !self.pool.is_draining(*c)
        };
        if let Some(cluster) = old.filter(known) {
            if !unchanged() || !leaving.advance(Event::Stored { cluster }) {
                return Err(Errno::EAGAIN);
            }
            return Ok(memory);
        }
        // What is there of it in swap is older: no process is to find that once we have begun to
        // write over it.
        if let Some(c) = old {
            self.in_hand(KSWAPD, Some(c));
            if !leaving.advance(Event::Unplaced) {
                self.in_hand(KSWAPD, None);
                return Err(Errno::EAGAIN);
            }
        }
        let written = self.write(host, old, buffer.at, &sums);
        let Some(cluster) = written else {
            return Err(Errno::EIO);
        };
        if !unchanged() || !leaving.advance(Event::Stored { cluster }) {
            self.drop_in_hand(KSWAPD, cluster);
            return Err(Errno::EAGAIN);
        }
        self.in_hand(KSWAPD, None);
        Ok(memory)
    }

    /// Writes a unit to the cluster in hand, if there is one and it takes it, or to a new one,
    /// which is in hand then.
    fn write(&self, host: &impl Host, old: Option<u64>, from: usize, sums: &[u64]) -> Option<u64> {
        let own = old.filter(|&c| !self.pool.avoids(c) && !self.pool.is_draining(c));
        if let Some(c) = old.filter(|_| own.is_none()) {
            self.drop_in_hand(KSWAPD, c);
        }
        let claim = |failed| self.claim(failed);
        let release = |cluster| self.drop_in_hand(KSWAPD, cluster);
        let written = self.store.write_unit(own, claim, release, from, sums);
        host.note_unit_written(written.is_some());
        written
    }

    /// A new cluster, shared memory's, and in hand.
    fn claim(&self, avoid: u32) -> Option<u64> {
        let cluster = self.store.claim_cluster_but(avoid)?;
        self.in_hand(KSWAPD, Some(cluster));
        let me = self.pool.me() as u16 + 1;
        if !clusters::share_out(self.pool.cluster_words(), cluster as usize, me) {
            self.in_hand(KSWAPD, None);
            return None;
        }
        self.store.not_owned(cluster);
        Some(cluster)
    }

    fn changes_of(&self, region: usize) -> u32 {
        self.pool.header().shared[region].changes.load(SeqCst)
    }

    /// Write-protects a unit in every process that has it mapped.
    pub(super) fn freeze(
        &self,
        state: &mut Maintenance,
        region: usize,
        m: &Map,
        unit: u32,
    ) -> Result<()> {
        let offset = m.offset_of(unit);
        for (_, c) in self.pool.clients(region) {
            let client = c.owner.load(SeqCst);
            let (pid, number) = (c.pid.load(Relaxed), c.uffd.load(SeqCst));
            // A process that has not mapped it yet will look at the words once it has.
            if client == 0 || number < 0 {
                continue;
            }
            let at = c.addr.load(Relaxed).wrapping_add(offset) as usize;
            let serial = m.serial.load(Relaxed);
            let frozen = state
                .reach(region, serial, client, pid, number, is_userfaultfd)
                .and_then(|fd| freeze(fd, at, m.span_of(unit)));
            match frozen {
                Ok(()) => {}
                // Its memory is gone.
                Err(Errno::ESRCH) => {}
                // It has given the region up since.
                Err(_) if c.owner.load(SeqCst) != client => {}
                Err(_) if !self.pool.client_lives(client) => {}
                Err(e) => {
                    self.waiting.fetch_add(1, AcqRel);
                    self.pool.reap();
                    self.waiting.fetch_sub(1, AcqRel);
                    if self.pool.client_lives(client) {
                        return Err(e);
                    }
                }
            }
        }
        Ok(())
    }

    /// The region's memory file in this thread's table.
    pub(super) fn memory_of(&self, state: &mut Maintenance, region: usize, m: &Map) -> Result<i32> {
        let number = m.memory.load(Relaxed);
        let (serial, me) = (m.serial.load(Relaxed), process::pid());
        state.reach(region, serial, 0, me, number, |fd| is_memory(m, fd))
    }

    /// Has kswapd get descriptors of its own for a region that was just mapped; where the program may
    /// close those that it has, waits until that is done.
    pub(super) fn await_met(&self, host: &impl Host, region: usize) {
        const PATIENCE_NS: u64 = 1_000_000_000;
        const ASK_AGAIN_NS: u64 = 20_000_000;
        let m = &self.maps[region];
        let met = m.serial.load(Relaxed).wrapping_add(1);
        let since = now_ns();
        self.pool.kick();
        while !self.are_descriptors_safe
            && let now = m.met.load(Acquire)
            && now != met
            && now_ns() < since + PATIENCE_NS
            && !host.is_stopping()
        {
            futex::wait(&m.met, now, Some(ASK_AGAIN_NS), false);
            self.pool.kick();
        }
    }

    /// The same of all that a forked child has mapped, once it has a kswapd.
    pub(crate) fn await_all_met(&self, host: &impl Host) {
        self.maps()
            .for_each(|(region, _)| self.await_met(host, region));
    }

    /// Gives up what no region needs any more, and gets the descriptors of processes that have
    /// come.
    fn meet_clients(&self, state: &mut Maintenance) {
        let stale = |r: &PeerDescriptor| {
            let here = self.maps[r.region].serial.load(Relaxed) == r.serial
                && self.maps[r.region].addr.load(Acquire) != 0;
            let client = || {
                let mut all = self.pool.clients(r.region);
                all.any(|(_, c)| c.owner.load(Acquire) == r.client)
            };
            !here || r.client != 0 && !client()
        };
        state.peers.retain(|r| {
            let stale = stale(r);
            if stale && is_of_regions(r.fd) {
                fs::close(r.fd);
            }
            !stale
        });
        for (region, m) in self.maps() {
            let serial = m.serial.load(Relaxed);
            let _ = self.memory_of(state, region, m);
            for (_, c) in self.pool.clients(region) {
                let client = c.owner.load(SeqCst);
                let (pid, number) = (c.pid.load(Relaxed), c.uffd.load(SeqCst));
                if client != 0 && number >= 0 {
                    let _ = state.reach(region, serial, client, pid, number, is_userfaultfd);
                }
            }
            let met = serial.wrapping_add(1);
            if m.met.swap(met, AcqRel) != met {
                futex::wake(&m.met, u32::MAX >> 1, false);
            }
        }
    }

    /// Moves the whole units of the range out to swap, and waits until that is done as far as it
    /// can be.
    pub(crate) fn pageout(&self, addr: usize, len: usize) {
        const PATIENCE_NS: u64 = 3_000_000_000;
        const ASK_AGAIN_NS: u64 = 20_000_000;
        let Some((_, m)) = self.map_of(addr) else {
            return;
        };
        let now = hugeswap_sys::now_ns;
        let inside = |unit| {
            let w = self.load(unit);
            w.kind() == Kind::Resident && !self.pool.is_left(unit)
        };
        let push = |unit| {
            let _blocked = Blocked::all();
            let _inside = self.gate.enter();
            self.requests.push(unit)
        };
        let mut since = now();
        for unit in m.units_in(addr, len, true) {
            let mut ask = now();
            while inside(unit) && now() < since + PATIENCE_NS {
                if now() >= ask && push(unit).is_ok() {
                    self.pool.kick();
                    ask = now() + ASK_AGAIN_NS;
                }
                process::yield_now();
            }
            // Memory is dropped just after the word has changed.
            let w = self.load(unit);
            if w.is_locked() {
                self.wait(unit, w);
            }
            if !inside(unit) {
                since = now();
            }
        }
    }
}

/// Write-protects what there is of a unit in a process: it may have unmapped some of it, or all.
fn freeze(fd: i32, at: usize, span: usize) -> Result<()> {
    match uffd::write_protect(fd, at, span, true) {
        Err(Errno::ENOENT) => {}
        done => return done,
    }
    for page in (at..at + span).step_by(PAGE_BYTES as usize) {
        match uffd::write_protect(fd, page, PAGE_BYTES as usize, true) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Is this descriptor the region's memory file?
pub(super) fn is_memory(m: &Map, fd: i32) -> bool {
    fs::identity(fd).is_ok_and(|i| m.identity.is(&i))
}

/// Is it what write-protects? Other things might do anything when they are told to.
pub(super) fn is_userfaultfd(fd: i32) -> bool {
    link_of(fd).is_some_and(|l| l.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Is it what kswapd got for shared regions, still?
fn is_of_regions(fd: i32) -> bool {
    let memory = |l: &Path| l.to_string_lossy().starts_with("/memfd:hugeswap-shared");
    is_userfaultfd(fd) || link_of(fd).is_some_and(|l| memory(&l))
}

fn link_of(fd: i32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/thread-self/fd/{fd}")).ok()
}

impl Maintenance {
    /// A process that has the region cannot be reached (or can), and that for so long that it is
    /// not just about to end or to run another program. (It may have changed its user, say.)
    fn is_hopeless(&mut self, region: usize, failed: bool) -> bool {
        let since = &mut self.unreachable_since[region];
        let now = hugeswap_sys::now_ns();
        *since = match *since {
            _ if !failed => 0,
            0 => now,
            then => then,
        };
        failed && now - *since > HOPELESS_NS
    }

    /// A descriptor of this thread's table for what process `pid` has as `number`, if that fits.
    pub(super) fn reach(
        &mut self,
        region: usize,
        serial: u32,
        client: u64,
        pid: i32,
        number: i32,
        fits: impl Fn(i32) -> bool,
    ) -> Result<i32> {
        // Swap areas that are added get their numbers in kswapd's table whatever these stand for
        // there.
        const OUT_OF_THE_WAY: i32 = 512;
        let same = |r: &&PeerDescriptor| {
            (r.region, r.serial, r.client, r.number) == (region, serial, client, number)
        };
        if let Some(i) = self.peers.iter().position(|r| same(&r)) {
            if fits(self.peers[i].fd) {
                return Ok(self.peers[i].fd);
            }
            self.peers.swap_remove(i);
        }
        let low = process::descriptor_of(pid, number)?;
        let high = fs::dup_above(low, OUT_OF_THE_WAY);
        let fd = high.unwrap_or(low);
        if fd != low {
            fs::close(low);
        }
        if !fits(fd) {
            fs::close(fd);
            return Err(Errno::EBADF);
        }
        self.peers.push(PeerDescriptor {
            region,
            serial,
            client,
            number,
            fd,
        });
        Ok(fd)
    }
}

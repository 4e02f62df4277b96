//! How much room is left in swap: areas that cannot grow for want of space on their disk, and the
//! warning before all are full.
//!
//! An area whose file system has no space left gives what it has. Its clusters without blocks are
//! passed over for a while and then tried again, because space may have been freed. Meanwhile the
//! area counts as no larger than it is. The free space of a file system is read once a second, and
//! whenever an area grows there. It counts once, however many areas are on that file system
//! ([`disk`]).

use super::Pool;
use super::layout::Area;
use super::swap::Kind;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::thp_swap::{area, room as disk};
use hugeswap_sys::{fiemap, fs, now_ns};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// How long an area that found no room does not try to grow. Shorter than threads wait that find no
/// memory.
const RETRY_NS: u64 = 500_000_000;
/// No more often is it looked how full swap is.
const LOOK_NS: u64 = 1_000_000_000;
/// Swap is nearly full when so many percent of it are in use.
pub const SOFT_FULL_PERCENT: u64 = 90;

impl Pool {
    /// May number `area` be tried to grow?
    pub(crate) fn may_grow(&self, area: usize) -> bool {
        let since = self.header().areas[area].no_room.load(Relaxed);
        since == 0 || now_ns().saturating_sub(since) > RETRY_NS
    }

    /// Number `area` has grown, or could not.
    pub(crate) fn note_room(&self, area: usize, there_was: bool) {
        let now = if there_was { 0 } else { now_ns().max(1) };
        let cell = &self.header().areas[area].no_room;
        if now != 0 || cell.load(Relaxed) != 0 {
            cell.store(now, Relaxed);
        }
    }

    /// Asks what is free on the file system of number `index`, which is behind `fd`.
    pub(super) fn look_at_disk(&self, index: usize, fd: i32) {
        let Some(a) = self.segment_area(index) else {
            return;
        };
        // A device is as large as it is, and so is a file that existed before, where it is not
        // told what of it has blocks.
        let kind = a.kind.load(Relaxed);
        let told = || {
            fiemap::extents_in(fd, 0, 1)
                .next()
                .is_none_or(|e| e.is_ok())
        };
        let grows = kind == Kind::Nameless as u32 || kind == Kind::Named as u32 && told();
        let on = fs::identity(fd).and_then(|who| Ok((who.dev, fs::file_system(fd)?.free_bytes)));
        let alone = (u64::MAX - index as u64, u64::MAX);
        let (disk, free) = on.ok().filter(|_| grows).unwrap_or(alone);
        a.disk.store(disk, Relaxed);
        let same = self.header().areas.iter();
        let same = same.filter(|b| b.disk.load(Relaxed) == disk);
        same.for_each(|b| b.disk_free.store(free, Relaxed));
    }

    fn on_disk(&self, a: &Area, grows: bool) -> disk::OnDisk {
        let all = a.clusters.load(Relaxed).saturating_mul(UNIT_BYTES);
        let has = a.allocated.load(Relaxed).min(all);
        disk::OnDisk {
            disk: a.disk.load(Relaxed),
            free: a.disk_free.load(Relaxed),
            has,
            more: if grows { all - has } else { 0 },
        }
    }

    /// Bytes that can be swapped, as far as is known: areas without room to grow are as large as
    /// they are.
    pub fn swap_room(&self) -> u64 {
        let on = self.segment_areas(area::ON);
        disk::room(on.map(|a| self.on_disk(a, a.no_room.load(Relaxed) == 0)))
    }

    /// The same, with what cannot be had just now, for it may be tried again.
    pub(super) fn swap_promised(&self) -> u64 {
        disk::room(self.segment_areas(area::ON).map(|a| self.on_disk(a, true)))
    }

    /// What areas other than number `index` have free, bytes.
    pub(super) fn free_but_in(&self, index: usize) -> u64 {
        let areas = self.area_usage();
        let others = areas.iter().filter(|u| u.index != index && !u.draining);
        disk::room(others.map(|u| {
            let a = self.on_disk(&self.header().areas[u.index], self.may_grow(u.index));
            let free = u.usage.free * UNIT_BYTES;
            // What has no blocks yet is free.
            let bare = (u.usage.clusters * UNIT_BYTES).saturating_sub(a.has);
            disk::OnDisk {
                has: free.saturating_sub(bare),
                more: a.more.min(free),
                ..a
            }
        }))
    }

    /// Looks, now and then, what is free on the disks, and whether swap is nearly full. True for
    /// the one that finds that first in the life of the pool. For kswapd.
    pub(crate) fn look_at_room(&self) -> bool {
        let h = self.header();
        let (seen, now) = (h.room_seen.load(Relaxed), now_ns());
        let mine = now.saturating_sub(seen) > LOOK_NS
            && h.room_seen
                .compare_exchange(seen, now, Relaxed, Relaxed)
                .is_ok();
        if !mine {
            return false;
        }
        for (i, a) in self.areas() {
            // (Where the engine has no table of its own, the number may stand for something else.)
            if fs::identity(a.fd) == Ok(a.identity) {
                self.look_at_disk(i, a.fd);
            }
        }
        h.soft_full.load(Relaxed) == 0 && self.is_nearly_full() && h.soft_full.swap(1, Relaxed) == 0
    }

    fn is_nearly_full(&self) -> bool {
        let (used, room) = (self.swap_usage().used_bytes(), self.swap_room());
        used > 0 && used.saturating_mul(100) >= room.saturating_mul(SOFT_FULL_PERCENT)
    }

    /// Was swap nearly full at any time?
    pub fn was_nearly_full(&self) -> bool {
        self.header().soft_full.load(Acquire) != 0
    }
}

#[cfg(test)]
mod tests {
    use crate::pool::{Pool, PoolConfig, SwapSpec};
    use hugeswap_sys::fs;
    use std::os::fd::AsRawFd;

    #[test]
    fn two_areas_in_one_directory_share_what_is_free_there() {
        let there = std::fs::File::open("/var/tmp").unwrap();
        let free = fs::file_system(there.as_raw_fd()).unwrap().free_bytes;
        let pool = |areas: usize| {
            let spec = SwapSpec::new("/var/tmp");
            let config = PoolConfig {
                memory: 32 << 20,
                swap: vec![spec; areas],
                fault_mode: Default::default(),
                settings: vec![],
            };
            Pool::create(&config).unwrap()
        };
        let (one, two) = (pool(1), pool(2));
        // Others may fill it, or free some, meanwhile.
        for room in [one.swap_room(), two.swap_room(), two.swap_promised()] {
            assert!(room > free / 2 && room < free / 2 * 3, "{room} of {free}");
        }
        assert!(two.capacity_bytes() < free / 2 * 3);
        assert!(two.area_usage()[1].usage.clusters > free / 2 / 2097152);
        // Off one of them: all that is free is there for the other.
        let elsewhere = two.room_for(0).unwrap().elsewhere;
        assert!(elsewhere > free / 2 && elsewhere < free / 2 * 3);
    }
}

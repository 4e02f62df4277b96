//! How the slots of an area lie on its device, as the file system tells (FIEMAP), noted in the segment for every process.
//!
//! It also tells which of them were never written ([`Lies::is_raw`]). What a file system does not tell is taken to be in one piece. What it tells is believed as long as the area is on: a swap
//! file is not moved behind the kernel's back often, and all that would be lost is speed.

use super::Pool;
use super::swap::Kind;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::extents::each_cluster;
use hugeswap_policy::extents::layout::{self as lies, Lie, Lies};
use hugeswap_sys::fiemap::{self, FileExtent, FileExtents};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// How all slots lie.
    pub fn lies(&self) -> Lies<'_> {
        let words = lies::words(self.capacity as usize);
        // SAFETY: the segment is mapped for the life of `self` and holds atomics only; `offsets` leaves room for
        // `MAPS` times so many words.
        let maps = unsafe {
            let first = (self.base + self.offsets.lies) as *const AtomicU64;
            std::slice::from_raw_parts(first, lies::MAPS * words)
        };
        let (together, rest) = maps.split_at(words);
        let (apart, raw) = rest.split_at(words);
        Lies::new(together, apart, raw)
    }

    /// Notes how the slots of a new area lie, which may have been another's before: `fd` is what number `area` of the header is. A file
    /// without a name lies nowhere yet; of one with a name, what has no place yet is seen to when it is first written.
    pub(super) fn survey(&self, area: usize, fd: i32, kind: Kind, slots: Range<u64>) {
        let at_first = if kind == Kind::Device {
            Lie::Together
        } else {
            Lie::Nowhere
        };
        for slot in slots.clone() {
            self.lies().note(slot as usize, at_first);
            self.lies().note_raw(slot as usize, false);
        }
        let known = match kind {
            Kind::Nameless => 0,
            Kind::Device => slots.end - slots.start,
            Kind::Named => {
                self.note_extents(fiemap::extents(fd), &slots, slots.start)
                    .1
            }
        };
        let allocated = &self.header().areas[area].allocated;
        allocated.store(known * UNIT_BYTES, Relaxed);
        self.note_room(area, true);
        self.look_at_disk(area, fd);
    }

    /// Notes how `slots` of number `area` lie, which have just been given their blocks; `first` is the first slot of the area.
    pub(crate) fn note_grown(&self, area: usize, fd: i32, slots: Range<u64>, first: u64) {
        let at = |slot: u64| (slot - first) * UNIT_BYTES;
        let extents = fiemap::extents_in(fd, at(slots.start), at(slots.end));
        let (told, mut new) = self.note_extents(extents, &slots, first);
        // What has no place that it can tell has several.
        let rest = if told { Lie::Apart } else { Lie::Together };
        let lies = self.lies();
        for slot in slots {
            if lies.of(slot as usize) == Lie::Nowhere {
                new += u64::from(lies.note(slot as usize, rest));
            }
        }
        let allocated = &self.header().areas[area].allocated;
        allocated.fetch_add(new * UNIT_BYTES, Relaxed);
        self.look_at_disk(area, fd);
    }

    /// Notes how those of `slots` lie that lie somewhere as a whole, and which are raw. Does the file system tell, and how many lay nowhere before?
    fn note_extents(&self, extents: FileExtents, slots: &Range<u64>, first: u64) -> (bool, u64) {
        let lies = self.lies();
        let (mut told, mut new) = (true, 0);
        let known = extents.map_while(|e| e.inspect_err(|_| told = false).ok());
        let known = known.inspect(|e| {
            // (That of somebody who has just written there is overtaken: the bit is a hint.)
            if e.unwritten() {
                let end = e.logical.saturating_add(e.length).div_ceil(UNIT_BYTES);
                let raw = first + e.logical / UNIT_BYTES..first.saturating_add(end);
                let raw = raw.start.max(slots.start)..raw.end.min(slots.end);
                raw.for_each(|slot| lies.note_raw(slot as usize, true));
            }
        });
        let placed = known.filter(FileExtent::placed);
        each_cluster(
            placed.map(|e| (e.logical, e.physical, e.length)),
            UNIT_BYTES,
            |n, together| {
                let lie = if together { Lie::Together } else { Lie::Apart };
                if let Some(slot) = n.checked_add(first).filter(|s| slots.contains(s)) {
                    new += u64::from(lies.note(slot as usize, lie));
                }
            },
        );
        (told, new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{PoolConfig, SwapSpec};
    use hugeswap_policy::extents::{Clusters, Extent, Extents, Place};
    use hugeswap_sys::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    const PAGE: u64 = 4096;

    /// What the file system says now, by another way.
    fn expected(fd: i32, slots: u64) -> Option<Vec<Lie>> {
        let extents: Result<Vec<_>, _> = fiemap::extents(fd).collect();
        let extents = extents.ok()?.into_iter().map(|e| Extent {
            first: (e.logical / PAGE) as u32,
            pages: (e.length / PAGE) as u32,
            place: Place {
                backing: 0,
                page: e.physical / PAGE,
            },
        });
        let clusters = Clusters::new(&Extents::new(extents).unwrap(), 512);
        let mut lies = vec![Lie::Nowhere; slots as usize];
        for &(first, pieces) in clusters.ranked() {
            lies[first as usize / 512] = if pieces == 1 {
                Lie::Together
            } else {
                Lie::Apart
            };
        }
        Some(lies)
    }

    #[test]
    fn a_file_in_pieces_is_known_when_it_is_turned_on_and_as_it_grows() {
        let dir = format!("/var/tmp/hugeswap-lies-{}", std::process::id());
        std::fs::create_dir(&dir).unwrap();
        let make = |name: &str| std::fs::File::create_new(format!("{dir}/{name}")).unwrap();
        let (file, other) = (make("swap"), make("other"));
        file.set_permissions(PermissionsExt::from_mode(0o600))
            .unwrap();
        // 4 MiB in turn with another file, a hole of 2, and 6 by one call.
        let room = |f: &std::fs::File, at: u64, len: u64| fs::allocate(f.as_raw_fd(), at, len);
        let mut made = Ok(());
        for n in 0..64u64 {
            made = made
                .and(room(&file, n << 16, 1 << 16))
                .and(room(&other, n << 16, 1 << 16));
        }
        made = made.and(room(&file, 6 << 20, 6 << 20));
        file.set_len(13 << 20).unwrap();
        let pool = Pool::create(&PoolConfig {
            memory: 32 << 20,
            swap: vec![SwapSpec::new(format!("{dir}/swap"))],
            fault_mode: Default::default(),
            settings: vec![],
        });
        let before = expected(file.as_raw_fd(), 6);
        std::fs::remove_dir_all(&dir).unwrap();
        let (Ok(()), Some(before)) = (made, before) else {
            return println!("skipped: this file system has no fallocate, or no FIEMAP");
        };
        let pool = pool.unwrap();
        let lies = || (0..6).map(|i| pool.lies().of(i)).collect::<Vec<_>>();
        // Measuring it wrote to the first slot, which moves nothing.
        assert_eq!(lies(), before);
        assert_eq!(before[2], Lie::Nowhere);
        let allocated = || pool.header().areas[0].allocated.load(Relaxed);
        assert_eq!(allocated(), 10 << 20);
        // All of the step is allocated, as growing does.
        room(&file, 0, 12 << 20).unwrap();
        pool.note_grown(0, file.as_raw_fd(), 0..6, 0);
        assert_eq!(Some(lies()), expected(file.as_raw_fd(), 6));
        assert_eq!(allocated(), 12 << 20);
        pool.note_grown(0, file.as_raw_fd(), 0..6, 0);
        assert_eq!(allocated(), 12 << 20);
    }
}

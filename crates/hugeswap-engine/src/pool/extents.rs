//! How the clusters of a swap area lie on its device, as the file system reports it (FIEMAP), noted
//! in the segment for every process.
//!
//! The file system is asked when an area is turned on, and about each part that the area grows by.
//! The clusters of a file whose file system does not answer are taken to be in one piece. The
//! answer is believed as long as the area is on: a swap file is seldom moved, and a bit that is out
//! of date costs speed only. The file system also reports which clusters were never written
//! ([`Layouts::is_unwritten`]).

use super::Pool;
use super::swap::Kind;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::extents::for_each_cluster;
use hugeswap_policy::extents::layout::{self, Layout, Layouts};
use hugeswap_sys::fiemap::{self, FileExtent, FileExtents};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

impl Pool {
    /// How the clusters of all areas lie.
    pub fn layouts(&self) -> Layouts<'_> {
        let words = layout::words(self.capacity as usize);
        // SAFETY: the segment is mapped for the life of `self` and holds atomics only; `offsets`
        // leaves room for `MAPS` times so many words.
        let maps = unsafe {
            let first = (self.base + self.offsets.layouts) as *const AtomicU64;
            std::slice::from_raw_parts(first, layout::MAPS * words)
        };
        let (contiguous, rest) = maps.split_at(words);
        let (fragmented, unwritten) = rest.split_at(words);
        Layouts::new(contiguous, fragmented, unwritten)
    }

    /// Notes how the clusters of a new area lie, whose numbers may have been another's before. `fd`
    /// is the file or device of area `area` of the header. A file without a name has no blocks yet;
    /// the parts of a named file without blocks get them when they are first written.
    pub(super) fn survey(&self, area: usize, fd: i32, kind: Kind, clusters: Range<u64>) {
        let at_first = if matches!(kind, Kind::Device | Kind::Memory) {
            Layout::Contiguous
        } else {
            Layout::Unallocated
        };
        for cluster in clusters.clone() {
            self.layouts().note(cluster as usize, at_first);
            self.layouts().note_unwritten(cluster as usize, false);
        }
        let known = match kind {
            Kind::Nameless => 0,
            Kind::Device | Kind::Memory => clusters.end - clusters.start,
            Kind::Named => {
                self.note_extents(fiemap::extents(fd), &clusters, clusters.start)
                    .1
            }
        };
        let allocated = &self.header().areas[area].allocated;
        allocated.store(known * UNIT_BYTES, Relaxed);
        self.note_room(area, true);
        self.look_at_disk(area, fd);
    }

    /// Notes how `clusters` of area `area` lie, which have just been given their blocks; `first` is
    /// the first cluster of the area.
    pub(crate) fn note_grown(&self, area: usize, fd: i32, clusters: Range<u64>, first: u64) {
        let at = |cluster: u64| (cluster - first) * UNIT_BYTES;
        let extents = fiemap::extents_in(fd, at(clusters.start), at(clusters.end));
        let (told, mut new) = self.note_extents(extents, &clusters, first);
        // A cluster whose place the file system cannot tell is taken to be in several pieces.
        let rest = if told {
            Layout::Fragmented
        } else {
            Layout::Contiguous
        };
        let layouts = self.layouts();
        for cluster in clusters {
            if layouts.of(cluster as usize) == Layout::Unallocated {
                new += u64::from(layouts.note(cluster as usize, rest));
            }
        }
        let allocated = &self.header().areas[area].allocated;
        allocated.fetch_add(new * UNIT_BYTES, Relaxed);
        self.look_at_disk(area, fd);
    }

    /// Notes how those of `clusters` lie that have all their blocks, and which were never written.
    /// Returns whether the file system told, and how many had no blocks before.
    fn note_extents(&self, extents: FileExtents, clusters: &Range<u64>, first: u64) -> (bool, u64) {
        let layouts = self.layouts();
        let (mut told, mut new) = (true, 0);
        let known = extents.map_while(|e| e.inspect_err(|_| told = false).ok());
        let known = known.inspect(|e| {
            // A write that ends just now is overtaken by this; the bit is a hint.
            if e.unwritten() {
                let end = e.logical.saturating_add(e.length).div_ceil(UNIT_BYTES);
                let start = (first + e.logical / UNIT_BYTES).max(clusters.start);
                let unwritten = start..first.saturating_add(end).min(clusters.end);
                unwritten.for_each(|cluster| layouts.note_unwritten(cluster as usize, true));
            }
        });
        let placed = known.filter(FileExtent::placed);
        for_each_cluster(
            placed.map(|e| (e.logical, e.physical, e.length)),
            UNIT_BYTES,
            |n, pieces| {
                let layout = Layout::in_pieces(pieces);
                if let Some(cluster) = n.checked_add(first).filter(|s| clusters.contains(s)) {
                    new += u64::from(layouts.note(cluster as usize, layout));
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
    use hugeswap_policy::extents::{Extent, Extents, Place};
    use hugeswap_sys::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    const PAGE: u64 = 4096;

    /// What the file system says now, by another way.
    fn expected(fd: i32, clusters: u64) -> Option<Vec<Layout>> {
        let extents: Result<Vec<_>, _> = fiemap::extents(fd).collect();
        let extents = extents.ok()?.into_iter().map(|e| Extent {
            first: (e.logical / PAGE) as u32,
            pages: (e.length / PAGE) as u32,
            place: Place {
                backing: 0,
                page: e.physical / PAGE,
            },
        });
        let map = Extents::new(extents).unwrap();
        let of_cluster = |cluster: u32| {
            let runs: Vec<_> = map.runs(cluster * 512, 512).collect();
            match runs.iter().all(|r| r.place.is_some()) {
                true => Layout::in_pieces(runs.len() as u32),
                false => Layout::Unallocated,
            }
        };
        Some((0..clusters as u32).map(of_cluster).collect())
    }

    #[test]
    fn a_file_in_pieces_is_known_when_it_is_turned_on_and_as_it_grows() {
        let dir = format!("/var/tmp/hugeswap-extents-{}", std::process::id());
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
        let layouts = || (0..6).map(|i| pool.layouts().of(i)).collect::<Vec<_>>();
        // Measuring it wrote to the first cluster, which moves nothing.
        assert_eq!(layouts(), before);
        assert_eq!(before[2], Layout::Unallocated);
        let allocated = || pool.header().areas[0].allocated.load(Relaxed);
        assert_eq!(allocated(), 10 << 20);
        // All of the step is allocated, as growing does.
        room(&file, 0, 12 << 20).unwrap();
        pool.note_grown(0, file.as_raw_fd(), 0..6, 0);
        assert_eq!(Some(layouts()), expected(file.as_raw_fd(), 6));
        assert_eq!(allocated(), 12 << 20);
        pool.note_grown(0, file.as_raw_fd(), 0..6, 0);
        assert_eq!(allocated(), 12 << 20);
    }
}

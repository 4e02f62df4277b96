//! The extents of a file on its device, and what they mean for clusters of 2 MiB.

use crate::doctor::facts;
use anyhow::{Context, Result, bail};
use hugeswap_policy::extents::{Extent, Extents, Place, for_each_cluster};
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use hugeswap_sys::fiemap::{self, FileExtent};
use hugeswap_sys::{Errno, fs};
use rustix::fs::{FileType, Mode, OFlags};
use serde::Serialize;
use std::os::fd::AsRawFd;
use std::path::Path;

/// The smallest unit of offsets on a device.
const SECTOR: u64 = 512;

/// The findings, as they stand in the JSON.
#[derive(Debug, Serialize)]
pub struct Findings {
    pub file: String,
    pub bytes: u64,
    pub file_system: String,
    /// Extents as the file system lists them.
    pub extents: usize,
    /// Extents merged where they continue each other on the device; those without a place there do not
    /// count.
    pub pieces: usize,
    /// Pieces by size, every power of two from the smallest to the largest.
    pub histogram: Vec<Bar>,
    pub clusters: ClusterFindings,
    pub hole_bytes: u64,
    /// Allocated, never written.
    pub unwritten_bytes: u64,
    /// Shared with other files.
    pub shared_bytes: u64,
    /// Bytes without a place of their own on the device: compressed, packed, encrypted, or not yet placed.
    pub unplaced_bytes: u64,
    /// The largest request of the device, if it is known.
    pub device_request_bytes: Option<u64>,
    /// Memory of hugeswap's map of these extents.
    pub map_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extent_list: Option<Vec<Listed>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_list: Option<Vec<ListedCluster>>,
}

/// Pieces of a range of sizes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bar {
    pub from_bytes: u64,
    pub below_bytes: u64,
    pub pieces: u64,
    pub bytes: u64,
}

/// The clusters, each of which is an aligned 2 MiB of the file.
#[derive(Debug, Default, Serialize)]
pub struct ClusterFindings {
    pub total: usize,
    /// In one piece on the device.
    pub whole: usize,
    /// In several.
    pub split: usize,
    /// With holes, or with parts that have no place.
    pub incomplete: usize,
    /// Of those that are complete.
    pub pieces_mean: f64,
    pub pieces_max: u32,
    /// Requests to the device for one of them.
    pub requests_mean: f64,
}

/// One extent, as the file system lists it; bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    pub offset: u64,
    pub bytes: u64,
    pub device_offset: Option<u64>,
    pub unwritten: bool,
    pub shared: bool,
}

/// One cluster.
#[derive(Clone, Debug, Serialize)]
pub struct ListedCluster {
    pub offset: u64,
    pub pieces: u32,
}

impl Findings {
    /// Removes the lists that were not asked for.
    pub fn with_lists(mut self, extents: bool, clusters: bool) -> Findings {
        self.extent_list = self.extent_list.filter(|_| extents);
        self.cluster_list = self.cluster_list.filter(|_| clusters);
        self
    }
}

/// Inspects a file. Errors are one line that says what to do.
pub fn inspect(path: &Path) -> Result<Findings> {
    let shown = path.display();
    let file = open(path)?;
    let status =
        rustix::fs::fstat(&file).with_context(|| format!("{shown} cannot be looked at"))?;
    let bytes = status.st_size as u64;
    if bytes == 0 {
        bail!("{shown} is empty: there is nothing to inspect");
    }
    let magic = fs::file_system(file.as_raw_fd()).map(|s| s.magic);
    let file_system = magic.map_or("unknown".into(), facts::file_system_name);
    let extents: hugeswap_sys::Result<Vec<FileExtent>> =
        fiemap::extents(file.as_raw_fd()).collect();
    let extents = match extents {
        Ok(e) => e,
        Err(Errno::EOPNOTSUPP | Errno::ENOTTY) => bail!(
            "{shown} is on {file_system}, which does not report where files lie (FIEMAP): ext4, xfs and btrfs do"
        ),
        Err(e) => bail!("{shown}: its extents cannot be had: {e}"),
    };
    let extents = clipped(extents, bytes.next_multiple_of(PAGE_BYTES));
    if extents.is_empty() {
        bail!(
            "{shown} is one hole of {}: it has no space on the device yet; write it, or allocate it with fallocate",
            crate::text::bytes(bytes)
        );
    }
    let mut found = describe(bytes, &extents, device_limit(status.st_dev))
        .with_context(|| format!("{shown} cannot be inspected"))?;
    found.file = shown.to_string();
    found.file_system = file_system;
    Ok(found)
}

/// Opens a regular file and nothing else, since to open a device or a pipe may have effects.
fn open(path: &Path) -> Result<std::os::fd::OwnedFd> {
    let shown = path.display();
    let wrong = |what: &str| format!("{shown} is {what}: name a swap file");
    let kind = |mode| match FileType::from_raw_mode(mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        FileType::BlockDevice => Some("a device, which is in one piece and has nothing to inspect"),
        _ => Some("not a regular file"),
    };
    let cannot = |e: rustix::io::Errno| match e {
        rustix::io::Errno::NOENT => anyhow::anyhow!("{shown} does not exist"),
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => {
            anyhow::anyhow!("{shown} may not be read by this user: ask its owner, or root")
        }
        e => anyhow::anyhow!("{shown} cannot be opened: {e}"),
    };
    if let Some(what) = kind(rustix::fs::stat(path).map_err(cannot)?.st_mode) {
        bail!(wrong(what));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(cannot)?;
    // The path may lead to another file by now.
    match kind(rustix::fs::fstat(&file).map_err(cannot)?.st_mode) {
        Some(what) => bail!(wrong(what)),
        None => Ok(file),
    }
}

/// The part of the extents that is within the file.
fn clipped(extents: Vec<FileExtent>, end: u64) -> Vec<FileExtent> {
    let mut within: Vec<_> = extents.into_iter().filter(|e| e.logical < end).collect();
    for e in &mut within {
        e.length = e.length.min(end - e.logical);
    }
    within
}

/// The largest request of the device with this number, if it has a queue.
fn device_limit(device: u64) -> Option<u64> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let entry = format!("/sys/dev/block/{major}:{minor}");
    // A partition's queue is that of the disk it is on.
    [format!("{entry}/queue"), format!("{entry}/../queue")]
        .iter()
        .find_map(|queue| facts::number(format!("{queue}/max_sectors_kb")))
        .map(|kib| kib << 10)
        .filter(|&b| b > 0)
}

/// The findings that follow from the extents.
fn describe(bytes: u64, extents: &[FileExtent], device_limit: Option<u64>) -> Result<Findings> {
    let end = bytes.next_multiple_of(PAGE_BYTES);
    let sum = |of: &dyn Fn(&FileExtent) -> bool| {
        let lengths = extents.iter().filter(|e| of(e)).map(|e| e.length);
        lengths.fold(0, u64::saturating_add)
    };
    let placed =
        |e: &FileExtent| e.placed() && (e.logical | e.physical | e.length).is_multiple_of(SECTOR);
    // Blocks may be smaller than pages: the unit is the largest power of two that divides everything.
    let together = extents.iter().filter(|e| placed(e));
    let together = together.fold(PAGE_BYTES, |all, e| all | e.logical | e.physical | e.length);
    let block = 1u64 << together.trailing_zeros();
    if u32::try_from(end / block).is_err() {
        bail!(
            "it is larger than a swap area can be ({} blocks of {block})",
            u32::MAX
        );
    }
    let map = Extents::new(extents.iter().filter(|e| placed(e)).map(|e| Extent {
        first: (e.logical / block) as u32,
        pages: (e.length / block) as u32,
        place: Place {
            backing: 0,
            page: e.physical / block,
        },
    }))
    .map_err(|e| {
        anyhow::anyhow!(
            "its extents make no sense, perhaps because it is being changed ({e}): try again"
        )
    })?;
    let mut ranked = Vec::new();
    let placed_extents = extents.iter().filter(|e| placed(e));
    for_each_cluster(
        placed_extents.map(|e| (e.logical, e.physical, e.length)),
        UNIT_BYTES,
        |cluster, pieces| ranked.push((cluster, pieces)),
    );
    ranked.sort_by_key(|&(_, pieces)| pieces);
    let whole = ranked.partition_point(|&(_, pieces)| pieces == 1);
    let total = (end / UNIT_BYTES) as usize;
    let limit = device_limit.map_or(u64::MAX, |l| l.max(block));
    let cluster_blocks = (UNIT_BYTES / block) as u32;
    let requests = |cluster: u64| -> u64 {
        let runs = map.runs(cluster as u32 * cluster_blocks, cluster_blocks);
        runs.map(|r| (u64::from(r.pages) * block).div_ceil(limit))
            .sum()
    };
    let of_one = |sum: u64| sum as f64 / ranked.len().max(1) as f64;
    let clusters = ClusterFindings {
        total,
        whole,
        split: ranked.len() - whole,
        incomplete: total - ranked.len(),
        pieces_mean: of_one(ranked.iter().map(|&(_, n)| u64::from(n)).sum()),
        pieces_max: ranked.last().map_or(0, |&(_, n)| n),
        requests_mean: of_one(ranked.iter().map(|&(cluster, _)| requests(cluster)).sum()),
    };
    let listed = |e: &FileExtent| Listed {
        offset: e.logical,
        bytes: e.length,
        device_offset: placed(e).then_some(e.physical),
        unwritten: e.unwritten(),
        shared: e.shared(),
    };
    let listed_cluster = |&(cluster, pieces): &(u64, u32)| ListedCluster {
        offset: cluster * UNIT_BYTES,
        pieces,
    };
    Ok(Findings {
        file: String::new(),
        bytes,
        file_system: String::new(),
        extents: extents.len(),
        pieces: map.len(),
        histogram: histogram(map.iter().map(|e| u64::from(e.pages) * block)),
        clusters,
        hole_bytes: end.saturating_sub(sum(&|_| true)),
        unwritten_bytes: sum(&FileExtent::unwritten),
        shared_bytes: sum(&FileExtent::shared),
        unplaced_bytes: sum(&|e| !placed(e)),
        device_request_bytes: device_limit,
        map_bytes: map.bytes(),
        extent_list: Some(extents.iter().map(listed).collect()),
        cluster_list: Some(ranked.iter().map(listed_cluster).collect()),
    })
}

/// Sizes by power of two, without gaps between the smallest and the largest.
fn histogram(sizes: impl Iterator<Item = u64>) -> Vec<Bar> {
    let mut bars: Vec<Bar> = (0..63)
        .map(|n| Bar {
            from_bytes: 1 << n,
            below_bytes: 2 << n,
            pieces: 0,
            bytes: 0,
        })
        .collect();
    for size in sizes {
        let bar = &mut bars[size.max(1).ilog2().min(62) as usize];
        bar.pieces += 1;
        bar.bytes += size;
    }
    let used = |b: &Bar| b.pieces > 0;
    let from = bars.iter().position(used).unwrap_or(0);
    let to = bars.iter().rposition(used).map_or(0, |n| n + 1);
    bars[from..to].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn extent(logical: u64, physical: u64, length: u64) -> FileExtent {
        let mut e = FileExtent::default();
        (e.logical, e.physical, e.length) = (logical, physical, length);
        e
    }

    #[test]
    fn pieces_and_clusters_follow_from_extents() {
        // 4 MiB in two extents that continue each other, 2 MiB in two pieces, a hole of 2 MiB, 1.5 MiB.
        let extents = [
            extent(0, 100 * MIB, 3 * MIB),
            extent(3 * MIB, 103 * MIB, MIB),
            extent(4 * MIB, 10 * MIB, MIB),
            extent(5 * MIB, 20 * MIB, MIB),
            extent(8 * MIB, 30 * MIB, 3 * MIB / 2),
        ];
        let f = describe(19 * MIB / 2, &extents, None).unwrap();
        assert_eq!((f.extents, f.pieces, f.hole_bytes), (5, 4, 2 * MIB));
        let c = &f.clusters;
        assert_eq!((c.total, c.whole, c.split, c.incomplete), (4, 2, 1, 1));
        assert_eq!((c.pieces_mean, c.pieces_max), (4.0 / 3.0, 2));
        assert_eq!(c.requests_mean, 4.0 / 3.0);
        let bars: Vec<_> = f
            .histogram
            .iter()
            .map(|b| (b.from_bytes / MIB, b.pieces))
            .collect();
        assert_eq!(bars, [(1, 3), (2, 0), (4, 1)]);
        let order: Vec<_> = f
            .cluster_list
            .unwrap()
            .iter()
            .map(|c| c.offset / MIB)
            .collect();
        assert_eq!(order, [0, 2, 4]);
        // A device whose largest request is less than a cluster: a piece of 2 MiB is two requests.
        let f = describe(19 * MIB / 2, &extents, Some(5 * MIB / 4)).unwrap();
        assert_eq!(f.clusters.requests_mean, 2.0);
    }

    #[test]
    fn blocks_of_1_kib_and_odd_ends_are_no_trouble() {
        // One cluster, whole, at a place that is no multiple of a page; then 100 bytes in a block of 1 KiB.
        let extents = [
            extent(0, 7 * MIB + 1024, 2 * MIB),
            extent(2 * MIB, 90 * MIB + 3072, 1024),
        ];
        let f = describe(2 * MIB + 100, &extents, None).unwrap();
        assert_eq!((f.clusters.whole, f.pieces, f.hole_bytes), (1, 2, 3072));
        // An extent that is not in whole sectors has no place.
        let f = describe(300, &[extent(0, 5, 300)], None).unwrap();
        assert_eq!((f.pieces, f.unplaced_bytes, f.clusters.total), (0, 300, 0));
    }

    #[test]
    fn nonsense_and_giants_are_refused() {
        let twice = [extent(0, MIB, MIB), extent(0, 3 * MIB, MIB)];
        assert!(describe(2 * MIB, &twice, None).is_err());
        let far = [extent(1 << 60, MIB, MIB)];
        assert!(describe((1 << 60) + MIB, &far, None).is_err());
        assert!(describe(MIB, &[extent(0, 1 << 60, MIB)], None).is_err());
        assert_eq!(
            clipped(vec![extent(0, 0, MIB), extent(MIB, 0, MIB)], MIB).len(),
            1
        );
    }
}

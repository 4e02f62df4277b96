//! What a device, or an image of one, holds already: recognised by a few bytes at known places.
//!
//! This keeps hugeswap from overwriting data by mistake. The places and bytes are those of the
//! formats' own headers; libblkid looks for the same.

use super::span::{read, size_of_head};
use hugeswap_sys::Result;

/// Where a signature begins.
enum At {
    /// This many bytes from the start.
    Start(usize),
    /// This many bytes before the end.
    End(u64),
    /// This many bytes before the end, after the end was rounded down to a multiple of that.
    RoundedEnd(u64),
    /// Anywhere in the head at a multiple of `step` from `from` to `to`.
    Every { from: usize, to: usize, step: usize },
}

const MD: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
const SWAP: &str = "kernel swap";
/// The end of the page that a swap area's header is in.
const SWAP_AT: usize = 4096 - 10;

/// In the order in which they are looked for: what says more precisely what there is comes first.
const KNOWN: &[(&str, At, &[u8])] = &[
    ("LUKS", At::Start(0), b"LUKS\xba\xbe"),
    ("LUKS", At::Start(0x4000), b"SKUL\xba\xbe"),
    ("LVM", at_label(0), b"LABELONE"),
    ("LVM", at_label(1), b"LABELONE"),
    ("LVM", at_label(2), b"LABELONE"),
    ("LVM", at_label(3), b"LABELONE"),
    ("md (RAID)", At::Start(0), MD),
    ("md (RAID)", At::Start(4096), MD),
    ("md (RAID)", At::RoundedEnd(8 << 10), MD),
    ("md (RAID)", At::RoundedEnd(64 << 10), MD),
    ("xfs", At::Start(0), b"XFSB"),
    ("btrfs", At::Start(0x1_0040), b"_BHRfS_M"),
    ("f2fs", At::Start(0x400), &[0x10, 0x20, 0xf5, 0xf2]),
    ("erofs", At::Start(0x400), &[0xe2, 0xe1, 0xf5, 0xe0]),
    ("squashfs", At::Start(0), b"hsqs"),
    ("apfs", At::Start(32), b"NXSB"),
    ("VDO", At::Start(0), b"dmvdo001"),
    ("Ceph", At::Start(0), b"bluestore block device"),
    ("a qcow image", At::Start(0), b"QFI\xfb"),
    (
        "bcache",
        At::Start(0x1018),
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba,
            0x6d, 0x81,
        ],
    ),
    (
        "bcachefs",
        At::Start(0x1018),
        &[
            0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d,
            0xf7, 0xef,
        ],
    ),
    ("ext2, ext3 or ext4", At::Start(0x438), &[0x53, 0xef]),
    ("jfs", At::Start(0x8000), b"JFS1"),
    ("reiserfs", At::Start(0x1_0034), b"ReIsEr"),
    ("nilfs2", At::Start(0x406), &[0x34, 0x34]),
    ("ocfs2", At::Start(0x2000), b"OCFSV2"),
    ("hfs+", At::Start(0x400), b"H+\0"),
    ("hfs+", At::Start(0x400), b"HX\0"),
    ("iso9660", At::Start(0x8001), b"CD001"),
    ("udf", At::Start(0x8001), b"BEA01"),
    (
        "zfs",
        At::Every {
            from: 0x2_0000,
            to: 0x4_0000,
            step: 1024,
        },
        &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0],
    ),
    (SWAP, At::Start(SWAP_AT), b"SWAPSPACE2"),
    (SWAP, At::Start(SWAP_AT), b"SWAP-SPACE"),
    ("a suspended system", At::Start(SWAP_AT), b"S1SUSPEND"),
    ("a suspended system", At::Start(SWAP_AT), b"S2SUSPEND"),
    ("a suspended system", At::Start(SWAP_AT), b"ULSUSPEND"),
    ("BitLocker", At::Start(3), b"-FVE-FS-"),
    ("ntfs", At::Start(3), b"NTFS    "),
    ("exfat", At::Start(3), b"EXFAT   "),
    ("vfat", At::Start(0x36), b"FAT"),
    ("vfat", At::Start(0x52), b"FAT32"),
    ("a GPT partition table", At::Start(512), b"EFI PART"),
    ("a GPT partition table", At::Start(4096), b"EFI PART"),
    ("a GPT partition table", At::End(512), b"EFI PART"),
    ("a GPT partition table", At::End(4096), b"EFI PART"),
    ("an MBR partition table", At::Start(510), &[0x55, 0xaa]),
];

const fn at_label(sector: usize) -> At {
    At::Start(sector * 512)
}

/// What `fd`, of `size` bytes, holds; `None`: nothing that is known. `swap_too`: kernel swap
/// counts.
pub fn find(fd: i32, size: u64, swap_too: bool) -> Result<Option<&'static str>> {
    let head = read(fd, 0, size_of_head(size))?;
    // Holds every place that is counted from the end.
    let begin = size.saturating_sub(192 << 10) & !4095;
    let tail = read(fd, begin, (size - begin) as usize)?;
    let held = KNOWN.iter().filter(|k| swap_too || k.0 != SWAP);
    Ok(held
        .into_iter()
        .find(|(_, at, magic)| is_there(at, magic, &head, (begin, &tail), size))
        .map(|k| k.0))
}

fn is_there(at: &At, magic: &[u8], head: &[u8], tail: (u64, &[u8]), size: u64) -> bool {
    let in_head = |n: usize| head.get(n..n + magic.len()) == Some(magic);
    let in_tail = |place: Option<u64>| {
        let n = place.and_then(|p| p.checked_sub(tail.0));
        n.and_then(|n| tail.1.get(n as usize..n as usize + magic.len())) == Some(magic)
    };
    match *at {
        At::Start(n) => in_head(n),
        At::End(n) => in_tail(size.checked_sub(n)),
        At::RoundedEnd(n) => in_tail((size / n * n).checked_sub(n)),
        At::Every { from, to, step } => (from..to).step_by(step).any(in_head),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    const SIZE: u64 = (4 << 20) + 512;

    fn image(put: &[(u64, &[u8])]) -> std::fs::File {
        static N: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = N.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("hugeswap-signature-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = std::fs::File::options();
        let f = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        f.set_len(SIZE).unwrap();
        for (at, bytes) in put {
            f.write_all_at(bytes, *at).unwrap();
        }
        f
    }

    fn found(put: &[(u64, &[u8])]) -> Option<&'static str> {
        find(image(put).as_raw_fd(), SIZE, true).unwrap()
    }

    #[test]
    fn each_is_found_where_it_is_and_named() {
        assert_eq!(found(&[]), None);
        for (name, at, magic) in KNOWN {
            let at = match *at {
                At::Start(n) => n as u64,
                At::End(n) => SIZE - n,
                At::RoundedEnd(n) => SIZE / n * n - n,
                At::Every { from, step, .. } => (from + 7 * step) as u64,
            };
            assert_eq!(found(&[(at, magic)]), Some(*name), "at {at}");
            assert_eq!(found(&[(at + 1, &magic[..1])]), None);
        }
    }

    #[test]
    fn the_more_precise_comes_first_and_swap_may_be_meant() {
        let mbr: (u64, &[u8]) = (510, &[0x55, 0xaa]);
        assert_eq!(found(&[mbr, (3, b"NTFS    ")]), Some("ntfs"));
        assert_eq!(
            found(&[mbr, (512, b"EFI PART")]),
            Some("a GPT partition table")
        );
        let swap = image(&[(SWAP_AT as u64, b"SWAPSPACE2")]);
        assert_eq!(find(swap.as_raw_fd(), SIZE, false), Ok(None));
        assert_eq!(find(swap.as_raw_fd(), SIZE, true), Ok(Some(SWAP)));
        // A size that ends in the middle of everything.
        for size in [0, 1, 511, 4096, 70_000] {
            assert!(find(swap.as_raw_fd(), size, false).is_ok());
        }
    }
}

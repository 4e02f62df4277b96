//! Regions of files: what is read, what is written, and what is never written.

pub mod bad;
pub mod model;

use crate::pages::counter;
use crate::util::*;
use hugeswap::{FaultMode, FileMode, Pool, Region};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    #[long]
    files_read_are_never_written,
    #[long]
    files_written_get_the_bytes,
    files_keep_their_length,
    files_are_synced_on_request,
    files_are_read_here_and_there,
    files_forgotten_are_read_again,
    files_of_zeros_are_written,
    files_pinned_are_synced,
    files_are_seen_by_forked_children,
    files_mapped_and_unmapped_leave_nothing,
    files_without_direct_io_are_not_kept_twice,
}

/// A file of the test, removed when the value is dropped.
pub struct Temp(pub PathBuf);

impl Temp {
    /// Makes a file of `len` bytes, in which word i is `value(i, g)`.
    pub fn new(len: usize, g: u64) -> Temp {
        Temp::within("/var/tmp", len, g)
    }

    pub fn within(directory: &str, len: usize, g: u64) -> Temp {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let n = NUMBER.fetch_add(1, Relaxed);
        let name = format!("hugeswap-test-{}-{n}", std::process::id());
        let temp = Temp(PathBuf::from(directory).join(name));
        std::fs::write(&temp.0, content(len, g)).expect("a file");
        temp
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).expect("the file")
    }

    pub fn open(&self) -> std::fs::File {
        let mut options = std::fs::OpenOptions::new();
        options
            .read(true)
            .write(true)
            .open(&self.0)
            .expect("the file")
    }

    pub fn len(&self) -> usize {
        std::fs::metadata(&self.0).expect("the file").len() as usize
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The bytes that `fill` would write.
pub fn content(len: usize, g: u64) -> Vec<u8> {
    let words = (0..len.div_ceil(8)).flat_map(|i| value(i, g).to_ne_bytes());
    words.take(len).collect()
}

/// Runs `test` on a pool in each way in which units can come in.
pub fn in_all_ways(memory: usize, test: impl Fn(&Pool)) {
    both_modes(|mode| {
        for swapin in ["thp.swapin=auto", "thp.swapin=always", "thp.swapin=never"] {
            if mode == FaultMode::Message && swapin != "thp.swapin=auto" {
                continue;
            }
            let pool = builder(memory)
                .fault_mode(mode)
                .set(swapin)
                .build()
                .unwrap();
            test(&pool);
            pool.audit().unwrap();
        }
    });
}

fn swap_is_untouched(pool: &Pool) {
    let s = pool.stats();
    assert_eq!((s.pswpin, s.pswpout, s.swap_used_bytes), (0, 0, 0), "{s:?}");
}

fn files_read_are_never_written() {
    in_all_ways(16, |pool| {
        let len = 64 * MIB;
        let file = Temp::new(len, 1);
        for mode in [FileMode::ReadOnly, FileMode::WriteBack] {
            let before = counter(&pool.stats(), "filein");
            let r = pool.map_file(&file.0, 0, len, mode).unwrap();
            assert_eq!(r.is_writable(), mode == FileMode::WriteBack);
            check(&r, 1);
            check(&r, 1);
            let s = pool.stats();
            assert!(
                counter(&s, "filein") - before >= (len / 4096) as u64,
                "{s:?}"
            );
            assert!(s.peak_resident_bytes <= 16 * MIB as u64, "{s:?}");
            r.sync().unwrap();
        }
        assert_eq!(counter(&pool.stats(), "fileout"), 0);
        swap_is_untouched(pool);
    });
}

fn files_written_get_the_bytes() {
    in_all_ways(16, |pool| {
        let len = 48 * MIB;
        let file = Temp::new(len, 1);
        for g in 2..4 {
            let r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
            check(&r, g - 1);
            fill(&r, g);
            check(&r, g);
            drop(r);
            assert!(file.bytes() == content(len, g));
        }
        assert!(counter(&pool.stats(), "fileout") >= (2 * len / 4096) as u64);
        swap_is_untouched(pool);
    });
}

/// A region ends in the middle of a page, at the end of the file or before it, and begins anywhere
/// in the file.
pub fn files_keep_their_length() {
    in_all_ways(16, |pool| {
        for (size, offset, len) in [
            (4 * MIB + 4096 * 3 + 100, 0, 4 * MIB + 4096 * 4),
            (4 * MIB + 4096 * 3 + 100, 4096, 4 * MIB + 4096 * 2 + 100),
            (4 * MIB, 8192, 2 * MIB + 5),
            (100, 0, 4096),
            (8192, 0, 1),
        ] {
            let file = Temp::new(size, 1);
            let mut want = content(size, 1);
            let mut r = pool
                .map_file(&file.0, offset as u64, len, FileMode::WriteBack)
                .unwrap();
            let have = (size - offset).min(len);
            assert_eq!(r.len(), len);
            assert_eq!(r.as_slice()[..have], want[offset..offset + have]);
            assert!(r.as_slice()[have..].iter().all(|&b| b == 0));
            r.as_mut_slice().fill(7);
            r.sync().unwrap();
            want[offset..offset + have].fill(7);
            assert!(file.bytes() == want, "{size} {offset} {len}");
            // What is beyond the end stays as long as it is in memory, and no longer.
            r.as_mut_slice()[have - 1] = 8;
            r.discard(0, len).unwrap();
            assert_eq!(r.as_slice()[have - 1], 8);
            assert!(r.as_slice()[have..].iter().all(|&b| b == 0));
            drop(r);
            want[offset + have - 1] = 8;
            assert!(file.bytes() == want, "{size} {offset} {len}");
        }
    });
}

fn files_are_synced_on_request() {
    in_all_ways(64, |pool| {
        let len = 16 * MIB;
        let file = Temp::new(len, 1);
        let r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
        let mut want = content(len, 1);
        for round in 2..5u8 {
            for at in (0..len).step_by(3 * MIB) {
                // SAFETY: within the region.
                unsafe { r.as_ptr().add(at).write(round) };
                want[at] = round;
            }
            r.sync().unwrap();
            assert!(file.bytes() == want);
            let before = counter(&pool.stats(), "fileout");
            r.sync().unwrap();
            assert_eq!(
                counter(&pool.stats(), "fileout"),
                before,
                "clean units were written"
            );
        }
        // Nothing had to leave for it.
        assert!(r.is_resident(0));
    });
}

/// Where base pages can come in one by one, scattered reads of pages cost no more than they should.
/// (What a size costs is measured: while the machine does other work one try in twelve takes larger
/// sizes for cheap. So there are three.)
pub fn files_are_read_here_and_there() {
    need_pages();
    let (reads, most) = if in_pieces() { (500, 128) } else { (5_000, 64) };
    let read = (0..3).map(|_| pages_for(reads)).find(|&n| n < reads * most);
    assert!(
        read.is_some(),
        "more than {most} pages for each of {reads} reads, three times"
    );
}

/// How many pages of a file come in for so many reads of a word, anywhere in it.
fn pages_for(reads: u64) -> u64 {
    let len = 256 * MIB;
    let file = Temp::new(len, 1);
    let pool = builder(32).build().unwrap();
    let r = pool.map_file(&file.0, 0, len, FileMode::ReadOnly).unwrap();
    let mut x = 1u64;
    for _ in 0..reads {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(99);
        let i = (x >> 20) as usize % (len / 8);
        assert_eq!(words(&r)[i].load(Relaxed), value(i, 1));
    }
    let s = pool.stats();
    assert!(counter(&s, "thp_split_pmd") > 0, "{s:?}");
    swap_is_untouched(&pool);
    pool.audit().unwrap();
    counter(&s, "filein")
}

fn files_forgotten_are_read_again() {
    in_all_ways(64, |pool| {
        let len = 8 * MIB;
        let file = Temp::new(len, 1);
        for discard in [Region::discard, Region::discard_lazily] {
            let mut r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
            check(&r, 1);
            file.open()
                .write_all_at(&[1, 2, 3], 5 * MIB as u64)
                .unwrap();
            r.as_mut_slice()[7 * MIB] = 9;
            discard(&mut r, 0, len).unwrap();
            assert!((0..len).step_by(4096).all(|at| !r.is_resident(at)));
            assert_eq!(r.as_slice()[5 * MIB..5 * MIB + 3], [1, 2, 3]);
            assert_eq!(r.as_slice()[7 * MIB], 9);
            drop(r);
            assert_eq!(file.bytes()[7 * MIB], 9);
            std::fs::write(&file.0, content(len, 1)).unwrap();
        }
    });
}

/// Zeros need no place in swap, but they must be written to a file.
fn files_of_zeros_are_written() {
    in_all_ways(16, |pool| {
        let len = 32 * MIB;
        let file = Temp::new(len, 1);
        let mut r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
        r.as_mut_slice().fill(0);
        page_out(&r);
        assert!(r.as_slice().iter().all(|&b| b == 0));
        drop(r);
        assert!(file.bytes() == vec![0; len]);
    });
}

fn files_pinned_are_synced() {
    in_all_ways(64, |pool| {
        let len = 8 * MIB;
        let file = Temp::new(len, 1);
        let r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
        let pin = r.pin(2 * MIB, 100, true).unwrap();
        let mut want = content(len, 1);
        for round in 1..4u8 {
            // SAFETY: within the pin.
            unsafe { pin.as_ptr().write(round) };
            want[2 * MIB] = round;
            r.sync().unwrap();
            assert!(file.bytes() == want);
        }
        // SAFETY: as above.
        unsafe { pin.as_ptr().write(77) };
        want[2 * MIB] = 77;
        drop(pin);
        drop(r);
        assert!(file.bytes() == want);
        let r = pool.map_file(&file.0, 0, len, FileMode::ReadOnly).unwrap();
        assert!(r.pin(0, 100, true).is_err());
        drop(r.pin(0, 100, false).unwrap());
    });
}

/// A child reads what the parent has written, from the file; it may not write.
pub fn files_are_seen_by_forked_children() {
    use std::os::unix::process::ExitStatusExt;
    in_all_ways(16, |pool| {
        let len = 32 * MIB;
        let file = Temp::new(len, 1);
        let r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
        let other = pool.region(8 * MIB).unwrap();
        fill(&r, 2);
        fill(&other, 3);
        words(&r)[0].store(5, Relaxed);
        let status = in_child(|| {
            assert_eq!(words(&r)[0].load(Relaxed), 5);
            words(&r)[1..].iter().enumerate().for_each(|(i, w)| {
                assert_eq!(w.load(Relaxed), value(i + 1, 2));
            });
            check(&other, 3);
            r.sync().unwrap();
            fill(&other, 4);
            pool.audit().unwrap();
        });
        assert!(status.success(), "{status}");
        let status = in_child(|| words(&r)[0].store(6, Relaxed));
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{status}");
        // The parent goes on as if nothing had been.
        check(&other, 3);
        assert_eq!(words(&r)[0].load(Relaxed), 5);
        fill(&r, 7);
        check(&r, 7);
        drop(r);
        assert!(file.bytes() == content(len, 7));
    });
}

fn files_mapped_and_unmapped_leave_nothing() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    in_all_ways(16, |pool| {
        let len = 4 * MIB + 100;
        let file = Temp::new(len, 1);
        let map = || pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
        let before = open();
        for _ in 0..50 {
            let mut r = map();
            r.as_mut_slice()[len - 1] = 1;
        }
        let regions: Vec<Region> = (0..20).map(|_| map()).collect();
        assert!(open() > before);
        for r in &regions {
            assert_eq!(r.as_slice()[len - 1], 1);
        }
        drop(regions);
        assert_eq!(open(), before);
        assert_eq!(
            pool.stats().peak_managed_bytes,
            0,
            "files are not promised room in swap"
        );
        let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        for thread in threads {
            for fd in std::fs::read_dir(thread.path().join("fd"))
                .into_iter()
                .flatten()
                .flatten()
            {
                let to = std::fs::read_link(fd.path()).unwrap_or_default();
                assert_ne!(to, file.0, "{fd:?} is still open");
            }
        }
    });
}

/// A file system in memory without direct I/O, in a mount namespace of the test's own.
fn files_without_direct_io_are_not_kept_twice() {
    let at = format!("/var/tmp/hugeswap-test-{}-mount", std::process::id());
    std::fs::create_dir(&at).unwrap();
    let c = std::ffi::CString::new(at.clone()).unwrap();
    // SAFETY: NUL-terminated names; the mounts are this process's own and end with it.
    let mounted = unsafe {
        let none = c"none".as_ptr();
        let flags = libc::MS_REC | libc::MS_PRIVATE;
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                none,
                c"/".as_ptr(),
                std::ptr::null(),
                flags,
                std::ptr::null(),
            ) == 0
            && libc::mount(none, c.as_ptr(), c"ramfs".as_ptr(), 0, std::ptr::null()) == 0
    };
    let undo = || {
        // SAFETY: as above.
        unsafe { libc::umount2(c.as_ptr(), libc::MNT_DETACH) };
        let _ = std::fs::remove_dir(&at);
    };
    if !mounted {
        undo();
        skip("a file system cannot be mounted");
    }
    in_all_ways(16, |pool| {
        let len = 32 * MIB + 1234;
        let file = Temp::within(&at, len, 1);
        let mut r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
        assert!(r.as_slice() == content(len, 1));
        r.as_mut_slice().copy_from_slice(&content(len, 2));
        r.sync().unwrap();
        assert!(file.bytes() == content(len, 2));
        r.as_mut_slice()[len - 1] ^= 1;
        drop(r);
        assert_eq!(file.len(), len);
        assert_eq!(file.bytes()[len - 1], content(len, 2)[len - 1] ^ 1);
    });
    undo();
}

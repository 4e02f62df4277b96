//! Files that cannot be mapped, fail, or change their length.

use super::{Temp, content, in_all_ways};
use crate::pages::counter;
use crate::util::*;
use hugeswap::{Advice, FaultMode, FileMode};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    files_that_are_none_are_refused,
    files_read_only_are_not_written,
    files_cut_off_are_sigbus,
    files_survive_closed_descriptors,
    #[long]
    files_that_fail_lose_nothing,
    files_are_never_made_longer,
}

fn files_that_are_none_are_refused() {
    let pool = builder(16).build().unwrap();
    let file = Temp::new(10_000, 1);
    let why = |path: &str, offset, len, mode| {
        let e = pool.map_file(path, offset, len, mode).unwrap_err();
        let text = e.to_string();
        assert!(!text.contains('\n'), "{text}");
        assert!(text.starts_with(&format!("cannot map {path}: ")), "{text}");
        text
    };
    let path = file.0.to_str().unwrap();
    let read = FileMode::ReadOnly;
    assert!(why(path, 100, 10, read).contains("multiple of 4096"));
    assert!(why(path, 0, 0, read).contains("0 bytes"));
    for (offset, len) in [(0, 12_289), (12_288, 1), (4096, 9000), (4096, usize::MAX)] {
        assert!(why(path, offset, len, read).contains("not within the file of 10000 bytes"));
    }
    assert!(why("/var/tmp", 0, 10, read).contains("a directory"));
    assert!(why("/dev/zero", 0, 10, read).contains("a device"));
    assert!(why("/nonexistent", 0, 10, read).contains("No such file"));
    let fifo = Temp::new(0, 1);
    let path = fifo.0.to_str().unwrap();
    assert!(why(path, 0, 1, read).contains("not within the file of 0 bytes"));
    std::fs::remove_file(&fifo.0).unwrap();
    let name = std::ffi::CString::new(path).unwrap();
    // SAFETY: a NUL-terminated name.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    for mode in [read, FileMode::WriteBack] {
        assert!(why(path, 0, 10, mode).contains("a fifo"));
    }
    // The last page may be asked for whole.
    assert_eq!(
        pool.map_file(&file.0, 8192, 4096, read).unwrap().len(),
        4096
    );
    pool.audit().unwrap();
}

fn files_read_only_are_not_written() {
    let len = 8 * MIB;
    let file = Temp::new(len, 1);
    for mode in [FaultMode::Signal, FaultMode::Message] {
        for swapin in ["thp.swapin=always", "thp.swapin=never"] {
            for in_memory in [true, false] {
                let status = in_child(|| {
                    let builder = builder(16).fault_mode(mode).set(swapin);
                    let Ok(pool) = builder.build() else {
                        // SAFETY: ends the child at once.
                        unsafe { libc::_exit(crate::SKIP) };
                    };
                    let mut r = pool.map_file(&file.0, 0, len, FileMode::ReadOnly).unwrap();
                    assert!(panics(|| r.as_mut_slice()[0] = 1));
                    if in_memory {
                        check(&r, 1);
                    }
                    words(&r)[5000].store(1, Relaxed);
                });
                if status.code() == Some(crate::SKIP) {
                    println!("skipped: no {mode:?} mode");
                    continue;
                }
                assert_eq!(
                    status.signal(),
                    Some(libc::SIGSEGV),
                    "{mode:?} {swapin} {in_memory}"
                );
                assert!(file.bytes() == content(len, 1));
            }
        }
    }
    // A program may take such a write for what it is, and go on.
    both_modes(|mode| {
        let pool = builder(16).fault_mode(mode).build().unwrap();
        let r = pool.map_file(&file.0, 0, len, FileMode::ReadOnly).unwrap();
        check(&r, 1);
        let status = in_child(|| words(&r)[5000].store(1, Relaxed));
        assert_eq!(status.signal(), Some(libc::SIGSEGV));
        check(&r, 1);
        let other = pool.region(32 * MIB).unwrap();
        fill(&other, 2);
        check(&r, 1);
        check(&other, 2);
    });
}

fn files_cut_off_are_sigbus() {
    let len = 8 * MIB;
    for swapin in ["thp.swapin=auto", "thp.swapin=always", "thp.swapin=never"] {
        for (touch, lost) in [
            (0, false),
            (3 * MIB - 64 * 1024, false),
            (3 * MIB, true),
            (7 * MIB, true),
        ] {
            let file = Temp::new(len, 1);
            let status = in_child(|| {
                let pool = builder(32).set(swapin).build().unwrap();
                let r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
                file.open().set_len(3 * MIB as u64 - 10).unwrap();
                assert_eq!(words(&r)[touch / 8].load(Relaxed), value(touch / 8, 1));
            });
            let want = lost.then_some(libc::SIGBUS);
            assert_eq!(status.signal(), want, "{swapin} {touch}: {status}");
            assert!(lost || status.success(), "{swapin} {touch}: {status}");
        }
    }
    // In whole units only, where pages do not come by themselves; and it is right again when the
    // file is.
    both_modes(|mode| {
        let file = Temp::new(len, 1);
        let status = in_child(|| {
            let pool = builder(32).fault_mode(mode).build().unwrap();
            let r = pool.map_file(&file.0, 0, len, FileMode::ReadOnly).unwrap();
            file.open().set_len(4 * MIB as u64).unwrap();
            for at in (0..4 * MIB).step_by(8) {
                assert_eq!(words(&r)[at / 8].load(Relaxed), value(at / 8, 1));
            }
            words(&r)[5 * MIB / 8].load(Relaxed);
        });
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{mode:?}: {status}");
    });
}

fn files_that_fail_lose_nothing() {
    in_all_ways(16, |pool| {
        let len = 8 * MIB;
        let file = Temp::new(len, 1);
        let mut r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
        fill(&r, 2);
        pool.set("debug.swap_write_fail=1").unwrap();
        let e = r.sync().unwrap_err().to_string();
        assert!(e.contains("could not be written"), "{e}");
        r.discard(0, len).unwrap();
        r.advise(0, len, Advice::PageOut).unwrap();
        check(&r, 2);
        assert!(counter(&pool.stats(), "file_write_error") > 0);
        assert_eq!(counter(&pool.stats(), "swap_write_error"), 0);
        // Now and then is forgiven.
        pool.set("debug.swap_write_fail=3").unwrap();
        pool.set("debug.swap_read_fail=5").unwrap();
        while r.sync().is_err() {}
        pool.set("debug.swap_write_fail=0").unwrap();
        r.discard(0, len).unwrap();
        check(&r, 2);
        pool.set("debug.swap_read_fail=0").unwrap();
        assert!(file.bytes() == content(len, 2));
    });
}

/// A program closes every descriptor that it finds, as daemons do, and the numbers become those of
/// other files.
fn files_survive_closed_descriptors() {
    in_all_ways(16, |pool| {
        let len = 24 * MIB + 100;
        let file = Temp::new(len, 1);
        let r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
        check(&r, 1);
        // SAFETY: close_range is what is tested; only standard descriptors are needed below.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
        let others: Vec<_> = (0..1000)
            .map_while(|_| std::fs::File::open("/dev/zero").ok())
            .collect();
        check(&r, 1);
        fill(&r, 2);
        check(&r, 2);
        r.sync().unwrap();
        // SAFETY: the last byte of the region, which no word holds.
        unsafe { r.as_ptr().add(len - 1).write(7) };
        drop(r);
        // None of them was closed.
        let zero = |f: &std::fs::File| f.metadata().is_ok();
        assert!(others.iter().all(zero));
        drop(others);
        let mut want = content(len, 1);
        want[..len / 8 * 8].copy_from_slice(&content(len / 8 * 8, 2));
        want[len - 1] = 7;
        assert!(file.bytes() == want);
        // Dropping the pool would close numbers that are others' by now.
        std::mem::forget(pool.clone());
    });
}

/// A write beyond the end of a file that was made shorter is an error.
fn files_are_never_made_longer() {
    in_all_ways(32, |pool| {
        let len = 8 * MIB;
        let file = Temp::new(len, 1);
        let r = pool.map_file(&file.0, 0, len, FileMode::WriteBack).unwrap();
        fill(&r, 2);
        file.open().set_len(5 * MIB as u64).unwrap();
        assert!(r.sync().is_err());
        check(&r, 2);
        drop(r);
        assert_eq!(file.len(), 5 * MIB);
        assert!(file.bytes()[..4 * MIB] == content(4 * MIB, 2));
    });
}

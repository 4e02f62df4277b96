//! Memory that is not in huge pages becomes huge in the background.

use crate::util::*;

tests! {
    kcompactd_makes_free_frames_huge,
    kcompactd_does_without,
    #[long]
    without_huge_pages_everything_works,
}

/// Allows the kernel to give this process huge pages, or forbids it.
fn huge_pages(allowed: bool) {
    // SAFETY: changes nothing but that.
    let done = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, u64::from(!allowed), 0, 0, 0) };
    assert_eq!(done, 0);
}

fn need_huge_pages() {
    let pool = builder(16).build().unwrap();
    let r = pool.region(4 * MIB).unwrap();
    fill(&r, 1);
    page_out(&r);
    if counter(&pool, "thp_swpout") != 2 {
        skip("there are no huge pages");
    }
}

/// True if the kernel makes memory huge that is not hugeswap's.
fn kernel_collapses() -> bool {
    let len = 2 * UNIT;
    // SAFETY: new memory, given back below; only what lies in it is touched.
    unsafe {
        let raw = hugeswap_sys::mm::map_own(len, hugeswap_sys::mm::PROT_RW).unwrap();
        let at = raw.next_multiple_of(UNIT);
        hugeswap_sys::mm::advise(at, UNIT, libc::MADV_NOHUGEPAGE).unwrap();
        std::ptr::write_bytes(at as *mut u8, 1, UNIT);
        hugeswap_sys::mm::advise(at, UNIT, libc::MADV_HUGEPAGE).unwrap();
        let made = hugeswap_sys::mm::collapse(at, UNIT).is_ok();
        hugeswap_sys::mm::unmap(raw, len).unwrap();
        made
    }
}

fn kcompactd_makes_free_frames_huge() {
    need_huge_pages();
    both_modes(|mode| {
        huge_pages(false);
        let pool = builder(64).fault_mode(mode).build().unwrap();
        pool.set("thp.swapin=always").unwrap();
        let r = pool.region(16 * UNIT).unwrap();
        fill(&r, 1);
        page_out(&r);
        assert_eq!(counter(&pool, "thp_swpout"), 0);
        // What has left is free, in base pages, until there are huge ones.
        huge_pages(true);
        until("sixteen huge frames", || {
            let [made, failed] =
                ["compact_daemon_success", "compact_daemon_fail"].map(|n| counter(&pool, n));
            if made < 16 && failed >= 10 && !kernel_collapses() {
                skip("the kernel makes no huge pages just now, nor of other memory");
            }
            made >= 16
        });
        check(&r, 1);
        assert_eq!(counter(&pool, "thp_swpin"), 16);
        assert_eq!(counter(&pool, "thp_swpin_fallback"), 0);
        fill(&r, 2);
        page_out(&r);
        assert_eq!(counter(&pool, "thp_swpout"), 16);
        check(&r, 2);
    });
}

/// If no huge pages are allowed, kcompactd gives up, and tries again later.
fn kcompactd_does_without() {
    huge_pages(false);
    let pool = builder(64).build().unwrap();
    let r = pool.region(16 * UNIT).unwrap();
    for g in 0..3 {
        let failed = counter(&pool, "compact_daemon_fail");
        fill(&r, g);
        page_out(&r);
        until("an attempt", || {
            counter(&pool, "compact_daemon_fail") > failed
        });
        check(&r, g);
    }
    assert_eq!(counter(&pool, "compact_daemon_success"), 0);
}

fn without_huge_pages_everything_works() {
    huge_pages(false);
    both_modes(|mode| {
        let pool = builder(32).fault_mode(mode).build().unwrap();
        for setting in [
            "thp.swapin=auto",
            "thp.swapin=always",
            "thp.defrag=always",
            "thp.defrag=defer",
        ] {
            pool.set(setting).unwrap();
            three_rounds(&pool, 48 * MIB);
        }
        let stats = pool.stats();
        assert_eq!((stats.thp_swpin, stats.thp_swpout), (0, 0));
        assert!(counter(&pool, "thp_swpout_fallback") > 0 && stats.pswpout > 0);
        assert_eq!(stats.huge_share.unwrap_or(0.0), 0.0);
        assert!(stats.peak_resident_bytes <= 32 * MIB as u64);
    });
}

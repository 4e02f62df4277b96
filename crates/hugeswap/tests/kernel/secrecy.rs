//! Secrecy of swap: encrypted swap has nothing in plain text, no other user can read the file, and
//! the key is in no other memory.

use crate::util::*;
use crate::{failure, pages, slots, storm};
use hugeswap::{FaultMode, Pool, Region};
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::Ordering::Relaxed;

tests! {
    swap_files_are_ours_alone,
    nothing_plain_is_in_swap,
    #[long]
    keys_are_in_no_core_dump,
    encryption_is_set_at_first,
    #[long]
    encrypted_swap_comes_back => with_encryption(swap_comes_back),
    #[long]
    encrypted_swap_in_pieces => with_encryption(|| with_pieces(swap_comes_back)),
    #[long]
    encrypted_storm_under_pressure => with_encryption(storm::storm_under_pressure),
    #[long]
    encrypted_storm_with_forks => with_encryption(storm::storm_with_forks),
    #[long]
    encrypted_storm_over_pages_with_forks => with_encryption(storm::storm_over_pages_with_forks),
    encrypted_storm_with_direct_io => with_encryption(storm::storm_with_direct_io),
    encrypted_slots_survive_forks => with_encryption(slots::slots_survive_forks),
    encrypted_slots_read_by_relatives_stay => with_encryption(slots::slots_read_by_relatives_stay),
    encrypted_slots_survive_random_work => with_encryption(slots::slots_survive_random_work),
    #[long]
    encrypted_slots_of_a_nearly_full_swap => with_encryption(slots::slots_of_a_nearly_full_swap),
    encrypted_pages_of_bad_swap_are_sigbus => with_encryption(pages::pages_of_bad_swap_are_sigbus),
    encrypted_swap_corrupted_is_sigbus => with_encryption(failure::corrupt_swap_is_sigbus),
    #[long]
    encrypted_swap_with_changed_bits => with_encryption(failure::changed_bits_are_noticed),
    #[long]
    encrypted_swap_with_failing_writes => with_encryption(failure::failing_writes_lose_nothing),
}

/// The swap file. Its descriptor still belongs to the pool.
fn swap_file() -> std::mem::ManuallyDrop<std::fs::File> {
    let fds = swap_fds();
    assert_eq!(fds.len(), 1);
    // SAFETY: the descriptor is open, and not closed by this.
    std::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(fds[0]) })
}

fn swap_files_are_ours_alone() {
    for encrypt in [false, true] {
        // Whatever the program's mask is.
        // SAFETY: a number of this process.
        unsafe { libc::umask(0) };
        let pool = builder(32).encrypt(encrypt).build().unwrap();
        let r = pool.region(64 * MIB).unwrap();
        fill(&r, 1);
        let meta = swap_file().metadata().unwrap();
        assert_eq!(meta.mode() & 0o7777, 0o600);
        assert_eq!(meta.nlink(), 0, "it has a name");
        // SAFETY: only asks.
        assert_eq!(meta.uid(), unsafe { libc::geteuid() });
        check(&r, 1);
    }
}

/// Word `i` of a pattern that is found nowhere else.
fn pattern(i: usize) -> u64 {
    0x5ec7_e700_0000_0000 | i as u64
}

/// Puts whole units, base pages and single slots of one pattern in swap.
fn fill_with_pattern(pool: &Pool) -> Region {
    let r = pool.region(48 * MIB).unwrap();
    let w = words(&r);
    w.iter()
        .enumerate()
        .for_each(|(i, w)| w.store(pattern(i), Relaxed));
    page_out(&r);
    // A few pages of some units anew.
    pool.set("thp.swapin=never").unwrap();
    let w = words(&r);
    for i in (0..w.len()).step_by(UNIT / 8 / 4).take(40) {
        w[i].store(pattern(i), Relaxed);
    }
    page_out(&r);
    pool.set("thp.swapin=auto").unwrap();
    r
}

/// The number of words of the pattern in the swap file, of those beside another one. (Half of one word
/// is found by chance in some of hundreds of runs.)
fn found_in_swap() -> u64 {
    let f = swap_file();
    let len = f.metadata().unwrap().len();
    let memory = vec![0u8; UNIT + 4096];
    let (mut memory, mut found) = (memory, 0);
    let from = memory.as_ptr().align_offset(4096);
    for at in (0..len).step_by(UNIT) {
        let n = f.read_at(&mut memory[from..from + UNIT], at).unwrap();
        let is_pattern = |w: &[u8]| w[4..8] == pattern(0).to_le_bytes()[4..8];
        let pairs = memory[from..from + n].chunks_exact(16);
        found += 2 * pairs
            .filter(|p| is_pattern(&p[..8]) && is_pattern(&p[8..]))
            .count() as u64;
    }
    found
}

fn nothing_plain_is_in_swap() {
    both_modes(|mode| {
        for encrypt in [false, true] {
            let pool = builder(32)
                .fault_mode(mode)
                .encrypt(encrypt)
                .set("zswap.enabled=never")
                .set("swap.compress=never")
                .build()
                .unwrap();
            let r = fill_with_pattern(&pool);
            let found = found_in_swap();
            if encrypt {
                assert_eq!(found, 0);
            } else {
                assert!(
                    found >= 48 * MIB as u64 / 8,
                    "{found}: the search is no good"
                );
            }
            let w = words(&r);
            assert!((0..w.len()).all(|i| w[i].load(Relaxed) == pattern(i)));
            assert_eq!(pages::counter(&pool.stats(), "hwpoison"), 0);
        }
    });
}

/// A mapping of this process: its range, its file and its flags.
struct Mapping {
    range: Range<usize>,
    name: String,
    flags: String,
}

fn mappings() -> Vec<Mapping> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut all: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            all.last_mut().unwrap().flags = flags.to_owned() + " ";
            continue;
        }
        let mut words = line.split_whitespace();
        let Some((from, to)) = words.next().and_then(|w| w.split_once('-')) else {
            continue;
        };
        let address = |t| usize::from_str_radix(t, 16);
        let (Ok(from), Ok(to)) = (address(from), address(to)) else {
            continue;
        };
        all.push(Mapping {
            range: from..to,
            name: words.nth(4).unwrap_or_default().into(),
            flags: String::new(),
        });
    }
    all
}

/// Bytes of memory that are searched at a time.
const STEP: usize = 1 << 20;

/// The offset of the first `what` in `bytes`.
fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    // SAFETY: both are as long as is said.
    let at = unsafe {
        libc::memmem(
            bytes.as_ptr().cast(),
            bytes.len(),
            what.as_ptr().cast(),
            what.len(),
        )
    };
    (!at.is_null()).then(|| at as usize - bytes.as_ptr() as usize)
}

/// The mappings that have the key in them, without managed memory. `buffer` receives the bytes that
/// are searched, and is not searched itself.
fn with_key(key: &[u8], window: &Range<usize>, buffer: &mut [u8]) -> Vec<Mapping> {
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let own = buffer.as_ptr() as usize..buffer.as_ptr() as usize + buffer.len();
    let mut holds = |m: &Mapping| {
        // Reading what was never used of the segment would give it memory, gigabytes in all.
        let used = match m.name.starts_with("/memfd:hugeswap-pool") {
            true => in_memory(&m.range),
            false => Vec::new(),
        };
        m.range.clone().step_by(STEP).any(|at| {
            // Pieces overlap.
            let len = buffer.len().min(m.range.end - at);
            let first = (at - m.range.start) / 4096;
            let pages = used.get(first..(first + STEP / 4096).min(used.len()));
            if pages.is_some_and(|p| !p.is_empty() && p.iter().all(|p| p & 1 == 0)) {
                return false;
            }
            let Ok(n) = memory.read_at(&mut buffer[..len], at as u64) else {
                return false;
            };
            let mut from = 0;
            while let Some(k) = find(&buffer[from..n], key) {
                let found = at + from + k;
                if !own.contains(&found) && found != key.as_ptr() as usize {
                    return true;
                }
                from += k + 1;
            }
            false
        })
    };
    let ours = |m: &Mapping| m.flags.contains("rd ") && !window.contains(&m.range.start);
    mappings()
        .into_iter()
        .filter(ours)
        .filter(|m| m.name != "[vvar]" && holds(m))
        .collect()
}

/// A byte for each page of a mapped range, of which the lowest bit says whether it is in memory.
fn in_memory(range: &Range<usize>) -> Vec<u8> {
    let mut pages = vec![0u8; range.len().div_ceil(4096)];
    // SAFETY: as many bytes as there are pages.
    let asked = unsafe { libc::mincore(range.start as *mut _, range.len(), pages.as_mut_ptr()) };
    assert_eq!(asked, 0, "mincore");
    pages
}

fn keys_are_in_no_core_dump() {
    let pool = builder(32).encrypt(true).build().unwrap();
    let r = pool.region(96 * MIB).unwrap();
    for g in 0..2 {
        fill(&r, g);
        check(&r, g);
    }
    let window = r.as_ptr() as usize..r.as_ptr() as usize + r.len();
    let all = mappings();
    let file: Vec<_> = all
        .iter()
        .filter(|m| m.name.starts_with("/memfd:hugeswap-key"))
        .collect();
    assert_eq!(file.len(), 1, "the key's file");
    for flag in ["dd ", "lo ", "dc "] {
        assert!(file[0].flags.contains(flag), "{flag}: {}", file[0].flags);
    }
    // SAFETY: the page is mapped and readable as long as the pool is; after a mark of 8 bytes
    // stands the key.
    let key: [u8; 32] = unsafe { std::ptr::read_volatile((file[0].range.start + 8) as *const _) };
    let key = Box::leak(Box::new(key));
    assert!(key.iter().any(|&b| b != key[0]));
    let mut buffer = vec![0; STEP + 64];
    let holders = with_key(key, &window, &mut buffer);
    assert!(
        holders.len() >= 2,
        "its file and the cipher: the search is no good"
    );
    for m in &holders {
        let hidden = m.flags.contains("dd ") && m.flags.contains("lo ");
        assert!(hidden, "{:x?} {} {}", m.range, m.name, m.flags);
    }
    drop((r, pool));
    let left = with_key(key, &window, &mut buffer);
    let left: Vec<_> = left.iter().map(|m| (&m.range, &m.name)).collect();
    assert!(left.is_empty(), "{left:x?}");
}

fn encryption_is_set_at_first() {
    let pool = builder(32).build().unwrap();
    assert!(pool.set("swap.encrypt=on").is_err());
    let engine = engine(32, FaultMode::Signal, &[]);
    engine
        .pool()
        .set_knob(hugeswap_policy::knobs::Knob::Encrypt, 1);
    assert!(!engine.pool().encrypts());
    // SAFETY: nothing was ever mapped.
    unsafe { engine.stop() };
}

/// Swapped memory is right when it comes back: whole, by pages, scattered, and whole again.
fn swap_comes_back() {
    both_modes(|mode| {
        let pool = builder(32)
            .fault_mode(mode)
            .set("debug.storm=5000")
            .build()
            .unwrap();
        let r = pool.region(96 * MIB).unwrap();
        for g in 0..2 {
            fill(&r, g);
            check(&r, g);
        }
        pool.set("thp.swapin=never").unwrap();
        let w = words(&r);
        for k in 0..3_000usize {
            let i = k.wrapping_mul(0x9e37_79b9) % w.len();
            assert_eq!(w[i].load(Relaxed), value(i, 1));
            w[i].store(value(i, 1), Relaxed);
        }
        r.advise(0, r.len(), hugeswap::Advice::PageOut).unwrap();
        pool.set("thp.swapin=auto").unwrap();
        check(&r, 1);
        let s = pool.stats();
        assert!(s.pswpin > 0 && s.pswpout > 0);
        let bad = |n: &str| pages::counter(&s, n);
        assert_eq!((bad("hwpoison"), bad("swap_read_error")), (0, 0));
    });
}

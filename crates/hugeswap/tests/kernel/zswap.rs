//! Compressed memory in front of swap: what it keeps comes back, also after it was written back,
//! over forks, deaths and damage, and its room is given back.

use crate::util::*;
use hugeswap::{Builder, Pool, Region};
use hugeswap_support::random::next;
use std::sync::atomic::Ordering::Relaxed;

tests! {
    what_is_compressed_comes_back,
    #[long]
    compressed_memory_is_written_back_when_full,
    #[long]
    every_compressor_brings_back_what_it_was_given,
    text_of_digits_is_compressed_by_entropy_coding_only,
    noise_is_not_kept,
    repeated_words_take_little,
    room_is_given_back,
    a_child_reads_what_its_parent_compressed,
    a_child_outlives_its_parent,
    the_dead_leave_nothing,
    it_can_be_turned_off_and_on,
    compressed_memory_under_encryption => with_encryption(compressed_memory_is_written_back_when_full),
    an_area_is_taken_off_under_it,
    pages_compress_under_a_storm,
    #[disk]
    pages_at_random_come_to_be_compressed,
    #[disk]
    tiny_blocks_are_kept_before_any_came_back,
    noise_at_random_is_left_alone,
}

pub const PAGE: usize = 4096;

/// A pool of `memory` MiB of which up to half is compressed.
fn pool(memory: usize) -> Builder {
    builder(memory)
        .set("zswap.enabled=always")
        .set("zswap.max_pool_percent=50")
}

/// Puts numbers in a region of which most bytes are zero: a third or so when compressed.
pub fn put(r: &Region, g: u64) {
    for (i, w) in words(r).iter().enumerate() {
        w.store(sparse(i, g), Relaxed);
    }
}

fn sparse(i: usize, g: u64) -> u64 {
    match i % 4 {
        0 => value(i, g) >> 40,
        _ => 0,
    }
}

pub fn verify(r: &Region, g: u64) {
    for (i, w) in words(r).iter().enumerate() {
        assert_eq!(w.load(Relaxed), sparse(i, g), "word {i} of generation {g}");
    }
}

/// Bytes of memory that compressed pages take, and bytes of these pages.
pub fn usage(pool: &Pool) -> (u64, u64) {
    let stats = pool.stats();
    (stats.zswap_bytes, stats.zswapped_bytes)
}

fn what_is_compressed_comes_back() {
    for setting in ["thp.swapin=always", "thp.swapin=never"] {
        let pool = pool(64).set(setting).build().unwrap();
        let r = pool.region(128 * MIB).unwrap();
        for g in 0..3 {
            put(&r, g);
            verify(&r, g);
        }
        let kept = counter(&pool, "zswpout");
        assert!(kept > 1000, "{setting}: {kept} pages were kept");
        let bytes = counter(&pool, "zswap_stored_bytes");
        let least = kept * 24;
        assert!((least..kept * PAGE as u64).contains(&bytes), "{bytes}");
        assert!(counter(&pool, "zswpin") > 1000, "{setting}");
        let (takes, holds) = usage(&pool);
        assert!(holds > takes && takes <= 32 * MIB as u64, "{takes} {holds}");
        no_harm(&pool);
    }
}

fn every_compressor_brings_back_what_it_was_given() {
    let pool = pool(64).set("thp.swapin=never").build().unwrap();
    let r = pool.region(128 * MIB).unwrap();
    put(&r, 0);
    for (g, by) in (1..).zip(["zstd-fast", "lz4", "zstd", "auto"]) {
        let before = counter(&pool, "zswpout");
        pool.set(format!("zswap.compressor={by}").as_str()).unwrap();
        // What the one before compressed is read while this one compresses.
        verify(&r, g - 1);
        put(&r, g);
        verify(&r, g);
        let kept = counter(&pool, "zswpout") - before;
        assert!(kept > 1000, "{by}: {kept} pages were kept");
    }
    let pid = child(|| verify(&r, 4));
    ended_well(pid);
    no_harm(&pool);
}

/// Hexadecimal digits without a repetition, also of those in the same place of each word.
fn digits(i: usize) -> u64 {
    let random = next(&mut (i as u64));
    let digit = |k: u64| u64::from(b"0123456789abcdef"[(random >> (k * 4) & 15) as usize]);
    (0..8).map(|k| digit(k) << (k * 8)).sum()
}

/// Pages of such text that are kept by a compressor, of which half of memory would hold what the other
/// half does not: after three rounds, or once they are `enough`.
fn digits_kept(compressor: &str, enough: Option<u64>) -> u64 {
    let pool = pool(32)
        .set("thp.swapin=never")
        .set(format!("zswap.compressor={compressor}").as_str())
        .build()
        .unwrap();
    let r = pool.region(40 * MIB).unwrap();
    let words = words(&r);
    for (i, w) in words.iter().enumerate() {
        w.store(digits(i), Relaxed);
    }
    // (Should they never be enough, the harness ends it.)
    for round in 1.. {
        for i in (0..words.len()).step_by(PAGE / 8) {
            assert_eq!(words[i].load(Relaxed), digits(i));
        }
        let kept = counter(&pool, "zswpout");
        if enough.map_or(round == 3, |n| kept > n) {
            no_harm(&pool);
            return kept;
        }
    }
    unreachable!()
}

fn text_of_digits_is_compressed_by_entropy_coding_only() {
    let by_lz4 = digits_kept("lz4", None);
    assert!(by_lz4 < 1000, "{by_lz4}");
    digits_kept("zstd", Some(5000));
    // By `auto` that is found.
    digits_kept("auto", Some(5000));
}

fn compressed_memory_is_written_back_when_full() {
    let pool = pool(32).set("zswap.max_pool_percent=20").build().unwrap();
    let r = pool.region(192 * MIB).unwrap();
    for g in 0..3 {
        put(&r, g);
        verify(&r, g);
    }
    let back = counter(&pool, "zswpwb");
    assert!(back > 1000, "{back} pages were written back");
    no_harm(&pool);
}

fn noise_is_not_kept() {
    let pool = pool(32).build().unwrap();
    let r = pool.region(96 * MIB).unwrap();
    for g in 0..2 {
        fill(&r, g);
        check(&r, g);
    }
    // But for pages that left before they were filled.
    let (kept, out) = (counter(&pool, "zswpout"), counter(&pool, "pswpout"));
    assert!(kept * 20 < out, "{kept} of {out} were kept");
    // Most pages were not even tried.
    let (poor, skipped) = (
        counter(&pool, "zswap_reject_compress_poor"),
        counter(&pool, "zswap_reject_skipped"),
    );
    assert!(skipped > poor * 8, "{poor} tried, {skipped} not");
    no_harm(&pool);
}

fn repeated_words_take_little() {
    let pool = pool(32).build().unwrap();
    let r = pool.region(128 * MIB).unwrap();
    for (i, w) in words(&r).iter().enumerate() {
        w.store((i / 512) as u64 + 1, Relaxed);
    }
    for (i, w) in words(&r).iter().enumerate() {
        assert_eq!(w.load(Relaxed), (i / 512) as u64 + 1);
    }
    let (takes, holds) = usage(&pool);
    assert!(
        holds > 40 * MIB as u64 && takes < 8 * MIB as u64,
        "{takes} {holds}"
    );
    no_harm(&pool);
}

fn room_is_given_back() {
    let pool = pool(64).build().unwrap();
    let r = pool.region(160 * MIB).unwrap();
    put(&r, 1);
    assert!(usage(&pool).1 > 0);
    drop(r);
    until("the room is free", || usage(&pool) == (0, 0));
    // And again.
    let r = pool.region(160 * MIB).unwrap();
    put(&r, 2);
    verify(&r, 2);
    no_harm(&pool);
}

fn a_child_reads_what_its_parent_compressed() {
    let pool = pool(32).set("thp.swapin=never").build().unwrap();
    let r = pool.region(40 * MIB).unwrap();
    put(&r, 1);
    for g in 2..3 {
        // The parent goes on: what the child may still read stays as it is.
        let pid = child(|| {
            verify(&r, g - 1);
            put(&r, g + 10);
            verify(&r, g + 10);
        });
        put(&r, g);
        verify(&r, g);
        ended_well(pid);
        verify(&r, g);
    }
    no_harm(&pool);
}

fn a_child_outlives_its_parent() {
    let pool = pool(64).build().unwrap();
    // The test's process looks on: its child has the memory, and ends before its own child does.
    let (mut from, to) = std::io::pipe().unwrap();
    let parent = child(|| {
        let r = pool.region(96 * MIB).unwrap();
        put(&r, 1);
        let pid = child(|| {
            std::thread::sleep(std::time::Duration::from_millis(300));
            verify(&r, 1);
            put(&r, 2);
            verify(&r, 2);
            std::io::Write::write_all(&mut &to, b"1").unwrap();
        });
        assert!(pid > 0);
        // SAFETY: ends this process at once, with nothing given back.
        unsafe { libc::_exit(0) };
    });
    ended_well(parent);
    drop(to);
    let mut said = [0; 1];
    std::io::Read::read_exact(&mut from, &mut said).expect("the grandchild's word");
}

fn the_dead_leave_nothing() {
    let pool = pool(64).build().unwrap();
    let pid = child(|| {
        let r = pool.region(128 * MIB).unwrap();
        put(&r, 1);
        assert!(usage(&pool).1 > 0);
        // SAFETY: this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
    ended(pid);
    // The next process that needs memory finds the dead.
    let r = pool.region(160 * MIB).unwrap();
    for g in 2..4 {
        put(&r, g);
        verify(&r, g);
    }
    drop(r);
    until("all is free", || usage(&pool) == (0, 0));
    no_harm(&pool);
}

fn it_can_be_turned_off_and_on() {
    let pool = pool(64).build().unwrap();
    let r = pool.region(128 * MIB).unwrap();
    for g in 0..2 {
        pool.set("zswap.enabled=always").unwrap();
        put(&r, g);
        assert!(usage(&pool).1 > 0);
        pool.set("zswap.enabled=never").unwrap();
        verify(&r, g);
        until("all is written back", || usage(&pool) == (0, 0));
        verify(&r, g);
    }
    no_harm(&pool);
}

fn an_area_is_taken_off_under_it() {
    let mut spec = hugeswap::SwapSpec::new("/var/tmp");
    spec.size = Some(512 << 20);
    let pool = pool(32).build().unwrap();
    let r = pool.region(96 * MIB).unwrap();
    put(&r, 1);
    let area = pool.swap_on(&spec).unwrap();
    let all = pool.swap_areas();
    let first = all.iter().map(|a| a.index).find(|&i| i != area).unwrap();
    pool.swap_off(first, |_| true).unwrap();
    verify(&r, 1);
    put(&r, 2);
    verify(&r, 2);
    no_harm(&pool);
}

fn pages_compress_under_a_storm() {
    let pool = pool(64)
        .set("debug.storm=50")
        .set("zswap.max_pool_percent=10")
        .build()
        .unwrap();
    let r = pool.region(80 * MIB).unwrap();
    put(&r, 0);
    write_by_threads(&r);
    verify_either(&r);
    assert!(counter(&pool, "zswpout") > 0);
    no_harm(&pool);
}

/// Four threads read words at random, which are as [`put`] made them in generation 0 or 7, and write
/// them as of 7; each has pages of its own.
pub fn write_by_threads(r: &Region) {
    std::thread::scope(|s| {
        for t in 0..4 {
            s.spawn(move || {
                let words = words(r);
                let mut random = t as u64 * 77 + 5;
                for _ in 0..20_000 {
                    let x = next(&mut random);
                    let page = x as usize % (r.len() / PAGE / 4) * 4 + t;
                    let i = page * 512 + (x >> 40) as usize % 512;
                    is_either(words, i);
                    words[i].store(sparse(i, 7), Relaxed);
                }
            });
        }
    });
}

/// Verifies what [`write_by_threads`] has left.
pub fn verify_either(r: &Region) {
    let words = words(r);
    (0..words.len()).for_each(|i| is_either(words, i));
}

fn is_either(words: &[std::sync::atomic::AtomicU64], i: usize) {
    let was = words[i].load(Relaxed);
    assert!(
        was == sparse(i, 0) || was == sparse(i, 7),
        "word {i}: {was:x}"
    );
}

/// Touches pages of a region at random, `n` times; a third of the touches write.
pub fn touch(r: &Region, n: usize, seed: u64) {
    let words = words(r);
    let mut x = seed;
    for _ in 0..n {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let word = &words[(x >> 20) as usize % (r.len() / PAGE) * 512 + 4];
        let was = word.load(Relaxed);
        if x.is_multiple_of(3) {
            word.store(was ^ 1, Relaxed);
        }
    }
}

/// With `auto`: pages that are wanted again, and compress, are.
fn pages_at_random_come_to_be_compressed() {
    let pool = pool(32).set("zswap.enabled=auto").build().unwrap();
    let r = pool.region(64 * MIB).unwrap();
    put(&r, 1);
    // (Should that never be, the harness ends it.)
    for round in 1.. {
        touch(&r, 1000, round);
        if counter(&pool, "zswpin") > 100 {
            break;
        }
    }
    no_harm(&pool);
}

/// With `auto`: pages that become next to nothing need no trial, which would need pages that came
/// back.
fn tiny_blocks_are_kept_before_any_came_back() {
    let builder = pool(32).set("zswap.enabled=auto");
    let pool = builder.set("thp.enabled=never").build().unwrap();
    let is_kept = (1..=100).any(|round| {
        let r = pool.region(128 * MIB).unwrap();
        for page in words(&r).chunks(PAGE / 8) {
            page[7].store(round, Relaxed);
        }
        assert_eq!(counter(&pool, "pswpin"), 0, "a page came back");
        counter(&pool, "zswpout") > 1000
    });
    assert!(is_kept, "all went to swap");
    assert!(usage(&pool).0 <= 16 * MIB as u64, "{:?}", usage(&pool));
    no_harm(&pool);
}

/// With `auto`: what does not compress is only looked at now and then.
fn noise_at_random_is_left_alone() {
    let pool = pool(64).set("zswap.enabled=auto").build().unwrap();
    let r = pool.region(128 * MIB).unwrap();
    fill(&r, 1);
    touch(&r, 10_000, 7);
    let (kept, out) = (counter(&pool, "zswpout"), counter(&pool, "pswpout"));
    assert!(kept * 20 < out, "{kept} of {out} were kept");
    assert!(usage(&pool).0 <= 8 * MIB as u64, "{:?}", usage(&pool));
    no_harm(&pool);
}

//! What the tests share.

use hugeswap::{Advice, Builder, FaultMode, Pool, Region, SwapSpec};
use hugeswap_engine::pool::{self, PoolConfig};
use hugeswap_engine::{Engine, EngineConfig};
use hugeswap_policy::knobs::Knob;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

pub const MIB: usize = 1 << 20;
pub const UNIT: usize = 2 * MIB;

static PIECES: AtomicBool = AtomicBool::new(false);

/// Runs a test as if userfaultfd were refused: units are base-mapped by pieces of 64 KiB, in signal mode.
pub fn with_pieces(test: fn()) {
    PIECES.store(true, Relaxed);
    test();
}

/// Does this test run by [`with_pieces`]?
pub fn in_pieces() -> bool {
    PIECES.load(Relaxed)
}

static ENCRYPTED: AtomicBool = AtomicBool::new(false);

/// Runs a test with swap encrypted.
pub fn with_encryption(test: impl FnOnce()) {
    ENCRYPTED.store(true, Relaxed);
    test();
}

/// Does this test run by [`with_encryption`]?
pub fn encrypted() -> bool {
    ENCRYPTED.load(Relaxed)
}

/// A pool with a budget of `memory` MiB and 2 GiB of swap on a disk.
pub fn builder(memory: usize) -> Builder {
    let mut spec = SwapSpec::new("/var/tmp");
    spec.size = Some(2 << 30);
    let builder = Pool::builder()
        .memory((memory * MIB) as u64)
        .swap_area(spec)
        .fault_mode(FaultMode::Signal)
        .encrypt(encrypted());
    if in_pieces() {
        builder.set("debug.userfaultfd=off")
    } else {
        builder
    }
}

/// Runs `test` in both fault modes, or says why not in message mode.
pub fn both_modes(test: impl Fn(FaultMode)) {
    test(FaultMode::Signal);
    if in_pieces() {
        return;
    }
    match builder(64).fault_mode(FaultMode::Message).build() {
        Ok(p) => {
            drop(p);
            test(FaultMode::Message);
        }
        Err(e) => println!("skipped in message mode: {e}"),
    }
}

/// An engine, for what the library has no way to do, with a budget of `memory` MiB and 1 GiB of swap; the caller stops
/// it. Where there is no message mode, a test that asks for it is skipped.
pub fn engine(memory: usize, mode: FaultMode, settings: &[(Knob, u64)]) -> &'static Engine {
    engine_with(memory, mode, settings, "/var/tmp").expect("a pool")
}

/// [`engine`], with swap in a directory, which may be in memory; `None` if there is no room.
pub fn engine_with(
    memory: usize,
    mode: FaultMode,
    settings: &[(Knob, u64)],
    directory: &str,
) -> Option<&'static Engine> {
    let spec = SwapSpec {
        size: Some(1 << 30),
        allow_tmpfs: true,
        ..SwapSpec::new(directory)
    };
    let mut settings = settings.to_vec();
    if in_pieces() {
        settings.push((Knob::Userfaultfd, 0));
    }
    settings.push((Knob::Encrypt, encrypted().into()));
    let config = PoolConfig {
        memory: (memory * MIB) as u64,
        swap: vec![spec],
        fault_mode: mode,
        settings,
    };
    let pool = pool::Pool::create(&config).ok()?;
    let config = EngineConfig {
        window: Some(1 << 30),
        ..EngineConfig::default()
    };
    match Engine::start(pool, config) {
        Ok(e) => Some(e),
        Err(e) if mode == FaultMode::Message => skip(&format!("no message mode: {e}")),
        Err(e) => panic!("{e}"),
    }
}

/// Skips the test where units cannot be base-mapped.
pub fn need_pages() {
    if in_pieces() {
        return;
    }
    match hugeswap_sys::uffd::open(hugeswap_sys::uffd::USER_MODE_ONLY, 0) {
        Ok((fd, _)) => hugeswap_sys::fs::close(fd),
        Err(e) => skip(&format!("no userfaultfd: {e}")),
    }
}

/// The descriptors of swap files in this process.
pub fn swap_fds() -> Vec<i32> {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter(|e| {
            std::fs::read_link(e.path())
                .is_ok_and(|l| l.to_string_lossy().starts_with("/var/tmp/#"))
        })
        .map(|e| e.file_name().to_string_lossy().parse().unwrap())
        .collect()
}

/// Ends the test's process as skipped.
pub fn skip(why: &str) -> ! {
    println!("skipped: {why}");
    std::process::exit(crate::SKIP);
}

/// Ends the test's process as skipped where units cannot be base-mapped (in signal mode).
pub fn need_base_pages() {
    match hugeswap_sys::uffd::open(hugeswap_sys::uffd::USER_MODE_ONLY, 0) {
        Ok((fd, _)) => hugeswap_sys::fs::close(fd),
        Err(e) => skip(&format!("no userfaultfd: {e}")),
    }
}

/// All of a region goes to swap. (On a busy machine one call may not be enough: it waits for a second or so.)
pub fn page_out(r: &mut Region) {
    let start = std::time::Instant::now();
    while (0..r.len()).step_by(4096).any(|at| r.is_resident(at)) {
        assert!(start.elapsed().as_secs() < 60, "it would not leave");
        r.advise(0, r.len(), Advice::PageOut).unwrap();
    }
}

/// A value for word `i` in generation `g` that no other word has.
pub fn value(i: usize, g: u64) -> u64 {
    (i as u64 ^ (g << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

pub fn words(r: &Region) -> &[std::sync::atomic::AtomicU64] {
    // SAFETY: a region is aligned, initialised memory, and AtomicU64 has the layout of u64.
    unsafe { std::slice::from_raw_parts(r.as_ptr().cast(), r.len() / 8) }
}

pub fn fill(r: &Region, g: u64) {
    use std::sync::atomic::Ordering::Relaxed;
    words(r)
        .iter()
        .enumerate()
        .for_each(|(i, w)| w.store(value(i, g), Relaxed));
}

pub fn check(r: &Region, g: u64) {
    use std::sync::atomic::Ordering::Relaxed;
    for (i, w) in words(r).iter().enumerate() {
        let v = w.load(Relaxed);
        assert_eq!(v, value(i, g), "word {i} of generation {g}");
    }
}

/// A counter by its name.
pub fn counter(pool: &Pool, name: &str) -> u64 {
    pool.stats()
        .counters
        .iter()
        .find(|c| c.0 == name)
        .unwrap()
        .1
}

/// Fills and checks a region three times.
pub fn three_rounds(pool: &Pool, len: usize) {
    let r = pool.region(len).unwrap();
    for g in 0..3 {
        fill(&r, g);
        check(&r, g);
    }
}

/// A field of /proc/self/status, KiB. (smaps would count what moves while it looks twice.)
pub fn proc_kib(file: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect("read proc");
    text.lines()
        .find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|v| v.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// Does `f` panic? (For forked children, which must not run the parent's way out.)
pub fn panics(f: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err()
}

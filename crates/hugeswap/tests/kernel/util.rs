//! Helpers of the tests.

use crate::room::{IN_MEMORY, memory_has_room};
use hugeswap::{Advice, Builder, FaultMode, ManagedRange, Pool, Region, SwapSpec};
use hugeswap_engine::pool::{self, PoolConfig};
use hugeswap_engine::{Engine, EngineConfig, Window};
use hugeswap_policy::knobs::{Knob, compress, parse_setting};
use std::ops::Range;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

pub const MIB: usize = 1 << 20;
pub const UNIT: usize = 2 * MIB;

static PIECES: AtomicBool = AtomicBool::new(false);

/// Runs a test as if userfaultfd were refused: units are base-mapped by pieces of 64 KiB, in signal
/// mode.
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

static SWAP_IN_MEMORY: AtomicBool = AtomicBool::new(false);

/// Pools have their swap in memory from now on, if there is room. So do tests that take long.
pub fn have_swap_in_memory() {
    SWAP_IN_MEMORY.store(memory_has_room(), Relaxed);
}

/// A pool with a budget of `memory` MiB and 2 GiB of swap.
pub fn builder(memory: usize) -> Builder {
    let in_memory = SWAP_IN_MEMORY.load(Relaxed);
    let directory = if in_memory { IN_MEMORY } else { "/var/tmp" };
    let spec = SwapSpec {
        size: Some(2 << 30),
        allow_tmpfs: in_memory,
        ..SwapSpec::new(directory)
    };
    let builder = Pool::builder()
        .memory((memory * MIB) as u64)
        .swap_area(spec)
        .fault_mode(FaultMode::Signal)
        .encrypt(encrypted());
    let builder = match in_pieces() {
        true => builder.set("debug.userfaultfd=off"),
        false => builder,
    };
    // (By `auto` a busy disk would decide, and tests look at what is in swap.)
    let builder = builder.set("swap.compress=never");
    settings_of_all()
        .iter()
        .fold(builder, |b, s| b.set(s.as_str()))
}

/// Settings of the environment for every pool, as `KEY=VALUE,KEY=VALUE`: see docs/testing.md.
fn settings_of_all() -> Vec<String> {
    let all = std::env::var("HUGESWAP_TEST_SETTINGS").unwrap_or_default();
    let settings = all.split(',').filter(|s| !s.is_empty());
    settings.map(String::from).collect()
}

static MODE: Mutex<Option<FaultMode>> = Mutex::new(None);

/// Runs a test that takes long in one of [`both_modes`]; the other mode is a test of its own.
pub fn in_mode(mode: FaultMode, test: fn()) {
    *MODE.lock().unwrap() = Some(mode);
    test();
}

/// Runs `test` in both fault modes, or says why not in message mode.
pub fn both_modes(test: impl Fn(FaultMode)) {
    let only = *MODE.lock().unwrap();
    if only != Some(FaultMode::Message) {
        test(FaultMode::Signal);
    }
    if in_pieces() || only == Some(FaultMode::Signal) {
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

/// An engine, for what the library has no way to do, with a budget of `memory` MiB and 1 GiB of
/// swap; the caller stops it. Where there is no message mode, a test that asks for it is skipped.
pub fn engine(memory: usize, mode: FaultMode, settings: &[(Knob, u64)]) -> &'static Engine {
    engine_with(memory, mode, settings, "/var/tmp").expect("a pool")
}

/// [`engine`] in signal mode, over addresses at which this process has mappings: the main range of its
/// window, and the far parts.
pub fn engine_over(memory: usize, main: Range<usize>, far: &[Range<usize>]) -> &'static Engine {
    let far = far.to_vec();
    let window = Window::Over { main, far };
    start_engine(memory, FaultMode::Signal, &[], "/var/tmp", window).expect("a pool")
}

/// [`engine`], with swap in a directory, which may be in memory; `None` if there is no room.
pub fn engine_with(
    memory: usize,
    mode: FaultMode,
    settings: &[(Knob, u64)],
    directory: &str,
) -> Option<&'static Engine> {
    let window = Window::Anywhere(1 << 30);
    start_engine(memory, mode, settings, directory, window)
}

fn start_engine(
    memory: usize,
    mode: FaultMode,
    settings: &[(Knob, u64)],
    directory: &str,
    window: Window,
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
    settings.push((Knob::SwapCompress, compress::NEVER));
    for setting in settings_of_all() {
        settings.push(parse_setting(&setting).expect("a setting"));
    }
    let config = PoolConfig {
        memory: (memory * MIB) as u64,
        swap: vec![spec],
        fault_mode: mode,
        settings,
    };
    let pool = pool::Pool::create(&config).ok()?;
    let config = EngineConfig {
        window,
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

/// Skips the test where the machine gives no huge pages.
pub fn need_huge_pages() {
    if !hugeswap_support::proc::gives_huge_pages() {
        skip("this machine gives no huge pages");
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

/// Puts all of a region in swap. (On a busy machine one call may not be enough, because it waits
/// for only about a second.)
pub fn page_out(r: &ManagedRange) {
    let start = std::time::Instant::now();
    while (0..r.len()).step_by(4096).any(|at| r.is_resident(at)) {
        assert!(start.elapsed().as_secs() < 60, "it would not leave");
        r.advise(0, r.len(), Advice::PageOut).unwrap();
    }
}

/// Waits until a condition is true, for long enough on any machine.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed().as_secs() < 100, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A pool of 32 MiB in which no unit is whole.
pub fn pool_of_pages() -> Pool {
    let pool = builder(32).set("thp.enabled=never");
    pool.set("thp.swapin=never").build().unwrap()
}

/// A value for word `i` in generation `g` that no other word has.
pub fn value(i: usize, g: u64) -> u64 {
    (i as u64 ^ (g << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

pub fn words(r: &ManagedRange) -> &[std::sync::atomic::AtomicU64] {
    // SAFETY: a region is aligned, initialised memory, and AtomicU64 has the layout of u64.
    unsafe { std::slice::from_raw_parts(r.as_ptr().cast(), r.len() / 8) }
}

pub fn fill(r: &ManagedRange, g: u64) {
    use std::sync::atomic::Ordering::Relaxed;
    words(r)
        .iter()
        .enumerate()
        .for_each(|(i, w)| w.store(value(i, g), Relaxed));
}

pub fn check(r: &ManagedRange, g: u64) {
    use std::sync::atomic::Ordering::Relaxed;
    for (i, w) in words(r).iter().enumerate() {
        let v = w.load(Relaxed);
        assert_eq!(v, value(i, g), "word {i} of generation {g}");
    }
}

/// The value of a counter, by its name.
pub fn counter(pool: &Pool, name: &str) -> u64 {
    pool.stats()
        .counters
        .iter()
        .find(|c| c.0 == name)
        .unwrap()
        .1
}

/// Checks that there was no error and nothing is lost. (A lack of room is not an error.)
pub fn no_harm(pool: &Pool) {
    for name in ["swap_write_error", "swap_read_error", "hwpoison"] {
        assert_eq!(counter(pool, name), 0, "{name}");
    }
}

/// Fills and checks a region three times.
pub fn three_rounds(pool: &Pool, len: usize) {
    let r = pool.region(len).unwrap();
    for g in 0..3 {
        fill(&r, g);
        check(&r, g);
    }
}

/// A field of /proc/self/status, in KiB. (smaps would count moving memory twice.)
pub fn proc_kib(file: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(file).expect("read proc");
    text.lines()
        .find_map(|l| l.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|v| v.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

/// By how much the anonymous memory of this process grows at most while `work` is done, KiB.
pub fn most_memory_beside(work: impl FnOnce()) -> u64 {
    let anonymous = || proc_kib("/proc/self/status", "RssAnon");
    let (before, peak) = (anonymous(), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(Relaxed) {
                peak.fetch_max(anonymous(), Relaxed);
            }
        });
        work();
        done.store(true, Relaxed);
    });
    peak.load(Relaxed).saturating_sub(before)
}

/// The number of memory files of shared regions that each thread of a process has open.
pub fn memory_files_of(pid: u32) -> Vec<usize> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let open = |task: std::fs::DirEntry| {
        let fds = std::fs::read_dir(task.path().join("fd")).ok()?;
        let links = fds
            .flatten()
            .filter_map(|f| std::fs::read_link(f.path()).ok());
        Some(
            links
                .filter(|l| l.to_string_lossy().starts_with("/memfd:hugeswap-shared"))
                .count(),
        )
    };
    tasks.flatten().filter_map(open).collect()
}

/// Does `f` panic? (For forked children, which must not run the parent's way out.)
pub fn panics(f: impl FnOnce()) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_err()
}

/// Forks a child that runs `f`, and exits with 0 unless `f` panics.
pub fn child(f: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child runs `f` and exits.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let wrong = panics(f);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(wrong)) };
    }
    assert!(pid > 0);
    pid
}

/// Waits for a child, and returns how it ended.
pub fn ended(pid: libc::pid_t) -> ExitStatus {
    let mut status = 0;
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    ExitStatus::from_raw(status)
}

/// Waits for a child, and checks that it ended well.
pub fn ended_well(pid: libc::pid_t) {
    let status = ended(pid);
    assert!(status.success(), "the child: {status}");
}

/// Forks a child that runs `f`, waits for it, and returns how it ended.
pub fn in_child(f: impl FnOnce()) -> ExitStatus {
    ended(child(f))
}

/// Discards page `page` of each unit, which is lost, and checks that it is zeros then and that all
/// other pages are as they were filled.
pub fn all_but_one_page_is_there(r: &mut Region, page: usize) {
    for unit in 0..r.len() / UNIT {
        r.discard(unit * UNIT + page * 4096, 4096).unwrap();
    }
    for (i, w) in words(r).iter().enumerate() {
        let lost = i / 512 % 512 == page;
        let want = if lost { 0 } else { value(i, 1) };
        assert_eq!(w.load(Relaxed), want, "word {i}");
    }
}

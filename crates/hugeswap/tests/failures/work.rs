//! The work of a run's process: everything that makes system calls, on little memory, with its
//! bytes verified. If the library refuses something, the run's result says so, and the work goes on
//! as a program would. A wrong byte or a failed audit ends the run.

use hugeswap::{Advice, FaultMode, Granularity, ManagedRange, Pool, SwapSpec};
use hugeswap_engine::pool::{self, PoolConfig};
use hugeswap_engine::{Engine, EngineConfig, Prot, Window};
use hugeswap_sys::inject::{self, Plan};
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

pub const UNIT: usize = 2 << 20;
const PAGE: usize = 4096;

/// How a run's process ends.
pub const WRONG: i32 = 3;
pub const TOLD: i32 = 4;
pub const LEAKED: i32 = 5;

/// Whether calls are only counted.
static COUNTS: AtomicBool = AtomicBool::new(false);

/// Whether the library has refused something, and reported it.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// The kind of pools in a run.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    mode: FaultMode,
    settings: &'static [&'static str],
}

pub const KINDS: &[Kind] = &[
    Kind {
        name: "signal",
        mode: FaultMode::Signal,
        settings: &[],
    },
    Kind {
        name: "pages",
        mode: FaultMode::Signal,
        settings: &[
            "thp.swapin=never",
            "thp.enabled=madvise",
            "swap.gather=always",
        ],
    },
    Kind {
        name: "pieces",
        mode: FaultMode::Signal,
        settings: &["debug.userfaultfd=off", "thp.swapin=never"],
    },
    Kind {
        name: "message",
        mode: FaultMode::Message,
        settings: &[],
    },
];

impl Kind {
    /// Are there shared regions?
    pub fn shares(&self) -> bool {
        self.mode == FaultMode::Signal
    }
}

fn refused(what: &str, why: &dyn std::fmt::Display) {
    println!("refused: {what}: {why}");
    REFUSED.store(true, Relaxed);
}

/// Prints `why` and ends the process.
fn end(status: i32, why: &str) -> ! {
    println!("{why}");
    // SAFETY: ends this process.
    unsafe { libc::_exit(status) }
}

/// The content of a page: words of a generation, zeros, or either if something was refused.
#[derive(Clone, Copy, PartialEq)]
enum Holds {
    Words(u64),
    Zeros,
    Either(u64),
    /// Words as they were before, or as a process was about to write them when it was killed.
    Between(u64, u64),
}

/// A process is killed (SIGKILL) at its nth system call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// A forked child, while it works on memory of its own.
    Private(u64),
    /// A forked child, while it works on memory that is shared with its parent.
    Shared(u64),
    /// A program that was started by exec, from its first call of joining the pool on.
    Joined(u64),
}

/// The environment variable for a process that is to join: the pool's ticket, the call at which it
/// dies (0: none), and the shared region's name if there is one.
pub const JOINS: &str = "HUGESWAP_TEST_JOINS";

fn value(i: usize, g: u64) -> u64 {
    (i as u64 ^ (g << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Managed memory and what it must hold, page by page.
struct Model {
    at: usize,
    pages: Vec<Holds>,
}

impl Model {
    fn new(at: usize, len: usize) -> Model {
        Model {
            at,
            pages: vec![Holds::Zeros; len / PAGE],
        }
    }

    fn word(&self, page: usize, i: usize) -> *mut u64 {
        ((self.at + page * PAGE) as *mut u64).wrapping_add(i)
    }

    fn fill(&mut self, pages: std::ops::Range<usize>, g: u64) {
        for page in pages {
            for i in (0..512).step_by(61) {
                // SAFETY: within memory that is mapped as long as the model lives.
                unsafe { self.word(page, i).write_volatile(value(page * 512 + i, g)) };
            }
            // (The words in between stay as they were.)
            self.pages[page] = Holds::Words(g);
        }
    }

    fn check(&self, what: &str) {
        for (page, holds) in self.pages.iter().enumerate() {
            for i in (0..512).step_by(61) {
                // SAFETY: as above.
                let is = unsafe { self.word(page, i).read_volatile() };
                let right = match *holds {
                    Holds::Words(g) => is == value(page * 512 + i, g),
                    Holds::Zeros => is == 0,
                    Holds::Either(g) => is == 0 || is == value(page * 512 + i, g),
                    Holds::Between(f, g) => [f, g].map(|g| value(page * 512 + i, g)).contains(&is),
                };
                if !right {
                    end(
                        WRONG,
                        &format!("WRONG {what}: page {page} word {i} is {is:#x}"),
                    );
                }
            }
        }
    }

    fn discarded(&mut self, pages: std::ops::Range<usize>, done: bool) {
        for p in &mut self.pages[pages] {
            *p = match *p {
                _ if done => Holds::Zeros,
                Holds::Words(g) => Holds::Either(g),
                other => other,
            };
        }
    }
}

fn advise(r: &ManagedRange, at: usize, len: usize, advice: Advice) -> bool {
    let done = r.advise(at, len, advice);
    done.inspect_err(|e| refused("advise", e)).is_ok()
}

fn swap_in(directory: &str) -> SwapSpec {
    SwapSpec {
        size: Some(256 << 20),
        allow_tmpfs: true,
        ..SwapSpec::new(directory)
    }
}

/// A pool with 16 MiB for everything.
fn pool(kind: Kind, directory: &str) -> Option<Pool> {
    let spec = swap_in(directory);
    let builder = Pool::builder()
        .memory(16 << 20)
        .swap_area(spec)
        .fault_mode(kind.mode);
    let builder = kind.settings.iter().fold(builder, |b, s| b.set(*s));
    let pool = builder.build();
    pool.inspect_err(|e| refused("a pool", e)).ok()
}

/// Does all of the work, with a plan from the very first call on. Ends the process.
pub fn run(kind: Kind, directory: &str, plan: Plan, die: Option<Death>) -> ! {
    inject::set(Some(plan));
    COUNTS.store(plan == Plan::Count && die.is_none(), Relaxed);
    library(kind, directory, die);
    if die.is_none() {
        engine(kind, directory);
    }
    tell_seen("seen");
    if inject::fired() {
        println!("fired");
    }
    let status = if REFUSED.load(Relaxed) { TOLD } else { 0 };
    end(status, "ended")
}

fn library(kind: Kind, directory: &str, die: Option<Death>) {
    let Some(pool) = pool(kind, directory) else {
        return;
    };
    let len = 14 * UNIT;
    let Ok(mut r) = pool.region(len).inspect_err(|e| refused("region", e)) else {
        return;
    };
    let all = 0..len / PAGE;
    let mut m = Model::new(r.as_ptr() as usize, len);
    m.fill(all.clone(), 1);
    m.check("filled");
    advise(&r, 0, len, Advice::PageOut);
    m.check("paged out");
    m.fill(100..700, 2);
    advise(&r, 0, len, Advice::WillNeed);
    m.check("written again");
    for (from, to) in [(3 * 512, 5 * 512), (6 * 512 + 10, 6 * 512 + 90)] {
        let done = r.discard(from * PAGE, (to - from) * PAGE);
        let done = done.inspect_err(|e| refused("discard", e)).is_ok();
        m.discarded(from..to, done);
    }
    m.check("discarded");
    m.fill(6 * 512..7 * 512, 3);
    match r.pin(UNIT, UNIT, true) {
        Ok(_pin) => m.fill(600..650, 4),
        Err(e) => refused("pin", &e),
    }
    match r.track_writes(Granularity::Pages) {
        Ok(epoch) => {
            m.fill(512 * 2..512 * 2 + 20, 5);
            match r.changed_since(&epoch) {
                Ok(changed) => {
                    let told = |at: usize| changed.iter().any(|c| c.contains(&at));
                    for page in 512 * 2..512 * 2 + 20 {
                        if !told(page * PAGE) {
                            end(
                                WRONG,
                                &format!("WRONG page {page} is not said to be changed"),
                            );
                        }
                    }
                }
                Err(e) => refused("changed since", &e),
            }
            r.stop_tracking();
        }
        Err(e) => refused("tracking", &e),
    }
    let mut snapshot = Vec::new();
    if let Err(e) = r.snapshot(&mut snapshot) {
        refused("snapshot", &e);
    }
    m.check("snapshot");
    let nth = match die {
        Some(Death::Private(nth)) => Some(nth),
        _ => None,
    };
    fork(&mut m, 6, nth);
    m.fill(0..300, 7);
    advise(&r, 0, len, Advice::PageOut);
    m.check("after the fork");
    // Single pages here and there.
    (0..4 * 512).step_by(2).for_each(|p| m.fill(p..p + 1, 9));
    advise(&r, 0, 4 * UNIT, Advice::PageOut);
    m.check("changed here and there");
    fork(&mut m, 8, None);
    if kind.shares() {
        let nth = match die {
            Some(Death::Shared(nth)) => Some(nth),
            _ => None,
        };
        shared(&pool, nth);
    }
    if let Some(Death::Joined(nth)) = die {
        joined(kind, &pool, &mut m, nth);
    }
    m.check("at last");
    if let Err(e) = pool.audit() {
        end(LEAKED, &format!("LEAKED {e}"));
    }
    drop(r);
    if let Err(e) = pool.audit() {
        end(LEAKED, &format!("LEAKED when all is given back: {e}"));
    }
}

/// Prints how many calls of each kind were made, if that is what the run is for.
fn tell_seen(when: &str) {
    if COUNTS.load(Relaxed) {
        for (k, n) in inject::seen() {
            println!("{when} {} {} {n}", k.nr, k.request);
        }
    }
}

/// A child writes and verifies; so does the parent meanwhile.
fn fork(m: &mut Model, g: u64, die: Option<u64>) {
    tell_seen("before");
    // SAFETY: the child goes on in this function and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        tell_seen("child");
        if let Some(nth) = die {
            inject::set(Some(Plan::Die(nth)));
        }
        m.check("in the child");
        m.fill(50..900, g);
        m.check("written in the child");
        if die.is_some() {
            println!("calls {}", inject::calls());
        }
        end(if REFUSED.load(Relaxed) { TOLD } else { 0 }, "child ended");
    }
    if pid < 0 {
        return refused("fork", &std::io::Error::last_os_error());
    }
    m.fill(200..400, g + 100);
    m.check("beside the child");
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => {}
        (true, TOLD) => REFUSED.store(true, Relaxed),
        (true, s) => end(s, "in the child"),
        (false, _) if die.is_some() && libc::WTERMSIG(status) == libc::SIGKILL => {}
        // It said why.
        (false, _) if libc::WTERMSIG(status) == libc::SIGBUS => REFUSED.store(true, Relaxed),
        (false, _) => end(WRONG, &format!("WRONG the child was ended by {status:#x}")),
    }
    m.check("after the child");
}

fn shared(pool: &Pool, die: Option<u64>) {
    let len = 8 * UNIT;
    let Ok(mut r) = pool
        .shared(len, "failures")
        .inspect_err(|e| refused("shared", e))
    else {
        return;
    };
    let mut m = Model::new(r.as_ptr() as usize, len);
    m.fill(0..len / PAGE, 1);
    advise(&r, 0, len, Advice::PageOut);
    m.check("shared");
    let done = r.remove(2 * UNIT, UNIT);
    let done = done.inspect_err(|e| refused("remove", e)).is_ok();
    m.discarded(1024..1536, done);
    let written = 300..900;
    // SAFETY: the child reads and writes, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        if let Some(nth) = die {
            inject::set(Some(Plan::Die(nth)));
        }
        m.check("shared, in the child");
        m.fill(written, 2);
        let done = advise(&r, 0, len, Advice::PageOut);
        m.check("shared, written in the child");
        if die.is_some() {
            println!("calls {}", inject::calls());
        }
        end(if done { 0 } else { TOLD }, "child ended");
    }
    let mut status = 0;
    if pid > 0 {
        // SAFETY: our own child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
    }
    let killed = libc::WIFSIGNALED(status) && die.is_some();
    match libc::WEXITSTATUS(status) {
        TOLD if libc::WIFEXITED(status) => REFUSED.store(true, Relaxed),
        0 => {}
        s if libc::WIFEXITED(status) => end(s, "in the child"),
        _ => {}
    }
    for page in &mut m.pages[written] {
        // A child that is not there, or that said why it ended, has written some of it, too.
        *page = match killed || pid < 0 || libc::WIFSIGNALED(status) {
            true => Holds::Between(1, 2),
            false => Holds::Words(2),
        };
    }
    m.check("shared, after the child");
    // What its end left half done is no hindrance to others.
    m.fill(0..len / PAGE, 3);
    advise(&r, 0, len, Advice::PageOut);
    m.check("shared, at last");
}

/// Another program joins the pool and dies there; its private memory and its share of shared memory
/// are given back.
fn joined(kind: Kind, pool: &Pool, m: &mut Model, nth: u64) {
    let len = 4 * UNIT;
    let name = if kind.shares() { "joined" } else { "" };
    let both: Result<Box<dyn Deref<Target = ManagedRange>>, _> = match kind.shares() {
        true => pool.shared(len, name).map(|r| Box::new(r) as _),
        false => pool.region(len).map(|r| Box::new(r) as _),
    };
    let Ok(both) = both.inspect_err(|e| refused("a region", e)) else {
        return;
    };
    let mut shared = Model::new(both.as_ptr() as usize, len);
    shared.fill(0..len / PAGE, 1);
    let child = Command::new(std::env::current_exe().expect("this program"))
        .env(JOINS, format!("{} {nth} {name}", pool.ticket()))
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => return refused("a process", &e),
    };
    for g in 9..12 {
        m.fill(200..900, g);
        m.check("beside another program");
    }
    let status = match child.wait() {
        Ok(status) => status,
        Err(e) => end(WRONG, &format!("WRONG the other program: {e}")),
    };
    match (status.code(), status.signal()) {
        (Some(0), _) | (None, Some(libc::SIGKILL)) => {}
        _ => end(WRONG, &format!("WRONG the other program ended by {status}")),
    }
    if kind.shares() {
        for page in &mut shared.pages[JOINER_WRITES] {
            *page = match status.code() {
                Some(_) => Holds::Words(2),
                None => Holds::Between(1, 2),
            };
        }
    }
    shared.check("after another program");
    shared.fill(0..len / PAGE, 3);
    shared.check("after another program, written");
}

/// Pages of the shared region that the joining program writes.
const JOINER_WRITES: std::ops::Range<usize> = 100..1200;

/// The program that joins: `what` is the value of [`JOINS`].
pub fn join(what: &str) -> ! {
    let mut words = what.split(' ');
    let (Some(ticket), Some(nth), Some(name)) = (words.next(), words.next(), words.next()) else {
        end(WRONG, "WRONG no ticket, number and name");
    };
    let nth: u64 = nth.parse().expect("a number");
    inject::set(Some(Plan::Die(nth)));
    let pool = Pool::join(ticket).unwrap_or_else(|e| end(WRONG, &format!("WRONG join: {e}")));
    let len = 8 * UNIT;
    let own = pool.region(len);
    let own = own.unwrap_or_else(|e| end(WRONG, &format!("WRONG region: {e}")));
    let mut m = Model::new(own.as_ptr() as usize, len);
    m.fill(0..len / PAGE, 1);
    if !name.is_empty() {
        let both = pool.attach_shared(name);
        let both = both.unwrap_or_else(|e| end(WRONG, &format!("WRONG attach: {e}")));
        let mut shared = Model::new(both.as_ptr() as usize, 4 * UNIT);
        for page in &mut shared.pages {
            *page = Holds::Words(1);
        }
        shared.check("shared, in another program");
        shared.fill(JOINER_WRITES, 2);
        advise(&both, 0, 4 * UNIT, Advice::PageOut);
        shared.check("shared, written in another program");
    }
    advise(&own, 0, len, Advice::PageOut);
    m.check("of another program");
    m.fill(300..1500, 2);
    m.check("of another program, written");
    println!("calls {}", inject::calls());
    end(0, "another program ended")
}

/// Does the work that only programs under `hugeswap run` do.
fn engine(kind: Kind, directory: &str) {
    let spec = swap_in(directory);
    let mut settings = Vec::new();
    for s in kind.settings {
        settings.push(hugeswap_policy::knobs::parse_setting(s).expect("a setting"));
    }
    let config = PoolConfig {
        memory: 16 << 20,
        swap: vec![spec],
        fault_mode: kind.mode,
        settings,
    };
    let pool = match pool::Pool::create(&config) {
        Ok(pool) => pool,
        Err(e) => return refused("a pool", &e),
    };
    let window = EngineConfig {
        window: Window::Anywhere(1 << 30),
        ..EngineConfig::default()
    };
    let e = match Engine::start(pool, window) {
        Ok(e) => e,
        Err(e) => return refused("an engine", &e),
    };
    let len = 6 * UNIT;
    let map = |len| e.map(len, PAGE, true).inspect_err(|e| refused("map", e));
    let (Ok(a), Ok(b)) = (map(len), map(len)) else {
        return;
    };
    let mut m = Model::new(a, len);
    m.fill(0..len / PAGE, 1);
    e.pageout(a, len / 2);
    e.move_range(a, b, len);
    m.at = b;
    m.check("moved");
    e.unmap(a, len);
    // To the kernel, in part changed there, and back.
    match e.eject(b, 2 * UNIT) {
        Ok(()) => m.check("the kernel's"),
        Err(e) => refused("eject", &e),
    }
    if kind.shares() {
        for access in [Prot::None, Prot::Read, Prot::ReadWrite] {
            if let Err(e) = e.protect(b + 3 * UNIT, 2 * UNIT, access) {
                refused("protect", &e);
            }
        }
        // What was refused may have left some of it closed.
        while e.protect(b + 3 * UNIT, 2 * UNIT, Prot::ReadWrite).is_err() {}
    }
    m.check("protected");
    // By pages, where those are to be had; what was taken can always be given back.
    let (at, len) = (b + 4 * UNIT + 17 * PAGE, 700 * PAGE);
    for access in [Prot::Read, Prot::None, Prot::Read] {
        let parts = [
            (at, b + 5 * UNIT - at),
            (b + 5 * UNIT, at + len - b - 5 * UNIT),
        ];
        let taken = parts.map(|(at, len)| e.protect_part(at, len, access));
        for ((at, len), _) in parts.into_iter().zip(taken).filter(|(_, taken)| *taken) {
            e.pageout(b + 4 * UNIT, 2 * UNIT);
            while !e.protect_part(at, len, Prot::ReadWrite) {}
        }
    }
    m.check("protected by pages");
    m.fill(5 * 512..6 * 512, 2);
    if let Err(e) = e.populate(b + 4 * UNIT, UNIT, true) {
        refused("populate", &e);
    }
    let done = e.discard(b + UNIT / 2, 2 * UNIT);
    m.discarded(256..256 + 1024, done.is_ok());
    m.check("discarded in part");
    e.unmap(b, len);
    let Ok(c) = map(12 * UNIT) else { return };
    let mut m = Model::new(c, 12 * UNIT);
    m.check("new");
    m.fill(0..12 * 512, 3);
    e.pageout(c, 12 * UNIT);
    m.check("used again");
    e.unmap(c, 12 * UNIT);
    if let Err(e) = e.audit() {
        end(LEAKED, &format!("LEAKED {e}"));
    }
    // SAFETY: nothing of its memory is used any more.
    unsafe { e.stop() };
}

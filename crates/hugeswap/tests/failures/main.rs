//! Every system call that the engine makes fails, once, in turn, with each error that it can have;
//! and a process of a pool ends at each of them. The result may be an error that is reported, but
//! no byte is wrong, nothing hangs, and nothing leaks.
//!
//! A run without failures counts the calls by kind. Then each failure is a run of its own, in a
//! process of its own, with a time limit for hangs. `cargo test -p hugeswap --features inject
//! --test failures` makes some of the runs, which a seed chooses; HUGESWAP_TEST_FAILURES=all makes
//! all of them, and HUGESWAP_TEST_FAILURES=SEED others. Each run that fails is named, and
//! HUGESWAP_TEST_RUN=NAME makes it alone.

mod errors;
#[path = "../kernel/room.rs"]
mod room;
mod work;

use errors::{errors_of, name_of};
use hugeswap_sys::Errno;
use hugeswap_sys::inject::{Kind, Plan};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Time limit of a run, for hangs only.
const LIMIT: Duration = Duration::from_secs(100);
/// The number of runs of each kind of pool, if not all are made.
const FEW: usize = 12;

/// One run: its kind of pools, and the failure or death in it.
#[derive(Clone)]
struct Run {
    pools: work::Kind,
    /// The call that fails, which one of its kind, and its error; `None`: no call fails.
    fails: Option<(Kind, u64, Errno)>,
    dies: Option<work::Death>,
}

impl Run {
    fn name(&self) -> String {
        let pools = self.pools.name;
        match (self.fails, self.dies) {
            (Some((k, nth, e)), _) => format!("{pools}:{}:{}:{nth}:{}", k.nr, k.request, e.0),
            (None, Some(work::Death::Private(nth))) => format!("{pools}:dies:{nth}"),
            (None, Some(work::Death::Shared(nth))) => format!("{pools}:dies-shared:{nth}"),
            (None, Some(work::Death::Joined(nth))) => format!("{pools}:dies-joined:{nth}"),
            (None, None) => format!("{pools}:counts"),
        }
    }

    fn words(&self) -> String {
        match self.fails {
            Some((k, nth, e)) => format!("{} ({}, number {nth}, {e})", self.name(), name_of(k)),
            None => self.name(),
        }
    }

    fn parse(name: &str) -> Option<Run> {
        let mut parts = name.split(':');
        let pools = parts.next()?;
        let pools = *work::KINDS.iter().find(|k| k.name == pools)?;
        let parts: Vec<&str> = parts.collect();
        let number = |i: usize| parts.get(i)?.parse::<u64>().ok();
        let mut run = Run {
            pools,
            fails: None,
            dies: None,
        };
        match parts.first().copied() {
            Some("counts") => {}
            Some("dies") => run.dies = Some(work::Death::Private(number(1)?)),
            Some("dies-shared") => run.dies = Some(work::Death::Shared(number(1)?)),
            Some("dies-joined") => run.dies = Some(work::Death::Joined(number(1)?)),
            _ => {
                let kind = Kind {
                    nr: number(0)? as u32,
                    request: number(1)? as u32,
                };
                run.fails = Some((kind, number(2)?, Errno(number(3)? as i32)));
            }
        }
        Some(run)
    }
}

/// The result of a run.
struct Came {
    said: String,
    /// Why the result is wrong, if it is.
    wrong: Option<String>,
}

fn directory() -> String {
    let parent = match room::memory_has_room() {
        true => room::IN_MEMORY,
        false => "/var/tmp",
    };
    format!("{parent}/hugeswap-failures-{}", std::process::id())
}

/// Makes a run in a process of its own.
fn make(run: &Run) -> Came {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .env("HUGESWAP_TEST_RUN", run.name())
        .env("HUGESWAP_TEST_CHILD", directory())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let reader = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = stream.map(|mut s| s.read_to_string(&mut text));
            text
        })
    };
    let out = reader(out.take().map(|s| Box::new(s) as Box<dyn Read + Send>));
    let err = reader(err.take().map(|s| Box::new(s) as Box<dyn Read + Send>));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break Some(status);
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let hung = status.is_none();
    let said = if hung {
        // (A child that hangs with it holds the pipes.)
        String::new()
    } else {
        out.join().expect("a reader") + &err.join().expect("a reader")
    };
    let told = said.contains("hugeswap: ");
    let wrong = match status {
        None => Some(format!("it hung for {LIMIT:?}")),
        Some(s) => match (s.code(), s.signal()) {
            (Some(0), _) => None,
            (Some(work::TOLD), _) if said.contains("refused: ") || told => None,
            (None, Some(libc::SIGBUS)) if told => None,
            (None, Some(libc::SIGKILL)) if told && said.contains("ending") => None,
            _ => Some(format!("it ended with {s}")),
        },
    };
    Came { said, wrong }
}

/// The calls of each kind that a run without failures has made, as it told them with a line that
/// begins with `when`.
fn told<'a>(said: &'a str, when: &'a str) -> impl Iterator<Item = (Kind, u64)> + 'a {
    said.lines().filter_map(move |l| {
        let numbers = l.strip_prefix(when)?.strip_prefix(' ')?;
        let mut n = numbers.split(' ').map(|n| n.parse::<u64>().ok());
        let kind = Kind {
            nr: n.next()?? as u32,
            request: n.next()?? as u32,
        };
        Some((kind, n.next()??))
    })
}

fn seen(said: &str) -> Vec<(Kind, u64)> {
    let mut all: Vec<_> = told(said, "seen").collect();
    all.sort();
    all
}

/// The calls that are made while the process forks, by parent and child, about: which of their kind.
fn made_by_forks(said: &str) -> Vec<(Kind, u64)> {
    /// Of a kind, at a fork.
    const MOST: usize = 12;
    let (mut before, mut all) = (BTreeMap::new(), Vec::new());
    for line in said.lines() {
        for (kind, n) in told(line, "before") {
            before.insert(kind, n);
        }
        for (kind, n) in told(line, "child") {
            let from = before.get(&kind).copied().unwrap_or(0);
            all.extend((from + 1..=n).take(MOST).map(|nth| (kind, nth)));
        }
    }
    all
}

fn random(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    seed.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

/// All runs with pools of a kind, from the output of a run without failures.
fn runs(pools: work::Kind, said: &str, seed: &mut u64) -> Vec<Run> {
    let mut all = Vec::new();
    for (kind, calls) in seen(said) {
        for &errno in errors_of(kind) {
            let mut nths = vec![1, calls / 2, calls, 1 + random(seed) % calls];
            nths.retain(|&n| n > 0);
            nths.sort();
            nths.dedup();
            all.extend(nths.iter().map(|&nth| Run {
                pools,
                fails: Some((kind, nth, errno)),
                dies: None,
            }));
        }
    }
    // What fails when there is a child, of which one call of its kind tells little.
    for (kind, nth) in made_by_forks(said) {
        all.extend(errors_of(kind).iter().take(1).map(|&errno| Run {
            pools,
            fails: Some((kind, nth, errno)),
            dies: None,
        }));
    }
    // (So many calls the child makes, about; beyond them it ends by itself.)
    for nth in (1..40).chain((40..2000).step_by(23)) {
        let mut deaths = vec![work::Death::Private(nth)];
        if pools.shares() {
            deaths.push(work::Death::Shared(nth));
        }
        all.extend(deaths.iter().map(|&death| Run {
            pools,
            fails: None,
            dies: Some(death),
        }));
    }
    // (A program that joins makes more, first of all to do so.)
    for nth in (1..120).chain((120..8000).step_by(61)) {
        all.push(Run {
            pools,
            fails: None,
            dies: Some(work::Death::Joined(nth)),
        });
    }
    all
}

fn main() -> ExitCode {
    if let Ok(what) = std::env::var(work::JOINS) {
        work::join(&what);
    }
    if let Ok(directory) = std::env::var("HUGESWAP_TEST_CHILD") {
        let name = std::env::var("HUGESWAP_TEST_RUN").expect("a run");
        let run = Run::parse(&name).expect("the name of a run");
        let plan = match run.fails {
            Some((kind, nth, errno)) => Plan::Fail(kind, nth, errno),
            None => Plan::Count,
        };
        work::run(run.pools, &directory, plan, run.dies);
    }
    let directory = directory();
    std::fs::create_dir_all(&directory).expect("a directory of ours");
    let failed = sweep();
    let left = std::fs::read_dir(&directory).map_or(0, Iterator::count);
    let _ = std::fs::remove_dir_all(&directory);
    if failed + left > 0 {
        println!("{failed} runs failed, {left} files are left");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn report(run: &Run, came: &Came) {
    if let Some(wrong) = &came.wrong {
        println!("FAILED {}: {wrong}", run.words());
        let lines: Vec<&str> = came.said.lines().collect();
        for line in &lines[lines.len().saturating_sub(12)..] {
            println!("    {line}");
        }
    }
}

/// Makes the runs, and returns how many failed.
fn sweep() -> usize {
    if let Ok(name) = std::env::var("HUGESWAP_TEST_RUN") {
        let run = Run::parse(&name).expect(
            "POOLS:NR:REQUEST:NTH:ERRNO, POOLS:dies:NTH, POOLS:dies-shared:NTH, POOLS:dies-joined:NTH or POOLS:counts",
        );
        let came = make(&run);
        println!("{}", came.said);
        report(&run, &came);
        return came.wrong.is_some().into();
    }
    let wish = std::env::var("HUGESWAP_TEST_FAILURES").unwrap_or_default();
    let mut seed = wish.parse::<u64>().unwrap_or(1) | 1 << 40;
    let mut all = Vec::new();
    for &pools in work::KINDS {
        if let Some(only) = std::env::var_os("HUGESWAP_TEST_POOLS")
            && only != pools.name
        {
            continue;
        }
        let count = Run {
            pools,
            fails: None,
            dies: None,
        };
        let came = make(&count);
        if came.said.contains("refused: ") && !came.said.contains("seen ") {
            println!(
                "skipped: {}: {}",
                pools.name,
                came.said.lines().next().unwrap_or("")
            );
            continue;
        }
        if came.wrong.is_some() || seen(&came.said).is_empty() {
            report(&count, &came);
            println!("{}", came.said);
            return 1;
        }
        let mut of_kind = runs(pools, &came.said, &mut seed);
        let planned = of_kind.len();
        if wish != "all" {
            for i in (1..of_kind.len()).rev() {
                of_kind.swap(i, (random(&mut seed) % (i as u64 + 1)) as usize);
            }
            of_kind.truncate(FEW);
        }
        println!("{}: {} of {planned} runs", pools.name, of_kind.len());
        all.extend(of_kind);
    }
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(0));
    let threads = std::thread::available_parallelism().map_or(1, usize::from) + 1;
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(run) = all.get(next.fetch_add(1, Relaxed)) {
                    let came = make(run);
                    let mut failed = failed.lock().expect("nobody panics");
                    report(run, &came);
                    *failed += usize::from(came.wrong.is_some());
                }
            });
        }
    });
    println!("{} runs", all.len());
    failed.into_inner().expect("nobody panics")
}

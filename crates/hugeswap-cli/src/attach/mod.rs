//! `hugeswap attach`: manages the memory of a program that runs already, and gives it back.
//!
//! The program is stopped for some milliseconds, in which the object is loaded into it
//! ([`agent`]) and each of its threads gets what the object needs ([`stopped`]). It goes on, and its
//! memory is taken over while it runs. [`ranges`] has what of it can be, [`target`] whether the
//! program can be attached at all. This process has the pool, and stays until the program has ended
//! or its memory is given back.

mod agent;
pub mod detach;
mod leaving;
mod loader;
mod ranges;
mod stopped;
mod target;

use crate::run;
use crate::run::footprint::Footprint;
use crate::run::limit::{self, Follower, Limits, Stop, Wanted};
use crate::run::report::{End, LimitReport, Outcome, Sink};
use crate::run::unmanaged::Requests;
use agent::{Agent, Orders};
use anyhow::{Context, Result, bail};
use hugeswap_engine::pool::{FaultMode, Pool, Report, machine_memory};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_support::interrupt::{check_interrupted, forget_interrupt, watch_signals};
use hugeswap_support::proc::StatusFile;
use hugeswap_support::text::bytes;
use hugeswap_sys::attach::{Thread, command, step};
use hugeswap_sys::{process, signal};
use ranges::Place;
use rustix::time::Timespec;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};
use stopped::Stopped;
use target::Target;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap attach 4711                  within the limit of its control group (container), until it
                                        ends, or Ctrl-C gives its memory back
  hugeswap attach 4711 --memory 2G
  hugeswap attach $(pgrep -n python3) --memory 2G --swap /mnt/fast,size=50G
  hugeswap detach 4711                  gives it back, from elsewhere

The program is stopped for some milliseconds, and then goes on while its memory is taken over: private
anonymous memory, in whole pieces of 2 MiB. All of its system calls take about 2 us longer for as long
as it is attached. What it executes is not managed. It must be this user's, and traceable (ptrace);
programs with io_uring, asynchronous I/O or a seccomp filter are refused. SIZE is a number with K, M, G or T.";

/// Arguments of `hugeswap attach`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The process
    #[arg(value_name = "PID")]
    pid: i32,
    /// Managed memory that the program may have in memory; what is not managed comes on top. auto (the
    /// default): all of its memory stays within the limit of its control group (container), or, without
    /// one, within what the machine has available
    #[arg(long, value_name = "SIZE|auto")]
    memory: Option<String>,
    /// Limit for all memory of the program and its children, managed or not
    #[arg(long, value_name = "SIZE")]
    total: Option<String>,
    /// Directory for swap, or a swap file, as for `hugeswap run`; may be repeated
    #[arg(long, value_name = "PATH|mem[,size=SIZE][,pri=N]")]
    swap: Vec<String>,
    /// Encrypt what goes to swap (AES-256-GCM, under a key that is never written anywhere)
    #[arg(long)]
    encrypt: bool,
    /// Change a setting; may be repeated (`hugeswap run --help` lists them)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Say nothing but errors, and report only to --report-file
    #[arg(long, short)]
    quiet: bool,
    /// The report at the end
    #[arg(long, value_name = "FORMAT", default_value = "human", value_enum)]
    report: run::options::Format,
    /// Write the report to FILE, not to standard error
    #[arg(long, value_name = "FILE")]
    report_file: Option<PathBuf>,
    /// Write an empty line to this open descriptor when the program is attached (for whoever starts this)
    #[arg(long, value_name = "FD")]
    ready_fd: Option<u32>,
}

/// Attaches a program, and stays with it; returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    let wanted = limit::parse(args.memory.as_deref(), args.total.as_deref())?;
    let ready = args.ready_fd.map(descriptor).transpose()?;
    let target = Target::of(args.pid)?;
    let command = target.command();
    let limits = Limits::of_process(wanted, target.pid);
    let memory = match (wanted, &limits) {
        (Wanted::Memory(bytes), _) => bytes,
        (_, Some(limits)) => limits.first_budget(limit::held_by(target.pid)).0,
        (_, None) => unreachable!("only a fixed budget has no limits"),
    };
    let config = run::pool_config(run::Given {
        memory,
        swap: &args.swap,
        encrypt: args.encrypt,
        fault_mode: FaultMode::Signal,
        settings: &args.set,
    })?;
    run::check_mover(FaultMode::Signal)?;
    watch_signals()?;
    let pool = Pool::create(&config)?;
    // To give the memory back, all of it has to fit.
    pool.raise_ceiling(machine_memory());
    let _ = process::let_trace(process::pid());
    let format = match args.quiet && args.report_file.is_none() {
        true => run::options::Format::None,
        false => args.report,
    };
    let mut sink = Sink::open(format, args.report_file.as_deref())?;
    let begun = Instant::now();
    let attached = match attach(&target, &pool, limits.is_some()) {
        Ok(attached) => attached,
        Err(e) => {
            sink.discard();
            return Err(e);
        }
    };
    if let Some(mut ready) = ready {
        // (Nobody may be waiting any more.)
        let _ = ready.write_all(b"\n");
    }
    let say = |line: String| {
        if !args.quiet {
            eprintln!("hugeswap: {line}");
        }
    };
    say(format!(
        "{target}: stopped for {:.0} ms; {} of its memory can be managed, in {}",
        attached.stopped.as_secs_f64() * 1e3,
        bytes(attached.adoptable),
        limits.as_ref().map_or(bytes(memory), Limits::describe),
    ));
    let rest: u64 = attached.left_out.iter().map(|(_, n)| n).sum();
    if rest > attached.adoptable / 10 {
        let mut causes = Vec::new();
        for (cause, n) in attached.left_out.iter().filter(|(_, n)| *n >= 1 << 20) {
            causes.push(format!("{} {cause}", bytes(*n)));
        }
        say(format!("not managed: {}", causes.join(", ")));
    }
    let stay = Stay {
        target: &target,
        pool: &pool,
        limits: limits.as_ref(),
        begun,
        say: &say,
    };
    let mut footprint = Footprint::new(target.pid);
    let done = std::thread::scope(|scope| attached.stay(&stay, &mut footprint, scope))?;
    let elapsed = begun.elapsed();
    match &done {
        Done::Ended if is_alive(target.pid) => say(format!(
            "process {} executes another program now, whose memory is not managed",
            target.pid
        )),
        Done::Ended => say(target.gone()),
        Done::GivenBack {
            stopped, is_clean, ..
        } => {
            say(format!(
                "{target} goes on by itself, after it was stopped for {:.0} ms: its memory was given back",
                stopped.as_secs_f64() * 1e3
            ));
            if !is_clean {
                say("a thread of it is in a call that began before: hugeswap's code stays in it, and it cannot be attached again".into());
            }
        }
    }
    let (ended, figures) = match done {
        Done::Ended => (End::OfAttached, Figures::of(&pool, limits.as_ref())),
        Done::GivenBack { figures, .. } => (End::GivenBack, *figures),
    };
    let Figures { report, limit } = figures;
    let mut unmanaged = footprint.end(&pool, 0, report.peak_resident_bytes);
    // (What the program has started runs on, whether it was attached or not.)
    unmanaged.left.clear();
    let outcome = Outcome {
        elapsed,
        ended,
        core_dumped: false,
        command: &command,
        managed: Requests::Attached,
        unmanaged,
        limit,
    };
    sink.write(&outcome, &report);
    Ok(0)
}

/// A descriptor that this process was started with, to write to.
fn descriptor(fd: u32) -> Result<std::fs::File> {
    let opened = std::fs::File::options()
        .write(true)
        .open(format!("/proc/self/fd/{fd}"));
    opened.with_context(|| format!("--ready-fd {fd} cannot be written to"))
}

/// What a report says of the pool.
struct Figures {
    report: Report,
    limit: Option<LimitReport>,
}

impl Figures {
    fn of(pool: &Pool, limits: Option<&Limits>) -> Figures {
        let followed = limits.zip(pool.followed_limit());
        Figures {
            report: pool.report(),
            limit: followed.map(|(limits, f)| LimitReport::of(limits, f, pool)),
        }
    }
}

/// Between two looks at a program that is attached.
const PAUSE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// How it ended.
enum Done {
    Ended,
    /// Its memory was given back.
    GivenBack {
        /// It was stopped for so long.
        stopped: Duration,
        /// Nothing of hugeswap's is left in it.
        is_clean: bool,
        /// The figures as that began: all of its memory has come in since.
        figures: Box<Figures>,
    },
}

/// A program that is attached.
struct Attached {
    agent: Agent,
    /// The address of an instruction `syscall` of the program's own.
    syscall: u64,
    adoptable: u64,
    /// Bytes that are not, by cause.
    left_out: Vec<(&'static str, u64)>,
    /// How long the program was stopped.
    stopped: Duration,
}

/// Loads the object into the program, and has its threads go on in it.
fn attach(target: &Target, pool: &Pool, follows: bool) -> Result<Attached> {
    let object = run::object_file()?;
    let memory = agent::memory(target.pid)?;
    let known = target.mappings()?;
    let vdso = known.iter().find(|m| m.name == "[vdso]");
    let vdso = vdso.context("the program has no vDSO")?;
    let syscall = agent::find_syscall(&memory, vdso.at.clone())?;
    let (mut stopped, begun, threads, places) = stop_outside_handlers(target, syscall, &memory)?;
    let mappings = target.mappings_as_of(&known)?;
    let ranges = ranges::adoptable(&mappings, &places);
    let Some(window) = ranges::window(&ranges, &mappings) else {
        bail!("{target} has no memory that can be managed: nothing was changed",);
    };
    let ranges: Vec<_> = ranges.into_iter().filter(|r| window.has(r)).collect();
    let left_out = ranges::left_out(&known, &ranges, &window);
    let me = process::pid();
    let orders = Orders {
        environment: vec![
            format!("LD_PRELOAD=/proc/{me}/fd/{}", object.as_raw_fd()).into_bytes(),
            format!("{}={me}:{}", hugeswap_support::POOL_VARIABLE, pool.fd()).into_bytes(),
        ],
        window: &window,
        follows,
        ranges: &ranges,
        threads: &threads,
    };
    let agent = Agent::load(target.pid, &mut stopped.threads[0], syscall, &orders)?;
    let set_up = set_up_threads(&agent, &mut stopped, syscall, &memory);
    if let Err(e) = set_up {
        agent.tell(command::END)?;
        agent.wait(&[step::ENDED, step::STAYS], || is_alive(target.pid))?;
        let _ = agent::watch(&mut stopped, agent.syscall()?, None);
        return Err(e);
    }
    agent.tell(command::ADOPT)?;
    stopped.let_go();
    Ok(Attached {
        agent,
        syscall,
        adoptable: ranges.iter().map(|r| r.end - r.start).sum(),
        left_out,
        stopped: begun.elapsed(),
    })
}

/// Stops the program where no thread of it runs a signal handler on an alternate stack, which would
/// have to stay as it is: since when it is stopped, and what its threads have.
fn stop_outside_handlers(
    target: &Target,
    syscall: u64,
    memory: &std::fs::File,
) -> Result<(Stopped, Instant, Vec<Thread>, Vec<Place>)> {
    const PATIENCE: Duration = Duration::from_secs(5);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let begun = Instant::now();
        let mut stopped = stopped::stop(target)?;
        match look_at_threads(&mut stopped, target, syscall, memory)? {
            Some((threads, places)) => return Ok((stopped, begun, threads, places)),
            None if Instant::now() > deadline => {
                bail!("a thread of {target} stays in a signal handler: try again",)
            }
            None => stopped.let_go(),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What each of the stopped threads has; `None`: one is in a signal handler.
fn look_at_threads(
    stopped: &mut Stopped,
    target: &Target,
    syscall: u64,
    memory: &std::fs::File,
) -> Result<Option<(Vec<Thread>, Vec<Place>)>> {
    let mut registers = Vec::new();
    for t in &stopped.threads {
        let r = t.registers()?;
        if r.gs_base != 0 {
            bail!("{target} uses the register GS, which hugeswap needs");
        }
        registers.push(r);
    }
    // (Below a stack pointer there may be anything: the stacks of some runtimes are short.)
    const ROOM: u64 = 4096;
    let locked = target.locked_memory()?;
    let room = agent::map(&mut stopped.threads[0], syscall, 0, ROOM)?;
    // (Hugeswap's segment and window would be in memory, with all that they have room for.)
    if target.locked_memory()? != locked {
        agent::unmap(&mut stopped.threads[0], syscall, room, ROOM)?;
        bail!("{target} locks all memory that it will have (mlockall): start it by `hugeswap run`");
    }
    let (mut threads, mut places) = (Vec::new(), Vec::new());
    let mut in_handler = false;
    for (t, r) in stopped.threads.iter_mut().zip(registers) {
        let (stack, is_on_it) = agent::alternate_stack(t, syscall, memory, room, None)?;
        in_handler |= is_on_it;
        threads.push(Thread {
            tid: t.tid() as u64,
            mask: t.mask()?,
            stack,
            ..Thread::default()
        });
        places.push(Place {
            stack_pointer: r.rsp,
            thread_pointer: r.fs_base,
            alternate_stack: stack,
        });
    }
    agent::unmap(&mut stopped.threads[0], syscall, room, ROOM)?;
    Ok((!in_handler).then_some((threads, places)))
}

/// Gives each of the threads what the agent has prepared for it.
fn set_up_threads(
    agent: &Agent,
    stopped: &mut Stopped,
    syscall: u64,
    memory: &std::fs::File,
) -> Result<()> {
    for (i, t) in stopped.threads.iter_mut().enumerate() {
        let (gs, stack) = agent.for_thread(i)?;
        if stack[1] != 0 {
            agent::alternate_stack(t, syscall, memory, agent.scratch(), Some(stack))?;
        }
        let mut r = t.registers()?;
        r.gs_base = gs;
        t.set_registers(&r)?;
        t.set_mask(t.mask()? & !signal::TOLD)?;
    }
    let passing = agent.passing()?;
    agent::watch(stopped, syscall, Some(&passing))
}

/// What it takes to stay with a program.
struct Stay<'a> {
    target: &'a Target,
    pool: &'a Pool,
    limits: Option<&'a Limits>,
    begun: Instant,
    say: &'a dyn Fn(String),
}

/// A thread by which the budget follows the limits, until this is dropped.
struct Following<'s> {
    stop: Arc<Stop>,
    thread: Option<ScopedJoinHandle<'s, ()>>,
}

impl<'s> Following<'s> {
    /// `None`: the budget is fixed.
    fn start<'e: 's>(stay: &Stay<'e>, scope: &'s Scope<'s, 'e>) -> Result<Option<Following<'s>>> {
        let (pool, Some(limits)) = (stay.pool, stay.limits) else {
            return Ok(None);
        };
        let stop = Arc::new(Stop::new().context("cannot follow the limit")?);
        let follower = Follower::new(limits, pool, stay.target.pid);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("hs-limit".into())
            .spawn_scoped(scope, move || follower.follow(pool, &stopped))
            .context("cannot follow the limit")?;
        let thread = Some(thread);
        Ok(Some(Following { stop, thread }))
    }
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Attached {
    /// Waits until the program has ended, or this process is asked to end.
    fn stay<'s, 'e: 's>(
        &self,
        stay: &Stay<'e>,
        footprint: &mut Footprint,
        scope: &'s Scope<'s, 'e>,
    ) -> Result<Done> {
        let Stay {
            target, pool, say, ..
        } = *stay;
        let mut told = false;
        let mut following = None;
        loop {
            let at = self.agent.step();
            let (Ok(at), true) = (at, is_alive(target.pid)) else {
                return Ok(Done::Ended);
            };
            if at == step::ADOPTED && !told {
                told = true;
                following = Following::start(stay, scope)?;
                let why = self.agent.complaint();
                say(match why.is_empty() {
                    true => format!(
                        "{} are managed, after {:.1} s",
                        bytes(self.agent.adopted()?),
                        stay.begun.elapsed().as_secs_f64()
                    ),
                    false => format!("{} are managed; {why}", bytes(self.agent.adopted()?)),
                });
            }
            if check_interrupted().is_err() {
                say("giving the program's memory back".into());
                drop(following.take());
                let why = match self.give_back(target, pool, stay.limits) {
                    Ok(Some(done)) => return Ok(done),
                    Ok(None) if stay.limits.is_some() => self.agent.complaint(),
                    Ok(None) => format!(
                        "{}; it may have all memory that there is",
                        self.agent.complaint()
                    ),
                    Err(_) if !is_alive(target.pid) => return Ok(Done::Ended),
                    Err(e) => format!("{e:#}"),
                };
                crate::complain(&format!("{target} stays attached: {why}"));
                // It can be asked again.
                forget_interrupt();
                following = Following::start(stay, scope)?;
            }
            if told {
                footprint.sample_if_due(pool);
            }
            pool.reap();
            pool.serve();
            // (A signal ends it: somebody waits for the memory.)
            let _ = rustix::thread::nanosleep(&PAUSE);
        }
    }

    /// Gives the program's memory back, and leaves it. `None`: there is not enough for that. (What
    /// was given back stays so, and a small budget would leave nothing for the rest.)
    fn give_back(
        &self,
        target: &Target,
        pool: &Pool,
        limits: Option<&Limits>,
    ) -> Result<Option<Done>> {
        check_that_it_fits(target.pid, pool)?;
        let figures = Box::new(Figures::of(pool, limits));
        pool.set_budget(u64::MAX);
        self.agent.tell(command::GIVE_BACK)?;
        let serve = || {
            pool.reap();
            pool.serve();
            is_alive(target.pid)
        };
        if self.agent.wait(&[step::GIVEN_BACK, step::STAYS], serve)? == step::STAYS {
            self.stays(target)?;
            return Ok(None);
        }
        let syscall = self.agent.syscall()?;
        let begun = Instant::now();
        let mut stopped = stopped::stop_attached(target)?;
        self.agent.tell(command::END)?;
        let ended = [step::ENDED, step::STAYS];
        let at = self.agent.wait(&ended, || is_alive(target.pid))?;
        if at == step::ENDED {
            agent::watch(&mut stopped, syscall, None)?;
        }
        stopped.let_go();
        if at == step::STAYS {
            self.stays(target)?;
            return Ok(None);
        }
        let stopped = begun.elapsed();
        // (Where it cannot be looked at, it stays as it is.)
        let is_clean = leaving::leave(target, &self.agent, self.syscall).unwrap_or(false);
        Ok(Some(Done::GivenBack {
            stopped,
            is_clean,
            figures,
        }))
    }

    /// Takes note that not all could be given back; it can be asked for again.
    fn stays(&self, target: &Target) -> Result<()> {
        self.agent.tell(command::NONE)?;
        let goes_on = || is_alive(target.pid);
        self.agent.wait(&[step::ADOPTED], goes_on).map(drop)
    }
}

/// An error unless a program's limits have room for all of its memory.
fn check_that_it_fits(pid: i32, pool: &Pool) -> Result<()> {
    let there = pool.used_frames() * UNIT_BYTES;
    let more = pool.touched_bytes().saturating_sub(there);
    let Some(limits) = Limits::of_process(Wanted::Auto, pid) else {
        return Ok(());
    };
    let (room, whose) = limits.room(0);
    if more > room {
        bail!(
            "{} of its memory are not in memory now, and {} has room for {}: free memory, or raise the limit",
            bytes(more),
            whose,
            bytes(room)
        );
    }
    Ok(())
}

fn is_alive(pid: i32) -> bool {
    let status = StatusFile::open(pid).and_then(|s| s.read());
    status.is_some_and(|s| !s.is_zombie)
}

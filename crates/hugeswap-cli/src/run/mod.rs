//! `hugeswap run`: checks everything that can be checked, makes the pool, starts the program with the
//! object injected, stands in for it until it ends, and reports.
//!
//! Nothing has a name outside this process: the object is in a memory file, swap in files without names,
//! the pool in a segment, and the program finds all of them through `/proc/PID/fd`. So nothing is left
//! behind, however this process ends, except names that the program itself gave to shared memory.

pub mod advice;
mod compressed;
mod config;
pub mod footprint;
pub mod limit;
pub mod loader;
mod object;
pub mod options;
pub mod outside;
pub mod preflight;
pub mod report;
mod supervise;
pub mod unmanaged;
mod warnings;

use crate::doctor::facts;
use crate::exporter::{self, serve::Listening};
use crate::record::watch::{self, Recording};
use crate::stat::log;
use anyhow::{Context, Result, bail};
use hugeswap_engine::pool::swap::default_area;
use hugeswap_engine::pool::{FaultMode, Pool, PoolConfig, SwapSpec, SwapSpecError};
use hugeswap_policy::knobs::{self, Knob, small};
use hugeswap_support::{POOL_VARIABLE, PROGRAM_VARIABLE, STATIC_VARIABLE};
use hugeswap_sys::{Errno, probe, process, spawn};
use limit::{Follower, Limits, Stop, Wanted};
use options::{Format, Mode, Options, Static};
use preflight::Way;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The object that is injected.
static OBJECT: &[u8] = include_bytes!(env!("HUGESWAP_PRELOAD_OBJECT"));
/// The object with the allocator of small blocks, which is injected beside it.
static SMALL_OBJECT: &[u8] = include_bytes!(env!("HUGESWAP_SMALL_OBJECT"));

/// Tells tcmalloc to use `mmap` only; a value that the user has set stays.
const TCMALLOC_VARIABLE: &str = "TCMALLOC_SKIP_SBRK";

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap run --memory 600M -- sort -S 2G big.txt -o sorted.txt
  hugeswap run --total 1G -- python3 job.py          everything it uses stays below 1 GiB
  docker run --memory 1g IMAGE hugeswap run -- python3 job.py          within the container's limit
  hugeswap run --small --memory 2G -- python3 dictionaries.py
  hugeswap run --config job.toml -- python3 job.py          its options are in a file
  hugeswap run --memory 2G --swap /mnt/fast,size=50G --report json --report-file r.json -- python3 job.py

Exit status, signals, standard streams and working directory are the program's. Errors before it
starts exit with status 2. SIZE is a number with K, M, G or T.";

/// Arguments of `hugeswap run`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = long_help(EXAMPLES))]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// The program and its arguments
    #[arg(value_name = "PROG", required = true, last = true)]
    program: Vec<OsString>,
}

/// Examples, and all settings.
pub fn long_help(examples: &str) -> String {
    format!("{examples}\n\nSETTINGS for --set:\n{}", settings_help())
}

fn settings_help() -> String {
    let line = |k: &Knob| {
        let value = crate::text::setting(*k, k.default_value());
        format!("  {:<18} {} (default {value})", k.name(), k.doc())
    };
    Knob::ALL.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Runs the program; returns its exit status.
pub fn run(args: Args) -> Result<i32> {
    start(args.options, &args.program, None)
}

/// Runs `program` and its arguments, and records it if that is wanted; returns its exit status.
pub fn start(options: Options, program: &[OsString], record: Option<&Path>) -> Result<i32> {
    // First, before this process opens anything: the descriptors that it was started with are the program's.
    let inherited = supervise::inherited_descriptors();
    let options = &config::complete(options, |name| std::env::var(name).ok())?;
    let wanted = Wanted::of(options)?;
    let limits = Limits::of(wanted);
    let (memory, ceiling) = match (wanted, &limits) {
        (Wanted::Memory(bytes), _) => (bytes, bytes),
        (_, Some(limits)) => limits.first_budget(0),
        (_, None) => unreachable!("only a fixed budget has no limits"),
    };
    let config = config(options, memory)?;
    if std::env::var_os(POOL_VARIABLE).is_some() {
        bail!(
            "this already runs inside hugeswap run, whose budget holds for everything in it: start the program directly"
        );
    }
    check_surroundings(wanted)?;
    let found = preflight::find(&program[0])?;
    check_way(&found.program, found.way, &config)?;
    let loads = check_loading(&config, "--static");
    let loads = match options.static_programs.unwrap_or(Static::Auto) {
        Static::Auto => loads.is_ok(),
        Static::On => loads.map(|()| true)?,
        Static::Off => false,
    };
    check_mover(config.fault_mode)?;
    let pool = Pool::create(&config)?;
    pool.raise_ceiling(ceiling);
    // For shared memory the program's processes open each other's descriptors; they try with those of this
    // process whether they may.
    let _ = process::let_trace(process::pid());
    let mut objects = vec![object_file()?];
    let mut small = pool.knob(Knob::Small);
    if small == small::AUTO && SMALL_OBJECT.is_empty() {
        small = small::OFF;
    }
    if small != small::OFF {
        if SMALL_OBJECT.is_empty() {
            bail!(
                "this build has no allocator of small blocks (--small): install make, and build hugeswap again"
            );
        }
        objects.push(object::file(SMALL_OBJECT)?);
    }
    let mut env = environment(&pool, &objects)?;
    if !loads {
        env.push(named(STATIC_VARIABLE, OsStr::new("off"))?);
    }
    let given = match found.before.is_empty() {
        true => program,
        false => &program[1..],
    };
    let argv = found
        .before
        .iter()
        .chain(given)
        .map(c_string)
        .collect::<Result<Vec<_>>>()?;
    let path = match found.way {
        Way::Preloaded => c_string(&found.path.clone().into_os_string())?,
        // The object, in this executable, loads the program.
        Way::Loaded => {
            env.push(named(PROGRAM_VARIABLE, found.program.as_os_str())?);
            c_string(&format!("/proc/{}/exe", process::pid()).into())?
        }
    };
    let mut sink = report::Sink::open(
        options.report.unwrap_or(Format::Human),
        options.report_file.as_deref(),
    )?;

    if options.wait_all {
        process::adopt_orphans()
            .context("--wait-all: this kernel does not say when processes in the background end")?;
    }
    let supervisor = supervise::Supervisor::new()?;
    let serving = options.metrics.as_ref().map(Listening::at).transpose()?;
    let recording = record.map(|file| {
        let command = program.iter().map(|a| a.to_string_lossy().into_owned());
        Recording::begin(&pool, file, command.collect(), true)
    });
    let recording = recording.transpose()?;
    let request = spawn::Program {
        path: &path,
        argv: &argv,
        env: &env,
        mask: supervisor.mask(),
        stdio: [None; 2],
    };
    let started = std::time::Instant::now();
    let pid = match spawn::start(&request) {
        Ok(pid) => pid,
        Err(e) => {
            sink.discard();
            bail!("{} could not be started: {e}", found.path.display());
        }
    };
    supervise::let_go(&inherited);
    let mut footprint = footprint::Footprint::new(pid);
    if let Some(note) = limits.as_ref().and_then(Limits::note) {
        crate::complain(&note);
    }
    let supervise = |footprint: &mut footprint::Footprint| {
        supervisor.supervise(pid, options.wait_all, &pool, footprint)
    };
    let follow = |footprint: &mut footprint::Footprint| match &limits {
        None => supervise(footprint),
        Some(limits) => {
            let follower = Follower::new(limits, &pool, pid);
            let stop = Stop::new().context("cannot follow the limit")?;
            std::thread::scope(|s| {
                let (pool, stop) = (&pool, &stop);
                let thread = std::thread::Builder::new().name("hs-limit".into());
                thread
                    .spawn_scoped(s, move || follower.follow(pool, stop))
                    .context("cannot follow the limit")?;
                let done = supervise(footprint);
                stop.stop();
                done
            })
        }
    };
    let (done, recording) = exporter::beside(serving, &pool, || {
        log::beside(options.log, &pool, || {
            watch::beside(recording, || follow(&mut footprint))
        })
    });
    let done = done?;
    pool.reap();
    let report = pool.report();
    let unmanaged = footprint.end(&pool, done.max_rss_bytes, report.peak_resident_bytes);
    remove_links(&pool);
    let outcome = report::Outcome {
        elapsed: started.elapsed(),
        ended: report::End::Of(done.ended),
        core_dumped: done.core_dumped,
        command: program,
        managed: match small {
            small::OFF => {
                let least = pool.knob(Knob::MallocMin).min(pool.knob(Knob::MmapMin));
                unmanaged::Requests::From(least)
            }
            small::AUTO => unmanaged::Requests::SmallLater,
            _ => unmanaged::Requests::All,
        },
        unmanaged,
        limit: limits
            .as_ref()
            .zip(pool.followed_limit())
            .map(|(l, f)| report::LimitReport::of(l, f, &pool)),
    };
    sink.write(&outcome, &report);
    let recorded = recording.map(|r| r.and_then(|r| r.end(report::ended(outcome.ended))));
    if let (Some(recorded), Some(file)) = (recorded, record) {
        crate::record::say(recorded, file);
    }
    // The pool's files are closed before the program's status is visible to its parent.
    drop(pool);
    Ok(supervise::end_like(done.ended))
}

/// The object that is injected, in a file.
pub fn object_file() -> Result<File> {
    object::file(OBJECT)
}

/// Removes the names in /dev/shm of shared memory of this run, which ends with it.
fn remove_links(pool: &Pool) {
    let (Some(links), Ok(names)) = (pool.links(), std::fs::read_dir("/dev/shm")) else {
        return;
    };
    for name in names.flatten() {
        let leads_to = std::fs::read_link(name.path());
        let ours = leads_to.is_ok_and(|to| to.as_os_str().as_bytes().starts_with(links.as_bytes()));
        if ours {
            let _ = std::fs::remove_file(name.path());
        }
    }
}

fn config(options: &Options, memory: u64) -> Result<PoolConfig> {
    let mut config = pool_config(Given {
        memory,
        swap: &options.swap,
        encrypt: options.encrypt,
        fault_mode: match options.fault_mode.unwrap_or(Mode::Auto) {
            Mode::Auto => FaultMode::Auto,
            Mode::Signal => FaultMode::Signal,
            Mode::Message => FaultMode::Message,
        },
        settings: &options.set,
    })?;
    if options.small {
        config.settings.push((Knob::Small, small::ON));
    }
    Ok(config)
}

/// What a user says of a pool.
pub struct Given<'a> {
    pub memory: u64,
    pub swap: &'a [String],
    pub encrypt: bool,
    pub fault_mode: FaultMode,
    pub settings: &'a [String],
}

/// The pool that a user wants.
pub fn pool_config(given: Given<'_>) -> Result<PoolConfig> {
    let swap = given
        .swap
        .iter()
        .map(|s| SwapSpec::parse(s))
        .collect::<Result<Vec<_>, SwapSpecError>>();
    let mut swap = swap.context("--swap")?;
    if swap.is_empty() && default_area().is_err() {
        eprintln!(
            "hugeswap: no directory for swap was found on a disk: what leaves memory is compressed and stays there \
             (--swap mem)"
        );
        swap.push(SwapSpec::memory());
    }
    let settings = given
        .settings
        .iter()
        .map(|s| knobs::parse_setting(s))
        .collect::<Result<Vec<_>, _>>();
    let mut settings = settings.map_err(anyhow::Error::new).context("--set")?;
    if given.encrypt {
        settings.push((Knob::Encrypt, 1));
    }
    Ok(PoolConfig {
        memory: given.memory,
        swap,
        fault_mode: given.fault_mode,
        settings,
    })
}

/// An error unless /proc is mounted and what was asked for is within the limits.
fn check_surroundings(wanted: Wanted) -> Result<()> {
    if std::fs::metadata("/proc/self/fd").is_err() {
        bail!("/proc is not mounted, and the program finds its pool there: mount it");
    }
    let (what, asked) = match wanted {
        Wanted::Memory(bytes) => ("memory budget", bytes),
        Wanted::Total(bytes) => ("--total", bytes),
        Wanted::Auto => return Ok(()),
    };
    match facts::cgroup_memory_limit() {
        Some(limit) if asked > limit => bail!(
            "{what} of {} is more than the control group (container) may use ({}): give less",
            crate::text::bytes(asked),
            crate::text::bytes(limit)
        ),
        _ => Ok(()),
    }
}

/// An error unless a program that the object loads can be run with these settings.
fn check_way(program: &Path, way: Way, config: &PoolConfig) -> Result<()> {
    let shown = program.display();
    match way {
        Way::Preloaded => Ok(()),
        Way::Loaded => check_loading(
            config,
            &format!("{shown} is statically linked or for musl, and"),
        )
        .map_err(|e| anyhow::anyhow!("{e}, or use a dynamically linked build for glibc")),
    }
}

/// An error unless the object can load programs with these settings, which `what` needs.
fn check_loading(config: &PoolConfig, what: &str) -> Result<()> {
    let trap_off = |&(knob, value): &(Knob, u64)| knob == Knob::SyscallTrap && value == 0;
    let by_messages = match config.fault_mode {
        FaultMode::Message => true,
        FaultMode::Signal => false,
        // As `check_mover` goes on.
        FaultMode::Auto => probe::mremap_pages().is_err(),
    };
    if by_messages {
        bail!("{what} needs --fault-mode signal");
    }
    if config.settings.iter().any(trap_off) {
        bail!("{what} needs --set {}=on", Knob::SyscallTrap.name());
    }
    Ok(())
}

/// An error unless pages can be moved, in the way that was asked for.
pub fn check_mover(mode: FaultMode) -> Result<()> {
    let message = || {
        probe::message_mode().map_err(|e| match e {
            Errno::EPERM => anyhow::anyhow!(
                "message mode is not permitted for this user: run `sysctl -w vm.unprivileged_userfaultfd=1` as root, give CAP_SYS_PTRACE, or use --fault-mode signal"
            ),
            Errno::EINVAL => anyhow::anyhow!(
                "message mode needs UFFDIO_MOVE, which this kernel ({}) lacks: use Linux 6.8 or later, or --fault-mode signal",
                kernel_release()
            ),
            e => anyhow::anyhow!("message mode needs userfaultfd, which is {e}: use --fault-mode signal"),
        })
    };
    let signal = || {
        probe::mremap_pages().map_err(|e| {
            anyhow::anyhow!(
                "this kernel ({}) cannot move pages with mremap ({e}): use Linux 5.7 or later",
                kernel_release()
            )
        })
    };
    match mode {
        FaultMode::Signal => signal(),
        FaultMode::Message => message(),
        FaultMode::Auto => signal().or_else(|e| message().map_err(|_| e)),
    }
}

/// The running kernel's release.
pub fn kernel_release() -> String {
    rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned()
}

/// The program's environment: that of this process, with LD_PRELOAD for the objects and the
/// pool's variable.
fn environment(pool: &Pool, objects: &[File]) -> Result<Vec<CString>> {
    let me = process::pid();
    // Our objects come first: an allocator that the user preloads may define `mmap`, and its calls must
    // reach the object's.
    let path = |object: &File| format!("/proc/{me}/fd/{}", object.as_raw_fd());
    let mut preload = OsString::from(objects.iter().map(path).collect::<Vec<_>>().join(":"));
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    // tcmalloc takes memory from the break, which is not managed, before it asks `mmap`.
    let skip_break = std::env::var_os(TCMALLOC_VARIABLE).unwrap_or_else(|| "1".into());
    let ours = [
        (OsString::from(TCMALLOC_VARIABLE), skip_break),
        (OsString::from("LD_PRELOAD"), preload),
        (
            OsString::from(POOL_VARIABLE),
            OsString::from(format!("{me}:{}", pool.fd())),
        ),
    ];
    std::env::vars_os()
        .filter(|(name, _)| name != "LD_PRELOAD" && name != TCMALLOC_VARIABLE)
        .chain(ours)
        .map(|(name, value)| named(name, &value))
        .collect()
}

/// An entry of an environment.
fn named(name: impl Into<OsString>, value: &OsStr) -> Result<CString> {
    let mut entry = name.into().into_vec();
    entry.push(b'=');
    entry.extend_from_slice(value.as_bytes());
    CString::new(entry).context("the environment has a NUL in it")
}

fn c_string(s: &OsString) -> Result<CString> {
    CString::new(s.as_bytes()).context("an argument has a NUL in it")
}

//! `hugeswap record`: what a pool does over time, in a file that `hugeswap report` draws.
//!
//! A thread of the process that records reads the pool's figures and what its processes tell of their
//! faults ([`hugeswap_engine::pool::recording`]). No program waits for it: what it does not fetch in
//! time is counted as lost.

pub mod file;
mod stacks;
mod symbols;
pub mod watch;

use crate::ctl::pools;
use crate::run::options::Options;
use crate::{run, text};
use anyhow::Result;
use hugeswap_support::interrupt::{check_interrupted, watch_signals};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use watch::{Ended, FETCH, Recording};

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap record --memory 600M -- sort -S 2G big.txt -o sorted.txt
  hugeswap report hugeswap.rec
  hugeswap record --pid 4711 --for 30 -o busy.rec

The recording is a file of some megabytes however long it takes: figures over time, a part of the faults with their \
addresses, and where in the program they came from. `hugeswap report FILE` makes one page of it.
Python's functions are in it if the interpreter tells their names: python3 -X perf (3.12 and later); those of Java \
and node as far as they write /tmp/perf-PID.map (node --perf-basic-prof).";

/// Run a program and record what its memory does, or record a pool that runs
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, after_long_help = run::long_help(EXAMPLES))]
pub struct Args {
    /// The file of the recording
    #[arg(short, long, value_name = "FILE", default_value = "hugeswap.rec")]
    output: PathBuf,
    /// Record the pool of this process, hugeswap run or a program under it, until that ends
    #[arg(long, value_name = "PID", conflicts_with = "program")]
    pid: Option<i32>,
    /// With --pid: for so many seconds
    #[arg(long = "for", value_name = "SECONDS", requires = "pid", conflicts_with = "program", value_parser = crate::stat::interval)]
    time: Option<Duration>,
    #[command(flatten)]
    options: Options,
    /// The program and its arguments
    #[arg(value_name = "PROG", required_unless_present = "pid", last = true)]
    program: Vec<OsString>,
}

/// Records. Returns the exit status: the program's, or 0.
pub fn run(args: Args) -> Result<i32> {
    match args.pid {
        None => run::start(args.options, &args.program, Some(&args.output)),
        Some(pid) => of_pool(pid, &args.output, args.time),
    }
}

/// Records a pool until it ends, the time is over, or the user asks to stop.
fn of_pool(pid: i32, file: &Path, time: Option<Duration>) -> Result<i32> {
    let pool = pools::of(pid)?;
    watch_signals()?;
    let command = vec![pools::command_of(pool.maker())];
    let maker = PathBuf::from(format!("/proc/{}", pool.maker()));
    let mut recording = Recording::begin(&pool, file, command, false)?;
    let begun = Instant::now();
    let ended = loop {
        std::thread::sleep(FETCH);
        recording.look()?;
        if !maker.exists() {
            break "ended".to_owned();
        }
        if check_interrupted().is_err() || time.is_some_and(|t| begun.elapsed() >= t) {
            break String::new();
        }
    };
    let done = recording.end(ended)?;
    say(Ok(done), file);
    Ok(0)
}

/// Opens a file that another process has named. It may be anything by now: what is no file is not
/// waited for (a pipe).
fn open_file(path: &str) -> Option<File> {
    let open = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    let file = open.ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

/// Says what was recorded, or why not.
pub fn say(ended: Result<Ended>, file: &Path) {
    let shown = file.display();
    match ended {
        Ok(done) => eprintln!(
            "hugeswap: recorded {} with {} faults: hugeswap report {shown}",
            text::duration((done.seconds * 1e9) as u64),
            text::count(done.faults),
        ),
        Err(e) => crate::complain(&format!("the recording {shown} is not whole: {e:#}")),
    }
}

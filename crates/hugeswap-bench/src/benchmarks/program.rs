//! `program`: any program, plain, under hugeswap and with the kernel's swap, in turn, in a part of the
//! memory that it needs.

use crate::child::{self, Ended, TooLong};
use crate::engines::turns::{Engine, Turns};
use crate::error::wrong;
use crate::options::{self, Against, Common, Device, Span, check_memory, size};
use crate::output::{Benchmark, Outcome, Progress, Run, Table, median, percent};
use anyhow::{Context, Result, bail};
use hugeswap_engine::pool::MIN_MEMORY;
use hugeswap_policy::UNIT_BYTES as UNIT;
use hugeswap_support::{proc, text};
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

// Arguments of `hugeswap bench program`.
#[derive(clap::Args)]
#[command(after_help = format!("\
EXAMPLES:
  hugeswap bench program -- python3 job.py
  hugeswap bench program --memory 50%,25% --vs kernel --device /var/tmp --timeout 120 -- sort -S1G big.txt

The program runs plain, then under hugeswap with less memory, and with --vs kernel in a control group with the kernel's
swap, in turn, pair after pair. It has no input, and what it writes to stdout is compared: a run that writes
something else, or ends otherwise than the plain one, fails the benchmark. A share (25%) is one of the anonymous memory that
the plain run had at most, its children's included, looked at 50 times a second. The kernel's runs may use as much as hugeswap's: the
budget, what hugeswap did not manage, and what it had for itself. A run that does not end within --timeout is marked, and its time is at least that; so is a run of the
kernel's that it killed for lack of memory.

{}", options::HELP))]
pub struct Program {
    /// What the program may have: shares of what it needs, or sizes
    #[arg(long, value_name = "SHARE|SIZE,..", value_delimiter = ',', default_value = "25%", value_parser = Share::parse)]
    memory: Vec<Share>,
    /// Do not compare what is written to stdout (of a program that prints times, for instance)
    #[arg(long)]
    any_output: bool,
    #[command(flatten)]
    against: Against,
    #[command(flatten)]
    common: Common,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// A part of what a program needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    Percent(u32),
    Bytes(u64),
}

impl Share {
    fn parse(text: &str) -> Result<Share, String> {
        let Some(percent) = text.strip_suffix('%') else {
            return size(text).map(Share::Bytes);
        };
        match percent.parse() {
            Ok(n @ 1..=1000) => Ok(Share::Percent(n)),
            _ => Err(format!("{text}: a share is from 1% to 1000%")),
        }
    }

    /// Bytes of a share of `need`, in whole units.
    fn of(self, need: u64) -> u64 {
        let bytes = match self {
            Share::Percent(n) => (need / 100 * u64::from(n)).next_multiple_of(UNIT),
            Share::Bytes(n) => n,
        };
        bytes.max(MIN_MEMORY)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Share::Percent(n) => write!(f, "{n}%"),
            Share::Bytes(n) => write!(f, "{} MiB", n >> 20),
        }
    }
}

/// The plain program's exit status, and the digest of its stdout.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Expected {
    status: ExitStatus,
    digest: u64,
}

impl Benchmark for Program {
    const NAME: &'static str = "program";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        self.against.check()?;
        if self.memory.is_empty() {
            return wrong("--memory: give at least one share or size");
        }
        for share in &self.memory {
            if let Share::Bytes(n) = share {
                check_memory(*n)?;
            }
        }
        self.device().map(drop)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        outcome.add("program", self.program.clone());
        let mut progress = Progress::new(1);
        progress.begin("plain");
        let (first, expected) = self.plain(None)?;
        progress.end();
        drop(progress);
        let need = first.params["peak_bytes"].as_u64().unwrap_or(0);
        for &share in &self.memory {
            self.measure_share(share, (need, expected), outcome)?;
        }
        let times = outcome.figures("plain", |r| Some(r.elapsed_s));
        outcome.note(format!(
            "the program needs {} and {:.1} s; in a virtual machine its first run may take longer than others",
            text::bytes(need),
            median(&times)
        ));
        Ok(table(&outcome.runs))
    }
}

impl Program {
    /// Where to swap.
    fn device(&self) -> Result<Device> {
        self.against.device(&self.common, false)
    }

    /// Runs all engines with one budget.
    fn measure_share(
        &self,
        share: Share,
        (need, expected): (u64, Expected),
        outcome: &mut Outcome,
    ) -> Result<()> {
        let span = Span {
            region: need.max(share.of(need)) * 2,
            memory: share.of(need),
            compressible: 1,
        };
        let device = (self.device()?, 0);
        let mut turns = Turns::set_up(&span, &self.against, &self.common, device, outcome)?;
        let engines = turns.engines();
        let pairs = turns.pairs();
        let mut progress = Progress::new(pairs as usize * (1 + engines.len()));
        // Memory that hugeswap had beside its budget, in its last run.
        let mut beside = 0;
        for pair in 1..=pairs {
            progress.begin(format!("plain, {pair} of {pairs}"));
            let (run, _) = self.plain(Some(expected))?;
            progress.end();
            outcome
                .runs
                .push(run.with("pair", pair).with("share", share.to_string()));
            for engine in &engines {
                let memory = (pair, span.memory + beside);
                let (run, done) =
                    turns.run_program(engine, &self.program, memory, &mut progress)?;
                let run = self
                    .judge(run, done, expected)?
                    .with("share", share.to_string());
                if run.counters["peak_managed_bytes"] == 0 {
                    let note = "hugeswap managed none of the program's memory, so its figures are those of plain memory: `hugeswap run` says why";
                    outcome.notes.retain(|n| n != note);
                    outcome.note(note);
                }
                if *engine == (Engine::Hugeswap { also: None }) {
                    let bytes = |figure: &str| run.params[figure].as_u64().unwrap_or(0);
                    beside = bytes("peak_unmanaged_bytes") + bytes("own_bytes");
                }
                outcome.runs.push(run);
            }
        }
        turns.close(&mut progress)?;
        compare(share, outcome);
        Ok(())
    }

    /// A plain run; the first has nothing to be compared with.
    fn plain(&self, expected: Option<Expected>) -> Result<(Run, Expected)> {
        let [program, rest @ ..] = &self.program[..] else {
            bail!("no program to run");
        };
        let mut peak = 0;
        let mut command = Command::new(program);
        let done = child::digest(command.args(rest), self.common.limit(), |pid| {
            peak = anonymous_of_tree(pid.cast_signed()).max(peak);
        });
        let (ended, digest) = done.context("plain")?;
        let status = ended.status;
        let found = Expected { status, digest };
        let run = Run::of("plain").with("peak_bytes", peak);
        let run = self.judge(run, Ok((ended, digest)), expected.unwrap_or(found))?;
        Ok((run, found))
    }

    /// Completes a run that did what it must; an error if it did not.
    fn judge(&self, mut run: Run, done: Result<(Ended, u64)>, expected: Expected) -> Result<Run> {
        let engine = run.label();
        let (ended, digest) = match done {
            Ok(done) => done,
            Err(e) if e.is::<TooLong>() => {
                run.elapsed_s = self.common.limit().as_secs_f64();
                return Ok(run.with("ended", false));
            }
            Err(e) => return Err(e.context(engine)),
        };
        run.elapsed_s = ended.elapsed.as_secs_f64();
        // By the kernel, which could not make room for it in time, as it may happen to its users.
        if run.engine == "kernel" && ended.status.signal() == Some(libc::SIGKILL) {
            return Ok(run.with("ended", false).with("killed", true));
        }
        if ended.status != expected.status {
            bail!(
                "{engine}: the program ended otherwise than plain: {}",
                ended.reason()
            );
        }
        if !self.any_output {
            if digest != expected.digest {
                bail!(
                    "{engine}: the program wrote something else to stdout than plain (a program that never writes the same twice needs --any-output)"
                );
            }
            run.verified = true;
            run.verified_share = 1.0;
        }
        Ok(run.with("ended", true))
    }
}

/// Anonymous memory of a process and all its descendants, bytes. What forked processes share counts
/// for each.
fn anonymous_of_tree(root: i32) -> u64 {
    let mut queue = vec![root];
    let mut bytes = 0;
    while let Some(pid) = queue.pop() {
        let status = proc::StatusFile::open(pid).and_then(|s| s.read());
        bytes += status.map_or(0, |s| s.anonymous + s.swapped);
        queue.extend(proc::children(pid));
    }
    bytes
}

/// Ratios of times for one share: above 1 hugeswap is slower.
fn compare(share: Share, outcome: &mut Outcome) {
    let share = share.to_string();
    let seconds = |r: &Run| {
        let counts = r.word("share") == Some(&share) && !r.params.contains_key("killed");
        counts.then_some(r.elapsed_s)
    };
    for (rival, name) in outcome.rivals() {
        let name = format!("time_vs_{name}_at_{share}");
        outcome.compare(&name, "hugeswap", &rival, seconds);
    }
}

fn table(runs: &[Run]) -> Table {
    // Each run with the time of the plain run before it.
    let mut plain = 0.0;
    let rows = runs.iter().map(|r| {
        if r.engine == "plain" {
            plain = r.elapsed_s;
        }
        (r, plain)
    });
    let mark = |r: &Run| match r.params["ended"] == true {
        _ if r.params.contains_key("killed") => "killed ",
        true => "",
        false => ">",
    };
    let bytes = |n: Option<f64>| n.map_or("-".into(), |n| text::bytes(n as u64));
    let memory = |r: &Run| r.number("memory_bytes").or(r.number("peak_bytes"));
    let swapped = |r: &Run, name: &str| bytes(r.counter(name).map(|pages| pages * 4096.0));
    let faults = |r: &Run| r.counters["pgmajfault"].as_u64();
    Table::of(
        rows,
        &[
            ("engine", &|(r, _)| r.label()),
            ("of its need", &|(r, _)| r.cell("share")),
            ("pair", &|(r, _)| r.cell("pair")),
            ("memory", &|(r, _)| bytes(memory(r))),
            ("s", &|(r, _)| format!("{}{:.2}", mark(r), r.elapsed_s)),
            ("times plain", &|(r, plain)| {
                format!("{}{:.2}", mark(r), r.elapsed_s / plain)
            }),
            ("huge %", &|(r, _)| percent(r.huge_share, 1)),
            ("in", &|(r, _)| swapped(r, "pswpin")),
            ("out", &|(r, _)| swapped(r, "pswpout")),
            ("major faults", &|(r, _)| {
                faults(r).map_or("-".into(), text::count)
            }),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_sizes() {
        assert_eq!(Share::parse("25%"), Ok(Share::Percent(25)));
        assert_eq!(Share::parse("64M"), Ok(Share::Bytes(64 << 20)));
        for wrong in ["", "%", "0%", "-1%", "1001%", "64", "64Q"] {
            assert!(Share::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Share::Percent(25).of(1 << 30), 256 << 20);
        assert_eq!(Share::Percent(50).of((1 << 30) + 4096), (512 << 20) + UNIT);
        assert_eq!(Share::Percent(1).of(1 << 20), MIN_MEMORY);
    }
}

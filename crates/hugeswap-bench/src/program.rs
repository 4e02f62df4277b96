//! `program`: any program, plain, under hugeswap and with the kernel's swap, in turn, in a part of the memory that it needs.

use super::args::{Program, Share, Span};
use super::child::{self, Ended, TooLong};
use super::output::{self, Outcome, Progress, Table, cell};
use super::runner::Run;
use super::turns::{Engine, Turns};
use anyhow::{Context, Result, bail};
use hugeswap_support::proc;
use hugeswap_support::text;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

/// What a run must come to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Expected {
    status: ExitStatus,
    digest: u64,
}

/// Runs it.
pub fn run(args: &Program) -> Result<()> {
    args.check()?;
    output::measured("program", args.common.json, |outcome| {
        measure(args, outcome)
    })
}

fn measure(args: &Program, outcome: &mut Outcome) -> Result<Table> {
    outcome
        .more
        .insert("program".into(), args.program.clone().into());
    let mut progress = Progress::new(1);
    progress.begin("plain");
    let (first, expected) = plain(args, None)?;
    progress.end();
    drop(progress);
    let need = first.params["peak_bytes"].as_u64().unwrap_or(0);
    for &share in &args.memory {
        at(args, share, (need, expected), outcome)?;
    }
    let times = outcome.figures("plain", |r| Some(r.elapsed_s));
    outcome.notes.push(format!(
        "the program needs {} and {:.1} s; in a virtual machine its first run may take longer than others",
        text::bytes(need),
        super::runner::median(&times)
    ));
    Ok(table(&outcome.runs))
}

/// All engines with one budget.
fn at(
    args: &Program,
    share: Share,
    (need, expected): (u64, Expected),
    outcome: &mut Outcome,
) -> Result<()> {
    let span = Span {
        region: need.max(share.of(need)) * 2,
        memory: share.of(need),
    };
    let mut turns = Turns::set_up(
        &span,
        &args.against,
        &args.common,
        (args.device()?, 0),
        outcome,
    )?;
    let engines = turns.engines();
    let mut progress = Progress::new(u64::from(turns.pairs()) * (1 + engines.len() as u64));
    // What hugeswap had beside its budget, in its last run.
    let mut beside = 0;
    for pair in 1..=turns.pairs() {
        progress.begin(format!("plain, {pair} of {}", turns.pairs()));
        let (run, _) = plain(args, Some(expected))?;
        progress.end();
        outcome
            .runs
            .push(run.with("pair", pair).with("share", share.to_string()));
        for engine in &engines {
            let memory = (pair, span.memory + beside);
            let (run, done) = turns.run_program(engine, &args.program, memory, &mut progress)?;
            let run = judge(args, run, done, expected)?.with("share", share.to_string());
            if run.counters["peak_managed_bytes"] == 0 {
                let note = "hugeswap managed none of the program's memory, so its figures are those of plain memory: `hugeswap run` tells why";
                outcome.notes.retain(|n| n != note);
                outcome.notes.push(note.into());
            }
            if *engine == (Engine::Hugeswap { also: None }) {
                beside = run.params["peak_unmanaged_bytes"].as_u64().unwrap_or(0);
            }
            outcome.runs.push(run);
        }
    }
    turns.close(&mut progress)?;
    drop(progress);
    compare(share, outcome);
    Ok(())
}

/// A plain run. It is the first if nothing is expected of it yet.
fn plain(args: &Program, expected: Option<Expected>) -> Result<(Run, Expected)> {
    let [program, rest @ ..] = &args.program[..] else {
        bail!("no program to run");
    };
    let mut peak = 0;
    let mut command = Command::new(program);
    let done = child::digest(command.args(rest), args.common.limit(), |pid| {
        peak = anonymous_of_tree(pid.cast_signed()).max(peak);
    });
    let (ended, digest) = done.context("plain")?;
    let found = Expected {
        status: ended.status,
        digest,
    };
    let run = Run::of("plain").with("peak_bytes", peak);
    let run = judge(args, run, Ok((ended, digest)), expected.unwrap_or(found))?;
    Ok((run, found))
}

/// Anonymous memory of a process and all that come from it, bytes; what forked ones share counts for each.
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

/// Whether a run did what it must.
fn judge(
    args: &Program,
    mut run: Run,
    done: Result<(Ended, u64)>,
    expected: Expected,
) -> Result<Run> {
    let who = run.label();
    let (ended, digest) = match done {
        Ok(done) => done,
        Err(e) if e.is::<TooLong>() => {
            run.elapsed_s = args.common.limit().as_secs_f64();
            return Ok(run.with("ended", false));
        }
        Err(e) => return Err(e.context(who)),
    };
    run.elapsed_s = ended.elapsed.as_secs_f64();
    // For want of memory that it could not make room for in time: what its users would meet.
    if run.engine == "kernel" && ended.status.signal() == Some(libc::SIGKILL) {
        return Ok(run.with("ended", false).with("killed", true));
    }
    if ended.status != expected.status {
        bail!(
            "{who}: the program ended otherwise than plain: {}",
            ended.reason()
        );
    }
    if !args.any_output {
        if digest != expected.digest {
            bail!(
                "{who}: the program wrote something else to stdout than plain (a program that never writes the same twice needs --any-output)"
            );
        }
        run.verified = true;
        run.verified_share = 1.0;
    }
    Ok(run.with("ended", true))
}

/// How many times the others' time the engines took, for one share.
fn compare(share: Share, outcome: &mut Outcome) {
    let share = share.to_string();
    let seconds = |runs: &[Run], label: &str| -> Vec<f64> {
        let of = |r: &&Run| {
            r.label() == label
                && r.params["share"] == share.as_str()
                && !r.params.contains_key("killed")
        };
        runs.iter().filter(of).map(|r| r.elapsed_s).collect()
    };
    let ours = seconds(&outcome.runs, "hugeswap");
    for (rival, name) in outcome.rivals("hugeswap") {
        let theirs = seconds(&outcome.runs, &rival);
        outcome.ratio_of_pairs(&format!("time_vs_{name}_at_{share}"), &ours, &theirs);
    }
}

fn table(runs: &[Run]) -> Table {
    let mut t = Table::new(&[
        "engine",
        "of its need",
        "pair",
        "memory",
        "s",
        "times plain",
        "huge %",
        "in",
        "out",
        "major faults",
    ]);
    let mut plain = 0.0;
    for r in runs {
        let word = |name: &str| r.params.get(name).and_then(|v| v.as_str()).unwrap_or("-");
        if r.engine == "plain" {
            plain = r.elapsed_s;
        }
        let ended = r.params["ended"] == true;
        let more = match r.params.contains_key("killed") {
            true => "killed ",
            false if ended => "",
            false => ">",
        };
        let memory = r.params.get("memory_bytes").or(r.params.get("peak_bytes"));
        let swapped = |name: &str| {
            let pages = r.counters[name].as_u64();
            pages.map_or("-".into(), |p| text::bytes(p * 4096))
        };
        let faults = r.counters["pgmajfault"].as_u64();
        t.row(vec![
            r.label(),
            word("share").to_owned(),
            r.params["pair"].to_string(),
            memory
                .and_then(|v| v.as_u64())
                .map_or("-".into(), text::bytes),
            format!("{more}{:.2}", r.elapsed_s),
            format!("{more}{:.2}", r.elapsed_s / plain),
            cell(r.huge_share.map(|s| s * 100.0), 1),
            swapped("pswpin"),
            swapped("pswpout"),
            faults.map_or("-".into(), text::count),
        ]);
    }
    t
}

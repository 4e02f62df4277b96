//! The report at the end of a run, for people or for programs.

use super::footprint::Unmanaged;
use super::limit::Limits;
use super::options::Format;
use super::supervise::Ended;
use super::unmanaged::{self, Requests};
use super::{advice, compressed, warnings};
use crate::explain::Message;
use crate::text;
use anyhow::{Context, Result};
use hugeswap_engine::pool::budget::{Followed, Moves};
use hugeswap_engine::pool::{Pool, Report};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::counters::Counter;
use serde::Serialize;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the report goes; a file is opened before the program starts.
pub struct Sink {
    format: Format,
    file: Option<(File, PathBuf)>,
    /// The file was not there before.
    made: bool,
}

impl Sink {
    /// Checks that the report can be written, by opening its file.
    pub fn open(format: Format, path: Option<&Path>) -> Result<Sink> {
        let Some(path) = path else {
            return Ok(Sink {
                format,
                file: None,
                made: false,
            });
        };
        let made = std::fs::symlink_metadata(path).is_err();
        let opened = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path);
        let file = opened.with_context(|| {
            format!(
                "--report-file {} cannot be written: name a file in a directory you may write to",
                path.display()
            )
        })?;
        Ok(Sink {
            format,
            file: Some((file, path.into())),
            made,
        })
    }

    /// Removes the file again, because the program did not start.
    pub fn discard(self) {
        if let (Some((_, path)), true) = (self.file, self.made) {
            // If that fails, an empty file is left behind.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Writes the report. A failure is reported on stderr only: the program's status matters more.
    pub fn write(&mut self, outcome: &Outcome<'_>, report: &Report) {
        let text = match self.format {
            Format::None => return,
            Format::Human => human(outcome, report),
            Format::Json => json(outcome, report),
        };
        let written = match &mut self.file {
            Some((file, _)) => file.write_all(text.as_bytes()),
            None => std::io::stderr().write_all(text.as_bytes()),
        };
        if let (Err(e), Some((_, path))) = (written, &self.file) {
            crate::complain(&format!(
                "the report could not be written to {}: {e}",
                path.display()
            ));
        }
    }
}

/// The facts of a run beside the pool's figures.
pub struct Outcome<'a> {
    /// From start to end of the program, or for how long it was attached.
    pub elapsed: Duration,
    /// How that ended.
    pub ended: End,
    /// It left a core dump.
    pub core_dumped: bool,
    /// Program and arguments.
    pub command: &'a [OsString],
    /// Which requests were managed.
    pub managed: Requests,
    /// Memory that was not managed.
    pub unmanaged: Unmanaged,
    /// The limit that the budget followed.
    pub limit: Option<LimitReport>,
}

impl LimitReport {
    /// Of a pool whose budget has followed `limits`.
    pub fn of(limits: &Limits, followed: Followed, pool: &Pool) -> LimitReport {
        LimitReport {
            described: limits.describe(),
            followed,
            moves: pool.budget_moves(),
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The program ended so.
    Of(Ended),
    /// A program that was attached ended, in a way that only its parent is told.
    OfAttached,
    /// A program that was attached has its memory back.
    GivenBack,
}

/// A limit, and the budget that followed it.
pub struct LimitReport {
    /// The limit in words.
    pub described: String,
    /// Its figures.
    pub followed: Followed,
    /// How the budget moved.
    pub moves: Moves,
}

#[derive(Serialize)]
struct Json {
    version: &'static str,
    command: Vec<String>,
    elapsed_s: f64,
    fault_s: f64,
    memory_bytes: u64,
    peak_managed_bytes: u64,
    peak_resident_bytes: u64,
    peak_unmanaged_bytes: u64,
    swapped_in_bytes: u64,
    swapped_out_bytes: u64,
    /// Null if nothing was managed for long enough to be sampled.
    huge_share: Option<f64>,
    fault_mode: &'static str,
    processes: u64,
    processes_out_of_memory: u64,
    /// Null if the program was attached.
    exit_code: Option<i32>,
    /// Absent if the program was not attached.
    #[serde(skip_serializing_if = "Option::is_none")]
    given_back: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    faults: Map<String, Value>,
    areas: Vec<Value>,
    losses: Vec<Value>,
    /// Null if too little came back from swap for an estimate.
    advisor: Option<Value>,
    /// Null if the budget was a fixed one.
    limit: Option<Value>,
    #[serde(flatten)]
    not_managed: Map<String, Value>,
    #[serde(flatten)]
    counters: Map<String, Value>,
}

/// The report as one JSON object on one line.
fn json(outcome: &Outcome<'_>, report: &Report) -> String {
    let object = Json {
        version: env!("CARGO_PKG_VERSION"),
        command: outcome
            .command
            .iter()
            .map(|a| a.to_string_lossy().into_owned())
            .collect(),
        elapsed_s: outcome.elapsed.as_secs_f64(),
        fault_s: report.fault_ns as f64 / 1e9,
        memory_bytes: report.memory_bytes,
        peak_managed_bytes: report.peak_managed_bytes,
        peak_resident_bytes: report.peak_resident_bytes,
        peak_unmanaged_bytes: outcome.unmanaged.peak_bytes,
        swapped_in_bytes: report.get(Counter::PswpIn) * PAGE_BYTES,
        swapped_out_bytes: report.get(Counter::PswpOut) * PAGE_BYTES,
        huge_share: report.huge_share,
        fault_mode: report.fault_mode,
        processes: report.processes,
        processes_out_of_memory: report.exhausted,
        exit_code: match outcome.ended {
            End::Of(ended) => Some(ended.code()),
            End::OfAttached | End::GivenBack => None,
        },
        given_back: match outcome.ended {
            End::Of(_) => None,
            End::OfAttached => Some(false),
            End::GivenBack => Some(true),
        },
        signal: match outcome.ended {
            End::Of(Ended::Killed(signal)) => Some(signal),
            _ => None,
        },
        faults: text::faults_json(report),
        areas: report.areas.iter().map(text::area_json).collect(),
        losses: report.losses.iter().map(text::loss_json).collect(),
        advisor: report.advice().as_ref().map(advice::json),
        limit: outcome.limit.as_ref().map(|l| limit_json(l, report)),
        not_managed: unmanaged::json(&outcome.unmanaged)
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect(),
        counters: text::counters_json(|c| report.get(c)),
    };
    let mut line =
        serde_json::to_string(&object).expect("strings and numbers always have a JSON form");
    line.push('\n');
    line
}

fn limit_json(l: &LimitReport, report: &Report) -> Value {
    serde_json::json!({
        "limit_bytes": l.followed.limit_bytes,
        "described": l.described,
        "peak_used_bytes": l.followed.peak_bytes,
        "budget_lowest_bytes": l.moves.lowest_bytes,
        "budget_highest_bytes": l.moves.highest_bytes,
        "budget_last_bytes": report.memory_bytes,
        "budget_changes": l.moves.changes,
    })
}

/// One line about the limit and the budget that followed it.
fn limit_line(out: &mut String, limit: Option<&LimitReport>, report: &Report) {
    if let Some(l) = limit {
        let _ = writeln!(
            out,
            "  limit     {}: peak {} in use; the budget was {} to {}, {} at the end",
            l.described,
            text::bytes(l.followed.peak_bytes),
            text::bytes(l.moves.lowest_bytes),
            text::bytes(l.moves.highest_bytes),
            text::bytes(report.memory_bytes),
        );
    }
}

/// How it ended, in words.
pub fn ended(end: End) -> String {
    match end {
        End::Of(Ended::Exited(0)) => "finished".to_owned(),
        End::Of(Ended::Exited(code)) => format!("exited with status {code}"),
        End::Of(Ended::Killed(signal)) => format!("was ended by signal {signal}"),
        End::OfAttached => "ended, attached,".to_owned(),
        End::GivenBack => "has its memory back,".to_owned(),
    }
}

/// The report as a few aligned lines.
fn human(outcome: &Outcome<'_>, report: &Report) -> String {
    let name = outcome.command.first().map(|p| {
        Path::new(p)
            .file_name()
            .unwrap_or(p)
            .to_string_lossy()
            .into_owned()
    });
    let name = name.unwrap_or_default();
    let end = ended(outcome.ended);
    let elapsed = text::duration(outcome.elapsed.as_nanos() as u64);
    let mut out = format!("hugeswap: {name} {end} after {elapsed}");
    if report.peak_managed_bytes == 0 {
        // A process joins the pool with its first large allocation, or many small ones.
        let little = match outcome.managed {
            Requests::SmallLater | Requests::All => "asked for little memory".to_owned(),
            Requests::Attached => "has no large mappings".to_owned(),
            Requests::From(least) => format!(
                "made no allocation of {} or more (--set route.malloc_min=SIZE lowers that, \
                 --small has small ones managed)",
                text::bytes(least)
            ),
        };
        let _ = writeln!(
            out,
            "; nothing was managed\n  Either it {little},\n  or it has an allocator of its own that is not caught, \
             or it took LD_PRELOAD out of its environment. {}",
            Message::NothingManaged,
        );
        limit_line(&mut out, outcome.limit.as_ref(), report);
        unmanaged_lines(&mut out, outcome, report);
        return out;
    }
    let processes = if report.processes == 1 {
        "process"
    } else {
        "processes"
    };
    let _ = writeln!(
        out,
        ", {} in faults ({} mode, {} {processes})",
        text::duration(report.fault_ns),
        report.fault_mode,
        text::count(report.processes),
    );
    let _ = write!(
        out,
        "  memory    budget {}, peak resident {}, peak managed {}, peak not managed {}",
        text::bytes(report.memory_bytes),
        text::bytes(report.peak_resident_bytes),
        text::bytes(report.peak_managed_bytes),
        text::bytes(outcome.unmanaged.peak_bytes),
    );
    if let Some(share) = report.huge_share {
        let _ = write!(out, ", {:.1}% huge", share * 100.0);
    }
    out.push('\n');
    limit_line(&mut out, outcome.limit.as_ref(), report);
    swap_lines(&mut out, report);
    area_lines(&mut out, report);
    fault_lines(&mut out, report);
    if let Some(line) = advice::line(report, report.advice().as_ref()) {
        let _ = writeln!(out, "  advice    {line} {}", Message::Slow);
    }
    warnings::lines(&mut out, report, outcome.core_dumped);
    unmanaged_lines(&mut out, outcome, report);
    out
}

fn unmanaged_lines(out: &mut String, outcome: &Outcome<'_>, report: &Report) {
    let limit = outcome.limit.as_ref().map(|l| l.followed.limit_bytes);
    unmanaged::lines(out, &outcome.unmanaged, report, outcome.managed, limit);
}

fn swap_lines(out: &mut String, report: &Report) {
    let get = |c| report.get(c);
    if get(Counter::PswpIn) == 0 && get(Counter::PswpOut) == 0 {
        let _ = writeln!(out, "  swap      not used: everything fitted");
        return;
    }
    for (way, pages, huge, fallback) in [
        (
            "out",
            Counter::PswpOut,
            Counter::ThpSwpOut,
            Counter::ThpSwpOutFallback,
        ),
        (
            "in ",
            Counter::PswpIn,
            Counter::ThpSwpIn,
            Counter::ThpSwpInFallback,
        ),
    ] {
        let _ = write!(
            out,
            "  swap {way}  {} in {} pages: {} huge pages whole",
            text::bytes(get(pages) * PAGE_BYTES),
            text::count(get(pages)),
            text::count(get(huge)),
        );
        if get(fallback) > 0 {
            let _ = write!(
                out,
                ", {} units that were not huge",
                text::count(get(fallback))
            );
        }
        out.push('\n');
    }
    let compressed = [compressed::line(report), compressed::line_of_units(report)];
    out.extend(compressed.into_iter().flatten().map(|l| l + "\n"));
}

fn area_lines(out: &mut String, report: &Report) {
    for a in &report.areas {
        if a.reads.count + a.writes.count == 0 {
            continue;
        }
        let _ = write!(out, "  area {:<3}", a.index);
        for (way, l) in [("reads", &a.reads), ("writes", &a.writes)] {
            let _ = write!(
                out,
                "  {way} {}: p50 {}, p99 {}, max {}",
                text::count(l.count),
                text::duration(l.p50_ns),
                text::duration(l.p99_ns),
                text::duration(l.max_ns),
            );
        }
        let errors = a.read_errors + a.write_errors;
        if errors > 0 {
            let state = a.state.name();
            let _ = write!(out, "  {} errors, {state}", text::count(errors));
        }
        out.push('\n');
    }
}

fn fault_lines(out: &mut String, report: &Report) {
    let mut heading = "faults";
    for f in report.faults.iter().filter(|f| f.took.count > 0) {
        let _ = writeln!(out, "  {heading:<8}  {}", text::fault_figures(f));
        heading = "";
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use hugeswap_engine::health::{AreaReport, LatencyReport};
    use hugeswap_engine::pool::FaultReport;
    use hugeswap_policy::counters::FaultClass;
    use hugeswap_policy::device::breaker::State;

    fn area() -> AreaReport {
        let took = LatencyReport {
            count: 10,
            p50_ns: 20_000,
            p99_ns: 1_000_000,
            max_ns: 2_000_000,
            buckets: vec![(20_479, 9), (2_097_151, 1)],
        };
        AreaReport {
            index: 0,
            state: State::Closed,
            read_errors: 0,
            write_errors: 3,
            reads: took.clone(),
            writes: took,
            read_bytes: 4096,
            written_bytes: 8192,
        }
    }

    pub(in crate::run) fn report() -> Report {
        let mut counters = vec![0; Counter::COUNT];
        counters[Counter::PswpIn as usize] = 1024;
        counters[Counter::ThpSwpIn as usize] = 2;
        let faults = FaultClass::ALL
            .iter()
            .map(|&class| FaultReport {
                class,
                took: LatencyReport {
                    count: 3,
                    p50_ns: 6_000,
                    p99_ns: 7_000,
                    max_ns: 8_000,
                    buckets: vec![(7_000, 3)],
                },
            })
            .collect();
        Report {
            memory_bytes: 64 << 20,
            peak_managed_bytes: 128 << 20,
            peak_resident_bytes: 60 << 20,
            counters,
            fault_ns: 5_000_000,
            faults,
            huge_share: Some(0.999),
            fault_mode: "signal",
            processes: 1,
            exhausted: 0,
            areas: vec![area()],
            losses: Vec::new(),
            tally: Box::new([0; hugeswap_policy::advisor::WORDS]),
        }
    }

    fn outcome(command: &[OsString], ended: Ended) -> Outcome<'_> {
        Outcome {
            elapsed: Duration::from_millis(1500),
            ended: End::Of(ended),
            core_dumped: false,
            command,
            managed: Requests::From(1 << 20),
            unmanaged: Unmanaged::default(),
            limit: None,
        }
    }

    #[test]
    fn json_has_every_promised_field() {
        let command = ["/bin/sort".into(), "x".into()];
        let text = json(&outcome(&command, Ended::Killed(9)), &report());
        assert_eq!(text.matches('\n').count(), 1);
        let v: Value = serde_json::from_str(&text).unwrap();
        for key in "elapsed_s fault_s peak_managed_bytes peak_resident_bytes pswpin pswpout thp_swpin thp_swpout \
                    thp_swpin_fallback thp_swpout_fallback huge_share fault_mode processes exit_code memory_bytes areas \
                    swapped_in_bytes swapped_out_bytes faults advisor signal peak_unmanaged_bytes unmanaged own_bytes outside left_running losses"
            .split_whitespace()
        {
            assert!(v.get(key).is_some(), "{key}");
        }
        for c in Counter::ALL {
            assert!(v.get(c.name()).is_some(), "{}", c.name());
        }
        assert_eq!(v["exit_code"], 137);
        assert_eq!(v["swapped_in_bytes"], 4 << 20);
        assert_eq!(v["faults"]["soft"]["p50_us"], 6.0);
        assert_eq!(v["areas"][0]["reads"]["p50_us"], 20.0);
        assert_eq!(v["areas"][0]["state"], "ok");
        assert_eq!(v["areas"][0]["written_bytes"], 8192);
    }

    #[test]
    fn no_signal_no_field() {
        let v: Value =
            serde_json::from_str(&json(&outcome(&[], Ended::Exited(3)), &report())).unwrap();
        assert!(v.get("signal").is_none());
        assert_eq!(v["exit_code"], 3);
    }

    #[test]
    fn people_are_told_when_nothing_was_managed() {
        let command = ["/bin/true".into()];
        let mut r = report();
        r.peak_managed_bytes = 0;
        let text = human(&outcome(&command, Ended::Exited(0)), &r);
        assert!(text.contains("nothing was managed"));
        assert!(text.contains("1.00 MiB or more (--set route.malloc_min=SIZE"));
        assert_eq!(text.lines().count(), 3);
    }

    #[test]
    fn people_get_a_few_lines() {
        let command = ["/usr/bin/sort".into()];
        let text = human(&outcome(&command, Ended::Exited(0)), &report());
        assert!(text.starts_with(
            "hugeswap: sort finished after 1.50 s, 5.0 ms in faults (signal mode, 1 process)\n"
        ));
        assert!(text.lines().count() < 12);
    }
}

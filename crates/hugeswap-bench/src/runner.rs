//! One run of a worker: under `hugeswap run`, or plain; and what came of it.

use super::args::Common;
use super::child::{self, Ended};
use super::figures::{self, Counters, PhaseRun};
use super::phases::Phase;
use super::worker::{CORRUPT, Figure, Thp, Work};
use anyhow::{Context, Result, bail};
use hugeswap_engine::pool::Pool;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What one run gave; an element of `runs` in the JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// "hugeswap", "kernel" or "plain".
    pub engine: &'static str,
    #[serde(flatten)]
    pub params: Map<String, Value>,
    /// Writing, by round, 10^6 bytes a second, all tasks together.
    pub mb_s: Vec<f64>,
    /// Reading, by round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_mb_s: Vec<f64>,
    /// A random read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_access: Option<f64>,
    /// What the phases came to, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseRun>,
    /// What they were to be.
    #[serde(skip)]
    plan: Vec<Phase>,
    /// What had been counted when the last figure came.
    #[serde(skip)]
    counted: Counters,
    /// From the first write to the last read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_s: Option<f64>,
    /// The program from start to end, verification included.
    pub elapsed_s: f64,
    /// Share of memory that was mapped by huge pages.
    pub huge_share: Option<f64>,
    /// hugeswap: its report; kernel: differences of /proc/vmstat.
    pub counters: Value,
    /// Every word that was verified was right.
    pub verified: bool,
    /// Share of the region that was verified.
    pub verified_share: f64,
}

impl Run {
    /// A run about to be.
    pub fn new(engine: &'static str, work: &Work) -> Run {
        let plan = work.phases.clone();
        Run {
            plan,
            ..Run::of(engine)
        }
        .with("region_bytes", work.region)
        .with("tasks", work.tasks)
        .with("threads", work.threads)
        .with("rounds", work.rounds)
    }

    /// Of a program that is no worker, about to be.
    pub fn of(engine: &'static str) -> Run {
        Run {
            engine,
            params: Map::new(),
            mb_s: Vec::new(),
            read_mb_s: Vec::new(),
            us_per_access: None,
            phases: Vec::new(),
            plan: Vec::new(),
            counted: Counters::new(),
            work_s: None,
            elapsed_s: 0.0,
            huge_share: None,
            counters: Value::Null,
            verified: false,
            verified_share: 0.0,
        }
    }

    /// Adds a parameter.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Run {
        self.params.insert(name.into(), value.into());
        self
    }

    /// Its engine and what sets it apart: "hugeswap", "kernel, THP on".
    pub fn label(&self) -> String {
        let text = |name: &str| self.params.get(name).and_then(Value::as_str);
        match (text("thp"), text("also")) {
            (Some(thp), _) => format!("{}, THP {thp}", self.engine),
            (_, Some(also)) => format!("{}, {also}", self.engine),
            _ => self.engine.to_owned(),
        }
    }

    /// The phase of this name.
    pub fn phase(&self, name: &str) -> Option<&PhaseRun> {
        self.phases.iter().find(|p| p.name == name)
    }

    /// Takes one line of the worker's output. `counters`: what was counted so far, where that can be told.
    pub fn take(&mut self, line: &str, counters: Option<Counters>) -> Result<()> {
        let figure: Figure =
            serde_json::from_str(line).with_context(|| format!("not a worker's figure: {line}"))?;
        let before = match counters {
            Some(now) => Some(std::mem::replace(&mut self.counted, now)),
            None => None,
        };
        match figure {
            Figure::Ready { .. } => {}
            Figure::Phase { name, played } => {
                let plan = self.plan.get(self.phases.len()).filter(|p| p.name == name);
                let plan = plan.with_context(|| format!("the worker played {name} uncalled"))?;
                let counted = before.map(|b| figures::since(&b, &self.counted));
                self.phases.push(PhaseRun::new(plan, &played, counted));
            }
            Figure::Write { mb_s, .. } => self.mb_s.push(mb_s),
            Figure::Read { mb_s, .. } => self.read_mb_s.push(mb_s),
            Figure::Random { us_per_access } => self.us_per_access = Some(us_per_access),
            Figure::Work { seconds } => self.work_s = Some(seconds),
            Figure::Verified { share } => {
                self.verified = true;
                self.verified_share = self.verified_share.max(share);
            }
        }
        Ok(())
    }

    /// The run has ended: an error if it failed or its data did not verify.
    pub fn finish(&mut self, ended: &Ended) -> Result<()> {
        self.elapsed_s = ended.elapsed.as_secs_f64();
        let who = self.engine;
        if ended.status.code() == Some(CORRUPT) {
            bail!("{who}: the data did not verify: {}", ended.reason());
        }
        if !ended.status.success() {
            bail!("{who}: the run failed: {}", ended.reason());
        }
        if !self.verified {
            bail!("{who}: the run ended without verifying its data");
        }
        Ok(())
    }

    /// Median of the write rounds after the first, which fills; of all if there is only one.
    pub fn steady(&self) -> f64 {
        median(if self.mb_s.len() > 1 {
            &self.mb_s[1..]
        } else {
            &self.mb_s
        })
    }

    /// Median of the read rounds after the first, which still writes out what was dirty.
    pub fn steady_read(&self) -> f64 {
        median(if self.read_mb_s.len() > 1 {
            &self.read_mb_s[1..]
        } else {
            &self.read_mb_s
        })
    }
}

/// The middle value (the mean of the middle two); 0 of none.
pub fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => 0.0,
        n if n % 2 == 1 => v[n / 2],
        n => f64::midpoint(v[n / 2 - 1], v[n / 2]),
    }
}

/// The worker by itself.
pub fn worker_command(work: &Work) -> Result<Command> {
    let mut c = Command::new(std::env::current_exe()?);
    c.args(["__worker", "work", &serde_json::to_string(work)?]);
    Ok(c)
}

/// The worker without any swap.
pub fn plain(work: &Work, limit: Duration, mut on_line: impl FnMut(&str)) -> Result<Run> {
    let mut run = Run::new("plain", work);
    let ended = child::run(&mut worker_command(work)?, limit, |line| {
        on_line(line);
        run.take(line, None)
    })
    .context("the plain run")?;
    run.finish(&ended)?;
    Ok(run)
}

/// Touches memory and frees it, so that the next run does not wait for the host of a virtual machine to find
/// some; the same before every run, whichever engine it is.
pub fn warm_up(bytes: u64, limit: Duration) -> Result<()> {
    let work = Work {
        region: bytes.min(super::machine::available_bytes()? / 2),
        tasks: 1,
        threads: 1,
        rounds: 1,
        thp: Thp::On,
        ..Work::default()
    };
    let ended = child::run(&mut worker_command(&work)?, limit, |_| Ok(()))?;
    if !ended.status.success() {
        bail!("memory could not be touched: {}", ended.reason());
    }
    Ok(())
}

/// How `hugeswap run` is to be called.
pub struct Hugeswap<'a> {
    pub memory: u64,
    /// Values for `--swap`.
    pub swap: &'a [String],
    pub common: &'a Common,
    /// A value for `--fault-mode`.
    pub fault_mode: Option<&'static str>,
    /// Settings beyond the common ones, with commas between.
    pub also: Option<&'a str>,
}

impl<'a> Hugeswap<'a> {
    /// As the common arguments say.
    pub fn new(memory: u64, swap: &'a [String], common: &'a Common) -> Hugeswap<'a> {
        Hugeswap {
            memory,
            swap,
            common,
            fault_mode: common.fault_mode.map(super::args::FaultMode::name),
            also: None,
        }
    }

    /// Runs a program of this executable (its arguments: `program`) under `hugeswap run`; how it ended, and the report.
    pub fn report_of(
        &self,
        program: &[&str],
        on_line: impl FnMut(&str) -> Result<()>,
    ) -> Result<(Ended, Value)> {
        let report = place_for_report()?;
        let exe = std::env::current_exe()?;
        let mut c = self.command(report.path())?;
        c.arg(&exe).arg("__worker").args(program);
        let ended = child::run(&mut c, self.common.limit(), on_line).context("hugeswap's run")?;
        Ok((ended, report_in(report.path())))
    }

    /// `hugeswap run` up to where the program's name follows.
    fn command(&self, report: &Path) -> Result<Command> {
        let mut c = Command::new(std::env::current_exe()?);
        c.args(["run", "--memory", &self.memory.to_string()])
            .args(["--report", "json", "--report-file"])
            .arg(report);
        for s in self.swap {
            c.args(["--swap", s]);
        }
        let also = self.also.iter().flat_map(|s| s.split(','));
        for s in self.common.set.iter().map(String::as_str).chain(also) {
            c.args(["--set", s]);
        }
        if let Some(mode) = self.fault_mode {
            c.args(["--fault-mode", mode]);
        }
        c.arg("--");
        Ok(c)
    }

    /// Runs any program; how it went and the report, also where it did not end in time.
    pub fn run_program(&self, argv: &[String]) -> Result<(Result<(Ended, u64)>, Value)> {
        let report = place_for_report()?;
        let mut c = self.command(report.path())?;
        let done = child::digest(c.args(argv), self.common.limit(), |_| ());
        Ok((done, report_in(report.path())))
    }

    /// Runs a worker.
    pub fn run(&self, work: &Work, mut on_line: impl FnMut(&str)) -> Result<Run> {
        self.run_watched(work, |line, _| on_line(line))
    }

    /// Runs a worker; with each line of its output comes the pool it is in, once that is known.
    pub fn run_watched(
        &self,
        work: &Work,
        mut on_line: impl FnMut(&str, Option<&Pool>),
    ) -> Result<Run> {
        let mut run = Run::new("hugeswap", work).with("memory_bytes", self.memory);
        if let Some(also) = self.also {
            run = run.with("also", also);
        }
        let json = serde_json::to_string(work)?;
        let mut pool = None;
        let (ended, report) = self.report_of(&["work", &json], |line| {
            on_line(line, pool.as_ref());
            if let Ok(Figure::Ready { pid }) = serde_json::from_str(line) {
                pool = figures::pool_of(pid);
            }
            run.take(line, pool.as_ref().map(figures::of_pool))
        })?;
        run.finish(&ended)?;
        check_managed(&report)?;
        for name in ["fault_mode", "peak_resident_bytes"] {
            run.params.insert(name.into(), report[name].clone());
        }
        run.huge_share = report["huge_share"].as_f64();
        run.counters = report;
        Ok(run)
    }
}

fn place_for_report() -> Result<tempfile::NamedTempFile> {
    tempfile::NamedTempFile::new().context("no place for the report: set TMPDIR")
}

fn report_in(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

/// Figures of memory that was not managed would be those of plain memory.
pub fn check_managed(report: &Value) -> Result<()> {
    match report["peak_managed_bytes"].as_u64() {
        None => bail!("hugeswap: the run left no report"),
        Some(0) => bail!(
            "hugeswap managed none of the worker's memory: lower --set route.mmap_min, or give a larger --region"
        ),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn the_fill_is_no_steady_round() {
        let mut run = Run::new("plain", &Work::default());
        run.take(r#"{"step":"write","round":1,"mb_s":1000.0}"#, None)
            .unwrap();
        assert_eq!(run.steady(), 1000.0);
        run.take(r#"{"step":"write","round":2,"mb_s":100.0}"#, None)
            .unwrap();
        run.take(r#"{"step":"write","round":3,"mb_s":120.0}"#, None)
            .unwrap();
        assert_eq!(run.steady(), 110.0);
        assert!(run.take("noise", None).is_err());
        run.take(r#"{"step":"verified","share":0.125}"#, None)
            .unwrap();
        assert!(run.verified && run.verified_share == 0.125);
    }

    #[test]
    fn an_unmanaged_run_is_no_figure() {
        assert!(check_managed(&serde_json::json!({"peak_managed_bytes": 0})).is_err());
        assert!(check_managed(&Value::Null).is_err());
        check_managed(&serde_json::json!({"peak_managed_bytes": 4096})).unwrap();
    }
}

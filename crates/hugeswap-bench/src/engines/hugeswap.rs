//! Runs of `hugeswap run`, and plain runs.

use crate::child::{self, Ended};
use crate::generate::plan::{Thp, Work};
use crate::generate::worker::{self, Figure};
use crate::machine;
use crate::options::{Common, Named};
use crate::output::{Run, figures};
use anyhow::{Context, Result, bail};
use hugeswap_engine::pool::Pool;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Runs a worker without swap.
pub fn plain(work: &Work, limit: Duration, mut on_line: impl FnMut(&str)) -> Result<Run> {
    let mut run = Run::new("plain", work);
    let ended = child::run(&mut worker::command(work)?, limit, |line| {
        on_line(line);
        run.take(line, None)
    })
    .context("the plain run")?;
    run.finish(&ended)?;
    Ok(run)
}

/// Touches memory and frees it, so that the next run does not wait until the host of a virtual machine
/// finds some. It is done before every run, whichever engine it is.
pub fn warm_up(bytes: u64, limit: Duration) -> Result<()> {
    let work = Work {
        region: bytes.min(machine::available_bytes()? / 2),
        rounds: 1,
        thp: Thp::On,
        ..Work::default()
    };
    let ended = child::run(&mut worker::command(&work)?, limit, |_| Ok(()))?;
    if !ended.status.success() {
        bail!("memory could not be touched: {}", ended.reason());
    }
    Ok(())
}

/// A call of `hugeswap run`.
pub struct Hugeswap<'a> {
    pub memory: u64,
    /// Values for `--swap`.
    pub swap: &'a [String],
    pub common: &'a Common,
    /// A value for `--fault-mode`.
    pub fault_mode: Option<String>,
    /// Settings beyond the common ones, with commas between.
    pub also: Option<&'a str>,
}

impl<'a> Hugeswap<'a> {
    /// With the common options.
    pub fn new(memory: u64, swap: &'a [String], common: &'a Common) -> Hugeswap<'a> {
        Hugeswap {
            memory,
            swap,
            common,
            fault_mode: common.fault_mode.map(|m| m.name()),
            also: None,
        }
    }

    /// Runs a worker of some kind under `hugeswap run`. Returns how it ended, and the report.
    pub fn report_of(
        &self,
        kind: &str,
        task: &impl Serialize,
        on_line: impl FnMut(&str) -> Result<()>,
    ) -> Result<(Ended, Value)> {
        let report = place_for_report()?;
        let exe = std::env::current_exe()?;
        let mut c = self.command(report.path())?;
        c.arg(&exe)
            .args(["__worker", kind, &serde_json::to_string(task)?]);
        let ended = child::run(&mut c, self.common.limit(), on_line).context("hugeswap's run")?;
        Ok((ended, report_in(report.path())))
    }

    /// `hugeswap run` with its options; the program's name follows.
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
        if let Some(mode) = &self.fault_mode {
            c.args(["--fault-mode", mode]);
        }
        c.arg("--");
        Ok(c)
    }

    /// Runs any program. Returns how it ended and the report, which there is also if it did not end in
    /// time.
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

    /// Runs a worker. With each line of its output comes its pool, once that is known.
    pub fn run_watched(
        &self,
        work: &Work,
        mut on_line: impl FnMut(&str, Option<&Pool>),
    ) -> Result<Run> {
        let mut run = Run::new("hugeswap", work).with("memory_bytes", self.memory);
        if let Some(also) = self.also {
            run = run.with("also", also);
        }
        let mut pool = None;
        let (ended, report) = self.report_of("work", work, |line| {
            on_line(line, pool.as_ref());
            if let Ok(Figure::Ready { pid }) = serde_json::from_str(line) {
                pool = figures::pool_of(pid);
            }
            run.take(line, pool.as_ref().map(figures::of_pool))
        })?;
        run.finish(&ended)?;
        check_managed(&report)?;
        Ok(run.reported(report))
    }
}

fn place_for_report() -> Result<tempfile::NamedTempFile> {
    tempfile::NamedTempFile::new().context("no place for the report: set TMPDIR")
}

fn report_in(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

/// An error if no memory was managed: the figures would be those of plain memory.
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
    fn an_unmanaged_run_has_no_figures() {
        assert!(check_managed(&serde_json::json!({"peak_managed_bytes": 0})).is_err());
        assert!(check_managed(&Value::Null).is_err());
        check_managed(&serde_json::json!({"peak_managed_bytes": 4096})).unwrap();
    }
}

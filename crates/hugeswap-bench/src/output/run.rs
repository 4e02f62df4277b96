//! One run of an engine: its parameters, and the figures of its worker.

use super::figures::{Counters, PhaseRun, since};
use super::numbers::median;
use crate::child::{self, Ended};
use crate::generate::plan::{Phase, Work};
use crate::generate::worker::{CORRUPT, Figure};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Map, Value};

/// One run; an element of `runs` in the JSON.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// "hugeswap", "kernel" or "plain".
    pub engine: &'static str,
    #[serde(flatten)]
    pub params: Map<String, Value>,
    /// Speed of writing, by round: 10^6 bytes a second, all tasks together.
    pub mb_s: Vec<f64>,
    /// Speed of reading, by round.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub read_mb_s: Vec<f64>,
    /// The time of a random read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_access: Option<f64>,
    /// The phases, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseRun>,
    /// The phases that the worker was told to play.
    #[serde(skip)]
    plan: Vec<Phase>,
    /// The counters when the last figure arrived.
    #[serde(skip)]
    counted: Counters,
    /// From the first write to the last read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_s: Option<f64>,
    /// The program from its start to its end, with the verification.
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
    /// A run of a worker that has not started.
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

    /// A run that has not started.
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
        match (self.word("thp"), self.word("also")) {
            (Some(thp), _) => {
                let zswap = self.params.get("zswap").and_then(Value::as_bool) == Some(true);
                let zswap = if zswap { ", zswap" } else { "" };
                format!("{}, THP {thp}{zswap}", self.engine)
            }
            (_, Some(also)) => format!("{}, {also}", self.engine),
            _ => self.engine.to_owned(),
        }
    }

    /// A parameter that is a number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.params.get(name)?.as_f64()
    }

    /// A parameter that is a word.
    pub fn word(&self, name: &str) -> Option<&str> {
        self.params.get(name)?.as_str()
    }

    /// A parameter in a table, or "-".
    pub fn cell(&self, name: &str) -> String {
        match self.params.get(name) {
            None | Some(Value::Null) => "-".into(),
            Some(Value::String(word)) => word.clone(),
            Some(value) => value.to_string(),
        }
    }

    /// A counter of the whole run.
    pub fn counter(&self, name: &str) -> Option<f64> {
        self.counters[name].as_f64()
    }

    /// A counter of one phase.
    pub fn counted(&self, phase: &str, name: &str) -> Option<f64> {
        let counters = self.phase(phase)?.counters.as_ref()?;
        counters.get(name).map(|&n| n as f64)
    }

    /// Adds what `hugeswap run` reports.
    pub fn reported(mut self, report: Value) -> Run {
        for name in ["fault_mode", "peak_resident_bytes"] {
            self.params.insert(name.into(), report[name].clone());
        }
        self.huge_share = report["huge_share"].as_f64();
        self.counters = report;
        self
    }

    /// The phase of this name.
    pub fn phase(&self, name: &str) -> Option<&PhaseRun> {
        self.phases.iter().find(|p| p.name == name)
    }

    /// Takes one line of the worker's output. `counters`: the counters now, if they can be read.
    pub fn take(&mut self, line: &str, counters: Option<Counters>) -> Result<()> {
        let before = counters.map(|now| std::mem::replace(&mut self.counted, now));
        match child::figure(line)? {
            Figure::Ready { .. } => {}
            Figure::Phase { name, played } => {
                let plan = self.plan.get(self.phases.len()).filter(|p| p.name == name);
                let plan = plan
                    .with_context(|| format!("the worker played {name}, which is not planned"))?;
                let counted = before.map(|b| since(&b, &self.counted));
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

    /// Ends the run: an error if it failed or its data did not verify.
    pub fn finish(&mut self, ended: &Ended) -> Result<()> {
        self.elapsed_s = ended.elapsed.as_secs_f64();
        let engine = self.engine;
        if ended.status.code() == Some(CORRUPT) {
            bail!("{engine}: the data did not verify: {}", ended.reason());
        }
        if !ended.status.success() {
            bail!("{engine}: the run failed: {}", ended.reason());
        }
        if !self.verified {
            bail!("{engine}: the run ended without verifying its data");
        }
        Ok(())
    }

    /// MB/s of the write rounds after the first, which fills the memory.
    pub fn steady(&self) -> f64 {
        after_first(&self.mb_s)
    }

    /// MB/s of the read rounds after the first, which still writes out dirty memory.
    pub fn steady_read(&self) -> f64 {
        after_first(&self.read_mb_s)
    }
}

/// The median of the rounds after the first; of all if there is only one.
fn after_first(rounds: &[f64]) -> f64 {
    median(if rounds.len() > 1 {
        &rounds[1..]
    } else {
        rounds
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fill_is_not_a_steady_round() {
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
}

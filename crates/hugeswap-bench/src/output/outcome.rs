//! Everything that one call of a benchmark found: one JSON object, or a table for people.

use super::numbers::{median, rounded};
use super::run::Run;
use super::table::Table;
use crate::machine::{self, Machine};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::Path;

/// A benchmark with its arguments.
pub trait Benchmark {
    /// Its name on the command line.
    const NAME: &'static str;

    /// Checks everything that can be checked without a run.
    fn check(&self) -> Result<()>;

    /// Measures; the table is for people.
    fn measure(&self, outcome: &mut Outcome) -> Result<Table>;
}

/// Checks the arguments, measures and prints: a table, or JSON.
pub fn run<B: Benchmark>(benchmark: &B, json: bool) -> Result<()> {
    benchmark.check()?;
    let mut outcome = Outcome::new(B::NAME)?;
    let table = benchmark.measure(&mut outcome)?;
    outcome.print(json, &table)?;
    match outcome.failure {
        Some(failure) => bail!(failure),
        None => Ok(()),
    }
}

/// Everything one call of a benchmark found.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Its name on the command line.
    pub bench: &'static str,
    pub machine: Machine,
    /// Load averages at the start: 1, 5 and 15 minutes.
    pub load: [f64; 3],
    pub runs: Vec<Run>,
    /// Medians over the pairs, by what is compared.
    pub ratios: Map<String, Value>,
    /// What was not measured, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// What a reader of the figures has to know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Figures that only this benchmark has.
    #[serde(flatten)]
    pub more: Map<String, Value>,
    /// The benchmark failed, although it has figures.
    #[serde(skip)]
    pub failure: Option<String>,
}

impl Outcome {
    /// No figures yet; notes the load.
    pub fn new(bench: &'static str) -> Result<Outcome> {
        Ok(Outcome {
            bench,
            machine: machine::describe()?,
            load: machine::load(),
            runs: Vec::new(),
            ratios: Map::new(),
            skipped: Vec::new(),
            notes: Vec::new(),
            more: Map::new(),
            failure: None,
        })
    }

    /// Adds a ratio, with three decimals; nothing if it was divided by nothing.
    pub fn ratio(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.ratios.insert(name.into(), rounded(value, 3).into());
        }
    }

    /// Adds the ratio of a figure of the runs with the label `a` to that of the runs with the label `b`:
    /// the median of the pairs. Runs without the figure do not count; nothing if none is left.
    pub fn compare(&mut self, name: &str, a: &str, b: &str, f: impl Fn(&Run) -> Option<f64>) {
        let (a, b) = (self.figures(a, &f), self.figures(b, &f));
        self.ratio_of_pairs(name, &a, &b);
    }

    /// A figure of the runs with a label, in order; runs without it are left out.
    pub fn figures(&self, label: &str, f: impl Fn(&Run) -> Option<f64>) -> Vec<f64> {
        let runs = self.runs.iter().filter(|r| r.label() == label);
        runs.filter_map(f).collect()
    }

    /// Adds the median of the ratios of two figures, pair by pair.
    pub fn ratio_of_pairs(&mut self, name: &str, a: &[f64], b: &[f64]) {
        let pairs: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        self.median_ratio(name, &pairs);
    }

    /// Adds the median of `values`; nothing if there are none.
    pub fn median_ratio(&mut self, name: &str, values: &[f64]) {
        if !values.is_empty() {
            self.ratio(name, median(values));
        }
    }

    /// Adds a note.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a figure that only this benchmark has.
    pub fn add(&mut self, name: &str, figure: impl Into<Value>) {
        self.more.insert(name.into(), figure.into());
    }

    /// Labels of all runs but hugeswap's, in order, each once, with the word for it in a ratio's name.
    pub fn rivals(&self) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        for label in self.runs.iter().map(Run::label).filter(|l| l != "hugeswap") {
            if !found.iter().any(|(l, _)| *l == label) {
                let words = label.split(|c: char| !c.is_ascii_alphanumeric());
                let words: Vec<_> = words.filter(|w| !w.is_empty()).collect();
                found.push((label.clone(), words.join("_").to_lowercase()));
            }
        }
        found
    }

    /// Prints the JSON; or the machine, `table`, the ratios and the notes.
    fn print(&self, json: bool, table: &Table) -> Result<()> {
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        let m = &self.machine;
        println!(
            "{}: {} CPUs, {} GiB, Linux {}, huge pages: {}, load {:.2} {:.2} {:.2}\n",
            self.bench,
            m.cpus,
            m.memory_bytes.div_ceil(1 << 30),
            m.kernel,
            m.thp,
            self.load[0],
            self.load[1],
            self.load[2]
        );
        print!("{}", table.text());
        if !self.ratios.is_empty() {
            println!();
            let width = self.ratios.keys().map(String::len).max().unwrap_or(0);
            for (name, value) in &self.ratios {
                println!(
                    "{:<width$}  {:>8.3}",
                    name.replace('_', " "),
                    value.as_f64().unwrap_or(0.0)
                );
            }
        }
        for line in &self.notes {
            println!("note: {line}");
        }
        Ok(())
    }

    /// Notes something that is not measured, and says so on stderr.
    pub fn skip(&mut self, reason: String) {
        eprintln!("hugeswap: skipped: {reason}");
        self.skipped.push(reason);
    }
}

/// Writes the chart of `--plot`.
pub fn save_chart(file: &Path, svg: &str) -> Result<()> {
    std::fs::write(file, svg)
        .with_context(|| format!("--plot {} cannot be written", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_to_nothing_is_left_out() {
        let mut o = Outcome::new("swap-seq").unwrap();
        o.ratio("a", 1.0 / 0.0);
        o.ratio("b", 1.23456);
        o.median_ratio("c", &[]);
        assert_eq!(
            serde_json::to_value(&o.ratios).unwrap(),
            serde_json::json!({"b": 1.235})
        );
    }
}

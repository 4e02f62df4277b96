//! What a benchmark prints: one JSON object, or a table for people; and progress while it runs.

use super::machine::{self, Machine};
use super::runner::{Run, median};
use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value};
use std::time::Duration;

/// Measures and prints.
pub fn measured(
    bench: &'static str,
    json: bool,
    measure: impl FnOnce(&mut Outcome) -> Result<Table>,
) -> Result<()> {
    let mut outcome = Outcome::new(bench)?;
    let table = measure(&mut outcome)?;
    outcome.print(json, &table)
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
    /// What was not done, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// What else is to be known about the figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What only this benchmark has.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl Outcome {
    /// Nothing found yet; takes the load.
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
        })
    }

    /// Notes the ratio of `a` to `b`, with two decimals; nothing if there is nothing to divide by.
    pub fn ratio(&mut self, name: &str, value: f64) {
        if value.is_finite() {
            self.ratios.insert(name.into(), rounded(value, 3).into());
        }
    }

    /// Notes the ratio of `a`'s figure to `b`'s (labels of runs): the median of the pairs. Runs without
    /// such a figure are passed over; nothing if there are none left.
    pub fn compare(&mut self, name: &str, a: &str, b: &str, f: impl Fn(&Run) -> Option<f64>) {
        let (a, b) = (self.figures(a, &f), self.figures(b, &f));
        self.ratio_of_pairs(name, &a, &b);
    }

    /// A figure of the runs with a label that have it, in order.
    pub fn figures(&self, label: &str, f: impl Fn(&Run) -> Option<f64>) -> Vec<f64> {
        let runs = self.runs.iter().filter(|r| r.label() == label);
        runs.filter_map(f).collect()
    }

    /// Notes the median of the ratios of two figures, pair by pair.
    pub fn ratio_of_pairs(&mut self, name: &str, a: &[f64], b: &[f64]) {
        let pairs: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
        self.median_ratio(name, &pairs);
    }

    /// Notes the median of `values`; nothing if there are none.
    pub fn median_ratio(&mut self, name: &str, values: &[f64]) {
        if !values.is_empty() {
            self.ratio(name, median(values));
        }
    }

    /// Labels of the runs other than `but`, in order, each once; with the end of a ratio's name.
    pub fn rivals(&self, but: &str) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        for label in self.runs.iter().map(Run::label).filter(|l| l != but) {
            if !found.iter().any(|(l, _)| *l == label) {
                let words = label.split(|c: char| !c.is_ascii_alphanumeric());
                let words: Vec<_> = words.filter(|w| !w.is_empty()).collect();
                found.push((label.clone(), words.join("_").to_lowercase()));
            }
        }
        found
    }

    /// Prints it: the JSON, or `table` between what it was measured on and what came of it.
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

    /// Notes something that is not done, and says so at once.
    pub fn skip(&mut self, reason: String) {
        eprintln!("hugeswap: skipped: {reason}");
        self.skipped.push(reason);
    }
}

/// A number as it is worth printing.
pub fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// A number in a table, or nothing.
pub fn cell(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".into(), |v| format!("{v:.digits$}"))
}

/// Rows under headings; the first column is text, the others are numbers.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Another one, printed after an empty line.
    below: Option<Box<Table>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Table {
        Table {
            rows: vec![headings.iter().map(|h| (*h).to_owned()).collect()],
            below: None,
        }
    }

    /// The same, with another table below.
    pub fn below(mut self, other: Table) -> Table {
        self.below = Some(Box::new(other));
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// All of it, aligned.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            self.rows
                .iter()
                .filter_map(|r| r.get(c))
                .map(|s| s.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &w))| {
                if i == 0 {
                    format!("{cell:<w$}")
                } else {
                    format!("{cell:>w$}")
                }
            });
            out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            out.push('\n');
        }
        if let Some(below) = &self.below {
            out.push('\n');
            out.push_str(&below.text());
        }
        out
    }
}

/// One line on a terminal that tells what is going on; nothing elsewhere.
pub struct Progress {
    bar: ProgressBar,
    label: String,
}

impl Progress {
    /// Over so many runs.
    pub fn new(runs: u64) -> Progress {
        let bar = ProgressBar::new(runs);
        if let Ok(style) = ProgressStyle::with_template("{spinner} [{pos}/{len}] {msg} ({elapsed})")
        {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress {
            bar,
            label: String::new(),
        }
    }

    /// A run begins.
    pub fn begin(&mut self, label: impl Into<String>) {
        self.label = label.into();
        self.bar.set_message(self.label.clone());
    }

    /// What is going on in a run.
    pub fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    /// A worker has told a figure.
    pub fn figure(&self, line: &str) {
        let v: Value = serde_json::from_str(line).unwrap_or_default();
        let step = v["step"].as_str().unwrap_or_default();
        if let (Some(round), Some(mb_s)) = (v["round"].as_u64(), v["mb_s"].as_f64()) {
            self.bar
                .set_message(format!("{}: {step} {round}: {mb_s:.0} MB/s", self.label));
        } else if let (Some(name), Some(s)) = (v["name"].as_str(), v["played"]["seconds"].as_f64())
        {
            self.bar
                .set_message(format!("{}: {name}: {s:.1} s", self.label));
        }
    }

    /// A run has ended.
    pub fn end(&self) {
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let mut t = Table::new(&["engine", "MB/s"]);
        t.row(vec!["kernel".into(), "99".into()]);
        t.row(vec!["hugeswap".into(), "1234".into()]);
        let text = "engine    MB/s\nkernel      99\nhugeswap  1234\n";
        assert_eq!(t.text(), text);
        let two = t.below(Table::new(&["other"]));
        assert_eq!(two.text(), format!("{text}\nother\n"));
    }

    #[test]
    fn a_ratio_with_nothing_is_none() {
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

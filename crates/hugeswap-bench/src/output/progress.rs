//! Progress while a benchmark runs.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use std::time::Duration;

/// One line on a terminal that shows the progress; nothing where stderr is no terminal.
pub struct Progress {
    bar: ProgressBar,
    label: String,
}

impl Progress {
    /// Progress over so many runs.
    pub fn new(runs: usize) -> Progress {
        let bar = ProgressBar::new(runs as u64);
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

    /// Shows a message within a run.
    pub fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    /// Shows a figure of a worker.
    pub fn figure(&self, line: &str) {
        let v: Value = serde_json::from_str(line).unwrap_or_default();
        let step = v["step"].as_str().unwrap_or_default();
        let played = v["played"]["seconds"].as_f64();
        let label = &self.label;
        if let (Some(round), Some(mb_s)) = (v["round"].as_u64(), v["mb_s"].as_f64()) {
            self.say(format!("{label}: {step} {round}: {mb_s:.0} MB/s"));
        } else if let (Some(name), Some(s)) = (v["name"].as_str(), played) {
            self.say(format!("{label}: {name}: {s:.1} s"));
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

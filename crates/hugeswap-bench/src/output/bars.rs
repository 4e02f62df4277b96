//! A chart of amounts: panels, one below the other, of rows with a bar for each series.

use hugeswap_support::chart::{COLOURS, WIDTH, line, svg, text};
use std::fmt::Write;

/// Panels of bars.
#[derive(Debug, Default)]
pub struct Bars(Vec<Panel>);

#[derive(Debug)]
struct Panel {
    title: String,
    series: Vec<String>,
    /// The label of a row, and a value for each series that has one.
    rows: Vec<(String, Vec<Option<f64>>)>,
    /// How a value is written beside its bar.
    write: fn(f64) -> String,
}

const LABELS: f64 = 300.0;
/// Room for the value beside the longest bar.
const VALUES: f64 = 90.0;
const BAR: f64 = 9.0;
const GAP: f64 = 8.0;

impl Bars {
    /// Adds a panel; rows go to the last one.
    pub fn panel(&mut self, title: &str, series: &[&str], write: fn(f64) -> String) {
        self.0.push(Panel {
            title: title.into(),
            series: series.iter().map(|s| (*s).to_owned()).collect(),
            rows: Vec::new(),
            write,
        });
    }

    /// Adds a row to the last panel, with a value for each of its series.
    pub fn row(&mut self, label: &str, values: &[Option<f64>]) {
        if let Some(panel) = self.0.last_mut() {
            panel.rows.push((label.into(), values.into()));
        }
    }

    /// The chart as SVG. Bars begin at 0, and the longest of a panel takes the whole width.
    pub fn draw(&self) -> String {
        let mut out = String::new();
        let mut y = 10.0;
        for panel in &self.0 {
            y = panel.draw(&mut out, y) + 20.0;
        }
        svg(y, &out)
    }
}

impl Panel {
    /// Draws the panel from `y` downwards. Returns its lower end.
    fn draw(&self, out: &mut String, mut y: f64) -> f64 {
        y += 12.0;
        text(out, "start", 10.0, y, &self.title);
        let mut at = LABELS;
        for (n, series) in self.series.iter().enumerate() {
            bar(out, n, at, y - BAR, 20.0);
            text(out, "start", at + 26.0, y, series);
            at += 50.0 + 7.0 * series.chars().count() as f64;
        }
        y += GAP;
        let top = y;
        let values = || self.rows.iter().flat_map(|r| r.1.iter().flatten());
        let most = values().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        for (label, values) in &self.rows {
            y += GAP;
            let middle = y + BAR * values.len() as f64 / 2.0 + 4.0;
            text(out, "end", LABELS - 8.0, middle, label);
            for (n, value) in values.iter().enumerate() {
                if let Some(value) = value {
                    let width = (WIDTH - LABELS - VALUES) * (value / most).clamp(0.0, 1.0);
                    bar(out, n, LABELS, y, width);
                    let written = (self.write)(*value);
                    text(out, "start", LABELS + width + 5.0, y + BAR, &written);
                }
                y += BAR + 1.0;
            }
        }
        y += GAP;
        line(out, "#888", (LABELS, top), (LABELS, y));
        y
    }
}

fn bar(out: &mut String, series: usize, x: f64, y: f64, width: f64) {
    let colour = COLOURS[series % COLOURS.len()];
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_values() {
        let mut bars = Bars::default();
        bars.panel("pages", &["in", "out"], |v| format!("{v:.0}"));
        bars.row("a <b>", &[Some(100.0), Some(50.0)]);
        bars.row("c", &[Some(0.0), None]);
        let svg = bars.draw();
        let widths = |svg: &str| -> Vec<f64> {
            let rest = svg
                .lines()
                .filter(|l| l.contains("fill=\"#"))
                .map(|l| l.split("width=\"").nth(1).unwrap_or_default());
            rest.map(|r| r.split('"').next().unwrap().parse().unwrap())
                .collect()
        };
        let all = WIDTH - LABELS - VALUES;
        assert_eq!(widths(&svg), [20.0, 20.0, all, all / 2.0, 0.0]);
        assert!(svg.contains("a &lt;b>") && svg.contains(">50</text>"));
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        let nothing = Bars::default().draw();
        assert!(!nothing.contains("NaN"), "{nothing}");
    }
}

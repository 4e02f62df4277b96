//! The estimate as bars of text, and as a chart.

use super::{Advisor, Budget, Report, name};
use crate::text::{bytes, count};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_support::chart::{self, LEFT, TOP, WIDTH, grid, line, text};
use std::fmt::Write;

/// Length of the longest bar.
const BAR: f64 = 48.0;
const HEIGHT: f64 = 300.0;
const BOTTOM: f64 = 60.0;

/// The remark beside a budget.
fn remark(budget: &Budget, advisor: &Advisor) -> &'static str {
    if !budget.estimated {
        " as it was"
    } else if advisor.suggested_memory_bytes == Some(budget.memory_bytes) {
        " suggested"
    } else {
        ""
    }
}

fn largest(advisor: &Advisor) -> f64 {
    let pages = advisor.budgets.iter().map(|b| b.pages_in);
    pages.max().unwrap_or(0).max(1) as f64
}

/// A line for each budget.
pub fn bars(report: &Report, advisor: &Advisor) -> String {
    let mut out = format!(
        "{}: {} came back from swap with a budget of {}\n\n{:>10} {:>14}\n",
        name(report),
        bytes(report.pswpin.saturating_mul(PAGE_BYTES)),
        bytes(report.memory_bytes),
        "memory",
        "pages in"
    );
    let most = largest(advisor);
    for b in &advisor.budgets {
        let length = (b.pages_in as f64 / most * BAR).round() as usize;
        let mark = if b.estimated { "-" } else { "=" };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "{:>10} {:>14} {}{}",
            bytes(b.memory_bytes),
            count(b.pages_in),
            mark.repeat(length),
            remark(b, advisor)
        );
    }
    if let Some(below) = advisor.thrash_below_bytes {
        let _ = writeln!(out, "\nbelow {} it would thrash", bytes(below));
    }
    out
}

/// Pages in over budgets, with the present and the suggested budget marked.
pub fn svg(report: &Report, advisor: &Advisor) -> String {
    let mut out = String::new();
    let budgets = advisor.budgets.iter().map(|b| b.memory_bytes);
    let end = budgets.max().unwrap_or(0).max(1) as f64;
    let most = largest(advisor);
    let x = |b: u64| chart::across(b as f64 / end);
    let y = |pages: f64| TOP + HEIGHT * (1.0 - pages / most);
    let title = format!(
        "{}: what comes back from swap, by budget (estimated from one run with {})",
        name(report),
        bytes(report.memory_bytes)
    );
    text(&mut out, "start", LEFT, 24.0, &title);
    for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let label = bytes((most * part) as u64 * PAGE_BYTES);
        grid(&mut out, y(most * part), &label);
    }
    for b in &advisor.budgets {
        let at = x(b.memory_bytes);
        let remark = remark(b, advisor);
        if !remark.is_empty() {
            line(&mut out, "#d55e00", (at, TOP), (at, TOP + HEIGHT));
            let label = format!("{}{remark}", bytes(b.memory_bytes));
            text(&mut out, "middle", at, TOP - 8.0, &label);
        }
    }
    let below = TOP + HEIGHT;
    for part in 0..=8 {
        let budget = (end * f64::from(part) / 8.0) as u64;
        text(&mut out, "middle", x(budget), below + 18.0, &bytes(budget));
    }
    text(&mut out, "middle", WIDTH / 2.0, below + 42.0, "budget");
    let points = advisor.budgets.iter();
    let points = points.map(|b| (x(b.memory_bytes), y(b.pages_in as f64)));
    chart::curve(&mut out, chart::COLOURS[0], points);
    chart::svg(below + BOTTOM, &out)
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn bars_are_in_proportion() {
        let r = sample();
        let text = bars(&r, r.advisor.as_ref().unwrap());
        assert!(text.starts_with("sort: 391 MiB came back from swap with a budget of 1.00 GiB\n"));
        assert!(text.contains(&format!(
            "1.00 GiB        100,000 {} as it was\n",
            "=".repeat(16)
        )));
        assert!(text.contains(&format!("512 MiB        300,000 {}\n", "-".repeat(48))));
        assert!(text.contains("1.50 GiB              0  suggested\n"));
        assert!(text.ends_with("below 512 MiB it would thrash\n"));
    }

    #[test]
    fn the_chart_has_the_curve() {
        let r = sample();
        let picture = svg(&r, r.advisor.as_ref().unwrap());
        assert_eq!(picture.matches("<polyline").count(), 1);
        assert!(picture.contains("1.50 GiB suggested") && picture.contains("1.00 GiB as it was"));
        assert!(!picture.contains("NaN") && picture.trim_end().ends_with("</svg>"));
        let nothing = Advisor {
            budgets: Vec::new(),
            suggested_memory_bytes: None,
            suggested_fewer_share: None,
            thrash_below_bytes: None,
        };
        assert!(!svg(&r, &nothing).contains("NaN"));
    }
}

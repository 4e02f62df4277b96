//! The part of the report about other budgets.

use crate::text;
use hugeswap_engine::pool::Report;
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::advisor::advice::Advice;
use hugeswap_policy::counters::Counter;
use serde_json::{Value, json};

/// The curve and the advice, as they stand in the JSON.
pub fn json(advice: &Advice) -> Value {
    let budgets = advice.points.iter().map(|p| {
        json!({
            "memory_bytes": p.memory_bytes, "pages_in": p.pages_in, "estimated": p.estimated,
        })
    });
    let suggestion = advice.suggestion();
    json!({
        "budgets": budgets.collect::<Vec<_>>(),
        "suggested_memory_bytes": suggestion.map(|(p, _)| p.memory_bytes),
        "suggested_fewer_share": suggestion.map(|(_, saved)| (saved * 1000.0).round() / 1000.0),
        "thrash_below_bytes": advice.thrash_below,
    })
}

/// One line for people, if at least a quarter of the budget came back from swap.
pub fn line(report: &Report, advice: Option<&Advice>) -> Option<String> {
    let advice = advice?;
    if report.get(Counter::PswpIn) * PAGE_BYTES < report.memory_bytes / 4 {
        return None;
    }
    let now = text::bytes(report.memory_bytes);
    let last = advice.points.last()?;
    let more = match advice.suggestion() {
        Some((p, saved)) => format!(
            "with {} instead of {now}, {} pages would come back from swap",
            text::bytes(p.memory_bytes),
            fewer(saved),
        ),
        None => format!(
            "up to {} instead of {now} would hardly change how many pages come back from swap",
            text::bytes(last.memory_bytes),
        ),
    };
    let less = advice.thrash_below.map_or(String::new(), |bytes| {
        format!("; below {} it would thrash", text::bytes(bytes))
    });
    Some(more + &less)
}

fn fewer(saved: f64) -> String {
    if saved > 0.985 {
        return "hardly any".into();
    }
    format!("{:.0}% fewer", saved * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeswap_policy::advisor::advice::Point;

    fn advice() -> Advice {
        let point = |mib: u64, pages_in, estimated| Point {
            memory_bytes: mib << 20,
            pages_in,
            estimated,
        };
        Advice {
            points: vec![
                point(512, 400_000, true),
                point(1024, 100_000, false),
                point(1434, 17_000, true),
                point(2048, 15_000, true),
            ],
            suggested: Some(2),
            thrash_below: Some(700 << 20),
        }
    }

    fn report() -> Report {
        let mut counters = vec![0; Counter::COUNT];
        counters[Counter::PswpIn as usize] = 100_000;
        Report {
            memory_bytes: 1 << 30,
            peak_managed_bytes: 2 << 30,
            peak_resident_bytes: 1 << 30,
            counters,
            fault_ns: 1,
            faults: Vec::new(),
            huge_share: None,
            fault_mode: "signal",
            processes: 1,
            exhausted: 0,
            areas: Vec::new(),
            losses: Vec::new(),
            tally: Box::new([0; hugeswap_policy::advisor::WORDS]),
        }
    }

    #[test]
    fn one_line_says_what_to_do() {
        assert_eq!(
            line(&report(), Some(&advice())).unwrap(),
            "with 1.40 GiB instead of 1.00 GiB, 83% fewer pages would come back from swap; below 700 MiB it would thrash"
        );
        let hopeless = Advice {
            suggested: None,
            thrash_below: None,
            ..advice()
        };
        assert_eq!(
            line(&report(), Some(&hopeless)).unwrap(),
            "up to 2.00 GiB instead of 1.00 GiB would hardly change how many pages come back from swap"
        );
    }

    #[test]
    fn little_swapping_is_not_spoken_of() {
        assert_eq!(line(&report(), None), None);
        let mut little = report();
        little.counters[Counter::PswpIn as usize] = 1000;
        assert_eq!(line(&little, Some(&advice())), None);
    }

    #[test]
    fn json_has_the_curve() {
        let v = json(&advice());
        assert_eq!(v["budgets"].as_array().unwrap().len(), 4);
        assert_eq!(v["budgets"][1]["memory_bytes"], 1 << 30);
        assert_eq!(v["budgets"][1]["estimated"], false);
        assert_eq!(v["suggested_memory_bytes"], 1434 << 20);
        assert_eq!(v["suggested_fewer_share"], 0.83);
        assert_eq!(v["thrash_below_bytes"], 700 << 20);
    }
}

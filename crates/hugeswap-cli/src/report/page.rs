//! Recordings as one page of HTML that needs nothing else: the pictures are drawn in the browser, by
//! uPlot and by the page's own script, from the data in it.
//!
//! What a recording holds comes from others: it is in the page as JSON without `<`, and its script
//! puts it on the page as text.

use super::{Advisor, flame, heat};
use crate::record::file::{Event, Point, Recording};
use crate::text;
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::counters::FaultClass;
use hugeswap_policy::histogram;
use hugeswap_policy::recording::Kind;
use hugeswap_policy::swapin::granularity::Trial;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const PAGE: &str = include_str!("page/page.html");
const CSS: &str = include_str!("page/page.css");
const JS: &str = include_str!("page/page.js");
const UPLOT: &str = include_str!("../../third_party/uPlot/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("../../third_party/uPlot/uPlot.min.css");

/// Points of a line.
const POINTS: usize = 900;
/// Lines of what happened.
const LINES: usize = 60;

/// The page of some recordings, side by side.
pub fn page(recordings: &[Recording]) -> String {
    let runs: Vec<Value> = recordings.iter().map(run).collect();
    let titles: Vec<_> = recordings.iter().map(title).collect();
    let data = serde_json::to_string(&runs).expect("numbers and strings always have a JSON form");
    let parts = [
        ("@VERSION@", env!("CARGO_PKG_VERSION").to_owned()),
        ("@TITLE@", escaped(&titles.join(" | "))),
        ("@UPLOT_CSS@", UPLOT_CSS.to_owned()),
        ("@CSS@", CSS.to_owned()),
        ("@UPLOT_JS@", UPLOT.to_owned()),
        ("@DATA@", data.replace('<', "\\u003c")),
        ("@JS@", JS.to_owned()),
    ];
    // (In their order: what is put in is not looked through.)
    let (mut page, mut rest) = (String::new(), PAGE);
    for (mark, with) in parts {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        page.extend([before, &with]);
        rest = after;
    }
    page + rest
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn title(r: &Recording) -> String {
    let command = r.head.command.join(" ");
    match command.is_empty() {
        true => "a pool".to_owned(),
        false => text::one_line(&command),
    }
}

fn run(r: &Recording) -> Value {
    let last = r.points.last().copied().unwrap_or_default();
    let seconds = r.end.as_ref().map_or(last.t, |e| e.t).max(last.t);
    let points = thinned(&r.points);
    let rates = rates(&points);
    let level = |f: fn(&Point) -> u64| points.iter().map(f).collect::<Vec<_>>();
    json!({
        "title": title(r),
        "facts": facts(r, seconds),
        "verdict": verdict(r, seconds),
        "notes": notes(r),
        "seconds": seconds,
        "t": points.iter().map(|p| round(p.t)).collect::<Vec<_>>(),
        "levels": [
            level(|p| p.memory), level(|p| p.resident), level(|p| p.anonymous),
            level(|p| p.swap_used), level(|p| p.zswap),
        ],
        "moved": rates[..4],
        "faults": rates[4..6],
        "waits": rates[6..],
        "heat": heat::map(&r.events, seconds),
        "flame": flame::tree(&r.stacks),
        "classes": classes(r),
        "areas": areas(r),
        "advisor": advisor(r),
        "log": log(r),
        "processes": r.end.as_ref().map(|e| &e.processes[..]).unwrap_or_default(),
    })
}

fn round(n: f64) -> f64 {
    (n * 1000.0).round() / 1000.0
}

/// As many points as there are to be: the last of each part.
fn thinned(all: &[Point]) -> Vec<Point> {
    let n = all.len().min(POINTS);
    (0..n).map(|i| all[(i + 1) * all.len() / n - 1]).collect()
}

/// What there was more of at each point than at the one before, a second: bytes in and out, both of
/// compressed memory, faults of both kinds; threads in faults and waiting.
fn rates(points: &[Point]) -> Vec<Vec<Option<f64>>> {
    let rate = |f: fn(&Point) -> u64, unit: f64| {
        let differences = points.windows(2).map(|w| {
            let n = f(&w[1]).saturating_sub(f(&w[0])) as f64;
            Some(round(n * unit / (w[1].t - w[0].t).max(1e-3)))
        });
        // (Nothing is known of the time before the first.)
        let first = points.first().map(|_| None);
        first.into_iter().chain(differences).collect()
    };
    let page = PAGE_BYTES as f64;
    vec![
        rate(|p| p.pages_in.saturating_sub(p.zswap_in), page),
        rate(|p| p.pages_out, page),
        rate(|p| p.zswap_in, page),
        rate(|p| p.zswap_out, page),
        rate(|p| p.major, 1.0),
        rate(|p| p.minor, 1.0),
        rate(|p| p.fault_ns, 1e-9),
        rate(|p| p.stall_us.saturating_add(p.throttle_us), 1e-6),
    ]
}

fn facts(r: &Recording, seconds: f64) -> Vec<(String, String)> {
    let h = &r.head;
    let mut all = vec![("took", text::duration((seconds * 1e9) as u64))];
    let peak = |f: fn(&Point) -> u64| r.points.iter().map(f).max().unwrap_or(0);
    let (least, most) = (r.points.iter().map(|p| p.memory).min(), peak(|p| p.memory));
    all.push((
        "budget",
        match least {
            Some(least) if least < most => {
                format!("{} to {}", text::bytes(least), text::bytes(most))
            }
            _ => text::bytes(most),
        },
    ));
    all.push(("most in memory", text::bytes(peak(|p| p.resident))));
    all.push(("most in swap", text::bytes(peak(|p| p.swap_used))));
    all.extend(h.swap.iter().map(|s| ("swap", s.clone())));
    all.extend(h.settings.iter().map(|(k, v)| ("set", format!("{k}={v}"))));
    all.push((
        "machine",
        format!(
            "{} processors, {}",
            h.processors,
            text::bytes(h.machine_bytes)
        ),
    ));
    all.push(("Linux", h.kernel.clone()));
    all.push(("hugeswap", h.version.clone()));
    { all.into_iter() }
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Faults of each class that were recorded: how many they stand for, how long they took, and how many
/// took how long.
fn recorded(events: &[Event]) -> [(u64, f64, BTreeMap<usize, u64>); FaultClass::COUNT] {
    let mut all: [(u64, f64, BTreeMap<usize, u64>); FaultClass::COUNT] = Default::default();
    for e in events.iter().filter(|e| e.2 == Kind::Fault as u8) {
        if let Some((n, seconds, buckets)) = all.get_mut(usize::from(e.3)) {
            *n += u64::from(e.5);
            *seconds += f64::from(e.5) * e.1 as f64 / 1e9;
            *buckets.entry(histogram::bucket(e.1) / 4 * 4).or_default() += u64::from(e.5);
        }
    }
    all
}

fn classes(r: &Recording) -> Vec<Value> {
    let recorded = recorded(&r.events);
    let of = FaultClass::ALL.iter().zip(recorded);
    of.filter_map(|(class, (n, seconds, buckets))| {
        let figures = r.end.as_ref().map(|e| &e.figures["faults"][class.name()]);
        let count = figures.and_then(|f| f["count"].as_u64()).unwrap_or(n);
        let figure = |name: &str| figures.and_then(|f| f[name].as_f64());
        // What is recorded is a part of them.
        let share = count as f64 / n.max(1) as f64;
        let us = |bucket: &usize| histogram::upper_bound_ns(bucket + 3) as f64 / 1e3;
        (count > 0).then(|| {
            json!({
                "name": class.name(), "doc": class.doc(), "count": count,
                "p50_us": figure("p50_us"), "p99_us": figure("p99_us"), "max_us": figure("max_us"),
                "seconds": if r.head.from_start { seconds * share } else { seconds },
                "buckets": buckets.iter().map(|(b, n)| json!([us(b), n])).collect::<Vec<_>>(),
            })
        })
    })
    .collect()
}

/// How long transfers of a swap area took, as it stands in a recording.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Took {
    count: u64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    max_us: Option<f64>,
    buckets_us: Vec<(f64, u64)>,
}

/// A swap area, as it stands there.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Area {
    area: usize,
    reads: Took,
    writes: Took,
    read_errors: u64,
    write_errors: u64,
    name: String,
}

/// Those of a recording that make sense.
fn areas(r: &Recording) -> Vec<Area> {
    let all = r.end.iter().flat_map(|e| &e.areas);
    all.filter_map(|a| serde_json::from_value::<Area>(a.clone()).ok())
        .map(|area| Area {
            name: match r.head.swap.get(area.area) {
                Some(place) => format!("{}: {place}", area.area),
                None => area.area.to_string(),
            },
            ..area
        })
        .collect()
}

fn advisor(r: &Recording) -> Option<Value> {
    let advisor = r.end.as_ref()?.advisor.clone()?;
    let advisor: Advisor = serde_json::from_value(advisor).ok()?;
    let mut words = vec![
        "What would have come back from swap with a smaller or larger budget, estimated from how long pages were away."
            .to_owned(),
    ];
    if let Some(enough) = advisor.suggested_memory_bytes {
        let share = advisor.suggested_fewer_share.unwrap_or(0.0);
        words.push(format!(
            "With {}, {:.0}% less would come back.",
            text::bytes(enough),
            share * 100.0
        ));
    }
    if let Some(thrash) = advisor.thrash_below_bytes {
        words.push(format!("Below {} it would thrash.", text::bytes(thrash)));
    }
    Some(json!({ "text": words.join(" "), "budgets": advisor.budgets }))
}

/// What the recording comes to, in sentences.
fn verdict(r: &Recording, seconds: f64) -> Vec<String> {
    let (Some(first), Some(last)) = (r.points.first(), r.points.last()) else {
        return vec!["Nothing was recorded.".into()];
    };
    let mut lines = Vec::new();
    let in_faults = last.fault_ns.saturating_sub(first.fault_ns) as f64 / 1e9;
    let faults = |p: &Point| p.major.saturating_add(p.minor);
    let faults = faults(last).saturating_sub(faults(first));
    if faults == 0 {
        lines.push(
            "No managed memory was touched: nothing was managed, or the program rested.".into(),
        );
        return lines;
    }
    let share = in_faults / seconds.max(1e-3);
    let mut line = match share {
        s if s < 0.02 => format!(
            "Hardly any time went to faults: {} of {}.",
            text::duration((in_faults * 1e9) as u64),
            text::duration((seconds * 1e9) as u64)
        ),
        s => format!(
            "Threads were in faults for {} in {}{}.",
            text::duration((in_faults * 1e9) as u64),
            text::duration((seconds * 1e9) as u64),
            if s <= 1.0 {
                format!(", {:.0}% of the time", s * 100.0)
            } else {
                ", several at a time".into()
            },
        ),
    };
    let classes = recorded(&r.events);
    let most = FaultClass::ALL
        .iter()
        .zip(&classes)
        .max_by(|a, b| a.1.1.total_cmp(&b.1.1));
    let all: f64 = classes.iter().map(|c| c.1).sum();
    if let Some((class, (_, seconds, _))) = most.filter(|_| share >= 0.02 && all > 0.0) {
        let doc = class.doc().trim_end_matches('.').to_lowercase();
        line += &format!(
            " {:.0}% of that: {doc} ({}).",
            100.0 * seconds / all,
            class.name()
        );
    }
    lines.push(line);
    let stalled = last.stall_us.saturating_sub(first.stall_us) as f64 / 1e6;
    if stalled > seconds / 20.0 {
        lines.push(format!(
            "Threads waited {} until memory was free: writing to swap did not keep up.",
            text::duration((stalled * 1e9) as u64)
        ));
    }
    lines
}

fn notes(r: &Recording) -> Vec<String> {
    let mut notes = Vec::new();
    match &r.end {
        None => notes.push("The recording was cut off: its end is missing.".to_owned()),
        Some(end) if end.ended.is_empty() => {
            notes.push("The program ran on when the recording ended.".into())
        }
        Some(end) => notes.push(format!("The program {}.", end.ended)),
    }
    if !r.head.from_start {
        notes.push(
            "The recording began while the program ran: totals and longest times are of all that it has done.".into(),
        );
    }
    let weights = r
        .events
        .iter()
        .filter(|e| e.2 == Kind::Fault as u8)
        .map(|e| e.5);
    if let Some(most) = weights.max().filter(|&w| w > 1) {
        notes.push(format!(
            "Faults were more than are recorded: of those of the busiest time one in {most} is. Numbers of pages and \
             stacks are estimates by that."
        ));
    }
    if let Some([happenings, stacks]) = r.end.as_ref().map(|e| e.lost).filter(|l| *l != [0, 0]) {
        notes.push(format!(
            "Of what was to be recorded, {} events and {} stacks came too fast and are missing.",
            text::count(happenings),
            text::count(stacks)
        ));
    }
    notes
}

/// What was decided, and when, and what else is worth a line.
fn log(r: &Recording) -> Vec<(f64, String)> {
    let mut all = Vec::new();
    let mut first = |f: fn(&Point) -> u64, what: &str| {
        let point = r.points.iter().find(|p| f(p) > 0);
        all.extend(point.map(|p| (round(p.t), what.to_owned())));
    };
    if r.head.from_start {
        first(|p| p.minor | p.major, "The first memory is managed.");
        first(
            |p| p.pages_out | p.zswap_out,
            "Memory leaves for the first time.",
        );
        first(
            |p| p.zswap_out,
            "Pages are kept compressed for the first time.",
        );
    }
    // The budget, where it has changed by an eighth since it was last told.
    let mut told = r.points.first().map_or(0, |p| p.memory);
    for p in &r.points {
        if p.memory.abs_diff(told) > told / 8 {
            let (from, to) = (text::bytes(told), text::bytes(p.memory));
            all.push((round(p.t), format!("The budget is {to}; it was {from}.")));
            told = p.memory;
        }
    }
    for e in r.events.iter().filter(|e| e.2 == Kind::Trial as u8) {
        let way = match e.8 {
            1 => "as many pages as the faults so far suggest",
            _ => "whole huge pages only",
        };
        let what = match Trial::ALL.get(usize::from(e.3)) {
            Some(Trial::Begun) => format!(
                "Faults bring in {way} from here on, for a trial: several threads wait for faults at a time."
            ),
            Some(Trial::Kept) => format!(
                "The trial was a success, for the program got further: faults bring in {way}."
            ),
            _ => format!("The trial was to no avail: faults bring in {way}."),
        };
        all.push((round(e.0 as f64 / 1e6), what));
    }
    // Waits, by the second.
    let mut waits: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for e in &r.events {
        let is_wait = e.2 == Kind::Stalled as u8 || e.2 == Kind::Throttled as u8;
        if is_wait {
            let (n, ns) = waits.entry(e.0 / 1_000_000).or_default();
            *n += u64::from(e.5);
            *ns = ns.saturating_add(e.1);
        }
    }
    let mut waits: Vec<_> = waits
        .into_iter()
        .filter(|(_, (_, ns))| *ns > 50_000_000)
        .collect();
    waits.sort_by_key(|(_, (_, ns))| std::cmp::Reverse(*ns));
    for (second, (n, ns)) in waits.into_iter().take(LINES / 3) {
        let (n, took) = (text::count(n), text::duration(ns));
        all.push((
            second as f64,
            format!(
                "Threads waited {n} times, {took} in all, until memory was free, within a second."
            ),
        ));
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    all.truncate(LINES);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::file::{End, Head};

    fn recording() -> Recording {
        let point = |i: u64| Point {
            t: i as f64 / 10.0,
            memory: 100 << 20,
            resident: i << 20,
            major: i * 100,
            minor: 1,
            fault_ns: i * 50_000_000,
            ..Point::default()
        };
        Recording {
            head: Head {
                command: vec![
                    "a</script><script>alert(1)</script>".into(),
                    "@DATA@".into(),
                ],
                from_start: true,
                ..Head::default()
            },
            points: (0..5000).map(point).collect(),
            events: vec![
                Event(
                    1_000_000,
                    6000,
                    0,
                    FaultClass::Base as u8,
                    0,
                    9,
                    8,
                    1 << 46,
                    1,
                ),
                Event(
                    1_500_000,
                    0,
                    Kind::Trial as u8,
                    Trial::Begun as u8,
                    0,
                    1,
                    8,
                    0,
                    512,
                ),
                Event(
                    u64::MAX,
                    u64::MAX,
                    200,
                    200,
                    200,
                    u32::MAX,
                    8,
                    u64::MAX,
                    u32::MAX,
                ),
            ],
            end: Some(End {
                t: 499.9,
                ended: "finished".into(),
                ..End::default()
            }),
            ..Recording::default()
        }
    }

    #[test]
    fn what_is_in_a_recording_is_text() {
        let page = page(&[recording(), Recording::default()]);
        assert_eq!(page.matches("</script>").count(), 3);
        assert!(!page.contains("alert(1)<") && page.contains("a&lt;/script>"));
        let data = page.split("id=\"data\">").nth(1).unwrap();
        let data = data.split("</script>").next().unwrap();
        let runs: Vec<Value> = serde_json::from_str(data).unwrap();
        assert_eq!(
            runs[0]["title"],
            "a</script><script>alert(1)</script> @DATA@"
        );
        assert!(page.contains("uPlot") && !page.contains("@JS@"));
    }

    #[test]
    fn a_run_comes_to_sentences() {
        let run = run(&recording());
        let verdict = run["verdict"][0].as_str().unwrap();
        assert!(
            verdict.contains("50% of the time") && verdict.contains("(major_4k)"),
            "{verdict}"
        );
        assert_eq!(run["t"].as_array().unwrap().len(), POINTS);
        assert!(
            run["faults"][0][POINTS - 1]
                .as_f64()
                .is_some_and(|n| (990.0..1010.0).contains(&n))
        );
        let log = run["log"].to_string();
        assert!(
            log.contains("for a trial") && log.contains("managed"),
            "{log}"
        );
        let class = &run["classes"][0];
        assert_eq!(
            (class["name"].as_str(), class["count"].as_u64()),
            (Some("major_4k"), Some(9))
        );
    }

    /// Whatever a recording says.
    #[test]
    fn nonsense_is_a_page_too() {
        use proptest::prelude::*;
        let point = any::<([u64; 8], u32)>().prop_map(|(n, t)| Point {
            t: t.into(),
            memory: n[0],
            resident: n[1],
            pages_in: n[2],
            zswap_in: n[3],
            major: n[4],
            minor: n[5],
            fault_ns: n[6],
            stall_us: n[7],
            throttle_us: n[0],
            ..Point::default()
        });
        let event = any::<([u64; 3], [u8; 3], [u32; 3])>().prop_map(|(n, k, w)| {
            Event(n[0], n[1], k[0] % 6, k[1] % 8, k[2], w[0], w[1], n[2], w[2])
        });
        let some = |strategy| proptest::collection::vec(strategy, 0..20);
        let events = proptest::collection::vec(event, 0..40);
        let figures = proptest::bool::ANY;
        proptest!(|(points in some(point), events in events, ended in figures, from_start: bool)| {
            let end = End {
                figures: json!({"faults": {"soft": {"count": "many"}, "cow": 7}}),
                areas: vec![json!({"area": 1u64 << 40}), json!(null), json!({"reads": {"buckets_us": [[1], 3]}})],
                advisor: Some(json!({"budgets": 3})),
                lost: [u64::MAX, 1],
                ..End::default()
            };
            let head = Head { from_start, ..Head::default() };
            let recording = Recording { head, points, events, end: ended.then_some(end), ..Recording::default() };
            prop_assert!(page(&[recording]).contains("</html>"));
        });
    }

    /// As much as there can be in all of its pictures.
    #[test]
    fn a_page_is_not_large() {
        let events: Vec<_> = (0..600_000u64)
            .map(|i| {
                let (kind, class) = [(0, 5), (0, 0), (1, 0)][i as usize % 3];
                let unit = i * 7919 % 4001;
                Event(i * 6000, 5000, kind, class, 0, 1000, 8, unit << 21, 7)
            })
            .collect();
        let mut full = recording();
        full.events = events;
        let page = page(&[full]);
        assert!(page.len() < 5 << 20, "{} bytes", page.len());
    }

    #[test]
    fn nothing_is_an_empty_page() {
        let run = run(&Recording::default());
        assert_eq!(run["verdict"][0], "Nothing was recorded.");
        assert!(run["notes"][0].as_str().unwrap().contains("cut off"));
    }
}

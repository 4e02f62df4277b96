//! Samples as text and as JSON. The names of figures are those of the report of a run.

use super::sample::{Difference, Sample};
use crate::text;
use hugeswap_policy::counters::Counter;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Above the lines of [`line()`].
pub const HEADER: &str =
    "PROCS   IN USE   BUDGET     SWAP     IN/s    OUT/s  MAJOR/s  MINOR/s  WAIT STALL\n";

/// Bytes in at most eight characters: 512K, 1.20G.
pub fn short(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["K", "M", "G", "T", "P"];
    let (mut value, mut unit) = (bytes as f64 / 1024.0, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let unit = UNITS[unit];
    match value {
        0.0 => "0".into(),
        v if v < 9.995 && unit != "K" => format!("{v:.2}{unit}"),
        v if v < 99.95 && unit != "K" => format!("{v:.1}{unit}"),
        v => format!("{v:.0}{unit}"),
    }
}

/// What was done between two samples, in one line.
pub fn line(before: &Sample, now: &Sample) -> String {
    let d = Difference { before, now };
    let rate = |n: u64| n as f64 / d.seconds();
    format!(
        "{:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8.0} {:>8.0} {:>5.2} {:>4.0}%\n",
        now.processes,
        short(now.resident),
        short(now.totals.memory_bytes),
        short(now.swap_used),
        short(rate(d.bytes_of(Counter::PswpIn)) as u64),
        short(rate(d.bytes_of(Counter::PswpOut)) as u64),
        rate(d.faults(true)),
        rate(d.faults(false)),
        d.in_faults() / d.seconds(),
        100.0 * d.stalled() / d.seconds(),
    )
}

/// What a pool is, and has done so far.
pub fn so_far(s: &Sample, command: &str) -> String {
    let r = &s.totals;
    let processes = if s.processes == 1 {
        "process"
    } else {
        "processes"
    };
    let mut out = format!("pool {}: {} {processes}; {command}\n", s.maker, s.processes);
    let _ = writeln!(
        out,
        "memory    {} in use of {}; peak {}, of {} that held something",
        text::bytes(s.resident),
        text::bytes(r.memory_bytes),
        text::bytes(r.peak_resident_bytes),
        text::bytes(r.peak_managed_bytes),
    );
    let of = match s.no_device {
        true => "without a device".to_string(),
        false => format!("of {}", text::bytes(s.swap)),
    };
    let _ = writeln!(out, "swap      {} in use {of}", text::bytes(s.swap_used));
    if s.zswap > 0 {
        let _ = writeln!(out, "zswap     {} of memory", text::bytes(s.zswap));
    }
    let _ = writeln!(
        out,
        "faults    {} in all ({} mode)",
        text::duration(r.fault_ns),
        r.fault_mode
    );
    for f in r.faults.iter().filter(|f| f.took.count > 0) {
        let _ = writeln!(out, "  {}  {}", text::fault_figures(f), f.class.doc());
    }
    for &c in Counter::ALL.iter().filter(|&&c| r.get(c) > 0) {
        let _ = writeln!(
            out,
            "{:<28} {:>15}  {}",
            c.name(),
            text::count(r.get(c)),
            c.doc()
        );
    }
    out
}

/// The figures so far.
pub fn json(s: &Sample) -> Value {
    let mut all = state(s);
    let r = &s.totals;
    all.insert("fault_s".into(), json!(r.fault_ns as f64 / 1e9));
    all.insert("faults".into(), text::faults_json(r).into());
    all.extend(text::counters_json(|c| r.get(c)));
    all.into()
}

/// The figures of the time between two samples.
pub fn interval_json(before: &Sample, now: &Sample) -> Value {
    let d = Difference { before, now };
    let mut all = state(now);
    all.insert("interval_s".into(), json!(d.seconds()));
    all.insert("fault_s".into(), json!(d.in_faults()));
    all.insert("faults_major".into(), d.faults(true).into());
    all.insert("faults_minor".into(), d.faults(false).into());
    all.extend(text::counters_json(|c| d.of(c)));
    all.into()
}

/// How a pool is at a time.
pub fn state(s: &Sample) -> Map<String, Value> {
    let figures = json!({
        "time": s.time,
        "pid": s.maker,
        "processes": s.processes,
        "memory_bytes": s.totals.memory_bytes,
        "resident_bytes": s.resident,
        "swap_bytes": s.swap,
        "swap_used_bytes": s.swap_used,
        "zswap_bytes": s.zswap,
    });
    match figures {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        for (bytes, said) in [
            (0, "0"),
            (4096, "4K"),
            (1023 << 10, "1.00M"),
            (999 << 10, "999K"),
            (1 << 20, "1.00M"),
            (26 << 20, "26.0M"),
            (600 << 20, "600M"),
            (1288 << 20, "1.26G"),
            (u64::MAX, "16384P"),
        ] {
            assert_eq!(short(bytes), said, "{bytes}");
        }
    }
}

//! Settings, figures and lost places of swap as text; sizes, durations and counts come from
//! [`hugeswap_support::text`].

use hugeswap_engine::health::{AreaReport, LatencyReport};
use hugeswap_engine::pool::losses::{Cause, Loss};
use hugeswap_engine::pool::{FaultReport, Report};
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::{Form, Knob};
pub use hugeswap_support::text::{bytes, count, duration, one_line};
use serde_json::{Map, Value, json};

/// A setting's value, as `KEY=VALUE` takes it; a size is rounded.
pub fn setting(k: Knob, value: u64) -> String {
    match k.form() {
        Form::Bytes => bytes(value),
        Form::Count => value.to_string(),
        Form::Choice(words) => {
            (words.get(value as usize).copied()).map_or_else(|| value.to_string(), str::to_owned)
        }
        Form::Switch => if value == 0 { "off" } else { "on" }.to_owned(),
    }
}

/// The figures of a class of faults, aligned.
pub fn fault_figures(f: &FaultReport) -> String {
    format!(
        "{:<11} {:>11}   p50 {:>8}   p99 {:>8}   max {:>8}",
        f.class.name(),
        count(f.took.count),
        duration(f.took.p50_ns),
        duration(f.took.p99_ns),
        duration(f.took.max_ns),
    )
}

/// Latencies of faults by class, as JSON.
pub fn faults_json(report: &Report) -> Map<String, Value> {
    let us = |ns: u64| ns as f64 / 1e3;
    let of = report.faults.iter().map(|f| {
        let figures = json!({
            "count": f.took.count, "p50_us": us(f.took.p50_ns), "p99_us": us(f.took.p99_ns), "max_us": us(f.took.max_ns),
        });
        (f.class.name().to_owned(), figures)
    });
    of.collect()
}

/// Every counter with a value, as JSON.
pub fn counters_json(value: impl Fn(Counter) -> u64) -> Map<String, Value> {
    let all = Counter::ALL.iter();
    all.map(|&c| (c.name().to_owned(), value(c).into()))
        .collect()
}

/// A place in swap that does not give back what was written to it, as JSON.
pub fn loss_json(loss: &Loss) -> Value {
    let (cause, errno) = match loss.cause {
        Cause::Changed => ("changed", None),
        Cause::Unreadable(errno) => ("unreadable", Some(errno)),
    };
    json!({
        "area": loss.area,
        "offset": loss.offset,
        "cause": cause,
        "errno": errno,
    })
}

/// How a swap area is, and how long its transfers took, as JSON.
pub fn area_json(a: &AreaReport) -> Value {
    let us = |ns: u64| ns as f64 / 1e3;
    let took = |l: &LatencyReport| {
        let buckets: Vec<_> = l.buckets.iter().map(|&(ns, n)| (us(ns), n)).collect();
        json!({
            "count": l.count, "p50_us": us(l.p50_ns), "p99_us": us(l.p99_ns), "max_us": us(l.max_ns),
            "buckets_us": buckets,
        })
    };
    json!({
        "area": a.index, "state": a.state.name(), "read_errors": a.read_errors, "write_errors": a.write_errors,
        "reads": took(&a.reads), "writes": took(&a.writes), "read_bytes": a.read_bytes, "written_bytes": a.written_bytes,
    })
}

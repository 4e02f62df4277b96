//! The figures of pools in OpenMetrics' text form, which Prometheus and its kin read.
//!
//! Labels are those that can be summed over: the pool (the process that made it) and the name of its
//! program; for faults the class, for transfers the swap area. Command lines are not in it.

use crate::ctl::{pools, swap};
use crate::stat::sample::Sample;
use hugeswap_engine::health::LatencyReport;
use hugeswap_engine::pool::budget::Followed;
use hugeswap_engine::pool::{AreaUsage, Pool};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::counters::Counter;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::path::Path;

/// Upper bounds of the buckets of durations: powers of two from 1 us to 17 s.
fn bounds() -> impl Iterator<Item = u64> {
    (10..=34).map(|n| 1u64 << n)
}

type Labels = Vec<(&'static str, String)>;

/// The text for some pools, as they are now.
pub fn text<'a>(pools: impl Iterator<Item = &'a Pool>) -> String {
    let mut registry = Registry::with_prefix("hugeswap");
    let all = pools.map(Looked::at).collect();
    registry.register_collector(Box::new(All(all)));
    let mut text = String::new();
    // (Writing to a string cannot fail.)
    let _ = encode(&mut text, &registry);
    text
}

/// A pool at a time.
struct Looked {
    labels: Labels,
    sample: Sample,
    limit: Option<Followed>,
    /// Its areas: each one's number, what it is called, size, in use.
    areas: Vec<(usize, String, u64, u64)>,
}

impl Looked {
    fn at(pool: &Pool) -> Looked {
        let sample = Sample::of(pool);
        let areas = pool.area_usage();
        let usage = |a: &AreaUsage| {
            let place = format!("{}: {}", a.index, swap::place_of(pool, a));
            (
                a.index,
                place,
                a.usage.clusters * UNIT_BYTES,
                a.usage.used_bytes(),
            )
        };
        Looked {
            labels: vec![
                ("pool", sample.maker.to_string()),
                ("program", program(pool)),
            ],
            limit: pool.followed_limit(),
            areas: areas.iter().map(usage).collect(),
            sample,
        }
    }

    /// What an area is called.
    fn place(&self, index: usize) -> String {
        let of = self.areas.iter().find(|(i, ..)| *i == index);
        // (It may have come since.)
        of.map_or_else(|| index.to_string(), |(_, place, ..)| place.clone())
    }

    fn with(&self, name: &'static str, value: impl Into<String>) -> Labels {
        let mut labels = self.labels.clone();
        labels.push((name, value.into()));
        labels
    }
}

/// The name of the first program of a pool: not that of `hugeswap run`, which made it.
fn program(pool: &Pool) -> String {
    let pid = pool.processes().map(|p| p.pid).min();
    let command = pools::command_of(pid.unwrap_or(pool.maker()));
    let first = command.split(' ').next().unwrap_or_default();
    let name = Path::new(first).file_name();
    name.map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

struct All(Vec<Looked>);

impl fmt::Debug for All {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pools", self.0.len())
    }
}

impl Collector for All {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        let to = &mut to;
        let pools = || self.0.iter();
        gauges(
            to,
            "memory_budget_bytes",
            "Managed memory that the pool may have in memory.",
            pools().map(|p| (p.labels.clone(), p.sample.totals.memory_bytes)),
        )?;
        gauges(
            to,
            "memory_resident_bytes",
            "Managed memory in memory, of all processes of the pool.",
            pools().map(|p| (p.labels.clone(), p.sample.resident)),
        )?;
        gauges(
            to,
            "memory_zswap_bytes",
            "Of that, what compressed pages take.",
            pools().map(|p| (p.labels.clone(), p.sample.zswap)),
        )?;
        gauges(
            to,
            "memory_peak_resident_bytes",
            "The most managed memory in memory at one time.",
            pools().map(|p| (p.labels.clone(), p.sample.totals.peak_resident_bytes)),
        )?;
        let limited = || pools().filter_map(|p| Some((p, p.limit.as_ref()?)));
        gauges(
            to,
            "limit_bytes",
            "The limit for all memory that the budget follows.",
            limited().map(|(p, l)| (p.labels.clone(), l.limit_bytes)),
        )?;
        gauges(
            to,
            "limit_used_bytes",
            "What is in use of that limit.",
            limited().map(|(p, l)| (p.labels.clone(), l.used_bytes)),
        )?;
        gauges(
            to,
            "swap_bytes",
            "Swap that the pool may use.",
            pools().map(|p| (p.labels.clone(), p.sample.swap)),
        )?;
        gauges(
            to,
            "swap_used_bytes",
            "Swap in use.",
            pools().map(|p| (p.labels.clone(), p.sample.swap_used)),
        )?;
        gauges(
            to,
            "processes",
            "Processes of the pool that manage memory.",
            pools().map(|p| (p.labels.clone(), p.sample.processes)),
        )?;
        counters(
            to,
            "out_of_memory",
            "Processes that were ended since neither memory nor swap was left.",
            pools().map(|p| (p.labels.clone(), p.sample.totals.exhausted)),
        )?;
        let faults = pools().flat_map(|p| {
            let of = p.sample.totals.faults.iter();
            of.map(|f| (p.with("class", f.class.name()), &f.took))
        });
        durations(
            to,
            "fault_duration_seconds",
            "How long faults took, by class (hugeswap explain CLASS).",
            faults,
        )?;
        let areas = || pools().flat_map(|p| p.areas.iter().map(move |a| (p, a)));
        gauges(
            to,
            "swap_area_bytes",
            "Size of the area.",
            areas().map(|(p, (_, place, size, _))| (p.with("area", place), *size)),
        )?;
        gauges(
            to,
            "swap_area_used_bytes",
            "What is in use of the area.",
            areas().map(|(p, (_, place, _, used))| (p.with("area", place), *used)),
        )?;
        let health = || {
            pools().flat_map(|p| {
                let of = p.sample.totals.areas.iter();
                of.map(|a| (p.with("area", p.place(a.index)), a))
            })
        };
        durations(
            to,
            "swap_read_duration_seconds",
            "How long reads of the area took.",
            health().map(|(l, a)| (l, &a.reads)),
        )?;
        durations(
            to,
            "swap_write_duration_seconds",
            "How long writes to the area took.",
            health().map(|(l, a)| (l, &a.writes)),
        )?;
        counters(
            to,
            "swap_area_read_bytes",
            "Bytes that were read from the area.",
            health().map(|(l, a)| (l, a.read_bytes)),
        )?;
        counters(
            to,
            "swap_area_written_bytes",
            "Bytes that were written to the area.",
            health().map(|(l, a)| (l, a.written_bytes)),
        )?;
        counters(
            to,
            "swap_area_read_errors",
            "Reads that failed, or brought something else than was written, each attempt.",
            health().map(|(l, a)| (l, a.read_errors)),
        )?;
        counters(
            to,
            "swap_area_write_errors",
            "Writes that failed, each attempt.",
            health().map(|(l, a)| (l, a.write_errors)),
        )?;
        for &c in Counter::ALL {
            let name = format!("vmstat_{}", c.name());
            let values = pools().map(|p| (p.labels.clone(), p.sample.totals.get(c)));
            counters(to, &name, c.doc(), values)?;
        }
        Ok(())
    }
}

/// A metric of one kind, if there is any value of it.
fn family<V>(
    to: &mut DescriptorEncoder<'_>,
    (name, about, kind): (&str, &str, MetricType),
    values: impl Iterator<Item = (Labels, V)>,
    one: impl Fn(V, MetricEncoder<'_>) -> fmt::Result,
) -> fmt::Result {
    let mut values = values.peekable();
    if values.peek().is_none() {
        return Ok(());
    }
    let mut family = to.encode_descriptor(name, about, None, kind)?;
    for (labels, value) in values {
        one(value, family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn gauges(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    about: &str,
    values: impl Iterator<Item = (Labels, u64)>,
) -> fmt::Result {
    family(to, (name, about, MetricType::Gauge), values, |n, to| {
        ConstGauge::new(i64::try_from(n).unwrap_or(i64::MAX)).encode(to)
    })
}

fn counters(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    about: &str,
    values: impl Iterator<Item = (Labels, u64)>,
) -> fmt::Result {
    family(to, (name, about, MetricType::Counter), values, |n, to| {
        ConstCounter::new(n).encode(to)
    })
}

fn durations<'a>(
    to: &mut DescriptorEncoder<'_>,
    name: &str,
    about: &str,
    values: impl Iterator<Item = (Labels, &'a LatencyReport)>,
) -> fmt::Result {
    let kind = MetricType::Histogram;
    family(to, (name, about, kind), values, |took, mut to| {
        let (buckets, sum) = histogram(took);
        to.encode_histogram::<NoLabelSet>(sum, took.count, &buckets, None)
    })
}

/// How many took as long as each bound, not longer, and longer than the one before, seconds; and how
/// long all took together, as far as the buckets tell (within an eighth).
fn histogram(took: &LatencyReport) -> (Vec<(f64, u64)>, f64) {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut left = took.buckets.iter().peekable();
    let mut buckets: Vec<(f64, u64)> = Vec::new();
    for bound in bounds() {
        let mut n = 0;
        while let Some((_, more)) = left.next_if(|(ns, _)| *ns <= bound) {
            n += more;
        }
        buckets.push((seconds(bound), n));
    }
    buckets.push((f64::INFINITY, left.map(|(_, n)| n).sum()));
    // (A bucket is an eighth of its bound wide at the most.)
    let sum = took
        .buckets
        .iter()
        .map(|&(ns, n)| seconds(ns) * 0.94 * n as f64);
    (buckets, sum.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_their_buckets() {
        let took = LatencyReport {
            count: 8,
            p50_ns: 0,
            p99_ns: 0,
            max_ns: 0,
            buckets: vec![(900, 1), (1024, 2), (1151, 4), (1 << 40, 1)],
        };
        let (buckets, _) = histogram(&took);
        assert_eq!(buckets[0], (1.024e-6, 3));
        assert_eq!(buckets[1], (2.048e-6, 4));
        assert_eq!(buckets.last().map(|b| b.1), Some(1));
        assert_eq!(buckets.iter().map(|b| b.1).sum::<u64>(), took.count);
    }

    #[test]
    fn nothing_is_no_metrics() {
        assert_eq!(text(std::iter::empty()), "# EOF\n");
    }
}

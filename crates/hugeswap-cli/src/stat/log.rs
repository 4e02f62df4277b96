//! `hugeswap run --log`: one line of JSON for each interval, for where standard error is collected (containers,
//! services).

use super::sample::{Difference, Sample};
use super::show;
use hugeswap_engine::pool::Pool;
use hugeswap_policy::counters::Counter;
use serde_json::json;
use std::io::Write;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Does `what` while a line is written every `interval`, and one at its end, if there is an interval.
pub fn beside<T>(interval: Option<Duration>, pool: &Pool, what: impl FnOnce() -> T) -> T {
    let Some(interval) = interval else {
        return what();
    };
    let (ended, is_ended) = channel::<()>();
    std::thread::scope(|scope| {
        let log = move || {
            let mut last = Sample::of(pool);
            loop {
                let woken = is_ended.recv_timeout(interval);
                let now = Sample::of(pool);
                // (If standard error is closed there is no place for it.)
                let _ = std::io::stderr().write_all((line(&last, &now) + "\n").as_bytes());
                if woken != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                last = now;
            }
        };
        let thread = std::thread::Builder::new().name("hs-log".into());
        if let Err(e) = thread.spawn_scoped(scope, log) {
            crate::complain(&format!("nothing is logged: {e}"));
        }
        let done = what();
        drop(ended);
        done
    })
}

/// What a pool is, and what was done between two samples. Names and units are those of `hugeswap stat --json`.
fn line(before: &Sample, now: &Sample) -> String {
    let d = Difference { before, now };
    let mut all = show::state(now);
    all.extend([
        ("hugeswap".to_owned(), json!("memory")),
        ("interval_s".to_owned(), json!(d.seconds())),
        ("in_bytes".to_owned(), d.bytes_of(Counter::PswpIn).into()),
        ("out_bytes".to_owned(), d.bytes_of(Counter::PswpOut).into()),
        ("faults_major".to_owned(), d.faults(true).into()),
        ("faults_minor".to_owned(), d.faults(false).into()),
        ("fault_s".to_owned(), json!(d.in_faults())),
        ("stall_s".to_owned(), json!(d.stalled())),
        ("lost".to_owned(), now.totals.get(Counter::Poisoned).into()),
    ]);
    serde_json::Value::Object(all).to_string()
}

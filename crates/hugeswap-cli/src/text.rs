//! Settings and lost places of swap as text; sizes, durations and counts come from
//! [`hugeswap_support::text`].

use hugeswap_engine::pool::losses::{Cause, Loss};
use hugeswap_policy::knobs::{Form, Knob};
pub use hugeswap_support::text::{bytes, count, duration, one_line};

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

/// A place in swap that does not give back what was written to it, as JSON.
pub fn loss_json(loss: &Loss) -> serde_json::Value {
    let (cause, errno) = match loss.cause {
        Cause::Changed => ("changed", None),
        Cause::Unreadable(errno) => ("unreadable", Some(errno)),
    };
    serde_json::json!({
        "area": loss.area,
        "offset": loss.offset,
        "cause": cause,
        "errno": errno,
    })
}

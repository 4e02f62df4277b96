//! `hugeswap ctl get` and `ctl set`: the settings of a running pool, which hold for all of its
//! processes.

use crate::text;
use anyhow::{Result, bail};
use hugeswap_engine::pool::Pool;
use hugeswap_policy::knobs::{self, Form, Knob};
use serde_json::{Map, Value};

/// Show a pool's settings
#[derive(clap::Args)]
pub struct Get {
    /// Names of settings, or the beginnings of names [default: all]
    #[arg(value_name = "KEY")]
    keys: Vec<String>,
    /// Print one JSON object; sizes in bytes
    #[arg(long)]
    json: bool,
}

/// Change a pool's settings, while it is in use
#[derive(clap::Args)]
pub struct Set {
    /// Settings to change: all of them or, if one is wrong, none; `hugeswap ctl get` lists the settings
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<String>,
}

/// Prints settings.
pub fn get(pool: &Pool, args: &Get) -> Result<i32> {
    for key in &args.keys {
        if !Knob::ALL.iter().any(|k| k.name().starts_with(key)) {
            bail!("no setting begins with '{key}': `hugeswap ctl get` shows all");
        }
    }
    let meant =
        |k: &&Knob| args.keys.is_empty() || args.keys.iter().any(|key| k.name().starts_with(key));
    let all = Knob::ALL.iter().filter(meant).map(|&k| (k, pool.knob(k)));
    if args.json {
        let found: Map<String, Value> =
            all.map(|(k, v)| (k.name().into(), as_json(k, v))).collect();
        println!("{}", serde_json::to_string_pretty(&found)?);
        return Ok(0);
    }
    for (k, value) in all {
        let is_default = if value == k.default_value() {
            String::new()
        } else {
            format!("  (default {})", text::setting(k, k.default_value()))
        };
        println!("{:<28} {}{is_default}", k.name(), text::setting(k, value));
    }
    Ok(0)
}

fn as_json(k: Knob, value: u64) -> Value {
    match k.form() {
        Form::Bytes | Form::Count => value.into(),
        Form::Choice(_) => text::setting(k, value).into(),
        Form::Switch => (value != 0).into(),
    }
}

/// Changes settings.
pub fn set(pool: &Pool, args: &Set) -> Result<i32> {
    let mut wanted = Vec::new();
    for setting in &args.settings {
        let (knob, value) = knobs::parse_setting(setting).map_err(anyhow::Error::msg)?;
        if knob.is_fixed() {
            bail!(
                "{} can only be set for a new pool: hugeswap run --set {setting}",
                knob.name()
            );
        }
        wanted.push((knob, value));
    }
    for (knob, value) in wanted {
        let before = pool.knob(knob);
        pool.set_knob(knob, value);
        println!(
            "{}: {} (was {})",
            knob.name(),
            text::setting(knob, value),
            text::setting(knob, before)
        );
    }
    Ok(0)
}

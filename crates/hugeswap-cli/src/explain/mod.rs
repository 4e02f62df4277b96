//! `hugeswap explain`: what a figure or a setting is, in the words that the code has for it, and what a
//! message means that ends with a name in brackets.

mod messages;

use crate::text;
use anyhow::{Result, bail};
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::knobs::{Form, Knob};
pub use messages::Message;
use std::fmt::Write as _;
use std::io::Write;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap explain thp_swpout_fallback
  hugeswap explain zswap swap.poll
  hugeswap explain slow                  what a message means that ends with [slow], and what to do
  hugeswap explain";

/// Say what a figure, a setting or a message is
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Names of figures, settings or messages, or the beginnings of names [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// A name, and what is said of it.
struct Entry {
    name: &'static str,
    said: String,
    /// It is of several lines.
    is_long: bool,
}

fn entries() -> Vec<Entry> {
    let counters = Counter::ALL.iter().map(|c| (c.name(), c.doc().to_owned()));
    let classes = FaultClass::ALL
        .iter()
        .map(|c| (c.name(), format!("A class of faults. {}", c.doc())));
    let knobs = Knob::ALL.iter().map(|&k| (k.name(), of_setting(k)));
    let short = counters.chain(classes).chain(knobs).map(|e| (e, false));
    let long = messages::all().map(|(name, text)| ((name, text.to_owned()), true));
    let all = short.chain(long);
    all.map(|((name, said), is_long)| Entry {
        name,
        said,
        is_long,
    })
    .collect()
}

fn of_setting(k: Knob) -> String {
    let (least, most) = k.bounds();
    let form = match k.form() {
        Form::Switch => "on or off".to_owned(),
        Form::Choice(words) => words.join(", "),
        Form::Bytes | Form::Count => {
            format!("{} to {}", text::setting(k, least), text::setting(k, most))
        }
    };
    let default = text::setting(k, k.default_value());
    format!("A setting: {} [{form}; default {default}].", k.doc())
}

/// Prints what is said of the names. Returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    let all = entries();
    for name in &args.names {
        if !all.iter().any(|e| e.name.starts_with(name.as_str())) {
            bail!(
                "no figure, setting or message begins with '{name}': `hugeswap explain` shows all"
            );
        }
    }
    let is_meant = |e: &&Entry| {
        // Where a name is one as it stands, it is not taken for the beginning of others.
        let mut names = args.names.iter();
        let is_whole = |n: &str| all.iter().any(|e| e.name == n);
        args.names.is_empty()
            || names.any(|n| match is_whole(n) {
                true => e.name == n,
                false => e.name.starts_with(n.as_str()),
            })
    };
    let mut out = String::new();
    for e in all.iter().filter(is_meant) {
        let _ = match e.is_long {
            false => writeln!(out, "{:<28} {}", e.name, e.said),
            // In a list of all, what it is about is enough.
            true if args.names.is_empty() => {
                let first = e.said.split(". ").next().unwrap_or_default();
                let first = first.split('\n').collect::<Vec<_>>().join(" ");
                writeln!(
                    out,
                    "{:<28} A message. {}.",
                    e.name,
                    first.trim_end_matches('.')
                )
            }
            true => writeln!(out, "{}\n\n{}\n", e.name, e.said),
        };
    }
    // A reader (head, less) that closes the pipe is no failure.
    let _ = std::io::stdout().write_all(out.as_bytes());
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_there_once() {
        let all = entries();
        assert_eq!(
            all.len(),
            Counter::COUNT + FaultClass::COUNT + Knob::ALL.len() + messages::all().count()
        );
        for e in &all {
            assert!(e.said.ends_with('.'), "{}: {}", e.name, e.said);
            let same = all.iter().filter(|o| o.name == e.name).count();
            assert_eq!(same, 1, "{}", e.name);
        }
    }

    #[test]
    fn a_setting_has_its_values() {
        let said = of_setting(Knob::SwapPoll);
        assert!(said.contains("[on or off; default on]"), "{said}");
        let said = of_setting(Knob::ReadaheadMax);
        assert!(said.contains("[0 to 64; default 8]"), "{said}");
        let said = of_setting(Knob::ZswapEnabled);
        assert!(
            said.contains("[never, always, auto; default auto]"),
            "{said}"
        );
    }
}

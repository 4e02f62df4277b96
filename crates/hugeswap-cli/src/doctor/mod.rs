//! `hugeswap doctor`: tries what this machine and user can do. It reports what will be used and why,
//! and for what is missing the command or setting that provides it.

mod checks;
pub mod facts;
mod program;

use anyhow::Result;
use serde::Serialize;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap doctor
  hugeswap doctor --swap /mnt/fast --json
  hugeswap doctor -- python3

Exit status: 0 if hugeswap run works here (and on PROG), 1 if not.";

/// Arguments of `hugeswap doctor`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Directory for swap to try (default: the one hugeswap run would choose)
    #[arg(long, value_name = "DIR")]
    swap: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// A program: say, without running it, whether hugeswap run takes it, and what of its memory would be managed
    #[arg(last = true, value_name = "PROG")]
    program: Vec<OsString>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mark {
    /// It works.
    Ok,
    /// It works, but less well than it could.
    Warn,
    /// It does not work.
    No,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    name: &'static str,
    status: Mark,
    finding: String,
    /// The command or setting that improves it.
    #[serde(skip_serializing_if = "Option::is_none")]
    improve: Option<String>,
    /// Without it nothing works.
    required: bool,
    /// Figures for the JSON.
    #[serde(flatten)]
    details: Map<String, Value>,
}

impl Check {
    fn new(name: &'static str, status: Mark, finding: impl Into<String>) -> Check {
        Check {
            name,
            status,
            finding: finding.into(),
            improve: None,
            required: false,
            details: Map::new(),
        }
    }

    fn improve(mut self, how: impl Into<String>) -> Check {
        self.improve = Some(how.into());
        self
    }

    fn improve_if(self, wanted: bool, how: impl Into<String>) -> Check {
        if wanted { self.improve(how) } else { self }
    }

    fn required(mut self) -> Check {
        self.required = true;
        self
    }

    fn detail(mut self, key: &str, value: impl Into<Value>) -> Check {
        self.details.insert(key.into(), value.into());
        self
    }
}

/// What `hugeswap run` will do on this machine, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    what: &'static str,
    choice: String,
    why: String,
}

/// All results.
#[derive(Debug, Serialize)]
struct Findings {
    version: &'static str,
    usable: bool,
    checks: Vec<Check>,
    used: Vec<Choice>,
}

/// Runs every check; returns 0 if hugeswap is usable, 1 if not.
pub fn run(args: &Args) -> Result<i32> {
    let (mut checks, used) = checks::all(args.swap.as_deref());
    if let Some(name) = args.program.first() {
        checks.extend(program::checks(name));
    }
    let usable = checks.iter().all(|c| !c.required || c.status != Mark::No);
    let findings = Findings {
        version: env!("CARGO_PKG_VERSION"),
        usable,
        checks,
        used,
    };
    let text = if args.json {
        let mut line = serde_json::to_string_pretty(&findings)?;
        line.push('\n');
        line
    } else {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        table(&findings, colour)
    };
    // A reader (head, less) that closes the pipe is no failure.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(if usable { 0 } else { 1 })
}

fn table(f: &Findings, colour: bool) -> String {
    let mark = |m: Mark| {
        let (text, code) = match m {
            Mark::Ok => (" ok ", 32),
            Mark::Warn => ("warn", 33),
            Mark::No => (" no ", 31),
        };
        if colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    };
    let mut out = String::new();
    let width = f.checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
    for c in &f.checks {
        out.push_str(&format!(
            "[{}] {:<width$}  {}\n",
            mark(c.status),
            c.name,
            c.finding
        ));
        if let Some(how) = &c.improve {
            out.push_str(&format!("       {:<width$}  better: {how}\n", ""));
        }
    }
    out.push_str("\nWhat hugeswap run will use here\n");
    let width = f.used.iter().map(|c| c.what.len()).max().unwrap_or(0);
    for c in &f.used {
        out.push_str(&format!(
            "       {:<width$}  {}: {}\n",
            c.what, c.choice, c.why
        ));
    }
    let lacking: Vec<&str> = f
        .checks
        .iter()
        .filter(|c| c.required && c.status == Mark::No)
        .map(|c| c.name)
        .collect();
    if f.usable {
        out.push_str("\nhugeswap is usable here.\n");
    } else {
        out.push_str(&format!(
            "\nhugeswap is not usable here: see {}.\n",
            lacking.join(", ")
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned_and_tells_what_to_do() {
        let f = Findings {
            version: "1",
            usable: false,
            checks: vec![
                Check::new("a", Mark::Ok, "fine"),
                Check::new("longer", Mark::No, "absent")
                    .improve("do this")
                    .required(),
            ],
            used: vec![Choice {
                what: "x",
                choice: "y".into(),
                why: "z".into(),
            }],
        };
        let t = table(&f, false);
        assert!(t.starts_with(
            "[ ok ] a       fine\n[ no ] longer  absent\n               better: do this\n"
        ));
        assert!(t.ends_with("hugeswap is not usable here: see longer.\n"));
        assert!(table(&f, true).contains("\x1b[31m no \x1b[0m"));
    }

    #[test]
    fn figures_are_fields_of_the_check() {
        let c = Check::new("disk", Mark::Warn, "slow").detail("read_mb_s", 12);
        let v = serde_json::to_value(&c).unwrap();
        assert_eq!(v["status"], "warn");
        assert_eq!(v["read_mb_s"], 12);
        assert!(v.get("improve").is_none());
    }
}

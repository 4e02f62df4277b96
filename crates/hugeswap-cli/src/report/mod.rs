//! `hugeswap report`: recordings as a page with pictures; and what a saved report says of other
//! budgets, drawn.

mod draw;
mod flame;
mod heat;
mod page;

use crate::record::file;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap record --memory 600M -- sort -S 2G big.txt -o sorted.txt
  hugeswap report hugeswap.rec                            makes hugeswap.html
  hugeswap report before.rec after.rec -o compared.html   side by side
  hugeswap run --memory 600M --report json --report-file sort.json -- sort -S 2G big.txt -o sorted.txt
  hugeswap report sort.json
  hugeswap report sort.json --svg sort.svg

The page of recordings is one file, which needs no network. Of a report of `hugeswap run`, each line is a budget and \
what would have come back from swap with it: estimated from how long pages were away, but for the budget that the \
program ran with. The curve begins at the smallest budget that can be estimated.
Exit status: 0, or 2 if a file is neither.";

/// Show a recording as a page with pictures; or what a saved report says of larger and smaller budgets
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Recordings of `hugeswap record` (up to four, drawn side by side), or a report of `hugeswap run --report json`
    #[arg(value_name = "FILE", required = true, num_args = 1..=4)]
    files: Vec<PathBuf>,
    /// The page [default: the recording's name, ending in .html]
    #[arg(short, long, value_name = "OUT.html", conflicts_with = "svg")]
    output: Option<PathBuf>,
    /// Of a report: draw the curve to this file instead of the terminal
    #[arg(long, value_name = "OUT.svg")]
    svg: Option<PathBuf>,
}

/// The parts of a report that are drawn.
#[derive(Debug, Deserialize)]
struct Report {
    #[serde(default)]
    command: Vec<String>,
    memory_bytes: u64,
    pswpin: u64,
    advisor: Option<Advisor>,
}

#[derive(Debug, Deserialize)]
struct Advisor {
    budgets: Vec<Budget>,
    suggested_memory_bytes: Option<u64>,
    /// By how much less would come back with it.
    suggested_fewer_share: Option<f64>,
    thrash_below_bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Budget {
    memory_bytes: u64,
    pages_in: u64,
    estimated: bool,
}

/// Runs the command. Returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    if args.files.iter().any(|f| file::is_recording(f)) {
        return of_recordings(args);
    }
    let [report] = &args.files[..] else {
        bail!(
            "several files are recordings of `hugeswap record`, or one is a report of `hugeswap run --report json`"
        );
    };
    if args.output.is_some() {
        bail!(
            "{} is no recording: -o makes pages of recordings (hugeswap record)",
            report.display()
        );
    }
    of_report(report, args.svg.as_deref())
}

/// Makes the page of recordings.
fn of_recordings(args: &Args) -> Result<i32> {
    if args.svg.is_some() {
        bail!(
            "--svg draws a report of `hugeswap run --report json`; the page of a recording is named by -o"
        );
    }
    let recordings = args.files.iter().map(|f| file::read(f));
    let recordings = recordings.collect::<Result<Vec<_>>>()?;
    let output = match &args.output {
        Some(output) => output.clone(),
        None => args.files[0].with_extension("html"),
    };
    // (It must not take the place of what it is made of.)
    if args.files.contains(&output) {
        bail!(
            "{} is the recording: name another file with -o",
            output.display()
        );
    }
    let page = page::page(&recordings);
    let write = || {
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = { std::fs::File::options() }
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&output)?;
        std::io::Write::write_all(&mut file, page.as_bytes())
    };
    write().with_context(|| {
        format!(
            "{} cannot be written: name a file in a directory you may write to with -o",
            output.display()
        )
    })?;
    println!("{}", output.display());
    Ok(0)
}

fn of_report(file: &Path, svg: Option<&Path>) -> Result<i32> {
    use std::io::Write;
    let report = read(file)?;
    let Some(advisor) = &report.advisor else {
        println!(
            "{}: too little came back from swap to estimate other budgets",
            name(&report)
        );
        return Ok(0);
    };
    if let Some(svg) = svg {
        std::fs::write(svg, draw::svg(&report, advisor)).with_context(|| {
            format!(
                "--svg {} cannot be written: name a file in a directory you may write to",
                svg.display()
            )
        })?;
        return Ok(0);
    }
    // A reader (head, less) that closes the pipe is no failure.
    let _ = std::io::stdout().write_all(draw::bars(&report, advisor).as_bytes());
    Ok(0)
}

/// The program that was run, without its directories.
fn name(report: &Report) -> String {
    let path = report.command.first().map_or("", String::as_str);
    Path::new(path).file_name().map_or_else(
        || "the program".into(),
        |n| n.to_string_lossy().into_owned(),
    )
}

fn read(file: &Path) -> Result<Report> {
    let what = file.display();
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("{what} cannot be read: name a report of `hugeswap run --report json --report-file FILE`"))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| {
        anyhow::anyhow!("{what} is not a report: {e}; save one with `hugeswap run --report json --report-file FILE`")
    })?;
    if value.get("memory_bytes").is_none() || value.get("pswpin").is_none() {
        bail!("{what} is JSON, but no report of `hugeswap run --report json`");
    }
    if value.get("advisor").is_none() {
        bail!(
            "{what} was written by an older hugeswap, which did not note when pages came back: run the program again"
        );
    }
    let report: Report = serde_json::from_value(value)
        .map_err(|e| anyhow::anyhow!("{what} is a report that does not hold together: {e}"))?;
    if report
        .advisor
        .as_ref()
        .is_some_and(|a| a.budgets.is_empty())
    {
        bail!("{what} is a report that does not hold together: its curve has no budgets");
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn sample() -> Report {
        serde_json::from_str(
            r#"{"command": ["/usr/bin/sort", "x"], "memory_bytes": 1073741824, "pswpin": 100000, "advisor": {
                "budgets": [
                    {"memory_bytes": 536870912, "pages_in": 300000, "estimated": true},
                    {"memory_bytes": 1073741824, "pages_in": 100000, "estimated": false},
                    {"memory_bytes": 1610612736, "pages_in": 0, "estimated": true}
                ],
                "suggested_memory_bytes": 1610612736, "thrash_below_bytes": 536870912}}"#,
        )
        .unwrap()
    }

    #[test]
    fn mistakes_are_told_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("r.json");
        for (text, says) in [
            ("", "is not a report"),
            ("{\"memory_bytes\": 5", "is not a report"),
            ("[1, 2]", "no report of"),
            ("{\"bench\": \"fit\"}", "no report of"),
            ("{\"memory_bytes\": 5, \"pswpin\": 3}", "older hugeswap"),
            (
                "{\"memory_bytes\": 5, \"pswpin\": 3, \"advisor\": 7}",
                "hold together",
            ),
            (
                "{\"memory_bytes\": 5, \"pswpin\": 3, \"advisor\": {\"budgets\": []}}",
                "hold together",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            let e = format!("{:#}", read(&file).unwrap_err());
            assert!(e.contains(says) && !e.contains('\n'), "{e}");
        }
        let e = format!("{:#}", read(&dir.path().join("none")).unwrap_err());
        assert!(e.contains("cannot be read"), "{e}");
        std::fs::write(
            &file,
            "{\"memory_bytes\": 5, \"pswpin\": 3, \"advisor\": null}",
        )
        .unwrap();
        assert!(read(&file).unwrap().advisor.is_none());
    }

    #[test]
    fn names_are_short() {
        assert_eq!(name(&sample()), "sort");
        let mut r = sample();
        r.command.clear();
        assert_eq!(name(&r), "the program");
    }
}

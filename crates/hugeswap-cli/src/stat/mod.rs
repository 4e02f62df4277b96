//! `hugeswap stat`: what a pool has done so far, or does in each interval, as vmstat(8) shows it of a
//! machine. Its figures are read where they stand: no thread of its programs stops or waits.

pub mod log;
pub mod sample;
pub mod show;

use crate::ctl;
use anyhow::Result;
use sample::Sample;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap stat
  hugeswap stat -i 1
  hugeswap stat --pool 4711 -i 0.5 -c 20 --json

Columns: processes of the pool; managed memory in use, its budget, swap in use; bytes swapped in and out, \
faults that read swap and faults that did not, each a second; how many threads were in faults at a time; \
for how much of the time a thread waited for memory (of 100; more where several did).
`hugeswap explain NAME` says what a figure is.";

/// The header stands again after so many lines, on a terminal.
const HEADER_EVERY: u64 = 20;
/// The pool is looked at so often for its end.
const LOOK: Duration = Duration::from_millis(100);

/// Show what a running pool does: its figures so far, or a line for each interval
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A process of the pool: hugeswap run, or the program under it. Not needed where there is only one pool
    #[arg(long, value_name = "PID")]
    pool: Option<i32>,
    /// A line for each interval of so many seconds, until the pool ends
    #[arg(short, long, value_name = "SECONDS", value_parser = interval)]
    interval: Option<Duration>,
    /// So many lines
    #[arg(short, long, value_name = "N", requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print one JSON object, with -i one for each interval on a line of its own, whose counters are those of the interval
    #[arg(long)]
    json: bool,
}

/// A time between two looks, in seconds.
pub fn interval(given: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = given.parse().ok();
    match seconds.filter(|s| (0.1..=86_400.0).contains(s)) {
        Some(s) => Ok(Duration::from_secs_f64(s)),
        None => Err("give seconds, 0.1 to 86400".into()),
    }
}

/// Shows figures. Returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    let pool = ctl::the_pool(args.pool)?;
    let mut last = Sample::of(&pool);
    let Some(interval) = args.interval else {
        let text = match args.json {
            true => format!("{}\n", serde_json::to_string_pretty(&show::json(&last))?),
            false => show::so_far(&last, &ctl::pools::command_of(last.maker)),
        };
        print(&text);
        return Ok(0);
    };
    let is_terminal = std::io::stdout().is_terminal();
    let mut due = Instant::now() + interval;
    for n in 0..args.count.unwrap_or(u64::MAX) {
        let ended = !wait_until(due, last.maker);
        let now = Sample::of(&pool);
        let line = match args.json {
            true => format!("{}\n", show::interval_json(&last, &now)),
            false => show::line(&last, &now),
        };
        let again = n == 0 || is_terminal && n % HEADER_EVERY == 0;
        let header = match again && !args.json {
            true => show::HEADER,
            false => "",
        };
        if !print(&format!("{header}{line}")) || ended {
            break;
        }
        last = now;
        due += interval;
    }
    Ok(0)
}

/// Waits until `due`. False: the process that made the pool has ended before.
fn wait_until(due: Instant, maker: i32) -> bool {
    let process = format!("/proc/{maker}");
    loop {
        if !Path::new(&process).exists() {
            return false;
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(LOOK));
    }
}

/// False if nobody reads any more (head, less), which is no failure.
fn print(text: &str) -> bool {
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "0.01", "1e9", "NaN", "inf", "1s", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}

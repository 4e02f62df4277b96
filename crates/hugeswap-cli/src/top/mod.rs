//! `hugeswap top`: a live view of running pools, as top(1) is of a machine. What it shows is read where
//! it stands: no thread of the programs stops or waits, and none does more because it is watched (but
//! for the map, which a process of the pool is asked for).

mod draw;
mod keys;
mod map;
mod watched;

use anyhow::{Context, Result, bail};
use hugeswap_support::interrupt::{check_interrupted, watch_signals};
use keys::{Next, Screen, View};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use watched::Pools;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap top
  hugeswap top 4711 -i 0.5

Keys: q quits, ? shows all keys. NO_COLOR=1 in the environment: no colours.";

/// Watch running pools: memory, swap, rates, faults, processes, and a map of their memory
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A process of a pool: hugeswap run, or the program under it [default: all pools of this user, one at a time]
    pid: Option<i32>,
    /// Seconds between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = crate::stat::interval)]
    interval: Duration,
}

/// Shows pools until the user quits, or the pool that was given ends. Returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        bail!(
            "top needs a terminal; `hugeswap stat -i 1` prints a line for each second, also to a file"
        );
    }
    let pools = Pools::of(args.pid)?;
    watch_signals()?;
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let done = watch(&mut terminal, pools, args.interval);
    ratatui::restore();
    if let Some(last_word) = done? {
        println!("{last_word}");
    }
    Ok(0)
}

/// What is to be said when the screen is as it was before.
fn watch(
    terminal: &mut DefaultTerminal,
    mut pools: Pools,
    interval: Duration,
) -> Result<Option<String>> {
    let mut screen = Screen::new(interval);
    let mut due = Instant::now();
    loop {
        check_interrupted()?;
        if Instant::now() >= due {
            if !screen.is_paused {
                pools.look();
            }
            due = Instant::now() + interval;
        }
        if let Some(ended) = pools.ended() {
            return Ok(Some(ended));
        }
        screen.follow(&pools);
        if screen.view == View::Map && !screen.is_paused {
            screen.look_at_map(&pools);
        }
        terminal
            .draw(|frame| draw::all(frame, &pools, &mut screen))
            .context("the terminal cannot be written to")?;
        let left = due.saturating_duration_since(Instant::now());
        if event::poll(left)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            match screen.key(key, &mut pools) {
                Next::Stay => {}
                Next::Redraw => terminal.clear()?,
                Next::Quit => return Ok(None),
            }
        }
    }
}

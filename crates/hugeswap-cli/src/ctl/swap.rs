//! `hugeswap ctl swap`: the swap areas of a running pool.

use crate::text;
use anyhow::{Context, Result, anyhow, bail};
use clap::Subcommand;
use hugeswap_engine::pool::{AreaUsage, Pool, SwapSpec};
use hugeswap_policy::{PAGE_BYTES, UNIT_BYTES};
use hugeswap_support::interrupt::{check_interrupted, watch_signals};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_millis(50);
/// How long reads that fail are tried again: a device that was reset may come back.
const UNREADABLE: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap ctl swap list --json
  hugeswap ctl swap add /mnt/fast,size=50G,pri=10
  hugeswap ctl swap off 0
  hugeswap ctl swap off 0 --lose-unreadable

Areas of a higher priority (pri=, -1 to 32767, 0 by default) are filled first, those of the same in
turn. `off` moves what the area holds to the others, and to memory where those are full, while the
programs go on; Ctrl-C leaves the area on. Exit status: 0, or 2 if it could not be done.";

/// Swap areas: list, add, take off
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = false)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List them
    List {
        /// Print one JSON array, sizes in bytes
        #[arg(long)]
        json: bool,
    },
    /// Add one: a directory, a swap file, or a device (as --swap of `hugeswap run`)
    Add {
        /// The place, with options as for --swap
        #[arg(value_name = "PATH[,size=SIZE][,pri=N]")]
        area: String,
    },
    /// Take one off: what it holds moves to the others
    Off {
        /// Its number, as `list` shows it
        area: usize,
        /// Give up, and leave it on, when nothing has moved for so many seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 30)]
        patience: u64,
        /// Give up what cannot be read: touching it ends a program (SIGBUS). Without this the area stays on
        #[arg(long)]
        lose_unreadable: bool,
    },
}

/// Runs the command. Returns the exit status.
pub fn run(pool: &Pool, args: &Args) -> Result<i32> {
    match &args.command {
        Command::List { json } => list(pool, *json)?,
        Command::Add { area } => add(pool, area)?,
        Command::Off {
            area,
            patience,
            lose_unreadable,
        } => off(
            pool,
            *area,
            Duration::from_secs(*patience),
            *lose_unreadable,
        )?,
    }
    Ok(0)
}

/// The path of an area, from the descriptor in the process that made the pool.
/// Where an area is, in words.
pub fn place_of(pool: &Pool, a: &AreaUsage) -> String {
    let link = std::fs::read_link(format!("/proc/{}/fd/{}", pool.maker(), a.fd));
    let link = link.unwrap_or_else(|_| PathBuf::from("?"));
    let name = link.to_string_lossy();
    if name.starts_with("/memfd:") {
        return SwapSpec::memory().path.display().to_string();
    }
    // A file without a name is shown with a number, which means nothing to a reader.
    match name.strip_suffix(" (deleted)").map(Path::new) {
        Some(file) => file.parent().unwrap_or(file).display().to_string(),
        None => name.into_owned(),
    }
}

fn list(pool: &Pool, as_json: bool) -> Result<()> {
    let areas = pool.area_usage();
    if as_json {
        let rows: Vec<_> = areas
            .iter()
            .map(|a| {
                json!({
                    "area": a.index,
                    "path": place_of(pool, a),
                    "priority": a.priority,
                    "bytes": a.usage.clusters * UNIT_BYTES,
                    "used_bytes": a.usage.used_bytes(),
                    "allocated_bytes": a.allocated,
                    "draining": a.draining,
                    "write_errors": a.errors,
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "{:>4}  {:>8}  {:>10}  {:>10}  {:>6}  PATH",
        "AREA", "PRIORITY", "SIZE", "IN USE", "ERRORS"
    );
    for a in &areas {
        println!(
            "{:>4}  {:>8}  {:>10}  {:>10}  {:>6}  {}{}",
            a.index,
            a.priority,
            text::bytes(a.usage.clusters * UNIT_BYTES),
            text::bytes(a.usage.used_bytes()),
            a.errors,
            text::one_line(&place_of(pool, a)),
            if a.draining { " (being taken off)" } else { "" },
        );
    }
    Ok(())
}

fn add(pool: &Pool, area: &str) -> Result<()> {
    let memory = SwapSpec::parse(area)?.is_memory();
    // The process that made the pool has a working directory of its own.
    let (path, options) = match area.split_once(',') {
        Some((path, options)) => (path, format!(",{options}")),
        None => (area, String::new()),
    };
    let absolute = std::path::absolute(path).with_context(|| format!("cannot find {path}"))?;
    let path = match memory {
        true => path,
        false => absolute
            .to_str()
            .context("the path is not UTF-8: use another")?,
    };
    let index = pool
        .ask_to_add(&format!("{path}{options}"))?
        .map_err(|e| anyhow!(e))?;
    println!("area {index} is on");
    Ok(())
}

fn off(pool: &Pool, area: usize, patience: Duration, lose: bool) -> Result<()> {
    let room = pool.room_for(area).with_context(|| {
        format!("the pool has no swap area {area}: `hugeswap ctl swap list` shows those it has")
    })?;
    if !room.suffices() {
        bail!(
            "area {area} holds {}, the other areas have {} free and memory {}: {} too few; add an area first (hugeswap ctl swap add)",
            text::bytes(room.held),
            text::bytes(room.elsewhere),
            text::bytes(room.memory),
            text::bytes(room.missing()),
        );
    }
    watch_signals()?;
    // If another command is already taking it off, this one waits, too.
    pool.take_off(area, lose);
    let bar = ProgressBar::with_draw_target(Some(room.held), ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template(
        "{bar:30} {binary_bytes} of {binary_total_bytes} moved, {binary_bytes_per_sec}, {eta} left",
    )?);
    let (mut least, mut moved_at) = (u64::MAX, Instant::now());
    let give_up = |why: String| {
        bar.finish_and_clear();
        // The area may be off by now.
        if pool.keep_on(area) {
            Err(anyhow!(why))
        } else {
            Ok(())
        }
    };
    loop {
        let areas = pool.area_usage();
        let Some(now) = areas.iter().find(|a| a.index == area && a.draining) else {
            break;
        };
        let left = now.usage.used_bytes();
        bar.set_position(room.held.saturating_sub(left));
        if left < least {
            (least, moved_at) = (left, Instant::now());
        }
        if check_interrupted().is_err() {
            return give_up(format!(
                "interrupted: area {area} stays on, with {} in it",
                text::bytes(left)
            ));
        }
        let quiet = moved_at.elapsed();
        let hopeless = quiet > UNREADABLE && pool.only_unreadable_left(area);
        if hopeless || quiet > patience {
            let stays = format!(
                "nothing has moved for {} s, so area {area} stays on, with {} in it",
                quiet.as_secs(),
                text::bytes(left)
            );
            let unreadable = pool.unreadable_in(area) * PAGE_BYTES;
            return give_up(if unreadable > 0 {
                format!(
                    "{stays}: {} of that cannot be read (`hugeswap ctl swap off {area} --lose-unreadable` gives it up: touching it ends a program)",
                    text::bytes(unreadable)
                )
            } else {
                format!("{stays}: there is no room, or a process of the pool is stopped")
            });
        }
        std::thread::sleep(LOOK);
    }
    bar.finish_and_clear();
    match pool.lost_in(area) * PAGE_BYTES {
        0 => println!("area {area} is off"),
        lost => println!(
            "area {area} is off; {} could not be read, and are lost",
            text::bytes(lost)
        ),
    }
    Ok(())
}

//! The checker in every mode, for many seeds.

mod modes;
mod restless;
mod shrink;
mod stacks;
mod trial;

use anyhow::{Context, Result, anyhow, ensure};
use std::path::PathBuf;
use std::time::Duration;
use trial::{Place, Plan};

/// Which runs are made.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The hugeswap executable (default: the one beside this one, or in PATH)
    #[arg(long)]
    hugeswap: Option<PathBuf>,
    /// Modes to run in (default: all; `--list` tells them)
    #[arg(long, value_delimiter = ',')]
    modes: Vec<String>,
    /// List the modes
    #[arg(long)]
    list: bool,
    /// Seeds for each mode
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 1)]
    first_seed: u64,
    /// Seconds of each run
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Threads of the checker
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// Memory of the checker
    #[arg(long, default_value = "192M", value_parser = crate::size)]
    bytes: usize,
    /// Directory on a disk for swap and logs
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// No step for so many seconds is a hang
    #[arg(long, default_value_t = 60)]
    stall: u64,
    /// How long to look for a smaller run that fails, seconds; 0: not at all
    #[arg(long, default_value_t = 300)]
    shrink: u64,
    /// Run the checker without hugeswap, to check the checker
    #[arg(long)]
    plain: bool,
}

/// Runs them all; false if one failed.
pub fn run(args: &Args) -> Result<bool> {
    let modes = modes::named(&args.modes).map_err(|e| anyhow!(e))?;
    if args.list {
        for m in modes {
            println!("{:<14} {}", m.name, m.about);
        }
        return Ok(true);
    }
    ensure!(args.seconds > 0, "--seconds is at least 1");
    let dir = tempfile::Builder::new()
        .prefix("hugeswap-torture-")
        .tempdir_in(&args.dir)
        .with_context(|| format!("cannot make a directory in {}", args.dir.display()))?;
    let place = Place {
        hugeswap: match &args.hugeswap {
            Some(path) => path.clone(),
            None => beside_me()?,
        },
        dir: dir.path().to_owned(),
        stall: Duration::from_secs(args.stall),
        plain: args.plain,
    };
    let mut failures = 0;
    for mode in modes {
        let (mut accesses, mut range_ops, mut forks) = (0, 0, 0);
        for seed in args.first_seed..args.first_seed + args.seeds {
            let plan = Plan {
                mode,
                seed,
                threads: args.threads,
                bytes: args.bytes,
                seconds: args.seconds,
                steps: u64::MAX,
                without: mode.without.to_vec(),
                skip: Vec::new(),
            };
            let outcome = trial::run(&place, &plan)?;
            accesses += outcome.accesses;
            range_ops += outcome.range_ops;
            forks += outcome.forks;
            if let Some(failure) = &outcome.failure {
                failures += 1;
                println!("{} seed {seed}: FAILED: {failure}", mode.name);
                if args.shrink > 0 {
                    let limit = Duration::from_secs(args.shrink);
                    let (small, failed) = shrink::shrink(&place, &plan, outcome, limit)?;
                    println!("smallest run found that fails:");
                    println!(
                        "  hugeswap {} -- hugeswap-torture {}",
                        small.managed().join(" "),
                        small.arguments().join(" ")
                    );
                    println!("  {}", failed.failure.unwrap_or_default());
                }
            }
        }
        println!(
            "{:<14} {} seeds, {accesses} accesses, {range_ops} range operations, {forks} forks",
            mode.name, args.seeds
        );
    }
    println!("{failures} failures");
    Ok(failures == 0)
}

/// `hugeswap` in the directory of this executable, or in PATH.
fn beside_me() -> Result<PathBuf> {
    let me = std::env::current_exe()?;
    let beside = me.with_file_name("hugeswap");
    Ok(if beside.exists() {
        beside
    } else {
        "hugeswap".into()
    })
}

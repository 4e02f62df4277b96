//! `hugeswap ctl`: looks at running pools, and changes them.

mod memory;
mod pageout;
pub mod pools;
mod scrub;
mod settings;
pub mod swap;

use clap::Subcommand;
use hugeswap_engine::pool::Pool;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap ctl list
  hugeswap ctl get thp
  hugeswap ctl set thp.defrag=defer vm.watermark_scale_factor=500
  hugeswap ctl memory 800M
  hugeswap ctl pageout 200M
  hugeswap ctl swap list
  hugeswap ctl --pool 4711 swap add /mnt/fast,size=50G,pri=10
  hugeswap ctl --pool 4711 swap off 0";

/// Look at running pools, and change them
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = false)]
pub struct Args {
    /// A process of the pool: hugeswap run, or the program under it. Not needed where there is only one pool
    #[arg(long, value_name = "PID", global = true)]
    pool: Option<i32>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the pools of this user (of all users, for root)
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show a pool's settings
    Get(settings::Get),
    /// Change a pool's settings, while it is in use
    Set(settings::Set),
    /// Show a pool's budget, or change it while it is in use
    Memory(memory::Args),
    /// Page out what was used least lately, without a smaller budget
    Pageout(pageout::Args),
    /// Swap areas: list, add, take off
    Swap(swap::Args),
    /// Read and verify everything in swap; save what is bad there and still in memory
    Scrub(scrub::Args),
}

/// Runs the command. Returns the exit status.
pub fn run(args: &Args) -> anyhow::Result<i32> {
    match &args.command {
        Command::List { json } => pools::list(*json),
        Command::Get(get) => settings::get(&the_pool(args.pool)?, get),
        Command::Set(set) => settings::set(&the_pool(args.pool)?, set),
        Command::Memory(memory) => memory::run(&the_pool(args.pool)?, memory),
        Command::Pageout(pageout) => pageout::run(&the_pool(args.pool)?, pageout),
        Command::Scrub(scrub) => scrub::run(&the_pool(args.pool)?, scrub),
        Command::Swap(swap) => swap::run(&the_pool(args.pool)?, swap),
    }
}

/// The pool that `--pool` names, or the only one.
pub fn the_pool(pid: Option<i32>) -> anyhow::Result<Pool> {
    match pid {
        Some(pid) => pools::of(pid),
        None => pools::only(),
    }
}

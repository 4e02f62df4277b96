//! `hugeswap`: gives unmodified programs more memory than they are allowed to use.
//!
//! Every command's errors are one line on stderr that says what to do, and exit status 2.
#![forbid(unsafe_code)]

mod attach;
mod ctl;
mod debug;
mod demo;
mod doctor;
mod explain;
mod exporter;
mod jupyter;
mod manual;
mod pagemap;
mod ps;
mod record;
mod report;
mod run;
mod stat;
mod swap;
mod text;
mod top;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use hugeswap_bench as bench;
use std::io::Write;

#[derive(Parser)]
#[command(
    name = "hugeswap",
    version,
    about = "Runs programs in less memory than they need, swapping whole huge pages",
    after_help = "EXAMPLE:\n  hugeswap run --memory 600M -- sort -S 2G big.txt -o sorted.txt\n\n\
                  `hugeswap doctor` shows what this machine and user can do."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program within a memory budget; the rest of its memory is in swap
    Run(run::Args),
    /// Manage the memory of a program that runs already
    Attach(attach::Args),
    /// Give the memory of a program that was attached back to it
    Detach(attach::detach::Args),
    /// Measure swapping, side by side with the kernel's own where possible
    Bench(bench::Args),
    /// Run a program and record what its memory does, or record a pool that runs
    Record(record::Args),
    /// Show a recording as a page with pictures; or what a saved report says of larger and smaller budgets
    Report(report::Args),
    /// Look at running pools, and change them: add swap areas, take them off
    Ctl(ctl::Args),
    /// Show what a running pool does: its figures so far, or a line for each interval
    Stat(stat::Args),
    /// List running pools and their processes
    Ps(ps::Args),
    /// Watch running pools: memory, swap, rates, faults, processes, and a map of their memory
    Top(top::Args),
    /// Serve the figures of running pools to Prometheus
    Exporter(exporter::Args),
    /// Say what a figure or a setting is
    Explain(explain::Args),
    /// Show what each page of a running program is: in memory, in swap, zero, lost
    Pagemap(pagemap::Args),
    /// Help debuggers with programs whose memory is managed
    Debug(debug::Args),
    /// Notebooks in a memory budget: install a kernel for Jupyter
    Jupyter(jupyter::Args),
    /// Look at swap files
    Swap(swap::Args),
    /// Show what this machine and user can do, and what would improve it
    Doctor(doctor::Args),
    /// Sort real data in a quarter of the memory it takes, and check the result
    Demo(demo::Args),
    /// Print what a shell completes command lines by
    Completions(manual::Completions),
    /// Write man pages, one for each command
    Man(manual::Man),
    /// One worker process of a benchmark
    #[command(name = "__worker", hide = true)]
    Worker(bench::WorkerArgs),
}

fn main() {
    if let Some(program) = std::env::var_os(hugeswap_support::PROGRAM_VARIABLE) {
        // (In a run the object would have loaded it before this runs.)
        let Err(e) = run::loader::execute();
        complain(&format!("{} cannot be loaded: {e:#}", program.display()));
        std::process::exit(2);
    }
    let code = match Cli::try_parse() {
        Ok(cli) => dispatch(cli.command).unwrap_or_else(|e| {
            complain(&format!("{e:#}"));
            2
        }),
        Err(e) => usage(&e),
    };
    let _ = std::io::stdout().flush();
    std::process::exit(code);
}

fn dispatch(command: Command) -> anyhow::Result<i32> {
    match command {
        Command::Run(args) => run::run(args),
        Command::Attach(args) => attach::run(&args),
        Command::Detach(args) => attach::detach::run(&args),
        Command::Bench(args) => bench::run(args),
        Command::Record(args) => record::run(args),
        Command::Report(args) => report::run(&args),
        Command::Ctl(args) => ctl::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Ps(args) => ps::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Exporter(args) => exporter::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Pagemap(args) => pagemap::run(&args),
        Command::Debug(args) => debug::run(&args),
        Command::Jupyter(args) => jupyter::run(&args),
        Command::Swap(args) => swap::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Completions(args) => manual::completions(&args, visible()),
        Command::Man(args) => manual::man(&args, visible()),
        Command::Worker(args) => bench::worker(args),
    }
}

/// The command line without what users do not see.
fn visible() -> clap::Command {
    let all = Cli::command();
    let mut command = clap::Command::new("hugeswap").version(env!("CARGO_PKG_VERSION"));
    if let Some(about) = all.get_about() {
        command = command.about(about.clone());
    }
    if let Some(help) = all.get_after_help() {
        command = command.after_help(help.clone());
    }
    let shown = all.get_subcommands().filter(|c| !c.is_hide_set());
    command.subcommands(shown.cloned())
}

/// Writes an error as one line.
fn complain(message: &str) {
    // If stderr is closed there is no place left for the message.
    let _ = writeln!(std::io::stderr(), "hugeswap: {}", text::one_line(message));
}

/// Prints help and version as clap writes them, and a mistake as one line. Returns the exit status.
fn usage(e: &clap::Error) -> i32 {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = e.print();
        return 0;
    }
    if e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        complain(
            "a command is missing: run, attach, detach, ctl, stat, ps, top, exporter, explain, pagemap, debug, bench, record, report, jupyter, swap, doctor, demo, completions or man (hugeswap --help tells more)",
        );
        return 2;
    }
    let whole = e.to_string();
    // The message ends at the first empty line; usage and tips follow.
    let message = whole.split("\n\n").next().unwrap_or(&whole);
    let message = message.trim().trim_start_matches("error: ");
    complain(&format!("{message} (see --help)"));
    2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn shells_and_man_know_every_command() {
        use clap_complete::Shell;
        let dir = tempfile::tempdir().unwrap();
        clap_mangen::generate_to(visible(), dir.path()).unwrap();
        let mut script = Vec::new();
        clap_complete::generate(Shell::Bash, &mut visible(), "hugeswap", &mut script);
        let script = String::from_utf8(script).unwrap();
        for c in Cli::command()
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
        {
            let name = c.get_name();
            let page = dir.path().join(format!("hugeswap-{name}.1"));
            let page = std::fs::read_to_string(page).unwrap();
            assert!(page.contains("EXAMPLE"), "{name}");
            assert!(
                script.contains(&format!("hugeswap__{name}")) || script.contains(name),
                "{name}"
            );
        }
        // (What users do not see, nothing knows of.)
        assert!(!script.contains("__worker") && !dir.path().join("hugeswap-__worker.1").exists());
    }

    #[test]
    fn every_command_has_an_example() {
        for c in Cli::command()
            .get_subcommands()
            .filter(|c| !c.is_hide_set())
        {
            let help = c
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(help.contains("EXAMPLE"), "{}", c.get_name());
        }
    }
}

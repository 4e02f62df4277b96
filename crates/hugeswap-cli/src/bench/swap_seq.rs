//! `swap-seq`: tasks write a range from start to end, again and again, in less memory than it takes.
//!
//! hugeswap and the kernel take turns on the same device, hugeswap first; a ratio is formed within each pair and the
//! median of the pairs is what counts.

use super::args::{Device, KernelThp, SwapSeq};
use super::ceiling::{self, Ceiling};
use super::kernel::{self, Keeper, Opponent};
use super::output::{Outcome, Progress, Table, rounded};
use super::runner::{self, Hugeswap, Run, median};
use super::worker::{Thp, Work};
use super::{Interrupted, Usage};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Read rounds of `--read-only-pass`; the first still writes out what is dirty.
const READ_ROUNDS: u32 = 3;
/// The kernel reads 4 KiB at a time: at the end of its runs one huge page in so many is verified.
const KERNEL_VERIFIES_ONE_IN: u32 = 8;
/// Bytes of each of the two files of a ceiling, at most.
const CEILING_BYTES: u64 = 512 << 20;

/// Runs it.
pub fn run(args: &SwapSeq) -> Result<()> {
    args.check()?;
    let mut outcome = Outcome::new("swap-seq")?;
    let before = kernel::areas_on();
    let done = measure(args, &mut outcome);
    let after = kernel::areas_on();
    let table = done?;
    if before != after {
        bail!("the swap areas are not what they were before: compare /proc/swaps with: {before:?}");
    }
    outcome.print(args.common.json, &table)
}

/// Where the engines swap in this call.
struct Place {
    /// Values for `--swap`.
    swap: Vec<String>,
    /// The directory, if it is known.
    dir: Option<PathBuf>,
    opponent: Option<Opponent>,
}

fn measure(args: &SwapSeq, outcome: &mut Outcome) -> Result<Table> {
    let mut keeper = None;
    let place = set_up(args, &mut keeper, outcome)?;
    let kernel_runs = match (&place.opponent, args.kernel_thp) {
        (None, _) => vec![],
        (_, KernelThp::On) => vec![Thp::On],
        (_, KernelThp::Off) => vec![Thp::Off],
        (_, KernelThp::Both) => vec![Thp::On, Thp::Off],
    };
    let mut progress =
        Progress::new(u64::from(args.common.pairs()) * (1 + kernel_runs.len() as u64));
    // What an engine takes from the machine: its memory, and what it writes to a RAM device.
    let in_ram = place.dir.as_deref().is_some_and(in_memory);
    let touched = args.memory
        + if in_ram {
            kernel::swap_bytes(args.region)
        } else {
            0
        };
    let mut ceilings = Vec::new();
    for pair in 1..=args.common.pairs() {
        // Before and after: what the device can do changes with what else the machine does.
        ceilings.extend(ceiling(args, &place, &mut progress)?);
        progress.begin(format!("hugeswap {pair} of {}", args.common.pairs()));
        let hugeswap = Hugeswap {
            memory: args.memory,
            swap: &place.swap,
            common: &args.common,
            fault_mode: args.common.fault_mode.map(super::args::FaultMode::name),
        };
        runner::warm_up(touched, args.common.limit())?;
        let run = hugeswap.run(&work(args, args.rounds, 1, Thp::Unadvised), |l| {
            progress.figure(l)
        })?;
        outcome.runs.push(run.with("pair", pair));
        progress.end();
        ceilings.extend(ceiling(args, &place, &mut progress)?);
        for &thp in &kernel_runs {
            let (Some(opponent), Some(keeper)) = (&place.opponent, &mut keeper) else {
                break;
            };
            let label = if thp == Thp::On { "on" } else { "off" };
            progress.begin(format!(
                "kernel, huge pages {label}, {pair} of {}",
                args.common.pairs()
            ));
            let work = work(args, args.rounds_of_kernel(), KERNEL_VERIFIES_ONE_IN, thp);
            runner::warm_up(touched, args.common.limit())?;
            let run = opponent.run(keeper, &work, args.common.limit(), |l| progress.figure(l))?;
            outcome.runs.push(run.with("pair", pair));
            progress.end();
        }
    }
    if let Some(keeper) = keeper {
        progress.begin("undoing what was set up");
        keeper.close()?;
    }
    drop(progress);
    compare(outcome, &ceilings)?;
    if !kernel_runs.is_empty() {
        let verified = if args.read_only_pass {
            "every word verified in the read rounds".to_owned()
        } else {
            format!("one huge page in {KERNEL_VERIFIES_ONE_IN} verified (hugeswap: every word)")
        };
        let rounds = args.rounds_of_kernel();
        outcome.notes.push(format!(
            "the kernel's runs: {rounds} rounds, the fill included; {verified}"
        ));
    }
    Ok(table(&outcome.runs))
}

/// What the device can do, if that is asked for.
fn ceiling(args: &SwapSeq, place: &Place, progress: &mut Progress) -> Result<Option<Ceiling>> {
    let (true, Some(dir)) = (args.ceiling, &place.dir) else {
        return Ok(None);
    };
    progress.begin(format!("{}: what the device can do", dir.display()));
    let measured = ceiling::measure(dir, args.region.min(CEILING_BYTES));
    measured.context("--ceiling").map(Some)
}

fn work(args: &SwapSeq, rounds: u32, verify_one_in: u32, thp: Thp) -> Work {
    Work {
        region: args.region,
        tasks: args.tasks,
        threads: args.threads,
        rounds,
        read_rounds: if args.read_only_pass { READ_ROUNDS } else { 0 },
        // Read rounds verify every word.
        verify_one_in: if args.read_only_pass {
            0
        } else {
            verify_one_in
        },
        thp,
        ..Work::default()
    }
}

/// Prepares the device and, if asked for and permitted, the opponent. What cannot be had is skipped, with
/// the reason; only what was asked for by name has to be there.
fn set_up(args: &SwapSeq, keeper: &mut Option<Keeper>, outcome: &mut Outcome) -> Result<Place> {
    let mut vs_kernel = args.vs.is_some();
    let mut place = Place {
        swap: args.common.swap.clone(),
        dir: None,
        opponent: None,
    };
    if vs_kernel && !kernel::permitted() {
        outcome.skip("the kernel's swap: turning swap on needs root".into());
        vs_kernel = false;
    }
    match args.device()? {
        Device::Default => {}
        Device::Directory(dir) => {
            if vs_kernel && in_memory(&dir) {
                let dir = dir.display();
                return Err(Usage(format!("{dir} is in memory, and swap there can itself be swapped, which hangs the kernel: use --device ram")).into());
            }
            if place.swap.is_empty() {
                place.swap.push(dir.display().to_string());
            }
            place.dir = Some(dir);
        }
        Device::Ram => match ram(args, keeper, vs_kernel) {
            Ok(dir) => {
                let bytes = kernel::swap_bytes(args.region);
                place.swap = vec![format!("{},size={bytes},tmpfs=allow", dir.display())];
                place.dir = Some(dir);
            }
            Err(e) if e.is::<Usage>() || e.is::<Interrupted>() || args.vs.is_none() => {
                return Err(e.context("--device ram"));
            }
            Err(e) => outcome.skip(format!("the RAM device: {e:#}")),
        },
    }
    if !vs_kernel {
        return Ok(place);
    }
    let keeper = match keeper {
        Some(k) => k,
        None => keeper.insert(Keeper::start()?),
    };
    let Some(dir) = &place.dir else {
        return Ok(place);
    };
    match Opponent::new(keeper, dir, args.region, args.memory, in_memory(dir)) {
        Ok(opponent) => place.opponent = Some(opponent),
        Err(e) if e.is::<Interrupted>() => return Err(e),
        Err(e) => outcome.skip(format!("the kernel's swap: {e:#}")),
    }
    Ok(place)
}

/// Makes the RAM device, large enough for everything that will be on it.
fn ram(args: &SwapSeq, keeper: &mut Option<Keeper>, vs_kernel: bool) -> Result<PathBuf> {
    if !kernel::permitted() {
        bail!("mounting a tmpfs needs root: use --device DIR");
    }
    let engines = 1 + u64::from(vs_kernel);
    let ceiling = if args.ceiling {
        2 * args.region.min(CEILING_BYTES)
    } else {
        0
    };
    let bytes = engines * kernel::swap_bytes(args.region) + ceiling + (64 << 20);
    kernel::ram_device(keeper.insert(Keeper::start()?), bytes, args.memory)
}

/// Is this directory on a file system that lives in memory?
fn in_memory(dir: &Path) -> bool {
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    rustix::fs::statfs(dir)
        .is_ok_and(|s| [libc::TMPFS_MAGIC as u64, RAMFS_MAGIC].contains(&(s.f_type as u64)))
}

fn compare(outcome: &mut Outcome, ceilings: &[Ceiling]) -> Result<()> {
    let runs = std::mem::take(&mut outcome.runs);
    let hugeswap: Vec<&Run> = runs.iter().filter(|r| r.engine == "hugeswap").collect();
    for thp in ["on", "off"] {
        let kernel: Vec<&Run> = runs
            .iter()
            .filter(|r| r.params.get("thp").is_some_and(|t| t == thp))
            .collect();
        if kernel.is_empty() {
            continue;
        }
        let over = |f: fn(&Run) -> f64| -> f64 {
            median(
                &hugeswap
                    .iter()
                    .zip(&kernel)
                    .map(|(h, k)| f(h) / f(k))
                    .collect::<Vec<_>>(),
            )
        };
        outcome.ratio(&format!("write_vs_kernel_thp_{thp}"), over(Run::steady));
        if kernel.iter().all(|k| !k.read_mb_s.is_empty()) {
            outcome.ratio(&format!("read_vs_kernel_thp_{thp}"), over(Run::steady_read));
        }
    }
    if !ceilings.is_empty() {
        let middle = |f: fn(&Ceiling) -> f64| median(&ceilings.iter().map(f).collect::<Vec<_>>());
        let c = Ceiling {
            read_mb_s: middle(|c| c.read_mb_s),
            write_mb_s: middle(|c| c.write_mb_s),
            mixed_mb_s: middle(|c| c.mixed_mb_s),
        };
        outcome.notes.push(format!(
            "the device, in whole huge pages, direct: reads {:.0}, writes {:.0}, both at once {:.0} MB/s",
            c.read_mb_s, c.write_mb_s, c.mixed_mb_s
        ));
        outcome
            .more
            .insert("ceiling".into(), serde_json::to_value(c)?);
        let share: Vec<f64> = hugeswap
            .iter()
            .filter_map(|r| Some(r.steady() * traffic(r)? / c.mixed_mb_s))
            .collect();
        outcome.ratio("write_traffic_vs_mixed_ceiling", median(&share));
        if hugeswap.iter().all(|r| !r.read_mb_s.is_empty()) {
            let reads: Vec<f64> = hugeswap
                .iter()
                .map(|r| r.steady_read() / c.read_mb_s)
                .collect();
            outcome.ratio("read_vs_read_ceiling", median(&reads));
        }
        let writes: Vec<f64> = hugeswap.iter().map(|r| r.steady() / c.mixed_mb_s).collect();
        outcome.ratio("write_vs_mixed_ceiling", median(&writes));
    }
    outcome.runs = runs;
    Ok(())
}

/// Bytes moved in or out for each byte written, in the rounds after the fill. Swap is read in every pass but the
/// first, and what a round wrote is written out once, in that round or in the next pass.
fn traffic(run: &Run) -> Option<f64> {
    let bytes = |name: &str| {
        Some(run.counters[name].as_f64()? * 4096.0 / run.params["region_bytes"].as_f64()?)
    };
    let writes = run.mb_s.len() as f64;
    // Reading at the end is verification, or the read-only rounds, which verify.
    let reads = run.read_mb_s.len().max(1) as f64;
    Some(bytes("pswpin")? / (writes - 1.0 + reads) + bytes("pswpout")? / writes)
}

fn table(runs: &[Run]) -> Table {
    let mut t = Table::new(&[
        "engine",
        "pair",
        "tasks",
        "write MB/s by round",
        "rounds 2+",
        "read MB/s",
        "huge %",
        "swapped in GiB",
        "out GiB",
        "s",
    ]);
    for r in runs {
        let list = |v: &[f64]| {
            v.iter()
                .map(|n| format!("{n:.0}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let gib = |name: &str| {
            r.counters[name].as_f64().map_or("-".into(), |p| {
                format!("{:.2}", p * 4096.0 / f64::from(1 << 30))
            })
        };
        let thp = r
            .params
            .get("thp")
            .and_then(|t| t.as_str())
            .map(|t| format!(", THP {t}"));
        t.row(vec![
            format!("{}{}", r.engine, thp.unwrap_or_default()),
            r.params["pair"].to_string(),
            r.params["tasks"].to_string(),
            list(&r.mb_s),
            format!("{:.0}", r.steady()),
            if r.read_mb_s.is_empty() {
                "-".into()
            } else {
                list(&r.read_mb_s)
            },
            r.huge_share
                .map_or("-".into(), |s| rounded(s * 100.0, 1).to_string()),
            gib("pswpin"),
            gib("pswpout"),
            format!("{:.1}", r.elapsed_s),
        ]);
    }
    t
}

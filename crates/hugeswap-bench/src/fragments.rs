//! `fragments`: the same work on a swap file in one piece and on files in many, and by the kernel on those.

use super::args::{Fragments, KernelThp};
use super::kernel::{self, Keeper, Opponent};
use super::output::{self, Outcome, Progress, Table};
use super::runner::{self, Hugeswap, Run};
use super::turns::KERNEL_VERIFIES_ONE_IN;
use super::worker::{Thp, Work};
use anyhow::{Context, Result, bail};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_support::interrupt::check_interrupted;
use hugeswap_sys::{Errno, fiemap, fs};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Disk space left to others.
const RESERVE: u64 = 1 << 30;

/// Runs it.
pub fn run(args: &Fragments) -> Result<()> {
    args.check()?;
    output::measured("fragments", args.common.json, |outcome| {
        measure(args, outcome)
    })
}

/// A swap file, and the pieces that the file system says it is in.
struct Made {
    path: PathBuf,
    extents: u64,
    whole: bool,
}

fn measure(args: &Fragments, outcome: &mut Outcome) -> Result<Table> {
    let base = args.dir()?;
    let dir = tempfile::Builder::new()
        .prefix("hugeswap-bench-")
        .tempdir_in(&base)
        .with_context(|| format!("no directory can be made in {}", base.display()))?;
    let bytes = args.file_bytes();
    let needed = bytes * (1 + args.extents.len() as u64) + RESERVE;
    let there = File::open(dir.path())?;
    let free = fs::file_system(there.as_raw_fd())?.free_bytes;
    if free < needed {
        bail!(
            "{} has {} MiB free and {} MiB are needed: give a smaller --region or another --swap",
            base.display(),
            free >> 20,
            needed >> 20
        );
    }
    let mut progress = Progress::new(runs(args));
    progress.begin("making the files");
    let mut files = vec![make(&dir.path().join("whole"), bytes, 1)?];
    for &n in &args.extents {
        match make(&dir.path().join(format!("in-{n}")), bytes, n.into()) {
            Ok(file) => files.push(file),
            Err(e) if e.downcast_ref() == Some(&Errno::EOPNOTSUPP) => {
                outcome.skip(format!("a file of {n} extents: this file system cannot take blocks out of a file (ext4 and xfs can)"));
            }
            Err(e) => return Err(e),
        }
    }
    let mut keeper = None;
    let mut opponents = Vec::new();
    if args.vs.is_some() && !kernel::permitted() {
        outcome.skip("the kernel's swap: turning swap on needs root".into());
    } else if args.vs.is_some() {
        let keeper = keeper.insert(Keeper::start()?);
        for file in files.iter().filter(|f| !f.whole) {
            opponents.push(Opponent::on_file(keeper, &file.path, args.span.memory)?);
        }
    }
    for &tasks in &args.tasks {
        for pair in 1..=args.common.pairs() {
            for file in &files {
                outcome
                    .runs
                    .push(ours(args, file, tasks, pair, &mut progress)?);
            }
            let pieces = files.iter().filter(|f| !f.whole);
            for (file, opponent) in pieces.zip(&opponents) {
                for &thp in thps(args.kernel_thp) {
                    let keeper = keeper.as_mut().context("the keeper has ended")?;
                    let who = (opponent, thp);
                    let run = theirs(args, keeper, who, (tasks, pair), &mut progress)?;
                    outcome.runs.push(run.with("extents", file.extents));
                }
            }
        }
    }
    progress.begin("undoing what was set up");
    opponents.iter().try_for_each(Opponent::check_off)?;
    keeper.map_or(Ok(()), Keeper::close)?;
    drop(progress);
    compare(args, outcome, &files);
    outcome.notes.push("each file was written from start to end before; pieces lie in the order of the file, a block apart from each other".into());
    Ok(table(&outcome.runs))
}

fn thps(which: KernelThp) -> &'static [Thp] {
    match which {
        KernelThp::On => &[Thp::On],
        KernelThp::Off => &[Thp::Off],
        KernelThp::Both => &[Thp::On, Thp::Off],
    }
}

fn runs(args: &Fragments) -> u64 {
    let kernel = if args.vs.is_some() {
        thps(args.kernel_thp).len() * args.extents.len()
    } else {
        0
    };
    let each = 1 + args.extents.len() + kernel;
    (args.tasks.len() * each) as u64 * u64::from(args.common.pairs())
}

/// Makes a file of so many bytes in so many pieces, or in as few as the file system likes, and writes it.
fn make(path: &Path, bytes: u64, pieces: u64) -> Result<Made> {
    let shown = path.display();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot make {shown}"))?;
    let fd = file.as_raw_fd();
    let taken = (pieces - 1) * PAGE_BYTES;
    fs::allocate(fd, 0, bytes + taken).with_context(|| format!("no space for {shown}"))?;
    let piece = bytes / pieces / PAGE_BYTES * PAGE_BYTES;
    // From the front on, so that each time only the few extents behind have to be moved up.
    for n in 1..pieces {
        if n.is_multiple_of(256) {
            check_interrupted()?;
        }
        match fs::collapse(fd, n * piece, PAGE_BYTES) {
            // Blocks may be larger than a page.
            Err(Errno::EINVAL) => return Err(Errno::EOPNOTSUPP.into()),
            result => result?,
        }
    }
    let zeros = vec![0; 4 << 20];
    let mut at = 0;
    while at < bytes {
        check_interrupted()?;
        let len = (bytes - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..len as usize], at)?;
        at += len;
    }
    file.sync_all()?;
    fs::forget_cached(fd, 0, bytes);
    let found: hugeswap_sys::Result<Vec<_>> = fiemap::extents(fd).collect();
    let extents = found.map_or(pieces, |f| f.len() as u64);
    Ok(Made {
        path: path.to_owned(),
        extents,
        whole: pieces == 1,
    })
}

fn work(args: &Fragments, tasks: u32, rounds: u32, verify_one_in: u32) -> Work {
    Work {
        region: args.span.region,
        tasks,
        threads: 1,
        rounds,
        verify_one_in,
        ..Work::default()
    }
}

fn ours(
    args: &Fragments,
    file: &Made,
    tasks: u32,
    pair: u32,
    progress: &mut Progress,
) -> Result<Run> {
    let extents = file.extents;
    progress.begin(format!("hugeswap, {extents} extents, {tasks} tasks"));
    runner::warm_up(args.span.memory, args.common.limit())?;
    let swap = [file.path.display().to_string()];
    let hugeswap = Hugeswap::new(args.span.memory, &swap, &args.common);
    let work = work(args, tasks, args.rounds, 1);
    let run = hugeswap.run(&work, |l| progress.figure(l))?;
    progress.end();
    Ok(run.with("extents", extents).with("pair", pair))
}

fn theirs(
    args: &Fragments,
    keeper: &mut Keeper,
    (opponent, thp): (&Opponent, Thp),
    (tasks, pair): (u32, u32),
    progress: &mut Progress,
) -> Result<Run> {
    progress.begin(format!("kernel, {tasks} tasks"));
    runner::warm_up(args.span.memory, args.common.limit())?;
    let work = Work {
        thp,
        ..work(args, tasks, args.rounds_of_kernel(), KERNEL_VERIFIES_ONE_IN)
    };
    let run = opponent.run(keeper, &work, args.common.limit(), |l| progress.figure(l))?;
    progress.end();
    Ok(run.with("pair", pair))
}

fn compare(args: &Fragments, outcome: &mut Outcome, files: &[Made]) {
    let figures = |outcome: &Outcome, label: &str, tasks: u32, extents: u64| -> Vec<f64> {
        let is = |r: &&Run| {
            r.label() == label && r.params["tasks"] == tasks && r.params["extents"] == extents
        };
        outcome.runs.iter().filter(is).map(Run::steady).collect()
    };
    let Some((whole, pieces)) = files.split_first() else {
        return;
    };
    for &tasks in &args.tasks {
        let contiguous = figures(outcome, "hugeswap", tasks, whole.extents);
        for file in pieces {
            let n = file.extents;
            let found = figures(outcome, "hugeswap", tasks, n);
            let name = format!("{tasks}_tasks_{n}_extents_vs_contiguous");
            outcome.ratio_of_pairs(&name, &found, &contiguous);
            for (rival, kernel) in outcome.rivals("hugeswap") {
                let name = format!("{tasks}_tasks_{n}_extents_vs_{kernel}");
                let theirs = figures(outcome, &rival, tasks, n);
                outcome.ratio_of_pairs(&name, &found, &theirs);
            }
        }
    }
}

fn table(runs: &[Run]) -> Table {
    let mut t = Table::new(&[
        "engine",
        "extents",
        "tasks",
        "pair",
        "write MB/s by round",
        "rounds 2+",
        "s",
    ]);
    for r in runs {
        let rounds = r.mb_s.iter().map(|n| format!("{n:.0}"));
        t.row(vec![
            r.label(),
            r.params["extents"].to_string(),
            r.params["tasks"].to_string(),
            r.params["pair"].to_string(),
            rounds.collect::<Vec<_>>().join(" "),
            format!("{:.0}", r.steady()),
            format!("{:.1}", r.elapsed_s),
        ]);
    }
    t
}

//! `fragments`: the same work on a swap file in one piece and on files in many, and by the kernel on
//! those.

use crate::engines::hugeswap::{Hugeswap, warm_up};
use crate::engines::turns::KERNEL_VERIFIES_ONE_IN;
use crate::error::wrong;
use crate::generate::plan::{Thp, Work};
use crate::kernel::{self, Keeper, Opponent, swap_bytes};
use crate::options::{self, Common, KernelThp, Rounds, Span, check_memory, check_work};
use crate::output::{Benchmark, Outcome, Progress, Run, Table, cell};
use anyhow::{Context, Result, bail};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_support::interrupt::check_interrupted;
use hugeswap_sys::{Errno, fiemap, fs};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Disk space that is left free.
const RESERVE: u64 = 1 << 30;

// Arguments of `hugeswap bench fragments`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench fragments
  hugeswap bench fragments --extents 20000 --tasks 4 --vs kernel --kernel-thp off

Makes swap files of equal size in a directory, one as the file system likes to lay it out, the others in so many
pieces (a file in one piece, of which a block is taken out after each piece: FALLOC_FL_COLLAPSE_RANGE), and writes them
from start to end. Then tasks write a range again and again in less memory than it takes, as in swap-seq, on
each file in turn. Where --extents pieces of equal size are too small, or the file system cannot do that, the file is skipped.
The files are removed.

--vs kernel needs root: for each run the kernel's swap is turned on on the very same file, and off again
after, also on failure or Ctrl-C.")]
pub struct Fragments {
    /// Numbers of pieces
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [20_000, 84_656])]
    extents: Vec<u32>,
    /// Numbers of processes, each with its share of the region
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 4, 8])]
    tasks: Vec<u32>,
    #[command(flatten)]
    span: Span,
    #[command(flatten)]
    rounds: Rounds,
    /// The opponent to run in turn with hugeswap, on the files in pieces
    #[arg(long, value_name = "ENGINE", value_enum)]
    vs: Option<options::Opponent>,
    /// Huge pages for the kernel's runs
    #[arg(long, value_name = "WHICH", value_enum, default_value = "both")]
    kernel_thp: KernelThp,
    #[command(flatten)]
    common: Common,
}

/// A swap file, and the number of pieces according to the file system.
struct Made {
    path: PathBuf,
    extents: u64,
    whole: bool,
}

impl Benchmark for Fragments {
    const NAME: &'static str = "fragments";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        let most = swap_bytes(self.span.region) / PAGE_BYTES;
        if self.extents.iter().any(|&n| n < 2 || u64::from(n) > most) {
            return wrong(format!(
                "--extents must be from 2 to {most}, which are pieces of 4 KiB: for more give a larger --region"
            ));
        }
        for &tasks in &self.tasks {
            check_work(self.span.region, tasks, 1, self.rounds.rounds)?;
        }
        self.rounds.check()?;
        check_memory(self.span.memory)?;
        self.dir().map(drop)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let base = self.dir()?;
        let dir = tempfile::Builder::new()
            .prefix("hugeswap-bench-")
            .tempdir_in(&base)
            .with_context(|| format!("no directory can be made in {}", base.display()))?;
        let bytes = swap_bytes(self.span.region);
        let needed = bytes * (1 + self.extents.len() as u64) + RESERVE;
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
        let mut progress = Progress::new(self.runs());
        progress.begin("making the files");
        let mut files = vec![make(&dir.path().join("whole"), bytes, 1)?];
        for &n in &self.extents {
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
        if self.vs.is_some() && !kernel::permitted() {
            outcome.skip("the kernel's swap: turning swap on needs root".into());
        } else if self.vs.is_some() {
            let keeper = keeper.insert(Keeper::start()?);
            for file in files.iter().filter(|f| !f.whole) {
                opponents.push(Opponent::on_file(keeper, &file.path, self.span.memory)?);
            }
        }
        for &tasks in &self.tasks {
            for pair in 1..=self.common.pairs() {
                for file in &files {
                    let run = self.ours(file, tasks, &mut progress)?;
                    outcome
                        .runs
                        .push(run.with("extents", file.extents).with("pair", pair));
                }
                let pieces = files.iter().filter(|f| !f.whole);
                for (file, opponent) in pieces.zip(&opponents) {
                    for &thp in self.kernel_thp.advice() {
                        let keeper = keeper.as_mut().context("the keeper has ended")?;
                        let run = self.theirs(keeper, opponent, thp, tasks, &mut progress)?;
                        outcome
                            .runs
                            .push(run.with("pair", pair).with("extents", file.extents));
                    }
                }
            }
        }
        progress.begin("undoing what was set up");
        opponents.iter().try_for_each(Opponent::check_off)?;
        keeper.map_or(Ok(()), Keeper::close)?;
        drop(progress);
        self.compare(outcome, &files);
        outcome.note("each file was written from start to end before; pieces lie in the order of the file, a block apart from each other");
        Ok(table(&outcome.runs))
    }
}

impl Fragments {
    /// The directory for the files.
    fn dir(&self) -> Result<PathBuf> {
        let dir = match &self.common.swap[..] {
            [] => hugeswap_engine::pool::swap::default_area()?.path,
            [one] => PathBuf::from(one),
            _ => return wrong("--swap: name one directory"),
        };
        match dir.is_dir() {
            true => Ok(dir),
            false => wrong(format!("--swap {} is not a directory", dir.display())),
        }
    }

    fn runs(&self) -> usize {
        let kernel = self.vs.map_or(0, |_| self.kernel_thp.advice().len());
        let each = 1 + self.extents.len() * (1 + kernel);
        self.tasks.len() * each * self.common.pairs() as usize
    }

    fn work(&self, tasks: u32, rounds: u32, verify_one_in: u32) -> Work {
        let region = self.span.region;
        Work {
            region,
            tasks,
            rounds,
            verify_one_in,
            ..Work::default()
        }
    }

    fn ours(&self, file: &Made, tasks: u32, progress: &mut Progress) -> Result<Run> {
        progress.begin(format!("hugeswap, {} extents, {tasks} tasks", file.extents));
        warm_up(self.span.memory, self.common.limit())?;
        let swap = [file.path.display().to_string()];
        let hugeswap = Hugeswap::new(self.span.memory, &swap, &self.common);
        let work = self.work(tasks, self.rounds.rounds, 1);
        let run = hugeswap.run(&work, |l| progress.figure(l))?;
        progress.end();
        Ok(run)
    }

    fn theirs(
        &self,
        keeper: &mut Keeper,
        opponent: &Opponent,
        thp: Thp,
        tasks: u32,
        progress: &mut Progress,
    ) -> Result<Run> {
        let limit = self.common.limit();
        progress.begin(format!("kernel, {tasks} tasks"));
        warm_up(self.span.memory, limit)?;
        let work = self.work(tasks, self.rounds.of_kernel(), KERNEL_VERIFIES_ONE_IN);
        let work = Work { thp, ..work };
        let run = opponent.run(keeper, &work, limit, |l| progress.figure(l))?;
        progress.end();
        Ok(run)
    }

    fn compare(&self, outcome: &mut Outcome, files: &[Made]) {
        let figures = |outcome: &Outcome, label: &str, tasks: u32, extents: u64| {
            let is = |r: &Run| r.params["tasks"] == tasks && r.params["extents"] == extents;
            outcome.figures(label, |r| is(r).then(|| r.steady()))
        };
        let Some((whole, pieces)) = files.split_first() else {
            return;
        };
        for &tasks in &self.tasks {
            let contiguous = figures(outcome, "hugeswap", tasks, whole.extents);
            for file in pieces {
                let n = file.extents;
                let found = figures(outcome, "hugeswap", tasks, n);
                let name = format!("{tasks}_tasks_{n}_extents_vs_contiguous");
                outcome.ratio_of_pairs(&name, &found, &contiguous);
                for (rival, kernel) in outcome.rivals() {
                    let name = format!("{tasks}_tasks_{n}_extents_vs_{kernel}");
                    let theirs = figures(outcome, &rival, tasks, n);
                    outcome.ratio_of_pairs(&name, &found, &theirs);
                }
            }
        }
    }
}

/// Makes a file of so many bytes in so many pieces (for 1, in as few as the file system makes) and
/// writes it.
fn make(path: &Path, bytes: u64, pieces: u64) -> Result<Made> {
    let shown = path.display();
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = options
        .open(path)
        .with_context(|| format!("cannot make {shown}"))?;
    let fd = file.as_raw_fd();
    let taken = (pieces - 1) * PAGE_BYTES;
    fs::allocate(fd, 0, bytes + taken).with_context(|| format!("no space for {shown}"))?;
    let piece = bytes / pieces / PAGE_BYTES * PAGE_BYTES;
    // From the front: each time the file system moves up only the few extents behind.
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
    let (path, whole) = (path.to_owned(), pieces == 1);
    Ok(Made {
        path,
        extents,
        whole,
    })
}

fn table(runs: &[Run]) -> Table {
    let list = |rounds: &[f64]| rounds.iter().map(|n| format!("{n:.0}")).collect::<Vec<_>>();
    Table::of(
        runs,
        &[
            ("engine", &|r| r.label()),
            ("extents", &|r| r.cell("extents")),
            ("tasks", &|r| r.cell("tasks")),
            ("pair", &|r| r.cell("pair")),
            ("write MB/s by round", &|r| list(&r.mb_s).join(" ")),
            ("rounds 2+", &|r| cell(r.steady(), 0)),
            ("s", &|r| cell(r.elapsed_s, 1)),
        ],
    )
}

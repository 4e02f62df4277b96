//! `pagemap`: how fast a region tells what its pages are, against the kernel's /proc/self/pagemap and
//! PAGEMAP_SCAN.

use crate::error::wrong;
use crate::generate::shared::{self, Map};
use crate::generate::words::PAGE;
use crate::options::{Common, Span, check_memory, check_work, pool, swap_specs};
use crate::output::{Benchmark, Outcome, Progress, Table, median, rounded};
use anyhow::{Context, Result, bail};
use hugeswap::{Advice, Filter, ManagedRange};
use hugeswap_support::interrupt::check_interrupted;
use hugeswap_sys::mm::{self, SharedBytes};
use memmap2::MmapMut;
use serde_json::json;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Entries in one call.
const AT_ONCE: usize = 4096;
/// Each way to ask goes over all pages again and again for so long.
const LONG: Duration = Duration::from_millis(200);

// Arguments of `hugeswap bench pagemap`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench pagemap
  hugeswap bench pagemap --region 4G --pairs 5
  hugeswap bench pagemap --shared

Fills a region of this process's own, has it swapped out, and asks what its pages are: entry by entry in the kernel's format, page by page, as
ranges. The kernel is asked the same of the region, of which it knows nothing, and of as much plain memory in base pages.")]
pub struct Pagemap {
    #[command(flatten)]
    span: Span,
    /// A shared region, and plain shared memory.
    #[arg(long)]
    shared: bool,
    #[command(flatten)]
    common: Common,
}

/// The memory that is asked about, and buffers.
struct Asked<'a> {
    region: &'a ManagedRange,
    plain: &'a Map,
    pagemap: File,
    entries: Vec<u64>,
}

/// A way to ask for all pages once. Returns the number of pages in the answers.
type Way = fn(&mut Asked<'_>) -> Result<usize>;

const WAYS: [(&str, Way); 6] = [
    ("region, entries", |a| {
        let mut first = 0;
        loop {
            match a.region.pagemap_entries(first, &mut a.entries)? {
                0 => return Ok(first),
                n => first += n,
            }
        }
    }),
    ("region, page by page", |a| {
        let away = a.region.pagemap().filter(|s| s.swap.is_some()).count();
        Ok(std::hint::black_box(away))
    }),
    ("region, ranges", |a| {
        let found = a.region.scan(0, a.region.len(), &Filter::default())?;
        Ok(found.iter().map(|f| f.range.len() / PAGE).sum())
    }),
    ("kernel, entries of the region", |a| {
        let at = a.region.as_ptr() as usize;
        a.read(at, a.region.len())
    }),
    ("kernel, entries of plain memory", |a| {
        let at = a.plain.as_ptr() as usize;
        a.read(at, a.plain.len())
    }),
    ("kernel, scan of plain memory", |a| {
        let (at, len) = (a.plain.as_ptr() as usize, a.plain.len());
        Ok(mm::present_bytes(a.pagemap.as_raw_fd(), at, at + len)? as usize / PAGE)
    }),
];

impl Asked<'_> {
    fn read(&mut self, at: usize, len: usize) -> Result<usize> {
        let mut done = 0;
        while done < len / PAGE {
            let most = self.entries.len().min(len / PAGE - done);
            let from = at + done * PAGE;
            let entries = &mut self.entries[..most];
            match mm::pagemap(self.pagemap.as_raw_fd(), from, entries)? {
                0 => bail!("/proc/self/pagemap ends early"),
                n => done += n,
            }
        }
        Ok(done)
    }
}

/// Memory that hugeswap does not manage, in base pages.
fn plain_memory(len: usize, is_shared: bool) -> Result<Map> {
    if is_shared {
        let (file, _) = shared::memory_file(len)?;
        let map = SharedBytes::map(file.as_raw_fd(), len).context("cannot map shared memory")?;
        return Ok(Map::File(map));
    }
    let map = MmapMut::map_anon(len).context("cannot map plain memory")?;
    map.advise(memmap2::Advice::NoHugePage)?;
    Ok(Map::Own(map))
}

impl Benchmark for Pagemap {
    const NAME: &'static str = "pagemap";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        if self.common.fault_mode.is_some() {
            return wrong("--fault-mode is not for this one: nothing faults while it measures");
        }
        check_memory(self.span.memory)?;
        check_work(self.span.region, 1, 1, 1)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let swap = swap_specs(&self.common.swap)?;
        let pool = pool(self.span.memory, swap, &self.common.set).build()?;
        let len = self.span.region as usize;
        let pages = len / PAGE;
        let mut progress = Progress::new(1 + self.common.pairs() as usize);
        progress.begin("writing memory, and having it swapped out");
        let number = |page: usize| (page as u64 + 1).to_ne_bytes();
        let (private, shared);
        let region: &ManagedRange = match self.shared {
            true => {
                shared = pool.shared(len, "bench")?;
                for at in (0..len).step_by(PAGE) {
                    shared.write_at(at, &number(at / PAGE))?;
                }
                &shared
            }
            false => {
                let mut r = pool.region(len)?;
                for (n, page) in r.as_mut_slice().chunks_exact_mut(PAGE).enumerate() {
                    page[..8].copy_from_slice(&number(n));
                }
                private = r;
                &private
            }
        };
        let start = Instant::now();
        let pages_at = (0..len).step_by(PAGE);
        while pages_at.clone().any(|at| region.is_resident(at)) {
            check_interrupted()?;
            if start.elapsed() > self.common.limit() {
                bail!("memory was not swapped out within --timeout");
            }
            region.advise(0, region.len(), Advice::PageOut)?;
        }
        let mut plain = plain_memory(len, self.shared)?;
        plain.iter_mut().step_by(PAGE).for_each(|b| *b = 1);
        progress.end();
        let mut asked = Asked {
            region,
            plain: &plain,
            pagemap: File::open("/proc/self/pagemap").context("/proc/self/pagemap")?,
            entries: vec![0; AT_ONCE],
        };
        let mut found = vec![Vec::new(); WAYS.len()];
        for pair in 1..=self.common.pairs() {
            progress.begin(format!("pair {pair}"));
            for ((name, way), rates) in WAYS.iter().zip(&mut found) {
                let (start, mut answered) = (Instant::now(), 0);
                while start.elapsed() < LONG {
                    check_interrupted()?;
                    let n = way(&mut asked)?;
                    if n != pages {
                        bail!("{name}: {n} of {pages} pages");
                    }
                    answered += n;
                }
                rates.push(answered as f64 / start.elapsed().as_secs_f64());
            }
            progress.end();
        }
        drop(progress);
        let mut table = Table::new(&["who", "million pages/s"]);
        let mut rows = Vec::new();
        for ((name, _), rates) in WAYS.iter().zip(&found) {
            let rate = median(rates);
            table.row(vec![(*name).into(), format!("{:.1}", rate / 1e6)]);
            rows.push(json!({ "who": name, "pages_s": rounded(rate, 0) }));
        }
        outcome.add("rates", rows);
        for (name, a, b) in [
            ("entries_vs_kernel_of_plain_memory", 0, 4),
            ("entries_vs_kernel_of_the_region", 0, 3),
            ("ranges_vs_kernel_of_plain_memory", 2, 4),
            ("ranges_vs_kernel_scan", 2, 5),
        ] {
            outcome.ratio_of_pairs(name, &found[a], &found[b]);
        }
        outcome.note("all pages of the region are in swap: the kernel sees nothing there; plain memory is in memory, in base pages");
        Ok(table)
    }
}

//! `pagemap`: how fast a region tells what its pages are, against the kernel's /proc/self/pagemap and PAGEMAP_SCAN.

use super::args::Pagemap;
use super::output::{self, Outcome, Progress, Table, rounded};
use super::runner::median;
use super::together::{self, Map};
use anyhow::{Context, Result, bail};
use hugeswap::{Advice, Filter, ManagedRange, Pool, SwapSpec};
use hugeswap_policy::PAGE_BYTES;
use hugeswap_support::interrupt::check_interrupted;
use hugeswap_sys::mm::{self, SharedBytes};
use memmap2::MmapMut;
use serde_json::json;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const PAGE: usize = PAGE_BYTES as usize;
/// Entries taken at a time.
const AT_ONCE: usize = 4096;
/// Each way of asking goes over all pages again and again for so long.
const LONG: Duration = Duration::from_millis(200);

/// Runs it.
pub fn run(args: &Pagemap) -> Result<()> {
    args.check()?;
    output::measured("pagemap", args.common.json, |outcome| {
        measure(args, outcome)
    })
}

/// What is asked, and how.
struct Asked<'a> {
    region: &'a ManagedRange,
    plain: &'a Map,
    pagemap: File,
    entries: Vec<u64>,
}

/// A way of asking for all pages once; how many pages it told of.
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

/// Memory that hugeswap knows nothing of, to be in base pages.
fn plain_memory(len: usize, shared: bool) -> Result<Map> {
    if shared {
        let (file, _) = together::memory_file(len)?;
        let map = SharedBytes::map(file.as_raw_fd(), len).context("cannot map shared memory")?;
        return Ok(Map::File(map));
    }
    let map = MmapMut::map_anon(len).context("cannot map plain memory")?;
    map.advise(memmap2::Advice::NoHugePage)?;
    Ok(Map::Own(map))
}

fn measure(args: &Pagemap, outcome: &mut Outcome) -> Result<Table> {
    let mut builder = Pool::builder().memory(args.span.memory);
    for text in &args.common.swap {
        let spec = SwapSpec::parse(text).map_err(|e| anyhow::anyhow!("--swap {text}: {e}"))?;
        builder = builder.swap_area(spec);
    }
    for setting in &args.common.set {
        builder = builder.set(setting);
    }
    let pool = builder.build()?;
    let pages = (args.span.region / PAGE_BYTES) as usize;
    let mut progress = Progress::new(1 + u64::from(args.common.pairs()));
    progress.begin("writing memory, and having it swapped out");
    let len = args.span.region as usize;
    let number = |page: usize| (page as u64 + 1).to_ne_bytes();
    let (private, shared);
    let region: &ManagedRange = match args.shared {
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
    while (0..region.len())
        .step_by(PAGE)
        .any(|at| region.is_resident(at))
    {
        check_interrupted()?;
        if start.elapsed() > args.common.limit() {
            bail!("memory would not leave within --timeout");
        }
        region.advise(0, region.len(), Advice::PageOut)?;
    }
    let mut plain = plain_memory(len, args.shared)?;
    plain.iter_mut().step_by(PAGE).for_each(|b| *b = 1);
    progress.end();
    let mut asked = Asked {
        region,
        plain: &plain,
        pagemap: File::open("/proc/self/pagemap").context("/proc/self/pagemap")?,
        entries: vec![0; AT_ONCE],
    };
    let mut found = vec![Vec::new(); WAYS.len()];
    for pair in 1..=args.common.pairs() {
        progress.begin(format!("pair {pair}"));
        for ((name, way), rates) in WAYS.iter().zip(&mut found) {
            let (start, mut told) = (Instant::now(), 0);
            while start.elapsed() < LONG {
                check_interrupted()?;
                let n = way(&mut asked)?;
                if n != pages {
                    bail!("{name}: {n} of {pages} pages");
                }
                told += n;
            }
            rates.push(told as f64 / start.elapsed().as_secs_f64());
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
    outcome.more.insert("rates".into(), rows.into());
    for (name, a, b) in [
        ("entries_vs_kernel_of_plain_memory", 0, 4),
        ("entries_vs_kernel_of_the_region", 0, 3),
        ("ranges_vs_kernel_of_plain_memory", 2, 4),
        ("ranges_vs_kernel_scan", 2, 5),
    ] {
        outcome.ratio_of_pairs(name, &found[a], &found[b]);
    }
    outcome.notes.push("all pages of the region are in swap: the kernel sees nothing there; plain memory is in memory, in base pages".into());
    Ok(table)
}

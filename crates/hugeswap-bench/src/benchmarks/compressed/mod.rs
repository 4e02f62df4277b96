//! `compressed`: how short pages become by each codec, and how long that takes: of data of known kinds, or of a
//! program's memory.

mod sample;

use crate::error::within;
use crate::generate::kinds::{self, Bytes};
use crate::options::size;
use crate::output::{Benchmark, Outcome, Progress, Table, cell, median, percent, rounded};
use anyhow::{Context, Result, bail};
use hugeswap_engine::{Compressor, Made, Most};
use hugeswap_policy::zswap::codec::Codec;
use hugeswap_support::interrupt::check_interrupted;
use hugeswap_support::text;
use serde_json::json;
use std::time::Duration;

const PAGE: u64 = hugeswap_policy::PAGE_BYTES;
/// Pages between two looks for a request to stop.
const AT_ONCE: usize = 256;

// Arguments of `hugeswap bench compressed`.
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap bench compressed
  hugeswap bench compressed --sample 64M -- sort -S 400M -o /dev/null lines.txt
  hugeswap bench swap-rand --compressible 3 --device mem --vs kernel   (beside zram)

Pages are compressed one by one, as in compressed memory, by one thread. A page is short enough if its block takes five eighths of it or less (without
a disk: seven eighths); others stay as they are. \"times shorter\" is of those that are short enough, \"in all\" of all pages.
PROG runs once without hugeswap; its memory is read from /proc when it has most.")]
pub struct Compressed {
    /// Data of each kind, or of PROG's memory
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = size)]
    sample: u64,
    /// A page is short enough if its block takes seven eighths of it, as without a disk
    #[arg(long)]
    without_disk: bool,
    /// How often all of it is measured
    #[arg(long, value_name = "N", default_value_t = 2)]
    pairs: u32,
    /// Seconds after which PROG is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// A program and its arguments
    #[arg(last = true, value_name = "PROG")]
    program: Vec<String>,
}

/// Bytes that a program has at least, if its memory says anything of its data.
const LEAST: u64 = 1 << 20;

impl Benchmark for Compressed {
    const NAME: &'static str = "compressed";

    fn check(&self) -> Result<()> {
        within("--pairs", [self.pairs], 1..=100)?;
        within("--timeout", [self.timeout], 1..=86_400)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let pages = (self.sample / PAGE) as usize;
        let data: Vec<(String, Vec<Bytes>)> = match self.program.first() {
            None => kinds::all(pages).map(|(n, p)| (n.into(), p)).collect(),
            Some(name) => {
                let mut progress = Progress::new(1);
                progress.begin(format!("{name} runs"));
                let limit = Duration::from_secs(self.timeout);
                let found = sample::of_program(&self.program, pages, limit)?;
                progress.end();
                // (So little is what every program has at its start.)
                if found.pages.is_empty() || found.of < LEAST {
                    bail!("{name} ended before its memory could be read: give it more to do");
                }
                outcome.note(format!(
                    "{} pages of the {} that the largest process of {name} had",
                    found.pages.len(),
                    text::bytes(found.of)
                ));
                vec![(name.clone(), found.pages)]
            }
        };
        let mut compressor = Compressor::new().context("no memory for the decoders")?;
        let mut progress = Progress::new(data.len() * self.pairs as usize);
        let mut table = Table::new(&[
            "data",
            "by",
            "short enough, %",
            "times shorter",
            "in all",
            "in, us",
            "out, us",
        ]);
        let mut rows = Vec::new();
        for (name, pages) in &data {
            let mut found: [Vec<Made>; 3] = Default::default();
            for pair in 1..=self.pairs {
                progress.begin(format!("{name}, {pair}"));
                for (by, found) in Codec::ALL.into_iter().zip(&mut found) {
                    found.push(self.all(&mut compressor, by, pages)?);
                }
                progress.end();
            }
            for (by, found) in Codec::ALL.into_iter().zip(&found) {
                let last = found.last().context("one pair at least")?;
                let all = pages.len() * PAGE as usize;
                let left = (pages.len() - last.short) * PAGE as usize;
                let times = |d: fn(&Made) -> Duration, n: usize| {
                    let us: Vec<_> = found.iter().map(|f| d(f).as_secs_f64() * 1e6).collect();
                    (n > 0).then(|| median(&us) / n as f64)
                };
                let share = last.short as f64 / pages.len() as f64;
                let shorter =
                    (last.short > 0).then(|| (last.short * PAGE as usize) as f64 / last.len as f64);
                let in_all = all as f64 / (last.len + left) as f64;
                let (into, out) = (times(|f| f.into, pages.len()), times(|f| f.out, last.short));
                table.row(vec![
                    name.clone(),
                    by_name(by).into(),
                    percent(share, 0),
                    cell(shorter, 1),
                    cell(in_all, 2),
                    cell(into, 1),
                    cell(out, 1),
                ]);
                let number = |n: Option<f64>| n.map(|n| rounded(n, 3));
                rows.push(json!({
                    "data": name, "by": by_name(by), "pages": pages.len(), "short_share": rounded(share, 4),
                    "times_shorter": number(shorter), "times_shorter_in_all": rounded(in_all, 3),
                    "compress_us": number(into), "decompress_us": number(out),
                }));
            }
        }
        outcome.add("codecs", rows);
        Ok(table)
    }
}

impl Compressed {
    /// Compresses and decompresses all pages once.
    fn all(&self, compressor: &mut Compressor, by: Codec, pages: &[Bytes]) -> Result<Made> {
        let most = match self.without_disk {
            true => Most::WithoutDevice,
            false => Most::BesideDevice,
        };
        let mut made = Made::default();
        for some in pages.chunks(AT_ONCE) {
            check_interrupted()?;
            compressor.go_over(some, by, most, &mut made);
        }
        if made.wrong > 0 {
            let by = by_name(by);
            bail!("{by} did not give {} pages back as they were", made.wrong);
        }
        Ok(made)
    }
}

fn by_name(by: Codec) -> &'static str {
    match by {
        Codec::Lz4 => "lz4",
        Codec::ZstdFast => "zstd-fast",
        Codec::Zstd => "zstd",
    }
}

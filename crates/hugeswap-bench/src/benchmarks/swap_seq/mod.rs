//! `swap-seq`: tasks write a range from start to end, again and again, in less memory than it takes.

mod ceiling;

use crate::engines::turns::{Engine, KERNEL_VERIFIES_ONE_IN, Turns};
use crate::error::wrong;
use crate::generate::plan::Work;
use crate::options::{
    self, Against, Common, Device, FaultMode, Rounds, Span, check_memory, check_work,
};
use crate::output::{Benchmark, Outcome, Progress, Run, Table, cell, gib, median, percent};
use anyhow::{Context, Result};
use ceiling::Ceiling;
use std::path::PathBuf;

/// Read rounds of `--read-only-pass`; the first still writes out dirty memory.
const READ_ROUNDS: u32 = 3;
/// The largest size of each of the two files of a ceiling.
const CEILING_BYTES: u64 = 512 << 20;

// Arguments of `hugeswap bench swap-seq`.
#[derive(clap::Args)]
#[command(after_help = format!("\
EXAMPLES:
  hugeswap bench swap-seq --region 1200M --memory 600M --tasks 2
  hugeswap bench swap-seq --vs kernel --read-only-pass --ceiling
  hugeswap bench swap-seq --vs kernel --device /var/tmp
  hugeswap bench swap-seq --shared --tasks 2 --read-only-pass

{}", options::HELP))]
pub struct SwapSeq {
    #[command(flatten)]
    span: Span,
    /// Processes, each with its share of the region
    #[arg(long, value_name = "N", default_value_t = 1)]
    tasks: u32,
    /// Threads of each process
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u32,
    #[command(flatten)]
    rounds: Rounds,
    /// After writing, read it all three times, writing nothing
    #[arg(long)]
    read_only_pass: bool,
    /// The processes share the region: each writes its part, and reads the next one's
    #[arg(long)]
    shared: bool,
    #[command(flatten)]
    against: Against,
    /// Measure what the device can do, before each pair of runs
    #[arg(long)]
    ceiling: bool,
    #[command(flatten)]
    common: Common,
}

impl Benchmark for SwapSeq {
    const NAME: &'static str = "swap-seq";

    fn check(&self) -> Result<()> {
        self.common.check()?;
        check_work(
            self.span.region,
            self.tasks,
            self.threads,
            self.rounds.rounds,
        )?;
        self.rounds.check()?;
        check_memory(self.span.memory)?;
        if self.shared && self.common.fault_mode == Some(FaultMode::Message) {
            return wrong("--shared is not there in message mode: leave --fault-mode out");
        }
        self.against.check()?;
        self.device().map(drop)
    }

    fn measure(&self, outcome: &mut Outcome) -> Result<Table> {
        let ceiling_bytes = 2 * self.span.region.min(CEILING_BYTES) * u64::from(self.ceiling);
        let device = (self.device()?, ceiling_bytes);
        let mut turns = Turns::set_up(&self.span, &self.against, &self.common, device, outcome)?;
        let engines = turns.engines();
        let mut progress = Progress::new(turns.pairs() as usize * engines.len());
        let mut ceilings = Vec::new();
        for pair in 1..=turns.pairs() {
            for (n, engine) in engines.iter().enumerate() {
                let work = self.work(engine);
                // Before and after: the load of the machine changes what the device can do.
                if n == 0 {
                    ceilings.extend(self.ceiling(&turns, &mut progress)?);
                }
                let run = turns.run(engine, &work, (pair, ""), &mut progress)?;
                outcome.runs.push(run);
                if n == 0 {
                    ceilings.extend(self.ceiling(&turns, &mut progress)?);
                }
            }
        }
        turns.close(&mut progress)?;
        drop(progress);
        compare(outcome);
        compare_ceilings(outcome, &ceilings)?;
        if engines.iter().any(|e| matches!(e, Engine::Kernel(_))) {
            let verified = if self.read_only_pass {
                "every word verified in the read rounds".to_owned()
            } else {
                format!("one huge page in {KERNEL_VERIFIES_ONE_IN} verified (hugeswap: every word)")
            };
            let rounds = self.rounds.of_kernel();
            outcome.note(format!(
                "the kernel's runs: {rounds} rounds, the fill included; {verified}"
            ));
        }
        Ok(table(&outcome.runs))
    }
}

impl SwapSeq {
    /// Where to swap; a ceiling needs a device that is known.
    fn device(&self) -> Result<Device> {
        match self.against.device(&self.common, self.ceiling)? {
            Device::Default if self.ceiling => {
                wrong("--ceiling needs to know the device: add --device ram or --device DIR")
            }
            device => Ok(device),
        }
    }

    /// What the device can do, if that is asked for.
    fn ceiling(&self, turns: &Turns, progress: &mut Progress) -> Result<Option<Ceiling>> {
        let (true, Some(dir)) = (self.ceiling, turns.dir()) else {
            return Ok(None);
        };
        progress.begin(format!("{}: what the device can do", dir.display()));
        let measured = ceiling::measure(dir, self.span.region.min(CEILING_BYTES));
        measured.context("--ceiling").map(Some)
    }

    fn work(&self, engine: &Engine) -> Work {
        let rounds = match engine {
            Engine::Hugeswap { .. } => self.rounds.rounds,
            Engine::Kernel(_) => self.rounds.of_kernel(),
        };
        // Read rounds verify every word.
        let (read_rounds, verify_one_in) = match self.read_only_pass {
            true => (READ_ROUNDS, 0),
            false => (0, engine.verify_one_in()),
        };
        Work {
            region: self.span.region,
            tasks: self.tasks,
            threads: self.threads,
            rounds,
            read_rounds,
            verify_one_in,
            // The worker finds out where it is.
            shared: self.shared.then(PathBuf::new),
            ..Work::default()
        }
    }
}

fn compare(outcome: &mut Outcome) {
    for (rival, name) in outcome.rivals() {
        let mut over = |what: &str, f: fn(&Run) -> f64| {
            let name = format!("{what}_vs_{name}");
            outcome.compare(&name, "hugeswap", &rival, |r| Some(f(r)));
        };
        over("write", Run::steady);
        over("read", Run::steady_read);
    }
}

fn compare_ceilings(outcome: &mut Outcome, ceilings: &[Ceiling]) -> Result<()> {
    if ceilings.is_empty() {
        return Ok(());
    }
    let middle = |f: fn(&Ceiling) -> f64| median(&ceilings.iter().map(f).collect::<Vec<_>>());
    let c = Ceiling {
        read_mb_s: middle(|c| c.read_mb_s),
        write_mb_s: middle(|c| c.write_mb_s),
        mixed_mb_s: middle(|c| c.mixed_mb_s),
    };
    outcome.note(format!(
        "the device, in whole huge pages, direct: reads {:.0}, writes {:.0}, both at once {:.0} MB/s",
        c.read_mb_s, c.write_mb_s, c.mixed_mb_s
    ));
    outcome.add("ceiling", serde_json::to_value(c)?);
    let of = |f: &dyn Fn(&Run) -> Option<f64>| outcome.figures("hugeswap", f);
    let traffic = of(&|r| Some(r.steady() * traffic(r)? / c.mixed_mb_s));
    let reads = of(&|r| Some(r.steady_read() / c.read_mb_s));
    let writes = of(&|r| Some(r.steady() / c.mixed_mb_s));
    outcome.median_ratio("write_traffic_vs_mixed_ceiling", &traffic);
    if median(&reads) > 0.0 {
        outcome.median_ratio("read_vs_read_ceiling", &reads);
    }
    outcome.median_ratio("write_vs_mixed_ceiling", &writes);
    Ok(())
}

/// Bytes moved in or out for each byte written, in the rounds after the fill. Every pass but the first
/// reads from swap. What a round wrote is written out once, in that round or in the next pass.
fn traffic(run: &Run) -> Option<f64> {
    let bytes = |name: &str| Some(run.counter(name)? * 4096.0 / run.number("region_bytes")?);
    let writes = run.mb_s.len() as f64;
    // The reads at the end are the verification, or the read rounds, which verify.
    let reads = run.read_mb_s.len().max(1) as f64;
    Some(bytes("pswpin")? / (writes - 1.0 + reads) + bytes("pswpout")? / writes)
}

fn table(runs: &[Run]) -> Table {
    let list = |rounds: &[f64]| match rounds {
        [] => "-".to_owned(),
        _ => rounds
            .iter()
            .map(|n| format!("{n:.0}"))
            .collect::<Vec<_>>()
            .join(" "),
    };
    Table::of(
        runs,
        &[
            ("engine", &|r| r.label()),
            ("pair", &|r| r.cell("pair")),
            ("tasks", &|r| r.cell("tasks")),
            ("write MB/s by round", &|r| list(&r.mb_s)),
            ("rounds 2+", &|r| cell(r.steady(), 0)),
            ("read MB/s", &|r| list(&r.read_mb_s)),
            ("huge %", &|r| percent(r.huge_share, 1)),
            ("swapped in GiB", &|r| gib(r.counter("pswpin"))),
            ("out GiB", &|r| gib(r.counter("pswpout"))),
            ("s", &|r| cell(r.elapsed_s, 1)),
        ],
    )
}

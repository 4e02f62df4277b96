//! Arguments of `swap-rand --table`: which cells there are.

use super::{UNIT, wrong};
use crate::pattern::Pattern;
use std::path::PathBuf;

// What `--table` takes besides.
#[derive(clap::Args)]
pub struct TableArgs {
    /// Zipf for every --thetas, --ratios and --threads, with refault distances looked at and not
    #[arg(long, conflicts_with_all = ["region", "pattern", "theta", "clustered", "accesses", "tasks"])]
    pub table: bool,
    /// Skews of the table
    #[arg(long, requires = "table", value_name = "THETA,...", value_delimiter = ',', default_values_t = [0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3])]
    pub thetas: Vec<f64>,
    /// Regions of the table, in times --memory
    #[arg(long, requires = "table", value_name = "N,...", value_delimiter = ',', default_values_t = [0.5, 1.0, 1.5, 2.0])]
    pub ratios: Vec<f64>,
    /// Draw the table
    #[arg(long, requires = "table", value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    pub theta: f64,
    pub ratio: f64,
    pub threads: u32,
}

impl Cell {
    /// How its pages are chosen.
    pub fn pattern(self) -> Pattern {
        Pattern::Zipf {
            theta: self.theta,
            clustered: false,
        }
    }

    /// What its threads use.
    pub fn region(self, memory: u64) -> u64 {
        (memory as f64 * self.ratio) as u64 / UNIT * UNIT
    }
}

impl TableArgs {
    /// All cells: by threads, then ratio, then theta.
    pub fn cells(&self, threads: &[u32]) -> Vec<Cell> {
        let mut cells = Vec::new();
        for &threads in threads {
            for &ratio in &self.ratios {
                for &theta in &self.thetas {
                    cells.push(Cell {
                        theta,
                        ratio,
                        threads,
                    });
                }
            }
        }
        cells
    }

    /// Bounds.
    pub fn check(&self) -> anyhow::Result<()> {
        if !self.thetas.iter().all(|t| (0.1..=1.3).contains(t)) {
            return wrong("--thetas must be from 0.1 to 1.3".into());
        }
        if !self.ratios.iter().all(|r| (0.01..=100.0).contains(r)) {
            return wrong("--ratios must be from 0.01 to 100".into());
        }
        super::check_plot(self.plot.as_deref())
    }
}

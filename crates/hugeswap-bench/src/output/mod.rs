//! What a benchmark prints. From the ground up: `numbers`, `table`, `progress`, `bars`, `plot`,
//! `figures` (one phase), `run` (one run of an engine), `outcome` (everything, as JSON or as a table).

mod bars;
pub mod figures;
mod numbers;
mod outcome;
pub mod plot;
mod progress;
mod run;
mod table;

pub use bars::Bars;
pub use numbers::{cell, gib, median, percent, rounded};
pub use outcome::{Benchmark, Outcome, run, save_chart};
pub use progress::Progress;
pub use run::Run;
pub use table::Table;

//! Other projects' own tests under `hugeswap run`: each must come out as it does without (docs/testing.md).
//!
//! `cargo test -p hugeswap-cli --test suites` runs a slice; with HUGESWAP_TEST_SUITES=all everything, and with
//! HUGESWAP_TEST_SUITES=cpython (or others) all of that suite. Programs, budgets and modes
//! are those of tests/programs, as is how a case runs: in a process group of its own, with a limit against hangs.

mod compare;
mod cpython;
mod glibc;
#[path = "../programs/harness.rs"]
mod harness;
mod redis;
mod source;
mod sqlite;
mod stress;
#[allow(dead_code, reason = "tests/programs uses all of it")]
#[path = "../programs/util.rs"]
mod util;

use std::time::Duration;

fn main() {
    let all = [
        cpython::cases(),
        stress::cases(),
        sqlite::cases(),
        redis::cases(),
        glibc::cases(),
    ]
    .into_iter()
    .flatten()
    .collect();
    // For hangs only: each run has a limit of its own.
    let minutes = if compare::any_whole() { 240 } else { 10 };
    harness::main(all, Duration::from_secs(60 * minutes));
}

//! Options that several benchmarks take, and the checks of them that run nothing. From the ground up:
//! `common`, `against`.

mod against;
mod common;

pub use against::{Against, Device, HELP, KernelThp, Opponent};
pub use common::{
    Access, Common, FaultMode, Named, Rounds, Span, check_memory, check_theta, check_work, pool,
    size, swap_specs, threads_in_words,
};

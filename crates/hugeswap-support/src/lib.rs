//! What the command line and the benchmarks share, and neither owns: numbers as people read them
//! ([`text`]), charts ([`chart`]), random numbers ([`random`]), the request to stop
//! ([`interrupt`]), what panics say ([`mod@panic`]), other processes as `/proc` shows them ([`proc`])
//! and control groups ([`cgroup`]). It imports nothing of hugeswap.
#![forbid(unsafe_code)]

pub mod cgroup;
pub mod chart;
pub mod interrupt;
pub mod panic;
pub mod proc;
pub mod random;
pub mod text;

/// Environment variable that names the pool of a process that `hugeswap run` starts:
/// `PID:DESCRIPTOR` of the pool's segment.
pub const POOL_VARIABLE: &str = "HUGESWAP_POOL";
/// Its value in a process that is to have no pool.
pub const WITHOUT_POOL: &str = "none";
/// Names the program that the injected object is to load, in this executable: a statically linked one.
pub const PROGRAM_VARIABLE: &str = "HUGESWAP_PROGRAM";
/// `off`: the injected object leaves statically linked programs to the kernel that a dynamically linked one starts.
pub const STATIC_VARIABLE: &str = "HUGESWAP_STATIC";

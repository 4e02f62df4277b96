//! Real programs, plain and under `hugeswap run` with a fraction of the memory they use: what they
//! print, the files they write and their exit status must be the same, to the byte, and swapping
//! must really have happened.
//!
//! Each case runs in a process group of its own with a time limit. A case that cannot run here
//! prints why and counts as passed; with HUGESWAP_TESTS_COMPLETE=1 in the environment a missing
//! tool is a failure (`.ci/install` installs what is needed).

mod addresses;
mod allocators;
mod attached;
mod c;
mod compiler;
mod debugger;
mod harness;
mod limited;
mod limits;
mod loaded;
mod python;
mod runtimes;
mod sandbox;
mod small;
mod snmalloc;
mod sort;
mod threads;
mod unmanaged;
mod util;
mod whole;

use std::time::Duration;
use util::Case;

/// Time limit of a case. It is for hangs only: a case takes a minute if every page is read by
/// itself, and several while other work uses the disk.
const LIMIT: Duration = Duration::from_secs(400);

fn all() -> Vec<Case> {
    // (Those with the longest cases first, so that no processor waits for the last one.)
    [
        python::cases(),
        c::cases(),
        addresses::cases(),
        small::cases(),
        sort::cases(),
        compiler::cases(),
        runtimes::cases(),
        sandbox::cases(),
        limited::cases(),
        limits::cases(),
        loaded::cases(),
        unmanaged::cases(),
        debugger::cases(),
        allocators::cases(),
        attached::cases(),
        threads::cases(),
        whole::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn main() {
    harness::main(all(), LIMIT);
}

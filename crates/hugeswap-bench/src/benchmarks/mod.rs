//! The benchmarks. Each is one file or folder, with its options, and names no other.

pub mod advisor;
pub mod ageing;
pub mod chaos;
pub mod compressed;
pub mod defrag;
pub mod extents;
pub mod faults;
pub mod fit;
pub mod fragments;
pub mod mixed;
pub mod pagemap;
pub mod program;
pub mod swap_rand;
pub mod swap_seq;
pub mod tracking;
pub mod workingset;

//! Runs of the engines, alone ([`hugeswap`]) and in turn ([`turns`]).

pub mod hugeswap;
pub mod turns;

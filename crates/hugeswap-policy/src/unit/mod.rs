//! A unit of 2 MiB: what it is ([`Word`]), where its bytes lie ([`Place`]), and how threads agree on who may change it ([`lock`]).

pub mod lock;
mod place;
mod word;

pub use place::{FilePlace, MAPPING_UNITS, MAPPINGS, Place};
pub use word::*;

//! A unit of 2 MiB: what it is ([`Word`]), where its bytes lie ([`Place`]), how threads agree on
//! which of them may change it ([`lock`]), and what it becomes ([`step`]).

pub mod lock;
mod place;
mod state;
pub mod step;
mod word;

pub use place::{FilePlace, MAPPING_UNITS, MAPPINGS, Place};
pub use state::State;
pub use word::*;

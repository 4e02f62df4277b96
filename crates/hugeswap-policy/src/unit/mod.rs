//! A unit of 2 MiB: what it is ([`Word`]), and how threads agree on who may change it ([`lock`]).

pub mod lock;
mod word;

pub use word::*;

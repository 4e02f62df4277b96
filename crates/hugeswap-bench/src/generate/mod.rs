//! The programs that are measured, and what they generate: the order of pages
//! ([`pattern`] with [`zipf`], [`steps`]), the contents of memory ([`words`], [`versions`]), and the
//! worker that maps memory and goes through a [`plan`].
//!
//! From the ground up: `words`, `zipf`, `pattern`, `steps`, `plan`, `played`, `versions`,
//! `job`, `phases`, `shared`, `memory`, `worker`.

mod job;
mod memory;
pub mod pattern;
mod phases;
pub mod plan;
pub mod played;
pub mod shared;
pub mod steps;
mod versions;
pub mod words;
pub mod worker;
mod zipf;

//! The programs that are measured, and what they generate: the order of pages
//! ([`pattern`] with [`zipf`], [`steps`]), the contents of memory ([`words`], [`versions`], [`kinds`]), and the
//! worker that maps memory and goes through a [`plan`].
//!
//! From the ground up: `words`, `kinds`, `zipf`, `pattern`, `steps`, `plan`, `played`, `versions`,
//! `job`, `phases`, `shared`, `memory`, `worker`.

mod job;
pub mod kinds;
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

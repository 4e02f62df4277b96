//! A unit of shared memory: one [`Word`] in the segment of the pool, the same for every process
//! that maps the unit, and what the unit becomes ([`step`](mod@step)).
//!
//! The word is locked as that of a private unit is ([`lock`](crate::unit::lock)). A locked word
//! names its [`Holder`]: a process, and what that process is doing ([`Op`]). If the process dies,
//! another one takes the lock over and carries on from what the op says. The op [`Op::Out`] alone
//! may also be displaced while its process lives: until it has become [`Op::Punch`], nothing is
//! lost by that.

pub mod step;
mod word;

pub use word::*;

//! What a slow or failing swap device makes the engine do.
//!
//! * [`wbt`]: how fast writes go while reads of the same device are slow
//! * [`poll`]: whether a thread polls for a read or sleeps
//! * [`retry`]: when a transfer that failed is tried again
//! * [`breaker`]: when a device that fails is not asked any more
//! * [`faulty`]: faults to inject, for tests

pub mod breaker;
pub mod faulty;
pub mod poll;
pub mod retry;
pub mod wbt;

//! SIGINT, SIGTERM and SIGHUP as a request to stop, which loops that wait check.

use anyhow::{Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The user asked to stop: exit status 128 + SIGINT.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// From here on the three signals no longer end this process; [`check_interrupted`] reports them.
pub fn watch_signals() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let flag = REQUESTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag))
            .context("cannot watch for signals")?;
    }
    Ok(())
}

/// What has arrived so far asks for nothing any more.
pub fn forget_interrupt() {
    if let Some(flag) = REQUESTED.get() {
        flag.store(false, Ordering::Relaxed);
    }
}

/// [`Interrupted`] once one of the signals has arrived.
pub fn check_interrupted() -> Result<()> {
    match REQUESTED.get() {
        Some(flag) if flag.load(Ordering::Relaxed) => Err(Interrupted.into()),
        _ => Ok(()),
    }
}

//! Message mode: threads that read faults from the userfaultfd and resolve them by the same fault
//! path.
//!
//! The kernel's own touches of managed memory work, since the kernel waits for the page. A thread
//! that faulted is woken only after the engine is done with its unit and out of the gate, because a
//! fork may be the next thing that it does.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::fault::complain;
use crate::outcome::Outcome;
use hugeswap_policy::unit::Kind;
use hugeswap_sys::{Errno, fs, process, uffd};
use std::sync::atomic::Ordering::Acquire;

/// More than one, so that a fault that waits for a device does not hold up the others.
const THREADS: usize = 4;

pub(crate) fn start(engine: &'static Engine) -> Result<(), EngineError> {
    let window = engine.table.window();
    let registered = engine.backend.register_window(window.start, window.len());
    registered
        .map_err(|e| EngineError::System("cannot register managed memory with userfaultfd", e))?;
    for i in 0..THREADS {
        engine.spawn(&format!("hs-fault/{i}"), move || serve(engine))?;
    }
    Ok(())
}

fn serve(engine: &'static Engine) {
    let _ = engine.take_private_descriptors();
    let fd = engine.backend.messages();
    while !engine.stopping.load(Acquire) {
        // Waits with a limit, so that a stop is noticed.
        if !fs::wait_readable(fd, 200) {
            continue;
        }
        let mut m = [uffd::Message::default()];
        match uffd::read(fd, &mut m) {
            Ok(1) if m[0].event == uffd::EVENT_PAGEFAULT => one(engine, &m[0]),
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

fn one(engine: &'static Engine, m: &uffd::Message) {
    let addr = m.address as usize;
    let write = m.flags & (uffd::FLAG_WRITE | uffd::FLAG_WP) != 0;
    let page = addr & !4095;
    let (outcome, refused) = engine.gate.on_behalf_of(m.thread(), || {
        let outcome = engine.fault(addr, write);
        (outcome, outcome.is_lost() && engine.refuse_page(page))
    });
    // The toucher of what is not mapped gets SIGSEGV, as without us.
    let is_error = matches!(outcome, Outcome::NotOurs | Outcome::Free);
    if outcome != Outcome::Retry && !(is_error && engine.fence(addr, write)) {
        complain(engine, addr, outcome);
        // And SIGBUS otherwise.
        let refused = refused || !outcome.is_lost() && engine.backend.refuse(page).is_ok();
        if !refused && m.thread() > 0 {
            // The kernel marks no page: it would come here again and again.
            let _ = process::signal_thread(m.thread(), libc::SIGBUS);
        }
    }
    engine.backend.wake(page);
}

impl Engine {
    /// Has touches of a page be SIGBUS, if it is absent; false if the kernel does not do that.
    /// Under its unit's lock: a thread that moves a frame into place may be between taking the old
    /// one away and putting the new one there, and what it moves cannot go where a page is marked.
    fn refuse_page(&self, page: usize) -> bool {
        let Some(unit) = self.table.unit_of(page) else {
            return true;
        };
        let _inside = self.gate.enter();
        let w = self.table.lock(unit);
        let refused = w.kind() == Kind::Present || self.backend.refuse(page).is_ok();
        w.settle();
        refused
    }
}

//! Message mode: threads that read faults from the userfaultfd and resolve them by the same
//! fault path. The kernel's own touches of managed memory work, since it waits for the page.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::fault::Outcome;
use hugeswap_policy::unit::Kind;
use hugeswap_sys::{Errno, fs, process, uffd};
use std::sync::atomic::Ordering::Acquire;

/// More than one, so that a fault that waits for a device does not hold up the others.
const THREADS: usize = 4;

pub(crate) fn start(engine: &'static Engine) -> Result<(), EngineError> {
    let (base, len) = engine.table.window();
    uffd::register(
        engine.uffd(),
        base,
        len,
        uffd::mode::MISSING | uffd::mode::WP,
    )
    .map_err(|e| EngineError::System("cannot register managed memory with userfaultfd", e))?;
    for i in 0..THREADS {
        engine.spawn(&format!("hs-fault/{i}"), move || serve(engine))?;
    }
    Ok(())
}

fn serve(engine: &'static Engine) {
    let _ = engine.take_private_descriptors();
    let fd = engine.uffd();
    while !engine.stopping.load(Acquire) {
        // Waits with a limit, so that a stop is noticed.
        let mut p = [libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        }];
        // SAFETY: `p` is one pollfd.
        let n = unsafe { libc::poll(p.as_mut_ptr(), 1, 200) };
        if n <= 0 {
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
    let outcome = engine.gate.on_behalf_of(m.thread(), || {
        let outcome = engine.fault(addr, write);
        if matches!(outcome, Outcome::NoMemory | Outcome::Poisoned) {
            engine.refuse_page(page);
        }
        outcome
    });
    match outcome {
        Outcome::Retry => {}
        // The toucher gets SIGSEGV, as without us.
        Outcome::NotOurs if engine.fence(addr) => {}
        Outcome::NotOurs
        | Outcome::Guard
        | Outcome::Poisoned
        | Outcome::NoMemory
        | Outcome::Stuck => {
            let (mut a, mut b) = ([0u8; 20], [0u8; 20]);
            fs::complain(&[
                b"hugeswap: process ",
                fs::digits(process::pid() as u64, 10, &mut a),
                b": memory at 0x",
                fs::digits(addr as u64, 16, &mut b),
                match outcome {
                    Outcome::NotOurs => b" was touched without being mapped\n" as &[u8],
                    Outcome::NoMemory => {
                        b" is lost: neither memory nor swap is left; give more with --memory or --swap\n"
                    }
                    _ => b" is lost: its swap, or its file, could not be read\n",
                },
            ]);
            // The toucher gets SIGBUS.
            if outcome == Outcome::NotOurs {
                let _ = uffd::poison(engine.uffd(), page, 4096);
            }
        }
    }
    let _ = uffd::wake(engine.uffd(), page, 4096);
}

impl Engine {
    /// Has touches of a page be SIGBUS, if it is absent. Under its unit's lock: who moves a frame into place may be between taking the old one away
    /// and putting the new one there, and what it moves cannot go where a page is marked.
    fn refuse_page(&self, page: usize) {
        let Some(unit) = self.table.unit_of(page) else {
            return;
        };
        let _inside = self.gate.enter();
        let w = self.table.lock(unit);
        if w.kind() != Kind::Present {
            let _ = uffd::poison(self.uffd(), page, 4096);
        }
        self.table.unlock(unit, w);
    }
}

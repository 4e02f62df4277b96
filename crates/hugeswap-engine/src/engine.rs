//! The engine of one pool in one process: what it owns, how it starts and stops.
//!
//! Threads of the program enter through the fault handler ([`crate::fault`]) and through the calls
//! on ranges ([`crate::ranges`]). The engine's own threads are kswapd ([`crate::reclaim`]), its I/O
//! workers ([`crate::work`]) and khugepaged ([`crate::khugepaged`]). All of them pass a gate, so
//! that a fork finds the engine at rest ([`crate::fork`]).

pub(crate) use crate::UNIT;
use crate::arena::Arena;
use crate::backend::{Backend, Wanted};
use crate::error::EngineError;
use crate::file::table::Files;
use crate::forked::fork_mark;
use crate::gate::{Alone, Gate};
use crate::handler;
use crate::lock::Lock;
use crate::memory::Memory;
use crate::memory::Parts;
use crate::numbering::Numbering;
use crate::pages::Base;
use crate::paging::Paging;
use crate::pool::{FaultMode, Member, Pool, Reservation};
use crate::ranges::{Contents, Ranges};
use crate::reclaim::Reclaim;
use crate::shared::Sharing;
use crate::space::Space;
use crate::store::Store;
use crate::store::sealing::Sealing;
use crate::table::Table;
use crate::threads::Threads;
use crate::window::{Addresses, Window};
use crate::zeroed::{Zeroed, leave_out_of_core_dumps};
use hugeswap_policy::UNIT_SHIFT;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::workingset::lruvec::Lruvecs;
use hugeswap_sys::{futex, mm, now_ns, process};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// How an engine is started.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// How faults are taken; `Auto` follows the pool.
    pub fault_mode: FaultMode,
    /// Addresses to manage.
    pub window: Window,
    /// Whose threads the engine's own are.
    pub threads: Threads,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            fault_mode: FaultMode::Auto,
            window: Window::Fixed { low: false },
            threads: Threads::PTHREAD,
        }
    }
}

/// The engine of one pool in this process, and the highest of its layers. Shared by all threads of
/// the process; lives until [`Engine::stop`].
pub struct Engine {
    reclaim: Reclaim,
    /// For the child that is about to be forked.
    pub(crate) reserved: Lock<Option<Reservation>>,
    /// The window has mappings that were there before.
    keeps_window: bool,
}

impl Deref for Engine {
    type Target = Reclaim;

    fn deref(&self) -> &Reclaim {
        &self.reclaim
    }
}

impl Engine {
    /// Starts an engine for `pool` in this process, which joins it. Installs the fault handler and
    /// starts the engine's threads. The engine lives until [`Engine::stop`].
    pub fn start(pool: Pool, config: EngineConfig) -> Result<&'static Engine, EngineError> {
        let _alone = Alone::new();
        let wanted = match config.fault_mode {
            FaultMode::Auto => match pool.header().fault_mode.load(Relaxed) {
                2 => FaultMode::Message,
                _ => FaultMode::Signal,
            },
            m => m,
        };
        let window = match config.window {
            // (In message mode one range is registered.)
            Window::Fixed { low } => Window::Fixed {
                low: low && wanted != FaultMode::Message,
            },
            other => other,
        };
        let window = Addresses::reserve(window)?;
        let built = Self::build(pool, wanted, &window, config.threads);
        let engine: &'static Engine = Box::leak(Box::new(built.inspect_err(|_| window.unmap())?));
        if let Err(e) = engine.bring_up(&window) {
            engine.tear_down();
            return Err(e);
        }
        Ok(engine)
    }

    fn build(
        mut pool: Pool,
        mode: FaultMode,
        window: &Addresses,
        threads: Threads,
    ) -> Result<Engine, EngineError> {
        let numbering = Numbering::new(window.all.clone(), &window.other_parts());
        let message = mode == FaultMode::Message;
        let low_fd = high_descriptor();
        let userfaultfd = pool.knob(Knob::Userfaultfd) != 0;
        let frames = pool.ceiling_frames().min(1 << 24) as u32;
        let backend = Backend::open(Wanted {
            message,
            userfaultfd,
            low_fd,
            frames,
            mappings: pool.knob(Knob::PieceMappings),
        })?;
        // A frame in every budgeted unit, and room for units that change places.
        let places = frames + 64;
        let sys = |what| move |e| EngineError::System(what, e);
        let units = numbering.units();
        let space = Space::new(numbering.parts(), window.low.clone());
        let weights = Zeroed::new(units as usize).map_err(sys("cannot map the units' weights"))?;
        let lists = Lruvecs::new(units, weights);
        let table =
            Table::new(numbering, lists.weights()).map_err(sys("cannot map the unit table"))?;
        let fake = pool.knob(Knob::NumaFake) as usize;
        let arena =
            Arena::new(places, message, units, fake).map_err(sys("cannot map the arena"))?;
        let pages = Base::new(units).map_err(sys("cannot map the records of base pages"))?;
        let files = Files::new(units).map_err(sys("cannot map the table of mapped files"))?;
        let fork_mark = fork_mark().map_err(sys("cannot map the fork mark"))?;
        for free in window.reserved() {
            backend
                .prepare_window(free.start, free.len())
                .map_err(sys("cannot map managed memory"))?;
            // The kernel would look for each of the window's pages, for hours.
            leave_out_of_core_dumps(free.start, free.len());
        }
        let (places_at, places_len) = arena.destinations();
        backend
            .register_places(places_at, places_len)
            .map_err(sys("cannot register the arena with userfaultfd"))?;
        let sealing = Sealing::new(&mut pool)?;
        let me = pool.join()?;
        let pool = Arc::new(Member::new(pool, me));
        let store = Arc::new(Store::new(Arc::clone(&pool), sealing, units)?);
        let gate = Arc::new(Gate::new());
        let (p, s, g) = (Arc::clone(&pool), Arc::clone(&store), Arc::clone(&gate));
        let are_safe = !threads.leaves_descriptors_to_program();
        let sharing = Sharing::new(p, s, g, low_fd, are_safe);
        let sharing = sharing.map_err(sys("cannot map buffers"))?;
        let memory = Memory::new(Parts {
            pool,
            store,
            gate,
            table,
            arena,
            base: pages,
            lists,
            backend,
            places,
        })?;
        let paging = Paging::new(memory, files, sharing, fork_mark, low_fd);
        let ranges = Ranges::new(paging, space);
        Ok(Engine {
            reclaim: Reclaim::new(ranges, threads),
            reserved: Lock::new(None),
            keeps_window: window.has_others(),
        })
    }

    fn bring_up(&'static self, window: &Addresses) -> Result<(), EngineError> {
        self.count_touched();
        for there in window.of_others() {
            let claim = self.claim(there.start, there.len(), Contents::Keep);
            let claim = claim.map_err(|e| EngineError::System("cannot note what is mapped", e))?;
            self.settle_claim(claim);
        }
        self.note_mode();
        handler::install(self)?;
        crate::fork::register();
        self.start_threads()
    }

    pub(crate) fn start_threads(&'static self) -> Result<(), EngineError> {
        const PATIENCE_NS: u64 = 1_000_000_000;
        self.has_descriptors.store(0, Relaxed);
        self.spawn("hs-kswapd", move || self.kswapd())?;
        // A program may close all descriptors that it has (a daemon does), and the last one of a
        // userfaultfd ends what it was for: absent pages would be zeros. (`hugeswap run` does not
        // let it.)
        if self.thread_kind.leaves_descriptors_to_program() {
            let until = now_ns() + PATIENCE_NS;
            while self.has_descriptors.load(Acquire) == 0 && now_ns() < until {
                futex::wait(&self.has_descriptors, 0, Some(PATIENCE_NS), false);
            }
        }
        Ok(())
    }

    /// Stops the engine: threads ended, every range unmapped, the pool left. What it managed
    /// must not be touched any more.
    ///
    /// # Safety
    /// No thread may use the engine or memory it managed, now or later.
    pub unsafe fn stop(&'static self) {
        let _alone = Alone::new();
        self.tear_down();
        self.store.backing.pollers.close();
        // SAFETY: `start` leaked this box; the caller promises that nobody uses it, our threads
        // have ended.
        drop(unsafe { Box::from_raw(self as *const Engine as *mut Engine) });
    }

    /// [`Engine::stop`] for an engine that calls of other threads may still refer to, which have
    /// begun: its own memory stays. `left` is called when nothing is left to do that concerns others.
    /// (The kernel takes some 10 ms to end what transfers were awaited by.)
    ///
    /// # Safety
    /// It manages no unit, and no thread begins a call of it.
    pub unsafe fn retire(&'static self, left: impl FnOnce()) {
        let _alone = Alone::new();
        self.tear_down();
        left();
        self.store.backing.pollers.close();
    }

    fn tear_down(&'static self) {
        self.stopping.store(true, Release);
        handler::uninstall(self);
        self.pool.kick();
        self.wake_workers(u32::MAX >> 1);
        self.khugepaged.wake();
        self.store.zswap.wake();
        loop {
            let Some(t) = self.threads.lock().pop() else {
                break;
            };
            self.pool.kick();
            self.wake_workers(u32::MAX >> 1);
            self.khugepaged.wake();
            self.store.zswap.wake();
            t.join();
        }
        if cfg!(debug_assertions)
            && !std::thread::panicking()
            && let Err(e) = self.audit_at_end()
        {
            panic!("{e}");
        }
        self.sharing.unmap_all(self.host());
        self.backend.close();
        self.files.close_all_mappings();
        self.pool.retire(self.pool.me());
        let unused: Vec<_> = match self.keeps_window {
            false => self.table.parts().map(|p| (p.start, p.len())).collect(),
            true => self.space.lock().free_ranges().collect(),
        };
        for (at, len) in unused {
            // SAFETY: threads have ended, the handler is gone, and the caller of `stop` answers for
            // the program.
            let _ = unsafe { mm::unmap(at, len) };
        }
        // SAFETY: mapped by `fork_mark`, used by this engine alone.
        let _ = unsafe { mm::unmap(self.fork_mark, 4096) };
    }

    /// Numbers of descriptors that the program must not close; in a forked child they may have
    /// changed.
    pub fn protected_fds(&self) -> impl Iterator<Item = i32> {
        let shared = self.sharing.fds().filter(|&fd| fd >= 0);
        self.unshared_fds().chain(shared)
    }
}

/// Descriptors go where programs do not look: near the top of what the limit allows.
pub fn high_descriptor() -> i32 {
    (process::descriptor_limit().min(1 << 16) as i32 - 24).max(10)
}

const _: () = assert!(1 << UNIT_SHIFT == UNIT);

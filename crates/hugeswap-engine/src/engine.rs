//! The engine of one pool in one process: what it owns, how it starts and stops.
//!
//! Threads of the program enter through the fault handler ([`crate::fault`]) and through the calls on ranges
//! ([`crate::ranges`]); the engine's own threads are kswapd ([`crate::reclaim`]), its I/O workers
//! ([`crate::work`]) and khugepaged ([`crate::khugepaged`]). All of them pass a gate, so that fork finds the engine at rest ([`crate::fork`]).

pub(crate) use crate::UNIT;
use crate::arena::Arena;
use crate::base::Base;
use crate::clean::Clean;
use crate::error::EngineError;
use crate::file::Files;
use crate::fork::fork_mark;
use crate::frames::FrameDemand;
use crate::gate::{Alone, Gate};
use crate::groups::Groups;
use crate::kcompactd::Kcompactd;
use crate::khugepaged::Khugepaged;
use crate::lock::Lock;
use crate::look::Answer;
use crate::markers::Markers;
use crate::mover::Mover;
use crate::pacing::Pacing;
use crate::pool::{FaultMode, Member, Pool, Reservation};
use crate::shared::Sharing;
use crate::sizes::Sizes;
use crate::space::Space;
use crate::store::Store;
use crate::store::sealing::Sealing;
use crate::swap::scrub::Scrubber;
use crate::table::Table;
use crate::thp::Said;
use crate::threads::{Handle, Threads};
use crate::track::Track;
use crate::writers::Writers;
use crate::zeroed::{Zeroed, leave_out_of_core_dumps};
use crate::{WINDOW_BASE, WINDOW_LEN, handler};
use crossbeam_queue::ArrayQueue;
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::lruvec::{Lruvecs, Weights};
use hugeswap_policy::readahead::Streams;
use hugeswap_policy::{UNIT_BYTES, UNIT_SHIFT};
use hugeswap_sys::{Errno, fs, mm, process, uffd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU16, AtomicU32, AtomicU64};

/// Access the program itself allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prot {
    /// None.
    None,
    /// Reading.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// How an engine is started.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// How faults are taken; `Auto` follows the pool.
    pub fault_mode: FaultMode,
    /// Addresses to manage: `None` takes the fixed window ([`WINDOW_BASE`]), `Some(len)` any `len` bytes.
    pub window: Option<usize>,
    /// Whose threads the engine's own are.
    pub threads: Threads,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            fault_mode: FaultMode::Auto,
            window: None,
            threads: Threads::PTHREAD,
        }
    }
}

/// A job for the I/O threads.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    /// Read a unit that is locked and queued, unless somebody took it over.
    Read(u32),
    /// Bring in a unit of a shared region, if it is in swap still.
    Shared(u32),
    /// Read a unit whose lock and frame go with the job.
    Handed(u32),
    /// Make a base-mapped unit whole; its lock goes with the job.
    Whole(u32),
    /// Write what is dirty of a unit of a mapped file, and drop it; its lock goes with the job.
    Settle { unit: u32, drop: bool },
    /// Bring pages `from..to` of a base-mapped unit in; its lock goes with the job.
    Bring { unit: u32, from: u16, to: u16 },
    /// Write such pages, if they are dirty, and drop them; the same.
    Drop { unit: u32, from: u16, to: u16 },
    /// Have the file of a unit on its device.
    Flush(u32),
    /// Write a unit under write-back to swap.
    Write(u32),
}

/// What threads tell the LRU lists: a unit that is in memory now, with [`REFERENCED`] if it
/// was touched while that could be seen, or [`PAGES`] if it came by base pages.
pub(crate) type LruEvent = u32;
/// See [`LruEvent`]. Windows have far fewer units than 2^30.
pub(crate) const REFERENCED: LruEvent = 1 << 31;
/// See [`LruEvent`].
pub(crate) const PAGES: LruEvent = 1 << 30;

/// The reclaim lists of an engine.
pub(crate) type Lists = Lruvecs<Zeroed<AtomicU16>>;

/// See the file's head. Shared by all threads of the process; lives until [`Engine::stop`].
pub struct Engine {
    pub(crate) pool: Arc<Member>,
    pub(crate) table: Table,
    pub(crate) arena: Arena,
    pub(crate) base: Base,
    pub(crate) files: Files,
    pub(crate) sharing: Sharing,
    pub(crate) sizes: Sizes,
    pub(crate) said: Said,
    pub(crate) markers: Markers,
    pub(crate) track: Track,
    /// When the limit on mappings was last met; 0 is never.
    pub(crate) mappings_short_at: AtomicU64,
    pub(crate) space: Lock<Space>,
    mode: AtomicU32,
    uffd: AtomicI32,
    pub(crate) gate: Arc<Gate>,
    pub(crate) scrubber: Scrubber,
    /// Lists of reclaim; kswapd's, except when the event queue is full.
    pub(crate) lru: Lock<Lists>,
    pub(crate) groups: Groups,
    pub(crate) frame_demand: FrameDemand,
    pub(crate) pacing: Pacing,
    pub(crate) khugepaged: Khugepaged,
    pub(crate) kcompactd: Kcompactd,
    /// What the units on the lists weigh.
    pub(crate) weights: Arc<Weights<Zeroed<AtomicU16>>>,
    pub(crate) events: ArrayQueue<LruEvent>,
    pub(crate) streams: Lock<Streams>,
    /// Watched clean units and unused read-ahead, oldest first: what a fault may take.
    pub(crate) clean: Clean,
    pub(crate) watched: AtomicI64,
    pub(crate) reads: ArrayQueue<Job>,
    pub(crate) writes: ArrayQueue<Job>,
    pub(crate) writers: Writers,
    pub(crate) looked: Answer,
    pub(crate) inflight_writes: AtomicU32,
    /// Changes when there is work for the I/O threads.
    pub(crate) work_seq: AtomicU32,
    /// Changes when memory becomes available.
    pub(crate) avail_seq: AtomicU32,
    /// Threads waiting for memory.
    pub(crate) stalled: AtomicU32,
    pub(crate) stopping: AtomicBool,
    pub(crate) thread_kind: Threads,
    pub(crate) threads: Lock<Vec<Handle>>,
    /// /proc/self/pagemap.
    pub(crate) pagemap: AtomicI32,
    pub(crate) store: Arc<Store>,
    /// A page that a forked child finds zeroed.
    pub(crate) fork_mark: usize,
    /// For the child that is about to be forked.
    pub(crate) reserved: Lock<Option<Reservation>>,
    pub(crate) high_unit: AtomicU32,
    /// Units below this one are in core dumps.
    pub(crate) dumped: AtomicU32,
    pub(crate) low_fd: i32,
    pub(crate) evict_requests: ArrayQueue<u32>,
    /// Message mode: some unmapped unit was made inaccessible.
    pub(crate) fenced: AtomicBool,
    /// Some unit was handed to the kernel.
    pub(crate) has_foreign: AtomicBool,
    /// Counts units that changed their addresses.
    pub(crate) places_moved: AtomicU32,
    /// A thread empties swap areas that are to be taken off.
    pub(crate) emptying: AtomicBool,
}

impl Engine {
    /// Starts an engine for `pool` in this process, which joins it. Installs the fault handler and starts
    /// the engine's threads. The engine lives until [`Engine::stop`].
    pub fn start(pool: Pool, config: EngineConfig) -> Result<&'static Engine, EngineError> {
        let _alone = Alone::new();
        let wanted = match config.fault_mode {
            FaultMode::Auto => match pool.header().fault_mode.load(Relaxed) {
                2 => FaultMode::Message,
                _ => FaultMode::Signal,
            },
            m => m,
        };
        let (base, len) = reserve_window(config.window)?;
        let give_window_back = |e: EngineError| {
            // SAFETY: reserved a moment ago and used by nobody.
            let _ = unsafe { mm::unmap(base, len) };
            e
        };
        let result = Self::build(pool, wanted, base, len, config.threads);
        let engine: &'static Engine = Box::leak(Box::new(result.map_err(give_window_back)?));
        if let Err(e) = engine.bring_up() {
            engine.tear_down();
            return Err(e);
        }
        Ok(engine)
    }

    fn build(
        mut pool: Pool,
        mode: FaultMode,
        base: usize,
        len: usize,
        threads: Threads,
    ) -> Result<Engine, EngineError> {
        let message = mode == FaultMode::Message;
        let low_fd = high_descriptor();
        let uffd = if message {
            let features =
                uffd::feature::PAGEFAULT_FLAG_WP | uffd::feature::MOVE | uffd::feature::THREAD_ID;
            let (fd, _) = uffd::open(libc::O_NONBLOCK as usize, features)
                .map_err(EngineError::NoMessageMode)?;
            let high = fs::dup_above(fd, low_fd).unwrap_or(fd);
            if high != fd {
                fs::close(fd);
            }
            high
        } else {
            -1
        };
        let frames = pool.frames().min(1 << 24) as u32;
        // A frame in every budgeted unit, and room for units that change places.
        let places = frames + 64;
        let sys = |what| move |e| EngineError::System(what, e);
        let units = (len >> UNIT_SHIFT) as u32;
        let weights = Zeroed::new(units as usize).map_err(sys("cannot map the units' weights"))?;
        let lists = Lruvecs::new(units, weights);
        let table =
            Table::new(base, len, lists.weights()).map_err(sys("cannot map the unit table"))?;
        let fake = pool.knob(Knob::NumaFake) as usize;
        let arena =
            Arena::new(places, message, units, fake).map_err(sys("cannot map the arena"))?;
        let nodes = arena.numa.nodes();
        let userfaultfd = !message && pool.knob(Knob::Userfaultfd) != 0;
        let mappings = pool.knob(Knob::PieceMappings);
        let pages = Base::new(units, userfaultfd, low_fd, frames, mappings)
            .map_err(sys("cannot map the records of base pages"))?;
        let files = Files::new(units).map_err(sys("cannot map the table of mapped files"))?;
        let said = Said::new(units).map_err(sys("cannot map the table of advice"))?;
        let fork_mark = fork_mark().map_err(sys("cannot map the fork mark"))?;
        if message {
            // SAFETY: advice on a range nobody uses yet. Missing faults on huge-page ranges would
            // make the kernel allocate and throw away a huge page each.
            let _ = unsafe { mm::advise(base, len, libc::MADV_NOHUGEPAGE) };
            // SAFETY: nobody uses the window yet.
            unsafe { mm::protect(base, len, mm::PROT_RW) }
                .map_err(sys("cannot map managed memory"))?;
            let (abase, alen) = arena.destinations();
            uffd::register(uffd, abase, alen, uffd::mode::MISSING)
                .map_err(sys("cannot register the arena with userfaultfd"))?;
        } else {
            // SAFETY: advice that discards nothing.
            let _ = unsafe { mm::advise(base, len, libc::MADV_HUGEPAGE) };
        }
        // The kernel would look for each of the window's pages, for hours.
        leave_out_of_core_dumps(base, len);
        let sealing = Sealing::new(&mut pool)?;
        let pagemap = fs::open(c"/proc/self/pagemap", libc::O_RDONLY, 0).map_or(-1, |fd| {
            let high = fs::dup_above(fd, low_fd).unwrap_or(fd);
            if high != fd {
                fs::close(fd);
            }
            high
        });
        let me = pool.join()?;
        let pool = Arc::new(Member::new(pool, me));
        let store = Arc::new(Store::new(Arc::clone(&pool), sealing, units)?);
        let gate = Arc::new(Gate::new());
        let (p, s, g) = (Arc::clone(&pool), Arc::clone(&store), Arc::clone(&gate));
        let sharing = Sharing::new(p, s, g, low_fd).map_err(sys("cannot map buffers"))?;
        let readahead = pool.knob(Knob::ReadaheadMax) as u32;
        Ok(Engine {
            table,
            arena,
            base: pages,
            files,
            sharing,
            mappings_short_at: AtomicU64::new(0),
            sizes: Sizes::new(pool.header().key[0].load(Relaxed), &store.cost),
            said,
            markers: Markers::new(),
            track: Track::new(),
            space: Lock::new(Space::new(base, len)),
            mode: AtomicU32::new(mode as u32),
            uffd: AtomicI32::new(uffd),
            gate,
            scrubber: Scrubber::default(),
            groups: Groups::default(),
            frame_demand: FrameDemand::default(),
            pacing: Pacing::new(),
            khugepaged: Khugepaged::new(),
            kcompactd: Kcompactd::default(),
            weights: lists.weights(),
            lru: Lock::new(lists),
            events: ArrayQueue::new(16 << 10),
            streams: Lock::new(Streams::new(readahead)),
            clean: Clean::new(nodes, (places as usize * 2).max(1024)),
            watched: AtomicI64::new(0),
            reads: ArrayQueue::new(256),
            writes: ArrayQueue::new(1024),
            writers: Writers::default(),
            looked: Answer::new(),
            inflight_writes: AtomicU32::new(0),
            work_seq: AtomicU32::new(0),
            avail_seq: AtomicU32::new(0),
            stalled: AtomicU32::new(0),
            stopping: AtomicBool::new(false),
            thread_kind: threads,
            threads: Lock::freed_in_children(Vec::new()),
            pagemap: AtomicI32::new(pagemap),
            store,
            fork_mark,
            reserved: Lock::new(None),
            high_unit: AtomicU32::new(0),
            dumped: AtomicU32::new(0),
            low_fd,
            evict_requests: ArrayQueue::new(4096),
            fenced: AtomicBool::new(false),
            has_foreign: AtomicBool::new(false),
            places_moved: AtomicU32::new(0),
            emptying: AtomicBool::new(false),
            pool,
        })
    }

    fn bring_up(&'static self) -> Result<(), EngineError> {
        self.count_touched();
        self.note_mode();
        handler::install(self)?;
        crate::fork::register();
        self.start_threads()
    }

    pub(crate) fn note_mode(&self) {
        let bit = if self.mode() == FaultMode::Message {
            2
        } else {
            1
        };
        self.pool.header().mode_used.fetch_or(bit, Relaxed);
    }

    pub(crate) fn start_threads(&'static self) -> Result<(), EngineError> {
        self.spawn("hs-kswapd", move || self.kswapd())
    }

    /// Stops the engine: threads ended, every range unmapped, the pool left. What it managed
    /// must not be touched any more.
    ///
    /// # Safety
    /// No thread may use the engine or memory it managed, now or later.
    pub unsafe fn stop(&'static self) {
        let _alone = Alone::new();
        self.tear_down();
        // SAFETY: `start` leaked this box; the caller promises that nobody uses it, our threads have ended.
        drop(unsafe { Box::from_raw(self as *const Engine as *mut Engine) });
    }

    fn tear_down(&'static self) {
        self.stopping.store(true, Release);
        handler::uninstall(self);
        self.pool.kick();
        self.wake_workers(u32::MAX >> 1);
        self.khugepaged.wake();
        loop {
            let Some(t) = self.threads.lock().pop() else {
                break;
            };
            self.pool.kick();
            self.wake_workers(u32::MAX >> 1);
            self.khugepaged.wake();
            t.join();
        }
        if cfg!(debug_assertions)
            && !std::thread::panicking()
            && let Err(e) = self.audit_at_end()
        {
            panic!("{e}");
        }
        self.sharing.unmap_all(self);
        for fd in [self.uffd.load(Relaxed), self.pagemap.load(Relaxed)] {
            if fd >= 0 {
                fs::close(fd);
            }
        }
        self.files.close_all_mappings();
        self.pool.retire(self.pool.me());
        let (base, len) = self.table.window();
        // SAFETY: threads have ended, the handler is gone, and the caller of `stop` answers for the program.
        let _ = unsafe { mm::unmap(base, len) };
        // SAFETY: mapped by `fork_mark`, used by this engine alone.
        let _ = unsafe { mm::unmap(self.fork_mark, 4096) };
    }

    /// How faults are taken.
    pub fn mode(&self) -> FaultMode {
        if self.mode.load(Relaxed) == FaultMode::Message as u32 {
            FaultMode::Message
        } else {
            FaultMode::Signal
        }
    }

    pub(crate) fn become_signal_mode(&self) {
        self.mode.store(FaultMode::Signal as u32, Relaxed);
        let fd = self.uffd.swap(-1, Relaxed);
        if fd >= 0 {
            fs::close(fd);
        }
    }

    pub(crate) fn mover(&self) -> Mover {
        match self.mode() {
            FaultMode::Message => Mover::Uffd(self.uffd.load(Relaxed), self.pagemap.load(Relaxed)),
            _ => Mover::Remap,
        }
    }

    pub(crate) fn uffd(&self) -> i32 {
        self.uffd.load(Relaxed)
    }

    /// The pool, and this process in it.
    pub fn pool(&self) -> &Member {
        &self.pool
    }

    /// Has units that hold something counted in this process's record: whenever that has become another one.
    pub(crate) fn count_touched(&self) {
        // SAFETY: the record is mapped with the pool, which lives as long as the table.
        unsafe { self.table.count_in(&self.pool.record().touched) };
    }

    /// The managed addresses.
    pub fn window(&self) -> std::ops::Range<usize> {
        let (base, len) = self.table.window();
        base..base + len
    }

    /// Is `addr` in the window?
    pub fn contains(&self, addr: usize) -> bool {
        self.table.unit_of(addr).is_some()
    }

    /// Numbers of descriptors that the program must not close; in a forked child they may have changed.
    pub fn protected_fds(&self) -> impl Iterator<Item = i32> {
        let shared = self.sharing.fds().filter(|&fd| fd >= 0);
        self.unshared_fds().chain(shared)
    }

    /// The same without those of shared regions.
    pub(crate) fn unshared_fds(&self) -> impl Iterator<Item = i32> {
        [
            self.pool.fd(),
            self.uffd.load(Relaxed),
            self.pagemap.load(Relaxed),
            self.base.sigbus_fd(),
        ]
        .into_iter()
        .chain(self.pool.areas().map(|(_, a)| a.fd))
        .chain(self.files.fds())
        .filter(|&fd| fd >= 0)
    }

    pub(crate) fn wake_workers(&self, n: u32) {
        self.work_seq.fetch_add(1, Release);
        hugeswap_sys::futex::wake(&self.work_seq, n, false);
    }

    pub(crate) fn note_available(&self) {
        self.avail_seq.fetch_add(1, Release);
        if self.stalled.load(Acquire) > 0 {
            hugeswap_sys::futex::wake(&self.avail_seq, u32::MAX >> 1, false);
        }
    }

    /// Bytes at `[addr, addr+UNIT)` as a slice.
    ///
    /// # Safety
    /// The unit or place must be mapped readable, and stay so for the slice's life. Its bytes may be changed
    /// by the program meanwhile only where the result is thrown away then (write-back).
    pub(crate) unsafe fn bytes<'a>(&self, addr: usize) -> &'a [u8] {
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts(addr as *const u8, UNIT) }
    }

    /// Is the unit or place at `addr` one huge page? `None` where the kernel cannot tell.
    pub(crate) fn is_huge(&self, addr: usize) -> Option<bool> {
        let fd = self.pagemap.load(Relaxed);
        mm::huge_bytes(fd, addr, addr + UNIT)
            .ok()
            .map(|b| b == UNIT_BYTES)
    }
}

/// Descriptors go where programs do not look: near the top of what the limit allows.
pub fn high_descriptor() -> i32 {
    (process::descriptor_limit().min(1 << 16) as i32 - 24).max(10)
}

fn reserve_window(want: Option<usize>) -> Result<(usize, usize), EngineError> {
    match want {
        None => {
            // Where addresses are limited (ulimit -v) the program needs most of them.
            let addresses = process::limit(libc::RLIMIT_AS);
            let mut len = WINDOW_LEN.min((addresses / 2) as usize) & !(UNIT - 1);
            loop {
                // SAFETY: not replacing: fails if something is there.
                match unsafe { mm::map_anon(WINDOW_BASE, len, mm::PROT_NONE, false) } {
                    Ok(at) if at == WINDOW_BASE => return Ok((at, len)),
                    Ok(at) => {
                        // Kernels before 4.17 take the address as a hint.
                        // SAFETY: just mapped, unused.
                        let _ = unsafe { mm::unmap(at, len) };
                        return Err(EngineError::AddressesInUse);
                    }
                    // Other limits there may be, or little that is left of this one.
                    Err(Errno::ENOMEM) if len > 256 << 20 => len = (len >> 1) & !(UNIT - 1),
                    Err(Errno::EEXIST) => return Err(EngineError::AddressesInUse),
                    Err(e) => return Err(EngineError::NoAddressSpace(e)),
                }
            }
        }
        Some(len) => {
            let len = len.next_multiple_of(UNIT);
            let raw =
                mm::map_own(len + UNIT, mm::PROT_NONE).map_err(EngineError::NoAddressSpace)?;
            let base = raw.next_multiple_of(UNIT);
            // SAFETY: the slack before and after the aligned part, unused.
            unsafe {
                if base > raw {
                    let _ = mm::unmap(raw, base - raw);
                }
                let _ = mm::unmap(base + len, raw + UNIT - base);
            }
            Ok((base, len))
        }
    }
}

const _: () = assert!(1 << UNIT_SHIFT == UNIT);

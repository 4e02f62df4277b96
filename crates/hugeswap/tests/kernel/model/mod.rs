//! The engine against plain memory: random operations, drawn from a seed, on managed ranges and on
//! their models.
//!
//! Bytes that an operation touches are compared at once, all of them at every fork (by the child)
//! and at the end; the engine's books are checked now and then, and when everything is unmapped
//! nothing may be left in use.
//!
//! The seeds are the same in every run. `HUGESWAP_MODEL_SEED=N` begins with another,
//! `HUGESWAP_MODEL_RUNS=N` takes so many of them, `HUGESWAP_MODEL_STEPS=N` makes each longer or, to
//! find the step that matters, shorter. A failure says which seed and step it was;
//! `HUGESWAP_MODEL_TRACE=1` prints every step.

mod alone;
mod draw;
mod processes;
mod together;

use crate::util::*;
pub use draw::Draw;
use hugeswap::{FaultMode, SwapSpec};
use hugeswap_engine::Engine;
use hugeswap_policy::counters::Counter;
use hugeswap_policy::knobs::{Knob, swapin};
use hugeswap_policy::thp_swap::clusters;
use std::fmt::Arguments;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

tests! {
    #[long]
    model_signal_mode => alone::run(FaultMode::Signal),
    #[long]
    model_message_mode => alone::run(FaultMode::Message),
    model_threads_signal_mode => together::run(FaultMode::Signal),
    model_threads_message_mode => together::run(FaultMode::Message),
    model_processes => processes::run(),
    encrypted_model_processes => with_encryption(processes::run),
    model_pieces => with_pieces(|| alone::run(FaultMode::Signal)),
    #[long]
    model_threads_pieces => with_pieces(|| together::run(FaultMode::Signal)),
    #[long]
    encrypted_model_signal_mode => with_encryption(|| alone::run(FaultMode::Signal)),
    #[long]
    encrypted_model_message_mode => with_encryption(|| alone::run(FaultMode::Message)),
    encrypted_model_threads_signal_mode => with_encryption(|| together::run(FaultMode::Signal)),
    #[long]
    encrypted_model_threads_message_mode => with_encryption(|| together::run(FaultMode::Message)),
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number"))
}

/// The seeds to run, and the number of steps of each. By default as many seeds as time allows, and
/// always the first.
fn plan(runs: u64, steps: u64) -> (impl Iterator<Item = u64>, u64) {
    const ENOUGH: Duration = Duration::from_secs(6);
    let first = number("HUGESWAP_MODEL_SEED").unwrap_or(1);
    let asked = number("HUGESWAP_MODEL_RUNS");
    let steps = number("HUGESWAP_MODEL_STEPS").unwrap_or(steps);
    let start = Instant::now();
    let more = move |seed: &u64| *seed == first || asked.is_some() || start.elapsed() < ENOUGH;
    let seeds = first..first + asked.unwrap_or(runs);
    (seeds.take_while(more), steps)
}

/// An engine of its own for one seed.
struct Subject {
    engine: &'static Engine,
    mode: FaultMode,
    seed: u64,
    step: AtomicU64,
    trace: bool,
    /// Swap brings back wrong bits now and then, so its sums are never off.
    flips: bool,
}

impl Subject {
    fn new(mode: FaultMode, seed: u64, draw: &mut Draw) -> Subject {
        let memory = draw.within(8..14) as usize * 2;
        let settings = [(Knob::ReadaheadMax, draw.within(0..9))];
        // A disk has other timing, and takes ten times as long.
        let fast = if draw.one_in(4) {
            None
        } else {
            engine_with(memory, mode, &settings, "/dev/shm")
        };
        let engine = fast.unwrap_or_else(|| engine(memory, mode, &settings));
        Subject {
            engine,
            mode,
            seed,
            step: AtomicU64::new(0),
            trace: number("HUGESWAP_MODEL_TRACE").is_some(),
            flips: draw.one_in(3),
        }
    }

    fn next_step(&self) {
        self.step.fetch_add(1, Relaxed);
    }

    fn says(&self, what: Arguments<'_>) {
        if self.trace {
            eprintln!("{} {}: {what}", self.seed, self.step.load(Relaxed));
        }
    }

    /// The seed and the step, for a failure's message.
    fn place(&self) -> String {
        let Subject { mode, seed, .. } = self;
        let step = self.step.load(Relaxed);
        let child = if self.in_child() { ", in a child" } else { "" };
        format!("{mode:?} mode, HUGESWAP_MODEL_SEED={seed}, step {step}{child}")
    }

    fn in_child(&self) -> bool {
        self.engine.pool().header().creator.load(Relaxed) != std::process::id() as i32
    }

    /// Do the bytes at `addr` equal the model's?
    fn compare(&self, addr: usize, model: &[u8]) {
        // SAFETY: mapped by the caller, and nobody else changes these bytes.
        let found = unsafe { std::slice::from_raw_parts(addr as *const u8, model.len()) };
        if found != model {
            let differs = |i: &usize| found[*i] != model[*i];
            let first = (0..model.len()).find(differs).unwrap_or(0);
            let n = (0..model.len()).filter(differs).count();
            let unit = (addr + first - self.engine.window().start) / UNIT;
            panic!(
                "{}: {n} of {} bytes differ, from {:#x} on (unit {unit}, byte {:#x} of it)",
                self.place(),
                model.len(),
                addr + first,
                (addr + first) % UNIT
            );
        }
    }

    fn audit(&self) {
        if let Err(e) = self.engine.audit() {
            panic!("{}: {e}", self.place());
        }
    }

    /// Changes a setting while everything goes on.
    fn set_something(&self, draw: &mut Draw) {
        let (knob, value) = match draw.below(10) {
            0..3 => (
                Knob::ThpSwapin,
                *draw.of(&[swapin::AUTO, swapin::ALWAYS, swapin::NEVER]),
            ),
            3 if self.flips => (Knob::SwapReadFlip, *draw.of(&[0, 0, 31])),
            3 => (Knob::Checksum, draw.below(2)),
            4 => (Knob::CleanDrop, draw.below(2)),
            5 => (Knob::Storm, *draw.of(&[0, 0, 20, 500])),
            6 => (Knob::SwapReadFail, *draw.of(&[0, 0, 37])),
            7 => return self.change_areas(draw),
            8 => {
                let number = self.engine.pool().request_scrub();
                return self.says(format_args!("scrub {number}"));
            }
            _ => (Knob::SwapWriteFail, *draw.of(&[0, 0, 11])),
        };
        self.says(format_args!("{} = {value}", knob.name()));
        self.engine.pool().set_knob(knob, value);
    }

    /// Adds a swap area, begins to take one off, or keeps it after all, while everything goes on.
    fn change_areas(&self, draw: &mut Draw) {
        const MOST: usize = 4;
        if self.in_child() {
            return;
        }
        let (engine, pool) = (self.engine, self.engine.pool());
        let areas = pool.area_usage();
        let on = areas.iter().filter(|a| !a.draining).count();
        let one = draw.of(&areas).index;
        match draw.below(3) {
            0 if areas.len() < MOST => {
                let spec = SwapSpec {
                    size: Some(256 << 20),
                    allow_tmpfs: true,
                    priority: draw.below(2) as i32,
                    ..SwapSpec::new(*draw.of(&["/dev/shm", "/var/tmp"]))
                };
                // Where there is no room, there is one less.
                let added = engine.add_area(&spec);
                self.says(format_args!("swap on: {added:?}"));
            }
            1 if engine.keep_area_on(one) => self.says(format_args!("swap {one} stays on")),
            _ if on > 1 && pool.room_for(one).is_some_and(|r| r.suffices()) => {
                let begun = engine.take_area_off(one, false);
                self.says(format_args!("swap off {one}: {begun}"));
            }
            _ => {}
        }
    }

    /// Checks that nothing is left in use after everything is unmapped and every child is gone.
    fn end(self) {
        self.audit();
        let pool = self.engine.pool();
        // What was kept back for children goes soon after the last of them.
        let start = Instant::now();
        while clusters::used(pool.cluster_words()) > 0 {
            assert!(
                start.elapsed() < Duration::from_secs(100),
                "{}: {} slots are still in use",
                self.place(),
                clusters::used(pool.cluster_words())
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        self.audit();
        let r = pool.report();
        let get = |c: Counter| r.get(c);
        // (What falls back may come by the page.)
        let right = get(Counter::PswpIn) >= 512 * get(Counter::ThpSwpIn)
            && get(Counter::PswpOut)
                >= 512 * (get(Counter::ThpSwpOut) + get(Counter::ThpSwpOutFallback))
            && get(Counter::SwapReadError) == 0
            && get(Counter::Poisoned) == 0
            && r.peak_resident_bytes <= r.memory_bytes
            && r.exhausted == 0;
        assert!(right, "{}: {r:?}", self.place());
        assert_eq!(
            pool.live()
                .map(|(_, r)| r.managed.load(Relaxed))
                .sum::<u64>(),
            0
        );
        // SAFETY: nothing of the engine's is used any more.
        unsafe { self.engine.stop() };
    }
}

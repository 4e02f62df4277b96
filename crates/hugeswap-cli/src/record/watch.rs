//! What is written down of a pool while it is recorded, by a thread of its own: figures at times, what
//! happened, and where faults came from. All of it gets sparser with time, as the pictures of a long
//! recording would show no more anyway: so a recording of hours is a few megabytes, and costs no more
//! at a time than one of minutes.

use super::file::{End, Event, Head, Point, Writer};
use super::stacks::Folded;
use super::symbols;
use crate::ctl::{pools, swap};
use crate::run::advice;
use crate::stat::sample::Sample;
use crate::stat::show;
use crate::text;
use anyhow::{Result, anyhow};
use hugeswap_engine::pool::recording::Recorder;
use hugeswap_engine::pool::{AreaUsage, Pool};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::knobs::Knob;
use hugeswap_policy::recording::{Happening, Kind, Rate, is_recorded};
use hugeswap_support::proc::StatusFile;
use hugeswap_sys::now_ns;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What happens is fetched so often.
pub const FETCH: Duration = Duration::from_millis(50);
/// Figures are read this often at first. After so many of them half as often, and so on.
const FIGURES: f64 = 0.1;
const MANY: usize = 1000;
/// Faults, and pages that leave, that are recorded a second, and faults with their stack, for as
/// many seconds; later so many less as the time is longer.
const EVENTS: f64 = 1500.0;
const STACKS: f64 = 100.0;
const LONG: f64 = 30.0;
/// What was recorded is written this often, and the stacks so far.
const WRITE: f64 = 2.0;
const WRITE_STACKS: f64 = 60.0;

/// A recording that is being made.
pub struct Recording<'a> {
    pool: &'a Pool,
    recorder: Recorder<'a>,
    writer: Writer,
    began_ns: u64,
    folded: Folded,
    events: Vec<Event>,
    points: Vec<Point>,
    /// Points that were written or will be.
    seen: usize,
    /// Faults before it began.
    faults_before: u64,
    faults: Thinned,
    stacks: Rate,
    evictions: Thinned,
    processes: BTreeMap<u32, String>,
    next_point: f64,
    next_write: f64,
    next_stacks: f64,
    last_look: f64,
}

/// What is recorded of something that happens often.
#[derive(Default)]
struct Thinned {
    rate: Rate,
    /// How often it has happened, and how often when that was last looked at.
    happened: u64,
    before: u64,
}

impl Thinned {
    fn look(&mut self, seconds: f64, most: f64) {
        let happened = self.happened.saturating_sub(self.before);
        self.rate.on_look(happened, seconds, most);
        self.before = self.happened;
    }
}

impl<'a> Recording<'a> {
    /// Begins one, of a pool in which nothing has happened if `from_start`.
    pub fn begin(
        pool: &'a Pool,
        path: &Path,
        command: Vec<String>,
        from_start: bool,
    ) -> Result<Recording<'a>> {
        let recorder = pool.start_recording()?;
        let writer = Writer::create(path, &head(pool, command, from_start))?;
        recorder.set_rates(1, 8);
        let mut recording = Recording {
            pool,
            recorder,
            writer,
            began_ns: now_ns(),
            folded: Folded::default(),
            events: Vec::new(),
            points: Vec::new(),
            seen: 0,
            faults_before: 0,
            faults: Thinned::default(),
            stacks: Rate::default(),
            evictions: Thinned::default(),
            processes: BTreeMap::new(),
            next_point: 0.0,
            next_write: WRITE,
            next_stacks: WRITE_STACKS,
            last_look: 0.0,
        };
        recording.point();
        Ok(recording)
    }

    /// Records while `what` is done, by a thread beside it. An error is one of the recording, which
    /// ended with it.
    fn beside<T>(self, what: impl FnOnce() -> T) -> (T, Result<Recording<'a>>) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let go_on = |mut recording: Recording<'a>| {
                while !stop.load(Relaxed) {
                    std::thread::park_timeout(FETCH);
                    recording.look()?;
                }
                Ok(recording)
            };
            let thread = std::thread::Builder::new().name("hs-record".into());
            let thread = thread.spawn_scoped(scope, move || go_on(self));
            let done = what();
            stop.store(true, Relaxed);
            let recording = match thread {
                Ok(thread) => {
                    thread.thread().unpark();
                    thread
                        .join()
                        .unwrap_or_else(|_| Err(anyhow!("its thread has failed")))
                }
                Err(e) => Err(e.into()),
            };
            (done, recording)
        })
    }

    /// Seconds since it began.
    pub fn seconds(&self) -> f64 {
        self.since(now_ns())
    }

    fn since(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.began_ns) as f64 / 1e9
    }

    /// Fetches what has happened, and writes what is to be written. To be called often.
    pub fn look(&mut self) -> Result<()> {
        self.fetch();
        let t = self.seconds();
        if t >= self.next_point {
            self.point();
        }
        if t >= self.next_write {
            self.next_write = t + WRITE;
            self.write()?;
        }
        if t >= self.next_stacks {
            // (All of them so far each time, so rarely in a long recording.)
            self.next_stacks = t * 2.0;
            self.writer.stacks(&self.folded.stacks())?;
            self.writer.flush()?;
        }
        Ok(())
    }

    fn fetch(&mut self) {
        while let Some(happening) = self.recorder.happening() {
            self.keep(happening);
        }
        while let Some(stack) = self.recorder.stack() {
            self.folded.add(&stack);
        }
    }

    fn keep(&mut self, mut h: Happening) {
        if h.kind == Kind::Evicted {
            let (n, every) = (self.evictions.happened, self.evictions.rate.every());
            self.evictions.happened += 1;
            if !is_recorded(n, every) {
                return;
            }
            h.weight = every;
        }
        if !self.processes.contains_key(&h.pid) && self.processes.len() < 1000 {
            let command = pools::short_command_of(h.pid as i32);
            self.processes.insert(h.pid, command);
        }
        self.events.push(Event(
            h.at_ns.saturating_sub(self.began_ns) / 1000,
            h.ns,
            h.kind as u8,
            h.detail,
            h.write.into(),
            h.weight,
            h.pid,
            h.addr,
            h.pages,
        ));
    }

    /// Reads the figures, and decides how much of what happens is recorded from now on.
    fn point(&mut self) {
        let sample = Sample::of(self.pool);
        let t = self.seconds();
        let point = self.point_of(&sample, t);
        self.faults.happened = point.major + point.minor;
        let less = LONG / t.max(LONG);
        let (faults, seconds) = (&mut self.faults, t - self.last_look);
        let happened = faults.happened.saturating_sub(faults.before);
        if self.seen > 0 {
            self.stacks.on_look(happened, seconds, STACKS * less);
            faults.look(seconds, EVENTS * less);
            self.evictions.look(seconds, EVENTS * less);
            let (every, stacks) = (faults.rate.every(), self.stacks.every());
            self.recorder.set_rates(every, stacks);
        } else {
            faults.before = faults.happened;
            self.faults_before = faults.happened;
        }
        self.last_look = t;
        self.points.push(point);
        self.seen += 1;
        let doublings = (self.seen / MANY).min(12) as i32;
        self.next_point = t + FIGURES * 2f64.powi(doublings);
    }

    fn point_of(&self, s: &Sample, t: f64) -> Point {
        let r = &s.totals;
        let count = |major: bool| -> u64 {
            let is_major = |c| matches!(c, FaultClass::Major | FaultClass::Base);
            let of = r.faults.iter().filter(|f| is_major(f.class) == major);
            of.map(|f| f.took.count).sum()
        };
        let processes = self.pool.processes();
        let anonymous = processes.filter_map(|p| StatusFile::open(p.pid)?.read());
        Point {
            t,
            memory: r.memory_bytes,
            resident: s.resident,
            swap_used: s.swap_used,
            zswap: s.zswap,
            anonymous: anonymous.map(|s| s.anonymous + s.shared).sum(),
            processes: s.processes,
            pages_in: r.get(Counter::PswpIn),
            pages_out: r.get(Counter::PswpOut),
            zswap_in: r.get(Counter::ZswpIn),
            zswap_out: r.get(Counter::ZswpOut),
            major: count(true),
            minor: count(false),
            fault_ns: r.fault_ns,
            stall_us: r.get(Counter::AllocStallUsec),
            throttle_us: r.get(Counter::AllocThrottleUsec),
        }
    }

    fn write(&mut self) -> Result<()> {
        if !self.events.is_empty() {
            self.writer.events(&self.events)?;
            self.events.clear();
        }
        if !self.points.is_empty() {
            self.writer.points(&self.points)?;
            self.points.clear();
        }
        self.writer.flush()
    }

    /// Ends it: the program has ended so, in words (empty: it runs on).
    pub fn end(mut self, ended: String) -> Result<Ended> {
        self.fetch();
        self.point();
        self.write()?;
        let mut stacks = self.folded.stacks();
        symbols::name(&mut stacks.frames);
        self.writer.stacks(&stacks)?;
        let sample = Sample::of(self.pool);
        let end = End {
            t: self.seconds(),
            ended,
            lost: self.recorder.lost(),
            figures: show::json(&sample),
            advisor: sample.totals.advice().as_ref().map(advice::json),
            areas: sample.totals.areas.iter().map(text::area_json).collect(),
            processes: std::mem::take(&mut self.processes).into_iter().collect(),
        };
        self.writer.end(&end)?;
        Ok(Ended {
            seconds: end.t,
            faults: self.faults.happened.saturating_sub(self.faults_before),
        })
    }
}

/// Does `what`, recorded if there is a recording. An error beside its result is one of the recording.
pub fn beside<'a, T>(
    recording: Option<Recording<'a>>,
    what: impl FnOnce() -> T,
) -> (T, Option<Result<Recording<'a>>>) {
    match recording {
        None => (what(), None),
        Some(recording) => {
            let (done, recording) = recording.beside(what);
            (done, Some(recording))
        }
    }
}

/// What a recording that has ended holds.
pub struct Ended {
    pub seconds: f64,
    pub faults: u64,
}

fn head(pool: &Pool, command: Vec<String>, from_start: bool) -> Head {
    let began = SystemTime::now().duration_since(UNIX_EPOCH);
    let differs = |k: &&Knob| pool.knob(**k) != k.default_value();
    let areas = pool.area_usage();
    let described = |a: &AreaUsage| {
        let size = text::bytes(a.usage.clusters * UNIT_BYTES);
        format!("{} ({size})", swap::place_of(pool, a))
    };
    let uname = rustix::system::uname();
    Head {
        version: env!("CARGO_PKG_VERSION").into(),
        command,
        pid: pool.maker(),
        began: began.map_or(0.0, |t| t.as_secs_f64()),
        from_start,
        kernel: uname.release().to_string_lossy().into_owned(),
        processors: std::thread::available_parallelism().map_or(1, |n| n.get() as u64),
        machine_bytes: hugeswap_engine::pool::machine_memory(),
        swap: areas.iter().map(described).collect(),
        settings: { Knob::ALL.iter().filter(differs) }
            .map(|&k| (k.name().to_owned(), text::setting(k, pool.knob(k))))
            .collect(),
    }
}

//! Shared regions against a model of them. Several processes use them, which join, fork, stop and
//! are killed at any moment.
//!
//! The driver has the pool, and no memory of the regions. It gives jobs to processes, one at a time
//! or several at once, and keeps a model of every word and of the states that each unit may have.
//! After each step, every process that has a region is asked for the states of its units: all must
//! give the same answer, which must agree with the model and with the contents of the region's
//! memory file. A process that is killed may leave words that it was changing old or new, each by
//! itself, and nothing else. At the end nothing is left.

mod board;
mod check;
mod client;

use super::draw::Draw;
use super::{number, plan};
use crate::util::*;
use board::{Board, Job, PLACES, Place, REGIONS, UNITS, WORDS};
use client::{PRESENT, SWAPPED, ZERO, name};
use hugeswap::FaultMode;
use hugeswap_engine::Engine;
use hugeswap_policy::knobs::Knob;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The first process, from which the others come.
const NURSERY: usize = PLACES - 1;
/// The most processes at a time.
const MOST: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);

pub fn run() {
    need_base_pages();
    // The processes come from one that has nothing of an engine.
    let board = Board::new();
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: plain system calls.
        unsafe {
            libc::setsid();
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        }
        client::live(board, NURSERY);
    }
    let nursery = &board.places[NURSERY];
    until("the first process is there", || {
        nursery.pid.load(Relaxed) != 0
    });
    let (seeds, steps) = plan(12, 60);
    for seed in seeds {
        Driver::new(board, seed).run(steps);
    }
    nursery.ask(Job::Leave, &[]);
    until("the first process ends", || nursery.is_idle());
}

/// A region as the driver knows it.
struct Model {
    units: usize,
    /// The states that each unit may have.
    may: [u8; UNITS],
}

struct Driver {
    board: &'static Board,
    engine: &'static Engine,
    draw: Draw,
    seed: u64,
    step: u64,
    trace: bool,
    /// Runs were asked for, so what may take long is done too.
    patient: bool,
    /// There is room for everything, so nothing leaves by itself.
    roomy: bool,
    regions: [Option<Model>; REGIONS],
    /// For each place, the regions that its process has.
    has: [[bool; REGIONS]; PLACES],
    generation: u64,
    /// A process was killed while it forked: a child may exist.
    forking: bool,
}

impl Driver {
    fn new(board: &'static Board, seed: u64) -> Driver {
        let mut draw = Draw::new(seed ^ 0x5_a4ed);
        let roomy = draw.one_in(2);
        let memory = if roomy {
            96
        } else {
            draw.within(8..14) as usize * 2
        };
        let settings = [(Knob::ReadaheadMax, draw.within(0..9))];
        let fast = if draw.one_in(5) {
            None
        } else {
            engine_with(memory, FaultMode::Signal, &settings, "/dev/shm")
        };
        let engine = fast.unwrap_or_else(|| engine(memory, FaultMode::Signal, &settings));
        Driver {
            board,
            engine,
            draw,
            seed,
            step: 0,
            trace: number("HUGESWAP_MODEL_TRACE").is_some(),
            patient: number("HUGESWAP_MODEL_RUNS").is_some(),
            roomy,
            regions: [None, None],
            has: [[false; REGIONS]; PLACES],
            generation: 0,
            forking: false,
        }
    }

    fn run(mut self, steps: u64) {
        self.spawn();
        self.spawn();
        for _ in 0..steps {
            self.step += 1;
            self.one_step();
        }
        self.end();
    }

    fn place(&self, who: usize) -> &'static Place {
        &self.board.places[who]
    }

    fn says(&self, what: std::fmt::Arguments<'_>) {
        if self.trace {
            eprintln!("{} {}: {what}", self.seed, self.step);
        }
    }

    fn fail(&self, what: &str) -> ! {
        let pool = self.engine.pool();
        let words: Vec<_> = pool.shared_words()[..2 * UNITS]
            .iter()
            .map(|w| format!("{:x}", w.load(Relaxed)))
            .collect();
        panic!(
            "HUGESWAP_MODEL_SEED={}, step {}: {what}; words {words:?}, {} frames in use, lock {:x}",
            self.seed,
            self.step,
            pool.used_frames(),
            pool.header().shared_lock.load(Relaxed),
        );
    }

    fn there(&self) -> Vec<usize> {
        let there = |&w: &usize| self.place(w).pid.load(Relaxed) != 0;
        (0..NURSERY).filter(there).collect()
    }

    fn who_has(&self, region: usize) -> Vec<usize> {
        let mut all = self.there();
        all.retain(|&w| self.has[w][region]);
        all
    }

    fn ask(&self, who: usize, job: Job, args: &[u64]) {
        self.says(format_args!("{who}: {job:?} {args:?}"));
        self.place(who).ask(job, args);
    }

    fn wait(&self, who: usize) {
        let start = Instant::now();
        while !self.place(who).is_idle() {
            if start.elapsed() > PATIENCE {
                self.fail(&format!("process {who} does not end what it does"));
            }
            if !lives(self.place(who).pid.load(Relaxed)) && !self.place(who).is_idle() {
                self.fail(&format!("process {who} has failed"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn tell(&self, who: usize, job: Job, args: &[u64]) {
        self.ask(who, job, args);
        self.wait(who);
    }

    /// Waits until the new process at a place is there.
    fn arrives(&self, who: usize) {
        let start = Instant::now();
        while self.place(who).pid.load(Relaxed) == 0 {
            if start.elapsed() > PATIENCE {
                self.fail("a new process does not come");
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn free_place(&self) -> Option<usize> {
        let free = |w: &usize| self.place(*w).pid.load(Relaxed) == 0;
        (self.there().len() < MOST).then(|| (0..NURSERY).find(free))?
    }

    fn spawn(&mut self) {
        let Some(who) = self.free_place() else {
            return;
        };
        self.place(who).reset();
        self.has[who] = [false; REGIONS];
        self.tell(NURSERY, Job::Spawn, &[who as u64]);
        self.arrives(who);
        let fd = self.engine.pool().fd() as u64;
        self.tell(who, Job::Join, &[std::process::id().into(), fd]);
    }

    fn one_step(&mut self) {
        let there = self.there();
        if there.is_empty() {
            return self.spawn();
        }
        let who = *self.draw.of(&there);
        let region = self.draw.below(REGIONS as u64) as usize;
        match self.draw.below(100) {
            0..7 => self.spawn(),
            7..13 => self.fork(who),
            13..17 => {
                if self.has[who][region] {
                    self.tell(who, Job::Detach, &[region as u64]);
                    self.gave_up(who, region);
                }
            }
            17..20 => {
                self.tell(who, Job::Leave, &[]);
                self.is_gone(who);
            }
            20..26 => self.killed_while_idle(who),
            26..40 => self.killed_at_work(who, region),
            40..55 => self.churn(region),
            55..58 => self.tell(who, Job::Own, &[]),
            _ if !self.has[who][region] => self.get(who, region),
            _ => {
                let (job, args) = self.some_job(region);
                self.tell(who, job, &args);
                self.follow(job, &args);
            }
        }
        self.check();
    }

    /// A process attaches to a region, which is made if it does not exist.
    fn get(&mut self, who: usize, region: usize) {
        if self.regions[region].is_some() {
            self.tell(who, Job::Attach, &[region as u64]);
        } else {
            let units = self.draw.within(1..UNITS as u64 + 1);
            self.region_ends(region);
            self.tell(who, Job::Make, &[region as u64, units * UNIT as u64]);
            self.made(region, units as usize);
        }
        self.has[who][region] = true;
    }

    /// No process has a region any more: it must be gone. Memory that is kept for a child that
    /// never came stays for some seconds.
    fn region_ends(&self, region: usize) {
        let pool = self.engine.pool();
        let ended = || {
            pool.reap();
            pool.shared_table().unwrap().find(&name(region)).is_err()
        };
        if self.forking {
            self.until("a region ends", ended);
        }
        if !ended() {
            self.fail(&format!("region {region} is left"));
        }
    }

    fn made(&mut self, region: usize, units: usize) {
        let may = [ZERO; UNITS];
        self.regions[region] = Some(Model { units, may });
        let model = self.board.model(region);
        model.iter().for_each(|w| w.store(0, Relaxed));
    }

    fn gave_up(&mut self, who: usize, region: usize) {
        self.has[who][region] = false;
        if self.who_has(region).is_empty() {
            self.regions[region] = None;
        }
    }

    fn is_gone(&mut self, who: usize) {
        let place = self.place(who);
        let pid = place.pid.load(Relaxed);
        self.until("a process ends", || !lives(pid));
        place.pid.store(0, Relaxed);
        for region in 0..REGIONS {
            if self.has[who][region] {
                self.gave_up(who, region);
            }
        }
    }

    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            if start.elapsed() > PATIENCE {
                self.fail(&format!("never: {what}"));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn fork(&mut self, who: usize) {
        let Some(child) = self.free_place() else {
            return;
        };
        self.place(child).reset();
        self.tell(who, Job::Fork, &[child as u64]);
        self.arrives(child);
        self.has[child] = self.has[who];
    }

    /// A random job for a region.
    fn some_job(&mut self, region: usize) -> (Job, [u64; 4]) {
        let units = self.regions[region].as_ref().map_or(1, |m| m.units);
        let part = self.draw.part(units * UNIT);
        let (first, words) = (part.start as u64 / 8, part.len().div_ceil(8) as u64);
        let words = words.min((units * WORDS) as u64 - first);
        let unit = self.draw.below(units as u64);
        let some = 1 + self.draw.below(units as u64 - unit);
        let r = region as u64;
        self.generation += 1;
        match self.draw.below(10) {
            0..4 => (Job::Write, [r, first, words, self.generation]),
            4..6 => (Job::Compare, [r, first, words, 0]),
            6 => (Job::Compare, [r, 0, (units * WORDS) as u64, 0]),
            7 => (Job::Discard, [r, first, words, 0]),
            8 if self.draw.one_in(2) => {
                let w = WORDS as u64;
                (Job::Discard, [r, unit * w, some * w, 0])
            }
            _ => (Job::PageOut, [r, unit, some, 0]),
        }
    }

    /// Does the unit have anything but zeros?
    fn has_bytes(&self, region: usize, unit: usize) -> bool {
        let words = &self.board.model(region)[unit * WORDS..(unit + 1) * WORDS];
        words.iter().any(|w| w.load(Relaxed) != 0)
    }

    /// Updates the states that units may have after a job.
    fn follow(&mut self, job: Job, args: &[u64; 4]) {
        let region = args[0] as usize;
        let [_, first, number, _] = args.map(|n| n as usize);
        let bytes: Vec<_> = (0..UNITS).map(|u| self.has_bytes(region, u)).collect();
        let Some(model) = &mut self.regions[region] else {
            return;
        };
        for (unit, has_bytes) in bytes.into_iter().enumerate().take(model.units) {
            let (from, to) = (unit * WORDS, (unit + 1) * WORDS);
            let met = first < to && from < first + number;
            let whole = first <= from && to <= first + number;
            let was = model.may[unit];
            model.may[unit] = match job {
                Job::PageOut if !(first..first + number).contains(&unit) => was,
                Job::PageOut if has_bytes => SWAPPED,
                Job::PageOut => ZERO,
                Job::Discard if whole => ZERO,
                // What has no bytes is left alone.
                Job::Discard if met && was & ZERO != 0 => was | PRESENT,
                Job::Write | Job::Compare | Job::Discard if met => PRESENT,
                _ => was,
            };
        }
        self.reclaim();
    }

    /// Notes that units in memory may leave where memory is short.
    fn reclaim(&mut self) {
        for region in 0..REGIONS {
            for unit in 0..UNITS {
                let bytes = self.has_bytes(region, unit);
                if let Some(model) = &mut self.regions[region]
                    && !self.roomy
                    && model.may[unit] & PRESENT != 0
                {
                    model.may[unit] |= if bytes { SWAPPED } else { ZERO };
                }
            }
        }
    }

    /// Notes that anything may have happened to a region.
    fn forget(&mut self, region: usize) {
        let bytes: Vec<_> = (0..UNITS).map(|u| self.has_bytes(region, u)).collect();
        if let Some(model) = &mut self.regions[region] {
            for (may, bytes) in model.may.iter_mut().zip(bytes) {
                *may = PRESENT | if bytes { SWAPPED } else { ZERO };
            }
        }
    }

    fn killed_while_idle(&mut self, who: usize) {
        self.kill(who);
        self.is_gone(who);
    }

    fn kill(&self, who: usize) {
        let pid = self.place(who).pid.load(Relaxed);
        self.says(format_args!("{who} ({pid}): killed"));
        signal(pid, libc::SIGKILL);
    }

    /// A process is killed in the middle of a job, or just after it.
    fn killed_at_work(&mut self, who: usize, region: usize) {
        let has = self.has[who][region];
        let (job, args) = match self.draw.below(8) {
            0 if has => (Job::Detach, [region as u64, 0, 0, 0]),
            // (The place kept for a child that never came is kept for ten seconds.)
            1 if self.patient
                && let Some(child) = self.free_place() =>
            {
                self.place(child).reset();
                (Job::Fork, [child as u64, 0, 0, 0])
            }
            _ if has => self.some_job(region),
            _ if self.regions[region].is_some() => (Job::Attach, [region as u64, 0, 0, 0]),
            _ => {
                self.region_ends(region);
                (Job::Make, [region as u64, 2 * UNIT as u64, 0, 0])
            }
        };
        let had = self.has[who];
        let micros = match self.draw.below(3) {
            0 => self.draw.below(300),
            1 => self.draw.below(3000),
            _ => self.draw.below(20_000),
        };
        self.ask(who, job, &args);
        std::thread::sleep(Duration::from_micros(micros));
        self.kill(who);
        let pid = self.place(who).pid.load(Relaxed);
        self.until("a killed process ends", || !lives(pid));
        if job == Job::Fork {
            self.forking = true;
            let child = args[0] as usize;
            // It may be there: then it says so.
            let known: Vec<i32> = self.pids();
            self.until("the processes are known", || {
                let strangers = session(self.place(NURSERY).pid.load(Relaxed));
                let unknown = strangers.iter().any(|p| !known.contains(p));
                !unknown || self.place(child).pid.load(Relaxed) != 0
            });
            if self.place(child).pid.load(Relaxed) != 0 {
                self.has[child] = had;
            }
        }
        let was_changing = self.place(who).was_changing();
        self.is_gone(who);
        if let Some(c) = was_changing {
            self.settle(who, c.region);
        }
        if has && !matches!(job, Job::Fork | Job::Detach) {
            self.forget(region);
        }
    }

    /// A process that has the region reads the words that a killed process was changing.
    fn settle(&mut self, killed: usize, region: usize) {
        let all = self.who_has(region);
        if all.is_empty() {
            return self.place(killed).settled();
        }
        let reader = *self.draw.of(&all);
        self.tell(reader, Job::Settle, &[killed as u64]);
        self.forget(region);
    }

    /// Every process that has the region works on a share of it; some are killed, some stop for a
    /// moment.
    fn churn(&mut self, region: usize) {
        let all = self.who_has(region);
        if all.is_empty() {
            return;
        }
        let (seed, steps) = (self.draw.next(), self.draw.within(5..80));
        for (share, &who) in all.iter().enumerate() {
            let seed = seed.wrapping_add(2 * share as u64);
            let args = [region as u64, share as u64, all.len() as u64, seed, steps];
            self.ask(who, Job::Churn, &args);
        }
        let mut killed = Vec::new();
        for _ in 0..self.draw.below(4) {
            std::thread::sleep(Duration::from_micros(self.draw.below(10_000)));
            let who = *self.draw.of(&all);
            let pid = self.place(who).pid.load(Relaxed);
            if killed.contains(&who) {
                continue;
            }
            if self.draw.one_in(2) {
                self.says(format_args!("{who} stands still"));
                signal(pid, libc::SIGSTOP);
                std::thread::sleep(Duration::from_micros(self.draw.below(20_000)));
                signal(pid, libc::SIGCONT);
            } else {
                self.kill(who);
                killed.push(who);
            }
        }
        for &who in all.iter().filter(|w| !killed.contains(w)) {
            self.wait(who);
        }
        self.forget(region);
        killed.iter().for_each(|&who| self.is_gone(who));
        for who in killed {
            if let Some(c) = self.place(who).was_changing() {
                self.settle(who, c.region);
            }
        }
    }

    fn pids(&self) -> Vec<i32> {
        let pid = |w: usize| self.place(w).pid.load(Relaxed);
        let all = (0..PLACES).map(pid);
        all.filter(|p| *p != 0).collect()
    }
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: a process of this test's.
    let sent = unsafe { libc::kill(pid, signal) };
    assert_eq!(sent, 0);
}

/// Is a process alive, and not a zombie?
fn lives(pid: i32) -> bool {
    // Its first thread may be gone before the others.
    stat(pid).is_some_and(|s| s.threads > 1 || s.state != "Z" && s.state != "X")
}

struct Stat {
    state: String,
    session: i32,
    threads: u32,
}

fn stat(pid: i32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest: Vec<_> = text[text.rfind(')')? + 2..].split(' ').collect();
    Some(Stat {
        state: rest[0].to_owned(),
        session: rest[3].parse().ok()?,
        threads: rest[17].parse().ok()?,
    })
}

/// The processes of a session that are alive.
fn session(leader: i32) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter(|&p| stat(p).is_some_and(|s| s.session == leader && s.state != "Z"))
        .collect()
}

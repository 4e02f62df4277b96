//! Plays a phase: groups of threads work on a task's memory at the same time.

use super::job::Job;
use super::pattern::Pages;
use super::plan::{Doing, Phase};
use super::played::{Played, Present, Sample, Tally, Times};
use super::versions::{Versions, words};
use anyhow::{Context, Result};
use hugeswap_sys::mm;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What a thread has done so far; a cache line each.
#[derive(Default)]
#[repr(align(64))]
struct Progress(AtomicU64);

/// Plays a phase in `memory`, all of which has versions. The inner error is the byte of a wrong word.
pub fn play(
    versions: &Versions,
    memory: &mut [u8],
    phase: &Phase,
    tasks: u32,
) -> Result<Result<Played, usize>> {
    let words = words(memory)?;
    let counted = phase.groups.iter().any(|g| g.doing.counts_present());
    let pagemap = counted.then(|| File::open("/proc/self/pagemap"));
    let pagemap = pagemap
        .transpose()
        .context("/proc/self/pagemap cannot be read")?;
    let stop = AtomicBool::new(false);
    let ending = phase.groups.iter().filter(|g| g.doing.ends());
    let to_end = AtomicUsize::new(ending.map(|g| g.threads as usize).sum());
    let progress: Vec<Vec<Progress>> = phase
        .groups
        .iter()
        .map(|g| (0..g.threads).map(|_| Progress::default()).collect())
        .collect();
    let patterns: Vec<Option<Pages>> = phase
        .groups
        .iter()
        .map(|g| match g.doing {
            Doing::Random { pattern, .. } | Doing::Timed { pattern } => {
                Some(Pages::new(pattern, versions.range(g.part).len() as u64))
            }
            _ => None,
        })
        .collect();
    let started = Instant::now();
    let deadline = phase.seconds.map(|s| started + Duration::from_secs_f64(s));
    std::thread::scope(|s| {
        let (running, ended) = mpsc::channel::<()>();
        let mut threads = Vec::new();
        for (group, (progress, pages)) in phase.groups.iter().zip(progress.iter().zip(&patterns)) {
            for (n, progress) in progress.iter().enumerate() {
                let job = Job {
                    versions,
                    words,
                    pagemap: pagemap.as_ref(),
                    stop: &stop,
                    progress: &progress.0,
                };
                let (running, to_end) = (running.clone(), &to_end);
                threads.push(s.spawn(move || {
                    let started = Instant::now();
                    let mut times = Times::default();
                    let wrong = job.run(group, n as u32, pages.as_ref(), tasks, &mut times);
                    let was_last = || to_end.fetch_sub(1, Relaxed) == 1;
                    if wrong.is_some() || group.doing.ends() && was_last() {
                        job.stop.store(true, Relaxed);
                    }
                    drop(running);
                    (started.elapsed().as_secs_f64(), wrong, times)
                }));
            }
        }
        drop(running);
        let samples = watch(&ended, phase, &progress, started, deadline, &stop);
        let seconds = started.elapsed().as_secs_f64();
        let mut ended = threads
            .into_iter()
            .map(|t| t.join().unwrap_or((0.0, Some(0), Times::default())));
        let mut groups = Vec::new();
        for (group, progress) in phase.groups.iter().zip(&progress) {
            let mut tally = Tally {
                threads: group.threads,
                done: sum(progress),
                ..Tally::default()
            };
            for (thread_s, wrong, times) in ended.by_ref().take(progress.len()) {
                if let Some(at) = wrong {
                    return Ok(Err(at));
                }
                tally.thread_s += thread_s;
                tally.times.add(&times);
            }
            if let (Some(pagemap), true) = (&pagemap, group.doing.counts_present()) {
                tally.present = present(pagemap, &words[versions.words_of(group.part)]);
            }
            groups.push(tally);
        }
        Ok(Ok(Played {
            seconds,
            groups,
            samples,
        }))
    })
}

/// Memory that is present; `None` where the kernel (before 6.7) cannot tell.
fn present(pagemap: &File, words: &[AtomicU64]) -> Option<Present> {
    let range = words.as_ptr_range();
    let fd = pagemap.as_raw_fd();
    let (start, end) = (range.start as usize, range.end as usize);
    let bytes = mm::present_bytes(fd, start, end).ok()?;
    // The memory may change between the two calls.
    let huge_bytes = mm::huge_bytes(fd, start, end).ok()?.min(bytes);
    Some(Present { bytes, huge_bytes })
}

/// Takes samples until every thread has ended, and ends them at the deadline.
fn watch(
    ended: &mpsc::Receiver<()>,
    phase: &Phase,
    progress: &[Vec<Progress>],
    started: Instant,
    deadline: Option<Instant>,
    stop: &AtomicBool,
) -> Vec<Sample> {
    let every = Duration::from_secs_f64(phase.every_s.max(0.01));
    let mut samples = Vec::new();
    let mut next = started + every;
    let mut take = || {
        samples.push(Sample {
            at_s: started.elapsed().as_secs_f64(),
            done: progress.iter().map(|g| sum(g)).collect(),
        });
    };
    loop {
        let until = deadline.map_or(next, |d| d.min(next));
        match ended.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
        let now = Instant::now();
        if deadline.is_some_and(|d| now >= d) {
            stop.store(true, Relaxed);
            // Each thread still completes its access, however long that takes.
            let _ = ended.recv();
            break;
        }
        take();
        next = now.max(next) + every;
    }
    take();
    samples
}

fn sum(progress: &[Progress]) -> u64 {
    progress.iter().map(|p| p.0.load(Relaxed)).sum()
}

#[cfg(test)]
#[path = "phases_tests.rs"]
mod tests;

//! Descriptors that become ready when memory gets short, so that a sample is taken at once. Each is used
//! if this user may have it; without any, samples are only as frequent as their interval says.
//!
//! * Version 1: thresholds of `memory.usage_in_bytes` and the level "medium" of `memory.pressure_level`,
//!   by `cgroup.event_control`
//! * Version 2: changes of `memory.events`, and a trigger of `memory.pressure` (PSI)
//! * The machine: a trigger of `/proc/pressure/memory` (PSI)

use hugeswap_support::cgroup::{Gauge, Version};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Thresholds stand at these parts of the reserve below the limit, in quarters.
const QUARTERS: [u64; 3] = [3, 2, 1];
/// Triggers: a stall of 10 ms in a second, or 20 ms in 2 seconds, which any user may ask for.
const TRIGGERS: [&str; 2] = ["some 10000 1000000\0", "some 20000 2000000\0"];

/// One descriptor, and how it is made not ready again.
enum Waker {
    /// An eventfd: read. The file keeps the registration.
    Event {
        event: OwnedFd,
        _level: Option<File>,
    },
    /// A file of a group: read.
    Changes(File),
    /// A PSI trigger: each wait resets it.
    Pressure(File),
}

/// All descriptors of a run.
#[derive(Default)]
pub struct Wakers(Vec<Waker>);

impl Wakers {
    /// Adds what tells of a group whose memory beyond `limit - reserve` is short.
    pub fn add_group(&mut self, gauge: &Gauge, reserve: u64) {
        let group = gauge.group();
        let at = |file: &str| group.directory.join(file);
        match group.version {
            Version::One => {
                let level = File::open(at("memory.pressure_level")).ok();
                let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
                let (Ok(event), Ok(control)) = (
                    made,
                    File::options().write(true).open(at("cgroup.event_control")),
                ) else {
                    return;
                };
                let ask = |fd: i32, what: &str| {
                    let line = format!("{} {fd} {what}", event.as_raw_fd());
                    control.write_at(line.as_bytes(), 0).is_ok()
                };
                let usage = gauge.usage_file().as_raw_fd();
                let mut asked = false;
                for q in QUARTERS {
                    let threshold = group.limit.saturating_sub(reserve / 4 * q);
                    asked |= ask(usage, &threshold.to_string());
                }
                if let Some(level) = &level {
                    asked |= ask(level.as_raw_fd(), "medium");
                }
                if asked {
                    self.0.push(Waker::Event {
                        event,
                        _level: level,
                    });
                }
            }
            Version::Two => {
                if let Ok(file) = File::open(at("memory.events")) {
                    self.0.push(Waker::Changes(file));
                }
                self.add_pressure(&at("memory.pressure"));
            }
        }
    }

    /// Adds what tells of a machine that is short of memory.
    pub fn add_machine(&mut self) {
        self.add_pressure(Path::new("/proc/pressure/memory"));
    }

    fn add_pressure(&mut self, path: &Path) {
        for trigger in TRIGGERS {
            let file = File::options().read(true).write(true).open(path);
            if let Ok(file) = file
                && file.write_at(trigger.as_bytes(), 0).is_ok()
            {
                self.0.push(Waker::Pressure(file));
                return;
            }
        }
    }

    /// What to wait for.
    pub fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.0.iter().map(|w| match w {
            Waker::Event { event, .. } => PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN),
            Waker::Changes(f) | Waker::Pressure(f) => {
                PollFd::from_borrowed_fd(f.as_fd(), PollFlags::PRI)
            }
        })
    }

    /// After a wait in which the descriptors with these numbers (as in [`Wakers::poll_fds`]) became ready:
    /// makes them not ready. One that has failed (its group is gone) is not waited for any more.
    pub fn reset(&mut self, ready: &[(bool, bool)]) {
        let mut i = 0;
        self.0.retain(|w| {
            let (is_ready, has_failed) = ready.get(i).copied().unwrap_or_default();
            i += 1;
            match w {
                Waker::Event { event, .. } if is_ready => {
                    let _ = rustix::io::read(event, &mut [0; 8]);
                    true
                }
                // A file of a group always reports an error, together with a change.
                Waker::Changes(f) if is_ready || has_failed => {
                    f.read_at(&mut [0; 512], 0).is_ok() && is_ready
                }
                Waker::Pressure(_) => !has_failed,
                _ => true,
            }
        });
    }
}

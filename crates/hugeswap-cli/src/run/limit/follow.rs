//! The thread that follows the limits.

use super::decide::{Growth, Level, Pace};
use super::tree::Tree;
use super::wakers::Wakers;
use super::{Limits, Source};
use crate::explain::Message;
use crate::text;
use hugeswap_engine::pool::{MIN_MEMORY, Pool};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_policy::knobs::{Knob, small};
use hugeswap_support::cgroup::{Gauge, Usage};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time between samples while there is little room.
const SHORTEST: Duration = Duration::from_millis(4);
/// Time between samples while there is much.
const LONGEST: Duration = Duration::from_millis(100);
/// After an event the next sample is at least so long after the last one.
const AFTER_EVENT: Duration = Duration::from_millis(1);
/// The room is taken to be used up at this rate at most, bytes a millisecond.
const GROWTH: u64 = 6 << 20;
/// Samples take less than this part of the time (1/N).
const COST_SHARE: u32 = 150;
/// What a group can drop is read again when its usage has changed by this much, bytes, or after
/// [`LONGEST`].
const CHANGED: u64 = 1 << 20;

/// Time between two changes of the reserve.
const LEARN_EVERY: Duration = Duration::from_millis(500);
/// That there is no room for a budget is said when it has been so for so long. (While a process forks, some
/// memory seems to be there twice.)
const SHORT: Duration = Duration::from_millis(20);
/// The thread is to run at once when it wakes, where it may ask for that.
const NICE: i32 = -10;

/// Makes the thread end.
pub struct Stop(OwnedFd);

impl Stop {
    /// For one follower.
    pub fn new() -> std::io::Result<Stop> {
        Ok(Stop(eventfd(0, EventfdFlags::CLOEXEC)?))
    }

    /// Ends it now.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

/// How one limit is measured.
enum Measure {
    Group {
        gauge: Gauge,
        droppable: u64,
        /// The usage when `droppable` was read, and when.
        read: Option<(u64, Instant)>,
        /// How long that took.
        cost: Duration,
    },
    Tree(Tree),
    Machine {
        held: u64,
        read: Option<Instant>,
    },
}

/// A limit, and how it is measured.
struct Followed {
    level: Level,
    growth: Growth,
    measure: Measure,
}

/// Follows the limits of a run.
pub struct Follower {
    followed: Vec<Followed>,
    wakers: Wakers,
    tightest: u64,
    began: Instant,
    pace: Pace,
    learned: Option<Instant>,
    /// Since when there is no room for a budget.
    short_since: Option<Duration>,
    warned: bool,
}

impl Follower {
    /// For the tree of processes under `root`, whose pool it is.
    pub fn new(limits: &Limits, pool: &Pool, root: i32) -> Follower {
        let manages_small = pool.knob(Knob::Small) != small::OFF;
        let mut wakers = Wakers::default();
        let mut followed = Vec::new();
        for limit in &limits.0 {
            let measure = match &limit.source {
                Source::Group(group) => {
                    let Some(gauge) = Gauge::open(group) else {
                        continue;
                    };
                    wakers.add_group(&gauge, limit.reserve);
                    Measure::Group {
                        gauge,
                        droppable: 0,
                        read: None,
                        cost: Duration::ZERO,
                    }
                }
                Source::Total => Measure::Tree(Tree::new(root)),
                Source::Machine => {
                    wakers.add_machine();
                    Measure::Machine {
                        held: 0,
                        read: None,
                    }
                }
            };
            followed.push(Followed {
                measure,
                level: Level {
                    limit: limit.bytes,
                    held: 0,
                    reserve: limit.reserve,
                },
                // (Of a tree what is in use is found later, and nothing but this keeps it in its limit.)
                growth: Growth::unknown(
                    limit.bytes,
                    !manages_small || limit.source == Source::Total,
                ),
            });
        }
        Follower {
            followed,
            wakers,
            tightest: limits.tightest().bytes,
            began: Instant::now(),
            pace: Pace::default(),
            learned: None,
            short_since: None,
            warned: false,
        }
    }

    /// Sets the budget of `pool` until it is stopped.
    pub fn follow(mut self, pool: &Pool, stop: &Stop) {
        let me = rustix::thread::gettid();
        // Where that is not permitted it has to do without.
        let _ = rustix::process::setpriority_process(Some(me), NICE);
        loop {
            let (began, worked) = (Instant::now(), cpu_time());
            let room = self.sample(pool);
            let interval = interval(room, cpu_time().saturating_sub(worked));
            if self.wait(began, interval, stop) {
                return;
            }
        }
    }

    /// Waits until the next sample, which is `interval` after the one at `began`, or sooner where the
    /// kernel tells of pressure. True: stopped.
    fn wait(&mut self, began: Instant, interval: Duration, stop: &Stop) -> bool {
        let mut fds = vec![PollFd::new(&stop.0, PollFlags::IN)];
        fds.extend(self.wakers.poll_fds());
        let left = interval.saturating_sub(began.elapsed());
        // A wait that fails is only shorter; a pause follows in any case.
        let n = poll(&mut fds, Some(&timespec(left))).unwrap_or(0);
        let is = |fd: &PollFd<'_>, what| fd.revents().intersects(what);
        if is(&fds[0], PollFlags::IN) {
            return true;
        }
        if n > 0 {
            let ready: Vec<(bool, bool)> = fds[1..]
                .iter()
                .map(|fd| {
                    let ready = is(fd, PollFlags::IN | PollFlags::PRI);
                    (ready, is(fd, PollFlags::ERR | PollFlags::HUP) && !ready)
                })
                .collect();
            self.wakers.reset(&ready);
            let pause = AFTER_EVENT.saturating_sub(began.elapsed());
            let mut fds = [PollFd::new(&stop.0, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&timespec(pause)));
        }
        false
    }

    /// Measures, and moves the budget. Returns the free memory below the tightest limit.
    fn sample(&mut self, pool: &Pool) -> u64 {
        let before = pool.used_frames();
        let may_learn = self.learned.is_none_or(|l| l.elapsed() >= LEARN_EVERY);
        for f in &mut self.followed {
            f.level.held = f.measure.held(&f.level, pool);
            if may_learn && f.level.learn() {
                self.learned = Some(Instant::now());
            }
        }
        // Of frames that are charged meanwhile it is not known whether they are measured.
        let managed = before.min(pool.used_frames()) * UNIT_BYTES;
        let now = self.began.elapsed();
        let budgets = self.followed.iter_mut().map(|f| {
            f.growth.note(now, f.level.unmanaged(managed));
            (f.level.budget(managed, f.growth.reserve(now)), f.level)
        });
        let Some((target, level)) = budgets.min_by_key(|(budget, _)| *budget) else {
            return u64::MAX;
        };
        if let Some(f) = self.followed.first() {
            pool.note_limit(f.level.limit, f.level.held);
        }
        match target < MIN_MEMORY {
            true if now.saturating_sub(*self.short_since.get_or_insert(now)) >= SHORT => {
                self.warn(&level, managed);
            }
            true => {}
            false => self.short_since = None,
        }
        let budget = pool.frames() * UNIT_BYTES;
        let target = target.clamp(MIN_MEMORY, pool.ceiling_frames() * UNIT_BYTES);
        if let Some(next) = self.pace.next(now, budget, target, self.tightest) {
            pool.set_budget(next);
        }
        self.followed
            .iter()
            .map(|f| f.level.room())
            .min()
            .unwrap_or(0)
    }

    /// Says once that memory that is not managed leaves nothing.
    fn warn(&mut self, level: &Level, managed: u64) {
        if self.warned {
            return;
        }
        self.warned = true;
        let unmanaged = level.held.saturating_sub(managed);
        crate::complain(&format!(
            "memory that is not managed takes {} of the limit of {}: the budget is as small as it can be ({}), and the limit may be exceeded; give at least {} {}",
            text::bytes(unmanaged),
            text::bytes(level.limit),
            text::bytes(MIN_MEMORY),
            text::bytes((unmanaged + level.reserve + MIN_MEMORY) / 10 * 11),
            Message::LimitTooSmall,
        ));
    }
}

impl Measure {
    /// Bytes in use that stay, managed memory included.
    fn held(&mut self, level: &Level, pool: &Pool) -> u64 {
        match self {
            Measure::Group {
                gauge,
                droppable,
                read,
                cost,
            } => {
                let Some(total) = gauge.total() else {
                    return level.held;
                };
                let stale = read.is_none_or(|(was, at)| {
                    let age = at.elapsed();
                    let changed = was.abs_diff(total) > CHANGED;
                    // Near the limit the kernel drops file pages in favour of others.
                    let is_near = total > level.limit.saturating_sub(level.reserve / 2);
                    age > *cost * COST_SHARE && (changed || is_near || age > LONGEST)
                });
                if stale {
                    let worked = cpu_time();
                    *droppable = gauge.droppable().unwrap_or(*droppable);
                    *cost = cpu_time().saturating_sub(worked);
                    *read = Some((total, Instant::now()));
                }
                let droppable = *droppable;
                Usage { total, droppable }.held()
            }
            Measure::Tree(tree) => {
                let held = tree.held(pool);
                // Processes are read one after the other: what moves from one to the next meanwhile, as a
                // fork does, is counted twice. Twice in a row that is rare.
                if held > level.limit {
                    held.min(tree.held(pool))
                } else {
                    held
                }
            }
            Measure::Machine { held, read } => {
                let near = level.room() < level.reserve * 2;
                if near || read.is_none_or(|r| r.elapsed() >= LONGEST) {
                    *held = super::held_of_machine(level.limit);
                    *read = Some(Instant::now());
                }
                *held
            }
        }
    }
}

/// Processor time of this thread. (On a busy machine a sample lasts longer than it costs.)
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Time to the next sample, with so much `room`, when the last one took `cost`.
fn interval(room: u64, cost: Duration) -> Duration {
    let used_up = Duration::from_millis(room / GROWTH);
    used_up.clamp(SHORTEST, LONGEST).max(cost * COST_SHARE)
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_more_frequent_where_there_is_less_room() {
        let cheap = Duration::from_micros(5);
        assert_eq!(interval(0, cheap), SHORTEST);
        assert_eq!(interval(120 << 20, cheap), Duration::from_millis(20));
        assert_eq!(interval(u64::MAX, cheap), LONGEST);
        let dear = Duration::from_millis(1);
        assert_eq!(interval(0, dear), Duration::from_millis(150));
    }

    #[test]
    fn a_stopped_follower_ends_at_once() {
        let limits = Limits::new(vec![], Some(1 << 30), None);
        let pool = Pool::create(&hugeswap_engine::pool::PoolConfig {
            memory: 32 << 20,
            swap: vec![hugeswap_engine::pool::SwapSpec::new("/var/tmp")],
            fault_mode: Default::default(),
            settings: vec![],
        })
        .unwrap();
        pool.raise_ceiling(64 << 20);
        let stop = Stop::new().unwrap();
        stop.stop();
        let in_use = std::hint::black_box(vec![1u8; 4 << 20]);
        let follower = Follower::new(&limits, &pool, std::process::id() as i32);
        follower.follow(&pool, &stop);
        drop(in_use);
        assert_eq!(pool.followed_limit().unwrap().limit_bytes, 1 << 30);
        assert!(pool.followed_limit().unwrap().used_bytes > 1 << 20);
        // There is room, so the budget has begun to grow.
        assert!(pool.frames() * UNIT_BYTES > 32 << 20);
    }
}

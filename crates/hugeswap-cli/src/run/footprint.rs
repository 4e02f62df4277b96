//! How much memory of the program and its descendants is *not* managed, and which of these processes the
//! object is not in.
//!
//! The figures are sampled from /proc: anonymous memory (RssAnon, and its part in the kernel's swap), less
//! the frames that the pool has charged; and of shared memory at least what one process has mapped beyond
//! the pool's own. Samples are milliseconds apart at first, then a tenth of a second, and further apart
//! where a sample costs more than a hundredth of that time. Memory that a forked child shares with its
//! parent is in the figures of both: where there are several processes with much memory, their
//! proportional shares are read, which takes longer. A process that lives between two samples is not
//! seen; the kernel's record (`ru_maxrss`) is a lower bound for the largest of them.

use super::outside;
use hugeswap_engine::pool::Pool;
use hugeswap_policy::UNIT_BYTES;
use hugeswap_support::proc::{self, Status};
use hugeswap_sys::process;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Time between the first two samples; it doubles each time.
const FIRST: Duration = Duration::from_millis(2);
/// Time between samples that are cheap.
const EVERY: Duration = Duration::from_millis(100);
/// A sample takes no more than this share of the time.
const COST_SHARE: u32 = 100;
/// The largest number of processes that are followed at one time.
const MOST: usize = 1024;
/// How long after its start a program's loader may not have mapped the object yet.
const LOADING: Duration = Duration::from_millis(400);
/// The largest number of processes in a list of the report.
const OUTSIDERS: usize = 8;

/// A process of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub pid: i32,
    /// The path of its program, or its name if the path cannot be read.
    pub program: PathBuf,
    /// Its anonymous memory when most memory was not managed, bytes; less its managed memory if it joined.
    pub bytes: u64,
    /// It had joined the pool.
    pub joined: bool,
    /// Why the object is not in it; `None` if it is, or if that is not known.
    pub why: Option<String>,
}

/// The findings of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unmanaged {
    /// The largest amount of memory at one time that was not managed, bytes.
    pub peak_bytes: u64,
    /// The part of it that processes share.
    pub shared_bytes: u64,
    /// The processes that had it then, the largest first.
    pub holders: Vec<Member>,
    /// The largest amount of hugeswap's own memory beside the budget that is not in the program's
    /// processes: the pool's tables, and this process.
    pub own_bytes: u64,
    /// Processes that the object was not in.
    pub outsiders: Vec<Member>,
    /// Processes that are left in the background.
    pub left: Vec<Member>,
}

/// A process that is followed.
struct Followed {
    status: proc::StatusFile,
    program: PathBuf,
    /// When it was first seen with its program, while it is not known whether the object is in it.
    since: Option<Instant>,
    why: Option<String>,
}

/// Takes the samples; one for each run.
pub struct Footprint {
    root: i32,
    followed: HashMap<i32, Followed>,
    next: Instant,
    apart: Duration,
    seen: Unmanaged,
    /// This process's status.
    own: Option<proc::StatusFile>,
    /// The largest figures of any process, bytes; of shared memory that is not managed, with the
    /// pool's own.
    file_bytes: u64,
    shared_bytes: u64,
}

impl Footprint {
    /// Samples of process `root` and all its descendants.
    pub fn new(root: i32) -> Footprint {
        Footprint {
            root,
            followed: HashMap::new(),
            next: Instant::now(),
            apart: FIRST,
            seen: Unmanaged::default(),
            own: proc::StatusFile::open(process::pid()),
            file_bytes: 0,
            shared_bytes: 0,
        }
    }

    /// Time until the next sample is due.
    pub fn due_in(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Takes a sample if one is due.
    pub fn sample_if_due(&mut self, pool: &Pool) {
        let start = Instant::now();
        if start < self.next {
            return;
        }
        self.sample(pool);
        let cost = start.elapsed();
        self.apart = (self.apart * 2).min(EVERY).max(cost * COST_SHARE);
        self.next = Instant::now() + self.apart;
    }

    fn sample(&mut self, pool: &Pool) {
        let joined = pool.members();
        self.follow(joined.keys().copied());
        // The charged frames change meanwhile: the larger of the numbers before and after counts.
        let before = pool.used_frames();
        let all = self.read();
        let managed = before.max(pool.used_frames()) * UNIT_BYTES;
        let shared_managed = pool.shared_frames() * UNIT_BYTES;
        let all = without_shared_spaces(all);
        let own = |s: &Status| s.anonymous + s.swapped;
        let mut anonymous: u64 = all.iter().map(|(_, s)| own(s)).sum();
        let shared = all.iter().map(|(_, s)| s.shared).max().unwrap_or(0);
        let shared = shared.saturating_sub(shared_managed);
        self.shared_bytes = self.shared_bytes.max(shared);
        let tables = proc::held_by_file(pool.fd());
        let shared = shared.saturating_sub(tables);
        let compressed = pool.zswap_usage().bytes;
        let ours = tables.saturating_sub(compressed) + self.own.as_ref().map_or(0, own_anonymous);
        self.seen.own_bytes = self.seen.own_bytes.max(ours);
        let files = all.iter().map(|(_, s)| s.file).max().unwrap_or(0);
        self.file_bytes = self.file_bytes.max(files);
        let private_managed = managed.saturating_sub(shared_managed);
        let total = |anonymous: u64| anonymous.saturating_sub(private_managed) + shared;
        let worth = (pool.frames() * UNIT_BYTES / 10).max(self.seen.peak_bytes);
        if all.len() > 1 && total(anonymous) > worth {
            anonymous = all
                .iter()
                .map(|(pid, s)| proc::proportional(*pid).unwrap_or_else(|| own(s)))
                .sum();
        }
        if total(anonymous) > self.seen.peak_bytes {
            self.seen.peak_bytes = total(anonymous);
            self.seen.shared_bytes = shared;
            self.seen.holders = self.holders(&all, &joined);
        }
        self.look_for_outsiders(&all, &joined);
    }

    /// Finds new processes, by their parents or in the pool.
    fn follow(&mut self, joined: impl Iterator<Item = i32>) {
        let mut queue: Vec<i32> = self.followed.keys().copied().collect();
        queue.push(self.root);
        queue.extend(joined);
        let mut seen: HashSet<i32> = HashSet::new();
        while let Some(pid) = queue.pop() {
            if !seen.insert(pid) || seen.len() > MOST {
                continue;
            }
            if let Entry::Vacant(new) = self.followed.entry(pid) {
                let Some(status) = proc::StatusFile::open(pid) else {
                    continue;
                };
                new.insert(Followed {
                    status,
                    program: program_of(pid),
                    since: Some(Instant::now()),
                    why: None,
                });
            }
            queue.extend(proc::children(pid));
        }
    }

    /// The figures of all processes; those that have ended are no longer followed.
    fn read(&mut self) -> Vec<(i32, Status)> {
        let mut all = Vec::with_capacity(self.followed.len());
        self.followed.retain(|&pid, f| {
            let status = f.status.read();
            // A zombie has nothing, but it may have children.
            let alive = status.is_some();
            all.extend(status.map(|s| (pid, s)));
            alive
        });
        all
    }

    fn holders(&self, all: &[(i32, Status)], joined: &HashMap<i32, u64>) -> Vec<Member> {
        let mut holders: Vec<Member> = all
            .iter()
            .filter_map(|&(pid, s)| {
                let f = self.followed.get(&pid)?;
                let managed = joined.get(&pid).map_or(0, |frames| frames * UNIT_BYTES);
                Some(Member {
                    pid,
                    program: f.program.clone(),
                    bytes: (s.anonymous + s.swapped).saturating_sub(managed),
                    joined: joined.contains_key(&pid),
                    why: f.why.clone(),
                })
            })
            .collect();
        holders.sort_by_key(|m| std::cmp::Reverse(m.bytes));
        holders.truncate(OUTSIDERS);
        holders
    }

    /// Checks whether the object is in processes that did not join, with each sample until that is certain.
    fn look_for_outsiders(&mut self, all: &[(i32, Status)], joined: &HashMap<i32, u64>) {
        for &(pid, s) in all {
            let Some(f) = self.followed.get_mut(&pid) else {
                continue;
            };
            if joined.contains_key(&pid) || s.is_zombie {
                f.since = None;
                continue;
            }
            let program = program_of(pid);
            if program.parent().is_some_and(|p| p != "") && program != f.program {
                (f.program, f.since, f.why) = (program, Some(Instant::now()), None);
            }
            let Some(since) = f.since else { continue };
            let there = outside::has_object(pid);
            // A process that cannot be read is another user's, or about to end.
            let unknown = there.is_none() && s.user == hugeswap_sys::process::effective_user();
            if there == Some(true) || unknown {
                f.since = f.since.filter(|_| unknown);
                continue;
            }
            if since.elapsed() < LOADING {
                continue;
            }
            f.since = None;
            let why = outside::why_outside(pid, &s);
            f.why = Some(why.clone());
            let known = |o: &Member| o.program == f.program && o.why.as_ref() == Some(&why);
            let outsiders = &mut self.seen.outsiders;
            if outsiders.len() < OUTSIDERS && !outsiders.iter().any(known) {
                outsiders.push(Member {
                    pid,
                    program: f.program.clone(),
                    bytes: s.anonymous + s.swapped,
                    joined: false,
                    why: Some(why),
                });
            }
            for h in &mut self.seen.holders {
                if h.pid == pid {
                    h.why.clone_from(&f.why);
                }
            }
        }
    }

    /// The findings, once the program has ended; its largest process had `max_rss` bytes in memory.
    pub fn end(mut self, pool: &Pool, max_rss: u64, peak_managed_resident: u64) -> Unmanaged {
        let root = self.root;
        let least =
            max_rss.saturating_sub(self.file_bytes + self.shared_bytes + peak_managed_resident);
        self.seen.peak_bytes = self.seen.peak_bytes.max(least);
        self.follow(pool.members().into_keys());
        let joined = pool.members();
        let alive: Vec<_> = self
            .read()
            .into_iter()
            .filter(|(_, s)| !s.is_zombie)
            .collect();
        self.seen.left = self.holders(&alive, &joined);
        self.seen.left.retain(|m| m.pid != root);
        self.seen
    }
}

fn own_anonymous(status: &proc::StatusFile) -> u64 {
    status.read().map_or(0, |s| s.anonymous)
}

/// Processes that share the memory of another count with that one: a vfork child has its parent's memory
/// until it executes a program.
fn without_shared_spaces(mut all: Vec<(i32, Status)>) -> Vec<(i32, Status)> {
    let parents: HashMap<i32, Status> = all.iter().copied().collect();
    all.retain(|(_, s)| {
        let parent = parents.get(&s.parent);
        !parent.is_some_and(|p| p.is_waiting && p.size == s.size && p.anonymous == s.anonymous)
    });
    all
}

/// The path of a process's program, or else its name. Of one that the object has loaded this executable is what the
/// kernel executes, and the program is what it was called by.
fn program_of(pid: i32) -> PathBuf {
    static OWN: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::current_exe().ok());
    let program = proc::program(pid);
    if OWN.as_ref() != Some(&program) {
        return program;
    }
    match proc::arguments(pid).into_iter().next() {
        Some(name) if !name.is_empty() => name.into(),
        _ => program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(parent: i32, anonymous: u64, is_waiting: bool) -> Status {
        Status {
            parent,
            anonymous,
            is_waiting,
            size: anonymous * 2,
            ..Status::default()
        }
    }

    #[test]
    fn a_vfork_child_counts_with_its_parent() {
        let all = vec![
            (10, status(1, 100 << 20, true)),
            (11, status(10, 100 << 20, false)),
        ];
        assert_eq!(without_shared_spaces(all.clone()).len(), 1);
        let forked = vec![(10, status(1, 100 << 20, false)), all[1]];
        assert_eq!(without_shared_spaces(forked).len(), 2);
    }

    #[test]
    fn the_kernels_record_is_a_lower_bound() {
        let pool = Pool::create(&hugeswap_engine::pool::PoolConfig {
            memory: 16 << 20,
            swap: vec![hugeswap_engine::pool::SwapSpec::new("/var/tmp")],
            fault_mode: Default::default(),
            settings: vec![],
        })
        .unwrap();
        let mut f = Footprint::new(1 << 30);
        f.file_bytes = 5 << 20;
        f.seen.peak_bytes = 1 << 20;
        let seen = f.end(&pool, 100 << 20, 20 << 20);
        assert_eq!(seen.peak_bytes, 75 << 20);
        assert_eq!(seen.left, []);
    }
}

//! What a tree of processes has in memory, by /proc: anonymous memory, shared memory and page tables.
//! File pages are not counted, because the kernel drops them.
//!
//! Memory that processes share after a fork is in the figures of each. Where several have much, their
//! proportional shares are read, which takes longer.

use hugeswap_engine::pool::Pool;
use hugeswap_support::proc::{self, Status};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// The largest number of processes that are followed.
const MOST: usize = 1024;
/// Time between two searches for new processes.
const SEARCH_EVERY: Duration = Duration::from_millis(50);
/// Processes with more anonymous memory than this may share it.
const MUCH: u64 = 16 << 20;

/// Bytes that a process and its descendants have in memory now.
pub fn held_by(root: i32) -> u64 {
    let mut tree = Tree::new(root);
    tree.search(std::iter::empty());
    tree.held_by_found()
}

/// A tree of processes.
pub struct Tree {
    root: i32,
    followed: HashMap<i32, proc::StatusFile>,
    searched: Option<Instant>,
}

impl Tree {
    /// Process `root`, all its descendants, and the processes of its pool.
    pub fn new(root: i32) -> Tree {
        Tree {
            root,
            followed: HashMap::new(),
            searched: None,
        }
    }

    /// Bytes in memory now, managed memory included.
    pub fn held(&mut self, pool: &Pool) -> u64 {
        if self.searched.is_none_or(|s| s.elapsed() > SEARCH_EVERY) {
            self.search(pool.members().into_keys());
            self.searched = Some(Instant::now());
        }
        self.held_by_found()
    }

    fn held_by_found(&mut self) -> u64 {
        let mut all: Vec<(i32, Status)> = Vec::with_capacity(self.followed.len());
        self.followed.retain(|&pid, file| {
            let status = file.read();
            all.extend(status.map(|s| (pid, s)));
            status.is_some()
        });
        held(&all, proc::proportional_in_memory)
    }

    fn search(&mut self, joined: impl Iterator<Item = i32>) {
        let mut queue: Vec<i32> = self.followed.keys().copied().collect();
        queue.push(self.root);
        queue.extend(joined);
        let mut seen = HashSet::new();
        while let Some(pid) = queue.pop() {
            if !seen.insert(pid) || seen.len() > MOST {
                continue;
            }
            if let Entry::Vacant(new) = self.followed.entry(pid) {
                let Some(file) = proc::StatusFile::open(pid) else {
                    continue;
                };
                new.insert(file);
            }
            queue.extend(proc::children(pid));
        }
    }
}

/// The sum over processes. `share` reads the proportional share of one.
fn held(all: &[(i32, Status)], share: impl Fn(i32) -> Option<u64>) -> u64 {
    let tables: u64 = all.iter().map(|(_, s)| s.page_tables).sum();
    let may_share = all.iter().filter(|(_, s)| s.anonymous > MUCH).count() > 1;
    let memory = if may_share {
        let one = |(pid, s): &(i32, Status)| share(*pid).unwrap_or(s.anonymous);
        all.iter().map(one).sum()
    } else {
        let anonymous: u64 = all.iter().map(|(_, s)| s.anonymous).sum();
        anonymous + all.iter().map(|(_, s)| s.shared).max().unwrap_or(0)
    };
    memory + tables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(anonymous: u64, shared: u64, page_tables: u64) -> Status {
        Status {
            anonymous,
            shared,
            page_tables,
            ..Status::default()
        }
    }

    #[test]
    fn shares_are_read_where_several_have_much() {
        let never = |_| panic!("not to be read");
        assert_eq!(held(&[], never), 0);
        let one = [(1, status(100 << 20, 8, 4)), (2, status(1 << 20, 9, 4))];
        assert_eq!(held(&one, never), (101 << 20) + 9 + 8);
        let two = [(1, status(100 << 20, 8, 4)), (2, status(100 << 20, 8, 4))];
        let share = |pid| (pid == 1).then_some(60 << 20);
        assert_eq!(held(&two, share), (160 << 20) + 8);
    }
}

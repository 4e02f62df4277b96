//! The machine against the truth: nothing lost, nothing counted twice.

use super::Machine;
use crate::thp_swap::clusters;
use crate::unit::{CLEAN, Kind, LOCKED, WATCHED, WRITEBACK};
use crate::workingset::lru::Reclaim;

impl<R: Reclaim> Machine<R> {
    /// Compares every unit, frame and cluster with the truth; takes time in proportion to them.
    ///
    /// # Errors
    /// One line that names the first contradiction.
    pub fn check(&self) -> Result<(), String> {
        let mut holders = vec![0u32; self.map.len()];
        let (mut frames, mut clusters_used) = (0, 0);
        for (n, w) in self.words.iter().enumerate() {
            let u = n as u32;
            let fail = |what: &str| Err(format!("unit {n} ({w:?}) {what}"));
            if !w.is_consistent() {
                return fail("contradicts itself");
            }
            if let Some(cluster) = w.cluster() {
                clusters_used += 1;
                holders[cluster as usize] += 1;
            }
            let reading = w.has(LOCKED);
            let in_memory = matches!(w.kind(), Kind::Present | Kind::Cached);
            frames += u32::from(in_memory || reading);
            let held = match w.kind() {
                Kind::Present | Kind::Cached => self.memory[n],
                Kind::Swapped => self.stored[self.cluster(u)],
                _ => 0,
            };
            if held != self.truth[n] {
                return fail("lost a write");
            }
            if w.has(CLEAN) && self.stored[self.cluster(u)] != self.truth[n] {
                return fail("is called clean, and swap holds something else");
            }
            let listed = (self.active.contains(u), self.watched.contains(u));
            if listed != (in_memory && !w.has(WATCHED | WRITEBACK), w.has(WATCHED)) {
                return fail("is on the wrong list");
            }
        }
        if frames != self.frames_used || frames > self.config.budget {
            return Err(format!(
                "{frames} frames hold units, {} are counted, {} allowed",
                self.frames_used, self.config.budget
            ));
        }
        if clusters_used != self.clusters_used
            || clusters_used as usize != clusters::used(&self.map)
        {
            return Err(format!(
                "{clusters_used} units have clusters, {} are counted",
                self.clusters_used
            ));
        }
        match (0..holders.len()).find(|&i| holders[i] != clusters::count(&self.map, i)) {
            Some(i) => Err(format!(
                "cluster {i} has {} holders and another count",
                holders[i]
            )),
            None => Ok(()),
        }
    }
}

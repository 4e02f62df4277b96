//! The part of the machine that makes room: frames, write-outs, kswapd, discards.

use super::{BATCH, Io, Machine, OWNER, Sink, TORN};
use crate::UNIT_PAGES;
use crate::counters::Counter;
use crate::driver::Decision;
use crate::thp_swap::clusters;
use crate::unit::step::Event;
use crate::unit::{CLEAN, Kind, LOCKED, Place, READAHEAD, WRITABLE, WRITEBACK};
use crate::workingset::lru::Reclaim;

impl<R: Reclaim> Machine<R> {
    pub(super) fn finish_read(&mut self) {
        let Some(io) = self.reads.pop_front() else {
            return;
        };
        let n = io.unit as usize;
        self.memory[n] = self.stored[io.cluster];
        self.words[n] = self.words[n].clear(LOCKED);
        self.happens(io.unit, Event::Filled);
        self.active.insert(io.unit);
        self.count(Counter::PswpIn, UNIT_PAGES);
        self.count(Counter::ThpSwpIn, 1);
    }

    pub(super) fn finish_write(&mut self, sink: Sink<'_>) {
        let Some(io) = self.writes.pop_front() else {
            return;
        };
        let redirtied = self.words[io.unit as usize].has(WRITABLE);
        self.count(Counter::PswpOut, UNIT_PAGES);
        self.count(Counter::ThpSwpOut, 1);
        let place = Place::Cluster(io.cluster as u64);
        self.happens(io.unit, Event::Written { place });
        if redirtied {
            self.stored[io.cluster] = TORN;
            sink(Decision::Redirtied(io.unit));
            self.active.rotate(io.unit);
        } else {
            self.stored[io.cluster] = io.version;
            self.watch_or_keep(io.unit, sink);
        }
    }

    /// Takes the access of a clean unit away, unless it is pinned.
    pub(super) fn watch_or_keep(&mut self, u: u32, sink: Sink<'_>) {
        if self.words[u as usize].pins() > 0 {
            self.active.rotate(u);
        } else {
            self.happens(u, Event::Watched);
            self.watched.insert(u);
            sink(Decision::Watch(u));
        }
    }

    /// A frame for a fault, after a wait if necessary. False if none can be had.
    pub(super) fn take_frame(&mut self, sink: Sink<'_>) -> bool {
        let mut stalled = false;
        loop {
            if self.frames_used < self.config.budget {
                self.frames_used += 1;
                return true;
            }
            if self.drop_watched(sink) {
                continue;
            }
            if !stalled {
                stalled = true;
                self.count(Counter::AllocStall, 1);
                sink(Decision::Stall);
            }
            if !self.writes.is_empty() {
                self.finish_write(sink);
            } else if !self.reads.is_empty() {
                self.finish_read();
            } else if !self.shrink(BATCH as u64, sink) {
                return false;
            }
        }
    }

    /// Frees the frame of the unit that was watched for longest. False if none is watched.
    pub(super) fn drop_watched(&mut self, sink: Sink<'_>) -> bool {
        let mut oldest = [0];
        if self.watched.isolate(1, &mut oldest) == 0 {
            return false;
        }
        self.drop_frame(oldest[0], sink);
        true
    }

    /// Frees the frame of a unit whose bytes are in swap.
    pub(super) fn drop_frame(&mut self, u: u32, sink: Sink<'_>) {
        if self.words[u as usize].has(READAHEAD) {
            self.streams.on_waste(u.into());
        }
        self.happens(u, Event::FrameTaken);
        self.frames_used -= 1;
        sink(Decision::Drop(u));
    }

    /// Background reclaim: works until `high` frames are available or being cleaned.
    pub(super) fn kswapd(&mut self, sink: Sink<'_>) {
        loop {
            let coming = self.available() + self.writes.len() as u64;
            let high = self.marks.high.div_ceil(UNIT_PAGES);
            if coming >= high || !self.shrink(high - coming, sink) {
                return;
            }
        }
    }

    /// Reclaims up to `want` of the units that are next. False if no unit can be reclaimed.
    pub(super) fn shrink(&mut self, want: u64, sink: Sink<'_>) -> bool {
        let (mut scan, mut done) = (self.active.len(), 0);
        let mut batch = [0; BATCH];
        while scan > 0 && done < want {
            let most = scan.min((want - done).min(BATCH as u64) as usize);
            let n = self.active.isolate(most, &mut batch);
            scan -= n.max(1);
            for &u in &batch[..n] {
                if self.reclaim(u, sink) {
                    done += 1;
                } else {
                    self.active.rotate(u);
                }
            }
        }
        while self.config.io_steps == 0 && !self.writes.is_empty() {
            self.finish_write(sink);
        }
        done > 0
    }

    /// Begins to reclaim an isolated unit. False if it has to stay.
    pub(super) fn reclaim(&mut self, u: u32, sink: Sink<'_>) -> bool {
        let n = u as usize;
        let w = self.words[n];
        if !w.evictable() {
            return false;
        }
        if w.kind() == Kind::Cached {
            self.drop_frame(u, sink);
            return true;
        }
        if w.has(CLEAN) {
            self.count(Counter::CleanDrop, 1);
            self.watch_or_keep(u, sink);
            return true;
        }
        if self.memory[n] == 0 {
            self.happens(u, Event::WriteBegun);
            self.happens(u, Event::FoundZero);
            self.frames_used -= 1;
            sink(Decision::DropZero(u));
            return true;
        }
        let cluster = match w.cluster() {
            Some(cluster) => cluster as usize,
            None => match clusters::claim(&self.map, OWNER, self.hint) {
                Some(cluster) => {
                    self.clusters_used += 1;
                    self.hint = cluster + 1;
                    cluster
                }
                None => return false,
            },
        };
        self.happens(u, Event::Placed(Place::Cluster(cluster as u64)));
        self.happens(u, Event::WriteBegun);
        let due = self.step + self.config.io_steps;
        self.writes.push_back(Io {
            unit: u,
            cluster,
            version: self.memory[n],
            due,
        });
        sink(Decision::WriteOut(u, cluster));
        true
    }

    pub(super) fn discard(&mut self, u: u32, sink: Sink<'_>) {
        let n = u as usize;
        while self.words[n].has(LOCKED) {
            self.finish_read();
        }
        while self.words[n].has(WRITEBACK) {
            self.finish_write(sink);
        }
        self.truth[n] = 0;
        let w = self.words[n];
        if w.pins() > 0 {
            // Pinned: it keeps its frame and becomes zeros there.
            self.memory[n] = 0;
            self.happens(u, Event::Dirtied);
            return;
        }
        if matches!(w.kind(), Kind::Present | Kind::Cached) {
            self.frames_used -= 1;
        }
        self.active.remove(u);
        self.watched.remove(u);
        self.happens(u, Event::Discarded { file: None });
    }
}

//! The map of a process's memory, as `hugeswap pagemap` draws it: how much of it fits on the screen,
//! and from where.

use crate::pagemap::{self, Sign};
use hugeswap_engine::pool::Pool;
use hugeswap_engine::pool::looking::Run;
use hugeswap_policy::PAGE_BYTES;

/// How much closer a step of the zoom is.
const ZOOM: u64 = 4;

/// What was found of a process's memory.
#[derive(Default)]
pub struct Map {
    pid: i32,
    runs: Vec<Run>,
    pub error: Option<String>,
    /// Steps of the zoom.
    closer: u32,
    /// Rows above the first one that is shown.
    above: usize,
}

/// What of it is on the screen.
pub struct Part {
    pub signs: Vec<Sign>,
    /// Bytes that a sign stands for.
    pub each: u64,
    /// Bytes of the memory that is on the map.
    pub all: u64,
    /// Rows above and below.
    pub above: usize,
    pub below: usize,
}

impl Map {
    pub fn look(&mut self, pool: &Pool, pid: i32) {
        if self.pid != pid {
            *self = Map {
                pid,
                ..Map::default()
            };
        }
        match pool.look_at(pid, 0..u64::MAX) {
            Ok(runs) => (self.runs, self.error) = (runs, None),
            Err(e) => self.error = Some(format!("process {pid} does not answer: {e}")),
        }
    }

    pub fn zoom(&mut self, closer: bool) {
        let to = match closer {
            true => (self.closer + 1).min(8),
            false => self.closer.saturating_sub(1),
        };
        if to != self.closer {
            let factor = ZOOM as usize;
            // (What is at the top stays there.)
            self.above = if closer {
                self.above * factor
            } else {
                self.above / factor
            };
            self.closer = to;
        }
    }

    pub fn scroll(&mut self, by: isize) {
        self.above = self.above.saturating_add_signed(by);
    }

    /// What there is to see in so many columns and rows.
    pub fn part(&mut self, columns: usize, rows: usize) -> Part {
        let all: u64 = self.runs.iter().map(pagemap::len).sum();
        let room = (columns * rows).max(1) as u64;
        let whole = all.div_ceil(room).div_ceil(ZOOM.pow(self.closer));
        let each = whole.next_multiple_of(PAGE_BYTES).max(PAGE_BYTES);
        let signs = pagemap::signs(&self.runs, each);
        let there = signs.len().div_ceil(columns.max(1));
        self.above = self.above.min(there.saturating_sub(rows));
        let from = self.above * columns;
        let shown = signs.into_iter().skip(from).take(columns * rows).collect();
        Part {
            signs: shown,
            each,
            all,
            above: self.above,
            below: there.saturating_sub(self.above + rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugeswap_policy::markers::pagemap::{Categories, State};

    fn map(pages: u64) -> Map {
        let state = State {
            categories: Categories::PRESENT,
            swap: None,
        };
        Map {
            runs: vec![(0..pages * PAGE_BYTES, state)],
            ..Map::default()
        }
    }

    #[test]
    fn all_of_it_fits_and_the_rest_is_scrolled_to() {
        let mut map = map(1000);
        let part = map.part(10, 10);
        assert_eq!((part.signs.len(), part.above, part.below), (100, 0, 0));
        assert_eq!((part.each, part.all), (10 * PAGE_BYTES, 1000 * PAGE_BYTES));
        map.zoom(true);
        map.scroll(3);
        let part = map.part(10, 10);
        assert_eq!((part.each, part.above, part.below), (3 * PAGE_BYTES, 3, 21));
        map.scroll(1000);
        assert_eq!(map.part(10, 10).below, 0);
        (0..20).for_each(|_| map.zoom(true));
        assert_eq!(map.part(10, 10).each, PAGE_BYTES);
        (0..20).for_each(|_| map.zoom(false));
        assert_eq!(map.part(10, 10).above, 0);
    }

    #[test]
    fn nothing_is_mapped() {
        assert!(map(0).runs.iter().all(|r| pagemap::len(r) == 0));
        assert!(Map::default().part(80, 10).signs.is_empty());
        assert!(map(8).part(0, 0).signs.is_empty());
    }
}

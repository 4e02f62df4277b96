//! A process that does the jobs it is given, and checks what it finds.

use super::super::draw::Draw;
use super::board::{Board, Change, Job, Place, REGIONS, UNITS, WORDS};
use crate::util::*;
use hugeswap::{Advice, Categories, Filter, Pool, Region, SharedRegion};
use std::sync::atomic::Ordering::Relaxed;

/// The state of a unit, as [`Job::Tell`] tells it.
pub const ZERO: u8 = 1;
pub const PRESENT: u8 = 2;
pub const SWAPPED: u8 = 4;

/// The number of words in a page.
const PAGE: usize = 512;

pub struct Client {
    board: &'static Board,
    number: usize,
    pool: Option<Pool>,
    regions: [Option<SharedRegion>; REGIONS],
    own: Option<(Region, u64)>,
}

/// Runs the process at a place, to its end.
pub fn live(board: &'static Board, number: usize) -> ! {
    let client = Client {
        board,
        number,
        pool: None,
        regions: [None, None],
        own: None,
    };
    live_on(client)
}

fn live_on(mut client: Client) -> ! {
    // SAFETY: an action for a signal; children that end leave nothing behind.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    let wrong = panics(|| client.serve());
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(i32::from(wrong)) };
}

impl Client {
    fn place(&self) -> &'static Place {
        &self.board.places[self.number]
    }

    fn serve(&mut self) {
        self.place().pid.store(std::process::id() as i32, Relaxed);
        loop {
            let Some((job, args)) = self.place().next() else {
                if !hugeswap_sys::process::exists(self.board.driver.load(Relaxed)) {
                    return;
                }
                continue;
            };
            let [a, b, c, _, e] = args.map(|n| n as usize);
            match job {
                Job::Spawn => self.spawn(a),
                Job::Join => self.pool = Some(Pool::join(&format!("{a}:{b}")).unwrap()),
                Job::Make => {
                    let made = self.pool().shared(b, &name(a)).unwrap();
                    self.regions[a] = Some(made);
                }
                Job::Attach => {
                    let got = self.pool().attach_shared(&name(a)).unwrap();
                    self.regions[a] = Some(got);
                }
                Job::Detach => self.regions[a] = None,
                Job::Write => self.write(a, b, c, args[3]),
                Job::Compare => self.compare(a, b, c),
                Job::Discard => self.discard(a, b, c),
                Job::PageOut => self.page_out(a, b, c),
                Job::Tell => self.tell(a),
                Job::Fork => self.fork(a),
                Job::Churn => self.churn(a, (b, c), args[3], e),
                Job::Settle => self.settle(a),
                Job::Own => self.use_own(),
                Job::CountDescriptors => self.count_descriptors(),
                Job::Leave => {
                    self.regions = [None, None];
                    self.own = None;
                    self.pool = None;
                    self.place().end();
                    return;
                }
            }
            self.place().end();
        }
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().unwrap()
    }

    fn region(&self, region: usize) -> &SharedRegion {
        self.regions[region].as_ref().unwrap()
    }

    fn spawn(&self, place: usize) {
        let board = self.board;
        // SAFETY: this process has one thread.
        if unsafe { libc::fork() } == 0 {
            live(board, place);
        }
    }

    fn fork(&mut self, place: usize) {
        // SAFETY: the child goes on with what is prepared for that.
        match unsafe { libc::fork() } {
            0 => {
                self.number = place;
                let heir = Client {
                    board: self.board,
                    number: place,
                    pool: self.pool.take(),
                    regions: std::mem::take(&mut self.regions),
                    own: self.own.take(),
                };
                live_on(heir);
            }
            pid => assert!(pid > 0),
        }
    }

    fn write(&self, region: usize, first: usize, number: usize, generation: u64) {
        let c = Change {
            region,
            first,
            number,
            generation,
        };
        self.place().change(&c);
        let words = words(self.region(region));
        for (i, word) in words.iter().enumerate().skip(first).take(number) {
            word.store(c.new_value(i), Relaxed);
        }
        self.place().changed(self.board, &c);
    }

    fn compare(&self, region: usize, first: usize, number: usize) {
        let (found, model) = (words(self.region(region)), self.board.model(region));
        for i in first..first + number {
            let (is, want) = (found[i].load(Relaxed), model[i].load(Relaxed));
            assert!(
                is == want,
                "process {}: word {i} (unit {}, page {}) of region {region} is {is:#x}, not {want:#x}",
                self.number,
                i / WORDS,
                i % WORDS / PAGE,
            );
        }
    }

    fn discard(&mut self, region: usize, first: usize, number: usize) {
        let c = Change {
            region,
            first,
            number,
            generation: 0,
        };
        self.place().change(&c);
        let r = self.regions[region].as_mut().unwrap();
        r.remove(first * 8, number * 8).unwrap();
        self.place().changed(self.board, &c);
    }

    fn page_out_once(&mut self, region: usize, first: usize, number: usize) {
        let r = self.regions[region].as_mut().unwrap();
        let len = (number * UNIT).min(r.len() - first * UNIT);
        r.advise(first * UNIT, len, Advice::PageOut).unwrap();
    }

    fn page_out(&mut self, region: usize, first: usize, number: usize) {
        until("it leaves memory", || {
            self.page_out_once(region, first, number);
            let r = self.region(region);
            (first..first + number).all(|u| !r.is_resident(u * UNIT))
        });
    }

    /// Tells the state of each unit. All pages of a unit have the same state, also those that this
    /// process never saw.
    fn tell(&self, region: usize) {
        let r = self.region(region);
        let states = &self.place().states;
        states.iter().for_each(|s| s.store(0, Relaxed));
        let told = Categories::PRESENT | Categories::SWAPPED | Categories::ZERO;
        let filter = Filter {
            told,
            ..Filter::default()
        };
        let scanned = r.scan(0, r.len(), &filter).unwrap();
        assert_eq!(scanned.first().map(|f| f.range.start), Some(0));
        assert_eq!(
            scanned.last().map(|f| f.range.end.next_multiple_of(UNIT)),
            Some(r.len().next_multiple_of(UNIT))
        );
        for found in scanned {
            assert!(found.range.start % UNIT == 0, "a unit in parts");
            let what = match found.categories {
                Categories::PRESENT => PRESENT,
                Categories::SWAPPED => SWAPPED,
                Categories::ZERO => ZERO,
                other => panic!("{other:?}"),
            };
            let units = found.range.start / UNIT..found.range.end.div_ceil(UNIT);
            states[units].iter().for_each(|s| s.store(what, Relaxed));
        }
    }

    /// Takes random steps on its own share of a region's words: pages, or units, that no other
    /// process changes.
    fn churn(&mut self, region: usize, (share, of): (usize, usize), seed: u64, steps: usize) {
        let mut draw = Draw::new(seed);
        let units = self.region(region).len() / UNIT;
        let by_units = seed & 1 == 0;
        for _ in 0..steps {
            let (first, number) = if by_units {
                let mine = (share..units).step_by(of).count();
                if mine == 0 {
                    return;
                }
                let unit = draw.below(mine as u64) as usize * of + share;
                let page = draw.below(512) as usize;
                let pages = match draw.below(6) {
                    0 => 512 - page,
                    1 | 2 => 20.min(512 - page),
                    _ => 1,
                };
                (unit * WORDS + page * PAGE, pages * PAGE)
            } else {
                let page = draw.below((units * 512 / of) as u64) as usize * of + share;
                (page * PAGE, PAGE)
            };
            let unit = first / WORDS;
            match draw.below(24) {
                0..9 => self.write(region, first, number, 1 + draw.below(1 << 20)),
                9..18 => self.compare(region, first, number),
                18 if by_units => self.discard(region, unit * WORDS, WORDS),
                18 | 19 => self.discard(region, first + 3, PAGE - 10),
                20 => self.page_out_once(region, unit, 1 + draw.below(2) as usize),
                21 => self.look_everywhere(region, &mut draw),
                22 => self.use_own(),
                _ => {
                    // Somebody else's: it is there, whatever it is.
                    let any = draw.below((units * WORDS) as u64) as usize;
                    words(self.region(region))[any].load(Relaxed);
                }
            }
        }
    }

    fn look_everywhere(&self, region: usize, draw: &mut Draw) {
        let r = self.region(region);
        let at = draw.below(r.len() as u64) as usize;
        r.is_resident(at);
        let mut entries = [0; 64];
        r.pagemap_entries(at / 4096, &mut entries).unwrap();
        self.tell(region);
    }

    fn settle(&self, killed: usize) {
        let place = &self.board.places[killed];
        let Some(c) = place.was_changing() else {
            return;
        };
        let (found, model) = (words(self.region(c.region)), self.board.model(c.region));
        for i in c.first..c.first + c.number {
            let (is, old, new) = (
                found[i].load(Relaxed),
                model[i].load(Relaxed),
                c.new_value(i),
            );
            assert!(
                is == old || is == new,
                "word {i} (unit {}) of region {} is {is:#x}, neither {old:#x} nor {new:#x}, to which a killed process was changing it",
                i / WORDS,
                c.region
            );
            model[i].store(is, Relaxed);
        }
        place.settled();
    }

    /// Uses the private memory of this process, which must be as the process left it.
    fn use_own(&mut self) {
        let pool = self.pool.clone().unwrap();
        let own = self.own.get_or_insert_with(|| {
            let r = pool.region(2 * UNIT).unwrap();
            fill(&r, 1);
            (r, 1)
        });
        check(&own.0, own.1);
        own.1 += 1;
        fill(&own.0, own.1);
    }

    /// Checks that no thread has anything open of a region that this process has given up.
    fn count_descriptors(&self) {
        let has = |r: &Option<SharedRegion>| r.is_some();
        let kept = self.regions.iter().filter(|r| has(r)).count();
        until("descriptors of past regions are closed", || {
            memory_files_of(std::process::id())
                .iter()
                .all(|n| *n <= kept)
        });
    }
}

pub fn name(region: usize) -> String {
    format!("region {region}")
}

const _: () = assert!(UNITS * 512 < u16::MAX as usize);

//! The allocator of frames against a model: the real lists, credits, charges and order of asking,
//! over memory that is only noted down.
//!
//! After every step: no frame is lost or somebody's twice, what is counted free is free, of each
//! kind and on each node, nothing beyond the budget is charged, who may not dig into the reserve
//! did not, and who may got what there was. Then, in `storm`, the same lists under several threads.

#[path = "frames/storm.rs"]
mod storm;

use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::defrag::frames::{self, Credits, Frame, Here, Lists, Sources};
use hugeswap_policy::defrag::gfp::{BasePages, Caller, Gfp, Verdict};
use hugeswap_policy::knobs::defrag;
use hugeswap_policy::numa::Zonelists;
use hugeswap_policy::watermark::Watermarks;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

type Places = Lists<AtomicU64, Vec<AtomicU32>, AtomicU32>;

fn lists(places: u32, nodes: usize, shards: usize, set_apart: bool) -> Places {
    let all = if set_apart { places * 2 } else { places };
    let next = (0..all).map(|_| AtomicU32::new(0)).collect();
    Lists::new(|| AtomicU64::new(0), next, nodes, shards, places)
}

/// The frame of a unit: by its number, and the node it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    id: u64,
    node: u8,
}

/// What is where in one process, in truth.
#[derive(Default)]
struct Truth {
    /// By place: the frame that stands there.
    places: Vec<Option<Memory>>,
    /// Places in somebody's hands.
    held: BTreeSet<u32>,
    /// Frames of units in use, and of those that are clean and watched.
    used: Vec<Memory>,
    clean: VecDeque<Memory>,
    /// Base pages in use.
    pages: u64,
    next_id: u64,
}

struct Process {
    lists: Places,
    credits: Credits<AtomicU64>,
    charged: AtomicU64,
    truth: RefCell<Truth>,
}

impl Process {
    fn new(budget: u64, nodes: usize, shards: usize, set_apart: bool) -> Process {
        let lists = lists(budget as u32 + 8, nodes, shards, set_apart);
        let places = vec![None; lists.places() as usize];
        Process {
            lists,
            credits: Credits::default(),
            charged: AtomicU64::new(0),
            truth: RefCell::new(Truth {
                places,
                ..Truth::default()
            }),
        }
    }

    fn holds(&self, place: u32) {
        let fresh = self.truth.borrow_mut().held.insert(place);
        assert!(fresh, "place {place} was somebody's");
    }

    fn lets_go(&self, place: u32) -> Option<Memory> {
        let mut t = self.truth.borrow_mut();
        assert!(t.held.remove(&place));
        t.places[place as usize].take()
    }

    /// A frame of a unit comes to a place, as when the unit leaves.
    fn move_out(&self, here: Here, memory: Memory) -> u32 {
        let place = self.lists.take_empty(here).expect("a place for each frame");
        self.holds(place);
        self.truth.borrow_mut().places[place as usize] = Some(memory);
        place
    }

    fn put_free(&self, here: Here, place: u32, looked: bool) {
        let node = {
            let mut t = self.truth.borrow_mut();
            assert!(t.held.remove(&place));
            t.places[place as usize].expect("a frame").node
        };
        self.lists.put_free(Here { node, ..here }, place, looked);
    }
}

struct World {
    budget: u64,
    zonelists: Zonelists,
    set_apart: bool,
    processes: Vec<Process>,
}

/// One that asks.
#[derive(Clone, Copy)]
struct Thread<'a> {
    world: &'a World,
    process: &'a Process,
    here: Here,
}

impl Sources for Thread<'_> {
    type Word = AtomicU64;

    fn take_free(&self, nodes: &[u8]) -> Option<u32> {
        let place = self.process.lists.take_free(self.here, nodes)?;
        self.process.holds(place);
        Some(place)
    }

    fn take_fresh(&self) -> Option<u32> {
        let p = self.process;
        let place = match self.world.set_apart {
            true => p.lists.take_fresh(self.here)?,
            false => p.lists.take_empty(self.here)?,
        };
        assert_eq!(
            place >= p.lists.fresh_from(),
            self.world.set_apart,
            "from the right range"
        );
        p.holds(place);
        let mut t = p.truth.borrow_mut();
        t.next_id += 1;
        let memory = Memory {
            id: t.next_id,
            node: self.here.node,
        };
        let before = t.places[place as usize].replace(memory);
        assert_eq!(before, None, "place {place} was not empty");
        Some(place)
    }

    fn charge(&self) -> bool {
        let used = || self.world.used();
        frames::charge(&self.process.charged, 1, used, self.world.budget).is_some()
    }

    fn uncharge(&self) {
        self.process.charged.fetch_sub(1, Relaxed);
    }

    fn take_clean(&self, nodes: &[u8]) -> Option<u32> {
        let memory = {
            let mut t = self.process.truth.borrow_mut();
            let mut of = nodes.iter();
            let i = of.find_map(|n| t.clean.iter().position(|m| m.node == *n))?;
            t.clean.remove(i)?
        };
        Some(self.process.move_out(self.here, memory))
    }

    fn discard(&self, place: u32) {
        assert!(self.process.lets_go(place).is_some());
        self.process.lists.put_empty(self.here, place);
    }

    fn credits(&self) -> &Credits<AtomicU64> {
        &self.process.credits
    }

    fn shed(&self, left: u64) {
        assert!(left <= self.process.credits.pages());
    }
}

/// Where the next frame is to come from.
#[derive(Debug, PartialEq, Eq)]
enum Source {
    Near,
    Fresh,
    Far(u8),
    Clean(u8),
}

impl Thread<'_> {
    fn near(&self) -> &[u8] {
        self.world.zonelists.near(self.here.node)
    }

    fn far(&self) -> &[u8] {
        self.world.zonelists.far(self.here.node)
    }

    /// Pages.
    fn available(&self) -> u64 {
        let p = self.process;
        let own = p.lists.free() + p.truth.borrow().clean.len() as u64;
        (own + self.world.budget - self.world.used()) * UNIT_PAGES + p.credits.pages()
    }

    fn marks(&self) -> Watermarks {
        Watermarks::for_budget(self.world.budget)
    }

    /// What the model says of a request for a frame of `nodes`.
    fn expect(&self, nodes: &[u8]) -> Option<Source> {
        let t = self.process.truth.borrow();
        let free = |n: u8| {
            let free = |(i, m): (usize, &Option<Memory>)| {
                m.is_some_and(|m| m.node == n) && !t.held.contains(&(i as u32))
            };
            t.places.iter().enumerate().any(free)
        };
        if free(nodes[0]) {
            return Some(Source::Near);
        }
        if self.world.used() < self.world.budget || self.process.credits.frames() > 0 {
            return Some(Source::Fresh);
        }
        let far = nodes[1..].iter().copied().find(|&n| free(n));
        let clean = |n: &u8| t.clean.iter().any(|m| m.node == *n);
        far.map(Source::Far)
            .or_else(|| nodes.iter().copied().find(clean).map(Source::Clean))
    }

    /// What was got is what was to be got; it becomes a unit's.
    fn got(&self, frame: Option<Frame>, expected: Option<Source>) {
        let Some(frame) = frame else {
            return assert_eq!(expected, None, "nothing was got");
        };
        let node = self.process.truth.borrow().places[frame.place as usize]
            .expect("a frame")
            .node;
        let source = match expected.as_ref() {
            Some(Source::Near) => (self.here.node, false),
            Some(Source::Fresh) => (self.here.node, true),
            Some(Source::Far(n) | Source::Clean(n)) => (*n, false),
            None => panic!("there was nothing to get"),
        };
        assert_eq!((node, frame.zeroed), source, "{expected:?}");
        let memory = self.process.lets_go(frame.place).unwrap();
        self.process.lists.put_empty(self.here, frame.place);
        self.process.truth.borrow_mut().used.push(memory);
    }

    /// A fault that wants a huge page, with these flags.
    fn huge(&self, gfp: Gfp, may_be_pages: bool, pages_first: bool) {
        let (available, marks) = (self.available(), self.marks());
        let pages = match (
            may_be_pages,
            available > 0 || self.process.credits.pages() > 0,
        ) {
            (false, _) => BasePages::Never,
            (true, true) => BasePages::Free,
            (true, false) => BasePages::NoneFree,
        };
        let allowed = if may_be_pages {
            gfp.nodes(self.near())
        } else {
            self.near()
        };
        let expected = self.expect(allowed);
        let credits = self.process.credits.pages();
        let take = |gfp: Gfp| frames::take_frame(self, gfp.nodes(self.near()), pages_first);
        let free = || self.process.credits.pages();
        let got = frames::take_huge(gfp, (available, marks), pages, free, take);
        let reserve = if may_be_pages && !gfp.has(Gfp::MEMALLOC) {
            marks.min
        } else {
            0
        };
        match got {
            Ok(frame) => {
                assert!(available >= reserve + UNIT_PAGES, "the reserve was taken");
                self.got(Some(frame), expected);
                assert_eq!(self.available(), available - UNIT_PAGES);
            }
            Err(verdict) => {
                let all = !gfp.has(Gfp::THISNODE) || !may_be_pages;
                let enough = available >= reserve + UNIT_PAGES;
                // (Pages and frames that make a frame only together are none.)
                let whole = available - credits % UNIT_PAGES >= reserve + UNIT_PAGES;
                assert!(!whole || !all, "there was one: {verdict:?}");
                if enough {
                    assert_eq!(expected, None, "its own node had one: {verdict:?}");
                }
                match verdict {
                    Verdict::Take => panic!("neither had nor not"),
                    Verdict::BasePages => {
                        assert!(available > 0 || credits > 0, "no base pages either");
                        self.pages(1);
                    }
                    Verdict::Wait(n) => assert!(gfp.has(Gfp::DIRECT_RECLAIM) || n.is_none()),
                    Verdict::WaitForAny => assert_eq!((available, credits), (0, 0)),
                }
            }
        }
    }

    /// Base pages: had if there is anything at all.
    fn pages(&self, n: u64) {
        let (available, credits) = (self.available(), self.process.credits.pages());
        let got = frames::take_pages(self, n, self.far());
        assert_eq!(got.is_some(), credits >= n || available >= UNIT_PAGES);
        if let Some(left) = got {
            assert_eq!(left, self.process.credits.pages());
            self.process.truth.borrow_mut().pages += n;
        }
    }
}

impl World {
    fn used(&self) -> u64 {
        let charged = |p: &Process| p.charged.load(Relaxed);
        self.processes.iter().map(charged).sum()
    }

    fn check(&self) {
        assert!(self.used() <= self.budget, "beyond the budget");
        let nodes = self.zonelists.nodes();
        for p in &self.processes {
            let t = p.truth.borrow();
            let standing = t.places.iter().enumerate();
            let free: Vec<Memory> = standing
                .filter(|(i, _)| !t.held.contains(&(*i as u32)))
                .filter_map(|(_, m)| *m)
                .collect();
            let all = free.iter().chain(&t.used).chain(&t.clean);
            let frames = all.clone().count() as u64;
            let different: BTreeSet<u64> = all.map(|m| m.id).collect();
            assert_eq!(different.len() as u64, frames, "a frame is there twice");
            let charged = p.charged.load(Relaxed) * UNIT_PAGES;
            assert_eq!(
                charged,
                frames * UNIT_PAGES + t.pages + p.credits.pages(),
                "charged, and frames, pages in use, free pages"
            );
            // By the counts, and one by one.
            assert_eq!(p.lists.free(), free.len() as u64);
            let places = u64::from(p.lists.places());
            assert!(t.held.is_empty());
            assert_eq!(
                p.lists.count(),
                (free.len() as u64, places - free.len() as u64)
            );
            for node in 0..nodes as u8 {
                let there = free.iter().filter(|m| m.node == node).count();
                assert_eq!(p.lists.free_of(node), there as u64, "on node {node}");
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// A fault that wants a huge page.
    Huge {
        policy: u64,
        advised: bool,
        caller: u8,
        may_be_pages: bool,
        pages_first: bool,
    },
    /// Base pages.
    Pages(u64),
    /// A unit leaves: its frame is free, or goes back to the machine with its charge.
    Leave {
        i: usize,
        keep: bool,
    },
    /// Base pages leave.
    PagesLeave(u64),
    /// A unit becomes clean and watched; or is touched again.
    Park(usize),
    Touch(usize),
    /// A clean unit goes over to base pages, of which so many stay.
    Split(u64),
    /// So many base pages become part of a whole unit.
    Join(u64),
    /// kcompactd looks at a frame.
    Look(bool),
    /// The arena's empty places are mapped anew.
    Merge,
    /// Another process is given a frame.
    HandBack,
    /// The process dies; another one begins.
    Die,
}

fn op() -> impl Strategy<Value = Op> {
    let huge = (0..5u64, any::<bool>(), 0..5u8, any::<bool>(), any::<bool>()).prop_map(
        |(policy, advised, caller, may_be_pages, pages_first)| Op::Huge {
            policy,
            advised,
            caller,
            may_be_pages,
            pages_first,
        },
    );
    let leave = (any::<usize>(), any::<bool>()).prop_map(|(i, keep)| Op::Leave { i, keep });
    prop_oneof![
        12 => huge,
        6 => prop_oneof![Just(1), 1..16u64, 1..=UNIT_PAGES].prop_map(Op::Pages),
        5 => leave,
        3 => (1..600u64).prop_map(Op::PagesLeave),
        5 => any::<usize>().prop_map(Op::Park),
        1 => any::<usize>().prop_map(Op::Touch),
        2 => (0..UNIT_PAGES).prop_map(Op::Split),
        2 => (1..UNIT_PAGES).prop_map(Op::Join),
        2 => any::<bool>().prop_map(Op::Look),
        1 => Just(Op::Merge),
        2 => Just(Op::HandBack),
        1 => Just(Op::Die),
    ]
}

impl World {
    fn step(&self, process: usize, here: Here, op: &Op) {
        let process = &self.processes[process % self.processes.len()];
        let by = Thread {
            world: self,
            process,
            here,
        };
        let truth = || process.truth.borrow_mut();
        let nth = |of: &mut Vec<Memory>, i: usize| match of.len() {
            0 => None,
            n => Some(of.swap_remove(i % n)),
        };
        match *op {
            Op::Huge {
                policy,
                advised,
                caller,
                may_be_pages,
                pages_first,
            } => {
                assert!(policy <= defrag::NEVER);
                let gfp = match caller {
                    0 => Gfp::huge(policy, advised, Caller::FirstTouch),
                    1 => Gfp::huge(policy, advised, Caller::Collapse),
                    2 => Gfp::huge(policy, advised, Caller::Khugepaged { defrag: advised }),
                    3 => Gfp::READAHEAD,
                    _ => Gfp::USER,
                };
                by.huge(gfp, may_be_pages, pages_first);
            }
            Op::Pages(n) => by.pages(n),
            Op::Leave { i, keep } => {
                let memory = nth(&mut truth().used, i);
                match memory {
                    Some(memory) if keep => {
                        let place = process.move_out(here, memory);
                        process.put_free(here, place, false);
                    }
                    Some(_) => by.uncharge(),
                    None => {}
                }
            }
            Op::PagesLeave(n) => {
                let n = truth().pages.min(n);
                truth().pages -= n;
                process.credits.put(n);
            }
            Op::Park(i) => {
                let mut t = truth();
                let memory = nth(&mut t.used, i);
                t.clean.extend(memory);
            }
            Op::Touch(i) => {
                let mut t = truth();
                let n = t.clean.len();
                let memory = t.clean.remove(i % n.max(1));
                t.used.extend(memory);
            }
            Op::Split(keep) => {
                let memory = truth().clean.pop_front();
                if let Some(memory) = memory {
                    let place = process.move_out(here, memory);
                    by.discard(place);
                    process.credits.put(UNIT_PAGES - keep);
                    truth().pages += keep;
                }
            }
            Op::Join(n) => {
                let n = truth().pages.min(n);
                let expected = by.expect(by.near());
                let got = frames::take_frame(&by, by.near(), false);
                let done = got.is_some();
                by.got(got, expected);
                if done {
                    truth().pages -= n;
                    process.credits.put(n);
                }
            }
            Op::Look(huge) => {
                let any = process.lists.any_to_look_at();
                let got = process.lists.take_to_look_at(here);
                assert_eq!(got.is_some(), any);
                if let Some(place) = got {
                    process.holds(place);
                    process.put_free(here, place, huge);
                }
            }
            Op::Merge => {
                let mut met = BTreeSet::new();
                process.lists.each_empty(|place| {
                    assert!(met.insert(place), "met twice");
                    assert_eq!(process.truth.borrow().places[place as usize], None);
                });
            }
            Op::HandBack => {
                let own =
                    process.lists.free() + process.credits.frames() + truth().clean.len() as u64;
                let charged = process.charged.load(Relaxed);
                let given = frames::hand_back(&by, by.far());
                assert_eq!(given, own > 0);
                let now = process.charged.load(Relaxed);
                assert_eq!(now, charged - u64::from(given));
            }
            Op::Die => {
                // What it held is free for the others at once, whatever it was doing.
                process.charged.store(0, Relaxed);
                process.credits.forget();
                process.lists.reset(process.lists.fresh_from());
                let mut t = truth();
                let places = vec![None; t.places.len()];
                *t = Truth {
                    places,
                    next_id: t.next_id,
                    ..Truth::default()
                };
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn nothing_is_lost_and_nothing_is_handed_out_twice(
        budget in prop_oneof![1u64..4, 4u64..40, 40u64..300],
        processes in 1usize..4,
        nodes in prop_oneof![3 => Just(1usize), 1 => 2..9usize],
        shards in 1usize..5,
        set_apart: bool,
        ops in prop::collection::vec((0..3usize, 0..8u8, 0..4u8, op()), 1..300),
    ) {
        let world = World {
            budget,
            zonelists: Zonelists::new(nodes, |a, b| if a == b { 10 } else { 20 + (a * 3 + b * 5) as u8 % 7 }),
            set_apart,
            processes: (0..processes).map(|_| Process::new(budget, nodes, shards, set_apart)).collect(),
        };
        for (process, node, shard, op) in &ops {
            let here = Here { node: node % nodes as u8, shard: shard % shards as u8 };
            world.step(*process, here, op);
            world.check();
        }
    }
}

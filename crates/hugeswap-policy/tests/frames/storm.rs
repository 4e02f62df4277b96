//! The lists of frames under several threads.

use super::{Places, lists};
use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::defrag::frames::{self, Credits, Here, Sources};
use hugeswap_policy::numa::Zonelists;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Two processes of four threads each, at once: whoever is handed a place is its only owner, and at
/// the end all is there.
#[test]
fn many_threads_lose_nothing() {
    const BUDGET: u64 = 24;
    const STEPS: u32 = 20_000;
    const NODES: u8 = 2;
    struct Shared {
        lists: Places,
        credits: Credits<AtomicU64>,
        owned: Vec<AtomicU32>,
        node: Vec<AtomicU32>,
        charged: AtomicU64,
    }
    struct One<'a> {
        all: &'a [Shared],
        own: &'a Shared,
        here: Here,
    }
    impl One<'_> {
        fn own(&self, place: u32) {
            let before = self.own.owned[place as usize].swap(1, AcqRel);
            assert_eq!(before, 0, "place {place} is somebody's");
        }
        fn let_go(&self, place: u32) {
            assert_eq!(self.own.owned[place as usize].swap(0, AcqRel), 1);
        }
        fn put_free(&self, place: u32, looked: bool) {
            let node = self.own.node[place as usize].load(Relaxed) as u8;
            self.let_go(place);
            let here = Here { node, ..self.here };
            self.own.lists.put_free(here, place, looked);
        }
        fn used(&self) -> u64 {
            self.all.iter().map(|s| s.charged.load(Relaxed)).sum()
        }
    }
    impl Sources for One<'_> {
        type Word = AtomicU64;
        fn take_free(&self, nodes: &[u8]) -> Option<u32> {
            let place = self.own.lists.take_free(self.here, nodes)?;
            self.own(place);
            let node = self.own.node[place as usize].load(Relaxed) as u8;
            assert!(nodes.contains(&node));
            Some(place)
        }
        fn take_fresh(&self) -> Option<u32> {
            let place = self.own.lists.take_empty(self.here)?;
            self.own(place);
            self.own.node[place as usize].store(self.here.node.into(), Relaxed);
            Some(place)
        }
        fn charge(&self) -> bool {
            let got = frames::charge(&self.own.charged, 1, || self.used(), BUDGET);
            assert!(got.is_none_or(|used| used <= BUDGET));
            got.is_some()
        }
        fn uncharge(&self) {
            self.own.charged.fetch_sub(1, AcqRel);
        }
        fn take_clean(&self, _: &[u8]) -> Option<u32> {
            None
        }
        fn discard(&self, place: u32) {
            self.let_go(place);
            self.own.lists.put_empty(self.here, place);
        }
        fn credits(&self) -> &Credits<AtomicU64> {
            &self.own.credits
        }
        fn shed(&self, _: u64) {}
    }
    let all: Vec<Shared> = (0..2)
        .map(|_| Shared {
            lists: lists(BUDGET as u32 + 8, NODES.into(), 2, false),
            credits: Credits::default(),
            owned: (0..BUDGET + 8).map(|_| AtomicU32::new(0)).collect(),
            node: (0..BUDGET + 8).map(|_| AtomicU32::new(0)).collect(),
            charged: AtomicU64::new(0),
        })
        .collect();
    // Frames and pages that the threads hold at the end.
    let left: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8u8)
            .map(|t| {
                let all = &all;
                scope.spawn(move || {
                    let here = Here {
                        node: t / 2 % NODES,
                        shard: t / 4,
                    };
                    let me = One {
                        all,
                        own: &all[usize::from(t % 2)],
                        here,
                    };
                    let zonelists = Zonelists::new(NODES.into(), |_, _| 10);
                    let (near, far) = (zonelists.near(here.node), zonelists.far(here.node));
                    let (mut frames, mut pages) = (Vec::new(), 0);
                    let mut random = u64::from(t) + 1;
                    for _ in 0..STEPS {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        match random % 16 {
                            0..5 => frames.extend(frames::take_frame(&me, near, random & 64 != 0)),
                            5..7 => frames.extend(frames::take_frame(&me, &near[..1], false)),
                            7..12 if !frames.is_empty() => {
                                let i = (random >> 8) as usize % frames.len();
                                me.put_free(frames.swap_remove(i).place, random & 64 != 0);
                            }
                            12 => {
                                let n = 1 + (random >> 8) % UNIT_PAGES;
                                if frames::take_pages(&me, n, far).is_some() {
                                    pages += n;
                                }
                            }
                            13 => {
                                me.own.credits.put(pages);
                                pages = 0;
                            }
                            14 => {
                                if let Some(place) = me.own.lists.take_to_look_at(here) {
                                    me.own(place);
                                    me.put_free(place, true);
                                }
                            }
                            15 if random & 64 != 0 => {
                                frames::hand_back(&me, far);
                            }
                            15 => me.own.lists.each_empty(|place| {
                                me.own(place);
                                me.let_go(place);
                            }),
                            _ => {}
                        }
                    }
                    (frames.len() as u64, pages)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (i, s) in all.iter().enumerate() {
        let of = |f: fn(&(u64, u64)) -> u64| left.iter().skip(i).step_by(2).map(f).sum::<u64>();
        let (frames, pages) = (of(|l| l.0), of(|l| l.1));
        let (free, empty) = s.lists.count();
        assert_eq!(free, s.lists.free());
        assert_eq!(
            free + empty + frames,
            BUDGET + 8,
            "every place is somewhere"
        );
        let charged = s.charged.load(Relaxed) * UNIT_PAGES;
        assert_eq!(
            charged,
            (frames + free) * UNIT_PAGES + pages + s.credits.pages()
        );
    }
}

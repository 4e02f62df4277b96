//! Programs whose working set is known, step by step. Each runs in one thread, so that its page
//! counts are the same in every run.
//!
//! Pages are numbered from the start of the memory. A step touches one word of each page; each page
//! was written whole once before that.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A program, or a part of one. All numbers are pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// A hot set is written, and read three times.
    Hot { hot: usize },
    /// A stream is written, once, and after each piece of it the hot set is read.
    Stream {
        hot: usize,
        stream: usize,
        piece: usize,
    },
    /// Cold memory is written; hot-1 is written and made active; hot-2 is written.
    Cold(Sizes),
    /// So many times: some of the cold memory, going round, then all of hot-2.
    Thrash(Sizes, usize),
}

/// Sizes of the program that thrashes, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Cold memory.
    pub cold: usize,
    /// hot-1, and hot-2.
    pub hot: usize,
    /// Cold memory of one repeat.
    pub reads: usize,
    /// Whether a page is changed, or only read.
    pub write: bool,
}

/// How often hot-1 is touched to become active, each time after a quarter of a repeat's cold memory:
/// reclaim has to run, or a touch is not noticed.
const ACTIVATIONS: usize = 8;
/// How often the hot set is read before the stream begins.
const READ_BEFORE: usize = 3;

/// What is done to each page of a range, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The pages, in order.
    pub pages: Range<usize>,
    /// What is done to each.
    pub what: What,
}

/// What is done to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// All of it is written.
    Fill,
    /// One word is read, and verified.
    Read,
    /// One word is verified, and changed.
    Write,
}

impl Program {
    /// Pages of the whole program that this is a part of.
    pub fn pages(self) -> usize {
        match self {
            Program::Hot { hot } => hot,
            Program::Stream { hot, stream, .. } => hot + stream,
            Program::Cold(s) | Program::Thrash(s, _) => s.cold + 2 * s.hot,
        }
    }

    /// The steps.
    pub fn steps(self) -> Vec<Step> {
        let step = |pages, what| Step { pages, what };
        let touch = |write| if write { What::Write } else { What::Read };
        let mut steps = Vec::new();
        match self {
            Program::Hot { hot } => {
                steps.push(step(0..hot, What::Fill));
                steps.extend((0..READ_BEFORE).map(|_| step(0..hot, What::Read)));
            }
            Program::Stream { hot, stream, piece } => {
                for at in (hot..hot + stream).step_by(piece.max(1)) {
                    steps.push(step(at..(at + piece).min(hot + stream), What::Fill));
                    steps.push(step(0..hot, What::Read));
                }
            }
            Program::Cold(Sizes {
                cold,
                hot,
                reads,
                write,
            }) => {
                let (one, two) = (cold..cold + hot, cold + hot..cold + 2 * hot);
                steps.push(step(0..cold, What::Fill));
                steps.push(step(one.clone(), What::Fill));
                for n in 0..ACTIVATIONS {
                    steps.extend(round(cold, n, reads / 4).map(|p| step(p, touch(write))));
                    steps.push(step(one.clone(), touch(write)));
                }
                steps.push(step(two, What::Fill));
            }
            Program::Thrash(
                Sizes {
                    cold,
                    hot,
                    reads,
                    write,
                },
                repeats,
            ) => {
                for n in 0..repeats {
                    steps.extend(round(cold, n, reads).map(|p| step(p, touch(write))));
                    steps.push(step(cold + hot..cold + 2 * hot, touch(write)));
                }
            }
        }
        steps
    }
}

/// The `n`th piece of `piece` pages, going round in `all` pages: one or two ranges.
fn round(all: usize, n: usize, piece: usize) -> impl Iterator<Item = Range<usize>> {
    let piece = piece.min(all);
    let start = n * piece % all.max(1);
    let end = (start + piece).min(all);
    let rest = piece - (end - start);
    [start..end, 0..rest].into_iter().filter(|r| !r.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(steps: &[Step], what: What) -> usize {
        let steps = steps.iter().filter(|s| s.what == what);
        steps.map(|s| s.pages.len()).sum()
    }

    #[test]
    fn every_page_is_written_before_it_is_touched() {
        let sizes = Sizes {
            cold: 50,
            hot: 10,
            reads: 14,
            write: true,
        };
        let stream = Program::Stream {
            hot: 10,
            stream: 33,
            piece: 5,
        };
        let programs = [
            [Program::Hot { hot: 10 }, stream],
            [Program::Cold(sizes), Program::Thrash(sizes, 20)],
        ];
        for program in programs {
            let mut written = vec![0; program[1].pages()];
            for s in program.iter().flat_map(|p| p.steps()) {
                for page in s.pages {
                    written[page] += u32::from(s.what == What::Fill);
                    assert_eq!(written[page], 1, "{program:?}");
                }
            }
            assert!(written.iter().all(|n| *n == 1));
        }
    }

    #[test]
    fn the_program_of_the_series() {
        let pages = |mib: usize| mib << 8;
        let (cold, hot, reads) = (pages(512), pages(96), pages(128));
        let repeats = Program::Thrash(
            Sizes {
                cold,
                hot,
                reads,
                write: false,
            },
            20,
        );
        assert_eq!(repeats.pages(), pages(704));
        let steps = repeats.steps();
        assert_eq!(steps.len(), 40);
        assert_eq!(steps[0].pages, 0..pages(128));
        assert_eq!(steps[1].pages, pages(608)..pages(704));
        assert_eq!(steps[8].pages, 0..pages(128));
        assert_eq!(count(&steps, What::Read), 20 * pages(224));
        let cold = steps.iter().filter(|s| s.pages.end <= pages(512));
        assert_eq!(cold.map(|s| s.pages.len()).sum::<usize>(), 655_360);
    }

    #[test]
    fn going_round_comes_in_two_ranges_at_the_end() {
        let ranges = |n| round(10, n, 4).collect::<Vec<_>>();
        assert_eq!(ranges(1), vec![4..8]);
        assert_eq!(ranges(2), vec![8..10, 0..2]);
        assert_eq!(ranges(5), ranges(0));
    }
}

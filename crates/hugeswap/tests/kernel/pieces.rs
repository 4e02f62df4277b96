//! Units mapped by pieces of 64 KiB, where userfaultfd is refused: properties that they have in
//! common with base pages, and their own.

use crate::pages::{self, counter, swapped};
use crate::util::*;
use crate::{failure, files, forks, storm};
use hugeswap::{FaultMode, Pool};
use std::sync::atomic::Ordering::Relaxed;

const PIECE: usize = 64 << 10;

tests! {
    pieces_come_one_by_one => with_pieces(come_one_by_one),
    pieces_have_enough_mappings => with_pieces(have_enough_mappings),
    pieces_keep_to_their_mappings => with_pieces(keep_to_their_mappings),
    pieces_discarded_in_part => with_pieces(discarded_in_part),
    pieces_are_kept_by_failed_writes => with_pieces(are_kept_by_failed_writes),
    pieces_read_in_the_middle_are_not_written => with_pieces(read_in_the_middle_are_not_written),
    pieces_read_are_not_written => with_pieces(pages::pages_read_are_not_written),
    #[long]
    pieces_survive_random_work => with_pieces(pages::pages_survive_random_work),
    pieces_become_whole_when_held => with_pieces(pages::pages_become_whole_when_held),
    pieces_discarded_read_zero => with_pieces(pages::pages_discarded_read_zero),
    pieces_are_right_after_forks => with_pieces(pages::pages_are_right_after_forks),
    pieces_are_no_zeros_in_a_raw_fork => with_pieces(pages::pages_are_no_zeros_in_a_raw_fork),
    pieces_zero_cost_no_io => with_pieces(pages::pages_zero_cost_no_io),
    pieces_of_bad_swap_are_sigbus => with_pieces(pages::pages_of_bad_swap_are_sigbus),
    pieces_give_way_to_whole_units => with_pieces(pages::pages_give_way_to_whole_units),
    #[long]
    pieces_meet_the_limit_on_mappings => with_pieces(failure::limit_on_mappings),
    pieces_at_a_fork_survive_failing_writes => with_pieces(forks::failing_writes_at_a_fork_lose_nothing),
    pieces_at_a_fork_are_written_to_swap => with_pieces(forks::a_fork_writes_to_no_file_but_swap),
    pieces_of_files_agree_with_a_vector => with_pieces(files::model::files_agree_with_a_vector),
    pieces_of_files_are_read_here_and_there => with_pieces(files::files_are_read_here_and_there),
    pieces_of_files_keep_their_length => with_pieces(files::files_keep_their_length),
    pieces_of_files_are_seen_by_forked_children => with_pieces(files::files_are_seen_by_forked_children),
    #[long]
    pieces_of_files_in_a_storm => with_pieces(files::model::files_written_by_several_threads),
    #[long]
    pieces_in_a_storm_lose_no_write => with_pieces(storm::storm_over_pages),
    pieces_in_a_storm_beside_whole_units => with_pieces(storm::storm_loses_no_write),
    pieces_in_a_storm_with_forks => with_pieces(storm::storm_over_pages_with_forks),
    pieces_in_a_storm_with_discards_and_moves => with_pieces(storm::storm_with_discards_and_moves),
}

fn pool(memory: usize) -> Pool {
    pages::pool(memory, FaultMode::Signal)
}

/// Pieces that are read anywhere in their middle are not written.
fn read_in_the_middle_are_not_written() {
    let pool = pages::pool(64, FaultMode::Signal);
    let r = swapped(&pool, 8 * MIB);
    let before = pool.stats().pswpout;
    for at in (0..r.len()).step_by(PIECE) {
        let i = (at + 5 * 4096) / 8;
        assert_eq!(words(&r)[i].load(Relaxed), value(i, 1));
    }
    page_out(&r);
    assert_eq!(
        pool.stats().pswpout,
        before,
        "what was only read was written"
    );
}

fn come_one_by_one() {
    let pool = pool(64);
    let r = swapped(&pool, 32 * MIB);
    let before = pool.stats();
    let at = 5 * UNIT + 3 * PIECE + 7 * 4096;
    assert_eq!(words(&r)[at / 8].load(Relaxed), value(at / 8, 1));
    let first = 5 * UNIT + 3 * PIECE;
    assert!(
        (first..first + PIECE)
            .step_by(4096)
            .all(|p| r.is_resident(p))
    );
    assert!(!r.is_resident(first - 4096) && !r.is_resident(first + PIECE));
    let s = pool.stats();
    assert_eq!(s.pswpin - before.pswpin, 16);
    assert_eq!(s.thp_swpin, before.thp_swpin);
    check(&r, 1);
    // A write to a piece that was only read, and one to a piece that is away.
    for at in [at, 9 * UNIT] {
        words(&r)[at / 8].store(7, Relaxed);
        r.advise(0, 32 * MIB, hugeswap::Advice::PageOut).unwrap();
        assert!(!r.is_resident(at));
        assert_eq!(words(&r)[at / 8].load(Relaxed), 7);
    }
}

/// The number of mappings of this process.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

fn have_enough_mappings() {
    let pool = pool(64);
    let r = swapped(&pool, 32 * MIB);
    let before = mappings();
    // Every second piece.
    for at in (0..32 * MIB).step_by(2 * PIECE) {
        assert_eq!(words(&r)[at / 8].load(Relaxed), value(at / 8, 1));
    }
    let after = mappings();
    assert!(after > before + 256, "{before} {after}");
    r.advise(0, 32 * MIB, hugeswap::Advice::PageOut).unwrap();
    // Those of the staging area may stay apart.
    assert!(mappings() < before + 300, "{before} {}", mappings());
    check(&r, 1);
}

fn keep_to_their_mappings() {
    const BUDGET: usize = 200;
    let pool = builder(64)
        .set("thp.swapin=never")
        .set(&format!("debug.piece_mappings={BUDGET}"))
        .build()
        .unwrap();
    let r = swapped(&pool, 48 * MIB);
    let before = mappings();
    let mut most = 0;
    for round in 0..3 {
        for at in (0..48 * MIB).step_by(3 * PIECE) {
            let i = at / 8 + round;
            assert_eq!(words(&r)[i].load(Relaxed), value(i, 1));
            if at % (30 * PIECE) == 0 {
                most = most.max(mappings());
            }
        }
    }
    // Whole units and the staging area take some too.
    assert!(most < before + BUDGET + 24 * 2 + 300, "{before} {most}");
    let s = pool.stats();
    assert!(counter(&s, "thp_split_pmd") > 0, "{s:?}");
    assert!(s.thp_swpin + counter(&s, "thp_collapse_alloc") > 0, "{s:?}");
    check(&r, 1);
}

fn discarded_in_part() {
    let pool = pool(64);
    let mut r = swapped(&pool, 8 * MIB);
    // Pieces of the first unit: absent, read, written, and so on.
    for piece in 0..32 {
        let i = piece * PIECE / 8 + 5;
        match piece % 3 {
            1 => assert_eq!(words(&r)[i].load(Relaxed), value(i, 1)),
            2 => words(&r)[i].store(value(i, 1), Relaxed),
            _ => {}
        }
    }
    // From the middle of a page of a piece to the middle of one of another, twice; and whole
    // pieces.
    let gone = [
        (PIECE + 100, 2 * PIECE),
        (7 * PIECE + 4096, 3 * 4096),
        (16 * PIECE, 4 * PIECE),
    ];
    for (from, len) in gone {
        r.discard(from, len).unwrap();
    }
    let right = |r: &hugeswap::Region| {
        for (i, w) in words(r).iter().enumerate() {
            let at = i * 8;
            let inside = |&(from, len): &(usize, usize)| at >= from && at + 8 <= from + len;
            let ragged = |&(from, len): &(usize, usize)| i == from / 8 || i == (from + len) / 8;
            if gone.iter().any(ragged) && !gone.iter().any(inside) {
                continue;
            }
            let want = if gone.iter().any(inside) {
                0
            } else {
                value(i, 1)
            };
            assert_eq!(w.load(Relaxed), want, "word {i}");
        }
    };
    right(&r);
    r.advise(0, 8 * MIB, hugeswap::Advice::PageOut).unwrap();
    right(&r);
    // Written after that, and whole again.
    words(&r)[(PIECE + 8192) / 8].store(9, Relaxed);
    r.advise(0, 8 * MIB, hugeswap::Advice::PageOut).unwrap();
    let pin = r.pin(0, 8 * MIB, false).unwrap();
    assert_eq!(words(&r)[(PIECE + 8192) / 8].load(Relaxed), 9);
    drop(pin);
    words(&r)[(PIECE + 8192) / 8].store(0, Relaxed);
    right(&r);
}

fn are_kept_by_failed_writes() {
    let pool = pool(32);
    let r = swapped(&pool, 16 * MIB);
    for u in 0..8 {
        for piece in [1, 2, 9] {
            let i = (u * UNIT + piece * PIECE) / 8;
            words(&r)[i].store(value(i, 2), Relaxed);
        }
    }
    pool.set("debug.swap_write_fail=1").unwrap();
    r.advise(0, 2 * UNIT, hugeswap::Advice::PageOut).unwrap();
    for u in 0..8 {
        let i = (u * UNIT + PIECE) / 8;
        assert_eq!(words(&r)[i].load(Relaxed), value(i, 2));
        words(&r)[i].store(value(i, 1), Relaxed);
        words(&r)[i + 1].store(value(i + 1, 1), Relaxed);
    }
    pool.set("debug.swap_write_fail=0").unwrap();
    r.advise(0, 16 * MIB, hugeswap::Advice::PageOut).unwrap();
    for u in 0..8 {
        for piece in [2, 9] {
            let i = (u * UNIT + piece * PIECE) / 8;
            assert_eq!(words(&r)[i].load(Relaxed), value(i, 2));
            words(&r)[i].store(value(i, 1), Relaxed);
        }
    }
    check(&r, 1);
}

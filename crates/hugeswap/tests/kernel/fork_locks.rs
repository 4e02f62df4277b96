//! Forks while other threads of the program are in the engine: the child finds no lock held.

use crate::util::*;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

tests! {
    a_fork_amid_questions_answers_the_child,
}

/// A child can make the look-ups that other threads were making at the moment of the fork.
fn a_fork_amid_questions_answers_the_child() {
    let pool = builder(16).build().unwrap();
    let r = pool.region(8 * MIB).unwrap();
    fill(&r, 1);
    let group = pool.group("asked").unwrap();
    r.set_group(&group).unwrap();
    let ask = || {
        for _ in 0..50 {
            assert_eq!(group.stats().swap_bytes, 0);
            hugeswap_engine::handler::program_action(libc::SIGSEGV);
        }
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    ask();
                }
            });
        }
        let all_well = (0..100).all(|_| {
            let pid = child(ask);
            // (It may not even come out of fork.)
            let waiting = std::thread::spawn(move || ended(pid));
            for _ in 0..20_000 {
                if waiting.is_finished() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let signal = if waiting.is_finished() {
                0
            } else {
                libc::SIGKILL
            };
            // SAFETY: no memory is involved; it is our own child.
            unsafe { libc::kill(pid, signal) };
            waiting.join().unwrap().success()
        });
        over.store(true, Relaxed);
        assert!(all_well, "a child had no answer");
    });
    check(&r, 1);
}

//! Claims in a swap area against its being taken off, under every schedule: what is reported empty
//! has no claim that is kept. The code is the real one, over atomics that the explorer of
//! interleavings sees.

mod loom_cell;

use hugeswap_policy::cell::Cell;
use hugeswap_policy::thp_swap::area::{DRAINING, ON, State, is_to_be_emptied, may_keep};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::SeqCst;
use loom::thread;
use loom_cell::loom_cell;

/// `FENCED` false: what the protocol would be without its fences.
struct Word<const FENCED: bool>(AtomicU32);

loom_cell!(Word<FENCED>, u32, [const FENCED: bool]);

impl<const FENCED: bool> State for Word<FENCED> {
    fn fence() {
        if FENCED {
            loom::sync::atomic::fence(SeqCst);
        }
    }
}

fn explore<const FENCED: bool>() {
    loom::model(|| {
        let word = |n| Word::<FENCED>(AtomicU32::new(n));
        let area = Arc::new((word(ON), word(0)));
        let claimer = {
            let area = Arc::clone(&area);
            thread::spawn(move || {
                let (state, slot) = &*area;
                if state.get() != ON || slot.change(0, 1).is_err() {
                    return false;
                }
                let kept = may_keep(state);
                if !kept {
                    slot.put(0);
                }
                kept
            })
        };
        let emptier = {
            let area = Arc::clone(&area);
            thread::spawn(move || {
                let (state, slot) = &*area;
                is_to_be_emptied(state) && slot.get() == 0
            })
        };
        let (state, _) = &*area;
        state.change(ON, DRAINING).unwrap();
        let (kept, reported) = (claimer.join().unwrap(), emptier.join().unwrap());
        assert!(
            !(kept && reported),
            "a slot was kept in an area reported empty"
        );
    });
}

#[test]
fn what_is_reported_empty_is() {
    explore::<true>();
}

#[test]
#[should_panic(expected = "reported empty")]
fn without_fences_it_would_not_be() {
    explore::<false>();
}

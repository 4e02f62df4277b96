//! The policy under traces, without a kernel: invariants after every step, the same
//! decisions for the same trace, and what a few known patterns must cost.

use hugeswap_policy::UNIT_PAGES;
use hugeswap_policy::counters::{Counter, FaultClass};
use hugeswap_policy::driver::{Access, Config, Decision, Machine, Refused};
use hugeswap_policy::unit::Kind;
use proptest::prelude::*;

fn config(units: u32, budget: u32) -> Config {
    Config {
        units,
        budget,
        clusters: units,
        readahead_max: 8,
        io_steps: 3,
    }
}

fn access(units: u32) -> impl Strategy<Value = Access> {
    prop_oneof![
        8 => (0..units).prop_map(Access::Read),
        8 => (0..units).prop_map(Access::Write),
        1 => (0..units).prop_map(Access::Discard),
        1 => (0..units).prop_map(Access::Pin),
        2 => (0..units).prop_map(Access::Unpin),
    ]
}

/// Random accesses with runs in between, so that readahead has something to find.
fn trace(units: u32) -> impl Strategy<Value = Vec<Access>> {
    let run = (0..units, 1..units, any::<bool>(), any::<bool>()).prop_map(
        move |(from, len, down, write)| {
            (from..units.min(from + len))
                .map(|u| if down { units - 1 - u } else { u })
                .map(|u| {
                    if write {
                        Access::Write(u)
                    } else {
                        Access::Read(u)
                    }
                })
                .collect()
        },
    );
    let one = access(units).prop_map(|a| vec![a]);
    prop::collection::vec(prop_oneof![6 => one, 1 => run], 0..60).prop_map(|v| v.concat())
}

fn play(config: Config, trace: &[Access]) -> (Machine, Vec<Decision>) {
    let mut m = Machine::new(config);
    let mut said = Vec::new();
    for &a in trace {
        m.step(a, &mut |d| said.push(d))
            .unwrap_or_else(|e| panic!("{a:?}: {e}"));
        m.check().unwrap_or_else(|e| panic!("after {a:?}: {e}"));
    }
    (m, said)
}

fn rounds(units: u32, rounds: usize, write: bool) -> Vec<Access> {
    let one = (0..units).map(|u| {
        if write {
            Access::Write(u)
        } else {
            Access::Read(u)
        }
    });
    one.cycle().take(units as usize * rounds).collect()
}

/// Plays a trace and looks at everything after each step; what was wrong first.
fn invariants_hold(config: Config, trace: &[Access]) -> Result<(), String> {
    let mut m = Machine::new(config);
    let mut pins = vec![0u64; config.units as usize];
    for &a in trace {
        let result = m.step(a, &mut |_| {});
        m.check().map_err(|e| format!("after {a:?}: {e}"))?;
        if m.resident() > config.budget {
            return Err(format!("after {a:?}: more frames than there are"));
        }
        match (a, result) {
            (Access::Pin(u), Ok(_)) => pins[u as usize] += 1,
            (Access::Unpin(u), Ok(_)) => pins[u as usize] -= 1,
            // One cluster is needed to begin with; all frames held is the other excuse.
            (_, Err(Refused::OutOfMemory))
                if config.budget + config.clusters <= config.units
                    || pins.iter().any(|p| *p > 0) => {}
            (Access::Unpin(u), Err(Refused::Pins)) if pins[u as usize] == 0 => {}
            (_, Ok(_)) => {}
            (_, Err(e)) => return Err(format!("{a:?}: {e}")),
        }
        // What is held after a step is in memory. (What the step has let go of may be gone with
        // it.)
        for (u, &pins) in (0..).zip(&pins) {
            let w = m.word(u);
            if w.pins() != pins || pins > 0 && w.kind() != Kind::Present {
                return Err(format!("after {a:?}: unit {u} is held {pins} times: {w:?}"));
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn invariants_hold_after_every_step(
        trace in trace(24),
        budget in 1u32..30,
        clusters in 0u32..30,
        readahead_max in 0u32..9,
        io_steps in 0u64..6,
    ) {
        let config = Config { units: 24, budget, clusters, readahead_max, io_steps };
        let held = invariants_hold(config, &trace);
        prop_assert!(held.is_ok(), "{}", held.unwrap_err());
    }

    #[test]
    fn the_same_trace_gives_the_same_decisions(trace in trace(40), budget in 3u32..40, io_steps in 0u64..6) {
        let c = Config { units: 40, budget, clusters: 40, readahead_max: 8, io_steps };
        let replay = || {
            let mut m = Machine::new(c);
            let mut said = Vec::new();
            let results: Vec<_> = trace.iter().map(|&a| m.step(a, &mut |d| said.push(d))).collect();
            (results, said)
        };
        prop_assert_eq!(replay(), replay());
    }
}

/// Nothing is left of a unit of zeros at the end of the step that lets go of it, where memory is
/// short.
#[test]
fn zeros_that_were_held_go_at_once() {
    let config = Config {
        units: 24,
        budget: 1,
        clusters: 3,
        readahead_max: 0,
        io_steps: 0,
    };
    let trace = [Access::Pin(7), Access::Unpin(7)];
    assert_eq!(invariants_hold(config, &trace), Ok(()));
    let (m, said) = play(config, &trace);
    assert_eq!(said.last(), Some(&Decision::DropZero(7)));
    assert_eq!(m.word(7).kind(), Kind::None);
}

#[test]
fn what_fits_is_never_reclaimed() {
    let (m, said) = play(config(60, 64), &rounds(60, 4, true));
    assert_eq!(m.counter(Counter::PswpOut) + m.counter(Counter::PswpIn), 0);
    assert_eq!(m.counter(Counter::ThpFaultAlloc), 60);
    assert!(
        !said
            .iter()
            .any(|d| matches!(d, Decision::WriteOut(..) | Decision::Watch(_)))
    );
}

#[test]
fn a_sequential_pass_is_read_ahead() {
    let (m, _) = play(config(128, 64), &rounds(128, 6, true));
    let (major, read) = (m.faults(FaultClass::Major), m.counter(Counter::ThpSwpIn));
    assert!(read > 300, "{read}");
    assert!(
        major * 20 < read,
        "{major} of {read} reads were waited for in full"
    );
    assert_eq!(m.counter(Counter::PswpIn), read * UNIT_PAGES);
    assert_eq!(m.counter(Counter::AllocStall), 0);
}

#[test]
fn a_read_only_pass_writes_everything_once() {
    let mut trace = rounds(128, 1, true);
    trace.extend(rounds(128, 6, false));
    let (m, _) = play(config(128, 64), &trace);
    assert!(
        m.counter(Counter::ThpSwpOut) <= 128 + 8,
        "{}",
        m.counter(Counter::ThpSwpOut)
    );
    assert!(m.counter(Counter::CleanDrop) > 200);
}

#[test]
fn zeros_cost_no_io() {
    let (m, _) = play(config(128, 32), &rounds(128, 4, false));
    assert_eq!(m.counter(Counter::PswpOut) + m.counter(Counter::PswpIn), 0);
    assert!(m.counter(Counter::ZeroDrop) > 300);
}

#[test]
fn a_full_swap_refuses_and_loses_nothing() {
    let c = Config {
        clusters: 8,
        ..config(32, 8)
    };
    let mut m = Machine::new(c);
    let mut refused = 0;
    for u in 0..32 {
        refused += u32::from(m.step(Access::Write(u), &mut |_| {}) == Err(Refused::OutOfMemory));
        m.check().unwrap();
    }
    assert_eq!(refused, 32 - 16);
    // Giving memory back lets the rest go on.
    for u in 0..16 {
        m.step(Access::Discard(u), &mut |_| {}).unwrap();
        m.check().unwrap();
    }
    for u in 16..30 {
        m.step(Access::Write(u), &mut |_| {}).unwrap();
        m.check().unwrap();
    }
}

#[test]
fn a_hot_unit_stays() {
    // One unit is used between all others: it is watched now and then, but never read in again.
    let trace: Vec<Access> = (0..2000u32)
        .flat_map(|i| [Access::Write(1 + i * 37 % 99), Access::Write(0)])
        .collect();
    let (_, said) = play(config(100, 50), &trace);
    assert!(!said.iter().any(|d| matches!(d, Decision::SwapIn(0, _))));
}

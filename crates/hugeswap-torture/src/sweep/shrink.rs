//! From a run that fails to a smaller one that fails, too: fewer operations, threads, bytes, steps.
//!
//! Fails means: in the same way as the first. A run that hugeswap refuses to begin, for instance, says nothing of it.
//! Threads make runs differ, so a smaller run is tried several times before it is taken for one
//! that does not fail. Everything is within a time limit; what was found by then is the answer.

use super::trial::{Outcome, Place, Plan, run};
use crate::check;
use anyhow::Result;
use std::time::{Duration, Instant};

/// How often a smaller run may end as it should before it is given up.
const TRIES: usize = 3;

/// The smallest failing run that was found, and how it failed.
pub fn shrink(
    place: &Place,
    plan: &Plan,
    first: Outcome,
    limit: Duration,
) -> Result<(Plan, Outcome)> {
    let end = Instant::now() + limit;
    let (mut best, mut failed) = (plan.clone(), first);
    let mut again = true;
    while again && Instant::now() < end {
        again = false;
        for smaller in candidates(&best, &failed) {
            if Instant::now() >= end {
                break;
            }
            if let Some(outcome) = fails(place, &smaller, &failed, end)? {
                eprintln!("  also fails: {}", smaller.arguments().join(" "));
                (best, failed, again) = (smaller, outcome, true);
                break;
            }
        }
    }
    Ok((best, failed))
}

fn fails(place: &Place, plan: &Plan, like: &Outcome, end: Instant) -> Result<Option<Outcome>> {
    for _ in 0..TRIES {
        if Instant::now() >= end {
            break;
        }
        let outcome = run(place, plan)?;
        if outcome.failure.as_deref().map(way) == like.failure.as_deref().map(way) {
            return Ok(Some(outcome));
        }
    }
    Ok(None)
}

/// What two runs that fail in the same way have in common: the words of the message that have no figure in them.
fn way(failure: &str) -> String {
    let words = failure.split_whitespace();
    let plain = words.filter(|w| !w.bytes().any(|b| b.is_ascii_digit()));
    plain.collect::<Vec<_>>().join(" ")
}

/// Smaller runs, the ones that save most first.
fn candidates(plan: &Plan, failed: &Outcome) -> Vec<Plan> {
    let mut all = Vec::new();
    let mut offer = |change: &dyn Fn(&mut Plan)| {
        let mut p = plan.clone();
        change(&mut p);
        all.push(p);
    };
    // No longer than what failed took, and a little.
    let seconds = failed.took.as_secs() + 3;
    if seconds < plan.seconds {
        offer(&|p| p.seconds = seconds);
    }
    if plan.threads > 1 {
        offer(&|p| p.threads = 1);
        offer(&|p| p.threads /= 2);
    }
    let left: Vec<_> = check::operations()
        .filter(|op| !plan.without.contains(op))
        .collect();
    for part in [left.len().div_ceil(2), left.len().div_ceil(4), 1] {
        for some in left.chunks(part.max(1)) {
            offer(&|p| p.without.extend(some));
        }
    }
    if plan.bytes > 32 << 20 {
        offer(&|p| p.bytes /= 2);
    }
    let per_thread = failed.steps / plan.threads as u64;
    if plan.threads == 1 && per_thread < plan.steps / 2 {
        offer(&|p| p.steps = per_thread + per_thread / 4 + 100);
    }
    if plan.threads == 1 && plan.steps != u64::MAX && plan.skip.len() < 64 {
        // Parts of the trace, large ones first, as far as they are not left out already.
        for parts in [2u64, 4, 8, 16, 32] {
            let len = plan.steps / parts;
            for i in (0..parts).filter(|_| len > 4) {
                let part = (0, i * len, (i + 1) * len);
                let known = |&(_, a, b): &(u64, u64, u64)| a <= part.1 && b >= part.2;
                if !plan.skip.iter().any(known) {
                    offer(&|p| p.skip.push(part));
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::modes::MODES;
    use super::*;

    fn plan() -> Plan {
        Plan {
            mode: MODES[0],
            seed: 1,
            threads: 4,
            bytes: 64 << 20,
            seconds: 60,
            steps: u64::MAX,
            without: Vec::new(),
            skip: Vec::new(),
        }
    }

    fn failed(steps: u64) -> Outcome {
        Outcome {
            failure: Some("wrong".into()),
            steps,
            accesses: 0,
            range_ops: 0,
            forks: 0,
            took: Duration::from_secs(2),
        }
    }

    #[test]
    fn another_failure_is_not_the_same() {
        let free = |step: u32| {
            way(&format!(
                "exit status: 3: hugeswap-torture: process 2{step} depth 0 stream 2 step {step}: free: Invalid argument (os error 22)"
            ))
        };
        assert_eq!(free(1), free(345));
        let refused = "exit status: 2: hugeswap: swap directory /var/tmp/x has 1 MiB free, less than the size asked for";
        assert_ne!(free(1), way(refused));
    }

    #[test]
    fn every_candidate_is_smaller() {
        let size = |p: &Plan| {
            let ops = check::operations().count() - p.without.len();
            (p.seconds, p.threads, ops, p.bytes, p.steps, p.skip.len())
        };
        let all = candidates(&plan(), &failed(1000));
        assert!(all.iter().any(|p| p.threads == 1));
        assert!(all.iter().all(|p| size(p) < size(&plan())));
        // A run of one thread gets shorter, then has parts of its trace left out.
        let one = Plan {
            threads: 1,
            ..plan()
        };
        let shorter = candidates(&one, &failed(1000));
        let found = shorter.iter().find(|p| p.steps == 1350).expect("shorter");
        assert!(
            candidates(found, &failed(1000))
                .iter()
                .any(|p| p.skip == [(0, 0, 675)])
        );
    }
}

//! Users, kernels and profiles that do not permit what was asked for.

use crate::{Place, as_nobody, run_with};
use predicates::str::contains;
use std::collections::BTreeMap;

#[test]
fn message_mode_where_it_is_not_permitted() {
    let p = Place::new();
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    if allowed.is_ok_and(|v| v.trim() == "1") {
        println!("skipped: vm.unprivileged_userfaultfd=1 permits it to everybody");
        return;
    }
    let Some(mut run) = as_nobody(&p) else { return };
    p.refused(
        &mut run,
        &run_with(&["--fault-mode", "message"]),
        "--fault-mode signal",
    );
}

/// Runs `work` on a thread where the named system calls give `error`, as an old kernel or a
/// container's profile does; programs started by it inherit that.
fn without(
    calls: &[(i64, Vec<seccompiler::SeccompRule>)],
    error: i32,
    work: impl FnOnce() + Send + 'static,
) {
    use seccompiler::{SeccompAction, SeccompFilter, TargetArch};
    let rules: BTreeMap<_, _> = calls.iter().cloned().collect();
    let deny = SeccompAction::Errno(error as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, deny, TargetArch::x86_64).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    let thread = std::thread::spawn(move || {
        seccompiler::apply_filter(&program).unwrap();
        work();
    });
    thread.join().unwrap();
}

#[test]
fn message_mode_where_a_profile_forbids_userfaultfd() {
    without(&[(libc::SYS_userfaultfd, vec![])], libc::EPERM, || {
        let p = Place::new();
        p.refuses(
            &run_with(&["--fault-mode", "message"]),
            "--fault-mode signal",
        );
        p.hugeswap()
            .args(run_with(&["--fault-mode", "signal"]))
            .assert()
            .success();
    });
}

#[test]
fn a_kernel_too_old_for_any_mover() {
    use seccompiler::{
        SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq, SeccompCondition, SeccompRule,
    };
    const DONTUNMAP: u64 = 4;
    let flagged = SeccompCondition::new(3, Dword, MaskedEq(DONTUNMAP), DONTUNMAP).unwrap();
    let mremap = (
        libc::SYS_mremap,
        vec![SeccompRule::new(vec![flagged]).unwrap()],
    );
    without(
        &[mremap, (libc::SYS_userfaultfd, vec![])],
        libc::EINVAL,
        || {
            let p = Place::new();
            for mode in ["auto", "signal"] {
                p.refuses(&run_with(&["--fault-mode", mode]), "use Linux 5.7 or later");
            }
            p.refuses(
                &run_with(&["--fault-mode", "message"]),
                "use Linux 6.8 or later",
            );
            p.hugeswap()
                .arg("doctor")
                .assert()
                .code(1)
                .stdout(contains("not usable here: see mremap mover"));
        },
    );
}

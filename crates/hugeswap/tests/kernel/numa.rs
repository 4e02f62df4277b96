//! Memory of several nodes. The nodes are pretended (`debug.numa_fake`), because the machines that
//! run these tests have one.

use crate::storm::count_up_for;
use crate::util::*;
use hugeswap::{Advice, Pool, Region};
use hugeswap_policy::numa::{divided, numbers};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

tests! {
    numa_first_touch_is_local,
    numa_frames_go_back_to_their_node,
    numa_falls_back_by_distance,
    numa_who_does_not_wait_stays,
    numa_readahead_knows_for_whom,
    #[long]
    numa_storm,
    numa_one_node_counts_nothing,
    numa_the_kernel_tells,
}

/// Duration of the storm in each mode.
const TIME: Duration = Duration::from_millis(500);

/// The processors that this process may use.
fn allowed() -> Vec<usize> {
    // SAFETY: zeros are an empty set, and the call writes within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize)
            .filter(|&c| libc::CPU_ISSET(c, &set))
            .collect()
    }
}

fn run_on(cpus: &[usize]) {
    // SAFETY: as in `allowed`.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|&c| libc::CPU_SET(c, &mut set));
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

/// A processor of the first and one of the last of so many pretended nodes that have any; skips the
/// test if there is only one processor.
fn two_nodes(nodes: usize) -> [(usize, usize); 2] {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let cpus = numbers(&online).max().unwrap() + 1;
    let mut of: Vec<_> = allowed()
        .into_iter()
        .map(|cpu| (cpu, usize::from(divided(cpu, cpus, nodes))))
        .collect();
    of.dedup_by_key(|(_, node)| *node);
    match (of.first(), of.last()) {
        (Some(a), Some(b)) if a != b => [*a, *b],
        _ => skip("all processors that may be used are one node's"),
    }
}

fn pool(memory: usize, nodes: usize) -> Pool {
    let pool = builder(memory).set(&format!("debug.numa_fake={nodes}"));
    // Nothing but faults takes frames, and those on swap take whole ones.
    pool.set("khugepaged.pages_to_scan=0")
        .set("thp.swapin=always")
        .set("readahead.max=0")
        .build()
        .unwrap()
}

/// The counters `numa_hit`, `numa_miss`, `numa_foreign`, `numa_local` and `numa_other`.
fn counted(pool: &Pool) -> [u64; 5] {
    ["hit", "miss", "foreign", "local", "other"].map(|n| counter(pool, &format!("numa_{n}")))
}

/// The number of units that are in huge pages of each of two nodes.
fn on(r: &Region, nodes: [usize; 2]) -> [usize; 2] {
    let of = |n| {
        (0..r.len())
            .step_by(UNIT)
            .filter(|&at| r.numa_node(at) == Some(n))
            .count()
    };
    nodes.map(of)
}

/// The first touch takes memory of the local node. If there are more than two nodes, the others
/// have only memory, or processors that are not used here.
fn numa_first_touch_is_local() {
    let cpus = allowed();
    for nodes in [2, 4, 8] {
        run_on(&cpus);
        let [(a, first), (b, last)] = two_nodes(nodes);
        let pool = pool(128, nodes);
        let mut all = Vec::new();
        for (cpu, node) in [(a, first), (b, last)] {
            run_on(&[cpu]);
            let r = pool.region(8 * UNIT).unwrap();
            fill(&r, 1);
            let other = first + last - node;
            assert_eq!(on(&r, [node, other]), [8, 0], "of {nodes} nodes");
            all.push(r);
        }
        assert_eq!(counted(&pool), [16, 0, 0, 16, 0]);
        all.iter().for_each(|r| check(r, 1));
    }
}

fn numa_frames_go_back_to_their_node() {
    let [(a, first), (b, last)] = two_nodes(2);
    let pool = pool(128, 2);
    run_on(&[a]);
    let r = pool.region(8 * UNIT).unwrap();
    fill(&r, 1);
    run_on(&[b]);
    let s = pool.region(8 * UNIT).unwrap();
    fill(&s, 2);
    // Now they are free, those of the last node at last.
    page_out(&r);
    page_out(&s);
    // Each comes back to who asks: from the free frames of that node.
    for _ in 0..3 {
        let before = counted(&pool);
        run_on(&[a]);
        check(&s, 2);
        assert_eq!(on(&s, [first, last]), [8, 0]);
        run_on(&[b]);
        check(&r, 1);
        assert_eq!(on(&r, [first, last]), [0, 8]);
        let now = counted(&pool);
        assert_eq!(now[0] - before[0], 16);
        assert_eq!([now[1], now[2], now[4]], [0, 0, 0]);
        page_out(&s);
        page_out(&r);
    }
    no_harm(&pool);
}

/// Makes all free frames of the pool those of one node; the rest of the budget is less than what is
/// touched on the other node. Returns the region that held the frames.
fn most_on_the_first(pool: &Pool, cpu: usize) -> Region {
    run_on(&[cpu]);
    let r = pool.region(40 * UNIT).unwrap();
    fill(&r, 1);
    page_out(&r);
    r
}

fn numa_falls_back_by_distance() {
    let [(a, first), (b, last)] = two_nodes(2);
    let pool = pool(128, 2);
    let r = most_on_the_first(&pool, a);
    run_on(&[b]);
    // Advised: such memory is waited for, so it may be another node's.
    let s = pool.region(44 * UNIT).unwrap();
    s.advise(0, s.len(), Advice::HugePage).unwrap();
    let before = counted(&pool);
    fill(&s, 2);
    let [far, near] = on(&s, [first, last]);
    assert!(near >= 20 && far >= 16, "near {near}, far {far}");
    assert_eq!(near + far, 44);
    let now = counted(&pool);
    let more: Vec<_> = now.iter().zip(before).map(|(n, b)| n - b).collect();
    let (near, far) = (near as u64, far as u64);
    assert_eq!(more, [near, far, far, near, far]);
    for stall in ["allocstall", "compact_stall"] {
        assert_eq!(counter(&pool, stall), 0, "{stall}");
    }
    check(&s, 2);
    check(&r, 1);
    no_harm(&pool);
}

/// A fault that does not wait for a huge page takes none of another node; it takes base pages,
/// which are near. No room is made on a node for that.
fn numa_who_does_not_wait_stays() {
    need_pages();
    let [(a, _), (b, last)] = two_nodes(2);
    let pool = pool(128, 2);
    let r = most_on_the_first(&pool, a);
    run_on(&[b]);
    let s = pool.region(40 * UNIT).unwrap();
    fill(&s, 2);
    let near = on(&s, [last, last])[0];
    assert!((20..40).contains(&near), "{near} near");
    let fell_back = counter(&pool, "thp_fault_fallback");
    assert_eq!(fell_back + near as u64, 40);
    assert_eq!(counted(&pool)[1..3], [0, 0]);
    assert_eq!(counted(&pool)[4], 0);
    for woken in ["allocstall", "compact_stall", "compact_daemon_wake"] {
        assert_eq!(counter(&pool, woken), 0, "{woken}");
    }
    check(&s, 2);
    check(&r, 1);
    no_harm(&pool);
}

/// Memory that an I/O thread brings in ahead, wherever the thread runs, goes to the node of the
/// thread that will need it.
fn numa_readahead_knows_for_whom() {
    let [(a, _), (b, last)] = two_nodes(2);
    let pool = pool(256, 2);
    pool.set("readahead.max=8").unwrap();
    // More frames are free on either node than are needed.
    let all = [(a, 16), (b, 24)].map(|(cpu, units)| {
        run_on(&[cpu]);
        let r = pool.region(units * UNIT).unwrap();
        fill(&r, 1);
        r
    });
    all.iter().for_each(|r| page_out(r));
    let r = &all[0];
    run_on(&[b]);
    let before = counted(&pool);
    check(r, 1);
    // (The last of them may still be on their way when the others have been read.)
    until("what is read ahead", || on(r, [last, last])[0] == 16);
    let now = counted(&pool);
    assert_eq!(now[1..3], before[1..3], "none from elsewhere");
    assert!(counter(&pool, "swap_ra_hit") > 0);
}

/// Threads change their processors, fork, and see evictions all the time: nothing is lost, and no
/// thread waits forever.
fn numa_storm() {
    both_modes(|mode| {
        let cpus = allowed();
        let pool = builder(48)
            .fault_mode(mode)
            .set("debug.numa_fake=4")
            .set("debug.storm=20")
            .build()
            .unwrap();
        let end = Instant::now() + TIME;
        std::thread::scope(|s| {
            s.spawn(|| {
                // It touches from one processor, then from another.
                let r = pool.region(12 * UNIT).unwrap();
                let page = |i: usize, g: usize| (&words(&r)[i * 512], value(i, g as u64));
                for g in 0.. {
                    for i in 0..r.len() / 4096 {
                        if i % 512 == 0 {
                            run_on(&[cpus[(g + i / 512) % cpus.len()]]);
                        }
                        let ((word, new), (_, old)) = (page(i, g + 1), page(i, g));
                        let before = word.swap(new, Relaxed);
                        assert_eq!(before, if g == 0 { 0 } else { old }, "page {i}");
                        if Instant::now() > end {
                            return;
                        }
                    }
                }
            });
            s.spawn(|| {
                while Instant::now() < end {
                    assert!(in_child(|| ()).success());
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            count_up_for(&pool, 24 * UNIT, TIME);
        });
        let [hit, miss, foreign, local, other] = counted(&pool);
        assert!(hit > 0);
        assert_eq!((miss, hit + miss), (foreign, local + other));
        no_harm(&pool);
    });
}

fn numa_one_node_counts_nothing() {
    let online = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    if numbers(&online).count() > 1 {
        skip("this machine has several nodes");
    }
    let pool = builder(32).build().unwrap();
    three_rounds(&pool, 24 * UNIT);
    assert_eq!(counted(&pool), [0; 5]);
    let r = pool.region(2 * UNIT).unwrap();
    words(&r)[0].store(1, Relaxed);
    assert_eq!((r.numa_node(0), r.numa_node(2 * UNIT)), (Some(0), None));
}

/// The kernel tells the node of memory that is present, whatever its access, and of no other
/// memory.
fn numa_the_kernel_tells() {
    use hugeswap_sys::mm;
    let at = mm::map_own(2 * UNIT, mm::PROT_RW).unwrap();
    if !mm::populate(at, 4096) {
        skip("memory cannot be populated");
    }
    let Some(node) = mm::node_of(at) else {
        skip("the kernel does not tell");
    };
    let online = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or("0".into());
    assert!(numbers(&online).any(|n| n == node), "{node} of {online}");
    assert_eq!(mm::node_of(at + UNIT), None, "what was never touched");
    // SAFETY: nobody touches it.
    unsafe { mm::protect(at, UNIT, mm::PROT_NONE) }.unwrap();
    assert_eq!(mm::node_of(at), Some(node), "what is watched");
    // SAFETY: as above.
    unsafe { mm::unmap(at, 2 * UNIT) }.unwrap();
    assert_eq!(mm::node_of(at), None, "what is gone");
}

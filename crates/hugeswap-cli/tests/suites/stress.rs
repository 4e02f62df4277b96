//! stress-ng's stressors of memory and processes, which check what they read (`--verify`).
//!
//! The test is a stressor; its outcome the exit status, and what it calls a failure. Each has a number of operations that
//! it reaches in about a second, and a time limit in case it does not.

use crate::compare::*;
use crate::util::*;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// A stressor, its operations, and other arguments. By groups, each of which is a case; the first is in the slice.
type Stressor = (&'static str, u32, &'static str);

const SLICE: &[Stressor] = &[
    ("vm", 200, "--vm-bytes 32M"),
    ("mmap", 10, "--mmap-bytes 8M"),
    ("mremap", 20, "--mremap-bytes 4M"),
    ("pagemove", 3, "--pagemove-bytes 2M"),
    ("mprotect", 2000, ""),
    ("madvise", 4, ""),
    ("memfd", 5, "--memfd-bytes 8M"),
    ("fork", 100, ""),
    ("malloc", 1000, "--malloc-bytes 2M"),
    ("mincore", 500, ""),
    ("userfaultfd", 20, "--userfaultfd-bytes 1M"),
    ("vm-segv", 20, ""),
    ("bad-altstack", 50, ""),
    ("kcmp", 20, ""),
];

const VM: &[Stressor] = &[
    ("vm", 2000, "--vm-bytes 96M"),
    ("vm", 200, "--vm-bytes 64M --vm-keep --vm-populate"),
    ("vm", 200, "--vm-bytes 64M --vm-locked"),
    ("vm", 200, "--vm-bytes 64M --vm-madvise hugepage"),
    ("vm", 200, "--vm-bytes 64M --vm-madvise nohugepage"),
    ("vm", 200, "--vm-bytes 64M --vm-madvise mergeable"),
    ("vm-addr", 5, ""),
    ("vm-rw", 20, "--vm-rw-bytes 8M"),
    ("vm-splice", 200, "--vm-splice-bytes 1M"),
    ("vm-segv", 50, ""),
    ("memrate", 4, "--memrate-bytes 96M"),
    ("memthrash", 10, ""),
    ("memcpy", 100, ""),
    ("stream", 1, ""),
    ("rmap", 100, ""),
    ("full", 500, ""),
    ("zero", 20000, ""),
    ("null", 20000, ""),
    ("numa", 20, ""),
    ("tlb-shootdown", 20, ""),
    ("mcontend", 20, ""),
    ("prefetch", 3, ""),
    ("physpage", 200, ""),
    ("pageswap", 500, ""),
];

const MAPPINGS: &[Stressor] = &[
    ("mmap", 5, "--mmap-bytes 64M"),
    // More would leave too little of the budget to others: memory that may be executed is handed to the kernel.
    ("mmap", 20, "--mmap-bytes 4M --mmap-mprotect"),
    ("mmap", 3, "--mmap-bytes 16M --mmap-file"),
    ("mmapaddr", 20000, ""),
    ("mmapfixed", 300, ""),
    ("mmaphuge", 40, ""),
    ("mmapmany", 200000, ""),
    ("mremap", 30, "--mremap-bytes 32M"),
    ("mremap", 20, "--mremap-bytes 16M --mremap-mlock"),
    ("pagemove", 20, "--pagemove-bytes 8M"),
    ("remap", 20, ""),
    ("mprotect", 20000, ""),
    ("madvise", 40, ""),
    ("mincore", 2000, ""),
    ("mincore", 3000, "--mincore-random"),
    ("mlock", 20000, ""),
    ("mlockmany", 8, ""),
    ("msync", 500, "--msync-bytes 16M"),
    ("msyncmany", 20, ""),
    ("munmap", 200, ""),
    ("memfd", 20, "--memfd-bytes 64M"),
    ("userfaultfd", 200, "--userfaultfd-bytes 4M"),
    ("shm", 10, "--shm-bytes 4M"),
    ("shm-sysv", 10, "--shm-sysv-bytes 4M"),
    ("dev-shm", 2, ""),
    ("tmpfs", 10, ""),
    ("stackmmap", 2, ""),
    ("mmapfork", 1, ""),
    ("env", 50, ""),
    ("resources", 4, ""),
];

const MALLOC: &[Stressor] = &[
    ("malloc", 8000, "--malloc-bytes 4M"),
    ("malloc", 5000, "--malloc-bytes 1M --malloc-pthreads 4"),
    (
        "malloc",
        5000,
        "--malloc-bytes 1M --malloc-touch --malloc-zerofree",
    ),
    ("bigheap", 1500, "--bigheap-growth 64K"),
    ("brk", 20000, ""),
    ("stack", 5, ""),
    ("bsearch", 10, ""),
    ("hsearch", 10, ""),
    ("lsearch", 2, ""),
    ("tsearch", 5, ""),
    ("tree", 2, ""),
    ("qsort", 5, "--qsort-size 1M"),
    ("heapsort", 2, ""),
    ("mergesort", 5, ""),
    ("radixsort", 5, ""),
    ("shellsort", 5, ""),
    ("skiplist", 5, ""),
    ("list", 100, ""),
    ("judy", 2, ""),
    ("matrix", 5, "--matrix-size 1024"),
    ("matrix-3d", 20, ""),
    ("sparsematrix", 1, ""),
    ("randlist", 4, ""),
    ("str", 500, ""),
    ("wcs", 100, ""),
    ("zlib", 20, ""),
    ("atomic", 200, ""),
    ("membarrier", 200, ""),
    ("misaligned", 5, ""),
];

const PROCESSES: &[Stressor] = &[
    ("fork", 500, ""),
    ("fork", 5, "--fork-vm"),
    ("vfork", 500, ""),
    ("vforkmany", 20, ""),
    ("clone", 200, ""),
    ("daemon", 20, ""),
    (
        "forkheavy",
        200,
        "--forkheavy-procs 32 --forkheavy-allocs 64",
    ),
    ("exec", 50, ""),
    ("spawn", 20, ""),
    ("prctl", 20, ""),
    ("sigsegv", 5000, ""),
    ("sigtrap", 2000, ""),
    ("sigchld", 500, ""),
    ("sigq", 2000, ""),
    ("sigpending", 2000, ""),
    ("signest", 500, ""),
    ("sigsuspend", 500, ""),
    ("bad-altstack", 500, ""),
    ("context", 2000, ""),
    ("pthread", 2000, ""),
    ("futex", 5000, ""),
    ("oom-pipe", 200, ""),
    ("pipe", 5000, ""),
    ("pipeherd", 100, ""),
    ("splice", 2000, ""),
    ("tee", 500, ""),
    ("sendfile", 200, ""),
    ("readahead", 2000, ""),
    ("io-uring", 200, ""),
    ("aio", 200, ""),
    ("ptrace", 1000, ""),
    ("seccomp", 50, ""),
    ("kcmp", 200, ""),
    ("getrandom", 200, ""),
    ("sysinfo", 200, ""),
    ("procfs", 4, ""),
];

/// What differs and may.
const KNOWN: &[Exception] = &[Exception {
    test: "vm-rw",
    // Its processes are forked, and go on in signal mode.
    mode: None,
    why: "in signal mode another process cannot read what is in swap (process_vm_readv: EFAULT), as docs/settings.md says",
}];

pub fn cases() -> Vec<Case> {
    let mut all = vec![case("stress-ng, slice", || compare("slice", SLICE))];
    if whole("stress-ng") {
        for (name, list) in [
            ("vm", VM),
            ("mappings", MAPPINGS),
            ("malloc", MALLOC),
            ("processes", PROCESSES),
        ] {
            all.push(case(format!("stress-ng, {name}"), move || {
                compare(name, list)
            }));
        }
    }
    all
}

struct Stress {
    list: Vec<Stressor>,
}

impl Suite for Stress {
    fn run(&self, dir: &Path, setup: Option<&Setup>, only: Option<&[String]>) -> Ran {
        let mut all = Ran {
            outcomes: Outcomes::new(),
            log: String::new(),
            swapped: 0,
            ended: true,
        };
        for &(stressor, operations, other) in &self.list {
            let name = format!("{stressor} {other}").trim_end().to_owned();
            if only.is_some_and(|o| !o.contains(&name)) {
                continue;
            }
            let program = Program::new(dir, "stress-ng")
                .args(["--verify", "--no-rand-seed", "--timeout", "30"])
                .args([&format!("--{stressor}"), "1"])
                .args([&format!("--{stressor}-ops"), &operations.to_string()])
                .args(other.split_whitespace());
            let start = Instant::now();
            let (status, ran) = run(&program, setup);
            let took = start.elapsed().as_secs();
            if took >= 10 {
                let how = setup.map_or("plain".into(), Setup::to_string);
                println!("stress-ng {name}, {how}: took {took} s");
            }
            let mut outcome = status.to_string();
            let failures = ran.log.lines().filter(|l| l.contains("fail:"));
            for failure in failures.map(without_numbers) {
                if !outcome.contains(&failure) {
                    outcome = format!("{outcome}; {failure}");
                }
            }
            all.outcomes.insert(name, outcome);
            all.swapped += ran.swapped;
            all.log.push_str(&ran.log);
        }
        all
    }
}

/// Addresses and process ids are others each time.
fn without_numbers(line: &str) -> String {
    let mut plain = String::new();
    for word in line.split_whitespace() {
        let number = word.contains(|c: char| c.is_ascii_digit());
        plain.push_str(if number { "#" } else { word });
        plain.push(' ');
    }
    plain.trim_end().to_owned()
}

fn compare(name: &str, list: &[Stressor]) {
    let Ok(known) = Command::new("stress-ng").arg("--stressors").output() else {
        missing("stress-ng");
    };
    let known = String::from_utf8_lossy(&known.stdout).into_owned();
    let has = |s: &&Stressor| known.split_whitespace().any(|k| k == s.0);
    let (there, not): (Vec<&Stressor>, Vec<&Stressor>) = list.iter().partition(has);
    for (stressor, ..) in not {
        println!("skipped: this stress-ng has no {stressor}");
    }
    let list = there.into_iter().copied().collect();
    same(
        &format!("stress-ng, {name}"),
        &Stress { list },
        &setups(16),
        KNOWN,
    );
}

//! The checks of `hugeswap doctor`, one function each, and what follows from them.

use super::{Check, Choice, Mark, facts};
use crate::text;
use hugeswap_engine::pool::probe::measure;
use hugeswap_engine::pool::{SwapSpec, machine_memory, swap};
use hugeswap_policy::UNIT_BYTES;
use hugeswap_sys::{Errno, fs, probe};
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// Units of 2 MiB that are written and read to measure a disk.
const SPEED_UNITS: usize = 32;
/// The kernel's default limit on the mappings of a process.
const USUAL_MAPPINGS: u64 = 65_530;

/// Runs every check, in the order of the table.
pub fn all(swap_dir: Option<&Path>) -> (Vec<Check>, Vec<Choice>) {
    let spec = match swap_dir {
        Some(dir) if SwapSpec::new(dir).is_memory() => SwapSpec::memory(),
        // A tmpfs that is named here is checked and reported, not refused.
        Some(dir) => SwapSpec {
            allow_tmpfs: true,
            ..SwapSpec::new(dir)
        },
        None => swap::default_area().unwrap_or_else(|_| SwapSpec::memory()),
    };
    let message = probe::message_mode();
    let checks = vec![
        kernel(),
        huge_pages(),
        mremap_mover(),
        userfaultfd(&message),
        uffd_move(),
        mappings(),
        swap_area(&spec),
        io_uring(),
        seccomp(),
        memory_files(),
        sandbox(),
        memory_limits(),
    ];
    let used = choices(&checks, message.is_ok(), &spec);
    (checks, used)
}

fn kernel() -> Check {
    let release = crate::run::kernel_release();
    let finding = format!("Linux {release}");
    let check = match facts::version(&release) {
        Some(v) if v < (5, 7) => {
            Check::new("kernel", Mark::No, finding).improve("use Linux 5.7 or later")
        }
        Some(v) if v < (6, 7) => Check::new(
            "kernel",
            Mark::Warn,
            format!("{finding}: cannot tell quickly which pages are huge"),
        )
        .improve("use Linux 6.8 or later, which also has UFFDIO_MOVE"),
        _ => Check::new("kernel", Mark::Ok, finding),
    };
    check.detail("release", release)
}

fn huge_pages() -> Check {
    const DIR: &str = "/sys/kernel/mm/transparent_hugepage";
    let name = "huge pages";
    let setting = |file: &str| {
        facts::read(format!("{DIR}/{file}")).and_then(|t| facts::chosen(&t).map(str::to_owned))
    };
    let (enabled, defrag) = (setting("enabled"), setting("defrag"));
    let shown = |s: &Option<String>| s.clone().unwrap_or_else(|| "absent".into());
    let settings = format!("enabled={}, defrag={}", shown(&enabled), shown(&defrag));
    let allow = "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    let check = match (probe::huge_page(), enabled.as_deref()) {
        (Ok(Some(true)), _) => Check::new(
            name,
            Mark::Ok,
            format!("an advised range gets one ({settings})"),
        ),
        (_, None) => Check::new(
            name,
            Mark::Warn,
            "this kernel has none: everything works, in base pages and slower",
        )
        .improve("use a kernel with CONFIG_TRANSPARENT_HUGEPAGE"),
        (_, Some("never")) => Check::new(
            name,
            Mark::Warn,
            format!("switched off ({settings}): everything works, slower"),
        )
        .improve(allow),
        (Ok(None), _) => Check::new(
            name,
            Mark::Warn,
            format!("the kernel does not report it ({settings})"),
        ),
        (Ok(Some(false)), _) => Check::new(
            name,
            Mark::Warn,
            format!("none was to be had just now ({settings}): memory is fragmented or short"),
        )
        .improve("as root: echo 1 > /proc/sys/vm/compact_memory"),
        (Err(e), _) => Check::new(name, Mark::Warn, format!("could not be tried: {e}")),
    };
    check.detail("enabled", enabled).detail("defrag", defrag)
}

fn mremap_mover() -> Check {
    let name = "mremap mover";
    match probe::mremap_huge() {
        Ok(m) if !m.intact => Check::new(
            name,
            Mark::No,
            "moved bytes came out wrong: this kernel or sandbox emulates mremap badly",
        )
        .improve("run outside the sandbox"),
        Ok(m) if m.was_huge == Some(true) && m.stayed_huge == Some(true) => {
            Check::new(name, Mark::Ok, "moves a huge page whole, without privilege")
        }
        Ok(m) if m.was_huge == Some(true) => {
            Check::new(name, Mark::Warn, "moves, but splits huge pages")
                .improve("use a later kernel")
        }
        Ok(_) => Check::new(
            name,
            Mark::Ok,
            "moves (no huge page was to be had for the trial)",
        ),
        Err(Errno::EINVAL) => {
            Check::new(name, Mark::No, "mremap has no DONTUNMAP for private memory")
                .improve("use Linux 5.7 or later")
        }
        Err(e) => Check::new(name, Mark::No, format!("failed: {e}"))
            .improve("allow mremap in the sandbox's profile"),
    }
    .required()
}

fn userfaultfd(message: &Result<(), Errno>) -> Check {
    let name = "userfaultfd";
    let u = probe::userfaultfd();
    let sysctl = facts::number("/proc/sys/vm/unprivileged_userfaultfd");
    let check = match (u.full, u.user_only) {
        (Ok(_), _) if message.is_ok() => Check::new(name, Mark::Ok, "full: base pages in signal mode; faults of system calls too, so message mode works"),
        (Ok(_), _) => Check::new(name, Mark::Warn, "full, but without UFFDIO_MOVE: no message mode").improve("use Linux 6.8 or later"),
        (Err(e), Ok(_)) => Check::new(
            name,
            Mark::Warn,
            format!("faults of user mode only ({e}): base pages in signal mode, no message mode"),
        )
        .improve("for message mode, as root: sysctl -w vm.unprivileged_userfaultfd=1 (or give CAP_SYS_PTRACE)"),
        (Err(e), Err(_)) => {
            let sandboxed = facts::read("/proc/self/status").and_then(|s| facts::status_field(&s, "Seccomp")).as_deref() == Some("2");
            let why = if sandboxed { "forbidden by a seccomp profile" } else { "not there" };
            Check::new(name, Mark::Warn, format!("{why} ({e}): signal mode moves 64 KiB or 2 MiB without it, and random access is slower; no message mode"))
                .improve_if(sandboxed, "allow userfaultfd in the profile (docker run --security-opt seccomp=PROFILE); for message mode give CAP_SYS_PTRACE too")
        }
    };
    check
        .detail("full", u.full.is_ok())
        .detail("user_mode_only", u.user_only.is_ok())
        .detail("vm.unprivileged_userfaultfd", sysctl)
}

fn uffd_move() -> Check {
    let name = "UFFDIO_MOVE";
    match probe::uffd_move() {
        Ok(m) if !m.intact => Check::new(
            name,
            Mark::Warn,
            "moved bytes came out wrong: it will not be used",
        ),
        Ok(m) if m.was_huge == Some(true) && m.stayed_huge == Some(true) => {
            Check::new(name, Mark::Ok, "moves a huge page whole")
        }
        Ok(m) if m.was_huge == Some(true) => {
            Check::new(name, Mark::Warn, "moves, but splits huge pages")
                .improve("use a later kernel")
        }
        Ok(_) => Check::new(
            name,
            Mark::Ok,
            "moves (no huge page was to be had for the trial)",
        ),
        Err(Errno::EINVAL) => Check::new(
            name,
            Mark::Warn,
            "this kernel has none: only the mremap mover",
        )
        .improve("use Linux 6.8 or later"),
        Err(e) => Check::new(
            name,
            Mark::Warn,
            format!("cannot be tried without userfaultfd ({e}): only the mremap mover"),
        ),
    }
}

fn mappings() -> Check {
    let name = "mappings";
    let Some(limit) = facts::number("/proc/sys/vm/max_map_count") else {
        return Check::new(name, Mark::Warn, "vm.max_map_count cannot be read");
    };
    // A unit whose neighbours are in other states or frames takes a mapping, and the hole beside it
    // another.
    let (worst, best) = (limit / 2 * UNIT_BYTES, limit * UNIT_BYTES);
    let finding = format!(
        "vm.max_map_count={limit}: {} to {} of scattered units",
        text::bytes(worst),
        text::bytes(best)
    );
    let enough = limit >= USUAL_MAPPINGS;
    Check::new(name, if enough { Mark::Ok } else { Mark::Warn }, finding)
        .improve_if(
            !enough || machine_memory() > worst,
            "for larger programs, as root: sysctl -w vm.max_map_count=1048576",
        )
        .detail("max_map_count", limit)
        .detail("scattered_bytes", worst)
}

fn swap_area(spec: &SwapSpec) -> Check {
    let name = "swap directory";
    if spec.is_memory() {
        let finding = "none: what leaves memory is compressed and stays in memory";
        return Check::new(name, Mark::Warn, finding)
            .improve("for more than that holds, name a directory on a disk: --swap DIR");
    }
    // The trial writes, which is not allowed on a file or a device.
    if spec.path.exists() && !spec.path.is_dir() {
        let finding = format!("{} is not a directory", spec.path.display());
        return Check::new(name, Mark::No, finding).required();
    }
    let area = match swap::open_area(spec) {
        Ok(a) => a,
        Err(e) => return Check::new(name, Mark::No, e.to_string()).required(),
    };
    let info = fs::file_system(area.fd);
    let costs = measure(area.fd);
    fs::close(area.fd);
    let shown = spec.path.display();
    let (kind, free, memory) = info.map_or(("unknown".into(), 0, false), |i| {
        (
            facts::file_system_name(i.magic),
            i.free_bytes,
            swap::is_memory(i.magic),
        )
    });
    let check = match probe::disk(&spec.path, SPEED_UNITS) {
        Err(e) => Check::new(name, Mark::No, format!("{shown} ({kind}): {e}"))
            .improve("name another directory with --swap"),
        Ok(speed) => {
            let mb_s = |ns: u64| speed.bytes as f64 / 1e6 / (ns.max(1) as f64 / 1e9);
            let (write, read) = (mb_s(speed.write_ns), mb_s(speed.read_ns));
            let io = if speed.direct {
                "direct I/O"
            } else {
                "no direct I/O"
            };
            let latency = match costs {
                Some(m) => format!(", 4 KiB in {} us", m.r#in.page.div_ceil(1000)),
                None => ", its latency could not be measured".into(),
            };
            let finding = format!(
                "{shown} ({kind}, {} free): {io}, write {write:.0} MB/s, read {read:.0} MB/s{latency}",
                text::bytes(free)
            );
            let check = if memory {
                Check::new(
                    name,
                    Mark::Warn,
                    format!("{finding}; it is in memory, so swapping there frees nothing"),
                )
                .improve("name a directory on a disk with --swap")
            } else if !speed.direct {
                Check::new(
                    name,
                    Mark::Warn,
                    format!("{finding}: reads and writes pass through the page cache"),
                )
                .improve("name a directory on ext4, xfs or btrfs with --swap")
            } else {
                Check::new(name, Mark::Ok, finding)
            };
            check
                .detail("direct", speed.direct)
                .detail("write_mb_s", write.round())
                .detail("read_mb_s", read.round())
                .detail("read_4k_us", costs.map(|m| m.r#in.page.div_ceil(1000)))
        }
    };
    check
        .required()
        .detail("path", shown.to_string())
        .detail("file_system", kind)
        .detail("free_bytes", free)
}

fn io_uring() -> Check {
    let name = "io_uring";
    match probe::io_uring() {
        Ok(()) => Check::new(name, Mark::Ok, "available (not needed)"),
        Err(e) => Check::new(
            name,
            Mark::Ok,
            format!("not available ({e}); it is not needed"),
        ),
    }
    .detail("available", probe::io_uring().is_ok())
}

fn seccomp() -> Check {
    let name = "seccomp filter";
    match probe::seccomp_filter() {
        Ok(()) => Check::new(name, Mark::Ok, "can be installed: system calls that no wrapper sees are caught in signal mode"),
        Err(e) => Check::new(
            name,
            Mark::Warn,
            format!("cannot be installed ({e}): in signal mode a system call that no wrapper sees may fail with EFAULT"),
        )
        .improve("use a kernel with CONFIG_SECCOMP_FILTER, or --fault-mode message"),
    }
}

fn memory_files() -> Check {
    let name = "memory files";
    let noexec = facts::number("/proc/sys/vm/memfd_noexec").unwrap_or(0);
    match (hugeswap_sys::mm::memfd(c"hugeswap-doctor", true), noexec) {
        (Ok(fd), 0 | 1) => {
            fs::close(fd);
            Check::new(name, Mark::Ok, "memfd_create works, executable too")
        }
        (Ok(fd), _) => {
            fs::close(fd);
            Check::new(
                name,
                Mark::Warn,
                "executable ones are forbidden: the injected object goes to a temporary file",
            )
            .improve("as root: sysctl -w vm.memfd_noexec=0")
        }
        (Err(Errno::EACCES), _) => Check::new(
            name,
            Mark::Warn,
            "executable ones are forbidden: the injected object goes to a temporary file",
        )
        .improve("as root: sysctl -w vm.memfd_noexec=0"),
        (Err(e), _) => Check::new(name, Mark::No, format!("memfd_create fails: {e}"))
            .improve("allow memfd_create in the sandbox's profile")
            .required(),
    }
}

fn sandbox() -> Check {
    let name = "sandbox";
    let status = facts::read("/proc/self/status").unwrap_or_default();
    let mode = facts::status_field(&status, "Seccomp");
    let no_new = facts::status_field(&status, "NoNewPrivs").as_deref() == Some("1");
    let container = facts::container();
    let mut found = Vec::new();
    found.extend(container.map(|c| format!("in {c}")));
    match mode.as_deref() {
        Some("1") => found.push("seccomp strict".into()),
        Some("2") => found.push("a seccomp profile is in force".into()),
        _ => {}
    }
    if no_new {
        found.push("no new privileges".into());
    }
    // Containers do not prevent signal mode; the other checks report what they take away.
    let finding = if found.is_empty() {
        "none".to_owned()
    } else {
        found.join(", ")
    };
    Check::new(name, Mark::Ok, finding)
        .detail("container", container)
        .detail("seccomp_mode", mode.and_then(|m| m.parse::<u64>().ok()))
        .detail("no_new_privs", no_new)
}

fn memory_limits() -> Check {
    let name = "memory limits";
    let machine = machine_memory();
    let group = facts::cgroup_memory_limit().filter(|&l| l < machine);
    let mut found = vec![format!("machine {}", text::bytes(machine))];
    let (mut mark, mut improve) = (Mark::Ok, None);
    if let Some(limit) = group {
        found.push(format!("control group {}", text::bytes(limit)));
        improve = Some("give --memory well below the control group's limit, which counts page cache and everything else too".to_owned());
    }
    for (resource, label, flag) in [
        (Resource::As, "address space", "-v"),
        (Resource::Data, "data", "-d"),
    ] {
        if let Some(limit) = getrlimit(resource).current {
            mark = Mark::Warn;
            found.push(format!("{label} {}", text::bytes(limit)));
            improve = Some(format!(
                "ulimit {flag} unlimited: managed memory takes address space for what is in swap too"
            ));
        }
    }
    if facts::number("/proc/sys/vm/overcommit_memory") == Some(2) {
        mark = Mark::Warn;
        found.push("strict overcommit".into());
        improve = Some("as root: sysctl -w vm.overcommit_memory=0 (what is in swap counts as committed otherwise)".into());
    }
    let check = Check::new(name, mark, found.join(", "));
    let check = match improve {
        Some(how) => check.improve(how),
        None => check,
    };
    check
        .detail("machine_bytes", machine)
        .detail("cgroup_bytes", group)
        .detail("memlock_bytes", getrlimit(Resource::Memlock).current)
}

fn choices(checks: &[Check], message: bool, swap: &SwapSpec) -> Vec<Choice> {
    let is_ok = |name: &str| {
        checks
            .iter()
            .any(|c| c.name == name && c.status != Mark::No)
    };
    let huge = checks
        .iter()
        .any(|c| c.name == "huge pages" && c.status == Mark::Ok);
    let choice = |what, choice: &str, why: &str| Choice {
        what,
        choice: choice.into(),
        why: why.into(),
    };
    let mut out = Vec::new();
    let signal = is_ok("mremap mover");
    out.push(match (signal, message) {
        (true, true) => choice(
            "fault mode",
            "signal",
            "it is the faster one; --fault-mode message works here too",
        ),
        (true, false) => choice(
            "fault mode",
            "signal",
            "it needs no privilege; message mode is not permitted here",
        ),
        (false, true) => choice(
            "fault mode",
            "message",
            "pages cannot be moved by mremap here",
        ),
        (false, false) => choice(
            "fault mode",
            "none",
            "pages can be moved neither by mremap nor by userfaultfd",
        ),
    });
    out.push(match (signal, huge) {
        (true, true) => choice(
            "mover",
            "mremap of whole huge pages",
            "it never splits them and needs no descriptor",
        ),
        (true, false) => choice(
            "mover",
            "mremap of 2 MiB in base pages",
            "no huge page was to be had",
        ),
        _ => choice(
            "mover",
            "UFFDIO_MOVE",
            "mremap cannot move private memory here",
        ),
    });
    out.push(match (signal, probe::userfaultfd().user_only) {
        (true, Ok(_)) => choice(
            "sizes",
            "4 KiB, 64 KiB or 2 MiB",
            "as each unit's faults suggest; --set thp.swapin=always or never decides for them",
        ),
        (true, Err(_)) => choice(
            "sizes",
            "64 KiB or 2 MiB",
            "without userfaultfd there are no single pages, and 64 KiB take mappings (half of vm.max_map_count at most)",
        ),
        (false, _) => choice(
            "sizes",
            "2 MiB",
            "base pages need signal mode: random access over the budget will be slow",
        ),
    });
    let path = swap.path.display().to_string();
    let why = match swap.is_memory() {
        true => "compressed in memory; no other swap",
        false => "a nameless file there, gone with the last process that uses it",
    };
    out.push(choice("swap", &path, why));
    out
}

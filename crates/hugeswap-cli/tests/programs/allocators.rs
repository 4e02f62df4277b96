//! Programs with another allocator than the C library's: preloaded, in a shared library that the
//! program is linked with, or inside the program.
//!
//! One of the allocators is ours (c/strict.c). It ends the process if hugeswap enters it from inside
//! itself or from a thread of its own. One is built from its sources ([`snmalloc`]).

use crate::snmalloc;
use crate::util::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories in which distributions keep libraries.
const DIRECTORIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// How a program gets its allocator.
#[derive(Clone, Copy)]
enum By {
    Preload,
    Link,
    Inside,
}

const WAYS: [(By, &str); 3] = [
    (By::Preload, "preloaded"),
    (By::Link, "linked"),
    (By::Inside, "inside"),
];

/// An allocator: its name, its shared object, its archive if there is one, and the flags that the
/// archive needs.
struct Allocator(
    &'static str,
    &'static str,
    Option<&'static str>,
    &'static [&'static str],
);

const ALLOCATORS: [Allocator; 5] = [
    Allocator("strict", "libstrict.so", Some("strict.o"), &[]),
    Allocator(
        "jemalloc",
        "libjemalloc.so.2",
        Some("libjemalloc.a"),
        &["-lm", "-ldl", "-lstdc++"],
    ),
    // (Debian has no archive of it.)
    Allocator("mimalloc", "libmimalloc.so.2", None, &[]),
    Allocator(
        "tcmalloc",
        "libtcmalloc_minimal.so.4",
        Some("libtcmalloc_minimal.a"),
        &["-lstdc++", "-lm"],
    ),
    Allocator(
        "snmalloc",
        "libsnmallocshim.so",
        Some("libsnmallocshim-static.a"),
        &["-lstdc++"],
    ),
];

pub fn cases() -> Vec<Case> {
    let mut all = vec![case("allocator, redis", redis)];
    for mode in Mode::ALL {
        all.push(case(format!("allocator, committing, {mode}"), move || {
            committing(mode)
        }));
        all.push(case(
            format!("allocator, the C library's, {mode}"),
            move || {
                storm(mode, false, &|dir| {
                    Program::new(dir, compile("blocks", dir))
                })
            },
        ));
        for a in &ALLOCATORS {
            all.push(case(
                format!("allocator, {}, the locale's data, {mode}", a.0),
                move || locale(mode, a),
            ));
            for part in crate::threads::BLOCKED {
                all.push(case(
                    format!("allocator, {}, blocked, {part}, {mode}", a.0),
                    move || blocked(mode, a, part),
                ));
            }
            for (by, way) in WAYS {
                if matches!(by, By::Inside) && a.2.is_none() {
                    continue;
                }
                // (tcmalloc defines an `mmap`.)
                let own_mmap = a.0 == "tcmalloc" && matches!(by, By::Inside);
                all.push(case(
                    format!("allocator, {} {way}, {mode}", a.0),
                    move || storm(mode, own_mmap, &|dir| a.program(by, dir)),
                ));
            }
        }
    }
    all
}

impl Allocator {
    /// The path of its shared object. Our allocator is built in `dir`, with its archive.
    fn shared(&self, dir: &Path) -> PathBuf {
        if self.is_ours() {
            let flags: [&[&str]; 2] = [
                &["-shared", "-fPIC", "-o", self.1],
                &["-c", "-o", "strict.o"],
            ];
            for flags in flags {
                build(dir, &["-fno-builtin"], &["strict"], flags);
            }
        }
        self.find(self.1, dir)
    }

    fn is_ours(&self) -> bool {
        self.0 == "strict"
    }

    /// The path of one of its files.
    fn find(&self, file: &str, dir: &Path) -> PathBuf {
        match self.0 {
            "snmalloc" => snmalloc::library(file),
            _ if self.is_ours() => dir.join(file),
            _ => library(file),
        }
    }

    /// The program c/blocks.c with this allocator.
    fn program(&self, by: By, dir: &Path) -> Program {
        let Allocator(_, _, archive, needs) = self;
        let shared = self.shared(dir);
        match by {
            By::Preload => Program::new(dir, compile("blocks", dir)).env("LD_PRELOAD", shared),
            By::Link | By::Inside => {
                let file = match by {
                    By::Link => shared,
                    _ => self.find(archive.expect("there is one"), dir),
                };
                let mut flags = vec!["-fno-builtin", "-o", "blocks"];
                let run_path = format!("-Wl,-rpath,{}", file.parent().expect("a path").display());
                let file = file.to_str().expect("a plain name").to_owned();
                // The linker takes from an archive only what is needed, but all of the allocator's
                // definitions must take precedence over the C library's.
                flags.extend([&run_path, "-Wl,--whole-archive", &file]);
                flags.push("-Wl,--no-whole-archive");
                flags.extend(needs.iter());
                build(dir, &[], &["blocks"], &flags);
                Program::new(dir, dir.join("blocks"))
            }
        }
    }
}

/// The path of a library of the system; ends the case as skipped if it is not there.
fn library(file: &str) -> PathBuf {
    let mut paths = DIRECTORIES.iter().map(|d| Path::new(d).join(file));
    paths.find(|p| p.exists()).unwrap_or_else(|| missing(file))
}

fn build(dir: &Path, before: &[&str], sources: &[&str], after: &[&str]) {
    let out = Command::new(compiler())
        .current_dir(dir)
        .args(["-O1", "-g", "-Wall", "-Wextra", "-pthread"])
        .args(before)
        .args(sources.iter().map(|s| source("c").join(format!("{s}.c"))))
        .args(after)
        .output()
        .expect("the compiler starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{sources:?}: {said}");
}

/// A program with less memory than it needs. `own_mmap`: the program has an `mmap` of its own, so
/// nothing is managed, and its output must be right all the same.
fn storm(mode: Mode, own_mmap: bool, program: &dyn Fn(&Path) -> Program) {
    mode.need();
    let dir = directory();
    let program = program(dir.path()).args(["3", "4"]);
    let plain = program.plain();
    // (Blocks of 128 KiB and more are managed too, because allocators ask for memory in such
    // pieces.)
    let setup = Setup::new(mode, 48)
        .option("--set", "route.malloc_min=128K")
        .option("--set", "route.mmap_min=128K")
        .option("--set", "debug.storm=100");
    let managed = program.managed(&setup);
    if own_mmap {
        assert_eq!(managed.output.status, plain.status);
        assert_eq!(managed.output.stdout, plain.stdout);
    } else {
        managed.same_as(&plain);
    }
}

/// New threads read the locale's data, which are blocks of the allocator and would be in swap.
fn locale(mode: Mode, allocator: &Allocator) {
    mode.need();
    let dir = directory();
    let preload = allocator.shared(dir.path());
    let program =
        Program::new(dir.path(), compile("locale", dir.path())).env("LD_PRELOAD", preload);
    let plain = program.plain();
    program.managed(&Setup::new(mode, 32)).same_as(&plain);
}

/// Code of the C library that runs with every signal blocked, and threads that it makes itself, use
/// the allocator, whose memory would be in swap.
fn blocked(mode: Mode, allocator: &Allocator, part: &str) {
    mode.need();
    let dir = directory();
    let preload = allocator.shared(dir.path());
    let program = Program::new(dir.path(), compile("blocked", dir.path()))
        .env("LD_PRELOAD", preload)
        .arg(part);
    let plain = program.plain();
    let setup = Setup::new(mode, 32)
        .option("--set", "route.malloc_min=128K")
        .option("--set", "route.mmap_min=128K")
        .option("--set", "debug.storm=100");
    program.managed(&setup).same_as(&plain);
}

/// Memory stays managed if the program makes it writable when it is writable already.
fn committing(mode: Mode) {
    mode.need();
    let dir = directory();
    let program = Program::new(dir.path(), compile("commit", dir.path())).arg("96");
    let plain = program.plain();
    let managed = program.managed(&Setup::new(mode, 64));
    // (Only the unit that is protected in part is ejected.)
    let ejected = managed.same_as(&plain).number("ejected");
    assert!(ejected <= 1, "{ejected} units were ejected");
}

/// A server that is linked with jemalloc has the same data after filling, deleting and saving.
fn redis() {
    for tool in ["redis-server", "redis-cli"] {
        if Command::new(tool).arg("--version").output().is_err() {
            missing(tool);
        }
    }
    let dir = directory();
    let program = Program::new(dir.path(), "sh").arg(source("redis.sh"));
    let plain = program.plain();
    // (Message mode brings in 2 MiB for each key that is looked at, which takes minutes.)
    program
        .managed(&Setup::new(Mode::Signal, 48))
        .same_as(&plain);
}

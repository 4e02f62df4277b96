//! Programs without a dynamic loader of glibc's, which the object loads: the C programs of the other cases
//! linked statically, in every way that there is, and for musl, and Go.

use crate::util::*;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How a program is linked.
#[derive(Clone, Copy)]
pub enum Linked {
    Static,
    StaticPie,
    Musl,
    /// With musl's dynamic loader.
    MuslDynamic,
}

impl fmt::Display for Linked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Linked::Static => "static",
            Linked::StaticPie => "static-pie",
            Linked::Musl => "musl",
            Linked::MuslDynamic => "dynamic musl",
        })
    }
}

impl Linked {
    const ALL: [Linked; 4] = [
        Linked::Static,
        Linked::StaticPie,
        Linked::Musl,
        Linked::MuslDynamic,
    ];

    /// Is a case worth its time for programs linked so? (What the engine does for them is the same for
    /// all; addresses, thread-local storage, signals and the start are not.)
    fn differs(self, case: &str) -> bool {
        match self {
            Linked::Static => true,
            Linked::StaticPie => matches!(case, "threads" | "starts"),
            Linked::Musl => !matches!(case, "workers" | "asks" | "narrow"),
            Linked::MuslDynamic => {
                !matches!(case, "workers" | "asks" | "narrow" | "storm" | "refusals")
            }
        }
    }

    /// Compiles c/NAME.c into `dir`.
    pub fn compile(self, name: &str, dir: &Path) -> PathBuf {
        let (compiler, option) = match self {
            Linked::Static => (compiler(), "-static"),
            Linked::StaticPie => (compiler(), "-static-pie"),
            Linked::Musl => ("musl-gcc", "-static"),
            Linked::MuslDynamic => ("musl-gcc", "-pie"),
        };
        let options = ["-O1", "-g", "-pthread", option];
        compile_once(compiler, &options, &format!("c/{name}.c"), dir)
    }
}

/// Name, arguments, budget in MiB, processes at least.
const PROGRAMS: [(&str, &[&str], u64, u64); 8] = [
    ("threads", &["8", "16", "4"], 32, 1),
    ("forks", &["48"], 32, 1),
    ("workers", &["4", "30", "3"], 32, 4),
    ("asks", &["24", "60"], 16, 60),
    ("signals", &[], 32, 1),
    ("handlers", &[], 16, 1),
    ("starts", &[], 32, 12),
    ("narrow", &["64"], 32, 1),
];

/// c/refusals.c, as in [`crate::addresses`].
fn refusals(linked: Linked) {
    Mode::Signal.need();
    let dir = directory();
    let program = linked.compile("refusals", dir.path());
    let setup = Setup::new(Mode::Signal, 64);
    crate::addresses::answered(dir.path(), program, "0", &setup);
}

/// c/space.c, where small mappings are cut from whole units.
fn space() {
    let dir = directory();
    let space = Linked::Static.compile("space", dir.path());
    let steps = crate::addresses::space_steps();
    let program = Program::new(dir.path(), space).args(["1", "4", &steps, "3"]);
    let mut small = Setup::new(Mode::Signal, 128).option("--set", "debug.storm=50");
    small.options.push("--small".into());
    swapped(&program, &small);
}

/// c/low.c.
fn low(linked: Linked) {
    let dir = directory();
    let program = Program::new(dir.path(), linked.compile("low", dir.path())).arg("2");
    swapped(&program, &Setup::new(Mode::Signal, 64));
}

/// A program does the same while its memory is swapped.
fn swapped(program: &Program, setup: &Setup) {
    Mode::Signal.need();
    let managed = program.managed(setup);
    managed.same_output_as(&program.plain());
    assert!(managed.number("pswpin") > 0, "nothing was swapped");
}

pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for linked in [Linked::Static, Linked::Musl] {
        all.push(case(format!("loaded, low, {linked}"), move || low(linked)));
    }
    all.push(case("loaded, any calls on addresses", space));
    for linked in Linked::ALL {
        for (program, args, memory_mib, processes) in PROGRAMS {
            if linked.differs(program) {
                all.push(case(format!("loaded, {program}, {linked}"), move || {
                    c(linked, program, args, memory_mib, processes)
                }));
            }
        }
        if linked.differs("storm") {
            let name = format!("loaded, threads, {linked}, storm");
            all.push(case(name, move || storm(linked)));
        }
        if linked.differs("refusals") {
            all.push(case(format!("loaded, refusals, {linked}"), move || {
                refusals(linked)
            }));
            all.push(case(format!("loaded, lockall, {linked}"), move || {
                let dir = directory();
                let program = linked.compile("lockall", dir.path());
                crate::addresses::lockall(dir.path(), program, Mode::Signal);
            }));
        }
        if linked.differs("small blocks") {
            let name = format!("loaded, small blocks, {linked}");
            all.push(case(name, move || small_blocks(linked)));
        }
    }
    all.push(case("loaded, go", go));
    all.push(case("loaded, below a shell", below_a_shell));
    all.push(case("loaded, by a descriptor", by_a_descriptor));
    all.push(case("loaded, a script", script));
    all.push(case("loaded, not a dynamic loader", || {
        dynamic_loader("/lib64/ld-linux-x86-64.so.2", None);
    }));
    all.push(case("loaded, musl's dynamic loader", || {
        dynamic_loader(MUSL_LOADER, Some(Linked::MuslDynamic));
    }));
    all.push(case("loaded, musl where it is left", left_musl));
    all.push(case("loaded, another LD_PRELOAD", other_preload));
    for linked in [Linked::Static, Linked::MuslDynamic] {
        all.push(case(
            format!("loaded, after the run, {linked}"),
            move || after_the_run(linked),
        ));
    }
    all.push(case("loaded, another root", || elsewhere("chroot", &["."])));
    let namespace = ["--pid", "--fork", "--mount-proc"];
    all.push(case("loaded, another namespace", move || {
        elsewhere("unshare", &namespace);
    }));
    all.push(case("loaded, not where something is", not_there));
    all.push(case("loaded, refused", refused));
    all
}

fn c(linked: Linked, program: &str, args: &[&str], memory_mib: u64, processes: u64) {
    let dir = directory();
    let path = linked.compile(program, dir.path());
    let program = Program::new(dir.path(), path).args(args);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, memory_mib));
    managed.same_as(&plain).processes(processes);
}

/// Its own allocator maps small pieces, which are managed once there are many.
fn small_blocks(linked: Linked) {
    let dir = directory();
    let path = linked.compile("nodes", dir.path());
    let program = Program::new(dir.path(), path).arg("2000");
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, 48));
    managed.same_as(&plain);
    let unmanaged = managed.number("peak_unmanaged_bytes");
    assert!(unmanaged < 24 << 20, "{}", managed.report);
    // It is called by its name.
    let holder = managed.report["unmanaged"]["processes"][0]["program"].as_str();
    assert!(holder.is_some_and(|p| p.ends_with("nodes")), "{holder:?}");
}

/// Units are evicted at random all the time.
fn storm(linked: Linked) {
    let dir = directory();
    let path = linked.compile("threads", dir.path());
    let program = Program::new(dir.path(), path).args(["8", "16", "2"]);
    let plain = program.plain();
    let setup = Setup::new(Mode::Signal, 32).option("--set", "debug.storm=50");
    program.managed(&setup).same_as(&plain);
}

/// Compiles go/NAME.go, and returns the path of the program in `dir`.
pub fn compile_go(name: &str, dir: &Path) -> PathBuf {
    let compiler = ["go", "/usr/local/go/bin/go"];
    let found = |go: &&str| Command::new(go).arg("version").output().is_ok();
    let Some(go) = compiler.into_iter().find(found) else {
        missing("go");
    };
    let path = dir.join(name);
    let out = Command::new(go)
        .args(["build", "-o"])
        .arg(&path)
        .arg(source("go").join(format!("{name}.go")))
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"))
        .env("GOFLAGS", "-mod=mod")
        .output()
        .expect("the compiler starts");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{name}.go: {said}");
    path
}

/// A heap in four goroutines, a child, and what its own executable is called.
fn go() {
    let dir = directory();
    let path = compile_go("heap", dir.path());
    let program = Program::new(dir.path(), path).arg("1200000");
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, 150));
    managed.same_as(&plain);
    let unmanaged = managed.number("peak_unmanaged_bytes");
    assert!(unmanaged < 32 << 20, "{unmanaged} bytes were not managed");
}

/// A shell starts such programs, by a path, by PATH, and by a script; and they start others in turn.
fn below_a_shell() {
    let dir = directory();
    Linked::Static.compile("threads", dir.path());
    Linked::StaticPie.compile("starts", dir.path());
    Linked::Static.compile("becomes", dir.path());
    let path = format!("{}:{}", dir.path().display(), env!("PATH"));
    // Also by a shell that has lost its environment.
    let script = "./threads 8 16 2 && threads 8 16 2 && \
        ./becomes env -i sh -c './threads 8 16 2' && exec ./starts";
    let program = Program::new(dir.path(), "sh")
        .args(["-c", script])
        .env("PATH", path);
    let plain = program.plain();
    let mut setup = Setup::new(Mode::Signal, 32);
    program.managed(&setup).same_as(&plain).processes(17);
    // Not wanted, it is as plain.
    setup.options.push("--static=off".into());
    let without = program.managed(&setup);
    assert_eq!(without.output.stdout, plain.stdout);
    assert_eq!(without.number("pswpout"), 0, "{}", without.report);
}

/// A script whose interpreter is such a program.
fn script() {
    let dir = directory();
    let interpreter = Linked::Static.compile("becomes", dir.path());
    Linked::Static.compile("threads", dir.path());
    let path = dir.path().join("script");
    // (The kernel passes on one option at most, and then the script.)
    let text = format!("#! {} sh\nexec ./threads 8 16 $1\n", interpreter.display());
    std::fs::write(&path, text).expect("a file of ours");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("chmod of ours");
    let itself = Program::new(dir.path(), &path).arg("2");
    let below = Program::new(dir.path(), "sh").args(["-c", "./script 2"]);
    for program in [itself, below] {
        let plain = program.plain();
        let managed = program.managed(&Setup::new(Mode::Signal, 32));
        managed.same_as(&plain);
    }
}

/// A dynamically linked program executes a file that it has opened.
fn by_a_descriptor() {
    let dir = directory();
    compile("descriptor", dir.path());
    Linked::Static.compile("threads", dir.path());
    Linked::Static.compile("becomes", dir.path());
    for kind in ["open", "closing", "nameless"] {
        // Also where the filter, which outlives exec, lets only loaded programs run.
        let script = format!(
            "./descriptor {kind} ./threads 8 16 2 && \
            ./becomes ./descriptor {kind} ./threads 8 16 2"
        );
        let program = Program::new(dir.path(), "sh").args(["-c", &script]);
        let plain = program.plain();
        let managed = program.managed(&Setup::new(Mode::Signal, 32));
        managed.same_as(&plain).processes(2);
    }
}

const MUSL_LOADER: &str = "/lib/ld-musl-x86_64.so.1";

/// A dynamic loader that is executed to run a program: glibc's preloads the object itself, musl's is loaded.
fn dynamic_loader(loader: &str, linked: Option<Linked>) {
    let dir = directory();
    match linked {
        None => compile("threads", dir.path()),
        Some(linked) => linked.compile("threads", dir.path()),
    };
    Linked::Static.compile("becomes", dir.path());
    let script = format!("{loader} ./threads 8 16 2 && ./becomes {loader} ./threads 8 16 2");
    let below = Program::new(dir.path(), "sh").args(["-c", &script]);
    let itself = Program::new(dir.path(), loader).args(["./threads", "8", "16", "2"]);
    for (program, processes) in [(below, 2), (itself, 1)] {
        let plain = program.plain();
        let managed = program.managed(&Setup::new(Mode::Signal, 32));
        managed.same_as(&plain).processes(processes);
    }
}

/// musl's loader does not get an object that it cannot load.
fn left_musl() {
    let dir = directory();
    Linked::MuslDynamic.compile("threads", dir.path());
    let program = Program::new(dir.path(), "sh").args(["-c", "./threads 8 16 2"]);
    let plain = program.plain();
    let mut off = Setup::new(Mode::Signal, 32);
    off.options.push("--static=off".into());
    let by_messages = Mode::permitted().any(|mode| mode == Mode::Message);
    let by_messages = by_messages.then(|| Setup::new(Mode::Message, 32));
    for setup in [Some(off), by_messages].into_iter().flatten() {
        let managed = program.managed(&setup);
        assert_eq!(managed.output.stdout, plain.stdout, "{}", managed.said());
        assert_eq!(managed.number("pswpout"), 0, "{}", managed.report);
    }
}

/// A program that is to preload something else is loaded as others are.
fn other_preload() {
    let dir = directory();
    Linked::Static.compile("threads", dir.path());
    Linked::Static.compile("becomes", dir.path());
    let script = "LD_PRELOAD= ./threads 8 16 2 && \
        LD_PRELOAD=libm.so.6 ./threads 8 16 2 && \
        ./becomes env LD_PRELOAD=libm.so.6 ./threads 8 16 2";
    let program = Program::new(dir.path(), "sh").args(["-c", script]);
    let plain = program.plain();
    let managed = program.managed(&Setup::new(Mode::Signal, 32));
    managed.same_as(&plain).processes(3);
}

/// One that is still there when its run has ended starts programs of every kind.
fn after_the_run(linked: Linked) {
    let dir = directory();
    let outlives = linked.compile("outlives", dir.path());
    let log = dir.path().join("log");
    let mut programs = Vec::new();
    for (name, linked) in [("static", Linked::Static), ("musl", Linked::MuslDynamic)] {
        let path = dir.path().join(name);
        std::fs::rename(linked.compile("threads", dir.path()), &path).expect("a name of ours");
        programs.push(path);
    }
    programs.push(compile("threads", dir.path()));
    let out = Command::new(HUGESWAP)
        .args([
            "run",
            "--memory",
            "32M",
            "--swap",
            "/dev/shm,tmpfs=allow,size=64M",
        ])
        .arg("--")
        .arg(&outlives)
        .arg(&log)
        .args(&programs)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("hugeswap starts");
    assert!(out.success());
    let written = || std::fs::read_to_string(&log).unwrap_or_default();
    for _ in 0..600 {
        if written().ends_with("done\n") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let written = written();
    assert!(written.ends_with("done\n"), "{written}");
    for path in programs {
        let plain = Command::new(&path).args(["2", "4", "1"]).output();
        let plain = String::from_utf8(plain.expect("it starts").stdout).expect("ASCII");
        let wanted = format!("{plain}{}: status 0\n", path.display());
        assert!(written.contains(&wanted), "{wanted} is not in {written}");
    }
    assert!(!written.contains("hugeswap"), "{written}");
    assert!(!written.contains("ERROR"), "{written}");
}

/// Where hugeswap cannot be reached, such a program runs as without it.
fn elsewhere(command: &str, options: &[&str]) {
    if !rustix::process::geteuid().is_root() {
        skip("only root can change what a process sees");
    }
    let dir = directory();
    Linked::Static.compile("threads", dir.path());
    let script = format!("exec {command} {} ./threads 8 16 2", options.join(" "));
    let program = Program::new(dir.path(), "sh").args(["-c", &script]);
    let Some(plain) = program.try_plain().filter(|p| p.status.success()) else {
        skip("this container does not let root do so");
    };
    let managed = program.managed(&Setup::new(Mode::Signal, 32));
    assert_eq!(managed.output.stdout, plain.stdout);
    assert!(managed.output.status.success(), "{}", managed.said());
}

/// One whose addresses are none at which programs are loaded runs as without hugeswap, and is told of.
fn not_there() {
    let dir = directory();
    let options = [
        "-O1",
        "-static",
        "-nostdlib",
        "-fPIE",
        "-Wl,-Ttext-segment=0x200000000",
    ];
    let path = compile_once(compiler(), &options, "c/high.c", dir.path());
    let itself = Program::new(dir.path(), path);
    let below = Program::new(dir.path(), "sh").args(["-c", "./high && ./high"]);
    for program in [itself, below] {
        let plain = program.plain();
        let managed = program.managed(&Setup::new(Mode::Signal, 32));
        assert_eq!(managed.output.stdout, plain.stdout, "{}", managed.said());
        let said = managed.said();
        assert!(said.contains("goes on without managed memory"), "{said}");
    }
}

/// What such a program needs, and does not have, is told in one line before it starts.
fn refused() {
    let dir = directory();
    let path = Linked::Static.compile("threads", dir.path());
    let unfit = [["--fault-mode", "message"], ["--set", "syscall.trap=off"]];
    for options in unfit {
        let out = Command::new(HUGESWAP)
            .args(["run", "--memory", "64M", "--static"])
            .args(options)
            .args(["--", "true"])
            .output()
            .expect("hugeswap starts");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.starts_with("hugeswap: --static needs --"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    for options in unfit {
        let out = Command::new(HUGESWAP)
            .args(["run", "--memory", "64M"])
            .args(options)
            .arg("--")
            .arg(&path)
            .output()
            .expect("hugeswap starts");
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(
            said.contains("is statically linked or for musl, and needs"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

//! Runs a program plain and managed, and compares the two runs.

#[path = "../../../hugeswap/tests/kernel/room.rs"]
mod room;

use room::{IN_MEMORY, memory_has_room};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Exit status of a case that cannot run here.
pub const SKIP: i32 = 77;
pub const HUGESWAP: &str = env!("CARGO_BIN_EXE_hugeswap");

/// One test.
pub struct Case {
    pub name: String,
    pub run: Box<dyn Fn() + Send>,
}

pub fn case(name: impl fmt::Display, run: impl Fn() + Send + 'static) -> Case {
    Case {
        name: name.to_string(),
        run: Box::new(run),
    }
}

/// The fault mode of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Signal,
    Message,
    /// The mode that hugeswap chooses.
    Auto,
}

impl Mode {
    pub const ALL: [Mode; 2] = [Mode::Signal, Mode::Message];

    fn name(self) -> &'static str {
        match self {
            Mode::Signal => "signal",
            Mode::Message => "message",
            Mode::Auto => "auto",
        }
    }

    /// The modes that the report may name. Forked children of a program in message mode go on in
    /// signal mode.
    fn reported(self) -> &'static [&'static str] {
        match self {
            Mode::Signal => &["signal"],
            Mode::Message => &["message", "signal+message"],
            Mode::Auto => &["signal", "message"],
        }
    }

    /// Ends the case as skipped if this mode is not permitted here.
    pub fn need(self) {
        if let Err(why) = self.available() {
            skip(&why);
        }
    }

    fn available(self) -> Result<(), String> {
        let out = Command::new(HUGESWAP)
            .args(["run", "--memory", "64M", "--report", "none"])
            .args(["--fault-mode", self.name(), "--", "/bin/true"])
            .output()
            .expect("hugeswap starts");
        if out.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        assert_eq!(out.status.code(), Some(2), "{why}");
        assert!(self == Mode::Message, "signal mode must work: {why}");
        Err(why)
    }

    /// The modes that are permitted here; prints why the others are not.
    pub fn permitted() -> impl Iterator<Item = Mode> {
        Mode::ALL.into_iter().filter(|m| match m.available() {
            Ok(()) => true,
            Err(why) => {
                println!("skipped in {m} mode: {why}");
                false
            }
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a case that is skipped unwinds with, so that it leaves no directories behind.
pub struct Skipped;

/// Ends the case as skipped.
pub fn skip(why: &str) -> ! {
    println!("skipped: {why}");
    std::panic::resume_unwind(Box::new(Skipped))
}

/// Ends the case as skipped because a tool is missing. It fails where every tool is expected to be
/// there.
pub fn missing(tool: &str) -> ! {
    let complete = std::env::var_os("HUGESWAP_TESTS_COMPLETE").is_some();
    assert!(!complete, "{tool} is missing: run .ci/install");
    skip(&format!("{tool} is missing: run .ci/install"))
}

/// A new directory on a disk, removed when the value is dropped.
pub fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").expect("a directory in /var/tmp")
}

/// The path of a file or directory that belongs to these tests.
pub fn source(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs")).join(name)
}

/// The name of the C compiler.
pub fn compiler() -> &'static str {
    let found = |cc: &&str| Command::new(cc).arg("--version").output().is_ok();
    match ["gcc", "cc"].into_iter().find(found) {
        Some(cc) => cc,
        None => missing("a C compiler"),
    }
}

/// Compiles c/NAME.c, and returns the path of the program in `dir`.
pub fn compile(name: &str, dir: &Path) -> PathBuf {
    let options = ["-O1", "-g", "-Wall", "-Wextra", "-pthread"];
    compile_once(compiler(), &options, &format!("c/{name}.c"), dir)
}

/// Compiles a source of these tests, and returns the path of the program in `dir`. (Many cases run
/// the same program: it is compiled once, until its source changes.)
pub fn compile_once(compiler: &str, options: &[&str], file: &str, dir: &Path) -> PathBuf {
    let text = source(file);
    let name = text
        .file_stem()
        .expect("a file")
        .to_string_lossy()
        .into_owned();
    let program = dir.join(&name);
    let mut hasher = hash_of(&text);
    (compiler, options).hash(&mut hasher);
    let kept = format!("{name}-{:016x}", hasher.finish());
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join(kept);
    if !built.exists() {
        let out = Command::new(compiler)
            .args(options)
            .arg("-o")
            .arg(&program)
            .arg(text)
            .output();
        let Ok(out) = out else { missing(compiler) };
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.is_empty(), "{file}: {said}");
        // (Whole or not at all, whichever case is first.)
        let kept = built.with_extension(std::process::id().to_string());
        std::fs::copy(&program, &kept).expect("a file in the target directory");
        std::fs::rename(&kept, &built).expect("a file in the target directory");
        return program;
    }
    std::fs::copy(&built, &program).expect("a file in a directory of ours");
    program
}

/// Of a program and of what programs here include.
pub fn hash_of(program: &Path) -> DefaultHasher {
    let mut hasher = DefaultHasher::new();
    let included = ["c/common.h", "c/faults.h", "c/processes.h", "c/transfer.h"].map(source);
    for path in included.iter().map(PathBuf::as_path).chain([program]) {
        let text = std::fs::read(path).expect("a source of these tests");
        text.hash(&mut hasher);
    }
    hasher
}

/// A program with its arguments, and where and how it runs.
#[derive(Clone)]
pub struct Program {
    pub argv: Vec<OsString>,
    pub dir: PathBuf,
    pub env: Vec<(&'static str, OsString)>,
}

impl Program {
    pub fn new(dir: &Path, path: impl AsRef<OsStr>) -> Program {
        Program {
            argv: vec![path.as_ref().to_owned()],
            dir: dir.to_owned(),
            env: vec![("LC_ALL", "C".into())],
        }
    }

    pub fn arg(mut self, a: impl AsRef<OsStr>) -> Program {
        self.argv.push(a.as_ref().to_owned());
        self
    }

    pub fn args<S: AsRef<OsStr>>(self, args: impl IntoIterator<Item = S>) -> Program {
        args.into_iter().fold(self, Program::arg)
    }

    pub fn env(mut self, key: &'static str, value: impl AsRef<OsStr>) -> Program {
        self.env.push((key, value.as_ref().to_owned()));
        self
    }

    fn run(&self, argv: &[OsString]) -> Output {
        Command::new(&argv[0])
            .args(&argv[1..])
            .current_dir(&self.dir)
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .output()
            .unwrap_or_else(|e| panic!("{} does not start: {e}", argv[0].display()))
    }

    /// Runs it without hugeswap; `None` if it failed.
    pub fn try_plain(&self) -> Option<Output> {
        let out = self.any();
        out.status.success().then_some(out)
    }

    /// Runs it without hugeswap; it may end in any way.
    pub fn any(&self) -> Output {
        self.run(&self.argv)
    }

    /// Runs it without hugeswap; it must succeed.
    pub fn plain(&self) -> Output {
        let out = self.any();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "plain: {}: {said}", out.status);
        out
    }

    /// Runs it under `hugeswap run`, started by `before` (nothing, or a program that starts
    /// another).
    pub fn managed_by(&self, before: &[OsString], setup: &Setup) -> Managed {
        let report = tempfile::NamedTempFile::new_in("/var/tmp").expect("a file in /var/tmp");
        // Another user may be the one to write it.
        std::fs::set_permissions(
            report.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o666),
        )
        .expect("chmod of a file of ours");
        let mut argv = before.to_vec();
        argv.extend(setup.arguments());
        argv.extend(["--report-file".into(), report.path().into(), "--".into()]);
        argv.extend(self.argv.iter().cloned());
        let output = self.run(&argv);
        let text = std::fs::read(report.path()).expect("the report");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = serde_json::from_slice(&text)
            .unwrap_or_else(|e| panic!("no report: {e}; {}: {said}", output.status));
        Managed {
            output,
            report,
            said,
            setup: setup.clone(),
        }
    }

    /// Runs it under `hugeswap run`.
    pub fn managed(&self, setup: &Setup) -> Managed {
        self.managed_by(&[HUGESWAP.into()], setup)
    }
}

/// The options of `hugeswap run`.
#[derive(Clone)]
pub struct Setup {
    pub mode: Mode,
    pub memory_mib: u64,
    pub options: Vec<OsString>,
    /// Is swap where hugeswap puts it, on a disk?
    on_disk: bool,
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} mode, {}M", self.mode, self.memory_mib)?;
        for option in self.options.iter().filter(|o| *o != "--set") {
            write!(f, ", {}", option.display())?;
        }
        Ok(())
    }
}

impl Setup {
    pub fn new(mode: Mode, memory_mib: u64) -> Setup {
        Setup {
            mode,
            memory_mib,
            options: Vec::new(),
            on_disk: !memory_has_room(),
        }
    }

    /// Swap is on a disk: what the case is about, or a program that people run.
    pub fn on_disk(self) -> Setup {
        Setup {
            on_disk: true,
            ..self
        }
    }

    pub fn option(mut self, key: &str, value: impl AsRef<OsStr>) -> Setup {
        self.options.extend([key.into(), value.as_ref().to_owned()]);
        self
    }

    fn arguments(&self) -> Vec<OsString> {
        let memory = format!("{}M", self.memory_mib);
        let fixed = ["run", "--memory", &memory, "--fault-mode", self.mode.name()];
        let mut all: Vec<OsString> = fixed.iter().map(OsString::from).collect();
        all.extend(["--report".into(), "json".into()]);
        if !self.on_disk && !self.options.iter().any(|o| o == "--swap") {
            let swap = format!("{IN_MEMORY},size=4G,tmpfs=allow");
            all.extend(["--swap".into(), swap.into()]);
        }
        all.extend(self.options.iter().cloned());
        all
    }
}

/// The results of a managed run.
pub struct Managed {
    pub output: Output,
    pub report: Value,
    said: String,
    setup: Setup,
}

impl Managed {
    /// The text that the program wrote to standard error.
    pub fn said(&self) -> &str {
        &self.said
    }

    /// The number `key` of the report.
    pub fn number(&self, key: &str) -> u64 {
        self.report[key]
            .as_u64()
            .unwrap_or_else(|| panic!("the report has no number {key}: {}", self.report))
    }

    /// The managed run ended with the status and the output of the plain one.
    pub fn same_output_as(&self, plain: &Output) -> &Managed {
        assert_eq!(
            self.output.status,
            plain.status,
            "{}: {}",
            self.mode(),
            self.said
        );
        if self.output.stdout != plain.stdout {
            let (a, b) = (lines(&plain.stdout), lines(&self.output.stdout));
            let at = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
            panic!(
                "{}: line {} is {:?} in the plain run and {:?} in the managed one; {}",
                self.mode(),
                at + 1,
                a.get(at),
                b.get(at),
                self.said
            );
        }
        self
    }

    /// Checks that everything is as in the plain run, that the budget was kept, and that it was too
    /// small.
    pub fn same_as(&self, plain: &Output) -> &Managed {
        self.same_output_as(plain);
        self.kept_its_budget();
        assert!(
            self.number("pswpout") > 0 && self.number("pswpin") > 0,
            "nothing was swapped: {}",
            self.report
        );
        self
    }

    /// Checks that the report's figures fit the run.
    pub fn kept_its_budget(&self) -> &Managed {
        let budget = self.setup.memory_mib << 20;
        assert_eq!(self.number("memory_bytes"), budget);
        let peak = self.number("peak_resident_bytes");
        assert!(
            peak > 0 && peak <= budget + budget / 50,
            "peak {peak} of {budget}: {}",
            self.report
        );
        assert!(
            self.number("peak_managed_bytes") > budget,
            "it would have fitted: {}",
            self.report
        );
        let mode = self.report["fault_mode"].as_str().unwrap_or_default();
        assert!(
            self.setup.mode.reported().contains(&mode),
            "fault mode {mode}"
        );
        assert_eq!(
            self.report["exit_code"].as_i64(),
            self.output.status.code().map(i64::from)
        );
        self
    }

    /// Checks that at least so many processes had managed memory.
    pub fn processes(&self, least: u64) -> &Managed {
        let n = self.number("processes");
        assert!(n >= least, "{n} processes, not {least}: {}", self.report);
        self
    }

    /// How often the program found memory absent that it was about to use.
    pub fn absent(&self) -> u64 {
        let line = self.said.lines().find_map(|l| l.strip_prefix("absent "));
        line.and_then(|n| n.parse().ok())
            .unwrap_or_else(|| panic!("no count of what was absent: {}", self.said))
    }

    fn mode(&self) -> String {
        format!("{} mode {:?}", self.setup.mode, self.setup.options)
    }
}

fn lines(bytes: &[u8]) -> Vec<String> {
    bytes
        .split(|&b| b == b'\n')
        .map(|l| String::from_utf8_lossy(l).into_owned())
        .collect()
}

/// Panics unless the two files are the same, byte for byte.
pub fn same_files(a: &Path, b: &Path) {
    let open = |p: &Path| File::open(p).unwrap_or_else(|e| panic!("{}: {e}", p.display()));
    let (mut x, mut y) = (open(a), open(b));
    let length = |f: &File| f.metadata().expect("an open file has a length").len();
    assert_eq!(
        length(&x),
        length(&y),
        "{} and {}",
        a.display(),
        b.display()
    );
    let (mut p, mut q) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut at = 0;
    loop {
        let n = x.read(&mut p).expect("read");
        if n == 0 {
            return;
        }
        y.read_exact(&mut q[..n]).expect("read");
        assert!(
            p[..n] == q[..n],
            "{} and {} differ after byte {at}",
            a.display(),
            b.display()
        );
        at += n;
    }
}

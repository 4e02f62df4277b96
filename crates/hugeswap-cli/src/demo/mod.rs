//! `hugeswap demo`: GNU sort, plain and then in a quarter of the memory that it took, on the same data.
//! The two outputs must be the same bytes.
//!
//! The files have no names, and every child is killed when this process ends: nothing is left behind,
//! however it ends.

mod data;

use anyhow::{Context, Result, bail};
use hugeswap_engine::pool::{MIN_MEMORY, SwapSpec, machine_memory, swap};
use hugeswap_policy::{UNIT_BYTES, knobs};
use hugeswap_sys::spawn::Change;
use hugeswap_sys::{signal, spawn};
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::text;

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap demo
  hugeswap demo --size 300M --swap /mnt/fast

The data are logs of 8 machines, one after the other and each nearly in order of time: what a merge by time
really meets. Data in random order would make sort touch its memory at random, which units of 2 MiB
serve badly: that is slow under any budget smaller than the text.

Exit status: 0 if the outputs are the same, 1 if not.";

/// Arguments of `hugeswap demo`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Size of the data; sort takes about 2.5 times as much memory
    #[arg(long, value_name = "SIZE", default_value = "512M")]
    size: String,
    /// Directory for data, outputs and swap (default: /var/tmp, or another directory on a disk)
    #[arg(long, value_name = "DIR")]
    swap: Option<PathBuf>,
    /// Change a setting of hugeswap; may be repeated (as in `hugeswap run`)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// The smallest size; a smaller one ends before anything is swapped.
const MIN_SIZE: u64 = 64 << 20;
/// Memory that sort with two threads takes for a line beside its text: two `struct line`.
const SORT_BYTES_PER_LINE: u64 = 64;
/// Time between two checks of a running child.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs the demo; returns 0 if all is well, 1 if the outputs differ or nothing was managed.
pub fn run(args: &Args) -> Result<i32> {
    let size = knobs::parse_size(&args.size).context("--size")?;
    if size < MIN_SIZE {
        bail!(
            "--size {} is too small to show anything: at least {}",
            args.size,
            text::bytes(MIN_SIZE)
        );
    }
    for setting in &args.set {
        knobs::parse_setting(setting)
            .map_err(anyhow::Error::msg)
            .context("--set")?;
    }
    if std::env::var_os(hugeswap_support::POOL_VARIABLE).is_some() {
        bail!("this already runs inside hugeswap run: start the demo directly");
    }
    let sort = find_sort()?;
    let dir = match &args.swap {
        Some(dir) => dir.clone(),
        None => swap::default_area()?.path,
    };
    let lines = data::lines(size);
    let size = lines * data::LINE as u64;
    let buffer = (size + lines * SORT_BYTES_PER_LINE) / 20 * 21 + (16 << 20);
    check_room(&dir, size, buffer)?;

    let show = Show::new();
    let input = generate(&show, &dir, lines, size)?;
    let command = [
        "sort".to_owned(),
        format!("-S{}K", buffer >> 10),
        "--parallel=2".to_owned(),
        format!("-T{}", dir.display()),
    ];
    println!(
        "data      {} of log lines: {} lines of 8 machines",
        text::bytes(size),
        text::count(lines)
    );

    let plain_out = nameless(&dir)?;
    let plain = show.timed("plain sort", || {
        run_child(&sort, &command, &input, &plain_out)
    })?;
    println!(
        "plain     {:>8}   peak {}",
        text::duration(plain.ns),
        text::bytes(plain.peak)
    );
    if plain.peak < size + lines * SORT_BYTES_PER_LINE / 4 {
        bail!(
            "sort did not sort in memory, as its options say (peak {}): is {} GNU sort?",
            text::bytes(plain.peak),
            sort.display()
        );
    }

    let memory = (plain.peak / 4 / UNIT_BYTES * UNIT_BYTES).max(MIN_MEMORY);
    let managed_out = nameless(&dir)?;
    let mut report = nameless(&dir)?;
    let me = std::env::current_exe().context("cannot find this program's own file")?;
    let mut wrapped: Vec<String> = ["hugeswap", "run", "--memory"].map(str::to_owned).into();
    wrapped.extend([
        memory.to_string(),
        "--swap".into(),
        dir.display().to_string(),
    ]);
    for setting in &args.set {
        wrapped.extend(["--set".into(), setting.clone()]);
    }
    wrapped.extend(["--report", "json", "--report-file"].map(str::to_owned));
    wrapped.extend([
        format!("/proc/{}/fd/{}", std::process::id(), report.as_raw_fd()),
        "--".into(),
    ]);
    wrapped.push(sort.display().to_string());
    wrapped.extend_from_slice(&command[1..]);
    let managed = show.timed("sort under hugeswap run", || {
        run_child(&me, &wrapped, &input, &managed_out)
    })?;
    let mut json = String::new();
    report
        .rewind()
        .and_then(|()| report.read_to_string(&mut json))
        .context("the report cannot be read")?;
    let report: serde_json::Value =
        serde_json::from_str(&json).context("the report is not what was expected")?;
    println!(
        "hugeswap  {:>8}   peak {} with a budget of {}",
        text::duration(managed.ns),
        text::bytes(managed.peak),
        text::bytes(memory)
    );
    let figure = |key: &str| report[key].as_u64().unwrap_or(0);
    println!(
        "swapped   {} out, {} in; {} huge pages out whole, {} in whole; {}",
        text::bytes(figure("swapped_out_bytes")),
        text::bytes(figure("swapped_in_bytes")),
        text::count(figure("thp_swpout")),
        text::count(figure("thp_swpin")),
        match report["huge_share"].as_f64() {
            Some(share) => format!("{:.1}% of managed memory was huge", share * 100.0),
            None => "nothing was managed".into(),
        }
    );

    let difference = compare(&show, &plain_out, &managed_out, size)?;
    Ok(verdict(
        difference,
        figure("swapped_out_bytes") > 0,
        &plain,
        &managed,
        size,
    ))
}

/// The last line, and the exit status.
fn verdict(difference: Option<u64>, swapped: bool, plain: &Ran, managed: &Ran, size: u64) -> i32 {
    if let Some(at) = difference {
        println!("\nFAILED: the outputs differ from byte {at} on");
        return 1;
    }
    println!("output    identical, {} compared", text::bytes(size));
    if !swapped {
        println!("\nFAILED: the output is right, but nothing was swapped, so nothing was shown");
        return 1;
    }
    println!(
        "\nOK: the same output in {:.0}% of the memory and {:.2} times the time",
        managed.peak as f64 * 100.0 / plain.peak.max(1) as f64,
        managed.ns as f64 / plain.ns.max(1) as f64
    );
    0
}

fn find_sort() -> Result<PathBuf> {
    let found = crate::run::preflight::find(OsStr::new("sort"));
    let path = found.context("the demo needs GNU sort (coreutils)")?.path;
    let out = std::process::Command::new(&path).arg("--version").output();
    if !out.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("GNU coreutils")) {
        bail!("{} is not GNU sort: install coreutils", path.display());
    }
    Ok(path)
}

/// An error unless there is enough memory for the plain run and enough disk space for everything.
fn check_room(dir: &Path, size: u64, buffer: u64) -> Result<()> {
    let memory = available_memory().unwrap_or_else(machine_memory);
    if memory < buffer + (256 << 20) {
        bail!(
            "the plain run needs {} of memory and {} is available: give a smaller --size",
            text::bytes(buffer),
            text::bytes(memory)
        );
    }
    let area = swap::open_area(&SwapSpec::new(dir))?;
    let free = hugeswap_sys::fs::file_system(area.fd).map(|f| f.free_bytes);
    hugeswap_sys::fs::close(area.fd);
    let needed = 3 * size + buffer + (256 << 20);
    match free {
        Ok(free) if free < needed => bail!(
            "the demo needs {} in {} and {} is free: give a smaller --size or another --swap DIR",
            text::bytes(needed),
            dir.display(),
            text::bytes(free)
        ),
        _ => Ok(()),
    }
}

fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

fn nameless(dir: &Path) -> Result<File> {
    tempfile::tempfile_in(dir).with_context(|| format!("no file can be made in {}", dir.display()))
}

fn generate(show: &Show, dir: &Path, lines: u64, size: u64) -> Result<File> {
    let file = nameless(dir)?;
    let bar = show.bar("generating data", size);
    let mut out = BufWriter::new(&file);
    data::write(&mut out, lines, &mut |done| bar.set_position(done))
        .and_then(|()| out.flush())
        .with_context(|| format!("the data could not be written in {}", dir.display()))?;
    drop(out);
    bar.finish_and_clear();
    Ok(file)
}

/// Time and memory that a child took.
struct Ran {
    ns: u64,
    /// Largest resident set, as the kernel counted it, bytes.
    peak: u64,
}

/// Runs a program on the whole of `input` into `output`; an error unless it exits with 0.
fn run_child(program: &Path, argv: &[String], input: &File, output: &File) -> Result<Ran> {
    let c = |bytes: &[u8]| CString::new(bytes).context("an argument has a NUL in it");
    let path = c(program.as_os_str().as_bytes())?;
    let argv = argv
        .iter()
        .map(|a| c(a.as_bytes()))
        .collect::<Result<Vec<_>>>()?;
    let env = std::env::vars_os()
        .filter(|(name, _)| name != "LC_ALL")
        .chain([("LC_ALL".into(), "C".into())])
        .map(|(name, value)| c(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<Vec<_>>>()?;
    // Opened anew: each run reads from the start.
    let input = File::open(format!("/proc/self/fd/{}", input.as_raw_fd()))
        .context("cannot open the data again")?;
    let request = spawn::Program {
        path: &path,
        argv: &argv,
        env: &env,
        mask: signal::Mask::default(),
        stdio: [Some(input.as_fd()), Some(output.as_fd())],
    };
    let start = Instant::now();
    let pid = spawn::start(&request)
        .with_context(|| format!("{} could not be started", program.display()))?;
    let name = argv[0].to_string_lossy();
    loop {
        let waited = spawn::wait(pid, true).context("lost a program")?;
        match waited.map(|w| (w.change, w.max_rss_bytes)) {
            None | Some((Change::Stopped(_), _)) => std::thread::sleep(LOOK_EVERY),
            Some((Change::Exited(0), peak)) => {
                let ns = start.elapsed().as_nanos() as u64;
                return Ok(Ran { ns, peak });
            }
            Some((Change::Exited(code), _)) => {
                bail!("{name} failed with status {code} (see above)")
            }
            Some((Change::Killed(n), _)) => bail!("{name} was ended by signal {n}"),
        }
    }
}

/// The first byte at which the two files differ.
fn compare(show: &Show, a: &File, b: &File, size: u64) -> Result<Option<u64>> {
    const BLOCK: usize = 1 << 20;
    let bar = show.bar("comparing outputs", size);
    let again = |f: &File| -> Result<BufReader<File>> {
        let file = File::open(format!("/proc/self/fd/{}", f.as_raw_fd()))
            .context("cannot read an output")?;
        Ok(BufReader::with_capacity(BLOCK, file))
    };
    let (mut a, mut b) = (again(a)?, again(b)?);
    let (mut x, mut y) = (Vec::with_capacity(BLOCK), Vec::with_capacity(BLOCK));
    let mut at = 0u64;
    loop {
        x.clear();
        y.clear();
        a.by_ref()
            .take(BLOCK as u64)
            .read_to_end(&mut x)
            .context("cannot read an output")?;
        b.by_ref()
            .take(BLOCK as u64)
            .read_to_end(&mut y)
            .context("cannot read an output")?;
        if x != y {
            let same = x.iter().zip(&y).take_while(|(p, q)| p == q).count();
            return Ok(Some(at + same as u64));
        }
        if x.is_empty() {
            // Both files ended; they must also be as long as the input.
            return Ok((at != size).then_some(at));
        }
        at += x.len() as u64;
        bar.set_position(at);
    }
}

/// Progress on stderr: bars on a terminal, otherwise a line for each step.
struct Show {
    terminal: bool,
}

impl Show {
    fn new() -> Show {
        Show {
            terminal: std::io::stderr().is_terminal(),
        }
    }

    fn bar(&self, what: &'static str, bytes: u64) -> ProgressBar {
        if !self.terminal {
            eprintln!("{what}...");
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{msg:24} [{bar:40}] {bytes}/{total_bytes}");
        let bar = ProgressBar::new(bytes).with_message(what);
        bar.set_style(
            style
                .expect("the template is a constant")
                .progress_chars("=> "),
        );
        bar
    }

    /// Runs `work` and shows the elapsed time.
    fn timed<T>(&self, what: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let spinner = if self.terminal {
            let style = ProgressStyle::with_template("{msg:24} {spinner} {elapsed}");
            let s = ProgressBar::new_spinner().with_message(what);
            s.set_style(style.expect("the template is a constant"));
            s.enable_steady_tick(Duration::from_millis(100));
            s
        } else {
            eprintln!("{what}...");
            ProgressBar::hidden()
        };
        let result = work();
        spinner.finish_and_clear();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> File {
        let mut f = nameless(Path::new("/var/tmp")).unwrap();
        f.write_all(content).unwrap();
        f
    }

    fn differ(a: &[u8], b: &[u8]) -> Option<u64> {
        let show = Show { terminal: false };
        compare(&show, &file(a), &file(b), a.len() as u64).unwrap()
    }

    #[test]
    fn differences_are_found_where_they_are() {
        let long = vec![7u8; (1 << 20) + 100];
        assert_eq!(differ(&long, &long), None);
        let mut other = long.clone();
        other[(1 << 20) + 5] = 8;
        assert_eq!(differ(&long, &other), Some((1 << 20) + 5));
        assert_eq!(differ(&long, &long[..200]), Some(200));
        assert_eq!(differ(b"", b""), None);
    }

    #[test]
    fn an_output_shorter_than_the_input_is_no_success() {
        let show = Show { terminal: false };
        assert_eq!(
            compare(&show, &file(b"ab"), &file(b"ab"), 3).unwrap(),
            Some(2)
        );
    }

    #[test]
    fn a_child_reads_its_input_and_is_measured() {
        let (input, output) = (file(b"b\na\n"), nameless(Path::new("/var/tmp")).unwrap());
        let ran = run_child(
            Path::new("/usr/bin/sort"),
            &["sort".into()],
            &input,
            &output,
        )
        .unwrap();
        assert!(ran.peak > 0);
        assert_eq!(
            compare(&Show { terminal: false }, &output, &file(b"a\nb\n"), 4).unwrap(),
            None
        );
        let failed = run_child(Path::new("/bin/false"), &["false".into()], &input, &output);
        assert!(failed.is_err_and(|e| e.to_string().contains("status 1")));
    }
}

//! `hugeswap jupyter`: kernels of Jupyter that run within a memory budget, so that a notebook that needs
//! more slows down instead of losing its kernel.
//!
//! A kernel is a directory with a `kernel.json` (jupyter-client, "Making kernels for Jupyter"), which
//! says how to start it: here, by `hugeswap run`.

use crate::run::preflight;
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use hugeswap_engine::pool::SwapSpec;
use hugeswap_policy::knobs;
use serde_json::json;
use std::ffi::OsStr;
use std::path::{Path, PathBuf, absolute};
use std::process::{Command as Process, Stdio};

const EXAMPLES: &str = "\
EXAMPLES:
  hugeswap jupyter install --memory 2G
  hugeswap jupyter install --total 4G --swap /mnt/fast --python ~/venv/bin/python --name big-data
  jupyter kernelspec remove hugeswap-2g";

/// Notebooks in a memory budget: install a kernel for Jupyter
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = false)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install a Python kernel that runs under hugeswap
    Install(Install),
}

#[derive(clap::Args)]
struct Install {
    /// Memory that is managed, for each kernel. Neither this nor --total: what the control group (container) of
    /// Jupyter, or the machine, has
    #[arg(long, value_name = "SIZE", conflicts_with = "total")]
    memory: Option<String>,
    /// All memory of a kernel, managed or not
    #[arg(long, value_name = "SIZE")]
    total: Option<String>,
    /// Where swap goes; may be repeated (as for hugeswap run)
    #[arg(long, value_name = "PATH|mem[,size=SIZE][,pri=N]")]
    swap: Vec<String>,
    /// Change a setting; may be repeated (as for hugeswap run)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The interpreter, which has ipykernel
    #[arg(long, value_name = "PROG", default_value = "python3")]
    python: PathBuf,
    /// Name of the kernel's directory [default: hugeswap, and the size]
    #[arg(long)]
    name: Option<String>,
    /// Install for all users of an installation (below DIR/share/jupyter), not for this user
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

/// Runs the command. Returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    match &args.command {
        Command::Install(install) => install.run(),
    }
}

impl Install {
    fn run(&self) -> Result<i32> {
        let (option, size) = match (&self.memory, &self.total) {
            (Some(size), _) => ("--memory", Some(size)),
            (None, size) => ("--total", size.as_ref()),
        };
        if let Some(size) = size {
            knobs::parse_size(size).context(option)?;
        }
        let swap = { self.swap.iter() }
            .map(|spec| absolute_area(spec))
            .collect::<Result<Vec<_>>>()?;
        for setting in &self.set {
            knobs::parse_setting(setting)
                .map_err(anyhow::Error::msg)
                .context("--set")?;
        }
        let python = interpreter(self.python.as_os_str())?;
        let name = match (&self.name, size) {
            (Some(name), _) => name.clone(),
            (None, Some(size)) => format!("hugeswap-{}", size.to_ascii_lowercase()),
            (None, None) => "hugeswap".into(),
        };
        check_name(&name)?;
        let me = std::env::current_exe().context("cannot find this program's own file")?;
        let text = |path: &Path| match path.to_str() {
            Some(text) => Ok(text.to_owned()),
            None => bail!("{} has a name that Jupyter cannot be told", path.display()),
        };
        let mut argv = vec![text(&me)?, "run".into()];
        let options = size.into_iter().map(|size| (option, size));
        let options = options.chain(swap.iter().map(|s| ("--swap", s)));
        for (option, value) in options.chain(self.set.iter().map(|s| ("--set", s))) {
            argv.extend([option.to_owned(), value.clone()]);
        }
        argv.extend(["--".into(), text(&python)?]);
        argv.extend(["-m", "ipykernel_launcher", "-f", "{connection_file}"].map(str::to_owned));
        let shown = match size {
            Some(size) => format!("Python 3 (hugeswap, {size})"),
            None => "Python 3 (hugeswap)".into(),
        };
        let kernel = json!({ "argv": argv, "display_name": shown, "language": "python" });

        let dir = self.data_dir()?.join("kernels").join(&name);
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let file = dir.join("kernel.json");
        std::fs::write(&file, format!("{kernel:#}\n"))
            .with_context(|| format!("cannot write {}", file.display()))?;
        println!("installed as {name} in {}", dir.display());
        println!(
            "In Jupyter it is called \"{shown}\"; `jupyter kernelspec remove {name}` removes it."
        );
        Ok(0)
    }

    /// Where Jupyter looks for data.
    fn data_dir(&self) -> Result<PathBuf> {
        if let Some(prefix) = &self.prefix {
            return Ok(prefix.join("share/jupyter"));
        }
        let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty());
        if let Some(dir) = variable("JUPYTER_DATA_DIR") {
            return Ok(dir.into());
        }
        if let Some(dir) = variable("XDG_DATA_HOME") {
            return Ok(Path::new(&dir).join("jupyter"));
        }
        match variable("HOME") {
            Some(home) => Ok(Path::new(&home).join(".local/share/jupyter")),
            None => bail!("HOME is not set: say where by --prefix DIR"),
        }
    }
}

/// The absolute path of an interpreter that has ipykernel. (A virtual environment is known by the path
/// that its interpreter is started by: links are not followed.)
fn interpreter(name: &OsStr) -> Result<PathBuf> {
    let path = absolute(preflight::find(name).context("--python")?.path)?;
    let has_it = Process::new(&path)
        .args(["-c", "import ipykernel"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("{} cannot be started", path.display()))?;
    if !has_it.success() {
        bail!(
            "{0} has no ipykernel: install it (`{0} -m pip install ipykernel`), or name another one by --python",
            path.display()
        );
    }
    Ok(path)
}

/// A kernel starts in its notebook's directory: the area's path may not depend on it.
fn absolute_area(spec: &str) -> Result<String> {
    let parsed = SwapSpec::parse(spec).context("--swap")?;
    if parsed.is_memory() {
        return Ok(spec.to_owned());
    }
    let (path, rest) = match spec.split_once(',') {
        Some((path, rest)) => (path, format!(",{rest}")),
        None => (spec, String::new()),
    };
    match absolute(path)?.to_str() {
        Some(path) => Ok(format!("{path}{rest}")),
        None => bail!("--swap {spec}: a name that Jupyter cannot be told"),
    }
}

/// What Jupyter takes for a name of a kernel.
fn check_name(name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(fits) {
        bail!("--name {name:?}: letters, digits, '-', '_' and '.' only, and no '.' in front");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["hugeswap-2g", "a", "A.b_c"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "..", ".a", "a/b", "a b", "ä"] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn areas_do_not_depend_on_the_directory() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute_area("/a,size=1G").unwrap(), "/a,size=1G");
        assert_eq!(absolute_area("mem,size=1G").unwrap(), "mem,size=1G");
        let there = format!("{},pri=2", here.join("x").display());
        assert_eq!(absolute_area("x,pri=2").unwrap(), there);
        assert!(absolute_area("x,pri=").is_err());
    }
}

//! What `hugeswap run` is told otherwise than by its command line: by the environment, and by a file
//! in TOML. What the command line says comes first, then the environment, then the file.

use super::options::{Format, Mode, Options, Static};
use crate::exporter::serve::Address;
use crate::stat;
use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Options as they can stand in a file; the same as those of the command line.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Config {
    memory: Option<String>,
    total: Option<String>,
    swap: Option<OneOrMore>,
    encrypt: bool,
    small: bool,
    fault_mode: Option<String>,
    r#static: Option<String>,
    wait_all: bool,
    metrics: Option<String>,
    log: Option<f64>,
    report: Option<String>,
    report_file: Option<PathBuf>,
    /// By key; a key with a dot may be a table.
    set: Table,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// The options of a run, with those that the command line does not have.
pub fn complete(
    mut options: Options,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Options> {
    let set = |name: &str| environment(name).filter(|value| !value.is_empty());
    let file = options.config.clone();
    let file = file.or_else(|| set("HUGESWAP_CONFIG").map(PathBuf::from));
    let from_environment = Config {
        memory: set("HUGESWAP_MEMORY"),
        total: set("HUGESWAP_TOTAL"),
        swap: set("HUGESWAP_SWAP").map(OneOrMore::One),
        ..Config::default()
    };
    let settings = set("HUGESWAP_SET").unwrap_or_default();
    let settings = settings.split_whitespace().map(str::to_owned).collect();
    add(&mut options, from_environment, settings)?;
    if let Some(file) = file {
        let shown = file.display();
        let config = read(&file)?;
        let settings = flat(&config.set, "").with_context(|| shown.to_string())?;
        add(&mut options, config, settings).with_context(|| shown.to_string())?;
    }
    Ok(options)
}

/// Adds what the options do not have yet. Settings come before those that they have, which count more.
fn add(options: &mut Options, more: Config, mut settings: Vec<String>) -> Result<()> {
    if more.memory.is_some() && more.total.is_some() {
        bail!("memory and total exclude each other: give one");
    }
    // (One limit takes the place of another kind.)
    if options.memory.is_none() && options.total.is_none() {
        (options.memory, options.total) = (more.memory, more.total);
    }
    if options.swap.is_empty() {
        options.swap = match more.swap {
            None => Vec::new(),
            Some(OneOrMore::One(one)) => vec![one],
            Some(OneOrMore::More(all)) => all,
        };
    }
    options.encrypt |= more.encrypt;
    options.small |= more.small;
    options.wait_all |= more.wait_all;
    fill(
        &mut options.fault_mode,
        "fault-mode",
        more.fault_mode,
        word::<Mode>,
    )?;
    fill(
        &mut options.static_programs,
        "static",
        more.r#static,
        word::<Static>,
    )?;
    fill(&mut options.report, "report", more.report, word::<Format>)?;
    fill(&mut options.metrics, "metrics", more.metrics, |text| {
        text.parse::<Address>()
    })?;
    let seconds = more.log.map(|seconds| seconds.to_string());
    fill(&mut options.log, "log", seconds, stat::interval)?;
    options.report_file = options.report_file.take().or(more.report_file);
    settings.append(&mut options.set);
    options.set = settings;
    Ok(())
}

/// One of an option's words.
fn word<T: ValueEnum>(text: &str) -> Result<T, String> {
    let names = || {
        T::value_variants()
            .iter()
            .filter_map(ValueEnum::to_possible_value)
    };
    T::from_str(text, false).map_err(|_| {
        let all: Vec<_> = names().map(|v| v.get_name().to_owned()).collect();
        format!("{text} is none of {}", all.join(", "))
    })
}

fn fill<T>(
    option: &mut Option<T>,
    name: &str,
    text: Option<String>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<()> {
    if let (None, Some(text)) = (&option, text) {
        *option = Some(parse(&text).map_err(|e| anyhow!("{name}: {e}"))?);
    }
    Ok(())
}

fn read(file: &Path) -> Result<Config> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("the configuration {shown} cannot be read"))?;
    toml::from_str(&text).map_err(|e| {
        let before = e.span().and_then(|s| text.get(..s.start));
        let line = before.map_or(1, |t| t.matches('\n').count() + 1);
        anyhow!("{shown}, line {line}: {}", e.message().trim())
    })
}

/// Settings as `--set` takes them. `thp.defrag` may be a key, or `defrag` in a table `thp`.
fn flat(table: &Table, before: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for (key, value) in table {
        let key = format!("{before}{key}");
        match value {
            Value::Table(inner) => all.extend(flat(inner, &format!("{key}."))?),
            Value::String(text) => all.push(format!("{key}={text}")),
            Value::Integer(n) => all.push(format!("{key}={n}")),
            Value::Boolean(on) => all.push(format!("{key}={}", if *on { "on" } else { "off" })),
            other => bail!(
                "{key}: {} is neither text nor a whole number nor true or false",
                other.type_str()
            ),
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn completed(line: &[&str], environment: &[(&str, &str)], file: &str) -> Result<Options> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, file).unwrap();
        let line = [&["x", "--config", path.to_str().unwrap()], line].concat();
        let found = |name: &str| {
            let of = environment.iter().find(|(n, _)| *n == name);
            of.map(|(_, value)| (*value).to_owned())
        };
        complete(Line::parse_from(line).options, found)
    }

    const FILE: &str = "
memory = '600M'
swap = ['/a,size=5G', '/b']
encrypt = true
fault-mode = 'signal'
static = 'off'
metrics = 'unix:/run/x'
log = 60
report = 'none'

[set]
readahead.max = 16
\"thp.defrag\" = 'defer'
swap.io_uring = false
";

    #[test]
    fn a_file_says_what_the_command_line_does_not() {
        let o = completed(&[], &[], FILE).unwrap();
        assert_eq!((o.memory.as_deref(), o.total), (Some("600M"), None));
        assert_eq!(o.swap, ["/a,size=5G", "/b"]);
        assert!(o.encrypt && !o.small && !o.wait_all);
        assert!(o.fault_mode == Some(Mode::Signal) && o.static_programs == Some(Static::Off));
        assert_eq!(o.metrics, Some(Address::Socket("/run/x".into())));
        assert_eq!(o.log, Some(std::time::Duration::from_secs(60)));
        let mut set = o.set.clone();
        set.sort();
        assert_eq!(
            set,
            ["readahead.max=16", "swap.io_uring=off", "thp.defrag=defer"]
        );
        assert_eq!(completed(&[], &[], "swap = 'mem'").unwrap().swap, ["mem"]);
        assert!(completed(&[], &[], "").unwrap().memory.is_none());
    }

    #[test]
    fn the_command_line_comes_first_and_the_environment_second() {
        let o = completed(
            &[
                "--total",
                "1G",
                "--set",
                "readahead.max=2",
                "--fault-mode",
                "auto",
            ],
            &[
                ("HUGESWAP_SWAP", "/c"),
                ("HUGESWAP_SET", "readahead.max=4 swappiness=9"),
            ],
            FILE,
        )
        .unwrap();
        assert_eq!((o.memory, o.total.as_deref()), (None, Some("1G")));
        assert_eq!(o.swap, ["/c"]);
        assert!(o.fault_mode == Some(Mode::Auto));
        let last = o.set.iter().rev().take(3).map(String::as_str);
        assert_eq!(
            last.collect::<Vec<_>>(),
            ["readahead.max=2", "swappiness=9", "readahead.max=4"]
        );
        let o = completed(
            &[],
            &[("HUGESWAP_TOTAL", "2G"), ("HUGESWAP_SWAP", "")],
            FILE,
        )
        .unwrap();
        assert_eq!(
            (o.memory, o.total.as_deref(), o.swap.len()),
            (None, Some("2G"), 2)
        );
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (file, says) in [
            ("memory = 5", "line 1: invalid type"),
            ("\n\nmemroy = '5M'", "line 3: unknown field `memroy`"),
            ("memory = ", "line 1: "),
            ("memory = '1G'\ntotal = '2G'", "exclude each other"),
            (
                "fault-mode = 'fast'",
                "fault-mode: fast is none of auto, signal, message",
            ),
            ("metrics = '0.0.0.0:9'", "metrics: "),
            ("log = 0.0", "log: give seconds, 0.1 to 86400"),
            ("set.a = 1.5", "a: float is neither"),
            ("set.a.b = []", "a.b: array is neither"),
        ] {
            let e = completed(&[], &[], file).map(drop).unwrap_err();
            let e = format!("{e:#}");
            assert!(
                e.contains(says) && e.contains("c.toml") && !e.contains('\n'),
                "{e}"
            );
        }
        let none = |name: &str| (name == "HUGESWAP_CONFIG").then(|| "/none/c".to_owned());
        let e = complete(Line::parse_from(["x"]).options, none)
            .map(drop)
            .unwrap_err();
        assert!(format!("{e:#}").contains("/none/c cannot be read"));
    }
}

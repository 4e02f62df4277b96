//! Names of the functions that frames of stacks are in: by the symbols and debugging information of
//! the files, and by the maps that runtimes which compile while they run write for perf(1)
//! (`/tmp/perf-PID.map`).

use super::file::Frame;
use super::open_file;
use addr2line::{Loader, demangle_auto};
use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// For so long names are looked for.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest map of a runtime that is read, bytes.
const LONGEST: u64 = 256 << 20;

/// Names the frames, as far as that can be within a time.
pub fn name(frames: &mut [Frame]) {
    let deadline = Instant::now() + PATIENCE;
    let mut files: HashMap<String, Option<Source>> = HashMap::new();
    // (All of a file one after the other: only one is open at a time.)
    let mut order: Vec<_> = (0..frames.len()).collect();
    order.sort_by(|&a, &b| frames[a].module.cmp(&frames[b].module));
    let mut last = String::new();
    for i in order {
        if Instant::now() > deadline {
            break;
        }
        let frame = &mut frames[i];
        if frame.module != last {
            files.clear();
            last.clone_from(&frame.module);
        }
        let source = files
            .entry(frame.module.clone())
            .or_insert_with(|| Source::of(&frame.module));
        if let Some(source) = source {
            frame.names = source.names(frame.at);
        }
    }
}

/// Where names come from.
enum Source {
    File(Box<Loader>),
    /// Of a runtime: address, length and name, in the order of addresses.
    Map(Vec<(u64, u64, String)>),
}

impl Source {
    fn of(module: &str) -> Option<Source> {
        if module.starts_with('/') {
            open_file(module)?;
            return Loader::new(module).ok().map(|l| Source::File(Box::new(l)));
        }
        Source::map_at(&format!("/tmp/perf-{module}.map"))
    }

    /// A map that this user, or, to root, any other has written: anybody can put a file there.
    fn map_at(path: &str) -> Option<Source> {
        let mut file = open_file(path)?;
        let (about, me) = (file.metadata().ok()?, rustix::process::geteuid());
        let is_good = about.len() <= LONGEST && (me.is_root() || about.uid() == me.as_raw());
        let mut text = Vec::new();
        let read = is_good && (&mut file).take(LONGEST).read_to_end(&mut text).is_ok();
        read.then(|| Source::Map(parse(&String::from_utf8_lossy(&text))))
    }

    fn names(&self, at: u64) -> Vec<String> {
        match self {
            Source::File(loader) => names_in(loader, at),
            Source::Map(functions) => {
                let after = functions.partition_point(|f| f.0 <= at);
                let of = functions[..after].last();
                let found = of.filter(|(from, len, _)| at - from < *len);
                found.map(|(_, _, name)| name.clone()).into_iter().collect()
            }
        }
    }
}

fn names_in(loader: &Loader, at: u64) -> Vec<String> {
    let mut names = Vec::new();
    if let Ok(mut frames) = loader.find_frames(at) {
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref().and_then(|f| f.demangle().ok());
            names.extend(name.map(Cow::into_owned));
        }
    }
    if names.is_empty()
        && let Some(symbol) = loader.find_symbol(at)
    {
        names.push(demangle_auto(symbol.into(), None).into_owned());
    }
    names
}

/// Lines of an address, a length (both hexadecimal) and a name.
fn parse(text: &str) -> Vec<(u64, u64, String)> {
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let mut number = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let (at, len) = (number()?, number()?);
        Some((at, len, words.next()?.to_owned()))
    };
    let mut all: Vec<_> = text.lines().filter_map(line).collect();
    all.sort_by_key(|f| f.0);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_runtime() {
        let map = Source::Map(parse(
            "7f10 10 py::f:/a b.py\nnonsense\n0x7e00 100 g\n7f20 zz h\n",
        ));
        assert_eq!(map.names(0x7f1f), ["py::f:/a b.py"]);
        assert_eq!(map.names(0x7e00), ["g"]);
        for none in [0x7dff, 0x7f00, 0x7f20] {
            assert!(map.names(none).is_empty());
        }
    }

    /// What stands where a map would is not waited for.
    #[test]
    fn a_pipe_is_no_map() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            mode,
            0,
        )
        .unwrap();
        std::fs::write(at("map"), "10 1 f\n").unwrap();
        assert!(Source::map_at(&at("pipe")).is_none() && Source::map_at(&at("none")).is_none());
        let map = Source::map_at(&at("map")).unwrap();
        assert_eq!(map.names(0x10), ["f"]);
        assert!(Source::of(&at("pipe")).is_none());
    }

    #[test]
    fn own_functions_have_names() {
        let file = std::env::current_exe().unwrap();
        let file = file.to_str().unwrap();
        let mut frames = vec![
            Frame {
                module: "/none".into(),
                at: 1,
                names: Vec::new(),
            },
            Frame {
                module: file.into(),
                at: Loader::new(file)
                    .unwrap()
                    .get_section_range(b".text")
                    .unwrap()
                    .begin
                    + 4096,
                names: Vec::new(),
            },
        ];
        name(&mut frames);
        assert!(frames[0].names.is_empty() && !frames[1].names.is_empty());
    }
}

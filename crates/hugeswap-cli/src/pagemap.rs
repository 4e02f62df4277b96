//! `hugeswap pagemap`: the state of the pages of a running program, as a map, as amounts or as ranges.

use crate::ctl::pools;
use crate::text;
use anyhow::{Result, bail};
use hugeswap_engine::pool::looking::Run;
use hugeswap_policy::PAGE_BYTES;
use hugeswap_policy::markers::pagemap::{Categories, Filter, State};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::ops::Range;

/// Show what each page of a running program is: in memory, in swap, zero, lost
#[derive(clap::Args)]
#[command(after_help = "\
EXAMPLES:
  hugeswap pagemap 4711                     a map of its managed memory, and how much is what
  hugeswap pagemap 4711 --ranges --only idle,present
  hugeswap pagemap 4711 --json | jq '.ranges[] | select(.swap_area == 1)'

The program is not stopped, nothing is brought in. Memory that it has mapped beyond the last that it touched is left out.
Categories: present, swapped, zero, poisoned, file, huge, dirty, idle, cached, writeback, shared, pinned, foreign, in-transit
(docs/pagemap.md explains them).")]
pub struct Args {
    /// A process of a pool: the program under hugeswap run, or one that uses the library
    pid: i32,
    /// Only these addresses, hexadecimal
    #[arg(long, value_name = "START-END", value_parser = addresses)]
    range: Option<Range<u64>>,
    /// Only pages that are all of this
    #[arg(long, value_name = "CATEGORIES", value_delimiter = ',', value_parser = category)]
    only: Vec<Categories>,
    /// How much is what, without the map
    #[arg(long, conflicts_with_all = ["ranges", "json"])]
    summary: bool,
    /// Every range of pages that are the same, a line each
    #[arg(long, conflicts_with = "json")]
    ranges: bool,
    /// Print one JSON object, sizes in bytes
    #[arg(long)]
    json: bool,
}

fn addresses(text: &str) -> Result<Range<u64>, String> {
    let bad = || format!("'{text}' is no range: write START-END, like 400000000000-400000200000");
    let number = |t: &str| u64::from_str_radix(t.trim_start_matches("0x"), 16).map_err(|_| bad());
    let (start, end) = text.split_once('-').ok_or_else(bad)?;
    let (start, end) = (number(start)?, number(end)?);
    if start >= end {
        return Err(format!("'{text}' ends before it begins"));
    }
    Ok(start..end)
}

fn category(text: &str) -> Result<Categories, String> {
    Categories::of_word(text).ok_or_else(|| {
        let words: Vec<_> = Categories::WORDS.iter().map(|(_, w)| *w).collect();
        format!("'{text}' is no category: there are {}", words.join(", "))
    })
}

/// Runs the command. Returns the exit status.
pub fn run(args: &Args) -> Result<i32> {
    let pool = pools::of(args.pid)?;
    let all = args.only.iter().fold(Categories::NONE, |a, c| a | *c);
    let filter = Filter {
        all,
        ..Filter::default()
    };
    let mut runs = pool.look_at(args.pid, args.range.clone().unwrap_or(0..u64::MAX))?;
    runs.retain(|(_, state)| filter.takes(state.categories));
    if runs.is_empty() && !args.json {
        bail!(
            "process {} has no such managed memory that it has touched",
            args.pid
        );
    }
    let out = &mut std::io::stdout().lock();
    let written = if args.json {
        write_json(out, args.pid, &runs)
    } else if args.ranges {
        write_ranges(out, &runs)
    } else {
        let map = if args.summary {
            Ok(())
        } else {
            write_map(out, &runs, std::io::stdout().is_terminal())
        };
        map.and_then(|()| write_summary(out, &runs))
    };
    match written {
        // The reader (head, less) has closed the pipe.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        written => Ok(written.map(|()| 0)?),
    }
}

pub fn len((pages, _): &Run) -> u64 {
    pages.end - pages.start
}

/// Bytes of each category that is not empty.
fn amounts(runs: &[Run]) -> Vec<(&'static str, u64)> {
    let of = |c: Categories| -> u64 {
        let some = runs.iter().filter(|(_, s)| s.categories.has(c));
        some.map(len).sum()
    };
    let all = Categories::WORDS.iter().map(|(c, word)| (*word, of(*c)));
    all.filter(|(_, n)| *n > 0).collect()
}

fn write_json(out: &mut impl Write, pid: i32, runs: &[Run]) -> std::io::Result<()> {
    let ranges: Vec<_> = runs
        .iter()
        .map(|(pages, state)| {
            let mut range = json!({
                "start": pages.start,
                "end": pages.end,
                "categories": state.categories.words().collect::<Vec<_>>(),
            });
            if let Some(swap) = state.swap {
                range["swap_area"] = swap.area.into();
                range["swap_offset"] = (swap.page * PAGE_BYTES).into();
            }
            range
        })
        .collect();
    let bytes: serde_json::Map<_, _> = amounts(runs)
        .into_iter()
        .map(|(word, n)| (word.to_owned(), n.into()))
        .collect();
    let all: u64 = runs.iter().map(len).sum();
    let found = json!({ "pid": pid, "bytes": all, "by_category": bytes, "ranges": ranges });
    serde_json::to_writer_pretty(&mut *out, &found)?;
    writeln!(out)
}

fn write_ranges(out: &mut impl Write, runs: &[Run]) -> std::io::Result<()> {
    for run in runs {
        let (pages, state) = run;
        let words: Vec<_> = state.categories.words().collect();
        write!(
            out,
            "{:012x}-{:012x} {:>10}  {}",
            pages.start,
            pages.end,
            text::bytes(len(run)),
            words.join(",")
        )?;
        match state.swap {
            Some(s) => writeln!(out, "  area {} at {}", s.area, s.page * PAGE_BYTES)?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}

fn write_summary(out: &mut impl Write, runs: &[Run]) -> std::io::Result<()> {
    let all: u64 = runs.iter().map(len).sum();
    writeln!(out, "{:<11}{:>10}", "all", text::bytes(all))?;
    for (word, n) in amounts(runs) {
        let share = n as f64 / all as f64;
        let bar = "#".repeat((share * 40.0).round() as usize);
        writeln!(
            out,
            "{word:<11}{:>10} {:>6.1}%  {bar}",
            text::bytes(n),
            share * 100.0
        )?;
    }
    Ok(())
}

/// A page on the map: a sign, a colour (SGR), and its description.
pub const LOOKS: [(char, u8, &str); 7] = [
    ('!', 41, "lost"),
    ('H', 42, "in memory, huge"),
    ('i', 43, "in memory, idle"),
    ('p', 46, "in memory, base pages"),
    ('s', 44, "in swap"),
    ('k', 45, "the kernel's"),
    ('.', 100, "zero"),
];

/// Index in [`LOOKS`].
pub type Sign = usize;

fn look(state: &State) -> Sign {
    let c = state.categories;
    match () {
        () if c.has(Categories::POISONED) => 0,
        () if c.has(Categories::FOREIGN) => 5,
        () if c.has(Categories::PRESENT | Categories::IDLE) => 2,
        () if c.has(Categories::PRESENT | Categories::HUGE) => 1,
        () if c.has(Categories::PRESENT) => 3,
        () if c.has(Categories::SWAPPED) => 4,
        () => 6,
    }
}

const COLUMNS: usize = 64;
const ROWS: usize = 24;

/// The signs of a map in which each sign stands for `each` bytes: the most frequent state in them, but a
/// lost page is always shown.
pub fn signs(runs: &[Run], each: u64) -> Vec<Sign> {
    let (mut found, mut cell, mut filled) = (Vec::new(), [0u64; LOOKS.len()], 0);
    let end = |cell: &mut [u64; LOOKS.len()]| {
        let most = (1..LOOKS.len()).max_by_key(|&k| (cell[k], std::cmp::Reverse(k)));
        let sign = if cell[0] > 0 { 0 } else { most.unwrap_or(0) };
        *cell = [0; LOOKS.len()];
        sign
    };
    for run in runs {
        let mut left = len(run);
        while left > 0 {
            let part = left.min(each - filled);
            cell[look(&run.1)] += part;
            (left, filled) = (left - part, filled + part);
            if filled == each {
                found.push(end(&mut cell));
                filled = 0;
            }
        }
    }
    if filled > 0 {
        found.push(end(&mut cell));
    }
    found
}

fn write_map(out: &mut impl Write, runs: &[Run], colour: bool) -> std::io::Result<()> {
    let all: u64 = runs.iter().map(len).sum();
    let each = all
        .div_ceil((COLUMNS * ROWS) as u64)
        .next_multiple_of(PAGE_BYTES)
        .max(PAGE_BYTES);
    let signs = signs(runs, each);
    for row in signs.chunks(COLUMNS) {
        for &sign in row {
            let (letter, sgr, _) = LOOKS[sign];
            if colour {
                write!(out, "\x1b[{sgr}m{letter}\x1b[0m")?;
            } else {
                write!(out, "{letter}")?;
            }
        }
        writeln!(out)?;
    }
    let there = LOOKS.iter().enumerate().filter(|(k, _)| signs.contains(k));
    let legend: Vec<_> = there
        .map(|(_, (letter, _, what))| format!("{letter} {what}"))
        .collect();
    let each = text::bytes(each);
    writeln!(
        out,
        "{}; each sign {each}, ranges one after the other\n",
        legend.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pages: Range<u64>, categories: Categories) -> Run {
        let state = State {
            categories,
            swap: None,
        };
        (pages.start * PAGE_BYTES..pages.end * PAGE_BYTES, state)
    }

    #[test]
    fn a_sign_is_what_there_is_most_of_and_lost_pages_are_always_seen() {
        let runs = [
            run(0..6, Categories::PRESENT | Categories::HUGE),
            run(6..8, Categories::SWAPPED),
            run(20..23, Categories::SWAPPED),
            run(23..24, Categories::POISONED),
            run(30..31, Categories::ZERO),
        ];
        assert_eq!(signs(&runs, 4 * PAGE_BYTES), [1, 1, 0, 6]);
        let by: Vec<_> = amounts(&runs)
            .into_iter()
            .map(|(w, n)| (w, n / PAGE_BYTES))
            .collect();
        assert_eq!(
            by,
            [
                ("present", 6),
                ("swapped", 5),
                ("zero", 1),
                ("huge", 6),
                ("poisoned", 1)
            ]
        );
    }

    #[test]
    fn addresses_are_hexadecimal() {
        assert_eq!(addresses("1000-0x2000"), Ok(0x1000..0x2000));
        for wrong in ["", "1000", "2000-1000", "1000-1000", "x-y", "1000-"] {
            assert!(addresses(wrong).is_err(), "{wrong}");
        }
        assert!(category("present").is_ok() && category("gone").is_err());
    }
}

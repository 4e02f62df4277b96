//! Which memory of a running program can be managed, and at which addresses the window is: from
//! what /proc/PID/smaps tells of its mappings.

use hugeswap_sys::attach::{BREAK_GROWTH, MOST_FAR};
use std::ops::Range;

const PAGE: u64 = 4096;
const UNIT: u64 = 2 << 20;
/// Length of a window, bytes. (There is room for what the program maps later.)
const WINDOW: u64 = 1 << 40;
/// Windows begin at a multiple of this, where they do not end with the program's memory.
const STEP: u64 = 1 << 30;
/// Addresses end here.
const END: u64 = 0x7fff_ffff_f000;

/// The name of what grows by brk(2).
const HEAP: &str = "[heap]";
/// Ranges of memory that are no further apart are one part of a window.
const APART: u64 = 64 << 20;

/// Flags of mappings that can be managed (`VmFlags` in /proc/PID/smaps): they may be read and
/// written, and nothing unusual was said of them.
const PLAIN: [&str; 9] = ["rd", "wr", "mr", "mw", "me", "ac", "sd", "hg", "nr"];

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub at: Range<u64>,
    /// It is private anonymous memory that can be managed.
    pub is_plain: bool,
    /// It would be, if it could be read and written.
    pub is_like_plain: bool,
    /// Its name, if it has one.
    pub name: String,
    /// Anonymous memory in it, in memory and in the kernel's swap, bytes.
    pub anonymous: u64,
}

/// The mappings of a process, from the text of its smaps.
pub fn parse(smaps: &str) -> Vec<Mapping> {
    let mut all: Vec<Mapping> = Vec::new();
    for line in smaps.lines() {
        if let Some(mapping) = header(line) {
            all.push(mapping);
            continue;
        }
        let (Some(last), Some((key, value))) = (all.last_mut(), line.split_once(':')) else {
            continue;
        };
        match key {
            "Anonymous" | "Swap" => last.anonymous += kib(value),
            "VmFlags" => {
                let mut flags = value.split_ascii_whitespace();
                last.is_like_plain &= flags.all(|f| PLAIN.contains(&f));
                last.is_plain &= last.is_like_plain;
            }
            _ => {}
        }
    }
    all
}

/// The first line of a mapping: `START-END PERMS OFFSET DEVICE INODE NAME`.
fn header(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let at = number(from)?..number(to)?;
    let access = words.next()?;
    let inode = words.nth(2)?;
    let name = words.collect::<Vec<_>>().join(" ");
    let is_unnamed = name.is_empty() || name == HEAP || name.starts_with("[anon:");
    let is_like_plain = access.ends_with('p') && inode == "0" && is_unnamed;
    Some(Mapping {
        at,
        is_plain: is_like_plain && access.starts_with("rw-"),
        is_like_plain,
        name,
        anonymous: 0,
    })
}

fn kib(value: &str) -> u64 {
    let number = value.split_ascii_whitespace().next();
    number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Mappings of /proc/PID/maps, of which those are plain that are made of what was plain before, or was
/// so but for its access. (A heap has grown, or was given access.) What was something else before is a
/// part by itself: the kernel makes one mapping of neighbours that are alike.
pub fn as_known(now: Vec<Mapping>, known: &[Mapping]) -> Vec<Mapping> {
    let mut all = Vec::new();
    for m in now {
        if !m.is_plain {
            all.push(m);
            continue;
        }
        let first = known.partition_point(|k| k.at.end <= m.at.start);
        let met = known[first..].iter().take_while(|k| k.at.start < m.at.end);
        let mut rest = m.at.clone();
        let mut is_known = false;
        let mut part = |at: Range<u64>, is_plain| {
            if !at.is_empty() {
                all.push(Mapping {
                    at,
                    is_plain,
                    ..m.clone()
                });
            }
        };
        for k in met {
            if k.is_like_plain {
                is_known = true;
                continue;
            }
            part(rest.start..k.at.start.max(rest.start), is_known);
            part(k.at.start.max(rest.start)..k.at.end.min(rest.end), false);
            rest.start = k.at.end.min(rest.end);
            is_known = false;
        }
        part(rest, is_known);
    }
    all
}

/// Where a thread's own memory is, which stays the kernel's: it writes there without being asked.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub stack_pointer: u64,
    pub thread_pointer: u64,
    /// Address and length.
    pub alternate_stack: [u64; 2],
}

/// What of a thread's memory is to stay the kernel's.
fn kept(of: Place, mappings: &[Mapping]) -> Vec<Range<u64>> {
    /// The C library's descriptor of a thread, and its thread-locals.
    const DESCRIPTOR: u64 = 64 << 10;
    /// A stack of which nothing else is known.
    const STACK: u64 = 8 << 20;
    /// No stack that a C library has mapped is longer.
    const LONGEST: u64 = 64 << 20;
    let around =
        |at: u64, below: u64, above: u64| at.saturating_sub(below)..at.saturating_add(above);
    let [stack, len] = of.alternate_stack;
    let mut all = vec![
        around(of.thread_pointer, DESCRIPTOR, DESCRIPTOR),
        stack..stack.saturating_add(len),
    ];
    let holds = |m: &&Mapping| m.at.contains(&of.stack_pointer);
    let whole = mappings.iter().find(holds);
    // The C library puts a thread's descriptor at the end of its stack.
    let own = whole.filter(|m| {
        (m.at.start..m.at.end.min(m.at.start + LONGEST)).contains(&of.thread_pointer)
            && of.stack_pointer < of.thread_pointer
    });
    all.push(match own {
        Some(m) => m.at.start..of.thread_pointer + DESCRIPTOR,
        None => around(of.stack_pointer, STACK, STACK / 8),
    });
    all
}

/// Ranges of whole units that can be managed, in order.
pub fn adoptable(mappings: &[Mapping], threads: &[Place]) -> Vec<Range<u64>> {
    let mut kept: Vec<_> = threads.iter().flat_map(|&t| kept(t, mappings)).collect();
    kept.sort_unstable_by_key(|r| r.start);
    // Neighbours that can be managed are one range: a unit may lie in both.
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for m in mappings.iter().filter(|m| m.is_plain) {
        match ranges.last_mut() {
            Some(last) if last.end == m.at.start => last.end = m.at.end,
            _ => ranges.push(m.at.clone()),
        }
    }
    let mut all = Vec::new();
    for range in ranges {
        let mut from = range.start;
        let mut add = |from: u64, to: u64| {
            let (from, to) = (from.next_multiple_of(UNIT), to & !(UNIT - 1));
            if from < to {
                all.push(from..to);
            }
        };
        for k in kept
            .iter()
            .filter(|k| k.end > range.start && k.start < range.end)
        {
            add(from, k.start & !(PAGE - 1));
            from = from.max(k.end);
        }
        add(from, range.end);
    }
    all
}

/// The addresses of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Where new mappings are, too.
    pub main: Range<u64>,
    /// Elsewhere, where the program has memory already.
    pub far: Vec<Range<u64>>,
}

impl Window {
    /// Has it all of a range?
    pub fn has(&self, range: &Range<u64>) -> bool {
        let mut parts = self.far.iter().chain([&self.main]);
        parts.any(|p| p.start <= range.start && range.end <= p.end)
    }
}

/// The window that has most of these ranges in its main range, and the others, as far as it can be, in
/// far parts. `None`: there are none.
pub fn window(ranges: &[Range<u64>], mappings: &[Mapping]) -> Option<Window> {
    // (The heap is in several mappings where it was managed before.)
    let mut heap = mappings.iter().filter(|m| m.name == HEAP);
    let end = heap.clone().next_back().map_or(0, |h| h.at.end);
    let heap = heap.next().map_or(0, |h| h.at.start)..end;
    let is_heap = |r: &&Range<u64>| heap.contains(&r.start);
    let candidates: Vec<_> = ranges.iter().filter(|r| !is_heap(r)).cloned().collect();
    let main = match candidates.is_empty() {
        false => main_range(&candidates, mappings, &heap)?,
        true => {
            ranges.first()?;
            // Where the kernel would map what comes next.
            let stack = mappings.iter().position(|m| m.name == "[stack]");
            let last = &mappings[..stack?].last()?.at;
            let whole = last.start..last.end.next_multiple_of(UNIT);
            main_range(&[whole], mappings, &heap)?
        }
    };
    let far = far_parts(ranges, mappings, &main);
    Some(Window { main, far })
}

/// The main range of a window that has most of `ranges` in it, and nothing of a heap below them.
fn main_range(
    ranges: &[Range<u64>],
    mappings: &[Mapping],
    heap: &Range<u64>,
) -> Option<Range<u64>> {
    let held = |from: u64| -> u64 {
        let inside = ranges
            .iter()
            .filter(|r| r.start >= from && r.end - from <= WINDOW / 2);
        inside.map(|r| r.end - r.start).sum()
    };
    let first = ranges.iter().map(|r| r.start).max_by_key(|&s| held(s))?;
    let inside = ranges
        .iter()
        .filter(|r| r.start >= first && r.end - first <= WINDOW / 2);
    let last = inside.map(|r| r.end).max()?;
    // It goes on where there is room: above the program's memory, or, where stack and kernel are
    // above it, below.
    let mut from = (first & !(STEP - 1)).max(STEP);
    if heap.start <= first && heap.end > 0 {
        // (Parts of a window do not touch each other.)
        from = from.max((heap.end + BREAK_GROWTH as u64).next_multiple_of(UNIT) + UNIT);
    }
    let up = from..from + WINDOW;
    let stack = mappings.iter().find(|m| m.name == "[stack]");
    let top = stack.map_or(END, |s| s.at.start) - STEP.min(END);
    if up.end < top {
        return Some(up);
    }
    Some(last.checked_sub(WINDOW)?..last)
}

/// Far parts of a window with this main range, the largest that there may be. Each has all of the mappings
/// that its memory is in, and the room that the heap may grow by: a buffer does not begin outside of it.
fn far_parts(ranges: &[Range<u64>], mappings: &[Mapping], main: &Range<u64>) -> Vec<Range<u64>> {
    // Each with the bytes of `ranges` in it.
    let mut parts: Vec<(Range<u64>, u64)> = Vec::new();
    for r in ranges {
        if main.start <= r.start && r.end <= main.end {
            continue;
        }
        let of = mappings
            .iter()
            .filter(|m| m.at.start < r.end && m.at.end > r.start);
        let ends = of.map(|m| {
            let more = if m.name == HEAP {
                BREAK_GROWTH as u64
            } else {
                0
            };
            (
                m.at.start & !(UNIT - 1),
                (m.at.end + more).next_multiple_of(UNIT),
            )
        });
        let (from, to) = ends.fold((r.start, r.end), |a, b| (a.0.min(b.0), a.1.max(b.1)));
        match parts.last_mut() {
            Some((last, held)) if from <= last.end + APART => {
                last.end = to.max(last.end);
                *held += r.end - r.start;
            }
            _ => parts.push((from..to, r.end - r.start)),
        }
    }
    parts.retain(|(p, _)| (p.end < main.start || p.start > main.end) && p.start > 0);
    parts.sort_by_key(|(_, held)| std::cmp::Reverse(*held));
    parts.into_iter().take(MOST_FAR).map(|(p, _)| p).collect()
}

/// Anonymous memory that is not in `ranges`, by the reason for that, the most first: bytes. (Of a
/// mapping that is partly in them, the part that follows from its length.)
pub fn left_out(
    mappings: &[Mapping],
    ranges: &[Range<u64>],
    window: &Window,
) -> Vec<(&'static str, u64)> {
    let mut causes = [
        ("on stacks, and in pieces of less than 2 MiB", 0),
        ("far away from the rest", 0),
        ("of files, locked or of an unusual kind", 0),
    ];
    for m in mappings {
        let inside = ranges.iter().map(|r| {
            let (from, to) = (r.start.max(m.at.start), r.end.min(m.at.end));
            to.saturating_sub(from)
        });
        let len = m.at.end - m.at.start;
        let rest = u128::from(len - inside.sum::<u64>().min(len));
        let bytes = u128::from(m.anonymous) * rest / u128::from(len.max(1));
        let cause = match m.name.as_str() {
            _ if m.is_plain && !window.has(&m.at) && len >= 2 * UNIT => 1,
            name if m.is_plain || name == "[stack]" => 0,
            _ => 2,
        };
        causes[cause].1 += bytes as u64;
    }
    causes.sort_unstable_by_key(|c| std::cmp::Reverse(c.1));
    causes.into_iter().filter(|c| c.1 > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn lines(mappings: &[(u64, u64, &str, &str, &str)]) -> String {
        let of = |&(from, to, access, name, flags): &(u64, u64, &str, &str, &str)| {
            let inode = if name.starts_with('/') { 77 } else { 0 };
            format!(
                "{from:x}-{to:x} {access} 00000000 00:00 {inode}   {name}\nSize:  1024 kB\nAnonymous:   8 kB\nSwap: 4 kB\nVmFlags: {flags} \n"
            )
        };
        mappings.iter().map(of).collect()
    }

    const RW: &str = "rd wr mr mw me ac sd";

    #[test]
    fn only_plain_private_memory_is_plain() {
        let text = lines(&[
            (0x400000, 0x500000, "r-xp", "/usr/bin/x", "rd ex mr mw me"),
            (0x600000, 0x900000, "rw-p", "[heap]", RW),
            (0x7f00_0000_0000, 0x7f00_0100_0000, "rw-p", "", RW),
            (
                0x7f00_0100_0000,
                0x7f00_0200_0000,
                "rw-p",
                "",
                "rd wr mr mw me lo ac",
            ),
            (
                0x7f00_0200_0000,
                0x7f00_0300_0000,
                "rw-s",
                "/dev/zero (deleted)",
                "rd wr sh",
            ),
            (
                0x7f00_0300_0000,
                0x7f00_0400_0000,
                "rw-p",
                "[anon: glibc: malloc]",
                RW,
            ),
            (0x7f00_0400_0000, 0x7f00_0500_0000, "---p", "", "mr mw me"),
        ]);
        let all = parse(&text);
        let plain: Vec<_> = all.iter().map(|m| m.is_plain).collect();
        assert_eq!(plain, [false, true, true, false, false, true, false]);
        assert_eq!(all[0].at, 0x400000..0x500000);
        assert_eq!(all[4].name, "/dev/zero (deleted)");
        assert_eq!(all[2].anonymous, 12 << 10);
    }

    #[test]
    fn what_has_changed_since_is_plain_as_far_as_it_was() {
        let mapping = |from, to, is_plain, is_like_plain| Mapping {
            is_plain,
            is_like_plain,
            ..plain(from, to)
        };
        let known = [
            mapping(10, 20, true, true),
            mapping(20, 30, false, true),
            mapping(40, 50, false, false),
            mapping(60, 70, true, true),
        ];
        let parts = |from, to| {
            let all = as_known(vec![plain(from, to)], &known);
            let all = all.into_iter().map(|m| (m.at.start, m.at.end, m.is_plain));
            all.collect::<Vec<_>>()
        };
        for (from, to) in [(10, 20), (10, 28), (60, 80), (12, 14)] {
            assert_eq!(parts(from, to), [(from, to, true)]);
        }
        for (from, to) in [(40, 50), (42, 44), (30, 40), (80, 90)] {
            assert_eq!(parts(from, to), [(from, to, false)]);
        }
        assert_eq!(
            parts(20, 65),
            [(20, 40, true), (40, 50, false), (50, 65, true)]
        );
        assert_eq!(parts(15, 45), [(15, 40, true), (40, 45, false)]);
    }

    fn plain(from: u64, to: u64) -> Mapping {
        Mapping {
            at: from..to,
            is_plain: true,
            is_like_plain: true,
            name: String::new(),
            anonymous: to - from,
        }
    }

    /// Start and end of ranges, in MiB from where the tests' memory begins.
    fn ends(ranges: &[Range<u64>]) -> Vec<(u64, u64)> {
        let mib = |at: u64| (at - 0x7f00_0000_0000) / MIB;
        ranges.iter().map(|r| (mib(r.start), mib(r.end))).collect()
    }

    const NOWHERE: Place = Place {
        stack_pointer: 0,
        thread_pointer: 0,
        alternate_stack: [0; 2],
    };

    #[test]
    fn whole_units_of_neighbours_are_one_range() {
        let at = 0x7f00_0000_0000;
        let all = [
            plain(at + PAGE, at + 3 * MIB),
            plain(at + 3 * MIB, at + 9 * MIB + PAGE),
        ];
        assert_eq!(ends(&adoptable(&all, &[])), [(2, 8)]);
        assert_eq!(adoptable(&all[..1], &[NOWHERE]), Vec::<Range<u64>>::new());
    }

    #[test]
    fn what_a_thread_has_of_its_own_stays() {
        let at = 0x7f00_0000_0000;
        let all = [plain(at, at + 64 * MIB)];
        // A stack of 8 MiB with the thread's descriptor at its end, and a heap behind it.
        let of_libc = Place {
            stack_pointer: at + 7 * MIB,
            thread_pointer: at + 8 * MIB - 2304,
            ..NOWHERE
        };
        assert_eq!(ends(&adoptable(&all, &[of_libc])), [(10, 64)]);
        // A stack somewhere in a heap.
        let other = Place {
            stack_pointer: at + 40 * MIB,
            thread_pointer: at + 100 * MIB,
            alternate_stack: [at + 20 * MIB, 32 << 10],
        };
        let all = [plain(at, at + 128 * MIB)];
        assert_eq!(
            ends(&adoptable(&all, &[other])),
            [(0, 20), (22, 32), (42, 98), (102, 128)]
        );
    }

    #[test]
    fn what_is_left_out_is_told_by_cause() {
        let at = 0x7f00_0000_0000;
        let library = Mapping {
            name: "/usr/lib/libx.so".into(),
            is_plain: false,
            ..plain(0x7e00_0000_0000, 0x7e00_0000_0000 + 30 * MIB)
        };
        let all = [
            plain(0x6000_0000_0000, 0x6000_0000_0000 + 4 * MIB),
            library,
            plain(at, at + 64 * MIB),
        ];
        let window = Window {
            main: at..at + WINDOW,
            far: Vec::new(),
        };
        let taken = at + 2 * MIB..at + 50 * MIB;
        let told = left_out(&all, std::slice::from_ref(&taken), &window);
        assert_eq!(
            told,
            [
                ("of files, locked or of an unusual kind", 30 * MIB),
                ("on stacks, and in pieces of less than 2 MiB", 16 * MIB),
                ("far away from the rest", 4 * MIB)
            ]
        );
        let taken = at..at + 64 * MIB;
        assert_eq!(
            left_out(&all[2..], std::slice::from_ref(&taken), &window),
            []
        );
    }

    fn named(name: &str, from: u64, to: u64) -> Mapping {
        let name = name.into();
        Mapping {
            name,
            ..plain(from, to)
        }
    }

    #[test]
    fn the_window_is_where_the_memory_is() {
        let stack = named("[stack]", 0x7ffc_0000_0000, 0x7ffc_0002_0000);
        let mapped = 0x7f12_3450_0000_u64;
        let ranges = [
            0x5555_5560_0000..0x5555_5580_0000,
            mapped..mapped + 800 * MIB,
        ];
        let found = window(&ranges, std::slice::from_ref(&stack)).expect("a window");
        assert_eq!(found.main, mapped + 800 * MIB - WINDOW..mapped + 800 * MIB);
        assert_eq!(found.far, [ranges[0].clone()]);
        // Go's heap.
        let heap = 0xc0_0000_0000_u64;
        let heap_of_go = heap..heap + 64 * MIB;
        let found = window(std::slice::from_ref(&heap_of_go), &[stack]).expect("a window");
        assert_eq!((found.main, found.far.len()), (heap..heap + WINDOW, 0));
        assert_eq!(window(&[], &[]), None);
    }

    #[test]
    fn the_heap_is_a_far_part_with_all_of_its_units() {
        let low = 0x1a3_b000;
        let across_a_step = STEP - 100 * MIB + 5 * PAGE;
        for from in [low, across_a_step] {
            let to = from + 300 * MIB;
            let library = 0x7f00_0000_0000;
            let all = [
                named(HEAP, from, to),
                named("/usr/lib/libc.so.6", library, library + MIB),
                named("[stack]", 0x7ffc_0000_0000, 0x7ffc_0002_0000),
            ];
            let ranges = adoptable(&all, &[NOWHERE]);
            let found = window(&ranges, &all).expect("a window");
            assert_eq!(found.main, library + UNIT - WINDOW..library + UNIT);
            let part = from & !(UNIT - 1)..(to + MIB).next_multiple_of(UNIT);
            assert_eq!(found.far, std::slice::from_ref(&part));
            assert!(ranges.iter().all(|r| found.has(r)));
            // In a program that has nothing but low addresses, too.
            let found = window(&ranges, &[all[0].clone(), all[2].clone()]).expect("a window");
            let above = (part.end + UNIT).max(STEP);
            assert_eq!(found.main, above..above + WINDOW);
            assert_eq!(found.far, std::slice::from_ref(&part));
            // In one that was managed before: the heap is in several mappings.
            let pieces = [
                named(HEAP, from, from + MIB),
                named(HEAP, from + MIB, to),
                all[1].clone(),
                all[2].clone(),
            ];
            let ranges = adoptable(&pieces, &[NOWHERE]);
            let found = window(&ranges, &pieces).expect("a window");
            assert_eq!(found.main, library + UNIT - WINDOW..library + UNIT);
            assert_eq!(found.far, [part]);
        }
    }

    #[test]
    fn far_parts_are_as_few_as_can_be() {
        let main = 100 * WINDOW..101 * WINDOW;
        let at = |gib: u64| gib << 30;
        let ranges: Vec<_> = (1..40).map(|i| at(i)..at(i) + i * UNIT).collect();
        let mappings: Vec<_> = ranges.iter().map(|r| plain(r.start, r.end)).collect();
        let found = far_parts(&ranges, &mappings, &main);
        assert_eq!(found.len(), MOST_FAR);
        assert_eq!((&found[0], &found[15]), (&ranges[38], &ranges[23]));
        let near = [at(1)..at(1) + UNIT, at(1) + 9 * UNIT..at(1) + 10 * UNIT];
        let found = far_parts(&near, &[], &main);
        assert_eq!(found, vec![at(1)..at(1) + 10 * UNIT]);
        // One that touches the main range is left out.
        let touching = main.end..main.end + UNIT;
        assert_eq!(far_parts(&[touching], &[], &main), []);
    }
}

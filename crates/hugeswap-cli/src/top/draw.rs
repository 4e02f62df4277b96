//! The screen of `hugeswap top`. Letters and brackets say all that colours say.

use super::keys::{Column, KEYS, Screen, View};
use super::watched::{Area, Pools, Watched};
use crate::pagemap::LOOKS;
use crate::stat::show::short;
use crate::text;
use hugeswap_policy::counters::Counter;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table, TableState};

/// Below this there is no room for anything.
const LEAST: (u16, u16) = (40, 10);
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
/// Columns of the names at the left.
const NAMES: usize = 7;

/// Draws everything.
pub fn all(frame: &mut Frame<'_>, pools: &Pools, screen: &mut Screen) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let said = format!("make the terminal larger than {} x {}", LEAST.0, LEAST.1);
        return frame.render_widget(Paragraph::new(said), area);
    }
    let [title, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(head(pools, screen, title.width), title);
    match (screen.view, pools.shown()) {
        (View::Help, _) => help(frame, body),
        (_, None) => frame.render_widget(
            Paragraph::new(
                "\nno pool is running that this user may look at\n\n\
                 Start a program in another terminal: hugeswap run --memory 1G -- PROG\n\
                 It is shown here as soon as it is there.",
            ),
            body,
        ),
        (View::Map, Some(shown)) => {
            let [above, map] = Layout::vertical([
                Constraint::Length(height_of_gauges(shown)),
                Constraint::Min(0),
            ])
            .areas(body);
            gauges(frame, above, shown);
            self::map(frame, map, screen);
        }
        (View::Processes, Some(shown)) => figures(frame, body, shown, screen),
    }
    frame.render_widget(Paragraph::new(feet(screen)), foot);
}

fn head(pools: &Pools, screen: &Screen, width: u16) -> Paragraph<'static> {
    let paused = if screen.is_paused { "  paused" } else { "" };
    let said = match pools.shown() {
        None => format!("hugeswap top{paused}"),
        Some(shown) => {
            let (at, all) = pools.position();
            let which = if all > 1 {
                format!(" ({at} of {all})")
            } else {
                String::new()
            };
            let many = match shown.now.processes {
                1 => "1 process".to_owned(),
                n => format!("{n} processes"),
            };
            let maker = shown.now.maker;
            format!("pool {maker}{which}  {many}{paused}  {}", shown.command)
        }
    };
    let width = usize::from(width);
    Paragraph::new(Span::styled(
        format!("{:width$}", cut(&said, width)),
        Style::new().add_modifier(Modifier::REVERSED),
    ))
}

fn feet(screen: &Screen) -> Line<'static> {
    if let Some(message) = screen.message() {
        return Line::styled(message.to_owned(), BOLD);
    }
    let keys: &[(&str, &str)] = match screen.view {
        View::Help => &[("?", "back"), ("q", "quit")],
        View::Map => &[
            ("q", "quit"),
            ("?", "keys"),
            ("m", "processes"),
            ("z Z", "closer, farther"),
            ("up down", "scroll"),
        ],
        View::Processes => &[
            ("q", "quit"),
            ("?", "keys"),
            ("m", "map"),
            ("s", "sort"),
            ("- +", "budget"),
            ("space", "pause"),
            ("Tab", "next pool"),
        ],
    };
    let one = |&(key, does): &(&'static str, &'static str)| {
        [Span::styled(key, BOLD), Span::raw(format!(" {does}  "))]
    };
    Line::from(keys.iter().flat_map(one).collect::<Vec<_>>())
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let keys = KEYS.iter().map(|(key, does)| {
        let key = Span::styled(format!("  {key:<16}"), BOLD);
        Line::from(vec![key, Span::raw(*does)])
    });
    let said = [
        "",
        "IN USE: managed memory in use, of it | as it is, z compressed, k the kernel's.",
        "SWAPPED: what is in swap, about. IN/s, OUT/s: bytes read from it, written to it.",
        "MAJOR/s, minor: faults that read swap, and that did not. WAIT: how many threads",
        "were in faults at a time. Stall: for how much of it threads waited for memory.",
        "`hugeswap explain NAME` says what a class of faults is.",
    ];
    let lines = keys.chain(said.into_iter().map(Line::raw));
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), area);
}

fn cut(said: &str, width: usize) -> String {
    match said.chars().count() > width {
        true => said
            .chars()
            .take(width.saturating_sub(3))
            .chain("...".chars())
            .collect(),
        false => said.to_owned(),
    }
}

/// Areas that have a line.
const MOST_AREAS: usize = 4;

fn height_of_gauges(shown: &Watched) -> u16 {
    3 + u16::from(shown.pool.followed_limit().is_some()) + shown.areas.len().min(MOST_AREAS) as u16
}

/// Memory, swap, the limit if the budget follows one, and rates.
fn gauges(frame: &mut Frame<'_>, area: Rect, shown: &Watched) {
    let s = &shown.now;
    let (budget, width) = (s.totals.memory_bytes, usize::from(area.width));
    let kernels: u64 = shown.processes.iter().map(|p| p.of_kernel).sum();
    let others = s.resident.saturating_sub(s.zswap + kernels);
    let peak = text::bytes(s.totals.peak_resident_bytes);
    let mut lines = vec![gauge(
        "memory",
        &[
            (others, '|', Color::Green),
            (s.zswap, 'z', Color::Yellow),
            (kernels, 'k', Color::Magenta),
        ],
        budget,
        &format!(
            "{} of {}, peak {peak}",
            text::bytes(s.resident),
            text::bytes(budget)
        ),
        width,
    )];
    if let Some(limit) = shown.pool.followed_limit() {
        let (used, all) = (limit.used_bytes, limit.limit_bytes);
        let said = format!("{} of {}", text::bytes(used), text::bytes(all));
        lines.push(gauge(
            "limit",
            &[(used, '|', Color::Cyan)],
            all,
            &said,
            width,
        ));
    }
    let of = match s.no_device {
        true => "without a device".to_owned(),
        false => format!("of {}", text::bytes(s.swap)),
    };
    let said = format!("{} {of}", text::bytes(s.swap_used));
    lines.push(gauge(
        "swap",
        &[(s.swap_used, '|', Color::Blue)],
        s.swap,
        &said,
        width,
    ));
    lines.push(rates(shown));
    lines.extend(shown.areas.iter().take(MOST_AREAS).map(swap_area));
    frame.render_widget(Paragraph::new(lines), area);
}

/// What an area holds, and what is read from it and written to it.
fn swap_area(a: &Area) -> Line<'static> {
    let name = Span::styled(format!("{:<NAMES$}", format!("area {}", a.index)), BOLD);
    Line::from(vec![
        name,
        Span::raw(format!(
            "{} of {}  in {}/s  out {}/s  reads {:.0}/s p99 {}  {}",
            short(a.used),
            short(a.size),
            short(a.comes),
            short(a.goes),
            a.reads,
            text::duration(a.p99_ns),
            a.place,
        )),
    ])
}

/// A bar with parts of different signs, and what it says behind it.
fn gauge(
    name: &str,
    parts: &[(u64, char, Color)],
    all: u64,
    said: &str,
    width: usize,
) -> Line<'static> {
    let room = width.saturating_sub(NAMES + 3 + said.len().max(34));
    let mut spans = vec![
        Span::styled(format!("{name:<NAMES$}"), BOLD),
        Span::raw("["),
    ];
    let (mut sum, mut filled) = (0, 0);
    for &(bytes, sign, colour) in parts {
        sum += bytes;
        let to = (sum as f64 / all.max(1) as f64 * room as f64).round() as usize;
        // (What there is can be seen, however little it is.)
        let least = filled + usize::from(bytes > 0);
        let to = to.max(least).min(room);
        let signs = sign.to_string().repeat(to - filled.min(to));
        spans.push(Span::styled(signs, Style::new().fg(colour)));
        filled = to.max(filled);
    }
    spans.push(Span::raw(" ".repeat(room.saturating_sub(filled))));
    spans.push(Span::raw(format!("] {said}")));
    Line::from(spans)
}

fn rates(shown: &Watched) -> Line<'static> {
    let mut spans = vec![Span::styled(format!("{:<NAMES$}", "rates"), BOLD)];
    let said = shown.difference().map_or_else(String::new, |d| {
        let rate = |n: u64| n as f64 / d.seconds();
        let bytes = |c| short(rate(d.bytes_of(c)) as u64);
        format!(
            "in {}/s  out {}/s  major {:.0}/s  minor {:.0}/s  wait {:.2}  stall {:.0}%",
            bytes(Counter::PswpIn),
            bytes(Counter::PswpOut),
            rate(d.faults(true)),
            rate(d.faults(false)),
            d.in_faults() / d.seconds(),
            100.0 * d.stalled() / d.seconds(),
        )
    });
    spans.push(Span::raw(said));
    Line::from(spans)
}

/// The pool's figures, what it did lately, its faults and its processes.
fn figures(frame: &mut Frame<'_>, area: Rect, shown: &Watched, screen: &Screen) {
    let faults: Vec<_> = { shown.now.totals.faults.iter() }
        .filter(|f| f.took.count > 0)
        .map(|f| Line::raw(text::fault_figures(f)))
        .collect();
    let gauges_take = height_of_gauges(shown);
    // Processes come first where there is little room.
    let spare = area.height.saturating_sub(gauges_take + 4);
    let faults_take = (faults.len() as u16).min(spare.saturating_sub(4));
    let looks_take = if spare >= faults_take + 4 { 4 } else { 0 };
    let [above, looks, between, below] = Layout::vertical([
        Constraint::Length(gauges_take),
        Constraint::Length(looks_take),
        Constraint::Length(faults_take),
        Constraint::Min(0),
    ])
    .areas(area);
    gauges(frame, above, shown);
    if looks_take > 0 {
        lately(frame, looks, shown);
    }
    frame.render_widget(Paragraph::new(faults), between);
    processes(frame, below, screen);
}

/// What came in and went out in the last looks.
fn lately(frame: &mut Frame<'_>, area: Rect, shown: &Watched) {
    let halves: [Rect; 2] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    let width = usize::from(halves[0].width);
    let last = shown.history.len().saturating_sub(width);
    let (comes, goes): (Vec<u64>, Vec<u64>) = shown.history.iter().skip(last).copied().unzip();
    let both = [("in", comes, Color::Blue), ("out", goes, Color::Yellow)];
    for (half, (name, looks, colour)) in halves.into_iter().zip(both) {
        let most = looks.iter().max().copied().unwrap_or(0);
        let title = format!("{name}, most {}/s in {} looks", short(most), looks.len());
        let block = Block::new().borders(Borders::TOP).title(title);
        let line = Sparkline::default()
            .block(block)
            .data(looks)
            .style(Style::new().fg(colour));
        frame.render_widget(line, half);
    }
}

fn processes(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let right = |said: String, width: usize| Cell::from(format!("{said:>width$}"));
    const WIDTHS: [u16; 7] = [8, 8, 8, 8, 8, 8, 6];
    let names = Column::ALL.iter().zip(WIDTHS).map(|(&c, width)| {
        let name = match c == screen.column {
            true => format!("*{}", c.name()),
            false => c.name().to_owned(),
        };
        right(name, width.into()).style(BOLD)
    });
    let head = Row::new(names.chain([Cell::from("COMMAND").style(BOLD)]));
    let rows = screen.rows.iter().map(|p| {
        let said = [
            p.pid.to_string(),
            short(p.in_memory),
            short(p.swapped),
            short(p.comes),
            short(p.goes),
            format!("{:.0}", p.major),
            format!("{:.2}", p.in_faults),
        ];
        let cells = said.into_iter().zip(WIDTHS);
        let cells = cells.map(|(said, width)| right(said, width.into()));
        Row::new(cells.chain([Cell::from(p.command.as_str())]))
    });
    let widths = WIDTHS.map(Constraint::Length).into_iter();
    let table = Table::new(rows, widths.chain([Constraint::Fill(1)]))
        .header(head)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::default().with_selected(screen.place());
    frame.render_stateful_widget(table, area, &mut state);
}

fn map(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen) {
    let Some(pid) = screen.marked else {
        return;
    };
    let columns = usize::from(area.width);
    let part = screen
        .map
        .part(columns, usize::from(area.height).saturating_sub(3));
    let mut lines = vec![Line::styled(
        match &screen.map.error {
            Some(error) => error.clone(),
            None => format!(
                "memory of process {pid}: {}, each sign {}; {} rows above, {} below",
                text::bytes(part.all),
                text::bytes(part.each),
                part.above,
                part.below
            ),
        },
        BOLD,
    )];
    let style = |sign: usize| Style::new().fg(Color::Black).bg(colour(LOOKS[sign].1));
    lines.extend(part.signs.chunks(columns.max(1)).map(|row| {
        let sign = |&sign: &usize| Span::styled(LOOKS[sign].0.to_string(), style(sign));
        Line::from(row.iter().map(sign).collect::<Vec<_>>())
    }));
    let legend = LOOKS
        .iter()
        .enumerate()
        .flat_map(|(sign, &(letter, _, what))| {
            let letter = Span::styled(letter.to_string(), style(sign));
            [letter, Span::raw(format!(" {what}  "))]
        });
    let legend = Line::from(legend.collect::<Vec<_>>());
    let legend = Paragraph::new(legend).wrap(ratatui::widgets::Wrap { trim: true });
    let [above, below] = Layout::vertical([Constraint::Min(0), Constraint::Length(2)]).areas(area);
    frame.render_widget(Paragraph::new(lines), above);
    frame.render_widget(legend, below);
}

/// The colour of a background in SGR's numbers.
fn colour(sgr: u8) -> Color {
    match sgr {
        41 => Color::Red,
        42 => Color::Green,
        43 => Color::Yellow,
        44 => Color::Blue,
        45 => Color::Magenta,
        46 => Color::Cyan,
        _ => Color::DarkGray,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &Line<'_>) -> String {
        line.spans.iter().map(|s| s.content.as_ref()).collect()
    }

    #[test]
    fn a_gauge_shows_each_part_and_never_more_than_all() {
        let parts = [(50, '|', Color::Reset), (25, 'z', Color::Reset)];
        let width = NAMES + 3 + 34 + 20;
        assert_eq!(
            said(&gauge("memory", &parts, 100, "75 of 100", width)),
            "memory [||||||||||zzzzz     ] 75 of 100"
        );
        let little = [(1, '|', Color::Reset), (1, 'k', Color::Reset)];
        assert!(said(&gauge("x", &little, 1 << 40, "", width)).contains("[|k "));
        let much = [(300, '|', Color::Reset), (5, 'k', Color::Reset)];
        let bar = said(&gauge("x", &much, 100, "", width));
        assert_eq!(bar.matches('|').count(), 20, "{bar}");
        assert_eq!(bar.matches('k').count(), 0, "there is no room: {bar}");
        for width in 0..NAMES + 60 {
            gauge("x", &much, 0, "said", width);
        }
    }

    #[test]
    fn what_is_too_long_is_cut() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abc...");
        assert_eq!(cut("abcdefg", 0), "...");
    }
}

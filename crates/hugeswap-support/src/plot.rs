//! A picture of throughput and of the time of an access over time: one SVG with two panels, one above the other, a
//! curve for each engine, the phases marked. Logarithmic, since engines differ by orders of magnitude.

use std::fmt::Write;

/// Which panel a curve is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    /// Streams, MB/s.
    Stream,
    /// Random accesses, microseconds each.
    Random,
}

/// Curves over phases that follow one another.
#[derive(Debug, Default)]
pub struct Plot {
    /// Name and end of each phase, seconds.
    phases: Vec<(String, f64)>,
    curves: Vec<Curve>,
}

#[derive(Debug)]
struct Curve {
    panel: Panel,
    engine: String,
    phase: String,
    points: Vec<(f64, f64)>,
}

/// The width of every picture.
pub const WIDTH: f64 = 960.0;
/// Margins of the pictures with curves.
pub const LEFT: f64 = 70.0;
/// See [`LEFT`].
pub const RIGHT: f64 = 20.0;
/// See [`LEFT`].
pub const TOP: f64 = 70.0;
const HEIGHT: f64 = 220.0;
const GAP: f64 = 40.0;
/// One for each of a picture's curves or bars, then again from the start.
pub const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

impl Plot {
    /// Where the last phase ended.
    pub fn end_s(&self) -> f64 {
        self.phases.last().map_or(0.0, |p| p.1)
    }

    /// A phase ends; the next begins there.
    pub fn phase(&mut self, name: &str, end_s: f64) {
        self.phases.push((name.to_owned(), end_s));
    }

    /// A point of an engine's curve in a phase. Values that have no logarithm are left out.
    pub fn add(&mut self, panel: Panel, engine: &str, phase: &str, t_s: f64, value: f64) {
        if !(value > 0.0 && value.is_finite()) {
            return;
        }
        let same = |c: &Curve| c.panel == panel && c.engine == engine && c.phase == phase;
        match self.curves.iter_mut().find(|c| same(c)) {
            Some(curve) => curve.points.push((t_s, value)),
            None => self.curves.push(Curve {
                panel,
                engine: engine.to_owned(),
                phase: phase.to_owned(),
                points: vec![(t_s, value)],
            }),
        }
    }

    fn engines(&self) -> Vec<&str> {
        let mut found = Vec::new();
        for c in &self.curves {
            if !found.contains(&c.engine.as_str()) {
                found.push(&c.engine);
            }
        }
        found
    }
}

/// The picture.
pub fn draw(plot: &Plot) -> String {
    let height = TOP + 2.0 * HEIGHT + GAP + 40.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let end = plot.end_s().max(1e-9);
    let x = |t: f64| LEFT + (WIDTH - LEFT - RIGHT) * (t / end).clamp(0.0, 1.0);
    let engines = plot.engines();
    let (mut at, mut row) = (LEFT, 16.0);
    for (n, engine) in engines.iter().enumerate() {
        // The width of text is known to the viewer only: a generous guess.
        let width = 50.0 + 7.0 * engine.chars().count() as f64;
        if at + width > WIDTH && at > LEFT {
            (at, row) = (LEFT, row + 16.0);
        }
        let colour = COLOURS[n % COLOURS.len()];
        line(&mut out, colour, (at, row), (at + 24.0, row));
        text(&mut out, "start", at + 30.0, row + 4.0, engine);
        at += width;
    }
    let mut start = 0.0;
    for (name, phase_end) in &plot.phases {
        text(
            &mut out,
            "middle",
            x(f64::midpoint(start, *phase_end)),
            TOP - 8.0,
            name,
        );
        start = *phase_end;
    }
    let panels = [
        (Panel::Stream, TOP, "streams, MB/s"),
        (Panel::Random, TOP + HEIGHT + GAP, "random, us an access"),
    ];
    for (panel, top, title) in panels {
        let curves: Vec<&Curve> = plot.curves.iter().filter(|c| c.panel == panel).collect();
        let values = || curves.iter().flat_map(|c| c.points.iter().map(|p| p.1));
        let lowest = values().fold(f64::INFINITY, f64::min).log10().floor();
        let highest = values().fold(0.0, f64::max).log10().ceil();
        text(&mut out, "start", LEFT + 4.0, top + 14.0, title);
        for side in [top, top + HEIGHT] {
            line(&mut out, "#888", (LEFT, side), (WIDTH - RIGHT, side));
        }
        for t in std::iter::once(0.0).chain(plot.phases.iter().map(|p| p.1)) {
            line(&mut out, "#bbb", (x(t), top), (x(t), top + HEIGHT));
            text(
                &mut out,
                "middle",
                x(t),
                top + HEIGHT + 16.0,
                &format!("{t:.0} s"),
            );
        }
        if curves.is_empty() {
            continue;
        }
        // Whole powers of ten, at least one apart.
        let decades = (highest - lowest).max(1.0);
        let y = |v: f64| top + HEIGHT * (1.0 - (v.log10() - lowest) / decades);
        for decade in 0..=decades as i32 {
            let value = 10f64.powf(lowest + f64::from(decade));
            line(
                &mut out,
                "#ddd",
                (LEFT, y(value)),
                (WIDTH - RIGHT, y(value)),
            );
            text(
                &mut out,
                "end",
                LEFT - 6.0,
                y(value) + 4.0,
                &value.to_string(),
            );
        }
        for curve in curves {
            let n = engines.iter().position(|e| *e == curve.engine).unwrap_or(0);
            let points = curve
                .points
                .iter()
                .map(|(t, v)| format!("{:.1},{:.1}", x(*t), y(*v)));
            let _ = writeln!(
                out,
                "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"{}\"/>",
                COLOURS[n % COLOURS.len()],
                points.collect::<Vec<_>>().join(" ")
            );
        }
    }
    out.push_str("</svg>\n");
    out
}

/// Shares of a whole over rounds, a curve each: another picture, of one panel.
#[derive(Debug, Default)]
pub struct Shares(Vec<(String, Vec<(f64, f64)>)>);

impl Shares {
    /// A point of a curve.
    pub fn add(&mut self, curve: &str, round: f64, share: f64) {
        match self.0.iter_mut().find(|c| c.0 == curve) {
            Some(c) => c.1.push((round, share)),
            None => self.0.push((curve.to_owned(), vec![(round, share)])),
        }
    }

    /// The picture: percent, from 0 to 100.
    pub fn draw(&self) -> String {
        let height = TOP + HEIGHT + GAP + 20.0;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        let rounds = || self.0.iter().flat_map(|c| c.1.iter().map(|p| p.0));
        let last = rounds().fold(1.0, f64::max);
        let x = |t: f64| LEFT + (WIDTH - LEFT - RIGHT) * (t / last).clamp(0.0, 1.0);
        let y = |v: f64| TOP + HEIGHT * (1.0 - v.clamp(0.0, 1.0));
        for percent in [0, 25, 50, 75, 100] {
            let at = y(f64::from(percent) / 100.0);
            line(&mut out, "#ddd", (LEFT, at), (WIDTH - RIGHT, at));
            text(
                &mut out,
                "end",
                LEFT - 6.0,
                at + 4.0,
                &format!("{percent} %"),
            );
        }
        text(&mut out, "start", LEFT, y(0.0) + 16.0, "0");
        text(
            &mut out,
            "end",
            x(last),
            y(0.0) + 16.0,
            &format!("round {last:.0}"),
        );
        let mut at = LEFT;
        for (n, (name, points)) in self.0.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            line(&mut out, colour, (at, 40.0), (at + 24.0, 40.0));
            text(&mut out, "start", at + 30.0, 44.0, name);
            at += 60.0 + 7.0 * name.chars().count() as f64;
            let points = points
                .iter()
                .map(|(t, v)| format!("{:.1},{:.1}", x(*t), y(*v)));
            let _ = writeln!(
                out,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
                points.collect::<Vec<_>>().join(" ")
            );
        }
        out.push_str("</svg>\n");
        out
    }
}

// Writing to a string cannot fail.

/// Adds a line.
pub fn line(out: &mut String, colour: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    );
}

/// Adds some text.
pub fn text(out: &mut String, anchor: &str, x: f64, y: f64, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_phases_and_names_are_drawn() {
        let mut plot = Plot::default();
        for (engine, value) in [("hugeswap", 2000.0), ("kernel, <THP> on", 150.0)] {
            for t in [1.0, 2.0] {
                plot.add(Panel::Stream, engine, "together", t, value);
                plot.add(Panel::Random, engine, "together", t, 7.0);
            }
        }
        plot.add(Panel::Stream, "hugeswap", "together", 3.0, 0.0);
        plot.phase("together", 2.5);
        let svg = draw(&plot);
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert!(svg.contains(">together</text>") && svg.contains("kernel, &lt;THP> on"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        // Every curve stays in its panel, the larger value above.
        let points = svg.split("points=\"").skip(1);
        let points = points.map(|rest| rest.split('"').next().unwrap_or_default());
        let mut heights = Vec::new();
        for curve in points {
            for point in curve.split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{point}");
                let top = if y > TOP + HEIGHT {
                    TOP + HEIGHT + GAP
                } else {
                    TOP
                };
                assert!((top..=top + HEIGHT).contains(&y), "{point}");
                heights.push(y);
            }
        }
        assert!(heights[0] < heights[2], "{heights:?}");
    }

    #[test]
    fn shares_are_drawn() {
        let mut shares = Shares::default();
        for round in 1..4 {
            shares.add("in use", f64::from(round), 0.5);
            shares.add("free, whole", f64::from(round), 0.25);
        }
        let svg = shares.draw();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.contains(">free, whole</text>") && svg.contains("round 3"));
        let nothing = Shares::default().draw();
        assert!(!svg.contains("NaN") && !nothing.contains("NaN"));
    }

    #[test]
    fn nothing_is_a_picture_too() {
        let svg = draw(&Plot::default());
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

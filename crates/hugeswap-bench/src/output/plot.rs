//! Charts of curves: speed over time ([`Plot`]), and shares of a whole over rounds ([`Shares`]).

use hugeswap_support::chart::{
    COLOURS, LEFT, RIGHT, TOP, WIDTH, across, curve, grid, legend, line, svg, text,
};

const HEIGHT: f64 = 220.0;
const GAP: f64 = 40.0;

/// Which panel a curve is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Panel {
    /// Streams, MB/s.
    Stream,
    /// Random accesses, microseconds each.
    Random,
}

/// Speed over time: two panels, one above the other, a curve for each engine, phases that follow one
/// another. Logarithmic, since engines differ by orders of magnitude.
#[derive(Debug, Default)]
pub struct Plot {
    /// Name and end of each phase, seconds.
    phases: Vec<(String, f64)>,
    engines: Vec<String>,
    curves: Vec<Curve>,
}

#[derive(Debug)]
struct Curve {
    panel: Panel,
    /// Index of its engine.
    engine: usize,
    phase: String,
    points: Vec<(f64, f64)>,
}

impl Plot {
    /// The end of the last phase, seconds.
    pub fn end_s(&self) -> f64 {
        self.phases.last().map_or(0.0, |p| p.1)
    }

    /// Ends a phase; the next begins there.
    pub fn phase(&mut self, name: &str, end_s: f64) {
        self.phases.push((name.to_owned(), end_s));
    }

    /// Adds a point to an engine's curve in a phase. Values without a logarithm are left out.
    pub fn add(&mut self, panel: Panel, engine: &str, phase: &str, t_s: f64, value: f64) {
        if !(value > 0.0 && value.is_finite()) {
            return;
        }
        let engine = self
            .engines
            .iter()
            .position(|e| e == engine)
            .unwrap_or_else(|| {
                self.engines.push(engine.to_owned());
                self.engines.len() - 1
            });
        let same = |c: &&mut Curve| c.panel == panel && c.engine == engine && c.phase == phase;
        match self.curves.iter_mut().find(same) {
            Some(curve) => curve.points.push((t_s, value)),
            None => self.curves.push(Curve {
                panel,
                engine,
                phase: phase.to_owned(),
                points: vec![(t_s, value)],
            }),
        }
    }

    /// The chart as SVG.
    pub fn draw(&self) -> String {
        let mut out = String::new();
        let end = self.end_s().max(1e-9);
        let x = |t: f64| across(t / end);
        legend(&mut out, 16.0, self.engines.iter().map(String::as_str));
        let mut start = 0.0;
        for (name, phase_end) in &self.phases {
            let middle = x(f64::midpoint(start, *phase_end));
            text(&mut out, "middle", middle, TOP - 8.0, name);
            start = *phase_end;
        }
        let below = TOP + HEIGHT + GAP;
        self.panel(&mut out, Panel::Stream, TOP, "streams, MB/s", &x);
        self.panel(&mut out, Panel::Random, below, "random, us an access", &x);
        svg(below + HEIGHT + 40.0, &out)
    }

    fn panel(&self, out: &mut String, panel: Panel, top: f64, title: &str, x: &dyn Fn(f64) -> f64) {
        let curves: Vec<&Curve> = self.curves.iter().filter(|c| c.panel == panel).collect();
        text(out, "start", LEFT + 4.0, top + 14.0, title);
        for side in [top, top + HEIGHT] {
            line(out, "#888", (LEFT, side), (WIDTH - RIGHT, side));
        }
        for t in std::iter::once(0.0).chain(self.phases.iter().map(|p| p.1)) {
            line(out, "#bbb", (x(t), top), (x(t), top + HEIGHT));
            let label = format!("{t:.0} s");
            text(out, "middle", x(t), top + HEIGHT + 16.0, &label);
        }
        if curves.is_empty() {
            return;
        }
        let values = || curves.iter().flat_map(|c| c.points.iter().map(|p| p.1));
        let lowest = values().fold(f64::INFINITY, f64::min).log10().floor();
        let highest = values().fold(0.0, f64::max).log10().ceil();
        // Whole powers of ten, at least one apart.
        let decades = (highest - lowest).max(1.0);
        let y = |v: f64| top + HEIGHT * (1.0 - (v.log10() - lowest) / decades);
        for decade in 0..=decades as i32 {
            let value = 10f64.powf(lowest + f64::from(decade));
            grid(out, y(value), &value.to_string());
        }
        for c in curves {
            let colour = COLOURS[c.engine % COLOURS.len()];
            curve(out, colour, c.points.iter().map(|(t, v)| (x(*t), y(*v))));
        }
    }
}

/// Shares of a whole over rounds, a curve each.
#[derive(Debug, Default)]
pub struct Shares(Vec<(String, Vec<(f64, f64)>)>);

impl Shares {
    /// Adds a point to a curve.
    pub fn add(&mut self, curve: &str, round: f64, share: f64) {
        match self.0.iter_mut().find(|c| c.0 == curve) {
            Some(c) => c.1.push((round, share)),
            None => self.0.push((curve.to_owned(), vec![(round, share)])),
        }
    }

    /// The chart as SVG, in percent.
    pub fn draw(&self) -> String {
        let mut out = String::new();
        let rounds = || self.0.iter().flat_map(|c| c.1.iter().map(|p| p.0));
        let last = rounds().fold(1.0, f64::max);
        let x = |t: f64| across(t / last);
        let y = |v: f64| TOP + HEIGHT * (1.0 - v.clamp(0.0, 1.0));
        for percent in [0, 25, 50, 75, 100] {
            grid(
                &mut out,
                y(f64::from(percent) / 100.0),
                &format!("{percent} %"),
            );
        }
        text(&mut out, "start", LEFT, y(0.0) + 16.0, "0");
        let label = format!("round {last:.0}");
        text(&mut out, "end", x(last), y(0.0) + 16.0, &label);
        legend(&mut out, 40.0, self.0.iter().map(|c| c.0.as_str()));
        for (n, (_, points)) in self.0.iter().enumerate() {
            let points = points.iter().map(|(t, v)| (x(*t), y(*v)));
            curve(&mut out, COLOURS[n % COLOURS.len()], points);
        }
        svg(TOP + HEIGHT + GAP + 20.0, &out)
    }
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
        let svg = plot.draw();
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
    fn an_empty_chart_is_valid() {
        let svg = Plot::default().draw();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}

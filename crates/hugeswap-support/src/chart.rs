//! The parts of a chart, as SVG.

use std::fmt::Write;

/// Width of every chart.
pub const WIDTH: f64 = 960.0;
/// Margin to the left of the curves.
pub const LEFT: f64 = 70.0;
/// Margin to the right of the curves.
pub const RIGHT: f64 = 20.0;
/// Margin above the curves.
pub const TOP: f64 = 70.0;
/// Colours of curves and bars, in order; after the last the first follows.
pub const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

// Writing to a string cannot fail.

/// A chart of some height with these parts.
pub fn svg(height: f64, parts: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"white\"/>\n{parts}</svg>\n"
    )
}

/// The x coordinate of a share of the width between the margins.
pub fn across(share: f64) -> f64 {
    LEFT + (WIDTH - LEFT - RIGHT) * share.clamp(0.0, 1.0)
}

/// Adds a line.
pub fn line(out: &mut String, colour: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    );
}

/// Adds text.
pub fn text(out: &mut String, anchor: &str, x: f64, y: f64, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

/// Adds a horizontal grid line with its label at the left.
pub fn grid(out: &mut String, y: f64, label: &str) {
    line(out, "#ddd", (LEFT, y), (WIDTH - RIGHT, y));
    text(out, "end", LEFT - 6.0, y + 4.0, label);
}

/// Adds a curve.
pub fn curve(out: &mut String, colour: &str, points: impl Iterator<Item = (f64, f64)>) {
    let points = points.map(|(x, y)| format!("{x:.1},{y:.1}"));
    let _ = writeln!(
        out,
        "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
        points.collect::<Vec<_>>().join(" ")
    );
}

/// Adds the names of curves with their colours, from `y` downwards.
pub fn legend<'a>(out: &mut String, mut y: f64, names: impl Iterator<Item = &'a str>) {
    let mut x = LEFT;
    for (n, name) in names.enumerate() {
        // Only the viewer knows the width of text: a generous guess.
        let width = 50.0 + 7.0 * name.chars().count() as f64;
        if x + width > WIDTH && x > LEFT {
            (x, y) = (LEFT, y + 16.0);
        }
        line(out, COLOURS[n % COLOURS.len()], (x, y), (x + 24.0, y));
        text(out, "start", x + 30.0, y + 4.0, name);
        x += width;
    }
}

//! Numbers as people read them.

/// Bytes, in the largest power-of-1024 unit of which there is at least one: `1.3 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{n} B"),
        _ if value < 10.0 => format!("{value:.2} {}", UNITS[unit]),
        _ if value < 100.0 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// A duration given in nanoseconds: `6.5 us`, `1.2 ms`, `3.04 s`.
pub fn duration(ns: u64) -> String {
    let v = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", v / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", v / 1e6),
        _ => format!("{:.2} s", v / 1e9),
    }
}

/// A count with separators: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(d);
    }
    out
}

/// A message as one line, without line breaks, indentation or control characters.
pub fn one_line(message: &str) -> String {
    message
        .split(|c: char| c.is_control() || c == ' ')
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 19), "1.50 MiB");
        assert_eq!(bytes(600 << 20), "600 MiB");
        assert_eq!(bytes(u64::MAX), "16384 PiB");
    }

    #[test]
    fn durations_and_counts() {
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(6_540), "6.5 us");
        assert_eq!(duration(3_040_000_000), "3.04 s");
        assert_eq!(count(7), "7");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(count(123_456), "123,456");
    }

    #[test]
    fn lines_are_joined() {
        assert_eq!(one_line("a\n  b\tc \u{1b}d"), "a b c d");
    }
}

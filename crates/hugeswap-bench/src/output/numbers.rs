//! Numbers as a benchmark prints them.

/// The middle value, or the mean of the middle two; 0 if there is none.
pub fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => 0.0,
        n if n % 2 == 1 => v[n / 2],
        n => f64::midpoint(v[n / 2 - 1], v[n / 2]),
    }
}

/// A number with so many decimals.
pub fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

/// A number in a table, or "-".
pub fn cell(value: impl Into<Option<f64>>, digits: usize) -> String {
    value.into().map_or("-".into(), |v| format!("{v:.digits$}"))
}

/// A share as percent in a table.
pub fn percent(share: impl Into<Option<f64>>, digits: usize) -> String {
    cell(share.into().map(|s| s * 100.0), digits)
}

/// Pages as GiB in a table.
pub fn gib(pages: Option<f64>) -> String {
    cell(pages.map(|p| p * 4096.0 / f64::from(1 << 30)), 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}

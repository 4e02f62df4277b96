//! Tables for people.

/// A column: its heading, and its cell for an item.
pub type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> String);

/// Rows under headings; the first column is text, the others are numbers.
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Another table, printed after an empty line.
    below: Option<Box<Table>>,
}

impl Table {
    /// A table with these headings.
    pub fn new(headings: &[&str]) -> Table {
        Table {
            rows: vec![headings.iter().map(|h| (*h).to_owned()).collect()],
            below: None,
        }
    }

    /// A table with a row for each of `items`; `columns` are headings, and what stands below them.
    pub fn of<T>(items: impl IntoIterator<Item = T>, columns: &[Column<'_, T>]) -> Table {
        let mut table = Table::new(&columns.iter().map(|c| c.0).collect::<Vec<_>>());
        for item in items {
            table.row(columns.iter().map(|c| c.1(&item)).collect());
        }
        table
    }

    /// The same, with another table below.
    pub fn below(mut self, other: Table) -> Table {
        self.below = Some(Box::new(other));
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The table as text, aligned.
    pub fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            self.rows
                .iter()
                .filter_map(|r| r.get(c))
                .map(|s| s.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut out = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &w))| {
                if i == 0 {
                    format!("{cell:<w$}")
                } else {
                    format!("{cell:>w$}")
                }
            });
            out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            out.push('\n');
        }
        if let Some(below) = &self.below {
            out.push('\n');
            out.push_str(&below.text());
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_line_up() {
        let rows = [("kernel", 99), ("hugeswap", 1234)];
        let t = Table::of(
            rows,
            &[("engine", &|r| r.0.into()), ("MB/s", &|r| r.1.to_string())],
        );
        let text = "engine    MB/s\nkernel      99\nhugeswap  1234\n";
        assert_eq!(t.text(), text);
        let two = t.below(Table::new(&["other"]));
        assert_eq!(two.text(), format!("{text}\nother\n"));
    }
}

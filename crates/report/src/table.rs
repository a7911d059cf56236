//! Numbers and columns as text for a terminal. Every cell is printable: a name in a stream may hold escape
//! sequences.

use record::stage::printable;

use crate::evaluate::interval::Interval;

/// Columns under their heads: the first to the left, the others to the right from column `names` on.
pub fn aligned(table: &[Vec<String>], names: usize) -> String {
    let cells: Vec<Vec<String>> =
        table.iter().map(|row| row.iter().map(|cell| printable(cell).to_string()).collect()).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..cells.first().map_or(0, Vec::len)).map(width).collect();
    let mut text = String::new();
    for row in &cells {
        let padded =
            row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column < names {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            });
        text += padded.collect::<Vec<String>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A value, or a dash where there is none.
pub fn or_dash<T>(value: Option<T>, write: impl FnOnce(T) -> String) -> String {
    value.map_or("-".to_owned(), write)
}

pub fn percent(rate: f64) -> String {
    format!("{:.1} %", 100.0 * rate)
}

/// The ends of an interval of rates: `9.5 to 90.5 %`.
pub fn percents((low, high): Interval) -> String {
    format!("{:.1} to {}", 100.0 * low, percent(high))
}

/// The ends of an interval of numbers: `1.25 to 2.50`.
pub fn numbers((low, high): Interval) -> String {
    format!("{low:.2} to {high:.2}")
}

//! What all forms of one puzzle share, to divide puzzles into train and test.
//!
//! Two puzzles are the same if relabeling digits, turning the board over, exchanging bands or stacks, or
//! exchanging rows within a band or columns within a stack makes one of the other.
//!
//! - 4×4: [`form`] is the canonical form itself, the least of all 128 arrangements with digits named in the order
//!   in which they appear.
//! - 9×9: with 3,359,232 arrangements the least one is too dear to find for each puzzle. [`form`] is an invariant
//!   instead: colors of cells, refined a few times by the colors in their row, column, box and of their digit,
//!   and then summed. Forms of one puzzle always have the same invariant, so they are always on the same side;
//!   different puzzles that share it by chance are on one side too, which does no harm.

use super::board::Shape;

/// Bytes that all forms of one puzzle share.
pub fn form(shape: Shape, clues: &[u8]) -> Vec<u8> {
    match shape.size() {
        4 => least(shape, clues),
        _ => invariant(shape, clues),
    }
}

/// The orders of rows that keep bands together.
fn orders(shape: Shape) -> Vec<Vec<usize>> {
    let band = shape.band();
    let mut orders: Vec<Vec<usize>> = vec![Vec::new()];
    for place in 0..shape.size() {
        orders = orders
            .iter()
            .flat_map(|order| {
                // Bands are whole wherever one begins, so that a row that was not taken begins a band that was not.
                let fits = move |row: &usize| {
                    let begins = place % band == 0;
                    let together = begins || order.last().is_some_and(|last| last / band == row / band);
                    together && !order.contains(row)
                };
                (0..shape.size()).filter(fits).map(|row| order.iter().copied().chain([row]).collect())
            })
            .collect();
    }
    orders
}

/// The least of all arrangements of a small board.
fn least(shape: Shape, clues: &[u8]) -> Vec<u8> {
    let orders = orders(shape);
    let size = shape.size();
    let arranged = |turned: bool, rows: &[usize], columns: &[usize]| -> Vec<u8> {
        let mut names = [0_u8; 10];
        let mut named = 0;
        let arranged = (0..shape.cells()).map(|cell| {
            let (row, column) = (rows[cell / size], columns[cell % size]);
            let from = if turned { column * size + row } else { row * size + column };
            let digit = usize::from(clues[from]);
            if digit != 0 && names[digit] == 0 {
                named += 1;
                names[digit] = named;
            }
            names[digit]
        });
        arranged.collect()
    };
    let both = |rows| orders.iter().flat_map(move |columns| [(false, rows, columns), (true, rows, columns)]);
    let all = orders.iter().flat_map(both).map(|(turned, rows, columns)| arranged(turned, rows, columns));
    all.min().unwrap_or_default()
}

/// A number that looks like chance and depends on one number (the finalizer of SplitMix64).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// Color refinement: sums stand for multisets, so that no order matters.
fn invariant(shape: Shape, clues: &[u8]) -> Vec<u8> {
    const ROUNDS: usize = 4;
    let mut colors: Vec<u64> = clues.iter().map(|digit| u64::from(*digit != 0)).collect();
    for _ in 0..ROUNDS {
        let (mut rows, mut columns, mut squares, mut digits) =
            ([0_u64; 9], [0_u64; 9], [0_u64; 9], [0_u64; 10]);
        for (cell, color) in colors.iter().enumerate() {
            let (row, column, square) = shape.units(cell);
            let mixed = mix(*color);
            rows[row] = rows[row].wrapping_add(mixed);
            columns[column] = columns[column].wrapping_add(mixed);
            squares[square] = squares[square].wrapping_add(mixed);
            digits[usize::from(clues[cell])] = digits[usize::from(clues[cell])].wrapping_add(mixed);
        }
        // Empty cells have no digit in common.
        digits[0] = 0;
        for (cell, color) in colors.iter_mut().enumerate() {
            let (row, column, square) = shape.units(cell);
            // A board turned over exchanges rows and columns, so their part has to be the same either way.
            let lines = mix(rows[row]).wrapping_add(mix(columns[column]));
            let parts = [*color, lines, squares[square], digits[usize::from(clues[cell])]];
            *color = parts.into_iter().fold(0, |all, part| mix(all ^ part));
        }
    }
    let sum = colors.into_iter().map(mix).fold(0, u64::wrapping_add);
    sum.to_be_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_orders_as_symmetries_have() {
        assert_eq!(orders(Shape::new(4).unwrap()).len(), 8);
        assert_eq!(orders(Shape::new(9).unwrap()).len(), 1296);
    }

    #[test]
    fn forms_tell_different_puzzles_apart() {
        let form = |text: &str| {
            let shape = Shape::new(if text.len() == 16 { 4 } else { 9 }).unwrap();
            form(shape, &shape.parse(text).unwrap())
        };
        // Equal clues in the next band and with other digits; and one clue more.
        assert_eq!(form("12..34.........."), form("........43..21.."));
        assert_ne!(form("12..34.........."), form("12..34......1..."));
        let nine = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79";
        assert_ne!(form(nine), form(&nine.replacen('5', ".", 1)));
    }
}

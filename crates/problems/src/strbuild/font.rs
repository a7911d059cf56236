//! Letters of five by five cells.

/// Cells of a letter's side.
pub const SIDE: usize = 5;

/// The rows of A to Z from the top; the leftmost cell is the highest of five bits.
const LETTERS: [[u8; SIDE]; 26] = [
    [0b00100, 0b01010, 0b11111, 0b10001, 0b10001],
    [0b11110, 0b10001, 0b11110, 0b10001, 0b11110],
    [0b01110, 0b10001, 0b10000, 0b10001, 0b01110],
    [0b11100, 0b10010, 0b10001, 0b10010, 0b11100],
    [0b11111, 0b10000, 0b11100, 0b10000, 0b11111],
    [0b11111, 0b10000, 0b11100, 0b10000, 0b10000],
    [0b01110, 0b10000, 0b10011, 0b10001, 0b01110],
    [0b10001, 0b10001, 0b11111, 0b10001, 0b10001],
    [0b01110, 0b00100, 0b00100, 0b00100, 0b01110],
    [0b00001, 0b00001, 0b00001, 0b10001, 0b01110],
    [0b10010, 0b10100, 0b11000, 0b10100, 0b10010],
    [0b10000, 0b10000, 0b10000, 0b10000, 0b11110],
    [0b10001, 0b11011, 0b10101, 0b10101, 0b10001],
    [0b10001, 0b11001, 0b10101, 0b10011, 0b10001],
    [0b01110, 0b10001, 0b10001, 0b10001, 0b01110],
    [0b11110, 0b10001, 0b11110, 0b10000, 0b10000],
    [0b01110, 0b10001, 0b10101, 0b10010, 0b01101],
    [0b11110, 0b10001, 0b11110, 0b10010, 0b10001],
    [0b01111, 0b10000, 0b01110, 0b00001, 0b11110],
    [0b11111, 0b00100, 0b00100, 0b00100, 0b00100],
    [0b10001, 0b10001, 0b10001, 0b10001, 0b01110],
    [0b10001, 0b10001, 0b01010, 0b01010, 0b00100],
    [0b10001, 0b10101, 0b10101, 0b11011, 0b10001],
    [0b10001, 0b01010, 0b00100, 0b01010, 0b10001],
    [0b10001, 0b01010, 0b00100, 0b00100, 0b00100],
    [0b11111, 0b00010, 0b00100, 0b01000, 0b11111],
];

/// Returns true if the cell in `column` from the left and `row` from the top belongs to `letter`, A to Z.
pub fn is_set(letter: u8, column: usize, row: usize) -> bool {
    let rows = LETTERS.get(usize::from(letter.wrapping_sub(b'A')));
    rows.is_some_and(|rows| row < SIDE && column < SIDE && rows[row] >> (SIDE - 1 - column) & 1 == 1)
}

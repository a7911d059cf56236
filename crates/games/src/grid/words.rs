//! Answers to short prompts: a word for each move.
//!
//! They are read as a small model gives them, inside a sentence or not, but a number is not a move: who says `2 up` has not
//! written two moves. Lists as of long prompts are read, too.

use super::{Move, Parsed, prose};

const WORDS: [(&str, Move); 4] =
    [("up", Move::Up), ("down", Move::Down), ("left", Move::Left), ("right", Move::Right)];

/// Numbers as words; `one` and `1` are a move.
const NUMBERS: [&str; 8] = ["two", "three", "four", "five", "six", "seven", "eight", "nine"];

/// Moves as words: `up, right`.
pub fn write(moves: &[Move]) -> String {
    let word = |step: &Move| WORDS.iter().find(|(_, of)| of == step).map_or("", |(word, _)| *word);
    moves.iter().map(word).collect::<Vec<&str>>().join(", ")
}

/// Reads 1 to `most` moves: a list, or the words for moves on the first line that has any.
pub fn read(text: &str, most: u32) -> Option<Parsed> {
    prose::read_moves(text, most).or_else(|| {
        let moves = text.lines().find_map(of_line)?;
        Parsed::steps(moves?).filter(|parsed| parsed.steps.len() <= most as usize)
    })
}

/// The moves of a line, if it has any; `Some(None)` where some are counted instead of written.
fn of_line(line: &str) -> Option<Option<Vec<Move>>> {
    let (mut moves, mut counted, mut before) = (Vec::new(), false, "");
    for word in line.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()) {
        if let Some((_, step)) = WORDS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)) {
            moves.push(*step);
            counted |= is_number(before);
        }
        before = word;
    }
    (!moves.is_empty()).then_some((!counted).then_some(moves))
}

/// Returns true if a word is a number above one.
fn is_number(word: &str) -> bool {
    let digits = !word.is_empty() && word.bytes().all(|digit| digit.is_ascii_digit());
    digits && word != "1" || NUMBERS.iter().any(|number| number.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_move_and_a_number_is_none() {
        let answer = |text: &str| read(text, 3).map(|parsed| write(&parsed.steps));
        for text in [
            "up, right",
            "Up, right.",
            "up right\nThis avoids the wall on the left.",
            "Moves:\nup -> right",
            "The goal is 1 up and one right.",
            "#### [\"U\", \"R\"]",
            "[up, right]",
        ] {
            assert_eq!(answer(text).as_deref(), Some("up, right"), "{text:?}");
        }
        for text in [
            "",
            "The walker.",
            "2 up and 1 right",
            "1 right, 2 up",
            "Two up",
            "up, up, up, up",
            "upright",
            "\u{0}é",
        ] {
            assert_eq!(answer(text), None, "{text:?}");
        }
        assert_eq!(read(&write(&Move::ALL), 4).expect("moves").steps, Move::ALL);
    }
}

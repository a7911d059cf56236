//! The full encoding of Sudoku: prose and a drawn grid, for pretrained language models.
//!
//! Agents reason and end with one list after `####`, as in Stronger-MAS (arXiv 2510.11062): triples of row,
//! column and digit, or the whole grid, which means the digits that differ from the board. Parsing is
//! lenient, as for lists of moves ([`crate::grid::prose`]). Left out: the paper's tool, which writes a
//! program that prints the grid.

use super::Instance;
use super::board::{Placement, Shape};
use crate::grid::prose;

/// A board as lines of digits with `.` for empty cells and bars between boxes.
pub fn picture(shape: Shape, board: &[u8]) -> String {
    let mut lines: Vec<String> = Vec::new();
    for (row, digits) in board.chunks(shape.size()).enumerate() {
        let mut line = String::new();
        for (column, digit) in digits.iter().enumerate() {
            let space = match column {
                0 => "",
                _ if column % shape.band() == 0 => " | ",
                _ => " ",
            };
            line.push_str(space);
            line.push(if *digit == 0 { '.' } else { char::from(b'0' + digit) });
        }
        if row > 0 && row % shape.band() == 0 {
            lines.push(line.chars().map(|letter| if letter == '|' { '+' } else { '-' }).collect());
        }
        lines.push(line);
    }
    lines.join("\n") + "\n"
}

fn rows(shape: Shape, board: &[u8]) -> String {
    let mut text = String::new();
    for row in board.chunks(shape.size()) {
        let digits: Vec<String> =
            row.iter().map(|digit| if *digit == 0 { ".".to_owned() } else { digit.to_string() }).collect();
        text.push_str(&digits.join(" "));
        text.push('\n');
    }
    text
}

/// A prompt: rules and clues, then the board. `proposal` is `None` without a tool.
pub fn prompt(instance: &Instance, board: &[u8], proposal: Option<&str>, agent: &str) -> String {
    let Instance { shape, clues, episode, .. } = instance;
    let (size, band, fills, turns) = (shape.size(), shape.band(), episode.steps, episode.turns);
    let advice = "Look for cells in which only one digit fits.";
    format!(
        "A Sudoku of {size}x{size} cells: every row, every column and every {band}x{band} box has to hold each digit from \
         1 to {size} once. '.' is an empty cell. Rows are counted from the top, columns from the left, both from 0. The \
         clues never change, and there is exactly one solution:\n\n{}\n\
         A turn places at most {fills} digits: a longer answer counts as no answer. They are placed in order until one \
         that is illegal, which drops the rest. A digit may not go on a clue nor clash with one. Digits placed in \
         earlier turns may be replaced, and go when a new one clashes with them. There are {turns} turns.\n\n\
         The board now:\n\n{}\n{}\
         Then write them on the last line as one list of [row, column, digit] after ####, or the whole grid as a list of \
         rows, for example:\n#### [[0, 1, 3], [2, 2, 1]]",
        rows(*shape, clues),
        rows(*shape, board),
        prose::role(agent, proposal, "digits", "board", advice)
    )
}

/// Placements as a list: `[[0, 2, 3], [3, 1, 3]]`.
pub fn write_list(shape: Shape, placements: &[Placement]) -> String {
    let triples: Vec<String> = placements
        .iter()
        .map(|Placement { cell, digit }| {
            format!("[{}, {}, {digit}]", cell / shape.size(), cell % shape.size())
        })
        .collect();
    format!("[{}]", triples.join(", "))
}

/// A whole answer: `#### [[0, 2, 3], [3, 1, 3]]`.
pub fn write_answer(shape: Shape, placements: &[Placement]) -> String {
    format!("#### {}", write_list(shape, placements))
}

/// Reads 1 to `most` placements from an answer in prose.
///
/// The last `####` followed by an answer decides: the first list after it, or a grid of bare lines. Without
/// one, the last list that is an answer.
pub fn read(shape: Shape, board: &[u8], text: &str, most: u32) -> Option<Vec<Placement>> {
    let parts: Vec<&str> = text.split("####").collect();
    let marked = parts[1..]
        .iter()
        .rev()
        .find_map(|part| lists(shape, board, part).into_iter().next().or_else(|| bare(shape, board, part)));
    let placements = marked.or_else(|| lists(shape, board, text).pop())?;
    if placements.is_empty() || placements.len() > most as usize { None } else { Some(placements) }
}

/// All answers in brackets, in order: runs of innermost lists separated only by brackets and commas.
fn lists(shape: Shape, board: &[u8], text: &str) -> Vec<Vec<Placement>> {
    let opens = |letter: char| matches!(letter, '[' | '(');
    let closes = |letter: char| matches!(letter, ']' | ')');
    let mut runs: Vec<Vec<Vec<u8>>> = vec![Vec::new()];
    let end_run = |runs: &mut Vec<Vec<Vec<u8>>>| {
        if runs.last().is_some_and(|run| !run.is_empty()) {
            runs.push(Vec::new());
        }
    };
    let mut inner: Option<usize> = None;
    for (place, letter) in text.char_indices() {
        if opens(letter) {
            inner = Some(place + letter.len_utf8());
        } else if closes(letter) {
            if let Some(begin) = inner.take() {
                match numbers(&text[begin..place]) {
                    Some(list) => {
                        if let Some(run) = runs.last_mut() {
                            run.push(list);
                        }
                    }
                    None => end_run(&mut runs),
                }
            }
        } else if inner.is_none() && !(letter.is_whitespace() || letter == ',') {
            end_run(&mut runs);
        }
    }
    runs.iter().filter_map(|run| understand(shape, board, run)).collect()
}

/// Numbers separated by commas or spaces, with or without quotes; empty cells are 0.
fn numbers(text: &str) -> Option<Vec<u8>> {
    let separator = |letter: char| letter.is_whitespace() || ",;|'\"`".contains(letter);
    let words = text.split(separator).filter(|word| !word.is_empty());
    let numbers: Option<Vec<u8>> = words
        .map(|word| match word {
            "." | "_" | "None" | "null" => Some(0),
            _ => word.parse().ok(),
        })
        .collect();
    numbers.filter(|numbers| !numbers.is_empty())
}

/// The placements in a run of lists: triples, or the rows of a grid in one list or several.
fn understand(shape: Shape, board: &[u8], run: &[Vec<u8>]) -> Option<Vec<Placement>> {
    let size = shape.size();
    if !run.is_empty() && run.iter().all(|list| list.len() == 3) {
        return run
            .iter()
            .map(|triple| {
                let (row, column) = (usize::from(triple[0]), usize::from(triple[1]));
                let known = row < size && column < size && triple[2] != 0;
                known.then(|| Placement { cell: row * size + column, digit: triple[2] })
            })
            .collect();
    }
    let rows = run.len() == size && run.iter().all(|list| list.len() == size);
    let flat = run.len() == 1 && run[0].len() == shape.cells();
    (rows || flat).then(|| differences(board, run.iter().flatten().copied()))
}

/// The digits in which a grid differs from the board.
fn differences(board: &[u8], grid: impl Iterator<Item = u8>) -> Vec<Placement> {
    let named = grid.zip(board).enumerate().filter(|(_, (digit, now))| *digit != 0 && digit != *now);
    named.map(|(cell, (digit, _))| Placement { cell, digit }).collect()
}

/// A grid of bare lines, with one digit per column.
fn bare(shape: Shape, board: &[u8], text: &str) -> Option<Vec<Placement>> {
    let digits = |line: &str| -> Option<Vec<u8>> {
        let letters = line.chars().filter(|letter| !letter.is_whitespace() && *letter != '|');
        let row: Option<Vec<u8>> = letters
            .map(|letter| match letter {
                '.' | '_' => Some(0),
                _ => letter.to_digit(10).map(|digit| digit as u8),
            })
            .collect();
        row.filter(|row| row.len() == shape.size())
    };
    let rows: Vec<Vec<u8>> = text.lines().filter_map(digits).collect();
    if rows.len() != shape.size() {
        return None;
    }
    Some(differences(board, rows.into_iter().flatten()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::world::GridWorld;

    fn read_here(text: &str) -> Option<String> {
        let shape = Shape::new(4).unwrap();
        let board = shape.parse("12.4.41221434.2.").unwrap();
        read(shape, &board, text, 4).map(|placements| write_list(shape, &placements))
    }

    #[test]
    fn answers_are_read_as_a_person_reads_them() {
        for text in [
            "#### [[0, 2, 3], [1, 0, 3]]",
            "#### [(0, 2, 3), (1, 0, 3)]",
            "#### (0, 2, 3), (1, 0, 3)",
            "#### Step 1\nLook at row 0.\n\n#### [[0, 2, 3], [1, 0, 3]]",
            "#### [[0, 2, 3], [1, 0, 3]]\nDone. I did not touch (3, 1).",
            "####\n```json\n[[0, 2, 3],\n [1, 0, 3]]\n```",
            "####[[0,2,3],[1,0,3]]",
            "So I place [[0, 2, 3], [1, 0, 3]]",
            "First #### [[0, 2, 1]], but no: #### [[0, 2, 3], [1, 0, 3]]",
            "#### [[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,0,2,0]]",
            "#### [[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,'.',2,'.']]",
            "#### [1,2,3,4,3,4,1,2,2,1,4,3,4,0,2,0]",
            "####\n1 2 3 4\n3 4 1 2\n2 1 4 3\n4 . 2 .\n",
            "####\n12 | 34\n34 | 12\n21 | 43\n4. | 2.\n",
        ] {
            assert_eq!(read_here(text).as_deref(), Some("[[0, 2, 3], [1, 0, 3]]"), "{text:?}");
        }
    }

    #[test]
    fn texts_without_an_answer_give_none() {
        for text in [
            "",
            "#### []",
            "####",
            "#### [[0, 2]]",
            "#### [[0, 4, 1]]",
            "#### [[4, 0, 1]]",
            "#### [[0, 2, 0]]",
            "#### [[0, 2, x]]",
            "a 3 belongs in row 0",
            "#### [[1,2,0,4],[0,4,1,2],[2,1,4,3],[4,0,2,0]]",
            "#### [[0,2,3],[1,0,3],[3,1,3],[3,3,1],[0,2,3]]",
        ] {
            assert_eq!(read_here(text), None, "{text:?}");
        }
        let all_that_may_be = "[[0, 2, 3], [1, 0, 3], [3, 1, 3], [3, 3, 1]]";
        assert_eq!(read_here(all_that_may_be).as_deref(), Some(all_that_may_be));
    }

    #[test]
    fn hostile_text_is_no_panic() {
        for text in
            ["####[", "[[[[", "]]]]####]", "####\u{0}[\u{200b}]", "#### é", "[[0,2,999999999999]]", ")("]
        {
            assert_eq!(read_here(text), None, "{text:?}");
        }
    }

    /// The prompts of each agent, compared with tests/prompts/sudoku.txt.
    #[test]
    fn prompts_are_what_they_were() {
        let spec = serde_json::json!({"size": 4, "encoding": "full", "fills": 3, "turns": 4, "clues": "12.4.41221434.2."});
        let instance = Instance::parse(&spec).unwrap();
        let board = instance.shape.parse("1234.41221434.2.").unwrap();
        let mut all = String::new();
        for (who, agent, proposal) in [
            ("tool", "tool", Some("")),
            ("planner, after a proposal", "planner", Some("[[1, 0, 3]]")),
            ("planner, after none that can be read", "planner", Some("")),
            ("planner alone", "planner", None),
        ] {
            all += &format!("=== {who}\n{}\n", prompt(&instance, &board, proposal, agent));
        }
        assert_eq!(all, include_str!("../../tests/prompts/sudoku.txt"));
    }

    #[test]
    fn boards_are_drawn_with_boxes() {
        let shape = Shape::new(4).unwrap();
        let board = shape.parse("12.4.41221434.2.").unwrap();
        assert_eq!(picture(shape, &board), "1 2 | . 4\n. 4 | 1 2\n----+----\n2 1 | 4 3\n4 . | 2 .\n");
    }
}

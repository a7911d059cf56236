//! Actions that `envs check` tries in every situation: every digit in cells that are empty, right, wrong and clues,
//! whole boards, and actions that are wrong in every way that matters.

use serde_json::json;

use super::Instance;
use super::board::Placement;
use environment::ExtractionCase;

/// Cells of each kind that every digit is tried in; boards of nine have too many.
const CELLS: usize = 6;

/// Every digit in some cells, the best action and spoiled forms of it; malformed actions are at the end. `missing`: the
/// cells that are not right yet.
pub fn all(
    instance: &Instance,
    best: &[Placement],
    missing: &[usize],
    write: &dyn Fn(&[Placement]) -> String,
) -> Vec<String> {
    let (size, cells) = (instance.shape.size() as u8, instance.shape.cells());
    let mut lists: Vec<Vec<Placement>> = vec![best.to_vec()];
    let fills = instance.episode.steps as usize;
    let clue = |cell: &usize| instance.clues[*cell] != 0;
    let filled = (0..cells).filter(|cell| !clue(cell) && !missing.contains(cell));
    for cell in
        missing.iter().copied().take(CELLS).chain(filled.take(CELLS)).chain((0..cells).filter(clue).take(1))
    {
        lists.extend((1..=size).map(|digit| vec![Placement { cell, digit }]));
    }
    // One right digit and then every way to spoil it.
    if let Some(first) = best.first().copied() {
        for cell in 0..cells.min(16) {
            lists.push(vec![first, Placement { cell, digit: first.digit }]);
            lists.push(vec![Placement { cell, digit: first.digit % size + 1 }, first]);
        }
        lists.push(vec![first, first]);
        lists.push(vec![first; fills + 1]);
        lists.push(vec![first, Placement { cell: first.cell, digit: first.digit % size + 1 }]);
    }
    // A complete board that forgets the clues, and a digit that there is none of.

    let other = |cell: usize| Placement { cell, digit: instance.solution[cell] % size + 1 };
    lists.push((0..cells).take(fills).map(other).collect());
    lists.push(missing.iter().copied().take(fills).map(other).collect());
    lists.push(vec![Placement { cell: 0, digit: 9 }]);
    let mut answers: Vec<String> = lists.iter().map(|list| write(list)).collect();
    if !instance.episode.is_compact() {
        let grid: Vec<String> = instance.solution.chunks(size.into()).map(|row| format!("{row:?}")).collect();
        answers.push(format!("#### [{}]", grid.join(", ")));
        let turned: Vec<String> =
            instance.solution.chunks(size.into()).rev().map(|row| format!("{row:?}")).collect();
        answers.push(format!("#### [{}]", turned.join(", ")));
    }
    let nonsense = ["", " ", " a0", " a0 0", " z9 1", "3 a0", "####", "#### []", "sudoku", "\u{0}", "[[["];
    answers.extend(nonsense.map(str::to_owned));
    answers
}

/// Styles of answers in prose. The first group means a 3 in row 0, column 2 and a 3 in row 1, column 0; the
/// second group means nothing.
const READABLE: [(&str, &str); 13] = [
    ("plain", "#### [[0, 2, 3], [1, 0, 3]]"),
    ("heading before", "#### Step 1\nRow 0 lacks a 3.\n\n#### [[0, 2, 3], [1, 0, 3]]"),
    ("words after", "#### [[0, 2, 3], [1, 0, 3]]\nDone. This leaves (3, 1)."),
    ("code fence", "####\n```json\n[[0, 2, 3], [1, 0, 3]]\n```"),
    ("no space after ####", "####[[0,2,3],[1,0,3]]"),
    ("bracket list without ####", "So I place [[0, 2, 3], [1, 0, 3]]"),
    ("last answer wins", "#### [[0, 2, 1]]\nNo, that clashes.\n#### [[0, 2, 3], [1, 0, 3]]"),
    ("tuples", "#### [(0, 2, 3), (1, 0, 3)]"),
    ("quotes", "#### [['0', '2', '3'], ['1', '0', '3']]"),
    ("bold", "**#### [[0, 2, 3], [1, 0, 3]]**"),
    ("whole grid", "#### [[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,0,2,0]]"),
    ("whole grid with dots", "#### [[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,\".\",2,\".\"]]"),
    ("bare grid", "####\n```\n1 2 3 4\n3 4 1 2\n2 1 4 3\n4 . 2 .\n```"),
];
const UNREADABLE: [(&str, &str); 7] = [
    ("empty", ""),
    ("empty list", "#### []"),
    ("no list", "A 3 belongs in row 0, and one in row 1."),
    ("pairs", "#### [[0, 2], [1, 0]]"),
    ("outside", "#### [[0, 4, 3]]"),
    ("too many digits", "#### [[0, 2, 3], [1, 0, 3], [3, 1, 3], [3, 3, 1], [0, 2, 3]]"),
    ("the board as it is", "#### [[1,2,0,4],[0,4,1,2],[2,1,4,3],[4,0,2,0]]"),
];
const COMPACT: [(&str, &str, Option<&str>); 7] = [
    ("compact", " c0 3 a1 3", Some(" c0 3 a1 3")),
    ("compact without first space", "c0 3 a1 3", Some(" c0 3 a1 3")),
    ("compact, a foreign word", " c0 3 planner", None),
    ("compact, a digit missing", " c0 3 a1", None),
    ("compact, too many digits", " c0 3 a1 3 b3 3 d3 1 c0 3", None),
    ("compact, empty", "", None),
    ("compact, outside", " e0 3", None),
];

/// How answers in every style have to be read.
pub fn extraction_cases() -> Vec<ExtractionCase> {
    let spec = |encoding: &str| json!({"size": 4, "encoding": encoding, "fills": 4, "turns": 4, "clues": "12.4.41221434.2."});
    let full = READABLE.iter().map(|(name, text)| (*name, *text, Some(READABLE[0].1)));
    let full = full.chain(UNREADABLE.iter().map(|(name, text)| (*name, *text, None)));
    let full = full.map(|case| ("full", case));
    full.chain(COMPACT.map(|case| ("compact", case)))
        .flat_map(|(encoding, case)| {
            ["tool", "planner"].map(|agent| ExtractionCase::new(&spec(encoding), agent, case))
        })
        .collect()
}

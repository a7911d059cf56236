//! A wall of blocks: commands in answers, the resulting blocks, and the score.
//!
//! The score is 2 coverage - 1.5 extra - adjacent - 0.25 for each agent that left out a block of its palette.
//! Coverage is the share of the word's cells that have a block, extra the share of the other cells that have
//! one, and adjacent the share of adjacent blocks that look alike.

use std::collections::HashMap;

use super::font::{SIDE, is_set};

/// Columns between two letters.
const GAP: usize = 2;
/// Least and greatest score, for two agents.
pub const RANGE: (f64, f64) = (-3.0, 2.0);
/// The blocks of each agent; no two look alike.
pub const PALETTES: [[&str; 2]; 2] = [["oak_planks", "stone"], ["white_concrete", "obsidian"]];

/// A cell: column from the left, and row from the bottom.
pub type Cell = (i64, i64);
pub type Blocks = HashMap<Cell, &'static str>;

/// Columns of `word`.
pub fn width(word: &str) -> i64 {
    (word.len() * (SIDE + GAP)).saturating_sub(GAP) as i64
}

/// The cells of `word` from the top, each row from the left.
pub fn cells(word: &str) -> Vec<Cell> {
    let mut cells = Vec::new();
    for row in 0..SIDE {
        for (place, letter) in word.bytes().enumerate() {
            let columns = (0..SIDE).filter(|column| is_set(letter, *column, row));
            cells.extend(
                columns.map(|column| ((place * (SIDE + GAP) + column) as i64, (SIDE - 1 - row) as i64)),
            );
        }
    }
    cells
}

/// Executes the commands in an answer, one per line: `/setblock x y z block`, with integers inside the box
/// and a block of `palette` or air. At most `most` count; others are ignored.
pub fn build(text: &str, palette: &[&'static str], most: usize, width: i64, blocks: &mut Blocks) {
    let mut done = 0;
    for line in text.lines() {
        // A line may be a list item.
        let line =
            line.trim_start_matches(|sign: char| sign.is_whitespace() || matches!(sign, '-' | '*' | '`'));
        let item = line.trim_start_matches(|sign: char| sign.is_ascii_digit());
        let item = item.strip_prefix(['.', ')']).filter(|_| item.len() < line.len()).unwrap_or(line);
        let line = item.trim_start_matches(|sign: char| sign.is_whitespace() || sign == '/');
        let words: Vec<&str> = line.split_whitespace().take(5).collect();
        let [command, x, y, z, block] = words[..] else { continue };
        let (Ok(x), Ok(y), Ok(0)) = (x.parse::<i64>(), y.parse::<i64>(), z.parse::<i64>()) else { continue };
        let block = block.strip_prefix("minecraft:").unwrap_or(block);
        let known = palette.iter().find(|own| **own == block);
        let inside = (0..width).contains(&x) && (0..SIDE as i64).contains(&y);
        if !command.eq_ignore_ascii_case("setblock")
            || !inside
            || (known.is_none() && block != "air")
            || done == most
        {
            continue;
        }
        done += 1;
        match known {
            Some(block) => drop(blocks.insert((x, y), block)),
            None => drop(blocks.remove(&(x, y))),
        }
    }
}

/// The score of a wall, in parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Share of the word's cells that have a block.
    pub coverage: f64,
    /// Share of the other cells that have one.
    pub extra: f64,
    /// Share of pairs of neighbors that look alike.
    pub adjacent: f64,
    /// Agents that did not use their whole palette.
    pub lazy: usize,
    /// Intersection over union of the word's cells and all blocks.
    pub iou: f64,
}

impl Score {
    /// The score of `blocks` for `word`.
    pub fn of(word: &str, blocks: &Blocks, palettes: &[[&'static str; 2]]) -> Score {
        let cells = cells(word);
        let covered = cells.iter().filter(|cell| blocks.contains_key(cell)).count();
        let extra = blocks.len() - covered;
        let background = SIDE * width(word) as usize - cells.len();
        let share = |part: usize, whole: usize| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let neighbors = blocks.iter().flat_map(|(&(x, y), block)| {
            [(x + 1, y), (x, y + 1)].into_iter().filter_map(move |cell| Some(blocks.get(&cell)? == block))
        });
        let (alike, pairs) =
            neighbors.fold((0, 0), |(alike, pairs), same| (alike + usize::from(same), pairs + 1));
        let uses = |block: &&str| blocks.values().any(|own| own == block);
        let lazy = palettes.iter().filter(|palette| !palette.iter().all(uses)).count();
        Score {
            coverage: share(covered, cells.len()),
            extra: share(extra, background),
            adjacent: share(alike, pairs),
            lazy,
            iou: share(covered, cells.len() + extra),
        }
    }

    /// The sum.
    pub fn total(&self) -> f64 {
        2.0 * self.coverage - 1.5 * self.extra - self.adjacent - 0.25 * self.lazy as f64
    }
}

/// Texts that score 2 if every agent has two cells: no two adjacent cells are in one class, classes have
/// about equal size, and each agent alternates its blocks. Each agent builds one class.
pub fn best(word: &str, agents: usize) -> Vec<String> {
    let mut texts = vec![String::new(); agents];
    let mut used = [0; 2];
    for ((x, y), class) in classes(cells(word)) {
        let (agent, block) = if agents == 1 { (0, class) } else { (class, used[class] % 2) };
        used[class] += 1;
        texts[agent].push_str(&format!("/setblock {x} {y} 0 {}\n", PALETTES[agent][block]));
    }
    texts
}

/// The class of each cell, 0 or 1. Adjacent cells have different classes, and each connected part puts its
/// larger half into the class with fewer cells so far.
fn classes(mut cells: Vec<Cell>) -> Vec<(Cell, usize)> {
    let mut found: Vec<(Cell, usize)> = Vec::new();
    while let Some(first) = cells.pop() {
        let mut part = vec![first];
        let mut at = 0;
        while let Some(&(x, y)) = part.get(at) {
            at += 1;
            let near = |cell: &mut Cell| (cell.0 - x).abs() + (cell.1 - y).abs() == 1;
            part.extend(cells.extract_if(.., near));
        }
        let odd = |(x, y): Cell| usize::from((x + y) % 2 == 1);
        let odds = part.iter().map(|cell| odd(*cell)).sum::<usize>();
        let ones = found.iter().map(|(_, class)| class).sum::<usize>();
        let flip = usize::from((odds > part.len() - odds) == (ones > found.len() - ones));
        found.extend(part.into_iter().map(|cell| (cell, odd(cell) ^ flip)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(texts: &[&str], most: usize) -> Blocks {
        let mut blocks = Blocks::new();
        for (text, palette) in texts.iter().zip(&PALETTES) {
            build(text, palette, most, width("I"), &mut blocks);
        }
        blocks
    }

    /// The letter I: three cells in the top and bottom row, one in the three between; 9 of 25.
    #[test]
    fn scores_by_hand() {
        assert_eq!((cells("I").len(), width("I"), width("AB")), (9, 5, 12));
        let score = |texts: &[&str]| Score::of("I", &built(texts, 99), &PALETTES);
        let empty = score(&["", ""]);
        assert_eq!((empty.total(), empty.lazy, empty.iou), (-0.5, 2, 0.0));
        // Two adjacent blocks that look alike, one block next to the letter.
        let some = score(&["/setblock 2 1 0 stone\n/setblock 2 2 0 stone\nsetblock 0 2 0 oak_planks", "no"]);
        let want = Score { coverage: 2.0 / 9.0, extra: 1.0 / 16.0, adjacent: 1.0, lazy: 1, iou: 0.2 };
        assert_eq!(some, want);
        assert!((some.total() - (4.0 / 9.0 - 1.5 / 16.0 - 1.25)).abs() < 1e-12);
        let best = best("I", 2);
        let best = score(&[&best[0], &best[1]]);
        assert_eq!((best.total(), best.iou), (2.0, 1.0));
    }

    #[test]
    fn commands() {
        for (text, count) in [
            ("1. no\n- /setblock 0 0 0 minecraft:stone\n2) /setblock 1 0 0 stone", 2),
            ("```\n/SETBLOCK 0 0 0 stone more\n```", 1),
            (
                "/setblock 0 0 0 obsidian\n/setblock ~ 0 0 stone\n/setblock 5 0 0 stone\n/setblock 0 0 1 stone",
                0,
            ),
            ("/setblock 0 -1 0 stone\n/fill 0 0 0 stone\n/setblock 0 0 stone", 0),
            ("/setblock 0 0 0 stone\n/setblock 0 0 0 air", 0),
        ] {
            assert_eq!(built(&[text], 99).len(), count, "{text}");
        }
        assert_eq!(built(&["/setblock 0 0 0 stone\n/setblock 1 0 0 stone"], 1).len(), 1);
        for word in ["X", "I", "L", "YES", "TRAVELER"] {
            for agents in [1, 2] {
                let mut blocks = Blocks::new();
                for (text, palette) in best(word, agents).iter().zip(&PALETTES) {
                    build(text, palette, 300, width(word), &mut blocks);
                }
                assert_eq!(Score::of(word, &blocks, &PALETTES[..agents]).total(), 2.0, "{word} {agents}");
            }
        }
        // The second agent overwrites the first.
        assert_eq!(built(&["/setblock 0 0 0 stone", "/setblock 0 0 0 obsidian"], 9)[&(0, 0)], "obsidian");
    }
}

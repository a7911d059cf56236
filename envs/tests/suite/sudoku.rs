//! Sudoku as its users see it: puzzles, splits, episodes and demonstrations through the public traits.

use std::collections::{BTreeMap, HashSet};

use envs::{Environment, Split, State, find};
use games::grid::world::GridWorld;
use games::sudoku::Instance;
use games::sudoku::board::{Shape, write};
use games::sudoku::canonical::form;
use games::sudoku::generate::split_of;
use games::sudoku::solve::{solutions, unique};
use record::line::Task;
use record::philox::{Draws, Part, Stream};
use serde_json::json;

use crate::drawn;

fn environment() -> &'static dyn Environment {
    find("sudoku").unwrap()
}

fn tasks(split: Split, seed: u64, settings: &[&str], count: usize) -> Vec<Task> {
    drawn::tasks("sudoku", split, seed, settings, count)
}

/// Solution 1234 3412 2143 4321; empty are c0, a1, b3 and d3.
fn state(workflow: &str, encoding: &str, fills: u32) -> Box<dyn State> {
    let spec =
        json!({"size": 4, "encoding": encoding, "fills": fills, "turns": 4, "clues": "12.4.41221434.2."});
    environment().reset(&spec, workflow).unwrap()
}

fn content(state: &dyn State, agent: &str) -> String {
    state.observe(agent)[0].content.clone()
}

#[test]
fn a_team_solves_a_puzzle() {
    let mut state = state("team", "compact", 2);
    assert_eq!(content(&*state, "tool"), "sudoku 1 2 0 4 0 4 1 2 2 1 4 3 4 0 2 0 tool");
    let proposed = state.apply("tool", " c0 3 a1 3").unwrap();
    assert_eq!((proposed.rewards.team, proposed.rewards.local), (0.0, 1.0));
    assert_eq!(proposed.components["sanity"], 1.0);
    let prompt = content(&*state, "planner");
    assert_eq!(prompt, "sudoku 1 2 0 4 0 4 1 2 2 1 4 3 4 0 2 0 fill c0 3 a1 3 planner", "nothing is placed");
    let decided = state.apply("planner", " c0 3").unwrap();
    assert_eq!((decided.rewards.team, decided.components["progress"]), (0.0, 0.5));
    assert_eq!(content(&*state, "planner"), "sudoku 1 2 x3 4 0 4 1 2 2 1 4 3 4 0 2 0 fill planner");
    state.apply("planner", " a1 3 d3 1").unwrap();
    // A proposal that would solve the puzzle earns as if it did, and ends nothing.
    let proposed = state.apply("tool", " b3 3").unwrap();
    assert_eq!((proposed.rewards.team, proposed.terminated, proposed.success), (1.0, false, false));
    let solved = state.apply("planner", " b3 3").unwrap();
    assert!(solved.terminated && solved.success && state.is_solved());
    assert_eq!((solved.rewards.team, solved.rewards.local), (1.0, 1.0));
    assert!(state.apply("tool", " b3 3").is_err(), "the episode is over");
}

#[test]
fn a_mechanical_tool_moves_the_board_itself() {
    let mut state = state("mechanical", "compact", 4);
    let solved = state.apply("tool", " c0 3 a1 3 b3 3 d3 1").unwrap();
    assert!(solved.terminated && solved.success && solved.rewards.team == 1.0);
}

#[test]
fn a_wrong_digit_can_be_mended_and_never_pays() {
    // Solution 1234 3412 2143 4321; empty are the first row and half of the second.
    let clues = "......1221434321";
    let spec = json!({"size": 4, "encoding": "compact", "fills": 2, "turns": 4, "clues": clues});
    let mut state = environment().reset(&spec, "single").unwrap();
    // 3 in c0 is right; 4 in b0 clashes with no clue, and is wrong.
    let wrong = state.apply("planner", " c0 3 b0 4").unwrap();
    assert_eq!((wrong.components["legal"], wrong.components["progress"]), (1.0, 0.0));
    // The right 4 in d0 makes the wrong one go.
    let mended = state.apply("planner", " d0 4").unwrap();
    assert_eq!((mended.components["legal"], mended.components["progress"]), (1.0, 0.5));
    assert!(content(&*state, "planner").starts_with("sudoku 0 0 x3 x4 0 0 1 2 "));
    let clash = state.apply("planner", " c0 4").unwrap();
    assert_eq!((clash.components["legal"], clash.components["progress"]), (0.0, 0.0));
}

#[test]
fn breaking_a_clue_is_never_a_success() {
    // A complete board that is valid by itself, but forgets the clues of this puzzle.
    let other = "#### [[2,1,3,4],[3,4,2,1],[1,2,4,3],[4,3,1,2]]";
    let mut state = state("single", "full", 16);
    let before = state.to_json();
    let outcome = state.apply("planner", other).unwrap();
    assert_eq!((outcome.success, outcome.terminated, outcome.rewards.team), (false, false, 0.0));
    assert_eq!((outcome.components["legal"], outcome.components["progress"]), (0.0, 0.0));
    assert_eq!(state.to_json(), before, "the first digit already is illegal, and the rest is dropped");
    let solved = state.apply("planner", "#### [[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]").unwrap();
    assert!(solved.success && state.is_solved());
    // A clue is kept in states that come from outside, too.
    let mut json = before;
    json["board"] = "2134342112434312".into();
    assert!(environment().restore(&json).is_err());
}

#[test]
fn puzzles_have_one_solution_and_as_many_empty_cells_as_asked_for() {
    for (settings, range) in
        [(&[][..], 3..=7), (&["fewest=10", "most=10", "fills=4"][..], 10..=10), (&["size=9"][..], 30..=45)]
    {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        let number = if range.contains(&30) { 40 } else { 1000 };
        for task in tasks(Split::Train, 3, settings, number) {
            let instance = Instance::parse(&task.spec).unwrap();
            assert_eq!(unique(instance.shape, &instance.clues), Some(instance.solution.clone()));
            assert!(instance.shape.complete(&instance.solution));
            *counts.entry(instance.clues.iter().filter(|digit| **digit == 0).count()).or_default() += 1;
        }
        assert!(counts.keys().all(|count| range.contains(count)), "{counts:?}");
        if number == 1000 {
            let even = 1000 / counts.len();
            assert!(counts.values().all(|count| count.abs_diff(even) < even / 3), "{counts:?}");
        }
    }
}

/// Another form of a puzzle: rearranged, turned over and relabeled by chance.
fn disguised(shape: Shape, clues: &[u8], draws: &mut Draws) -> Vec<u8> {
    let (size, band) = (shape.size(), shape.band());
    let order = |draws: &mut Draws| -> Vec<usize> {
        let mut bands: Vec<usize> = (0..band).collect();
        draws.shuffle(&mut bands);
        let mut all = Vec::new();
        for outer in bands {
            let mut lines: Vec<usize> = (0..band).map(|line| outer * band + line).collect();
            draws.shuffle(&mut lines);
            all.extend(lines);
        }
        all
    };
    let (rows, columns, turned) = (order(draws), order(draws), draws.below(2) == 1);
    let mut names: Vec<u8> = (1..=size as u8).collect();
    draws.shuffle(&mut names);
    names.insert(0, 0);
    let cell = |index: usize| {
        let (row, column) = (rows[index / size], columns[index % size]);
        if turned { column * size + row } else { row * size + column }
    };
    (0..size * size).map(|index| names[usize::from(clues[cell(index)])]).collect()
}

#[test]
fn all_forms_of_a_puzzle_belong_to_one_split() {
    let mut draws = Draws::new(Stream::named(1, &[Part::Text("disguise")]));
    for (settings, count) in [(&[][..], 200), (&["size=9"][..], 20)] {
        for split in [Split::Train, Split::Test] {
            for task in tasks(split, 5, settings, count) {
                let instance = Instance::parse(&task.spec).unwrap();
                for _ in 0..20 {
                    let other = disguised(instance.shape, &instance.clues, &mut draws);
                    assert_eq!(form(instance.shape, &other), form(instance.shape, &instance.clues));
                    assert_eq!(split_of(instance.shape, &other), split, "{}", write(&other));
                }
            }
        }
    }
}

#[test]
fn the_splits_of_four_share_no_puzzle_in_any_form() {
    let shape = Shape::new(4).unwrap();
    let forms = |split, count| -> HashSet<Vec<u8>> {
        let clues = tasks(split, 11, &[], count)
            .into_iter()
            .map(|task| shape.parse(task.spec["clues"].as_str().unwrap()).unwrap());
        clues.map(|clues| form(shape, &clues)).collect()
    };
    let (train, test) = (forms(Split::Train, 20_000), forms(Split::Test, 2048));
    assert!(train.is_disjoint(&test));
    // Enumerated: every proper puzzle with 3 to 7 empty cells, up to symmetry.
    let mut all: HashSet<Vec<u8>> = HashSet::new();
    let mut classes: HashSet<Vec<u8>> = HashSet::new();
    for solution in solutions(shape, &[0; 16], 288) {
        if classes.insert(form(shape, &solution)) {
            for mask in 0_u32..1 << 16 {
                if (3..=7).contains(&mask.count_ones()) {
                    let clues: Vec<u8> =
                        (0..16).map(|cell| if mask & 1 << cell == 0 { solution[cell] } else { 0 }).collect();
                    if unique(shape, &clues).is_some() {
                        all.insert(form(shape, &clues));
                    }
                }
            }
        }
    }
    assert_eq!(classes.len(), 2, "there are two complete boards up to symmetry");
    assert_eq!(all.len(), 2448, "proper puzzles with 3 to 7 empty cells, up to symmetry");
    assert!(train.is_subset(&all) && test.is_subset(&all));
    let held_out = all.iter().filter(|form| environment::streams::split_of(form, 8) == Split::Test).count();
    assert!(test.len() > held_out * 9 / 10, "{} of {held_out} classes are tested", test.len());
    assert!(train.len() > (all.len() - held_out) * 9 / 10, "{} of {}", train.len(), all.len() - held_out);
}

/// The 16 digits of a board in a compact prompt.
fn board_of(prompt: &str) -> String {
    prompt.split(' ').skip(1).take(16).map(|word| word.trim_start_matches('x')).collect()
}

#[test]
fn optimal_demonstrations_earn_all_and_lazy_ones_one_digit() {
    for kind in ["opt", "lazy"] {
        for (batch, task) in drawn::demonstrations("sudoku", "team", &[(kind, 1.0)], 0.5, 100)
            .into_iter()
            .zip(tasks(Split::Train, 4, &[], 100))
        {
            for sample in batch {
                let prompt = &sample.prompt.unwrap()[0].content;
                let agent = sample.agent.unwrap();
                let mut json = environment().reset(&task.spec, "team").unwrap().to_json();
                json["board"] = board_of(prompt).into();
                let mut state = environment().restore(&json).unwrap();
                let completion = sample.completion.unwrap();
                let outcome = state.apply(&agent, &completion).unwrap();
                if kind == "opt" {
                    assert_eq!(outcome.rewards.local, 1.0, "{prompt} {completion}");
                } else {
                    assert_eq!(completion.split_whitespace().count(), 2);
                    assert!(outcome.rewards.local >= 0.6, "{prompt} {completion}");
                }
            }
        }
    }
}

#[test]
fn legal_demonstrations_clash_with_nothing_and_random_ones_may() {
    let shape = Shape::new(4).unwrap();
    for (kind, may_clash) in [("legal", false), ("random", true)] {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        let mut clashes = 0;
        for sample in drawn::demonstrations("sudoku", "single", &[(kind, 1.0)], 0.5, 100).concat() {
            let mut board =
                shape.parse(&board_of(&sample.prompt.unwrap()[0].content).replace('0', ".")).unwrap();
            let completion = sample.completion.unwrap();
            let words: Vec<&str> = completion.split_whitespace().collect();
            *counts.entry(words.len() / 2).or_default() += 1;
            for placement in words.chunks(2) {
                let place = placement[0].as_bytes();
                let (cell, digit) =
                    (usize::from(place[1] - b'0') * 4 + usize::from(place[0] - b'a'), placement[1]);
                let digit = digit.parse().unwrap();
                assert!((1..=4).contains(&digit), "{completion}");
                assert!(
                    may_clash || board[cell] == 0 || !board.contains(&0),
                    "{completion} replaces a digit"
                );
                // Beside wrong digits there may be no empty cell, or one that no digit fits.
                let fits = board[cell] == 0
                    && (1..=4).any(|digit| shape.clashes(&board, cell, digit).next().is_none());
                clashes += usize::from(fits && shape.clashes(&board, cell, digit).next().is_some());
                board[cell] = digit;
            }
        }
        // One or two digits a turn, as often.
        let all: usize = counts.values().sum();
        assert!(counts.keys().eq(&[1, 2]) && counts[&1].abs_diff(all / 2) < all / 10, "{kind}: {counts:?}");
        assert_eq!(clashes > 0, may_clash, "{kind}: {clashes}");
    }
}

#[test]
fn what_check_and_play_need_is_there() {
    let compact = state("team", "compact", 2);
    assert_eq!(compact.draw(), "1 2 | . 4\n. 4 | 1 2\n----+----\n2 1 | 4 3\n4 . | 2 .\n");
    let actions = compact.test_actions("planner");
    for action in [" c0 3", " c0 1", " a0 4", " c0 3 c0 4", " c0 3 c0 3 c0 3", " a0 9", " z9 1", "", "sudoku"]
    {
        assert!(actions.iter().any(|other| other == action), "{action:?} is not tried: {actions:?}");
    }
}

#[test]
fn a_proposal_in_prose_is_shown_as_a_list() {
    let mut state = state("team", "full", 4);
    state.apply("tool", "Row 0 lacks a 3.\n#### [(0, 2, 3), (1, 0, 3)]").unwrap();
    let prompt = content(&*state, "planner");
    assert!(prompt.contains("[[0, 2, 3], [1, 0, 3]]") && !prompt.contains("c0"), "{prompt}");
}

#[test]
fn puzzles_that_are_not_found_are_named_with_advice() {
    let selection = drawn::selection("sudoku", Split::Train, 1, &["size=9", "fewest=64", "most=64"]);
    let failure = environment().tasks(&selection).and_then(|mut tasks| tasks.next().unwrap()).unwrap_err();
    assert_eq!(
        (failure.message.as_str(), failure.hint.as_deref()),
        (
            "no train task in 2000 draws: size=9 fewest=64 most=64",
            Some("puzzles with fewer empty cells are easier to find")
        )
    );
}

#[test]
fn broken_specs_and_states_are_refused() {
    let good = json!({"size": 4, "encoding": "compact", "fills": 2, "turns": 4, "clues": "12.4.41221434.2."});
    let state = environment().reset(&good, "team").unwrap().to_json();
    for (key, value, cause) in [
        ("size", json!(5), "size"),
        ("fills", json!(0), "fills"),
        ("fills", json!(17), "fills"),
        ("turns", json!(100), "turns"),
        ("clues", json!("12.4"), "no board of 16 cells"),
        ("clues", json!("52.4.41221434.2."), "no board of 16 cells"),
        ("clues", json!("11.4.41221434.2."), "no solution"),
        ("clues", json!("................"), "more than one"),
        ("clues", json!("1234341221434321"), "already complete"),
        ("color", json!(1), "color"),
    ] {
        let mut spec = good.clone();
        spec[key] = value;
        let failure = environment().reset(&spec, "team").err().map(|failure| failure.message);
        let failure = failure.unwrap_or_default();
        assert!(failure.contains(cause), "{spec}: {failure:?} does not say {cause:?}");
    }
    for (key, value) in [
        ("board", json!("1234")),
        ("board", json!("22.4.41221434.2.")),
        ("board", json!("1224.41221434.2.")),
        ("workflow", json!("trio")),
        ("more", json!(1)),
    ] {
        let mut broken = state.clone();
        broken[key] = value;
        assert!(environment().restore(&broken).is_err(), "{broken}");
    }
}

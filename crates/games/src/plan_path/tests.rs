//! Settings, draws, splits and demonstrators of Plan-Path, worked out by hand.

use std::collections::BTreeSet;

use record::failure::Failure;
use record::philox::{Draws, Part, Stream};
use serde_json::{Value, json};

use super::generate::{draw, split_of};
use super::{GridWorld, Instance, Map, Move, PLAN_PATH, Position, RawSpec};
use environment::settings::Settings;
use environment::{Environment, Selection, Split, State};

fn draws(name: &str) -> Draws {
    Draws::new(Stream::named(1, &[Part::Text(name)]))
}

fn settings(texts: &[&str]) -> Settings {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    Settings::parse(&texts, "plan-path", PLAN_PATH.metadata().settings).unwrap()
}

fn rules(texts: &[&str]) -> RawSpec {
    Instance::rules(&settings(texts)).unwrap()
}

fn place(text: &str) -> Position {
    Position::parse(text).unwrap()
}

/// The first task of the train split.
fn task(texts: &[&str]) -> Result<Value, Failure> {
    let selection = Selection { split: Split::Train, seed: 1, settings: settings(texts) };
    let mut tasks = PLAN_PATH.tasks(&selection)?;
    Ok(tasks.next().unwrap()?.spec)
}

/// ```text
/// #....
/// ..G..
/// .#..#
/// .#..@
/// #.##.
/// ```
fn spec() -> Value {
    let walls = ["a0", "b2", "e2", "b3", "a4", "c4", "d4"];
    json!({"size": 5, "encoding": "compact", "moves": 3, "turns": 4, "walls": walls, "goal": "c1", "start": "e3"})
}

fn state() -> Box<dyn State> {
    PLAN_PATH.reset(&spec(), "team").unwrap()
}

#[test]
fn a_task_carries_its_settings() {
    let level = json!({
        "size": 4, "encoding": "full", "proposal": null, "moves": 3, "turns": 2, "reward": null, "brief": true,
        "density": 0.12, "draw": "balanced", "nearest": 1, "farthest": 3,
    });
    let full = json!({
        "size": 5, "encoding": "full", "proposal": null, "moves": 3, "turns": 4, "reward": "success", "brief": null,
        "density": 0.25, "draw": "balanced", "nearest": 4, "farthest": 9,
    });
    let large = json!({
        "size": 10, "encoding": "compact", "proposal": "moves", "moves": 10, "turns": 4, "reward": null, "brief": null,
        "density": 0.22, "draw": "uniform", "nearest": 1, "farthest": 40,
    });
    for (settings, expected) in [
        (&["encoding=full"][..], level),
        (&["encoding=full", "size=5", "reward=success"], full),
        (&["size=10", "proposal=moves"], large),
    ] {
        let spec = task(settings).unwrap();
        for (key, value) in expected.as_object().unwrap() {
            // null in `settings` means an absent key in `spec`.
            assert_eq!(spec.get(key).unwrap_or(&Value::Null), value, "{key} of {settings:?}");
        }
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    for (settings, message, hint) in [
        (&["level=1"][..], "--set level=1: levels are of prompts in prose", "add --set encoding=full"),
        (
            &["encoding=full", "level=2", "size=6"],
            "--set size=6: a level has its own size",
            "leave out level or size",
        ),
        (
            &["size=2", "nearest=9"],
            "no train task in 20000 draws: size=2 density=0.25 nearest=9 farthest=9",
            "a larger size, a lower density or a smaller nearest leaves more room",
        ),
    ] {
        let failure = task(settings).unwrap_err();
        assert_eq!((failure.message.as_str(), failure.hint.as_deref()), (message, Some(hint)));
    }
}

#[test]
fn what_check_and_play_need_is_there() {
    let mut state = state();
    let above = "    a b c d e\n  0 # . . . .\n  1 . . G . .\n  2 . # . . #\n";
    // b4 is walled in, but is not itself a wall.
    assert_eq!(state.draw(), format!("{above}  3 . # . . @\n  4 # . # # .\n"));
    assert!(!state.is_solved());
    let actions = state.test_actions("planner");
    for action in [" L", " L L U", " R D U", " c1", " e3", " z25", " e3 c1", "", "goal"] {
        assert!(actions.iter().any(|other| other == action), "{action:?} is not tried: {actions:?}");
    }
    state.apply("planner", " L L U").unwrap();
    assert_eq!(state.draw(), format!("{above}  3 . # . . .\n  4 # . # # .\n").replace("2 . # .", "2 . # @"));
    state.apply("planner", " U").unwrap();
    assert!(state.is_solved());
}

#[test]
fn demonstrators_do_what_their_names_say() {
    let instance = Instance::parse(&spec()).unwrap();
    let seen = |kind: &str| -> BTreeSet<String> {
        let mut draws = draws(kind);
        let made = (0..500).map(|_| instance.demonstrate(kind, &instance.start(), &mut draws));
        made.map(|moves| moves.into_iter().map(Move::letter).collect()).collect()
    };
    let all = |texts: &[&str]| -> BTreeSet<String> { texts.iter().map(|text| (*text).to_owned()).collect() };
    // Up from e3 is a wall.
    assert_eq!(seen("opt"), all(&["LLU", "LUL", "LUU"]));
    assert_eq!(seen("lazy"), all(&["L"]));
    // Two rows and two columns, ignoring walls.
    assert_eq!(seen("manhattan"), all(&["LLU", "LUL", "LUU", "ULL", "ULU", "UUL"]));
    let random = seen("random");
    assert!(random.is_superset(&all(&["U", "D", "L", "UD", "DU", "LR"])), "{random:?}");
    // Right from e3 is off the board, and the same after up and down.
    assert!(!random.iter().any(|moves| moves.starts_with('R') || moves == "UDR"), "{random:?}");
}

/// The specs of up to `count` draws of each split.
fn drawn(rules: &RawSpec, name: &str, count: u32) -> Vec<Value> {
    let of = |split: Split| {
        let mut draws = draws(&format!("{name} {}", split.name()));
        (0..count).filter_map(|_| draw(rules, split, &mut draws)).map(|(spec, _)| spec).collect::<Vec<_>>()
    };
    [of(Split::Train), of(Split::Test)].concat()
}

fn wall_counts(specs: &[Value]) -> BTreeSet<usize> {
    specs.iter().map(|spec| spec["walls"].as_array().unwrap().len()).collect()
}

#[test]
fn walls_leave_room_for_start_and_goal() {
    // .8 x U(0.8, 1.2) of 9 cells are 6 to 9 walls, and at most 7; of 4 cells 3 or 4, and at most 2.
    for (size, walls) in [("size=3", &[6, 7][..]), ("size=2", &[2])] {
        let rules = rules(&[size, "density=0.8", "nearest=1", "farthest=3"]);
        let counts = wall_counts(&drawn(&rules, size, 300));
        assert!(counts.iter().eq(walls), "{size}: {counts:?}");
    }
    // By chance a board may be full, which is not a task, or have exactly two free cells, which is one.
    let rules = rules(&["size=2", "density=0.8", "draw=uniform"]);
    let counts = wall_counts(&drawn(&rules, "uniform", 500));
    assert_eq!(counts.last(), Some(&2), "{counts:?}");
}

#[test]
fn one_distance_alone_can_be_asked_for() {
    let specs = drawn(&rules(&["nearest=4", "farthest=4"]), "four", 100);
    assert!(specs.len() > 50 && specs.iter().all(|spec| Instance::parse(spec).unwrap().first == 4));
}

#[test]
fn uniform_starts_and_goals_are_anywhere() {
    let specs = drawn(&rules(&["size=3", "density=0", "draw=uniform"]), "anywhere", 300);
    let all: BTreeSet<&str> = ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"].into();
    for key in ["goal", "start"] {
        let seen: BTreeSet<&str> = specs.iter().map(|spec| spec[key].as_str().unwrap()).collect();
        assert_eq!(seen, all, "{key}");
    }
}

/// A random number below the density makes a wall; one equal to it does not.
#[test]
fn a_cell_is_a_wall_with_the_probability_asked_for() {
    let uniform = rules(&["size=3", "draw=uniform"]);
    let mut found = 0;
    for name in 0..200 {
        let stream = || Draws::new(Stream::named(1, &[Part::Number(name)]));
        let mut ahead = stream();
        let numbers: Vec<f64> = (0..9).map(|_| f64::from(ahead.uniform())).collect();
        let rules = RawSpec { density: numbers[4], ..uniform.clone() };
        let walls: Vec<Value> = (0..9)
            .filter(|cell| numbers[*cell] < numbers[4])
            .map(|cell| Position { row: cell as u8 / 3, column: cell as u8 % 3 }.to_string().into())
            .collect();
        for split in [Split::Train, Split::Test] {
            if let Some((spec, _)) = draw(&rules, split, &mut stream()) {
                assert_eq!(spec["walls"], Value::Array(walls.clone()));
                found += 1;
            }
        }
    }
    assert!(found > 20, "{found} boards have a way");
}

/// With start and goal exchanged the path is the same backwards, so both tasks must be in the same split.
#[test]
fn no_test_task_is_trained_on_backwards() {
    let rules = rules(&["size=4"]);
    let mut draws = draws("backwards");
    let mut drawn = |split: Split| -> Vec<Value> {
        (0..12_000).filter_map(|_| draw(&rules, split, &mut draws)).map(|(spec, _)| spec).collect()
    };
    let ends = |spec: &Value, [start, goal]: [&str; 2]| {
        [&spec["walls"], &spec[start], &spec[goal]].map(Value::to_string)
    };
    let test: BTreeSet<_> = drawn(Split::Test).iter().map(|spec| ends(spec, ["start", "goal"])).collect();
    let train: BTreeSet<_> = drawn(Split::Train).iter().map(|spec| ends(spec, ["goal", "start"])).collect();
    assert!(test.len() > 300 && train.len() > 5000, "{} {}", test.len(), train.len());
    assert_eq!(test.intersection(&train).count(), 0);
}

/// All test boards with one wall and a given goal, found by an independent program in another language.
#[test]
fn the_test_split_stays_what_it_is() {
    for (size, goal, expected) in [
        (5, "c1", &["a0", "e0", "c2", "c4"][..]),
        (5, "c2", &["c0", "a2", "e2", "c4"]),
        (10, "b1", &["j0", "f1", "j3", "b5", "g5", "f6", "a9", "d9"]),
        (10, "d1", &["j2", "f6", "i7", "h8", "j9"]),
    ] {
        let places = (0..size).flat_map(|row| (0..size).map(move |column| Position { row, column }));
        let tested: Vec<String> = places
            .filter(|wall| *wall != place(goal))
            .filter(|wall| split_of(&Map::new(usize::from(size), &[*wall], place(goal))) == Split::Test)
            .map(|wall| wall.to_string())
            .collect();
        assert_eq!(tested, expected, "{size} {goal}");
    }
}

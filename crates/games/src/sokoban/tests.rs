//! What Sokoban's demonstrators do, and how levels are drawn, worked out by hand.

use std::collections::BTreeSet;

use record::philox::{Draws, Part, Stream};
use serde_json::json;

use super::{Instance, Move, Paid, Position, SOKOBAN, straight};
use crate::grid::world::GridWorld;
use crate::sokoban::generate::{board, start};
use crate::sokoban::level::{Cell, Level, Situation};
use environment::Environment;
use environment::settings::Settings;

fn draws(name: &str) -> Draws {
    Draws::new(Stream::named(1, &[Part::Text(name)]))
}

fn rules(texts: &[&str]) -> super::Rules {
    let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    Instance::rules(&Settings::parse(&texts, "sokoban", SOKOBAN.metadata().settings).unwrap()).unwrap()
}

fn places(texts: &[&str]) -> Vec<Position> {
    texts.iter().map(|text| Position::parse(text).unwrap()).collect()
}

fn situation(level: &Level, player: &str, boxes: &[&str]) -> Situation {
    let cells: Vec<Cell> = places(boxes).iter().map(|place| level.cell(*place).unwrap()).collect();
    Situation::new(level.cell(places(&[player])[0]).unwrap(), &cells).unwrap()
}

#[test]
fn straight_is_towards_the_nearest_box_that_is_not_home() {
    use Move::{Down, Left, Right, Up};
    let level = Level::new(7, &places(&["c3"]), &places(&["b1", "f5"])).unwrap();
    for (player, boxes, moves) in [
        ("d4", ["b3", "f5"], &[Up, Left][..]),
        ("b2", ["d4", "f5"], &[Down, Right]),
        // In one row or one column there is one direction, walls or not.
        ("b3", ["d3", "f5"], &[Right]),
        ("d3", ["b3", "f5"], &[Left]),
        ("c2", ["c4", "f5"], &[Down]),
        ("c4", ["c2", "f5"], &[Up]),
        // Box b1 is nearer, and on its goal.
        ("b2", ["b1", "e5"], &[Down, Right]),
        // The nearer of two, and of two alike the first in reading order.
        ("d2", ["d4", "b5"], &[Down]),
        ("d3", ["d5", "d1"], &[Up]),
        // Nothing is left to do.
        ("d3", ["b1", "f5"], &[]),
    ] {
        let situation = situation(&level, player, &boxes);
        assert_eq!(straight(&level, &situation), moves, "from {player} with boxes {boxes:?}");
    }
}

/// ```text
/// ######
/// #----#
/// ##---#
/// #-$.-#
/// #@---#
/// ######
/// ```
#[test]
fn demonstrators_do_what_their_names_say() {
    let spec = json!({
        "size": 6, "encoding": "compact", "moves": 3, "turns": 4, "walls": ["b2"], "goals": ["d3"],
        "boxes": ["c3"], "player": "b4",
    });
    let instance = Instance::parse(&spec).unwrap();
    let at_start = Paid { situation: instance.start, paid: 0 };
    let seen = |kind: &str| -> BTreeSet<String> {
        let mut draws = draws(kind);
        let made = (0..500).map(|_| instance.demonstrate(kind, &at_start, &mut draws));
        made.map(|moves| moves.into_iter().map(Move::letter).collect()).collect()
    };
    let all = |texts: &[&str]| -> BTreeSet<String> { texts.iter().map(|text| (*text).to_owned()).collect() };
    assert_eq!(seen("opt"), all(&["UR"]));
    assert_eq!(seen("lazy"), all(&["U"]));
    // To the right the player comes to stand below the box, and pushes it up against the rim.
    assert_eq!(seen("straight"), all(&["UR", "RUU"]));
    let random = seen("random");
    // Down and left are wall, which ends the list.
    assert!(random.is_superset(&all(&["U", "D", "L", "R", "UR", "RU", "RUU"])), "{random:?}");
    let walled = random.iter().all(|moves| !moves.starts_with(['D', 'L']) || moves.len() == 1);
    assert!(walled && random.iter().all(|moves| moves != "URR"), "{random:?}");
}

#[test]
fn boards_have_about_as_many_walls_as_asked_for_anywhere() {
    // 16 cells times .15 x U(0.5, 1.5) are 1.2 to 3.6, rounded: 1 below 1.5, which are .3 of 2.4.
    let (rules, mut draws) = (rules(&["size=6", "density=0.15", "boxes=2"]), draws("board"));
    let (mut counts, mut walled, mut goals_at) = ([0; 17], BTreeSet::new(), BTreeSet::new());
    for _ in 0..4000 {
        let (walls, goals) = board(&rules, &mut draws);
        assert!(walls.is_sorted() && goals.is_sorted() && goals.len() == 2);
        assert!(goals.iter().all(|goal| !walls.contains(goal)));
        counts[walls.len()] += 1;
        walled.extend(walls);
        goals_at.extend(goals);
    }
    let inside: BTreeSet<Position> =
        (0..16).map(|cell| Position { row: 1 + cell / 4, column: 1 + cell % 4 }).collect();
    assert_eq!((&walled, &goals_at), (&inside, &inside));
    for (walls, share) in [(1, 0.125), (2, 0.4167), (3, 0.4167), (4, 0.0417)] {
        let seen = f64::from(counts[walls]) / 4000.0;
        assert!((seen - share).abs() < 0.03, "{walls} walls on {seen} of the boards, not {share}");
    }
    assert_eq!(counts.iter().sum::<i32>(), counts[1..5].iter().sum::<i32>(), "{counts:?}");
}

/// In a corridor of five cells with the goal at its right end there are one, two and three starts at the distances
/// 1, 2 and 3: the box left of the goal with the player behind it, and so on.
#[test]
fn each_distance_that_exists_is_as_likely_as_any_other() {
    let rows = (2..=5).flat_map(|row| (1..=5).map(move |column| Position { row, column }));
    let level = Level::new(7, &rows.collect::<Vec<_>>(), &places(&["f1"])).unwrap();
    let starts = |nearest: &str, farthest: &str| -> [u32; 5] {
        let (rules, mut draws) = (rules(&["size=7", nearest, farthest]), draws("start"));
        let mut counts = [0; 5];
        for _ in 0..3000 {
            let distance = start(&rules, &level, &mut draws).map(|start| level.distance(&start));
            counts[usize::from(distance.unwrap_or(0))] += 1;
        }
        counts
    };
    let [none, one, two, three, four] = starts("nearest=1", "farthest=9");
    assert_eq!((none, four), (0, 0));
    assert!([one, two, three].iter().all(|count| (900..1100).contains(count)), "{one} {two} {three}");
    assert_eq!(starts("nearest=2", "farthest=2"), [0, 0, 3000, 0, 0]);
    assert_eq!(starts("nearest=4", "farthest=9"), [3000, 0, 0, 0, 0], "there is none so far away");
}

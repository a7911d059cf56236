//! Sokoban as its users see it: levels, splits, episodes and demonstrations through the public traits.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use envs::{Environment, Split, State, find};
use games::grid::world::GridWorld;
use games::grid::{Move, Position};
use games::sokoban::Instance;
use games::sokoban::generate::split_of;
use games::sokoban::level::Situation;
use record::line::Task;
use record::sample::Sample;
use serde_json::json;

use crate::drawn;

fn environment() -> &'static dyn Environment {
    find("sokoban").unwrap()
}

fn tasks(split: Split, seed: u64, settings: &[&str], count: usize) -> Vec<Task> {
    drawn::tasks("sokoban", split, seed, settings, count)
}

/// ```text
/// ######
/// #----#
/// ##---#
/// #-$.-#
/// #@---#
/// ######
/// ```
fn state(workflow: &str, encoding: &str) -> Box<dyn State> {
    let spec = json!({
        "size": 6, "encoding": encoding, "moves": 3, "turns": 4, "walls": ["b2"], "goals": ["d3"],
        "boxes": ["c3"], "player": "b4",
    });
    environment().reset(&spec, workflow).unwrap()
}

fn content(state: &dyn State, agent: &str) -> String {
    state.observe(agent)[0].content.clone()
}

#[test]
fn a_team_pushes_the_box_home() {
    let mut state = state("team", "compact");
    assert_eq!(content(&*state, "tool"), "walls b2 goal d3 box c3 at b4 tool");
    let proposed = state.apply("tool", " b3 c3").unwrap();
    assert_eq!((proposed.rewards.team, proposed.rewards.local), (1.0, 1.0));
    assert!(!proposed.terminated && !proposed.success, "a proposal moves nothing");
    assert_eq!(content(&*state, "planner"), "walls b2 goal d3 box c3 at b4 route b3 c3 planner");
    let half = state.apply("planner", " U").unwrap();
    assert_eq!((half.rewards.team, half.components["improvement"]), (0.0, 0.5));
    assert_eq!(half.rewards.local, 0.1 + 0.1 + 0.8 * 0.75);
    assert_eq!(content(&*state, "planner"), "walls b2 goal d3 box c3 at b3 route planner");
    state.apply("tool", " nonsense").unwrap();
    // Moves after the solution are ignored, illegal or not.
    let solved = state.apply("planner", " R R R").unwrap();
    assert!(solved.terminated && solved.success && state.is_solved());
    assert_eq!((solved.rewards.team, solved.rewards.local), (1.0, 1.0));
    assert!(state.apply("tool", " c1").is_err(), "the episode is over");
}

#[test]
fn cells_beyond_the_solution_are_ignored() {
    let solves = state("team", "compact").apply("tool", " b3 c3").unwrap();
    assert_eq!(state("team", "compact").apply("tool", " b3 c3 z9").unwrap(), solves);
}

#[test]
fn a_deadlock_ends_the_episode_and_pays_little() {
    // Pushed up against the rim the box never comes down to row 3 again.
    let mut state = state("single", "compact");
    state.apply("planner", " R").unwrap();
    let dead = state.apply("planner", " U U").unwrap();
    assert!(dead.terminated && !dead.success && !state.is_solved());
    assert_eq!((dead.components["no_deadlock"], dead.components["improvement"]), (0.0, 0.0));
    assert_eq!((dead.rewards.team, dead.rewards.local), (0.0, 0.2));
    assert!(state.apply("planner", " D").is_err(), "the episode is over");
}

#[test]
fn controls_speak_as_they_should() {
    let mut mechanical = state("mechanical", "compact");
    let solved = mechanical.apply("tool", " b3 c3").unwrap();
    assert!(solved.terminated && solved.success && mechanical.is_solved());
    let mut both = state("route-moves", "compact");
    assert_eq!(content(&*both, "planner"), "walls b2 goal d3 box c3 at b4 planner");
    assert_eq!(both.apply("planner", " U R").unwrap().components["format"], 0.0);
    assert!(both.apply("planner", " b3 c3 moves U R").unwrap().success);
    let mut spec = state("team", "compact").to_json()["spec"].clone();
    spec["proposal"] = "moves".into();
    let mut same = environment().reset(&spec, "team").unwrap();
    same.apply("tool", " U R").unwrap();
    assert_eq!(content(&*same, "planner"), "walls b2 goal d3 box c3 at b4 moves U R planner");
}

#[test]
fn prose_draws_the_level() {
    let mut state = state("team", "full");
    state.apply("tool", "Up and then right.\n#### [\"U\", \"R\"]").unwrap();
    let prompt = content(&*state, "planner");
    assert!(prompt.contains("######\n#----#\n##---#\n#-$.-#\n#@---#\n######\n"), "{prompt}");
    assert!(prompt.contains("The tool proposes: [\"U\", \"R\"]"), "{prompt}");
}

#[test]
fn components_are_those_of_the_papers_table() {
    let one = |agent: &str| state(if agent == "tool" { "team" } else { "single" }, "compact");
    // Box d3 is one push away from its goal, and d1 four moves more.
    let spec = json!({
        "size": 6, "encoding": "compact", "moves": 3, "turns": 4, "walls": [], "goals": ["d1", "d3"],
        "boxes": ["c1", "c3"], "player": "b3",
    });
    let two = |_: &str| environment().reset(&spec, "single").unwrap();
    type New<'a> = &'a dyn Fn(&str) -> Box<dyn State>;
    for (new, agent, text, [legal, improvement, on_goals], local) in [
        (&one as New, "planner", " U R", [1.0, 1.0, 1.0], 1.0),
        // Into the rim, which is no deadlock.
        (&one, "planner", " L", [0.0, 0.0, 0.0], 0.5),
        (&one, "planner", " U L L", [0.0, 0.5, 0.0], 0.7),
        (&one, "tool", " b3 c3", [1.0, 1.0, 1.0], 1.0),
        // Cells that are no neighbors end the route.
        (&one, "tool", " b3 d1", [0.0, 0.5, 0.0], 0.5),
        (&two, "planner", " R", [1.0, 1.0 / 3.0, 0.5], 0.2 + 0.4 * 4.0 / 3.0),
    ] {
        let outcome = new(agent).apply(agent, text).unwrap();
        let name = if agent == "tool" { "executes" } else { "legal" };
        let mut expected =
            vec![("format", 1.0), (name, legal), ("improvement", improvement), ("on_goals", on_goals)];
        if agent == "planner" {
            expected.push(("no_deadlock", 1.0));
        }
        let expected: BTreeMap<String, f64> =
            expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        assert_eq!(outcome.components, expected, "{agent} {text:?}");
        assert!((outcome.rewards.local - local).abs() < 1e-12, "{agent} {text:?}: {}", outcome.rewards.local);
    }
}

#[test]
fn what_check_and_play_need_is_there() {
    let compact = state("team", "compact");
    assert_eq!(compact.draw(), "######\n#----#\n##---#\n#-$.-#\n#@---#\n######\n");
    let actions = compact.test_actions("planner");
    for action in [" U", " U R", " D L U", " c3", " d3", " b4", " z25", "", "box"] {
        assert!(actions.iter().any(|other| other == action), "{action:?} is not tried: {actions:?}");
    }
}

#[test]
fn a_task_carries_its_settings() {
    let spec = |settings: &[&str]| tasks(Split::Train, 1, settings, 1)[0].spec.clone();
    let full = spec(&["size=7", "encoding=full", "moves=5", "turns=3", "reward=success"]);
    for (key, value) in [
        ("size", json!(7)),
        ("encoding", json!("full")),
        ("moves", json!(5)),
        ("turns", json!(3)),
        ("reward", json!("success")),
    ] {
        assert_eq!(full[key], value, "{key}");
    }
    assert_eq!(spec(&["proposal=moves"])["proposal"], "moves");
    let default = spec(&[]);
    assert!(default.get("proposal").is_none() && default.get("reward").is_none(), "{default}");
}

#[test]
fn what_cannot_be_drawn_is_told_with_its_numbers() {
    let refused = |settings: &[&str]| {
        let selection = drawn::selection("sokoban", Split::Train, 1, settings);
        let first = environment().tasks(&selection).and_then(|mut tasks| tasks.next().unwrap());
        let failure = first.unwrap_err();
        (failure.message, failure.hint.unwrap())
    };
    // 100 cells inside, 15 of them walls: 85 x 84 x 83 x 82 / 24 ways to choose four, times 85 for the player.
    let (message, hint) = refused(&["size=12", "boxes=4"]);
    assert_eq!(message, "--set size=12 boxes=4: 172106725 situations, and the solver takes up to 4000000");
    assert_eq!(hint, "fewer boxes or a smaller size");
    // Three walls and six boxes leave no cell of nine to the player.
    let (message, hint) = refused(&["size=5", "boxes=6", "density=0.6"]);
    assert_eq!(message, "no train task in 5000 draws: size=5 boxes=6 density=0.6 nearest=4 farthest=9");
    assert_eq!(hint, "a larger size, fewer walls or a smaller nearest leaves more room");
}

/// Least number of moves, found forwards and without the table of the level.
fn solve(instance: &Instance) -> Option<u32> {
    let level = &instance.level;
    let mut seen: HashMap<Situation, u32> = HashMap::from([(instance.start, 0)]);
    let mut queue = VecDeque::from([instance.start]);
    while let Some(situation) = queue.pop_front() {
        let distance = seen[&situation];
        if situation.boxes() == level.goals() {
            return Some(distance);
        }
        for next in Move::ALL.into_iter().filter_map(|step| level.step(&situation, step)) {
            seen.entry(next).or_insert_with(|| {
                queue.push_back(next);
                distance + 1
            });
        }
    }
    None
}

#[test]
fn levels_are_solvable_and_as_far_as_asked_for() {
    for (settings, count, range) in [
        (&[][..], 1000, 4..=9),
        (&["size=7", "boxes=2", "moves=6", "farthest=20"][..], 60, 4..=20),
        (&["size=10", "encoding=full"][..], 20, 4..=40),
    ] {
        let mut distances: BTreeMap<u32, u32> = BTreeMap::new();
        for task in tasks(Split::Train, 3, settings, count) {
            let instance = Instance::parse(&task.spec).unwrap();
            let distance = solve(&instance).unwrap();
            assert_eq!(distance, u32::from(instance.first), "{}", task.spec);
            assert_eq!(instance.level.on_goals(&instance.start), 0);
            *distances.entry(distance).or_default() += 1;
        }
        assert!(distances.keys().all(|distance| range.contains(distance)), "{distances:?}");
        assert!(distances.len() >= 6, "{distances:?}");
    }
}

#[test]
fn a_level_and_its_images_belong_to_one_split() {
    let image = |places: &[Position], turn: u8| -> Vec<Position> {
        let flip = |value: u8, on: bool| if on { 5 - value } else { value };
        let turned = places.iter().map(|place| {
            let (row, column) = (flip(place.row, turn & 1 != 0), flip(place.column, turn & 2 != 0));
            if turn & 4 != 0 { Position { row: column, column: row } } else { Position { row, column } }
        });
        turned.collect()
    };
    let mut levels: [HashSet<(Vec<Position>, Vec<Position>)>; 2] = Default::default();
    for (index, split) in [Split::Train, Split::Test].into_iter().enumerate() {
        for task in tasks(split, 5, &[], 500) {
            let instance = Instance::parse(&task.spec).unwrap();
            let level = &instance.level;
            let goals: Vec<Position> = level.goals().iter().map(|goal| level.position(*goal)).collect();
            for turn in 0..8 {
                let (mut walls, goals) = (image(level.walls(), turn), image(&goals, turn));
                assert_eq!(split_of(6, &walls, &goals), split, "image {turn} of {}", task.task);
                walls.sort_unstable();
                levels[index].insert((walls, goals));
            }
        }
    }
    assert!(levels[0].is_disjoint(&levels[1]), "a level is in both splits");
}

fn demonstrations(workflow: &str, mix: &[(&str, f64)], count: usize) -> Vec<Vec<Sample<'static>>> {
    drawn::demonstrations("sokoban", workflow, mix, 0.5, count)
}

#[test]
fn optimal_demonstrations_earn_all_in_every_workflow() {
    for workflow in ["team", "single", "route-moves", "mechanical"] {
        for (batch, task) in
            demonstrations(workflow, &[("opt", 1.0)], 60).into_iter().zip(tasks(Split::Train, 4, &[], 60))
        {
            for sample in batch {
                let prompt = &sample.prompt.unwrap()[0].content;
                let after = |word: &str| {
                    prompt.split(&format!(" {word} ")).nth(1).unwrap().split(' ').next().unwrap()
                };
                let mut json = environment().reset(&task.spec, workflow).unwrap().to_json();
                json["player"] = after("at").into();
                json["boxes"] = json!([after("box")]);
                let mut state = environment().restore(&json).unwrap();
                let outcome = state.apply(&sample.agent.unwrap(), &sample.completion.unwrap()).unwrap();
                assert_eq!(outcome.rewards.local, 1.0, "{prompt}");
            }
        }
    }
}

#[test]
fn lazy_demonstrations_make_one_move_nearer() {
    for sample in demonstrations("single", &[("lazy", 1.0)], 100).into_iter().flatten() {
        assert_eq!(sample.completion.unwrap().split_whitespace().count(), 1);
    }
}

#[test]
fn broken_specs_and_states_are_refused() {
    let state = state("team", "compact").to_json();
    let good = state["spec"].clone();
    for (key, value, cause) in [
        ("size", json!(2), "size"),
        ("moves", json!(0), "moves"),
        ("walls", json!(["a0"]), "'a0' is no cell inside"),
        ("walls", json!(["b5"]), "'b5' is no cell inside"),
        ("walls", json!(["f2"]), "'f2' is no cell inside"),
        ("goals", json!(["f5"]), "'f5' is no cell inside"),
        ("goals", json!(["b2"]), "goals"),
        ("goals", json!([]), "goals"),
        ("goals", json!(["d3", "d4"]), "1 of them for 2 goals"),
        ("boxes", json!(["b4"]), "share a cell"),
        ("boxes", json!(["d3"]), "already solved"),
        ("boxes", json!(["c1"]), "cannot be solved"),
        ("player", json!("zz"), "'zz' is no cell"),
        ("color", json!(1), "color"),
    ] {
        let mut spec = good.clone();
        spec[key] = value;
        let failure = environment().reset(&spec, "team").err().map(|failure| failure.message);
        let failure = failure.unwrap_or_default();
        assert!(failure.contains(cause), "{spec}: {failure:?} does not say {cause:?}");
    }
    for (key, value) in [
        ("player", json!("b2")),
        ("player", json!("c3")),
        ("boxes", json!([])),
        ("paid", json!(1)),
        ("workflow", json!("trio")),
        ("more", json!(1)),
    ] {
        let mut broken = state.clone();
        broken[key] = value;
        assert!(environment().restore(&broken).is_err(), "{broken}");
    }
}

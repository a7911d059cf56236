//! Plan-Path as its users see it: tasks, splits, episodes and demonstrations through the public traits.

use std::collections::{BTreeMap, HashSet};

use envs::{Environment, Split, State, find};
use games::grid::world::GridWorld;
use games::plan_path::Instance;
use games::plan_path::generate::split_of;
use games::plan_path::map::{Map, Move, Position};
use record::line::Task;
use record::sample::Sample;
use serde_json::json;

use crate::drawn;

fn environment() -> &'static dyn Environment {
    find("plan-path").unwrap()
}

fn tasks(split: Split, seed: u64, settings: &[&str], count: usize) -> Vec<Task> {
    drawn::tasks("plan-path", split, seed, settings, count)
}

fn state(workflow: &str, encoding: &str) -> Box<dyn State> {
    let walls = ["a0", "b2", "e2", "b3", "a4", "c4", "d4"];
    let spec = json!({
        "size": 5, "encoding": encoding, "moves": 3, "turns": 4, "walls": walls, "goal": "c1", "start": "e3",
    });
    environment().reset(&spec, workflow).unwrap()
}

#[test]
fn a_team_walks_to_the_goal() {
    let mut state = state("team", "compact");
    let content = |state: &dyn State, agent: &str| state.observe(agent)[0].content.clone();
    assert_eq!(content(&*state, "tool"), "walls a0 b2 e2 b3 a4 c4 d4 goal c1 at e3 tool");
    let proposed = state.apply("tool", " d3 c3 c2").unwrap();
    assert_eq!((proposed.rewards.team, proposed.rewards.local), (0.75, 1.0));
    assert!(!proposed.terminated, "a proposal moves nobody");
    assert_eq!(
        content(&*state, "planner"),
        "walls a0 b2 e2 b3 a4 c4 d4 goal c1 at e3 route d3 c3 c2 planner"
    );
    let decided = state.apply("planner", " L L U").unwrap();
    assert_eq!((decided.rewards, decided.components.clone()), (proposed.rewards, proposed.components));
    // The position persists, and the proposal does not.
    assert_eq!(content(&*state, "planner"), "walls a0 b2 e2 b3 a4 c4 d4 goal c1 at c2 route planner");
    state.apply("tool", " nonsense").unwrap();
    let arrived = state.apply("planner", " U").unwrap();
    assert!(arrived.terminated && arrived.success);
    assert_eq!((arrived.rewards.team, arrived.rewards.local), (1.0, 1.0));
    assert!(state.apply("tool", " c1").is_err(), "the episode is over");
}

#[test]
fn a_proposal_is_scored_like_the_moves_that_carry_it_out() {
    for (route, moves) in [(" d3", " L"), (" e4 e3", " D U"), (" f3", " R"), (" d3 c3 b3", " L L L")] {
        let mut state = state("team", "compact");
        let proposed = state.apply("tool", route).unwrap();
        let decided = state.apply("planner", moves).unwrap();
        assert_eq!((proposed.rewards, proposed.components), (decided.rewards, decided.components), "{route}");
    }
    // Cells that are no neighbors end the route there, and it is not legal.
    let jump = state("team", "compact").apply("tool", " d3 c1").unwrap();
    let (format, legal) = (jump.components["format"], jump.components["legal"]);
    assert_eq!((jump.rewards.team, format, legal), (0.25, 1.0, 0.0));
}

#[test]
fn cells_beyond_the_goal_are_ignored() {
    let at_c2 = || {
        let mut state = state("team", "compact");
        state.apply("planner", " L L U").unwrap();
        state
    };
    let arrives = at_c2().apply("tool", " c1").unwrap();
    assert_eq!((arrives.rewards.team, arrives.rewards.local), (1.0, 1.0));
    for route in [" c1 b1", " c1 a4", " c1 z9 c1", " c1 a0 b2"] {
        assert_eq!(at_c2().apply("tool", route).unwrap(), arrives, "{route}");
    }
}

#[test]
fn only_success_pays_where_that_is_asked_for() {
    let task = &tasks(Split::Train, 3, &["reward=success"], 1)[0];
    assert_eq!(task.spec["reward"], "success");
    assert!(tasks(Split::Train, 3, &[], 1)[0].spec.get("reward").is_none(), "the default is not written");
    let mut state = environment().reset(&task.spec, "single").unwrap();
    let mut earned = Vec::new();
    for _ in 0..state.turn_limit() {
        let outcome = state.apply("planner", &state.oracle("planner").unwrap()).unwrap();
        earned.push((outcome.rewards.team, outcome.rewards.local));
        if outcome.terminated {
            break;
        }
    }
    let (last, before) = earned.split_last().unwrap();
    assert_eq!(*last, (1.0, 0.0));
    assert!(before.iter().all(|rewards| *rewards == (0.0, 0.0)), "{earned:?}");
}

#[test]
fn prose_tells_the_planner_what_the_tool_proposes() {
    let mut state = state("team", "full");
    state.apply("tool", "Going left twice.\n#### [\"L\", \"L\"]").unwrap();
    let prompt = &state.observe("planner")[0].content;
    assert!(prompt.contains("The tool proposes: [\"L\", \"L\"]"), "{prompt}");
    assert!(prompt.contains("Position: row 3, column 4.") && prompt.contains("#....\n..G.."), "{prompt}");
}

#[test]
fn tasks_have_the_distribution_that_their_rules_describe() {
    let mut distances: BTreeMap<u16, u32> = BTreeMap::new();
    let mut walls: BTreeMap<usize, u32> = BTreeMap::new();
    for task in tasks(Split::Train, 3, &[], 4000) {
        let instance = Instance::parse(&task.spec).unwrap();
        *distances.entry(instance.first).or_default() += 1;
        *walls.entry(instance.map.walls().len()).or_default() += 1;
    }
    assert_eq!(walls.keys().copied().collect::<Vec<_>>(), [5, 6, 7], "{walls:?}");
    assert_eq!(distances.keys().copied().collect::<Vec<_>>(), [4, 5, 6, 7, 8, 9], "{distances:?}");
    let share = |distance: u16| f64::from(distances[&distance]) / 4000.0;
    // Boards on which more distances exist are rarer, so the shares fall with the distance.
    assert!((0.28..0.38).contains(&share(4)) && (0.01..0.05).contains(&share(9)), "{distances:?}");
    assert!(distances.values().is_sorted_by(|near, far| near >= far), "{distances:?}");
}

#[test]
fn large_boards_follow_the_paper() {
    let tasks = tasks(Split::Train, 1, &["size=10", "encoding=full"], 300);
    let instances: Vec<Instance> = tasks.iter().map(|task| Instance::parse(&task.spec).unwrap()).collect();
    let mean = |of: &dyn Fn(&Instance) -> f64| instances.iter().map(of).sum::<f64>() / 300.0;
    let walls = mean(&|instance| instance.map.walls().len() as f64);
    let distance = mean(&|instance| f64::from(instance.first));
    assert!((20.0..24.0).contains(&walls), "{walls} walls on average");
    assert!((7.0..9.2).contains(&distance), "{distance} steps on average");
    assert!(instances.iter().all(|instance| instance.first <= 40));
}

#[test]
fn a_board_and_its_images_belong_to_one_split() {
    let image = |place: Position, turn: u8| {
        let flip = |value: u8, on: bool| if on { 4 - value } else { value };
        let (row, column) = (flip(place.row, turn & 1 != 0), flip(place.column, turn & 2 != 0));
        if turn & 4 != 0 { Position { row: column, column: row } } else { Position { row, column } }
    };
    for split in [Split::Train, Split::Test] {
        for task in tasks(split, 5, &[], 200) {
            let instance = Instance::parse(&task.spec).unwrap();
            for turn in 0..8 {
                let mut walls: Vec<Position> =
                    instance.map.walls().iter().map(|wall| image(*wall, turn)).collect();
                walls.sort_unstable();
                let goal = image(instance.map.position(instance.map.goal()), turn);
                assert_eq!(split_of(&Map::new(5, &walls, goal)), split, "image {turn} of {}", task.task);
            }
        }
    }
}

#[test]
fn the_test_split_is_fixed_and_repeats_in_a_new_order() {
    let first = tasks(Split::Test, 1, &[], 5000);
    let second = tasks(Split::Test, 2, &[], 5000);
    let names = |tasks: &[Task]| tasks.iter().map(|task| task.task.clone()).collect::<Vec<_>>();
    let (first, second) = (names(&first), names(&second));
    assert_eq!(first[..2048], second[..2048]);
    let split: HashSet<&String> = first[..2048].iter().collect();
    assert_eq!(split.len(), 2048);
    assert_ne!(first[2048..4096], first[..2048], "the repetition has an order of its own");
    assert_ne!(first[2048..4096], second[2048..4096], "which the seed decides");
    assert_ne!(first[4096..], first[2048..2048 + 904], "and which changes with each repetition");
    assert_eq!(first[2048..4096].iter().collect::<HashSet<_>>(), split);
}

/// The number of words of each completion by `agent`.
fn lengths(batches: &[Vec<Sample>], agent: &str) -> Vec<usize> {
    let samples = batches.iter().flatten().filter(|sample| sample.agent.as_deref() == Some(agent));
    samples.map(|sample| sample.completion.as_ref().unwrap().split_whitespace().count()).collect()
}

#[test]
fn demonstrators_are_mixed_by_their_shares() {
    // A random demonstrator gives one, two or three moves alike; a lazy one only ever one.
    let batches = drawn::demonstrations("plan-path", "team", &[("lazy", 0.7), ("random", 0.3)], 0.85, 1000);
    let tool = lengths(&batches, "tool");
    assert_eq!(tool.len(), 8000);
    let single = tool.iter().filter(|length| **length == 1).count() as f64 / 8000.0;
    assert!((single - 0.8).abs() < 0.02, "{single} of the answers are single, not 0.7 + 0.3 / 3");
}

#[test]
fn optimal_demonstrations_score_like_the_oracle() {
    for (batch, task) in drawn::demonstrations("plan-path", "team", &[("opt", 1.0)], 0.5, 100)
        .into_iter()
        .zip(tasks(Split::Train, 4, &[], 100))
    {
        for sample in batch {
            assert_eq!(sample.task.as_deref(), Some(&*task.task));
            let agent = sample.agent.unwrap();
            assert_eq!(*sample.id.unwrap(), format!("{}/0/{agent}/0", sample.episode.unwrap()));
            // The state that the prompt tells of: everything but the position is the task's.
            let prompt = &sample.prompt.unwrap()[0].content;
            let position = prompt.split(" at ").nth(1).unwrap().split(' ').next().unwrap();
            let mut state = environment().reset(&task.spec, "team").unwrap().to_json();
            state["position"] = position.into();
            state["best"] = 0.into();
            let mut state = environment().restore(&state).unwrap();
            let outcome = state.apply(&agent, &sample.completion.unwrap()).unwrap();
            assert_eq!(outcome.rewards.local, 1.0, "{agent} after {prompt:?}");
        }
    }
}

#[test]
fn planners_follow_proposals_with_the_probability_given() {
    // Proposals walk three cells if possible; an independent planner would make one move.
    let followed = |follow: f64| {
        let batches =
            drawn::demonstrations("plan-path", "team", &[("manhattan", 0.5), ("lazy", 0.5)], follow, 1000);
        let pairs = lengths(&batches, "tool").into_iter().zip(lengths(&batches, "planner"));
        let long: Vec<(usize, usize)> = pairs.filter(|(tool, _)| *tool > 1).collect();
        long.iter().filter(|(tool, planner)| tool == planner).count() as f64 / long.len() as f64
    };
    assert_eq!(followed(1.0), 1.0);
    let (some, none) = (followed(0.85), followed(0.0));
    // Half of the independent answers have the proposal's length by chance.
    assert!((some - (0.85 + 0.15 * none)).abs() < 0.02, "{some} with chance {none}");
}

#[test]
fn a_single_planner_is_shown_no_route() {
    for sample in
        drawn::demonstrations("plan-path", "single", &[("opt", 1.0)], 0.85, 20).into_iter().flatten()
    {
        assert_eq!(sample.agent.as_deref(), Some("planner"));
        let prompt = &sample.prompt.unwrap()[0].content;
        assert!(prompt.ends_with(" planner") && !prompt.contains("route"), "{prompt}");
        let moves = sample.completion.unwrap();
        assert!(
            moves.split_whitespace().all(|word| Move::from_letter(word.chars().next().unwrap()).is_some())
        );
    }
}

#[test]
fn broken_specs_are_refused_with_the_place() {
    let good = json!({
        "size": 5, "encoding": "compact", "moves": 3, "turns": 4, "walls": ["a0"], "goal": "c1", "start": "e3",
    });
    environment().reset(&good, "team").unwrap();
    for (key, value, cause) in [
        ("size", json!(1), "size"),
        ("size", json!("5"), "invalid type"),
        ("moves", json!(0), "moves"),
        ("walls", json!(["f0"]), "'f0' is no cell"),
        ("walls", json!(["c1"]), "c1 is a wall"),
        ("walls", json!(["d3", "e2", "e4"]), "no way leads"),
        ("goal", json!("e3"), "same cell"),
        ("start", json!("zz"), "'zz' is no cell"),
        ("encoding", json!("emoji"), "emoji"),
        ("color", json!(1), "color"),
    ] {
        let mut spec = good.clone();
        spec[key] = value;
        let failure =
            environment().reset(&spec, "team").err().map(|failure| failure.message).unwrap_or_default();
        assert!(failure.contains(cause), "{spec}: {failure:?} does not say {cause:?}");
    }
    assert!(environment().reset(&good, "trio").is_err());
}

#[test]
fn broken_states_are_refused() {
    let good = state("team", "compact").to_json();
    environment().restore(&good).unwrap();
    for (key, value) in [
        ("position", json!("b2")),
        ("position", json!("b4")),
        ("position", json!(3)),
        ("best", json!(5)),
        ("workflow", json!("trio")),
        ("spec", json!(null)),
        ("more", json!(1)),
    ] {
        let mut broken = good.clone();
        broken[key] = value;
        assert!(environment().restore(&broken).is_err(), "{broken}");
    }
}

#[test]
fn controls_speak_as_they_should() {
    let content = |state: &dyn State, agent: &str| state.observe(agent)[0].content.clone();
    let mut mechanical = state("mechanical", "compact");
    let moved = mechanical.apply("tool", " d3 c3 c2").unwrap();
    assert_eq!((moved.rewards.team, moved.rewards.local, moved.terminated), (0.75, 1.0, false));
    assert!(mechanical.apply("tool", " c1").unwrap().success && mechanical.is_solved());

    let mut both = state("route-moves", "compact");
    assert_eq!(content(&*both, "planner"), "walls a0 b2 e2 b3 a4 c4 d4 goal c1 at e3 planner");
    assert_eq!(both.apply("planner", " L L U").unwrap().components["format"], 0.0);
    let moved = both.apply("planner", " d3 c3 c2 moves L L U").unwrap();
    assert_eq!((moved.rewards.team, moved.rewards.local), (0.75, 1.0));

    for task in tasks(Split::Train, 3, &["proposal=moves"], 20) {
        let mut state = environment().reset(&task.spec, "team").unwrap();
        let answer = state.oracle("tool").unwrap();
        assert!(answer.split_whitespace().all(|word| "UDLR".contains(word)), "{answer}");
        assert_eq!(state.apply("tool", &answer).unwrap().rewards.local, 1.0);
        assert!(content(&*state, "planner").ends_with(&format!(" moves{answer} planner")));
    }
    for (workflow, words) in [("route-moves", 3..=7), ("mechanical", 1..=3)] {
        for sample in
            drawn::demonstrations("plan-path", workflow, &[("opt", 1.0)], 0.85, 20).into_iter().flatten()
        {
            let completion = sample.completion.unwrap();
            assert!(words.contains(&completion.split_whitespace().count()), "{completion}");
        }
    }
}

#[test]
fn every_level_in_prose_has_hundreds_of_test_tasks_and_short_prompts_that_begin_alike() {
    let levels = [
        ("level=1", 4, vec![1, 2, 3], 2),
        ("level=2", 4, vec![2, 3, 4, 5], 3),
        ("level=3", 5, vec![4, 5, 6, 7, 8, 9], 4),
    ];
    for (level, size, distances, turns) in levels {
        let texts = ["encoding=full", level];
        let boards = |split, count| -> HashSet<String> {
            let board =
                |task: &Task| format!("{} {} {}", task.spec["walls"], task.spec["goal"], task.spec["start"]);
            tasks(split, 1, &texts, count).iter().map(board).collect()
        };
        let test = boards(Split::Test, 300);
        assert_eq!(test.len(), 300, "{level}");
        let instances: Vec<Instance> = tasks(Split::Train, 1, &texts, 2000)
            .iter()
            .map(|task| Instance::parse(&task.spec).unwrap())
            .collect();
        let seen = |of: &dyn Fn(&Instance) -> u16| -> Vec<u16> {
            instances.iter().map(of).collect::<std::collections::BTreeSet<u16>>().into_iter().collect()
        };
        assert_eq!(seen(&|instance| instance.map.size() as u16), [size], "{level}");
        assert_eq!(seen(&|instance| instance.first), distances, "{level}");
        assert_eq!(tasks(Split::Train, 1, &texts, 1)[0].spec["turns"], turns, "{level}");
        assert!(test.is_disjoint(&boards(Split::Train, 2000)), "{level}");
    }
    let spec = json!({"size": 4, "encoding": "full", "brief": true, "moves": 3, "turns": 2, "walls": ["b1"], "goal": "c0", "start": "a2"});
    let mut state = find("plan-path").unwrap().reset(&spec, "team").unwrap();
    let prompt = |answer: &str| {
        "Lead the walker @ to the goal G. # is a wall. Moves: up, down, left, right. Answer with at most 3 moves, one word for \
         each, for example: up, right.\n..G.\n.#..\n@...\n....\n"
            .to_owned()
            + answer
            + "The goal is 2 up and 2 right."
    };
    assert_eq!(state.observe("tool")[0].content, prompt(""));
    state.apply("tool", "Go up and up, then right.").unwrap();
    assert_eq!(state.observe("planner")[0].content, prompt("Check this answer: up, up, right.\n"));
    let outcome = state.apply("planner", "The goal is 2 up and 2 right.").unwrap();
    assert_eq!(outcome.rewards.team, 0.0, "a number is no move");
    state.apply("tool", "2 up").unwrap();
    assert_eq!(state.observe("planner")[0].content, prompt("There was no answer.\n"));
    assert!(state.apply("planner", "up, up, right").unwrap().rewards.team > 0.0);
}

//! Dining philosophers from the user's side: observations, rewards, and where idling pays.

use envs::check::{Effort, check, verdict};
use envs::{Environment, Split, State, find};
use serde_json::{Value, json};

use crate::drawn;

fn environment() -> &'static dyn Environment {
    find("philosophers").unwrap()
}

fn begin(texts: &[&str]) -> Box<dyn State> {
    let selection = drawn::selection("philosophers", Split::Train, 1, texts);
    let task = environment().tasks(&selection).unwrap().next().unwrap().unwrap();
    environment().reset(&task.spec, "team").unwrap()
}

/// The team's rewards of an episode and whether it was a success, and its last components; `says` tells what the philosopher of a
/// number says, who sees this.
fn played(texts: &[&str], says: impl Fn(usize, &str) -> &'static str) -> (f64, bool, Value) {
    let mut state = begin(texts);
    let agents = state.workflow().agents().to_vec();
    let mut team = 0.0;
    loop {
        let sees: Vec<String> = agents.iter().map(|agent| state.observe(agent)[0].content.clone()).collect();
        let said: Vec<(&str, &str)> = agents
            .iter()
            .enumerate()
            .map(|(seat, agent)| (agent.as_str(), says(seat, &sees[seat])))
            .collect();
        let outcome = state.apply_together(&said).unwrap();
        team += outcome.rewards.team;
        if outcome.terminated {
            assert_eq!(outcome.success, state.is_solved());
            return ((team * 1e3).round() / 1e3, outcome.success, json!(outcome.components));
        }
    }
}

/// Grabs the other fork where it holds one, and else this one first.
fn grab(first: &'static str, sees: &str) -> &'static str {
    let second = if first == " L" { " R" } else { " L" };
    if sees.contains("L 2") || sees.contains("R 2") { second } else { first }
}

#[test]
fn each_sees_itself_and_its_two_forks() {
    let mut state = begin(&[]);
    let see = |state: &dyn State, agent: &str| state.observe(agent)[0].content.clone();
    assert_eq!(see(&*state, "philosopher-2"), "at 2 3 moves 1 ok 0 L 0 R 0 goal");
    state
        .apply_together(&[("philosopher-3", " L"), ("philosopher-2", " R"), ("philosopher-1", "?")])
        .unwrap();
    // Both wanted fork 3: the lower number has it.
    assert_eq!(see(&*state, "philosopher-2"), "at 2 3 moves 2 ok 0 L 0 R 2 goal");
    assert_eq!(see(&*state, "philosopher-3"), "at 3 3 moves 2 ok 0 L 1 R 0 goal");
    let prose = begin(&["encoding=full", "index=off", "philosophers=5"]);
    let told = "You are hungry. Step 1 of 12. Meals 0. Left fork free, right fork free. Say GRAB_LEFT, GRAB_RIGHT, RELEASE or WAIT.";
    assert_eq!(see(&*prose, "philosopher-5"), told);
}

#[test]
fn waiting_earns_three_quarters_of_the_four_term_reward() {
    let four = ["philosophers=5", "reward=four"];
    assert_eq!(played(&four, |_, _| " none").0, 0.75);
    assert_eq!(played(&four, |_, sees| grab(" L", sees)).0, 0.5);
    // Ten meals of eleven, and less than by waiting: the meals are not fair, and grabs that fail do nothing.
    let (team, success, components) =
        played(&four, |seat, sees| grab(if seat % 2 == 0 { " L" } else { " R" }, sees));
    assert_eq!((team, success), (0.715, false));
    let term = |name: &str| (components[name].as_f64().unwrap() * 1e4).round() / 1e4;
    assert_eq!((term("alive"), term("throughput")), (1.0, 0.9091));
    // By meals, too: all have two of six at a table of four.
    let even = |seat: usize, sees: &str| grab(if seat.is_multiple_of(2) { " L" } else { " R" }, sees);
    assert_eq!(played(&["philosophers=5"], even).0, 0.909);
    assert_eq!(played(&["philosophers=5"], |_, _| " none").0, 0.0);
}

/// An agent's outcome beside the choices of others is its part of the joint outcome.
#[test]
fn an_agent_earns_beside_others_what_all_earn_together() {
    let state = begin(&["local=own", "philosophers=2"]);
    let mut before = state.clone_state();
    before.apply_together(&[("philosopher-1", " L")]).unwrap();
    let outcome = before
        .clone_state()
        .apply_beside("philosopher-1", " R", &[("philosopher-2", " none")])
        .unwrap()
        .unwrap();
    assert_eq!((outcome.rewards.team, outcome.rewards.local), (0.25, 1.0));
    assert_eq!((outcome.components["ate"], outcome.components["did"]), (1.0, 1.0));
    // Without it the fork was free.
    let outcome = before.apply("philosopher-2", " R").unwrap();
    assert_eq!((outcome.rewards.team, outcome.rewards.local, outcome.components["did"]), (0.0, 0.0, 0.0));
}

#[test]
fn an_episode_goes_on_from_its_json() {
    let mut state = begin(&["philosophers=4"]);
    state.apply_together(&[("philosopher-4", " R"), ("philosopher-2", " L")]).unwrap();
    let json = state.to_json();
    assert_eq!(environment().restore(&json).unwrap().to_json(), json);
    for (path, value) in [
        ("forks", json!([0, 1])),
        ("forks", json!([2, 1, 2, 3])),
        ("forks", json!([u64::MAX, 1, 2, 3])),
        ("step", json!(13)),
    ] {
        let mut broken = json.clone();
        broken["played"][path] = value;
        assert!(environment().restore(&broken).is_err(), "{broken}");
    }
}

/// The check tells where an episode without a word earns the team something: half of the four terms, and no meals.
#[test]
fn the_check_finds_where_idling_pays() {
    for (reward, idles) in [("meals", false), ("four", true)] {
        let settings = drawn::settings("philosophers", &["philosophers=2", &format!("reward={reward}")]);
        let effort = Effort { tasks: 1, episodes: 10, seed: 1, settings };
        let findings = check(environment(), &effort, &mut || ()).unwrap();
        verdict("philosophers", &findings)
            .unwrap_or_else(|failure| panic!("{}: {findings:#?}", failure.message));
        let told = format!("{findings:?}");
        assert_eq!(told.contains("0.50 for an episode without a word"), idles, "{told}");
    }
}

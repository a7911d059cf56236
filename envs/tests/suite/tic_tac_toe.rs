//! Tic-Tac-Toe from the user's side: games, rewards, refusals, demonstrations.

use std::collections::BTreeSet;

use envs::{Demonstration, Environment, Selection, Settings, Split, State, find};
use record::sample::Sample;
use serde_json::{Value, json};

fn environment() -> &'static dyn Environment {
    find("tic-tac-toe").unwrap()
}

fn state(board: &str) -> Box<dyn State> {
    environment().reset(&json!({"board": board}), "team").unwrap()
}

/// Team reward, local reward, `format`, `legal`, `value`, terminated, success.
type Earned = (f64, f64, [f64; 3], bool, bool);

fn apply(state: &mut dyn State, agent: &str, text: &str) -> Earned {
    let outcome = state.apply(agent, text).unwrap();
    let components = ["format", "legal", "value"].map(|name| outcome.components[name]);
    let local = (outcome.rewards.local * 1e12).round() / 1e12;
    (outcome.rewards.team, local, components, outcome.terminated, outcome.success)
}

#[test]
fn a_game_without_a_fault_pays_the_team() {
    // x x .
    // o o .
    // . . .
    let mut won = state("xx.oo....");
    assert_eq!(won.turn_limit(), 3);
    assert_eq!(won.observe("x")[0].content, "at 1 1 0 2 2 0 0 0 0 moves");
    assert_eq!(won.observe("o")[0].content, "at 2 2 0 1 1 0 0 0 0 moves");
    assert_eq!(apply(&mut *won, "x", " c0"), (1.0, 1.0, [1.0, 1.0, 1.0], true, true));
    assert!(won.apply("o", " c1").is_err(), "the game has ended");
    // To block is a draw where a win was there: a fault, and nobody is paid as a team any more.
    let mut spoiled = state("xx.oo....");
    assert_eq!(apply(&mut *spoiled, "x", " c1"), (0.0, 0.6, [1.0, 1.0, 0.5], false, false));
    assert_eq!(apply(&mut *spoiled.clone_state(), "o", " c0"), (0.0, 0.6, [1.0, 1.0, 0.5], false, false));
    assert_eq!(apply(&mut *spoiled, "o", " a2"), (0.0, 0.2, [1.0, 1.0, 0.0], false, false));
    assert_eq!(apply(&mut *spoiled, "x", " c0"), (0.0, 1.0, [1.0, 1.0, 1.0], true, false));
}

fn opponents(board: &str) -> Box<dyn State> {
    environment().reset(&json!({"board": board, "reward": "win"}), "team").unwrap()
}

/// Plays `moves` of x and o in turn; what x and o earned at the end, and the components of the last move.
fn result(board: &str, moves: &[&str]) -> ([f64; 2], [f64; 4]) {
    let mut game = opponents(board);
    for (number, text) in moves.iter().enumerate() {
        game = environment().restore(&game.to_json()).unwrap();
        let outcome = game.apply(["x", "o"][number % 2], text).unwrap();
        assert_eq!(outcome.rewards.team, 0.0);
        assert_eq!(outcome.terminated, number + 1 == moves.len(), "{board} {moves:?}");
        if outcome.terminated {
            let components = ["format", "legal", "value", "perfect"].map(|name| outcome.components[name]);
            let saved = environment().restore(&game.to_json()).unwrap();
            assert!(saved.clone_state().apply("x", " a0").is_err(), "the game has ended");
            return (["x", "o"].map(|agent| outcome.local_of(agent)), components);
        }
        assert_eq!((outcome.rewards.local, outcome.locals.len()), (0.0, 0));
    }
    unreachable!("{moves:?} end no game")
}

#[test]
fn opponents_are_paid_for_the_result() {
    assert_eq!(opponents("xx.oo....").reward_range(), (-1.0, 1.0));
    assert_eq!(result("xx.oo....", &[" c0"]), ([1.0, -1.0], [1.0; 4]));
    assert_eq!(result("xx.oo....", &[" a2", " c1"]), ([-1.0, 1.0], [1.0; 4]));
    assert_eq!(result("xoxxoo.x.", &[" c2", " a2"]).0, [0.0, 0.0]);
    // Who makes an illegal move loses, also from a won position.
    assert_eq!(result("xx.oo....", &[" a0"]), ([-1.0, 1.0], [1.0, 0.0, 0.0, 0.0]));
    assert_eq!(result("xx.oo....", &[" c1", "pass"]), ([1.0, -1.0], [0.0; 4]));
}

/// The exact value of a position under perfect play is what its oracle gets.
#[test]
fn perfect_opponents_get_the_value_of_the_position() {
    for (board, value) in
        [(".........", 0.0), ("x...o....", 0.0), ("xx.oo....", 1.0), ("oo.o.xx.x", 1.0), ("oo.o..x.x", 1.0)]
    {
        let mut game = opponents(board);
        let mut agents = ["x", "o"].iter().cycle();
        let end = loop {
            let agent = agents.next().unwrap();
            let outcome = game.apply(agent, &game.oracle(agent).unwrap()).unwrap();
            assert_eq!(outcome.components["perfect"], 1.0);
            if outcome.terminated {
                break outcome;
            }
        };
        assert_eq!((end.local_of("x"), end.local_of("o")), (value, 0.0 - value), "{board}");
        assert!(end.success);
    }
}

#[test]
fn a_game_that_was_saved_goes_on() {
    // x blocks instead of winning, or does not.
    for (first, is_flawless) in [(" c1", false), (" c0", true)] {
        let mut game = state("xx..o....");
        game.apply("x", first).unwrap();
        let json = game.to_json();
        let restored = environment().restore(&json).unwrap();
        assert_eq!(restored.to_json(), json);
        assert_eq!(restored.is_solved(), is_flawless);
    }
}

#[test]
fn a_move_that_is_none_places_nothing_and_spoils_the_game() {
    for (text, components, local) in
        [(" a0", [1.0, 0.0, 0.0], 0.1), (" d0", [0.0; 3], 0.0), (" a3", [0.0; 3], 0.0), ("", [0.0; 3], 0.0)]
    {
        let mut state = state("xx.oo....");
        assert_eq!(apply(&mut *state, "x", text), (0.0, local, components, false, false), "{text:?}");
        assert_eq!(state.to_json()["board"], "xx.oo....");
        assert_eq!(apply(&mut *state, "o", " c1"), (0.0, 1.0, [1.0, 1.0, 1.0], true, false), "{text:?}");
        assert!(!state.is_solved());
    }
}

#[test]
fn the_perfect_move_that_ends_the_game_is_the_oracles() {
    let oracle = |board: &str, agent: &str| state(board).oracle(agent);
    assert_eq!(oracle("xx.oo....", "x").as_deref(), Some(" c0"));
    assert_eq!(oracle("xx.oo....", "o").as_deref(), Some(" c1"));
}

#[test]
fn what_check_and_play_need_is_there() {
    let state = state("x.o.x....");
    assert_eq!(state.draw(), "x.o\n.x.\n...\n");
    let actions = state.test_actions("x");
    for action in [" a0", " b1", " c2", " d0", " a3", "", "x"] {
        assert!(actions.iter().any(|other| other == action), "{action:?} is not tried: {actions:?}");
    }
}

#[test]
fn boards_that_are_none_are_refused() {
    for (spec, cause) in [
        (json!({"board": "xx.oo..."}), "nine of x, o and ."),
        (json!({"board": "xx.oo...z"}), "nine of x, o and ."),
        (json!({"board": "xxxoo...."}), "already over"),
        (json!({"board": "xoxxoxoxo"}), "already over"),
        (Value::Null, "nine of x, o and ."),
        (json!({"board": "xx.oo....", "reward": "loss"}), "not shaped or win"),
    ] {
        let failure = environment().reset(&spec, "team").err().unwrap();
        assert!(failure.code == 65 && failure.message.contains(cause), "{spec}: {failure:?}");
    }
    let json = state("xx.oo....").to_json();
    for (key, value) in [("board", json!("xx.oo...z")), ("workflow", json!("trio")), ("spec", json!({}))] {
        let mut broken = json.clone();
        broken[key] = value;
        assert!(environment().restore(&broken).is_err(), "{broken}");
    }
    assert!(state("xx.oo....").apply("y", " c0").is_err());
}

fn demonstrations(kind: &str, share: f64) -> Vec<Vec<Sample<'static>>> {
    let mix = vec![(kind.to_owned(), share), ("opt".to_owned(), 1.0 - share)];
    let settings = Settings::default();
    let tasks = Selection { split: Split::Train, seed: 3, settings };
    let demonstration = Demonstration { tasks, workflow: "team".to_owned(), mix, states: 2, follow: 1.0 };
    environment().demonstrations(&demonstration).unwrap().take(60).map(Result::unwrap).collect()
}

/// The board in a prompt, with the agent's marks as `x` and the opponent's as `o`.
fn board(sample: &Sample) -> String {
    let prompt = &sample.prompt.as_ref().unwrap()[0].content;
    prompt.split(' ').skip(1).take(9).map(|digit| ['.', 'x', 'o'][digit.parse::<usize>().unwrap()]).collect()
}

#[test]
fn opt_gives_nothing_away_and_random_does() {
    for (kind, gives_away) in [("opt", false), ("random", true)] {
        let mut worst: f64 = 1.0;
        let mut actions: BTreeSet<String> = BTreeSet::new();
        for batch in demonstrations(kind, 1.0) {
            // Two games, each from the task's board to its end.
            let games: BTreeSet<String> = batch
                .iter()
                .map(|sample| sample.episode.as_ref().unwrap().rsplit_once('.').unwrap().0.to_owned())
                .collect();
            assert_eq!(games.len(), 2);
            for sample in &batch {
                let text = sample.completion.as_deref().unwrap().to_owned();
                let mut state = state(&board(sample));
                let best = state.oracle("x").unwrap();
                let (_, earned, [_, legal, _], ..) = apply(&mut *state.clone_state(), "x", &text);
                let (_, most, ..) = apply(&mut *state, "x", &best);
                assert_eq!(legal, 1.0, "{text}");
                worst = worst.min(1.0 + earned - most);
                actions.insert(text);
            }
        }
        assert_eq!(worst < 1.0, gives_away, "{kind}: {worst}");
        assert_eq!(actions.len(), 9, "{kind}: {actions:?}");
    }
}

/// `x` and `o` in turn, until the game is over.
#[test]
fn demonstrated_games_are_whole() {
    for batch in demonstrations("random", 0.5) {
        let mut place = 0;
        for pair in batch.windows(2) {
            let [now, next] = pair else { continue };
            let game =
                |sample: &Sample| sample.episode.as_ref().unwrap().rsplit_once('.').unwrap().0.to_owned();
            let agents = [now, next].map(|sample| sample.agent.clone().unwrap());
            let mut state = state(&board(now));
            let over = state.apply("x", now.completion.as_ref().unwrap()).unwrap().terminated;
            if game(now) == game(next) {
                place += 1;
                assert_ne!(agents[0], agents[1]);
                assert!(!over);
            } else {
                assert!(over && *agents[1] == *"x", "{place} moves");
                place = 0;
            }
        }
    }
}

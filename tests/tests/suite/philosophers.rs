//! The dining philosophers of `examples/`: its optimum by search, its metrics, its contract, and the trap in its four-term reward.

use serde_json::{Value, json};
use troupe_tests::must;

fn python(program: &str) -> Value {
    let printed = must(&format!("cd examples && python3 -c 'import json, philosophers as p\n{program}'"));
    serde_json::from_str(&printed).expect("JSON")
}

/// The search finds the table up to 4 here; `philosophers.optimum` finds the same for 5 (11) and 6 (13) in seconds.
#[test]
fn the_optimum_is_that_of_a_search() {
    let found = python("print(json.dumps([[p.optimum(n, t) for t in (6, 9, 12)] for n in (2, 3, 4)]))");
    assert_eq!(found, json!([[2, 3, 4], [3, 4, 6], [4, 6, 8]]));
    let table = python("print(json.dumps([p.OPTIMUM[n] for n in (2, 3, 4)]))");
    assert_eq!(table, json!([4, 6, 8]));
}

#[test]
fn rules_around_the_table_eat_what_is_known_of_them() {
    let program = "
def eaten(n, rights):
    forks, meals = [p.FREE] * n, [0] * n
    for step in range(12):
        first = [(\"GRAB_RIGHT\", \"GRAB_LEFT\") if rights(i, n) else (\"GRAB_LEFT\", \"GRAB_RIGHT\") for i in range(n)]
        forks, begins, _ = p.play(forks, [first[i][i in forks] for i in range(n)])
        meals = [own + begin for own, begin in zip(meals, begins)]
        if p.is_deadlock(forks):
            return [step + 1, meals]
    return [12, meals]
odd = [sum(eaten(n, lambda i, n: i % 2)[1]) for n in range(3, 16)]
last = [sum(eaten(n, lambda i, n: i + 1 == n)[1]) for n in range(3, 16)]
print(json.dumps([odd, last, eaten(5, lambda i, n: i % 2)[1], eaten(5, lambda i, n: False)]))";
    let found = python(program);
    assert_eq!(found[0], json!([6, 6, 10, 10, 14, 14, 18, 18, 22, 22, 26, 26, 30]));
    assert_eq!(found[1], json!([5, 7, 8, 9, 10, 10, 10, 10, 10, 10, 10, 10, 10]));
    assert_eq!(found[2], json!([3, 3, 0, 4, 0]));
    // All grab left first: stuck at once.
    assert_eq!(found[3], json!([1, [0, 0, 0, 0, 0]]));
}

#[test]
fn fairness_of_nobody_is_whole() {
    let found = python(
        "print(json.dumps([round(p.fairness(m), 6) for m in ([2,2,2,2,3],[3,0,0,0,0],[4,2,4,2,0],[0]*5)]))",
    );
    assert_eq!(found, json!([0.909091, 0.0, 0.583333, 1.0]));
}

/// The four-term reward of five who wait, who all grab left, and who follow the rule of even and odd.
#[test]
fn waiting_earns_three_quarters_of_the_four_term_reward() {
    let program = "
def earned(rule):
    spec = dict(philosophers=5, reward=\"four\", local=\"none\", index=\"on\")
    table = p.Philosophers()
    start = table.reset(spec)
    state = start.state
    for turn in range(start.turns):
        actions = {agent: rule(i, i in state[\"forks\"]) for i, agent in enumerate(start.agents)}
        step = table.joint(state, actions)
        state = step.state
        if step.terminated:
            return round(step.team, 3)
grab = (\"GRAB_LEFT\", \"GRAB_RIGHT\")
rules = [lambda i, one: \"WAIT\", lambda i, one: grab[one], lambda i, one: grab[one ^ i % 2]]
print(json.dumps([earned(rule) for rule in rules]))";
    let found = python(program);
    assert_eq!((&found[0], &found[1]), (&json!(0.75), &json!(0.5)));
    // Ten meals of eleven, and less than by waiting: the meals are not fair, and grabs that fail do nothing.
    assert_eq!(found[2], json!(0.715));
}

/// Silence earns half of the four-term reward (a word that is no action does nothing), and none of the meals.
#[test]
fn the_check_finds_where_idling_pays() {
    for (reward, note) in [("meals", false), ("four", true)] {
        let command = format!("python3 examples/philosophers.py --set philosophers=2 --set reward={reward}");
        let table = must(&format!(
            "({command} tasks --count 1; {command} tasks --split test --count 1) | \
             envs check --quiet --tasks 1 --episodes 10 --env-command '{command}'"
        ));
        assert!(!table.contains("BROKEN"), "{table}");
        let found = table
            .lines()
            .find(|line| line.contains("saying nothing earns the team nothing"))
            .expect("a rule");
        assert_eq!(found.starts_with("note"), note, "{table}");
        assert_eq!(table.contains("0.50 for an episode without a word"), note, "{table}");
    }
}

/// A team of three plays, is scored together and learns by a tree of joint actions.
#[test]
fn philosophers_are_scored_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display().to_string();
    let command = "python3 examples/philosophers.py --set local=own";
    must(&format!("policy init {at}/p --preset tiny --seed 1 --quiet"));
    let counts = must(&format!(
        "{command} tasks --count 2 | rollout --env-command '{command}' --policy {at}/p --branches 2 --turns 1 --max-tokens 3 \
         --joint cross --quiet | group -q | advantage -q --estimator dr-grpo | jq -c 'select(.type==\"joint\")' | wc -l"
    ));
    // Two candidates of three agents.
    assert_eq!(counts.trim(), "16");
}

//! Self-play with a policy of dice in three versions, in a game where one agent loses what the other earns.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::common::{groups, of_type, parallel, play, sequential, settings, staged, tasks};

fn output(flags: &[&str], count: usize) -> String {
    let flags = [&["--opponents", "past:3"], flags].concat();
    let input = tasks(&vec![json!({"zero_sum": true}); count]);
    let (output, totals, outcome) = play(settings(&flags), sequential(), 4, &input);
    outcome.expect("a run without failure");
    let (expected, written, dropped) = totals.stats.groups();
    assert_eq!((expected, dropped), (written, 0));
    output
}

/// The `served` and `sample` lines of each agent in an episode.
fn speakers(output: &str) -> BTreeMap<(String, String), BTreeSet<(String, String)>> {
    let mut speakers = BTreeMap::<_, BTreeSet<_>>::new();
    let text = |line: &Value, key: &str| line[key].as_str().expect("a string").to_owned();
    for kind in ["sample", "served"] {
        for line in of_type(output, kind) {
            let who = (text(&line, "episode"), text(&line, "agent"));
            speakers.entry(who).or_default().insert((kind.to_owned(), text(&line, "policy_version")));
        }
    }
    speakers
}

#[test]
fn one_agent_learns_and_a_drawn_version_plays_the_other() {
    for flags in [&["--branches", "4"][..], &["--branches", "4", "--sampling", "parallel"]] {
        let output = output(flags, 40);
        let speakers = speakers(&output);
        let mut met = BTreeSet::new();
        for number in 0..40 {
            let (learner, other) = if number % 2 == 0 { ("asker", "doer") } else { ("doer", "asker") };
            let of = |agent: &str| &speakers[&(format!("0.{number}"), agent.to_owned())];
            // Version 2 is the newest.
            assert_eq!(of(learner), &[("sample".to_owned(), "2:00000000".to_owned())].into(), "{number}");
            assert!(of(other).len() == 1 && of(other).iter().all(|(kind, _)| kind == "served"));
            met.extend(of(other).iter().map(|(_, version)| version.clone()));
        }
        assert_eq!(met.len(), 3, "{met:?}");
        let end_of = |kind: &str| of_type(&output, kind);
        // What the environment says about an action is kept with it.
        let is_told = |line: &Value| line["info"] == json!({"said": line["completion"]});
        assert!(["sample", "served"].iter().all(|kind| end_of(kind).iter().all(is_told)));
        for served in end_of("served") {
            assert!(served["model"].is_null() && served["completion_tokens"] == 1, "{served}");
            assert!(served["prompt_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{served}");
        }
        let is_tree = flags.len() == 2;
        assert!(groups(&output).iter().all(|group| group.len() == 4 || !is_tree));
        let one_each = |line: &Value| line["branch"] == 0;
        assert_eq!(end_of("served").iter().all(one_each), is_tree);
    }
}

/// The learner loses what its opponent earns: in parallel sampling by its last move before.
#[test]
fn the_opponents_pay_is_taken_from_the_learners_last_move() {
    let text = output(&["--branches", "3", "--sampling", "parallel"], 12);
    let digit = |line: &Value| line["completion"].as_str().and_then(|text| text.parse::<f64>().ok());
    let mut checked = 0;
    for sample in of_type(&text, "sample") {
        let same = |line: &&Value| ["episode", "branch"].iter().all(|key| line[key] == sample[key]);
        let served = of_type(&text, "served");
        // The asker's move is answered in its turn, the doer's in the next one.
        let turn = sample["turn"].as_u64().expect("a turn") + u64::from(sample["agent"] == "doer");
        let answer = served.iter().filter(same).find(|line| line["turn"] == turn);
        let own = digit(&sample).expect("a digit") / 10.0;
        let lost = answer.map_or(0.0, |answer| digit(answer).expect("a digit") / 10.0);
        let close = |key: &Value, expected: f64| (key.as_f64().expect("a number") - expected).abs() < 1e-9;
        assert!(close(&sample["rewards"]["local"], own - lost), "{sample}");
        let team = sample["rewards"]["team"].as_f64().expect("a number");
        assert!(close(&sample["reward"], own - lost + team), "{sample}");
        checked += usize::from(answer.is_some());
    }
    assert!(checked > 20, "{checked}");
    for episode in of_type(&text, "episode") {
        let samples = of_type(&text, "sample");
        let own =
            samples.iter().filter(|line| ["episode", "branch"].iter().all(|key| line[key] == episode[key]));
        let learner = own.clone().next().map(|line| line["agent"].as_str().expect("a name"));
        let earned: f64 = own.clone().map(|line| line["reward"].as_f64().expect("a number")).sum();
        assert!((episode["reward"].as_f64().expect("a number") - earned).abs() < 1e-9, "{episode}");
        if episode["success"] != true && learner == Some("asker") {
            let returns = [&episode["returns"]["asker"], &episode["returns"]["doer"]].map(Value::as_f64);
            let [Some(asker), Some(doer)] = returns else { panic!("{episode}") };
            assert!((asker + doer).abs() < 1e-9 && (asker - earned).abs() < 1e-9, "{episode}");
        }
    }
    // Without opponents both are paid, but the doer only after its first move.
    let input = tasks(&vec![json!({"zero_sum": true}); 6]);
    let alone = play(settings(&["--branches", "3", "--sampling", "parallel"]), sequential(), 4, &input).0;
    for episode in of_type(&alone, "episode") {
        let samples = of_type(&alone, "sample");
        let is_own = |line: &&Value| ["episode", "branch"].iter().all(|key| line[key] == episode[key]);
        let local = |line: &Value| line["rewards"]["local"].as_f64().expect("a number");
        let sum: f64 = samples.iter().filter(is_own).map(local).sum();
        let first = samples.iter().filter(is_own).find(|line| line["agent"] == "asker").and_then(digit);
        assert!((sum - first.expect("a digit") / 10.0).abs() < 1e-9, "{episode}");
    }
    // Candidates of a tree keep their rewards.
    for sample in of_type(&output(&["--branches", "3"], 12), "sample") {
        let team = sample["rewards"]["team"].as_f64().expect("a number");
        let own = digit(&sample).expect("a digit") / 10.0 + team;
        assert!((sample["reward"].as_f64().expect("a number") - own).abs() < 1e-9);
    }
}

#[test]
fn neither_threads_nor_workflows_change_who_plays() {
    let input = tasks(&vec![json!({"zero_sum": true}); 30]);
    for (workflow, flags) in
        [(sequential(), "tree"), (sequential(), "parallel"), (parallel(), "tree"), (staged(), "parallel")]
    {
        let run = |threads: &str, limit| {
            let flags = settings(&["--opponents", "past:3", "--threads", threads, "--sampling", flags]);
            play(flags, workflow.clone(), limit, &input).0
        };
        let one = run("1", 16);
        assert!(one == run("3", 2) && !of_type(&one, "served").is_empty());
    }
    let none = |flags: &[&str]| play(settings(flags), sequential(), 4, &input).0;
    assert!(none(&["--opponents", "past:0"]) == none(&[]));
}

#[test]
fn joint_actions_and_opponents_exclude_each_other() {
    use clap::Parser;
    let words = ["rollout", "--policy", "x", "--opponents", "past:2", "--joint", "aligned"];
    let refused =
        rollout::arguments::CommandLine::parse_from(words).arguments.resolve().expect_err("refused");
    assert_eq!((refused.code, refused.hint.is_some()), (2, true));
    assert!(
        rollout::arguments::CommandLine::try_parse_from(["rollout", "--policy", "x", "--opponents", "past"])
            .is_err()
    );
}

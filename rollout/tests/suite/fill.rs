//! `--fill` and `--branches ROLE=K` with a policy of dice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::common::{groups, of_type, parallel, play, sequential, settings, tasks};
use clap::Parser;
use envs::Workflow;
use rollout::arguments::CommandLine;
use rollout::stage::check_outcome;
use serde_json::{Value, json};

const END: &str = "{\"type\":\"end\",\"v\":1,\"stage\":\"mine\",\"ok\":true}\n";

/// What `flags` write of so many tasks, and what `end` counts of the refill.
fn played(flags: &[&str], workflow: Arc<Workflow>, count: usize) -> (String, Value) {
    let chosen = settings(flags);
    let input = tasks(&vec![json!({}); count]) + END;
    let (output, totals, outcome) = play(chosen.clone(), workflow, 4, &input);
    outcome.expect("a run without failure");
    check_outcome(&chosen, &totals).expect("a whole run");
    (output, chosen.fill.map_or(Value::Null, |fill| fill.counts(&totals)))
}

fn refused(flags: &[&str]) -> (u8, String) {
    let fixed = ["rollout", "--policy", "somewhere/fake"];
    let failure =
        CommandLine::parse_from(fixed.iter().chain(flags)).arguments.resolve().expect_err("refused");
    (failure.code, failure.message)
}

fn reward(sample: &Value) -> f64 {
    sample["reward"].as_f64().expect("a number")
}

/// Tasks of which a group's rewards differ by more than `flat_below`, and all that were played.
fn teaching(output: &str, flat_below: f64) -> (usize, usize) {
    let mut groups: BTreeMap<(String, u64, String), Vec<f64>> = BTreeMap::new();
    for sample in of_type(output, "sample") {
        let text = |key: &str| sample[key].as_str().expect("a name").to_owned();
        let turn = sample["turn"].as_u64().expect("a turn");
        groups.entry((text("task"), turn, text("agent"))).or_default().push(reward(&sample));
    }
    let (mut all, mut teach) = (BTreeSet::new(), BTreeSet::new());
    for ((task, ..), rewards) in groups {
        let [least, greatest] =
            [f64::min, f64::max].map(|pick| rewards.iter().copied().reduce(pick).expect("a member"));
        all.insert(task.clone());
        teach.extend((greatest - least > flat_below).then_some(task));
    }
    (teach.len(), all.len())
}

#[test]
fn waves_are_played_until_enough_tasks_teach() {
    for (sampling, workflow) in [("tree", sequential()), ("parallel", parallel())] {
        let flags = ["--branches", "2", "--turns", "1", "--sampling", sampling];
        let (whole, _) = played(&flags, workflow.clone(), 60);
        let fill = ["--fill", "5", "--fill-wave", "3", "--flat-below", "0.55"];
        let mut first = None;
        for threads in ["1", "2", "3"] {
            let flags = [&flags[..], &fill, &["--threads", threads]].concat();
            let (output, counts) = played(&flags, workflow.clone(), 60);
            // A prefix of the play without it, and more than one wave of it.
            assert!(whole.starts_with(&output) && output.len() < whole.len(), "{sampling}");
            let (teach, all) = teaching(&output, 0.55);
            assert!(teach >= 5 && all % 3 == 0 && all > 6, "{teach} of {all}");
            let before: String = of_first(&output, all - 3);
            assert!(teaching(&before, 0.55).0 < 5, "the last wave was not needed");
            let told = ["wanted", "teaching", "played", "offered", "waves"].map(|key| counts[key].as_u64());
            assert_eq!(told, [5, teach, all, 60, all / 3].map(|count| Some(count as u64)));
            assert_eq!((&counts["by"], &counts["stopped"]), (&json!("reward"), &json!("filled")));
            let idle = counts["tokens_not_teaching"].as_u64().expect("tokens");
            assert!(idle > 0 && idle < of_type(&output, "sample").len() as u64, "a digit is a token");
            assert_eq!(first.get_or_insert(output.clone()), &output, "{threads} threads");
        }
    }
}

/// The lines of the first tasks.
fn of_first(output: &str, tasks: usize) -> String {
    let mut ended = 0;
    let mut lines = String::new();
    for line in output.lines() {
        if ended == tasks {
            break;
        }
        ended += usize::from(line.starts_with("{\"type\":\"episode\""));
        lines += &format!("{line}\n");
    }
    lines
}

#[test]
fn all_tasks_are_played_where_too_few_teach() {
    let flags = ["--branches", "1", "--fill", "2"];
    let (output, counts) = played(&flags, sequential(), 7);
    assert_eq!(of_type(&output, "episode").len(), 7);
    assert_eq!(
        (&counts["stopped"], &counts["teaching"], &counts["waves"]),
        (&json!("bound"), &json!(0), &json!(4))
    );
    let strict = settings(&[&flags[..], &["--fill-strict"]].concat());
    let (_, totals, outcome) = play(strict.clone(), sequential(), 4, &(tasks(&vec![json!({}); 7]) + END));
    outcome.expect("played");
    let failure = check_outcome(&strict, &totals).expect_err("too few");
    assert_eq!((failure.code, failure.message.as_str()), (1, "--fill 2: 0 of all 7 tasks on stdin teach"));
}

#[test]
fn a_task_teaches_by_success_where_plays_differ_in_it() {
    for sampling in ["tree", "parallel"] {
        let flags = [
            "--branches",
            "3",
            "--turns",
            "2",
            "--sampling",
            sampling,
            "--fill",
            "4",
            "--fill-by",
            "success",
        ];
        let (output, counts) = played(&flags, sequential(), 80);
        let mut by_task: BTreeMap<String, [bool; 2]> = BTreeMap::new();
        let kind = if sampling == "tree" { "sample" } else { "episode" };
        for line in of_type(&output, kind) {
            let over = kind == "episode" || line["terminated"] == true || line["truncated"] == true;
            // A doer that says 9 has solved the task.
            let solved = line["success"] == true || line["completion"] == "9";
            let seen = by_task.entry(line["task"].to_string()).or_default();
            seen[usize::from(solved)] |= over;
        }
        let both = by_task.values().filter(|seen| **seen == [true, true]).count();
        assert_eq!(
            (counts["teaching"].as_u64(), &counts["by"]),
            (Some(both as u64), &json!("success")),
            "{sampling}"
        );
        assert!(both >= 4 && by_task.len() < 80, "{both} of {}", by_task.len());
    }
}

#[test]
fn impossible_refills_are_refused() {
    for (flags, cause) in [
        (&["--fill", "2", "--shard", "0/2"][..], "--fill counts the tasks of all shards"),
        (&["--fill", "2", "--flat-below", "nan"], "--flat-below NaN"),
        (
            &["--branches", "doer=2", "--sampling", "parallel"],
            "--branches doer=… has no effect with --sampling parallel",
        ),
        (&["--branches", "doer=2", "--greedy"], "--branches has no effect with --greedy"),
        (&["--policy", "doer=http://localhost:1/v1", "--branches", "doer=2"], "doer has no policy directory"),
    ] {
        let (code, message) = refused(flags);
        assert!(code == 2 && message.contains(cause), "{flags:?}: {message}");
    }
}

#[test]
fn an_agent_has_its_own_number_of_candidates() {
    let flags = ["--branches", "2", "--branches", "doer=3"];
    for joint in [&[][..], &["--joint", "aligned", "--expand", "all", "--turns", "1"]] {
        let (output, _) = played(&[&flags[..], joint].concat(), sequential(), 3);
        let of = |agent: &str| -> BTreeSet<String> {
            let mut groups: BTreeMap<String, Vec<Value>> = BTreeMap::new();
            for sample in of_type(&output, "sample").into_iter().filter(|sample| sample["agent"] == agent) {
                let key = format!("{}{}{}", sample["episode"], sample["node"], sample["turn"]);
                groups.entry(key).or_default().push(sample);
            }
            let told = |group: &Vec<Value>| format!("{} of {}", group.len(), group[0]["branches"]);
            groups.values().map(told).collect()
        };
        assert_eq!(of("asker"), BTreeSet::from(["2 of 2".to_owned()]));
        assert_eq!(of("doer"), BTreeSet::from(["3 of 3".to_owned()]));
    }
    // Together they have every combination.
    let cross = [&flags[..], &["--joint", "cross", "--turns", "1"]].concat();
    let input = tasks(&[json!({"joint": "shared"})]) + END;
    let (output, _, outcome) = play(settings(&cross), parallel(), 4, &input);
    outcome.expect("a run without failure");
    assert_eq!((of_type(&output, "joint").len(), groups(&output).len()), (6, 2));
    // In pairs they would lack partners.
    let aligned = [&flags[..], &["--joint", "aligned"]].concat();
    let (_, _, outcome) = play(settings(&aligned), parallel(), 4, &input);
    let failure = outcome.expect_err("no partners");
    assert!(failure.code == 2 && failure.message.contains("asker=2 and doer=3 act at once"), "{failure:?}");
}

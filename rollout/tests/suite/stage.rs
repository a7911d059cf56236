//! The stage with a policy of dice: structure, order, errors, shards.

use crate::common;

use std::collections::HashSet;
use std::sync::Arc;

use crate::common::{groups, of_type, parallel, play, sequential, settings, staged, tasks};
use envs::Workflow;
use rollout::episode::EpisodeError;
use rollout::opponents::Opponents;
use rollout::task_run::{QueuedTask, RunContext, SharedRequest, TaskRun};
use serde_json::{Value, json};

fn many(count: usize) -> String {
    tasks(&vec![json!({}); count])
}

fn output(flags: &[&str], workflow: Arc<Workflow>, limit: usize, input: &str) -> String {
    let (output, _, outcome) = play(settings(flags), workflow, limit, input);
    outcome.expect("a run without failure");
    output
}

#[test]
fn every_group_has_one_prompt_all_branches_and_one_selected() {
    for workflow in [sequential(), parallel(), staged()] {
        let flags = ["--branches", "5", "--select", "best", "--threads", "2"];
        let output = output(&flags, workflow, 4, &many(20));
        let groups = groups(&output);
        assert!(groups.len() > 60, "{}", groups.len());
        let mut seen = HashSet::new();
        for group in &groups {
            let key = (
                group[0]["episode"].to_string(),
                group[0]["turn"].to_string(),
                group[0]["agent"].to_string(),
            );
            assert!(seen.insert(key.clone()), "{key:?} is not contiguous");
            let branches: Vec<Option<u64>> = group.iter().map(|sample| sample["branch"].as_u64()).collect();
            assert_eq!(branches, (0..5).map(Some).collect::<Vec<_>>(), "{key:?}");
            assert!(
                group
                    .iter()
                    .all(|sample| sample["branches"] == 5 && sample["prompt_ids"] == group[0]["prompt_ids"])
            );
            assert!(group.iter().all(|sample| sample["parent"] == group[0]["parent"]));
            let rewards: Vec<f64> = group.iter().filter_map(|sample| sample["reward"].as_f64()).collect();
            let best = rewards.iter().cloned().fold(f64::MIN, f64::max);
            let first = rewards.iter().position(|&reward| reward == best);
            let selected: Vec<usize> = (0..5).filter(|&branch| group[branch]["selected"] == true).collect();
            assert_eq!(Some(selected[0]), first, "{key:?}");
            assert_eq!(selected.len(), 1, "{key:?}");
        }
    }
}

#[test]
fn the_executed_path_is_a_chain_of_selected_samples_and_its_reward_is_their_sum() {
    let output = output(&["--branches", "3", "--step", "12"], sequential(), 4, &many(12));
    let samples = of_type(&output, "sample");
    let episodes = of_type(&output, "episode");
    assert_eq!(episodes.len(), 12);
    for episode in episodes {
        let path: Vec<&Value> = samples
            .iter()
            .filter(|sample| sample["episode"] == episode["episode"] && sample["selected"] == true)
            .collect();
        let mut parent = Value::Null;
        for sample in &path {
            assert_eq!(sample["parent"], parent);
            parent = sample["id"].clone();
        }
        let reward: f64 = path.iter().filter_map(|sample| sample["reward"].as_f64()).sum();
        assert!((episode["reward"].as_f64().expect("a reward") - reward).abs() < 1e-12);
        let last = path.last().expect("a sample");
        assert_eq!(episode["success"], last["terminated"]);
        assert_eq!(episode["turns"], last["turn"].as_u64().expect("a turn") + 1);
        assert_eq!(episode["stop"], if episode["success"] == true { "success" } else { "turns" });
    }
    let first = &samples[0];
    assert_eq!(first["id"], "12.0/0/asker/0");
    let fields: Vec<&str> = first.as_object().expect("an object").keys().map(String::as_str).collect();
    let expected = "type v step shard env task episode turn agent branch branches id parent selected policy \
                    policy_version sampling prompt completion prompt_ids completion_ids completion_logprobs \
                    finish_reason reward rewards reward_components terminated truncated";
    assert_eq!(fields, expected.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn neither_threads_nor_tasks_in_progress_change_a_byte() {
    let mut input = many(40);
    input.push_str(&tasks(&[json!({"fails_on": "4"}), Value::Null, json!({})]));
    for (flags, workflow) in [
        (vec![], sequential()),
        (vec![], parallel()),
        (vec![], staged()),
        (vec!["--sampling", "parallel"], sequential()),
        (vec!["--sampling", "parallel"], parallel()),
        (vec!["--select", "random"], sequential()),
        (vec!["--temperature", "0"], sequential()),
        (vec!["--joint", "aligned", "--sampling", "parallel"], parallel()),
        (vec!["--joint", "cross", "--select", "random"], staged()),
        (vec!["--joint", "cross", "--expand", "all", "--branches", "2", "--stop-above", "0.6"], parallel()),
        (vec!["--joint", "aligned", "--expand", "all", "--branches", "2", "--turns", "2"], staged()),
    ] {
        let run = |threads: &str, limit| {
            output(&[&flags[..], &["--threads", threads]].concat(), Arc::clone(&workflow), limit, &input)
        };
        let one = run("1", 16);
        assert!(!of_type(&one, "error").is_empty());
        for (threads, limit) in [("1", 1), ("3", 1), ("3", 5), ("2", 64)] {
            assert!(
                run(threads, limit) == one,
                "{flags:?} {} with {threads} threads of {limit}",
                workflow.name()
            );
        }
    }
}

#[test]
fn seeds_steps_and_recurring_tasks_draw_different_samples() {
    let once = tasks(&[json!({})]);
    let twice = once.repeat(2);
    let completions = |output: &str| -> Vec<String> {
        of_type(output, "sample").iter().map(|sample| sample["completion"].to_string()).collect()
    };
    let base = output(&["--turns", "1"], sequential(), 4, &twice);
    let texts = completions(&base);
    assert_ne!(texts[..8], texts[8..], "the second occurrence of a task repeats the first");
    assert_eq!(completions(&output(&["--turns", "1"], sequential(), 4, &once))[..8], texts[..8]);
    assert_ne!(
        completions(&output(&["--turns", "1", "--seed", "2"], sequential(), 4, &once))[..8],
        texts[..8]
    );
    assert_ne!(
        completions(&output(&["--turns", "1", "--step", "1"], sequential(), 4, &once))[..8],
        texts[..8]
    );
}

#[test]
fn parallel_sampling_is_k_whole_episodes_told_apart_by_their_branch() {
    let output = output(&["--sampling", "parallel", "--branches", "4"], sequential(), 4, &many(10));
    let samples = of_type(&output, "sample");
    let episodes = of_type(&output, "episode");
    assert_eq!(episodes.len(), 40);
    assert!(samples.iter().all(|sample| sample["selected"] == true && sample["branches"] == 4));
    for episode in &episodes {
        let of_branch = samples.iter().filter(|sample| {
            sample["episode"] == episode["episode"] && sample["branch"] == episode["branch"]
        });
        let mut parent = Value::Null;
        for sample in of_branch {
            assert_eq!(sample["parent"], parent);
            parent = sample["id"].clone();
        }
        assert!(!parent.is_null());
    }
    let ids: HashSet<String> = samples.iter().map(|sample| sample["id"].to_string()).collect();
    assert_eq!(ids.len(), samples.len());
    for group in groups(&output) {
        let branches: Vec<u64> = group.iter().filter_map(|sample| sample["branch"].as_u64()).collect();
        assert!(branches.is_sorted(), "{branches:?}");
        if group[0]["turn"] == 0 && group[0]["agent"] == "asker" {
            assert_eq!(branches, [0, 1, 2, 3]);
        }
    }
}

#[test]
fn the_first_prompt_of_parallel_sampling_draws_what_the_tree_draws() {
    let first = |flags: &[&str]| groups(&output(flags, sequential(), 4, &many(1)))[0].clone();
    let texts =
        |group: Vec<Value>| group.iter().map(|sample| sample["completion"].clone()).collect::<Vec<_>>();
    assert_eq!(texts(first(&[])), texts(first(&["--sampling", "parallel"])));
}

#[test]
fn a_failed_episode_is_an_error_line_an_episode_line_and_no_partial_group() {
    let input = tasks(&[json!({}), json!({"fails_on": "4"}), Value::Null, json!({})]);
    let chosen =
        settings(&["--allow-incomplete", "--branches", "8", "--turns", "3", "--max-error-rate", "0.5"]);
    let (output, totals, outcome) = play(chosen.clone(), sequential(), 4, &input);
    outcome.expect("a bad episode is data");
    let errors = of_type(&output, "error");
    assert_eq!(errors.len(), 2);
    assert_eq!((&errors[0]["episode"], &errors[0]["boundary"]), (&json!("0.1"), &json!("env")));
    assert_eq!((&errors[1]["episode"], &errors[1]["boundary"]), (&json!("0.2"), &json!("task")));
    assert_eq!(errors[1]["message"], "nothing to play");
    let episodes = of_type(&output, "episode");
    assert_eq!(episodes.len(), 4);
    for episode in &episodes[1..3] {
        assert_eq!((&episode["success"], &episode["stop"]), (&json!(false), &json!("error")));
        assert!(episode["reward"].is_null());
    }
    assert!(groups(&output).iter().all(|group| group.len() == 8));
    let counts = totals.stats.counts();
    assert_eq!(counts["errors"], 2);
    assert_eq!(Some(totals.stats.groups_expected), counts["groups"].as_u64().map(|groups| groups + 1));
    assert_eq!(
        counts["dropped_groups"],
        json!({"policy": 0, "env": 1, "sandbox": 0, "task": 0}),
        "a refused task begins no group"
    );
    assert_eq!(counts["samples"], of_type(&output, "sample").len());

    rollout::stage::check_outcome(&chosen, &totals).expect("half of the episodes may fail");
    let strict = settings(&["--allow-incomplete", "--max-error-rate", "0.4"]);
    let failure =
        rollout::stage::check_outcome(&strict, &totals).expect_err("more than 0.4 of the episodes failed");
    let told = "2 of 4 episodes could not be scored, first env: doer said 4";
    assert_eq!((failure.code, failure.message.as_str()), (1, told));
}

#[test]
fn a_prompt_that_leaves_no_room_is_an_error_of_the_policy() {
    let (output, totals, _) = play(settings(&["--max-tokens", "4097"]), sequential(), 4, &many(1));
    let errors = of_type(&output, "error");
    assert_eq!(errors[0]["boundary"], "policy");
    assert_eq!(errors[0]["message"], "asker: no room");
    let counts = totals.stats.counts();
    assert_eq!((&counts["episodes"], &counts["groups_expected"]), (&json!(1), &json!(1)));
    assert_eq!(counts["dropped_groups"]["policy"], 1);
}

#[test]
fn shards_together_are_the_whole() {
    let input = many(30) + &json!({"type": "note", "v": 1, "text": "kept"}).to_string() + "\n";
    let lines = |shard: &str| -> Vec<Value> {
        let text = output(&["--shard", shard], sequential(), 4, &input)
            .replace(&format!("\"shard\":\"{shard}\""), "");
        text.lines().map(|line| Value::from(line.to_owned())).collect()
    };
    let whole = lines("0/1");
    let parts: Vec<Vec<Value>> = (0..3).map(|number| lines(&format!("{number}/3"))).collect();
    assert!(parts.iter().all(|part| !part.is_empty()));
    let mut joined: Vec<String> = parts.concat().iter().map(Value::to_string).collect();
    let mut whole: Vec<String> = whole.iter().map(Value::to_string).collect();
    joined.sort();
    whole.sort();
    assert!(joined == whole, "{} lines against {}", joined.len(), whole.len());
}

#[test]
fn other_lines_pass_through_in_place_and_ends_are_consumed() {
    let one = tasks(&[json!({})]);
    let note = "{\"type\": \"note\", \"v\":1,  \"text\":\"kept as it is\"}";
    let end = json!({"type": "end", "v": 1, "stage": "envs", "ok": false}).to_string();
    let (output, totals, outcome) =
        play(settings(&[]), sequential(), 4, &format!("{one}{note}\n{one}{end}\n"));
    outcome.expect("a run without failure");
    let types: Vec<String> = output
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["type"].to_string())
        .collect();
    let at = types.iter().position(|kind| kind == "\"note\"").expect("the note");
    assert_eq!(types[..at].iter().filter(|kind| *kind == "\"episode\"").count(), 1);
    assert_eq!(output.lines().nth(at), Some(note));
    assert!(!types.contains(&"\"end\"".to_owned()));
    let failure = rollout::stage::check_outcome(&settings(&[]), &totals).expect_err("envs failed");
    assert_eq!(failure.code, 65);
}

#[test]
fn an_end_that_is_ok_around_one_that_is_not_is_refused() {
    let bad = json!({"type": "end", "v": 1, "stage": "envs", "ok": false});
    let around = |allowed: Value| {
        let end =
            json!({"type": "end", "v": 1, "stage": "mine", "ok": true, "allowed": allowed, "after": [bad]});
        let (_, totals, outcome) = play(settings(&[]), sequential(), 4, &format!("{}{end}\n", many(1)));
        outcome.expect("a run without failure");
        rollout::stage::check_outcome(&settings(&[]), &totals)
    };
    let failure = around(Value::Null).expect_err("envs failed");
    assert_eq!((failure.code, failure.message.as_str()), (65, "stage envs before this one did not succeed"));
    around(json!("what was missing")).expect("a stage was told to accept it");
}

#[test]
fn a_stream_that_lost_tasks_is_refused_unless_that_is_allowed() {
    let judged = |flags: &[&str], tasks: usize, end: Value| {
        let end = if end.is_null() { String::new() } else { format!("{end}\n") };
        let settings = settings(flags);
        let (_, totals, outcome) = play(settings.clone(), sequential(), 4, &(many(tasks) + &end));
        outcome.expect("a run without failure");
        rollout::stage::check_outcome(&settings, &totals).map_err(|failure| (failure.code, failure.message))
    };
    let end = |tasks: Value| json!({"type": "end", "v": 1, "stage": "tasks", "ok": true, "counts": tasks});
    let cut = "stdin has 3 of the 6 tasks that the stages before this one wrote";
    assert_eq!(judged(&[], 3, end(json!({"tasks": 6}))), Err((65, cut.to_owned())));
    assert_eq!(judged(&[], 3, Value::Null), Err((65, "stdin ended without an `end` line".to_owned())));
    for (tasks, end) in [(3, Value::Null), (3, end(json!({"tasks": 6})))] {
        assert_eq!(judged(&["--allow-incomplete"], tasks, end), Ok(()));
    }
    // Complete: the count matches, even if other shards play some of the tasks; or no count is known.
    assert_eq!(judged(&[], 6, end(json!({"tasks": 6}))), Ok(()));
    assert_eq!(judged(&["--shard", "1/2"], 6, end(json!({"tasks": 6}))), Ok(()));
    assert_eq!(judged(&[], 3, end(json!({}))), Ok(()));
}

#[test]
fn a_group_that_is_neither_written_nor_dropped_fails_the_run() {
    let input = many(3) + "{\"type\":\"end\",\"v\":1,\"stage\":\"mine\",\"ok\":true}\n";
    let (_, mut totals, outcome) = play(settings(&[]), sequential(), 4, &input);
    outcome.expect("a run without failure");
    rollout::stage::check_outcome(&settings(&[]), &totals).expect("every group is written");
    totals.stats.groups_expected += 1;
    let failure = rollout::stage::check_outcome(&settings(&[]), &totals).expect_err("one is missing");
    assert!(failure.code == 1 && failure.message.contains("groups were begun"), "{failure}");
}

#[test]
fn samples_that_pass_through_are_checked_as_by_every_stage() {
    let bad = "{\"type\":\"sample\",\"v\":1,\"id\":\"a\",\"reward\":NaN}";
    let (output, _, outcome) = play(settings(&[]), sequential(), 4, &format!("{}{bad}\n", many(1)));
    assert_eq!(outcome.expect_err("NaN").code, 65);
    assert!(!output.contains("NaN"));
}

#[test]
fn a_task_without_a_name_is_refused() {
    let nameless = "{\"type\":\"task\",\"v\":1,\"env\":\"any\",\"task\":\"\",\"spec\":{}}";
    let (_, _, outcome) = play(settings(&[]), sequential(), 4, &format!("{nameless}\n"));
    assert_eq!(outcome.expect_err("no name").message, "tasks:1: task is empty");
}

#[test]
fn a_broken_line_fails_the_run_and_what_came_before_is_written() {
    let (output, totals, outcome) =
        play(settings(&[]), sequential(), 4, &format!("{}{{\"type\":\n", many(1)));
    let failure = outcome.expect_err("half a line");
    assert_eq!(failure.code, 65);
    assert!(failure.message.starts_with("tasks:2"), "{}", failure.message);
    assert!(totals.stats.tasks <= 1 && of_type(&output, "episode").len() <= 1);
}

#[test]
fn agents_that_are_asked_the_same_have_groups_of_their_own() {
    let input = tasks(&[json!({"anonymous": true})]);
    let flags = ["--sampling", "parallel", "--branches", "3", "--turns", "1"];
    let output = output(&flags, parallel(), 4, &input);
    let agents: Vec<(Value, usize)> =
        groups(&output).iter().map(|group| (group[0]["agent"].clone(), group.len())).collect();
    assert_eq!(agents, [(json!("asker"), 3), (json!("doer"), 3)]);
    // Each uses different random streams.
    let drawn = |group: &Vec<Value>| -> Vec<Value> {
        group.iter().map(|sample| sample["completion_logprobs"].clone()).collect()
    };
    assert!(groups(&output).iter().map(drawn).is_sorted_by(|asker, doer| asker != doer));
}

#[test]
fn a_refused_task_ends_every_episode_of_parallel_sampling() {
    let flags = ["--sampling", "parallel", "--branches", "3", "--max-error-rate", "1"];
    let output = output(&flags, sequential(), 4, &tasks(&[Value::Null]));
    let branches =
        |kind| -> Vec<Value> { of_type(&output, kind).iter().map(|line| line["branch"].clone()).collect() };
    assert_eq!(
        (branches("error"), branches("episode")),
        (vec![json!(0), json!(1), json!(2)], vec![json!(0), json!(1), json!(2)])
    );
}

#[test]
fn counts_are_those_of_the_lines() {
    let (output, totals, outcome) = play(settings(&["--branches", "2"]), sequential(), 4, &many(40));
    outcome.expect("a run without failure");
    let mut solved = vec![0; 3];
    for episode in of_type(&output, "episode").iter().filter(|episode| episode["success"] == true) {
        solved[episode["turns"].as_u64().expect("turns") as usize - 1] += 1;
    }
    assert!(solved.iter().all(|&count| count > 0), "{solved:?}");
    let counts = totals.stats.counts();
    assert_eq!(counts["environments"]["talk"]["solved_at_turn"], json!(solved));
    // A prompt is counted once for all of its branches.
    let prompts = groups(&output)
        .iter()
        .map(|group| group[0]["prompt_ids"].as_array().map_or(0, Vec::len))
        .sum::<usize>();
    assert_eq!(counts["prompt_tokens"], prompts);
}

/// A task that has begun, and its first requests.
fn begin(flags: &[&str], workflow: Arc<Workflow>) -> (TaskRun, Vec<SharedRequest>) {
    let (settings, labels) = (Arc::new(settings(flags)), Vec::new());
    let context = Arc::new(RunContext { settings, external: None, labels, opponents: Opponents::default() });
    let task = QueuedTask { sequence: 0, index: 0, occurrence: 0, task: record::line::Task::default() };
    TaskRun::begin(context, task, Ok(Box::new(common::Talk::new(workflow))))
}

#[test]
fn parallel_episodes_share_their_first_prompt() {
    let (_, requests) = begin(&["--sampling", "parallel", "--branches", "3"], parallel());
    let branches: Vec<Vec<u32>> = requests.iter().map(|request| request.branches().collect()).collect();
    assert_eq!(branches, [[0, 1, 2], [0, 1, 2]], "one request for each agent");
}

/// Both agents of a stage fail: the episode has the first cause, and each group is dropped once.
#[test]
fn the_first_failure_of_a_stage_is_the_episodes() {
    let (mut run, requests) = begin(&[], parallel());
    let [first, second]: [_; 2] = requests.try_into().expect("two requests");
    assert!(run.needs(&first) && run.needs(&second));
    run.fail(first, &EpisodeError::at("policy", "the first"));
    assert!(!run.needs(&second) && !run.is_over());
    run.fail(second, &EpisodeError::at("env", "the second"));
    assert!(run.is_over());
    let output = run.finish().expect("lines");
    let errors = of_type(&output.text, "error");
    assert_eq!((errors.len(), &errors[0]["message"]), (1, &json!("the first")));
    assert_eq!(output.stats.groups(), (2, 0, 2));
    let dropped = &output.stats.counts()["dropped_groups"];
    assert_eq!((&dropped["policy"], &dropped["env"]), (&json!(2), &json!(0)));
}

/// What waits for nobody is taken back, and the task is over with the rest.
#[test]
fn a_request_that_is_not_needed_any_more_is_taken_back() {
    let (mut run, requests) = begin(&[], parallel());
    let [first, second]: [_; 2] = requests.try_into().expect("two requests");
    run.fail(first, &EpisodeError::at("policy", "the first"));
    run.cancel(second);
    assert!(run.is_over());
}

/// The bytes of the record, written down once: a flag that was not given leaves no trace in it.
#[test]
fn lines_are_those_that_were_written_down() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/talk.jsonl");
    let sampling = ["--max-tokens", "8", "--temperature", "0.7", "--seed", "3"];
    let flags = [&["--branches", "2", "--select", "best", "--turns", "2"][..], &sampling].concat();
    let more = ["--branches", "4", "--select", "best", "--seed", "0"];
    let written = output(&flags, sequential(), 4, &many(2)) + &output(&more, parallel(), 4, &many(1));
    if std::env::var_os("TROUPE_WRITE_GOLDEN").is_some() {
        std::fs::write(golden, &written).expect("a golden file");
    }
    let known = std::fs::read_to_string(golden).expect("a golden file");
    for (number, (line, known)) in written.lines().zip(known.lines()).enumerate() {
        assert_eq!(line, known, "line {}", number + 1);
    }
    assert_eq!(written.lines().count(), known.lines().count());
}

#[test]
fn an_agent_is_sampled_by_its_own_values() {
    let flags =
        ["--temperature", "0.7", "--temperature", "doer=1.5", "--max-tokens", "doer=8", "--stop", "doer=x"];
    let output = output(&flags, sequential(), 4, &many(2));
    let samples = of_type(&output, "sample");
    assert!(samples.len() > 8);
    for sample in samples {
        let (sampling, is_doer) = (&sample["sampling"], sample["agent"] == "doer");
        let temperature = sampling["temperature"].as_f64().map(|number| number as f32);
        assert_eq!(temperature, Some(if is_doer { 1.5 } else { 0.7 }));
        assert_eq!(sampling["max_tokens"], if is_doer { 8 } else { 256 });
        assert_eq!(sampling["stop"], if is_doer { json!(["x"]) } else { Value::Null });
    }
}

//! A small run of the whole loop, read afterwards as a user would: files, `end` lines, accounts, README's commands.

use std::path::Path;
use std::process::Command;

use record::sample::Field;
use serde_json::Value;
use troupe_tests::program::{self, of_type};
use troupe_tests::{must, pipeline, programs, root, shell};

pub const SMALL: [&str; 10] =
    ["--warmup", "30", "--steps", "2", "--tasks", "6", "--branches", "4", "--eval-every", "2"];

fn lines(path: &Path) -> Vec<Value> {
    program::lines(&std::fs::read_to_string(path).expect("a stream"))
}

/// Every group has exactly K members with one prompt, and the expected groups were all seen or dropped: one
/// group for each of the two agents of Plan-Path's team at each turn begun, since only the planner's action
/// can end an episode.
fn groups_are_groups(samples: &[Value], tasks: usize, branches: usize) {
    let ends: Vec<&Value> = of_type(samples, "end").collect();
    assert_eq!(
        (ends.len(), &ends[0]["ok"], &ends[0]["stage"]),
        (1, &Value::from(true), &Value::from("advantage"))
    );
    assert_eq!(of_type(samples, "episode").count(), tasks);
    let mut groups = std::collections::BTreeMap::<String, Vec<&Value>>::new();
    for sample in of_type(samples, "sample") {
        // Lines in another order are read all the same, but by serde_json.
        let keys: Vec<&String> = sample.as_object().expect("an object").keys().skip(2).collect();
        let known = |key: &&String| Field::ALL.iter().position(|field| field.key() == *key);
        assert!(
            keys.iter().map(known).is_sorted() && keys.iter().all(|key| known(key).is_some()),
            "{keys:?}"
        );
        groups.entry(sample["group"].as_str().expect("a group").into()).or_default().push(sample);
    }
    assert!(!groups.is_empty());
    for (name, members) in &groups {
        assert_eq!(members.len(), branches, "{name}");
        assert!(members.iter().all(|member| member["prompt_ids"] == members[0]["prompt_ids"]), "{name}");
        assert_eq!(members.iter().filter(|member| member["selected"] == true).count(), 1, "{name}");
        let sum: f64 = members.iter().map(|member| member["advantage"].as_f64().expect("a number")).sum();
        assert!(sum.abs() < 1e-6, "{name}: advantages sum to {sum}");
    }
    assert_eq!(ends[0]["counts"]["groups"], groups.len());
    let turns: u64 = of_type(samples, "episode").filter_map(|episode| episode["turns"].as_u64()).sum();
    let (group, rollout) = (&ends[0]["after"][0], &ends[0]["after"][0]["after"][0]);
    assert_eq!((&group["stage"], &rollout["stage"]), (&"group".into(), &"rollout".into()));
    let dropped = |end: &Value| -> u64 {
        end["counts"]["dropped_groups"].as_object().expect("reasons").values().filter_map(Value::as_u64).sum()
    };
    let all_dropped = dropped(ends[0]) + dropped(group) + dropped(rollout);
    assert_eq!(rollout["counts"]["groups_expected"], 2 * turns);
    assert_eq!(group["counts"]["groups_expected"], 2 * turns);
    assert_eq!(groups.len() as u64 + all_dropped, 2 * turns);
}

#[test]
fn a_small_run_leaves_everything_readable_and_accounted_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("plan-path");
    let output = pipeline(&run, &SMALL).output().expect("pipeline.sh runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(printed.contains("step 0: success on 300 test tasks"), "{printed}");
    assert!(printed.contains("step 2: success on 300 test tasks"), "{printed}");
    assert!(printed.contains(", 95 % interval 0."), "{printed}");
    let page = std::fs::read_to_string(run.join("report.html")).expect("the report");
    assert!(page.contains("\"group_totals\":{\"expected\":"), "the page has the accounts");
    assert!(run.join("defaults.json").is_file(), "the page knows what differs from a default");

    for step in ["000001", "000002"] {
        groups_are_groups(&lines(&run.join("steps").join(step).join("samples.jsonl")), 6, 4);
    }

    // Every step draws new tasks.
    let tasks = |step: &str| -> Vec<String> {
        let lines = lines(&run.join("steps").join(step).join("tasks.jsonl"));
        of_type(&lines, "task").map(|task| task["task"].as_str().expect("a name").to_owned()).collect()
    };
    let (first, second) = (tasks("000001"), tasks("000002"));
    assert_eq!((first.len(), second.len()), (6, 6));
    assert!(first.iter().all(|task| !second.contains(task)), "{first:?} again in {second:?}");

    let metrics = lines(&run.join("steps/000002/metrics.jsonl"));
    let metrics: Vec<&Value> = of_type(&metrics, "metrics").collect();
    assert_eq!(metrics.len(), 1);
    let gap = metrics[0]["sampling/logp_difference_max"].as_f64().expect("a gap");
    assert_eq!(gap, 0.0, "sampler and trainer differ");

    let done: Value =
        serde_json::from_str(&std::fs::read_to_string(run.join("steps/000002/done")).expect("done"))
            .expect("JSON");
    assert_eq!(done["policies"]["shared"], metrics[0]["policy_version"]);

    // Other values are refused by name; the same command has nothing left to do; more steps go on.
    let refused = pipeline(&run, &["--seed", "9"]).output().expect("pipeline.sh runs");
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{printed}");
    assert!(printed.contains("was started with"), "{printed}");
    let longer = [&SMALL[..], &["--steps", "3"]].concat();
    assert!(pipeline(&run, &longer).status().expect("pipeline.sh runs").success());
    assert!(run.join("steps/000003/done").exists());

    readme_commands_work(&run);
}

/// The `jq` lines of README, in a finished run.
fn readme_commands_work(run: &Path) {
    if Command::new("jq").arg("--version").output().is_err() {
        eprintln!("jq is not installed: README's commands were not run");
        return;
    }
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README");
    let block =
        readme.split("```sh\n").find(|block| block.starts_with("cd runs/plan-path")).expect("the block");
    let block = block.split("```").next().expect("its text").replace("cd runs/plan-path", "");
    let output = shell(&block).current_dir(run).output().expect("bash runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(printed.lines().count(), 4 + 1 + 3, "{printed}");
    assert!(printed.lines().rev().take(3).all(|line| line.ends_with("\t4\t1")), "{printed}");
}

#[test]
fn a_stage_can_be_swapped_and_a_failing_one_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let swapped = "advantage=jq -c 'if .type==\"sample\" then .advantage=(.reward-1) else . end'";
    let small = [&SMALL[..8], &["--steps", "1", "--warmup", "5", "--stage"]].concat();
    let run = folder.path().join("swapped");
    let output = pipeline(&run, &[&small[..], &[swapped]].concat()).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let samples = lines(&run.join("steps/000001/samples.jsonl"));
    let sample = of_type(&samples, "sample").next().expect("a sample");
    let (advantage, reward) = (sample["advantage"].as_f64(), sample["reward"].as_f64());
    assert_eq!(advantage, reward.map(|reward| reward - 1.0));

    let run = folder.path().join("failing");
    let output = pipeline(&run, &[&small[..], &["group=false"]].concat()).output().expect("pipeline.sh runs");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("step 1: group failed with exit code 1"), "{printed}");
    assert!(!run.join("steps/000001/done").exists());
    assert_eq!(
        must(&format!("readlink '{}'", run.join("policies/shared/current").display())).trim(),
        "step-000000"
    );
}

/// Only a lock that somebody holds is in use.
#[test]
fn a_lock_that_cannot_be_taken_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    std::fs::create_dir_all(&run).expect("a folder");
    let refused = || {
        let output = pipeline(&run, &SMALL).output().expect("pipeline.sh runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let held = std::fs::File::create(run.join("lock")).expect("a file");
    held.lock().expect("a lock");
    let (code, said) = refused();
    assert!(code == Some(1) && said.contains("is in use by another run"), "{code:?}: {said}");
    drop(held);
    std::fs::remove_file(run.join("lock")).expect("removed");
    std::fs::create_dir(run.join("lock")).expect("a folder");
    let (code, said) = refused();
    assert!(code == Some(74) && said.contains("cannot write"), "{code:?}: {said}");
}

#[test]
fn a_run_without_anything_to_learn_stops_with_advice() {
    let flat = ["--stage", "advantage=jq -c 'if .type==\"sample\" then .advantage=0 else . end'"];
    let left_out = ["--stage", "reward=jq -c 'if .type==\"sample\" then .reward=0 else . end'"];
    let drop = ["--flags", "advantage=--drop-flat"];
    let left_out = [&left_out[..], &drop].concat();
    // So cold that the candidates of a group are the same.
    let resident = [&drop[..], &["--temperature", "1e-6", "--resident"]].concat();
    for stages in [&flat[..], &left_out, &resident] {
        let folder = tempfile::tempdir().expect("a folder");
        let run = folder.path().join("flat");
        let arguments = "--warmup 5 --steps 5 --tasks 4 --eval-every 5 --eval-tasks 4".split(' ');
        let arguments: Vec<&str> = arguments.chain(stages.iter().copied()).collect();
        let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains("steps 1 to 3: all groups are flat"), "{printed}");
        // An untrained policy goes on until it is cut, so that the limit is the first advice.
        let advice = "answers were cut at 8 tokens: raise --max-tokens first; an easier task";
        assert!(printed.contains(advice), "{printed}");
        let steps = String::from_utf8_lossy(&output.stdout);
        assert!(steps.contains("% of answers cut at 8 tokens: raise --max-tokens first"), "{steps}");
        assert!(run.join("steps/000003/done").exists() && !run.join("steps/000004").exists());
        assert!(run.join("eval/step-000003.jsonl").exists(), "what it came to is known");
    }
}

/// Whatever its agent says solves a task.
const EASY: &str = r#"
import json, sys
said = lambda value: print(json.dumps(value), flush=True)
if sys.argv[1:]:
    given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
    count, split, seed = int(given["--count"]), given["--split"], int(given["--seed"])
    for number in range(count):
        said({"type": "task", "v": 1, "env": "easy", "task": f"easy/{split}/{seed}-{number}", "spec": {}})
    said({"type": "end", "v": 1, "stage": "tasks", "ok": True, "counts": {"tasks": count}})
else:
    for request in map(json.loads, sys.stdin):
        answer = {"request": request.get("request"), "state": 0}
        if "task" in request:
            agents = ["a"]
            answer |= {"observations": {"a": [{"role": "user", "content": "say"}]}, "agents": agents, "order": "sequential", "turns": 1}
        else:
            answer |= {"rewards": {"team": 1, "local": 0}, "terminated": True, "success": True, "observations": {}}
        said(answer)
"#;

/// A run has learned its tasks where all candidates succeed, and is done.
#[test]
fn a_run_that_solves_its_tasks_ends_well() {
    let folder = tempfile::tempdir().expect("a folder");
    let (run, game) = (folder.path().join("solved"), folder.path().join("easy.py"));
    std::fs::write(&game, EASY).expect("written");
    let command = format!("python3 {}", game.display());
    let arguments =
        ["--env-command", &command, "--steps", "9", "--tasks", "2", "--branches", "2", "--eval-tasks", "2"];
    for more in [&[][..], &["--resident"]] {
        let _ = std::fs::remove_dir_all(&run);
        let output = pipeline(&run, &[&arguments[..], more].concat()).output().expect("pipeline.sh runs");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{printed}");
        // This program answers `demo` with tasks.
        assert!(printed.contains("pipeline.sh: random weights and no warm-up: "), "{printed}");
        assert!(printed.contains(&format!("have `{command} demo` print demonstrations")), "{printed}");
        let steps = String::from_utf8_lossy(&output.stdout);
        assert!(
            steps.contains("steps 1 to 3: all groups are flat, and 100 % of episodes succeed"),
            "{steps}"
        );
        assert!(run.join("eval/step-000003.jsonl").exists() && !run.join("steps/000004").exists());
    }
}

/// A program that answers no action: its time limit holds in evaluations, too, and a restart is told once.
#[test]
fn a_silent_environment_is_told_once_and_within_its_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let (run, game) = (folder.path().join("silent"), folder.path().join("silent.py"));
    std::fs::write(&game, EASY.replace("        else:\n", "        else:\n            sys.stdin.read()\n"))
        .expect("written");
    let command = format!("python3 {}", game.display());
    let mut arguments = vec!["--env-command", &command, "--steps", "1", "--tasks", "1", "--eval-tasks", "1"];
    arguments.extend(["--flags", "rollout=--timeout 0.2"]);
    let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{printed}"); // with 2 where not even the first answer is in time
    let told = format!("rollout: {command}: no line within 0.2 s; restarted, and asked once more\n");
    assert_eq!(printed.matches(&told).count(), 1, "{printed}");
    assert!(printed.contains("evaluation after step 0: rollout failed"), "{printed}");
}

/// A step whose groups are all left out keeps the versions and counts, and the next one learns.
#[test]
fn a_step_without_a_difference_is_skipped() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let judge =
        "reward=jq -c 'if .type==\"sample\" then .reward=(if .step==2 then 0 else .branch end) else . end'";
    let arguments = "--warmup 5 --steps 3 --tasks 4 --eval-every 0 --flags advantage=--drop-flat --stage";
    let arguments: Vec<&str> = arguments.split(' ').chain([judge]).collect();
    let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let versions = [0, 1, 2, 3].map(|step| {
        let done = run.join(format!("steps/00000{step}/done"));
        lines(&done).remove(0)["policies"].clone()
    });
    assert!(versions[0] != versions[1] && versions[2] != versions[3], "{versions:?}");
    assert_eq!(versions[1], versions[2]);
}

/// Runs of equal cost: the step that makes the tokens is the last, and has its evaluation.
#[test]
fn a_run_ends_with_the_step_that_makes_its_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let small = "--warmup 30 --steps 4 --tasks 4 --branches 4 --eval-every 4 --eval-tasks 2";
    let called = |name: &str, more: &[&str]| {
        let run = folder.path().join(name);
        let arguments: Vec<&str> = small.split(' ').chain(more.iter().copied()).collect();
        let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        run
    };
    let whole = called("whole", &[]);
    let generated = |step: &str| {
        let lines = lines(&whole.join("steps").join(step).join("metrics.jsonl"));
        let end = of_type(&lines, "end").last().expect("an end").clone();
        end["after"][0]["after"][0]["after"][0]["counts"]["completion_tokens"].as_u64().expect("tokens")
    };
    let two = generated("000001") + generated("000002");
    let (exactly, more) = (two.to_string(), (two + 1).to_string());
    let limited = called("limited", &["--token-budget", &exactly]);
    let resident = called("resident", &["--token-budget", &exactly, "--resident"]);
    for run in [&limited, &resident] {
        assert!(run.join("steps/000002/done").exists() && !run.join("steps/000003").exists());
        assert!(run.join("eval/step-000002.jsonl").exists());
    }
    assert!(troupe_tests::differences(&limited, &resident).is_empty());
    // Exactly that many, resuming from the last step.
    called("limited", &["--token-budget", &exactly]);
    assert!(!limited.join("steps/000003").exists());
    called("limited", &["--token-budget", &more]);
    assert!(limited.join("steps/000003/done").exists() && !limited.join("steps/000004").exists());
}

/// With `--resident` the next step goes on while the page is drawn, and may be done first.
#[test]
fn a_page_may_take_longer_than_the_next_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let (bin, run) = (folder.path().join("bin"), folder.path().join("run"));
    let (bin, real) = (bin.display(), programs());
    let real = real.display();
    let slow = format!("#!/bin/sh\ncase \"$*\" in *--html*) sleep 3 ;; esac\nexec '{real}/report' \"$@\"\n");
    must(&format!("mkdir '{bin}' && ln -s '{real}'/* '{bin}' && rm '{bin}/report'"));
    std::fs::write(format!("{bin}/report"), slow).expect("a file");
    must(&format!("chmod +x '{bin}/report'"));
    let logs = folder.path().join("logs").display().to_string();
    let arguments = "--warmup 20 --steps 3 --tasks 4 --eval-every 0 --resident --tensorboard".split(' ');
    let arguments: Vec<&str> = arguments.chain([logs.as_str()]).collect();
    let output =
        pipeline(&run, &arguments).env("TROUPE_BIN", bin.to_string()).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The example stage of `record`, between the stages that it was written for.
#[test]
fn a_judge_stands_between_rollout_and_group() {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "-p", "record", "--example", "judge", "--locked", "--quiet"]).current_dir(root());
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success(), "the example does not build");
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    must(&format!("policy init {dir}/p --preset tiny --seed 3 2>&1"));
    // The judge's score is the completion's first token.
    let judged = must(&format!(
        "envs tasks plan-path --count 3 --seed 7 | rollout --quiet --policy {dir}/p --branches 3 --turns 2 --max-tokens 8 | \
         $TROUPE_BIN/examples/judge --quiet 'jq --unbuffered .completion_ids[0]' | \
         jq -c 'if .type == \"sample\" then .reward += .judge else . end' | group --quiet | advantage --quiet"
    ));
    let lines = program::lines(&judged);
    let samples: Vec<&Value> = of_type(&lines, "sample").collect();
    assert!(samples.len() >= 18, "{}", samples.len());
    for sample in samples {
        assert_eq!(sample["judge"].as_f64(), sample["completion_ids"][0].as_f64());
        let (reward, judge) = (sample["reward"].as_f64(), sample["judge"].as_f64());
        let rewards = sample["rewards"]["team"].as_f64().zip(sample["rewards"]["local"].as_f64());
        let (team, local) = rewards.expect("rewards");
        assert!(
            (reward.expect("a reward") - judge.expect("a score") - team - local).abs() < 1e-9,
            "{sample}"
        );
        assert!(sample["advantage"].is_number() && sample["group"].is_string());
    }
    let end = of_type(&lines, "end").last().expect("an end");
    let stages = ["/stage", "/after/0/stage", "/after/0/after/0/stage", "/after/0/after/0/after/0/stage"];
    let stages = stages.map(|pointer| end.pointer(pointer).and_then(Value::as_str).unwrap_or("none"));
    assert_eq!((&end["ok"], stages), (&Value::from(true), ["advantage", "group", "judge", "rollout"]));
}

/// README's step by hand, with the run's number of tasks.
#[test]
fn a_step_by_hand_is_a_step_of_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("runs/plan-path");
    let small = ["--steps", "1", "--tasks", "6", "--warmup", "30", "--eval-every", "0"];
    let output = pipeline(&run, &small).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let readme = std::fs::read_to_string(troupe_tests::root().join("README.md")).expect("README.md");
    let blocks = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let step =
        blocks.filter_map(|block| block.split_once("policy init run/shared")).next().expect("the step").1;
    let step = step.replace("--count 48", "--count 6");
    must(&format!("cd '{}' && policy init run/shared {step}", folder.path().display()));
    let read = |path: &str| std::fs::read_to_string(folder.path().join(path)).expect("a file");
    let version: serde_json::Value =
        serde_json::from_str(&read("run/shared/current/version.json")).expect("JSON");
    let done: serde_json::Value =
        serde_json::from_str(&read("runs/plan-path/steps/000001/done")).expect("JSON");
    assert_eq!(done["policies"]["shared"], version["version"]);
}

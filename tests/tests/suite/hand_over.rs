//! With `--resident`, `rollout` takes new weights from `update` in the memory of the device that both use, and reads files
//! wherever that is impossible. The bytes are the same.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use serde_json::Value;
use troupe_tests::{must, shell};

/// Makes the branch number the reward: something to learn from policies that never solve a task.
const REWARD: &str = r#"awk '/"type":"sample"/ { match($0, /"branch":[0-9]+/); sub(/"reward":[^,}]*/, "\"reward\":" substr($0, RSTART + 9, RLENGTH - 9)) } { print }'"#;
const ROLLOUT: &str = "rollout --policy p --branches 3 --turns 1 --max-tokens 4 --seed 1 --step 1 --threads 1 --resident --quiet";
const UPDATE: &str = "update --policy p --lr 1e-3 --max-logprob-gap 0 --threads 1 --resident --quiet";

/// A tiny policy in bf16, as larger models are.
fn policy(place: &Path, families: &str) {
    let config = r#"{"model_type": "qwen3", "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 600, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": false, "tie_word_embeddings": TIED, "torch_dtype": "bfloat16"}"#;
    fs::write(place.join("config.json"), config.replace("TIED", families)).expect("written");
    must(&format!("cd '{}' && policy init p --config config.json --seed 1 >log", place.display()));
}

/// A step's tasks.
fn tasks(step: u64) -> String {
    must(&format!("envs tasks plan-path --count 2 --seed {step}"))
}

/// Plays and trains three steps; the `end` lines of `rollout`, and all its lines without timing with the last version.
fn train(place: &Path, rollout: &str, update: &str) -> (Vec<Value>, String) {
    let mut rollout = Stage::start(place, &format!("{ROLLOUT} {rollout}"));
    let mut update = Stage::start(place, &format!("{UPDATE} {update}"));
    let (mut ends, mut rest) = (Vec::new(), String::new());
    for step in 1..4 {
        let played = rollout.pass(&tasks(step));
        update.pass(&credited(place, &played));
        ends.push(end_of(&played));
        for line in played.lines() {
            let mut line: Value = serde_json::from_str(line).expect("JSON");
            line.as_object_mut().expect("an object").remove("timing");
            let _ = writeln!(rest, "{line}");
        }
    }
    rollout.end();
    update.end();
    rest += &fs::read_to_string(place.join("p/current/version.json")).expect("a version");
    (ends, rest)
}

fn handed_over(ends: &[Value]) -> Vec<Option<u64>> {
    ends.iter().map(|end| end["timing"]["models_handed_over"].as_u64()).collect()
}

#[test]
fn weights_that_are_handed_over_have_the_bytes_of_the_file() {
    for tied in ["true", "false"] {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        folders.iter().for_each(|folder| policy(folder.path(), tied));
        let [own, other] = &folders;
        let (ends, lines) = train(own.path(), "--device sim", "--device sim");
        assert_eq!(handed_over(&ends), [None, Some(1), Some(1)]);
        assert_eq!(fs::read_to_string(own.path().join("said")).expect("a file"), "");
        // `rollout` on another device finds nothing there.
        let (ends, wanted) = train(other.path(), "--device sim:1", "--device sim");
        assert_eq!(handed_over(&ends), [None; 3]);
        assert!(lines == wanted, "{lines}\n{wanted}");
    }
}

/// A resident program that is given its input a part at a time.
struct Stage {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Stage {
    fn start(place: &Path, command: &str) -> Stage {
        let mut shell = shell(&format!("exec {command}"));
        let errors = fs::File::options().create(true).append(true).open(place.join("said")).expect("a file");
        let mut child = shell
            .current_dir(place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .expect("bash runs");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Stage { child, input, output: BufReader::new(output) }
    }

    /// Passes a part, and returns the answer with its `end` line.
    fn pass(&mut self, part: &str) -> String {
        let input = self.input.as_mut().expect("a pipe");
        input.write_all(part.as_bytes()).and_then(|()| input.flush()).expect("the stage reads");
        let mut answer = String::new();
        loop {
            let before = answer.len();
            assert!(self.output.read_line(&mut answer).expect("text") > 0, "the stage ended: {answer}");
            if answer[before..].starts_with("{\"type\":\"end\"") {
                return answer;
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("killed");
    }

    fn end(mut self) {
        self.input = None;
        assert!(self.child.wait().expect("an end").success());
    }
}

fn credited(place: &Path, samples: &str) -> String {
    fs::write(place.join("part"), samples).expect("written");
    must(&format!("cd '{}' && {REWARD} <part | group --quiet | advantage --quiet", place.display()))
}

fn end_of(answer: &str) -> Value {
    serde_json::from_str(answer.lines().last().expect("a line")).expect("JSON")
}

/// Samples of a step that `rollout` plays, after one that it played and `update` trained on, with what happens to `update` in
/// between.
fn second_step(happens: impl FnOnce(&Path, Stage) -> Option<Stage>) -> (Value, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    policy(place, "true");
    let mut rollout = Stage::start(place, &format!("{ROLLOUT} --device sim"));
    let mut update = Stage::start(place, &format!("{UPDATE} --device sim"));
    let first = rollout.pass(&tasks(1));
    update.pass(&credited(place, &first));
    let update = happens(place, update);
    let second = rollout.pass(&tasks(2));
    rollout.end();
    if let Some(update) = update {
        update.end();
    }
    let samples = second.lines().filter(|line| line.contains("\"type\":\"sample\""));
    let samples: Vec<&str> =
        samples.map(|line| line.split(",\"timing\"").next().unwrap_or_default()).collect();
    assert!(samples.len() >= 6, "{second}");
    (end_of(&second), samples.join("\n"))
}

#[test]
fn an_update_that_is_gone_leaves_the_file() {
    let (end, wanted) = second_step(|_, update| Some(update));
    assert_eq!(handed_over(&[end]), [Some(1)]);
    let (end, found) = second_step(|_, update| {
        update.kill();
        None
    });
    assert_eq!(handed_over(&[end]), [None]);
    assert!(found == wanted, "{found}\n{wanted}");
    let (end, found) = second_step(|_, update| {
        update.end();
        None
    });
    assert_eq!(handed_over(&[end]), [None]);
    assert!(found == wanted, "{found}\n{wanted}");
    // Another process of the run needs the memory: an evaluation.
    let (end, found) = second_step(|place, update| {
        let evaluation = ROLLOUT.replace("--resident", "--device sim");
        let out = place.display();
        must(&format!("cd '{out}' && envs tasks plan-path --count 1 --seed 9 | {evaluation} >evaluated"));
        Some(update)
    });
    assert_eq!(handed_over(&[end]), [None]);
    assert!(found == wanted, "{found}\n{wanted}");
}

#[test]
fn a_rollout_that_is_gone_does_not_keep_update() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path();
    policy(place, "true");
    let mut rollout = Stage::start(place, &format!("{ROLLOUT} --device sim"));
    let mut update = Stage::start(place, &format!("{UPDATE} --device sim"));
    let samples = credited(place, &rollout.pass(&tasks(1)));
    update.pass(&samples);
    rollout.kill();
    // Played by another process from the file, which resumes the run; the next update goes on in memory.
    let again = ROLLOUT.replace("--step 1", "--step 2");
    let mut rollout = Stage::start(place, &format!("{again} --device sim"));
    let answer = rollout.pass(&tasks(2));
    assert_eq!(handed_over(&[end_of(&answer)]), [None]);
    let trained = end_of(&update.pass(&credited(place, &answer)));
    assert_eq!(trained["ok"], true, "{trained}");
    // And is taken from it again.
    let answer = rollout.pass(&tasks(3));
    assert_eq!(handed_over(&[end_of(&answer)]), [Some(1)]);
    update.end();
    rollout.end();
}

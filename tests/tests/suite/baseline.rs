//! `evaluate --model NAME`: how good a model is before any training.

use serde_json::Value;
use troupe_tests::{must, root, run, script};

/// It plays as policies that are made from it and handed in.
#[test]
fn a_model_is_evaluated_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display().to_string();
    let model = root().join("tests/golden/gguf/qwen2.gguf").display().to_string();
    let played = |flags: &[&str]| {
        let mut command = script();
        command.args(["evaluate", "--eval-tasks", "2", "--turns", "1", "--max-tokens", "8"]).args(flags);
        let output = command.current_dir(&at).env("XDG_CACHE_HOME", format!("{at}/cache")).output();
        let output = output.expect("pipeline.sh runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let samples = lines.filter(|line| line["type"] == "sample");
        let what = ["agent", "prompt", "completion_ids", "completion_logprobs", "policy_version"];
        samples.map(|line| what.map(|name| line[name].clone())).collect::<Vec<_>>()
    };
    let of_model = played(&["--model", &model]);
    must(&format!("cd {at}; policy init tool --from {model}; policy init planner --from {model}"));
    // A vocabulary as small as this one would be asked in words of its own.
    let policies = ["--policies", "tool=tool", "--policies", "planner=planner", "--set", "encoding=full"];
    let handed_in = played(&policies);
    assert!(of_model.len() == 4 && of_model == handed_in, "{of_model:#?}\n{handed_in:#?}");
    assert_eq!(run(&format!("ls {at}/runs")).0, 2, "a run was made");
}

//! Flags of a run: defaults by the kind of policy, recorded values, refusals.

use serde_json::Value;
use troupe_tests::{must, pipeline};

use crate::pipeline::SMALL;

#[test]
fn numbers_follow_the_kind_of_policy() {
    let folder = tempfile::tempdir().expect("a folder");
    let (tiny, model) = (folder.path().join("tiny"), folder.path().join("model"));
    must(&format!("policy init '{}' --preset tiny", tiny.display()));
    let text = std::fs::read_to_string(tiny.join("current/config.json")).expect("a configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    // A vocabulary of a pretrained model's size.
    config["vocab_size"] = 1024.into();
    let file = folder.path().join("config.json");
    std::fs::write(&file, config.to_string()).expect("a file");
    must(&format!("policy init '{}' --config '{}'", model.display(), file.display()));
    let model = model.display().to_string();
    let given = format!("reasoner={model}");
    let cases = [
        (vec!["--warmup", "0"], "1e-3", "1", ""),
        (vec!["--model", &model], "1e-5", "0.7", "encoding=full"),
        (vec!["--policies", &given], "1e-5", "0.7", "encoding=full"),
        (vec!["--model", &model, "--policies", "adapter-per-role"], "5e-4", "0.7", "encoding=full"),
        (
            vec!["--model", &model, "--lr", "2e-5", "--set", "encoding=compact"],
            "2e-5",
            "0.7",
            "encoding=compact",
        ),
    ];
    let of_none = ["--env", "math", "--workflow", "single", "--steps", "0", "--eval-every", "0"];
    for (number, (arguments, lr, temperature, settings)) in cases.into_iter().enumerate() {
        let run = folder.path().join(format!("run-{number}"));
        let all = [&arguments[..], &of_none].concat();
        let output = pipeline(&run, &all).output().expect("pipeline.sh runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(run.join("run.json")).expect("run.json");
        let values: Value = serde_json::from_str(&text).expect("JSON");
        let shown = ["lr", "temperature", "settings"].map(|name| values[name].as_str().unwrap_or_default());
        assert_eq!(shown, [lr, temperature, settings], "{arguments:?}");
        if arguments.contains(&"--lr") {
            // The default stays what it was, so leaving the rate out is another rate.
            let less = ["--model", &model, "--set", "encoding=compact"];
            let other = pipeline(&run, &[&less[..], &of_none].concat()).output().expect("pipeline.sh runs");
            let printed = String::from_utf8_lossy(&other.stderr).into_owned();
            assert_eq!(other.status.code(), Some(2), "{printed}");
            assert!(printed.contains("was started with --lr 2e-5, not with --lr 1e-5\nhint: "), "{printed}");
        }
    }
}

#[test]
fn an_absent_gpu_is_refused_before_its_libraries_are_fetched() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    let mut command = pipeline(&folder.path().join("run"), &["--device", "cuda:99"]);
    let output =
        command.env_remove("ORT_DYLIB_PATH").env("XDG_CACHE_HOME", &cache).env("PIP_NO_INDEX", "1").output();
    let output = output.expect("pipeline.sh runs");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(69), "{printed}");
    assert!(printed.contains("--device cuda:99: this machine has "), "{printed}");
    assert!(printed.contains("hint: rollout --version names the driver and its GPUs"), "{printed}");
    assert!(!cache.exists(), "something was fetched: {printed}");
}

#[test]
fn a_first_command_with_a_mistake_does_not_bind_the_second() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("a run"); // with a space in its name
    let mut arguments = SMALL.to_vec();
    arguments.extend(["--steps", "08", "--eval-every", "0", "--warmup", "0", "--policies", "per-role"]);
    let mistaken =
        pipeline(&run, &[&arguments[..], &["--workflow", "taem"]].concat()).output().expect("it runs");
    assert_eq!(mistaken.status.code(), Some(2));
    arguments.extend(["--steps", "1"]);
    let mended = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    assert!(mended.status.success(), "{}", String::from_utf8_lossy(&mended.stderr));
    assert!(run.join("policies/planner/current").exists() && run.join("policies/tool/current").exists());
    // From here on its values bind.
    let other = pipeline(&run, &[&arguments[..], &["--branches", "3"]].concat()).output().expect("it runs");
    let printed = String::from_utf8_lossy(&other.stderr).into_owned();
    assert_eq!(other.status.code(), Some(2), "{printed}");
    assert!(printed.contains("was started with --branches 4, not with --branches 3\nhint: "), "{printed}");
}

#[test]
fn arguments_are_checked() {
    for (arguments, sentence) in [
        (vec!["--stpes", "3"], "unexpected argument '--stpes' found"),
        (vec!["--steps", "many"], "--steps many: not a whole number"),
        (vec!["--steps"], "a value is required for '--steps <N>'"),
        (vec!["--branches", "0"], "--branches must be from 1"),
        (vec!["--device", "gpu"], "--device gpu: not a device"),
        (vec!["--dtype", "float16"], "--dtype float16: --device cpu computes in float32 or bfloat16"),
        (vec!["--seed", "9007199254740991"], "--seed must be from 0 to 999999999999"),
        (vec!["--stage", "rolout=x"], "no such stage"),
        (vec!["--adapter", "rank=2,alpha=2"], "--adapter needs --policies adapter-per-role"),
        (vec!["--env", "chess"], "there is no environment 'chess'"),
        (vec!["--policies", "critic=x"], "plan-path/team has no agent critic"),
        (vec!["--stage", "advantage=python3 nofile.py"], "--stage advantage: there is no file nofile.py"),
        (vec!["--stage", "reward=no-such-judge 3"], "--stage reward: there is no program no-such-judge"),
        (
            vec!["--stage", "group=jq 'if"],
            "--stage group: bash cannot read its command: line 1: unexpected EOF",
        ),
        (
            vec!["--policies", "planer=x"],
            "has no agent planer\nhint: did you mean planner? agents: tool planner",
        ),
        (vec!["--env-command", "x", "--env", "math"], "--env-command takes the place of --env and --set"),
        (vec!["--env-command", "false"], "seed 1` printed nothing and ended with exit code 1"),
        (
            vec!["--env-command", "echo 1;"],
            "`echo 1; tasks --split train --count 1 --seed 1` did not answer as expected",
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let output = pipeline(&folder.path().join("run"), &arguments).output().expect("pipeline.sh runs");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {printed}");
        assert!(printed.contains(sentence), "{arguments:?}: {printed}");
    }
}

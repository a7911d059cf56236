//! Low-rank adapters: the commands of docs/lora.md, and the loop with an adapter per role on one frozen base.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use troupe_tests::program::lines;
use troupe_tests::{must, pipeline, root, run, shell};

/// Every file below a folder, links followed.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    entries
        .filter(|path| path.is_file())
        .map(|path| (name(&path), std::fs::read(path).expect("a file")))
        .collect()
}

#[test]
fn the_commands_of_the_page_work() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = std::fs::read_to_string(root().join("docs/lora.md")).expect("the page");
    let block = page.split("```sh\n").find(|block| block.starts_with("policy init run/base"));
    let block = block.and_then(|block| block.split("```").next()).expect("the block");
    let output = shell(&format!("set -e; {block}")).current_dir(folder.path()).output().expect("bash runs");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        printed.contains("rank 8, alpha 16, q_proj+k_proj+v_proj+o_proj+gate_proj+up_proj+down_proj"),
        "{printed}"
    );
    // The base is named by a directory that PEFT can open from here.
    let config = std::fs::read_to_string(folder.path().join("run/tool/current/adapter_config.json"));
    let config: Value = serde_json::from_str(&config.expect("the configuration")).expect("JSON");
    let base = config["base_model_name_or_path"].as_str().expect("a name");
    assert!(folder.path().join(base).join("model.safetensors").exists(), "{base}");
}

#[test]
fn roles_learn_as_adapters_of_one_base_that_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = folder.path().join("first");
    let arguments = "--policies adapter-per-role --adapter rank=4,alpha=8 --warmup 30 --steps 2 --tasks 6 --branches 4 \
                     --eval-every 0";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let output = pipeline(&first, &arguments).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let base = first.join("policies/base/current");
    let weights = |folder: &Path| files(folder).remove("model.safetensors").expect("weights");
    assert!(weights(&base) == weights(&first.join("warmup/policy/current")), "the base was written to");
    let metrics = std::fs::read_to_string(first.join("steps/000002/metrics.jsonl")).expect("metrics");
    let metrics = lines(&metrics);
    let metrics: Vec<&Value> = metrics.iter().filter(|line| line["type"] == "metrics").collect();
    assert_eq!(metrics.len(), 2);
    for line in metrics {
        let gap = line["sampling/logp_difference_max"].as_f64().expect("a gap");
        assert_eq!(gap, 0.0, "sampler and trainer differ");
        assert!(line["grad_norm"].as_f64().expect("a norm") > 0.0, "nothing was learned");
    }
    for role in ["tool", "planner"] {
        let made = files(&first.join("policies").join(role).join("current"));
        assert!(made.contains_key("adapter_model.safetensors") && !made.contains_key("model.safetensors"));
        assert!(made != files(&first.join("policies").join(role).join("step-000001")), "nothing moved");
    }

    // A run that is moved still finds its base, and sampler and trainer agree.
    let second = folder.path().join("second");
    std::fs::rename(&first, &second).expect("moved");
    let policies = second.join("policies");
    let flags = format!("--policy tool={0}/tool --policy planner={0}/planner", policies.display());
    let sampled = format!(
        "envs tasks plan-path --count 3 --seed 5 | rollout {flags} --branches 4 --turns 2 --max-tokens 8 --quiet"
    );
    must(&format!("{sampled} | group --quiet | advantage --quiet | update {flags} --check --quiet"));
    let one = must(&format!("{sampled} --threads 1 | grep '\"sample\"'"));
    assert_eq!(one, must(&format!("{sampled} --threads 2 | grep '\"sample\"'")));

    // The device engine applies them too, both adapters in the same batches.
    let simulated = format!("{sampled} --device sim");
    must(&format!("{simulated} | group --quiet | advantage --quiet | update {flags} --check --quiet"));

    // The base may play next to its adapter: they share an engine.
    for device in ["cpu", "sim"] {
        let mixed = sampled.replace(
            &format!("tool={}/tool", policies.display()),
            &format!("tool={}/base", policies.display()),
        );
        assert_ne!(mixed, sampled);
        let check = format!("update --policy planner={}/planner --check --quiet", policies.display());
        must(&format!("{mixed} --device {device} | group --quiet | advantage --quiet | {check}"));
    }

    // What adapters cannot do is refused.
    let (code, _, stderr) =
        run(&format!("policy init {0}/x --from {0}/tool --adapter rank=2,alpha=2", policies.display()));
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("an adapter itself"), "{stderr}");
    std::fs::remove_dir_all(policies.join("base")).expect("removed");
    let (code, _, stderr) = run(&format!("policy check {}", policies.join("tool").display()));
    assert_eq!(code, 65, "{stderr}");
    assert!(stderr.contains("the link names its frozen base"), "{stderr}");
}

#[test]
fn a_warm_up_leaves_a_pretrained_base_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, run) = (folder.path().join("model"), folder.path().join("run"));
    must(&format!("policy init '{}' --preset tiny --seed 3", model.display()));
    let named = model.display().to_string();
    let arguments = "--policies adapter-per-role --adapter rank=4,alpha=8 --set encoding=compact --warmup 4 --steps 1 --tasks 3 \
                     --branches 2 --kl 0.01 --eval-every 0";
    let arguments: Vec<&str> = ["--model", &named].into_iter().chain(arguments.split_whitespace()).collect();
    let output = pipeline(&run, &arguments).output().expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let of = |folder: &Path, name: &str| files(folder).remove(name).expect("weights");
    let base = run.join("policies/base/current");
    assert!(
        of(&base, "model.safetensors") == of(&model.join("current"), "model.safetensors"),
        "the base was trained"
    );
    let adapter = |version: &str| of(&run.join(version), "adapter_model.safetensors");
    let shown = adapter("warmup/policy/current");
    assert!(shown != adapter("warmup/policy/step-000000"), "nothing was learned from demonstrations");
    for role in ["tool", "planner"] {
        assert!(
            adapter(&format!("policies/{role}/step-000000")) == shown,
            "{role} begins with something else"
        );
    }
}

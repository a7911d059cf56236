//! `policy export`: the exported files, and the files left out.

use std::fs;
use std::path::Path;

use policy::weights::Weights;
use serde_json::{Value, json};
use troupe_tests::golden;

use crate::{policy, told};

fn must(here: &Path, arguments: &[&str]) -> String {
    let output = policy(here, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", told(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_whole_model_has_a_card_with_the_numbers_of_its_run() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    fs::create_dir_all(here.join("run/policies")).unwrap();
    fs::create_dir_all(here.join("run/eval")).unwrap();
    must(here, &["init", "run/policies/team", "--preset", "tiny"]);
    let version = here.join("run/policies/team/step-000000");
    fs::write(version.join("optimizer.safetensors"), "large").unwrap();
    fs::write(version.join("README.md"), "what the base was").unwrap();
    let figures = json!({"reward": 0.25, "loss": -0.5, "kl": null, "other": 1}).to_string();
    let state = json!({"settings": {"lr": 0.001, "reference": null}, "figures": figures});
    fs::write(version.join("trainer_state.json"), state.to_string()).unwrap();
    fs::write(here.join("run/run.json"), r#"{"env": "plan-path", "turns": "", "build": "a\nb|c"}"#).unwrap();
    let episode = |success: bool| {
        let line = json!({"type": "episode", "v": 1, "env": "e", "task": "t", "episode": "0.1", "success": success, "turns": 1,
                          "reward": if success { 1.0 } else { 0.5 }, "stop": "turns"});
        format!("{line}\n")
    };
    let sample = |policy: &str, completion: &str| {
        let line = json!({"type": "sample", "v": 1, "policy": policy, "completion": completion,
                          "prompt": [{"role": "user", "content": "say \"d3\""}]});
        format!("{line}\n")
    };
    for (step, lines) in [(0, [true, false, false, false]), (1, [true; 4])] {
        let text: String = [sample("other", "no"), sample("team", &format!("d{step}"))].concat()
            + &lines.map(episode).concat();
        fs::write(here.join(format!("run/eval/step-{step:06}.jsonl")), text).unwrap();
    }

    let printed = must(here, &["export", "run/policies/team", "out/mine"]);
    assert!(printed.starts_with("out/mine 0:"), "{printed}");
    assert_eq!(
        names(&here.join("out/mine")),
        [
            "README.md",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
    assert_eq!(names(&here.join("out")), ["mine"], "nothing is left beside it");
    let (before, after) = (version.join("model.safetensors"), here.join("out/mine/model.safetensors"));
    assert!(fs::read(before).unwrap() == fs::read(after).unwrap());
    let card = fs::read_to_string(here.join("out/mine/README.md")).unwrap();
    assert!(card.starts_with("---\nlibrary_name: transformers\npipeline_tag: text-generation\n"), "{card}");
    for expected in [
        "\n---\n\n# mine\n\nTrained with Troupe: version `0:",
        "\nmessages = [{\"role\":\"user\",\"content\":\"say \\\"d3\\\"\"}]\n",
        "it answered that with:\n\n````text\nd0\n````\n",
        "\n| env | plan-path |\n| build | a, b\\|c |\n",
        // Later evaluations are of later versions.
        "|---|---|---|---|\n| 0 | 0.250 | 0.62 | 1 of 4 |\n\n",
        "\n| lr | 0.001 |\n\n",
        "\n| reward | 0.25 |\n| loss | -0.5 |\n",
    ] {
        assert!(card.contains(expected), "{expected:?} in {card}");
    }
    assert!(!card.contains("what the base was") && !card.contains("other"), "{card}");
    must(here, &["check", "out/mine"]);

    // A copy of the best begins at version 0 and is of the step in its folder's name, also where links were followed.
    for folder in ["best-000001", "best"] {
        must(here, &["init", &format!("run/{folder}/team"), "--from", "run/policies/team"]);
        must(here, &["export", &format!("run/{folder}/team"), &format!("out/{folder}")]);
        let card = fs::read_to_string(here.join(format!("out/{folder}/README.md"))).unwrap();
        assert!(card.contains("after 1 updates") && card.contains("````text\nd1\n````"), "{card}");
    }

    let again = policy(here, &["export", "run/policies/team", "out/mine"]);
    assert_eq!(
        (again.status.code(), told(&again).as_str()),
        (
            Some(2),
            "policy: out/mine: already there\nhint: nothing is ever overwritten: remove it or choose another name\n"
        )
    );
    let absent = policy(here, &["export", "run/policies/team", "out/other", "--run", "nowhere"]);
    assert_eq!(absent.status.code(), Some(2), "{}", told(&absent));
    assert!(!here.join("out/other").exists());
}

/// Ranks, scales and modules that differ from layer to layer, as PEFT merges them.
#[test]
fn an_adapter_whose_modules_differ_becomes_a_plain_one_that_merges_alike() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let file = |name: &str| golden("varied-adapter").join(name);
    must(here, &["init", "base", "--from", golden("qwen3-6-3-untied").to_str().unwrap(), "--quiet"]);
    fs::create_dir(here.join("found")).unwrap();
    fs::copy(file("adapter_model.safetensors"), here.join("found/adapter_model.safetensors")).unwrap();
    let write = |change: &dyn Fn(&mut Value)| {
        let mut config: Value =
            serde_json::from_slice(&fs::read(file("adapter_config.json")).unwrap()).unwrap();
        config["base_model_name_or_path"] = json!(here.join("base/step-000000"));
        change(&mut config);
        fs::write(here.join("found/adapter_config.json"), config.to_string()).unwrap();
    };
    for (key, value, cause) in [
        ("use_dora", json!(true), "use_dora is true, which is not implemented"),
        ("rank_pattern", json!({"up_proj": 3}), "has shape [1, 96], expected [2, 96]"),
        ("alpha_pattern", json!({"(": 3}), "\"(\" is no pattern that can be read"),
        ("modules_to_save", json!(["lm_head"]), "modules_to_save is set"),
    ] {
        write(&|config| config[key] = value.clone());
        let refused = policy(here, &["init", "p", "--from", "found"]);
        assert!(refused.status.code() == Some(65) && told(&refused).contains(cause), "{}", told(&refused));
        assert!(!here.join("p").exists());
    }
    write(&|_| ());
    // Where it lies it is refused, with what to do.
    let refused = policy(here, &["check", "found"]);
    assert!(
        refused.status.code() == Some(65) && told(&refused).contains("policy init DIR --from"),
        "{}",
        told(&refused)
    );
    let made = policy(here, &["init", "p", "--from", "found"]);
    assert_eq!(
        (made.status.code(), told(&made).as_str()),
        (
            Some(0),
            "policy: found: written as plain LoRA, without rank_pattern, alpha_pattern, exclude_modules, lora_dropout, \
             target_modules\n"
        )
    );
    // Paths of modules, as PEFT saves them for "all-linear", say the same as an expression.
    let paths = [
        "layers.0.self_attn.q_proj",
        "0.self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ];
    write(&|config| config["target_modules"] = json!(paths));
    must(here, &["init", "by-path", "--from", "found", "--quiet"]);
    let weights = |name: &str| fs::read(here.join(name).join("current/adapter_model.safetensors")).unwrap();
    assert_eq!(weights("by-path"), weights("p"));
    let checked = must(here, &["check", "p"]);
    assert!(checked.contains("rank 4, alpha 6, q_proj+v_proj+o_proj+up_proj+down_proj"), "{checked}");
    must(here, &["export", "p", "merged", "--merge"]);
    let ours = Weights::open(&here.join("merged")).unwrap();
    let [theirs, before] = [
        Weights::open_file(&file("merged.safetensors")).unwrap(),
        Weights::open(&here.join("base/current")).unwrap(),
    ];
    let mut changed = 0;
    for name in before.names() {
        let expected = theirs.to_f32(name).or_else(|_| before.to_f32(name)).unwrap();
        let own = ours.to_f32(name).unwrap();
        let gap = own.iter().zip(&expected).map(|(own, expected)| (own - expected).abs()).fold(0.0, f32::max);
        assert!(gap < 1e-6, "{name}: {gap}");
        changed += usize::from(own != before.to_f32(name).unwrap());
    }
    assert_eq!(changed, theirs.names().count());
}

#[test]
fn an_adapter_is_merged_or_names_a_base_that_others_know() {
    for (name, base) in
        [("all", "qwen3-6-3-untied"), ("bias", "qwen2-4-2-bf16-shards"), ("phi3", "phi3-2-1-partial")]
    {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        must(here, &["init", "base", "--from", golden(base).to_str().unwrap(), "--quiet"]);
        let adapter = here.join("found");
        fs::create_dir(&adapter).unwrap();
        fs::copy(
            golden("adapters").join(name).join("adapter_model.safetensors"),
            adapter.join("adapter_model.safetensors"),
        )
        .unwrap();
        let mut config: Value = serde_json::from_slice(
            &fs::read(golden("adapters").join(name).join("adapter_config.json")).unwrap(),
        )
        .unwrap();
        config["base_model_name_or_path"] = json!(here.join("base/step-000000"));
        fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
        must(here, &["init", "p", "--from", "found", "--quiet"]);

        let refused = policy(here, &["export", "p", "out"]);
        let message = told(&refused);
        assert_eq!(refused.status.code(), Some(2), "{message}");
        assert!(
            message.starts_with("policy: p: its base is known only as ")
                && message.contains("\nhint: --base ORG/NAME"),
            "{message}"
        );
        assert!(!here.join("out").exists() && !here.join(".out.new").exists());

        must(here, &["export", "p", "out", "--base", "lab/base"]);
        assert_eq!(
            names(&here.join("out")),
            [
                "README.md",
                "adapter_config.json",
                "adapter_model.safetensors",
                "chat_template.jinja",
                "tokenizer.json",
                "tokenizer_config.json"
            ]
        );
        let exported: Value =
            serde_json::from_slice(&fs::read(here.join("out/adapter_config.json")).unwrap()).unwrap();
        assert_eq!(exported["base_model_name_or_path"], json!("lab/base"));
        let card = fs::read_to_string(here.join("out/README.md")).unwrap();
        assert!(card.starts_with("---\nbase_model: lab/base\nlibrary_name: peft\n"), "{card}");

        must(here, &["export", "p", "merged", "--merge"]);
        must(here, &["check", "merged"]);
        assert!(!here.join("merged/adapter_config.json").exists());
        let (old, new) = (
            Weights::open(&here.join("base/current")).unwrap(),
            Weights::open(&here.join("merged")).unwrap(),
        );
        let factors = Weights::open_file(&adapter.join("adapter_model.safetensors")).unwrap();
        let (rank, alpha) = (config["r"].as_f64().unwrap(), config["lora_alpha"].as_f64().unwrap());
        let scale = alpha / if config["use_rslora"] == json!(true) { rank.sqrt() } else { rank };
        let mut merged = 0;
        for name in old.names() {
            let (before, after) = (old.tensor(name).unwrap(), new.tensor(name).unwrap());
            assert_eq!((before.dtype, before.shape), (after.dtype, after.shape));
            let (before, after) = (before.to_f32().unwrap(), after.to_f32().unwrap());
            let factor = |which: &str| {
                factors.to_f32(&format!(
                    "base_model.model.{}.lora_{which}.weight",
                    name.trim_end_matches(".weight")
                ))
            };
            let (Ok(a), Ok(b)) = (factor("A"), factor("B")) else {
                assert_eq!(before, after, "{name}");
                continue;
            };
            merged += 1;
            let (rank, inputs) = (rank as usize, a.len() / rank as usize);
            for (at, (before, after)) in before.iter().zip(&after).enumerate() {
                let (row, column) = (at / inputs, at % inputs);
                let product: f64 =
                    (0..rank).map(|r| f64::from(b[row * rank + r]) * f64::from(a[r * inputs + column])).sum();
                let expected = f64::from(*before) + scale * product;
                // Half a unit in the last place of bf16.
                assert!(
                    (f64::from(*after) - expected).abs() <= expected.abs() / 256.0 + 1e-6,
                    "{name}: {after} {expected}"
                );
            }
        }
        assert_eq!(merged * 2, factors.names().count());
    }
}

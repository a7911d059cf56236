//! Low-rank adapters: log-probabilities against PEFT's (tests/golden/adapters), and several in one batch.

use super::support::{PRECISIONS, bits, drain, request, runtime};
use crate::engine::{CarriedOver, Engine, Options, Request};
use policy::directory::Policy;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join("tests/golden")
}

pub fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a file")).expect("JSON")
}

/// A policy directory with a golden adapter and, if present, a link to its base.
pub fn policy(folder: &Path, adapter: &str) -> Policy {
    let source = golden().join("adapters").join(adapter);
    let root = folder.join(adapter);
    let files = root.join("step-000000");
    std::fs::create_dir_all(&files).expect("a folder");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(source.join(file), files.join(file)).expect("copied");
    }
    let base = read(&source.join("logprobs.json"))["base"].as_str().expect("a name").to_owned();
    std::os::unix::fs::symlink("step-000000", root.join("current")).expect("linked");
    std::os::unix::fs::symlink(golden().join(base), root.join("base")).expect("linked");
    Policy::open(&root).expect("a policy")
}

#[test]
fn logprobs_are_those_of_peft_with_one_base_for_all() {
    runtime();
    // Tolerances for f32 and bfloat16; SmolLM3's random weights amplify rounding errors.
    let sets = [
        (&["all", "some"][..], 0.05),
        (&["bias"], 0.05),
        (&["mistral"], 0.05),
        (&["smollm3"], 0.3),
        (&["biases"], 0.1),
        (&["phi3"], 0.05),
        (&["gemma3"], 0.3),
        // Rounding occasionally routes a token to another expert.
        (&["moe"], 2.0),
    ];
    for (names, (precision, most)) in sets
        .into_iter()
        .flat_map(|(names, most)| PRECISIONS.into_iter().zip([1e-4, most]).map(move |case| (names, case)))
    {
        let folder = tempfile::tempdir().expect("a folder");
        let policies: Vec<Policy> = names.iter().map(|name| policy(folder.path(), name)).collect();
        let members: Vec<&Policy> = policies.iter().collect();
        let engine = Engine::load_all(&members, &Options { precision, ..Options::default() }, None)
            .expect("an engine");
        let mut decoder = engine.decoder();
        let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(value.clone()).expect("ids") };
        let adapted = |name: &&str| read(&golden().join("adapters").join(name).join("logprobs.json"));
        // The base model is served, too.
        let base = adapted(&names[0])["base"].as_str().expect("a name").to_owned();
        let plain = read(&golden().join(base).join("logprobs.json"));
        for (index, expected) in std::iter::once(plain).chain(names.iter().map(adapted)).enumerate() {
            let mut worst = 0.0_f32;
            for case in expected["cases"].as_array().expect("cases") {
                let completions = case["completions"].as_array().expect("completions");
                let given: Vec<Vec<u32>> =
                    completions.iter().map(|item| ids(&item["completion_ids"])).collect();
                let adapter = (index as u32).checked_sub(1);
                let found = decoder.score(adapter, &ids(&case["prompt_ids"]), &given, 1.0);
                for (found, item) in found.iter().zip(completions) {
                    let wanted: Vec<f32> = serde_json::from_value(item["logprobs"].clone()).expect("numbers");
                    assert_eq!(found.len(), wanted.len());
                    for (found, wanted) in found.iter().zip(wanted) {
                        worst = std::cmp::max_by(worst, (found - wanted).abs(), f32::total_cmp);
                    }
                }
            }
            println!("{names:?} {index}: largest difference {worst:.2e}");
            assert!(worst <= most, "{names:?} {index} {precision:?}: {worst:.2e}");
        }
    }
}

#[test]
fn a_group_gives_the_same_bits_among_groups_of_other_adapters() {
    runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let policies = [policy(folder.path(), "all"), policy(folder.path(), "some")];
    let engine =
        Engine::load_all(&[&policies[0], &policies[1]], &Options::default(), None).expect("an engine");
    // The goldens' vocabulary is smaller than the other tests'.
    let small = |id: u64| {
        let mut request: Request = request(id, 9 + id as usize, 3, 12);
        request.prompt.iter_mut().for_each(|id| *id %= 64);
        request
    };
    let owners = [None, Some(0), Some(1), Some(0), None, Some(1)];
    let mut together = engine.decoder();
    for (id, owner) in owners.into_iter().enumerate() {
        together.submit(owner, small(id as u64)).expect("submitted");
    }
    let together = drain(&mut together);
    assert_eq!(together.len(), owners.len());
    for (id, owner) in owners.into_iter().enumerate() {
        let mut alone = engine.decoder();
        alone.submit(owner, small(id as u64)).expect("submitted");
        assert_eq!(bits(&drain(&mut alone)[0].1), bits(&together[id].1), "group {id}");
    }
    // Another adapter gives another completion for the same prompt and random numbers.
    let under = |owner: Option<u32>| {
        let mut decoder = engine.decoder();
        decoder.submit(owner, small(1)).expect("submitted");
        bits(&drain(&mut decoder)[0].1)
    };
    assert_ne!(under(None), under(Some(0)));
    assert_ne!(under(Some(1)), under(Some(0)));
}

/// With `--resident` one session serves successive versions, and a frozen base stays while
/// its files do not change.
#[test]
fn the_next_version_takes_over_the_session_and_a_frozen_base() {
    runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let policies = [policy(folder.path(), "all"), policy(folder.path(), "some")];
    let base = Policy::open(policies[0].model()).expect("the base");
    let load = |policy: &Policy, kept: Option<CarriedOver>| {
        Engine::load_all(&[policy], &Options::default(), kept).expect("an engine")
    };
    let said = |engine: &Engine, adapter: Option<u32>| {
        let mut decoder = engine.decoder();
        let mut request = request(3, 12, 3, 12);
        request.prompt.iter_mut().for_each(|id| *id %= 64);
        decoder.submit(adapter, request).expect("submitted");
        bits(&drain(&mut decoder)[0].1)
    };
    let first = load(&policies[0], None);
    let second = load(&policies[1], Some(first.kept()));
    assert!(Arc::ptr_eq(&first.model.network, &second.model.network));
    assert!(Arc::ptr_eq(&first.model.parameters.base, &second.model.parameters.base));
    assert_eq!(said(&second, Some(0)), said(&load(&policies[1], None), Some(0)));
    assert_ne!(said(&second, Some(0)), said(&first, Some(0)));
    // Without adapters the graph differs, and trained weights are not kept for the next version.
    let whole = load(&base, Some(second.kept()));
    assert!(!Arc::ptr_eq(&second.model.network, &whole.model.network));
    assert!(Arc::ptr_eq(&second.model.parameters.base, &whole.model.parameters.base));
    let copied = folder.path().join("copy");
    std::fs::create_dir(&copied).expect("a folder");
    for entry in std::fs::read_dir(policies[0].model()).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            std::fs::copy(&path, copied.join(path.file_name().expect("a name"))).expect("copied");
        }
    }
    let next = load(&Policy::open(&copied).expect("a policy"), Some(whole.kept()));
    assert!(Arc::ptr_eq(&whole.model.network, &next.model.network));
    assert!(!Arc::ptr_eq(&whole.model.parameters.base, &next.model.parameters.base));
    assert_eq!(said(&next, None), said(&whole, None));
}

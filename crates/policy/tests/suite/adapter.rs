//! Adapters on disk: how they are made, what of them is refused, and that their base stays as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use policy::adapter::{Adapter, Target};
use policy::config::Config;
use policy::directory::Policy;
use policy::initial;
use policy::publish::{self, Data, NewTensor, NewVersion};
use policy::retention::{Retention, retire};
use policy::weights::Weights;
use record::failure::{Failure, Result};
use serde_json::{Map, Value, json};

fn new(rank: usize) -> Adapter {
    Adapter::new(rank, 16.0, vec![Target::Query, Target::Down])
}

/// A base and an adapter over it, side by side.
fn pair(root: &Path) -> (Policy, Policy) {
    let base = crate::tiny(root, "base");
    let adapter = initial::from_base(&root.join("tool"), &base.root, &new(8), 3).unwrap();
    (base, adapter)
}

fn weights(policy: &Policy) -> Weights {
    Weights::open_file(&policy.files.join("adapter_model.safetensors")).unwrap()
}

/// What a stage does before it uses a policy.
fn used(root: &Path) -> Result<()> {
    let policy = Policy::open(root)?;
    policy.adapter()?.ok_or_else(|| Failure::work("not an adapter"))?;
    policy.verify()
}

#[test]
fn a_new_adapter_changes_nothing_and_the_seed_decides_every_byte() {
    let directory = tempfile::tempdir().unwrap();
    let (base, adapter) = pair(directory.path());
    let before = crate::contents(&base.root);
    assert_eq!(adapter.version.step, 0);
    assert_eq!(adapter.model(), base.files.canonicalize().unwrap());
    let tensors = weights(&adapter);
    let config = Config::load(adapter.model()).unwrap();
    assert_eq!(tensors.names().count(), config.num_layers * 2 * 2);
    for name in tensors.names() {
        let values = tensors.to_f32(name).unwrap();
        let bound = 1.0 / (tensors.tensor(name).unwrap().shape[1] as f32).sqrt();
        let zero = values.iter().all(|&value| value == 0.0);
        assert_eq!(zero, name.ends_with("lora_B.weight"), "{name}");
        assert!(values.iter().all(|value| value.abs() <= bound), "{name}");
    }
    let path = |name: &str| directory.path().join(name);
    let again = initial::from_base(&path("again"), &base.root, &new(8), 3).unwrap();
    assert_eq!(crate::contents(&again.root), crate::contents(&adapter.root));
    let other = initial::from_base(&path("other"), &base.root, &new(8), 4).unwrap();
    assert_ne!(other.version, adapter.version);
    let copy = initial::from_directory(&path("copy"), &adapter.root, None).unwrap();
    assert_eq!((copy.version, copy.base), (adapter.version.clone(), adapter.base.clone()));
    assert_eq!(crate::contents(&base.root), before, "the base was written to");

    // Base and adapters find each other wherever the folder is.
    let moved = tempfile::tempdir().unwrap();
    let target = moved.path().join("run");
    fs::rename(directory.path(), &target).unwrap();
    used(&target.join("tool")).unwrap();
    fs::create_dir(directory.path()).unwrap();
}

/// An adapter of another run brings its base along, once for all of them, and a copy of the run needs nothing else.
#[test]
fn a_run_holds_the_bases_of_its_adapters() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir_all(at("first/policies")).unwrap();
    let (base, adapter) = pair(&at("first/policies"));
    for folder in ["run/policies", "run/reference", "run/best-000004"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    fs::write(at("run/run.json"), "{}").unwrap();
    let names = ["policies/tool", "policies/planner", "reference/tool"].map(|name| at("run").join(name));
    for root in &names {
        let copy = initial::from_directory(root, &adapter.root, None).unwrap();
        assert_eq!(copy.version, adapter.version);
    }
    let best = at("run/best-000004/tool");
    initial::from_directory(&best, &names[0], None).unwrap();
    let own = format!("base-{}", base.version.digest);
    let link = |root: &Path| fs::read_link(root.join("base")).unwrap();
    assert_eq!(link(&names[0]), Path::new("..").join(&own).join("step-000000"));
    assert_eq!(link(&best), Path::new("../../policies").join(&own).join("step-000000"));
    assert_eq!(fs::read_dir(at("run/policies")).unwrap().count(), 3, "one base for all");
    fs::rename(at("run"), at("moved")).unwrap();
    fs::remove_dir_all(at("first")).unwrap();
    for root in names.iter().chain([&best]) {
        used(&at("moved").join(root.strip_prefix(at("run")).unwrap())).unwrap();
    }
}

/// `cp -rL` and object stores make folders of links, other tools text.
#[test]
fn a_copy_without_links_is_the_same_policy() {
    let directory = tempfile::tempdir().unwrap();
    let (_, adapter) = pair(directory.path());
    for link in ["tool/current", "tool/base", "base/current"].map(|name| directory.path().join(name)) {
        let target = fs::read_link(&link).unwrap();
        fs::remove_file(&link).unwrap();
        fs::write(&link, format!("{}\n", target.display())).unwrap();
    }
    used(&adapter.root).unwrap();
    let copy = tempfile::tempdir().unwrap();
    let linked = directory.path().join("linked");
    fs::create_dir(&linked).unwrap();
    let (_, again) = pair(&linked);
    let mut copied = std::process::Command::new("cp");
    assert!(copied.arg("-rL").args([&linked, copy.path()]).status().unwrap().success());
    let root = copy.path().join("linked/tool");
    assert!(!root.join("current").is_symlink() && !root.join("base").is_symlink());
    used(&root).unwrap();
    let policy = Policy::open(&root).unwrap();
    assert_eq!((policy.version.clone(), policy.root.clone()), (again.version, root.clone()));
    // Its next version is published as ever.
    let next = NewVersion { input: "1", tensors: &[], optimizer: &[], trainer_state: Some(&Map::new()) };
    publish::publish_same(&policy, &next, &Retention { keep: 2, pinned: &[] }).unwrap();
    assert_eq!(fs::read_link(root.join("current")).unwrap(), Path::new("step-000001"));
    used(&root).unwrap();
}

#[test]
fn versions_are_published_and_pruned_beside_a_base_that_stays() {
    let directory = tempfile::tempdir().unwrap();
    let (base, mut adapter) = pair(directory.path());
    let before = crate::contents(&base.root);
    for round in 1..4_u64 {
        let before_step = adapter.clone();
        let config = &before_step.config;
        let (description, old) = before_step.adapter().unwrap().unwrap();
        let values: Vec<(String, Vec<usize>, Vec<f32>)> = description
            .tensors(config)
            .into_iter()
            .map(|tensor| {
                let values = old.to_f32(&tensor.name).unwrap().iter().map(|value| value + 0.5).collect();
                (tensor.name, tensor.shape, values)
            })
            .collect();
        let tensors: Vec<NewTensor> = values
            .iter()
            .map(|(name, shape, values)| NewTensor { name, shape, data: Data::F32(values) })
            .collect();
        let input = format!("{round}");
        let next =
            NewVersion { input: &input, tensors: &tensors, optimizer: &[], trainer_state: Some(&Map::new()) };
        let retention = Retention { keep: 1, pinned: &[] };
        let version = publish::publish(&adapter, &next, &retention).unwrap();
        retire(&adapter.root, adapter.version.step, &version, &retention).unwrap();
        adapter = Policy::open(&adapter.root).unwrap();
        assert_eq!((version.step, &version), (round, &adapter.version));
        used(&adapter.root).unwrap();
        assert_eq!(weights(&adapter).to_f32(&values[0].0).unwrap(), values[0].2);
        assert_eq!(&Adapter::load(&adapter.files).unwrap(), description);
        // One tensor too few is another model.
        let failure = publish::publish(
            &adapter,
            &NewVersion { input: "x", tensors: &tensors[1..], ..next },
            &retention,
        );
        assert!(failure.is_err());
    }
    assert!(!adapter.root.join("step-000000").exists());
    assert_eq!(crate::contents(&base.root), before, "the base was written to");
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut json: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

#[test]
fn damaged_adapters_are_refused_with_a_sentence() {
    type Case<'a> = (&'a str, &'a dyn Fn(&Path), &'a str);
    let config =
        |key: &'static str, value: Value| move |path: &Path| edit(path, |json| json[key] = value.clone());
    let (rank, kind, targets) = (
        config("r", json!(4)),
        config("peft_type", json!("LOHA")),
        config("target_modules", json!(["q_proj"])),
    );
    let (pattern, more) = (
        config("alpha_pattern", json!({"q_proj": 1})),
        config("target_modules", json!(["q_proj", "v_proj", "down_proj"])),
    );
    let cases: [Case; 11] = [
        ("adapter_config.json", &rank, "has shape"),
        ("adapter_config.json", &kind, "peft_type is \"LOHA\""),
        ("adapter_config.json", &targets, "is not a target of adapter_config.json"),
        ("adapter_config.json", &pattern, "alpha_pattern is set"),
        ("adapter_config.json", &more, "is missing"),
        ("adapter_config.json", &|path| fs::write(path, "{").unwrap(), "not JSON"),
        ("adapter_model.safetensors", &|path| fs::remove_file(path).unwrap(), "no such file"),
        (
            "adapter_model.safetensors",
            &|path| {
                let bytes = fs::read(path).unwrap();
                fs::write(path, &bytes[..bytes.len() - 5]).unwrap();
            },
            "adapter_model.safetensors",
        ),
        (
            "adapter_model.safetensors",
            &|path| {
                let mut bytes = fs::read(path).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                fs::write(path, bytes).unwrap();
            },
            "the weights are those of",
        ),
        ("../base", &|path| fs::remove_file(path).unwrap(), "base: no such file"),
        (
            "../../base/step-000000/version.json",
            &|path| edit(path, |json| json["digest"] = json!("0".repeat(64))),
            "has other weights than this adapter was made for",
        ),
    ];
    for (name, change, expected) in cases {
        let directory = tempfile::tempdir().unwrap();
        let (_, adapter) = pair(directory.path());
        used(&adapter.root).unwrap();
        change(&adapter.files.join(name));
        let failure = used(&adapter.root).expect_err(expected);
        assert_eq!(failure.code, 65, "{}", failure.message);
        assert!(failure.message.contains(expected), "{} instead of {expected}", failure.message);
    }
}

#[test]
fn a_directory_of_peft_is_read_where_its_base_can_be_found() {
    let golden = |name: &str| -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
    };
    let directory = tempfile::tempdir().unwrap();
    let files = directory.path().join("some");
    fs::create_dir(&files).unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(golden("adapters/some").join(name), files.join(name)).unwrap();
    }
    let failure = Policy::open(&files).unwrap_err();
    assert!(failure.message.contains("is not a model's directory"), "{}", failure.message);
    edit(&files.join("adapter_config.json"), |json| {
        json["base_model_name_or_path"] = json!(golden("qwen3-6-3-untied").to_str().unwrap());
    });
    let plain = Policy::open(&files).unwrap();
    assert_eq!(plain.model(), golden("qwen3-6-3-untied").canonicalize().unwrap());
    let made = initial::from_directory(&directory.path().join("made"), &files, None).unwrap();
    assert_eq!(made.version, plain.version);
    used(&made.root).unwrap();
    let refused = initial::from_base(&directory.path().join("twice"), &made.root, &new(2), 0).unwrap_err();
    assert_eq!(refused.code, 2);
    assert!(refused.message.contains("an adapter itself"), "{}", refused.message);
}

#[test]
fn an_opened_policy_needs_its_names_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let (base, adapter) = pair(directory.path());
    let opened = Policy::open(&adapter.root).unwrap();
    let shared = opened.clone();
    opened.verify().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::remove_file(base.files.join(name)).unwrap();
    }
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::remove_file(opened.files.join(name)).unwrap();
    }
    // Users of the policy share its open files.
    opened.verify().unwrap();
    assert!(Arc::ptr_eq(&opened.weights().unwrap(), &shared.weights().unwrap()));
    let (description, weights) = shared.adapter().unwrap().unwrap();
    assert!(Arc::ptr_eq(&weights, &opened.adapter().unwrap().unwrap().1));
    description.check(&weights, &shared.config).unwrap();
    assert_eq!(Policy::open(&adapter.root).unwrap_err().code, 65);
}

//! Publishing: bytes, versions, and every state that a crash can leave.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use half::bf16;
use policy::config::Config;
use policy::directory::{Policy, Version};
use policy::publish::{self, Data, NewTensor, NewVersion};
use policy::retention::{self, Retention};
use policy::training_state::{save_state, training_state};
use policy::weights::Weights;
use record::failure::Result;
use serde_json::{Map, Value, json};

type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

/// A version's weights, each value multiplied.
fn scaled(policy: &Policy, factor: f32) -> Tensors {
    let weights = Weights::open(&policy.files).unwrap();
    let config = Config::load(&policy.files).unwrap();
    let values = |name: &str| weights.to_f32(name).unwrap().into_iter().map(|value| value * factor).collect();
    config
        .tensors()
        .into_iter()
        .map(|tensor| (tensor.name.clone(), tensor.shape, values(&tensor.name)))
        .collect()
}

fn view(tensors: &Tensors) -> Vec<NewTensor<'_>> {
    tensors.iter().map(|(name, shape, values)| NewTensor { name, shape, data: Data::F32(values) }).collect()
}

/// Publishes the next version with weights that only `input` decides, and a moment each.
pub fn next_keeping(policy: &Policy, input: &str, keep: usize, pinned: &[Version]) -> Result<Version> {
    let tensors = scaled(policy, 1.0 + input.len() as f32 / 64.0);
    let notes = Map::from_iter([("updates".to_owned(), json!(input.len()))]);
    let moments = scaled(policy, 0.5);
    let version = NewVersion {
        input,
        tensors: &view(&tensors),
        optimizer: &view(&moments),
        trainer_state: Some(&notes),
    };
    let retention = Retention { keep, pinned };
    let version = publish::publish(policy, &version, &retention)?;
    retire(policy, version, &retention)
}

fn retire(from: &Policy, version: Version, retention: &Retention) -> Result<Version> {
    retention::retire(&from.root, from.version.step, &version, retention).map(|()| version)
}

pub fn next(policy: &Policy, input: &str) -> Version {
    next_keeping(policy, input, 9, &[]).unwrap()
}

pub fn entries(root: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_version_is_complete_and_everything_but_the_weights_is_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    fs::write(first.files.join("chat_template.jinja"), "{{ '\r\n' }}").unwrap();
    let version = next(&first, "one");
    assert_eq!(version.step, 1);
    let second = Policy::open(&first.root).unwrap();
    assert_eq!(second.version, version);
    assert_eq!(second, Policy::open_version(&first.root, &version.to_string()).unwrap());
    assert_eq!(entries(&first.root), [".lock", "current", "step-000000", "step-000001"]);

    let (old, mut new) = (crate::contents(&first.files), crate::contents(&second.files));
    for name in ["optimizer.safetensors", "trainer_state.json"] {
        assert!(new.remove(name).is_some());
    }
    let own = |name: &str| name == "version.json" || name == "model.safetensors";
    assert!(old.iter().all(|(name, bytes)| own(name) || new[name] == *bytes));
    assert_eq!(old.len(), new.len());
    let expected = scaled(&first, 1.0 + 3.0 / 64.0);
    let weights = Weights::open(&second.files).unwrap();
    for (name, _, values) in &expected {
        assert_eq!(&weights.to_f32(name).unwrap(), values, "{name}");
    }
    second.verify().unwrap();

    let (moments, notes) = training_state(&second).unwrap().unwrap();
    assert_eq!(notes, Map::from_iter([("updates".to_owned(), json!(3))]));
    assert_eq!(moments.unwrap().to_f32("model.norm.weight").unwrap(), vec![0.5; 96]);
    assert!(training_state(&first).unwrap().is_none());
}

#[test]
fn the_same_values_give_the_same_file() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    let same = scaled(&first, 1.0);
    let version =
        NewVersion { input: "", tensors: &view(&same), optimizer: &[], trainer_state: Some(&Map::new()) };
    let version = publish::publish(&first, &version, &Retention { keep: 2, pinned: &[] }).unwrap();
    assert_eq!(version.digest, first.version.digest);
    assert_eq!(version.step, 1);
    let name = "model.safetensors";
    let second = Policy::open(&first.root).unwrap();
    assert_eq!(fs::read(first.files.join(name)).unwrap(), fs::read(second.files.join(name)).unwrap());
    assert!(!second.files.join("optimizer.safetensors").exists());
}

/// With weights first and the optimizer's state later a version is the same files.
#[test]
fn training_state_may_follow_its_version() {
    let directory = tempfile::tempdir().unwrap();
    let [whole, bare] = ["whole", "bare"].map(|name| crate::tiny(directory.path(), name));
    next(&whole, "one");
    let (tensors, moments) = (scaled(&bare, 1.0 + 3.0 / 64.0), scaled(&bare, 0.5));
    let version = NewVersion { input: "one", tensors: &view(&tensors), optimizer: &[], trainer_state: None };
    let retention = Retention { keep: 9, pinned: &[] };
    publish::publish(&bare, &version, &retention).unwrap();
    let published = Policy::open(&bare.root).unwrap();
    assert!(training_state(&published).unwrap().is_none());
    assert_eq!(publish::published(&bare, "one", &retention).unwrap().unwrap(), published.version);
    let notes = Map::from_iter([("updates".to_owned(), json!(3))]);
    save_state(&published, &view(&moments), &notes).unwrap();
    assert_eq!(entries(&bare.root), [".lock", "current", "step-000000", "step-000001"]);
    let expected = Policy::open(&whole.root).unwrap();
    assert!(crate::contents(&expected.files) == crate::contents(&published.files));
    assert!(training_state(&published).unwrap().is_some());
}

/// After a step that moved nothing, the files are links to the source's, and survive its removal.
#[test]
fn a_version_with_the_same_content_is_links() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    next(&first, "one");
    let second = Policy::open(&first.root).unwrap();
    let notes = Map::from_iter([("updates".to_owned(), json!(0))]);
    let same = NewVersion { input: "flat", tensors: &[], optimizer: &[], trainer_state: Some(&notes) };
    let retention = Retention { keep: 1, pinned: &[] };
    let version = publish::publish_same(&second, &same, &retention).unwrap();
    assert!(second.files.exists(), "until it is retired");
    let version = retire(&second, version, &retention).unwrap();
    assert_eq!((version.step, &version.digest), (2, &second.version.digest));
    let third = Policy::open(&first.root).unwrap();
    assert_eq!(third.version, version);
    third.verify().unwrap();
    // The source is gone, its files are not.
    assert!(!second.files.exists());
    let (moments, found) = training_state(&third).unwrap().unwrap();
    assert_eq!(moments.unwrap().to_f32("model.norm.weight").unwrap(), vec![0.5; 96]);
    assert_eq!(found, notes);
    let version = publish::publish_same(&third, &same, &retention).unwrap();
    assert_eq!(retire(&third, version, &retention).unwrap().step, 3);
    let fourth = Policy::open(&first.root).unwrap();
    for name in ["model.safetensors", "optimizer.safetensors"] {
        let nodes =
            [&third, &fourth].map(|policy| fs::metadata(policy.files.join(name)).map(|found| found.ino()));
        // The third's are gone, too, by now.
        assert!(nodes[0].is_err() && nodes[1].as_ref().is_ok_and(|node| *node > 0), "{name}");
    }
    // With a new optimizer state only the weights are.
    let moments = scaled(&fourth, 0.25);
    let fresh = NewVersion { input: "fresh", optimizer: &view(&moments), ..same };
    let retention = Retention { keep: 2, pinned: &[] };
    publish::publish_same(&fourth, &fresh, &retention).unwrap();
    let fifth = Policy::open(&first.root).unwrap();
    let node = |policy: &Policy, name: &str| fs::metadata(policy.files.join(name)).unwrap().ino();
    assert_eq!(node(&fourth, "model.safetensors"), node(&fifth, "model.safetensors"));
    assert_ne!(node(&fourth, "optimizer.safetensors"), node(&fifth, "optimizer.safetensors"));
}

/// Zeros are holes on the disk, and the same bytes.
#[test]
fn moments_of_zeros_take_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    let weights = scaled(&first, 1.0);
    let (shape, zeros) = (vec![3, 1 << 20], vec![0.0; 3 << 20]);
    let one = vec![1.0; 8];
    let moments = [
        NewTensor { name: "a", shape: &shape, data: Data::F32(&zeros) },
        NewTensor { name: "b", shape: &[8], data: Data::F32(&one) },
        NewTensor { name: "c", shape: &shape, data: Data::F32(&zeros) },
    ];
    let next = NewVersion {
        input: "",
        tensors: &view(&weights),
        optimizer: &moments,
        trainer_state: Some(&Map::new()),
    };
    publish::publish(&first, &next, &Retention { keep: 2, pinned: &[] }).unwrap();
    let second = Policy::open(&first.root).unwrap();
    let file = fs::metadata(second.files.join("optimizer.safetensors")).unwrap();
    assert!(
        file.len() > 24 << 20 && file.blocks() * 512 < 2 << 20,
        "{} in {} blocks",
        file.len(),
        file.blocks()
    );
    let read = training_state(&second).unwrap().unwrap().0.unwrap();
    for NewTensor { name, data, .. } in moments {
        let Data::F32(values) = data else { unreachable!("values in memory") };
        assert_eq!(read.to_f32(name).unwrap(), values, "{name}");
    }
}

#[test]
fn sixteen_bit_policies_stay_so_and_shards_too() {
    let directory = tempfile::tempdir().unwrap();
    let source = crate::tiny(directory.path(), "source");
    let plain = directory.path().join("plain");
    fs::create_dir(&plain).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(source.files.join(name), plain.join(name)).unwrap();
    }
    // Two shards of bf16, as `save_pretrained` cuts them, with a copy of the tied head and a buffer nobody trains.
    let weights = Weights::open(&source.files).unwrap();
    let mut map = Map::new();
    let names: Vec<&str> = weights.names().collect();
    for (shard, half) in [
        ("model-00001-of-00002.safetensors", &names[..20]),
        ("model-00002-of-00002.safetensors", &names[20..]),
    ] {
        let (mut header, mut data) = (Map::new(), Vec::new());
        let mut add = |name: &str, shape: &[usize], values: &[f32]| {
            let from = data.len();
            data.extend(values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()));
            header.insert(
                name.to_owned(),
                json!({"dtype": "BF16", "shape": shape, "data_offsets": [from, data.len()]}),
            );
            map.insert(name.to_owned(), Value::from(shard));
        };
        for name in half {
            add(name, weights.tensor(name).unwrap().shape, &weights.to_f32(name).unwrap());
        }
        if half.contains(&"model.embed_tokens.weight") {
            add("lm_head.weight", &[512, 96], &weights.to_f32("model.embed_tokens.weight").unwrap());
            add("model.rotary_emb.inv_freq", &[2], &[1.0, 0.5]);
        }
        let text = Value::Object(header).to_string();
        fs::write(
            plain.join(shard),
            [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &data].concat(),
        )
        .unwrap();
    }
    let index = json!({"metadata": {"total_size": 0}, "weight_map": map}).to_string();
    fs::write(plain.join("model.safetensors.index.json"), &index).unwrap();

    let first = policy::initial::from_directory(&directory.path().join("p"), &plain, None).unwrap();
    let version = next(&first, "four");
    let second = Policy::open(&first.root).unwrap();
    assert_eq!(second.version, version);
    assert_eq!(fs::read_to_string(second.files.join("model.safetensors.index.json")).unwrap(), index);
    let (old, new) = (Weights::open(&first.files).unwrap(), Weights::open(&second.files).unwrap());
    for name in old.names() {
        let (before, after) = (old.tensor(name).unwrap(), new.tensor(name).unwrap());
        assert_eq!((before.shape, before.offset, before.dtype), (after.shape, after.offset, after.dtype));
        let factor = if name.ends_with("inv_freq") { 1.0 } else { 1.0 + 4.0 / 64.0 };
        let expected: Vec<f32> =
            before.to_f32().unwrap().iter().map(|&value| bf16::from_f32(value * factor).to_f32()).collect();
        assert_eq!(after.to_f32().unwrap(), expected, "{name}");
    }
}

#[test]
fn the_same_input_does_nothing_and_another_one_replaces() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    let keep = Retention { keep: 9, pinned: &[] };
    assert_eq!(publish::published(&first, "one", &keep).unwrap(), None);
    let version = next(&first, "one");
    let before = crate::contents(&first.root);
    assert_eq!(publish::published(&first, "one", &keep).unwrap(), Some(version.clone()));
    assert_eq!(next(&first, "one"), version);
    assert_eq!(crate::contents(&first.root), before);

    let later = next(&Policy::open(&first.root).unwrap(), "and one more");
    assert_eq!(later.step, 2);
    assert_eq!(publish::published(&first, "one", &keep).unwrap(), Some(version.clone()));
    assert_eq!(
        Policy::open(&first.root).unwrap().version,
        later,
        "an older publish does not move the newest"
    );

    assert_eq!(publish::published(&first, "other", &keep).unwrap(), None);
    let replaced = next(&first, "other");
    assert_ne!(replaced, version);
    assert_eq!(Policy::open(&first.root).unwrap().version, replaced);
    assert_eq!(entries(&first.root), [".lock", "current", "step-000000", "step-000001"]);

    // The result is as if the other input had come first.
    let again = crate::tiny(directory.path(), "again");
    next(&again, "other");
    assert_eq!(crate::contents(&first.root), crate::contents(&again.root));
}

#[test]
fn versions_that_are_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    next(&first, "one");
    for (version, expected) in [
        ("7:00000000", "version 7:00000000 is not there"),
        ("1:00000000", "version 1:00000000 is not there, 1:"),
        ("1", "\"1\" is not a policy version"),
        ("x:00000000", "is not a policy version"),
    ] {
        let failure = Policy::open_version(&first.root, version).unwrap_err();
        assert_eq!(failure.code, 65);
        assert!(failure.message.contains(expected), "{}", failure.message);
    }
    let named = Policy::open(&first.root.join("step-000000")).unwrap();
    assert_eq!(named.version, first.version);
    assert!(named.is_writable_layout());
}

#[test]
fn plain_directories_are_never_written() {
    let directory = tempfile::tempdir().unwrap();
    let source = crate::tiny(directory.path(), "source");
    let plain = directory.path().join("plain");
    fs::rename(&source.files, &plain).unwrap();
    fs::remove_file(plain.join("version.json")).unwrap();
    let before = crate::contents(&plain);
    let failure = next_keeping(&Policy::open(&plain).unwrap(), "x", 2, &[]).unwrap_err();
    assert_eq!(failure.code, 2);
    assert_eq!(crate::contents(&plain), before);
}

#[test]
fn pinned_and_newest_versions_stay() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    let mut versions = vec![first.version.clone()];
    for step in 0..5 {
        let newest = Policy::open(&first.root).unwrap();
        versions.push(
            next_keeping(&newest, &"x".repeat(step + 1), 2, versions.get(1..2).unwrap_or_default()).unwrap(),
        );
    }
    let steps = ["step-000001", "step-000004", "step-000005"];
    assert_eq!(entries(&first.root)[2..], steps);
    let state = |step: &str| first.root.join(step).join("optimizer.safetensors").exists();
    assert_eq!(steps.map(state), [true, true, true], "pinned, the newest's source, the newest");

    let newest = Policy::open(&first.root).unwrap();
    next_keeping(&newest, "y", 3, &[]).unwrap();
    assert_eq!(entries(&first.root)[2..], ["step-000004", "step-000005", "step-000006"]);
    assert_eq!(["step-000004", "step-000005", "step-000006"].map(state), [false, true, true]);
}

#[test]
fn a_pinned_version_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    let version = next(&first, "one");
    let before = crate::contents(&first.root);
    let failure = next_keeping(&first, "other", 2, std::slice::from_ref(&version)).unwrap_err();
    assert_eq!(failure.code, 65);
    assert_eq!(crate::contents(&first.root), before);
}

#[test]
fn wrong_tensors_publish_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    let before = crate::contents(&first.root);
    let good = scaled(&first, 1.0);
    let changes: [&dyn Fn(&mut Tensors); 5] = [
        &|tensors| tensors.truncate(3),
        &|tensors| tensors.push(tensors[0].clone()),
        &|tensors| tensors[0].0 = "nobody".to_owned(),
        &|tensors| tensors[0].1.reverse(),
        &|tensors| tensors[0].2.truncate(3),
    ];
    for change in changes {
        let mut tensors = good.clone();
        change(&mut tensors);
        let version = NewVersion {
            input: "",
            tensors: &view(&tensors),
            optimizer: &[],
            trainer_state: Some(&Map::new()),
        };
        assert_eq!(
            publish::publish(&first, &version, &Retention { keep: 2, pinned: &[] }).unwrap_err().code,
            1
        );
        assert_eq!(Policy::open(&first.root).unwrap(), first);
    }
    next(&first, "one");
    let fresh = crate::tiny(directory.path(), "fresh");
    next(&fresh, "one");
    assert_eq!(crate::contents(&first.root), crate::contents(&fresh.root));
    assert_ne!(crate::contents(&first.root), before);
}

/// Every state between two steps of a publish, made by hand: a reader finds a whole version, and publishing again
/// ends in the state that an uninterrupted publish reaches.
#[test]
fn crashes() {
    let directory = tempfile::tempdir().unwrap();
    let reference = crate::tiny(directory.path(), "reference");
    let version = next(&reference, "one");
    let finished = crate::contents(&reference.root);
    let newer = reference.root.join("step-000001");

    type State<'a> = (&'a str, &'a dyn Fn(&Path), u64);
    let states: [State; 7] = [
        ("an empty new directory", &|root| fs::create_dir(root.join(".publish-step-000001")).unwrap(), 0),
        (
            "half a file",
            &|root| {
                fs::create_dir(root.join(".publish-step-000001")).unwrap();
                fs::write(root.join(".publish-step-000001/model.safetensors"), [0; 100]).unwrap();
            },
            0,
        ),
        ("all but the rename", &|root| copy(&newer, &root.join(".publish-step-000001")), 0),
        ("all but the link", &|root| copy(&newer, &root.join("step-000001")), 0),
        (
            "the new link beside the old",
            &|root| {
                copy(&newer, &root.join("step-000001"));
                symlink("step-000001", root.join(".current")).unwrap();
            },
            0,
        ),
        (
            "a version half removed",
            &|root| {
                fs::create_dir(root.join(".removed-step-000009")).unwrap();
                fs::write(root.join(".removed-step-000009/config.json"), "{").unwrap();
            },
            0,
        ),
        (
            "a version about to be replaced",
            &|root| {
                copy(&newer, &root.join(".publish-step-000001"));
                fs::create_dir(root.join(".removed-step-000001")).unwrap();
            },
            0,
        ),
    ];
    for (number, (name, make, newest)) in states.into_iter().enumerate() {
        let policy = crate::tiny(directory.path(), &number.to_string());
        make(&policy.root);
        let found = Policy::open(&policy.root).unwrap();
        assert_eq!(found.version.step, newest, "{name}");
        found.verify().unwrap();
        // Resuming starts from the version that the samples name, here the first.
        let resumed = Policy::open_version(&policy.root, &policy.version.to_string()).unwrap();
        assert_eq!(next(&resumed, "one"), version, "{name}");
        assert_eq!(crate::contents(&policy.root), finished, "{name}");
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

#[test]
fn state_of_other_weights_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = crate::tiny(directory.path(), "p");
    next(&first, "one");
    let second = Policy::open(&first.root).unwrap();
    for name in ["optimizer.safetensors", "trainer_state.json"] {
        fs::copy(second.files.join(name), first.files.join(name)).unwrap();
    }
    assert_eq!(training_state(&first).unwrap_err().code, 65);
    fs::remove_file(first.files.join("trainer_state.json")).unwrap();
    assert_eq!(training_state(&first).unwrap_err().code, 65);
}

//! Tests of the values that a run keeps.

use super::*;

fn values(pairs: &[(&str, &str)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
}

/// Like [`keep`], without defaults.
fn hold(run: &Path, pairs: &[(&str, &str)], named: Option<&BTreeSet<String>>) -> Result<Option<ValueChange>> {
    keep(run, &values(pairs), &Map::new(), "", named)
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn values_bind_once_there_are_policies() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    hold(run, &[("seed", "1")], None).unwrap();
    hold(run, &[("seed", "2"), ("lr", "1e-3")], None).unwrap();
    fs::create_dir(run.join("policies")).unwrap();
    fs::write(run.join("policies/done"), "").unwrap();
    hold(run, &[("seed", "2"), ("lr", "0.001")], None).unwrap();
    let other = [("seed", "3"), ("lr", "1e-3"), ("flags of update", "--epochs 2"), ("settings", "")];
    let failure = hold(run, &other, None).unwrap_err();
    let expected = "was started with --seed 2 no --flags, not with --seed 3 --flags 'update=--epochs 2'";
    assert!(failure.code == 2 && failure.message.ends_with(expected), "{}", failure.message);
}

#[test]
fn resuming_changes_what_may_change_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    let began = [("seed", "1"), ("lr", "1e-3"), ("env", "math")];
    hold(run, &began, None).unwrap();
    fs::create_dir(run.join("policies")).unwrap();
    fs::write(run.join("policies/done"), "").unwrap();
    let slower = [("seed", "1"), ("lr", "1e-4"), ("env", "math"), ("flags of update", "--epochs 2")];
    let named = names(&["lr", "flags"]);
    // Refused without `--resume`, for flags it does not name, and for flags that may not change.
    let refused = hold(run, &slower, None).unwrap_err();
    assert!(refused.hint.unwrap().contains("with --lr 1e-4 --flags 'update=--epochs 2' changes that"));
    assert_eq!(hold(run, &slower, Some(&names(&["lr"]))).unwrap_err().code, 2);
    let other = [("seed", "2"), ("lr", "1e-4"), ("env", "math")];
    let refused = hold(run, &other, Some(&names(&["lr", "seed"]))).unwrap_err();
    assert!(refused.hint.unwrap().starts_with("--seed cannot change in a run"));
    let read = || -> Map<String, Value> {
        serde_json::from_str(&fs::read_to_string(run.join("run.json")).unwrap()).unwrap()
    };
    assert_eq!(read(), values(&began));
    // It takes effect once it is written.
    let change = hold(run, &slower, Some(&named)).unwrap().unwrap();
    assert_eq!(read(), values(&began));
    change.write(run, 4, "").unwrap();
    let back = [("seed", "1"), ("lr", "1e-3"), ("env", "math"), ("flags of update", "--epochs 2")];
    assert!(hold(run, &slower, None).unwrap().is_none());
    hold(run, &back, Some(&named)).unwrap().unwrap().write(run, 9, "").unwrap();
    let mut expected = values(&back);
    let history = [
        "from step 4 on --lr 1e-4 --flags 'update=--epochs 2' instead of --lr 1e-3 no --flags",
        "from step 9 on --lr 1e-3 instead of --lr 1e-4",
    ];
    expected.insert("history".to_owned(), history.to_vec().into());
    assert_eq!(read(), expected);
}

#[test]
fn a_damaged_file_is_said_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    fs::create_dir(run.join("policies")).unwrap();
    fs::write(run.join("policies/done"), "").unwrap();
    for damaged in [&b""[..], b"{\"a\":", b"[1,2]", b"\xff", b"3"] {
        fs::write(run.join("run.json"), damaged).unwrap();
        let failure = hold(run, &[("seed", "1")], None).unwrap_err();
        assert!(failure.code == 65 && failure.hint.is_some() && !failure.message.contains('\n'));
        assert!(!run.join("config.toml").exists());
    }
    fs::write(run.join("run.json"), "{\"seed\": null, \"other\": [1]}").unwrap();
    assert_eq!(hold(run, &[("seed", "1")], None).unwrap_err().code, 2);
}

#[test]
fn what_differs_from_a_default_is_told_with_it() {
    let words = "--lr 0.001 --branches 4 --seed 2 --model smollm2 --flags";
    let words: Vec<&str> = words.split(' ').chain(["update=--epochs 2"]).collect();
    let mut settings = Settings::new(&words).unwrap();
    settings.set_token_limit(64);
    let agents = vec!["tool".to_owned()];
    let acting = Acting { env: "math".to_owned(), workflow: "check".to_owned(), agents, max_tokens: 128 };
    let values = super::values(&settings, &acting, "a build", &[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write_defaults(folder.path(), &defaults(&settings, &acting).unwrap(), &values).unwrap();
    let text = fs::read_to_string(folder.path().join("defaults.json")).unwrap();
    let found: std::collections::BTreeMap<String, String> = serde_json::from_str(&text).unwrap();
    let expected = [
        ("branches", "8"),
        ("env", "plan-path"),
        ("flags of update", ""),
        ("lr", "1e-5"),
        ("max_tokens", "128"),
        ("model", "tiny"),
        ("seed", "1"),
        ("workflow", "team"),
    ];
    assert_eq!(found, expected.map(|(name, default)| (name.to_owned(), default.to_owned())).into());
}

/// `run.json` as the build before this one wrote it: no value at its default where it does nothing, and the
/// warm-up's.
#[test]
fn values_of_an_earlier_build_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    fs::create_dir(run.join("policies")).unwrap();
    fs::write(run.join("policies/done"), "").unwrap();
    let earlier = r#"{"env": "plan-path", "settings": "size=6", "workflow": "team", "policies": "adapter-per-role",
        "turns": "", "seed": "1", "device": "cpu", "dtype": "float32", "select": "random", "max_tokens": "12",
        "top_p": "planner=0.9", "stages": "", "tasks": "6", "branches": "8", "temperature": "1.0 tool=0.90",
        "optimizer": "adamw", "lr": "0.001", "lr_warmup": "5", "betas": "0.9,0.950", "minibatches": "2", "kl": "0.01",
        "eval_every": "2", "eval_tasks": "300", "warmup": "40", "warmup_tasks": "8", "warmup_optimizer": "muon",
        "warmup_lr": "0.03", "warmup_lr_warmup": "50", "warmup_lr_other": "4e-3", "flags of update": "--epochs 2",
        "adapter": "rank=16,alpha=32", "build": "a build"}"#;
    fs::write(run.join("run.json"), earlier).unwrap();
    let words =
        ["--policies=adapter-per-role", "--tasks=6", "--warmup=40", "--eval-every=2", "--top-p=planner=0.9"];
    let words =
        [&words[..], &["--set=size=6", "--temperature=tool=0.9", "--flags=update=--epochs 2", "--kl=0.01"]];
    let compared = |words: &[&str]| {
        let mut settings = Settings::new(words).unwrap();
        settings.set_token_limit(12);
        let acting = Acting { env: "plan-path".to_owned(), workflow: "team".to_owned(), ..Acting::default() };
        let acting = Acting { max_tokens: 12, ..acting };
        let values = super::values(&settings, &acting, "a build", &[]).unwrap();
        let defaults = defaults(&settings, &acting).unwrap();
        compare(run, &values, &defaults).unwrap().unwrap().refuse(run, &values, false)
    };
    assert_eq!(compared(&words.concat()), Ok(()));
    let failure = compared(&[&words.concat()[..], &["--clip=0.3", "--top-k=5"]].concat()).unwrap_err();
    let expected = "was started with no --clip no --top-k, not with --top-k 5 --clip 0.3";
    assert!(
        failure.message.ends_with(expected) || failure.message.contains("--clip 0.3"),
        "{}",
        failure.message
    );
}

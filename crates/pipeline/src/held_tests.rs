//! Tests of the values that a run keeps.

use super::*;

fn values(pairs: &[(&str, &str)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()
}

#[test]
fn values_bind_once_there_are_policies() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    hold(run, &values(&[("seed", "1")]), &[], None).unwrap();
    hold(run, &values(&[("seed", "2"), ("lr", "1e-3")]), &[], None).unwrap();
    fs::create_dir(run.join("policies")).unwrap();
    fs::write(run.join("policies/done"), "").unwrap();
    hold(run, &values(&[("seed", "2"), ("lr", "0.001")]), &[], None).unwrap();
    let other = [("seed", "3"), ("lr", "1e-3"), ("flags of update", "--epochs 2"), ("settings", "")];
    let failure = hold(run, &values(&other), &[], None).unwrap_err();
    let expected = "was started with --seed 2 no --flags no --set, not with --seed 3 --flags 'update=--epochs 2' no --set";
    assert!(failure.code == 2 && failure.message.ends_with(expected), "{}", failure.message);
}

#[test]
fn resuming_changes_what_may_change_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    let began = [("seed", "1"), ("lr", "1e-3"), ("env", "math")];
    hold(run, &values(&began), &[], None).unwrap();
    fs::create_dir(run.join("policies")).unwrap();
    fs::write(run.join("policies/done"), "").unwrap();
    let slower = [("seed", "1"), ("lr", "1e-4"), ("env", "math"), ("flags of update", "--epochs 2")];
    let named = BTreeSet::from(["lr", "flags"]);
    // Refused without `--resume`, for flags it does not name, and for flags that may not change.
    let refused = hold(run, &values(&slower), &[], None).unwrap_err();
    assert!(refused.hint.unwrap().contains("with --lr 1e-4 --flags 'update=--epochs 2' changes that"));
    assert_eq!(hold(run, &values(&slower), &[], Some(&BTreeSet::from(["lr"]))).unwrap_err().code, 2);
    let other = [("seed", "2"), ("lr", "1e-4"), ("env", "math")];
    let refused = hold(run, &values(&other), &[], Some(&BTreeSet::from(["lr", "seed"]))).unwrap_err();
    assert!(refused.hint.unwrap().starts_with("--seed cannot change in a run"));
    let read = || -> Map<String, Value> {
        serde_json::from_str(&fs::read_to_string(run.join("run.json")).unwrap()).unwrap()
    };
    assert_eq!(read(), values(&began));
    // It takes effect once it is written.
    let change = hold(run, &values(&slower), &[], Some(&named)).unwrap().unwrap();
    assert_eq!(read(), values(&began));
    change.write(run, 4, &[]).unwrap();
    let back = [("seed", "1"), ("lr", "1e-3"), ("env", "math"), ("flags of update", "--epochs 2")];
    assert!(hold(run, &values(&slower), &[], None).unwrap().is_none());
    hold(run, &values(&back), &[], Some(&named)).unwrap().unwrap().write(run, 9, &[]).unwrap();
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
        let failure = hold(run, &values(&[("seed", "1")]), &[], None).unwrap_err();
        assert!(failure.code == 65 && failure.hint.is_some() && !failure.message.contains('\n'));
        assert!(!run.join("config.toml").exists());
    }
    fs::write(run.join("run.json"), "{\"seed\": null, \"other\": [1]}").unwrap();
    assert_eq!(hold(run, &values(&[("seed", "1")]), &[], None).unwrap_err().code, 2);
}

#[test]
fn what_differs_from_a_default_is_told_with_it() {
    let words = [
        "--lr",
        "0.001",
        "--branches",
        "4",
        "--seed",
        "2",
        "--model",
        "smollm2",
        "--flags",
        "update=--epochs 2",
    ];
    let words: Vec<String> = words.map(str::to_owned).into();
    let mut settings = Settings::new(&flags::parse(&words).unwrap().unwrap()).unwrap();
    settings.set_text("max_tokens", "64");
    let agents = vec!["tool".to_owned()];
    let acting = Acting { env: "math".to_owned(), workflow: "check".to_owned(), agents, max_tokens: 128 };
    let values = super::values(&settings, &acting, "a build", &[]);
    let mut found: Vec<(String, String)> = defaults(&settings, &acting, &values)
        .into_iter()
        .map(|(name, default)| (name, default.as_str().unwrap().to_owned()))
        .collect();
    found.sort();
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
    assert_eq!(found, expected.map(|(name, default)| (name.to_owned(), default.to_owned())));
}

//! Tests of configuration files.

use proptest::prelude::*;

use super::*;

fn lines(text: &str) -> Result<Vec<(&'static str, String)>> {
    Ok(parse("run.toml", text)?.0.into_iter().map(|given| (given.name, given.value)).collect())
}

#[test]
fn lines_are_flags_with_numbers_as_they_were_written() {
    let text = "steps = 1_2\nlr = 2e-3\nbetas = [0.9,\n 0.99, # and the other\n]\nkeep-best = true\n\
                set.size = 5\nset.free = false\ntrain = [\"tool\"]\n[stage]\ngroup = '''a\nb'''\n";
    let expected = [
        ("steps", "12"),
        ("lr", "2e-3"),
        ("betas", "0.9,0.99"),
        ("keep_best", "yes"),
        ("set", "size=5"),
        ("set", "free=false"),
        ("train", "tool"),
        ("stage", "group=a\nb"),
    ];
    assert_eq!(lines(text).unwrap(), expected.map(|(name, value)| (name, value.to_owned())));
}

#[test]
fn what_is_hostile_is_refused_in_its_line() {
    let deep = format!("set = {}", "[".repeat(100_000));
    for text in [
        "env = \"\\ud800\"",
        "env = \"\\UFFFFFFFF\"",
        &deep,
        "lr = inf",
        "steps = 0x10",
        "lr = 1979-05-27",
        "set.a.b = 1",
        "set = 3",
    ] {
        let failure = lines(&format!("\n{text}")).unwrap_err();
        assert!(failure.message.starts_with("run.toml:2: "), "{}", failure.message);
        assert!(failure.code == 2 && failure.hint.is_some());
    }
}

#[test]
fn the_command_line_goes_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml").display().to_string();
    std::fs::write(&path, "model = \"smollm2\"\nsteps = 3\n[set]\na = 1\nb = 2\n").unwrap();
    let given = |name, value: &str| Given { name, value: value.to_owned() };
    let merged = merge(vec![given("config", &path), given("set", "a=9"), given("policies", "x=y")]);
    let expected = [given("steps", "3"), given("set", "b=2"), given("set", "a=9"), given("policies", "x=y")];
    assert_eq!(merged.unwrap().flags, expected);
    std::fs::write(&path, "#".repeat(300_000)).unwrap();
    assert!(merge(vec![given("config", &path)]).unwrap_err().message.contains("larger than 256 KiB"));
}

#[test]
fn runs_that_differ_are_lists_and_the_command_line_goes_before_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("study.toml").display().to_string();
    std::fs::write(&path, "seeds = [1, 2]\nlr = 1e-3\n[sweep]\nbranches = [4, 8]\n[sweep.flags]\nupdate = [\"--epochs 2\", \"\"]").unwrap();
    let given = |name, value: &str| Given { name, value: value.to_owned() };
    let names = |more: &[Given]| -> Vec<String> {
        let asked = merge([&[given("config", &path)], more].concat()).unwrap();
        assert_eq!(asked.name.as_deref(), Some("study"));
        asked.axes.into_iter().map(|axis| axis.name).collect()
    };
    assert_eq!(names(&[]), ["branches", "update", "seed"]);
    assert_eq!(names(&[given("seed", "3"), given("flags", "update=x")]), ["branches"]);
    assert_eq!(names(&[given("branches", "3"), given("seeds", "7")]), ["update", "seed"]);
    std::fs::write(&path, "seed = 1\nseeds = [1, 2]").unwrap();
    assert!(
        merge(vec![given("config", &path)]).unwrap_err().message.contains("seed has one value and several")
    );
    std::fs::write(&path, "lr = 1\nsweep.lr = [1, 2]").unwrap();
    assert!(
        merge(vec![given("config", &path)]).unwrap_err().message.contains("lr has one value and several")
    );
    assert!(
        merge(vec![given("seeds", "1,x")]).unwrap_err().message.contains("--seeds 1,x: not whole numbers")
    );
}

/// Run longer with `TROUPE_FUZZ_SECONDS=60 cargo test -p troupe-pipeline fuzz`.
#[test]
fn fuzz_configurations() {
    const TOKENS: [&str; 20] = [
        "[",
        "]",
        "[[",
        "{",
        "}",
        "=",
        ".",
        "\"",
        "'''",
        "\"\"\"",
        "\\u0000",
        "\\UFFFFFFFF",
        "#",
        "\n",
        "inf",
        "1e999",
        "0x",
        "1979-05-27",
        "set.a = ",
        "\u{1b}[2J",
    ];
    let texts = [
        "steps = 1_2\nlr = 2e-3\nbetas = [0.9,\n 0.99, # and the other\n]\nkeep-best = true\nset.size = 5\n",
        "env = \"plan-path\"\ntrain = [\"tool\", 'planner']\n[stage]\ngroup = '''a\nb'''\nadvantage = \"\"\"c\\\n d\"\"\"\n[flags]\n",
        "policies = { tool = \"a\", planner = \"http://h:1/v1?model=m\" }\nmodel = \"\\u00e9\"\n",
        "seeds = [1, 2]\nlr = 1e-3\n[sweep]\nbranches = [4, 8]\n[sweep.flags]\nupdate = [\"--epochs 2\", \"\"]\n",
    ];
    let seeds = texts.map(|text| text.as_bytes().to_vec());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml").display().to_string();
    let (mut all, mut taken) = (0, 0);
    for number in troupe_tests::storm::inputs(300) {
        let bytes = troupe_tests::storm::damaged(&seeds, &TOKENS, number);
        std::fs::write(&path, &bytes).unwrap();
        let shown = || format!("input {number}: {}", String::from_utf8_lossy(&bytes));
        let started = std::time::Instant::now();
        let read = merge(vec![Given { name: "config", value: path.clone() }]);
        assert!(started.elapsed().as_secs() < 5, "{}", shown());
        all += 1;
        let outcome = read.and_then(|asked| {
            // Writing the flags and reading them again must give the same flags.
            let given = asked.flags;
            let (again, _) = parse("written", &written(&given))?;
            let names = |lines: &[Given]| {
                lines.iter().map(|line| line.name).collect::<std::collections::BTreeSet<_>>()
            };
            assert_eq!(names(&again), names(&given), "{}", shown());
            crate::settings::Settings::new(&given)
        });
        match outcome {
            Ok(_) => taken += 1,
            Err(failure) => {
                assert!(failure.code == 2 && failure.hint.is_some(), "{failure:?}, {}", shown());
                assert!(!failure.message.starts_with("written"), "{failure:?}, {}", shown());
            }
        }
    }
    assert!(taken > 0);
    eprintln!("{all} configurations, {taken} taken");
}

proptest! {
    #[test]
    fn what_is_written_is_read(command in "\\PC*|[\\x00-\\xff]*", lr in "[0-9]{1,3}(\\.[0-9]*)?|\\.[0-9]{1,3}", key in "[a-z.\" ]{1,5}") {
        let given = |name, value: String| Given { name, value };
        let all = vec![
            given("lr", lr.clone()),
            given("env_command", command.clone()),
            given("train", "a b".to_owned()),
            given("train", command.clone()),
            given("set", format!("{key}={command}")),
        ];
        let mut read = parse("written", &written(&all)).unwrap().0;
        let at = read.iter().position(|line| line.name == "lr").unwrap();
        prop_assert_eq!(read[at].value.parse::<f64>().unwrap(), lr.parse::<f64>().unwrap());
        read[at].value = lr;
        prop_assert_eq!(read, all);
    }
}

//! Tests of configuration files.

use proptest::prelude::*;

use super::*;

fn words(text: &str) -> Result<Vec<String>> {
    Ok(parse("run.toml", text)?.0.into_iter().flat_map(|line| line.words).collect())
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn lines_are_flags_with_numbers_as_they_were_written() {
    let text = "steps = 1_2\nlr = 2e-3\nbetas = [0.9,\n 0.99, # and the other\n]\nkeep_best = true\nseed = [1, 2]\n\
                set.size = 5\nset.free = false\ntrain = [\"tool\", \"b\"]\ntemperature = \"0.7 planner=1\"\n\
                [stage]\ngroup = '''a\nb'''\n";
    let expected = [
        "--steps=12",
        "--lr=2e-3",
        "--betas=0.9,0.99",
        "--keep-best=true",
        "--seed=1,2",
        "--set=size=5",
        "--set=free=false",
        "--train=tool",
        "--train=b",
        "--temperature=0.7 planner=1",
        "--stage=group=a\nb",
    ];
    assert_eq!(words(text).unwrap(), expected);
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
        "lr = [5e-4, 1e-3]",
        "max_tokens = [8, 16]",
    ] {
        let failure = words(&format!("\n{text}")).unwrap_err();
        assert!(failure.message.starts_with("run.toml:2: "), "{}", failure.message);
        assert!(failure.code == 2 && failure.hint.is_some());
    }
}

#[test]
fn the_command_line_goes_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml").display().to_string();
    std::fs::write(&path, "model = \"smollm2\"\nsteps = 3\n[set]\na = 1\nb = 2\n").unwrap();
    let config = format!("--config={path}");
    let merged = merge(&owned(&[&config, "--set", "a=9", "--policies=x=y"])).unwrap();
    assert_eq!(merged.words, ["--steps=3", "--set=b=2", &config, "--set", "a=9", "--policies=x=y"]);
    std::fs::write(&path, "#".repeat(300_000)).unwrap();
    assert!(merge(&[config]).unwrap_err().message.contains("larger than 256 KiB"));
}

#[test]
fn runs_that_differ_are_lists_and_the_command_line_goes_before_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("study.toml").display().to_string();
    std::fs::write(
        &path,
        "seed = [1, 2]\nlr = 1e-3\n[sweep]\nbranches = [4, 8]\n[sweep.flags]\nupdate = [\"--epochs 2\", \"\"]",
    )
    .unwrap();
    let config = format!("--config={path}");
    let names = |more: &[&str]| -> Vec<String> {
        let request = merge(&owned(&[&[config.as_str()], more].concat())).unwrap();
        assert_eq!(request.name.as_deref(), Some("study"));
        request.axes.into_iter().map(|axis| axis.name).collect()
    };
    assert_eq!(names(&[]), ["branches", "update", "seed"]);
    assert_eq!(names(&["--seed=3", "--flags=update=x"]), ["branches"]);
    assert_eq!(names(&["--branches=3", "--seed=7,8"]), ["update", "seed"]);
    for (text, cause) in [
        ("seed = 1\nsweep.seed = [1, 2]", "seed has one value and several"),
        ("lr = 1e-3\nsweep.lr = [1, 2]", "lr has one value and several"),
    ] {
        std::fs::write(&path, text).unwrap();
        let failure = merge(std::slice::from_ref(&config)).unwrap_err();
        assert!(failure.message.contains(cause), "{}", failure.message);
    }
    assert_eq!(merge(&owned(&["--seed=1,x"])).unwrap_err().code, 2);
}

/// A file as the build before this one wrote it: its warm-up's flags matter only until there are policies.
#[test]
fn a_run_of_an_earlier_build_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let text = "steps = 3                               # training steps\nwarmup = 40                             # warm-up: steps\n\
                warmup-tasks = 4                        # warm-up: tasks per step\n\
                warmup-optimizer = \"adamw\"              # warm-up: optimizer\n\
                warmup-lr = 0.03                        # warm-up: peak learning rate\ntokens = 900\n\
                temperature = \"0.7 planner=1\"\nlocal = \"/tmp/x\"\n\n[flags]\nupdate = \"--epochs 2\"\n";
    std::fs::write(folder.path().join("config.toml"), text).unwrap();
    let always = ["--steps=3", "--warmup=40", "--temperature=0.7 planner=1", "--flags=update=--epochs 2"];
    let warm_up =
        ["--flags=demo=--count 160", "--flags=warm-up=--optimizer adamw", "--flags=warm-up=--lr 0.03"];
    let read = || of_run(folder.path()).unwrap();
    assert_eq!(read(), [&warm_up[..], &["--token-budget=900"], &always].concat());
    std::fs::create_dir(folder.path().join("policies")).unwrap();
    std::fs::write(folder.path().join("policies/done"), "").unwrap();
    assert_eq!(read(), [&["--token-budget=900"][..], &always].concat());
}

/// Run longer with `TROUPE_FUZZ_SECONDS=60 cargo test -p pipeline fuzz`.
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
        "seed = [1, 2]\nlr = 1e-3\n[sweep]\nbranches = [4, 8]\n[sweep.flags]\nupdate = [\"--epochs 2\", \"\"]\n",
    ];
    let seeds = texts.map(|text| text.as_bytes().to_vec());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.toml").display().to_string();
    let (mut all, mut taken) = (0, 0);
    for number in troupe_tests::storm::inputs(200) {
        let bytes = troupe_tests::storm::damaged(&seeds, &TOKENS, number);
        std::fs::write(&path, &bytes).unwrap();
        let shown = || format!("input {number}: {}", String::from_utf8_lossy(&bytes));
        let started = std::time::Instant::now();
        let read = merge(&[format!("--config={path}")]);
        assert!(started.elapsed().as_secs() < 5, "{}", shown());
        all += 1;
        let outcome = read.and_then(|request| {
            // Writing the settings and reading them again must give the same settings.
            let settings = crate::settings::Settings::new(&request.words)?;
            let text = written(&settings)?;
            let words = parse("written", &text)?.0.into_iter().flat_map(|line| line.words);
            let again = crate::settings::Settings::new(&words.collect::<Vec<_>>())?;
            assert_eq!(written(&again)?, text, "{}", shown());
            Ok(())
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
        let words = [
            format!("--lr={lr}"),
            format!("--env-command={command}x"),
            "--train=a b".to_owned(),
            format!("--train={command}"),
            format!("--flags=update={command}"),
            format!("--policies={}=dir", key.replace(' ', "_")),
            format!("--temperature={lr}"),
            "--temperature=a=0.5".to_owned(),
        ];
        let before = crate::settings::Settings::new(&words).unwrap();
        let lines = parse("written", &written(&before).unwrap()).unwrap().0;
        let after = crate::settings::Settings::new(&lines.into_iter().flat_map(|line| line.words).collect::<Vec<_>>()).unwrap();
        prop_assert_eq!((&after.lr, &after.env_command, &after.train), (&before.lr, &before.env_command, &before.train));
        prop_assert_eq!((&after.policies, &after.temperature), (&before.policies, &before.temperature));
        prop_assert!(after.flags_of("update").eq(before.flags_of("update")));
    }
}

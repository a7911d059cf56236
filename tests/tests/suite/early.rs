//! Refusals of `pipeline.sh` before training, and its requirements on the machine.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use troupe_tests::{pipeline, programs, root, run, runtime};

const SMALL: [&str; 10] =
    ["--warmup", "0", "--steps", "1", "--tasks", "2", "--branches", "2", "--eval-every", "0"];

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
}

/// Each value is a program's to judge, and is judged before there is a policy.
#[test]
fn a_mistake_in_any_flag_of_any_stage_is_found_before_anything_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    for (flags, code, cause) in [
        (&["--optimizer", "adam"][..], 2, "invalid value 'adam' for '--optimizer"),
        (&["--clip", "5"], 2, "--clip must be"),
        (&["--betas", "2,3"], 2, "--betas must be"),
        (&["--betas", "0.9"], 2, "--betas must be two numbers"),
        (&["--parts", "3"], 2, "--parts must be"),
        (&["--kl", "-1"], 2, "invalid value '-1' for '--kl <X>': not a number from 0"),
        (&["--lr", "-1"], 2, "-1"),
        (&["--temperature", "0"], 2, "--branches 2 has no effect at temperature 0"),
        (&["--temperature", "planner=0"], 2, "--branches planner=2 has no effect at temperature 0"),
        (&["--temperature", "judge=1"], 2, "--temperature judge=…: plan-path/team has no agent judge"),
        (&["--max-tokens", "planner=0"], 2, "--max-tokens planner=0: not N or AGENT=N"),
        (&["--top-p", "2"], 2, "--top-p 2: must be above 0 and at most 1"),
        (&["--min-p", "tool=3"], 2, "--min-p 3: must be from 0 to 1"),
        (&["--stop", "a=b"], 2, "--stop a=…: plan-path/team has no agent a"),
        (&["--flags", "rollout=--nope"], 2, "--nope"),
        (&["--flags", "tasks=--nope"], 2, "--nope"),
        (&["--flags", "group=--by nobody"], 2, "nobody"),
        (&["--flags", "advantage=--estimator gpro"], 2, "gpro"),
        (&["--flags", "update=--epochs 0"], 2, "--epochs"),
        (&["--warmup", "5", "--flags", "warm-up=--lr -1"], 2, "invalid value '-1' for '--lr"),
        (&["--warmup", "5", "--flags", "demo=--nope"], 2, "--nope"),
        (&["--policies", "adapter-per-role", "--adapter", "r=8"], 2, "r=8"),
        (&["--device", "cuda:99"], 69, ""),
        (&["--device", "cuda:0-99"], 69, ""),
        (&["--device", "sim:3-1"], 2, "--device sim:3-1: the range runs backwards"),
        (&["--device", "sim:0-1", "--flags", "rollout=--threads 1"], 2, "a policy has 2 devices"),
    ] {
        for more in [&[][..], &["--resident"]] {
            let at = folder.path().join("run");
            let output = pipeline(&at, &[&SMALL[..], flags, more].concat()).output().expect("it runs");
            let said = said(&output);
            assert_eq!(output.status.code(), Some(code), "{flags:?} {more:?}: {said}");
            assert!(said.contains(cause) && said.contains("hint: "), "{flags:?}: {said}");
            assert!(!said.contains("tee") && !at.exists(), "{flags:?}: {said}");
        }
    }
}

/// Common typing mistakes and their messages.
#[test]
fn a_slip_of_the_command_line_is_told_what_was_meant() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    fs::write(here.join("study.toml"), "steps = 1\n").expect("written");
    fs::write(here.join("game.py"), "").expect("written");
    fs::create_dir_all(here.join("old/policies/tool/current")).expect("made");
    fs::write(here.join("old/run.json"), "{}").expect("written");
    for (typed, cause, hint) in [
        ("--model gpt2", "--model gpt2: there is no such preset", "hf:ORG/NAME"),
        ("--model smolm2", "there is no such preset", "did you mean smollm2?"),
        ("--model openai-community/gpt2", "there is no such preset", "hf:openai-community/gpt2"),
        ("--model ./nowhere", "there is no such preset", "named by its path"),
        ("evaluate", "evaluate needs --model NAME, or --policies AGENT=DIR", "played as it is by all agents"),
        (
            "--lr 10",
            "--lr 10: a step of adamw moves each weight by about as much",
            "default for these policies is 1e-3",
        ),
        ("--warmup-lr 3", "unexpected argument '--warmup-lr'", "did you mean --flags warm-up='--lr X'?"),
        ("--method GRPO", "invalid value 'GRPO'", "--method trajectory"),
        ("--seeds 1,2", "unexpected argument '--seeds'", "did you mean --seed 1,2,3?"),
        ("--evaluate 0", "unexpected argument '--evaluate'", "did you mean pipeline.sh evaluate?"),
        ("--branches 1", "a group of one candidate is flat", "--branches 2 or more"),
        ("study.toml", "'study.toml'", "did you mean --config study.toml?"),
        ("game.py", "'game.py'", "did you mean --env-command 'python3 game.py'?"),
        ("old", "'old'", "did you mean --resume old?"),
        ("--steps 3 --learning-rate 1", "unexpected argument '--learning-rate'", "did you mean --lr?"),
    ] {
        let output =
            troupe_tests::script().args(typed.split(' ')).current_dir(here).output().expect("it runs");
        let said = said(&output);
        assert!(output.status.code() == Some(2) && said.contains(cause), "{typed}: {said}");
        assert!(said.lines().count() == 2 && said.contains(hint), "{typed}: {said}");
        assert!(!here.join("runs").exists(), "{typed}");
    }
    // A larger rate is SGD's to have, and one candidate is enough where it is not compared with its siblings.
    for flags in [
        &["--optimizer", "sgd", "--lr", "2"][..],
        &["--branches", "1", "--flags", "group=--by task", "--flags", "advantage=--estimator raw"],
    ] {
        let output =
            pipeline(&here.join("runs/fine"), &[&SMALL[..], &["--steps", "0"], flags].concat()).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{flags:?}: {}", said(&output));
        fs::remove_dir_all(here.join("runs")).expect("removed");
    }
    let at = here.display();
    for (command, code, cause, hint) in [
        (
            format!("policy check {at}/old"),
            65,
            "a run, and not a policy directory",
            format!("its policies are {at}/old/policies/tool"),
        ),
        (
            "envs check --env-command 'python3 x.py' </dev/null".to_owned(),
            65,
            "there is no task on stdin",
            "my_env.py tasks --split test --count 20".to_owned(),
        ),
    ] {
        let (got, _, said) = run(&command);
        assert!(got == code && said.contains(cause) && said.contains(&hint), "{command}: {said}");
    }
}

/// A user's program that ignores `--workflow`, and one that reads it.
#[test]
fn a_workflow_that_a_program_does_not_know_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let examples = root().join("examples");
    let game = folder.path().join("game.py");
    let text = fs::read_to_string(examples.join("guess_number.py")).expect("an example");
    let module = folder.path().join("troupe_rl");
    fs::create_dir(&module).expect("a folder");
    fs::write(module.join("__init__.py"), fs::read(examples.join("troupe_rl/__init__.py")).expect("a file"))
        .expect("written");
    fs::write(&game, text).expect("written");
    let command = format!("python3 {}", game.display());
    let ask = || {
        let more = ["--steps", "0", "--env-command", &command, "--workflow", "solo"];
        let output = pipeline(&folder.path().join("run"), &[&SMALL[..], &more].concat()).output();
        let output = output.expect("it runs");
        (output.status.code(), said(&output))
    };
    let (code, told) = ask();
    assert!(
        code == Some(2) && told.contains("--workflow solo: `python3") && told.contains("answers alike"),
        "{told}"
    );
    let knows = "import json, sys\nfor line in sys.stdin:\n    r = json.loads(line)\n    w = r.get('workflow')\n    print(json.dumps({'request': r['request'], 'error': 'no ' + w} if w not in (None, 'solo') \
                 else {'request': r['request'], 'state': 0, 'observations': {'a': [{'role': 'user', 'content': 'x'}]}, 'agents': ['a'], 'order': 'sequential'}), flush=True)\n";
    let tasks = "import sys\nif 'tasks' in sys.argv:\n    print('{\"type\":\"task\",\"v\":1,\"env\":\"e\",\"task\":\"e/train/1\",\"split\":\"train\",\"spec\":{}}')\n    sys.exit()\n";
    fs::write(&game, format!("{tasks}{knows}")).expect("written");
    let (code, told) = ask();
    assert_eq!(code, Some(0), "{told}");
}

/// A key in the URL of a partner is refused before the URL is written to a file of the run.
#[test]
fn no_key_of_a_server_is_written_down() {
    let folder = tempfile::tempdir().expect("a folder");
    for url in [
        "http://127.0.0.1:9/v1?api_key=sk-SECRET-4711",
        "http://127.0.0.1:9/v1?model=m&key=sk-SECRET-4711",
        "http://sk-SECRET-4711@127.0.0.1:9/v1?model=m",
        "http://user:sk-SECRET-4711@127.0.0.1:9/v1",
        "http://127.0.0.1:9/v1?sk-SECRET-4711",
    ] {
        let at = folder.path().join("run");
        let policy = format!("tool={}", troupe_tests::warmed_up().display());
        let planner = format!("planner={url}");
        let more = ["--policies", &policy, "--policies", &planner];
        let output = pipeline(&at, &[&SMALL[..], &more].concat()).output().expect("it runs");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{url}: {said}");
        assert!(!said.contains("SECRET") && said.contains("api_key_var=N"), "{said}");
        assert!(!at.exists(), "{url}");
    }
}

/// `COMMAND` finds the caller's programs before this project's.
#[test]
fn the_python_of_an_environment_is_the_callers() {
    let folder = tempfile::tempdir().expect("a folder");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    for entry in fs::read_dir(programs()).expect("the programs") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            symlink(&path, bin.join(path.file_name().expect("a name"))).expect("a link");
        }
    }
    executable(&bin.join("python3"), "#!/bin/sh\necho 'a Python without the packages' >&2; exit 9\n");
    let command = format!("python3 {}", root().join("examples/guess_number.py").display());
    let arguments = [&SMALL[..], &["--env-command", &command]].concat();
    let output = pipeline(&folder.path().join("run"), &arguments).env("TROUPE_BIN", &bin).output();
    let output = output.expect("pipeline.sh runs");
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn an_environment_that_never_ends_is_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    for (command, cause) in [
        ("yes;:", "printed more than 16 MiB"),
        ("true;:", "printed nothing and ended with exit code 0"),
        ("echo x;:", "did not answer as expected: not JSON"),
        ("echo '{}';:", "no line is a task"),
        (r#"echo '{"type":"task","env":"../x","agents":[]}';:"#, "no folder can have it"),
    ] {
        let at = folder.path().join("run");
        let output = pipeline(&at, &[&SMALL[..], &["--env-command", command]].concat()).output();
        let output = output.expect("pipeline.sh runs");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains(cause) && said.lines().count() == 2 && !at.exists(), "{command}: {said}");
    }
}

#[test]
fn resident_stages_do_not_wait_for_tasks_that_never_come() {
    let folder = tempfile::tempdir().expect("a folder");
    for (number, tasks) in [
        "tasks=true",
        "tasks=envs tasks plan-path | grep -v end",
        "tasks=envs tasks plan-path; envs tasks plan-path",
    ]
    .into_iter()
    .enumerate()
    {
        let arguments = [&SMALL[..], &["--resident", "--stage", tasks]].concat();
        let output = pipeline(&folder.path().join(number.to_string()), &arguments).output();
        let output = output.expect("pipeline.sh runs");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(65), "{tasks}: {said}");
        assert!(said.contains("step 1: the stream of tasks does not end with its only `end` line"), "{said}");
    }
}

/// Whoever writes the streams of a step says which of them, and ends with 74.
#[test]
fn a_full_disk_is_74_whatever_writes_the_stream() {
    for (file, more) in [
        ("samples.jsonl", &[][..]),
        ("samples.jsonl", &["--resident"]),
        ("tasks.jsonl", &[]),
        ("metrics.jsonl", &["--resident"]),
        ("metrics.jsonl", &[]),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let step = folder.path().join("run/steps/000001");
        let begun = pipeline(&folder.path().join("run"), &[&SMALL[..], &["--steps", "0"]].concat()).output();
        assert!(begun.expect("pipeline.sh runs").status.success());
        fs::create_dir_all(&step).expect("a folder");
        symlink("/dev/full", step.join(file)).expect("a link");
        let output = pipeline(&folder.path().join("run"), &[&SMALL[..], more].concat()).output();
        let output = output.expect("pipeline.sh runs");
        let said = said(&output);
        assert_eq!(output.status.code(), Some(74), "{file} {more:?}: {said}");
        assert!(!said.contains("panicked") && said.contains("hint: "), "{file} {more:?}: {said}");
        assert!(file == "metrics.jsonl" || said.contains(file), "{file} {more:?}: {said}");
        assert!(!step.join("done").exists());
    }
}

/// A copy of a step, a folder with code for a name, and a `done` that leads out of the run.
#[test]
fn names_in_a_run_directory_are_data() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("run");
    let call = |steps: &str| {
        let mut command = pipeline(&at, &[&SMALL[..], &["--steps", steps]].concat());
        command.output().expect("pipeline.sh runs")
    };
    assert!(call("1").status.success());
    let steps = at.join("steps");
    let owned = folder.path().join("owned");
    for name in [
        "000001 copy",
        "000002.bak",
        "000001~",
        &format!("0+BASH_VERSINFO[$(touch {})]", owned.display().to_string().replace('/', "${HOME:0:1}")),
    ] {
        fs::create_dir(steps.join(name)).expect("a folder");
        fs::copy(steps.join("000001/done"), steps.join(name).join("done")).expect("a copy");
    }
    let output = call("2");
    assert!(output.status.success() && !owned.exists(), "{}", said(&output));
    assert!(steps.join("000002/done").is_file());

    let victim = folder.path().join("victim/step-000009");
    fs::create_dir_all(&victim).expect("a folder");
    fs::create_dir_all(folder.path().join("victim/step-000001")).expect("a folder");
    fs::write(steps.join("000002/done"), r#"{"step":2,"policies":{"../../victim":"1:abc"}}"#)
        .expect("written");
    let output = call("3");
    let told = said(&output);
    assert_eq!(output.status.code(), Some(65), "{told}");
    assert!(
        told.contains("steps/000002/done: it names ../../victim, which is no policy of this run"),
        "{told}"
    );
    assert!(victim.is_dir());

    for damaged in ["", "{\"a\":", "[1,2]"] {
        fs::write(at.join("run.json"), damaged).expect("written");
        let output = call("3");
        let told = said(&output);
        assert_eq!(output.status.code(), Some(65), "{told}");
        assert!(told.contains("run.json: not the values of a run") && told.lines().count() == 2, "{told}");
    }
}

/// Everything but Python that a machine has, and a whole run.
#[test]
fn a_run_needs_no_python() {
    let folder = tempfile::tempdir().expect("a folder");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    for program in ["bash", "sh", "tee", "dirname", "env"] {
        let (code, path, _) = run(&format!("command -v {program}"));
        assert_eq!(code, 0, "{program}");
        symlink(path.trim(), bin.join(program)).expect("a link");
    }
    for (name, more) in [("plain", &[][..]), ("resident", &["--resident", "--keep-best", "--compress"])] {
        let at = folder.path().join(name);
        let small = [
            "--warmup",
            "2",
            "--steps",
            "2",
            "--tasks",
            "2",
            "--branches",
            "2",
            "--eval-every",
            "1",
            "--eval-tasks",
            "2",
        ];
        let script = pipeline(&at, &[&small[..], more].concat());
        let mut command = Command::new(script.get_program());
        command.args(script.get_args()).env_clear().env("PATH", &bin).env("TROUPE_BIN", programs());
        let output = command.env("ORT_DYLIB_PATH", runtime()).output().expect("pipeline.sh runs");
        assert!(output.status.success(), "{}", said(&output));
        assert!(at.join("report.html").is_file() && at.join("steps/000002/done").is_file());
    }
}

/// A changed checkout is built again with a notice; an unchanged one prints nothing.
#[test]
fn a_build_says_what_it_builds() {
    let folder = tempfile::tempdir().expect("a folder");
    let (checkout, bin) = (folder.path().join("checkout"), folder.path().join("bin"));
    fs::create_dir_all(checkout.join("target/release")).expect("a folder");
    fs::create_dir(&bin).expect("a folder");
    fs::copy(root().join("pipeline.sh"), checkout.join("pipeline.sh")).expect("a copy");
    executable(&checkout.join("target/release/troupe-pipeline"), "#!/bin/sh\necho \"it runs $*\"\n");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a PATH"));
    for (cargo, code, told) in [
        (
            "printf '   Compiling rollout v0.1.0\\n    Finished dev\\n' >&2",
            0,
            "   Compiling rollout v0.1.0\n",
        ),
        ("printf '    Finished dev\\n' >&2", 0, ""),
        (
            "echo 'error: no' >&2; exit 101",
            1,
            "error: no\npipeline.sh: the build failed\nhint: see the message above\n",
        ),
    ] {
        executable(&bin.join("cargo"), &format!("#!/bin/sh\n{cargo}\n"));
        let mut script = Command::new(checkout.join("pipeline.sh"));
        script.args(["--steps", "3"]).env("PATH", &path).env_remove("TROUPE_BIN");
        let output = script.output().expect("pipeline.sh runs");
        assert_eq!((output.status.code(), said(&output).as_str()), (Some(code), told), "{cargo}");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(printed, if code == 0 { "it runs --steps 3\n" } else { "" });
    }
}

#[test]
fn a_run_has_a_printable_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().join("a\nb");
    let output = pipeline(&at, &SMALL).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("has a control character") && !at.exists(), "{}", said(&output));
}

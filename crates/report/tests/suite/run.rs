//! Outputs about a small run: a page that needs nothing else, a table, events, the terminal.

use std::process::Command;

use serde_json::json;

use crate::fixture::{data, must, part, put, refused, report, run, samples};

#[test]
fn page_fetches_nothing_and_has_the_same_bytes_each_time() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path());
    must(folder.path(), &["made-by-hand", "--quiet"]);
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    for fetched in ["src=", "href=\"h", "@import", "url(", "fetch(", "import(", "https://", "XMLHttp"] {
        assert!(!page.contains(fetched), "the page has {fetched}");
    }
    let addresses: Vec<&str> = page.split("http://").skip(1).collect();
    assert!(
        addresses.iter().all(|rest| rest.starts_with("www.w3.org/2000/svg")),
        "an address that is no name of SVG"
    );
    // A text of the run ends no script, and reaches the reader as it was.
    assert_eq!(page.matches("</script>").count(), 3);
    let data = data(&page);
    let group = &data["runs"][0]["episode_sets"][1]["episodes"][0]["groups"][0];
    assert_eq!(group["members"][0]["text"], "</script><script>alert(1)</script>");
    assert_eq!(group["prompt"][0]["content"], "what now? <b>&amp;");
    // A run that goes on, or was stopped, is shown as far as it is committed.
    assert_eq!((&data["runs"][0]["steps"], &data["runs"][0]["begun"]), (&json!(2), &json!(3)));
    must(folder.path(), &["made-by-hand", "--html", "again.html", "--quiet"]);
    assert_eq!(std::fs::read_to_string(folder.path().join("again.html")).unwrap(), page);
}

/// A step that was read once is not read again: one more step of a long run costs one more stream.
#[test]
fn report_reads_only_new_streams() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path());
    let page = || {
        must(folder.path(), &["made-by-hand", "--quiet"]);
        std::fs::read_to_string(run.join("report.html")).unwrap()
    };
    let first = page();
    let stream = run.join("steps/000001/samples.jsonl");
    let text = std::fs::read_to_string(&stream).unwrap();
    let time = std::fs::metadata(&stream).and_then(|facts| facts.modified()).expect("its time");
    let change = |text: &str, time| {
        std::fs::write(&stream, text).unwrap();
        let file = std::fs::File::options().append(true).open(&stream).unwrap();
        file.set_modified(time).unwrap();
    };
    // Nobody looks into it: the same size and time, and nothing that could be read.
    change(&"x".repeat(text.len()), time);
    assert_eq!(page(), first);
    change(&text.replace("\"reward\":0.25", "\"reward\":0.75"), time + std::time::Duration::from_secs(1));
    assert_ne!(page(), first, "a stream that changed");
    change(&text, time);
    // What is kept may be lost, or broken.
    std::fs::write(run.join("report.cache/step-000001.json"), "{").unwrap();
    assert_eq!(page(), first);
    std::fs::remove_dir_all(run.join("report.cache")).unwrap();
    std::fs::write(run.join("report.cache"), "in the way").unwrap();
    assert_eq!(page(), first);
}

#[test]
fn page_lists_every_episode_and_shows_any() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path());
    let mut all = String::new();
    for number in 0..12 {
        all += &samples(1).replace("\"1.0", &format!("\"1.{number}"));
    }
    put(&run, "steps/000001/samples.jsonl", &all);
    let page = |arguments: &[&str]| {
        must(folder.path(), &[&["made-by-hand", "--quiet"], arguments].concat());
        std::fs::read_to_string(run.join("report.html")).unwrap()
    };
    let named = |page: &str| -> Vec<String> {
        let data = data(page);
        let sets = data["runs"][0]["episode_sets"].as_array().expect("sets").clone();
        let set = sets.iter().find(|set| set["step"] == 1).expect("step 1");
        let episodes = set["episodes"].as_array().expect("episodes");
        episodes.iter().filter_map(|tree| Some(tree["episode"].as_str()?.to_owned())).collect()
    };
    let plain = page(&[]);
    assert_eq!(named(&plain), ["1.0", "1.1"]);
    assert_eq!(named(&page(&["--show", "1.11"])), ["1.0", "1.1", "1.11"]);
    let index = part(&plain, "index");
    let streams = index[0].as_array().expect("streams");
    assert_eq!(
        streams.iter().map(|stream| stream["step"].as_u64()).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(2)]
    );
    assert_eq!(streams[1]["verdicts"], "000000000000");
    // Two groups of an episode, of which the planner's is flat.
    assert_eq!(
        (&streams[1]["groups"], &streams[1]["flat"]),
        (&json!("222222222222"), &json!("111111111111"))
    );
    assert_eq!((&streams[1]["names"], &streams[1]["rewards"][11]), (&json!([]), &json!(1.5)));
    let stderr = refused(folder.path(), &["made-by-hand", "--show", "1.12"], 2);
    assert!(stderr.starts_with("report: --show 1.12: made-by-hand has no such episode\nhint: "), "{stderr}");
}

#[test]
fn stream_without_a_run_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), "samples.jsonl", &samples(4));
    must(folder.path(), &["samples.jsonl", "--quiet"]);
    let data = data(&std::fs::read_to_string(folder.path().join("samples.html")).unwrap());
    assert_eq!((&data["runs"][0]["steps"], &data["runs"][0]["last"]), (&json!(1), &json!(4)));
    assert_eq!(data["runs"][0]["episode_sets"][0]["episodes"][0]["groups"][0]["agent"], "tool");
}

#[test]
fn failed_page_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    put(&run(folder.path()), "taken/by", "a folder that is not empty");
    let stderr = refused(folder.path(), &["made-by-hand", "--html", "made-by-hand/taken", "--quiet"], 74);
    assert!(stderr.starts_with("report: made-by-hand/taken: "), "{stderr}");
    assert!(!folder.path().join("made-by-hand/taken.tmp").exists());
}

#[test]
fn csv_accounts_for_every_group() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path());
    let table = must(folder.path(), &["made-by-hand", "--csv", "-"]);
    assert!(!run.join("report.html").exists(), "only what was asked for");
    for row in [
        "made-by-hand,0,test,e,,,success,1,0.20654931437723745,1",
        "made-by-hand,1,train,e,,,success,0,0,0.7934506856227626",
        "made-by-hand,1,train,,,,groups_expected,2,,",
        "made-by-hand,2,train,,,,groups_expected,3,,",
        "made-by-hand,2,train,,,,groups,2,,",
        "made-by-hand,2,train,,,,groups_flat,1,,",
        "made-by-hand,2,train,,,,groups_dropped,1,,",
        "made-by-hand,2,train,,,,groups_dropped/rollout: env,1,,",
        "made-by-hand,2,train,e,,,solved_at_turn/0,1,,",
        "made-by-hand,2,train,,,tool,reward,0.625,,",
        "made-by-hand,2,train,,,tool,component/oracle,0.625,,",
        "made-by-hand,2,train,,,planner,groups_flat,1,,",
        "made-by-hand,2,train,,,tool,advantage_mass,1,,",
        "made-by-hand,2,train,,,planner,advantage_mass,0,,",
        "made-by-hand,2,train,,,tool,variance_within_state,1,,",
        // By hand: advantages of -0.25 and 0.5, and of 0 and 0.
        "made-by-hand,2,train,,,tool,flat,0,,",
        "made-by-hand,2,train,,,planner,flat,1,,",
        "made-by-hand,2,train,,,tool,advantage_mean,0.125,,",
        "made-by-hand,2,train,,,tool,advantage_largest,0.5,,",
        "made-by-hand,2,train,,,tool,entropy,1.5,,",
        "made-by-hand,2,train,,,tool,clip_ratio,0.25,,",
        "made-by-hand,2,train,,,planner,grad_norm,0,,",
        "made-by-hand,2,train,,shared,,grad_norm,1,,",
        "made-by-hand,2,train,,,planner,prompt_tokens,2,,",
        "made-by-hand,2,train,,,planner,completion_tokens,4,,",
        "made-by-hand,2,train,,shared,,sampling/logp_difference_max,0.00001,,",
        "made-by-hand,2,timing,,,,rollout/seconds,1.5,,",
        "made-by-hand,2,timing,,,,update/seconds,0.5,,",
        "made-by-hand,2,timing,,shared,,update/training_seconds,0.25,,",
    ] {
        assert!(table.lines().any(|line| line == row), "no row {row} in\n{table}");
    }
    assert!(!table.contains(",kl,"), "what was not measured is no figure");
}

/// The mistake that nobody saw for months: candidates of different states compared as if they were of one.
#[test]
fn csv_counts_uneven_groups_and_mixed_prompts() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path());
    let faults = |edit: &dyn Fn(&str) -> String| {
        let text = samples(2);
        let (first, rest) = text.split_once('\n').expect("lines");
        put(&run, "steps/000002/samples.jsonl", &format!("{}{rest}", edit(first)));
        let table = must(folder.path(), &["made-by-hand", "--csv", "-"]);
        ["groups_uneven", "groups_mixed_prompts"].map(|name| {
            let start = format!("made-by-hand,2,train,,,,{name},");
            let row = table.lines().find_map(|line| line.strip_prefix(&start)).expect("a row");
            row.trim_end_matches(',').to_owned()
        })
    };
    assert_eq!(faults(&|line| format!("{line}\n")), ["0", "0"]);
    let other = |line: &str| format!("{}\n", line.replace("\"prompt_ids\":[1,2]", "\"prompt_ids\":[1,3]"));
    assert_eq!(faults(&other), ["0", "1"]);
    assert_eq!(faults(&|_| String::new()), ["1", "0"], "a member is missing");
}

#[test]
fn runs_share_a_page_unless_one_is_named_twice() {
    let folder = tempfile::tempdir().unwrap();
    let first = run(folder.path());
    std::fs::create_dir(folder.path().join("other")).unwrap();
    let second = run(&folder.path().join("other"));
    let arguments = [first.to_str().unwrap(), second.to_str().unwrap(), "--quiet"];
    must(folder.path(), &arguments);
    let data = data(&std::fs::read_to_string(folder.path().join("report.html")).unwrap());
    let names: Vec<&str> =
        data["runs"].as_array().expect("runs").iter().filter_map(|run| run["name"].as_str()).collect();
    assert_eq!((names.len(), names[1]), (2, "other/made-by-hand"));
    let stderr = refused(folder.path(), &["made-by-hand", "./made-by-hand"], 2);
    assert_eq!(stderr, "report: ./made-by-hand: this run is there twice\n");
}

#[test]
fn broken_stream_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path());
    put(&run, "steps/000002/samples.jsonl", &samples(2).replace("\"branches\":2", "\"branches\":0"));
    let stderr = refused(folder.path(), &["made-by-hand"], 65);
    assert!(
        stderr.starts_with("report: steps/000002/samples.jsonl:1: 2.0/0/tool/0: branches is 0"),
        "{stderr}"
    );
}

#[test]
fn tensorboard_reads_the_events() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path());
    let written = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    for (place, name) in [
        "eval/step-000000.jsonl",
        "steps/000001/samples.jsonl",
        "steps/000001/metrics.jsonl",
        "steps/000002/samples.jsonl",
        "steps/000002/metrics.jsonl",
    ]
    .into_iter()
    .enumerate()
    {
        let file = std::fs::File::options().append(true).open(run.join(name)).unwrap();
        file.set_modified(written + std::time::Duration::from_secs(place as u64)).unwrap();
    }
    must(folder.path(), &["made-by-hand", "--tensorboard", "events", "--quiet"]);
    let events = folder.path().join("events/made-by-hand");
    assert!(events.join("events.out.tfevents.0.troupe").exists());
    let script = "
import sys
try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    sys.exit(77)
events = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
events.Reload()
for tag in ['test/success/e', 'train/reward/tool', 'train/loss/shared', 'timing/rollout/seconds', 'train/loss', 'train/rewards/tool/mean']:
    for event in events.Scalars(tag):
        print(tag, event.step, event.wall_time, event.value)
";
    let python = std::env::var("TROUPE_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let Ok(output) = Command::new(&python).args(["-c", script]).arg(&events).output() else {
        eprintln!("{python} is not installed: TensorBoard did not read the events");
        return;
    };
    if output.status.code() == Some(77) {
        eprintln!(
            "{python} has no package tensorboard (TROUPE_PYTHON names another one): it did not read the events"
        );
        return;
    }
    let read = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let wanted = "test/success/e 0 1700000000.0 1.0
train/reward/tool 1 1700000002.0 0.625
train/reward/tool 2 1700000004.0 0.625
train/loss/shared 1 1700000002.0 0.5
train/loss/shared 2 1700000004.0 0.5
timing/rollout/seconds 1 1700000002.0 1.5
timing/rollout/seconds 2 1700000004.0 1.5
train/loss 1 1700000002.0 0.5
train/loss 2 1700000004.0 0.5
train/rewards/tool/mean 1 1700000002.0 0.625
train/rewards/tool/mean 2 1700000004.0 0.625
";
    assert_eq!(read, wanted);
}

#[test]
fn watch_shows_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(folder.path());
    put(&run, "steps/000003/tasks.jsonl", "{\"type\":\"task\"}\n{\"type\":\"task\"}\n");
    put(&run, "steps/000003/samples.jsonl", "{\"type\":\"episode\"}\n{\"type\":\"sample\",\"v\":1,\"st");
    let view = must(folder.path(), &["made-by-hand", "--watch"]);
    for line in [
        "made-by-hand  e · team · shared",
        "step 2 committed; step 3: 1 of 2 episodes",
        "success, held out: 1.000 at step 0, 1.000 at step 0",
        "success in training: 0.000 at step 1, 1.000 at step 2",
        "groups     2 seen, 1 flat (50 %), 1 dropped",
        "reward     tool           0.625 ± 0.530  ▁▁ 2.0 tokens, 0 % cut\n",
        "role       tool         flat 0 %, share 100 %, entropy 1.50, gradient 0.75, clipped 25 %\n",
        "role       planner      flat 100 %, share 0 %, gradient 0.00, clipped 0 %\n",
        "agreement  1.0e-5 nats between sampler and trainer at most",
        "speed      8 tokens, 5 tokens/s, rollout 1.50 s, update 0.50 s",
        "episode    2.0 solved, 1 turns, reward 1.500, t",
        "turn 1 planner    0.500 +0.00  </script><script>alert(1)</script>",
    ] {
        assert!(view.contains(line), "no {line} in\n{view}");
    }
    let stderr = refused(folder.path(), &["made-by-hand", "made-by-hand", "--watch"], 2);
    assert_eq!(stderr, "report: --watch shows one run\n");
}

#[test]
fn patterns_may_name_reports_of_runs() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    std::fs::rename(folder.path().join("made-by-hand"), folder.path().join("one")).expect("moved");
    run(folder.path());
    put(folder.path(), "report.html", "<!doctype html>");
    let words = ["made-by-hand", "one", "report.html"];
    must(folder.path(), &[&words[..], &["--html", "all.html", "--quiet"]].concat());
    must(folder.path(), &[&["compare"], &words[..]].concat());
    let stderr = refused(folder.path(), &["."], 65);
    assert!(stderr.contains("hint: its runs are ./made-by-hand ./one"), "{stderr}");
    let stderr = refused(folder.path(), &["evaluate", "one"], 2);
    assert!(
        stderr.contains("one: a run, and not a stream") && stderr.contains("one/eval/step-000000.jsonl"),
        "{stderr}"
    );
}

/// A policy of two agents is drawn at each step, and its agents where `update` measured them.
#[test]
fn chart_of_a_shared_policy_has_its_agents() {
    let folder = tempfile::tempdir().unwrap();
    run(folder.path());
    // The data is written without matplotlib, too.
    report(folder.path(), &["made-by-hand", "--figure", "gradient-norm.svg", "--quiet"]);
    let table = std::fs::read_to_string(folder.path().join("gradient-norm.csv")).unwrap();
    assert_eq!(
        table.lines().collect::<Vec<_>>(),
        [
            "series,step,value,low,high",
            "planner,1,0,,",
            "planner,2,0,,",
            "tool,1,0.75,,",
            "tool,2,0.75,,",
            "shared,1,1,,",
            "shared,2,1,,",
        ]
    );
}

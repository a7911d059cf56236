//! The success rate of a training step, and the mean return where it says more.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use record::child;
use serde_json::Value;

use crate::programs::Programs;

/// The rate as text: `0.500 (8/16)`, of several environments `maze 0.500 (8/16), sudoku 0.250 (1/4)`; with `, return 1.25` where an
/// environment pays for more than success.
pub fn of_step(programs: &Programs, step: &Path) -> String {
    counted_rate(step).unwrap_or_else(|| evaluated_rate(programs, &step.join("samples.jsonl")))
}

/// The rate from the counts in the metrics' `end` line, which is cheap to read. `None` unless there is one
/// environment, each task was played once, and no episode failed.
fn counted_rate(step: &Path) -> Option<String> {
    let metrics = fs::read_to_string(step.join("metrics.jsonl")).ok()?;
    let tasks = fs::read_to_string(step.join("tasks.jsonl")).ok()?;
    let lines = |text: &str| -> Option<Vec<Value>> {
        text.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).ok()).collect()
    };
    let tasks = lines(&tasks)?;
    let names: Option<BTreeSet<&str>> =
        tasks.iter().filter(|line| line["type"] == "task").map(|line| line["task"].as_str()).collect();
    let distinct = names?.len() as u64;
    let (mut environments, mut episodes, mut solved, mut earned) = (BTreeSet::new(), 0, 0, 0.0);
    let ends = lines(&metrics)?;
    let mut stages: Vec<&Value> = ends.iter().filter(|line| line["type"] == "end").collect();
    while let Some(stage) = stages.pop() {
        stages.extend(stage["after"].as_array().into_iter().flatten());
        if stage["stage"] != "rollout" {
            continue;
        }
        let count = |name: &str| stage["counts"][name].as_u64();
        if count("errors")? > 0 {
            return None;
        }
        let played = count("episodes")?;
        episodes += played;
        solved += count("solved")?;
        for (name, environment) in stage["counts"]["environments"].as_object()? {
            environments.insert(name);
            earned += played as f64 * environment["reward"].as_f64()?;
        }
    }
    let is_plain = environments.len() == 1 && episodes == distinct && episodes > 0;
    let (success, returns) = (solved as f64 / episodes as f64, earned / episodes as f64);
    let paid =
        if (returns - success).abs() > 1e-9 { format!(", return {returns:.2}") } else { String::new() };
    is_plain.then(|| format!("{success:.3} ({solved}/{episodes}){paid}"))
}

/// The rate as `report` computes it, from the `episode` lines alone, because most of the file is samples.
fn evaluated_rate(programs: &Programs, samples: &Path) -> String {
    let counted = || -> Option<String> {
        let text = fs::read(samples).ok()?;
        let is_episode = |line: &&[u8]| {
            let has = |what: &str| memchr::memmem::find(line, what.as_bytes()).is_some();
            has("\"type\":\"episode\"") || has("\"type\": \"episode\"")
        };
        let lines: Vec<u8> =
            text.split_inclusive(|byte| *byte == b'\n').filter(is_episode).flatten().copied().collect();
        let mut report = programs.command("report");
        report.args(["evaluate", "--format", "line", "--allow-incomplete", "--quiet"]);
        let mut child =
            report.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let mut input = child.stdin.take()?;
        std::thread::spawn(move || input.write_all(&lines));
        let output = child::wait_with_output(child).ok().filter(|output| output.status.success())?;
        let rates = String::from_utf8(output.stdout).ok()?;
        // The rate, and without its interval the return.
        let said = |line: &str| {
            let paid = line.split(", ").find(|part| part.starts_with("return "));
            let paid = paid.and_then(|part| part.split(" (").next());
            Some([line.split(',').next()?].into_iter().chain(paid).collect::<Vec<_>>().join(", "))
        };
        Some(rates.lines().filter_map(said).collect::<Vec<_>>().join(", "))
    };
    counted().filter(|rate| !rate.is_empty()).unwrap_or_else(|| "none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_is_counted_where_counts_say_all_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let rate = |tasks: &[&str], ends: &str| {
            let tasks = tasks.iter().map(|task| format!("{{\"type\":\"task\",\"task\":\"{task}\"}}\n"));
            let tasks: String = tasks.chain(["{\"type\":\"end\"}\n".to_owned()]).collect();
            fs::write(folder.path().join("tasks.jsonl"), tasks).unwrap();
            let metrics = format!(
                "{{\"type\":\"metrics\"}}\n{{\"type\":\"end\",\"stage\":\"update\",\"after\":[{ends}]}}\n"
            );
            fs::write(folder.path().join("metrics.jsonl"), metrics).unwrap();
            counted_rate(folder.path())
        };
        let end = |episodes: u64, solved: u64, errors: u64, env: &str| {
            format!(
                "{{\"stage\":\"rollout\",\"counts\":{{\"episodes\":{episodes},\"solved\":{solved},\"errors\":{errors},\"environments\":{{\"{env}\":{{\"reward\":0.5}}}}}}}}"
            )
        };
        let three = ["e/1", "e/2", "e/3"];
        assert_eq!(rate(&three, &end(3, 2, 0, "e")).as_deref(), Some("0.667 (2/3), return 0.50"));
        let shards = format!("{},{}", end(2, 1, 0, "e"), end(1, 0, 0, "e"));
        assert_eq!(rate(&three, &shards).as_deref(), Some("0.333 (1/3), return 0.50"));
        assert_eq!(rate(&["e/1", "e/2"], &end(2, 1, 0, "e")).as_deref(), Some("0.500 (1/2)"));
        // In these cases `report` must count: a repeated task, a failed episode, two environments, parallel
        // episodes, a custom stage.
        for (tasks, ends) in [
            (&["e/1", "e/1", "e/3"][..], end(3, 2, 0, "e")),
            (&three, end(3, 2, 1, "e")),
            (&three, format!("{},{}", end(2, 1, 0, "e"), end(1, 0, 0, "f"))),
            (&three, end(12, 2, 0, "e")),
            (&three, "{\"stage\":\"mine\"}".to_owned()),
        ] {
            assert_eq!(rate(tasks, &ends), None, "{ends}");
        }
    }
}

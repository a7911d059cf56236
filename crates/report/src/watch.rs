//! `report RUN --watch`: a run on the terminal while it trains: the curve, groups, cut answers, advice,
//! rewards by agent, tokens per second, and an episode of the last step.
//!
//! Reads the run again when a step is committed. Where stdout is no terminal it is printed once.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use record::failure::{Failure, Result};
use record::stage::{interrupted, printable};
use record::{file, write};
use serde_json::Value;
use terminal_size::terminal_size;

use crate::chart::series::RunMetrics;
use crate::evaluate::measure::Rate;
use crate::evaluate::print::with_interval;
use crate::metrics::{self, COMPONENT, Metric};
use crate::run_directory::{RunDirectory, Snapshot};
use crate::run_summary::{self, MANY_CUT, RunSummary};
use crate::table::numbers;

/// How often the run directory is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Width if the terminal does not report one.
const WIDTH: usize = 100;
/// An eighth to eight eighths of a cell.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Shows the run until it is interrupted.
pub fn run(runs: &[PathBuf]) -> Result<()> {
    let [directory] = runs else {
        return Err(Failure::usage("--watch shows one run"));
    };
    let terminal = io::stdout().is_terminal();
    let name = directory.display().to_string();
    let mut state: Option<Snapshot> = None;
    let mut loaded: Option<((usize, usize), RunDirectory, Vec<Metric>)> = None;
    loop {
        let now = RunDirectory::snapshot(directory)?;
        let read = (now.committed, now.evaluations);
        if loaded.as_ref().is_none_or(|(known, ..)| *known != read) {
            let run = RunDirectory::read(directory, name.clone(), 2, &[])?;
            let metrics = metrics::run_metrics(&run);
            loaded = Some((read, run, metrics));
        }
        if let Some((_, run, metrics)) = loaded.as_ref().filter(|_| state.as_ref() != Some(&now)) {
            let size = terminal_size().map(|(width, height)| (width.0.into(), height.0.into()));
            let (width, height) = if terminal { size.unwrap_or((WIDTH, 40)) } else { (WIDTH, usize::MAX) };
            let text = view(run, metrics, &progress(directory, now.begun), width);
            if !terminal {
                return write::stdout(text.as_bytes());
            }
            let text: Vec<&str> = text.lines().take(height.saturating_sub(1)).collect();
            // First on an empty screen; then from its top, each line to its end, so that the screen does not
            // flicker.
            let start = if state.is_none() { "\x1b[2J\x1b[H" } else { "\x1b[H" };
            write::stdout(format!("{start}{}\x1b[K\r\n\x1b[J", text.join("\x1b[K\r\n")).as_bytes())?;
            state = Some(now);
        }
        for _ in 0..10 {
            if interrupted() {
                return Err(Failure::interrupted());
            }
            std::thread::sleep(EVERY / 10);
        }
    }
}

/// How far the step that was begun is.
fn progress(directory: &Path, begun: Option<u64>) -> String {
    let Some(step) = begun else { return String::new() };
    let folder = directory.join("steps").join(format!("{step:06}"));
    let count = |name: &str, what: &str| {
        let file = file::regular(&folder.join(name)).ok()?;
        let lines = BufReader::with_capacity(1 << 18, file).split(b'\n').map_while(io::Result::ok);
        Some(lines.filter(|line| line.starts_with(what.as_bytes())).count())
    };
    let tasks = count("tasks.jsonl", "{\"type\":\"task\"").unwrap_or_default();
    let played = count("samples.jsonl", "{\"type\":\"episode\"").unwrap_or_default();
    format!("; step {step}: {played} of {tasks} episodes")
}

/// Lines cut to the width of the terminal.
struct Screen {
    width: usize,
    text: String,
}

impl Screen {
    fn line(&mut self, line: &str) {
        let shown: String = printable(line).chars().take(self.width).collect();
        self.text += shown.trim_end();
        self.text.push('\n');
    }
}

fn view(run: &RunDirectory, metrics: &[Metric], progress: &str, width: usize) -> String {
    let mut screen = Screen { width, text: String::new() };
    let table = RunMetrics::new(run, metrics, usize::MAX);
    let summary = run_summary::summarize(&table, metrics);
    let setting =
        |name: &&str| run.settings.get(*name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let settings: Vec<&str> = ["env", "workflow", "policies"].iter().filter_map(setting).collect();
    let last = run.steps().next_back().map(|step| step.step);
    screen.line(&format!("{}  {}", run.name, settings.join(" · ")));
    screen.line(
        &(last.map_or("no step committed".to_owned(), |step| format!("step {step} committed")) + progress),
    );
    show_success(&mut screen, metrics, &summary);
    if let Some(last) = last {
        screen.line("");
        show_step(&mut screen, &table, metrics, &summary, last);
        let set = run.episode_sets.iter().rfind(|set| !set.held_out && set.step == last);
        if let Some(tree) = set.and_then(|set| serde_json::from_str::<Value>(set.episodes.last()?.get()).ok())
        {
            screen.line("");
            show_episode(&mut screen, &tree);
        }
    }
    screen.text
}

/// The curves of success, and the mean return with its components.
fn show_success(screen: &mut Screen, metrics: &[Metric], summary: &RunSummary) {
    for (title, split, rows) in [("success, held out", "test", 3), ("success in training", "train", 5)] {
        let values = over_steps(metrics, |metric| metric.split == split && metric.name == "success");
        let (Some((first, from)), Some((step, to))) = (values.first(), values.last()) else { continue };
        let best = summary.best.filter(|_| split == "test" && values.len() > 1);
        let best = best.map(|best| format!(", best {:.3} at step {}", best.value, best.step));
        screen.line("");
        screen.line(&format!(
            "{title}: {from:.3} at step {first}, {to:.3} at step {step}{}",
            best.unwrap_or_default()
        ));
        for (place, row) in curve(&values, screen.width.saturating_sub(7).min(96), rows).iter().enumerate() {
            let label = match place {
                0 => "1.0",
                _ if place + 1 == rows => "0.0",
                _ => "",
            };
            screen.line(&format!("{label:>4} │{row}"));
        }
    }
    let Some([first, last]) = summary.returns else { return };
    let interval = last.interval.map(|ends| format!(", 95 % interval {}", numbers(ends)));
    screen.line(&format!(
        "return, held out: {:.3} at step {}, {:.3} at step {}{}",
        first.value,
        first.step,
        last.value,
        last.step,
        interval.unwrap_or_default()
    ));
    for (agent, parts) in components(metrics, last.step) {
        for parts in parts.chunks(2) {
            screen.line(&format!("parts      {agent:<12} {}", parts.join(", ")));
        }
    }
}

/// The numbers of the last training step.
fn show_step(screen: &mut Screen, table: &RunMetrics, metrics: &[Metric], summary: &RunSummary, step: u64) {
    let total = |split, name| table.sum_at(step, split, name, |_| true);
    let of_all = |name| table.sum_at(step, "train", name, Metric::is_total);
    let (groups, flat) = (of_all("groups"), of_all("groups_flat"));
    let share = 100.0 * flat / groups.max(1.0);
    screen.line(&format!(
        "groups     {groups} seen, {flat} flat ({share:.0} %), {} dropped",
        of_all("groups_dropped")
    ));
    if let Some(cut) = summary.cut.filter(|cut| *cut >= MANY_CUT) {
        screen.line(&format!("cut        {:.0} % of the answers ended at the token limit", 100.0 * cut));
    }
    summary.advice.iter().take(1).for_each(|advice| screen.line(&format!("advice     {advice}")));
    let agents = table.values("train", "samples", |metric| &metric.agent);
    let value = |agent: &str, name| {
        let mut all = table.all("train", name).iter();
        all.find(|one| one.step == step && one.agent == agent).map(|one| one.value)
    };
    for agent in &agents {
        let Some(reward) = value(agent, "reward") else { continue };
        let is_reward = |one: &Metric| one.name == "reward" && one.agent == *agent && one.split == "train";
        let trend = curve(&scaled(&over_steps(metrics, is_reward)), 32, 1).concat();
        let [spread, tokens, cut] = ["reward_std", "completion_length", "completions_cut"]
            .map(|name| value(agent, name).unwrap_or_default());
        screen.line(&format!(
            "reward     {agent:<12} {reward:7.3} ± {spread:<6.3} {trend} {tokens:.1} tokens, {:.0} % cut",
            100.0 * cut
        ));
    }
    for agent in agents {
        let share =
            |name, label: &str| value(agent, name).map(|value| format!("{label} {:.0} %", 100.0 * value));
        let number = |name, label: &str| value(agent, name).map(|value| format!("{label} {value:.2}"));
        let parts = [
            share("flat", "flat"),
            share("advantage_mass", "share"),
            number("entropy", "entropy"),
            number("grad_norm", "gradient"),
            share("clip_ratio", "clipped"),
            number("advantage_success", "success"),
            number("anchor_size", "anchors"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        screen.line(&format!("role       {agent:<12} {}", parts.join(", ")));
    }
    let gaps = table.all("train", "sampling/logp_difference_max").iter().filter(|one| one.step == step);
    let gap = gaps.map(|one| one.value).fold(0.0, f64::max);
    let gap = if gap == 0.0 { "0".to_owned() } else { format!("{gap:.1e}") };
    screen.line(&format!("agreement  {gap} nats between sampler and trainer at most"));
    let (tokens, seconds) = (total("train", "completion_tokens"), total("timing", "rollout/seconds"));
    let rate = if seconds > 0.0 { format!("{:.0} tokens/s, ", tokens / seconds) } else { String::new() };
    screen.line(&format!(
        "speed      {tokens} tokens, {rate}rollout {seconds:.2} s, update {:.2} s",
        total("timing", "update/seconds")
    ));
}

/// The components of each agent's rewards in the evaluation after `step`.
fn components(metrics: &[Metric], step: u64) -> BTreeMap<&str, Vec<String>> {
    let mut by_agent: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for metric in metrics.iter().filter(|metric| metric.split == "test" && metric.step == step) {
        if let Some(name) = metric.name.strip_prefix(COMPONENT) {
            let rate = Rate { value: metric.value, interval: metric.interval };
            by_agent.entry(&metric.agent).or_default().push(format!("{name} {}", with_interval(&rate)));
        }
    }
    by_agent
}

/// The texts of an episode: a line for each agent and turn.
fn show_episode(screen: &mut Screen, tree: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_f64().map_or("–".to_owned(), |value| format!("{value:.3}"));
    let end = tree["ended"].as_array().and_then(|ends| ends.last()).cloned().unwrap_or_default();
    let verdict = if end["success"] == true { "solved" } else { "not solved" };
    screen.line(&format!(
        "episode    {} {verdict}, {} turns, reward {}, {}",
        text(&tree["episode"]),
        end["turns"],
        number(&end["reward"]),
        text(&tree["task"])
    ));
    for group in tree["groups"].as_array().into_iter().flatten() {
        let mut members = group["members"].as_array().into_iter().flatten();
        let Some(executed) = members.find(|member| member["selected"] == true) else { continue };
        let answer = text(&executed["text"]).split_whitespace().collect::<Vec<&str>>().join(" ");
        let advantage = executed["advantage"].as_f64().map_or(String::new(), |value| format!(" {value:+.2}"));
        screen.line(&format!(
            "           turn {} {:<10} {}{advantage}  {answer}",
            group["turn"].as_u64().unwrap_or_default() + 1,
            text(&group["agent"]),
            number(&executed["reward"])
        ));
    }
}

/// The mean of the metrics that are `of` interest at each step.
fn over_steps(metrics: &[Metric], of: impl Fn(&Metric) -> bool) -> Vec<(u64, f64)> {
    let mut values: Vec<(u64, f64, f64)> = Vec::new();
    for metric in metrics.iter().filter(|metric| of(metric)) {
        match values.last_mut() {
            Some((step, sum, count)) if *step == metric.step => {
                (*sum, *count) = (*sum + metric.value, *count + 1.0)
            }
            _ => values.push((metric.step, metric.value, 1.0)),
        }
    }
    values.into_iter().map(|(step, sum, count)| (step, sum / count)).collect()
}

/// From the least value to the greatest as 0 to 1.
fn scaled(values: &[(u64, f64)]) -> Vec<(u64, f64)> {
    let of = |pick: fn(f64, f64) -> f64, start| values.iter().map(|(_, value)| *value).fold(start, pick);
    let (low, high) = (of(f64::min, f64::INFINITY), of(f64::max, f64::NEG_INFINITY));
    values.iter().map(|(step, value)| (*step, (value - low) / (high - low).max(1e-12))).collect()
}

/// Values in [0, 1] as a curve of blocks, `rows` lines high and at most `width` wide; a cell is the mean of
/// its steps.
fn curve(values: &[(u64, f64)], width: usize, rows: usize) -> Vec<String> {
    let width = width.clamp(1, values.len().max(1));
    if values.is_empty() {
        return Vec::new();
    }
    let cells: Vec<f64> = (0..width)
        .map(|cell| {
            let part = &values[cell * values.len() / width..((cell + 1) * values.len() / width).max(1)];
            part.iter().map(|(_, value)| value).sum::<f64>() / part.len().max(1) as f64
        })
        .collect();
    (0..rows)
        .map(|row| {
            let below = (rows - 1 - row) * 8;
            let block = |value: &f64| {
                let eighths = ((value.clamp(0.0, 1.0) * (rows * 8) as f64).round() as usize).max(1);
                BLOCKS[eighths.saturating_sub(below).min(8)]
            };
            cells.iter().map(block).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curve_has_a_cell_per_step_up_to_the_width() {
        let values: Vec<(u64, f64)> = (0..=8).map(|step| (step, step as f64 / 8.0)).collect();
        assert_eq!(curve(&values, 20, 1), ["▁▁▂▃▄▅▆▇█"]);
        assert_eq!(curve(&values, 3, 2), ["  ▆", "▂██"]);
        assert_eq!(curve(&[(1, 0.5)], 20, 2), [" ", "█"]);
        assert_eq!(scaled(&[(1, 2.0), (2, 4.0)]), [(1, 0.0), (2, 1.0)]);
    }
}

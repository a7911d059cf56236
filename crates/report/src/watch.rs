//! `report RUN --watch`: a run on the terminal while it trains: the curve, groups, cut answers, advice, rewards by agent, tokens per
//! second, and an episode of the last step.
//!
//! Reads the run again when a step is committed. Where stdout is no terminal it is printed once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
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
use crate::facts::{self, MANY_CUT};
use crate::metrics::{self, COMPONENT, Metric};
use crate::run::{RunDirectory, Snapshot};
use crate::table::numbers;

/// How often the run directory is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// Width if the terminal does not report one.
const WIDTH: usize = 100;
/// Lines of the curve.
const CURVE: usize = 5;
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
        let now = RunDirectory::state(directory)?;
        let read = (now.committed, now.evaluations);
        if loaded.as_ref().is_none_or(|(known, ..)| *known != read) {
            let run = RunDirectory::read(directory, name.clone(), 2, &[])?;
            let metrics = metrics::of(&run);
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

fn view(run: &RunDirectory, metrics: &[Metric], progress: &str, width: usize) -> String {
    let mut text = String::new();
    let setting = |name: &str| run.settings.get(name).and_then(Value::as_str).unwrap_or_default();
    let last = run.steps().next_back().map(|step| step.step);
    let what = [setting("env"), setting("workflow"), setting("policies")];
    let what: Vec<&str> = what.into_iter().filter(|part| !part.is_empty()).collect();
    let mut line = |indent: usize, line: String| {
        let shown: String = printable(&line).chars().take(width.saturating_sub(indent)).collect();
        let _ = writeln!(text, "{:indent$}{}", "", shown.trim_end());
    };
    let facts = facts::of(&RunMetrics::new(run, metrics, usize::MAX), metrics);
    line(0, format!("{}  {}", run.name, what.join(" · ")));
    line(0, last.map_or("no step committed".to_owned(), |step| format!("step {step} committed")) + progress);
    for (title, split) in [("success, held out", "test"), ("success in training", "train")] {
        let values = over_steps(metrics, |metric| metric.split == split && metric.name == "success");
        let (Some((first, from)), Some((step, to))) = (values.first(), values.last()) else { continue };
        line(0, String::new());
        let best = match facts.best {
            Some(best) if split == "test" && values.len() > 1 => {
                format!(", best {:.3} at step {}", best.value, best.step)
            }
            _ => String::new(),
        };
        line(0, format!("{title}: {from:.3} at step {first}, {to:.3} at step {step}{best}"));
        let rows = if split == "test" { CURVE.div_ceil(2) } else { CURVE };
        for (place, row) in curve(&values, width.saturating_sub(7).min(96), rows).iter().enumerate() {
            let label = match place {
                0 => "1.0",
                _ if place + 1 == rows => "0.0",
                _ => "",
            };
            line(0, format!("{label:>4} │{row}"));
        }
    }
    if let Some([first, now]) = facts.returns {
        let interval = now.interval.map(|ends| format!(", 95 % interval {}", numbers(ends)));
        let (first, now) = (format!("{:.3} at step {}", first.value, first.step), (now.value, now.step));
        line(
            0,
            format!(
                "return, held out: {first}, {:.3} at step {}{}",
                now.0,
                now.1,
                interval.unwrap_or_default()
            ),
        );
        for (agent, parts) in components(metrics, now.1) {
            line(0, format!("parts      {agent:<12} {}", parts.join(", ")));
        }
    }
    let Some(last) = last else { return text };
    let now = |name: &str, split: &str| -> Vec<&Metric> {
        metrics.iter().filter(|one| one.step == last && one.name == name && one.split == split).collect()
    };
    let sum = |name: &str, split: &str| now(name, split).iter().map(|one| one.value).sum::<f64>();
    let all =
        |name: &str| now(name, "train").iter().find(|one| one.agent.is_empty()).map_or(0.0, |one| one.value);
    line(0, String::new());
    let (groups, flat) = (all("groups"), all("groups_flat"));
    let share = 100.0 * flat / groups.max(1.0);
    line(
        0,
        format!("groups     {groups} seen, {flat} flat ({share:.0} %), {} dropped", all("groups_dropped")),
    );
    if let Some(cut) = facts.cut.filter(|cut| *cut >= MANY_CUT) {
        line(0, format!("cut        {:.0} % of the answers ended at the token limit", 100.0 * cut));
    }
    facts.advice.iter().take(1).for_each(|advice| line(0, format!("advice     {advice}")));
    for reward in now("reward", "train").iter().filter(|one| !one.agent.is_empty()) {
        let of = |one: &Metric| one.name == "reward" && one.agent == reward.agent && one.split == "train";
        let trend: String = curve(&scaled(&over_steps(metrics, of)), 32, 1).concat();
        let at = |name: &str| {
            now(name, "train").iter().find(|one| one.agent == reward.agent).map_or(0.0, |one| one.value)
        };
        let [spread, tokens] = ["reward_std", "completion_length"].map(at);
        let cut = 100.0 * at("completions_cut");
        let answers = format!("{tokens:.1} tokens, {cut:.0} % cut");
        line(
            0,
            format!("reward     {:<12} {:7.3} ± {spread:<6.3} {trend} {answers}", reward.agent, reward.value),
        );
    }
    for role in now("samples", "train").iter().filter(|one| !one.agent.is_empty()) {
        line(
            0,
            of_role(&role.agent, &|name| {
                now(name, "train").iter().find(|one| one.agent == role.agent).map(|one| one.value)
            }),
        );
    }
    let agree = now("sampling/logp_difference_max", "train").iter().map(|one| one.value).fold(0.0, f64::max);
    let agree = if agree == 0.0 { "0".to_owned() } else { format!("{agree:.1e}") };
    line(0, format!("agreement  {agree} nats between sampler and trainer at most"));
    let (tokens, seconds) = (sum("completion_tokens", "train"), sum("rollout/seconds", "timing"));
    let rate = if seconds > 0.0 { format!("{:.0} tokens/s, ", tokens / seconds) } else { String::new() };
    line(
        0,
        format!(
            "speed      {tokens} tokens, {rate}rollout {seconds:.2} s, update {:.2} s",
            sum("update/seconds", "timing")
        ),
    );
    let set = run.episode_sets.iter().rfind(|set| !set.held_out && set.step == last);
    if let Some(tree) = set.and_then(|set| serde_json::from_str::<Value>(set.episodes.last()?.get()).ok()) {
        line(0, String::new());
        episode(&tree, &mut line);
    }
    text
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

/// What the last step says of an agent's learning, as far as it was measured.
fn of_role(agent: &str, value: &dyn Fn(&str) -> Option<f64>) -> String {
    let share = |name: &str, what: &str| value(name).map(|value| format!("{what} {:.0} %", 100.0 * value));
    let number = |name: &str, what: &str| value(name).map(|value| format!("{what} {value:.2}"));
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
    format!("role       {agent:<12} {}", parts.join(", "))
}

/// The texts of an episode: a line for each agent and turn.
fn episode(tree: &Value, line: &mut impl FnMut(usize, String)) {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_f64().map_or("–".to_owned(), |value| format!("{value:.3}"));
    let end = tree["ended"].as_array().and_then(|ends| ends.last()).cloned().unwrap_or_default();
    let verdict = if end["success"] == true { "solved" } else { "not solved" };
    line(
        0,
        format!(
            "episode    {} {verdict}, {} turns, reward {}, {}",
            word(&tree["episode"]),
            end["turns"],
            number(&end["reward"]),
            word(&tree["task"])
        ),
    );
    for group in tree["groups"].as_array().into_iter().flatten() {
        let members = group["members"].as_array();
        let Some(played) = members.into_iter().flatten().find(|member| member["selected"] == true) else {
            continue;
        };
        let said = word(&played["text"]).split_whitespace().collect::<Vec<&str>>().join(" ");
        let advantage = played["advantage"].as_f64().map_or(String::new(), |value| format!(" {value:+.2}"));
        let turn = group["turn"].as_u64().unwrap_or_default() + 1;
        line(
            11,
            format!(
                "turn {turn} {:<10} {}{advantage}  {said}",
                word(&group["agent"]),
                number(&played["reward"])
            ),
        );
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

/// Values in [0, 1] as a curve of blocks, `rows` lines high and at most `width` wide; a cell is the mean of its steps.
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
    fn a_curve_has_a_cell_a_step_until_it_is_too_wide() {
        let values: Vec<(u64, f64)> = (0..=8).map(|step| (step, step as f64 / 8.0)).collect();
        assert_eq!(curve(&values, 20, 1), ["▁▁▂▃▄▅▆▇█"]);
        assert_eq!(curve(&values, 3, 2), ["  ▆", "▂██"]);
        assert_eq!(curve(&[(1, 0.5)], 20, 2), [" ", "█"]);
        assert_eq!(scaled(&[(1, 2.0), (2, 4.0)]), [(1, 0.0), (2, 1.0)]);
    }
}

//! `run.json`, the values that a run must keep, and `config.toml`, the flags of the latest command.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::{Map, Value};

use crate::disk;
use crate::environment::Acting;
use crate::file;
use crate::flags::{self, Flag, Given, Kind, NUMBERS};
use crate::inputs;
use crate::settings::{PolicyChoice, Settings};
use crate::words::quoted;

/// The values that may not change once policies have been trained with them.
pub fn values(
    settings: &Settings,
    acting: &Acting,
    build: &str,
    inputs: &[(String, String)],
) -> Map<String, Value> {
    let mut values = Map::new();
    let mut add = |name: &str, value: &str| values.insert(name.to_owned(), value.into());
    add("env", &acting.env);
    add("settings", &settings.set.join(" "));
    add("workflow", &acting.workflow);
    add("policies", &settings.policies.words().join(" "));
    for name in ["turns", "seed", "device", "dtype", "select", "max_tokens"] {
        add(name, settings.text(name));
    }
    for name in ["top_p", "top_k", "min_p"].into_iter().filter(|name| !settings.text(name).is_empty()) {
        add(name, settings.text(name));
    }
    if settings.pool() > 0 {
        add("opponents", settings.text("opponents"));
    }
    if !settings.stop.is_empty() {
        let texts: Vec<String> = settings.stop.iter().map(|text| format!("{text:?}")).collect();
        add("stop", &texts.join(" "));
    }
    add("stages", &stages(settings));
    for flag in NUMBERS {
        match (flag.name, settings.text(flag.name)) {
            // Left out because they change no sample, or are at a default at which they do nothing.
            ("steps" | "keep" | "save_every", _) | ("clip", "0.2") | ("kl", "0") | ("parts", "1") => {}
            (name, value) => drop(add(name, value)),
        }
    }
    if settings.text("model") != "tiny" {
        add("model", settings.text("model"));
    }
    for (stage, words) in &settings.flags {
        add(&format!("flags of {stage}"), words);
    }
    if settings.text("method") != "at-grpo" {
        add("method", settings.text("method"));
    }
    if !settings.train.is_empty() {
        add("train", &settings.train.join(" "));
    }
    if !settings.text("env_command").is_empty() {
        add("env_command", settings.text("env_command"));
    }
    if settings.policies == PolicyChoice::AdapterPerRole {
        add("adapter", settings.text("adapter"));
    }
    inputs.iter().for_each(|(name, digest)| drop(add(name, digest)));
    if let Some(rate) = &settings.rate {
        add(DEFAULT_RATE, rate);
    }
    add("build", build);
    values
}

/// The default of each value that differs from its default, so that the report page can mark the difference.
pub fn defaults(settings: &Settings, acting: &Acting, values: &Map<String, Value>) -> Map<String, Value> {
    let limit = acting.max_tokens.to_string();
    let default = |name: &str| -> Option<String> {
        match name {
            "settings" | "stages" | "train" | "env_command" | "turns" => Some(String::new()),
            "max_tokens" => Some(limit.clone()),
            // These describe the machine, or follow from another value.
            "device" | "dtype" | "build" => None,
            name if name.starts_with("flags of ") => Some(String::new()),
            name => {
                if let Some(rate) = settings.rate.clone().filter(|_| name == "lr") {
                    return Some(rate);
                }
                let flag = flags::find(name)?;
                let kind = if flags::NUMBERS.iter().any(|number| number.name == name) {
                    settings.kind as usize
                } else {
                    0
                };
                Some(flag.defaults[kind].to_owned())
            }
        }
    };
    let differing = values.iter().filter_map(|(name, value)| {
        let default = Value::from(default(name)?);
        (!is_same(Some(&default), Some(value))).then(|| (name.clone(), default))
    });
    differing.collect()
}

/// Writes `defaults.json`.
pub fn write_defaults(run: &Path, defaults: &Map<String, Value>) -> Result<()> {
    let text = serde_json::to_string_pretty(defaults)
        .map_err(|error| Failure::work(format!("defaults.json: {error}")))?;
    disk::replace(&run.join("defaults.json"), &format!("{text}\n"))
}

/// The commands of `--stage`, in canonical order.
fn stages(settings: &Settings) -> String {
    let joined: String =
        settings.stage.iter().map(|(stage, command)| format!("{stage}={command};")).collect();
    let mut parts: Vec<&str> = joined.split([';', '\n']).filter(|part| !part.is_empty()).collect();
    parts.sort_unstable();
    parts.iter().map(|part| format!("{part};")).collect()
}

/// The complete configuration of a run, as lines of `config.toml`.
pub fn lines(settings: &Settings) -> Vec<Given> {
    let is_handed_in = matches!(settings.policies, PolicyChoice::Named(_));
    let is_own = settings.text("env_command").is_empty();
    let mut lines = Vec::new();
    for flag in flags::all().filter(|flag| flag.is_of_a_run()) {
        let left_out = match flag.name {
            "env" | "set" => !is_own,
            "adapter" => settings.policies != PolicyChoice::AdapterPerRole,
            "model" => is_handed_in,
            _ => false,
        };
        let of_stages = |of: &std::collections::BTreeMap<String, String>| {
            of.iter().map(|(stage, text)| format!("{stage}={text}")).collect()
        };
        let values: Vec<String> = match (flag.kind, flag.name) {
            (Kind::Table, "set") => settings.set.clone(),
            (Kind::Table, "flags") => of_stages(&settings.flags),
            (Kind::Table, _) => of_stages(&settings.stage),
            (Kind::Policies, _) => settings.policies.words(),
            (Kind::List, "stop") => settings.stop.clone(),
            (Kind::List, _) => settings.train.clone(),
            _ => match settings.text(flag.name) {
                "" | "-" => Vec::new(), // the program's default, or without effect
                text => vec![text.to_owned()],
            },
        };
        if !left_out {
            lines.extend(values.into_iter().map(|value| Given { name: flag.name, value }));
        }
    }
    lines
}

/// A comparison with the values recorded in `run.json`.
#[derive(Debug)]
pub struct Comparison {
    before: Map<String, Value>,
    /// The names whose values differ.
    differing: Vec<String>,
}

/// A change of values in the middle of a run.
#[derive(Debug)]
pub struct ValueChange {
    values: Map<String, Value>,
    history: Vec<Value>,
    said: String,
}

/// The key in `run.json` that lists earlier changes.
const HISTORY: &str = "history";

/// The key in `run.json` of the learning rate that the model's size suggests, whether or not the run has it.
pub const DEFAULT_RATE: &str = "default_lr";

/// The first step that was made with the present values.
pub fn changed_before(run: &Path) -> u64 {
    let values: Value = record::file::read(&run.join("run.json"))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let last = values[HISTORY].as_array().and_then(|history| history.last()?.as_str());
    last.and_then(|said| said.split(' ').nth(2)?.parse().ok()).unwrap_or(1) // "from step N on …"
}

/// Compares values with those recorded in `run.json`. `None` if the run has no policies yet.
pub fn compare(run: &Path, values: &Map<String, Value>) -> Result<Option<Comparison>> {
    let path = run.join("run.json");
    if !run.join("policies/done").is_file() || !path.is_file() {
        return Ok(None);
    }
    let bytes = fs::read(&path).map_err(|error| disk::failed("read", &path, &error))?;
    let before = serde_json::from_slice::<Map<String, Value>>(&bytes).map_err(|error| {
        Failure::data(format!("{}: not the values of a run: {error}", path.display()))
            .hint("restore that file, or choose another --run")
    })?;
    let names = before.keys().chain(values.keys().filter(|name| !before.contains_key(*name)));
    let differing = names
        .filter(|name| ![HISTORY, DEFAULT_RATE].contains(&name.as_str()))
        .filter(|name| !is_same(before.get(*name), values.get(*name)))
        .cloned()
        .collect();
    Ok(Some(Comparison { before, differing }))
}

impl Comparison {
    /// The differing values as flags: recorded, and new.
    fn sides(&self, values: &Map<String, Value>) -> [String; 2] {
        let side = |of: &Map<String, Value>| {
            self.differing.iter().map(|name| said(name, of.get(name))).collect::<Vec<_>>().join(" ")
        };
        [side(&self.before), side(values)]
    }

    /// Fails if any value differs, and names all that do.
    pub fn refuse(&self, run: &Path, values: &Map<String, Value>, is_resumed: bool) -> Result<()> {
        if self.differing.is_empty() {
            return Ok(());
        }
        let [before, now] = self.sides(values);
        let shown = quoted(&run.display().to_string());
        let bound: Vec<String> =
            self.differing.iter().filter(|name| !may_change(name)).map(|name| flag_of(name)).collect();
        let is_file = |name: &String| name.starts_with(inputs::FILE);
        let hint = match (&bound[..], is_resumed) {
            _ if self.differing.iter().any(is_file) => format!(
                "the run has a copy of what it was started with, {shown}/workflow.toml or in {shown}/data: put that back, or \
                 choose another --run"
            ),
            ([], _) => format!(
                "./pipeline.sh --resume {shown} goes on as it was started, and with {now} changes that from the next step on; or \
                 choose another --run"
            ),
            (_, false) => format!(
                "./pipeline.sh --resume {shown} goes on as it was started (--steps may grow); or choose another --run"
            ),
            (bound, true) => format!(
                "{} cannot change in a run: ./pipeline.sh --resume {shown} goes on as it was started, and a new --run can begin \
                 from its policies, --policies AGENT={shown}/policies/NAME",
                bound.join(" ")
            ),
        };
        let message = format!("{} was started with {before}, not with {now}", run.display());
        Err(Failure::usage(message).hint(hint))
    }

    /// The requested change, if something differs and every difference was named with
    /// `--resume` and may change.
    fn change(self, values: &Map<String, Value>, named: &BTreeSet<&'static str>) -> Option<ValueChange> {
        let is_meant = |name: &String| {
            may_change(name)
                && flags::find(flag_of(name).trim_start_matches('-'))
                    .is_some_and(|flag| named.contains(flag.name))
        };
        if self.differing.is_empty() || !self.differing.iter().all(is_meant) {
            return None;
        }
        let [before, now] = self.sides(values);
        let history = self.before.get(HISTORY).and_then(Value::as_array).cloned().unwrap_or_default();
        Some(ValueChange { values: values.clone(), history, said: format!("{now} instead of {before}") })
    }
}

impl ValueChange {
    /// Records that the values apply from `step` on.
    pub fn write(mut self, run: &Path, step: u64, lines: &[Given]) -> Result<()> {
        let said = format!("from step {step} on {}", self.said);
        record::stage::note("pipeline.sh", &said);
        self.history.push(said.into());
        self.values.insert(HISTORY.to_owned(), self.history.into());
        write(run, &self.values, lines)
    }
}

/// Checks that a run keeps its recorded values, and writes `run.json` and `config.toml`. Before the first
/// policies exist, any value may still change. `named` holds the flags given with `--resume`: a change of
/// them is returned, and takes effect once the caller writes it.
///
/// # Errors
/// Values differ (exit 2), or `run.json` is damaged (exit 65).
pub fn hold(
    run: &Path,
    values: &Map<String, Value>,
    lines: &[Given],
    named: Option<&BTreeSet<&'static str>>,
) -> Result<Option<ValueChange>> {
    match (compare(run, values)?, named) {
        (None, _) => write(run, values, lines)?,
        (Some(found), named) => {
            let refused = found.refuse(run, values, named.is_some());
            let change = named.and_then(|named| found.change(values, named));
            if change.is_some() {
                return Ok(change);
            }
            refused?;
            disk::replace(&run.join("config.toml"), &file::written(lines))?;
        }
    }
    Ok(None)
}

fn write(run: &Path, values: &Map<String, Value>, lines: &[Given]) -> Result<()> {
    let text =
        serde_json::to_string_pretty(values).map_err(|error| Failure::work(format!("run.json: {error}")))?;
    disk::replace(&run.join("run.json"), &format!("{text}\n"))?;
    disk::replace(&run.join("config.toml"), &file::written(lines))
}

/// The flag, with dashes, that a name in `run.json` comes from.
fn flag_of(name: &str) -> String {
    match name {
        "stages" => "--stage".to_owned(),
        "settings" => "--set".to_owned(),
        name if name.starts_with("flags of ") => "--flags".to_owned(),
        name if name.starts_with("input ") => "--policies".to_owned(),
        "file data" => "--set".to_owned(),
        "file workflow" => "--workflow".to_owned(),
        "build" => "the build".to_owned(),
        name => format!("--{}", name.replace('_', "-")),
    }
}

fn may_change(name: &str) -> bool {
    flags::find(flag_of(name).trim_start_matches('-')).is_some_and(Flag::may_change)
}

fn text(value: Option<&Value>) -> Option<String> {
    value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Compares two values; numbers compare by value, so 1e-3 equals 0.001.
fn is_same(old: Option<&Value>, new: Option<&Value>) -> bool {
    let (old, new) = (text(old), text(new));
    let number = |text: &Option<String>| text.as_ref()?.parse::<f64>().ok();
    old == new || number(&old).is_some_and(|old| number(&new) == Some(old))
}

/// A value of `run.json` as the flags that set it. A missing value is the program's default.
fn said(name: &str, value: Option<&Value>) -> String {
    let value = text(value);
    let shown = value.clone().unwrap_or_else(|| "None".to_owned());
    if name == "build" {
        return format!("the build {shown}");
    }
    if let Some(input) = name.strip_prefix("input ") {
        return format!("the weights {shown} of {input}");
    }
    if let Some(file) = name.strip_prefix(inputs::FILE) {
        return format!("the content {shown} of {file}");
    }
    let value = value.unwrap_or_default();
    let flag = flag_of(name);
    let values: Vec<String> = match name.strip_prefix("flags of ") {
        Some(_) if value.is_empty() => Vec::new(),
        Some(stage) => vec![format!("{stage}={value}")],
        None => match name {
            "stages" => value.split_terminator(';').map(str::to_owned).collect(),
            "settings" | "train" | "policies" => value.split_whitespace().map(str::to_owned).collect(),
            _ => vec![value],
        },
    };
    if values.iter().all(String::is_empty) {
        return format!("no {flag}");
    }
    values.iter().map(|value| format!("{flag} {}", quoted(value))).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;

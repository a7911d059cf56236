//! `run.json`, the values that a run must keep, and `config.toml`, the flags of the latest command.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::{Map, Value};

use crate::disk;
use crate::environment::Acting;
use crate::inputs;
use crate::quote::quoted;
use crate::settings::Settings;
use crate::values::{Number, PolicyChoice};

/// Settings that a run may change at any time, because they change no sample.
const FREE: [&str; 11] = [
    "steps",
    "token-budget",
    "keep",
    "keep-best",
    "save-every",
    "resident",
    "shards",
    "ranks",
    "side-by-side",
    "launcher",
    "compress",
];

/// Settings that `--resume` may change in the middle of a run, because they only affect how later steps are sampled,
/// compared and trained. The others shaped the policies, an optimizer's state depends on them, or evaluations could not
/// be compared.
const CHANGEABLE: [&str; 20] = [
    "tasks",
    "branches",
    "temperature",
    "top-p",
    "top-k",
    "min-p",
    "stop",
    "select",
    "max-tokens",
    "lr",
    "lr-warmup",
    "betas",
    "minibatches",
    "clip",
    "on-collapse",
    "kl",
    "parts",
    "eval-every",
    "flags",
    "stage",
];

/// Values in `run.json` of earlier builds, of the warm-up, which is over where values are compared.
const RETIRED: [&str; 5] =
    ["warmup_tasks", "warmup_optimizer", "warmup_lr", "warmup_lr_warmup", "warmup_lr_other"];

/// The values that may not change once policies have been trained with them, as texts by name.
///
/// # Errors
/// A value cannot be written (exit 1).
pub fn values(
    settings: &Settings,
    acting: &Acting,
    build: &str,
    inputs: &[(String, String)],
) -> Result<Map<String, Value>> {
    let mut values = texts(settings, acting)?;
    values.extend(inputs.iter().map(|(name, digest)| (name.clone(), digest.as_str().into())));
    if let Some(rate) = settings.rate {
        values.insert(DEFAULT_RATE.to_owned(), rate.to_string().into());
    }
    if let Some(budget) = settings.token_budget {
        values.insert(TOKEN_BUDGET.to_owned(), budget.to_string().into());
    }
    values.insert("build".to_owned(), build.into());
    Ok(values)
}

/// The settings that a run keeps, as texts by name.
fn texts(settings: &Settings, acting: &Acting) -> Result<Map<String, Value>> {
    let mut texts = Map::new();
    for (name, value) in &settings.table()? {
        let name = name.replace('-', "_");
        let add = |texts: &mut Map<String, Value>, name: &str, text: String| {
            texts.insert(name.to_owned(), text.into());
        };
        match (name.as_str(), value) {
            ("tensorboard", _) => {}
            (_, _) if FREE.contains(&name.replace('_', "-").as_str()) => {}
            ("adapter", _) if settings.policies != PolicyChoice::AdapterPerRole => {}
            ("model", _) if matches!(settings.policies, PolicyChoice::Named(_)) => {}
            ("opponents", _) if settings.pool() == 0 => {}
            ("env", _) => add(&mut texts, "env", acting.env.clone()),
            ("workflow", _) => add(&mut texts, "workflow", acting.workflow.clone()),
            ("set", Value::Object(pairs)) => add(&mut texts, "settings", pairs_of(pairs).join(" ")),
            ("policies", Value::Object(pairs)) => add(&mut texts, "policies", pairs_of(pairs).join(" ")),
            ("flags", Value::Object(pairs)) => {
                pairs
                    .iter()
                    .for_each(|(stage, flags)| add(&mut texts, &format!("flags of {stage}"), text(flags)));
            }
            ("stage", Value::Object(pairs)) => add(&mut texts, "stages", commands(&pairs_of(pairs))),
            ("stop", Value::Array(stops)) => {
                let stops: Vec<String> = stops.iter().map(|stop| format!("{:?}", text(stop))).collect();
                add(&mut texts, "stop", stops.join(" "));
            }
            ("betas" | "clip", Value::Array(numbers)) => {
                add(&mut texts, &name, numbers.iter().map(text).collect::<Vec<_>>().join(","));
            }
            (_, Value::Array(words)) => {
                add(&mut texts, &name, words.iter().map(text).collect::<Vec<_>>().join(" "));
            }
            (_, value) => add(&mut texts, &name, text(value)),
        }
    }
    Ok(texts)
}

fn pairs_of(pairs: &Map<String, Value>) -> Vec<String> {
    pairs.iter().map(|(name, value)| format!("{name}={}", text(value))).collect()
}

/// The commands of `--stage`, in canonical order.
fn commands(pairs: &[String]) -> String {
    let joined = pairs.join(";");
    let mut parts: Vec<&str> = joined.split([';', '\n']).filter(|part| !part.is_empty()).collect();
    parts.sort_unstable();
    parts.iter().map(|part| format!("{part};")).collect()
}

/// The values of a run to which no flags were given, on this environment's token limit and at the rate of its model.
pub fn defaults(settings: &Settings, acting: &Acting) -> Result<Map<String, Value>> {
    let mut defaults = Settings::defaults(settings.kind)?;
    defaults.set_token_limit(acting.max_tokens);
    defaults.rate = settings.rate;
    defaults.set_default_rate();
    let acting = Acting { env: defaults.env.clone(), workflow: "team".to_owned(), ..Acting::default() };
    texts(&defaults, &acting)
}

/// Writes `defaults.json`: the default of each value that differs from it, so that the report page can mark the difference.
pub fn write_defaults(run: &Path, defaults: &Map<String, Value>, values: &Map<String, Value>) -> Result<()> {
    // These describe the machine, or follow from another value.
    let is_left_out = |name: &str| {
        ["device", "dtype", "build", DEFAULT_RATE, TOKEN_BUDGET].contains(&name) || name.starts_with("input ")
    };
    let differs = |name: &&String| !is_left_out(name) && !is_same(defaults.get(*name), values.get(*name));
    let differing: Map<String, Value> = values
        .keys()
        .filter(differs)
        .map(|name| (name.clone(), defaults.get(name).cloned().unwrap_or_else(|| "".into())))
        .collect();
    let text = serde_json::to_string_pretty(&differing)
        .map_err(|error| Failure::work(format!("defaults.json: {error}")))?;
    disk::replace(&run.join("defaults.json"), &format!("{text}\n"))
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

/// The first step since one of these flags last changed; of any, with an empty text.
pub fn changed_before(run: &Path, flags: &[&str]) -> u64 {
    let values: Value = record::file::read(&run.join("run.json"))
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    let mut history = values[HISTORY].as_array().into_iter().flatten().filter_map(Value::as_str);
    let last = history.rfind(|said| flags.iter().any(|flag| said.contains(flag)));
    last.and_then(|said| said.split(' ').nth(2)?.parse().ok()).unwrap_or(1) // "from step N on …"
}

/// The key in `run.json` of the token budget, which may grow.
const TOKEN_BUDGET: &str = "token_budget";

/// Compares values with those recorded in `run.json`, where a missing one is its default. `None` if the run has no policies
/// yet.
pub fn compare(
    run: &Path,
    values: &Map<String, Value>,
    defaults: &Map<String, Value>,
) -> Result<Option<Comparison>> {
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
        .filter(|name| {
            ![HISTORY, DEFAULT_RATE, TOKEN_BUDGET].contains(&name.as_str())
                && !RETIRED.contains(&name.as_str())
        })
        .filter(|name| {
            let side = |of: &Map<String, Value>| of.get(*name).or(defaults.get(*name)).cloned();
            !is_same(side(&before).as_ref(), side(values).as_ref())
        })
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
    fn change(self, values: &Map<String, Value>, named: &BTreeSet<String>) -> Option<ValueChange> {
        let is_meant =
            |name: &String| may_change(name) && named.contains(flag_of(name).trim_start_matches('-'));
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
    pub fn write(mut self, run: &Path, step: u64, config: &str) -> Result<()> {
        let said = format!("from step {step} on {}", self.said);
        record::stage::note("pipeline.sh", &said);
        self.history.push(said.into());
        self.values.insert(HISTORY.to_owned(), self.history.into());
        write(run, &self.values, config)
    }
}

/// Checks that a run keeps its recorded values, and writes `run.json` and `config.toml`. Before the first
/// policies exist, any value may still change. `named` holds the flags given with `--resume`: a change of
/// them is returned, and takes effect once the caller writes it.
///
/// # Errors
/// Values differ (exit 2), or `run.json` is damaged (exit 65).
pub fn keep(
    run: &Path,
    values: &Map<String, Value>,
    defaults: &Map<String, Value>,
    config: &str,
    named: Option<&BTreeSet<String>>,
) -> Result<Option<ValueChange>> {
    let Some(found) = compare(run, values, defaults)? else {
        write(run, values, config)?;
        return Ok(None);
    };
    let refused = found.refuse(run, values, named.is_some());
    let history = found.before.get(HISTORY).cloned();
    let change = named.and_then(|named| found.change(values, named));
    if change.is_none() {
        refused?;
        let history = history.map(|history| (HISTORY.to_owned(), history));
        write(run, &values.clone().into_iter().chain(history).collect(), config)?;
    }
    Ok(change)
}

fn write(run: &Path, values: &Map<String, Value>, config: &str) -> Result<()> {
    let text =
        serde_json::to_string_pretty(values).map_err(|error| Failure::work(format!("run.json: {error}")))?;
    disk::replace(&run.join("run.json"), &format!("{text}\n"))?;
    disk::replace(&run.join("config.toml"), config)
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
    CHANGEABLE.contains(&flag_of(name).trim_start_matches('-'))
}

/// A value as text, numbers in the form of [`Number`].
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => Number(number.as_f64().unwrap_or_default()).to_string(),
        value => value.to_string(),
    }
}

/// Compares two values; numbers compare by value, so 1e-3 equals 0.001, and nothing equals an empty text.
fn is_same(old: Option<&Value>, new: Option<&Value>) -> bool {
    let text = |value: Option<&Value>| value.map(text).unwrap_or_default();
    let (old, new) = (text(old), text(new));
    let number = |word: &str| word.parse::<f64>().ok();
    let is_same =
        |(old, new): (&str, &str)| old == new || number(old).is_some_and(|old| number(new) == Some(old));
    let words = |text: &str| text.split([' ', ',', '=']).count();
    words(&old) == words(&new) && old.split([' ', ',', '=']).zip(new.split([' ', ',', '='])).all(is_same)
}

/// A value of `run.json` as the flags that set it. A missing value is the program's default.
fn said(name: &str, value: Option<&Value>) -> String {
    let value = value.map(text);
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
#[path = "frozen_settings_tests.rs"]
mod tests;

//! Groups runs into methods by their `run.json`, and names a method by its differences from the others.
//!
//! Runs are one method if every value of `run.json` but `seed` is the same, whatever their folders are
//! called. Paths that hold `seed-N`, where N is the run's seed, count as equal for all seeds, because each
//! seed may begin from a separate warm-up.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::run_directory::RunDirectory;

/// Runs that differ only in their seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodRuns {
    /// The values in which it differs from the other methods; of the only method what it trains on.
    pub name: String,
    /// Its runs, as indices, in the order in which they were named.
    pub runs: Vec<usize>,
}

/// Values that explain themselves without their name.
const PLAIN: &[&str] =
    &["history", "env", "workflow", "method", "policies", "model", "settings", "stages", "env_command"];

/// Groups runs by method, in order of appearance.
pub fn group_runs(runs: &[RunDirectory]) -> Vec<MethodRuns> {
    let values: Vec<BTreeMap<String, String>> = runs.iter().map(values).collect();
    let mut methods: Vec<(MethodRuns, BTreeSet<String>)> = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let seed = seed(run).unwrap_or_default();
        let is_same = |(method, seeds): &(MethodRuns, BTreeSet<String>)| {
            !values[index].is_empty()
                && same(&values[method.runs[0]], &values[index])
                && !seeds.contains(&seed)
        };
        match methods.iter().position(is_same) {
            Some(place) => {
                methods[place].0.runs.push(index);
                methods[place].1.insert(seed);
            }
            None => {
                let method = MethodRuns { name: String::new(), runs: vec![index] };
                methods.push((method, BTreeSet::from([seed])));
            }
        }
    }
    let mut methods: Vec<MethodRuns> = methods.into_iter().map(|(method, _)| method).collect();
    let firsts: Vec<&BTreeMap<String, String>> =
        methods.iter().map(|method| &values[method.runs[0]]).collect();
    let differing = differing(&firsts);
    let names: Vec<String> = methods
        .iter()
        .zip(&firsts)
        .map(|(method, values)| match methods.len() {
            1 if method.runs.len() > 1 => only(values),
            1 => String::new(),
            _ if values.is_empty() => String::new(),
            _ => match differing.iter().filter_map(|key| label(key, values)).collect::<Vec<_>>().join(", ") {
                name if name.is_empty() && !differing.is_empty() => "no flags".to_owned(),
                name => name,
            },
        })
        .collect();
    for (place, method) in methods.iter_mut().enumerate() {
        let run = &runs[method.runs[0]].name;
        let is_unique = names.iter().filter(|name| **name == names[place]).count() == 1;
        method.name = match names[place].as_str() {
            "" => run.clone(),
            name if is_unique => name.to_owned(),
            name => format!("{name} ({run})"),
        };
    }
    methods
}

/// The seed of a run, as `run.json` has it.
pub fn seed(run: &RunDirectory) -> Option<String> {
    run.settings.get("seed").map(text)
}

/// The names of values that are not the same in all of these maps.
pub fn differing<'a>(maps: &[&'a BTreeMap<String, String>]) -> Vec<&'a str> {
    let keys: BTreeSet<&str> = maps.iter().flat_map(|map| map.keys().map(String::as_str)).collect();
    let first = |key: &str| maps.first().and_then(|map| map.get(key));
    let differs = |key: &&str| maps.iter().any(|map| !is_same(map.get(*key), first(key)));
    // Where policies are handed in, `policies` says what the digests of their weights say again.
    let policies = differs(&"policies");
    keys.into_iter().filter(|key| differs(key) && !(policies && key.starts_with("input "))).collect()
}

/// The values of a run but its seed.
pub fn values(run: &RunDirectory) -> BTreeMap<String, String> {
    let seed = seed(run).unwrap_or_default();
    let mut values = BTreeMap::new();
    for (name, value) in &run.settings {
        if name == "seed" {
            continue;
        }
        let (key, value) = (without_seed(name, &seed), without_seed(&text(value), &seed));
        // The weights of a policy that was warmed up with the run's seed.
        let value = if key == *name || !key.starts_with("input ") { value } else { String::new() };
        values.insert(key, value);
    }
    values
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(text).collect::<Vec<String>>().join("; "),
        other => other.to_string(),
    }
}

/// `…/seed-3/…` of the run with seed 3 as `…/seed-*/…`.
fn without_seed(text: &str, seed: &str) -> String {
    if seed.is_empty() || !text.contains('/') {
        return text.to_owned();
    }
    let of_seed = |part: &str| {
        let rest = part.strip_prefix("seed").map(|rest| rest.trim_start_matches(['-', '_']));
        if rest == Some(seed) { "seed-*".to_owned() } else { part.to_owned() }
    };
    text.split('/').map(of_seed).collect::<Vec<String>>().join("/")
}

fn same(one: &BTreeMap<String, String>, other: &BTreeMap<String, String>) -> bool {
    one.len() == other.len() && one.iter().all(|(key, value)| is_same(Some(value), other.get(key)))
}

/// Returns true if two values are one: 1e-3 is 0.001.
fn is_same(one: Option<&String>, other: Option<&String>) -> bool {
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<f64>().ok());
    one == other || number(one).is_some_and(|one| number(other) == Some(one))
}

/// The environment and workflow, as the name of an only method.
fn only(values: &BTreeMap<String, String>) -> String {
    let parts = ["env", "workflow"].map(|key| values.get(key).map_or("", String::as_str));
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<&str>>().join(", ")
}

/// A value as a name shows it.
fn label(key: &str, values: &BTreeMap<String, String>) -> Option<String> {
    let name = key.replace('_', " ");
    let value = values.get(key).map(|value| brief(value)).unwrap_or_default();
    Some(match (value.as_str(), key.strip_prefix("flags of ")) {
        ("", Some(_)) => return None,
        (flags, Some(stage)) => format!("{stage} {flags}"),
        ("", None) if key == "method" => "at-grpo".to_owned(),
        ("", None) if key == "history" || key.starts_with("input ") => return None,
        ("", None) => format!("{name} by default"),
        (value, None) if PLAIN.contains(&key) => value.to_owned(),
        (value, None) => format!("{name} {value}"),
    })
}

/// A value in one line; of paths the last two parts.
fn brief(value: &str) -> String {
    let words = value.split_whitespace().map(|word| match word.split_once('=').unwrap_or(("", word)) {
        (_, path) if path.contains("://") || path.matches('/').count() < 2 => word.to_owned(),
        (agent, path) => {
            let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
            let end = parts[parts.len().saturating_sub(2)..].join("/");
            if agent.is_empty() { end } else { format!("{agent}={end}") }
        }
    });
    words.collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(name: &str, settings: Value) -> RunDirectory {
        let settings = settings.as_object().cloned().unwrap_or_default();
        RunDirectory {
            name: name.to_owned(),
            settings,
            defaults: None,
            streams: Vec::new(),
            begun: None,
            episode_sets: Vec::new(),
            vocabularies: Default::default(),
        }
    }

    fn found(runs: &[RunDirectory]) -> Vec<(String, Vec<usize>)> {
        group_runs(runs).into_iter().map(|method| (method.name, method.runs)).collect()
    }

    #[test]
    fn seeds_are_recognized_by_settings_not_by_folders() {
        let base = |seed: &str, lr: &str| json!({"env": "e", "workflow": "team", "seed": seed, "lr": lr});
        let runs = [
            run("monday", base("1", "1e-3")),
            run("tuesday", base("2", "0.001")),
            run("other/seed-1", base("1", "1e-4")),
            run("other/seed-2", base("2", "2e-4")),
        ];
        let names = |names: &[(&str, &[usize])]| -> Vec<(String, Vec<usize>)> {
            names.iter().map(|(name, runs)| ((*name).to_owned(), runs.to_vec())).collect()
        };
        assert_eq!(found(&runs), names(&[("lr 1e-3", &[0, 1]), ("lr 1e-4", &[2]), ("lr 2e-4", &[3])]));
        assert_eq!(found(&runs[..2]), names(&[("e, team", &[0, 1])]));
        assert_eq!(found(&runs[..1]), names(&[("monday", &[0])]));
        // A repeated seed is not a new seed, and a stream without settings matches only itself.
        let twice = [run("a", base("1", "1")), run("b", base("1", "1")), run("c.jsonl", json!({}))];
        assert_eq!(found(&twice).len(), 3);
    }

    #[test]
    fn methods_are_named_by_their_differences() {
        let of = |seed: &str, more: Value| {
            let mut settings = json!({"env": "e", "seed": seed, "policies": "shared", "build": "one\ntwo"});
            for (key, value) in more.as_object().unwrap() {
                settings[key] = value.clone();
            }
            settings
        };
        let runs = [
            run("a", of("1", json!({"flags of advantage": "--estimator rloo", "branches": "4"}))),
            run("b", of("1", json!({"branches": "8", "method": "magrpo"}))),
            run(
                "c",
                of(
                    "1",
                    json!({"branches": "8", "history": ["from step 4 on --lr 1e-4 instead of --lr 1e-3"]}),
                ),
            ),
        ];
        let names: Vec<String> = super::group_runs(&runs).into_iter().map(|method| method.name).collect();
        assert_eq!(names[0], "branches 4, advantage --estimator rloo, at-grpo");
        assert_eq!(names[1], "branches 8, magrpo");
        assert_eq!(names[2], "branches 8, from step 4 on --lr 1e-4 instead of --lr 1e-3, at-grpo");
    }

    #[test]
    fn warm_up_per_seed_is_one_method() {
        let of = |seed: &str, start: &str, digest: &str| {
            let path = format!("tool=/x/warm/seed-{start}/policies/tool");
            json!({"env": "e", "seed": seed, "policies": path, (format!("input {path}")): digest})
        };
        let runs = [run("a", of("1", "1", "77")), run("b", of("2", "2", "78")), run("c", of("3", "1", "77"))];
        assert_eq!(
            found(&runs).iter().map(|(_, runs)| runs.clone()).collect::<Vec<_>>(),
            [vec![0, 1], vec![2]]
        );
    }
}

//! `--config FILE` and `--resume RUN`: the lines of a TOML file as words of the command line.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use clap::ArgAction;
use record::failure::{Failure, Result};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::claim;
use crate::kind::PolicyKind;
use crate::settings::{Settings, check_addresses, names_given};
use crate::sweep::{self, SweepAxis};
use crate::values::PolicyChoice;

/// Largest configuration file, in bytes.
const LARGEST: u64 = 1 << 18;

/// Flags on the command line that also replace other flags of the file.
const INSTEAD: [(&str, &[&str]); 3] =
    [("policies", &["model", "adapter"]), ("env-command", &["env", "set"]), ("env", &["env-command"])];

/// Flags of the command line that have no place in a file.
const NOT_IN_FILES: [&str; 3] = ["run", "config", "resume"];

/// A flag of a file, as words of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub flag: String,
    /// The key in the flag's table, if it is one.
    pub key: Option<String>,
    pub words: Vec<String>,
}

/// The flags of the command line merged with its configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunRequest {
    pub words: Vec<String>,
    /// The swept flags; empty for a single run.
    pub axes: Vec<SweepAxis>,
    /// The stem of the `--config` file's name.
    pub name: Option<String>,
    /// With `--resume`: the flags given on the command line.
    pub resumed_with: Option<BTreeSet<String>>,
}

/// Merges the command line with the configuration file that it names. Flags of the
/// command line override the file.
///
/// # Errors
/// The file cannot be read, or a line is not a flag (exit 2).
pub fn merge(words: &[String]) -> Result<RunRequest> {
    let matches = record::stage::parse_words(Settings::command(PolicyKind::Tiny), words)?;
    let given = names_given(&matches);
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let mut request = RunRequest { words: words.to_vec(), ..RunRequest::default() };
    let path = match (text("config"), text("resume")) {
        (None, None) => None,
        (Some(_), Some(_)) => {
            return Err(Failure::usage("--config and --resume cannot be given together")
                .hint("--resume RUN reads RUN/config.toml"));
        }
        (Some(config), None) => {
            request.name = Path::new(&config).file_stem().map(|stem| stem.to_string_lossy().into_owned());
            Some(config)
        }
        (None, Some(run)) => {
            if given.contains("run") {
                return Err(Failure::usage("--resume names the run, so --run has no effect")
                    .hint("leave one of them out"));
            }
            claim::strange(Path::new(&run))?;
            let path = format!("{run}/config.toml");
            if !Path::new(&path).exists() {
                let known = Path::new(&run).join("run.json").exists();
                return Err(Failure::usage(format!("--resume {run}: there is no {path}")).hint(
                    match known {
                        true => format!("repeat the command that began it, with --run {run}"),
                        false => "a run directory is what ./pipeline.sh --run DIR makes".to_owned(),
                    },
                ));
            }
            request.resumed_with = Some(given.clone());
            request.words.push(format!("--run={run}"));
            Some(path)
        }
    };
    if let Some(path) = path {
        let keys = |flag: &str| -> Vec<String> {
            let words = matches.get_raw(&flag.replace('-', "_")).into_iter().flatten();
            words.filter_map(|word| Some(word.to_str()?.split_once('=')?.0.to_owned())).collect()
        };
        let is_replaced = |flag: &str, key: Option<&str>| match key {
            Some(key) if flag != "policies" => keys(flag).iter().any(|given| given == key),
            _ => given.contains(flag),
        } || INSTEAD.iter().any(|(of, instead)| given.contains(*of) && instead.contains(&flag));
        let (mut lines, mut axes) = match &request.resumed_with {
            Some(_) => (of_earlier_builds(&path)?, Vec::new()),
            None => parse(&path, &read(&path)?)?,
        };
        lines.retain(|line| !is_replaced(&line.flag, line.key.as_deref()));
        axes.retain(|axis| !is_replaced(&axis.flag, axis.key.as_deref()));
        request.words.splice(..0, lines.into_iter().flat_map(|line| line.words));
        request.axes = axes;
    }
    let all = record::stage::parse_words(Settings::command(PolicyKind::Tiny), &request.words)?;
    let seeds: Vec<u64> = all.get_many("seed").into_iter().flatten().copied().collect();
    if seeds.len() > 1 {
        request.axes.push(sweep::seeds(&seeds));
    }
    match request.resumed_with {
        Some(_) if !request.axes.is_empty() => Err(Failure::usage("--resume goes on with one run")
            .hint("the same command with --config or several of --seed goes on with all of them")),
        _ => Ok(request),
    }
}

/// The words recorded in a run's `config.toml`.
pub fn of_run(run: &Path) -> Result<Vec<String>> {
    let path = run.join("config.toml").display().to_string();
    Ok(of_earlier_builds(&path)?.into_iter().flat_map(|line| line.words).collect())
}

/// Flags of earlier builds, and what they are now. Flags of a warm-up matter until the run has policies.
const EARLIER: [(&str, &str, &str); 7] = [
    ("tokens", "token-budget", ""),
    ("local", "", ""),
    ("warmup-tasks", "flags", "demo=--count "),
    ("warmup-optimizer", "flags", "warm-up=--optimizer "),
    ("warmup-lr", "flags", "warm-up=--lr "),
    ("warmup-lr-warmup", "flags", "warm-up=--lr-warmup "),
    ("warmup-lr-other", "flags", "warm-up=--lr-other "),
];

/// The lines of a run's file, which an earlier build may have written.
fn of_earlier_builds(path: &str) -> Result<Vec<Line>> {
    let is_warm = Path::new(path).with_file_name("policies").join("done").is_file();
    let text = read(path)?;
    let (mut now, mut lines, mut steps) = (String::new(), Vec::new(), 1);
    for line in text.split_inclusive('\n') {
        let (name, value) = line.split_once(" = ").unwrap_or_default();
        let value = value.split('#').next().unwrap_or_default().trim().trim_matches('"');
        if name == "warmup" {
            steps = value.parse().unwrap_or(1);
        }
        let Some((_, flag, before)) = EARLIER.iter().find(|(earlier, ..)| *earlier == name) else {
            now.push_str(line);
            continue;
        };
        if flag.is_empty() || is_warm && *flag == "flags" {
            continue;
        }
        let value = match (name, value.parse::<u64>()) {
            ("warmup-tasks", Ok(tasks)) => (steps * tasks).to_string(),
            _ => value.to_owned(),
        };
        lines.push(Line {
            flag: (*flag).to_owned(),
            key: before.split_once('=').map(|(key, _)| key.to_owned()),
            words: vec![format!("--{flag}={before}{value}")],
        });
    }
    lines.extend(parse(path, &now)?.0);
    Ok(lines)
}

fn read(path: &str) -> Result<String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    if let Err(error) = read {
        return Err(match error.kind() {
            io::ErrorKind::NotFound => Failure::usage(format!("--config {path}: no such file"))
                .hint("a run's own is RUN/config.toml"),
            _ => Failure::io(format!("--config {path}: {error}")).hint("a configuration is a file"),
        });
    }
    if bytes.len() as u64 > LARGEST {
        return Err(Failure::usage(format!("--config {path}: larger than {} KiB", LARGEST >> 10))
            .hint("a configuration has a line for each flag"));
    }
    String::from_utf8(bytes).map_err(|_| {
        Failure::usage(format!("--config {path}: not UTF-8"))
            .hint("save it as UTF-8: a configuration is text")
    })
}

/// Parses a file into its flags, in order, and its sweep axes.
pub fn parse(path: &str, text: &str) -> Result<(Vec<Line>, Vec<SweepAxis>)> {
    let place = |at: usize| format!("{path}:{}", 1 + text[..at.min(text.len())].matches('\n').count());
    let table = DeTable::parse(text).map_err(|error| {
        // An error at the end of the file belongs to its last line.
        let at = error.span().map_or(0, |span| span.start.min(text.trim_end().len()));
        let message = error.message().replace('\n', ", ");
        Failure::usage(format!("{}: {message}", place(at))).hint(if message.contains("duplicate") {
            "leave one of them out"
        } else {
            "write a line as: lr = 1e-3; strings are quoted, true and false, numbers and brackets are not"
        })
    })?;
    let (mut lines, mut axes) = (Vec::new(), Vec::new());
    for (name, value) in in_order(table.get_ref()) {
        let at = place(name.span().start);
        match (name.get_ref().as_ref(), value.get_ref()) {
            ("sweep", DeValue::Table(swept)) => axes = sweep::parse(swept, text, &place)?,
            (name, _) => lines.extend(line(name, value, text).map_err(|mut failure| {
                failure.message = format!("{at}: {}", failure.message);
                failure
            })?),
        }
    }
    let doubled = axes.iter().find(|axis| {
        let is_same = |flag: &str, key: &Option<String>| axis.flag == flag && axis.key == *key;
        lines.iter().any(|line| is_same(&line.flag, &line.key))
    });
    match doubled {
        Some(axis) => Err(Failure::usage(format!("{path}: {} has one value and several", axis.name))
            .hint("give one value for all runs, or a list of values for the sweep")),
        None => Ok((lines, axes)),
    }
}

type Entry<'a, 'i> = (&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

/// A table's entries in the order of the text.
pub fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<Entry<'a, 'i>> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// An entry of a file as flags of the command line, which its parser judges. A table is a line for each key.
pub fn line(name: &str, value: &Spanned<DeValue<'_>>, text: &str) -> Result<Vec<Line>> {
    let flag = name.replace('_', "-");
    if NOT_IN_FILES.contains(&flag.as_str()) {
        return Err(Failure::usage(format!("{name} has no place in a file"))
            .hint(format!("give it on the command line: --{flag}")));
    }
    let refuse = || {
        Failure::usage(format!("{name}: not a value of --{flag}"))
            .hint(format!("./pipeline.sh --help says what --{flag} takes"))
    };
    let word = |value: &str| format!("--{flag}={value}");
    let lines = match value.get_ref() {
        DeValue::Table(table) => {
            let pair = |(key, value): Entry<'_, '_>| {
                let (key, value) = (key.get_ref().to_string(), scalar(value, text)?);
                Some(Line {
                    flag: flag.clone(),
                    words: vec![word(&format!("{key}={value}"))],
                    key: Some(key),
                })
            };
            in_order(table).into_iter().map(pair).collect::<Option<Vec<Line>>>().ok_or_else(refuse)?
        }
        DeValue::Array(values) => {
            let command = Settings::command(PolicyKind::Tiny);
            let argument = command.get_arguments().find(|argument| argument.get_long() == Some(&flag));
            let is_repeated =
                argument.is_some_and(|argument| matches!(argument.get_action(), ArgAction::Append));
            let is_by_agent = argument.is_some_and(|argument| argument.get_value_delimiter() == Some(' '));
            let is_number = |value: &&Spanned<DeValue<'_>>| {
                matches!(value.get_ref(), DeValue::Integer(_) | DeValue::Float(_))
            };
            if is_by_agent && values.iter().filter(is_number).count() > 1 {
                return Err(Failure::usage(format!("{name}: several values for all agents")).hint(format!(
                    "below [sweep] {name} = [...] makes a run for each; an agent has its own as \"AGENT=X\""
                )));
            }
            let values: Option<Vec<String>> = values.iter().map(|value| scalar(value, text)).collect();
            let values = values.ok_or_else(refuse)?;
            let words = if is_repeated {
                values.iter().map(|value| word(value)).collect()
            } else {
                vec![word(&values.join(","))]
            };
            vec![Line { flag, key: None, words }]
        }
        _ => vec![Line { key: None, words: vec![word(&scalar(value, text).ok_or_else(refuse)?)], flag }],
    };
    let words: Vec<String> = lines.iter().flat_map(|line| line.words.clone()).collect();
    check_addresses(&words)?;
    record::stage::parse_words(Settings::command(PolicyKind::Tiny), &words)?;
    Ok(lines)
}

/// A string, a number as it is written, or a truth value; `None` for others.
fn scalar(value: &Spanned<DeValue<'_>>, text: &str) -> Option<String> {
    match value.get_ref() {
        DeValue::String(string) => Some(string.to_string()),
        DeValue::Integer(_) | DeValue::Float(_) => {
            let written = text.get(value.span())?.replace('_', "");
            Some(written.strip_prefix('+').unwrap_or(&written).to_owned())
        }
        DeValue::Boolean(on) => Some(on.to_string()),
        _ => None,
    }
}

const ABOUT: &str = "\
# What this run is made with. pipeline.sh --resume RUN goes on with it, pipeline.sh --config RUN/config.toml --run DIR makes
# it again in DIR. Relative paths are as they were given.
";

/// The complete configuration of a run as a TOML file.
///
/// # Errors
/// A value cannot be written (exit 1).
pub fn written(settings: &Settings) -> Result<String> {
    let mut table = settings.table()?;
    let mut leave_out = |names: &[&str]| names.iter().for_each(|name| drop(table.shift_remove(*name)));
    if settings.env_command.is_some() {
        leave_out(&["env", "set"]);
    }
    if settings.policies != PolicyChoice::AdapterPerRole {
        leave_out(&["adapter"]);
    }
    if matches!(settings.policies, PolicyChoice::Named(_)) {
        leave_out(&["model"]);
    }
    let text = toml::to_string(&table).map_err(|error| Failure::work(format!("config.toml: {error}")))?;
    Ok(format!("{ABOUT}{text}"))
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;

//! `--config FILE` and `--resume RUN`: flags as lines of a TOML file. Numbers keep their spelling.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use record::failure::{Failure, Result};
use record::stage;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::claim;
use crate::flags::{self, Flag, Given, Kind};
use crate::sweep::{self, SweepAxis};

/// Largest configuration file, in bytes.
const LARGEST: u64 = 1 << 18;

/// Flags on the command line that also replace other flags of the file.
const INSTEAD: [(&str, &[&str]); 5] = [
    ("policies", &["model", "adapter"]),
    ("env_command", &["env", "set"]),
    ("env", &["env_command"]),
    ("seed", &["seeds"]),
    ("seeds", &["seed"]),
];

/// The flags of the command line merged with its configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunRequest {
    pub flags: Vec<Given>,
    /// The swept flags; empty for a single run.
    pub axes: Vec<SweepAxis>,
    /// The stem of the `--config` file's name.
    pub name: Option<String>,
    /// With `--resume`: the flags given on the command line.
    pub resumed_with: Option<BTreeSet<&'static str>>,
}

/// Merges the command line with the configuration file that it names. Flags of the
/// command line override the file.
///
/// # Errors
/// The file cannot be read, or a line is not a flag.
pub fn merge(given: Vec<Given>) -> Result<RunRequest> {
    let mut asked = merge_lines(given)?;
    let is_seeds = |given: &Given| given.name == "seeds";
    if let Some(seeds) = asked.flags.iter().rfind(|given| is_seeds(given)) {
        asked.axes.push(sweep::seeds(&seeds.value)?);
    }
    asked.flags.retain(|given| !is_seeds(given));
    for axis in &asked.axes {
        let is_same = |given: &&Given| {
            given.name == axis.flag && axis.key().is_none_or(|key| given.value.split('=').next() == Some(key))
        };
        let others = asked.axes.iter().filter(|other| (other.flag, &other.name) == (axis.flag, &axis.name));
        if asked.flags.iter().any(|given| is_same(&given)) || others.count() > 1 {
            return Err(Failure::usage(format!("{} has one value and several", axis.name))
                .hint("give one value for all runs, or a list of values for the sweep"));
        }
    }
    match asked.resumed_with {
        Some(_) if !asked.axes.is_empty() => Err(Failure::usage("--resume goes on with one run")
            .hint("the same command with --config or --seeds goes on with all of them")),
        _ => Ok(asked),
    }
}

fn merge_lines(given: Vec<Given>) -> Result<RunRequest> {
    let (files, mut given): (Vec<Given>, Vec<Given>) =
        given.into_iter().partition(|given| ["config", "resume"].contains(&given.name));
    let mut asked = RunRequest::default();
    let path = match &files[..] {
        [] => return Ok(RunRequest { flags: given, ..RunRequest::default() }),
        [Given { name: "config", value }] => {
            asked.name = Path::new(value).file_stem().map(|stem| stem.to_string_lossy().into_owned());
            value.clone()
        }
        [Given { value: run, .. }] => {
            if given.iter().any(|given| given.name == "run") {
                return Err(Failure::usage("--resume names the run, so --run has no effect")
                    .hint("leave one of them out"));
            }
            claim::strange(Path::new(run))?;
            let path = format!("{run}/config.toml");
            if !Path::new(&path).exists() {
                let known = Path::new(run).join("run.json").exists();
                return Err(Failure::usage(format!("--resume {run}: there is no {path}")).hint(
                    match known {
                        true => format!("repeat the command that began it, with --run {run}"),
                        false => "a run directory is what ./pipeline.sh --run DIR makes".to_owned(),
                    },
                ));
            }
            asked.resumed_with = Some(given.iter().map(|given| given.name).collect());
            given.push(Given { name: "run", value: run.clone() });
            path
        }
        _ => {
            return Err(Failure::usage("--config and --resume can be given once, and not together")
                .hint("--resume RUN reads RUN/config.toml"));
        }
    };
    let text = read(&path)?;
    let has = |name: &str, key: &str| {
        given.iter().any(|given| {
            let of_table = flags::find(name).is_some_and(|flag| flag.kind == Kind::Table);
            let whole = INSTEAD.iter().any(|(of, instead)| *of == given.name && instead.contains(&name));
            let same = given.name == name && (!of_table || given.value.split('=').next() == Some(key));
            whole || same
        })
    };
    let (mut all, mut axes) = parse(&path, &text)?;
    all.retain(|line| !has(line.name, line.value.split('=').next().unwrap_or_default()));
    axes.retain(|axis| !has(axis.flag, axis.key().unwrap_or_default()));
    all.append(&mut given);
    Ok(RunRequest { flags: all, axes, ..asked })
}

/// The flags recorded in a run's `config.toml`.
pub fn of_run(run: &Path) -> Result<Vec<Given>> {
    let path = run.join("config.toml").display().to_string();
    Ok(parse(&path, &read(&path)?)?.0)
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
fn parse(path: &str, text: &str) -> Result<(Vec<Given>, Vec<SweepAxis>)> {
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
    for (written, value) in in_order(table.get_ref()) {
        if let ("sweep", DeValue::Table(swept)) = (written.get_ref().as_ref(), value.get_ref()) {
            axes = sweep::parse(swept, text, &place)?;
            continue;
        }
        let (at, written) = (written.span().start, written.get_ref().as_ref());
        let flag = flags::find(written);
        let Some(flag) = flag.filter(|flag| flag.is_of_a_run()) else {
            return Err(match flag {
                Some(flag) => Failure::usage(format!("{}: {written} has no place in a file", place(at)))
                    .hint(format!("give it on the command line: {}", flag.dashed())),
                None => Failure::usage(format!("{}: there is no {written}", place(at))).hint(
                    flags::nearest(written, flags::all().filter(|flag| flag.is_of_a_run())).map_or_else(
                        || "./pipeline.sh --help lists all".to_owned(),
                        |near| format!("did you mean {near}?"),
                    ),
                ),
            });
        };
        let Some(values) = values(flag, value, text) else {
            let line = text[at..].lines().next().unwrap_or_default().trim();
            return Err(Failure::usage(format!("{}: {line}: not {}", place(at), flag.kind.described()))
                .hint(format!("./pipeline.sh --help says what {} is", flag.dashed())));
        };
        lines.extend(values.into_iter().map(|value| Given { name: flag.name, value }));
    }
    Ok((lines, axes))
}

type Entry<'a, 'i> = (&'a Spanned<std::borrow::Cow<'i, str>>, &'a Spanned<DeValue<'i>>);

/// A table's entries in the order of the text.
pub fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<Entry<'a, 'i>> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// The command-line values of an entry; `None` if they do not have the flag's type.
pub fn values(flag: &Flag, value: &Spanned<DeValue<'_>>, text: &str) -> Option<Vec<String>> {
    let number = |value: &Spanned<DeValue<'_>>| -> Option<String> {
        let is_number = match value.get_ref() {
            DeValue::Integer(integer) => integer.radix() == 10,
            DeValue::Float(_) => true,
            _ => false,
        };
        let written = text.get(value.span())?.replace('_', "");
        let written = written.strip_prefix('+').unwrap_or(&written);
        (is_number && flags::is_number(written)).then(|| written.to_owned())
    };
    let string = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().map(str::to_owned);
    let plain = |value: &Spanned<DeValue<'_>>| {
        string(value).or_else(|| number(value)).or_else(|| value.get_ref().as_bool().map(|on| on.to_string()))
    };
    let pairs = |table: &DeTable<'_>| -> Option<Vec<String>> {
        let one = |(key, value): Entry<'_, '_>| {
            let value = if flag.name == "set" { plain(value) } else { string(value) };
            Some(format!("{}={}", key.get_ref(), value?))
        };
        in_order(table).into_iter().map(one).collect()
    };
    match (flag.kind, value.get_ref()) {
        (Kind::Whole(_), DeValue::Integer(_)) => Some(vec![number(value)?]),
        (Kind::Number, _) => Some(vec![number(value)?]),
        (Kind::NumberByRole | Kind::WholeByRole(_), DeValue::String(_)) => Some(vec![string(value)?]),
        (Kind::NumberByRole | Kind::WholeByRole(_), _) => Some(vec![number(value)?]),
        (Kind::Betas, DeValue::Array(two)) if two.len() == 2 => {
            Some(vec![two.iter().map(number).collect::<Option<Vec<_>>>()?.join(",")])
        }
        (Kind::Seeds, DeValue::Array(several)) => {
            Some(vec![several.iter().map(number).collect::<Option<Vec<_>>>()?.join(",")])
        }
        (Kind::List, DeValue::Array(several)) => several.iter().map(string).collect(),
        (Kind::Text | Kind::Choice(_) | Kind::List | Kind::Policies, DeValue::String(_)) => {
            Some(vec![string(value)?])
        }
        (Kind::Table | Kind::Policies, DeValue::Table(table)) => pairs(table),
        (Kind::Switch, DeValue::Boolean(on)) => Some(vec![if *on { "yes" } else { "no" }.to_owned()]),
        _ => None,
    }
}

const ABOUT: &str = "\
# What this run is made with. pipeline.sh --resume RUN goes on with it, pipeline.sh --config RUN/config.toml --run DIR makes
# it again in DIR. Relative paths are as they were given.
";

/// Writes flags as a TOML file, in the order of the table of flags.
pub fn written(lines: &[Given]) -> String {
    let mut text = ABOUT.to_owned();
    let of = |flag: &Flag| -> Vec<&str> {
        let same = lines.iter().filter(|line| line.name == flag.name);
        same.map(|line| line.value.as_str()).collect()
    };
    let is_table = |flag: &Flag| {
        matches!(flag.kind, Kind::Table | Kind::Policies) && of(flag).iter().all(|value| value.contains('='))
    };
    for flag in flags::all().filter(|flag| !is_table(flag)) {
        let values = of(flag);
        if let Some(last) = values.last() {
            let shown = match flag.kind {
                Kind::Whole(_) => (*last).to_owned(),
                Kind::Number => number(last),
                Kind::NumberByRole if flags::is_number(last) => number(last),
                Kind::WholeByRole(_) if flags::is_number(last) => (*last).to_owned(),
                Kind::Betas => format!("[{}]", last.split(',').map(number).collect::<Vec<_>>().join(", ")),
                Kind::List => {
                    format!("[{}]", values.iter().map(|text| string(text)).collect::<Vec<_>>().join(", "))
                }
                Kind::Switch => (*last == "yes").to_string(),
                Kind::Seeds => format!("[{last}]"),
                _ => string(last),
            };
            let line = format!("{} = {shown}", flag.key());
            let comment = if flag.meaning.is_empty() { String::new() } else { format!("# {}", flag.meaning) };
            text.push_str(format!("{line:<40}{comment}").trim_end());
            text.push('\n');
        }
    }
    for flag in flags::all().filter(|flag| is_table(flag)) {
        let values = of(flag);
        if !values.is_empty() {
            text.push_str(&format!("\n[{}]\n", flag.key()));
        }
        for (key, value) in values.into_iter().filter_map(|value| value.split_once('=')) {
            let bare =
                !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
            let key = if bare { key.to_owned() } else { string(key) };
            text.push_str(&format!("{key} = {}\n", string(value)));
        }
    }
    text
}

/// Spells a number as TOML requires: digits on both sides of the point, no leading zeros.
fn number(text: &str) -> String {
    let is_toml = DeValue::parse(text).is_ok_and(|value| {
        value.get_ref().is_float()
            || value.get_ref().as_integer().is_some_and(|integer| integer.radix() == 10)
    });
    if is_toml {
        text.to_owned()
    } else {
        text.parse::<f64>().map_or_else(|_| string(text), |x| format!("{x:?}"))
    }
}

/// Quotes a string as TOML requires.
fn string(text: &str) -> String {
    let escaped = |c: char| match c {
        '"' => "\\\"".to_owned(),
        '\\' => "\\\\".to_owned(),
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        c if c.is_control() || stage::printable(&c.to_string()) != c.to_string() => {
            format!("\\U{:08x}", u32::from(c))
        }
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escaped).collect::<String>())
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;

//! The types of settings' values: how they are read from a word, and written to `config.toml` and `run.json`.

use std::fmt::{self, Display};
use std::path::Path;
use std::str::FromStr;

pub use record::address::is_server;
use serde::ser::{Serialize, SerializeMap, Serializer};

/// A finite number from 0. It is written in the shorter of two forms: `1e-3`, and `0.5`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Number(pub f64);

impl FromStr for Number {
    type Err = String;

    fn from_str(text: &str) -> Result<Number, String> {
        let is_decimal = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
        match text.parse::<f64>() {
            Ok(number) if is_decimal && number.is_finite() && number >= 0.0 => Ok(Number(number.abs())),
            _ => Err("not a number from 0".to_owned()),
        }
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plain, scientific) = (self.0.to_string(), format!("{:e}", self.0));
        f.write_str(if scientific.len() < plain.len() { &scientific } else { &plain })
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0)
    }
}

/// A value for one agent or, without a name, for all agents that have none of their own: `0.7`, `planner=1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByAgent<T> {
    pub agent: String,
    pub value: T,
}

impl<T: FromStr<Err: Display>> FromStr for ByAgent<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<ByAgent<T>, String> {
        let (agent, value) = text.split_once('=').unwrap_or(("", text));
        if text.starts_with('=') {
            return Err("not X or AGENT=X".to_owned());
        }
        let value = value.parse().map_err(|error: T::Err| match text.split_once(':') {
            Some((agent, number)) if number.parse::<T>().is_ok() => format!("write {agent}={number}"),
            _ => error.to_string(),
        })?;
        Ok(ByAgent { agent: agent.to_owned(), value })
    }
}

impl<T: Display> Display for ByAgent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.agent.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}", self.agent, self.value)
    }
}

/// Values by agent in order, the one for all others first. The later of two for one agent counts.
pub fn settle<T: Clone>(values: &mut Vec<ByAgent<T>>, for_others: Option<T>) {
    let mut all: Vec<ByAgent<T>> = Vec::new();
    let default = for_others.map(|value| ByAgent { agent: String::new(), value });
    for value in default.into_iter().chain(values.drain(..)) {
        all.retain(|other| other.agent != value.agent);
        all.push(value);
    }
    all.sort_by_key(|value| !value.agent.is_empty());
    *values = all;
}

/// Words with blanks between them.
pub fn joined<T: Display>(words: &[T]) -> String {
    words.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// A number where all agents have the same, else the words of all.
pub fn by_agent<T: Serialize + Display, S: Serializer>(
    values: &[ByAgent<T>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match values {
        [one] if one.agent.is_empty() => one.value.serialize(serializer),
        several => serializer.serialize_str(&joined(several)),
    }
}

/// One number as a number, several as a list.
pub fn one_or_list<S: Serializer>(numbers: &[Number], serializer: S) -> Result<S::Ok, S::Error> {
    match numbers {
        [one] => one.serialize(serializer),
        several => several.serialize(serializer),
    }
}

/// `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub name: String,
    pub value: String,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Pair, String> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                Ok(Pair { name: name.to_owned(), value: value.to_owned() })
            }
            _ => Err("not NAME=VALUE".to_owned()),
        }
    }
}

impl Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// A table of the last value of each name.
pub fn table<S: Serializer>(pairs: &[Pair], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    for (place, pair) in pairs.iter().enumerate() {
        if pairs[place + 1..].iter().all(|later| later.name != pair.name) {
            map.serialize_entry(&pair.name, &pair.value)?;
        }
    }
    map.end()
}

/// The policies by agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PolicyChoice {
    /// One policy for all agents.
    #[default]
    Shared,
    /// A policy per agent.
    PerRole,
    /// An adapter per agent over one base.
    AdapterPerRole,
    /// Given by the user: agents, each with a directory or URL.
    Named(Vec<Pair>),
}

impl FromStr for PolicyChoice {
    type Err = String;

    fn from_str(word: &str) -> Result<PolicyChoice, String> {
        Ok(match word {
            "shared" => PolicyChoice::Shared,
            "per-role" => PolicyChoice::PerRole,
            "adapter-per-role" => PolicyChoice::AdapterPerRole,
            pair => match Pair::from_str(pair) {
                Ok(named) if !named.value.is_empty() && !pair.contains(char::is_whitespace) => {
                    PolicyChoice::Named(vec![named])
                }
                Ok(named) if !named.value.is_empty() => {
                    return Err("DIR cannot have blanks in its name".to_owned());
                }
                _ if Path::new(word).is_dir() || is_server(word) => {
                    return Err(format!("name it for each agent: --policies AGENT={word}"));
                }
                _ => return Err("not shared, adapter-per-role, per-role or AGENT=DIR".to_owned()),
            },
        })
    }
}

impl PolicyChoice {
    /// The choice of several words: the last, and with an agent's policy those of the agents before it.
    pub fn of(words: &[PolicyChoice]) -> PolicyChoice {
        let add = |before: PolicyChoice, word: &PolicyChoice| match (before, word) {
            (PolicyChoice::Named(before), PolicyChoice::Named(pair)) => {
                PolicyChoice::Named([&before[..], pair].concat())
            }
            (_, word) => word.clone(),
        };
        words.iter().fold(PolicyChoice::Shared, add)
    }
}

impl Serialize for PolicyChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            PolicyChoice::Shared => serializer.serialize_str("shared"),
            PolicyChoice::PerRole => serializer.serialize_str("per-role"),
            PolicyChoice::AdapterPerRole => serializer.serialize_str("adapter-per-role"),
            PolicyChoice::Named(pairs) => table(pairs, serializer),
        }
    }
}

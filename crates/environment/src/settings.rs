//! `--set key=value`: the settings of an environment, and error messages about them.
//!
//! Values stay text until an environment parses them, so that a message can quote the user's text. Left out:
//! files of settings; a shell script is one.

use std::fmt::Display;
use std::str::FromStr;

use record::failure::{Failure, Result};
use serde::{Deserialize, Serialize};

/// One thing that `--set` can change.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The key.
    pub name: &'static str,
    /// The default, as text for a person.
    pub default: &'static str,
    /// Meaning, in one line.
    pub meaning: &'static str,
}

impl Setting {
    pub const fn new(name: &'static str, default: &'static str, meaning: &'static str) -> Setting {
        Setting { name, default, meaning }
    }
}

/// `encoding` of grid worlds.
pub const ENCODING: Setting =
    Setting::new("encoding", "compact", "compact (one word a cell) or full (prose and a grid)");
/// `turns`.
pub const TURNS: Setting = Setting::new("turns", "4", "turns in an episode, 1 to 99");

/// `reward` of grid worlds.
pub const REWARD: Setting = Setting::new(
    "reward",
    "shaped",
    "shaped (by turn, after the paper's table) or success (1 for solving, else 0)",
);

/// The values given with `--set`, in order; a later one replaces an earlier one of the same key.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: Vec<(String, String)>,
}

impl Settings {
    /// Reads `key=value` texts.
    ///
    /// # Errors
    /// A text without `=`, or a key that is not among `known`: usage, with the nearest known key as hint.
    pub fn parse(texts: &[String], environment: &str, known: &[Setting]) -> Result<Self> {
        let mut values: Vec<(String, String)> = Vec::new();
        for text in texts {
            let Some((key, value)) = text.split_once('=') else {
                return Err(Failure::usage(format!("--set {text}: there is no '=' between key and value"))
                    .hint("write it as key=value, for example --set size=10"));
            };
            let names: Vec<&str> = known.iter().map(|setting| setting.name).collect();
            if !names.contains(&key) {
                return Err(Failure::usage(format!("--set {text}: {environment} has no setting '{key}'"))
                    .hint(suggest(key, &names)));
            }
            values.retain(|(other, _)| other != key);
            values.push((key.to_owned(), value.to_owned()));
        }
        Ok(Self { values })
    }

    /// The text given for `key`, if any.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.values.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Returns true if texts are prose for language models, and not the compact code.
    pub fn is_prose(&self) -> bool {
        self.text("encoding") == Some("full")
    }

    /// The value given for `key`, if any.
    ///
    /// # Errors
    /// A value that is not a `T`: usage, naming the value and `expected`.
    pub fn value<T: FromStr>(&self, key: &str, expected: impl Display) -> Result<Option<T>> {
        let Some(text) = self.text(key) else { return Ok(None) };
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(Failure::usage(format!("--set {key}={text}: '{text}' is not {expected}"))),
        }
    }

    /// The whole number given for `key`, or `default`.
    ///
    /// # Errors
    /// No whole number, or one out of range: usage.
    pub fn whole<T>(&self, key: &str, default: T, least: T, most: T) -> Result<T>
    where
        T: FromStr + PartialOrd + Display,
    {
        ranged(key, self.value(key, "a whole number")?.unwrap_or(default), least, most)
    }

    /// The number given for `key`, or `default`.
    ///
    /// # Errors
    /// No number, or one out of range: usage.
    pub fn number(&self, key: &str, default: f64, least: f64, most: f64) -> Result<f64> {
        ranged(key, self.value(key, "a number")?.unwrap_or(default), least, most)
    }
}

/// How prompts are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    #[default]
    /// The fewest words possible, for policies of a few hundred thousand parameters.
    Compact,
    /// Instructions in prose, for pretrained language models.
    Full,
}

impl Encoding {
    /// The value of `--set encoding`, compact unless given.
    pub fn from_settings(settings: &Settings) -> Result<Encoding> {
        match settings.text("encoding") {
            None | Some("compact") => Ok(Encoding::Compact),
            Some("full") => Ok(Encoding::Full),
            Some(other) => Err(choice("encoding", other, "compact or full")),
        }
    }

    /// [`Encoding::from_settings`] for an environment with `--set data`: problems from a file are in prose.
    pub fn of_problems(settings: &Settings) -> Result<Encoding> {
        match (Encoding::from_settings(settings)?, settings.text("data"), settings.text("encoding")) {
            (Encoding::Compact, Some(_), Some(_)) => {
                Err(Failure::usage("--set encoding=compact: problems from a file are in prose")
                    .hint("leave encoding out, or set it to full"))
            }
            (_, Some(_), _) => Ok(Encoding::Full),
            (encoding, None, _) => Ok(encoding),
        }
    }

    /// `compact` or `full`.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Compact => "compact",
            Encoding::Full => "full",
        }
    }
}

/// What turns earn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RewardMode {
    #[default]
    /// The paper's table: progress pays, so idling pays under `--credit return` and `episode`.
    Shaped,
    /// Only the team earns, 1 for solving the task.
    Success,
}

impl RewardMode {
    /// The value of `--set reward`, shaped unless given.
    pub fn from_settings(settings: &Settings) -> Result<RewardMode> {
        match settings.text("reward") {
            None | Some("shaped") => Ok(RewardMode::Shaped),
            Some("success") => Ok(RewardMode::Success),
            Some(other) => Err(choice("reward", other, "shaped or success")),
        }
    }

    /// Returns true if a `spec` leaves it out.
    pub fn is_default(&self) -> bool {
        *self == RewardMode::Shaped
    }
}

/// `value`, if it lies within its bounds.
pub fn ranged<T: PartialOrd + Display>(name: &str, value: T, least: T, most: T) -> Result<T> {
    // Not the reverse, which NaN would pass.
    match value >= least && value <= most {
        true => Ok(value),
        false => Err(Failure::usage(format!("--set {name}={value}: not from {least} to {most}"))),
    }
}

/// The failure of a value that is none of its choices.
pub fn choice(name: &str, value: &str, choices: &str) -> Failure {
    Failure::usage(format!("--set {name}={value}: '{value}' is not {choices}"))
}

/// A hint that names the known word nearest to `word`, or all of them if none is near.
pub fn suggest(word: &str, known: &[&str]) -> String {
    let nearest =
        known.iter().map(|name| (!name.starts_with(word), strsim::levenshtein(word, name), *name)).min();
    match nearest {
        Some((no_prefix, distance, name)) if distance <= 2 || !no_prefix => format!("did you mean '{name}'?"),
        _ => format!("choose from: {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Setting] = &[
        Setting { name: "size", default: "5", meaning: "cells a side" },
        Setting { name: "encoding", default: "compact", meaning: "how text looks" },
    ];

    #[test]
    fn near_keys_are_suggested_and_far_ones_listed() {
        assert_eq!(suggest("sise", &["size", "encoding"]), "did you mean 'size'?");
        assert_eq!(suggest("enc", &["size", "encoding"]), "did you mean 'encoding'?");
        assert_eq!(suggest("color", &["size", "encoding"]), "choose from: size, encoding");
    }

    #[test]
    fn the_last_value_of_a_key_counts() {
        let texts = ["size=5".to_owned(), "size=7".to_owned()];
        let settings = Settings::parse(&texts, "plan-path", KNOWN).unwrap();
        assert_eq!(settings.value::<u32>("size", "a whole number").unwrap(), Some(7));
        assert_eq!(settings.value::<u32>("encoding", "a whole number").unwrap(), None);
    }

    #[test]
    fn problems_of_a_file_are_in_prose() {
        let known = [KNOWN, &[Setting { name: "data", default: "none", meaning: "a file" }]].concat();
        for (texts, encoding) in [
            (&[][..], Some(Encoding::Compact)),
            (&["data=x"], Some(Encoding::Full)),
            (&["data=x", "encoding=full"], Some(Encoding::Full)),
            (&["data=x", "encoding=compact"], None),
            (&["encoding=short"], None),
        ] {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            let settings = Settings::parse(&texts, "math", &known).unwrap();
            assert_eq!(Encoding::of_problems(&settings).ok(), encoding, "{texts:?}");
        }
    }

    #[test]
    fn mistakes_are_usage_failures() {
        for text in ["size", "sise=5"] {
            assert!(Settings::parse(&[text.to_owned()], "plan-path", KNOWN).is_err(), "{text} was accepted");
        }
        let settings = Settings::parse(&["size=big".to_owned()], "plan-path", KNOWN).unwrap();
        assert!(settings.value::<u32>("size", "a whole number").is_err());
    }
}

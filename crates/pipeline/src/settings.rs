//! The settings of a run: the validated values of all flags.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use record::address;
pub use record::address::is_server;
use record::failure::{Failure, Result};

use crate::flags::{self, Given, Kind, is_number};
use crate::kind::{self, PolicyKind};
use crate::model::Model;

/// The stages of the pipe that take flags, in its order.
pub const STAGES: [&str; 5] = ["tasks", "rollout", "group", "advantage", "update"];

/// The policies by agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyChoice {
    /// One policy for all agents.
    Shared,
    /// A policy per agent.
    PerRole,
    /// An adapter per agent over one base.
    AdapterPerRole,
    /// Given by the user: pairs of an agent and a directory or URL.
    Named(Vec<(String, String)>),
}

impl PolicyChoice {
    /// The choice as command-line words.
    pub fn words(&self) -> Vec<String> {
        match self {
            PolicyChoice::Shared => vec!["shared".to_owned()],
            PolicyChoice::PerRole => vec!["per-role".to_owned()],
            PolicyChoice::AdapterPerRole => vec!["adapter-per-role".to_owned()],
            PolicyChoice::Named(pairs) => {
                pairs.iter().map(|(agent, what)| format!("{agent}={what}")).collect()
            }
        }
    }
}

/// The values of all flags, and which of them were given.
#[derive(Clone, Debug)]
pub struct Settings {
    texts: BTreeMap<&'static str, String>,
    given: BTreeSet<&'static str>,
    pub policies: PolicyChoice,
    /// Environment settings, `NAME=VALUE`.
    pub set: Vec<String>,
    /// Agents that are trained; empty: all that are not played by a server.
    pub train: Vec<String>,
    /// Texts that end a completion, each `TEXT` or `ROLE=TEXT`.
    pub stop: Vec<String>,
    /// More flags of stages, by stage: the words of `--flags`.
    pub flags: BTreeMap<String, String>,
    /// Custom commands of stages (`--stage`).
    pub stage: BTreeMap<String, String>,
    /// By which of the three columns the numbers default.
    pub kind: PolicyKind,
    /// The model that new policies are made from, once it is on this machine.
    pub model: Option<Model>,
    /// The learning rate that follows from its size.
    pub rate: Option<String>,
}

const HELP: &str = "./pipeline.sh --help says what the flags take";

fn usage(message: impl std::fmt::Display) -> Failure {
    Failure::usage(message).hint(HELP)
}

/// A number as a flag has it.
fn number(kind: Kind, dashed: &str, value: &str) -> Result<String> {
    if let Kind::Whole(least) | Kind::WholeByRole(least) = kind {
        let digits = (1..=12).contains(&value.len()) && value.bytes().all(|b| b.is_ascii_digit());
        let number = value.parse::<u64>().ok().filter(|_| digits);
        let number = number
            .ok_or_else(|| usage(format!("{dashed} {value}: not a whole number of at most 12 digits")))?;
        return match number < least {
            true => Err(usage(format!("{dashed} must be at least {least}"))),
            false => Ok(number.to_string()), // 010 is ten
        };
    }
    match value.parse::<f64>() {
        _ if !is_number(value) => Err(usage(format!("{dashed} {value}: not a number"))),
        Ok(number) if number < 0.0 => Err(usage(format!("{dashed} {value} must not be negative"))),
        _ => Ok(value.to_owned()),
    }
}

/// The words `X` and `ROLE=X` of `before` and `value`, the value for all others first. The later of two for one
/// agent counts.
fn by_role(kind: Kind, dashed: &str, before: &str, value: &str) -> Result<String> {
    let mut words: Vec<(&str, String)> = Vec::new();
    for word in before.split(' ').chain(value.split(' ')).filter(|word| !word.is_empty()) {
        let (role, text) = word.split_once('=').unwrap_or(("", word));
        if word.starts_with('=') {
            return Err(usage(format!("{dashed} {word}: not X or ROLE=X")));
        }
        let text = number(kind, dashed, text)?;
        words.retain(|(known, _)| *known != role);
        words.push((role, text));
    }
    words.sort_by_key(|(role, _)| !role.is_empty());
    match words.is_empty() {
        true => Err(usage(format!("{dashed} {value}: not a number"))),
        false => {
            let word = |(role, text): &(&str, String)| match role.is_empty() {
                true => text.clone(),
                false => format!("{role}={text}"),
            };
            Ok(words.iter().map(word).collect::<Vec<_>>().join(" "))
        }
    }
}

impl Settings {
    /// The values of flags, the later before the earlier, and the defaults of all others.
    ///
    /// # Errors
    /// A value that is none of its flag's.
    pub fn new(given: &[Given]) -> Result<Settings> {
        let texts = flags::all().map(|flag| (flag.name, flag.defaults[0].to_owned())).collect();
        let mut settings = Settings {
            texts,
            given: BTreeSet::new(),
            policies: PolicyChoice::Shared,
            set: Vec::new(),
            train: Vec::new(),
            stop: Vec::new(),
            flags: BTreeMap::new(),
            stage: BTreeMap::new(),
            kind: PolicyKind::Tiny,
            model: None,
            rate: None,
        };
        given.iter().try_for_each(|given| settings.take(given))?;
        settings.choose_defaults()?;
        Ok(settings)
    }

    /// A value as text; empty for the program's default.
    pub fn text(&self, name: &str) -> &str {
        debug_assert!(flags::find(name).is_some(), "{name}");
        self.texts.get(name).map_or("", String::as_str)
    }

    /// An integer; 1 for the program's default.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(1)
    }

    pub fn is_on(&self, name: &str) -> bool {
        self.text(name) == "yes"
    }

    pub fn is_given(&self, name: &str) -> bool {
        self.given.contains(name)
    }

    /// Sets a derived value.
    pub fn set_text(&mut self, name: &'static str, value: impl Into<String>) {
        self.texts.insert(name, value.into());
    }

    /// Sets the value of agents that the flag does not name, unless there is one.
    pub fn set_for_others(&mut self, name: &'static str, value: &str) {
        let text = self.text(name);
        if text.split(' ').all(|word| word.is_empty() || word.contains('=')) {
            let text = format!("{value} {text}");
            self.set_text(name, text.trim());
        }
    }

    /// The agents that a flag names which has values for one, with its name.
    pub fn roles(&self) -> impl Iterator<Item = (String, &str)> {
        let numbers =
            flags::all().filter(|flag| matches!(flag.kind, Kind::NumberByRole | Kind::WholeByRole(_)));
        let words =
            numbers.flat_map(|flag| self.text(flag.name).split(' ').map(|word| (flag.dashed(), word)));
        let stops = self.stop.iter().map(|text| ("--stop".to_owned(), text.as_str()));
        let roles = words.chain(stops).filter_map(|(flag, word)| Some((flag, word.split_once('=')?.0)));
        roles.filter(|(_, role)| !role.is_empty())
    }

    /// Returns true if some tokens cannot be sampled.
    pub fn is_truncated(&self) -> bool {
        let all = [("top_p", 1.0), ("top_k", 0.0), ("min_p", 0.0)];
        all.into_iter().any(|(name, everything)| {
            let numbers = self.text(name).split(' ').map(|word| word.rsplit('=').next().unwrap_or_default());
            numbers.filter_map(|number| number.parse::<f64>().ok()).any(|number| number != everything)
        })
    }

    /// Returns true if the run begins with random weights, which no warm-up trains.
    pub fn begins_untrained(&self) -> bool {
        let is_random = ["tiny", "bench"].contains(&self.text("model"));
        is_random && !matches!(self.policies, PolicyChoice::Named(_)) && self.number("warmup") == 0
    }

    /// From how many versions opponents are drawn; 0 without self-play.
    pub fn pool(&self) -> u64 {
        let count = self.text("opponents").strip_prefix("past:").and_then(|count| count.parse().ok());
        count.unwrap_or(0)
    }

    /// Keeps the versions that a resumed run draws opponents from: a kill takes it back to the last saved version.
    ///
    /// # Errors
    /// Usage: not all agents are trained, so that not all can learn in turn.
    pub fn keep_opponents(&mut self) -> Result<()> {
        if self.pool() == 0 {
            return Ok(());
        }
        if !self.train.is_empty() {
            return Err(Failure::usage("--opponents: all agents learn in turn, which --train forbids")
                .hint("leave out one of them"));
        }
        let keep = self.number("keep").max(self.pool() + self.number("save_every"));
        self.set_text("keep", keep.to_string());
        Ok(())
    }

    /// Returns true if more flags of a stage name this one.
    pub fn has_flag(&self, stage: &str, flag: &str) -> bool {
        self.flags.get(stage).is_some_and(|words| {
            words
                .split_whitespace()
                .any(|word| word == flag || word.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')))
        })
    }

    /// The words of `--flags` for a stage that set one of `names`, with their values.
    pub fn given_to(&self, stage: &str, names: &[&str]) -> Vec<String> {
        let text = self.flags.get(stage).map_or("", String::as_str);
        let (mut words, mut found) = (text.split_whitespace(), Vec::new());
        while let Some(word) = words.next() {
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            if names.contains(&name) {
                found.push(name.to_owned());
                found.extend(value.or_else(|| words.next()).map(str::to_owned));
            }
        }
        found
    }

    /// Returns true if tasks come from this project's environments, and so depend only on the step.
    pub fn has_own_tasks(&self) -> bool {
        !self.stage.contains_key("tasks") && self.text("env_command").is_empty()
    }

    fn take(&mut self, Given { name, value }: &Given) -> Result<()> {
        let Some(flag) = flags::find(name) else { return Ok(()) };
        let dashed = flag.dashed();
        let is_first = self.given.insert(flag.name);
        let mut text = value.clone();
        match flag.kind {
            Kind::Whole(_) | Kind::Number => text = number(flag.kind, &dashed, value)?,
            Kind::NumberByRole | Kind::WholeByRole(_) => {
                let before = if is_first { "" } else { self.text(flag.name) };
                text = by_role(flag.kind, &dashed, before, value)?;
            }
            Kind::Betas if value.split(',').count() != 2 || !value.split(',').all(is_number) => {
                return Err(usage(format!("{dashed} {value}: not two numbers with a comma between them")));
            }
            Kind::Choice(known) if !known.contains(&value.as_str()) => {
                let (last, others) = known.split_last().unwrap_or((&"", &[]));
                let failure = usage(format!("{dashed} {value}: not {} or {last}", others.join(", ")));
                return Err(match *name == "method" && value.to_lowercase() == "grpo" {
                    true => failure.hint(
                        "GRPO of whole episodes is --method trajectory; at-grpo, the default, compares the candidates of each turn",
                    ),
                    false => failure,
                });
            }
            Kind::Policies => return self.take_policies(value),
            Kind::Table if *name == "set" => {
                let whole = value.split_once('=').is_some_and(|(key, _)| !key.is_empty());
                if !whole || value.contains(char::is_whitespace) {
                    return Err(Failure::usage(format!("{dashed} {value}: not NAME=VALUE"))
                        .hint("envs list names the settings"));
                }
                self.set.push(value.clone());
            }
            Kind::Table => return self.take_of_stage(flag.name, value),
            Kind::List if *name == "stop" => {
                if value.split_once('=').map_or(value.as_str(), |(_, text)| text).is_empty() {
                    return Err(usage(format!("{dashed} {value}: not TEXT or ROLE=TEXT")));
                }
                self.stop.push(value.clone());
            }
            Kind::List => self.train.push(value.clone()),
            Kind::Betas | Kind::Text | Kind::Choice(_) | Kind::Seeds | Kind::Optional(_) | Kind::Switch => {}
        }
        self.texts.insert(flag.name, text);
        Ok(())
    }

    fn take_policies(&mut self, value: &str) -> Result<()> {
        self.policies = match (value, &mut self.policies) {
            ("shared", _) => PolicyChoice::Shared,
            ("per-role", _) => PolicyChoice::PerRole,
            ("adapter-per-role", _) => PolicyChoice::AdapterPerRole,
            (pair, before) => {
                let named = pair.split_once('=').filter(|(agent, _)| !agent.contains([':', '/', '@']));
                address::check("--policies", named.map_or(pair, |(_, what)| what))?;
                if pair.contains(char::is_whitespace) {
                    return Err(usage(format!("--policies {pair}: DIR cannot have blanks in its name")));
                }
                let pair = pair.split_once('=').filter(|(agent, what)| !agent.is_empty() && !what.is_empty());
                let (agent, what) = pair.ok_or_else(|| {
                    let failure = usage(format!(
                        "--policies {value}: not shared, adapter-per-role, per-role or AGENT=DIR"
                    ));
                    match Path::new(value).is_dir() || is_server(value) {
                        true => failure.hint(format!(
                            "name it for each agent: --policies AGENT={value}, once with each agent's name"
                        )),
                        false => failure,
                    }
                })?;
                let mut pairs = match before {
                    PolicyChoice::Named(pairs) => std::mem::take(pairs),
                    _ => Vec::new(),
                };
                pairs.push((agent.to_owned(), what.to_owned()));
                PolicyChoice::Named(pairs)
            }
        };
        Ok(())
    }

    fn take_of_stage(&mut self, flag: &'static str, value: &str) -> Result<()> {
        let (stage, text) = value.split_once('=').map_or((value, None), |(stage, text)| (stage, Some(text)));
        if !STAGES.contains(&stage) && (flag, stage) != ("stage", "reward") {
            return Err(Failure::usage(format!("--{flag} {stage}: no such stage"))
                .hint("stages: tasks rollout group advantage update, and with --stage reward"));
        }
        let text = text.ok_or_else(|| usage(format!("--{flag} {value}: not NAME=VALUE")))?;
        if flag == "stage" {
            self.stage.insert(stage.to_owned(), text.to_owned());
        } else {
            let words = self.flags.entry(stage.to_owned()).or_default();
            words.push_str(if words.is_empty() { "" } else { " " });
            words.push_str(text);
        }
        Ok(())
    }

    /// Fills in the defaults that depend on the kind of policy.
    fn choose_defaults(&mut self) -> Result<()> {
        self.kind = match &self.policies {
            PolicyChoice::Named(pairs) => {
                if self.is_given("model") {
                    return Err(Failure::usage("--model has no effect where --policies names directories")
                        .hint("leave one of them out"));
                }
                match pairs.iter().find(|(_, what)| !is_server(what)) {
                    // The first policy decides.
                    Some((agent, directory)) => kind::of_agent(self.text("run"), agent, directory.as_ref()),
                    None if self.is_given("evaluate") => PolicyKind::Pretrained,
                    None => {
                        return Err(Failure::usage(
                            "--policies: servers play all agents, so that nobody is trained",
                        )
                        .hint("add --policies AGENT=DIR"));
                    }
                }
            }
            _ if self.text("model") == "tiny" => PolicyKind::Tiny,
            PolicyChoice::AdapterPerRole => PolicyKind::Adapters,
            _ => PolicyKind::Pretrained,
        };
        if !self.text("env_command").is_empty() && !self.is_given("warmup") {
            self.set_text("warmup", "0");
            self.given.insert("warmup");
        }
        for flag in flags::all() {
            let default = flag.defaults[self.kind as usize];
            if !self.is_given(flag.name) {
                self.set_text(flag.name, default);
            } else if matches!(flag.kind, Kind::NumberByRole | Kind::WholeByRole(_)) {
                self.set_for_others(flag.name, default);
            }
        }
        if self.text("kl").parse() == Ok(0.0) {
            self.set_text("kl", "0"); // 0.0 also means no KL
        }
        if self.text("dtype").is_empty() && self.text("device") == "cpu" {
            self.set_text("dtype", "float32");
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;

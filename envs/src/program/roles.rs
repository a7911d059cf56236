//! The roles of a program's calls, and what else its user says about it.

use std::str::FromStr;
use std::time::Duration;

use endpoint::Error;
use regex::Regex;

/// A role: its calls name this model and, with a pattern, have a system message that it matches.
#[derive(Clone, Debug)]
pub struct Role {
    pub name: String,
    model: String,
    pattern: Option<Regex>,
}

impl FromStr for Role {
    type Err = String;

    /// Reads `NAME`, `NAME=MODEL` or `NAME=MODEL@PATTERN`.
    fn from_str(text: &str) -> Result<Role, String> {
        let (name, model) = text.split_once('=').unwrap_or((text, text));
        let (model, pattern) = match model.split_once('@') {
            None => (model, None),
            Some((model, pattern)) => (model, Some(Regex::new(pattern).map_err(|error| error.to_string())?)),
        };
        match name.is_empty() || model.is_empty() {
            true => Err("a role is NAME, NAME=MODEL or NAME=MODEL@PATTERN".to_owned()),
            false => Ok(Role { name: name.to_owned(), model: model.to_owned(), pattern }),
        }
    }
}

/// How the answer of a program is compared with the task's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scorer {
    /// Equal as text, without the space around it.
    Text,
    /// Equal as mathematics, as `math` compares answers.
    Math,
}

/// What a nonzero exit means: programs that read a model's text end so on bad text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Crash {
    /// A reward of 0.
    Zero,
    /// The episode ends with an error line, and is not trained on.
    Error,
}

/// What the user says about the program.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// Roles, each the name of a model that the program calls.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required_unless_present = "role")]
    roles: Vec<Role>,
    /// A role by the model that it calls, and a regular expression on its system message (repeatable).
    #[arg(long, value_name = "NAME=MODEL@PATTERN")]
    role: Vec<Role>,
    /// Most calls of an episode.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub max_calls: u32,
    /// How `{"answer": ...}` is compared with the task's `answer`.
    #[arg(long, value_enum, default_value = "text")]
    pub scorer: Scorer,
    /// What an exit code other than 0 means.
    #[arg(long, value_enum, default_value = "zero")]
    pub crash: Crash,
    /// Removes what this regular expression matches from all prompts: dates, random ids.
    #[arg(long, value_name = "REGEX")]
    pub ignore: Option<Regex>,
    /// No copies of a running program, which is not deterministic: `rollout --sampling parallel` alone.
    #[arg(long)]
    pub no_copies: bool,
    /// Most programs alive at once; others are ended, and started again when they are needed.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub alive: u32,
    /// Seconds in which a program calls or ends; below the --timeout of rollout, which is 60.
    #[arg(long, value_name = "SECONDS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=86400))]
    silence: u64,
}

impl Settings {
    /// All roles, each once.
    ///
    /// # Errors
    /// A name occurs twice.
    pub fn check(&self) -> record::failure::Result<()> {
        let names = self.names();
        match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            None => Ok(()),
            Some((_, name)) => {
                Err(record::failure::Failure::usage(format!("the role {name} is given more than once"))
                    .hint("several models or patterns of one role: one pattern with `|`"))
            }
        }
    }

    /// How long a program may neither call nor end.
    pub fn silence(&self) -> Duration {
        Duration::from_secs(self.silence)
    }

    fn all(&self) -> impl Iterator<Item = &Role> {
        self.roles.iter().chain(&self.role)
    }

    pub fn names(&self) -> Vec<&str> {
        self.all().map(|role| &*role.name).collect()
    }

    /// The role of a call of `model` whose first system message is `system`: the first that fits.
    ///
    /// # Errors
    /// 404: none fits; the message names those that there are.
    pub fn role_of(&self, model: &str, system: &str) -> Result<&str, Error> {
        let fits = |role: &&Role| {
            role.model == model && role.pattern.as_ref().is_none_or(|pattern| pattern.is_match(system))
        };
        if let Some(role) = self.all().find(fits) {
            return Ok(&role.name);
        }
        let message = match self.all().any(|role| role.model == model) {
            true => {
                let start: String = system.chars().take(60).collect();
                format!(
                    "no role of the model {model} has a pattern that matches the system message {start:?}"
                )
            }
            false => {
                let models: Vec<&str> = self.all().map(|role| &*role.model).collect();
                format!("the model {model} is no role; the roles' models are: {}", models.join(", "))
            }
        };
        Err(Error::new(404, message).code("model_not_found"))
    }

    /// The models by which the roles are called.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        self.all().map(|role| &*role.model)
    }
}

//! The command line shared by all subcommands. Flags of one subcommand are in its file.

use std::ffi::OsStr;
use std::time::Duration;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use envs::external::processes::lines;
use envs::{Environment, Selection, Settings, Split};
use record::failure::{Failure, Result};
use record::write::Writer;

/// Help with the examples first.
pub const TEMPLATE: &str =
    "{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n{all-args}{after-help}";

/// The name of an environment: any text, of which shells offer the names that there are. [`envs::find`] says what is wrong with others.
#[derive(Clone)]
pub struct EnvironmentName;

impl TypedValueParser for EnvironmentName {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> std::result::Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(envs::ENVIRONMENTS.iter().map(|environment| PossibleValue::new(environment.name()))))
    }
}

/// A program in the place of an environment that is built in.
#[derive(clap::Args)]
pub struct Program {
    /// Prints the output of this program instead: of COMMAND tasks, or COMMAND demo.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["environment", "settings"])]
    pub env_command: Option<String>,
    /// Seconds of silence after which the program is killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "env_command")]
    timeout: u64,
}

impl Program {
    /// Prints the lines of `command`, which is `env_command` with arguments.
    pub fn print(&self, command: &str) -> Result<()> {
        let mut writer = Writer::stdout();
        self.each(command, |line| writer.raw(&line))?;
        writer.flush()
    }

    /// Takes each line that `command` prints.
    pub fn each(&self, command: &str, take: impl FnMut(String) -> Result<()>) -> Result<()> {
        lines(command, Duration::from_secs(self.timeout.max(1)), take)
    }
}

/// Selects tasks; the split is the subcommand's.
#[derive(clap::Args)]
pub struct Choice {
    /// The environment; `envs list` names them.
    #[arg(value_name = "ENV", value_parser = EnvironmentName, hide_possible_values = true)]
    environment: Option<String>,
    /// Random seed.
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,
    /// Changes a setting; `envs list` names them (repeatable).
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

impl Choice {
    pub fn environment(&self) -> Result<&'static dyn Environment> {
        let name = self.environment.as_deref();
        envs::find(name.ok_or_else(|| {
            Failure::usage("no environment is given").hint("name one: envs list names them")
        })?)
    }

    pub fn selection(&self, split: Split) -> Result<Selection> {
        let environment = self.environment()?;
        let settings = Settings::parse(&self.settings, environment.name(), environment.metadata().settings)?;
        Ok(Selection { split, seed: self.seed, settings })
    }
}

//! `envs list`: which environments there are, with their workflows and settings.

use std::fmt::Write as _;
use std::io::Write as _;

use envs::{Environment, Selection, Settings, Split};
use record::failure::Result;

/// Lists the environments with their workflows, settings and demonstrators.
///
/// With --set the agents of each workflow are those that these settings ask for.
#[derive(clap::Args)]
#[command(help_template = crate::TEMPLATE, before_help = "\
Examples:
  envs list
  envs list --names
  envs list math --set reasoners=3 --set tools=2")]
pub struct List {
    /// One environment instead of all.
    #[arg(value_name = "ENV")]
    environment: Option<String>,
    /// Changes a setting (repeatable).
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "environment")]
    settings: Vec<String>,
    /// The names alone, one a line.
    #[arg(long)]
    names: bool,
}

impl List {
    pub fn run(&self) -> Result<()> {
        let mut text = String::new();
        let listed: Vec<&'static dyn Environment> = match &self.environment {
            Some(name) => vec![envs::find(name)?],
            None => envs::ENVIRONMENTS.to_vec(),
        };
        for environment in listed {
            let spec = self.spec(environment)?;
            text.push_str(environment.name());
            if self.names {
                text.push('\n');
                continue;
            }
            // Writing to a String cannot fail.
            let _ = writeln!(text, ": {}", environment.summary());
            for workflow in environment.workflows() {
                let workflow = match &spec {
                    Some(spec) => environment.workflow(workflow.name(), spec)?,
                    None => workflow.clone(),
                };
                let (name, agents, order) =
                    (workflow.name(), workflow.agents().join(", "), workflow.describe());
                let _ = writeln!(text, "  --workflow {name:<12} {agents} ({order})");
            }
            for setting in environment.settings() {
                let shown = format!("{} = {}", setting.name, setting.default);
                let _ = writeln!(text, "  --set {shown:<45} {}", setting.meaning);
            }
            if !environment.demonstrators().is_empty() {
                let _ = writeln!(text, "  --mix {}", super::demo::mix_text(environment.demonstrators()));
            }
        }
        std::io::stdout().write_all(text.as_bytes()).or_else(super::tasks::quiet_when_closed)
    }
    /// The `spec` of a task under the settings, none without settings.
    fn spec(&self, environment: &dyn Environment) -> Result<Option<serde_json::Value>> {
        if self.settings.is_empty() {
            return Ok(None);
        }
        let settings = Settings::parse(&self.settings, environment.name(), environment.settings())?;
        let selection = Selection { split: Split::Train, seed: 0, settings };
        let first = environment.tasks(&selection)?.next();
        first.map(|task| task.map(|task| task.spec)).transpose()
    }
}

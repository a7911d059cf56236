//! `envs list`: which environments there are, with their workflows and settings.

use std::fmt::Write as _;
use std::sync::Arc;

use envs::{Environment, Selection, Setting, Settings, Split, Workflow};
use record::failure::Result;
use record::splice::json;
use record::write;
use serde_json::{Map, Value, json};

/// Lists the environments with their workflows, settings and demonstrators.
///
/// With --set it lists the agents that these settings give each workflow.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs list
  envs list --format names
  envs list plan-path --format json
  envs list math --set reasoners=3 --set tools=2")]
pub struct List {
    /// One environment instead of all.
    #[arg(value_name = "ENV", value_parser = crate::arguments::EnvironmentName, hide_possible_values = true)]
    environment: Option<String>,
    /// Changes a setting (repeatable).
    #[arg(long = "set", value_name = "KEY=VALUE", requires = "environment")]
    settings: Vec<String>,
    /// Adds the workflow of this TOML file.
    #[arg(long, value_name = "FILE", requires = "environment")]
    workflow: Option<String>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "HOW")]
    format: Format,
}

/// How the list is printed.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Text for people
    Text,
    /// Only the names, one per line
    Names,
    /// One JSON object a line: name, summary, workflows, settings, demonstrators
    Json,
}

impl List {
    pub fn run(&self) -> Result<()> {
        let mut text = String::new();
        let listed: Vec<&'static dyn Environment> = match &self.environment {
            Some(name) => vec![envs::find(name)?],
            None => envs::ENVIRONMENTS.to_vec(),
        };
        for environment in listed {
            match self.format {
                Format::Text => describe(&mut text, environment, &self.workflows(environment)?),
                Format::Names => text = text + environment.name() + "\n",
                Format::Json => {
                    let (workflows, settings) = (self.workflows(environment)?, self.settings(environment)?);
                    text = text + &json(&object(environment, &workflows, &settings))? + "\n";
                }
            }
        }
        write::stdout(text.as_bytes())
    }

    fn settings(&self, environment: &dyn Environment) -> Result<Settings> {
        Settings::parse(&self.settings, environment.name(), environment.metadata().settings)
    }

    /// The workflows, with the agents that the settings ask for.
    fn workflows(&self, environment: &dyn Environment) -> Result<Vec<Arc<Workflow>>> {
        let spec = self.spec(environment)?;
        let workflows = environment.workflows().iter();
        let named = workflows.map(|workflow| match &spec {
            Some(spec) => environment.workflow(workflow.name(), spec),
            None => Ok(workflow.clone()),
        });
        let file = self.workflow.iter().map(|file| environment.workflow(file, &serde_json::Value::Null));
        named.chain(file).collect()
    }

    /// The `spec` of a task under the settings, or `None` without settings.
    fn spec(&self, environment: &dyn Environment) -> Result<Option<serde_json::Value>> {
        if self.settings.is_empty() {
            return Ok(None);
        }
        let selection = Selection { split: Split::Train, seed: 0, settings: self.settings(environment)? };
        let first = environment.tasks(&selection)?.next();
        first.map(|task| task.map(|task| task.spec)).transpose()
    }
}

/// Appends an environment as text for people.
fn describe(text: &mut String, environment: &dyn Environment, workflows: &[Arc<Workflow>]) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}: {}", environment.name(), environment.metadata().summary);
    for workflow in workflows {
        let (name, agents, order) = (workflow.name(), workflow.agents().join(", "), workflow.describe());
        let _ = writeln!(text, "  --workflow {name:<12} {agents} ({order})");
    }
    for setting in environment.metadata().settings {
        let shown = format!("{} = {}", setting.name, setting.default);
        let _ = writeln!(text, "  --set {shown:<45} {}", setting.meaning);
    }
    if !environment.metadata().demonstrators.is_empty() {
        let _ = writeln!(text, "  --mix {}", super::demo::mix_text(environment.metadata().demonstrators));
    }
}

/// An environment as a JSON object.
fn object(environment: &dyn Environment, workflows: &[Arc<Workflow>], settings: &Settings) -> Value {
    let workflow = |workflow: &Arc<Workflow>| json!({"name": workflow.name(), "agents": workflow.agents(), "order": workflow.describe()});
    let setting = |setting: &Setting| json!({"name": setting.name, "default": setting.default, "meaning": setting.meaning});
    json!({
        "name": environment.name(),
        "summary": environment.metadata().summary,
        "workflows": workflows.iter().map(workflow).collect::<Vec<Value>>(),
        "max_tokens": (environment.metadata().max_tokens)(settings),
        "settings": environment.metadata().settings.iter().map(setting).collect::<Vec<Value>>(),
        "demonstrators": environment.metadata().demonstrators.iter().map(|(name, share)| (name.to_string(), json!(share))).collect::<Map<_, _>>(),
    })
}

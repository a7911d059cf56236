//! `policy init`: a new policy directory.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use policy::initial::{self, Preset};
use record::failure::Result;
use serde_json::Value;

/// Make a policy directory
///
/// Examples:
///   policy init run/tool --preset tiny --seed 7
///   policy init run/tool --from ~/models/Qwen3-0.6B
///   policy init run/tool --from ~/models/Qwen3-0.6B --chat-template-kwargs '{"enable_thinking": false}'
///   policy init run/tool --config config.json --seed 7
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Init {
    /// The directory to make
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Random weights in the geometry of a preset, with a tokenizer of its own
    #[arg(long, value_name = "NAME", conflicts_with_all = ["config", "from"], required_unless_present_any = ["config", "from"])]
    preset: Option<Name>,
    /// Random weights in the geometry of this config.json, with a tokenizer of its own
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    config: Option<PathBuf>,
    /// A copy of this Hugging Face directory
    #[arg(long, value_name = "HF_DIR")]
    from: Option<PathBuf>,
    /// Further variables for the chat template, a JSON object; they stay with the policy
    #[arg(long, value_name = "JSON", requires = "from", value_parser = variables)]
    chat_template_kwargs: Option<Value>,
    /// Seed of the random weights
    #[arg(long, value_name = "S", default_value_t = 0, conflicts_with = "from")]
    seed: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// 0.3 million weights: learns small boards in minutes on a laptop
    Tiny,
    /// 3.3 million weights: the model that speed is measured on
    Bench,
}

fn variables(text: &str) -> std::result::Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))
}

pub fn run(arguments: &Init) -> Result<()> {
    let root = &arguments.directory;
    let policy = match (&arguments.config, &arguments.from) {
        (Some(config), _) => initial::from_config(root, config, arguments.seed)?,
        (_, Some(source)) => initial::from_directory(root, source, arguments.chat_template_kwargs.as_ref())?,
        (None, None) => {
            let preset = match arguments.preset {
                Some(Name::Bench) => Preset::Bench,
                Some(Name::Tiny) | None => Preset::Tiny,
            };
            initial::from_preset(root, preset, arguments.seed)?
        }
    };
    super::check::print(&[format!("{} {}", root.display(), policy.version)])
}

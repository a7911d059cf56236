//! `policy init`: a new policy directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use policy::adapter::Target;
use policy::directory::Policy;
use policy::initial::{self, NewAdapter, Preset};
use policy::side_files;
use record::failure::{Failure, Result};
use record::stage;
use serde_json::Value;

/// Make a policy directory
///
/// Examples:
///   policy init run/tool --preset tiny --seed 7
///   policy init run/tool --from ~/models/Qwen3-0.6B --chat-template-kwargs '{"enable_thinking": false}'
///   policy init run/tool --from run/base --adapter rank=8,alpha=16,targets=q_proj+v_proj
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
    /// A copy of this Hugging Face directory, without stray files, which are named
    #[arg(long, value_name = "HF_DIR")]
    from: Option<PathBuf>,
    /// Further variables for the chat template, a JSON object; they stay with the policy
    #[arg(long, value_name = "JSON", requires = "from", value_parser = variables)]
    chat_template_kwargs: Option<Value>,
    /// A low-rank adapter (LoRA) over --from, which is never changed; of all modules by default
    #[arg(long, value_name = "rank=R,alpha=A[,targets=M+M]", requires = "from", conflicts_with = "chat_template_kwargs",
          value_parser = adapter)]
    adapter: Option<NewAdapter>,
    /// Seed of the random weights [default: 0]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
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

/// `rank=8,alpha=16,targets=q_proj+v_proj`.
fn adapter(text: &str) -> std::result::Result<NewAdapter, String> {
    let (mut rank, mut alpha, mut targets) = (None, None, Target::ALL.to_vec());
    for setting in text.split(',') {
        let (key, value) = setting.split_once('=').ok_or_else(|| format!("{setting:?} is no key=value"))?;
        match key {
            "rank" => rank = value.parse().ok().filter(|rank| (1..=1024).contains(rank)),
            "alpha" => alpha = value.parse().ok().filter(|alpha: &f32| *alpha > 0.0 && alpha.is_finite()),
            "targets" => {
                let named = |name| {
                    let known = Target::ALL.map(Target::name).join("+");
                    Target::named(name).ok_or_else(|| format!("no module {name:?}; modules are {known}"))
                };
                targets = value.split('+').map(named).collect::<std::result::Result<_, String>>()?;
                targets.sort_unstable();
                targets.dedup();
            }
            _ => return Err(format!("no setting {key:?}; settings are rank, alpha and targets")),
        }
    }
    match (rank, alpha) {
        (Some(rank), Some(alpha)) => Ok(NewAdapter { rank, alpha, targets }),
        _ => Err("needs rank=, a whole number from 1 to 1024, and alpha=, above 0".to_owned()),
    }
}

pub fn run(arguments: &Init, quiet: bool) -> Result<()> {
    let root = &arguments.directory;
    if arguments.seed.is_some() && arguments.from.is_some() && arguments.adapter.is_none() {
        return Err(Failure::usage("--seed has no effect with --from: a copy has no random weights")
            .hint("leave --seed out"));
    }
    let seed = arguments.seed.unwrap_or(0);
    let policy = match (&arguments.config, &arguments.from) {
        (Some(config), _) => initial::from_config(root, config, seed)?,
        (_, Some(source)) => match &arguments.adapter {
            Some(new) => initial::from_base(root, source, new, seed)?,
            None => {
                let made = initial::from_directory(root, source, arguments.chat_template_kwargs.as_ref())?;
                if !quiet {
                    say_what_is_left_out(source)?;
                }
                made
            }
        },
        (None, None) => {
            let preset = match arguments.preset {
                Some(Name::Bench) => Preset::Bench,
                Some(Name::Tiny) | None => Preset::Tiny,
            };
            initial::from_preset(root, preset, seed)?
        }
    };
    super::check::print(&[format!("{} {}", root.display(), policy.version)])
}

/// One line on stderr, by reason; none where all was copied.
fn say_what_is_left_out(source: &Path) -> Result<()> {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for found in side_files::left_out(&Policy::open(source)?)? {
        by_reason.entry(found.reason).or_default().push(found.path);
    }
    let parts: Vec<String> =
        by_reason.into_iter().map(|(reason, paths)| format!("{} ({reason})", paths.join(", "))).collect();
    if !parts.is_empty() {
        stage::note("policy", format_args!("{}: left out: {}", source.display(), parts.join("; ")));
    }
    Ok(())
}

//! `policy init`: a new policy directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use policy::directory::Policy;
use policy::hub::HubModel;
use policy::lora::VariedAdapter;
use policy::weights::ElementType;
use policy::{gguf, initial, models, pretrained, side_files};
use record::failure::{Failure, Result};
use record::stage;

use super::sources;
use crate::arguments::{Dtype, Init, Preset};

pub fn run(arguments: &Init, quiet: bool) -> Result<()> {
    let Init { directory: root, config, adapter, .. } = arguments;
    if arguments.seed.is_some() && is_copy(arguments) {
        return Err(Failure::usage("--seed has no effect: a copy of a model has no random weights")
            .hint("leave --seed out"));
    }
    let from = &match arguments.from.as_deref().map(HubModel::parse).transpose()?.flatten() {
        // Before what may take an hour.
        Some(model) => initial::refuse_occupied(root).and_then(|()| model.fetch(quiet).map(Some))?,
        None => arguments.from.clone(),
    };
    let gguf = from.as_deref().filter(|source| gguf::is_gguf(source));
    let dtype = dtype(arguments, gguf.is_some())?;
    let (seed, template) = (arguments.seed.unwrap_or(1), arguments.chat_template_kwargs.as_ref());
    let policy = match (config, from, adapter) {
        (Some(config), ..) => {
            fs::read(config).map_err(|error| Failure::named_file(config, &error))?;
            initial::from_config(root, config, seed)?
        }
        (_, Some(source), Some(adapter)) => {
            sources::check(source)?;
            initial::from_base(root, source, adapter, seed)?
        }
        (_, Some(source), None) if gguf.is_some() => models::from_gguf(root, source, dtype, template, quiet)?,
        (_, Some(source), None) => {
            sources::check(source)?;
            if let Some(varied) = VariedAdapter::open(source)? {
                return from_varied(root, source, &varied, quiet);
            }
            let made = initial::from_directory(root, source, template)?;
            if !quiet {
                note_left_out(source)?;
            }
            made
        }
        (None, None, _) => match arguments.preset {
            Some(Preset::Smollm2) => models::from_gguf(root, &pretrained::file(quiet)?, dtype, None, quiet)?,
            Some(Preset::Bench) => initial::from_preset(root, initial::Preset::Bench, seed)?,
            Some(Preset::Tiny) | None => initial::from_preset(root, initial::Preset::Tiny, seed)?,
        },
    };
    super::print(&[format!("{} {}", root.display(), policy.version)])
}

/// Makes a policy of an adapter whose modules differ, and notes how it was changed.
fn from_varied(root: &Path, source: &Path, varied: &VariedAdapter, quiet: bool) -> Result<()> {
    let policy = varied.policy(root)?;
    if !quiet {
        let settings = varied.varied.join(", ");
        stage::note(
            "policy",
            format_args!("{}: written as plain LoRA, without {settings}", source.display()),
        );
    }
    super::print(&[format!("{} {}", root.display(), policy.version)])
}

/// Returns true if no weight is random.
fn is_copy(arguments: &Init) -> bool {
    let copied = arguments.from.is_some() || arguments.preset == Some(Preset::Smollm2);
    copied && arguments.adapter.is_none()
}

/// The type of the weights of a GGUF file.
fn dtype(arguments: &Init, gguf: bool) -> Result<ElementType> {
    let wanted = arguments.dtype.filter(|_| !gguf && arguments.preset != Some(Preset::Smollm2));
    if wanted.is_some() {
        return Err(Failure::usage("--dtype is for GGUF files: other weights keep their type")
            .hint("leave --dtype out"));
    }
    Ok(arguments.dtype.unwrap_or(Dtype::Bfloat16).into())
}

/// One line on stderr with the files that were not copied, by reason.
fn note_left_out(source: &Path) -> Result<()> {
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

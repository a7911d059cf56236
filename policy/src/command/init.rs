//! `policy init`: a new policy directory.

use std::collections::BTreeMap;
use std::path::Path;

use policy::directory::Policy;
use policy::initial::{self, Preset};
use policy::side_files;
use record::failure::{Failure, Result};
use record::stage;

use crate::arguments::Init;

pub fn run(arguments: &Init, quiet: bool) -> Result<()> {
    let Init { directory: root, config, from, adapter, .. } = arguments;
    if arguments.seed.is_some() && from.is_some() && adapter.is_none() {
        return Err(Failure::usage("--seed has no effect with --from: a copy has no random weights")
            .hint("leave --seed out"));
    }
    let seed = arguments.seed.unwrap_or(0);
    let policy = match (config, from, adapter) {
        (Some(config), ..) => initial::from_config(root, config, seed)?,
        (_, Some(source), Some(adapter)) => initial::from_base(root, source, adapter, seed)?,
        (_, Some(source), None) => {
            let made = initial::from_directory(root, source, arguments.chat_template_kwargs.as_ref())?;
            if !quiet {
                note_left_out(source)?;
            }
            made
        }
        (None, None, _) => initial::from_preset(root, arguments.preset.unwrap_or(Preset::Tiny), seed)?,
    };
    super::print(&[format!("{} {}", root.display(), policy.version)])
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

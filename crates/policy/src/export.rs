//! `policy export`: a version for other people, without training state.
//!
//! A whole model is its Hugging Face directory; an adapter is a PEFT directory, or merged into a copy of its
//! base. PEFT finds a base by a name or by a path from the working directory, so an exported adapter names
//! its base in a way that survives a move: a model on the hub, or the user's choice. Left out: uploads
//! ([`crate::hub`]), and other formats ([`crate::gguf`]).

use std::path::Path;

use record::failure::{Failure, Result};

use crate::adapter::{self, Adapter};
use crate::card;
use crate::checkpoint::{self, Data, NewTensor};
use crate::directory::Policy;
use crate::durable;
use crate::files::show;
use crate::hub::HubModel;
use crate::json::read_json;
use crate::side_files;
use crate::tokenizer::Tokenizer;
use crate::weights::Weights;

/// Options of an export: the adapter's form, and the run that the card describes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings<'a> {
    /// The adapter's product is added to the weights of its base.
    pub merge: bool,
    /// How others name the base: `ORG/NAME` of a hub, or a path of theirs.
    pub base: Option<&'a str>,
    /// The run's directory, for the numbers of the model card; by default the one in which the policy lies.
    pub run: Option<&'a Path>,
}

/// Writes a version of a policy, [verified](Policy::verify), to a new directory: weights, configuration,
/// tokenizer, and a model card. All of it or nothing.
///
/// # Errors
/// `to` exists already, or an adapter's base has no public name (2); weights that do not match the version's
/// digest, or no tokenizer (65); an I/O error (74).
pub fn export(policy: &Policy, to: &Path, settings: Settings) -> Result<()> {
    let building = durable::place_of_new(to)?;
    policy.verify()?;
    let source = HubModel::of(policy.model())?;
    let named = settings.base.map(|name| HubModel { name: name.to_owned(), revision: None, file: None });
    let base = named.or(source);
    Tokenizer::load(policy.model())?;
    let found = policy.adapter()?;
    let name = to.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_adapter = found.is_some() && !settings.merge;
    let card = card::text(name, policy, base.as_ref(), is_adapter, settings.run)?;
    durable::build(&building, to, |files| {
        match found {
            None => copy(policy, files)?,
            Some((adapter, weights)) if settings.merge => {
                side_files::copy(policy.model(), files)?;
                merge(&*policy.weights()?, adapter, &weights, files)?;
            }
            Some(_) => {
                let Some(base) = &base else { return Err(nameless(policy)) };
                let mut json = read_json(&policy.files.join(adapter::CONFIG))?;
                json["base_model_name_or_path"] = base.name.as_str().into();
                if let Some(revision) = &base.revision {
                    json["revision"] = revision.as_str().into();
                }
                durable::write_json(&files.join(adapter::CONFIG), &json)?;
                durable::copy(&policy.files.join(adapter::WEIGHTS), &files.join(adapter::WEIGHTS))?;
                side_files::copy_tokenizer(policy.model(), files)?;
            }
        }
        // The base's card does not describe the trained model.
        let path = files.join("README.md");
        durable::remove(&path)?;
        durable::write(&path, card.as_bytes())?;
        durable::synchronize(files)
    })
}

fn nameless(policy: &Policy) -> Failure {
    let base = policy.base.as_ref().map(|base| show(&base.files)).unwrap_or_default();
    Failure::usage(format!(
        "{}: its base is known only as {base}, which means nothing elsewhere",
        show(&policy.root)
    ))
    .hint("--base ORG/NAME says what others call it; --merge writes a whole model, which needs no base")
}

fn copy(from: &Policy, to: &Path) -> Result<()> {
    side_files::copy(&from.files, to)?;
    for (path, _) in from.weights()?.files() {
        durable::copy(path, &to.join(path.file_name().unwrap_or_default()))?;
    }
    Ok(())
}

/// Writes the base's weight files with `W + scale · B·A` in place of each adapted `W`, in f32, then rounded to its type.
fn merge(base: &Weights, adapter: &Adapter, factors: &Weights, to: &Path) -> Result<()> {
    let written = checkpoint::rewrite(base, to, |writer, name, entry| {
        let Some(sum) = merged(base, (adapter, factors), name)? else { return Ok(false) };
        let merged = NewTensor { name, shape: &entry.shape, data: Data::F32(&sum) };
        writer.tensor(&merged, entry.dtype).map(|()| true)
    });
    written.map(drop)
}

/// `W + scale · B·A` in f32 of a weight that the adapter changes; `None` of any other.
pub(crate) fn merged(
    base: &Weights,
    (adapter, factors): (&Adapter, &Weights),
    name: &str,
) -> Result<Option<Vec<f32>>> {
    let module = name.strip_suffix(".weight").unwrap_or(name);
    let [a, b] = ["A", "B"].map(|factor| format!("base_model.model.{module}.lora_{factor}.weight"));
    if factors.tensor(&a).is_err() {
        return Ok(None);
    }
    let (mut sum, a, b) = (base.to_f32(name)?, factors.to_f32(&a)?, factors.to_f32(&b)?);
    let inputs = a.len() / adapter.rank;
    for (row, b) in sum.chunks_exact_mut(inputs).zip(b.chunks_exact(adapter.rank)) {
        for (a, b) in a.chunks_exact(inputs).zip(b) {
            let factor = adapter.scale() * b;
            row.iter_mut().zip(a).for_each(|(sum, a)| *sum += factor * a);
        }
    }
    Ok(Some(sum))
}

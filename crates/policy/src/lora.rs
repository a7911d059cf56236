//! PEFT's adapters whose modules differ, rewritten as plain ones: of one rank and one scale, on the same modules in every layer.
//!
//! The names of the weights show which modules are adapted, so patterns of targets are not read. A smaller rank is padded with
//! zeros in both factors, and training keeps them at zero. B absorbs the ratio of its module's scale (`alpha_pattern`) to the
//! common scale. Left out: DoRA, and what [`crate::adapter`] refuses.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use regex::Regex;
use serde_json::{Map, Value};

use crate::adapter::{self, Adapter, Target, VARIED};
use crate::checkpoint::{self, Data, NewTensor};
use crate::config::Config;
use crate::directory::{FrozenBase, Policy, named_base};
use crate::durable;
use crate::json::{in_file, positive, present, read_json, size};
use crate::publish;
use crate::side_files;
use crate::weights::{ElementType, Weights};

/// An adapter whose modules differ.
pub struct VariedAdapter {
    directory: PathBuf,
    settings: Value,
    /// Its settings that a plain adapter does not have.
    pub varied: Vec<&'static str>,
}

impl VariedAdapter {
    /// The adapter of a PEFT directory, unless it is a plain one.
    ///
    /// # Errors
    /// A configuration that cannot be read.
    pub fn open(directory: &Path) -> Result<Option<VariedAdapter>> {
        let path = directory.join(adapter::CONFIG);
        if !path.is_file() {
            return Ok(None);
        }
        let settings = read_json(&path)?;
        let is_path = |entry: &Value| entry.as_str().is_some_and(|entry| entry.contains('.'));
        let is_varied = |key: &&str| match present(&settings, key) {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            // PEFT matches an entry by the end of a module's path.
            Some(Value::Array(list)) if *key == "target_modules" => list.iter().any(is_path),
            Some(Value::Array(list)) => !list.is_empty(),
            Some(Value::Object(map)) => !map.is_empty(),
            Some(_) => true,
        };
        let varied: Vec<&str> = VARIED.into_iter().filter(is_varied).collect();
        let directory = directory.to_owned();
        Ok((!varied.is_empty()).then_some(VariedAdapter { directory, settings, varied }))
    }

    /// The directory of its base.
    pub fn base(&self) -> Result<PathBuf> {
        let name = present(&self.settings, "base_model_name_or_path").and_then(Value::as_str);
        named_base(&self.directory, name.unwrap_or_default())
    }

    /// A policy directory whose version 0 is this adapter as a plain one.
    ///
    /// # Errors
    /// A kind of adapter that is not implemented, tensors that do not fit the base, `root` is there already; the disk's.
    pub fn policy(&self, root: &Path) -> Result<Policy> {
        let place = self.directory.join(adapter::CONFIG);
        let base = self.base()?;
        let config = Config::load(&base)?;
        Weights::of_model(&base, &config)?;
        let weights = Weights::open_file(&self.directory.join(adapter::WEIGHTS))?;
        let (plain, tensors) =
            self.plain(&weights, &config).map_err(|failure| in_file(failure, &place, adapter::HINT))?;
        publish::create(root, Some(&FrozenBase::open(base)?), |files| {
            side_files::copy(&self.directory, files)?;
            let written = files.join(adapter::CONFIG);
            durable::remove(&written)?;
            durable::write_json(&written, &plain.to_json())?;
            let new = tensors.iter().map(|tensor| NewTensor {
                name: &tensor.name,
                shape: &tensor.shape,
                data: Data::F32(&tensor.values),
            });
            checkpoint::write(&files.join(adapter::WEIGHTS), &new.collect::<Vec<_>>(), |_| ElementType::F32)
                .map(drop)
        })
    }

    fn plain(&self, weights: &Weights, config: &Config) -> Result<(Adapter, Vec<AdapterTensor>)> {
        let modules = config
            .targets()
            .iter()
            .flat_map(|&target| (0..config.num_layers).map(move |layer| (layer, target)));
        let is_adapted = |&(layer, target): &(usize, Target)| {
            Adapter::names(layer, target).iter().any(|name| weights.tensor(name).is_ok())
        };
        let adapted: Vec<(usize, Target)> = modules.filter(is_adapted).collect();
        let targets = adapted.iter().map(|(_, target)| *target).collect::<BTreeSet<_>>();
        let names: Vec<&str> = targets.iter().map(|target| target.name()).collect();
        let mut settings = self.settings.clone();
        if let Some(object) = settings.as_object_mut() {
            VARIED.iter().for_each(|key| drop(object.shift_remove(*key)));
            object.insert("target_modules".to_owned(), names.into());
        }
        let mut plain = Adapter::from_json(&settings)?;
        let read = adapted.iter().map(|&(layer, target)| self.module(weights, config, &plain, layer, target));
        let read = read.collect::<Result<Vec<AdaptedModule>>>()?;
        if let Some(name) =
            weights.names().find(|name| read.iter().all(|module| !module.names.contains(&(*name).to_owned())))
        {
            return Err(Failure::data(format!(
                "{}: tensor {name:?} belongs to no module that can be adapted",
                adapter::WEIGHTS
            )));
        }
        let rank = read.iter().map(|module| module.rank).max().unwrap_or(plain.rank);
        let scale = plain.scale();
        plain.alpha = if plain.rank_stabilized { scale * (rank as f32).sqrt() } else { scale * rank as f32 };
        plain.rank = rank;
        let mut tensors = Vec::new();
        for layer in 0..config.num_layers {
            for &target in &plain.targets {
                let module = read.iter().find(|module| module.names == Adapter::names(layer, target));
                tensors.extend(filled(module, config, rank, scale, layer, target));
            }
        }
        Ok((plain, tensors))
    }

    /// A module's factors and their scale.
    fn module(
        &self,
        weights: &Weights,
        config: &Config,
        plain: &Adapter,
        layer: usize,
        target: Target,
    ) -> Result<AdaptedModule> {
        let module = target.module(layer);
        let rank = match self.pattern("rank_pattern", &module)? {
            None => plain.rank,
            Some(pattern) => size(&pattern, "rank_pattern")?,
        };
        let alpha = match self.pattern("alpha_pattern", &module)? {
            None => plain.alpha,
            Some(pattern) => positive(&pattern, "alpha_pattern")?,
        };
        let names = Adapter::names(layer, target);
        let (inputs, outputs) = target.extent(config);
        for (name, shape) in names.iter().zip([[rank, inputs], [outputs, rank]]) {
            let found = weights.tensor(name)?.shape;
            if found != shape {
                return Err(Failure::data(format!(
                    "tensor {name:?} has shape {found:?}, expected {shape:?}"
                ))
                .hint("the settings and the weights are of different adapters, or it is of another base"));
            }
            weights.check_finite(name)?;
        }
        let [a, b] = [weights.to_f32(&names[0])?, weights.to_f32(&names[1])?];
        let scale = Adapter { rank, alpha, ..plain.clone() }.scale();
        Ok(AdaptedModule { names, rank, scale, a, b })
    }

    /// What a setting by patterns says of a module, under the setting's name: the first pattern that is the end of its path.
    fn pattern(&self, key: &str, module: &str) -> Result<Option<Value>> {
        let Some(patterns) = present(&self.settings, key) else { return Ok(None) };
        let patterns = patterns.as_object().ok_or_else(|| Failure::data(format!("{key} is no object")))?;
        for (pattern, value) in patterns {
            // PEFT's rule.
            let expression = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$"));
            let expression = expression
                .map_err(|_| Failure::data(format!("{key}: {pattern:?} is no pattern that can be read")))?;
            if expression.is_match(module) {
                return Ok(Some(Value::Object(Map::from_iter([(key.to_owned(), value.clone())]))));
            }
        }
        Ok(None)
    }
}

/// An adapted module as it is read: A is `[rank, inputs]`, B `[outputs, rank]`.
struct AdaptedModule {
    names: [String; 2],
    rank: usize,
    scale: f32,
    a: Vec<f32>,
    b: Vec<f32>,
}

struct AdapterTensor {
    name: String,
    shape: [usize; 2],
    values: Vec<f32>,
}

/// The factors A and B of a module at this rank and scale; zeros if the module is not adapted.
fn filled(
    module: Option<&AdaptedModule>,
    config: &Config,
    rank: usize,
    scale: f32,
    layer: usize,
    target: Target,
) -> [AdapterTensor; 2] {
    let (inputs, outputs) = target.extent(config);
    let (mut a, mut b) = (vec![0.0; rank * inputs], vec![0.0; outputs * rank]);
    if let Some(module) = module {
        a[..module.a.len()].copy_from_slice(&module.a);
        let factor = module.scale / scale;
        for (row, own) in b.chunks_exact_mut(rank).zip(module.b.chunks_exact(module.rank)) {
            row.iter_mut().zip(own).for_each(|(value, own)| *value = factor * own);
        }
    }
    let [name_a, name_b] = Adapter::names(layer, target);
    [
        AdapterTensor { name: name_a, shape: [rank, inputs], values: a },
        AdapterTensor { name: name_b, shape: [outputs, rank], values: b },
    ]
}

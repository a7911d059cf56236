//! LoRA adapters (arXiv 2106.09685) over a frozen base, in PEFT's layout.
//!
//! A directory with `adapter_config.json` and `adapter_model.safetensors` holds the factors A `[rank, inputs]` and B
//! `[outputs, rank]` of each target module, which computes `W·x + scale · B·(A·x)` with scale = alpha / rank. The base is
//! another directory and never written; policies that share a base load it once. Left out: dropout, and all of PEFT beyond
//! plain LoRA; settings that would change the arithmetic are refused by name.

use std::collections::HashSet;
use std::path::Path;

use record::failure::{Failure, Result};
use serde_json::{Value, json};

use crate::config::Config;
pub use crate::decoder::Target;
use crate::decoder::{Init, Tensor};
use crate::json::{flag, in_file, positive, present, read_json, size};
use crate::weights::Weights;

/// A directory with this file holds an adapter.
pub(crate) const CONFIG: &str = "adapter_config.json";
pub(crate) const WEIGHTS: &str = "adapter_model.safetensors";
/// Hint for a setting that is not implemented.
pub(crate) const HINT: &str =
    "only plain LoRA as saved by PEFT is implemented; ignoring a setting would give wrong numbers";
/// Hint for one that [`crate::lora`] takes away.
const PLAIN: &str = "policy init DIR --from this directory makes a plain LoRA of it, which computes the same";
/// Settings that a plain adapter does not have, and is written without.
pub(crate) const VARIED: [&str; 7] = [
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
    "layers_pattern",
    "exclude_modules",
    "lora_dropout",
    "target_modules",
];
/// A larger rank means a damaged file.
const LARGEST_RANK: usize = 1024;

/// The settings of `adapter_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// Inner width of the factors.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f32,
    /// Target modules, each once, in the order of [`Target::ALL`].
    pub targets: Vec<Target>,
    /// The scale is alpha / sqrt(rank) (rsLoRA, arXiv 2312.03732) instead of alpha / rank.
    pub rank_stabilized: bool,
    /// The base's path as PEFT records it; [`crate::directory::Policy::base`] is where it was found.
    pub base: String,
}

impl Adapter {
    /// An adapter over no base yet; targets in any order.
    pub fn new(rank: usize, alpha: f32, mut targets: Vec<Target>) -> Adapter {
        targets.sort_unstable();
        targets.dedup();
        Adapter { rank, alpha, targets, rank_stabilized: false, base: String::new() }
    }

    /// Reads an adapter's directory.
    ///
    /// # Errors
    /// A missing or unreadable file, or a kind of adapter that is not implemented.
    pub fn load(directory: &Path) -> Result<Adapter> {
        let path = directory.join(CONFIG);
        Adapter::from_json(&read_json(&path)?).map_err(|failure| in_file(failure, &path, HINT))
    }

    pub(crate) fn from_json(json: &Value) -> Result<Adapter> {
        let kind = present(json, "peft_type").and_then(Value::as_str).unwrap_or_default();
        if kind != "LORA" {
            return Err(Failure::data(format!("peft_type is {kind:?}; only \"LORA\" is implemented")));
        }
        refuse_unsupported(json)?;
        let rank = size(json, "r")?;
        if rank > LARGEST_RANK {
            return Err(Failure::data(format!("r is {rank}, more than {LARGEST_RANK}")));
        }
        let names = present(json, "target_modules").and_then(Value::as_array);
        let names = names.ok_or_else(|| Failure::data("target_modules is not a list").hint(PLAIN))?;
        let mut targets = Vec::new();
        for name in names {
            let target = name.as_str().and_then(Target::named).ok_or_else(|| {
                let known = Target::ALL.map(Target::name).join(", ");
                let fused = Target::FUSED.map(Target::name).join(", ");
                let failure = Failure::data(format!("target_modules has {name}, which is not implemented"));
                match name.as_str().is_some_and(|name| name.contains('.')) {
                    true => failure.hint(PLAIN),
                    false => failure.hint(format!("modules: {known}; of Phi3: {fused}")),
                }
            })?;
            targets.push(target);
        }
        if targets.is_empty() {
            return Err(Failure::data("target_modules is empty"));
        }
        let base = present(json, "base_model_name_or_path").and_then(Value::as_str).unwrap_or_default();
        Ok(Adapter {
            rank_stabilized: flag(json, "use_rslora")?.unwrap_or(false),
            base: base.to_owned(),
            ..Adapter::new(rank, positive(json, "lora_alpha")?, targets)
        })
    }

    /// The text that `PeftModel.from_pretrained` reads.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": self.targets.iter().map(|target| target.name()).collect::<Vec<_>>(),
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "inference_mode": true,
            "modules_to_save": null,
            "use_dora": false,
            "use_rslora": self.rank_stabilized,
        })
    }

    /// Factor of B·A.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f32;
        if self.rank_stabilized { self.alpha / rank.sqrt() } else { self.alpha / rank }
    }

    /// PEFT's names of A and B of a layer's projection.
    pub fn names(layer: usize, target: Target) -> [String; 2] {
        let module = target.module(layer);
        ["A", "B"].map(|factor| format!("base_model.model.{module}.lora_{factor}.weight"))
    }

    /// Checks that the base has the targets.
    ///
    /// # Errors
    /// One of them is a module of other families.
    pub fn check_targets(&self, config: &Config) -> Result<()> {
        match self.targets.iter().find(|target| !config.targets().contains(target)) {
            None => Ok(()),
            Some(target) => {
                let known: Vec<&str> = config.targets().iter().map(|target| target.name()).collect();
                Err(Failure::data(format!("{} has no module {}", config.family, target.name()))
                    .hint(format!("modules: {}", known.join(", "))))
            }
        }
    }

    /// Checks that the weights are exactly the adapter's tensors over a base of this configuration.
    ///
    /// # Errors
    /// A tensor is missing, has another shape, is no float, or is not part of the adapter.
    pub fn check(&self, weights: &Weights, config: &Config) -> Result<()> {
        self.check_targets(config)?;
        let tensors = self.tensors(config);
        weights.check_against(&tensors)?;
        let known: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        match weights.names().find(|name| !known.contains(name)) {
            None => Ok(()),
            Some(name) => Err(Failure::data(format!(
                "{WEIGHTS}: tensor {name:?} is not a target of {CONFIG}"
            ))
            .hint("it needs something that is not implemented, or the files are of different adapters")),
        }
    }

    /// Every tensor over a base of this configuration. A new adapter does not change the base's output: B is 0, and A is
    /// uniform within ±1/sqrt(inputs), as in PEFT.
    pub fn tensors(&self, config: &Config) -> Vec<Tensor> {
        let mut all = Vec::new();
        for layer in 0..config.num_layers {
            for &target in &self.targets {
                let (inputs, outputs) = target.extent(config);
                let [a, b] = Adapter::names(layer, target);
                let init = Init::Uniform(1.0 / (inputs as f32).sqrt());
                all.push(Tensor { name: a, shape: vec![self.rank, inputs], init });
                all.push(Tensor { name: b, shape: vec![outputs, self.rank], init: Init::Zeros });
            }
        }
        all
    }
}

/// Refuses PEFT settings that change the computation.
fn refuse_unsupported(json: &Value) -> Result<()> {
    for key in ["use_dora", "fan_in_fan_out", "use_qalora", "use_bdlora", "lora_bias"] {
        if flag(json, key)?.unwrap_or(false) {
            return Err(Failure::data(format!("{key} is true, which is not implemented")));
        }
    }
    if let Some(bias) = present(json, "bias").filter(|value| value.as_str() != Some("none")) {
        return Err(Failure::data(format!("bias is {bias}; only \"none\" is implemented")));
    }
    if let Some(rate) = present(json, "lora_dropout").filter(|value| value.as_f64() != Some(0.0)) {
        return Err(Failure::data(format!("lora_dropout is {rate}; only 0 is implemented")).hint(PLAIN));
    }
    // These subtract the adapter's initial product from the base, so it does not fit the base it names.
    let changed = |name: &str| {
        ["pissa", "olora", "corda", "loftq", "lora_ga"].iter().any(|kind| name.starts_with(kind))
    };
    if let Some(name) =
        present(json, "init_lora_weights").and_then(Value::as_str).filter(|name| changed(name))
    {
        return Err(Failure::data(format!("init_lora_weights is {name:?}, which changes the base"))
            .hint("save it as plain LoRA: save_pretrained with path_initial_model_for_weight_conversion"));
    }
    let filled = |value: &Value| match value {
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    let several = [
        "modules_to_save",
        "rank_pattern",
        "alpha_pattern",
        "layers_to_transform",
        "layers_pattern",
        "exclude_modules",
        "target_parameters",
        "trainable_token_indices",
        "layer_replication",
        "megatron_config",
        "alora_invocation_tokens",
        "arrow_config",
        "kasa_config",
        "monteclora_config",
    ];
    match several.iter().find(|key| present(json, key).is_some_and(filled)) {
        Some(key) => {
            let failure = Failure::data(format!("{key} is set, which is not implemented"));
            Err(if VARIED.contains(key) { failure.hint(PLAIN) } else { failure })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(key: &str, value: Value) -> String {
        let mut json = plain().to_json();
        json[key] = value;
        Adapter::from_json(&json)
            .err()
            .map(|failure| in_file(failure, Path::new("a"), HINT).message)
            .unwrap_or_default()
    }

    fn plain() -> Adapter {
        Adapter { base: "base".to_owned(), ..Adapter::new(8, 16.0, vec![Target::Query, Target::Down]) }
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Adapter::from_json(&plain().to_json()).ok(), Some(plain()));
        assert_eq!(plain().scale(), 2.0);
        assert_eq!(Adapter { rank_stabilized: true, rank: 16, ..plain() }.scale(), 4.0);
    }

    #[test]
    fn other_adapters_are_refused_by_name() {
        for (key, value) in [
            ("peft_type", json!("IA3")),
            ("use_dora", json!(true)),
            ("bias", json!("all")),
            ("lora_dropout", json!(0.1)),
            ("rank_pattern", json!({"q_proj": 4})),
            ("init_lora_weights", json!("pissa_niter_4")),
            ("alora_invocation_tokens", json!([1, 2])),
            ("modules_to_save", json!(["lm_head"])),
            ("target_modules", json!("all-linear")),
            ("target_modules", json!(["lm_head"])),
            ("target_modules", json!([])),
            ("r", json!(0)),
            ("r", json!(1_000_000)),
            ("lora_alpha", json!(-1)),
        ] {
            let message = refused(key, value.clone());
            assert!(message.contains(key), "{key} {value}: {message:?}");
        }
    }
}

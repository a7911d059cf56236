//! A GGUF file's architecture: its metadata as `config.json`. Its tensors are in [`super::tensors`].
//!
//! Settings that would change the arithmetic are translated or refused by name, as in [`crate::config`], which then reads the
//! result; no key of the architecture is ignored. Left out: families that the decoder does not know.

use record::failure::{Failure, Result};
use serde_json::{Map, Value, json};

use super::header::{Header, Metadata, Stored, shortest};
use crate::config::{Config, LARGEST_HEAD};
use crate::header::ElementType;
use crate::rope::RopeScaling;

/// A family as llama.cpp has it.
#[derive(Debug)]
pub(super) struct Architecture {
    /// `general.architecture`, and the prefix of the family's keys.
    pub(super) name: &'static str,
    /// `model_type` in `config.json`.
    model_type: &'static str,
    /// The class in `transformers`.
    class: &'static str,
    /// Rows of query and key heads are interleaved for llama.cpp's rotation of neighbors.
    interleaved: bool,
    /// Keys that no other family has.
    own: &'static [&'static str],
}

const PLAIN: Architecture =
    Architecture { name: "", model_type: "", class: "", interleaved: false, own: &[] };

const ARCHITECTURES: [Architecture; 7] = [
    // Also Mistral, up to its third version.
    Architecture {
        name: "llama",
        model_type: "llama",
        class: "LlamaForCausalLM",
        interleaved: true,
        ..PLAIN
    },
    Architecture { name: "qwen2", model_type: "qwen2", class: "Qwen2ForCausalLM", ..PLAIN },
    Architecture { name: "qwen3", model_type: "qwen3", class: "Qwen3ForCausalLM", ..PLAIN },
    Architecture {
        name: "smollm3",
        model_type: "smollm3",
        class: "SmolLM3ForCausalLM",
        interleaved: true,
        ..PLAIN
    },
    Architecture {
        name: GEMMA3,
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        own: &["rope.freq_base_swa", "attention.sliding_window_pattern"],
        ..PLAIN
    },
    // Also Phi-3.5, Phi-4 and Phi-4-mini.
    Architecture {
        name: PHI3,
        model_type: "phi3",
        class: "Phi3ForCausalLM",
        own: &["rope.scaling.attn_factor"],
        ..PLAIN
    },
    Architecture {
        name: QWEN3_MOE,
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        own: &["expert_feed_forward_length"],
        ..PLAIN
    },
];
pub(super) const GEMMA3: &str = "gemma3";
const PHI3: &str = "phi3";
const QWEN3_MOE: &str = "qwen3moe";

/// Keys of an architecture that are translated, or checked in [`Architecture::refuse_unsupported`].
const KNOWN: [&str; 20] = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "tensor_data_layout",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "attention.sliding_window",
    "expert_count",
    "expert_used_count",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
];
/// A key without effect: it says that the model was trained with its scaling.
const IGNORED: &str = "rope.scaling.finetuned";
/// Llama 3's factors of its rotary wavelengths, one for each pair of a head.
pub(super) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Phi-3's divisors of its rotary wavelengths, within the context of pretraining and beyond.
pub(super) const LONG_ROPE: [(&str, &str); 2] =
    [("short_factor", "rope_factors_short.weight"), ("long_factor", "rope_factors_long.weight")];
/// Layers of Gemma 3 up to the next without a window, where the file does not say.
const GEMMA3_PATTERN: u64 = 6;
/// Layers of Gemma 3's largest model, which alone scales its scores by the width of the residual stream.
const GEMMA3_LARGEST: u64 = 62;
/// Context of Llama 3's pretraining, which its files do not name.
const LLAMA3_CONTEXT: u64 = 8192;
/// Largest relative difference allowed between stored factors and the formula's.
const TOLERANCE: f32 = 1e-4;

/// The head, which is the embedding where it is absent.
const HEAD: &str = "output.weight";
const EMBEDDING: &str = "token_embd.weight";

impl Architecture {
    /// The architecture that a file names.
    pub(super) fn of(header: &Header) -> Result<&'static Architecture> {
        if let Some(parts) = header.integer("split.count")?.filter(|&parts| parts > 1) {
            return Err(Failure::data(format!("one of {parts} files of a model"))
                .hint("join them: llama-gguf-split --merge FIRST.gguf WHOLE.gguf"));
        }
        let name = header.text("general.architecture")?;
        let name = name.ok_or_else(|| Failure::data("general.architecture is missing"))?;
        ARCHITECTURES.iter().find(|one| one.name == name).ok_or_else(|| {
            let known = ARCHITECTURES.each_ref().map(|one| one.name).join(", ");
            Failure::data(format!("the architecture is {name:?}, which is not implemented"))
                .hint(format!("architectures: {known}; Qwen2.5 is qwen2"))
        })
    }

    /// The architecture of a `config.json`.
    pub(super) fn of_model(json: &Value) -> Option<&'static Architecture> {
        let kind = json["model_type"].as_str()?;
        let kind = if kind == "mistral" { "llama" } else { kind };
        ARCHITECTURES.iter().find(|one| one.model_type == kind)
    }

    /// Rows of a head, if the rows of this tensor are interleaved.
    pub(super) fn interleaved_rows(&self, name: &str, config: &Config) -> Option<usize> {
        let turned = [".q_proj.", ".k_proj."].iter().any(|module| name.contains(module));
        (self.interleaved && turned).then_some(config.head_dim)
    }

    /// What llama.cpp adds to a tensor's values: it stores Gemma's norm weights plus 1.
    pub(super) fn offset(&self, shape: &[usize]) -> f32 {
        if self.name == GEMMA3 && shape.len() == 1 { 1.0 } else { 0.0 }
    }

    pub(super) fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    /// `config.json` without special tokens, as [`Config`] reads it.
    ///
    /// # Errors
    /// A key that is missing, of the wrong type, or of something that is not implemented.
    pub(super) fn config(&self, header: &Header, dtype: ElementType) -> Result<Value> {
        self.refuse_unsupported(header)?;
        let size = |key: &str| {
            let key = self.key(key);
            header.integer(&key)?.ok_or_else(|| Failure::data(format!("{key} is missing")))
        };
        let embedding = header.tensor(EMBEDDING)?;
        let heads = size("attention.head_count")?;
        let key_heads = header.integer(&self.key("attention.head_count_kv"))?.unwrap_or(heads);
        let hidden = size("embedding_length")?;
        let head_dim = match header.integer(&self.key("attention.key_length"))? {
            Some(length) => length,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        let rotated: &[&str] = if self.name == PHI3 { &[] } else { &["rope.dimension_count"] };
        for key in rotated.iter().chain(&["attention.value_length"]) {
            let key = self.key(key);
            if let Some(length) = header.integer(&key)?.filter(|&length| length != head_dim) {
                return Err(Failure::data(format!(
                    "{key} is {length} with heads of {head_dim}, which is not implemented"
                )));
            }
        }
        let epsilon = self.key("attention.layer_norm_rms_epsilon");
        let epsilon =
            header.number(&epsilon)?.ok_or_else(|| Failure::data(format!("{epsilon} is missing")))?;
        let dtype = match dtype {
            ElementType::F16 => "float16",
            ElementType::BF16 => "bfloat16",
            _ => "float32",
        };
        let mut json = json!({
            "architectures": [self.class],
            "model_type": self.model_type,
            "hidden_size": hidden,
            "intermediate_size": size("feed_forward_length")?,
            "num_hidden_layers": size("block_count")?,
            "num_attention_heads": heads,
            "num_key_value_heads": key_heads,
            "head_dim": head_dim,
            "hidden_act": if self.name == GEMMA3 { "gelu_pytorch_tanh" } else { "silu" },
            "max_position_embeddings": size("context_length")?,
            "rms_norm_eps": epsilon,
            // llama.cpp's default.
            "rope_theta": header.number(&self.key("rope.freq_base"))?.unwrap_or(10_000.0),
            "attention_bias": false,
            "attention_dropout": 0.0,
            "tie_word_embeddings": !header.tensors.contains_key(HEAD),
            "torch_dtype": dtype,
            "vocab_size": embedding.shape[0],
        });
        if let Some(object) = json.as_object_mut() {
            object.extend(self.rope_scaling(header)?);
            object.extend(self.of_family(header, (hidden, heads, head_dim))?);
        }
        Ok(json)
    }

    /// What families have beyond Llama; where a file does not say it, what llama.cpp computes.
    fn of_family(
        &self,
        header: &Header,
        (hidden, heads, head_dim): (u64, u64, u64),
    ) -> Result<Map<String, Value>> {
        let size = |key: &str| header.integer(&self.key(key));
        let required =
            |key: &str| size(key)?.ok_or_else(|| Failure::data(format!("{} is missing", self.key(key))));
        let window = size("attention.sliding_window")?.filter(|&window| window > 0);
        let family = match self.name {
            "smollm3" => json!({ "no_rope_layer_interval": 4 }),
            GEMMA3 => {
                let local = header.number(&self.key("rope.freq_base_swa"))?.unwrap_or(10_000.0);
                let largest = required("block_count")? == GEMMA3_LARGEST;
                let scalar = if largest { hidden.checked_div(heads).unwrap_or(0) } else { head_dim };
                json!({
                    "hidden_activation": "gelu_pytorch_tanh",
                    "query_pre_attn_scalar": scalar,
                    "rope_local_base_freq": local,
                    "sliding_window": required("attention.sliding_window")?,
                    "sliding_window_pattern": size("attention.sliding_window_pattern")?.unwrap_or(GEMMA3_PATTERN),
                })
            }
            PHI3 => {
                let rotated = size("rope.dimension_count")?.unwrap_or(head_dim);
                let original = size("rope.scaling.original_context_length")?;
                json!({
                    "sliding_window": window,
                    "partial_rotary_factor": rotated as f64 / head_dim as f64,
                    "original_max_position_embeddings": original.map_or_else(|| required("context_length"), Ok)?,
                })
            }
            QWEN3_MOE => json!({
                "num_experts": required("expert_count")?,
                "num_experts_per_tok": required("expert_used_count")?,
                "moe_intermediate_size": required("expert_feed_forward_length")?,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [],
                "norm_topk_prob": true,
            }),
            _ => json!({}),
        };
        Ok(family.as_object().cloned().unwrap_or_default())
    }

    fn refuse_unsupported(&self, header: &Header) -> Result<()> {
        let prefix = self.key("");
        // Keys whose only implemented value is 0.
        let zero: &[&str] = match self.name {
            GEMMA3 | PHI3 => &["expert_count", "expert_used_count"],
            QWEN3_MOE => &["attention.sliding_window"],
            _ => &["attention.sliding_window", "expert_count", "expert_used_count"],
        };
        for (key, value) in &header.metadata {
            let Some(own) = key.strip_prefix(&prefix) else { continue };
            if own != IGNORED && !KNOWN.contains(&own) && !self.own.contains(&own) {
                return Err(Failure::data(format!("the setting {key}, which is not implemented")));
            }
            if zero.contains(&own) && *value != Metadata::Integer(0) {
                return Err(Failure::data(format!("the setting {key} is not 0, which is not implemented")));
            }
        }
        match header.flag(&self.key("attention.causal"))? {
            Some(false) => Err(Failure::data("attention.causal is false, which is not implemented")),
            _ => Ok(()),
        }
    }

    /// `rope_scaling`, of the metadata or of Llama 3's factors.
    fn rope_scaling(&self, header: &Header) -> Result<Option<(String, Value)>> {
        let scaled = |kind: &str| -> Result<Map<String, Value>> {
            let mut scaling = Map::from_iter([("rope_type".to_owned(), json!(kind))]);
            if let Some(factor) = header.number(&self.key("rope.scaling.factor"))? {
                scaling.insert("factor".to_owned(), json!(factor));
            }
            if let Some(context) = header.integer(&self.key("rope.scaling.original_context_length"))? {
                scaling.insert("original_max_position_embeddings".to_owned(), json!(context));
            }
            Ok(scaling)
        };
        let kind = header.text(&self.key("rope.scaling.type"))?.filter(|&kind| kind != "none");
        if self.name == PHI3 {
            return self.long_rope(header);
        }
        let scaling = match (kind, header.tensors.get(ROPE_FACTORS)) {
            (None, None) => return Ok(None),
            (Some(kind), None) => scaled(kind)?,
            (Some(kind), Some(_)) => {
                return Err(Failure::data(format!("{ROPE_FACTORS} beside rope.scaling.type {kind:?}")));
            }
            (None, Some(factors)) if factors.shape.iter().product::<usize>() > LARGEST_HEAD => {
                return Err(Failure::data(format!("{ROPE_FACTORS} has shape {:?}", factors.shape)));
            }
            (None, Some(factors)) => {
                let mut scaling = scaled("llama3")?;
                let largest = read(factors).into_iter().fold(1.0, f32::max);
                // The quotient of two roundings; published factors are whole.
                let whole = (largest - largest.round()).abs() <= TOLERANCE * largest;
                scaling.insert("factor".to_owned(), json!(if whole { largest.round() } else { largest }));
                scaling.insert("low_freq_factor".to_owned(), json!(1.0));
                scaling.insert("high_freq_factor".to_owned(), json!(4.0));
                scaling.entry("original_max_position_embeddings").or_insert(json!(LLAMA3_CONTEXT));
                scaling
            }
        };
        Ok(Some(("rope_scaling".to_owned(), Value::Object(scaling))))
    }

    /// `rope_scaling` of Phi-3, whose divisors are tensors.
    fn long_rope(&self, header: &Header) -> Result<Option<(String, Value)>> {
        let mut scaling = Map::from_iter([("rope_type".to_owned(), json!("longrope"))]);
        for (key, name) in LONG_ROPE {
            let Some(factors) = header.tensors.get(name) else { continue };
            let count = factors.shape.iter().product::<usize>();
            if count > LARGEST_HEAD {
                return Err(Failure::data(format!("{name} has shape {:?}", factors.shape)));
            }
            let divisors = read(factors).into_iter().map(shortest).collect::<Vec<f64>>();
            scaling.insert(key.to_owned(), json!(divisors));
        }
        match scaling.len() {
            1 => return Ok(None),
            2 => return Err(Failure::data("one of rope_factors_short and rope_factors_long is missing")),
            _ => {}
        }
        if let Some(factor) = header.number(&self.key("rope.scaling.attn_factor"))? {
            scaling.insert("attention_factor".to_owned(), json!(factor));
        }
        Ok(Some(("rope_scaling".to_owned(), Value::Object(scaling))))
    }
}

pub(super) fn read(stored: &Stored) -> Vec<f32> {
    let mut values = vec![0.0; stored.bytes.len() / stored.format.bytes() * stored.format.values()];
    stored.format.dequantize(stored.bytes, &mut values);
    values
}

/// Llama 3's factors of its wavelengths, one for each pair.
pub(super) fn factors(config: &Config) -> Vec<f32> {
    let plain = Config { rope_scaling: RopeScaling::None, ..config.clone() }.inverse_frequencies();
    plain.iter().zip(config.inverse_frequencies()).map(|(plain, scaled)| plain / scaled).collect()
}

/// Checks that Llama 3's factors are those that its settings give (arXiv 2407.21783).
pub(super) fn check_factors(factors: &Stored, config: &Config) -> Result<()> {
    let expected = self::factors(config);
    let close = |(found, expected): (&f32, &f32)| (found - expected).abs() <= TOLERANCE * expected;
    let found = read(factors);
    if found.len() == expected.len() && found.iter().zip(&expected).all(close) {
        return Ok(());
    }
    Err(Failure::data(format!("{ROPE_FACTORS} has other factors than Llama 3's, which is not implemented")))
}

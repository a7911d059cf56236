//! A GGUF file's architecture: its metadata as `config.json`, and Hugging Face's names for its tensors.
//!
//! Settings that would change the arithmetic are translated or refused by name, as in [`crate::config`], which then reads the
//! result; no key of the architecture is ignored. Left out: families that the decoder does not know.

use record::failure::{Failure, Result};
use serde_json::{Map, Value, json};

use super::header::{Header, Metadata, Stored};
use crate::config::{Config, LARGEST_HEAD};
use crate::decoder::Tensor;
use crate::header::ElementType;
use crate::rope::RopeScaling;

/// What llama.cpp calls a family, and what it changes in it.
#[derive(Debug)]
pub(super) struct Architecture {
    /// `general.architecture`, and the prefix of the family's keys.
    name: &'static str,
    /// The class in `transformers`; `model_type` has the same name as the architecture.
    class: &'static str,
    /// Rows of query and key heads are interleaved for llama.cpp's rotation of neighbors.
    interleaved: bool,
}

const ARCHITECTURES: [Architecture; 4] = [
    // Also Mistral, up to its third version.
    Architecture { name: "llama", class: "LlamaForCausalLM", interleaved: true },
    Architecture { name: "qwen2", class: "Qwen2ForCausalLM", interleaved: false },
    Architecture { name: "qwen3", class: "Qwen3ForCausalLM", interleaved: false },
    Architecture { name: "smollm3", class: "SmolLM3ForCausalLM", interleaved: true },
];

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
/// The same, without effect: whether a model was trained with its scaling.
const IGNORED: &str = "rope.scaling.finetuned";
/// Keys whose only implemented value is 0.
const ZERO: [&str; 3] = ["attention.sliding_window", "expert_count", "expert_used_count"];
/// Llama 3's factors of its rotary wavelengths, one for each pair of a head.
const ROPE_FACTORS: &str = "rope_freqs.weight";
/// Context of Llama 3's pretraining, which its files do not name.
const LLAMA3_CONTEXT: u64 = 8192;
/// Largest relative difference between stored factors and those of the formula.
const TOLERANCE: f32 = 1e-4;

/// The head, which is the embedding where it is absent.
const HEAD: &str = "output.weight";
const EMBEDDING: &str = "token_embd.weight";
/// Modules of a layer and outside, by Hugging Face's names.
const MODULES: [(&str, &str); 14] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// A tensor of the new checkpoint and where its values come from.
pub(super) struct Source<'a> {
    pub(super) tensor: Tensor,
    pub(super) stored: Stored<'a>,
    /// Rows of a head, where the file has them interleaved.
    pub(super) interleaved: Option<usize>,
}

impl Architecture {
    /// The architecture that a file names.
    ///
    /// # Errors
    /// None, or one that the decoder does not know; one file of several.
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

    fn key(&self, key: &str) -> String {
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
        let embedding = header.tensors.get(EMBEDDING).ok_or_else(|| missing(EMBEDDING))?;
        let heads = size("attention.head_count")?;
        let key_heads = header.integer(&self.key("attention.head_count_kv"))?.unwrap_or(heads);
        let hidden = size("embedding_length")?;
        let head_dim = match header.integer(&self.key("attention.key_length"))? {
            Some(length) => length,
            None => hidden.checked_div(heads).unwrap_or(0),
        };
        for key in ["attention.value_length", "rope.dimension_count"] {
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
            "model_type": self.name,
            "hidden_size": hidden,
            "intermediate_size": size("feed_forward_length")?,
            "num_hidden_layers": size("block_count")?,
            "num_attention_heads": heads,
            "num_key_value_heads": key_heads,
            "head_dim": head_dim,
            "hidden_act": "silu",
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
            // What llama.cpp computes, whatever the file says.
            if self.name == "smollm3" {
                object.insert("no_rope_layer_interval".to_owned(), json!(4));
            }
        }
        Ok(json)
    }

    fn refuse_unsupported(&self, header: &Header) -> Result<()> {
        let prefix = self.key("");
        for (key, value) in &header.metadata {
            let Some(own) = key.strip_prefix(&prefix) else { continue };
            if own != IGNORED && !KNOWN.contains(&own) {
                return Err(Failure::data(format!("the setting {key}, which is not implemented")));
            }
            if ZERO.contains(&own) && *value != Metadata::Integer(0) {
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

    /// Every tensor of the checkpoint in the order of the computation.
    ///
    /// # Errors
    /// One is missing or has another shape; the file has one that the model has no use for.
    pub(super) fn sources<'a>(&self, header: &Header<'a>, config: &Config) -> Result<Vec<Source<'a>>> {
        let mut rest = header.tensors.clone();
        if let Some(factors) = rest.remove(ROPE_FACTORS) {
            check_factors(&factors, config)?;
        }
        let source = |tensor: Tensor| {
            let name = name_in_file(&tensor.name);
            let stored = rest.remove(name.as_str()).ok_or_else(|| missing(&name))?;
            if stored.shape != tensor.shape {
                return Err(Failure::data(format!(
                    "tensor {name:?} has shape {:?}, expected {:?}",
                    stored.shape, tensor.shape
                )));
            }
            let turned = [".q_proj.", ".k_proj."].iter().any(|module| tensor.name.contains(module));
            let interleaved = (self.interleaved && turned).then_some(config.head_dim);
            Ok(Source { tensor, stored, interleaved })
        };
        let sources = config.tensors().into_iter().map(source).collect::<Result<Vec<Source>>>()?;
        match rest.keys().next() {
            None => Ok(sources),
            Some(name) => Err(Failure::data(format!("tensor {name:?} has no place in {}", config.family))),
        }
    }
}

fn missing(name: &str) -> Failure {
    Failure::data(format!("tensor {name:?} is missing"))
}

/// `blk.3.attn_q.weight`, of `model.layers.3.self_attn.q_proj.weight`.
fn name_in_file(name: &str) -> String {
    let (module, kind) = name.rsplit_once('.').unwrap_or((name, ""));
    let (layer, module) = match module.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, module)) => (format!("blk.{layer}."), module),
        None => (String::new(), module),
    };
    let known = MODULES.iter().find(|(theirs, _)| *theirs == module);
    format!("{layer}{}.{kind}", known.map_or(module, |(_, own)| own))
}

fn read(stored: &Stored) -> Vec<f32> {
    let mut values = vec![0.0; stored.bytes.len() / stored.format.bytes() * stored.format.values()];
    stored.format.dequantize(stored.bytes, &mut values);
    values
}

/// Checks that Llama 3's factors are those that its settings give (arXiv 2407.21783).
fn check_factors(factors: &Stored, config: &Config) -> Result<()> {
    let plain = Config { rope_scaling: RopeScaling::None, ..config.clone() }.inverse_frequencies();
    let scaled = config.inverse_frequencies();
    let expected: Vec<f32> = plain.iter().zip(&scaled).map(|(plain, scaled)| plain / scaled).collect();
    let close = |(found, expected): (&f32, &f32)| (found - expected).abs() <= TOLERANCE * expected;
    let found = read(factors);
    if found.len() == expected.len() && found.iter().zip(&expected).all(close) {
        return Ok(());
    }
    Err(Failure::data(format!("{ROPE_FACTORS} has other factors than Llama 3's, which is not implemented")))
}

//! Where a GGUF file has the values of each tensor of a checkpoint.

use record::failure::{Failure, Result};

use super::architecture::{Architecture, GEMMA3, LONG_ROPE, ROPE_FACTORS, check_factors};
use super::header::{Header, Stored};
use crate::config::Config;

/// Modules of a layer and outside, by Hugging Face's names.
const MODULES: [(&str, &str); 17] = [
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
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
];
/// Gemma's norms, one of which has another module's name.
const GEMMA_NORMS: [(&str, &str); 3] = [
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// A tensor of the new checkpoint and where its values come from.
pub(super) struct Source<'a> {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) stored: Stored<'a>,
    /// Its first row there: the experts of a layer are one tensor.
    pub(super) first_row: usize,
    /// Rows of a head, where the file has them interleaved.
    pub(super) interleaved: Option<usize>,
    /// Subtracted from each value.
    pub(super) offset: f32,
}

/// Every tensor of the checkpoint in the order of the computation.
///
/// # Errors
/// One is missing or has another shape; the file has one that the model has no use for.
pub(super) fn sources<'a>(
    architecture: &Architecture,
    header: &Header<'a>,
    config: &Config,
) -> Result<Vec<Source<'a>>> {
    let mut rest = header.tensors.clone();
    if let Some(factors) = rest.remove(ROPE_FACTORS) {
        check_factors(&factors, config)?;
    }
    LONG_ROPE.iter().for_each(|(_, name)| drop(rest.remove(*name)));
    let decoder = config.decoder();
    let mut source = |name: String, shape: Vec<usize>| {
        let place = Place::of(&name, architecture);
        let stored = header.tensor(&place.name)?;
        rest.remove(place.name.as_str());
        let mut expected = shape.clone();
        if place.expert.is_some() {
            expected.insert(0, config.experts(place.layer).map_or(0, |experts| experts.count));
        }
        if stored.shape != expected {
            return Err(Failure::data(format!(
                "tensor {:?} has shape {:?}, expected {expected:?}",
                place.name, stored.shape
            )));
        }
        Ok(Source {
            first_row: place.expert.map_or(0, |expert| expert * shape[0]),
            interleaved: architecture.interleaved_rows(&name, config),
            offset: architecture.offset(&shape),
            stored: stored.clone(),
            name,
            shape,
        })
    };
    let stored = decoder.stored().into_iter().map(|stored| (stored.name, stored.shape));
    let sources = stored.map(|(name, shape)| source(name, shape)).collect::<Result<Vec<Source>>>()?;
    match rest.keys().next() {
        None => Ok(sources),
        Some(name) => Err(Failure::data(format!("tensor {name:?} has no place in {}", config.family))),
    }
}

/// The tensor of a file in which another one is.
pub(super) struct Place {
    pub(super) name: String,
    pub(super) layer: usize,
    pub(super) expert: Option<usize>,
}

impl Place {
    /// `blk.3.attn_q.weight`, of `model.layers.3.self_attn.q_proj.weight`; `blk.3.ffn_up_exps.weight` with its number, of an expert.
    pub(super) fn of(name: &str, architecture: &Architecture) -> Place {
        let (module, kind) = name.rsplit_once('.').unwrap_or((name, ""));
        let in_layer = module.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let (number, module) = in_layer.unwrap_or(("", module));
        let prefix = if number.is_empty() { String::new() } else { format!("blk.{number}.") };
        let layer = number.parse().unwrap_or_default();
        let expert = module.strip_prefix("mlp.experts.").and_then(|rest| {
            let (expert, part) = rest.split_once('.')?;
            Some((expert.parse().ok()?, part.strip_suffix("_proj")?))
        });
        if let Some((expert, part)) = expert {
            return Place { name: format!("{prefix}ffn_{part}_exps.{kind}"), layer, expert: Some(expert) };
        }
        let gemma = if architecture.name == GEMMA3 { GEMMA_NORMS.as_slice() } else { &[] };
        let known = gemma.iter().chain(&MODULES).find(|(theirs, _)| *theirs == module);
        let own = known.map_or(module, |(_, own)| own);
        Place { name: format!("{prefix}{own}.{kind}"), layer, expert: None }
    }
}

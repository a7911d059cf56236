//! The decoders that the kernels for devices run.

use record::failure::{Failure, Result};

use crate::config::Config;

/// The first part of a decoder that the device kernels do not compute.
pub fn unsupported_on_devices(config: &Config) -> Option<&'static str> {
    let variant = &config.variant;
    let parts = [
        (variant.gelu || variant.post_norms || variant.norms_minus_one, "Gemma's norms and activation"),
        (variant.experts.is_some(), "experts"),
        (variant.embedding_scale.is_some(), "scaled embeddings"),
        (variant.attention_scale.is_some(), "query_pre_attn_scalar"),
        (variant.local_rope_theta.is_some(), "layers with different rotary positions"),
        (variant.rotary_dim.is_some(), "partial rotary positions"),
        (variant.output_bias, "a bias of the output projection"),
        (variant.mlp_bias, "biases in the MLP"),
        (
            config.rope_scaling.attention_factor() != 1.0 && config.rope_layers.contains(&false),
            "yarn beside layers without rotary positions",
        ),
    ];
    parts.into_iter().find(|(has, _)| *has).map(|(_, what)| what)
}

/// A decoder for a device. The kernels have no windows, so positions end at the shortest window.
///
/// # Errors
/// 2: it has parts that the kernels do not compute.
pub fn for_device(config: Config) -> Result<Config> {
    if let Some(what) = unsupported_on_devices(&config) {
        return Err(Failure::usage(format!(
            "this policy cannot run on a device: {} has {what}, which the kernels do not compute",
            config.family
        ))
        .hint("use --device cpu"));
    }
    Ok(Config { max_positions: config.shortest_window().unwrap_or(config.max_positions), ..config })
}

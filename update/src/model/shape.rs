//! The numbers that decide the computation: sizes and variants of a decoder.
//!
//! Qwen3 normalizes each query and key head, Qwen2 adds a bias to queries, keys and values, Llama does
//! neither; everything else is the same pre-norm decoder with rotary positions and a SwiGLU.

/// Sizes and variants of a decoder, as Hugging Face's `config.json` gives them.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the SwiGLU.
    pub intermediate: usize,
    /// Number of decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Tokens in the vocabulary.
    pub vocabulary: usize,
    /// Added to the mean square in every RMS norm.
    pub epsilon: f32,
    /// Rotary angular frequency of each pair of a head, radians a position: `head_dim / 2` values.
    pub inverse_frequencies: Vec<f32>,
    /// Whether query and key heads are RMS-normalized (Qwen3).
    pub qk_norm: bool,
    /// Whether queries, keys and values have a bias (Qwen2).
    pub attention_bias: bool,
    /// Whether the output head is the embedding.
    pub tied: bool,
}

impl Shape {
    /// Width of all query heads.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads.
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Width of queries, keys and values side by side.
    pub fn qkv_width(&self) -> usize {
        self.query_width() + 2 * self.key_width()
    }
}

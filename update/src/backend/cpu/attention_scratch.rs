//! The memory that a thread needs for one block of attention, kept between blocks.

/// Gathered operands and scores of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct Scratch {
    pub operands: Operands,
    pub scores: Vec<f32>,
    pub out: Vec<f32>,
    pub d_out: Vec<f32>,
    pub d_scores: Vec<f32>,
    /// Row sums in the forward pass; log-sum-exp in the backward pass.
    pub lse: Vec<f32>,
}

/// Queries, keys and values of one key head and its group of query heads, row by row.
#[derive(Clone, Debug, Default)]
pub(super) struct Operands {
    pub queries: Vec<f32>,
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
}

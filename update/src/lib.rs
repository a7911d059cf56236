//! Advantages become new weights: the numerics and the stage around them.

pub mod model;
pub mod tree;

//! What a policy is on disk: a Hugging Face directory with a configuration, a tokenizer and weights; versions of it,
//! published atomically; and the decoder graph that ONNX Runtime runs over those weights in place.
//!
//! Knows no pipes and no training: stages read and write policies through it.

mod chat;
mod clock;
pub mod config;
mod digest;
pub mod directory;
mod files;
pub mod graph;
mod header;
mod onnx;
pub mod tokenizer;
pub mod weights;

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
mod header;
pub mod tokenizer;
pub mod weights;

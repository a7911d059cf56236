//! A policy on disk: a Hugging Face directory with configuration, tokenizer and weights; its versions, published atomically;
//! and the decoder graph that ONNX Runtime runs over those weights in place.
//!
//! Left out: pipes and training. Stages read and write policies through this crate.

pub mod adapter;
mod card;
mod chat;
mod checkpoint;
mod clock;
pub mod config;
mod confined;
pub mod decoder;
mod digest;
pub mod directory;
mod durable;
pub mod experts;
pub mod export;
mod family;
mod files;
pub mod gguf;
pub mod graph;
mod header;
pub mod hub;
pub mod initial;
mod jinja;
mod json;
mod layout;
mod lock;
pub mod lora;
mod mapping;
mod modelfile;
pub mod models;
mod onnx;
pub mod ownership;
pub mod pretrained;
pub mod publish;
pub mod retention;
pub mod rope;
pub mod side_files;
mod special_tokens;
pub mod token_bytes;
pub mod tokenizer;
pub mod tools;
pub mod training_state;
mod vocabulary;
pub mod weights;
mod write_behind;

//! What the scheduler needs of a policy: tokens of a conversation, completions of tokens, text of tokens.
//!
//! A trait, so that everything around the model can be tested with a policy that is a few lines of Rust.

use std::sync::Arc;

use policy::tokenizer::Tokenizer;
use record::failure::Result;
use record::sample::Message;

use crate::engine::{Completion, Decoder, Job};

/// One policy on one thread. It completes many prompts at once and hands each group out as it finishes.
pub trait Generator {
    /// The tokens of a conversation that is to be continued.
    ///
    /// # Errors
    /// A conversation that the policy's chat template refuses.
    fn encode(&self, messages: &[Message]) -> Result<Vec<u32>>;

    /// The text of a completion, without special tokens.
    ///
    /// # Errors
    /// Tokens that the policy does not have.
    fn decode(&self, ids: &[u32]) -> Result<String>;

    /// Adds a group to those being completed.
    ///
    /// # Errors
    /// A prompt that is empty or leaves no room for its completion.
    fn submit(&mut self, job: Job) -> Result<()>;

    /// Runs the model once; the groups that this finished, by ticket.
    ///
    /// # Errors
    /// The model failed to run.
    fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>>;

    /// Whether nothing is being completed.
    fn is_idle(&self) -> bool;
}

/// A policy that the engine runs.
pub struct EngineGenerator {
    decoder: Decoder,
    tokenizer: Arc<Tokenizer>,
}

impl EngineGenerator {
    /// A generator for the thread that calls.
    pub fn new(decoder: Decoder, tokenizer: Arc<Tokenizer>) -> EngineGenerator {
        EngineGenerator { decoder, tokenizer }
    }
}

impl Generator for EngineGenerator {
    fn encode(&self, messages: &[Message]) -> Result<Vec<u32>> {
        self.tokenizer.chat(messages)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids)
    }

    fn submit(&mut self, job: Job) -> Result<()> {
        self.decoder.submit(job)
    }

    fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>> {
        self.decoder.advance()
    }

    fn is_idle(&self) -> bool {
        self.decoder.is_idle()
    }
}

//! What the worker needs of a policy: tokens of a conversation, completions of tokens, text of tokens.
//!
//! A trait, so that everything around the model can be tested with a policy that is a few lines of Rust.

use std::sync::Arc;

use policy::tokenizer::Tokenizer;
use record::failure::Result;
use record::sample::Message;

use crate::engine::service::Client;
use crate::engine::{Completion, PhaseTimings, Request};
use crate::server;

/// One policy on one thread. It completes many prompts at once and returns each group when it finishes.
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

    /// Submits a group.
    ///
    /// # Errors
    /// A prompt that is empty or leaves no room for its completion.
    fn submit(&mut self, request: Request) -> Result<()>;

    /// The groups that have finished, by request id; may `wait` a moment for one. Several policies may share a model's thread:
    /// whichever of them is asked first returns the groups of all.
    ///
    /// # Errors
    /// The model failed to run.
    fn advance(&mut self, wait: bool) -> Result<Vec<(u64, Vec<Completion>)>>;

    /// Returns true if nothing is being generated.
    fn is_idle(&self) -> bool;

    /// Where the model's time went, asked once at the end. Only the sum over all threads and policies of a model counts.
    fn timings(&self) -> PhaseTimings {
        PhaseTimings::default()
    }
}

/// What plays for a policy on one thread.
pub enum Player {
    /// A model of this process.
    Model(Box<dyn Generator>),
    /// An OpenAI-compatible server.
    Server(server::Client),
}

/// A policy that an engine runs.
pub struct EngineGenerator {
    /// Access to its model.
    pub client: Client,
    /// Its vocabulary and chat template.
    pub tokenizer: Arc<Tokenizer>,
}

impl Generator for EngineGenerator {
    fn encode(&self, messages: &[Message]) -> Result<Vec<u32>> {
        self.tokenizer.chat(messages)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids)
    }

    fn submit(&mut self, request: Request) -> Result<()> {
        self.client.submit(request)
    }

    fn advance(&mut self, wait: bool) -> Result<Vec<(u64, Vec<Completion>)>> {
        self.client.advance(wait)
    }

    fn is_idle(&self) -> bool {
        self.client.is_idle()
    }

    fn timings(&self) -> PhaseTimings {
        self.client.take_timings()
    }
}

//! What the worker needs of a policy: tokens of a conversation, completions of tokens, text of tokens.
//!
//! A trait, so that everything around the model can be tested with a policy that is a few lines of Rust.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use policy::tokenizer::Tokenizer;
use record::failure::Result;
use record::sample::Message;

use crate::engine::device::service::Client;
use crate::engine::{Completion, Decoder, PhaseTimings, Request};
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

    /// Runs the model once; the groups that this finished, by request id.
    ///
    /// # Errors
    /// The model failed to run.
    fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>>;

    /// Whether nothing is being generated.
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

/// The inference backend of a policy on one thread.
pub enum Backend {
    /// A decoder of this thread. Adapters of one base share it, so that a run of the model holds the rows of all of them;
    /// whichever of them advances it returns whatever finished.
    Cpu(Rc<RefCell<Decoder>>, Option<u32>),
    /// A client of a device's engine.
    Device(Client),
}

/// A policy that an engine runs.
pub struct EngineGenerator {
    /// Where it runs.
    pub backend: Backend,
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
        match &mut self.backend {
            Backend::Cpu(decoder, adapter) => decoder.borrow_mut().submit(*adapter, request),
            Backend::Device(client) => client.submit(request),
        }
    }

    fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>> {
        match &mut self.backend {
            Backend::Cpu(decoder, _) => decoder.borrow_mut().advance(),
            Backend::Device(client) => client.advance(),
        }
    }

    fn is_idle(&self) -> bool {
        match &self.backend {
            Backend::Cpu(decoder, _) => decoder.borrow().is_idle(),
            Backend::Device(client) => client.is_idle(),
        }
    }

    fn timings(&self) -> PhaseTimings {
        match &self.backend {
            Backend::Cpu(decoder, _) => decoder.borrow_mut().take_timings(),
            Backend::Device(client) => client.take_timings(),
        }
    }
}

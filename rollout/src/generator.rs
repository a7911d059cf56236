//! What the scheduler needs of a policy: tokens of a conversation, completions of tokens, text of tokens.
//!
//! A trait, so that everything around the model can be tested with a policy that is a few lines of Rust.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use policy::tokenizer::Tokenizer;
use record::failure::Result;
use record::sample::Message;

use crate::engine::paged::service::Client;
use crate::engine::{Completion, Decoder, PhaseTimings, Request};

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
    fn submit(&mut self, request: Request) -> Result<()>;

    /// Runs the model once; the groups that this finished, by id.
    ///
    /// # Errors
    /// The model failed to run.
    fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>>;

    /// Whether nothing is being completed.
    fn is_idle(&self) -> bool;

    /// Where the model's time went, asked once at the end; threads and policies that share a model
    /// divide it in any way.
    fn timings(&self) -> PhaseTimings {
        PhaseTimings::default()
    }
}

/// What completes token ids: a share of a decoder of this thread's own, or a client of a device's engine.
pub trait Backend {
    /// As [`Generator::submit`].
    ///
    /// # Errors
    /// The same.
    fn submit(&mut self, request: Request) -> Result<()>;

    /// As [`Generator::advance`].
    ///
    /// # Errors
    /// The same.
    fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>>;

    /// As [`Generator::is_idle`].
    fn is_idle(&self) -> bool;

    /// As [`Generator::timings`].
    fn timings(&self) -> PhaseTimings;
}

/// A policy's share of a decoder of this thread.
///
/// Adapters of one base share a decoder, so that a run of the model holds the rows of all of them. Whichever of them
/// advances it hands out whatever finished; ids say whose.
pub struct DecoderHandle {
    decoder: Rc<RefCell<Decoder>>,
    adapter: Option<u32>,
}

impl DecoderHandle {
    /// The share of the engine's `adapter`-th adapter, or of a policy that is a whole model.
    pub fn new(decoder: Rc<RefCell<Decoder>>, adapter: Option<u32>) -> DecoderHandle {
        DecoderHandle { decoder, adapter }
    }
}

impl Backend for DecoderHandle {
    fn submit(&mut self, request: Request) -> Result<()> {
        self.decoder.borrow_mut().submit_to(self.adapter, request)
    }

    fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>> {
        self.decoder.borrow_mut().advance()
    }

    fn is_idle(&self) -> bool {
        self.decoder.borrow().is_idle()
    }

    /// Of all that share the decoder, told to the first that asks.
    fn timings(&self) -> PhaseTimings {
        self.decoder.borrow_mut().take_timings()
    }
}

impl Backend for Client {
    fn submit(&mut self, request: Request) -> Result<()> {
        Client::submit(self, request)
    }

    fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>> {
        Client::advance(self)
    }

    fn is_idle(&self) -> bool {
        Client::is_idle(self)
    }

    fn timings(&self) -> PhaseTimings {
        self.take_timings()
    }
}

/// A policy that an engine runs.
pub struct EngineGenerator<C> {
    engine: C,
    tokenizer: Arc<Tokenizer>,
}

impl<C: Backend> EngineGenerator<C> {
    /// A generator for the thread that calls.
    pub fn new(engine: C, tokenizer: Arc<Tokenizer>) -> EngineGenerator<C> {
        EngineGenerator { engine, tokenizer }
    }
}

impl<C: Backend> Generator for EngineGenerator<C> {
    fn encode(&self, messages: &[Message]) -> Result<Vec<u32>> {
        self.tokenizer.chat(messages)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids)
    }

    fn submit(&mut self, request: Request) -> Result<()> {
        self.engine.submit(request)
    }

    fn advance(&mut self) -> Result<Vec<(u64, Vec<Completion>)>> {
        self.engine.advance()
    }

    fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    fn timings(&self) -> PhaseTimings {
        self.engine.timings()
    }
}

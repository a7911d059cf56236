//! Prompts, remembered: the chat template and the tokenizer run once for a conversation.
//!
//! Episodes of one task ask the same first question, tasks recur in the stream, and in parallel sampling K
//! episodes begin alike. The memory is bounded and belongs to one thread and one policy.

use std::collections::HashMap;
use std::sync::Arc;

use record::failure::Result;
use record::sample::Message;

use crate::generator::Generator;
use crate::lines::{self, Prompt};

/// Prompts remembered before all are forgotten: some megabytes for prompts of a thousand tokens.
const REMEMBERED: usize = 256;

/// The prompts of one policy on one thread, by the JSON of their messages.
#[derive(Default)]
pub struct Prompts {
    known: HashMap<String, Arc<Prompt>>,
}

impl Prompts {
    /// The prompt that `messages` make for the policy of `generator`.
    ///
    /// # Errors
    /// A conversation that the policy's chat template refuses.
    pub fn get(&mut self, messages: &[Message], generator: &dyn Generator) -> Result<Arc<Prompt>> {
        let json = lines::raw(&messages)?;
        if let Some(prompt) = self.known.get(json.get()) {
            return Ok(prompt.clone());
        }
        let key = json.get().to_owned();
        let prompt = Arc::new(Prompt::new(json, generator.encode(messages)?)?);
        if self.known.len() == REMEMBERED {
            self.known.clear();
        }
        self.known.insert(key, prompt.clone());
        Ok(prompt)
    }
}

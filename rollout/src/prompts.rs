//! Prompts: a conversation as tokens and as JSON, and a cache of them.
//!
//! Episodes of one task begin with the same conversation and tasks recur in the stream, so the chat template and the
//! tokenizer run once per conversation. A cache is bounded and belongs to one thread and one policy.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use record::failure::{Failure, Result};
use record::sample::Message;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// Prompts cached before the cache is cleared: some megabytes for prompts of a thousand tokens.
const CAPACITY: usize = 256;

/// A prompt, made once for all candidates that continue it.
#[derive(Debug)]
pub struct Prompt {
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The conversation as JSON.
    pub messages_json: Box<RawValue>,
    /// The tools that it may call, as JSON.
    pub tools_json: Option<Box<RawValue>>,
    /// Its tokens as JSON.
    pub ids_json: Box<RawValue>,
    /// True if it ends with the beginning of a thought.
    pub begins_thought: bool,
    /// True if it goes on from tokens of an earlier action.
    pub continues: bool,
}

impl Prompt {
    /// A prompt that goes on from tokens of an earlier action.
    pub fn continuing(
        messages: &[Message],
        tools: Option<&Value>,
        (ids, begins_thought): (Vec<u32>, bool),
    ) -> Result<Prompt> {
        let (messages_json, tools_json) = (raw_json(&messages)?, tools.map(raw_json).transpose()?);
        let ids_json = raw_json(&ids)?;
        Ok(Prompt { ids_json, ids, messages_json, tools_json, begins_thought, continues: true })
    }
}

/// The prompts of one policy on one thread, by the JSON of their messages and tools.
#[derive(Default)]
pub struct PromptCache {
    known: HashMap<String, Arc<Prompt>>,
}

impl PromptCache {
    /// The prompt for a conversation with tools; `encode` makes its tokens when they are not cached, and says if they
    /// end with the beginning of a thought.
    pub fn get(
        &mut self,
        messages: &[Message],
        tools: Option<&Value>,
        encode: impl FnOnce() -> Result<(Vec<u32>, bool)>,
    ) -> Result<Arc<Prompt>> {
        let messages_json = raw_json(&messages)?;
        let tools_json = tools.map(raw_json).transpose()?;
        let key: Cow<str> = match &tools_json {
            None => messages_json.get().into(),
            Some(tools) => format!("{messages_json}{tools}").into(),
        };
        if let Some(prompt) = self.known.get(&*key) {
            return Ok(prompt.clone());
        }
        let key = key.into_owned();
        let (ids, begins_thought) = encode()?;
        let ids_json = raw_json(&ids)?;
        let prompt = Prompt { ids_json, ids, messages_json, tools_json, begins_thought, continues: false };
        let prompt = Arc::new(prompt);
        if self.known.len() == CAPACITY {
            self.known.clear();
        }
        self.known.insert(key, prompt.clone());
        Ok(prompt)
    }
}

/// `value` as JSON.
pub fn raw_json(value: &impl Serialize) -> Result<Box<RawValue>> {
    serde_json::value::to_raw_value(value).map_err(Failure::work)
}

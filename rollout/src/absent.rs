//! Agents that are not there (`--absent AGENT`): each says one text every time, by default nothing.
//!
//! The same tasks and seeds, with and without its words, show how often an agent turns a failure into a success, and the reverse
//! (`report evaluate WITH --against WITHOUT`). Its lines are of type `served`, so nothing is trained on them.

use std::sync::Arc;

use record::failure::{Failure, Result};

use crate::episode::group::{Candidate, ServerTokens};
use crate::generator::{Generated, Generator, GroupRequest};
use crate::prompts::{Prompt, PromptCache};

/// An absent agent and its text.
pub type Silence<'a> = (&'a str, &'a str);

/// Splits a command line into the policies of agents who are there, and the texts of absent ones (`AGENT` or `AGENT=TEXT`).
///
/// # Errors
/// Usage: an agent without a name, or one named twice.
pub fn split<'a>(policies: &[String], absent: &'a [String]) -> Result<(Vec<String>, Vec<Silence<'a>>)> {
    let mut silent: Vec<Silence<'_>> = Vec::new();
    for value in absent {
        let (agent, text) = value.split_once('=').unwrap_or((value, ""));
        if agent.is_empty() || silent.iter().any(|(other, _)| *other == agent) {
            let cause = if agent.is_empty() { "no agent is named" } else { "the agent is named twice" };
            return Err(Failure::usage(format!("--absent {value}: {cause}"))
                .hint("--absent tool, or with a text that it says every time: --absent tool=wait"));
        }
        silent.push((agent, text));
    }
    let is_replaced = |value: &&String| {
        value.split_once('=').is_some_and(|(agent, _)| silent.iter().any(|(other, _)| *other == agent))
    };
    let others = policies.iter().filter(|value| !is_replaced(value)).cloned().collect();
    Ok((others, silent))
}

/// Says one text every time.
pub struct Absent {
    text: String,
    prompts: PromptCache,
    said: Vec<Generated>,
}

impl Absent {
    /// An agent that says `text`.
    pub fn new(text: &str) -> Absent {
        Absent { text: text.to_owned(), prompts: PromptCache::default(), said: Vec::new() }
    }
}

impl Generator for Absent {
    fn submit(&mut self, request: GroupRequest<'_>) -> Result<Arc<Prompt>> {
        let prompt = self.prompts.get(request.messages, request.tools, || Ok((Vec::new(), false)))?;
        let usage = ServerTokens { prompt: Some(0), completion: Some(0) };
        let candidate = Candidate { text: self.text.clone(), stopped: true, usage, ..Candidate::default() };
        self.said.push((request.id, Ok(vec![candidate; request.streams.len()])));
        Ok(prompt)
    }

    fn advance(&mut self, _wait: bool) -> Result<Vec<Generated>> {
        Ok(std::mem::take(&mut self.said))
    }

    fn is_idle(&self) -> bool {
        self.said.is_empty()
    }
}

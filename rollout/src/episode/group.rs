//! One agent at one turn: the prompt, a candidate per branch, and their group with its rewards.

use std::ops::Range;
use std::sync::Arc;

use envs::{Generation, Outcome};
use record::sample::Message;
use record::thoughts;
use serde_json::Value;

use super::joint::Node;

/// A prompt for one agent, to be completed once per branch.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptRequest {
    /// The node of the tree of joint actions.
    pub node: Node,
    /// The turn, from 0.
    pub turn: u32,
    /// Index of the agent in the workflow.
    pub agent: usize,
    /// The branches to sample, one candidate each.
    pub branches: Range<u32>,
    /// The prompt, the same for all of them.
    pub messages: Vec<Message>,
    /// Tools that the agent may call.
    pub tools: Option<Arc<Value>>,
    /// The action of the agent that this conversation goes on from.
    pub after: Option<Arc<Spoken>>,
}

/// An action: the conversation that it continued, the tools that it had, and the candidate that was executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Spoken {
    /// The conversation.
    pub messages: Vec<Message>,
    pub tools: Option<Arc<Value>>,
    pub candidate: Candidate,
}

impl Spoken {
    /// Returns true if `messages` are this conversation, the assistant's message with this text, and more, and the tools
    /// are the same: a template lists them at the beginning.
    pub fn is_continued_by(&self, messages: &[Message], tools: Option<&Value>) -> bool {
        let count = self.messages.len();
        let said = messages.get(count).filter(|message| message.role == "assistant");
        messages.len() > count + 1
            && messages[..count] == self.messages
            && said.is_some_and(|message| message.content.trim() == self.candidate.answer().trim())
            && self.tools.as_deref() == tools
    }
}

/// One completion, as text and as tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Candidate {
    /// The whole text; the environment gets [`Candidate::answer`].
    pub text: String,
    /// True if the prompt ends with the beginning of a thought.
    pub is_in_thought: bool,
    /// Its tokens, the stop token included.
    pub ids: Vec<u32>,
    /// The log-probability of each token.
    pub logprobs: Vec<f32>,
    /// True if it ended with a stop token, as opposed to at the token limit.
    pub stopped: bool,
    /// A server's count, because its tokens are not known here.
    pub usage: ServerTokens,
    /// The tokens that it continues.
    pub prompt_ids: Arc<[u32]>,
}

impl Candidate {
    /// The text that the environment gets: without thoughts.
    pub fn answer(&self) -> &str {
        thoughts::answer(&self.text, self.is_in_thought)
    }

    /// How it was generated, for the environment.
    pub fn generation(&self) -> Generation {
        let known = |ids: &[u32]| (!ids.is_empty()).then_some(ids.len() as u64);
        Generation {
            finish_reason: if self.stopped { "stop" } else { "length" },
            prompt_tokens: self.usage.prompt.or_else(|| known(&self.prompt_ids)),
            completion_tokens: self.usage.completion.or_else(|| known(&self.ids)),
        }
    }
}

/// Tokens of a candidate as a server counted them, where it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTokens {
    /// Tokens of the prompt.
    pub prompt: Option<u64>,
    /// Tokens of the completion.
    pub completion: Option<u64>,
}

/// A scored candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its number in the group.
    pub branch: u32,
    /// The completion.
    pub candidate: Candidate,
    /// The environment's outcome.
    pub outcome: Outcome,
    /// α·team + local.
    pub reward: f64,
    /// True if it was executed.
    pub selected: bool,
    /// True if the turn limit ended the episode after it.
    pub truncated: bool,
}

/// The scored candidates of one agent at one turn of one episode, in branch order.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The node of the tree of joint actions.
    pub node: Node,
    /// The turn, from 0.
    pub turn: u32,
    /// Index of the agent in the workflow.
    pub agent: usize,
    /// Id of the sample that led to the state of this group; `None` in the initial state.
    pub parent: Option<Arc<str>>,
    /// The prompt that all members continue.
    pub messages: Vec<Message>,
    /// Tools that the agent might call.
    pub tools: Option<Arc<Value>>,
    /// The candidates.
    pub members: Vec<Member>,
}

impl Group {
    /// The candidate that was executed.
    pub fn selected(&self) -> Option<&Member> {
        self.members.iter().find(|member| member.selected)
    }
}

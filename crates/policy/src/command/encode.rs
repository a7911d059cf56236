//! `policy encode`: text samples become token samples, as the policy that learns them would have written them.

use policy::directory::Policy;
use policy::ownership::Ownership;
use policy::tokenizer::{Conversation, Tokenizer};
use record::decorate::{self, Decorate, Flags, Output, StageStats};
use record::failure::{Failure, Result};
use record::line::End;
use record::read::Line;
use record::sample::{Field, Sample};
use record::splice;
use serde_json::{Value, json};

use crate::arguments::Encode;

struct Encoder {
    tokenizer: Tokenizer,
    version: String,
}

struct Encoding {
    ownership: Ownership,
    encoders: Vec<Encoder>,
    encoded: u64,
}

type Group = decorate::Group<Option<Ids>>;

/// The keys that a sample gets.
struct Ids {
    prompt: Vec<u32>,
    completion: Vec<u32>,
    encoder: usize,
}

pub fn run(arguments: &Encode, quiet: bool) -> Result<()> {
    let ownership = Ownership::of_directories("--policy", &arguments.policies)?;
    let open = |directory| {
        let policy = Policy::open(directory)?;
        let tokenizer = Tokenizer::load(policy.model())?;
        Ok(Encoder { tokenizer, version: policy.version.to_string() })
    };
    let encoders = ownership.owners().iter().map(|owner| open(&owner.directory)).collect::<Result<_>>()?;
    let flags = Flags { allow_incomplete: arguments.allow_incomplete, quiet, resident: false };
    decorate::run("encode", flags, Encoding { ownership, encoders, encoded: 0 })
}

impl Decorate for Encoding {
    /// `None` for a sample that has its ids, or that no policy here owns.
    type Data = Option<Ids>;

    fn require(&self, sample: &Sample, line: &Line) -> Result<()> {
        match (sample.prompt_ids.is_some(), sample.completion_ids.is_some()) {
            (true, true) => Ok(()),
            (false, false) => sample.require(line, &[Field::Agent]),
            _ => Err(sample.failure(line, "has only one of prompt_ids and completion_ids")),
        }
    }

    fn join(&mut self, _group: &Group, sample: Sample, line: &Line) -> Result<Option<Ids>> {
        let owner = sample.agent.as_deref().and_then(|agent| self.ownership.of(agent));
        let Some(encoder) = owner.filter(|_| sample.prompt_ids.is_none()) else { return Ok(None) };
        sample.require(line, &[Field::Prompt, Field::Completion])?;
        let ids =
            self.encoders[encoder].encode(&sample).map_err(|failure: Failure| failure.at(line.location()));
        let (prompt, completion) = ids?;
        Ok(Some(Ids { prompt, completion, encoder }))
    }

    fn decorate(&mut self, group: Group, output: &mut Output) -> Result<()> {
        for member in &group.members {
            let Some(ids) = &member.data else {
                output.add(member, &[])?;
                continue;
            };
            self.encoded += 1;
            let keys = [
                ("prompt_ids", splice::json(&ids.prompt)),
                ("completion_ids", splice::json(&ids.completion)),
                ("policy_version", splice::json(&self.encoders[ids.encoder].version)),
            ];
            output.add(member, &keys)?;
        }
        Ok(())
    }

    fn counts(&self, stats: &StageStats, _ends: &[End]) -> Value {
        json!({"samples": stats.written, "encoded": self.encoded})
    }

    fn summary(&self, stats: &StageStats) -> String {
        format!("{} of {} samples encoded", self.encoded, stats.samples)
    }
}

impl Encoder {
    /// Ids of the prompt and of the completion.
    fn encode(&self, sample: &Sample) -> Result<(Vec<u32>, Vec<u32>)> {
        let mut completion = self.tokenizer.encode(sample.completion.as_deref().unwrap_or_default())?;
        // A completion that was cut off did not end, and must not be trained to end there.
        if sample.finish_reason.as_deref() != Some("length") {
            completion.push(self.tokenizer.stop_ids()[0]);
        }
        let tools = sample.tools.clone().map(Value::from);
        let prompt = Conversation::new(sample.prompt.as_deref().unwrap_or_default(), tools.as_ref());
        Ok((self.tokenizer.encode_conversation(prompt)?, completion))
    }
}

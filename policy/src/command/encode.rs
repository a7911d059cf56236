//! `policy encode`: text samples become token samples, as the policy that is to learn them would have written them.

use std::collections::HashMap;
use std::io::Write;
use std::time::Instant;

use clap::Args;
use policy::directory::Policy;
use policy::ownership::Ownership;
use policy::tokenizer::Tokenizer;
use record::failure::{Failure, Result};
use record::read::{Kind, Line, Reader};
use record::sample::{Field, Message, Sample};
use record::splice::{json, splice};
use record::stage;
use record::stream::Stream;
use record::write::Writer;
use serde_json::{Map, Value};

/// Give text-only samples their token ids (a filter)
///
/// Examples:
///   envs demo plan-path --stats 1000 --seed 7 | policy encode --policy run/all > samples.jsonl
///   policy encode --policy tool=run/tool --policy planner=run/planner < demonstrations.jsonl
///
/// Adds prompt_ids, completion_ids (the stop token included) and policy_version.
/// Samples that have ids already, samples of agents that no policy owns, and all
/// other lines pass unchanged.
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct Encode {
    /// The policy that is to learn the samples, of one agent or of all (repeatable)
    #[arg(long = "policy", value_name = "[AGENT=]DIR", required = true)]
    policies: Vec<String>,
    /// Take a stream that does not say that it is whole
    #[arg(long)]
    allow_incomplete: bool,
}

/// Prompts remembered: demonstrations of one state come together, and a map is shared by many.
const REMEMBERED: usize = 4096;

/// One policy and the prompts it has lately encoded.
struct Encoder {
    tokenizer: Tokenizer,
    version: String,
    prompts: HashMap<String, String>,
}

pub fn run(arguments: &Encode, quiet: bool) -> Result<()> {
    let started = Instant::now();
    let ownership = Ownership::parse("--policy", &arguments.policies)?;
    let mut encoders = ownership
        .owners()
        .iter()
        .map(|owner| {
            let policy = Policy::open(&owner.directory)?;
            let tokenizer = Tokenizer::load(policy.model())?;
            Ok(Encoder { tokenizer, version: json(&policy.version.to_string())?, prompts: HashMap::new() })
        })
        .collect::<Result<Vec<Encoder>>>()?;

    let mut writer = Writer::stdout();
    let mut stream = Stream::new("encode", arguments.allow_incomplete);
    let mut stats = EncodeStats::default();
    let outcome = encode_all(&ownership, &mut encoders, &mut stream, &mut writer, &mut stats);
    let samples = stats.encoded + stats.passed;
    let counts = Map::from_iter([
        ("samples".to_owned(), Value::from(samples)),
        ("encoded".to_owned(), Value::from(stats.encoded)),
    ]);
    if outcome.is_ok() && !quiet && stats.passed > 0 {
        stage::note("policy", format!("encode: {} of {samples} samples passed unchanged", stats.passed));
    }
    stream.close(&mut writer, outcome, counts, stage::timing(started))
}

/// Samples written.
#[derive(Default)]
struct EncodeStats {
    encoded: u64,
    passed: u64,
}

/// Reads stdin to its end; each sample is written as soon as it has its ids.
fn encode_all<W: Write>(
    ownership: &Ownership,
    encoders: &mut [Encoder],
    stream: &mut Stream,
    writer: &mut Writer<W>,
    stats: &mut EncodeStats,
) -> Result<()> {
    let mut reader = Reader::stdin();
    while let Some(line) = reader.next()? {
        match line.kind {
            Kind::End => stream.end(&line)?,
            Kind::Sample => {
                let sample = Sample::parse(&line)?;
                stream.sample(&sample, &line)?;
                match owner(ownership, &sample, &line)? {
                    Some(policy) => {
                        writer.raw(&encoders[policy].encode(&sample, &line)?)?;
                        stats.encoded += 1;
                    }
                    None => {
                        writer.raw(&line.text)?;
                        stats.passed += 1;
                    }
                }
            }
            _ => writer.raw(&line.text)?,
        }
        if reader.would_wait() {
            writer.flush()?;
        }
    }
    Ok(())
}

/// The policy that encodes a sample; none for a sample that has its ids or that nobody here owns.
fn owner(ownership: &Ownership, sample: &Sample, line: &Line) -> Result<Option<usize>> {
    let has = [sample.prompt_ids.is_some(), sample.completion_ids.is_some()];
    match has {
        [true, true] => Ok(None),
        [false, false] => {
            sample.require(line, &[Field::Agent])?;
            Ok(sample.agent.as_deref().and_then(|agent| ownership.of(agent)))
        }
        _ => Err(sample.failure(line, "prompt_ids and completion_ids are not both there or both absent")),
    }
}

impl Encoder {
    /// The line with its ids.
    fn encode(&mut self, sample: &Sample, line: &Line) -> Result<String> {
        sample.require(line, &[Field::Prompt, Field::Completion])?;
        let prompt = sample.prompt.as_deref().unwrap_or_default();
        let completion = sample.completion.as_deref().unwrap_or_default();
        let place = |failure: Failure| failure.at(line.place());
        let prompt_ids = self.prompt(prompt).map_err(place)?;
        let mut completion_ids = self.tokenizer.encode(completion).map_err(place)?;
        // A completion that was cut short has not said that it is done, and must not be taught to.
        if sample.finish_reason.as_deref() != Some("length") {
            completion_ids.push(self.tokenizer.stop_ids()[0]);
        }
        let additions = [
            ("prompt_ids", prompt_ids),
            ("completion_ids", json(&completion_ids)?),
            ("policy_version", self.version.clone()),
        ];
        splice(&line.text, &additions).map_err(place)
    }

    /// The ids of a prompt as JSON.
    fn prompt(&mut self, messages: &[Message]) -> Result<String> {
        let key = json(messages)?;
        if let Some(known) = self.prompts.get(&key) {
            return Ok(known.clone());
        }
        let ids = json(&self.tokenizer.chat(messages)?)?;
        if self.prompts.len() == REMEMBERED {
            self.prompts.clear();
        }
        self.prompts.insert(key, ids.clone());
        Ok(ids)
    }
}

//! Parses a sample and checks its fields, with an error message for each way a line can break a rule.
//!
//! A line that serde refuses (a string where a number belongs, a repeated key) is parsed again field by field to name
//! the culprit, because "invalid type at line 1 column 9210" helps nobody. Good lines pay nothing for that.

use std::collections::HashSet;

use serde_json::value::RawValue;

use crate::failure::{Failure, Result};
use crate::line::{self, Joint};
use crate::read::{Line, without_line};
use crate::sample::{Field, Sample, Sampling};

/// Integers stay below 2^53, the largest that programs which read numbers as f64 (jq among them) keep exactly.
const LARGEST_INTEGER: u64 = 1 << 53;
/// A log-probability is at most 0; in f32 the sum over a large vocabulary may leave it this much above.
const LOGPROB_ROUNDING: f32 = 1e-3;

type Checked = std::result::Result<(), String>;

impl<'a> Sample<'a> {
    /// Parses the sample in a line and checks every known field that is present.
    ///
    /// # Errors
    /// 65 with the place, the sample's id and the cause.
    pub fn parse(line: &'a Line) -> Result<Sample<'a>> {
        let sample: Sample = serde_json::from_str(&line.text).map_err(|error| diagnose(line, &error))?;
        rules(&sample).map_err(|cause| sample.failure(line, cause))?;
        Ok(sample)
    }
}

/// Checks the rules that the types of the fields do not already keep.
fn rules(sample: &Sample) -> Checked {
    names(sample)?;
    places(sample)?;
    if let Some(sampling) = &sample.sampling {
        check_sampling(sampling)?;
    }
    tokens(sample)?;
    numbers(sample)
}

fn names(sample: &Sample) -> Checked {
    let texts = [
        (Field::Env, &sample.env),
        (Field::Task, &sample.task),
        (Field::Episode, &sample.episode),
        (Field::Agent, &sample.agent),
        (Field::Id, &sample.id),
        (Field::Parent, &sample.parent),
        (Field::Policy, &sample.policy),
        (Field::Group, &sample.group),
        (Field::Anchor, &sample.anchor),
    ];
    for (field, text) in texts {
        if text.as_deref() == Some("") {
            return Err(format!("{} is empty", field.key()));
        }
    }
    check_shard(sample.shard.as_deref())?;
    check_node(sample.node.as_deref())?;
    if let Some(version) = &sample.policy_version
        && !is_version(version)
    {
        return Err(format!("policy_version is `{version}`, not STEP:DIGEST"));
    }
    match sample.finish_reason.as_deref() {
        None | Some("stop" | "length") => Ok(()),
        Some(other) => Err(format!("finish_reason is `{other}`, not stop or length")),
    }
}

fn check_shard(shard: Option<&str>) -> Checked {
    match shard.filter(|shard| parse_shard(shard).is_none()) {
        Some(shard) => Err(format!("shard is `{shard}`, not i/n with i below n")),
        None => Ok(()),
    }
}

fn check_node(node: Option<&str>) -> Checked {
    match node.filter(|node| node.split('.').any(|index| digits(index).is_none())) {
        Some(node) => Err(format!("node is `{node}`, not the indices of joint actions, as in 3.0")),
        None => Ok(()),
    }
}

impl Joint {
    /// Parses the joint action in a line and checks every known field that is present.
    pub fn parse(line: &Line) -> Result<Joint> {
        let joint: Joint = line::parse(line)?;
        joint_rules(&joint).map_err(|cause| line.failure(format!("{}: {cause}", joint.id)))?;
        Ok(joint)
    }
}

fn joint_rules(joint: &Joint) -> Checked {
    let texts =
        [("episode", Some(&joint.episode)), ("id", Some(&joint.id)), ("parent", joint.parent.as_ref())];
    if let Some((field, _)) = texts.iter().find(|(_, text)| text.is_some_and(String::is_empty)) {
        return Err(format!("{field} is empty"));
    }
    if joint.step.is_some_and(|step| step >= LARGEST_INTEGER) {
        return Err("step is not below 2^53".to_owned());
    }
    check_shard(joint.shard.as_deref())?;
    check_node(joint.node.as_deref())?;
    let members: HashSet<&String> = joint.members.iter().collect();
    match members.len() == joint.members.len() && !members.is_empty() && !members.contains(&String::new()) {
        true => Ok(()),
        false => Err("members are not the ids of samples, at least one, each once".to_owned()),
    }
}

/// `i/n` with i below n.
pub(crate) fn parse_shard(shard: &str) -> Option<(u32, u32)> {
    let (index, count) = shard.split_once('/')?;
    let (index, count) = (digits(index)?, digits(count)?);
    (index < count).then_some((index, count))
}

fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn is_version(version: &str) -> bool {
    version.split_once(':').is_some_and(|(step, digest)| {
        !step.is_empty()
            && step.bytes().all(|byte| byte.is_ascii_digit())
            && !digest.is_empty()
            && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn places(sample: &Sample) -> Checked {
    if let Some(step) = sample.step
        && step >= LARGEST_INTEGER
    {
        return Err(format!("step is {step}, not below 2^53"));
    }
    if sample.branches == Some(0) {
        return Err("branches is 0, but a turn has at least one candidate".to_owned());
    }
    match (sample.branch, sample.branches) {
        (Some(branch), Some(branches)) if branch >= branches => {
            Err(format!("branch is {branch}, but there are {branches} branches, counted from 0"))
        }
        _ => Ok(()),
    }
}

fn check_sampling(sampling: &Sampling) -> Checked {
    let Sampling { temperature, top_p, seed, min_p, max_tokens, .. } = *sampling;
    if !(temperature.is_finite() && temperature > 0.0) {
        return Err(format!("sampling.temperature is {temperature}, not a number above 0"));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return Err(format!("sampling.top_p is {top_p}, not in (0, 1]"));
    }
    if seed >= LARGEST_INTEGER {
        return Err(format!("sampling.seed is {seed}, not below 2^53"));
    }
    if let Some(min_p) = min_p
        && !(min_p > 0.0 && min_p <= 1.0)
    {
        return Err(format!("sampling.min_p is {min_p}, not in (0, 1]"));
    }
    if sampling.stop.iter().flatten().any(String::is_empty) {
        return Err("sampling.stop has an empty text".to_owned());
    }
    if max_tokens == Some(0) {
        return Err("sampling.max_tokens is 0, but a completion has at least one token".to_owned());
    }
    Ok(())
}

fn tokens(sample: &Sample) -> Checked {
    for (field, ids) in
        [(Field::PromptIds, &sample.prompt_ids), (Field::CompletionIds, &sample.completion_ids)]
    {
        if ids.as_ref().is_some_and(Vec::is_empty) {
            return Err(format!("{} is empty", field.key()));
        }
    }
    if sample.prompt.as_ref().is_some_and(Vec::is_empty) {
        return Err("prompt is empty".to_owned());
    }
    if sample.info.as_ref().is_some_and(|info| !info.is_object()) {
        return Err("info is no object".to_owned());
    }
    if sample.tools.as_ref().is_some_and(Vec::is_empty) {
        return Err("tools is empty".to_owned());
    }
    let Some(logprobs) = &sample.completion_logprobs else {
        return Ok(());
    };
    if let Some(ids) = &sample.completion_ids
        && ids.len() != logprobs.len()
    {
        return Err(format!(
            "completion_logprobs has {} values but completion_ids has {}",
            logprobs.len(),
            ids.len()
        ));
    }
    let in_range = |logprob: &f32| (f32::MIN..=LOGPROB_ROUNDING).contains(logprob);
    match logprobs.iter().position(|logprob| !in_range(logprob)) {
        Some(position) => Err(format!(
            "completion_logprobs[{position}] is {}, not the logarithm of a probability",
            logprobs[position]
        )),
        None => Ok(()),
    }
}

fn numbers(sample: &Sample) -> Checked {
    if sample.group_size == Some(0) {
        return Err("group_size is 0, but a group has at least one member".to_owned());
    }
    if sample.anchor_size == Some(0) {
        return Err("anchor_size is 0, but an anchor has at least one sample".to_owned());
    }
    match sample.group_std {
        Some(deviation) if deviation < 0.0 => Err(format!("group_std is {deviation}, below 0")),
        _ => Ok(()),
    }
}

/// The failure for a line that serde refused with `error`; names the sample and the field where it can.
fn diagnose(line: &Line, error: &serde_json::Error) -> Failure {
    let Ok(entries) = serde_json::from_str::<Entries>(&line.text) else {
        return line
            .failure(format!("not a JSON object: {}", without_line(error)))
            .hint(syntax_hint(&line.text, error));
    };
    let id = entries
        .0
        .iter()
        .find(|(key, _)| key == "id")
        .and_then(|(_, raw)| serde_json::from_str::<String>(raw.get()).ok());
    let place = id.map_or(String::new(), |id| format!("{id}: "));
    for (position, (key, raw)) in entries.0.iter().enumerate() {
        let known = key == "type" || key == "v" || Field::ALL.iter().any(|field| field.key() == key);
        if known && entries.0[..position].iter().any(|(other, _)| other == key) {
            return line.failure(format!("{place}duplicate key `{key}`"));
        }
        if let Err(cause) = alone(key, raw) {
            return line
                .failure(format!("{place}`{key}`: {cause}"))
                .hint("docs/stream-format.md has the type of each field, under Fields of a sample");
        }
    }
    line.failure(format!("{place}{}", without_line(error)))
}

/// The hint for text that is no JSON.
fn syntax_hint(text: &str, error: &serde_json::Error) -> &'static str {
    let rest = text.get(error.column().saturating_sub(1)..).unwrap_or_default().trim_start_matches('-');
    if ["NaN", "nan", "Inf", "inf"].iter().any(|word| rest.starts_with(word)) {
        "JSON has no NaN and no infinity: find where the number was lost; null says that a reward is not known"
    } else {
        "was the stream cut, or did two programs write to one file at once?"
    }
}

/// Reads one field as if it were the only one.
fn alone(key: &str, raw: &RawValue) -> Checked {
    if key == "type" || key == "v" {
        return Ok(());
    }
    let text = format!("{{\"type\":\"sample\",\"v\":1,{}:{}}}", serde_json::Value::from(key), raw.get());
    let outcome: std::result::Result<Sample, _> = serde_json::from_str(&text);
    outcome.map(|_| ()).map_err(|error| {
        let text = error.to_string();
        text.rsplit_once(" at line ").map_or(text.clone(), |(cause, _)| cause.to_owned())
    })
}

/// The keys and values of an object in order, repeated keys included.
pub(crate) struct Entries(pub(crate) Vec<(String, Box<RawValue>)>);

impl<'de> serde::Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Entries;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

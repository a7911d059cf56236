//! Evaluation: what held-out episodes say about a policy, how sure that is, and what it cost.
//!
//! It reads the streams that `rollout` writes and nothing else, so any way of choosing tasks, policies and sampling is
//! a command before it. Success is what a `jq` over the `episode` lines gives; what this adds is the interval, pass@k
//! and the tokens.

pub mod interval;
pub mod measure;
pub mod outcomes;
mod paired;
mod pass;
mod print;

use std::path::Path;

use record::failure::{Failure, Result};
use record::read::{Kind, Reader};
use record::sample::Sample;
use record::stage::note;
use record::stream::Stream;

use crate::arguments::{Evaluate, Format};
use crate::evaluate::outcomes::Environments;
use crate::stream;

/// One stream that was read.
struct Evaluated {
    name: String,
    step: Option<u64>,
    environments: Environments,
}

/// Reads the streams and prints what they come to.
///
/// # Errors
/// A bad or incomplete stream, or none that holds an episode (65); I/O (74).
pub fn run(arguments: &Evaluate) -> Result<()> {
    let mut streams = Vec::new();
    for path in &arguments.files {
        streams.push(file(path, arguments)?);
    }
    if streams.is_empty() {
        streams.push(read("stdin", Reader::stdin(), arguments)?);
    }
    let base = arguments.against.as_deref().map(|path| file(path, arguments)).transpose()?;
    if !arguments.quiet {
        streams.iter().chain(&base).for_each(remark);
    }
    match arguments.format {
        Format::Table => print::table(&streams, base.as_ref()),
        Format::Json => print::json(&streams, base.as_ref()),
        Format::Line => print::line(&streams),
    }
}

fn file(path: &Path, arguments: &Evaluate) -> Result<Evaluated> {
    let name = path.display().to_string();
    read(&name, Reader::new(&name, stream::open(path)?), arguments)
}

fn read<R: std::io::Read>(name: &str, mut reader: Reader<R>, arguments: &Evaluate) -> Result<Evaluated> {
    let mut whole = Stream::new("report", arguments.allow_incomplete);
    let mut environments = Environments::default();
    let mut step = None;
    while let Some(line) = reader.next()? {
        match line.kind {
            Kind::Sample => {
                let sample = Sample::parse(&line)?;
                whole.sample(&sample, &line)?;
                environments.sample(&sample);
            }
            Kind::End => whole.end(&line)?,
            _ => step = environments.take(&line)?.or(step),
        }
    }
    whole.whole().map_err(|failure| failure.at(name))?;
    environments.outcomes.retain(|_, outcomes| outcomes.episodes() > 0);
    if environments.outcomes.is_empty() {
        return Err(Failure::data(format!("{name}: the stream holds no episode"))
            .hint("an evaluation reads what rollout writes: envs tasks … --split test | rollout … --greedy | report evaluate"));
    }
    Ok(Evaluated { name: name.to_owned(), step, environments })
}

/// What a reader of the figures has to know and they do not say.
fn remark(stream: &Evaluated) {
    for (environment, outcomes) in &stream.environments.outcomes {
        let candidates = outcomes.widest_choice;
        if candidates > 1 {
            note(
                "report",
                format_args!(
                    "{}: {environment}: every turn was played with one of {candidates} candidates after they were \
                     scored, which no policy can do by itself; evaluate with rollout --greedy or --sampling parallel",
                    stream.name
                ),
            );
        }
        if outcomes.errors > 0 {
            let episodes = outcomes.episodes();
            note(
                "report",
                format_args!(
                    "{}: {environment}: {} of {episodes} episodes could not be scored and count as not solved",
                    stream.name, outcomes.errors
                ),
            );
        }
    }
}

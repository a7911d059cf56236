//! `report evaluate`: success on held-out tasks with its interval, pass@k, and the tokens it took.
//!
//! It reads only the streams of `rollout`, so tasks, policies and sampling are chosen by the command before
//! it. Success is what `jq` over the `episode` lines gives; this adds the interval, pass@k and the tokens.

pub mod interval;
pub mod measure;
pub mod print;

use std::path::Path;

use record::failure::{Failure, Result};
use record::line::End;
use record::read::{Kind, Reader};
use record::sample::Sample;
use record::stage::{note, printable};
use record::stream::Stream;
use serde_json::Value;

use crate::arguments::{Evaluate, ResultFormat};
use crate::run_directory;
use crate::run_summary::{ENDLESS, MANY_CUT};
use crate::stats::{AnswerCounts, Environments, ends_of};

pub struct Evaluated {
    name: String,
    environments: Environments,
}

/// Reads the streams and prints the result.
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
        streams.iter().chain(&base).for_each(print_notes);
    }
    match arguments.format {
        ResultFormat::Table => print::table(&streams, base.as_ref()),
        ResultFormat::Json => print::json(&streams, base.as_ref()),
        ResultFormat::Line => print::line(&streams),
    }
}

fn file(path: &Path, arguments: &Evaluate) -> Result<Evaluated> {
    let name = path.display().to_string();
    let input = run_directory::open_stream(path)?;
    read(&name, Reader::new(&name, input), arguments)
}

/// Names the file in a message about `stdin`, if the stream is a file.
fn named(mut failure: Failure, name: &str) -> Failure {
    match failure.message.strip_prefix("stdin ") {
        None => failure.at(name),
        Some(rest) => {
            failure.message = format!("{name} {rest}");
            failure
        }
    }
}

fn read<R: std::io::Read>(name: &str, mut reader: Reader<R>, arguments: &Evaluate) -> Result<Evaluated> {
    let mut stream = Stream::new("report", arguments.allow_incomplete);
    let mut environments = Environments::default();
    while let Some(line) = reader.next()? {
        let sample = (line.kind == Kind::Sample).then(|| Sample::parse(&line)).transpose()?;
        if let Some(sample) = &sample {
            stream.sample(sample, &line)?;
        } else if line.kind == Kind::End {
            stream.end(&line)?;
        }
        environments.take(&line, sample.as_ref())?;
    }
    stream.whole().map_err(|failure| named(failure, name))?;
    let played = |end: &End| end.counts.get("episodes").and_then(Value::as_u64);
    let expected = ends_of(stream.ends(), "rollout").map(played).sum::<Option<u64>>().unwrap_or_default();
    let episodes: u64 = environments.played().map(|(_, stats)| stats.episodes()).sum();
    if episodes < expected && !arguments.allow_incomplete {
        return Err(Failure::data(format!("{name}: {episodes} of the {expected} episodes that were played"))
            .hint("the stream was cut or filtered; --allow-incomplete accepts a partial stream"));
    }
    if environments.played().next().is_none() {
        return Err(Failure::data(format!("{name}: the stream holds no episode"))
            .hint("an evaluation reads what rollout writes: envs tasks … --split test | rollout … --greedy | report evaluate"));
    }
    Ok(Evaluated { name: name.to_owned(), environments })
}

/// Notes what the numbers do not say and their reader has to know.
fn print_notes(stream: &Evaluated) {
    for (environment, stats) in stream.environments.played() {
        let at = format!("{}: {environment}", stream.name);
        if stats.most_candidates > 1 {
            let candidates = stats.most_candidates;
            note(
                "report",
                format_args!(
                    "{at}: every turn was played with one of {candidates} candidates after they were scored, which no \
                     policy can do by itself; evaluate with rollout --greedy or --sampling parallel"
                ),
            );
        }
        if let Some(cut) = stats.cut().filter(|cut| *cut >= MANY_CUT) {
            let cause = match stats.solved() {
                _ if cut == 1.0 => format!(": {ENDLESS}"),
                0 => "; no task may be solved because of this: try a larger --max-tokens first".to_owned(),
                _ => ": try a larger --max-tokens first".to_owned(),
            };
            let share = |(agent, answers): (&String, &AnswerCounts)| {
                printable(&format!("{agent} {:.0} %", 100.0 * answers.cut_share())).to_string()
            };
            let shares: Vec<String> = stats.answers.iter().map(share).collect();
            let by_role = if shares.len() > 1 { format!(" ({})", shares.join(", ")) } else { String::new() };
            let percent = 100.0 * cut;
            note(
                "report",
                format_args!(
                    "{at}: {percent:.0} % of the answers were cut at the token limit{by_role}{cause}"
                ),
            );
        }
        if stats.errors > 0 {
            let (errors, episodes) = (stats.errors, stats.episodes());
            note(
                "report",
                format_args!(
                    "{at}: {errors} of {episodes} episodes could not be scored and count as not solved"
                ),
            );
        }
    }
}

//! `judge COMMAND`: a stage between `rollout` and `group` that asks a program of yours for a score of each sample.
//!
//! COMMAND is run once by `sh -c`. It reads one sample a line and answers each with one line: a number, or null where it
//! cannot judge. The answer becomes the sample's `judge`. Stages only add, so the `reward` stays as it is; how the
//! score counts is the next command's business, and stands in the pipeline for everyone to see:
//!
//! ```sh
//! … | rollout … | judge 'python3 judge.py' |
//!   jq -c 'if .type != "sample" then . elif .reward == null or .judge == null then .reward = null
//!          else .reward += 0.5 * .judge end' | group | advantage | …
//! ```
//!
//! Left out: several samples at a time. A judge that compares siblings is a stage with [`Decorate::key`], see `group`.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use clap::Parser;
use record::decorate::{self, Decorate, Flags, Group, Output, StageStats};
use record::failure::{Failure, Result};
use record::line::End;
use record::read::Line;
use record::sample::{Field, Sample};
use record::{splice, stage};
use serde_json::{Value, json};

/// Asks a program for a score of each sample: adds `judge`.
#[derive(Parser)]
#[command(name = "judge")]
struct Arguments {
    /// Reads a sample a line and answers each with a line: a number or null
    command: String,
    #[command(flatten)]
    flags: Flags,
}

struct Judge {
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Judge {
    fn start(command: &str) -> Result<Self> {
        let mut shell = Command::new("sh");
        let mut child = shell.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(questions), Some(answers)) => Ok(Judge { questions, answers: BufReader::new(answers) }),
            _ => Err(Failure::io("the judge has no pipes")),
        }
    }

    fn ask(&mut self, text: &str) -> Result<Option<f64>> {
        let mut answer = String::new();
        let asked = writeln!(self.questions, "{text}").and_then(|()| self.answers.read_line(&mut answer));
        match (asked, serde_json::from_str(&answer)) {
            (Ok(_), Ok(score)) => Ok(score),
            (Ok(0) | Err(_), _) => Err(Failure::work("the judge ended before it answered")),
            _ => Err(Failure::work(format!(
                "the judge answered `{}`, not a number or null",
                answer.trim_end()
            ))),
        }
    }
}

impl Decorate for Judge {
    type Data = ();

    fn require(&self, sample: &Sample, line: &Line) -> Result<()> {
        sample.require(line, &[Field::Prompt, Field::Completion])
    }

    fn join(&mut self, _group: &Group<()>, _sample: Sample, _line: &Line) -> Result<()> {
        Ok(())
    }

    fn decorate(&mut self, group: Group<()>, output: &mut Output) -> Result<()> {
        for member in &group.members {
            let score = self.ask(&member.line.text).map_err(|failure| failure.at(member.name()))?;
            output.add(member, &[("judge", splice::json(&score))])?;
        }
        Ok(())
    }

    fn counts(&self, stats: &StageStats, _ends: &[End]) -> Value {
        json!({"samples": stats.samples, "samples_written": stats.written})
    }

    fn summary(&self, stats: &StageStats) -> String {
        format!("{} judged", stage::counted(stats.written, "sample"))
    }
}

fn main() -> ExitCode {
    stage::run("judge", || {
        let arguments: Arguments = stage::parse();
        decorate::run("judge", arguments.flags, Judge::start(&arguments.command)?)
    })
}

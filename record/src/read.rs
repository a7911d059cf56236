//! Lines in: the exact text, the line's number and its `type`. What a line says beyond that is parsed by who needs it.

use std::io::Read;
use std::sync::Arc;

use serde::Deserialize;

use crate::failure::{Failure, Result};

/// The version of the record that this build reads and writes.
pub const VERSION: u64 = 1;
/// The longest line that is read, in bytes; a longer one is a broken stream rather than a record.
pub const MAX_LINE: usize = 64 << 20;

/// What a line is, by its `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An instance of an environment to play.
    Task,
    /// One candidate of one agent at one turn.
    Sample,
    /// How one episode went.
    Episode,
    /// Why an episode could not be scored.
    Error,
    /// Samples that were rewarded jointly.
    Joint,
    /// What an update measured.
    Metrics,
    /// The end of a stream.
    End,
    /// A type that this build does not know: it passes through.
    Other,
}

impl Kind {
    fn of(name: &str) -> Kind {
        match name {
            "task" => Kind::Task,
            "sample" => Kind::Sample,
            "episode" => Kind::Episode,
            "error" => Kind::Error,
            "joint" => Kind::Joint,
            "metrics" => Kind::Metrics,
            "end" => Kind::End,
            _ => Kind::Other,
        }
    }
}

/// One line of a stream.
#[derive(Debug, Clone)]
pub struct Line {
    /// Counted from 1.
    pub number: u64,
    /// The line without its line feed.
    pub text: String,
    /// What it is.
    pub kind: Kind,
    source: Arc<str>,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<std::borrow::Cow<'a, str>>,
    v: Option<u64>,
}

impl Line {
    /// A line out of its text.
    ///
    /// # Errors
    /// No JSON object, no `type`, no `v`, or a `v` that this build does not read.
    pub fn parse(source: &str, number: u64, text: String) -> Result<Line> {
        Self::shared(Arc::from(source), number, text)
    }

    fn shared(source: Arc<str>, number: u64, text: String) -> Result<Line> {
        let kind = {
            let head: Head = serde_json::from_str(&text)
                .map_err(|error| Failure::data(format!("{source}:{number}: no record: {error}")))?;
            let Some(kind) = head.kind else {
                return Err(Failure::data(format!("{source}:{number}: no `type`")));
            };
            match head.v {
                Some(VERSION) => {}
                Some(v) => {
                    return Err(Failure::data(format!(
                        "{source}:{number}: line is v{v}, this program reads v{VERSION}"
                    )));
                }
                None => return Err(Failure::data(format!("{source}:{number}: no `v`"))),
            }
            Kind::of(&kind)
        };
        Ok(Line { number, text, kind, source })
    }

    /// Where the line is: `stdin:1042`.
    pub fn place(&self) -> String {
        format!("{}:{}", self.source, self.number)
    }
}

/// Reads a stream line by line.
pub struct Reader<R: Read> {
    input: std::io::BufReader<R>,
    source: Arc<str>,
    number: u64,
}

impl Reader<std::io::Stdin> {
    /// Reads stdin.
    pub fn stdin() -> Self {
        Self::new("stdin", std::io::stdin())
    }
}

impl<R: Read> Reader<R> {
    /// Reads `input`, called `name` in messages.
    pub fn new(name: &str, input: R) -> Self {
        Reader {
            input: std::io::BufReader::with_capacity(1 << 18, input),
            source: Arc::from(name),
            number: 0,
        }
    }

    /// The next line; none at the end of the input. Empty lines are skipped.
    ///
    /// # Errors
    /// A line that is no record (65), an input that cannot be read (74), an interruption.
    pub fn next(&mut self) -> Result<Option<Line>> {
        use std::io::BufRead;
        loop {
            if crate::stage::interrupted() {
                return Err(Failure::interrupted());
            }
            let mut bytes = Vec::new();
            let count = self
                .input
                .read_until(b'\n', &mut bytes)
                .map_err(|error| Failure::io(format!("reading {}: {error}", self.source)))?;
            if count == 0 {
                return Ok(None);
            }
            self.number += 1;
            if bytes.last() == Some(&b'\n') {
                bytes.pop();
            }
            if bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let text = String::from_utf8(bytes)
                .map_err(|_| Failure::data(format!("{}:{}: no UTF-8", self.source, self.number)))?;
            return Line::shared(Arc::clone(&self.source), self.number, text).map(Some);
        }
    }
}

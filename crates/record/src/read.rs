//! Reads lines: exact text, number and type. Callers parse the rest if they need it.
//!
//! One pass finds the line feed, one checks the UTF-8, and keys are read only until `type` and `v` are known. The rest of
//! a sample is checked by [`Sample::parse`](crate::sample::Sample::parse), which every stage calls; lines of other
//! types are checked completely here.

use std::fmt;
use std::io::{self, IsTerminal, Read};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::compressed::{Frames, MAGIC};
use crate::failure::{Failure, Result};
use crate::message::{name, note};
use crate::signal;
pub use crate::signal::{Stdin, stdin_within};

/// The version of the record that this build reads and writes.
pub const VERSION: u64 = 1;
/// How the stages begin a sample.
const SAMPLE: &str = "{\"type\":\"sample\",\"v\":1";
/// The longest line, in bytes without its line feed. A sample of 100,000 tokens takes about 3 MB.
pub const MAX_LINE: usize = 16 << 20;
/// Bytes asked of the input at once: four times what a Linux pipe holds.
const BUFFER: usize = 1 << 18;

/// The kind of a line, by its `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// An instance of an environment to play.
    Task,
    /// One candidate of one agent at one turn.
    Sample,
    /// One candidate of an agent that a server plays.
    Served,
    /// How one episode went.
    Episode,
    /// Why an episode could not be scored.
    Error,
    /// A joint action: samples that were rewarded together.
    Joint,
    /// Measurements of an update.
    Metrics,
    /// Results of a stream's episodes.
    Evaluation,
    /// A program's measurements of a stream.
    Measure,
    /// A stage's plan: the work and memory that it would take.
    Plan,
    /// The end of a stream.
    End,
    /// A type that this build does not know: it passes through.
    #[serde(other)]
    Other,
}

/// One line of a stream.
#[derive(Debug, Clone)]
pub struct Line {
    /// Counted from 1.
    pub number: u64,
    /// The line without its line feed.
    pub text: String,
    pub kind: Kind,
    source: Arc<str>,
}

impl Line {
    /// Makes a line from its text, as if read from `source`.
    ///
    /// # Errors
    /// 65: not a JSON object, no `type`, no `v`, or a `v` that this build does not read.
    pub fn parse(source: &str, number: u64, text: String) -> Result<Line> {
        let mut line = Line { number, text, kind: Kind::Other, source: Arc::from(source) };
        line.kind = kind(&line.text).map_err(|failure| failure.at(line.location()))?;
        Ok(line)
    }

    /// Where the line is: `stdin:1042`.
    pub fn location(&self) -> String {
        format!("{}:{}", self.source, self.number)
    }

    /// A failure at this line: `stdin:1042: cause` (65).
    pub fn failure(&self, cause: impl fmt::Display) -> Failure {
        Failure::data(format!("{}: {cause}", self.location()))
    }
}

/// Reads a stream line by line, through one buffer.
pub struct Reader<R: Read> {
    input: R,
    /// The decoder of compressed input; `None` until the format is known.
    frames: Option<Frames>,
    begun: bool,
    source: Arc<str>,
    number: u64,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Reader<Stdin> {
    /// Reads stdin; SIGINT and SIGTERM end a wait for input with [`Failure::interrupted`]. Who sits at a terminal is told
    /// that it is read.
    pub fn stdin() -> Self {
        if io::stdin().is_terminal() {
            note(
                name(),
                "waiting for JSON lines from this terminal: put a stage or `< FILE` before it, or end them with Ctrl-D; \
                 --help has examples",
            );
        }
        Self::new("stdin", Stdin)
    }
}

impl<R: Read> Reader<R> {
    /// Wraps the input, before anything has been read.
    pub fn map<S: Read>(self, around: impl FnOnce(R) -> S) -> Reader<S> {
        let Reader { input, frames, begun, source, number, buffer, start, end } = self;
        Reader { input: around(input), frames, begun, source, number, buffer, start, end }
    }

    /// Reads `input`, called `name` in messages.
    pub fn new(name: &str, input: R) -> Self {
        let buffer = vec![0; BUFFER];
        Reader {
            input,
            frames: None,
            begun: false,
            source: Arc::from(name),
            number: 0,
            buffer,
            start: 0,
            end: 0,
        }
    }

    /// The next line, or `None` at the end of the input. Blank lines are skipped, up to the length of the
    /// longest line.
    ///
    /// # Errors
    /// A line that is no record (65), an input that cannot be read (74), an interruption (130, 143).
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator of results would hide that a failure is final"
    )]
    pub fn next(&mut self) -> Result<Option<Line>> {
        let mut line =
            Line { number: 0, text: String::new(), kind: Kind::Other, source: Arc::clone(&self.source) };
        Ok(self.read_into(&mut line)?.then_some(line))
    }

    /// Reads the next line into `line`, reusing its memory; false at the end of the input.
    pub fn read_into(&mut self, line: &mut Line) -> Result<bool> {
        let mut bytes = std::mem::take(&mut line.text).into_bytes();
        let mut blank = 0;
        loop {
            bytes.clear();
            if !self.fill_line(&mut bytes)? {
                return Ok(false);
            }
            self.number += 1;
            if !bytes.iter().all(u8::is_ascii_whitespace) {
                break;
            }
            blank += bytes.len() + 1;
            if blank > MAX_LINE {
                let place = self.location();
                return Err(Failure::data(format!("{place}: {} MiB of blank lines", MAX_LINE >> 20))
                    .hint("is this a JSON Lines stream, one object a line?"));
            }
        }
        line.number = self.number;
        line.text = String::from_utf8(bytes).map_err(|error| {
            let position = error.utf8_error().valid_up_to() + 1;
            Failure::data(format!("{}: byte {position} is not UTF-8", self.location()))
                .hint("the record is UTF-8 JSON Lines; recode the file, or look for a program that writes binary to stdout")
        })?;
        line.kind = kind(&line.text).map_err(|failure| failure.at(self.location()))?;
        Ok(true)
    }

    /// The next line as raw bytes, for protocols that answer every line; `None` at the end of the input.
    ///
    /// # Errors
    /// A line that is too long (65), and errors of reading.
    pub fn next_bytes(&mut self) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let found = self.fill_line(&mut bytes)?;
        self.number += 1;
        Ok(found.then_some(bytes))
    }

    /// Calls `part` for the input, or if it is `resident` for each of its parts, which end with an `end` line: `part` reads
    /// no further than that. Lines are numbered anew in each.
    pub fn each_part(&mut self, resident: bool, mut part: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        if !resident {
            return part(self);
        }
        while self.begin_part()? {
            part(self)?;
        }
        Ok(())
    }

    /// Waits for a further part of the input, whose lines are numbered anew; false at the end of the input.
    pub fn begin_part(&mut self) -> Result<bool> {
        self.number = 0;
        if self.start == self.end {
            (self.start, self.end) = (0, self.read()?);
        }
        Ok(self.start < self.end)
    }

    /// Returns true if reading the next line would block: the moment to flush pending output.
    pub fn would_block(&self) -> bool {
        memchr::memchr(b'\n', &self.buffer[self.start..self.end]).is_none()
    }

    fn location(&self) -> String {
        format!("{}:{}", self.source, self.number)
    }

    /// Appends one line to `bytes`, without its line feed; false when the input is at its end.
    fn fill_line(&mut self, bytes: &mut Vec<u8>) -> Result<bool> {
        loop {
            let unread = &self.buffer[self.start..self.end];
            let found = memchr::memchr(b'\n', unread);
            let taken = found.unwrap_or(unread.len());
            if bytes.len() + taken > MAX_LINE {
                let place = format!("{}:{}", self.source, self.number + 1);
                return Err(Failure::data(format!("{place}: line is longer than {} MiB", MAX_LINE >> 20))
                    .hint("is this a JSON Lines stream, one object a line?"));
            }
            bytes.extend_from_slice(&unread[..taken]);
            self.start += taken + usize::from(found.is_some());
            if found.is_some() {
                return Ok(true);
            }
            (self.start, self.end) = (0, self.read()?);
            if self.end == 0 {
                return Ok(!bytes.is_empty());
            }
        }
    }

    /// Fills the buffer anew, decompressed where the input is.
    fn read(&mut self) -> Result<usize> {
        let Reader { input, frames, buffer, source, .. } = self;
        if !self.begun {
            self.begun = true;
            let mut count = receive(input, buffer, source)?;
            while count > 0 && count < MAGIC.len() && MAGIC.starts_with(&buffer[..count]) {
                match receive(input, &mut buffer[count..], source)? {
                    0 => break,
                    more => count += more,
                }
            }
            if !buffer[..count].starts_with(&MAGIC) {
                return Ok(count);
            }
            let begun = Frames::new(&buffer[..count]);
            *frames = Some(begun.map_err(|error| Failure::work(format!("reading {source}: {error}")))?);
        }
        match frames {
            Some(frames) => frames.read(source, buffer, |bytes| receive(input, bytes, source)),
            None => receive(input, buffer, source),
        }
    }
}

/// Reads available bytes of the input; returns 0 at its end.
fn receive(input: &mut impl Read, bytes: &mut [u8], source: &str) -> Result<usize> {
    loop {
        if signal::interrupted() {
            return Err(Failure::interrupted());
        }
        match input.read(bytes) {
            Ok(count) => return Ok(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::io(format!("reading {source}: {error}"))),
        }
    }
}

/// The type of the line in `text`. Always checks the version, and the JSON as far as the module header says.
fn kind(text: &str) -> Result<Kind> {
    if text.strip_prefix(SAMPLE).is_some_and(|rest| rest.starts_with(',')) {
        return Ok(Kind::Sample);
    }
    let mut head = Head { kind: None, version: None, enough: false, repeated: None };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let outcome = deserializer.deserialize_map(&mut head).and_then(|()| deserializer.end());
    if let (false, Err(error)) = (head.enough, &outcome) {
        return Err(Failure::data(format!("not a JSON object: {}", without_line(error)))
            .hint("every line is one JSON object; a stream that was cut ends in half a line, and a log line belongs on stderr"));
    }
    if let Some(key) = head.repeated {
        return Err(Failure::data(format!("duplicate key `{key}`")));
    }
    let Some(name) = head.kind else {
        return Err(
            Failure::data("no `type`").hint("every line names its type, for example \"type\":\"sample\"")
        );
    };
    let Ok(name) = serde_json::from_str::<String>(name.get()) else {
        return Err(Failure::data(format!("`type` is {}, not a text", name.get())));
    };
    check_version(head.version)?;
    Ok(Kind::deserialize(StrDeserializer::<Error>::new(&name)).unwrap_or(Kind::Other))
}

fn check_version(version: Option<&RawValue>) -> Result<()> {
    let Some(version) = version.map(RawValue::get) else {
        return Err(Failure::data("no `v`").hint(format!("every line says its version: \"v\":{VERSION}")));
    };
    match version.parse::<u64>() {
        Ok(VERSION) => Ok(()),
        Ok(newer) if newer > VERSION => {
            Err(Failure::data(format!("line is v{newer}, this program reads v{VERSION}"))
                .hint("upgrade this program, or make the stream again with the programs of one build"))
        }
        _ => Err(Failure::data(format!("`v` is {version}, not {VERSION}"))),
    }
}

/// A JSON error without the "at line 1" that would contradict the line number of the stream.
pub(crate) fn without_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((cause, _)) if error.column() > 0 => format!("{cause} at byte {}", error.column()),
        Some((cause, _)) => cause.to_owned(),
        None => text,
    }
}

/// The keys of a line, read until it is known to be a sample and its version is, else to the end.
struct Head<'a> {
    kind: Option<&'a RawValue>,
    version: Option<&'a RawValue>,
    enough: bool,
    repeated: Option<&'static str>,
}

impl<'de> Visitor<'de> for &mut Head<'de> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        while let Some(key) = map.next_key::<Key>()? {
            let (slot, name) = match key {
                Key::Type => (&mut self.kind, "type"),
                Key::Version => (&mut self.version, "v"),
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            if slot.replace(map.next_value()?).is_some() {
                self.repeated = Some(name);
            }
            let is_sample = self.kind.is_some_and(|kind| kind.get() == "\"sample\"");
            if is_sample && self.version.is_some() {
                self.enough = true;
                return Ok(());
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
enum Key {
    #[serde(rename = "type")]
    Type,
    #[serde(rename = "v")]
    Version,
    #[serde(other)]
    Other,
}

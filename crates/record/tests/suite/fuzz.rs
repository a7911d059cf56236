//! Runs every reader of the record on mutated streams. No reader may panic or work without bound, and a
//! refusal must be exit 65 and one line without control characters.
//!
//! The corpus is the golden stream and `corpus/`, where a line that once failed is kept. Mutations come from
//! a fixed seed, so a failure repeats. `TROUPE_FUZZ_SECONDS` (default 2) says how long, `TROUPE_SEED` which
//! streams; a panic names its round.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use record::failure::{DATA, Failure, Result};
use record::line::{self, End, Episode, ErrorLine, Metrics, Task};
use record::philox::{Draws, Part, Stream as RandomStream};
use record::read::{Kind, Line, Reader};
use record::sample::Sample;
use record::splice::{json, splice};
use record::stage::printable;
use record::stream::Stream;
use record::write::Writer;
use serde_json::Map;
use troupe_tests::storm;

/// What a mutation may insert: what the readers look for, and what other parsers trip over.
const TOKENS: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\u0000",
    "\\ud800",
    "\n",
    "\r",
    "\0",
    "\u{1b}[2J",
    "null",
    "true",
    "-0.0",
    "1e999",
    "18446744073709551616",
    "\"type\":\"end\",",
    "\"v\":1,",
    "\"ok\":false,",
    "\"after\":[",
    "\"shard\":\"3/4\",",
    "\u{feff}",
];

/// The golden stream, and each line of `corpus/` as a separate stream.
fn corpus() -> Vec<Vec<u8>> {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let text = |path: &str| std::fs::read_to_string(tests.join(path)).expect("a file");
    let edges = text("corpus/edges.jsonl");
    let mut corpus = vec![text("golden/samples.jsonl").into_bytes()];
    corpus.extend(edges.lines().map(|line| format!("{line}\n").into_bytes()));
    corpus
}

fn mutate(draws: &mut Draws, corpus: &[Vec<u8>]) -> Vec<u8> {
    let pick = |draws: &mut Draws| draws.choose(corpus).expect("a corpus").clone();
    let mut bytes = pick(draws);
    for _ in 0..=draws.below(4) {
        let length = bytes.len() as u32;
        let (from, span) = (draws.below(length + 1) as usize, draws.below(64) as usize);
        let to = (from + span).min(bytes.len());
        match draws.below(6) {
            0 if from < bytes.len() => bytes[from] ^= 1 << draws.below(8),
            1 => drop(bytes.drain(from..to)),
            2 => {
                let again = bytes[from..to].to_vec();
                bytes.splice(from..from, again);
            }
            3 => {
                let other = pick(draws);
                let start = draws.below(other.len() as u32) as usize;
                bytes.splice(from..to, other[start..(start + span).min(other.len())].iter().copied());
            }
            4 => bytes.truncate(from.max(1)),
            _ => {
                let token = draws.choose(&TOKENS).expect("a token");
                bytes.splice(from..to.min(from + draws.below(2) as usize), token.bytes());
            }
        }
    }
    bytes
}

/// Reads a stream as a stage does, and as all stages together would.
fn read(bytes: &[u8]) -> Result<()> {
    let (mut reader, mut stream) =
        (Reader::new("fuzz", bytes), Stream::new("fuzz", false).every_shard().every_sample());
    let outcome = loop {
        match reader.next() {
            Ok(Some(line)) => match take(&mut stream, &line) {
                Ok(()) => {}
                refused => break refused,
            },
            Ok(None) => break Ok(()),
            Err(failure) => break Err(failure),
        }
    };
    let mut writer = Writer::new(Vec::new());
    let outcome = stream.close(&mut writer, outcome, Map::new(), BTreeMap::new());
    let written = String::from_utf8(writer.into_inner()?).expect("UTF-8");
    let end: End = line::parse(&Line::parse("end", 1, written.trim_end().to_owned())?)?;
    assert_eq!(
        (end.ok, end.error),
        (outcome.is_ok(), outcome.as_ref().err().map(|failure| failure.message.clone()))
    );
    outcome
}

fn take(stream: &mut Stream, line: &Line) -> Result<()> {
    match line.kind {
        Kind::Sample => {
            let sample = Sample::parse(line)?;
            stream.sample(&sample, line)?;
            if let Ok(decorated) = splice(&line.text, &[("fuzz", json("\u{1b}")?)]) {
                let decorated = Line::parse("spliced", line.number, decorated)?;
                assert_eq!(Sample::parse(&decorated)?, sample, "splicing changed the sample");
            }
        }
        Kind::End => {
            stream.end(line)?;
            stream.ends().iter().for_each(|end| drop(end.dropped_groups()));
        }
        Kind::Task => drop(line::parse::<Task>(line)?),
        Kind::Episode => drop(line::parse::<Episode>(line)?),
        Kind::Error => drop(line::parse::<ErrorLine>(line)?),
        Kind::Joint => drop(stream.joint(line)?),
        Kind::Metrics => drop(line::parse::<Metrics>(line)?),
        _ => {}
    }
    Ok(())
}

fn refusal_is_a_sentence(failure: &Failure) {
    assert_eq!(failure.code, DATA, "{failure:?}");
    for text in [Some(&failure.message), failure.hint.as_ref()].into_iter().flatten() {
        assert!(!printable(text).contains(char::is_control), "{text:?}");
    }
}

#[test]
fn no_stream_breaks_a_reader() {
    let time = storm::fuzz_time().unwrap_or(Duration::from_secs(2));
    let (corpus, until) = (corpus(), Instant::now() + time);
    let (mut rounds, mut refused) = (0_u64, 0_u64);
    while Instant::now() < until {
        let name = [Part::Text("fuzz"), Part::Number(storm::seed())];
        let mut draws = Draws::new(RandomStream::named(rounds, &name));
        let bytes = mutate(&mut draws, &corpus);
        let started = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| read(&bytes)));
        let shown = || format!("round {rounds}:\n{}", String::from_utf8_lossy(&bytes));
        let outcome = outcome.unwrap_or_else(|_| panic!("{}", shown()));
        assert!(started.elapsed() < Duration::from_secs(5), "{}", shown());
        if let Err(failure) = outcome {
            refusal_is_a_sentence(&failure);
            refused += 1;
        }
        rounds += 1;
    }
    eprintln!("{rounds} streams, {refused} refused");
    assert!(rounds > 100 && refused > rounds / 4, "{rounds} streams, {refused} refused");
}

#[test]
fn every_stream_of_the_corpus_is_read() {
    for bytes in corpus() {
        if let Err(failure) = read(&bytes) {
            refusal_is_a_sentence(&failure);
        }
    }
}

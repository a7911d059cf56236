//! What makes a stream whole, and what a writer and a reader refuse.

use std::collections::BTreeMap;
use std::io::{self, Write};

use record::failure::{DATA, DONE, Failure, IO, Result};
use record::line::{self, End, Episode, ErrorLine, Task};
use record::read::{Kind, Line, MAX_LINE, Reader};
use record::sample::{Rewards, Sample};
use record::stream::Stream;
use record::write::Writer;
use serde_json::{Map, json};

fn line(text: &str) -> Line {
    Line::parse("test", 1, text.to_owned()).expect("a line")
}

/// Feeds lines to a stream: samples as (step, shard), ends as JSON.
fn whole(samples: &[(u64, &str)], ends: &[&str], every_shard: bool) -> Result<()> {
    let mut stream = Stream::new("test", false);
    if every_shard {
        stream = stream.every_shard();
    }
    for (position, (step, shard)) in samples.iter().enumerate() {
        let sample = Sample {
            id: Some(position.to_string().into()),
            step: Some(*step),
            shard: Some((*shard).into()),
            ..Sample::default()
        };
        stream.sample(&sample, &line("{\"type\":\"sample\",\"v\":1}")).expect("a sample of its own");
    }
    for end in ends {
        stream.end(&line(end)).expect("an end");
    }
    stream.whole()
}

fn end(fields: &str) -> String {
    format!("{{\"type\":\"end\",\"v\":1,\"stage\":\"rollout\",\"ok\":true{fields}}}")
}

#[test]
fn an_end_covers_the_shards_that_it_was_made_from() {
    let (first, second, all) = (end(",\"shard\":\"0/2\""), end(",\"shard\":\"1/2\""), end(""));
    let joined = end(&format!(",\"after\":[{first},{second}]"));
    let after_envs = end(&format!(",\"shard\":\"0/2\",\"after\":[{all}]"));
    let both = [(3, "0/2"), (3, "1/2")];
    assert_eq!(whole(&both, &[&first, &second], true), Ok(()));
    assert_eq!(whole(&both, &[&joined], true), Ok(()));
    assert_eq!(whole(&both, &[&all], true), Ok(()));
    assert_eq!(whole(&both[..1], &[&after_envs], false), Ok(()));
    for (samples, ends, every_shard) in
        [(&both[..], [&first], false), (&both[..], [&after_envs], false), (&both[..1], [&first], true)]
    {
        let failure = whole(samples, &ends.map(String::as_str), every_shard).expect_err("a shard is missing");
        assert_eq!(failure.code, DATA);
        assert!(failure.message.contains("shard 1/2"), "{failure}");
    }
}

#[test]
fn an_end_speaks_for_its_step() {
    let failure =
        whole(&[(3, "0/1"), (4, "0/1")], &[&end(",\"step\":3")], false).expect_err("step 4 has no end");
    assert!(failure.message.contains("step 4"), "{failure}");
    assert_eq!(whole(&[(3, "0/1"), (4, "0/1")], &[&end("")], false), Ok(()));
}

fn line_of_a_failure() -> String {
    end("").replace("\"ok\":true", "\"ok\":false")
}

#[test]
fn a_stage_closes_its_stream_with_the_reason() {
    let close = |outcome: Result<()>, ends: &[String]| {
        let mut stream = Stream::new("test", false);
        for text in ends {
            stream.end(&line(text)).expect("an end");
        }
        let mut writer = Writer::new(Vec::new());
        let result = stream.close(&mut writer, outcome, Map::new(), BTreeMap::new());
        (result, String::from_utf8(writer.into_inner().expect("written")).expect("text"))
    };
    let (result, text) = close(Ok(()), &[end(",\"step\":3,\"shard\":\"0/1\"")]);
    assert_eq!(result, Ok(()));
    let written: End = line::parse(&line(text.trim_end())).expect("an end");
    assert!(written.ok && written.error.is_none());
    assert_eq!((written.step, written.shard.as_deref(), written.after.len()), (Some(3), Some("0/1"), 1));

    let (result, text) = close(Err(Failure::data("stdin:3: bad")), &[]);
    assert_eq!(result.expect_err("it failed").message, "stdin:3: bad");
    let written: End = line::parse(&line(text.trim_end())).expect("an end");
    assert_eq!((written.ok, written.error.as_deref()), (false, Some("stdin:3: bad")));

    // A stage that went well, of a stream that did not.
    for ends in [&[][..], &[line_of_a_failure()]] {
        let (result, text) = close(Ok(()), ends);
        assert_eq!(result.as_ref().map_err(|failure| failure.code), Err(DATA));
        let written: End = line::parse(&line(text.trim_end())).expect("an end");
        assert_eq!((written.ok, written.error), (false, result.err().map(|failure| failure.message)));
    }

    for quiet in [Failure::closed(), Failure::interrupted()] {
        let (result, text) = close(Err(quiet.clone()), &[end("")]);
        assert_eq!((result, text.as_str()), (Err(quiet), ""));
    }
}

#[test]
fn the_writer_refuses_nan_and_keeps_what_was_written_whole() {
    let mut writer = Writer::new(Vec::new());
    writer.raw("{\"a\":1}").expect("written");
    let sample = Sample { rewards: Some(Rewards { team: f64::NAN, local: 0.0 }), ..Sample::default() };
    let failure = writer.object(&sample).expect_err("a NaN");
    assert_eq!(failure.code, DATA);
    assert_eq!(failure.message, "rewards: team: NaN cannot be written in a record");
    let sample = Sample { completion_logprobs: Some(vec![-0.5, f32::NEG_INFINITY]), ..Sample::default() };
    assert_eq!(writer.object(&sample).expect_err("an infinity").code, DATA);
    let no_text = BTreeMap::from([(vec![1], 2)]);
    assert_eq!(writer.object(&no_text).expect_err("a key that is no text").code, DATA);
    writer.object(&Sample { reward: Some(None), ..Sample::default() }).expect("null is no NaN");
    let written = String::from_utf8(writer.into_inner().expect("written")).expect("text");
    assert_eq!(written, "{\"a\":1}\n{\"type\":\"sample\",\"v\":1,\"reward\":null}\n");
}

#[test]
fn an_f32_is_written_as_an_f32() {
    let mut writer = Writer::new(Vec::new());
    let sample = Sample { completion_logprobs: Some(vec![-0.123_456_78, -1e-7, -0.1]), ..Sample::default() };
    writer.object(&sample).expect("written");
    let written = String::from_utf8(writer.into_inner().expect("written")).expect("text");
    assert!(written.contains("[-0.12345678,-1e-7,-0.1]"), "{written}");
}

/// An output that fails.
struct Broken(io::ErrorKind);

impl Write for Broken {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_went_away_is_no_error_and_a_full_disk_is_one() {
    for (kind, code) in [(io::ErrorKind::BrokenPipe, DONE), (io::ErrorKind::StorageFull, IO)] {
        let mut writer = Writer::new(Broken(kind));
        writer.raw("{}").expect("buffered");
        assert_eq!(writer.flush().expect_err("it fails").code, code);
    }
}

#[test]
fn a_line_has_a_longest_length() {
    let padding = " ".repeat(MAX_LINE - 21);
    let longest = format!("{{\"type\":\"note\",\"v\":1{padding}}}\n");
    assert_eq!(longest.len(), MAX_LINE + 1);
    let mut reader = Reader::new("test", longest.as_bytes());
    assert!(reader.next().expect("a record").is_some());
    let longer = longest.replace("\"v\"", "\"v\" ");
    let failure = Reader::new("test", longer.as_bytes()).next().expect_err("too long");
    assert_eq!((failure.code, failure.message.as_str()), (DATA, "test:1: line is longer than 16 MiB"));
}

#[test]
fn invalid_utf8_is_named_by_line_and_byte() {
    let mut reader = Reader::new("test", &b"{\"type\":\"note\",\"v\":1}\n{\"a\":\"\xff\"}\n"[..]);
    reader.next().expect("a record");
    assert_eq!(reader.next().expect_err("no text").message, "test:2: byte 7 is not UTF-8");
}

#[test]
fn absent_null_and_a_number_are_three_rewards() {
    let reward = |field: &str| {
        let text = format!("{{\"type\":\"sample\",\"v\":1{field}}}");
        let line = line(&text);
        let sample = Sample::parse(&line).expect("a sample");
        assert_eq!(serde_json::to_string(&sample).expect("JSON"), text);
        sample.reward
    };
    assert_eq!(reward(""), None);
    assert_eq!(reward(",\"reward\":null"), Some(None));
    assert_eq!(reward(",\"reward\":0.5"), Some(Some(0.5)));
}

#[test]
fn the_other_lines_write_their_type_first_and_keep_what_they_do_not_know() {
    let texts = [
        json!({"type": "task", "v": 1, "env": "e", "task": "t", "split": "train", "spec": {"n": 5}, "color": "red"}),
        json!({"type": "episode", "v": 1, "step": 1, "env": "e", "task": "t", "episode": "1.0", "success": false,
               "turns": 2, "reward": null, "stop": "error", "branch": 1}),
        json!({"type": "error", "v": 1, "episode": "1.0", "boundary": "env", "message": "m", "code": 3}),
    ];
    let again = |text: &str| -> serde_json::Result<String> {
        let line = line(text);
        match line.kind {
            Kind::Task => serde_json::to_string(&line::parse::<Task>(&line).expect("a task")),
            Kind::Episode => serde_json::to_string(&line::parse::<Episode>(&line).expect("an episode")),
            _ => serde_json::to_string(&line::parse::<ErrorLine>(&line).expect("an error")),
        }
    };
    for value in texts {
        let text = value.to_string();
        assert_eq!(again(&text).expect("JSON"), text);
    }
}

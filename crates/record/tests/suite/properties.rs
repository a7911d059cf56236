//! Properties of reading and splicing that hold for any input.

use std::io::Read;

use proptest::prelude::*;
use record::failure::DATA;
use record::read::{Line, Reader};
use record::sample::Sample;
use record::splice::{json, splice};

/// A sample with most fields, to be damaged.
const GOOD: &str = r#"{"type":"sample","v":1,"step":3,"shard":"0/1","episode":"3.0","turn":0,"agent":"a","branch":0,"branches":2,"id":"3.0/0/a/0","parent":null,"policy_version":"2:9f","sampling":{"temperature":1.0,"top_p":1.0,"top_k":0,"greedy":false,"seed":7},"prompt":[{"role":"user","content":"é\n"}],"prompt_ids":[1,2],"completion_ids":[3,4],"completion_logprobs":[-0.5,-1e-7],"finish_reason":"stop","reward":null}"#;

/// JSON values as text, in spellings that a parser and a writer would not keep.
fn value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?",
        "\"([a-z}{\\[\\],: é]|\\\\u00[0-7][0-9a-f]|\\\\\"|\\\\\\\\){0,12}\"",
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[ {} ]", items.join(" ,"))),
            proptest::collection::vec(("[a-f]{1,2}", inner), 0..4).prop_map(|entries| {
                let entries: Vec<String> =
                    entries.into_iter().map(|(key, value)| format!("\"{key}\" :{value}")).collect();
                format!("{{{}}}", entries.join(", "))
            }),
        ]
    })
}

/// An object as text, with `type` and `v` somewhere in it.
fn object() -> impl Strategy<Value = String> {
    (proptest::collection::btree_map("[a-k]{1,3}", value(), 0..6), any::<usize>()).prop_map(
        |(entries, place)| {
            let mut entries: Vec<String> =
                entries.into_iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
            entries.insert(place % (entries.len() + 1), "\"type\":\"note\"".to_owned());
            entries.insert(place % (entries.len() + 1), "\"v\" :1".to_owned());
            format!(" {{ {} }} ", entries.join(" , "))
        },
    )
}

/// Hands out a few bytes at a time.
struct Drip<'a> {
    bytes: &'a [u8],
    size: usize,
}

impl Read for Drip<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.size.min(self.bytes.len()).min(buffer.len());
        buffer[..count].copy_from_slice(&self.bytes[..count]);
        self.bytes = &self.bytes[count..];
        Ok(count)
    }
}

/// Reads everything there is; every failure is one of data and has a place.
fn read_all(bytes: &[u8]) {
    let mut reader = Reader::new("fuzz", bytes);
    loop {
        match reader.next() {
            Ok(None) => break,
            Ok(Some(line)) => {
                if let Err(failure) = Sample::parse(&line) {
                    assert_eq!(failure.code, DATA);
                    assert!(failure.message.starts_with("fuzz:"), "{failure}");
                    assert!(!failure.message.contains('\n'), "{failure}");
                }
                if let Ok(text) = splice(&line.text, &[("group", "\"g\"".to_owned())]) {
                    assert!(text.len() > line.text.len());
                }
            }
            Err(failure) => {
                assert_eq!(failure.code, DATA);
                assert!(failure.message.starts_with("fuzz:"), "{failure}");
            }
        }
    }
}

/// Numbers that a parser which rounds roughly gives back as their neighbors.
#[test]
fn large_numbers_come_back_to_the_last_digit() {
    for number in [1.605_738_531_819_898e227, -3.503_440_022_083_777e236] {
        let spliced = splice(r#" { "v" :1 , "type":"note" } "#, &[("zz", json(&number).expect("finite"))])
            .expect("spliced");
        let after: serde_json::Value = serde_json::from_str(&spliced).expect("JSON");
        assert_eq!(after["zz"], serde_json::Value::from(number), "{spliced}");
    }
}

proptest! {
    #[test]
    fn splicing_keeps_every_byte(text in object(), number in any::<f64>().prop_filter("finite", |number| number.is_finite())) {
        let line = Line::parse("test", 1, text.clone()).expect("a line");
        let spliced = splice(&line.text, &[("zz", json(&number).expect("finite")), ("zy", "\"}\"".to_owned())]).expect("spliced");
        let close = text.rfind('}').expect("an object");
        prop_assert_eq!(&spliced[..close], &text[..close]);
        prop_assert!(spliced.ends_with(&text[close..]));
        let mut after: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&spliced).expect("still JSON");
        prop_assert_eq!(after.remove("zz"), Some(serde_json::Value::from(number)));
        prop_assert_eq!(after.remove("zy"), Some(serde_json::Value::from("}")));
        let before: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).expect("JSON");
        prop_assert_eq!(after, before);
        prop_assert!(splice(&spliced, &[("zz", "1".to_owned())]).is_err());
    }

    #[test]
    fn lines_do_not_depend_on_how_they_arrive(texts in proptest::collection::vec(object(), 0..6), size in 1_usize..90) {
        let bytes = texts.iter().map(|text| format!("{text}\n")).collect::<String>().into_bytes();
        let mut reader = Reader::new("test", Drip { bytes: &bytes, size });
        for (position, text) in texts.iter().enumerate() {
            let line = reader.next().expect("a record").expect("a line");
            prop_assert_eq!(&line.text, text);
            prop_assert_eq!(line.number, position as u64 + 1);
        }
        prop_assert!(reader.next().expect("the end").is_none());
    }

    #[test]
    fn the_reader_survives_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read_all(&bytes);
    }

    #[test]
    fn the_reader_survives_a_damaged_sample(damage in proptest::collection::vec((0..GOOD.len(), any::<u8>()), 1..4), cut in 0..GOOD.len()) {
        let mut bytes = GOOD.as_bytes().to_vec();
        for (place, byte) in damage {
            bytes[place] = byte;
        }
        read_all(&bytes);
        read_all(&GOOD.as_bytes()[..cut]);
    }

    #[test]
    fn an_f32_reads_back_as_itself(bits in any::<u32>()) {
        let number = -f32::from_bits(bits).abs();
        prop_assume!(number.is_finite());
        let text = format!("{{\"type\":\"sample\",\"v\":1,\"completion_logprobs\":[{}]}}", json(&number).expect("finite"));
        let line = Line::parse("test", 1, text).expect("a line");
        let sample = Sample::parse(&line).expect("a sample");
        let read = sample.completion_logprobs.expect("there")[0];
        prop_assert_eq!(read.to_bits(), number.to_bits(), "{} became {}", number, read);
    }

    #[test]
    fn an_f64_reads_back_as_itself(number in any::<f64>().prop_filter("finite", |number| number.is_finite())) {
        let read: f64 = serde_json::from_str(&json(&number).expect("finite")).expect("a number");
        prop_assert_eq!(read.to_bits(), number.to_bits(), "{} became {}", number, read);
    }
}

#[test]
fn the_good_sample_is_good() {
    let line = Line::parse("test", 1, GOOD.to_owned()).expect("a line");
    Sample::parse(&line).expect("a sample");
}

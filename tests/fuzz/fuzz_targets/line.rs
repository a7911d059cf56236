//! Reads any bytes as a stream: no panic, every refusal is exit 65 and names a line, and accepted streams can
//! be decorated and read again.
//!
//! `cargo install cargo-fuzz`, then `cargo +nightly fuzz run --fuzz-dir tests/fuzz line`. Check that it compiles with
//! `cargo +nightly check` in `tests/fuzz`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use record::failure::DATA;
use record::read::{Kind, Line, Reader};
use record::sample::Sample;
use record::splice::splice;
use record::stream::Stream;

fuzz_target!(|bytes: &[u8]| {
    let mut reader = Reader::new("fuzz", bytes);
    let mut stream = Stream::new("fuzz", false);
    loop {
        let line = match reader.next() {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(failure) => {
                assert!(failure.code == DATA && failure.message.starts_with("fuzz:"), "{failure}");
                return;
            }
        };
        match line.kind {
            Kind::Sample => sample(&line, &mut stream),
            Kind::End => drop(stream.end(&line)),
            Kind::Joint => drop(stream.joint(&line)),
            _ => again(&line),
        }
    }
    drop(stream.whole());
});

fn sample(line: &Line, stream: &mut Stream) {
    match Sample::parse(line) {
        Ok(sample) => {
            drop(stream.sample(&sample, line));
            again(line);
        }
        Err(failure) => assert!(failure.code == DATA && failure.message.starts_with("fuzz:"), "{failure}"),
    }
}

/// A line that was accepted, decorated, is a line of the same kind.
fn again(line: &Line) {
    let Ok(text) = splice(&line.text, &[("an unlikely key", "1".to_owned())]) else { return };
    match Line::parse("fuzz", line.number, text) {
        Ok(decorated) => assert_eq!(decorated.kind, line.kind),
        Err(failure) => panic!("accepted, but not once decorated: {failure}"),
    }
}

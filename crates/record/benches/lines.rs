//! How fast lines are read, checked and decorated, in MB of JSON a CPU second: `cargo bench -p record --bench lines`.
//!
//! The stream is made here: samples of 1,024 prompt and 512 completion tokens. Each figure is the best of five.

use std::error::Error;
use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Write as _;

use record::philox::{Draws, Part, Stream};
use record::read::Reader;
use record::sample::Sample;
use record::splice;
use record::write::Writer;

fn main() -> Result<(), Box<dyn Error>> {
    let stream = stream(1000)?;
    let mut lines = Vec::new();
    let mut reader = Reader::new("bench", stream.as_bytes());
    while let Some(line) = reader.next()? {
        lines.push(line);
    }
    let mut report = std::io::stdout().lock();
    writeln!(report, "{} lines, {:.1} MB", lines.len(), stream.len() as f64 / 1e6)?;
    let mut measure = |name: &str, work: &mut dyn FnMut() -> record::failure::Result<()>| {
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let started = cpu_seconds();
            work()?;
            best = best.min(cpu_seconds() - started);
        }
        writeln!(report, "{name:<8} {:>6.0} MB/s", stream.len() as f64 / best / 1e6)?;
        Ok::<(), Box<dyn Error>>(())
    };
    measure("read", &mut || {
        let mut reader = Reader::new("bench", stream.as_bytes());
        let mut line = lines[0].clone();
        while reader.read_into(&mut line)? {
            black_box(&line);
        }
        Ok(())
    })?;
    measure("check", &mut || {
        for line in &lines {
            black_box(Sample::parse(line)?);
        }
        Ok(())
    })?;
    measure("splice", &mut || {
        for line in &lines {
            black_box(splice::splice(&line.text, &[("group", "\"0/planner/0\"".to_owned())])?);
        }
        Ok(())
    })?;
    measure("all", &mut || {
        let mut reader = Reader::new("bench", stream.as_bytes());
        let mut writer = Writer::new(std::io::sink());
        let mut line = lines[0].clone();
        while reader.read_into(&mut line)? {
            black_box(Sample::parse(&line)?);
            writer.raw(&splice::splice(&line.text, &[("group", "\"0/planner/0\"".to_owned())])?)?;
        }
        writer.flush()
    })?;
    Ok(())
}

/// What this process has used of the processor: unlike wall time it does not depend on what else is running.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes nothing else.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn stream(samples: u32) -> Result<String, std::fmt::Error> {
    let mut draws = Draws::new(Stream::named(1, &[Part::Text("bench")]));
    let mut text = String::new();
    for sample in 0..samples {
        let ids = |count: usize, draws: &mut Draws| -> Vec<String> {
            (0..count).map(|_| draws.below(150_000).to_string()).collect()
        };
        let prompt = ids(1024, &mut draws).join(",");
        let completion = ids(512, &mut draws).join(",");
        let logprobs: Vec<String> = (0..512).map(|_| (-8.0 * draws.uniform()).to_string()).collect();
        writeln!(
            text,
            "{{\"type\":\"sample\",\"v\":1,\"step\":0,\"shard\":\"0/1\",\"episode\":\"0.{}\",\"turn\":0,\
             \"agent\":\"planner\",\"branch\":{},\"branches\":4,\"id\":\"{sample}\",\"prompt\":[{{\"role\":\"user\",\
             \"content\":\"{}\"}}],\"completion\":\"{}\",\"prompt_ids\":[{prompt}],\"completion_ids\":[{completion}],\
             \"completion_logprobs\":[{}],\"reward\":0.5}}",
            sample / 4,
            sample % 4,
            "move right \\n".repeat(400),
            "left \\n".repeat(200),
            logprobs.join(",")
        )?;
    }
    Ok(text)
}

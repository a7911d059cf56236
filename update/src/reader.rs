//! Reads all of stdin: each policy's samples, and the `end` lines.
//!
//! Training starts, and allocates, only after stdin closes: the stages before this one may still use the machine.

use std::io::{Read, Write};

use policy::ownership::Ownership;
use record::failure::Result;
use record::line::End;
use record::read::{Kind, Reader};
use record::sample::{Field, Sample};
use record::stream::{Stream, with_earlier};

use crate::output::Output;
use crate::samples::{Needs, Samples};

/// The samples of the stream, by policy.
#[derive(Default)]
pub struct SampleReader {
    /// The samples of each policy, in the order of [`Ownership::owners`].
    pub samples: Vec<Samples>,
    /// Samples read.
    pub read: u64,
    /// Samples that no policy of this call owns.
    pub passed: u64,
    /// The agents of those, in order of first appearance.
    pub unowned: Vec<String>,
    /// Whether rollout says that it computed in f32.
    pub sampled_in_f32: bool,
}

/// Whether every rollout that these lines come from says that it computed in f32.
pub fn sampled_in_f32(ends: &[End]) -> bool {
    let mut dtypes = with_earlier(ends).into_iter().filter_map(|end| end.extra.get("dtype")).peekable();
    dtypes.peek().is_some() && dtypes.all(|dtype| dtype == "float32")
}

impl SampleReader {
    /// A reader that has read nothing.
    pub fn new(ownership: &Ownership) -> SampleReader {
        let samples = ownership.owners().iter().map(|_| Samples::default()).collect();
        SampleReader { samples, ..SampleReader::default() }
    }

    /// Reads to the end of the input, or if it is `resident` of this part; `copy` receives every line but `end` lines unchanged.
    pub fn read<R: Read, W: Write>(
        &mut self,
        reader: &mut Reader<R>,
        stream: &mut Stream,
        ownership: &Ownership,
        needs: Needs,
        resident: bool,
        copy: Option<&mut Output<W>>,
    ) -> Result<()> {
        let mut copy = copy;
        let Some(mut line) = reader.next()? else { return Ok(()) };
        loop {
            match line.kind {
                Kind::End => stream.end(&line)?,
                Kind::Joint => drop(stream.joint(&line)?),
                Kind::Sample => {
                    let sample = Sample::parse(&line)?;
                    stream.sample(&sample, &line)?;
                    sample.require(&line, &[Field::Agent])?;
                    self.read += 1;
                    let agent = sample.agent.as_deref().unwrap_or_default();
                    match ownership.of(agent) {
                        Some(owner) => self.samples[owner].push(&sample, &line, needs)?,
                        None => self.pass(agent),
                    }
                }
                _ => {}
            }
            if let Some(output) = copy.as_deref_mut().filter(|_| line.kind != Kind::End) {
                output.raw(&line.text)?;
            }
            if resident && line.kind == Kind::End || !reader.read_into(&mut line)? {
                return Ok(());
            }
        }
    }

    /// Samples that a policy of this call owns.
    pub fn owned(&self) -> usize {
        self.samples.iter().map(|samples| samples.rows.len()).sum()
    }

    fn pass(&mut self, agent: &str) {
        self.passed += 1;
        if !self.unowned.iter().any(|known| known == agent) {
            self.unowned.push(agent.to_owned());
        }
    }
}

//! Reads all of stdin: each policy's samples, and the `end` lines.
//!
//! Training starts, and allocates, only after stdin closes: the stages before this one may still use the
//! machine. A learner in memory from the previous step may begin earlier ([`crate::overlap`]).

use std::cell::Cell;
use std::io::{self, Cursor, ErrorKind, Read, Write};
use std::rc::Rc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use policy::ownership::Ownership;
use record::failure::Result;
use record::line::End;
use record::read::{Kind, Reader};
use record::sample::{Field, Sample};
use record::stage::interrupted;
use record::stream::{Stream, with_earlier};

use crate::output::Output;
use crate::samples::Samples;
use crate::settings::Reading;

/// Bytes that a Linux pipe holds.
const PIPE: usize = 1 << 16;

/// The samples of the stream, by policy.
pub struct SampleReader<'a> {
    ownership: &'a Ownership,
    reading: Reading,
    /// The samples of each policy, in the order of [`Ownership::owners`].
    pub samples: Vec<Samples>,
    /// Samples read.
    pub read: u64,
    /// Samples that no policy of this call owns.
    pub passed: u64,
    /// The agents of those, in order of first appearance.
    pub unowned: Vec<String>,
    /// True if rollout says that it computed in f32.
    pub sampled_in_f32: bool,
}

/// Returns true if every rollout that these lines come from says that it computed in f32.
pub fn sampled_in_f32(ends: &[End]) -> bool {
    let mut dtypes = with_earlier(ends).into_iter().filter_map(|end| end.extra.get("dtype")).peekable();
    dtypes.peek().is_some() && dtypes.all(|dtype| dtype == "float32")
}

impl SampleReader<'_> {
    /// A reader that has read nothing.
    pub fn new(ownership: &Ownership, reading: Reading) -> SampleReader<'_> {
        let samples = ownership.owners().iter().map(|_| Samples::default()).collect();
        let (read, passed, unowned, sampled_in_f32) = (0, 0, Vec::new(), false);
        SampleReader { ownership, reading, samples, read, passed, unowned, sampled_in_f32 }
    }

    /// Reads to the end of the input, or of this part of it; `copy` receives every line but `end` lines unchanged.
    /// `waiting` is called with all samples so far before the input is waited for.
    pub fn read<R: Read, W: Write>(
        &mut self,
        reader: &mut Reader<R>,
        stream: &mut Stream,
        mut copy: Option<&mut Output<W>>,
        mut waiting: impl FnMut(&[Samples]) -> Result<()>,
    ) -> Result<()> {
        let Reading { needs, in_parts, .. } = self.reading;
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
                    match self.ownership.of(agent) {
                        Some(owner) => self.samples[owner].push(&sample, &line, needs)?,
                        None => self.pass(agent),
                    }
                }
                Kind::Task => stream.task(),
                _ => {}
            }
            if let Some(output) = copy.as_deref_mut().filter(|_| line.kind != Kind::End) {
                output.raw(&line.text)?;
            }
            if in_parts && line.kind == Kind::End {
                return Ok(());
            }
            if reader.would_block() {
                waiting(&self.samples)?;
            }
            if !reader.read_into(&mut line)? {
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

/// An input that a thread reads as it comes: whoever writes it never waits, however long nothing is read here.
pub struct Unbounded {
    pieces: Receiver<Chunk>,
    piece: Cursor<Vec<u8>>,
    next: Option<Chunk>,
    arrival: Rc<Arrival>,
}

/// A piece of the input, and when it arrived.
type Chunk = (Instant, io::Result<Vec<u8>>);

/// The bytes of an [`Unbounded`] input that have arrived.
#[derive(Default)]
pub struct Arrival {
    /// When the last piece that was read arrived.
    pub last: Cell<Option<Instant>>,
    /// True if another part had arrived when this one was read.
    pub has_more: Cell<bool>,
}

impl Unbounded {
    /// Begins to read.
    pub fn new(mut input: impl Read + Send + 'static, arrival: Rc<Arrival>) -> io::Result<Unbounded> {
        let (sender, pieces) = mpsc::channel();
        let read_all = move || {
            let mut buffer = vec![0; PIPE];
            loop {
                let read = input.read(&mut buffer).map(|count| buffer[..count].to_vec());
                let is_last = match &read {
                    Ok(piece) => piece.is_empty(),
                    Err(error) => error.kind() != ErrorKind::Interrupted || interrupted(),
                };
                if sender.send((Instant::now(), read)).is_err() || is_last {
                    return;
                }
            }
        };
        thread::Builder::new().spawn(read_all)?;
        Ok(Unbounded { pieces, piece: Cursor::default(), next: None, arrival })
    }
}

impl Read for Unbounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.piece.position() == self.piece.get_ref().len() as u64 {
            // After the last there is no sender.
            let next = self.next.take().or_else(|| self.pieces.recv().ok());
            let Some((at, piece)) = next else { return Ok(0) };
            self.next = self.pieces.try_recv().ok();
            self.arrival.last.set(Some(at));
            self.arrival.has_more.set(self.next.is_some());
            self.piece = Cursor::new(piece?);
        }
        self.piece.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::pipe;

    #[test]
    fn nobody_waits_to_write_what_is_not_read_yet() {
        let (input, mut output) = pipe().unwrap();
        let mut unbounded = Unbounded::new(input, Rc::default()).unwrap();
        let sent: Vec<u8> = (0..20 * PIPE).map(|index| index as u8).collect();
        output.write_all(&sent).unwrap();
        drop(output);
        let mut received = Vec::new();
        unbounded.read_to_end(&mut received).unwrap();
        assert!(received == sent);
        assert_eq!(unbounded.read(&mut [0; 8]).unwrap(), 0, "the end stays the end");
    }

    #[test]
    fn it_knows_whether_there_is_more_than_what_is_being_read() {
        let (sender, pieces) = mpsc::channel();
        for piece in ["ab", "cd"] {
            sender.send((Instant::now(), Ok(piece.into()))).unwrap();
        }
        let arrival = Rc::<Arrival>::default();
        let piece = Cursor::default();
        let mut unbounded = Unbounded { pieces, piece, next: None, arrival: Rc::clone(&arrival) };
        let read: Vec<(u8, bool)> = (0..4)
            .map(|_| {
                let mut byte = [0];
                unbounded.read_exact(&mut byte).unwrap();
                (byte[0], arrival.has_more.get())
            })
            .collect();
        assert_eq!(read, [(b'a', true), (b'b', true), (b'c', false), (b'd', false)]);
    }

    #[test]
    fn read_errors_reach_the_caller() {
        struct Failing(Vec<ErrorKind>);
        impl Read for Failing {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(self.0.pop().map_or(ErrorKind::Other, |kind| kind).into())
            }
        }
        let failing = Failing(vec![ErrorKind::Interrupted]);
        let mut unbounded = Unbounded::new(failing, Rc::default()).unwrap();
        let kinds: Vec<ErrorKind> = (0..2).map(|_| unbounded.read(&mut [0]).unwrap_err().kind()).collect();
        assert_eq!(kinds, [ErrorKind::Interrupted, ErrorKind::Other]);
    }
}

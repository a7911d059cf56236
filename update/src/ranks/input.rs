//! Rank 0's input, which it hands on to all.

use std::io::{self, Read};
use std::time::Duration;

use record::read::stdin_within;

use super::Communicator;

/// How often rank 0 says that it is still waiting for input, so that its silence means something else.
const STILL_WAITING_EVERY: Duration = Duration::from_secs(20);
/// The report, sent in place of a length.
const STILL_WAITING: usize = usize::MAX;

/// Rank 0's input, for all.
pub struct Input<'a, R> {
    /// The processes.
    pub ranks: &'a dyn Communicator,
    /// Read by rank 0 only.
    pub input: R,
    pub(super) is_ready: fn(Duration) -> io::Result<bool>,
}

impl<'a, R> Input<'a, R> {
    /// What rank 0 reads from its stdin, as `input`, for all.
    pub fn of_stdin(ranks: &'a dyn Communicator, input: R) -> Input<'a, R> {
        Input { ranks, input, is_ready: stdin_within }
    }
}

impl<R: Read> Read for Input<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ranks.count() == 1 {
            return self.input.read(buffer);
        }
        loop {
            let mut length = 0;
            if self.ranks.rank() == 0 {
                length = match (self.is_ready)(STILL_WAITING_EVERY)? {
                    true => self.input.read(buffer)?,
                    false => STILL_WAITING,
                };
            }
            // The reader looks for an interruption itself.
            let interrupted = |_| io::Error::from(io::ErrorKind::Interrupted);
            let mut bytes = length.to_le_bytes();
            self.ranks.broadcast(0, &mut bytes).map_err(interrupted)?;
            length = usize::from_le_bytes(bytes);
            if length != STILL_WAITING {
                self.ranks.broadcast(0, &mut buffer[..length]).map_err(interrupted)?;
                return Ok(length);
            }
        }
    }
}

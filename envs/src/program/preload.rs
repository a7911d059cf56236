//! A Python that has imported modules and forks for each start of the program: most of a start is its imports.
//!
//! It gets a packet with stdin and stdout for each start, and tells when one has ended. Left out: modules that start threads when
//! they are imported, because a fork has none of them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, PipeReader, PipeWriter, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use record::failure::{Failure, Result};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg,
    socketpair,
};
use serde::Deserialize;
use serde_json::Value;

const SCRIPT: &str = include_str!("preload.py");

/// A process of a start.
pub struct Forked {
    pub id: u32,
    pub input: PipeWriter,
    pub output: PipeReader,
    /// Told when it has ended.
    pub ended: Receiver<ExitStatus>,
}

/// What the process of the modules tells.
#[derive(Deserialize)]
struct Told {
    pid: u32,
    ended: Option<i32>,
}

/// The process that has the modules.
pub struct Preloaded {
    socket: File,
    started: Receiver<(u32, Receiver<ExitStatus>)>,
    process: Child,
}

impl Preloaded {
    /// Starts `python`, a command without arguments, which imports `modules` for the program in `words`.
    ///
    /// # Errors
    /// It cannot be started: work.
    pub fn new(python: &mut Command, modules: &str, words: &[String]) -> Result<Preloaded> {
        let failure = |error: io::Error| Failure::work(format!("--preload {modules}: {error}"));
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (socket, other) = pair.map_err(|error| failure(error.into()))?;
        let socket = File::from(socket);
        let reader = socket.try_clone().map_err(failure)?;
        python.args(["-c", SCRIPT, modules]).args(words).stdin(other).stdout(Stdio::null());
        let process = python.spawn().map_err(failure)?;
        let (sender, started) = channel();
        thread::spawn(move || listen(reader, &sender));
        Ok(Preloaded { socket, started, process })
    }

    /// Starts the program with these variables.
    ///
    /// # Errors
    /// The process of the modules has ended, as it does if one cannot be imported: work.
    pub fn start(&self, variables: &Value) -> Result<Forked> {
        let failure = |error: io::Error| Failure::work(format!("--preload: {error}"));
        let (stdin, input) = io::pipe().map_err(failure)?;
        let (output, stdout) = io::pipe().map_err(failure)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let descriptors = [stdin.as_fd(), stdout.as_fd()];
        rights.push(SendAncillaryMessage::ScmRights(&descriptors));
        let message = variables.to_string();
        sendmsg(&self.socket, &[IoSlice::new(message.as_bytes())], &mut rights, SendFlags::NOSIGNAL)
            .map_err(|error| failure(error.into()))?;
        let (id, ended) = self.started.recv().map_err(|_| {
            Failure::work("--preload: the process of the modules has ended")
                .hint("can they be imported? see above")
        })?;
        Ok(Forked { id, input, output, ended })
    }
}

impl Drop for Preloaded {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Passes on what the process of the modules tells, until it ends.
fn listen(mut socket: File, started: &Sender<(u32, Receiver<ExitStatus>)>) {
    let (mut alive, mut buffer) = (HashMap::new(), [0; 256]);
    while let Ok(count @ 1..) = socket.read(&mut buffer) {
        let Ok(Told { pid, ended }) = serde_json::from_slice(&buffer[..count]) else { return };
        match ended {
            None => {
                let (sender, receiver) = channel();
                alive.insert(pid, sender);
                let _ = started.send((pid, receiver));
            }
            Some(status) => {
                let _ = alive.remove(&pid).map(|sender: Sender<_>| sender.send(ExitStatus::from_raw(status)));
            }
        }
    }
}

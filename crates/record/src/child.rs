//! The output of a child process.

use std::io::{self, Read};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

/// Runs a command without input to its end and returns its output.
///
/// [`Command::output`] panics when a read of the child's output fails; this returns the error.
///
/// # Errors
/// The command cannot be started, or its output cannot be read.
pub fn output(command: &mut Command) -> io::Result<Output> {
    wait_with_output(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// Waits for a child and returns the output of its pipes: [`Child::wait_with_output`] without its panics.
///
/// # Errors
/// The output cannot be read.
pub fn wait_with_output(mut child: Child) -> io::Result<Output> {
    drop(child.stdin.take());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // Read both at once: a child that fills one pipe waits for its reader.
    let outputs = thread::scope(|scope| {
        let stderr = thread::Builder::new().spawn_scoped(scope, || read(stderr))?;
        Ok::<_, io::Error>((
            read(stdout),
            stderr.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        ))
    });
    // Wait even if its output could not be read. Its pipes are closed by now, so it does not block on them.
    let status = child.wait()?;
    let (stdout, stderr) = outputs?;
    Ok(Output { status, stdout: stdout?, stderr: stderr? })
}

fn read(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn two_full_pipes_are_read() {
        let script = "head -c 300000 /dev/zero >&2; head -c 200000 /dev/zero; cat";
        let output = output(Command::new("sh").args(["-c", script])).unwrap();
        assert_eq!((output.stdout.len(), output.stderr.len()), (200_000, 300_000));
        assert!(output.status.success());
    }

    #[test]
    fn unreadable_output_is_an_error() {
        let mut child = Command::new("true").spawn().unwrap();
        // To read a folder fails.
        child.stdout = Some(OwnedFd::from(File::open("/").unwrap()).into());
        assert_eq!(wait_with_output(child).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }
}

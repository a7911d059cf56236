//! What is run, within which limits, and what came of it.
//!
//! Left out: expected outputs. Whoever asks for a run compares afterwards, outside.

/// What is done with a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// It is run as a script, `__name__` being `__main__`.
    Script,
    /// It is compiled and not run: exit code 0 if its syntax is right. No line of it runs, so it cannot pretend.
    Compile,
    /// It is run as a script; then the function of this name (or the method of a class `Solution`) is called with
    /// the arguments in `stdin`, a JSON array, and what it returns becomes [`Execution::result`], as JSON. The names of
    /// the module `typing` are there without an import, because the signatures that problems hand out use them so.
    Call(&'a str),
}

/// What a program may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Processor time in seconds, user and system, of all threads.
    pub cpu_seconds: f64,
    /// Time on the clock in seconds, for programs that wait. Generous, because a busy machine makes it pass faster:
    /// it is [`Limits::cpu_seconds`] that a slow program should meet.
    pub wall_seconds: f64,
    /// Address space in bytes of each process, beyond that of the bare interpreter.
    pub memory_bytes: u64,
    /// Processes at a time; 1 refuses to fork. Sixteen threads are free.
    pub processes: u32,
    /// Bytes of standard output, and of any file.
    pub output_bytes: u64,
    /// Bytes of all files in `/tmp` together.
    pub scratch_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            cpu_seconds: 4.0,
            wall_seconds: 30.0,
            memory_bytes: 256 << 20,
            processes: 1,
            output_bytes: 1 << 20,
            scratch_bytes: 16 << 20,
        }
    }
}

/// A Python program and its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Program<'a> {
    /// Python 3, run with the system's interpreter and standard library.
    pub source: &'a str,
    /// What is done with it.
    pub entry: Entry<'a>,
    /// Its standard input; for [`Entry::Call`] the arguments as a JSON array.
    pub stdin: &'a str,
    /// What it may use.
    pub limits: Limits,
}

impl<'a> Program<'a> {
    /// A Python script with the default limits.
    pub fn python(source: &'a str, stdin: &'a str) -> Self {
        Program { source, entry: Entry::Script, stdin, limits: Limits::default() }
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// By itself, with this exit code.
    Exited(i32),
    /// By this signal.
    Signal(i32),
    /// It used up its processor time.
    CpuTime,
    /// It used up its time on the clock.
    WallTime,
    /// It failed for want of memory: a label for people, taken from what it said, and never a success.
    Memory,
    /// It wrote as much as it may, or more.
    Output,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// Its standard output; bytes that are no UTF-8 are replaced.
    pub stdout: String,
    /// The last 4 KiB of its standard error.
    pub stderr: String,
    /// For [`Entry::Call`]: the value that the function returned, as JSON, unless there is none.
    pub result: Option<String>,
    /// How it ended.
    pub status: Status,
    /// Processor time in seconds, of all its processes.
    pub cpu_seconds: f64,
}

impl Execution {
    /// Whether it ended by itself with exit code 0.
    pub fn is_success(&self) -> bool {
        self.status == Status::Exited(0)
    }
}

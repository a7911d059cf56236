//! Programs, limits and executions.
//!
//! Left out: expected outputs. The caller compares them outside the sandbox.

/// How a program is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// Run as a script, with `__name__` set to `__main__`.
    Script,
    /// Compiled, not run: exit code 0 if the syntax is right.
    Compile,
    /// Run as a module, then the function of this name (or a method of a class `Solution`) is called with the
    /// arguments in `stdin`, a JSON array. Its return value becomes [`Execution::result`]. The names of the
    /// module `typing` are predefined, because signatures in problem statements use them without an import.
    Call(&'a str),
    /// [`Entry::Call`] with the leniency of LiveCodeBench's and APPS' graders: names of the standard library
    /// without imports, 50,000 nested calls, and integers of up to 50,000 digits.
    Solve(&'a str),
}

impl Entry<'_> {
    /// The function to call.
    pub fn function(&self) -> Option<&str> {
        match self {
            Entry::Script | Entry::Compile => None,
            Entry::Call(name) | Entry::Solve(name) => Some(name),
        }
    }
}

/// Resources that a program may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Processor time in seconds, user and system, of all threads.
    pub cpu_seconds: f64,
    /// Elapsed time in seconds, for programs that wait. Generous, because it passes faster on a busy machine:
    /// slow programs should hit [`Limits::cpu_seconds`] first.
    pub wall_seconds: f64,
    /// Address space in bytes, on top of the bare interpreter's. A thread's stack takes 8 MiB of it.
    pub memory_bytes: u64,
    /// Bytes of stdout, and of any file.
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
    pub entry: Entry<'a>,
    /// Its stdin; if a function is called, the arguments as a JSON array.
    pub stdin: &'a str,
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
    Signal(i32),
    /// It used up its processor time.
    CpuTime,
    /// It used up its wall time.
    WallTime,
    /// It ran out of memory. A label for people, inferred from the last line of stderr;
    /// never reported for a success.
    Memory,
    /// It reached the limit of its output.
    Output,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// Its stdout, with invalid UTF-8 replaced.
    pub stdout: String,
    /// The last 4 KiB of its stderr.
    pub stderr: String,
    /// The value that the function returned, as JSON.
    pub result: Option<String>,
    /// How it ended.
    pub status: Status,
    /// Processor time in seconds.
    pub cpu_seconds: f64,
}

impl Execution {
    /// Returns true if it ended by itself with exit code 0.
    pub fn is_success(&self) -> bool {
        self.status == Status::Exited(0)
    }
}

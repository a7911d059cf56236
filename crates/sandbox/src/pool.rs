//! The sandbox as callers see it: one worker per processor, started on demand, lent to one program at a time.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use record::failure::{Failure, Result};
use record::stage;

use super::filter;
use super::interpreter::Interpreter;
use super::rootfs::Root;
use super::worker::{Setup, Worker};
use super::{Execution, Program, Status};

/// How often a program is retried when workers break for reasons unrelated to it.
const ATTEMPTS: u32 = 3;

/// A pool of workers that run programs in sandboxes.
pub struct Sandbox {
    setup: Setup,
    description: String,
    most: usize,
    pool: Mutex<Pool>,
    returned: Condvar,
}

struct Pool {
    idle: Vec<Worker>,
    /// Number of workers, idle or lent.
    started: usize,
}

impl Sandbox {
    /// The sandbox of this process, created and tested at the first call, which describes its restrictions on
    /// stderr. After a failure the next call tries again.
    ///
    /// # Errors
    /// Something it needs is missing: unavailable, with a hint. Nothing is ever run without the restrictions.
    pub fn shared() -> Result<&'static Sandbox> {
        static SHARED: OnceLock<Sandbox> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sandbox) = SHARED.get() {
            return Ok(sandbox);
        }
        let sandbox = Sandbox::open(std::thread::available_parallelism().map_or(1, usize::from))?;
        stage::note("sandbox", sandbox.description());
        Ok(SHARED.get_or_init(|| sandbox))
    }

    /// A sandbox of at most `most` workers, the first of them started and tested.
    ///
    /// # Errors
    /// Something it needs is missing: unavailable, with a hint.
    pub fn open(most: usize) -> Result<Sandbox> {
        let interpreter = Interpreter::find()?;
        let version = interpreter.version_text();
        let setup = Setup { root: Root::plan(&interpreter)?, interpreter, filters: filter::programs()? };
        let first = Worker::start(&setup)?;
        let description = format!(
            "Python {version} behind own user, process, mount, network, IPC, host name and cgroup namespaces, a read-only \
             root, a system call allow list, no capabilities, no_new_privs, resource limits{}",
            if first.is_grouped() { ", a control group" } else { "" }
        );
        let pool = Mutex::new(Pool { idle: vec![first], started: 1 });
        Ok(Sandbox { setup, description, most: most.max(1), pool, returned: Condvar::new() })
    }

    /// Describes the interpreter and the restrictions in force.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Runs `program` to its end, waiting for a worker if all are lent.
    ///
    /// # Errors
    /// The sandbox itself fails (unavailable), or a signal asks to stop. A program's failure is not an
    /// error but an [`Execution`].
    pub fn run(&self, program: &Program<'_>) -> Result<Execution> {
        let mut last = Failure::unavailable("sandbox: no worker");
        for _ in 0..ATTEMPTS {
            let mut worker = self.borrow()?;
            let outcome = worker.run(program);
            if let Ok(Some(execution)) = outcome {
                self.lock().idle.push(worker);
                self.returned.notify_one();
                return Ok(execution);
            }
            let full = worker.was_full();
            drop(worker);
            self.forget();
            let status = match outcome {
                Err(failure) if failure.is_interruption() => return Err(failure),
                Err(_) if full => Status::Memory,
                Err(failure) => {
                    last = failure;
                    continue;
                }
                Ok(_) => Status::WallTime,
            };
            let (stdout, stderr) = (String::new(), String::new());
            return Ok(Execution { stdout, stderr, result: None, status, cpu_seconds: 0.0 });
        }
        Err(last)
    }

    fn borrow(&self) -> Result<Worker> {
        let mut pool = self.lock();
        loop {
            if let Some(worker) = pool.idle.pop() {
                return Ok(worker);
            }
            if pool.started < self.most {
                pool.started += 1;
                drop(pool);
                return Worker::start(&self.setup).inspect_err(|_| self.forget());
            }
            pool = self.returned.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts a worker as gone.
    fn forget(&self) {
        self.lock().started -= 1;
        self.returned.notify_one();
    }

    /// Ignores poisoning: every change under this lock is a single step, so a panic
    /// leaves the pool consistent.
    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

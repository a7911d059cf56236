//! The sandbox as callers see it: as many workers as processors, started as they are needed, lent to one program
//! at a time.

use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use record::failure::{Failure, Result};

use super::filter;
use super::interpreter::Interpreter;
use super::root::Root;
use super::worker::{Answer, Plan, Worker};
use super::{Execution, Program, Status};

/// How often a program is tried when workers break under it for reasons of their own.
const ATTEMPTS: u32 = 3;

/// Runs programs behind fences; see the module for which.
pub struct Sandbox {
    plan: Plan,
    description: String,
    most: usize,
    state: Mutex<Pool>,
    returned: Condvar,
}

#[derive(Default)]
struct Pool {
    idle: Vec<Worker>,
    /// Workers there are, idle or lent.
    started: usize,
}

impl Sandbox {
    /// The sandbox of this process, made and tested at the first call. Which fences stand is said once on stderr.
    ///
    /// # Errors
    /// Whatever is missing: unavailable, with a hint. Nothing is ever run without the fences.
    pub fn shared() -> Result<&'static Sandbox> {
        static SHARED: OnceLock<Result<Sandbox>> = OnceLock::new();
        let made = SHARED.get_or_init(|| {
            let most = std::thread::available_parallelism().map_or(1, usize::from);
            let sandbox = Sandbox::open(most)?;
            // A closed stderr must not stop the work.
            let _ = writeln!(std::io::stderr(), "sandbox: {}", sandbox.description());
            Ok(sandbox)
        });
        made.as_ref().map_err(Clone::clone)
    }

    /// A sandbox of at most `most` workers, the first of them started and tested.
    ///
    /// # Errors
    /// Whatever is missing: unavailable, with a hint.
    pub fn open(most: usize) -> Result<Sandbox> {
        let interpreter = Interpreter::find()?;
        let root = Root::plan(&interpreter)?;
        let filters = [filter::program(false)?, filter::program(true)?];
        let description = format!(
            "Python {} behind own user, process, mount, network, IPC, host name and cgroup namespaces, a read-only \
             root, a system call allow list, no capabilities, no_new_privs, resource limits",
            interpreter.version_text()
        );
        let plan = Plan { interpreter, root, filters };
        let worker = Worker::start(&plan)?;
        let state = Mutex::new(Pool { idle: vec![worker], started: 1 });
        Ok(Sandbox { plan, description, most: most.max(1), state, returned: Condvar::new() })
    }

    /// The interpreter and the fences that stand, in words.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Runs `program` to its end, waiting for a worker if all are lent.
    ///
    /// # Errors
    /// Only if the sandbox itself fails: unavailable. Whatever the program does is an [`Execution`].
    pub fn run(&self, program: &Program<'_>) -> Result<Execution> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let mut worker = self.borrow()?;
            match worker.run(program) {
                Answer::Ran(execution) => {
                    self.lock().idle.push(worker);
                    self.returned.notify_one();
                    return Ok(execution);
                }
                Answer::Stuck => {
                    self.give_up(worker);
                    return Ok(stuck());
                }
                Answer::Broken(failure) => {
                    self.give_up(worker);
                    last = Some(failure);
                }
            }
        }
        Err(last.unwrap_or_else(|| Failure::unavailable("sandbox: no worker")))
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
                return Worker::start(&self.plan).inspect_err(|_| self.forget());
            }
            pool = self.returned.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give_up(&self, worker: Worker) {
        drop(worker);
        self.forget();
    }

    fn forget(&self) {
        self.lock().started -= 1;
        self.returned.notify_one();
    }

    /// A thread that panicked while it held the lock left the pool whole: every change to it is one step.
    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Of a program that did not even die in time.
fn stuck() -> Execution {
    Execution {
        stdout: String::new(),
        stderr: String::new(),
        result: None,
        status: Status::WallTime,
        cpu_seconds: 0.0,
    }
}

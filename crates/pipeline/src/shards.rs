//! `troupe-pipeline shards N LAUNCHER THREADS ROLLOUT FLAG...`: runs N processes of `rollout`. Each plays every
//! N-th task of stdin and writes its own file, which is renamed once complete. So a retry, or the next
//! `pipeline.sh`, plays only the shards that failed or were killed. stdout is all shards in order.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use record::failure::{Failure, Result};

use crate::disk;
use crate::programs::{cannot_start, code_of};

/// Number of attempts per shard.
const TRIES: usize = 3;

struct ShardedStep<'a> {
    count: u64,
    is_by_slurm: bool,
    threads: u64,
    command: &'a [String],
    folder: PathBuf,
    step: String,
    tasks: PathBuf,
}

/// Runs the program.
pub fn run(arguments: &[String]) -> Result<()> {
    let step = std::env::var("STEP").ok().and_then(|step| step.parse::<u64>().ok());
    let (Some(run), Some(step), [count, launcher, threads, command @ ..]) =
        (std::env::var_os("RUN"), step, arguments)
    else {
        return Err(Failure::usage("shards N LAUNCHER THREADS ROLLOUT FLAG...")
            .hint("pipeline.sh --shards starts it, with $RUN and $STEP"));
    };
    let number = |text: &String| {
        text.parse::<u64>()
            .map_err(|_| Failure::usage(format!("{text}: not a number")).hint("pipeline.sh --shards N"))
    };
    let (count, threads) = (number(count)?, number(threads)?);
    let folder = Path::new(&run).join(format!("steps/{step:06}"));
    let tasks = folder.join(format!("shard-tasks-of-{count}.jsonl"));
    let deal = ShardedStep {
        count,
        is_by_slurm: launcher == "srun",
        threads,
        command,
        folder,
        step: step.to_string(),
        tasks,
    };
    deal.take_tasks()?;
    let outcomes = std::thread::scope(|scope| {
        let playing: Vec<_> = (0..count)
            .map(|shard| {
                scope.spawn({
                    let deal = &deal;
                    move || deal.play(shard)
                })
            })
            .collect();
        playing
            .into_iter()
            .map(|shard| shard.join().unwrap_or_else(|_| Err(Failure::work("a thread ended"))))
            .collect::<Vec<Result<()>>>()
    });
    outcomes.into_iter().collect::<Result<()>>()?;
    let mut output = io::stdout().lock();
    for shard in 0..count {
        let file = deal.file(shard);
        let mut reader = File::open(&file).map_err(|error| disk::failed("read", &file, &error))?;
        match io::copy(&mut reader, &mut output) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(Failure::closed()),
            Err(error) => return Err(record::stage::unwritten(&error)),
            Ok(_) => {}
        }
    }
    output.flush().map_err(|error| record::stage::unwritten(&error))
}

impl ShardedStep<'_> {
    fn file(&self, shard: u64) -> PathBuf {
        self.folder.join(format!("shard-{shard}-of-{}.jsonl", self.count))
    }

    /// Saves the tasks of stdin. Keeps completed shards only if they were played from the same tasks.
    fn take_tasks(&self) -> Result<()> {
        let mut tasks = Vec::new();
        io::stdin()
            .lock()
            .read_to_end(&mut tasks)
            .map_err(|error| Failure::io(format!("reading stdin: {error}")))?;
        if fs::read(&self.tasks).is_ok_and(|before| before == tasks) {
            return Ok(());
        }
        for shard in 0..self.count {
            disk::remove(&self.file(shard))?;
        }
        let new = self.tasks.with_extension("tmp");
        fs::write(&new, &tasks).map_err(|error| disk::failed("write", &new, &error))?;
        disk::sync(&new)?;
        disk::rename(&new, &self.tasks)
    }

    fn play(&self, shard: u64) -> Result<()> {
        let (file, mut code) = (self.file(shard), 0);
        if file.is_file() {
            return Ok(());
        }
        let name = format!("step {}: rollout --shard {shard}/{}", self.step, self.count);
        for attempt in 0..TRIES {
            if attempt > 0 {
                record::stage::note(
                    "pipeline.sh",
                    format!("{name} failed with exit code {code}, and is played again"),
                );
            }
            code = self.play_once(shard, &file.with_extension("tmp"))?;
            match code {
                0 => {
                    disk::sync(&file.with_extension("tmp"))?;
                    return disk::rename(&file.with_extension("tmp"), &file);
                }
                2 | 65 | 130 | 143 => break, // a retry would fail again, or the run was stopped
                _ => {}
            }
        }
        let mut failure = Failure::work(format!("{name} failed with exit code {code}"));
        failure.code = code;
        Err(failure)
    }

    fn play_once(&self, shard: u64, file: &Path) -> Result<u8> {
        let output = File::create(file).map_err(|error| disk::failed("write", file, &error))?;
        let mut command;
        if self.is_by_slurm {
            // The process opens its files on its node, because Slurm breaks long lines that it forwards.
            command = Command::new("srun");
            command.args(["--ntasks=1", "--exact", "--input=none", "--quiet", "bash", "-c"]);
            command.args(["exec \"${@:3}\" <\"$1\" >\"$2\"", "shard"]).arg(&self.tasks).arg(file);
            command.args(self.command).stdin(Stdio::null());
        } else {
            let tasks = File::open(&self.tasks).map_err(|error| disk::failed("read", &self.tasks, &error))?;
            let (program, flags) = self.command.split_first().ok_or_else(|| {
                Failure::usage("shards: no program").hint("shards N LAUNCHER THREADS ROLLOUT FLAG...")
            })?;
            command = Command::new(program);
            command.args(flags).stdin(tasks).stdout(output);
        }
        command.arg("--shard").arg(format!("{shard}/{}", self.count));
        if self.threads > 0 {
            command.arg("--threads").arg(self.threads.to_string());
        }
        if shard > 0 && !self.command.iter().any(|word| word == "--quiet") {
            command.arg("--quiet"); // the first shard reports progress for all
        }
        command.status().map(code_of).map_err(|error| cannot_start("rollout", &error))
    }
}

/// Removes a step's shard files, except for the current number of shards.
pub fn forget(folder: &Path, count: u64) -> Result<()> {
    let kept = format!("-of-{count}.jsonl");
    for name in disk::names(folder)? {
        if name.starts_with("shard-") && (count < 2 || !name.ends_with(&kept)) {
            disk::remove(&folder.join(name))?;
        }
    }
    Ok(())
}

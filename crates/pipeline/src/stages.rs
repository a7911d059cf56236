//! Writes the command line of each stage into a file that users can read, copy and run.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Stdio;

use record::child;
use record::failure::{Failure, Result};
use record::stage::choice;

use crate::checks::{Launcher, is_installed};
use crate::defaults;
use crate::disk;
use crate::environment::Acting;
use crate::inputs;
use crate::method;
use crate::programs::{Programs, cannot_start, code_of, silent};
use crate::quote::ShellLine;
use crate::replaced;
use crate::settings::Settings;
use crate::team::Team;
use crate::values::{ByAgent, Number, PolicyChoice};

/// The inputs of the stages' command lines.
#[derive(Debug)]
pub struct Plan<'a> {
    pub programs: &'a Programs,
    pub settings: &'a Settings,
    pub acting: &'a Acting,
    pub team: &'a Team,
    /// The run directory, absolute.
    pub run: &'a Path,
    /// The program that starts shards and ranks.
    pub launcher: Launcher,
    /// How often `--on-collapse halve` has halved the learning rates.
    pub halvings: i32,
}

/// The flags that `--flags rollout=…` also gives to evaluations: those about the environment, servers and this machine.
const OF_EVALUATIONS: [&str; 7] = [
    "--timeout",
    "--server-timeout",
    "--server-retries",
    "--max-error-rate",
    "--device-memory",
    "--isa",
    "--threads",
];

/// Cores per process when `processes` share this machine.
pub fn share_of_cores(processes: u64) -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    cores.div_ceil(processes)
}

impl Plan<'_> {
    fn program(&self, name: &str) -> ShellLine {
        ShellLine::new(self.programs.path_of(name))
    }

    /// Adds `--quiet` unless stderr is a terminal. There, stages take turns to show progress: `update`
    /// begins when `rollout` ends.
    fn watched(line: ShellLine) -> ShellLine {
        if std::io::stderr().is_terminal() { line } else { line.word("--quiet") }
    }

    /// `envs tasks` or `envs demo`.
    fn environment_program(&self, what: &str) -> ShellLine {
        let line = self.program("envs").word(what);
        match &self.settings.env_command {
            None => {
                let setting = |setting| inputs::setting(self.settings, self.run, setting);
                let settings: Vec<String> = self.settings.set.iter().map(setting).collect();
                line.word(&self.acting.env).flag_of_each("--set", &settings)
            }
            Some(command) => line.flag("--env-command", command),
        }
    }

    /// A name, or the run's copy of a file.
    fn workflow(&self) -> String {
        inputs::workflow(self.settings, self.run).unwrap_or_else(|| self.acting.workflow.clone())
    }

    /// Adds the flags common to all command lines of `rollout`.
    fn player(&self, line: ShellLine) -> ShellLine {
        line.flag_of_each("--policy", &self.team.players(self.run))
            .flag_if_any("--env-command", self.settings.env_command.as_ref())
            .flag_if_any("--workflow", Some(self.workflow()).filter(|name| !name.is_empty()))
            .flag_if_any("--turns", self.settings.turns)
            .flag_of_each("--max-tokens", &self.settings.max_tokens)
            .flag_of_each("--stop", &self.settings.stop)
            .computed("--step", "\"$STEP\"")
            .flag("--device", &self.settings.device)
            .flag_if_any("--dtype", self.settings.dtype.as_ref())
    }

    fn rollout(&self, line: ShellLine) -> ShellLine {
        let settings = self.settings;
        let line = self
            .player(line)
            .flag("--branches", settings.branches)
            .flag("--select", choice(&settings.select))
            .flag_if_any("--opponents", settings.opponents.as_ref())
            .flag_of_each("--temperature", &settings.temperature)
            .flag_of_each("--top-p", &settings.top_p)
            .flag_of_each("--top-k", &settings.top_k)
            .flag_of_each("--min-p", &settings.min_p)
            .flag("--seed", settings.seed());
        // One process writes a line every half minute; shards would each write one.
        let line = if settings.shards == 1 { line } else { Self::watched(line) };
        self.more("rollout", line)
    }

    /// Adds the method's flags and those of `--flags`.
    fn more(&self, stage: &str, line: ShellLine) -> ShellLine {
        line.words(method::of_stage(self.settings, stage, self.run)).words(self.settings.flags_of(stage))
    }

    fn update(&self, line: ShellLine) -> ShellLine {
        let settings = self.settings;
        let joined =
            |numbers: &[Number]| numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut line = line
            .flag_of_each("--policy", &self.team.learners(self.run))
            .flag("--optimizer", choice(&settings.optimizer))
            .flag_of_each("--lr", &self.rates())
            .flag("--lr-warmup", settings.lr_warmup)
            .flag_if_any("--betas", Some(joined(&settings.betas)).filter(|betas| betas != "0.9,0.95"))
            .flag("--minibatches", settings.minibatches)
            .flag_if_any("--clip", Some(joined(&settings.clip)).filter(|clip| clip != "0.2"))
            .flag_if_any("--parts", Some(settings.parts).filter(|parts| *parts != 1))
            .flag_if_any("--keep", Some(settings.keep).filter(|keep| *keep != 2));
        if settings.kl.0 != 0.0 {
            let references = self.team.references(settings, self.run);
            line = line.flag("--kl", settings.kl).flag_of_each("--reference", &references);
        }
        if settings.side_by_side {
            line = line.word("--side-by-side");
        }
        const ALLOW: &str = "--allow-truncated-sampling";
        if settings.is_truncated() && !settings.has_flag("update", ALLOW) {
            line = line.word(ALLOW); // it was asked for
        }
        line = line
            .flag("--seed", settings.seed())
            .flag("--device", self.training_device())
            .flag_if_any("--dtype", settings.dtype.as_ref());
        self.more("update", Self::watched(line))
    }

    /// The learning rates of the next step.
    pub fn rates(&self) -> Vec<ByAgent<Number>> {
        let mut rates = self.settings.lr.clone();
        rates.iter_mut().for_each(|rate| rate.value.0 *= 0.5_f64.powi(self.halvings));
        rates
    }

    /// One process trains on the first of several devices, ranks on one each.
    fn training_device(&self) -> &str {
        let all = &self.settings.device;
        match all.find([',', '-']) {
            Some(end) if self.settings.ranks == 1 => &all[..end],
            _ => all,
        }
    }

    /// `update`, started by `mpirun` or `srun` if there are several ranks.
    fn learner(&self) -> Result<ShellLine> {
        let ranks = self.settings.ranks;
        if ranks == 1 {
            return Ok(self.program("update"));
        }
        let program = if self.launcher == Launcher::Srun { "srun" } else { "mpirun" };
        if !is_installed(program) {
            return Err(Failure::unavailable(format!("{program} is not installed"))
                .hint("packages such as openmpi-bin and mpich have mpirun, slurm-client has srun"));
        }
        let update = self.programs.path_of("update-mpi");
        let line = ShellLine::new(program);
        Ok(match self.launcher {
            Launcher::Srun => {
                let kind = std::env::var("SLURM_MPI_TYPE").unwrap_or_else(|_| "pmix".to_owned());
                line.word(format!("--ntasks={ranks}"))
                    // `update` waits for the shards' samples, so it may share their cores.
                    .words(["--overlap", "--input=0", "--kill-on-bad-exit=1"])
                    .word(format!("--mpi={kind}"))
                    .word("--quiet")
                    .word(update)
            }
            Launcher::Mpirun => line.word("-n").word(ranks).word(update),
            Launcher::Local => {
                let line = line.word("--bind-to").word("none").word("-n").word(ranks).word(update);
                if self.settings.has_flag("update", "--threads") {
                    line
                } else {
                    line.flag("--threads", share_of_cores(ranks))
                }
            }
        })
    }

    /// `rollout`, or `troupe-pipeline shards` around it.
    fn dealer(&self) -> ShellLine {
        let shards = self.settings.shards;
        if shards == 1 {
            return self.program("rollout");
        }
        let line = self.program("troupe-pipeline").word("shards").word(shards);
        let line = line.word(if self.launcher == Launcher::Srun { "srun" } else { "local" });
        let threads = if self.launcher == Launcher::Srun || self.settings.has_flag("rollout", "--threads") {
            0
        } else {
            share_of_cores(shards)
        };
        line.word(threads).word(self.programs.path_of("rollout"))
    }

    fn training(&self, learner: ShellLine, dealer: ShellLine) -> BTreeMap<&'static str, ShellLine> {
        let settings = self.settings;
        let seed = format!("$(({} * 1000000 + STEP))", settings.seed());
        let tasks = self
            .environment_program("tasks")
            .flag("--split", "train")
            .flag("--count", settings.tasks)
            .computed("--seed", &seed);
        let quiet = |name: &str| self.more(name, self.program(name).word("--quiet"));
        BTreeMap::from([
            ("tasks", self.more("tasks", tasks)),
            ("rollout", self.rollout(dealer)),
            ("group", quiet("group")),
            ("advantage", quiet("advantage")),
            ("update", self.update(learner)),
        ])
    }

    /// Plays tasks of the test split greedily.
    fn evaluation(&self) -> [(&'static str, ShellLine); 2] {
        let tasks = self
            .environment_program("tasks")
            .flag("--split", "test")
            .flag("--count", self.settings.eval_tasks);
        let play = self.player(self.program("rollout")).flag("--temperature", 0);
        let play = play.words(self.settings.given_to("rollout", &OF_EVALUATIONS));
        [("test-tasks", tasks), ("test-rollout", play)]
    }

    /// Plays questions greedily, as the evaluation plays test tasks.
    pub fn asking(&self, questions: &[String]) -> [ShellLine; 2] {
        let tasks =
            self.environment_program("tasks").words(questions.iter().map(|text| format!("--ask={text}")));
        let play = self.player(self.program("rollout")).flag("--temperature", 0).word("--quiet");
        [tasks, play.words(self.settings.given_to("rollout", &OF_EVALUATIONS))]
    }

    /// Serves the policies, sampled as in training unless a call says otherwise.
    pub fn serving(&self, address: &str) -> ShellLine {
        let settings = self.settings;
        self.program("rollout")
            .flag("--serve", address)
            .flag_of_each("--policy", &self.team.players(self.run))
            .flag_of_each("--max-tokens", &settings.max_tokens)
            .flag_of_each("--stop", &settings.stop)
            .flag_of_each("--temperature", &settings.temperature)
            .flag_of_each("--top-p", &settings.top_p)
            .flag_of_each("--top-k", &settings.top_k)
            .flag_of_each("--min-p", &settings.min_p)
            .flag("--device", &settings.device)
            .flag_if_any("--dtype", settings.dtype.as_ref())
            .words(settings.given_to("rollout", &["--device-memory", "--isa", "--threads"]))
    }

    /// Trains on demonstrations, which teach the action format and deliberately contain
    /// mistakes for training to remove.
    fn warm_up(&self) -> [(&'static str, ShellLine); 3] {
        let settings = self.settings;
        let policy = self.run.join("warmup/policy").display().to_string();
        let demo = self
            .environment_program("demo")
            .flag_if_any("--workflow", Some(self.workflow()).filter(|name| !name.is_empty()))
            .flag_if_any(
                "--count",
                Some(defaults::demonstrations(settings.kind, settings.warmup))
                    .filter(|_| !settings.has_flag("demo", "--count")),
            )
            .flag("--seed", settings.seed());
        let encode = self.program("policy").word("encode").flag("--policy", &policy);
        let update = self.program("update").flag("--policy", &policy).flag("--objective", "nll");
        let update = defaults::warm_up(settings.kind)
            .filter(|(flag, _)| !settings.has_flag("warm-up", flag))
            .fold(update, |update, (flag, value)| update.flag(flag, value));
        let update = update
            .flag("--schedule", "cosine")
            .flag("--minibatches", settings.warmup)
            .flag("--seed", settings.seed()) // no --device: Muon runs on the CPU only
            .words(settings.flags_of("warm-up"));
        [("demo", demo.words(settings.flags_of("demo"))), ("encode", encode), ("warm-up", update)]
    }

    /// Returns true if the run has a warm-up.
    pub fn warms_up(&self) -> bool {
        self.team.source.is_empty() && self.settings.warmup > 0
    }

    /// Writes all command lines.
    pub fn write(&self, folder: &Path) -> Result<()> {
        disk::make(folder)?;
        for name in ["reward", "keep", "codes", "updates"] {
            disk::remove(&folder.join(name))?; // left by an earlier command with a judge, or with --resident
        }
        let mut lines = self.training(self.learner()?, self.dealer());
        lines.extend(self.evaluation());
        if self.warms_up() {
            lines.extend(self.warm_up());
        }
        for pair in self.settings.commands() {
            lines.insert(&pair.name, ShellLine::new("bash").word("-c").word(&pair.value));
        }
        let mut update = lines.remove("update").unwrap_or_default();
        if self.settings.resident {
            update = update.word("--resident").flag("--save-every", self.settings.save_every);
            let keep = self.program("troupe-pipeline").word("keep").word(self.run.display());
            lines.insert("keep", keep.computed("samples.jsonl", "\"$STEP\""));
            for name in ["rollout", "group", "advantage"] {
                let line = lines.remove(name).unwrap_or_default();
                lines.insert(name, line.word("--resident"));
            }
        }
        lines.insert("update", update);
        for (name, line) in lines {
            disk::write(&folder.join(name), &line.script())?;
        }
        Ok(())
    }

    /// Has every program check its command line without running, so that mistakes show before training.
    ///
    /// # Errors
    /// A stage refuses its command line; it has printed the cause.
    pub fn check(&self) -> Result<()> {
        let mut lines = self.training(self.program("update"), self.program("rollout"));
        lines.extend(self.evaluation());
        if self.warms_up() {
            lines.extend(self.warm_up());
        }
        for pair in self.settings.commands() {
            replaced::check(self.programs, &pair.name, &pair.value)?;
            lines.remove(pair.name.as_str());
        }
        if self.settings.policies == PolicyChoice::AdapterPerRole {
            let base = self.run.join("policies/base").display().to_string();
            let adapter = self.program("policy").word("init").word(self.run.join("warmup/policy").display());
            let adapter = adapter.flag("--from", base).flag("--adapter", &self.settings.adapter);
            lines.insert("adapter", adapter);
        }
        let start = |line: &ShellLine| {
            let mut shell = self.programs.command("bash");
            shell.args(["-c", &line.script(), "bash"]).env("STEP", "1").env("TROUPE_DRY_RUN", "1");
            shell.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
        };
        let started: Vec<_> = lines.values().map(start).collect();
        let mut refused = None;
        for child in started {
            let output = child.and_then(child::wait_with_output);
            let output = output.map_err(|error| cannot_start("bash", &error))?;
            let code = code_of(output.status);
            if code != 0 && refused.is_none() {
                // Show only the first complaint, since the other stages may repeat it.
                let _ = std::io::Write::write_all(&mut std::io::stderr(), &output.stderr);
                refused = Some(silent(code));
            }
        }
        refused.map_or(Ok(()), Err)
    }
}

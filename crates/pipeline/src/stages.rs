//! Writes the command line of each stage into a file that users can read, copy and run.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Stdio;

use record::failure::{Failure, Result};

use crate::checks::{Launcher, is_installed};
use crate::disk;
use crate::environment::Acting;
use crate::inputs;
use crate::method;
use crate::programs::{Programs, cannot_start, code_of, silent};
use crate::replaced;
use crate::settings::{PolicyChoice, STAGES, Settings};
use crate::team::Team;
use crate::words::ShellLine;

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
        match self.settings.text("env_command") {
            "" => {
                let line = line.word(&self.acting.env);
                let settings = self.settings.set.iter();
                settings.fold(line, |line, setting| {
                    line.flag("--set", inputs::setting(self.settings, self.run, setting))
                })
            }
            command => line.flag("--env-command", command),
        }
    }

    /// A name, or the run's copy of a file.
    fn workflow(&self) -> String {
        inputs::workflow(self.settings, self.run).unwrap_or_else(|| self.acting.workflow.clone())
    }

    /// Adds the flags common to all command lines of `rollout`.
    fn player(&self, line: ShellLine) -> ShellLine {
        let players = self.team.players(self.run);
        let line = players.iter().fold(line, |line, player| line.flag("--policy", player));
        let line = line
            .flag_if_any("--env-command", self.settings.text("env_command"))
            .flag_if_any("--workflow", &self.workflow())
            .flag_if_any("--turns", self.settings.text("turns"));
        let line = self.by_role(line, "max_tokens");
        let line = self.settings.stop.iter().fold(line, |line, text| line.flag("--stop", text));
        line.computed("--step", "\"$STEP\"")
            .flag("--device", self.settings.text("device"))
            .flag_if_any("--dtype", self.settings.text("dtype"))
    }

    /// A flag whose value may differ by agent, once for each of its words.
    fn by_role(&self, line: ShellLine, name: &str) -> ShellLine {
        let dashed = format!("--{}", name.replace('_', "-"));
        let words = self.settings.text(name).split(' ').filter(|word| !word.is_empty());
        words.fold(line, |line, word| line.flag(&dashed, word))
    }

    fn rollout(&self, line: ShellLine) -> ShellLine {
        let line = self
            .player(line)
            .flag("--branches", self.settings.text("branches"))
            .flag("--select", self.settings.text("select"))
            .flag_if_any("--opponents", self.settings.text("opponents"));
        let all = ["temperature", "top_p", "top_k", "min_p"];
        let line = all.into_iter().fold(line, |line, name| self.by_role(line, name));
        let line = line.flag("--seed", self.settings.text("seed"));
        // One process writes a line every half minute; shards would each write one.
        let line = if self.settings.number("shards") == 1 { line } else { Self::watched(line) };
        self.more("rollout", line)
    }

    /// Adds the method's flags and those of `--flags`.
    fn more(&self, stage: &str, line: ShellLine) -> ShellLine {
        let given = self.settings.flags.get(stage).map_or("", String::as_str);
        line.words(method::of_stage(self.settings, stage, self.run)).words(given.split_whitespace())
    }

    fn update(&self, line: ShellLine) -> ShellLine {
        let text = |name: &str| self.settings.text(name);
        let learners = self.team.learners(self.run);
        let line = learners.iter().fold(line, |line, learner| line.flag("--policy", learner));
        let mut line = line
            .flag("--optimizer", text("optimizer"))
            .flag("--lr", text("lr"))
            .flag("--warmup", text("lr_warmup"));
        if text("optimizer") != "sgd" || self.settings.is_given("betas") {
            line = line.flag("--betas", text("betas")); // SGD refuses --betas
        }
        line = line.flag("--weight-decay", 0).flag("--minibatches", text("minibatches"));
        for (name, of_its_own) in [("clip", "0.2"), ("parts", "1"), ("keep", "2")] {
            if text(name) != of_its_own {
                line = line.flag(&format!("--{name}"), text(name));
            }
        }
        if text("kl") != "0" {
            line = line.flag("--kl", text("kl"));
            let references = self.team.references(self.settings, self.run);
            line = references.iter().fold(line, |line, reference| line.flag("--reference", reference));
        }
        if self.settings.is_on("side_by_side") {
            line = line.word("--side-by-side");
        }
        const ALLOW: &str = "--allow-truncated-sampling";
        if self.settings.is_truncated() && !self.settings.has_flag("update", ALLOW) {
            line = line.word(ALLOW); // it was asked for
        }
        line = line
            .flag("--seed", text("seed"))
            .flag("--device", self.training_device())
            .flag_if_any("--dtype", text("dtype"));
        self.more("update", Self::watched(line))
    }

    /// One process trains on the first of several devices, ranks on one each.
    fn training_device(&self) -> &str {
        let all = self.settings.text("device");
        match all.find([',', '-']) {
            Some(end) if self.settings.number("ranks") == 1 => &all[..end],
            _ => all,
        }
    }

    /// `update`, started by `mpirun` or `srun` if there are several ranks.
    fn learner(&self) -> Result<ShellLine> {
        let ranks = self.settings.number("ranks");
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
        let shards = self.settings.number("shards");
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
        let seed = format!("$(({} * 1000000 + STEP))", settings.number("seed"));
        let tasks = self
            .environment_program("tasks")
            .flag("--split", "train")
            .flag("--count", settings.text("tasks"))
            .computed("--seed", &seed);
        let quiet = |name: &str| self.more(name, self.program(name).word("--quiet"));
        let mut lines = BTreeMap::from([
            ("tasks", self.more("tasks", tasks)),
            ("rollout", self.rollout(dealer)),
            ("group", quiet("group")),
            ("advantage", quiet("advantage")),
            ("update", self.update(learner)),
        ]);
        for (name, command) in &settings.stage {
            let known = STAGES.iter().chain(&["reward"]).find(|known| *known == name);
            if let Some(name) = known {
                lines.insert(name, ShellLine::new("bash").word("-c").word(command));
            }
        }
        lines
    }

    /// Plays tasks of the test split greedily.
    fn evaluation(&self) -> [(&'static str, ShellLine); 2] {
        let tasks = self
            .environment_program("tasks")
            .flag("--split", "test")
            .flag("--count", self.settings.text("eval_tasks"));
        let play = self.player(self.program("rollout")).word("--greedy");
        let play = play.words(self.settings.given_to("rollout", &OF_EVALUATIONS));
        [("test-tasks", tasks), ("test-rollout", play)]
    }

    /// Trains on demonstrations, which teach the action format and deliberately contain
    /// mistakes for training to remove.
    fn warm_up(&self) -> [(&'static str, ShellLine); 3] {
        let text = |name: &str| self.settings.text(name);
        let policy = self.run.join("warmup/policy").display().to_string();
        let count = self.settings.number("warmup") * self.settings.number("warmup_tasks");
        let demo = self
            .environment_program("demo")
            .flag_if_any("--workflow", &self.workflow())
            .flag("--count", count)
            .flag("--seed", text("seed"));
        let encode = self.program("policy").word("encode").flag("--policy", &policy);
        let update = self
            .program("update")
            .flag("--policy", &policy)
            .flag("--objective", "nll")
            .flag("--optimizer", text("warmup_optimizer"))
            .flag("--lr", text("warmup_lr"));
        let update = if text("warmup_optimizer") == "muon" {
            update.flag("--lr-other", text("warmup_lr_other"))
        } else {
            update
        };
        let update = update
            .flag("--schedule", "cosine")
            .flag("--warmup", text("warmup_lr_warmup"))
            .flag("--minibatches", text("warmup"))
            .flag("--seed", text("seed")); // no --device: Muon runs on the CPU only
        [("demo", demo), ("encode", encode), ("warm-up", update)]
    }

    /// Returns true if the run has a warm-up.
    pub fn warms_up(&self) -> bool {
        self.team.source.is_empty() && self.settings.number("warmup") > 0
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
        let mut update = lines.remove("update").unwrap_or_default();
        if self.settings.is_on("resident") {
            update = update.word("--resident").flag("--save-every", self.settings.text("save_every"));
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
        for (name, command) in &self.settings.stage {
            replaced::check(self.programs, name, command)?;
            lines.remove(name.as_str());
        }
        lines.extend(self.evaluation());
        if self.warms_up() {
            lines.extend(self.warm_up());
        }
        if self.settings.policies == PolicyChoice::AdapterPerRole {
            let base = self.run.join("policies/base").display().to_string();
            let adapter = self.program("policy").word("init").word(self.run.join("warmup/policy").display());
            let adapter = adapter.flag("--from", base).flag("--adapter", self.settings.text("adapter"));
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
            let output = child.and_then(std::process::Child::wait_with_output);
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

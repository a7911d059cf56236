//! `troupe-run`: the bookkeeping of `pipeline.sh`, which starts it. It reads the flags, holds the lock of the run, says which pipe of
//! the shell is next, and makes a step count once its pipe has ended well.

mod checks;
mod directory;
mod disk;
mod environment;
mod evaluation;
mod file;
mod flags;
mod held;
mod help;
mod keep;
mod kind;
mod make;
mod processes;
mod programs;
mod settings;
mod shards;
mod shell;
mod stages;
mod staying;
mod team;
mod train;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use record::failure::{Failure, Result};

use crate::directory::RunFiles;
use crate::environment::Acting;
use crate::programs::{Programs, code_of, silent};
use crate::settings::{PolicyChoice, Settings};
use crate::shell::{PRINTED, Place, Shell};
use crate::stages::Plan;
use crate::team::Team;
use crate::train::Training;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).map(std::ffi::OsString::into_string).collect();
    let arguments: std::result::Result<Vec<String>, _> = arguments.into_iter().collect();
    let outcome =
        match &arguments {
            Ok(words) => match words.split_first() {
                Some((part, words)) if part == "keep" => {
                    return record::stage::run("pipeline.sh", || keep::run(words));
                }
                Some((part, words)) if part == "shards" => shards::run(words),
                _ => pipeline(words),
            },
            Err(word) => Err(Failure::usage(format!("{}: not UTF-8", Path::new(word).display()))
                .hint("name files in UTF-8")),
        };
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    if !failure.message.is_empty() {
        record::stage::report("pipeline.sh", &failure);
    }
    ExitCode::from(failure.code)
}

fn pipeline(arguments: &[String]) -> Result<()> {
    let Some(given) = flags::parse(arguments)? else { return help::print() };
    let mut settings = Settings::new(&file::merge(given)?)?;
    let launcher = checks::check(&settings)?;
    processes::heed_signals()?;
    let mut programs = Programs::find()?;
    programs.set_up(&settings)?;
    if settings.is_on("setup") {
        return Ok(());
    }
    let acting = environment::ask(&programs, &mut settings)?;
    if settings.text("method") != "at-grpo" {
        settings.set_text("minibatches", "1");
    }
    if settings.text("max_tokens").is_empty() {
        settings.set_text("max_tokens", acting.max_tokens.to_string());
    }
    if settings.is_given("evaluate") {
        return evaluate_only(&programs, &settings, &acting, launcher);
    }
    let run = match settings.text("run") {
        "" => format!("runs/{}", acting.env),
        run => run.to_owned(),
    };
    if run.contains(char::is_control) {
        return Err(Failure::usage(format!("--run {run:?} has a control character"))
            .hint("a run is named in messages and in files of one line: choose a printable name"));
    }
    let path = absolute(Path::new(&run))?;
    let team = Team::new(&settings, &acting)?;
    let plan =
        Plan { programs: &programs, settings: &settings, acting: &acting, team: &team, run: &path, launcher };
    plan.check()?;
    let build = programs.build(settings.text("device"))?;
    train(plan, &build)
}

/// The path from the root of the file system; of one that goes up, what it leads to.
fn absolute(path: &Path) -> Result<PathBuf> {
    let goes_up = path.components().any(|part| part == std::path::Component::ParentDir);
    let found = if goes_up {
        path.canonicalize().or_else(|_| std::path::absolute(path))
    } else {
        std::path::absolute(path)
    };
    found.map_err(|error| disk::failed("read", path, &error))
}

fn train(plan: Plan<'_>, build: &str) -> Result<()> {
    let run = RunFiles::make(plan.run)?.with_policies(plan.team.policies());
    let lock = run.lock()?;
    disk::remove(&staying::drawn(run.path()))?; // of a run that was killed
    held::hold(run.path(), &held::values(plan.settings, plan.acting, build)?, &held::lines(plan.settings))?;
    processes::is_resumable(run.path());
    let stages = run.path().join("stages");
    plan.write(&stages)?;
    let place = Place { programs: plan.programs, run: plan.run, stages, lock: Some(lock) };
    let mut shell = Shell::start(&place)?;
    make::policies(&plan, &run, &mut shell)?;
    let mut run = run;
    let step = run.go_back()?;
    let path = run.path().display().to_string();
    Training::new(plan, place, run, shell, step).run()?;
    evaluation::say(&format!("the run is in {path}, its report in {path}/report.html"))
}

/// `--evaluate`: a stream, and no run.
fn evaluate_only(
    programs: &Programs,
    settings: &Settings,
    acting: &Acting,
    launcher: checks::Launcher,
) -> Result<()> {
    let PolicyChoice::Named(pairs) = &settings.policies else {
        return Err(
            Failure::usage("--evaluate needs --policies AGENT=DIR").hint("policies are played as they are")
        );
    };
    let folder = tempfile::tempdir().map_err(|error| Failure::io(format!("a temporary folder: {error}")))?;
    // They are played where they are, and not from a run.
    let served = pairs.iter().cloned().collect();
    let agents = pairs.iter().map(|(agent, _)| agent.clone()).collect();
    let team = Team { agents, served, ..Team::default() };
    let plan = Plan { programs, settings, acting, team: &team, run: folder.path(), launcher };
    plan.write(folder.path())?;
    let place = Place { programs, run: folder.path(), stages: folder.path().to_path_buf(), lock: None };
    let step = settings.number("evaluate");
    let status = place.start(&mut place.one_pipe(PRINTED, step))?.wait();
    let command = match settings.text("env_command") {
        "" => "envs",
        command => command,
    };
    let codes = place.codes();
    if codes.is_empty() {
        processes::wait_if_stopping();
        return Err(silent(status.map_or(1, code_of).max(1)));
    }
    let outcome = PRINTED.outcome(&codes, &format!("evaluation after step {step}"), command);
    if outcome.is_err() {
        processes::wait_if_stopping();
    }
    outcome
}

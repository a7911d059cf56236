//! `troupe-pipeline`: the bookkeeping behind `pipeline.sh`. It parses the flags, takes the run's lock, tells the
//! shell which pipe to run next, and commits a step once its pipe has succeeded.

mod ask;
mod checks;
mod claim;
mod collapse;
mod command_line;
mod completions;
mod cut;
mod defaults;
mod directory;
mod disk;
mod environment;
mod evaluation;
mod export;
mod file;
mod frozen_settings;
mod inputs;
mod keep;
mod kind;
mod make;
mod method;
mod mistakes;
mod model;
mod prepare;
mod processes;
mod programs;
mod queue;
mod quote;
mod rate;
mod replaced;
mod runs;
mod settings;
mod shards;
mod shell;
mod stages;
mod staying;
mod sweep;
mod team;
mod train;
mod values;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;

use clap::FromArgMatches;
use record::failure::{Failure, Result};

use crate::command_line::{Action, CommandLine};
use crate::directory::RunFiles;
use crate::environment::Acting;
use crate::frozen_settings::ValueChange;
use crate::kind::PolicyKind;
use crate::model::Model;
use crate::prepare::PreparedRun;
use crate::programs::{Programs, code_of, silent};
use crate::settings::Settings;
use crate::shell::{PRINTED, Place, Shell};
use crate::stages::Plan;
use crate::team::{Team, unplayed};
use crate::train::Training;
use crate::values::PolicyChoice;

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
    completions::end_if_manuals()?;
    settings::check_addresses(arguments)?;
    let matches = record::stage::parse_words(command_line::command(&[]), arguments)
        .map_err(|failure| mistakes::explain(failure, arguments))?;
    let action =
        CommandLine::from_arg_matches(&matches).map_err(|error| Failure::usage(error.render()))?.action;
    match &action {
        Some(Action::Completions { shell }) => return completions::print(*shell),
        Some(Action::Serve { run, address }) => return ask::serve(run, address),
        Some(Action::Ask { run, questions, json }) => return ask::ask(run, questions, *json),
        Some(Action::Export { run, folder, base }) => return export::team(run, folder, base.as_deref()),
        Some(Action::List { folder }) => return runs::print(&Programs::find()?, Path::new(folder)),
        _ => {}
    }
    let is_step =
        |word: &String| matches!(action, Some(Action::Evaluate { .. })) && word.parse::<u64>().is_ok();
    let flags = if action.is_some() { &arguments[1..] } else { arguments };
    let flags = if flags.first().is_some_and(is_step) { &flags[1..] } else { flags };
    let request = file::merge(flags)?;
    if !request.axes.is_empty() {
        return queue::run(&request, action.as_ref());
    }
    let mut settings = Settings::new(&request.words)?;
    let launcher = checks::check(&settings, action.as_ref())?;
    if let Some(Action::Explain(_)) = action {
        return record::write::stdout(method::explain(&settings).as_bytes());
    }
    processes::heed_signals()?;
    let mut programs = Programs::find()?;
    programs.set_up(&settings, launcher, action.as_ref())?;
    match action {
        Some(Action::Setup(_)) => Ok(()),
        Some(Action::Evaluate { step, .. }) => {
            let is_of_run = request.resumed_with.is_some_and(|given| !given.contains("policies"));
            if settings.run.is_some() && !is_of_run {
                return Err(Failure::usage("--run does nothing in evaluate, which makes no run")
                    .hint("evaluate STEP --resume RUN plays the newest policies of a run"));
            }
            let acting = environment::ask(&programs, &mut settings)?;
            evaluate_only(&programs, &settings, &acting, launcher, step)
        }
        _ => train(&PreparedRun::new(programs, settings, launcher)?, request.resumed_with.as_ref()),
    }
}

/// Starts or resumes a run. `named` holds the flags given with `--resume`.
fn train(prepared: &PreparedRun, named: Option<&BTreeSet<String>>) -> Result<()> {
    let plan = prepared.plan();
    let run = RunFiles::make(plan.run)?.with_policies(plan.team.policies());
    let lock = run.lock()?;
    claim::check(run.path())?; // another run may have begun there
    disk::remove(&staying::drawn(run.path()))?; // left by a run that was killed
    run.has_at_most(plan.settings.steps)?;
    let is_resumed = named.is_some_and(|named| !named.contains("policies"));
    let values = prepared.values(is_resumed)?;
    let (defaults, config) =
        (frozen_settings::defaults(plan.settings, plan.acting)?, file::written(plan.settings)?);
    let change = frozen_settings::keep(run.path(), &values, &defaults, &config, named)?;
    run.make_folders()?; // after run.json, which says whose they are
    frozen_settings::write_defaults(run.path(), &defaults, &values)?;
    inputs::keep(plan.settings, run.path())?;
    processes::is_resumable(run.path());
    let path = run.path().to_path_buf();
    runs::has_failed(&path, None)?;
    let trained = to_the_end(plan, run, lock, change.map(|change| (change, config)));
    if let Err(failure) = &trained {
        processes::wait_if_stopping();
        let _ = runs::has_failed(&path, Some(failure)); // on a full disk, for example
    }
    trained
}

/// Trains to the last step, from the next one on with changed values.
fn to_the_end(
    plan: Plan<'_>,
    mut run: RunFiles,
    lock: File,
    change: Option<(ValueChange, String)>,
) -> Result<()> {
    let stages = run.path().join("stages");
    plan.write(&stages)?;
    let place = Place { programs: plan.programs, run: plan.run, stages, lock: Some(lock) };
    let mut shell = Shell::start(&place)?;
    make::policies(&plan, &run, &mut shell)?;
    let step = run.go_back()?;
    if let Some((change, config)) = change {
        change.write(run.path(), step + 1, &config)?;
    }
    if step > 0 && step < plan.settings.steps {
        evaluation::say(&format!("continues after step {step}"))?;
    }
    let path = run.path().display().to_string();
    Training::new(plan, place, run, shell, step).run()?;
    evaluation::say(&format!("the run is in {path}, its report in {path}/report.html"))
}

/// `evaluate`: writes an evaluation to stdout, without a run directory.
fn evaluate_only(
    programs: &Programs,
    settings: &Settings,
    acting: &Acting,
    launcher: checks::Launcher,
    step: u64,
) -> Result<()> {
    let pairs: Vec<(String, String)> = match (&settings.run, &settings.policies) {
        (Some(run), _) => {
            let run = std::path::absolute(run)
                .map_err(|error| Failure::io(format!("the working directory: {error}")))?;
            let team = Team::new(settings, acting)?;
            let place = |agent: &String| match team.served.get(agent) {
                Some(server) => server.clone(),
                None => run.join("policies").join(&team.policy[agent]).display().to_string(),
            };
            team.agents.iter().map(|agent| (agent.clone(), place(agent))).collect()
        }
        (None, PolicyChoice::Named(pairs)) => {
            pairs.iter().map(|pair| (pair.name.clone(), pair.value.clone())).collect()
        }
        (None, _) if settings.kind == PolicyKind::Tiny => {
            return Err(Failure::usage("evaluate needs --model NAME, or --policies AGENT=DIR")
                .hint("a model is played as it is by all agents; policies are named by agent"));
        }
        (None, _) => {
            let model = Model::fetch(programs, &settings.model)?;
            acting.agents.iter().map(|agent| (agent.clone(), model.directory.clone())).collect()
        }
    };
    if let Some(agent) = acting.agents.iter().find(|agent| pairs.iter().all(|(known, _)| known != *agent)) {
        return Err(unplayed(agent));
    }
    let folder = tempfile::tempdir().map_err(|error| Failure::io(format!("a temporary folder: {error}")))?;
    // They are played where they are, and not from a run.
    let agents = pairs.iter().map(|(agent, _)| agent.clone()).collect();
    let served = pairs.into_iter().collect();
    let team = Team { agents, served, ..Team::default() };
    let plan = Plan { programs, settings, acting, team: &team, run: folder.path(), launcher, halvings: 0 };
    plan.write(folder.path())?;
    let place = Place { programs, run: folder.path(), stages: folder.path().to_path_buf(), lock: None };
    let status = place.start(&mut place.one_pipe(PRINTED, step))?.wait();
    let codes = place.codes();
    if codes.is_empty() {
        processes::wait_if_stopping();
        return Err(silent(status.map_or(1, code_of).max(1)));
    }
    let outcome = PRINTED.outcome(&codes, "evaluation", settings.environment_command());
    if outcome.is_err() {
        processes::wait_if_stopping();
    }
    outcome
}

//! Creates and warms up the initial policies of a run.

use std::path::Path;

use record::failure::{Failure, Result};

use crate::directory::RunFiles;
use crate::disk;
use crate::environment;
use crate::evaluation::say;
use crate::kind::PolicyKind;
use crate::method;
use crate::settings::Settings;
use crate::shell::{Shell, WARM_UP};
use crate::stages::Plan;
use crate::values::PolicyChoice;

/// Makes the policies of a run. It replaces policies only if no step depends on them: one that cannot be read may still exist.
///
/// # Errors
/// The failure of the program that makes one; `policies/done` is missing (exit 74).
pub fn policies(plan: &Plan<'_>, run: &RunFiles, shell: &mut Shell) -> Result<()> {
    let done = run.path().join("policies/done");
    if done.is_file() {
        // A KL term may be added in the middle of a run. The given policies still exist,
        // because resuming checks them.
        return references(plan, run);
    }
    if !run.committed()?.is_empty() {
        return Err(Failure::io(format!("{} cannot be read, and there are committed steps", done.display()))
            .hint("if the file is gone, restore it: it is empty"));
    }
    remove_unfinished(run)?;
    let said = [plan.team.shared(), plan.team.also_trained()].into_iter().flatten();
    said.for_each(|said| record::stage::note("pipeline.sh", said));
    if plan.team.source.is_empty() {
        new(plan, run, shell)?;
    } else {
        copies(plan, run)?;
    }
    method::begin(plan.settings, run.path())?;
    disk::replace(&done, "")?;
    disk::sync(&run.path().join("policies"))?;
    disk::sync(run.path())
}

/// Removes what a killed run had made of its policies, and nothing else.
fn remove_unfinished(run: &RunFiles) -> Result<()> {
    let policies = run.path().join("policies");
    let bases = disk::names(&policies)?.into_iter().filter(|name| name.starts_with("base-"));
    let names: Vec<String> = run.policies().iter().cloned().chain(["base".to_owned()]).chain(bases).collect();
    let made = names.iter().flat_map(|name| [policies.join(name), policies.join(format!(".{name}.new"))]);
    let reference = run.path().join("reference");
    let copies = names.iter().flat_map(|name| [reference.join(name), reference.join(format!(".{name}.new"))]);
    let warmup = ["policy", ".policy.new", "metrics.jsonl"].map(|name| run.path().join("warmup").join(name));
    made.chain(copies).chain(warmup).try_for_each(|path| disk::remove(&path))
}

/// Runs `policy init`, which prints the new policy.
fn init(plan: &Plan<'_>, directory: &Path, from: &[&str]) -> Result<()> {
    let directory = directory.display().to_string();
    plan.programs.run("policy", &[&["init", directory.as_str()], from].concat())
}

/// Copies the user's policies and, with a KL term, keeps a second copy as their reference.
fn copies(plan: &Plan<'_>, run: &RunFiles) -> Result<()> {
    for (name, source) in &plan.team.source {
        init(plan, &run.policy(name), &["--from", source])?;
    }
    references(plan, run)
}

fn references(plan: &Plan<'_>, run: &RunFiles) -> Result<()> {
    if plan.settings.kl.0 == 0.0 {
        return Ok(());
    }
    for (name, source) in &plan.team.source {
        let reference = run.path().join("reference").join(name);
        if !reference.join("current").exists() {
            disk::remove(&reference)?;
            init(plan, &reference, &["--from", source])?;
        }
    }
    Ok(())
}

/// Creates one policy, warms it up, and copies it for each role. Pretrained weights stay frozen under
/// adapters: the warm-up trains one adapter, which each role copies. The base is stored next to the adapters,
/// so that the run directory can be moved.
fn new(plan: &Plan<'_>, run: &RunFiles, shell: &mut Shell) -> Result<()> {
    let settings = plan.settings;
    disk::make(&run.path().join("warmup"))?;
    let (seed, adapter) = (settings.seed().to_string(), settings.adapter.as_str());
    let (base, warm) = (run.policy("base"), run.path().join("warmup/policy"));
    let (base_path, warm_path) = (base.display().to_string(), warm.display().to_string());
    let begin = beginning(settings);
    let begin: Vec<&str> = begin.iter().map(String::as_str).collect();
    let of_base = ["--from", &base_path, "--adapter", adapter, "--seed", &seed];
    if settings.kind == PolicyKind::Adapters {
        init(plan, &base, &begin)?;
        init(plan, &warm, &of_base)?;
    } else {
        init(plan, &warm, &begin)?;
    }
    if plan.warms_up() {
        say(&format!("warm-up: {} batches of demonstrations", settings.warmup))?;
        shell.run(WARM_UP, 0, "warm-up", settings.environment_command())?;
    } else if settings.begins_untrained() {
        record::stage::note("pipeline.sh", untrained(plan));
    }
    let is_tiny_under_adapters =
        settings.policies == PolicyChoice::AdapterPerRole && settings.kind == PolicyKind::Tiny;
    if is_tiny_under_adapters {
        init(plan, &base, &["--from", &warm_path])?;
    }
    let from = if is_tiny_under_adapters { &of_base[..] } else { &["--from", &warm_path] };
    run.policies().iter().try_for_each(|name| init(plan, &run.policy(name), from))
}

/// The message about random weights without a warm-up.
fn untrained(plan: &Plan<'_>) -> String {
    let remedy = match &plan.settings.env_command {
        None => "leave out --warmup 0".to_owned(),
        Some(command) => {
            let answers = environment::demonstrated(plan.programs, command, 1, plan.settings.seed());
            match answers.is_empty() {
                true => {
                    format!("have `{command} demo` print demonstrations for a --warmup, or name a --model")
                }
                false => "your program has `demo`: add --warmup 600".to_owned(),
            }
        }
    };
    format!(
        "random weights and no warm-up: the policies answer at random, and may never earn a reward to learn from; {remedy}"
    )
}

/// The arguments of `policy init` for `--model`.
fn beginning(settings: &Settings) -> Vec<String> {
    let seed = settings.seed().to_string();
    let words = match (&settings.local_model, settings.model.as_str()) {
        (Some(model), _) => vec!["--from", &model.directory],
        (None, "tiny") => vec!["--preset", "tiny", "--seed", &seed],
        (None, preset) => vec!["--preset", preset],
    };
    words.into_iter().map(str::to_owned).collect()
}

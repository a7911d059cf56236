//! Checks combinations of flags, and refuses flags without effect.

use std::path::Path;

use record::failure::{Failure, Result};

use crate::command_line::Action;
use crate::settings::{LauncherChoice, OnCollapse, Optimizer, Settings};
use crate::values::{PolicyChoice, is_server, joined};

/// The program that starts shards and ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Directly, as child processes. Ranks run under `mpirun`, each with an equal share of the cores.
    Local,
    /// `mpirun` as the user configured it.
    Mpirun,
    /// Slurm's `srun`.
    Srun,
}

/// Checks all flags against each other and chooses the launcher.
pub fn check(settings: &Settings, action: Option<&Action>) -> Result<Launcher> {
    let ask = |message: String, hint: &str| Err(Failure::usage(message).hint(hint));
    let device = settings.device.as_str();
    if !is_device(device) {
        return ask(
            format!("--device {device}: not a device"),
            "devices are cpu, cuda and cuda:N, several as cuda:0-7 or cuda:0,2",
        );
    }
    if settings.dtype.as_deref() == Some("float16") && device == "cpu" {
        return ask(
            "--dtype float16: --device cpu computes in float32 or bfloat16".to_owned(),
            "add --device cuda, or leave out --dtype",
        );
    }
    check_model(settings)?;
    let evaluates = matches!(action, Some(Action::Evaluate { .. }));
    let names = match &settings.policies {
        PolicyChoice::Named(pairs) => &pairs[..],
        _ => &[],
    };
    if !evaluates && !names.is_empty() && names.iter().all(|pair| is_server(&pair.value)) {
        return ask(
            "--policies: servers play all agents, so that nobody is trained".to_owned(),
            "add --policies AGENT=DIR",
        );
    }
    check_learning(settings, evaluates)?;
    let (resident, shards, ranks) = (settings.resident, settings.shards, settings.ranks);
    if !resident && settings.save_every != 1 {
        return ask(
            "--save-every has no effect without --resident".to_owned(),
            "add --resident: a process a step ends with its state saved",
        );
    }
    if shards == 1 && ranks == 1 && settings.launcher != LauncherChoice::Auto {
        return ask(
            "--launcher has no effect with one shard and one rank".to_owned(),
            "add --shards N or --ranks N, or leave it out",
        );
    }
    let launcher = match settings.launcher {
        LauncherChoice::Mpirun => Launcher::Mpirun,
        LauncherChoice::Srun => Launcher::Srun,
        LauncherChoice::Auto
            if std::env::var_os("SLURM_JOB_ID").is_some_and(|id| !id.is_empty()) && is_installed("srun") =>
        {
            Launcher::Srun
        }
        _ => Launcher::Local,
    };
    if ranks > 1 {
        if !settings.side_by_side {
            share_parts(settings, 1)?; // checked again once the number of policies is known
        }
        if settings.replaces("update") {
            return ask(
                "--ranks is of update, and --stage update=... is another command".to_owned(),
                "leave out --ranks",
            );
        }
        if evaluates {
            return ask("--ranks has no effect in evaluate".to_owned(), "leave out --ranks");
        }
    } else if settings.side_by_side {
        return ask(
            "--side-by-side needs --ranks N".to_owned(),
            "as many as there are policies, or a multiple: --ranks 2",
        );
    }
    if shards > 1 {
        if resident {
            return ask(
                "--shards are processes a step, which --resident does not start".to_owned(),
                "leave out one of them",
            );
        }
        if device != "cpu" && launcher != Launcher::Srun {
            return ask(
                format!("--shards cannot play with --device {device}"),
                "leave out --shards: --device cuda:0-7 plays on several GPUs; or let Slurm give each its device: --launcher srun",
            );
        }
        if settings.replaces("rollout") {
            return ask(
                "--shards deals tasks to rollout, and --stage rollout=... is another command".to_owned(),
                "leave out --shards",
            );
        }
        if evaluates {
            return ask("--shards has no effect in evaluate".to_owned(), "leave out --shards");
        }
    }
    if resident {
        if evaluates {
            return ask("--resident has no effect in evaluate".to_owned(), "leave out --resident");
        }
        if device != "cpu" && ranks > 1 && settings.save_every > 1 {
            return ask(
                format!("--save-every has no effect with --ranks and --device {device}"),
                "leave out one of them: there every step saves its state",
            );
        }
        for stage in ["rollout", "reward", "group", "advantage", "update"] {
            if settings.replaces(stage) {
                return ask(
                    format!("--stage {stage}=... is a process a step, which --resident does not start"),
                    "leave out --resident",
                );
            }
        }
    }
    if settings.policies != PolicyChoice::AdapterPerRole && settings.is_given("adapter") {
        return ask(
            "--adapter needs --policies adapter-per-role".to_owned(),
            "or make the adapters with policy init --adapter and name them: --policies AGENT=DIR",
        );
    }
    if settings.env_command.is_some() && (settings.is_given("env") || settings.is_given("set")) {
        return ask(
            "--env-command takes the place of --env and --set".to_owned(),
            "give its settings in COMMAND: it is run by a shell",
        );
    }
    Ok(launcher)
}

/// Returns true for a device, or several of one kind. The stages check their numbers.
fn is_device(text: &str) -> bool {
    let numbers =
        |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b",-".contains(&b));
    match text.split_once(':') {
        Some((kind, list)) => ["cuda", "sim"].contains(&kind) && numbers(list),
        None => ["cpu", "sim", "cuda"].contains(&text),
    }
}

/// The models that have a short name.
const PRESETS: [&str; 3] = ["tiny", "smollm2", "bench"];

/// Returns true if `--model` is a preset, an existing file or folder, or a hub's model.
fn check_model(settings: &Settings) -> Result<()> {
    let model = settings.model.as_str();
    record::address::check("--model", model)?;
    let is_of_hub = model.starts_with("hf:");
    let is_begun = settings.run.as_ref().is_some_and(|run| Path::new(run).join("policies/done").is_file());
    if PRESETS.contains(&model) || is_of_hub || is_begun || Path::new(model).exists() {
        return Ok(());
    }
    let (presets, others) = (
        "the presets are tiny and smollm2",
        "a folder in Hugging Face format or a GGUF file is named by its path; docs/families.md has the families that run",
    );
    let near = PRESETS.iter().find(|preset| strsim::normalized_damerau_levenshtein(preset, model) >= 0.6);
    let parts: Vec<&str> = model.split('/').collect();
    let hint = match (near, &parts[..]) {
        (Some(near), _) => {
            format!("did you mean {near}? {presets}; a model of the hub is hf:ORG/NAME; {others}")
        }
        (_, [org, name]) if ![".", "..", "~", ""].contains(org) && !name.is_empty() => {
            format!("a model of the hub is hf:{model}; {others}")
        }
        _ => format!("{presets}; a model of the hub is hf:ORG/NAME, such as hf:Qwen/Qwen3-0.6B; {others}"),
    };
    Err(Failure::usage(format!("--model {model}: there is no such preset, file or folder")).hint(hint))
}

/// Refuses values with which nothing is learned, or learned weights are lost.
fn check_learning(settings: &Settings, evaluates: bool) -> Result<()> {
    if settings.on_collapse == OnCollapse::Halve && settings.replaces("update") {
        return Err(Failure::usage(
            "--on-collapse halve is of update, and --stage update=... is another command",
        )
        .hint("--on-collapse stop ends the run"));
    }
    if settings.replaces("demo")
        && (settings.warmup == 0 || matches!(settings.policies, PolicyChoice::Named(_)))
    {
        return Err(Failure::usage("--stage demo=...: there is no warm-up to show them to")
            .hint("add --warmup N; policies that are named start as they are"));
    }
    // Each step of these optimizers moves every weight by about the learning rate, and weights are below 1.
    let large = settings.lr.iter().find(|rate| settings.optimizer != Optimizer::Sgd && rate.value.0 >= 1.0);
    if let Some(rate) = large {
        let default = joined(&Settings::defaults(settings.kind)?.lr);
        return Err(Failure::usage(format!(
            "--lr {rate}: a step of {} moves each weight by about as much, and weights are smaller than 1",
            record::stage::choice(&settings.optimizer)
        ))
        .hint(format!("the default for these policies is {default}")));
    }
    let compares_others = settings.replaces("advantage")
        || settings.replaces("group")
        || settings.replaces("rollout")
        || settings.has_flag("group", "--by")
        || settings.has_flag("rollout", "--branches")
        || settings.has_flag("advantage", "--estimator");
    if settings.branches == 1 && !compares_others && !evaluates {
        return Err(Failure::usage(
            "--branches 1: a group of one candidate is flat, since it has no other to compare with, and nothing is learned",
        )
        .hint("--branches 2 or more (the default is 8); or compare others, --flags group='--by task', or nothing, --flags advantage='--estimator raw'"));
    }
    Ok(())
}

/// Refuses a number of ranks that cannot share the parts of policies trained side by side.
pub fn share_parts(settings: &Settings, policies: u64) -> Result<()> {
    let (ranks, parts) = (settings.ranks, settings.parts);
    let each = ranks / policies;
    if each.is_power_of_two() && each <= parts {
        return Ok(());
    }
    let of = if policies == 1 { String::new() } else { format!(", for each of {policies} policies") };
    Err(Failure::usage(format!("--ranks {ranks}: not a power of two up to --parts, {parts}{of}"))
        .hint("each rank computes as many parts; the bytes of the policies depend on --parts"))
}

/// Returns true if a program is on the `PATH`.
pub fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| {
        use std::os::unix::fs::PermissionsExt;
        let file = folder.join(program);
        file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

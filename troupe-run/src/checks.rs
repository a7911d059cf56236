//! Which flags go together: what has no effect is refused.

use record::failure::{Failure, Result};

use crate::settings::{PolicyChoice, Settings};

/// What starts shards and ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// This machine; ranks by `mpirun` with a share of its cores each.
    Local,
    /// `mpirun` as it is configured.
    Mpirun,
    /// Slurm.
    Srun,
}

/// Checks all flags against each other: what starts shards and ranks.
///
/// # Errors
/// Usage (exit 2).
pub fn check(settings: &Settings) -> Result<Launcher> {
    let text = |name: &'static str| settings.text(name);
    let ask = |message: String, hint: &str| Err(Failure::usage(message).hint(hint));
    let device = text("device");
    let numbered =
        device.strip_prefix("cuda:").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    if !["cpu", "sim", "cuda"].contains(&device) && !numbered {
        return ask(format!("--device {device}: not a device"), "devices are cpu, cuda and cuda:N");
    }
    let (resident, evaluates) = (settings.is_on("resident"), settings.is_given("evaluate"));
    let (shards, ranks) = (settings.number("shards"), settings.number("ranks"));
    if !resident && settings.number("save_every") != 1 {
        return ask(
            "--save-every has no effect without --resident".to_owned(),
            "add --resident: a process a step ends with its state saved",
        );
    }
    if shards == 1 && ranks == 1 && text("launcher") != "auto" {
        return ask(
            format!("--launcher {} has no effect with one shard and one rank", text("launcher")),
            "add --shards N or --ranks N, or leave it out",
        );
    }
    let launcher = match text("launcher") {
        "mpirun" => Launcher::Mpirun,
        "srun" => Launcher::Srun,
        "auto"
            if std::env::var_os("SLURM_JOB_ID").is_some_and(|id| !id.is_empty()) && is_installed("srun") =>
        {
            Launcher::Srun
        }
        _ => Launcher::Local,
    };
    if ranks > 1 {
        if !settings.is_on("side_by_side") {
            share_parts(settings, 1)?; // else once it is known how many policies there are
        }
        if settings.stage.contains_key("update") {
            return ask(
                "--ranks is of update, and --stage update=... is another command".to_owned(),
                "leave out --ranks",
            );
        }
        if evaluates {
            return ask("--ranks has no effect with --evaluate".to_owned(), "leave out --ranks");
        }
    } else if settings.is_on("side_by_side") {
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
                "leave out --shards, or let Slurm give each its device: --launcher srun",
            );
        }
        if settings.stage.contains_key("rollout") {
            return ask(
                "--shards deals tasks to rollout, and --stage rollout=... is another command".to_owned(),
                "leave out --shards",
            );
        }
        if evaluates {
            return ask("--shards has no effect with --evaluate".to_owned(), "leave out --shards");
        }
    }
    if resident {
        if evaluates {
            return ask("--resident has no effect with --evaluate".to_owned(), "leave out --resident");
        }
        if device != "cpu" && ranks > 1 && settings.number("save_every") > 1 {
            return ask(
                format!("--save-every has no effect with --ranks and --device {device}"),
                "leave out one of them: there every step saves its state",
            );
        }
        for stage in ["rollout", "reward", "group", "advantage", "update"] {
            if settings.stage.contains_key(stage) {
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
    if !text("env_command").is_empty() && (settings.is_given("env") || settings.is_given("set")) {
        return ask(
            "--env-command takes the place of --env and --set".to_owned(),
            "give its settings in COMMAND: it is run by a shell",
        );
    }
    Ok(launcher)
}

/// Whether the ranks of each of so many policies, trained side by side, can share its parts.
///
/// # Errors
/// Usage (exit 2).
pub fn share_parts(settings: &Settings, policies: u64) -> Result<()> {
    let (ranks, parts) = (settings.number("ranks"), settings.number("parts"));
    let each = ranks / policies;
    if each.is_power_of_two() && each <= parts {
        return Ok(());
    }
    let of = if policies == 1 { String::new() } else { format!(", for each of {policies} policies") };
    Err(Failure::usage(format!("--ranks {ranks}: not a power of two up to --parts, {parts}{of}"))
        .hint("each rank computes as many parts; the bytes of the policies depend on --parts"))
}

/// Whether a program is on the `PATH`.
pub fn is_installed(program: &str) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| {
        use std::os::unix::fs::PermissionsExt;
        let file = folder.join(program);
        file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    })
}

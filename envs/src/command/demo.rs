//! `envs demo`: demonstrations by imperfect experts, as text-only samples for `policy encode` and `update`.

use environment::workflow;
use envs::{Demonstration, Environment, Split};
use record::failure::{Failure, Result};
use record::sample::Sample;
use record::stage;
use record::write::Writer;

use crate::arguments::{Choice, Program};

/// Writes demonstrations on train tasks: samples with prompt and completion as text, for the warm-up of a
/// policy.
///
/// The samples of one task are adjacent, so that `update` computes the common prefix of their prompts once.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs demo plan-path --count 1000 --seed 7
  envs demo plan-path --count 1000 --mix opt=1
  envs demo plan-path --count 1000 --workflow single --states 4
  envs demo plan-path --count 1000 | policy encode --policy run/policy |
    update --objective nll --policy run/policy")]
pub struct Demo {
    #[command(flatten)]
    choice: Choice,
    #[command(flatten)]
    program: Program,
    /// Number of tasks to demonstrate.
    #[arg(long, default_value_t = 1, value_name = "N")]
    count: u64,
    /// Shares of the kinds of demonstrators, which sum to 1 [default: the environment's, see `envs list`].
    #[arg(long, value_name = "KIND=SHARE,…")]
    mix: Option<String>,
    /// The workflow to demonstrate [default: the environment's first].
    #[arg(long, value_name = "NAME")]
    workflow: Option<String>,
    /// Number of states to demonstrate for each task.
    #[arg(long, default_value_t = 8, value_name = "N")]
    states: u32,
    /// Probability that an agent adopts the previous agent's action.
    #[arg(long, default_value_t = 0.85, value_name = "P")]
    follow: f64,
}

impl Demo {
    pub fn run(&self) -> Result<()> {
        if let Some(command) = &self.program.env_command {
            let workflow = self.workflow.as_ref().map_or(String::new(), |name| format!(" --workflow {name}"));
            let (count, seed) = (self.count, self.choice.seed);
            return self.program.print(&format!("{command} demo{workflow} --count {count} --seed {seed}"));
        }
        let mut batches = self.demonstrations()?;
        let mut writer = Writer::stdout();
        let mut samples = 0;
        for _ in 0..self.count {
            let Some(batch) = batches.next() else { break };
            for sample in batch? {
                writer.object(&sample)?;
                samples += 1;
            }
            if stage::interrupted() {
                return Err(Failure::interrupted());
            }
        }
        super::tasks::end(&mut writer, &[("tasks", self.count), ("samples", samples)])
    }

    /// Refuses what cannot be demonstrated.
    pub fn check(&self) -> Result<()> {
        if self.program.env_command.is_none() {
            drop(self.demonstrations()?);
        }
        Ok(())
    }

    fn demonstrations(&self) -> Result<impl Iterator<Item = Result<Vec<Sample<'static>>>>> {
        let environment = self.choice.environment()?;
        if !(0.0..=1.0).contains(&self.follow) {
            return Err(Failure::usage(format!("--follow {}: not from 0 to 1", self.follow)));
        }
        let workflow = match &self.workflow {
            // The demonstrator says why it takes no file.
            Some(name) if name.ends_with(".toml") => name.clone(),
            Some(name) => {
                workflow::find(environment.workflows(), environment.name(), name)?.name().to_owned()
            }
            None => environment.default_workflow().to_owned(),
        };
        let demonstration = Demonstration {
            tasks: self.choice.selection(Split::Train)?,
            workflow,
            mix: mix(environment, self.mix.as_deref())?,
            states: self.states,
            follow: self.follow,
        };
        environment.demonstrations(&demonstration)
    }
}

/// Reads `kind=share,…`; the environment's default mix without it.
fn mix(environment: &dyn Environment, text: Option<&str>) -> Result<Vec<(String, f64)>> {
    let known = environment.metadata().demonstrators;
    if known.is_empty() {
        return Err(Failure::usage(format!("{} has no demonstrators", environment.name()))
            .hint("a pretrained policy needs none: ./pipeline.sh --model NAME, or --warmup 0"));
    }
    let Some(text) = text else {
        return Ok(known.iter().map(|(kind, share)| ((*kind).to_owned(), *share)).collect());
    };
    let fail = |cause: String| Failure::usage(format!("--mix {text}: {cause}"));
    let mut mix: Vec<(String, f64)> = Vec::new();
    for part in text.split(',') {
        let example = || format!("write it as {}", mix_text(known));
        let (kind, share) =
            part.split_once('=').ok_or_else(|| fail(format!("'{part}' has no '='")).hint(example()))?;
        let kinds: Vec<&str> = known.iter().map(|(kind, _)| *kind).collect();
        if !kinds.contains(&kind) {
            return Err(fail(format!("{} has no demonstrator '{kind}'", environment.name()))
                .hint(environment::settings::suggest(kind, &kinds)));
        }
        if mix.iter().any(|(other, _)| other == kind) {
            return Err(fail(format!("'{kind}' is there twice")));
        }
        let share = share
            .parse()
            .ok()
            .filter(|share| (0.0..=1.0).contains(share))
            .ok_or_else(|| fail(format!("the share '{share}' is no number from 0 to 1")))?;
        mix.push((kind.to_owned(), share));
    }
    let sum: f64 = mix.iter().map(|(_, share)| share).sum();
    if (sum - 1.0).abs() > 1e-6 {
        return Err(fail(format!("the shares sum to {sum:.6}, not to 1")));
    }
    Ok(mix)
}

/// `kind=share,…` as `--mix` reads it.
pub fn mix_text(shares: &[(&str, f64)]) -> String {
    let shares: Vec<String> = shares.iter().map(|(kind, share)| format!("{kind}={share}")).collect();
    shares.join(",")
}

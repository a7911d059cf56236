//! The command line of `advantage`.

use std::path::PathBuf;

use clap::{Parser, ValueEnum, value_parser};
use record::decorate::Flags;
use record::failure::{Failure, Result};
use record::stage::choice;

use crate::components::Component;
use crate::estimator::{Estimator, EstimatorConfig};
use crate::statistics::Std;
use crate::tree::Reduction;
use crate::whiten::Whiten;

/// Default of `--epsilon`, in units of reward.
const EPSILON: f64 = 1e-6;
/// Default of `--decay`.
const DECAY: f64 = 0.95;
/// Default of `--k`.
const K: u32 = 2;

const TEMPLATE: &str = "\
{about}

Examples:
  advantage < groups.jsonl > advantages.jsonl
  advantage --estimator dr-grpo --drop-flat < groups.jsonl | jq -c 'select(.type == \"sample\") | [.id, .advantage]'
  advantage --team-weight 0.5 < groups.jsonl | jq -c 'select(.type == \"sample\") | [.rewards, .group_mean]'
  advantage --credit return --gamma 0.9 < groups.jsonl | jq -c 'select(.type == \"end\") | .counts'
  advantage --credit episode < episodes.jsonl > trajectories.jsonl
  advantage --credit tree --estimator dr-grpo < joint.jsonl | jq -c 'select(.type == \"sample\") | [.id, .advantage]'

{usage-heading} {usage}

{all-args}

Reads the output of group on stdin and adds advantage, group_mean and group_std; other lines pass
through. docs/stream-format.md has every field. A group is flat if all members have the same credit. Flat groups
are counted, and their advantages are 0, except with remax, rae and raw, which do not compare members.
Exit codes: 0 done, 2 usage, 65 bad record, broken group or incomplete stream, 74 I/O, 130 and 143
interrupted.";

/// Turns the rewards of a group into advantages: adds `advantage`, `group_mean` and `group_std`.
#[derive(Clone, Parser, Debug)]
#[command(name = "advantage", version, help_template = TEMPLATE)]
pub struct Arguments {
    /// How advantages are computed; r is a member's credit
    #[arg(long, value_enum, default_value_t = Estimator::Grpo, value_name = "METHOD", help_heading = "Estimator")]
    pub estimator: Estimator,

    /// The standard deviation that grpo and gdpo divide by, and that group_std records [default: sample]
    #[arg(long, value_enum, value_name = "WHICH", help_heading = "Estimator")]
    std: Option<Std>,

    /// Added to the standard deviation by grpo, gdpo and --whiten samples, in units of reward [default: 1e-6]
    #[arg(long, value_name = "E", help_heading = "Estimator")]
    epsilon: Option<f64>,

    /// Use WEIGHT * rewards.team + rewards.local instead of the recorded reward
    #[arg(long, value_name = "WEIGHT", help_heading = "Credit")]
    pub team_weight: Option<f64>,

    /// The credit of a sample, which is compared within its group
    ///
    /// All values except turn hold the stream in memory. They also pay for idling if an environment rewards each
    /// turn, because a longer episode sums more rewards: use them with rewards for success alone.
    #[arg(long, value_enum, default_value_t = Credit::Turn, value_name = "WHAT", help_heading = "Credit")]
    pub credit: Credit,

    /// How often --credit episode counts an episode in mean and standard deviation [default: episodes]
    #[arg(long, value_enum, value_name = "UNIT", help_heading = "Credit")]
    count_by: Option<EpisodeWeight>,

    /// How --credit tree combines the returns of a sample's joint actions [default: mean]
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Credit")]
    combine: Option<Reduction>,

    /// Discount per turn for --credit return, episode, episode-own, gigpo or tree, from 0 to 1 [default: 1]
    #[arg(long, value_name = "G", help_heading = "Credit")]
    gamma: Option<f64>,

    /// Weight of the comparison among equal prompts for --credit gigpo [default: 1]
    #[arg(long, value_name = "W", help_heading = "Credit")]
    anchor_weight: Option<f64>,

    /// The components of reward_components that gdpo compares, each separately, and their weights (default 1)
    #[arg(
        long,
        value_name = "NAME[=WEIGHT],…",
        value_delimiter = ',',
        required_if_eq("estimator", "gdpo"),
        help_heading = "Estimator"
    )]
    pub components: Vec<Component>,

    /// Size of the subsets in which max-at takes the best member [default: 2]
    #[arg(long, value_name = "K", value_parser = value_parser!(u32).range(2..), help_heading = "Estimator")]
    k: Option<u32>,

    /// Folder with rae's baselines, one file per step: reads the previous step's and writes this step's
    #[arg(long, value_name = "DIR", required_if_eq("estimator", "rae"), help_heading = "Estimator")]
    pub baselines: Option<PathBuf>,

    /// Decay of rae's baseline per episode, from 0 to 1 [default: 0.95]
    #[arg(long, value_name = "D", help_heading = "Estimator")]
    decay: Option<f64>,

    /// Normalize all advantages of a policy in the step to mean 0 and standard deviation 1, over samples or over
    /// tokens [default: none]
    ///
    /// Every step then has the same scale, even a step with almost nothing to learn. Holds the stream in memory.
    #[arg(long, value_enum, value_name = "OVER", help_heading = "Estimator")]
    whiten: Option<Whiten>,

    /// Treat a group as flat if its members agree in this component of reward_components, whatever their rewards
    ///
    /// With shaped rewards, success selects groups in which some members succeed and some fail. For --credit tree,
    /// success means success of the joint actions.
    #[arg(long, value_name = "COMPONENT", help_heading = "Flat groups")]
    pub gate: Option<String>,

    /// Treat a group as flat if its largest and smallest credit differ by no more than E [default: 0]
    #[arg(long, value_name = "E", help_heading = "Flat groups")]
    flat_below: Option<f64>,

    /// Drop flat groups
    #[arg(long, help_heading = "Flat groups")]
    pub drop_flat: bool,

    /// What happens to answers that the token limit cut (finish_reason length)
    #[arg(long, value_enum, default_value_t = Cut::Keep, value_name = "WHAT", help_heading = "Cut answers")]
    pub cut: Cut,

    /// The flags of every decorating stage.
    #[command(flatten)]
    pub flags: Flags,
}

/// What a sample is credited with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Credit {
    /// Its reward
    Turn,
    /// Its reward and its agent's later, discounted rewards on the executed path
    Return,
    /// All rewards of its episode, in parallel sampling; episodes are compared, not samples: trajectory-level GRPO
    Episode,
    /// All rewards of its agent in its episode, in parallel sampling
    EpisodeOwn,
    /// As episode, plus the return from its turn on, compared among equal prompts: GiGPO, arXiv 2505.10978
    Gigpo,
    /// The rewards of its joint actions, plus the mean of what followed in the tree of rollout --expand all:
    /// MAGRPO
    Tree,
}

impl Credit {
    /// True if whole episodes are compared, as parallel sampling plays them.
    pub fn is_of_episodes(self) -> bool {
        matches!(self, Credit::Episode | Credit::EpisodeOwn | Credit::Gigpo)
    }
}

/// What happens to answers that the token limit cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cut {
    /// They are as good as any
    Keep,
    /// They are compared, and their advantage is 0: they count in update's averages, as flat groups do
    Zero,
    /// They count nowhere: siblings are compared without them, and their advantage is null, so that update's averages
    /// have neither their terms nor their tokens; a group of nothing else is dropped
    Drop,
}

/// How often an episode counts in mean and standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EpisodeWeight {
    /// Once
    Episodes,
    /// As often as the group's agents acted in it, as Dr. MAS does (arXiv 2602.08847)
    Calls,
}

/// The error for a flag that has no effect together with another.
fn idle(flag: &str, with: impl std::fmt::Display, hint: &str) -> Failure {
    Failure::usage(format!("{flag} does nothing with {with}")).hint(hint)
}

impl Arguments {
    /// The estimator with its parameters. Refuses values out of range and flags without effect.
    pub fn method(&self) -> Result<EstimatorConfig> {
        self.check_flags_of_estimators()?;
        self.check_flags_of_credits()?;
        let epsilon = self.epsilon.unwrap_or(EPSILON);
        for (flag, number) in [("--epsilon", epsilon), ("--flat-below", self.flat_below())] {
            if !(number.is_finite() && number >= 0.0) {
                return Err(Failure::usage(format!("{flag} is {number}, not a number from 0")));
            }
        }
        for (flag, number) in [("--team-weight", self.team_weight), ("--anchor-weight", self.anchor_weight)] {
            if let Some(number) = number.filter(|number| !number.is_finite()) {
                return Err(Failure::usage(format!("{flag} is {number}, not a finite number")));
            }
        }
        for (flag, number) in [("--gamma", self.gamma()), ("--decay", self.decay())] {
            if !(0.0..=1.0).contains(&number) {
                return Err(Failure::usage(format!("{flag} is {number}, not from 0 to 1")));
            }
        }
        Ok(EstimatorConfig {
            estimator: self.estimator,
            std: self.std.unwrap_or(Std::Sample),
            epsilon,
            k: self.k.unwrap_or(K),
            weights: self.components.iter().map(|component| component.weight).collect(),
            flat_below: self.flat_below(),
        })
    }

    fn check_flags_of_estimators(&self) -> Result<()> {
        let (estimator, name) = (self.estimator, choice(&self.estimator));
        // A flag at its default is fine, since a script may spell out all values.
        let std = self.std.is_some_and(|std| std != Std::Sample);
        let epsilon = self.epsilon.is_some_and(|epsilon| epsilon != EPSILON);
        let divides = matches!(estimator, Estimator::Grpo | Estimator::Gdpo);
        for (flag, differs) in [("--std", std), ("--epsilon", epsilon && self.whiten() != Whiten::Samples)] {
            if differs && !divides {
                return Err(Failure::usage(format!(
                    "{flag} does nothing with --estimator {name}, which divides by no standard deviation"
                ))
                .hint(format!("leave {flag} out, or use --estimator grpo")));
            }
        }
        for (flag, given, of) in [
            ("--components", !self.components.is_empty(), Estimator::Gdpo),
            ("--k", self.k.is_some_and(|k| k != K), Estimator::MaxAt),
            ("--baselines", self.baselines.is_some(), Estimator::Rae),
            ("--decay", self.decay.is_some_and(|decay| decay != DECAY), Estimator::Rae),
        ] {
            if given && estimator != of {
                let hint = format!("leave {flag} out, or use --estimator {}", choice(&of));
                return Err(idle(flag, format!("--estimator {name}"), &hint));
            }
        }
        if estimator == Estimator::Gdpo {
            if self.team_weight.is_some() {
                let hint = "its components have weights of their own: --components NAME=WEIGHT";
                return Err(idle("--team-weight", "--estimator gdpo", hint));
            }
            if self.credit != Credit::Turn {
                let credit = format!("--credit {}", choice(&self.credit));
                return Err(idle(&credit, "--estimator gdpo", "it compares the components of samples"));
            }
        }
        Ok(())
    }

    fn check_flags_of_credits(&self) -> Result<()> {
        let (credit, name) = (self.credit, format!("--credit {}", choice(&self.credit)));
        if self.gamma() != 1.0 && credit == Credit::Turn {
            return Err(idle("--gamma", name, "add --credit return"));
        }
        if credit.is_of_episodes() && self.estimator == Estimator::Remax {
            return Err(Failure::usage(format!(
                "{name} makes no sense with --estimator remax, whose baseline is of one prompt"
            ))
            .hint("use --credit turn or return, or an estimator that compares the members of a group"));
        }
        if credit == Credit::Gigpo && !matches!(self.estimator, Estimator::Grpo | Estimator::DrGrpo) {
            return Err(Failure::usage(format!(
                "{name} makes no sense with --estimator {}: its two comparisons subtract a mean each",
                choice(&self.estimator)
            ))
            .hint("use --estimator grpo, or dr-grpo to divide by nothing"));
        }
        if self.joint() == Reduction::Sum && credit != Credit::Tree {
            return Err(
                Failure::usage("--combine sum does nothing without --credit tree").hint("add --credit tree")
            );
        }
        if self.counts_calls() && credit != Credit::Episode {
            return Err(idle("--count-by calls", name, "add --credit episode"));
        }
        if self.anchor_weight.is_some_and(|weight| weight != 1.0) && credit != Credit::Gigpo {
            return Err(idle("--anchor-weight", name, "add --credit gigpo"));
        }
        Ok(())
    }

    /// How a sample combines the returns of its joint actions.
    pub fn joint(&self) -> Reduction {
        self.combine.unwrap_or(Reduction::Mean)
    }

    /// The discount per turn.
    pub fn gamma(&self) -> f64 {
        self.gamma.unwrap_or(1.0)
    }

    /// True if an episode counts once for each of its samples in a group.
    pub fn counts_calls(&self) -> bool {
        self.count_by == Some(EpisodeWeight::Calls)
    }

    /// Weight of the comparison among equal prompts.
    pub fn anchor_weight(&self) -> f64 {
        self.anchor_weight.unwrap_or(1.0)
    }

    /// The share of its baseline that `rae` keeps per episode.
    pub fn decay(&self) -> f64 {
        self.decay.unwrap_or(DECAY)
    }

    /// The unit over which advantages are whitened.
    pub fn whiten(&self) -> Whiten {
        self.whiten.unwrap_or(Whiten::None)
    }

    /// The largest difference of credits in a flat group.
    pub fn flat_below(&self) -> f64 {
        self.flat_below.unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}

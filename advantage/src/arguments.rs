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

Reads the output of group on stdin and adds advantage, group_mean and group_std; other lines pass through. RECORD.md
has every field. A group whose members all earned the same has nothing to compare: its advantages are 0 (except under
remax, rae and raw, which do not compare members) and it is counted.
Exit codes: 0 done, 2 usage, 65 bad record, broken group or incomplete stream, 74 I/O, 130 and 143 interrupted.";

/// Turns the rewards of a group into advantages: adds `advantage`, `group_mean` and `group_std`.
#[derive(Clone, Parser, Debug)]
#[command(name = "advantage", version, help_template = TEMPLATE)]
pub struct Arguments {
    /// How an advantage is made of rewards
    #[arg(long, value_enum, default_value_t = Estimator::Grpo, value_name = "METHOD")]
    pub estimator: Estimator,

    /// What grpo and gdpo divide by, and what group_std holds: the standard deviation with n-1 (sample) or n (population);
    /// none divides by nothing and leaves that of sample in group_std [default: sample]
    #[arg(long, value_enum, value_name = "WHICH")]
    std: Option<Std>,

    /// What grpo, gdpo and --whiten samples add to the standard deviation, in units of reward [default: 1e-6]
    #[arg(long, value_name = "E")]
    epsilon: Option<f64>,

    /// Use WEIGHT * rewards.team + rewards.local in place of the recorded reward
    #[arg(long, value_name = "WEIGHT")]
    pub team_weight: Option<f64>,

    /// What a sample is credited with: its own reward (turn); that and the discounted rewards of its agent on the
    /// executed path after it (return); or, in parallel sampling, what all agents earned in its whole episode, episodes
    /// being compared and not samples (episode), or its agent alone (episode-own); or the episode, and to that the return
    /// from its turn on, compared with those of the same prompt (gigpo); or what its joint actions earned, and in the mean
    /// what followed from them in the tree of rollout --expand all (tree). All but turn hold the stream in memory, and pay
    /// for idling where an environment rewards each turn: a longer episode sums more rewards. Use them with rewards for
    /// success alone
    #[arg(long, value_enum, default_value_t = Credit::Turn, value_name = "WHAT")]
    pub credit: Credit,

    /// How often --credit episode counts an episode in mean and standard deviation: once, or as often as the group's agents
    /// acted in it, as Dr. MAS does (arXiv 2602.08847) [default: episodes]
    #[arg(long, value_enum, value_name = "UNIT")]
    count: Option<EpisodeWeight>,

    /// How --credit tree makes one number of the returns of a sample's joint actions: their mean, or their sum, which grows
    /// with the number of combinations under rollout --joint cross [default: mean]
    #[arg(long, value_enum, value_name = "HOW")]
    joint: Option<Reduction>,

    /// The discount a turn under --credit return, episode, episode-own, gigpo or tree, from 0 to 1 [default: 1]
    #[arg(long, value_name = "G")]
    gamma: Option<f64>,

    /// Weight of the comparison of equal prompts under --credit gigpo [default: 1]
    #[arg(long, value_name = "W")]
    anchor_weight: Option<f64>,

    /// The components of reward_components that gdpo compares, each by itself, and their weights (1 where none is given)
    #[arg(long, value_name = "NAME[=WEIGHT],…", value_delimiter = ',', required_if_eq("estimator", "gdpo"))]
    pub components: Vec<Component>,

    /// Of how many members max-at looks at the best [default: 2]
    #[arg(long, value_name = "K", value_parser = value_parser!(u32).range(2..))]
    k: Option<u32>,

    /// A folder where rae keeps the baselines of each step: it reads those of the step before and writes its own
    #[arg(long, value_name = "DIR", required_if_eq("estimator", "rae"))]
    pub baselines: Option<PathBuf>,

    /// How much of its baseline rae keeps from episode to episode, from 0 to 1 [default: 0.95]
    #[arg(long, value_name = "D")]
    decay: Option<f64>,

    /// Subtract from all advantages of a policy in the step their mean, and divide them by their standard deviation: over
    /// samples, or over tokens, each of which has its sample's advantage. Every step is then of one size, also one with
    /// almost nothing to learn. Holds the stream in memory [default: none]
    #[arg(long, value_enum, value_name = "OVER")]
    whiten: Option<Whiten>,

    /// Treat a group as flat whose members agree in this component of reward_components, whatever they earned: with
    /// shaped rewards, a group that failed as a whole or succeeded as a whole. Under --credit tree, success is that of the
    /// joint actions
    #[arg(long, value_name = "COMPONENT")]
    pub gate: Option<String>,

    /// Treat a group as flat whose greatest and least credit differ by no more than E [default: 0]
    #[arg(long, value_name = "E")]
    flat_below: Option<f64>,

    /// Leave out groups whose members all earned the same
    #[arg(long)]
    pub drop_flat: bool,

    /// The flags of every decorating stage.
    #[command(flatten)]
    pub flags: Flags,
}

/// What a sample is credited with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Credit {
    /// Its own reward
    Turn,
    /// Its own reward and its agent's later ones on the executed path
    Return,
    /// All rewards of its episode: trajectory-level GRPO
    Episode,
    /// All rewards of its agent in its episode
    EpisodeOwn,
    /// Its episode, and the return from its turn on among equal prompts: GiGPO, arXiv 2505.10978
    Gigpo,
    /// The rewards of its joint actions, and in the mean what followed: MAGRPO
    Tree,
}

impl Credit {
    /// True if whole episodes are compared, as parallel sampling plays them.
    pub fn is_of_episodes(self) -> bool {
        matches!(self, Credit::Episode | Credit::EpisodeOwn | Credit::Gigpo)
    }
}

/// How often an episode counts in mean and standard deviation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EpisodeWeight {
    /// Once
    Episodes,
    /// Once for each sample
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
                Failure::usage("--joint sum does nothing without --credit tree").hint("add --credit tree")
            );
        }
        if self.counts_calls() && credit != Credit::Episode {
            return Err(idle("--count calls", name, "add --credit episode"));
        }
        if self.anchor_weight.is_some_and(|weight| weight != 1.0) && credit != Credit::Gigpo {
            return Err(idle("--anchor-weight", name, "add --credit gigpo"));
        }
        Ok(())
    }

    /// How a sample combines the returns of its joint actions.
    pub fn joint(&self) -> Reduction {
        self.joint.unwrap_or(Reduction::Mean)
    }

    /// The discount per turn.
    pub fn gamma(&self) -> f64 {
        self.gamma.unwrap_or(1.0)
    }

    /// True if an episode counts once for each of its samples in a group.
    pub fn counts_calls(&self) -> bool {
        self.count == Some(EpisodeWeight::Calls)
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

//! The command line of `advantage`.

use clap::{Parser, ValueEnum};
use record::decorate::Flags;
use record::failure::{Failure, Result};
use record::stage::choice;

use crate::estimator::{Estimator, EstimatorConfig};
use crate::statistics::Std;
use crate::tree::Reduction;

/// What `grpo` adds to the standard deviation unless told, in units of reward.
const EPSILON: f64 = 1e-6;

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
remax and raw, which do not compare members) and it is counted.
Exit codes: 0 done, 2 usage, 65 bad record, broken group or incomplete stream, 74 I/O, 130 and 143 interrupted.";

/// Turns the rewards of a group into advantages: adds `advantage`, `group_mean` and `group_std`.
#[derive(Clone, Copy, Parser, Debug)]
#[command(name = "advantage", version, help_template = TEMPLATE)]
pub struct Arguments {
    /// How an advantage is made of rewards
    #[arg(long, value_enum, default_value_t = Estimator::Grpo, value_name = "METHOD")]
    pub estimator: Estimator,

    /// What grpo divides by, and what group_std holds: the standard deviation with n-1 (sample) or n (population);
    /// none divides by nothing and leaves that of sample in group_std [default: sample]
    #[arg(long, value_enum, value_name = "WHICH")]
    std: Option<Std>,

    /// What grpo adds to the standard deviation, in units of reward [default: 1e-6]
    #[arg(long, value_name = "E")]
    epsilon: Option<f64>,

    /// Use WEIGHT * rewards.team + rewards.local in place of the recorded reward
    #[arg(long, value_name = "WEIGHT")]
    pub team_weight: Option<f64>,

    /// What a sample is credited with: its own reward (turn); that and the discounted rewards of its agent on the
    /// executed path after it (return); or, in parallel sampling, what all agents earned in its whole episode, episodes
    /// being compared and not samples (episode); or what its joint actions earned, and in the mean what followed from them
    /// in the tree of rollout --expand all (tree). All but turn hold the stream in memory, and pay for idling where an
    /// environment rewards each turn: a longer episode sums more rewards. Use them with rewards for success alone
    #[arg(long, value_enum, default_value_t = Credit::Turn, value_name = "WHAT")]
    pub credit: Credit,

    /// How --credit tree makes one number of the returns of a sample's joint actions: their mean, or their sum, which grows
    /// with the number of combinations under rollout --joint cross [default: mean]
    #[arg(long, value_enum, value_name = "HOW")]
    joint: Option<Reduction>,

    /// The discount a turn under --credit return, episode or tree, from 0 to 1 [default: 1]
    #[arg(long, value_name = "G")]
    gamma: Option<f64>,

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
    /// The rewards of its joint actions, and in the mean what followed: MAGRPO
    Tree,
}

impl Arguments {
    /// The estimator with its numbers. Refuses numbers out of range and flags that would do nothing.
    pub fn method(&self) -> Result<EstimatorConfig> {
        if self.estimator != Estimator::Grpo {
            // A flag at its default contradicts nothing: a script may spell out all values.
            let std = self.std.is_some_and(|std| std != Std::Sample);
            let epsilon = self.epsilon.is_some_and(|epsilon| epsilon != EPSILON);
            for (flag, differs) in [("--std", std), ("--epsilon", epsilon)] {
                if differs {
                    return Err(Failure::usage(format!(
                        "{flag} does nothing with --estimator {}, which divides by no standard deviation",
                        choice(&self.estimator)
                    ))
                    .hint(format!("leave {flag} out, or use --estimator grpo")));
                }
            }
        }
        if self.gamma() != 1.0 && self.credit == Credit::Turn {
            return Err(Failure::usage("--gamma does nothing with --credit turn").hint("add --credit return"));
        }
        if self.credit == Credit::Episode && self.estimator == Estimator::Remax {
            return Err(Failure::usage(
                "--credit episode makes no sense with --estimator remax, whose baseline is of one prompt",
            )
            .hint("use --credit turn or return, or an estimator that compares the members of a group"));
        }
        if self.joint() == Reduction::Sum && self.credit != Credit::Tree {
            return Err(
                Failure::usage("--joint sum does nothing without --credit tree").hint("add --credit tree")
            );
        }
        let epsilon = self.epsilon.unwrap_or(EPSILON);
        if !(epsilon.is_finite() && epsilon >= 0.0) {
            return Err(Failure::usage(format!("--epsilon is {epsilon}, not a number from 0")));
        }
        if let Some(weight) = self.team_weight.filter(|weight| !weight.is_finite()) {
            return Err(Failure::usage(format!("--team-weight is {weight}, not a finite number")));
        }
        if !(0.0..=1.0).contains(&self.gamma()) {
            return Err(Failure::usage(format!("--gamma is {}, not from 0 to 1", self.gamma())));
        }
        Ok(EstimatorConfig { estimator: self.estimator, std: self.std.unwrap_or(Std::Sample), epsilon })
    }

    /// How the returns of joint actions make a sample's credit.
    pub fn joint(&self) -> Reduction {
        self.joint.unwrap_or(Reduction::Mean)
    }

    /// The discount a turn.
    pub fn gamma(&self) -> f64 {
        self.gamma.unwrap_or(1.0)
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

//! Self-play (`--opponents past:K`): one agent of an episode learns, and earlier versions of the policies play the others.
//!
//! Agents learn in turn, by the number of the step and the place of the task in the stream. Each opponent's version is
//! drawn from the last K published ones, the newest included, by a random stream of the task, so that all branches of a
//! task meet the same opponents and a resumed run meets them again. An opponent has one candidate a turn, which is
//! written as a `served` line.

use std::str::FromStr;

use policy::ownership::Ownership;

use crate::streams::Streams;

/// The most versions of a pool: each is loaded.
pub const MOST: u64 = 256;

/// `past:K`: how many published versions opponents are drawn from; 0 for no opponents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool(pub u64);

impl FromStr for Pool {
    type Err = String;

    fn from_str(text: &str) -> Result<Pool, String> {
        let count = text.strip_prefix("past:").and_then(|count| count.parse().ok());
        let count = count.filter(|count| *count <= MOST);
        count.map(Pool).ok_or_else(|| {
            format!("not past:K with K from 0 to {MOST}; past:4 draws from the last four versions")
        })
    }
}

/// The players that opponents are drawn from.
#[derive(Clone, Debug, Default)]
pub struct Opponents {
    /// For each policy of the command line, the players of its versions, newest first; empty without self-play.
    pub versions: Vec<Vec<usize>>,
}

/// Who plays the agents of an episode.
#[derive(Clone, Debug, Default)]
pub struct Seats {
    /// For each agent, by its index, the player; `None` where no policy plays it.
    pub players: Vec<Option<usize>>,
    /// With opponents, the agent that learns.
    pub learner: Option<usize>,
}

impl Opponents {
    /// The seats of a task's episodes; `number` counts the tasks, so that each agent learns in its turn.
    pub fn seats(&self, team: &Ownership, agents: &[String], streams: &Streams, number: u64) -> Seats {
        let mut players: Vec<Option<usize>> = agents.iter().map(|agent| team.of(agent)).collect();
        let own = |agent: &usize| {
            players[*agent].is_some_and(|policy| self.versions.get(policy).is_some_and(|v| !v.is_empty()))
        };
        let seats: Vec<usize> = (0..agents.len()).filter(own).collect();
        let learner = (!seats.is_empty()).then(|| seats[(number % seats.len() as u64) as usize]);
        for &seat in seats.iter().filter(|seat| Some(**seat) != learner) {
            let versions = players[seat].map_or(&[][..], |policy| &self.versions[policy]);
            let drawn = streams.opponent(&agents[seat]).below(versions.len() as u32);
            players[seat] = versions.get(drawn as usize).copied();
        }
        Seats { players, learner }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_a_number_of_versions() {
        assert_eq!(("past:4".parse(), "past:0".parse()), (Ok(Pool(4)), Ok(Pool(0))));
        for wrong in ["past", "past:", "past:-1", "past:257", "4", "latest", "past:1.5"] {
            assert!(wrong.parse::<Pool>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_agent_learns_in_turn_against_versions_of_every_age() {
        let team =
            Ownership::parse("--policy", &["x=http://h/v1".to_owned(), "run".to_owned()]).expect("a team");
        let agents = ["a", "x", "b"].map(str::to_owned);
        // A server, then a policy with three versions.
        let opponents = Opponents { versions: vec![vec![], vec![1, 2, 3]] };
        let mut met = std::collections::BTreeSet::new();
        for number in 0..60 {
            let streams = Streams::new(7, 2, &format!("task {number}"), 0);
            let seats = opponents.seats(&team, &agents, &streams, number);
            let (learner, other) = if number % 2 == 0 { (0, 2) } else { (2, 0) };
            assert_eq!(
                (seats.learner, seats.players[learner], seats.players[1]),
                (Some(learner), Some(1), Some(0))
            );
            met.insert(seats.players[other]);
            let again = opponents.seats(&team, &agents, &streams, number);
            assert_eq!(again.players, seats.players);
        }
        assert_eq!(met, [1, 2, 3].map(Some).into());
        let none = Opponents::default().seats(&team, &agents, &Streams::new(7, 2, "t", 0), 1);
        assert_eq!((none.players, none.learner), (vec![Some(1), Some(0), Some(1)], None));
    }
}

//! How many candidates each agent has at a turn: `--branches 4`, `--branches checker=8`.

use std::collections::BTreeMap;

use record::failure::{Failure, Result};

/// The most candidates of a group.
const MOST: u32 = 4096;

/// Candidates a group, by agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Widths {
    /// Of an agent that has no number of its own.
    pub common: u32,
    /// Of the agents that have one.
    pub own: BTreeMap<String, u32>,
}

impl Widths {
    /// Every agent has as many.
    pub fn all(common: u32) -> Widths {
        Widths { common, own: BTreeMap::new() }
    }

    /// The values of `--branches`, each `K` or `ROLE=K`; without a `K` there are `default`.
    ///
    /// # Errors
    /// Usage: no number from 1 to 4096, or two for one agent.
    pub fn parse(values: &[String], default: u32) -> Result<Widths> {
        let (mut common, mut own) = (None, BTreeMap::new());
        for value in values {
            let (role, number) = match value.split_once('=') {
                Some((role, number)) => (Some(role), number),
                None => (None, value.as_str()),
            };
            let number = number.parse().ok().filter(|number| (1..=MOST).contains(number));
            let number = number.filter(|_| role != Some("")).ok_or_else(|| {
                Failure::usage(format!("--branches {value}: not K or ROLE=K with K from 1 to {MOST}"))
                    .hint("--branches 4 --branches checker=8: a checker has 8 candidates at each turn, all others 4")
            })?;
            let before = match role {
                Some(role) => own.insert(role.to_owned(), number),
                None => common.replace(number),
            };
            if before.is_some() {
                let of = role.map_or("all agents".to_owned(), |role| format!("agent {role}"));
                return Err(Failure::usage(format!("--branches gives two numbers for {of}")));
            }
        }
        Ok(Widths { common: common.unwrap_or(default), own })
    }

    /// Candidates of `agent` at a turn.
    pub fn of(&self, agent: &str) -> u32 {
        self.own.get(agent).copied().unwrap_or(self.common)
    }

    /// The most that an agent has.
    pub fn most(&self) -> u32 {
        self.own.values().copied().fold(self.common, u32::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(values: &[&str]) -> Result<Widths> {
        Widths::parse(&values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>(), 4)
    }

    #[test]
    fn an_agent_has_its_own_number_or_that_of_all() {
        let widths = parsed(&["checker=8", "2"]).expect("widths");
        assert_eq!((widths.of("checker"), widths.of("solver"), widths.most()), (8, 2, 8));
        assert_eq!(parsed(&[]).expect("the default"), Widths::all(4));
        for wrong in
            [&["0"][..], &["4097"], &["x=0"], &["=3"], &["x="], &["2", "3"], &["x=2", "x=2"], &["-1"]]
        {
            assert_eq!(parsed(wrong).expect_err("no widths").code, 2, "{wrong:?}");
        }
    }
}

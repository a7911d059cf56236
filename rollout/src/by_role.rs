//! Flags with a value for all agents or for one: `--branches 4 --branches checker=8`.

use std::collections::BTreeMap;

use record::failure::{Failure, Result};

/// The most candidates of a group.
pub const MOST: u32 = 4096;

/// A value for each agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByRole<T> {
    /// For agents that no flag names.
    pub common: T,
    /// By agent.
    pub own: BTreeMap<String, T>,
}

/// How many candidates each agent has at a turn.
pub type Widths = ByRole<u32>;

/// How a flag is written, for its errors.
#[derive(Clone, Copy, Debug)]
pub struct RoleFlag {
    pub name: &'static str,
    /// The letter for its value.
    pub value: &'static str,
    /// The range of its values.
    pub range: &'static str,
    /// An example.
    pub hint: &'static str,
}

const BRANCHES: RoleFlag = RoleFlag {
    name: "--branches",
    value: "K",
    range: "from 1 to 4096",
    hint: "--branches 4 --branches checker=8: a checker has 8 candidates at each turn, all others 4",
};

impl<T> ByRole<T> {
    /// One value for every agent.
    pub fn all(common: T) -> ByRole<T> {
        ByRole { common, own: BTreeMap::new() }
    }

    /// The values of a flag, each `VALUE` or `ROLE=VALUE`, which `read` understands.
    ///
    /// # Errors
    /// Usage: a value that `read` refuses, or two for one agent.
    pub fn parse(
        flag: &RoleFlag,
        values: &[String],
        default: T,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<ByRole<T>> {
        let (mut common, mut own) = (None, BTreeMap::new());
        for value in values {
            let (role, text) = match value.split_once('=') {
                Some((role, text)) => (Some(role), text),
                None => (None, value.as_str()),
            };
            let read = read(text).filter(|_| role != Some("")).ok_or_else(|| {
                let RoleFlag { name, value: letter, range, hint } = flag;
                Failure::usage(format!("{name} {value}: not {letter} or ROLE={letter} with {letter} {range}"))
                    .hint(*hint)
            })?;
            let before = match role {
                Some(role) => own.insert(role.to_owned(), read),
                None => common.replace(read),
            };
            if before.is_some() {
                let of = role.map_or("all agents".to_owned(), |role| format!("agent {role}"));
                return Err(Failure::usage(format!("{} gives two values for {of}", flag.name)));
            }
        }
        Ok(ByRole { common: common.unwrap_or(default), own })
    }

    /// The value for `agent`.
    pub fn of(&self, agent: &str) -> &T {
        self.own.get(agent).unwrap_or(&self.common)
    }

    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.own.values().chain([&self.common])
    }
}

impl Widths {
    /// The values of `--branches`.
    ///
    /// # Errors
    /// Usage: no number from 1 to 4096, or two for one agent.
    pub fn of_flag(values: &[String], default: u32) -> Result<Widths> {
        let read = |text: &str| text.parse().ok().filter(|number| (1..=MOST).contains(number));
        ByRole::parse(&BRANCHES, values, default, read)
    }

    /// The most that an agent has.
    pub fn most(&self) -> u32 {
        self.values().copied().fold(0, u32::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(values: &[&str]) -> Result<Widths> {
        Widths::of_flag(&values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>(), 4)
    }

    #[test]
    fn an_agent_has_its_own_number_or_the_common_one() {
        let widths = parsed(&["checker=8", "2"]).expect("widths");
        assert_eq!((*widths.of("checker"), *widths.of("solver"), widths.most()), (8, 2, 8));
        assert_eq!(parsed(&["checker=1", "4"]).expect("widths").most(), 4, "the common one may be the most");
        assert_eq!(parsed(&[]).expect("the default"), Widths::all(4));
        for wrong in
            [&["0"][..], &["4097"], &["x=0"], &["=3"], &["x="], &["2", "3"], &["x=2", "x=2"], &["-1"]]
        {
            assert_eq!(parsed(wrong).expect_err("no widths").code, 2, "{wrong:?}");
        }
    }
}

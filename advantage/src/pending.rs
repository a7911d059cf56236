//! A group that is being gathered.

use record::failure::{Failure, Result};
use record::read::Line;
use record::sample::Sample;

use crate::credit::Place;
use crate::whole::Trajectory;

/// One sample of a group.
#[derive(Debug)]
pub struct Member {
    /// The line as it came.
    pub text: String,
    /// Where it came from and what it is called, `stdin:17: 12.7/1/planner/3`.
    pub place: String,
    /// Its own reward, in units of reward.
    pub reward: f64,
    /// What `remax` compares it with.
    pub baseline: f64,
    /// What it is a part of, as far as `--credit` asks.
    pub part: Part,
}

/// What a sample is credited as a part of.
#[derive(Debug)]
pub enum Part {
    /// Nothing: its own reward counts.
    Alone,
    /// A place on an executed path.
    Path(Place),
    /// A whole episode.
    Trajectory(Trajectory),
}

impl Part {
    /// The whole episode that it is a part of.
    pub fn trajectory(&self) -> Option<&Trajectory> {
        match self {
            Part::Trajectory(trajectory) => Some(trajectory),
            _ => None,
        }
    }
}

/// A group that is being gathered.
#[derive(Debug)]
pub struct Pending {
    key: String,
    size: u32,
    /// In the order of arrival.
    pub members: Vec<Member>,
}

impl Pending {
    /// A group of `size` without members yet.
    pub fn new(key: String, size: u32) -> Self {
        Pending { key, size, members: Vec::with_capacity(size.min(1024) as usize) }
    }

    /// Adds a member.
    ///
    /// # Errors
    /// 65 when it does not agree with the others on the size of the group.
    pub fn push(&mut self, member: Member, sample: &Sample, line: &Line) -> Result<()> {
        let size = sample.group_size.unwrap_or_default();
        if let Some(first) = self.members.first()
            && size != self.size
        {
            let cause =
                format!("group_size is {size}, but {} on {} of the same group", self.size, first.place);
            return Err(sample.failure(line, cause).hint("were two runs joined after they were grouped?"));
        }
        self.members.push(member);
        Ok(())
    }

    /// Whether all members are there.
    pub fn is_whole(&self) -> bool {
        self.members.len() == self.size as usize
    }

    /// The failure for a group that the stream ended in.
    pub fn incomplete(&self) -> Failure {
        let place = self.members.first().map_or("stdin", |member| &member.place);
        Failure::data(format!(
            "{place}: group {}: the stream ended with {} of {} members",
            self.key,
            self.members.len(),
            self.size
        ))
        .hint("filter before group, which counts the members, or drop whole groups")
    }
}

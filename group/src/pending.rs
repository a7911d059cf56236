//! A group that is being gathered, and the proof that it is one.

use std::collections::HashSet;

use record::failure::Result;
use record::read::Line;
use record::sample::Sample;

/// Missing branches that a message names, however many there are.
const NAMED: usize = 8;

/// One sample of a group.
#[derive(Debug)]
pub struct Member {
    /// The line as it came.
    pub text: String,
    /// Where it came from, `stdin:17`.
    pub place: String,
    /// Its name.
    pub id: String,
    branch: u32,
    /// What it earned, where only the parts are told their sum; none where it was not scored.
    reward: Option<f64>,
    /// Whether it was scored, be it in parts only.
    pub scored: bool,
}

/// What the siblings of the first member must have in common with it.
#[derive(Debug, Default)]
struct Common {
    prompt_ids: Vec<u32>,
    branches: u32,
    parallel: bool,
    task: Option<String>,
    policy_version: Option<String>,
}

/// A group that is being gathered.
#[derive(Debug)]
pub struct Pending {
    /// Its name.
    pub key: String,
    /// What the name is made of.
    parts: Vec<String>,
    /// In the order of arrival.
    pub members: Vec<Member>,
    common: Common,
}

impl Pending {
    /// A group without members, called `key`, which is made of `parts`.
    pub fn new(key: String, parts: Vec<String>) -> Self {
        Pending { key, parts, members: Vec::new(), common: Common::default() }
    }

    /// Adds a member with the same `parts`; with `siblings` only one that provably is a candidate for the same action in
    /// the same state.
    ///
    /// # Errors
    /// 65 naming the line and both members when it is not.
    pub fn push(&mut self, sample: Sample, line: Line, parts: &[String], siblings: bool) -> Result<()> {
        if let Some(first) = self.members.first()
            && parts != self.parts
        {
            let cause = format!(
                "group {} is also the name of the group of {} on {}",
                self.key, first.id, first.place
            );
            return Err(sample
                .failure(&line, cause)
                .hint("the names of episodes and agents are joined by `/`: rename one that contains it"));
        }
        if siblings {
            match self.members.first() {
                None => self.common = Common::of(&sample),
                Some(first) => self.common.check(&sample, &line, first)?,
            }
        }
        self.members.push(Member {
            place: line.place(),
            text: line.text,
            id: sample.id.unwrap_or_default(),
            branch: sample.branch.unwrap_or_default(),
            reward: sample
                .reward
                .flatten()
                .or_else(|| sample.rewards.map(|rewards| rewards.team + rewards.local)),
            scored: sample.reward.map_or(sample.rewards.is_some(), |reward| reward.is_some()),
        });
        Ok(())
    }

    /// Whether every branch is there. The stream has refused a branch that came twice.
    pub fn is_whole(&self) -> bool {
        self.members.len() == self.common.branches as usize
    }

    /// Whether the members come from episodes side by side, which need not all last as long.
    pub fn is_parallel(&self) -> bool {
        self.common.parallel
    }

    /// Whether all members earned the same, so that none is better than another.
    pub fn is_flat(&self) -> bool {
        self.members.windows(2).all(|pair| pair[0].reward == pair[1].reward)
    }

    /// `3 of 4 branches, 2 is missing`; of many that are missing only the first.
    pub fn what_is_missing(&self) -> String {
        let there: HashSet<u32> = self.members.iter().map(|member| member.branch).collect();
        let (here, wanted) = (self.members.len(), self.common.branches);
        let missing = (0..wanted).filter(|branch| !there.contains(branch));
        let named: Vec<String> = missing.take(NAMED).map(|branch| branch.to_string()).collect();
        let more = if (wanted as usize).saturating_sub(here) > NAMED { " and more" } else { "" };
        let is_missing = if named.len() == 1 { "is missing" } else { "are missing" };
        format!("{here} of {wanted} branches, {}{more} {is_missing}", named.join(", "))
    }
}

impl Common {
    fn of(sample: &Sample) -> Self {
        Common {
            prompt_ids: sample.prompt_ids.clone().unwrap_or_default(),
            branches: sample.branches.unwrap_or_default(),
            parallel: sample.is_parallel(),
            task: sample.task.clone(),
            policy_version: sample.policy_version.clone(),
        }
    }

    fn check(&self, sample: &Sample, line: &Line, first: &Member) -> Result<()> {
        let refuse = |cause: String, hint: &str| {
            let with = format!("{} on {}", first.id, first.place);
            Err(sample.failure(line, format!("{cause} {with}, which is in the same group")).hint(hint))
        };
        if sample.is_parallel() != self.parallel {
            return refuse(
                "sampling_mode differs from that of".to_owned(),
                "a stream with tree and parallel sampling needs different episode names for them",
            );
        }
        if sample.branches.unwrap_or_default() != self.branches {
            let branches = sample.branches.unwrap_or_default();
            return refuse(
                format!("branches is {branches}, but {} for", self.branches),
                "siblings agree on how many they are; were two runs joined?",
            );
        }
        for (name, mine, theirs) in [
            ("task", &sample.task, &self.task),
            ("policy_version", &sample.policy_version, &self.policy_version),
        ] {
            if mine != theirs {
                return refuse(
                    format!("{name} differs from that of"),
                    "siblings are answers of one policy to one state; were two runs joined?",
                );
            }
        }
        let prompt_ids = sample.prompt_ids.as_deref().unwrap_or_default();
        if !self.parallel && prompt_ids != self.prompt_ids {
            let place = difference(prompt_ids, &self.prompt_ids);
            return refuse(
                format!("prompt_ids differ {place} from those of"),
                "only answers to one prompt can be compared; --by episode and the other ablations do not ask for it",
            );
        }
        Ok(())
    }
}

/// Where two different prompts part.
fn difference(mine: &[u32], theirs: &[u32]) -> String {
    match mine.iter().zip(theirs).position(|(a, b)| a != b) {
        Some(position) => format!("at token {position} ({} against {})", mine[position], theirs[position]),
        None => format!("in length ({} against {})", mine.len(), theirs.len()),
    }
}

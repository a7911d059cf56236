//! Checks that the members of a group are siblings: candidates of one policy for one action in one state.

use std::collections::HashSet;

use record::failure::Result;
use record::read::Line;
use record::sample::{Sample, Sampling};

/// How many missing branches a message names at most.
const NAMED: usize = 8;

/// The fields that siblings share.
#[derive(Debug)]
pub struct Common {
    prompt_ids: Vec<u32>,
    /// Number of siblings.
    pub branches: u32,
    /// True if they come from parallel episodes, which may end at different turns.
    pub parallel: bool,
    task: Option<String>,
    policy_version: Option<String>,
    sampling: Option<Sampling>,
}

impl Common {
    /// The fields of `sample` that siblings share.
    pub fn of(sample: &Sample) -> Self {
        Common {
            prompt_ids: sample.prompt_ids.clone().unwrap_or_default(),
            branches: sample.branches.unwrap_or_default(),
            parallel: sample.is_parallel(),
            task: sample.task.as_deref().map(str::to_owned),
            policy_version: sample.policy_version.as_deref().map(str::to_owned),
            sampling: sample.sampling.clone(),
        }
    }

    /// Checks that `sample` is a sibling of the group's first member; `first` names that member in messages.
    ///
    /// # Errors
    /// 65, naming the line and both members.
    pub fn check(&self, sample: &Sample, line: &Line, first: impl Fn() -> String) -> Result<()> {
        let refuse = |cause: String, hint: &str| {
            Err(sample.failure(line, format!("{cause} {}, which is in the same group", first())).hint(hint))
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
        for (name, own, common) in [
            ("task", &sample.task, &self.task),
            ("policy_version", &sample.policy_version, &self.policy_version),
        ] {
            if own.as_deref() != common.as_deref() {
                return refuse(
                    format!("{name} differs from that of"),
                    "siblings are answers of one policy to one state; were two runs joined?",
                );
            }
        }
        let agree = match (&sample.sampling, &self.sampling) {
            (Some(own), Some(common)) => own.agrees(common),
            (own, common) => own.is_none() == common.is_none(),
        };
        if !agree {
            return refuse(
                "sampling differs from that of".to_owned(),
                "siblings are drawn from one distribution and end by the same rules; were two runs joined?",
            );
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

    /// `3 of 4 branches, 2 is missing`; names only the first few.
    pub fn missing(&self, present: &HashSet<u32>) -> String {
        let (here, wanted) = (present.len(), self.branches);
        let missing = (0..wanted).filter(|branch| !present.contains(branch));
        let named: Vec<String> = missing.take(NAMED).map(|branch| branch.to_string()).collect();
        let more = if (wanted as usize).saturating_sub(here) > NAMED { " and more" } else { "" };
        let is_missing = if named.len() == 1 { "is missing" } else { "are missing" };
        format!("{here} of {wanted} branches, {}{more} {is_missing}", named.join(", "))
    }
}

/// Describes the first difference between two prompts.
fn difference(own: &[u32], common: &[u32]) -> String {
    match own.iter().zip(common).position(|(a, b)| a != b) {
        Some(position) => format!("at token {position} ({} against {})", own[position], common[position]),
        None => format!("in length ({} against {})", own.len(), common.len()),
    }
}

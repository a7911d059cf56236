//! The processes that train each policy: all of them, or with `--side-by-side` an equal share.

use record::failure::{Failure, Result};
use record::stage;

use super::{Communicator, ended_by_rank_0, find_on, gather};

/// All processes of a call, and with `--side-by-side` the ones that train one policy with this one.
pub struct PolicyRanks<'a> {
    /// All of them.
    pub all: &'a dyn Communicator,
    own: Option<Box<dyn Communicator>>,
}

impl PolicyRanks<'_> {
    /// Splits the processes among policies that train side by side; otherwise all processes train each policy.
    pub fn new(all: &dyn Communicator, policies: usize, side_by_side: bool) -> PolicyRanks<'_> {
        PolicyRanks { all, own: side_by_side.then(|| all.split(policies)) }
    }

    /// True if each policy has separate processes.
    pub fn is_split(&self) -> bool {
        self.own.is_some()
    }

    /// The processes that train a policy with this one.
    pub fn own(&self) -> &dyn Communicator {
        self.own.as_deref().unwrap_or(self.all)
    }

    /// True if this process trains a policy.
    pub fn trains(&self, policy: usize) -> bool {
        !self.is_split() || self.all.rank() / self.own().count() == policy
    }

    /// Waits for all, where policies train side by side.
    pub fn wait(&self) {
        if self.is_split() {
            gather(self.all, &[]);
        }
    }

    /// Evaluates `find` on the first process of a policy and broadcasts the result.
    pub fn find_on_first(&self, policy: usize, find: impl FnOnce() -> Result<String>) -> Result<String> {
        find_on(self.all, policy * self.own().count(), find)
    }

    /// Where policies train side by side, ends all with the failure of one, of which rank 0 knows nothing.
    pub fn failed(&self, failure: Failure) -> Failure {
        let rank = self.all.rank();
        // Where rank 0 fails, too, it says why.
        if self.is_split() && rank > 0 && self.own().rank() == 0 && !ended_by_rank_0(1) {
            stage::report("update", &failure.clone().at(format_args!("rank {rank}")));
            stage::drain_stderr();
            self.all.abort(failure.code);
        }
        failure
    }
}

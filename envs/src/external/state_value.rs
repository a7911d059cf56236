//! The state of an episode: JSON that travels with every request, or a handle of a state that stays in a process of the program. Either
//! stays the text that the program wrote.
//!
//! A handle is copied when it has to be: clones of a state share it, and an action in a shared one asks the process to act on a copy
//! (`fork`). Handles that nobody holds any more are told to their process with its next request (`drop`).

use std::sync::Arc;

use record::failure::{Failure, Result};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::external::processes::Processes;

#[derive(Clone)]
pub(super) enum StateValue {
    Json(Box<RawValue>),
    Handle(Arc<Handle>),
}

/// The name of a state in the process that has it.
pub(super) struct Handle {
    processes: Arc<Processes>,
    process: u64,
    name: Box<RawValue>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.processes.drop_handle(self.process, self.name.clone());
    }
}

impl StateValue {
    /// The state that an answer of `process` describes by `state`.
    pub(super) fn new(
        processes: &Arc<Processes>,
        process: u64,
        state: Box<RawValue>,
        handles: bool,
    ) -> StateValue {
        match handles {
            false => StateValue::Json(state),
            true => {
                StateValue::Handle(Arc::new(Handle { processes: processes.clone(), process, name: state }))
            }
        }
    }

    /// The state as the program wrote it.
    pub(super) fn value(&self) -> &RawValue {
        match self {
            StateValue::Json(state) => state,
            StateValue::Handle(handle) => &handle.name,
        }
    }

    pub(super) fn is_handle(&self) -> bool {
        matches!(self, StateValue::Handle(_))
    }

    /// The answer to `request` about this state, which it leaves as it is.
    pub(super) fn ask(&self, processes: &Processes, request: &impl Serialize) -> Result<String> {
        self.request(processes, request, false)
    }

    fn request(&self, processes: &Processes, body: &impl Serialize, fork: bool) -> Result<String> {
        #[derive(Serialize)]
        struct InState<'a, B> {
            #[serde(flatten)]
            body: &'a B,
            state: &'a RawValue,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            fork: bool,
        }
        let request = InState { body, state: self.value(), fork };
        match self {
            StateValue::Json(_) => Ok(processes.ask(&request)?.0),
            StateValue::Handle(handle) => processes.ask_process(handle.process, &request),
        }
    }

    /// The answer to `request`, an action in this state, which becomes the state after it.
    ///
    /// # Errors
    /// As [`StateValue::ask`]. The state is the one before the action, unless it was a handle that nobody else holds.
    pub(super) fn apply(&mut self, processes: &Processes, request: &impl Serialize) -> Result<String> {
        #[derive(Deserialize)]
        struct After {
            #[serde(default)]
            state: Box<RawValue>,
        }
        let is_shared = matches!(self, StateValue::Handle(handle) if Arc::strong_count(handle) > 1);
        let answer = self.request(processes, request, is_shared)?;
        let After { state } = serde_json::from_str(&answer).map_err(Failure::work)?;
        match self {
            StateValue::Json(current) => *current = state,
            StateValue::Handle(handle) if handle.name.get() == state.get() => {}
            StateValue::Handle(handle) => {
                let (processes, process) = (handle.processes.clone(), handle.process);
                *self = StateValue::new(&processes, process, state, true);
            }
        }
        Ok(answer)
    }
}

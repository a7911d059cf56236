//! The state of an episode: JSON that travels with every request, or a handle of a state that stays in a process of the program.
//!
//! A handle is copied when it has to be: clones of a state share it, and an action in a shared one asks the process to act on a copy
//! (`fork`). Handles that nobody holds any more are told to their process with its next request (`drop`).

use std::sync::Arc;

use record::failure::Result;
use serde_json::{Map, Value};

use crate::external::processes::Processes;

#[derive(Clone)]
pub(super) enum StateValue {
    Json(Value),
    Handle(Arc<Handle>),
}

/// The name of a state in the process that has it.
pub(super) struct Handle {
    processes: Arc<Processes>,
    process: u64,
    name: Value,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.processes.drop_handle(self.process, self.name.take());
    }
}

impl StateValue {
    /// The state that an answer of `process` describes by `state`.
    pub(super) fn new(processes: &Arc<Processes>, process: u64, state: Value, handles: bool) -> StateValue {
        match handles {
            false => StateValue::Json(state),
            true => {
                StateValue::Handle(Arc::new(Handle { processes: processes.clone(), process, name: state }))
            }
        }
    }

    /// The state as the program wrote it.
    pub(super) fn value(&self) -> &Value {
        match self {
            StateValue::Json(state) => state,
            StateValue::Handle(handle) => &handle.name,
        }
    }

    pub(super) fn is_handle(&self) -> bool {
        matches!(self, StateValue::Handle(_))
    }

    /// The answer to `request` about this state, which it leaves as it is.
    pub(super) fn ask(&self, processes: &Processes, mut request: Value) -> Result<Map<String, Value>> {
        request["state"] = self.value().clone();
        match self {
            StateValue::Json(_) => Ok(processes.ask(request)?.0),
            StateValue::Handle(handle) => processes.ask_process(handle.process, request),
        }
    }

    /// The answer to `request`, an action in this state, which becomes the state after it.
    ///
    /// # Errors
    /// As [`StateValue::ask`]. The state is the one before the action, unless it was a handle that nobody else holds.
    pub(super) fn apply(&mut self, processes: &Processes, mut request: Value) -> Result<Map<String, Value>> {
        if let StateValue::Handle(handle) = self
            && Arc::strong_count(handle) > 1
        {
            request["fork"] = true.into();
        }
        let answer = self.ask(processes, request)?;
        let state = answer.get("state").cloned().unwrap_or_default();
        match self {
            StateValue::Json(current) => *current = state,
            StateValue::Handle(handle) if handle.name == state => {}
            StateValue::Handle(handle) => {
                let (processes, process) = (handle.processes.clone(), handle.process);
                *self = StateValue::new(&processes, process, state, true);
            }
        }
        Ok(answer)
    }
}

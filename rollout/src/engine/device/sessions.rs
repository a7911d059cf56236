//! The sessions of a policy, one for each attention that its runs may have. They share weights, cache and inputs.

use super::session::Session;
use crate::engine::onnx::Element;
use record::failure::Result;

/// The attention of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attention {
    /// ONNX Runtime's, for any run.
    OnnxRuntime,
    /// Ours, for any run.
    Prefill,
    /// Ours for newest tokens alone.
    Decode,
}

impl Attention {
    /// The attention of a run: ours or ONNX Runtime's, for decoding or for prompts.
    pub fn of(own: bool, decodes: bool) -> Attention {
        match (own, decodes) {
            (false, _) => Attention::OnnxRuntime,
            (true, false) => Attention::Prefill,
            (true, true) => Attention::Decode,
        }
    }
}

pub struct Sessions {
    /// At least one.
    all: Vec<(Attention, Session)>,
    selected: usize,
}

impl Sessions {
    /// One or more sessions.
    pub fn new(all: Vec<(Attention, Session)>) -> Sessions {
        Sessions { all, selected: 0 }
    }

    /// Selects the session that binds and runs next.
    pub fn select(&mut self, attention: Attention) {
        let place = self.all.iter().position(|(of, _)| *of == attention);
        debug_assert!(place.is_some(), "no session for {attention:?}");
        self.selected = place.unwrap_or(0);
    }

    /// The attention of the selected session.
    pub fn attention(&self) -> Attention {
        self.all[self.selected].0
    }

    pub fn selected(&mut self) -> &mut Session {
        &mut self.all[self.selected].1
    }

    /// The session for newest tokens alone, if there is one.
    pub fn decoding(&mut self) -> Option<&mut Session> {
        self.all.iter_mut().find(|(of, _)| *of == Attention::Decode).map(|(_, session)| session)
    }

    /// Binds an input of all, see [`Session::input`].
    pub fn input<T: Element>(&mut self, name: &str, address: u64, shape: &[usize]) -> Result<()> {
        self.all.iter_mut().try_for_each(|(_, session)| session.input::<T>(name, address, shape))
    }

    /// Binds an output of all.
    pub fn output<T: Element>(&mut self, name: &str, address: u64, shape: &[usize]) -> Result<()> {
        self.all.iter_mut().try_for_each(|(_, session)| session.output::<T>(name, address, shape))
    }
}

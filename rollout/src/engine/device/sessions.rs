//! The sessions of a policy: one that runs everything, with ONNX Runtime's attention, and one for decoding, with ours. They share
//! weights, cache and inputs.

use super::session::Session;
use crate::engine::onnx::Element;
use record::failure::Result;

pub struct Sessions {
    all: Session,
    decoding: Option<Session>,
    /// True if the next run is one for our attention.
    decodes: bool,
}

impl Sessions {
    pub fn new(all: Session, decoding: Option<Session>) -> Sessions {
        Sessions { all, decoding, decodes: false }
    }

    /// Selects the session that binds and runs next: without one for our attention, the one for everything.
    pub fn select(&mut self, decodes: bool) {
        self.decodes = decodes && self.decoding.is_some();
    }

    /// True if the session for decoding is selected.
    pub fn decodes(&self) -> bool {
        self.decodes
    }

    /// The selected session.
    pub fn selected(&mut self) -> &mut Session {
        match &mut self.decoding {
            Some(session) if self.decodes => session,
            _ => &mut self.all,
        }
    }

    /// The one for decoding, if there is one.
    pub fn decoding(&mut self) -> Option<&mut Session> {
        self.decoding.as_mut()
    }

    /// Binds an input of both, see [`Session::input`].
    pub fn input<T: Element>(&mut self, name: &str, address: u64, shape: &[usize]) -> Result<()> {
        self.each().try_for_each(|session| session.input::<T>(name, address, shape))
    }

    /// Binds an output of both.
    pub fn output<T: Element>(&mut self, name: &str, address: u64, shape: &[usize]) -> Result<()> {
        self.each().try_for_each(|session| session.output::<T>(name, address, shape))
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Session> {
        [&mut self.all].into_iter().chain(&mut self.decoding)
    }
}

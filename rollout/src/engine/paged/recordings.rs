//! Runs of one form, recorded once and repeated at the price of one call.
//!
//! A run asks a device for some sixteen launches a layer, and asking takes the processor longer than a small batch takes the
//! device: decoding few sequences of a small model waits for launches and little else. A recording (on a GPU a CUDA
//! graph) holds all of a run from the first layer to the chosen tokens.
//!
//! The first run of a form is only run, which loads and allocates what it needs. The second is run, recorded and repeated,
//! and the two have to give the same bits: a library that did something outside of the recording, or recorded a number that
//! should be read anew, is found then. From the third on the recording is repeated. Where recording fails or what it repeats
//! differs, that is said once, and everything is run as before.

use super::form::Form;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Recordings kept, at most: each holds memory of the driver's for its few hundred launches.
const MOST: usize = 64;

/// The recordings of a runner, which records as `R`.
pub struct Recordings<R> {
    /// Forms that were run, and their recordings where there is one yet.
    known: HashMap<Form, Option<R>>,
    /// Whether there may be any.
    open: bool,
}

/// What to do with a run.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a, R> {
    /// Run it.
    Run,
    /// Run it, record it, and compare.
    Record,
    /// Repeat this.
    Repeat(&'a R),
}

impl<R> Recordings<R> {
    /// No recordings yet.
    pub fn new() -> Self {
        Recordings { known: HashMap::new(), open: true }
    }

    /// What to do with a run of a form.
    pub fn step(&mut self, form: &Form) -> Step<'_, R> {
        if !form.common || !self.open {
            return Step::Run;
        }
        let full = self.known.values().flatten().count() >= MOST;
        match self.known.entry(*form) {
            Entry::Vacant(entry) => {
                entry.insert(None);
                Step::Run
            }
            Entry::Occupied(entry) => match entry.into_mut() {
                Some(recording) => Step::Repeat(recording),
                None if full => Step::Run,
                None => Step::Record,
            },
        }
    }

    /// Keeps the recording of a form.
    pub fn keep(&mut self, form: Form, recording: R) {
        self.known.insert(form, Some(recording));
    }

    /// Records no more, and repeats none.
    pub fn give_up(&mut self) {
        *self = Recordings { known: HashMap::new(), open: false };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(rows: usize, common: bool) -> Form {
        Form { rows, sequences: rows, wanted: rows, requests: rows, width: 1, bounds: [1, 512, 1], common }
    }

    #[test]
    fn a_form_is_recorded_when_it_comes_again() {
        let mut recordings = Recordings::new();
        let (one, two) = (form(1, true), form(2, true));
        assert_eq!(recordings.step(&one), Step::Run);
        assert_eq!(recordings.step(&two), Step::Run);
        assert_eq!(recordings.step(&one), Step::Record);
        recordings.keep(one, "one");
        assert_eq!(recordings.step(&one), Step::Repeat(&"one"));
        assert_eq!(recordings.step(&two), Step::Record);
        for _ in 0..3 {
            assert_eq!(recordings.step(&form(1, false)), Step::Run);
        }
        recordings.give_up();
        for _ in 0..3 {
            assert_eq!(recordings.step(&one), Step::Run);
        }
    }

    #[test]
    fn there_are_never_more_than_the_driver_has_room_for() {
        let mut recordings = Recordings::new();
        for rows in 0..MOST + 1 {
            recordings.step(&form(rows, true));
            if recordings.step(&form(rows, true)) == Step::Record {
                recordings.keep(form(rows, true), rows);
            }
        }
        assert_eq!(recordings.step(&form(MOST - 1, true)), Step::Repeat(&(MOST - 1)));
        assert_eq!(recordings.step(&form(MOST, true)), Step::Run);
    }
}

//! What tests draw from an environment: tasks and demonstrations.

use envs::{Demonstration, Selection, Settings, Split, find};
use record::line::Task;
use record::sample::Sample;

pub fn settings(environment: &str, texts: &[&str]) -> Settings {
    let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
    Settings::parse(&texts, environment, find(environment).unwrap().metadata().settings).unwrap()
}

pub fn selection(environment: &str, split: Split, seed: u64, texts: &[&str]) -> Selection {
    Selection { split, seed, settings: settings(environment, texts) }
}

pub fn tasks(environment: &str, split: Split, seed: u64, texts: &[&str], count: usize) -> Vec<Task> {
    let selection = selection(environment, split, seed, texts);
    find(environment).unwrap().tasks(&selection).unwrap().take(count).map(Result::unwrap).collect()
}

/// Eight states of each of `count` train tasks of seed 4.
pub fn demonstrations(
    environment: &str,
    workflow: &str,
    mix: &[(&str, f64)],
    follow: f64,
    count: usize,
) -> Vec<Vec<Sample<'static>>> {
    let demonstration = Demonstration {
        tasks: selection(environment, Split::Train, 4, &[]),
        workflow: workflow.to_owned(),
        mix: mix.iter().map(|(kind, share)| ((*kind).to_owned(), *share)).collect(),
        states: 8,
        follow,
    };
    let batches = find(environment).unwrap().demonstrations(&demonstration).unwrap();
    batches.take(count).map(Result::unwrap).collect()
}

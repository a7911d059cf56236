//! Tasks of the Code environment: their references and wrong programs, run in the sandbox.

#![cfg(target_os = "linux")]

use std::collections::HashSet;

use envs::Split;
use problems::code::expression;
use problems::code::judge::{golden, quality};
use problems::code::spec::Instance;
use record::philox::{Draws, Part, Stream};
use sandbox::{Entry, Program};

use super::code::tasks;
use crate::support;

#[test]
fn references_pass_the_tests_that_were_computed_without_them() {
    if support::sandbox().is_none() {
        return;
    }
    for texts in
        [&["encoding=compact"][..], &["encoding=full", "level=2", "least=1", "most=4"], &["encoding=full"]]
    {
        for task in tasks(texts, Split::Train, 40) {
            let instance = Instance::parse(&task.spec).unwrap();
            let solution = instance.problem.solution.clone().unwrap();
            let tally = golden(&instance, &solution).unwrap();
            assert!(tally.all(), "{}: {tally:?}\n{solution}\n{}", task.task, instance.problem.statement);
            for wrong in &instance.problem.wrong {
                assert!(!golden(&instance, wrong).unwrap().all(), "{}: not wrong: {wrong}", task.task);
            }
        }
    }
}

/// Expressions that are computed here give what the sandbox's Python gives.
#[test]
fn expressions_are_what_python_makes_of_them() {
    let Some(sandbox) = support::sandbox() else { return };
    let words = ["x", "x", "2", "7", "10", "07", "+", "-", "*", "(", ")"];
    let mut draws = Draws::new(Stream::named(7, &[Part::Text("expressions")]));
    let mut expressions: Vec<String> = (0..150)
        .map(|_| (0..1 + draws.below(6)).flat_map(|_| [" ", draws.choose(&words).unwrap()]).collect())
        .collect();
    for task in tasks(&["most=4"], Split::Train, 10) {
        let instance = Instance::parse(&task.spec).unwrap();
        let programs = instance.problem.solution.iter().chain(&instance.problem.wrong);
        expressions.extend(programs.map(|program| expression::body(program).unwrap().to_owned()));
    }
    let mut values = 0;
    for text in &expressions {
        let source = expression::program(text);
        let program = Program { entry: Entry::Call("f"), ..Program::python(&source, "[-5]") };
        let python = sandbox.run(&program).unwrap().result.filter(|result| result != "[]");
        assert_eq!(expression::evaluate(text, -5).map(|value| value.to_string()), python, "{text}");
        values += usize::from(python.is_some());
    }
    assert!(values > 40, "{values}");
}

#[test]
fn shipped_problems_are_sound() {
    if support::sandbox().is_none() {
        return;
    }
    let mut names = HashSet::new();
    for split in [Split::Train, Split::Test] {
        for task in tasks(&["data=shipped"], split, 14) {
            names.insert(task.task.clone());
            let instance = Instance::parse(&task.spec).unwrap();
            let solution = instance.problem.solution.clone().unwrap();
            let tally = golden(&instance, &solution).unwrap();
            assert!(tally.all(), "{}: {tally:?}", task.task);
            let best = instance.problem.tests.iter().map(|test| quality(&instance, test).unwrap().finds);
            assert_eq!(best.fold(0.0, f64::max), 1.0, "{}: no test finds out all wrong programs", task.task);
        }
    }
    assert_eq!(names.len(), 14);
}

//! Programs that say whose turn it is, and programs that keep their states.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use envs::check::verdict;
use envs::{External, State};
use record::line::Task;
use troupe_tests::program::run_on;

use super::external::{broken, examples, report, tasks};

/// Where the state says whose turn it is, nobody else is asked: the program fails on an action out of turn.
#[test]
fn a_game_says_whose_turn_it_is() {
    says_whose_turn_it_is(&own("sticks.py"));
    // By name, with nothing to see for the others.
    says_whose_turn_it_is(&format!("{} --named", own("sticks.py")));
}

/// A program of these tests.
fn own(name: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/external").join(name);
    format!("PYTHONPATH='{}' python3 -B '{}'", examples().display(), script.display())
}

fn says_whose_turn_it_is(command: &str) {
    let tasks = tasks(command, 4);
    let report = report(command, &tasks);
    verdict("sticks", &report.findings).unwrap_or_else(|_| panic!("{:#?}", report.findings));
    let environment = External::new(command, Duration::from_secs(60));
    let mut state: Box<dyn State> = Box::new(environment.first_state(&tasks[0], None).unwrap());
    assert_eq!((state.acting(0), state.acting(1)), (vec![], vec![1]), "the second player begins");
    state.apply("second", "1").unwrap();
    assert_eq!((state.acting(0), state.acting(1)), (vec![], vec![1]), "who takes one stick goes on");
    state.apply("second", "2").unwrap();
    assert_eq!((state.acting(0), state.acting(1)), (vec![0], vec![]));
    let demo = Command::new("sh").arg("-c").arg(format!("{command} demo --count 3")).output().unwrap();
    assert!(demo.status.success(), "{}", String::from_utf8_lossy(&demo.stderr));
    let demo = String::from_utf8(demo.stdout).unwrap();
    assert!(demo.contains("\"agent\": \"second\"") && !demo.contains("\"content\": null"), "{demo}");
}

/// A state that stays in its process is copied where a clone needs it, and only there.
#[test]
fn a_state_may_be_a_handle_of_the_process() {
    let command = own("heap.py");
    let found = tasks(&command, 2);
    let sound = report(&command, &found);
    verdict("heap", &sound.findings).unwrap_or_else(|_| panic!("{:#?}", sound.findings));
    assert!(sound.notes.iter().any(|note| note.contains("states are handles")), "{:?}", sound.notes);
    let shared = format!("{} shared", own("heap.py"));
    assert!(broken(&report(&shared, &found)).contains(&"a copy of a state has the same future"));

    let environment = External::new(&format!("{} count", own("heap.py")), Duration::from_secs(60));
    let mut first: Box<dyn State> = Box::new(environment.first_state(&found[0], None).unwrap());
    let kept = |state: &dyn State| state.observe("player")[0].content.clone();
    let mut second = first.clone_state();
    // Nobody else holds it after the first action, so the second one needs no copy.
    second.apply("player", "1").unwrap();
    second.apply("player", "1").unwrap();
    assert_eq!(kept(&*second), "2 sticks");
    first.apply("player", "1").unwrap();
    assert_eq!(kept(&*first), "2 sticks");
    // The next request tells the dropped handles.
    drop(second);
    first.apply("player", "1").unwrap();
    assert_eq!(kept(&*first), "1 sticks");
}

/// The lines that docs/stream-format.md shows are the lines that are spoken.
#[test]
fn turns_and_handles_are_spoken_as_documented() {
    let record = std::fs::read_to_string(examples().parent().unwrap().join("docs/stream-format.md")).unwrap();
    for (mark, command) in [("turn", format!("{} --named", own("sticks.py"))), ("handles", own("heap.py"))] {
        let block = record.split(&format!("```{mark}\n")).nth(1).unwrap().split("```").next().unwrap();
        let printed =
            |mark: &str| -> Vec<&str> { block.lines().filter_map(|line| line.strip_prefix(mark)).collect() };
        let (requests, answers) = (printed("→ "), printed("← "));
        assert!(!answers.is_empty() && block.lines().count() == requests.len() + answers.len(), "{block}");
        let output = run_on(Command::new("sh").args(["-c", &command]), format!("{}\n", requests.join("\n")));
        assert_eq!(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<_>>(), answers);
    }
}

/// Another process has no such state: the episode ends with an error, and the next one is played.
#[test]
fn a_state_is_lost_with_the_process_that_kept_it() {
    let program = "import json, os, sys\nfor line in sys.stdin:\n  q = json.loads(line)\n  if 'action' in q: os._exit(3)\n  \
                   seen = {'a': [{'role': 'user', 'content': 'hi'}]}\n  print(json.dumps({'request': q['request'], 'state': 1, \
                   'observations': seen, 'agents': ['a'], 'order': 'sequential', 'handles': True}), flush=True)\n";
    let environment = External::new(&format!("python3 -c \"{program}\""), Duration::from_secs(60));
    let mut state = environment.first_state(&Task::default(), None).unwrap();
    let mut again = state.clone();
    assert!(state.apply("a", "x").unwrap_err().message.contains("ended without an answer"));
    let lost = again.apply("a", "x").unwrap_err().message;
    assert!(lost.ends_with("the process that held the state of this episode has ended"), "{lost}");
    assert!(environment.first_state(&Task::default(), None).is_ok());
}

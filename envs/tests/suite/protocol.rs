//! Mutated requests and task streams: every line has an answer or a refusal, and nothing panics.
//!
//! `TROUPE_FUZZ_SECONDS` makes it go on for longer, from other seeds.

use std::time::{Duration, Instant};

use envs::{ENVIRONMENTS, Environment, Selection, Settings, Split, step};
use record::failure::DATA;
use record::line::{self, Task};
use record::philox::{Draws, Part, Stream};
use record::read::{Kind, Reader};
use serde_json::{Value, json};
use troupe_tests::storm;

/// Values that are put in the place of others.
fn strange() -> Vec<Value> {
    let mut nested = json!(1);
    for _ in 0..200 {
        nested = json!([nested]);
    }
    let text = |text: &str| Value::from(text);
    vec![
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(17),
        json!(255),
        json!(1e308),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(0.1),
        text(""),
        text("a0"),
        text("z9"),
        text("\u{0}\u{1b}[2J"),
        text("team"),
        text(&"x".repeat(5000)),
        json!([]),
        json!({}),
        json!(["a0", "a0"]),
        nested,
    ]
}

/// Replaces, removes or doubles one value somewhere in `value`.
fn change(value: &mut Value, draws: &mut Draws, strange: &[Value]) {
    let deeper = draws.below(4) != 0;
    let pick = |count: usize, draws: &mut Draws| draws.below(count as u32) as usize;
    match value {
        Value::Object(fields) if deeper && !fields.is_empty() => {
            let index = pick(fields.len(), draws);
            let key = fields.keys().nth(index).unwrap().clone();
            match draws.below(8) {
                0 => drop(fields.shift_remove(&key)),
                1 => drop(fields.insert("more".to_owned(), json!(1))),
                _ => change(&mut fields[&key], draws, strange),
            }
        }
        Value::Array(values) if deeper && !values.is_empty() => {
            let index = pick(values.len(), draws);
            match draws.below(8) {
                0 => drop(values.remove(index)),
                1 => values.push(values[index].clone()),
                _ => change(&mut values[index], draws, strange),
            }
        }
        Value::Number(number) if draws.below(2) == 0 => {
            let near = number.as_f64().unwrap_or(0.0) + f64::from(draws.below(5)) - 2.0;
            *value = if near.fract() == 0.0 { json!(near as i64) } else { json!(near) };
        }
        _ => *value = strange[pick(strange.len(), draws)].clone(),
    }
}

/// Changes some bytes of a line.
fn garble(line: &str, draws: &mut Draws) -> String {
    let mut bytes = line.as_bytes().to_vec();
    for _ in 0..=draws.below(4) {
        let at = draws.below(bytes.len().max(1) as u32) as usize;
        match draws.below(4) {
            0 => bytes.truncate(at),
            1 => drop(bytes.get(at).is_some().then(|| bytes.remove(at))),
            2 => bytes.insert(at.min(bytes.len()), draws.below(256) as u8),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << draws.below(8)),
        }
    }
    String::from_utf8_lossy(&bytes).replace('\n', " ")
}

fn tasks(environment: &dyn Environment, count: usize) -> Vec<Task> {
    let selection = Selection { split: Split::Train, seed: 3, settings: Settings::default() };
    environment.tasks(&selection).unwrap().take(count).map(Result::unwrap).collect()
}

/// Requests of every kind, in the compact encoding, which needs no sandbox.
fn requests(environment: &dyn Environment) -> Vec<Value> {
    let mut requests = Vec::new();
    for task in tasks(environment, 3) {
        requests.push(json!({"request": 1, "task": task}));
        for workflow in environment.workflows() {
            let state = environment.reset(&task.spec, workflow.name()).unwrap();
            let agent = workflow.agents()[0].as_str();
            let (json, oracle) = (state.to_json(), state.oracle(agent).unwrap_or_default());
            requests.push(json!({"request": [1], "state": json, "agent": agent, "action": oracle}));
            requests.push(json!({"request": "p", "state": json, "agent": agent, "probe": true}));
            requests.push(json!({"request": null, "state": json, "actions": {agent: oracle}}));
        }
    }
    requests
}

/// The rounds of a test: the usual number, or until the time is up.
fn rounds(usual: u64) -> impl Iterator<Item = u64> {
    let (time, began) = (storm::fuzz_time(), Instant::now());
    let first = storm::seed() << 32;
    (0..)
        .take_while(move |round| time.map_or(*round < usual, |time| began.elapsed() < time))
        .map(move |round| first + round)
}

#[test]
fn every_request_has_an_answer() {
    let strange = strange();
    let sources: Vec<(&dyn Environment, Vec<Value>)> =
        ENVIRONMENTS.iter().map(|environment| (*environment, requests(*environment))).collect();
    for round in rounds(300) {
        for (environment, requests) in &sources {
            let name = [Part::Text(environment.name()), Part::Text("fuzz"), Part::Number(round)];
            let mut draws = Draws::new(Stream::named(1, &name));
            let mut request = draws.choose(requests).unwrap().clone();
            // Programs would have to run in the sandbox, and large boards take long to solve.
            for _ in 0..=draws.below(3) {
                change(&mut request, &mut draws, &strange);
            }
            let line = match draws.below(4) {
                0 => garble(&request.to_string(), &mut draws),
                _ => request.to_string(),
            };
            let began = Instant::now();
            let answer = step::answer(*environment, &line);
            assert!(began.elapsed() < Duration::from_secs(20), "{} took long: {line}", environment.name());
            assert!(!answer.contains('\n'), "{line}");
            let read: Value = serde_json::from_str(&answer).unwrap();
            assert!(
                read.get("error").is_some() || ["state", "probes"].iter().any(|key| read.get(key).is_some())
            );
        }
    }
}

#[test]
fn every_task_is_read_or_refused() {
    let strange = strange();
    let lines: Vec<Value> = ENVIRONMENTS
        .iter()
        .flat_map(|environment| tasks(*environment, 3))
        .map(|task| serde_json::to_value(task).unwrap())
        .collect();
    for round in rounds(5000) {
        let mut draws = Draws::new(Stream::named(2, &[Part::Text("tasks"), Part::Number(round)]));
        let mut task = draws.choose(&lines).unwrap().clone();
        change(&mut task, &mut draws, &strange);
        let text = match draws.below(2) {
            0 => garble(&task.to_string(), &mut draws),
            _ => task.to_string(),
        };
        let mut reader = Reader::new("tasks", text.as_bytes());
        let read = reader.next().and_then(|line| match line {
            Some(line) if matches!(line.kind, Kind::Task) => line::parse::<Task>(&line).map(Some),
            _ => Ok(None),
        });
        match read {
            Err(failure) => assert_eq!(failure.code, DATA, "{text}: {failure}"),
            Ok(Some(task)) => {
                let environment = envs::environment_of(None, &task);
                let begun = environment.and_then(|environment| environment.begin(&task, None).map(drop));
                assert!(begun.is_ok() || begun.is_err_and(|failure| failure.code != 0), "{text}");
            }
            Ok(None) => {}
        }
    }
}

/// With `draw` an answer has the board of its state, where the state is a board; otherwise the bytes are the same.
#[test]
fn boards_are_drawn_where_asked_for() {
    let mut drawn = Vec::new();
    for environment in ENVIRONMENTS {
        let task = &tasks(*environment, 1)[0];
        let mut state = environment.begin(task, None).unwrap();
        let agent = state.workflow().agents()[0].clone();
        let action = state.test_actions(&agent)[0].clone();
        let plain =
            [json!({"task": task}), json!({"state": state.to_json(), "agent": agent, "action": action})];
        for (request, shown) in plain.iter().zip([state.board(), {
            state.apply(&agent, &action).unwrap();
            state.board()
        }]) {
            let mut asked = request.clone();
            asked["draw"] = true.into();
            let answer: Value =
                serde_json::from_str(&step::answer(*environment, &asked.to_string())).unwrap();
            let mut bare: Value =
                serde_json::from_str(&step::answer(*environment, &request.to_string())).unwrap();
            assert!(bare.get("board").is_none(), "{}", environment.name());
            if let Some(board) = shown {
                bare["board"] = board.as_str().into();
                drawn.push(environment.name());
            }
            assert_eq!(answer, bare, "{}", environment.name());
        }
    }
    drawn.dedup();
    assert_eq!(drawn, ["plan-path", "sudoku", "sokoban"]);
}

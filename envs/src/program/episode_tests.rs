use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{sleep, spawn};

use clap::Parser;
use serde_json::json;

use super::super::call::Endpoint;
use super::super::roles::Settings;
use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    settings: Settings,
}

fn settings() -> Settings {
    Line::parse_from(["envs", "--roles", "solver,checker,c"]).settings
}

fn asked(role: &str, said: &str) -> Asked {
    let body = json!({"model": role, "messages": [{"role": "user", "content": said}]});
    Asked::read(Endpoint::Chat, &body, &settings()).expect("a call")
}

/// What a stand-in program has: its calls.
#[derive(Clone)]
struct Caller(Sender<Event>);

impl Caller {
    fn send(&self, role: &str, said: &str, is_retry: bool) -> Client {
        let (arrival, client) = Arrival::new(asked(role, said), is_retry);
        let _ = self.0.send(Event::Called(Box::new(arrival)));
        client
    }

    /// The answer to a call; `None` once the episode no longer needs the program.
    fn call(&self, role: &str, said: &str) -> Option<String> {
        let client = self.send(role, said, false);
        client.answer.recv().ok().map(|answer| answer.text.clone())
    }
}

/// What a stand-in program does: its calls, by the number of the start. `None` if it was no longer needed.
type Play = dyn Fn(&Caller, usize) -> Option<()> + Send + Sync;

/// A stand-in program.
struct Script {
    play: Arc<Play>,
    starts: AtomicUsize,
    busy: Arc<AtomicBool>,
}

impl Processes for Arc<AtomicBool> {
    fn is_busy(&self) -> bool {
        self.load(Ordering::Relaxed)
    }
}

impl Start for Script {
    fn start(&mut self, _: &Value) -> Result<Running> {
        let (sender, events) = channel();
        let (play, number) = (self.play.clone(), self.starts.fetch_add(1, Ordering::Relaxed));
        spawn(move || {
            let caller = Caller(sender);
            if play(&caller, number).is_some() {
                let _ = caller.0.send(Event::Exited(Exit::default()));
            }
        });
        Ok(Running { events, processes: Box::new(self.busy.clone()) })
    }
}

fn script(play: impl Fn(&Caller, usize) -> Option<()> + Send + Sync + 'static) -> Script {
    Script { play: Arc::new(play), starts: AtomicUsize::new(0), busy: Arc::default() }
}

fn begin(script: &mut Script) -> Episode {
    Episode::begin(script, json!({}), Duration::from_secs(5)).expect("begun")
}

fn say(episode: &mut Episode, script: &mut Script, text: &str) {
    episode.answer(script, Answer { text: text.to_owned(), ..Answer::default() }).expect("answered");
}

/// Who is asked what.
fn due(episode: &Episode) -> Option<(String, String)> {
    let content = episode.prompt().last().map(|message| message.content.clone());
    Some((episode.asked()?.role.clone(), content?))
}

fn is(role: &str, said: &str) -> Option<(String, String)> {
    Some((role.to_owned(), said.to_owned()))
}

#[test]
fn a_copy_takes_the_program_and_the_original_replays() {
    let mut program = script(|caller, _| {
        let first = caller.call("solver", "6 + 7")?;
        let second = caller.call("checker", &format!("is it {first}?"))?;
        caller.call("solver", &format!("{first}, {second}"))?;
        Some(())
    });
    let mut root = begin(&mut program);
    let mut copies: Vec<Episode> = (0..3).map(|_| root.fork()).collect();
    assert_eq!(copies.iter().map(Episode::is_live).collect::<Vec<_>>(), [true, false, false]);
    for (copy, text) in copies.iter_mut().zip(["12", "13", "14"]) {
        say(copy, &mut program, text);
        assert_eq!(due(copy), is("checker", &format!("is it {text}?")));
    }
    // K candidates cost K - 1 starts, and a replay gives both answers.
    assert_eq!(program.starts.load(Ordering::Relaxed), 3);
    let mut late = copies[1].fork();
    say(&mut late, &mut program, "yes");
    say(&mut copies[1], &mut program, "no");
    assert_eq!((due(&late), due(&copies[1])), (is("solver", "13, yes"), is("solver", "13, no")));
    assert_eq!(program.starts.load(Ordering::Relaxed), 4);
    say(&mut late, &mut program, "13");
    assert!(late.exit().is_some() && late.asked().is_none() && copies[1].exit().is_none());
    assert!(late.answer(&mut program, Answer::default()).is_err(), "an answer after the end");
}

/// Three calls at once, in each order and with delays, then one that depends on all.
#[test]
fn calls_at_once_are_asked_in_one_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut program = script(move |caller, start| {
            let calls = [("solver", "b"), ("solver", "a"), ("checker", "z")];
            let turn = |at: usize| order[(at + start) % 3];
            let threads: Vec<_> = (0..3)
                .map(|at| {
                    let (caller, (role, said)) = (caller.clone(), calls[turn(at)]);
                    spawn(move || {
                        sleep(Duration::from_millis(3 * at as u64));
                        Some((said, caller.call(role, said)?))
                    })
                })
                .collect();
            let mut said = Vec::new();
            for thread in threads {
                said.push(thread.join().ok()??);
            }
            said.sort();
            caller.call("c", &format!("{said:?}"))?;
            Some(())
        });
        let mut episode = begin(&mut program);
        let mut copy = Episode::default();
        for (role, said, answer) in [("checker", "z", "1"), ("solver", "a", "2"), ("solver", "b", "3")] {
            assert_eq!(due(&episode), is(role, said), "{order:?}");
            copy = episode.fork();
            say(&mut episode, &mut program, answer);
        }
        // The original was cold: it has replayed, with its calls in another order.
        assert_eq!(program.starts.load(Ordering::Relaxed), 2);
        let last = is("c", "[(\"a\", \"2\"), (\"b\", \"3\"), (\"z\", \"1\")]");
        assert_eq!(due(&episode), last, "{order:?}");
        say(&mut copy, &mut program, "3");
        assert_eq!(due(&copy), last, "{order:?}");
    }
}

/// Two calls at once: the second one's thread gets its turn late, but it computes.
#[test]
fn a_batch_waits_while_the_program_computes() {
    let busy = Arc::new(AtomicBool::new(true));
    let computes = busy.clone();
    let mut program = script(move |caller, _| {
        let late = caller.send("solver", "b", false);
        sleep(5 * SETTLE);
        let early = caller.send("checker", "a", false);
        computes.store(false, Ordering::Relaxed);
        early.answer.recv().ok()?;
        late.answer.recv().ok()?;
        Some(())
    });
    program.busy = busy;
    let mut episode = begin(&mut program);
    assert_eq!(due(&episode), is("checker", "a"));
    say(&mut episode, &mut program, "1");
    assert_eq!(due(&episode), is("solver", "b"));
    say(&mut episode, &mut program, "2");
    assert!(episode.exit().is_some());
}

/// The calls of a first start and of a replay, and the message about their difference.
#[test]
fn a_program_that_differs_is_told_at_the_first_difference() {
    type Calls = &'static [(&'static str, &'static str)];
    let table: [(Calls, Calls, &str); 5] = [
        (
            &[("solver", "x"), ("checker", "at 08:33:39.29 7"), ("c", "z")],
            &[("solver", "x"), ("checker", "at 08:33:39.88 7")],
            "call 2 (checker) differs here: was \"…",
        ),
        (
            &[("solver", "x"), ("checker", "y"), ("c", "z")],
            &[("solver", "x"), ("c", "z")],
            "call 2 (checker) was due, and c called",
        ),
        (
            &[("solver", "x"), ("c", "z")],
            &[("solver", "x"), ("checker", "y"), ("c", "z")],
            "call 2 (c) was due, and checker called",
        ),
        (
            &[("solver", "x"), ("checker", "y"), ("c", "z")],
            &[("solver", "x")],
            "call 2 (checker) was due, and did not come",
        ),
        (
            &[("solver", "x"), ("checker", "y")],
            &[("checker", "y"), ("solver", "x")],
            "call 1 (solver) was due, and checker called",
        ),
    ];
    for (first, second, told) in table {
        let mut program = script(move |caller, start| {
            for (role, said) in if start == 0 { first } else { second } {
                caller.call(role, said)?;
            }
            Some(())
        });
        let mut episode = begin(&mut program);
        for _ in 1..first.len() {
            say(&mut episode, &mut program, "1");
        }
        drop(episode.fork());
        let failure = episode.answer(&mut program, Answer::default()).expect_err(told);
        assert!(failure.message.contains(told), "{told}: {}", failure.message);
        assert!(failure.hint.is_some_and(|hint| hint.contains("--no-copies")), "{told}");
        if told.contains("differs") {
            assert!(
                failure.message.contains(".29 7") && failure.message.contains(".88 7"),
                "{}",
                failure.message
            );
        }
    }
}

#[test]
fn a_call_that_is_asked_again_is_no_turn() {
    let mut program = script(|caller, _| {
        // Before the answer: the client closes its connection, or says that it tries again, or both.
        drop(caller.send("solver", "x", false));
        sleep(Duration::from_millis(40));
        let waits = caller.send("solver", "x", false);
        sleep(Duration::from_millis(40));
        let answer = caller.send("solver", "x", true);
        let text = answer.answer.recv().ok()?.text.clone();
        assert!(waits.answer.recv().is_err(), "the call that was replaced has no answer");
        // After the answer, which the client missed.
        let again = caller.send("solver", "x", true).answer.recv().ok()?.text.clone();
        caller.call("checker", &format!("{text} {again}"))?;
        // Equal, but not a retry: another call.
        caller.call("checker", &format!("{text} {again}"))?;
        Some(())
    });
    let mut episode = begin(&mut program);
    sleep(Duration::from_millis(150));
    say(&mut episode, &mut program, "13");
    assert_eq!(due(&episode), is("checker", "13 13"));
    say(&mut episode, &mut program, "yes");
    assert_eq!(due(&episode), is("checker", "13 13"));
    say(&mut episode, &mut program, "no");
    assert_eq!((episode.calls().count(), episode.exit().is_some()), (3, true));
}

#[test]
fn a_call_of_tools_is_seen_again_as_the_text_that_was_written() {
    let tools = json!([{"type": "function", "function": {"name": "add"}}]);
    let user = json!({"role": "user", "content": "1 + 2"});
    let body = move |messages: Value| json!({"model": "solver", "messages": messages, "tools": tools});
    let mut program = script(move |caller, _| {
        let ask = |messages: Value| {
            let asked = Asked::read(Endpoint::Chat, &body(messages), &settings()).expect("a call");
            let (arrival, client) = Arrival::new(asked.clone(), false);
            let _ = caller.0.send(Event::Called(Box::new(arrival)));
            Some(client.answer.recv().ok()?.body(&asked)["choices"][0]["message"].clone())
        };
        let first = ask(json!([user]))?;
        let ids: Vec<&Value> = first["tool_calls"].as_array()?.iter().map(|call| &call["id"]).collect();
        let result = |at: usize| json!({"role": "tool", "tool_call_id": ids[at], "content": "3"});
        ask(json!([user, first, result(0), result(1)]))?;
        Some(())
    });
    let mut episode = begin(&mut program);
    let call = ("add".to_owned(), "{\"a\":1,\"b\":2}".to_owned());
    let text = "I add. <tool_call>{ \"name\": \"add\"…".to_owned();
    let answer = Answer { text: text.clone(), calls: vec![call.clone(), call], ..Answer::default() };
    episode.answer(&mut program, answer.clone()).expect("answered");
    let mut copy = episode.fork();
    for episode in [&episode, &copy] {
        let said: Vec<(String, String)> =
            episode.prompt().into_iter().map(|message| (message.role, message.content)).collect();
        let expected = [("user", "1 + 2"), ("assistant", &text), ("tool", "3"), ("tool", "3")];
        assert_eq!(said, expected.map(|(role, content)| (role.to_owned(), content.to_owned())));
    }
    say(&mut copy, &mut program, "3");
    say(&mut episode, &mut program, "4");
    assert!(copy.exit().is_some() && episode.exit().is_some());
}

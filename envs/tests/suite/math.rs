//! Math from outside: episodes worked out by hand, workflows by settings, splits, files of problems, the tool's program.

#![cfg(target_os = "linux")]

use crate::support;

use std::collections::HashSet;
use std::io::Write as _;

use envs::{Environment, Selection, Settings, Split, State, find};
use record::failure::Result;
use record::line::Task;
use serde_json::{Value, json};

fn environment() -> &'static dyn Environment {
    find("math").unwrap()
}

fn compact() -> Value {
    json!({"problem": "has 7 gets 5 loses 3", "answer": "9", "encoding": "compact", "turns": 4})
}

pub fn begin(spec: &Value, workflow: &str) -> Box<dyn State> {
    environment().reset(spec, workflow).unwrap()
}

/// Team and local reward, and whether the episode is over and solved.
pub fn say(state: &mut dyn State, agent: &str, text: &str) -> (f64, f64, bool, bool) {
    let outcome = state.apply(agent, text).unwrap();
    (outcome.rewards.team, outcome.rewards.local, outcome.terminated, outcome.success)
}

pub fn together(state: &mut dyn State, actions: &[(&str, &str)]) -> (f64, bool, bool) {
    let outcome = state.apply_together(actions).unwrap();
    (outcome.rewards.team, outcome.terminated, outcome.success)
}

fn draw(split: Split, seed: u64, settings: &[&str], count: usize) -> Result<Vec<Task>> {
    let texts: Vec<String> = settings.iter().map(|&text| text.to_owned()).collect();
    let settings = Settings::parse(&texts, "math", environment().metadata().settings)?;
    environment().tasks(&Selection { split, seed, settings })?.take(count).collect()
}

#[test]
fn a_team_ends_when_it_agrees_and_succeeds_when_it_is_right() {
    let mut state = begin(&compact(), "team");
    assert_eq!(state.observe("tool")[0].content, "has 7 gets 5 loses 3 ask tool");
    // Alone nobody can agree: the other has said nothing.
    assert_eq!(say(&mut *state.clone_state(), "reasoner", " = 1 2 = 9"), (0.0, 1.0, false, false));
    assert_eq!(say(&mut *state.clone_state(), "tool", " 7 + 5 - 3"), (0.0, 1.0, false, false));
    assert_eq!(say(&mut *state.clone_state(), "tool", " 7 + 5"), (0.0, 0.2, false, false));
    assert_eq!(say(&mut *state.clone_state(), "tool", " 7 - 8"), (0.0, 0.1, false, false));
    assert_eq!(say(&mut *state.clone_state(), "tool", " 7 +"), (0.0, 0.0, false, false));

    assert_eq!(together(&mut *state, &[("tool", " 7 + 5"), ("reasoner", " = 1 1 = 8")]), (0.0, false, false));
    let prompt = "has 7 gets 5 loses 3 ask tool = 1 2 reasoner = 1 1 = 8 reasoner";
    assert_eq!(state.observe("reasoner")[0].content, prompt);
    // With the tool's 12 of the turn before: agreement on a wrong answer ends the episode and earns the team nothing.
    assert_eq!(say(&mut *state.clone_state(), "reasoner", " = 1 2"), (0.0, 0.2, true, false));
    // Both change at once: the new answers are compared with each other, not with the old ones.
    let mut crossed = state.clone_state();
    assert_eq!(together(&mut *crossed, &[("tool", " 8"), ("reasoner", " = 1 2")]), (0.0, false, false));
    assert_eq!(together(&mut *state, &[("tool", " 7 + 5 - 3"), ("reasoner", " = 9")]), (1.0, true, true));
    assert!(state.is_solved() && state.apply("tool", " 1").is_err());
}

/// Solving at once earns each agent what solving after a disagreement does.
#[test]
fn a_joint_success_is_credited_when_it_happens() {
    let beside = |state: &dyn State, agent: &str, text: &str, other: (&str, &str)| {
        let outcome = state.clone_state().apply_beside(agent, text, &[other]).unwrap().unwrap();
        (outcome.rewards.team, outcome.rewards.local, outcome.terminated, outcome.success)
    };
    let mut state = begin(&compact(), "team");
    for _turn in 0..2 {
        let (tool, reasoner) = (("tool", " 7 + 5 - 3"), ("reasoner", " = 9"));
        assert_eq!(beside(&*state, "tool", tool.1, reasoner), (1.0, 1.0, true, true));
        assert_eq!(beside(&*state, "reasoner", reasoner.1, tool), (1.0, 1.0, true, true));
        assert_eq!(beside(&*state, "reasoner", " = 8", tool), (0.0, 0.2, false, false));
        assert_eq!(beside(&*state, "reasoner", " = 9", ("tool", " 8")), (0.0, 1.0, false, false));
        // Agreement with what the other said before, and says no more, is none.
        together(&mut *state, &[("tool", " 7 + 5 - 3"), ("reasoner", " = 8")]);
    }
    let ensemble = begin(&compact(), "ensemble");
    let proposal = beside(&*ensemble, "reasoner-1", " = 9", ("tool-1", " 8"));
    assert_eq!(proposal, (1.0, 1.0, false, false), "a proposal earns what it would if adopted");
}

#[test]
fn one_answer_and_the_same_answer_twice() {
    let mut once = begin(&compact(), "single");
    assert_eq!(once.turn_limit(), 1);
    assert_eq!(say(&mut *once.clone_state(), "reasoner", "nine"), (0.0, 0.0, true, false));
    assert_eq!(say(&mut *once.clone_state(), "reasoner", " = 8"), (0.0, 0.2, true, false));
    assert_eq!(say(&mut *once, "reasoner", " = 9"), (1.0, 1.0, true, true));

    let tool = begin(&compact(), "tool");
    assert_eq!(say(&mut *tool.clone_state(), "tool", " 7 + 5"), (0.0, 0.2, true, false));
    assert_eq!(say(&mut *tool.clone_state(), "tool", " 7 + 5 - 3"), (1.0, 1.0, true, true));

    let mut turns = begin(&compact(), "turns");
    assert_eq!(say(&mut *turns, "reasoner", " = 8"), (0.0, 0.2, false, false));
    assert_eq!(turns.observe("reasoner")[0].content, "has 7 gets 5 loses 3 ask reasoner = 8 reasoner");
    assert_eq!(say(&mut *turns, "reasoner", " = 1 2 = 9"), (0.0, 1.0, false, false));
    assert_eq!(say(&mut *turns, "reasoner", " = 9"), (1.0, 1.0, true, true));
}

#[test]
fn turns_are_the_tasks_except_where_one_answer_ends_it() {
    let workflows = [("team", 7), ("turns", 7), ("ensemble", 7), ("single", 1), ("tool", 1), ("check", 1)];
    for (workflow, turns) in workflows {
        let mut spec = compact();
        spec["turns"] = json!(7);
        assert_eq!(begin(&spec, workflow).turn_limit(), turns, "{workflow}");
    }
}

#[test]
fn a_situation_is_drawn_as_the_problem_and_everybodys_answer() {
    let mut state = begin(&compact(), "team");
    say(&mut *state, "tool", " 7 + 5");
    let drawn = state.draw();
    assert_eq!(drawn, "has 7 gets 5 loses 3\ntool: 12\n");
}

#[test]
fn a_state_of_another_workflow_is_refused() {
    let mut state = begin(&compact(), "team").to_json();
    state["workflow"] = json!("ensemble");
    let failure = environment().restore(&state).err().unwrap();
    assert_eq!((failure.code, failure.message.as_str()), (65, "state: said: 2 entries for 4 agents"));
}

pub fn in_prose() -> Value {
    json!({"problem": "What is 27 plus 15?", "answer": "42", "encoding": "full", "reasoning": "brief", "chain": " 2 7 + 1 5"})
}

#[test]
fn a_checker_sees_the_solution_and_has_the_last_word() {
    let mut state = begin(&in_prose(), "check");
    assert_eq!(
        (state.workflow().agents(), state.turn_limit()),
        (&["solver", "checker"].map(str::to_owned)[..], 1)
    );
    let begin = "Answer in one line, as an equation.\nWhat is 27 plus 15?";
    assert_eq!(state.observe("solver")[0].content, begin);
    // A solution earns the team its value as if adopted, and ends nothing.
    assert_eq!(say(&mut *state.clone_state(), "solver", "27 + 15 = 42"), (1.0, 1.0, false, false));
    assert_eq!(say(&mut *state.clone_state(), "solver", "no idea"), (0.0, 0.0, false, false));
    assert_eq!(say(&mut *state, "solver", "27 + 15 = 32"), (0.0, 0.2, false, false));
    let shown = &state.observe("checker")[0].content;
    assert!(
        shown.starts_with("Check the solution.") && shown.ends_with("15?\nsolver: 27 + 15 = 32"),
        "{shown}"
    );
    assert_eq!(environment().restore(&state.to_json()).unwrap().to_json(), state.to_json());
    assert_eq!(say(&mut *state.clone_state(), "checker", "27 + 15 = 32"), (0.0, 0.2, true, false));
    assert_eq!(say(&mut *state.clone_state(), "checker", "I agree."), (0.0, 0.0, true, false));
    assert_eq!(say(&mut *state, "checker", "27 + 15 = 42"), (1.0, 1.0, true, true));
    assert!(state.is_solved() && state.apply("checker", "= 42").is_err());
}

/// Where the last word alone pays, a proposal earns nothing, neither the team nor its agent.
#[test]
fn a_proposal_is_not_paid_where_the_last_word_is() {
    let mut task = in_prose();
    task["pay"] = json!("final");
    let mut state = begin(&task, "check");
    assert_eq!(say(&mut *state, "solver", "27 + 15 = 42"), (0.0, 0.0, false, false));
    assert_eq!(say(&mut *state.clone_state(), "checker", "27 + 15 = 32"), (0.0, 0.2, true, false));
    assert_eq!(say(&mut *state, "checker", "27 + 15 = 42"), (1.0, 1.0, true, true));
    let mut ensemble = begin(&task, "ensemble");
    for agent in ["reasoner-1", "reasoner-2"] {
        assert_eq!(say(&mut *ensemble, agent, "27 + 15 = 42"), (0.0, 0.0, false, false));
    }
    assert_eq!(say(&mut *ensemble, "judge", "27 + 15 = 42"), (1.0, 1.0, true, true));
    // Without a last word there is nothing that it could change.
    assert_eq!(say(&mut *begin(&task, "single"), "reasoner", "27 + 15 = 42"), (1.0, 1.0, true, true));
}

#[test]
fn demonstrations_in_prose_are_what_the_prompts_ask_for() {
    let tasks = |level: &str| Selection {
        split: Split::Train,
        seed: 7,
        settings: Settings::parse(
            &["encoding=full".to_owned(), level.to_owned()],
            "math",
            environment().metadata().settings,
        )
        .unwrap(),
    };
    for (workflow, level) in [("check", "level=1"), ("single", "level=4"), ("team", "level=3")] {
        let demonstration = envs::Demonstration {
            tasks: tasks(level),
            workflow: workflow.to_owned(),
            mix: vec![("opt".to_owned(), 1.0)],
            states: 2,
            follow: 0.0,
        };
        if workflow == "team" && support::sandbox().is_none() {
            continue;
        }
        let drawn: Vec<Task> =
            environment().tasks(&tasks(level)).unwrap().take(8).collect::<Result<_>>().unwrap();
        let mut shown = 0;
        for batch in environment().demonstrations(&demonstration).unwrap().take(8) {
            for sample in batch.unwrap() {
                let task = drawn.iter().find(|task| Some(&*task.task) == sample.task.as_deref()).unwrap();
                let (agent, text) = (sample.agent.unwrap(), sample.completion.unwrap());
                assert_eq!(say(&mut *begin(&task.spec, workflow), &agent, &text).1, 1.0, "{agent}: {text}");
                shown += 1;
            }
        }
        assert!(shown >= 16, "{workflow}: {shown}");
    }
}

#[test]
fn settings_decide_how_many_play_in_an_ensemble() {
    let tasks = draw(Split::Train, 7, &["reasoners=3", "tools=2"], 1).unwrap();
    let mut state = begin(&tasks[0].spec, "ensemble");
    let workflow = state.workflow().clone();
    assert_eq!(
        workflow.agents(),
        ["reasoner-1", "reasoner-2", "reasoner-3", "tool-1", "tool-2", "judge"].map(str::to_owned)
    );
    assert_eq!((workflow.stages(), workflow.stage(0), workflow.stage(1)), (2, 0..5, 5..6));

    let right = tasks[0].spec["answer"].as_str().unwrap();
    let write = |value: &str| value.chars().flat_map(|digit| [' ', digit]).collect::<String>();
    let (right, wrong) = (write(right), write("77"));
    // A proposal earns the team its value as if adopted, and ends nothing.
    assert_eq!(say(&mut *state.clone_state(), "reasoner-2", &format!(" ={right}")), (1.0, 1.0, false, false));
    assert_eq!(say(&mut *state.clone_state(), "tool-1", &wrong), (0.0, 0.2, false, false));
    let (says_right, says_wrong) = (format!(" ={right}"), format!(" ={wrong}"));
    let all = [
        ("reasoner-1", says_wrong.as_str()),
        ("reasoner-2", says_right.as_str()),
        ("reasoner-3", "what"),
        ("tool-1", " 7 / 0"),
        ("tool-2", wrong.as_str()),
    ];
    assert!(!together(&mut *state, &all).1);
    // The judge can only adopt an earlier answer, right or wrong.
    let mut undecided = state.clone_state();
    assert_eq!(say(&mut *undecided, "judge", " = 7 6"), (0.0, 0.2, false, false));
    assert!(!together(&mut *undecided, &all).1, "who proposes the same again has not decided it");
    assert_eq!(
        say(&mut *undecided, "judge", " = 7 6"),
        (0.0, 0.2, false, false),
        "nor has the judge proposed it"
    );
    assert_eq!(say(&mut *state.clone_state(), "judge", &says_wrong), (0.0, 0.2, true, false));
    assert_eq!(say(&mut *state, "judge", &says_right), (1.0, 1.0, true, true));
    assert_eq!(environment().restore(&state.to_json()).unwrap().to_json(), state.to_json());
}

#[test]
fn no_chain_of_arithmetic_is_in_both_splits_in_any_words() {
    let names = |tasks: &[Task]| -> HashSet<String> {
        tasks.iter().map(|task| task.task.rsplit('/').next().unwrap().to_owned()).collect()
    };
    let train = draw(Split::Train, 1, &[], 4000).unwrap();
    let (compact, full) = (
        draw(Split::Test, 1, &[], 500).unwrap(),
        draw(Split::Test, 1, &["encoding=full", "largest=20"], 500).unwrap(),
    );
    assert!(names(&train).len() > 1500);
    assert!(names(&train).is_disjoint(&names(&compact)) && names(&train).is_disjoint(&names(&full)));
    assert_eq!(names(&compact).len(), 500);
    for task in train.iter().chain(&compact) {
        assert!(begin(&task.spec, "team").oracle("reasoner").is_some());
    }
    let levels: HashSet<u64> = train.iter().map(|task| task.spec["level"].as_u64().unwrap()).collect();
    assert_eq!(levels, HashSet::from([1, 2, 3]));
}

#[test]
fn a_file_of_problems_is_divided_once_and_for_all() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for number in 0..200 {
        let spec = json!({"problem": format!("What is {number} plus one?"), "answer": (number + 1).to_string(), "source": "here"});
        writeln!(
            file,
            "{}",
            json!({"type": "task", "v": 1, "env": "math", "task": format!("t{number}"), "spec": spec})
        )
        .unwrap();
    }
    let data = format!("data={}", file.path().display());
    let named = |split, seed, count| {
        draw(split, seed, &[&data], count)
            .unwrap()
            .into_iter()
            .map(|task| task.spec["problem"].to_string())
            .collect::<Vec<_>>()
    };
    let test: HashSet<String> = named(Split::Test, 0, 200).into_iter().collect();
    let train: HashSet<String> = named(Split::Train, 0, 200).into_iter().collect();
    assert!(test.is_disjoint(&train) && test.len() > 8, "{} and {}", test.len(), train.len());
    assert_eq!(test.len() + train.len(), 200);
    assert_eq!(named(Split::Test, 0, test.len()), named(Split::Test, 5, test.len()));
    assert_ne!(named(Split::Train, 0, 20), named(Split::Train, 5, 20));
    let task = &draw(Split::Train, 0, &[&data, "reasoners=3"], 1).unwrap()[0];
    assert_eq!((&task.spec["source"], &task.spec["reasoners"]), (&json!("here"), &json!(3)));
    assert!(task.spec.get("wall").is_none(), "{task:?}");
    let task = &draw(Split::Train, 0, &[&data, "wall=2.5"], 1).unwrap()[0];
    assert_eq!(task.spec["wall"], json!(2.5));
    assert_eq!(draw(Split::Train, 0, &[&data, "wall=0"], 1).unwrap_err().code, 2);

    // More than is kept in memory is refused before it is read, and so is a pipe that never ends a line.
    let large = tempfile::NamedTempFile::new().unwrap();
    large.as_file().set_len(3 << 30).unwrap();
    let failure = draw(Split::Train, 0, &[&format!("data={}", large.path().display())], 1).unwrap_err();
    assert!(failure.code == 65 && failure.message.ends_with("more than 1024 MiB"), "{failure}");
    let failure = draw(Split::Train, 0, &["data=/dev/zero"], 1).unwrap_err();
    assert!(failure.code == 65 && failure.message.contains("longer than 16 MiB"), "{failure}");

    // One problem in two splits is refused, in other spaces and letters too.
    for (split, problem) in [("train", "One and one?"), ("test", "ONE  AND ONE?")] {
        let line = json!({"type": "task", "v": 1, "env": "math", "task": split, "split": split, "spec": {"problem": problem, "answer": "2"}});
        writeln!(file, "{line}").unwrap();
    }
    let failure = draw(Split::Train, 0, &[&data], 1).unwrap_err();
    assert!(failure.code == 65 && failure.message.contains("both splits"), "{}", failure.message);
}

#[test]
fn a_tools_python_runs_in_the_sandbox_and_is_read_by_what_it_prints() {
    if support::sandbox().is_none() {
        return;
    }
    let spec =
        json!({"problem": "What is one half plus one third?", "answer": "\\frac{5}{6}", "encoding": "full"});
    let state = begin(&spec, "team");
    let earned = |text: &str| state.clone_state().apply("tool", text).map(|outcome| outcome.rewards.local);
    let exact = "```python\nfrom fractions import Fraction\nprint(Fraction(1, 2) + Fraction(1, 3))\n```";
    assert_eq!(earned(exact).unwrap(), 1.0);
    assert_eq!(earned("```python\nprint(0.8333334)\n```").unwrap(), 1.0, "within 1e-6");
    assert_eq!(earned("```python\nprint(0.8333)\n```").unwrap(), 0.2);
    assert_eq!(earned("```python\nprint('I do not know it')\n```").unwrap(), 0.1);
    assert_eq!(earned("```python\nprint(5 / 6)\nraise SystemExit(1)\n```").unwrap(), 0.0);
    assert_eq!(earned("```python\nwhile True: pass\n```").unwrap(), 0.0);
    // One that sleeps uses no processor time: its elapsed time is bounded, by 30 s or by the task.
    let mut hasty = spec.clone();
    hasty["wall"] = json!(0.5);
    let sleeps = "```python\nimport time\nprint('5/6')\ntime.sleep(25)\n```";
    let outcome = begin(&hasty, "team").apply("tool", sleeps).unwrap();
    assert_eq!(outcome.rewards.local, 0.0, "{outcome:?}");
    // Others see the end of a long output.
    let mut talkative = state.clone_state();
    talkative.apply("tool", "```python\nprint('o' * 600 + 'é' * 999 + '.')\n```").unwrap();
    let shown = talkative.to_json().to_string();
    assert!(shown.contains(&format!("Output: {}.", "é".repeat(999))), "{shown}");
    // What it prints differs from run to run, and yet the same program has the same consequence.
    let random = "```python\nimport os\nprint(int.from_bytes(os.urandom(8), 'big'))\n```";
    let said = |mut state: Box<dyn State>| {
        state.apply("tool", random).unwrap();
        state.to_json()
    };
    assert_eq!(said(state.clone_state()), said(state.clone_state()));
}

#[test]
fn the_shipped_problems_are_sound_and_solved_by_their_own_answers() {
    let all: Vec<Task> = [Split::Train, Split::Test]
        .into_iter()
        .flat_map(|split| draw(split, 0, &["data=shipped"], 42).unwrap())
        .collect();
    let names: HashSet<&str> = all.iter().map(|task| task.task.as_str()).collect();
    assert_eq!(names.len(), 42);
    for task in &all {
        let mut state = begin(&task.spec, "single");
        let oracle = state.oracle("reasoner").unwrap();
        assert_eq!(say(&mut *state, "reasoner", &oracle), (1.0, 1.0, true, true), "{}", task.spec["problem"]);
    }
}

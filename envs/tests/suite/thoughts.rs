//! What an agent thinks is no answer, in any environment.

use envs::{ENVIRONMENTS, Environment, Selection, Settings, Split, step};
use serde_json::{Value, json};

fn respond(environment: &dyn Environment, request: &Value) -> Value {
    let response: Value = serde_json::from_str(&step::answer(environment, &request.to_string())).unwrap();
    assert!(response.get("error").is_none(), "{}: {request}: {response}", environment.name());
    response
}

#[test]
fn the_right_action_earns_nothing_inside_a_thought_and_everything_after_it() {
    for environment in ENVIRONMENTS {
        let selection = Selection { split: Split::Train, seed: 3, settings: Settings::default() };
        let task = environment.tasks(&selection).unwrap().next().unwrap().unwrap();
        for workflow in environment.workflows() {
            let state = environment.reset(&task.spec, workflow.name()).unwrap();
            let agents = workflow.agents();
            let Some(agent) = agents.iter().find(|agent| state.acts(agent)) else { continue };
            let Some(right) = state.oracle(agent) else { continue };
            let ask = |text: &str| {
                let one = json!({"state": state.to_json(), "agent": agent, "action": text});
                let all = json!({"state": state.to_json(), "actions": {agent.as_str(): text}});
                [respond(*environment, &one), respond(*environment, &all)]
            };
            let (silent, plain) = (ask(""), ask(&right));
            for inside in [
                format!("<think>{right}</think>"),
                format!("{right}\n</think>\n\n"),
                format!("<think>\n{right}"),
                format!("<think>{right}</think>{right}<think>{right}"),
                format!("[THINK]{right}[/THINK]"),
                format!("<|channel|>analysis<|message|>{right}<|end|>"),
            ] {
                assert_eq!(ask(&inside), silent, "{}: {inside}", environment.name());
            }
            let right = right.trim_start();
            let plain = if right.len() == state.oracle(agent).unwrap().len() { plain } else { ask(right) };
            for after in [
                format!("<think>no</think>{right}"),
                format!("no</think>\n\n{right}"),
                format!("<think>a</think>no<think>b</think>{right}"),
            ] {
                assert_eq!(ask(&after), plain, "{}: {after}", environment.name());
            }
        }
    }
}

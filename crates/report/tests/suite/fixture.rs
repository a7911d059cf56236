//! A small run, and helpers that run `report` on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

/// A run directory of two committed steps and an evaluation, with a third step begun. In step 2 an episode
/// broke off.
pub(crate) fn run(folder: &Path) -> PathBuf {
    let run = folder.join("made-by-hand");
    put(
        &run,
        "run.json",
        "{\n  \"env\": \"e\",\n  \"workflow\": \"team\",\n  \"policies\": \"shared\",\n  \"branches\": \"2\"\n}\n",
    );
    put(&run, "steps/000000/done", "{}");
    for step in [1, 2] {
        put(&run, &format!("steps/00000{step}/samples.jsonl"), &samples(step));
        put(&run, &format!("steps/00000{step}/metrics.jsonl"), &metrics(step));
        put(&run, &format!("steps/00000{step}/done"), "{}");
    }
    put(&run, "steps/000003/samples.jsonl", "{\"type\":\"sample\",\"v\":1,\"st");
    let episode = json!({"type": "episode", "v": 1, "step": 0, "env": "e", "task": "t", "episode": "0.0", "success": true,
        "turns": 1, "reward": 1, "stop": "success"});
    let end = json!({"type": "end", "v": 1, "stage": "rollout", "ok": true, "timing": {"seconds": 2.0}});
    put(&run, "eval/step-000000.jsonl", &format!("{episode}\n{end}\n"));
    run
}

fn put(run: &Path, name: &str, text: &str) {
    let path = run.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Two agents at one turn, two candidates each; the planner's group is flat. The text is what a page must not
/// trip over.
fn samples(step: u64) -> String {
    let mut lines = String::new();
    for (agent, rewards) in [("tool", [0.25, 1.0]), ("planner", [0.5, 0.5])] {
        for (branch, reward) in rewards.into_iter().enumerate() {
            let sample = json!({"type": "sample", "v": 1, "step": step, "env": "e", "task": "t", "episode": format!("{step}.0"),
                "turn": 0, "agent": agent, "branch": branch, "branches": 2, "id": format!("{step}.0/0/{agent}/{branch}"),
                "selected": branch == 1, "prompt": [{"role": "user", "content": "what now? <b>&amp;"}],
                "completion": "</script><script>alert(1)</script>", "prompt_ids": [1, 2], "completion_ids": [5, 4],
                "finish_reason": "stop", "reward": reward, "reward_components": {"format": 1.0, "oracle": reward},
                "group": format!("{step}.0/{agent}/0"), "group_size": 2, "advantage": reward - 0.5});
            lines += &format!("{sample}\n");
        }
    }
    let dropped = step - 1;
    let episode = json!({"type": "episode", "v": 1, "step": step, "env": "e", "task": "t", "episode": format!("{step}.0"),
        "success": step == 2, "turns": 1, "reward": 1.5, "stop": "success"});
    let rollout = json!({"type": "end", "v": 1, "stage": "rollout", "ok": true, "counts": {"groups_expected": 2 + dropped,
        "groups": 2, "dropped_groups": {"policy": 0, "env": dropped}}, "timing": {"seconds": 1.5}});
    let group = json!({"type": "end", "v": 1, "stage": "group", "ok": true, "counts": {"by": "agent-turn",
        "equal_prompts": true, "groups_expected": 2 + dropped, "dropped_groups": {"incomplete": 0, "unscored": 0}}, "after": [rollout]});
    let advantage = json!({"type": "end", "v": 1, "stage": "advantage", "ok": true, "counts": {"dropped_groups": {"flat": 0}}, "after": [group]});
    format!("{lines}{episode}\n{advantage}\n")
}

fn metrics(step: u64) -> String {
    let metrics = json!({"type": "metrics", "v": 1, "step": step, "policy": "shared", "loss": 0.5, "kl": null, "grad_norm": 1.0,
        "agents": ["tool", "planner"], "by_agent": {"tool": {"entropy": 1.5, "clip_ratio": 0.25, "grad_norm": 0.75},
            "planner": {"entropy": null, "clip_ratio": 0.0, "grad_norm": 0.0}},
        "sampling/logp_difference_max": 1e-5, "timing": {"training_seconds": 0.25}});
    let end = json!({"type": "end", "v": 1, "stage": "update", "ok": true, "timing": {"seconds": 2.0, "reading_seconds": 1.5}});
    format!("{metrics}\n{end}\n")
}

pub(crate) fn report(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_report"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("report runs")
}

/// The data inside a page.
pub(crate) fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("<script type=\"application/json\" id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

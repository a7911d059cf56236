//! Runs made by hand, for pages of every kind.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A run of two roles, with what its page may trip over.
#[derive(Clone, Debug)]
pub struct Made {
    /// Committed steps.
    pub steps: u64,
    /// More values of its `run.json`.
    pub settings: Value,
    /// `defaults.json`.
    pub defaults: Value,
    /// True if any episode is solved, any group differs, and log-probabilities differ.
    pub learns: bool,
    /// The share of answers that are cut.
    pub cut: f64,
    /// Seconds of a step's rollout.
    pub seconds: f64,
    /// True if agents act jointly.
    pub joint: bool,
    /// True if each agent has four candidates and not two.
    pub wide: bool,
}

impl Default for Made {
    fn default() -> Made {
        Made {
            steps: 12,
            settings: json!({}),
            defaults: json!({}),
            learns: true,
            cut: 0.05,
            seconds: 1.5,
            joint: false,
            wide: false,
        }
    }
}

const AGENTS: [&str; 2] = ["tool", "planner"];
const EPISODES: u64 = 4;

impl Made {
    /// Writes the run.
    pub fn put(&self, folder: &Path, name: &str) -> PathBuf {
        let run = folder.join(name);
        let mut settings = json!({"env": "plan", "workflow": "team", "policies": "per-role", "turns": "2", "seed": "1",
            "max_tokens": "8", "tasks": "4", "branches": "2", "lr": "1e-3", "build": "report 0.1.0"});
        for (name, value) in self.settings.as_object().into_iter().flatten() {
            settings[name] = value.clone();
        }
        write(&run, "run.json", &settings.to_string());
        write(&run, "defaults.json", &self.defaults.to_string());
        let seed = settings["seed"].as_str().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        for step in 1..=self.steps {
            let folder = format!("steps/{step:06}");
            write(&run, &format!("{folder}/samples.jsonl"), &self.samples(step, seed));
            write(&run, &format!("{folder}/metrics.jsonl"), &self.metrics(step));
            write(&run, &format!("{folder}/done"), "{}");
        }
        for step in (0..=self.steps).step_by(4).filter(|_| self.steps > 0) {
            write(&run, &format!("eval/step-{step:06}.jsonl"), &self.evaluation(step, seed));
        }
        run
    }

    /// Returns true if the `number`th of `of` things is among a share of them that grows over the steps.
    fn solves(&self, step: u64, seed: u64, number: u64, of: u64) -> bool {
        self.learns && number * 20 < of * (4 + step.min(12) + seed)
    }

    fn samples(&self, step: u64, seed: u64) -> String {
        let mut lines = Vec::new();
        for number in 0..EPISODES {
            let episode = format!("{step}.{number}");
            let mut members = Vec::new();
            for (place, agent) in AGENTS.into_iter().enumerate() {
                let branches = if self.wide { 4 } else { 2 };
                for branch in 0..branches {
                    let reward = if self.learns && branch == 1 { 1.0 } else { 0.25 };
                    let is_cut = ((number * 4 + place as u64 * 2 + branch) as f64) < self.cut * 16.0;
                    let id = format!("{episode}/0/{agent}/{branch}");
                    members.push(id.clone());
                    lines.push(json!({"type": "sample", "v": 1, "step": step, "env": "plan", "task": format!("t{number}"),
                        "episode": episode, "turn": 0, "agent": agent, "branch": branch, "branches": branches, "id": id,
                        "selected": branch == 1, "prompt": [{"role": "user", "content": "where to?"}],
                        "completion": format!("R {}", "D ".repeat(branch as usize)), "prompt_ids": [1, 2],
                        "completion_ids": [5, 4, 3], "finish_reason": if is_cut { "length" } else { "stop" },
                        "terminated": branch == 1, "reward": reward, "reward_components": {"format": 1.0, "oracle": reward},
                        "group": format!("{episode}/{agent}/0"), "group_size": branches, "advantage": if self.learns { reward - 0.6 } else { 0.0 }}));
                }
            }
            for branch in (0..2).filter(|_| self.joint) {
                lines.push(json!({"type": "joint", "v": 1, "step": step, "env": "plan", "task": format!("t{number}"), "episode": episode,
                    "turn": 0, "node": episode, "id": format!("{episode}/{branch}"), "parent": null,
                    "members": [members[branch], members[2 + branch]], "reward": branch, "rewards": {"team": branch, "local": {}},
                    "reward_components": {}, "selected": branch == 1, "terminated": false, "success": false, "truncated": false}));
            }
            let success = self.solves(step, seed, number, EPISODES);
            lines.push(json!({"type": "episode", "v": 1, "step": step, "env": "plan", "task": format!("t{number}"), "episode": episode,
                "success": success, "turns": 1, "reward": 1.0, "stop": if success { "success" } else { "turns" }}));
        }
        let groups = 2 * EPISODES;
        let timing = json!({"seconds": self.seconds, "model_seconds": 0.8 * self.seconds, "waiting_seconds": 0.1 * self.seconds});
        let rollout = json!({"type": "end", "v": 1, "stage": "rollout", "ok": true, "timing": timing,
            "counts": {"groups_expected": groups, "groups": groups, "dropped_groups": {}}});
        let group = json!({"type": "end", "v": 1, "stage": "group", "ok": true, "after": [rollout],
            "counts": {"equal_prompts": true, "groups_expected": groups, "dropped_groups": {}}});
        lines.push(
            json!({"type": "end", "v": 1, "stage": "advantage", "ok": true, "counts": {}, "after": [group]}),
        );
        text(&lines)
    }

    fn metrics(&self, step: u64) -> String {
        let gap = if self.learns { 1e-5 / step as f64 } else { 0.0 };
        let policy = |policy: &str| {
            json!({"type": "metrics", "v": 1, "step": step, "policy": policy, "loss": 0.01 - 0.002 * (step % 7) as f64, "grad_norm": 0.5,
                "entropy": 1.2 - 0.02 * step as f64, "clip_ratio": 0.0003 * (step % 5) as f64, "optimizer_steps": 2,
                "sampling/logp_difference_max": gap, "timing": {"training_seconds": 0.3 * self.seconds}})
        };
        let mut lines: Vec<Value> = AGENTS.into_iter().map(policy).collect();
        let timing = json!({"seconds": self.seconds, "reading_seconds": 0.2 * self.seconds});
        lines.push(json!({"type": "end", "v": 1, "stage": "update", "ok": true, "timing": timing}));
        text(&lines)
    }

    fn evaluation(&self, step: u64, seed: u64) -> String {
        let mut lines = Vec::new();
        for number in 0..20 {
            let (episode, is_cut) = (format!("{step}.{number}"), (number as f64) < self.cut * 20.0);
            lines.push(json!({"type": "sample", "v": 1, "step": step, "env": "plan", "task": format!("e{number}"), "episode": episode,
                "turn": 0, "agent": "tool", "branch": 0, "branches": 1, "id": format!("{episode}/0/tool/0"), "selected": true,
                "prompt": [{"role": "user", "content": "where to?"}], "completion": "R", "prompt_ids": [1], "completion_ids": [2],
                "finish_reason": if is_cut { "length" } else { "stop" }, "reward": 1.0,
                "reward_components": {"format": 1.0, "distance": 0.5 + 0.01 * (number % 5) as f64 * self.learns as u64 as f64}}));
            let success = self.solves(step, seed, number, 20);
            lines.push(json!({"type": "episode", "v": 1, "step": step, "env": "plan", "task": format!("e{number}"), "episode": episode,
                "success": success, "turns": 1, "reward": 1.0, "stop": if success { "success" } else { "turns" }}));
        }
        lines
            .push(json!({"type": "end", "v": 1, "stage": "rollout", "ok": true, "timing": {"seconds": 2.0}}));
        text(&lines)
    }
}

fn text(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn write(run: &Path, name: &str, text: &str) {
    let path = run.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

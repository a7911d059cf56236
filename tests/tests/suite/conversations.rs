//! Conversations that go on from the tokens of earlier answers, with tools and without.

use serde_json::{Value, json};
use troupe_tests::{must, program, root};

fn ids(sample: &Value, key: &str) -> Vec<u64> {
    sample[key].as_array().expect("tokens").iter().filter_map(Value::as_u64).collect()
}

/// Tools reach the template; the tokens of a prompt are the last prompt's, the completion's, and the rest.
#[test]
fn conversations_with_tools_grow_by_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let (program, dir) =
        (root().join("examples/tool_loop.py").display().to_string(), folder.path().display());
    must(&format!("policy init {dir}/p --preset tiny --seed 1"));
    let template = "{% if tools %}<|system|>{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif %}\
                    {% for m in messages %}<|user|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}<|assistant|>";
    std::fs::write(folder.path().join("p/current/chat_template.jinja"), template).expect("a template");
    for flags in ["", "--joint aligned --expand all", "--sampling parallel"] {
        must(&format!(
            "cd {dir}; python3 {program} tasks --count 2 | \
             rollout --env-command 'python3 {program}' --policy p --branches 2 --turns 3 --max-tokens 6 {flags} --quiet | \
             group --quiet | advantage --quiet > samples.jsonl"
        ));
        let text = std::fs::read_to_string(folder.path().join("samples.jsonl")).expect("samples");
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let samples: Vec<Value> = lines.filter(|line| line["type"] == "sample").collect();
        let (mut later, mut roles) = (0, Vec::new());
        for sample in &samples {
            assert_eq!(sample["tools"][0]["function"]["name"], "add", "{flags}");
            let Some(before) = samples.iter().find(|before| before["id"] == sample["parent"]) else {
                continue;
            };
            let known = [ids(before, "prompt_ids"), ids(before, "completion_ids")].concat();
            assert!(ids(sample, "prompt_ids").starts_with(&known), "{flags}: {}", sample["id"]);
            later += 1;
            roles =
                sample["prompt"].as_array().expect("messages").iter().map(|m| m["role"].clone()).collect();
        }
        assert!(later >= 4, "{flags}: {later}");
        assert_eq!(&roles[..4], ["system", "user", "assistant", "tool"], "{flags}");
    }
    must(&format!("update --policy {dir}/p --quiet < {dir}/samples.jsonl > {dir}/metrics.jsonl"));
}

/// An agent with several conversations, without tools: the prompt of each turn, made from earlier actions.
const TALK: &str = r#"
import json, sys
for line in sys.stdin:
    q = json.loads(line)
    said = q.get("state", [])
    if "task" not in q:
        said = said + [q["action"]]
    user, own = (lambda text: {"role": "user", "content": text}), (lambda text: {"role": "assistant", "content": text})
    turn = len(said)
    first = [user("a 0"), own(said[0])] if said else [user("a 0")]
    seen = [
        lambda: first,
        lambda: first + [user("b 1")],
        lambda: first + [user("c 2")],                          # from the first action, and not the last
        lambda: first + [user("b 1"), own(said[1]), user("d 3")],  # from the one before the last
        lambda: [user("a 0"), own("another text"), user("e 4")],   # what it never said
        lambda: [user("f 5")],
    ][min(turn, 5)]()
    answer = {"request": q["request"], "state": said, "observations": {"a": seen}}
    if "task" in q:
        answer |= {"agents": ["a"], "order": "sequential", "turns": 6}
    else:
        info = {"generation": q["generation"], "large": 123456789012345678901234567890}
        answer |= {"rewards": {"team": 0, "local": 0}, "terminated": turn == 6, "success": False, "info": info}
    print(json.dumps(answer), flush=True)
"#;

#[test]
fn a_prompt_goes_on_from_any_earlier_action() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().display();
    std::fs::write(folder.path().join("talk.py"), TALK).expect("a program");
    let task = json!({"type": "task", "v": 1, "env": "talk", "task": "talk/1", "split": "train", "spec": {}});
    let end = json!({"type": "end", "v": 1, "stage": "mine", "ok": true});
    std::fs::write(folder.path().join("tasks"), format!("{task}\n{end}\n")).expect("tasks");
    must(&format!("policy init {dir}/p --preset tiny --seed 1"));
    let template =
        "{% for m in messages %}<|user|>{{ m.role }} {{ m.content }}<|end|>{% endfor %}<|assistant|>";
    std::fs::write(folder.path().join("p/current/chat_template.jinja"), template).expect("a template");
    for flags in ["--branches 3", "--branches 2 --sampling parallel", "--branches 2 --joint aligned"] {
        let output = must(&format!(
            "cd {dir}; rollout --env-command 'python3 talk.py' --policy p --max-tokens 4 {flags} --quiet < tasks"
        ));
        let lines = program::lines(&output);
        let samples: Vec<&Value> = lines.iter().filter(|line| line["type"] == "sample").collect();
        let executed = |turn: u64, of: &Value| {
            let is_it = |sample: &&&Value| {
                let same = flags.contains("parallel") && sample["branch"] == of["branch"];
                sample["turn"] == turn && (same || !flags.contains("parallel") && sample["selected"] == true)
            };
            samples
                .iter()
                .find(is_it)
                .map(|sample| [ids(sample, "prompt_ids"), ids(sample, "completion_ids")].concat())
        };
        for sample in &samples {
            let turn = sample["turn"].as_u64().expect("a turn");
            let from = match turn {
                1 | 2 => executed(0, sample),
                3 => executed(1, sample),
                _ => None,
            };
            let (prompt, completion) = (ids(sample, "prompt_ids"), ids(sample, "completion_ids"));
            assert!(from.is_none_or(|from| prompt.starts_with(&from)), "{flags}: {}", sample["id"]);
            if !flags.contains("joint") {
                let counts = json!({"finish_reason": sample["finish_reason"], "prompt_tokens": prompt.len(),
                    "completion_tokens": completion.len()});
                assert_eq!(sample["info"]["generation"], counts, "{flags}: {}", sample["id"]);
            }
        }
        assert!(
            flags.contains("joint") || output.contains("\"large\":123456789012345678901234567890}"),
            "{flags}"
        );
        let counts = &lines.last().expect("an end")["counts"];
        let plays = if flags.contains("parallel") { 2 } else { 1 };
        assert_eq!(
            (&counts["prompts_continued"], &counts["prompts_rendered_anew"]),
            (&json!(3 * plays), &json!(plays)),
            "{flags}"
        );
    }
}

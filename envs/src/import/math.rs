//! Layouts of mathematical data sets.
//!
//! The reference answer is a field of the record. A record with only a worked solution gives the solution's
//! last `\boxed{}` or the text after its last `####`. Proofs and answers in prose are left out and counted.

use serde_json::{Value, json};

use super::{Fields, Layout, Problem, Refusal, field, text};
use problems::math::NAME;
use problems::math::answer::{Answer, extract};

/// GSM8K: a question, and a worked answer that ends with `#### 42`.
pub static GSM8K: Layout = Layout {
    name: "gsm8k",
    environment: NAME,
    summary: "GSM8K: question, answer (with ####)",
    recognizes: |record| {
        text(record, &["question"]).is_some()
            && text(record, &["answer"]).is_some_and(|answer| answer.contains("####"))
    },
    convert: |record| {
        let answer = text(record, &["answer"]).ok_or("no answer")?;
        let after = answer.rsplit("####").next().unwrap_or_default();
        problem(record, &["question"], after)
    },
};

/// OlympiadBench: a question and a list of final answers.
pub static OLYMPIADBENCH: Layout = Layout {
    name: "olympiadbench",
    environment: NAME,
    summary: "OlympiadBench: question, final_answer (a list), perhaps context and unit",
    recognizes: |record| text(record, &["question"]).is_some() && record.contains_key("final_answer"),
    convert: |record| {
        if text(record, &["error"]).is_some() {
            return Err("an answer with a tolerance of its own".into());
        }
        let answer = record.get("final_answer").and_then(reference).ok_or("no answer")?;
        let parts = [text(record, &["context"]), text(record, &["question"])];
        let mut question = parts.into_iter().flatten().map(str::trim).collect::<Vec<_>>().join("\n\n");
        if let Some(unit) = text(record, &["unit"]) {
            question.push_str(&format!("\n\nThe unit of the answer is {}.", unit.trim()));
        }
        let mut fields = record.clone();
        fields.insert("question".to_owned(), question.into());
        problem(&fields, &["question"], &answer)
    },
};

/// The layout of verl, as of DAPO-Math: a chat or its text, and the reference under `reward_model`.
pub static VERL: Layout = Layout {
    name: "verl",
    environment: NAME,
    summary: "DAPO-Math and others prepared for verl: prompt (a chat or text), reward_model.ground_truth",
    recognizes: |record| {
        record.get("prompt").is_some_and(|prompt| prompt.is_array() || prompt.is_string())
            && record.contains_key("reward_model")
    },
    convert: |record| {
        let question = match record.get("prompt") {
            Some(Value::Array(messages)) => {
                messages.iter().rfind(|message| message["role"] == "user").map(|message| &message["content"])
            }
            text => text,
        };
        let question = question.ok_or("no problem")?.clone();
        let question = Fields::from_iter([("problem".to_owned(), question)]);
        let answer = record.get("reward_model").and_then(|model| reference(&model["ground_truth"]));
        problem(&question, &["problem"], &answer.ok_or("no answer")?)
    },
};

/// Problem and answer: AIME, Polaris and most others.
pub static ANSWER: Layout = Layout {
    name: "answer",
    environment: NAME,
    summary: "AIME, Polaris and most others: problem or question, answer",
    recognizes: |record| {
        text(record, PROBLEM).is_some() && field(record, REFERENCE).and_then(reference).is_some()
    },
    convert: |record| {
        let answer = field(record, REFERENCE).and_then(reference).ok_or("no answer")?;
        // Some records have the whole solution in this field.
        let inner = extract::answer(&answer).filter(|_| answer.contains("\\boxed"));
        problem(record, PROBLEM, &inner.unwrap_or(answer))
    },
};

/// Problem and worked solution: MATH.
pub static SOLUTION: Layout = Layout {
    name: "solution",
    environment: NAME,
    summary: "MATH: problem, solution (with \\boxed)",
    recognizes: |record| text(record, PROBLEM).is_some() && text(record, &["solution"]).is_some(),
    convert: |record| {
        let solution = text(record, &["solution"]).ok_or("no solution")?;
        let answer = extract::answer(solution).ok_or("no answer in the solution")?;
        problem(record, PROBLEM, &answer)
    },
};

/// A conversation, as in sets for fine-tuning. The question is the user's last message before the assistant
/// answers; the reference is a field of the record, or is taken from that answer.
pub static MESSAGES: Layout = Layout {
    name: "messages",
    environment: NAME,
    summary: "chats for fine-tuning: messages, conversations or prompt (a chat), with the answer in a field or in the chat",
    recognizes: |record| conversation(record).is_some(),
    convert: |record| {
        let (question, reply) = conversation(record).ok_or("no problem")?;
        let question = Fields::from_iter([("problem".to_owned(), question.into())]);
        let told =
            field(record, &["answer", "expected_answer", "final_answer", "ground_truth"]).and_then(reference);
        let worked = text(record, &["solution"]).map(str::to_owned).or(reply);
        let found = worked.and_then(|text| match text.rsplit_once("####") {
            Some((_, after)) => Some(after.to_owned()),
            None => extract::answer(&text).filter(|_| text.contains("\\boxed")),
        });
        problem(&question, &["problem"], &told.or(found).ok_or("no answer")?)
    },
};

/// The user's question and the assistant's answer, if there is one.
fn conversation(record: &Fields) -> Option<(String, Option<String>)> {
    let messages = field(record, &["messages", "conversations", "prompt"])?.as_array()?;
    let of = |roles: &[&str], message: &Value| {
        let role = ["role", "from"].iter().find_map(|key| message[*key].as_str())?;
        let text = ["content", "value"].iter().find_map(|key| message[*key].as_str())?;
        roles.contains(&role).then(|| text.to_owned())
    };
    let reply = messages.iter().position(|message| of(&["assistant", "gpt"], message).is_some());
    let before = &messages[..reply.unwrap_or(messages.len())];
    let question = before.iter().rev().find_map(|message| of(&["user", "human"], message))?;
    let completion = field(record, &["completion"]).and_then(Value::as_array);
    let reply = reply.map(|at| &messages[at]).or_else(|| completion?.first());
    Some((question, reply.and_then(|message| of(&["assistant", "gpt"], message))))
}

const PROBLEM: &[&str] = &["problem", "question"];
const REFERENCE: &[&str] = &["answer", "expected_answer", "final_answer"];
/// Other fields that are copied, for people and filters.
const EXTRA: [&str; 6] = ["level", "difficulty", "type", "subject", "id", "year"];

/// An answer: a string, a number, or a list of them, which may itself be a string (`["34"]`).
fn reference(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => {
            let quoted = |quote: char| {
                let inside = text.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
                (inside.len() > 1 && inside.starts_with(quote) && inside.ends_with(quote)).then_some(inside)
            };
            let list = match (quoted('"'), quoted('\'')) {
                (Some(inside), _) => serde_json::from_str(&format!("[{inside}]")).ok(),
                (_, Some(inside)) => {
                    let items = inside[1..inside.len() - 1].split("', '");
                    Some(items.map(|item| Value::from(item.replace("\\\\", "\\"))).collect())
                }
                _ => None,
            };
            list.as_ref()
                .and_then(reference)
                .or_else(|| Some(text.clone()))
                .filter(|text| !text.trim().is_empty())
        }
        Value::Number(number) => Some(number.to_string()),
        Value::Array(items) if !items.is_empty() => {
            items.iter().map(reference).collect::<Option<Vec<_>>>().map(|items| items.join(", "))
        }
        _ => None,
    }
}

fn problem(record: &Fields, names: &[&str], answer: &str) -> Result<Problem, Refusal> {
    let text = text(record, names).ok_or("no problem")?.trim();
    let answer = answer.trim();
    match Answer::read(answer) {
        None => return Err("no answer".into()),
        Some(Answer::Word(words)) if words.split(' ').count() > 3 => return Err("an answer in prose".into()),
        Some(_) => {}
    }
    let mut spec = json!({"problem": text, "answer": answer, "encoding": "full"});
    for name in EXTRA {
        if let Some(value) = field(record, &[name]) {
            spec[name] = value.clone();
        }
    }
    Ok(Problem { text: text.to_owned(), spec })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::{Importer, recognize};

    #[test]
    fn records_of_every_layout_are_recognized_and_read() {
        for (record, layout, answer) in [
            (json!({"question": "Q?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"}), "gsm8k", "42"),
            (json!({"question": "Q?", "answer": "#### 1,234"}), "gsm8k", "1,234"),
            (
                json!({"problem": "Q?", "level": "Level 5", "solution": "so \\boxed{\\frac{1}{\\sqrt{2}}}."}),
                "solution",
                "\\frac{1}{\\sqrt{2}}",
            ),
            (json!({"ID": "2024-I-1", "Problem": "Q?", "Solution": "…", "Answer": 204}), "answer", "204"),
            (
                json!({"problem": "Q?", "answer": "\\frac{3}{4}", "difficulty": "3/8"}),
                "answer",
                "\\frac{3}{4}",
            ),
            (json!({"problem": "Q?", "answer": "long \\boxed{7}"}), "answer", "7"),
            (
                json!({"question": "Q?", "final_answer": ["$1$", "$2$"], "error": null}),
                "olympiadbench",
                "$1$, $2$",
            ),
            (
                json!({"prompt": [{"role": "user", "content": "Q?"}], "reward_model": {"ground_truth": "34", "style": "rule"}}),
                "verl",
                "34",
            ),
            (
                json!({"prompt": "Q?", "solution": "6", "source_prompt": [{"role": "user", "content": "Solve it. Q?"}],
                       "reward_model": {"ground_truth": "34"}}),
                "verl",
                "34",
            ),
            (
                json!({"prompt": [{"role": "user", "content": "Q?"}], "reward_model": {"ground_truth": 34}}),
                "verl",
                "34",
            ),
            (
                json!({"prompt": [{"role": "user", "content": "Q?"}], "reward_model": {"ground_truth": "[\"34\"]"}}),
                "verl",
                "34",
            ),
            (json!({"problem": "Q?", "answer": "['\\\\frac{1}{2}', '3']"}), "answer", "\\frac{1}{2}, 3"),
            (json!({"problem": "Q?", "answer": ["34"]}), "answer", "34"),
            (json!({"problem": "Q?", "answer": "[0, 1)"}), "answer", "[0, 1)"),
            (
                json!({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q?"},
                                    {"role": "assistant", "content": "so \\boxed{7}."}]}),
                "messages",
                "7",
            ),
            (
                json!({"conversations": [{"from": "human", "value": "Q?"}, {"from": "gpt", "value": "6*7 #### 42"}]}),
                "messages",
                "42",
            ),
            (json!({"prompt": [{"role": "user", "content": "Q?"}], "ground_truth": 5}), "messages", "5"),
            (
                json!({"prompt": [{"role": "user", "content": "Q?"}], "completion": [{"role": "assistant", "content": "\\boxed{3}"}]}),
                "messages",
                "3",
            ),
            (json!({"question": "Q?", "final_answer": [3, 4.5]}), "olympiadbench", "3, 4.5"),
        ] {
            let Value::Object(fields) = &record else { panic!("an object") };
            assert_eq!(recognize(fields).map(|layout| layout.name), Some(layout), "{record}");
            let task = Importer::default().task(&record).unwrap().unwrap();
            assert_eq!(
                (&task.spec["problem"], &task.spec["answer"]),
                (&json!("Q?"), &json!(answer)),
                "{record}"
            );
        }
    }

    #[test]
    fn a_question_has_its_context_and_its_unit() {
        let record =
            json!({"question": "How fast?", "final_answer": ["5"], "context": "It falls.", "unit": "m/s"});
        let task = Importer::default().task(&record).unwrap().unwrap();
        assert_eq!(task.spec["problem"], "It falls.\n\nHow fast?\n\nThe unit of the answer is m/s.");
    }

    #[test]
    fn what_cannot_be_judged_is_left_out_and_counted() {
        let mut importer = Importer::default();
        for record in [
            json!({"question": "Prove it.", "final_answer": null}),
            json!({"question": "Q?", "final_answer": ["3.1"], "error": "0.05"}),
            json!({"problem": "Q?", "solution": "It is clear."}),
            json!({"problem": "Q?", "answer": "there are many ways to see it"}),
        ] {
            assert!(importer.task(&record).unwrap().is_none(), "{record}");
        }
        assert_eq!(importer.left_out.values().sum::<u64>(), 4);
        // A record without a value does not stop the others.
        for record in [
            json!({"problem": null, "answer": "1"}),
            json!({"problem": "Q?", "answer": null}),
            json!({"problem": "Q?", "answer": " "}),
            json!({"question": null, "final_answer": null}),
            json!({"prompt": null, "reward_model": {"ground_truth": 1}}),
            json!({"prompt": [{"role": "user", "content": "Q?"}], "reward_model": null}),
            json!(null),
        ] {
            assert!(importer.task(&record).unwrap().is_none(), "{record}");
        }
        assert_eq!(importer.left_out.values().sum::<u64>(), 11);
        assert!(importer.task(&json!({"text": "Q?"})).is_err());
        let record = json!({"problem": "Q?", "answer": "1"});
        assert!(importer.task(&record).unwrap().is_some());
        assert!(
            importer.task(&json!({"problem": " q ?", "answer": "1"})).unwrap().is_none(),
            "the same problem"
        );
    }
}

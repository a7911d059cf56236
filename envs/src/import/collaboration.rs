//! Layouts of the environments with a joint reward.
//!
//! Reference summaries and HumanEval's solutions are not kept: rewards read none, and one function shows no helper.

use serde_json::{Value, json};

use super::{Fields, Layout, Problem, text};
use environment::spec::write;
use problems::coop_code;
use problems::writing::prose;

const ABSTRACT: &[&str] = &["abstract_text", "abstract"];

/// TL;DR: a post that ends with `TL;DR:`, and its summary.
pub static TLDR: Layout = Layout {
    name: "tldr",
    environment: prose::TLDR.name,
    summary: "TL;DR: prompt (a post that ends with TL;DR:), completion",
    recognizes: |record| {
        text(record, &["prompt"]).is_some_and(|prompt| prompt.trim_end().ends_with("TL;DR:"))
    },
    convert: |record| {
        let post = text(record, &["prompt"]).ok_or("no post")?.trim_end();
        problem(post.strip_suffix("TL;DR:").unwrap_or(post), record).ok_or_else(|| "no post".into())
    },
};

/// Abstracts of papers.
pub static ARXIV: Layout = Layout {
    name: "arxiv",
    environment: prose::ARXIV.name,
    summary: "abstracts of papers: abstract_text or abstract, perhaps title",
    recognizes: |record| text(record, ABSTRACT).is_some(),
    convert: |record| {
        let body = text(record, ABSTRACT).ok_or("no abstract")?;
        problem(body, record).ok_or_else(|| "no abstract".into())
    },
};

fn problem(body: &str, record: &Fields) -> Option<Problem> {
    let body = body.trim();
    let mut spec = json!({"problem": body});
    if let Some(title) = text(record, &["title"]) {
        spec["title"] = title.trim().into();
    }
    (!body.is_empty()).then(|| Problem { text: body.to_owned(), spec })
}

/// HumanEval, and data sets that follow it.
pub static HUMAN_EVAL: Layout = Layout {
    name: "human-eval",
    environment: coop_code::NAME,
    summary: "HumanEval, CoopHumanEval: prompt, entry_point, test (with check(candidate))",
    recognizes: |record| ["prompt", "entry_point", "test"].iter().all(|name| text(record, &[name]).is_some()),
    convert: |record| {
        let mut fields = record.clone();
        fields.insert("problem".to_owned(), fields.get("prompt").cloned().unwrap_or_default());
        let spec: coop_code::Spec =
            serde_json::from_value(Value::Object(fields)).map_err(|_| "fields that make no problem")?;
        spec.check()?;
        Ok(Problem { text: text(record, &["prompt"]).unwrap_or_default().to_owned(), spec: write(&spec) })
    },
};

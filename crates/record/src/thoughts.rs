//! What a model thinks before it answers, as each family marks it. An environment gets [`answer`]; a record keeps the
//! whole text.

/// Marks of a thought: its beginning and its end. They are pieces of each family's chat template.
///
/// Left out: thoughts in plain words, which no mark ends (Granite 3.2).
const MARKS: [(&str, &str); 6] = [
    // Qwen3, QwQ, DeepSeek-R1 and its distillations, SmolLM3, GLM-4.5, Phi-4-reasoning, Nemotron.
    ("<think>", "</think>"),
    // Magistral since 2507.
    ("[THINK]", "[/THINK]"),
    // GPT-OSS: channels of the harmony format.
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    // Sky-T1, OpenThinker.
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    // Seed-OSS.
    ("<seed:think>", "</seed:think>"),
    // EXAONE Deep.
    ("<thought>", "</thought>"),
];

/// What is left of `text` without thoughts: what follows the last end of one, as Qwen3's chat template reads it; all of a
/// text without marks. A thought that never ends leaves nothing. `is_open`: the prompt began one.
pub fn answer(text: &str, is_open: bool) -> &str {
    let end = |(_, end): &(&str, &str)| Some(text.rfind(end)? + end.len());
    let rest = match MARKS.iter().filter_map(end).max() {
        Some(end) => text[end..].trim_start(),
        None if is_open => "",
        None => text,
    };
    if MARKS.iter().any(|(begin, _)| rest.contains(begin)) { "" } else { rest }
}

/// Returns true if `prompt` ends with the beginning of a thought, which the completion goes on with.
pub fn is_begun_by(prompt: &str) -> bool {
    MARKS.iter().any(|(begin, _)| prompt.trim_end().ends_with(begin))
}

/// Returns true while `text` is a thought from its beginning on, or may become one.
pub fn may_begin(text: &str) -> bool {
    let text = text.trim_start();
    MARKS.iter().any(|(begin, _)| begin.starts_with(text) || text.starts_with(begin))
}

/// Returns true if `token` is a mark, or a part of one, that a text needs even if its tokenizer calls it special.
pub fn is_mark(token: &str) -> bool {
    ["<|channel|>", "<|message|>"].contains(&token)
        || MARKS.iter().any(|(begin, end)| [begin, end].contains(&&token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_begin_a_thought_until_it_differs() {
        for (text, expected) in [("", true), (" <th", true), ("<think>4", true), ("<a", false), ("5", false)]
        {
            assert_eq!(may_begin(text), expected, "{text}");
        }
    }

    #[test]
    fn thoughts_are_no_answer() {
        for (text, begun, expected) in [
            ("5", false, "5"),
            (" 5\n", false, " 5\n"),
            ("<think>4</think>\n\n5", false, "5"),
            ("<think>\n</think>5\n", false, "5\n"),
            ("4</think>5", false, "5"),
            ("4</think>5", true, "5"),
            ("<think>4", false, ""),
            ("4", true, ""),
            ("", true, ""),
            ("<think>4</think>", false, ""),
            ("5 <think>4", false, ""),
            ("<think>3</think>4<think>4</think>5", false, "5"),
            ("<think>3</think>4<think>5", false, ""),
            ("<think>a <think> b</think> c</think>5", false, "5"),
            ("[THINK]4[/THINK]5", false, "5"),
            (
                "<|channel|>analysis<|message|>4<|end|><|start|>assistant<|channel|>final<|message|>5",
                false,
                "5",
            ),
            ("<|channel|>analysis<|message|>4<|end|>", false, ""),
            (
                "<|begin_of_thought|>4<|end_of_thought|>\n\n<|begin_of_solution|>5<|end_of_solution|>",
                false,
                "<|begin_of_solution|>5<|end_of_solution|>",
            ),
            ("<seed:think>4</seed:think>5", false, "5"),
            ("<thought>\n4\n</thought>\n\n5", false, "5"),
            ("x < y and a thought", false, "x < y and a thought"),
        ] {
            assert_eq!(answer(text, begun), expected, "{text}");
            assert_eq!(answer(expected, false), expected, "{text}");
        }
    }

    #[test]
    fn a_template_may_begin_a_thought() {
        assert!(is_begun_by("<|im_start|>assistant\n<think>\n") && is_begun_by("[THINK]"));
        assert!(!is_begun_by("<|im_start|>assistant\n<think>\n\n</think>\n\n") && !is_begun_by(""));
        assert!(["</think>", "[THINK]", "<|channel|>"].iter().all(|token| is_mark(token)));
        assert!(!is_mark("<|im_end|>") && !is_mark(""));
    }
}

//! Math answers in prose from outside: which texts are paid.

#![cfg(target_os = "linux")]

use serde_json::json;

use super::math::{begin, in_prose, say, together};
use crate::support;

#[test]
fn brief_answers_are_read_in_any_form_and_strictly_in_substance() {
    let earned = |text: &str| begin(&in_prose(), "single").apply("reasoner", text).unwrap().rewards.local;
    for text in [
        "27 + 15 = 42",
        "27 + 15 = 42.",
        "27+15=42 apples",
        "The answer is 42.",
        "THE ANSWER IS: **42**",
        "\\boxed{42}",
        "```\n27 + 15 = 42\n```",
        "42",
        "27 + 15 = 42. I am sure of it.\nReally.",
        "20 + 10 = 30, 30 + 12 = 42",
        "= $42",
    ] {
        assert_eq!(earned(text), 1.0, "{text}");
    }
    for text in ["27 + 15 = 41", "27 + 15 = 421", "42 = 27 + 15 = 40", "27 + 15", "I like 42 and 43", "= 4 2"]
    {
        assert!(earned(text) <= 0.2, "{text}");
    }
}

/// A reasoner's text on a problem from a file with its answer, and its reward.
fn of_file(problem: &str, answer: &str, said: &str) -> (f64, f64, bool, bool) {
    let spec = json!({"problem": problem, "answer": answer, "encoding": "full"});
    say(&mut *begin(&spec, "single"), "reasoner", said)
}

#[test]
fn a_problem_given_back_earns_its_format_alone() {
    for (problem, answer, said) in [
        ("Compute $\\dbinom{8}{4}$.", "70", "\\dbinom{8}{4}"),
        ("What is $17 \\cdot 23$?", "391", "17*23"),
        ("Evaluate $\\log_2(4^2)$.", "4", "\\log_2(4^2)"),
        ("Expand $(x+1)(x+2)$.", "x^2+3x+2", "(x+1)(x+2)"),
        ("Simplify $\\sqrt{50}+\\sqrt{18}$.", "8\\sqrt{2}", "\\sqrt{50}+\\sqrt{18}"),
    ] {
        for reasoning in ["steps", "brief"] {
            let spec =
                json!({"problem": problem, "answer": answer, "encoding": "full", "reasoning": reasoning});
            let paid =
                |said: &str| say(&mut *begin(&spec, "single"), "reasoner", &format!("\\boxed{{{said}}}"));
            let (team, local, ..) = paid(said);
            assert!(team == 0.0 && local <= 0.2, "{said}, {reasoning}");
        }
        assert_eq!(
            of_file(problem, answer, &format!("\\boxed{{{said}}}")),
            (0.0, 0.2, true, false),
            "{said}"
        );
    }
    // A team agrees on it, and has not solved it.
    if support::sandbox().is_some() {
        let spec = json!({"problem": "What is $17 \\cdot 23$?", "answer": "391", "encoding": "full"});
        let quoted = "```python\nprint('17*23')\n```";
        let mut state = begin(&spec, "team");
        assert_eq!(state.clone_state().apply("tool", quoted).unwrap().rewards.local, 0.2);
        assert_eq!(
            together(&mut *state, &[("tool", quoted), ("reasoner", "\\boxed{17*23}")]),
            (0.0, true, false)
        );
    }
}

#[test]
fn answers_are_paid_in_the_spellings_of_people() {
    for (answer, said) in [
        ("42", "\\boxed{\\text{42}}"),
        ("10", "\\boxed{\\text{10 ways}}"),
        ("42", "\\boxed{\\mathrm{42}}"),
        ("42", "Answer: \\( 42 \\)"),
        ("42", "Final Answer: \\[42\\]"),
        ("42", "Final Answer:\n\\[\n42\n\\]"),
        ("42", "The answer is **42**."),
        ("42", "The answer is <b>42</b>."),
        ("42", "It adds up.\n\n**Final Answer**\n\n42"),
        ("42", "### Final Answer\n\n**42**"),
        ("42", "# Answer\n42"),
        ("42", "\\[ 42 \\]"),
        ("10,\\!236", "\\boxed{10236}"),
        ("\\text{6:00 p.m.}", "\\boxed{6:00 \\text{ p.m.}}"),
    ] {
        assert_eq!(of_file("Find it.", answer, said), (1.0, 1.0, true, true), "{said}");
    }
    let spec = json!({"problem": "Which angle?", "answer": "60", "encoding": "full", "reasoning": "brief"});
    for said in [
        "60°",
        "\\boxed{60^\\circ}",
        "= \\(60\\)",
        "The answer is `60`.",
        "Answer: **60**.",
        "The answer is \"60\".",
    ] {
        assert_eq!(say(&mut *begin(&spec, "single"), "reasoner", said).1, 1.0, "{said}");
    }
    if support::sandbox().is_some() {
        let mut state = begin(&spec, "team");
        let tool = "```python\nprint('The answer is 60')\n```";
        assert_eq!(say(&mut *state, "tool", tool), (0.0, 1.0, false, false));
    }
}

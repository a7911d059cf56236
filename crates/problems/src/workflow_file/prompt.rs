//! Prompts of a workflow file: the request, the problem, and the texts that the role sees.

use super::state::Text;
use super::{Checker, Gives, Role};

/// The prompt of an agent of `role`, which sees `seen`: names with their last texts.
pub(super) fn prompt(checker: &dyn Checker, role: &Role, seen: &[(&str, &Text)]) -> String {
    let brief = checker.is_brief();
    let default = match (role.gives, seen.is_empty()) {
        (Gives::Answer, true) if brief => "",
        (Gives::Answer, true) => "Solve the problem step by step.",
        (Gives::Answer, false) if brief => "Check what the others say.",
        (Gives::Answer, false) => {
            "Compare what the others say, find out what is right, and solve the problem step by step."
        }
        (Gives::Verdict, _) => "Find out whether the answer is right.",
        (Gives::Note, _) => "Say how to solve the problem, and not its answer.",
    };
    let form = match role.gives {
        Gives::Answer => checker.form(),
        Gives::Verdict => "End with one word: right or wrong.",
        Gives::Note => "",
    };
    let request = match role.ask.trim() {
        "" => [default, form].join(" ").trim().to_owned(),
        ask => ask.replace("{form}", form),
    };
    let problem = checker.problem();
    let said: String = match brief {
        true => seen.iter().map(|(name, text)| format!("\n{name}: {}", text.shown.trim())).collect(),
        false => {
            seen.iter().map(|(name, text)| format!("\n{name} wrote:\n{}\n", text.shown.trim())).collect()
        }
    };
    match brief {
        // Requests come first, because all problems share them.
        true => format!("{request}\n{}{said}", problem.trim()),
        false => format!("Problem:\n{}\n{said}\n{request}", problem.trim()),
    }
}

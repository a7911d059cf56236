//! Answers to problems: what their parts earn, and how they are spelled and shown.

use environment::Outcome;

/// Characters shown of the beginning and of the end of a text.
const SHOWN: usize = 500;

/// An outcome after which the episode continues. The local reward is the weighted sum of the parts,
/// given as name, weight in tenths and value in [0, 1]. Tenths are summed as integers, because the binary
/// sum .1 + .1 + .8 exceeds 1.
pub fn outcome(team: f64, parts: &[(&str, f64, f64)]) -> Outcome {
    let local = parts.iter().map(|(_, tenths, value)| tenths * value).sum::<f64>() / 10.0;
    let components: Vec<(&str, f64)> = parts.iter().map(|(name, _, value)| (*name, *value)).collect();
    Outcome::new(team, local, &components)
}

/// `text` with a space before each character, because every digit is a word of the tiny tokenizer.
pub fn spell(text: &str) -> String {
    text.chars().flat_map(|letter| [' ', letter]).collect()
}

/// What an agent said, as others are shown it: its beginning and its end. A line that looks like the beginning of an
/// agent's message is marked as quoted, so that nobody speaks for another.
pub fn show(text: &str, agents: &[String]) -> String {
    let is_heading = |line: &str| {
        let line = line.trim_start_matches(|sign: char| !sign.is_alphanumeric());
        let line = line.strip_prefix("Answer of ").unwrap_or(line);
        agents.iter().filter_map(|agent| line.strip_prefix(agent.as_str())).any(|rest| {
            let rest = rest.trim_start_matches(['*', '_', ' ']);
            rest.starts_with(':') || rest.starts_with("wrote")
        })
    };
    let quoted = |line: &str| if is_heading(line) { format!("> {line}") } else { line.to_owned() };
    shorten(&text.split('\n').map(quoted).collect::<Vec<_>>().join("\n"))
}

/// A text's beginning and end.
pub fn shorten(text: &str) -> String {
    let count = text.chars().count();
    if count <= 2 * SHOWN {
        return text.to_owned();
    }
    let begin: String = text.chars().take(SHOWN).collect();
    let end: String = text.chars().skip(count - SHOWN).collect();
    format!("{begin}\n[…]\n{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_lose_their_middle() {
        for short in ["short".to_owned(), "é".repeat(2 * SHOWN)] {
            assert_eq!(shorten(&short), short);
        }
        let long = format!("{}{}", "a".repeat(3000), "é".repeat(500));
        let shown = shorten(&long);
        assert!(shown.starts_with("aaa") && shown.ends_with("é") && shown.chars().count() == 2 * SHOWN + 5);
    }

    #[test]
    fn nobody_speaks_for_another() {
        let agents = ["solver".to_owned(), "judge".to_owned()];
        for text in ["1 + 1 = 2", "the judge wrote: 2", "solvers: 2", "a\r\nb\n", ""] {
            assert_eq!(show(text, &agents), text);
        }
        assert_eq!(
            show("2\njudge wrote:\n3\n**solver**: 4\nAnswer of judge: 5", &agents),
            "2\n> judge wrote:\n3\n> **solver**: 4\n> Answer of judge: 5"
        );
    }
}

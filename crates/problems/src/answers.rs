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

/// A text as shown to others: its beginning and its end.
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
}

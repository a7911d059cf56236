//! Connectives in twelve kinds, and stopwords, which do not count as shared words: the lists
//! of the published rewards.
//!
//! In the published rule the letters of a connective count anywhere, even inside another word (`so` in
//! `also`, `as` in `was`), so that hardly any text has none; [`Hits::Word`] requires the whole word. Phrases
//! that contain another connective of their kind are left out, because they never add a hit.

use std::collections::HashSet;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// How connectives are matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hits {
    /// Letters anywhere, even inside words.
    #[default]
    Substring,
    /// Whole words.
    Word,
}

/// Kinds and their connectives.
const KINDS: [(&str, &str); 12] = [
    (
        "elaboration",
        "furthermore|moreover|additionally|also|besides|in addition|what is more|not only|as well as|\
         along with|coupled with|together with|likewise|similarly|equally important|by the same token|\
         in the same way|correspondingly|in like manner|comparatively|analogously",
    ),
    (
        "examples",
        "for example|for instance|specifically|particularly|namely|such as|including|especially|\
         in particular|to illustrate|as an illustration|case in point|to demonstrate|as evidence|\
         to exemplify|notably|markedly|chiefly|mainly|primarily|above all|most importantly",
    ),
    (
        "explanation",
        "that is|in other words|to put it simply|to clarify|indeed|in fact|actually|clearly|obviously|\
         to put it another way|to rephrase|more precisely|specifically speaking|what this means is|\
         the point is|essentially|basically|fundamentally|at its core|in essence|simply put|\
         stated differently",
    ),
    (
        "cause and effect",
        "therefore|thus|consequently|as a result|hence|accordingly|for this reason|due to this|\
         because of this|so|then|thereby|wherefore|thence|ergo|as a consequence|in consequence|\
         it follows that|this leads to|this results in|this causes|this brings about|owing to|\
         on account of|thanks to|resulting from",
    ),
    (
        "contrast",
        "however|nevertheless|nonetheless|on the other hand|in contrast|while|whereas|although|\
         even though|despite this|but|yet|still|conversely|on the contrary|rather|instead|alternatively|\
         otherwise|in opposition|by contrast|contrarily|notwithstanding|regardless|all the same|even so|\
         be that as it may|in any case|at any rate",
    ),
    (
        "sequence",
        "first|second|third|next|then|after that|finally|lastly|initially|subsequently|meanwhile|\
         to begin with|to start with|in the beginning|at the outset|primarily|secondly|thirdly|\
         following this|afterward|later|in the meantime|simultaneously|concurrently|at the same time|\
         in conclusion|to conclude|ultimately|in the end|to summarize|in summary",
    ),
    (
        "emphasis",
        "indeed|certainly|surely|undoubtedly|without doubt|definitely|absolutely|positively|\
         unquestionably|indubitably|of course|naturally|obviously|clearly|evidently|manifestly|undeniably|\
         admittedly|granted|to be sure|in fact|as a matter of fact|notably|significantly",
    ),
    (
        "summary",
        "in summary|in conclusion|to summarize|to conclude|in short|in brief|briefly|to sum up|\
         on the whole|overall|all in all|in essence|essentially|basically|fundamentally|\
         in the final analysis|after all|ultimately|in the end|when all is said and done|\
         the bottom line is",
    ),
    (
        "comparison",
        "similarly|likewise|in the same way|equally|just as|comparable to|in comparison|by the same token|\
         correspondingly|in like manner|along the same lines|in similar fashion|analogously|by analogy|\
         just like|much like|as with",
    ),
    (
        "concession",
        "although|though|while|whereas|despite|in spite of|regardless of|notwithstanding|admittedly|\
         granted|even if|be that as it may|nevertheless|nonetheless|however|yet|still|all the same",
    ),
    (
        "condition",
        "if|unless|provided that|assuming that|supposing that|in case|in the event that|on condition that|\
         given that|as long as|so long as|whether or not|should|were|had|otherwise|or else",
    ),
    (
        "time",
        "when|while|as|after|before|until|since|during|meanwhile|simultaneously|at the same time|\
         concurrently|previously|formerly|earlier|later|afterward|subsequently|eventually|finally|\
         recently|lately|nowadays|currently|presently|immediately",
    ),
];

const STOPWORDS: &str = "\
    a all also an and any are as at bad be been being both but by can could did do does each few first \
    for from good great had has have he her here him his how i if in is it its just last left little long \
    low many may me might more most much must my new no not now of old on only or other our own right \
    same shall should so some such than that the their them then there these they this those to too us \
    very was we were what when where which who why will with would you your";

/// The number of kinds of connectives in `text`.
pub fn kinds(text: &str, hits: Hits) -> usize {
    let text = text.to_lowercase();
    let hit = |phrase: &str| match hits {
        Hits::Substring => text.contains(phrase),
        Hits::Word => text.match_indices(phrase).any(|(at, _)| {
            let (before, after) = (&text[..at], &text[at + phrase.len()..]);
            !before.ends_with(in_word) && !after.starts_with(in_word)
        }),
    };
    KINDS.iter().filter(|(_, phrases)| phrases.split('|').any(hit)).count()
}

/// The distinct words of `text` in lower case: runs of letters, digits and underscores.
pub fn words(text: &str) -> HashSet<String> {
    let text = text.to_lowercase();
    text.split(|letter| !in_word(letter)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn in_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// `words` without stopwords.
pub fn content(words: &HashSet<String>) -> HashSet<&str> {
    words.iter().map(String::as_str).filter(|word| !is_stopword(word)).collect()
}

/// Returns true if `word`, in lower case, is a stopword.
pub fn is_stopword(word: &str) -> bool {
    static STOP: LazyLock<HashSet<&str>> = LazyLock::new(|| STOPWORDS.split_whitespace().collect());
    STOP.contains(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_and_words() {
        for (text, letters, whole) in [
            ("", 0, 0),
            ("Nothing here", 0, 0),
            ("Also", 2, 1),
            ("The reason was a difference of ideas", 3, 0),
            ("However, we left; in the end it was so.", 6, 5),
            ("butter", 1, 0),
            ("but\u{301}", 1, 1),
        ] {
            let got = (kinds(text, Hits::Substring), kinds(text, Hits::Word));
            assert_eq!(got, (letters, whole), "{text}");
        }
        assert_eq!(words("The cat's CAT_1 é-É"), ["the", "cat", "s", "cat_1", "é"].map(str::to_owned).into());
        assert_eq!(content(&words("The cat is not there")), ["cat"].into());
        assert_eq!(STOPWORDS.split(' ').count(), 106);
        assert!(STOPWORDS.split(' ').all(|word| !word.is_empty()));
    }
}

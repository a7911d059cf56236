//! How closely a text relates to its source. This part of the reward cannot be earned with the
//! same text for every source.
//!
//! It starts with the share of a text's distinct content words that occur in the source, passed through a
//! ramp. This is multiplied by three shares that are 1 for prose, and less for shuffled words, lists of
//! words, and copies of the source:
//!
//! | share | 1 | 0 |
//! |---|---|---|
//! | stopwords among the words | 0.2 or more | none |
//! | articles and possessives before a stopword or the end of a sentence | 0.2 or less | 0.5 or more |
//! | words in runs of six, five of which occur in order among seven of the source | 0.5 or less | all |
//!
//! In the shipped posts and abstracts 1 % of articles and possessives are so misplaced, in shuffled
//! ones 45 %. Two words match if they are equal, or share their first four letters and differ in
//! length by at most three; so a copy whose words have
//! other endings, or that lacks some of them or has some more, is a copy. The numbers are our choice. Left out: whether the text is true or well
//! written, which needs a judge.

use super::connectives::{content, is_stopword, words};
use super::score::Ramp;

const DETERMINERS: [&str; 10] = ["a", "an", "the", "my", "your", "his", "her", "its", "our", "their"];
/// Stopwords that may follow an article or possessive.
const ADJECTIVES: [&str; 14] = [
    "first", "last", "new", "old", "good", "great", "bad", "few", "little", "long", "low", "own", "same",
    "most",
];
/// Lengths of a run of words that counts as copied, of the source's run with its words, and how many they share.
const RUN: usize = 6;
const SOURCE_RUN: usize = 7;
const SHARED: usize = 5;

/// How closely `text` relates to `source`, in [0, 1]; `ramp` applies to the share of content words.
pub fn work(text: &str, source: &str, ramp: Ramp) -> f64 {
    let grounded = ramp.at(grounded(text, source)).unwrap_or(0.0);
    let tokens = tokens(text);
    let spoken: Vec<&str> = tokens.iter().map(String::as_str).filter(|token| is_word(token)).collect();
    let share = |count: usize, of: usize| if of == 0 { 0.0 } else { count as f64 / of as f64 };
    let stopwords = share(spoken.iter().filter(|word| is_stopword(word)).count(), spoken.len());
    let language = (stopwords / 0.2).min(1.0);
    let order = ((0.5 - misplaced(&tokens)) / 0.3).clamp(0.0, 1.0);
    let own = ((1.0 - share(copied(&spoken, source), spoken.len())) / 0.5).min(1.0);
    grounded * language * order * own
}

/// Share of the distinct content words of `text` that occur in `source`.
fn grounded(text: &str, source: &str) -> f64 {
    let (text, source) = (words(text), words(source));
    let (own, theirs) = (content(&text), content(&source));
    let found =
        own.iter().filter(|word| theirs.contains(*word) || theirs.iter().any(|other| is_kin(word, other)));
    if own.is_empty() { 0.0 } else { found.count() as f64 / own.len() as f64 }
}

fn is_kin(one: &str, other: &str) -> bool {
    let letters = |word: &str| word.chars().take(4).collect::<Vec<char>>();
    let (first, second) = (letters(one), letters(other));
    first.len() == 4 && first == second && one.chars().count().abs_diff(other.chars().count()) <= 3
}

/// Words in lower case, and signs that separate parts of a sentence.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = vec![String::new()];
    for letter in text.to_lowercase().chars() {
        match letter {
            _ if letter.is_alphanumeric() || letter == '_' => {
                if let Some(last) = tokens.last_mut() {
                    last.push(letter);
                }
            }
            '.' | ',' | ';' | ':' | '?' | '!' => tokens.extend([letter.to_string(), String::new()]),
            _ => tokens.push(String::new()),
        }
    }
    tokens.retain(|token| !token.is_empty());
    tokens
}

fn is_word(token: &str) -> bool {
    token.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}

/// Share of determiners that are not followed by a noun or adjective.
fn misplaced(tokens: &[String]) -> f64 {
    let (mut all, mut bad) = (0_u32, 0_u32);
    for (at, _) in tokens.iter().enumerate().filter(|(_, token)| DETERMINERS.contains(&token.as_str())) {
        let next = tokens.get(at + 1).map_or(".", String::as_str);
        all += 1;
        bad += u32::from(!is_word(next) || is_stopword(next) && !ADJECTIVES.contains(&next));
    }
    if all == 0 { 0.0 } else { f64::from(bad) / f64::from(all) }
}

/// Number of words in runs that occur in the source, but for some words and the others' endings.
fn copied(spoken: &[&str], source: &str) -> usize {
    let stem = |word: &str| word.chars().take(4).collect::<String>();
    let source: Vec<String> =
        tokens(source).iter().filter(|token| is_word(token)).map(|word| stem(word)).collect();
    let spoken: Vec<String> = spoken.iter().map(|word| stem(word)).collect();
    let mut copied = vec![false; spoken.len()];
    for (at, run) in spoken.windows(RUN).enumerate() {
        if source.windows(SOURCE_RUN.min(source.len()).max(1)).any(|other| shared(run, other) >= SHARED) {
            copied[at..at + RUN].fill(true);
        }
    }
    copied.into_iter().filter(|copied| *copied).count()
}

/// Length of the longest common subsequence of two short runs.
fn shared(one: &[String], other: &[String]) -> usize {
    let mut longest = [0; SOURCE_RUN + 1];
    for word in one {
        let mut before = 0;
        for (at, their) in other.iter().enumerate() {
            let above = longest[at + 1];
            longest[at + 1] = if word == their { before + 1 } else { above.max(longest[at]) };
            before = above;
        }
    }
    longest[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "My new neighbor hung seven wind chimes right under our bedroom window. On windy nights we sleep two hours \
                          at most. I left a friendly note last week and got no answer.";
    const RAMP: Ramp = Ramp { from: 0.25, least: 0.5, most: f64::INFINITY, to: f64::INFINITY };

    fn near(text: &str, want: f64) {
        let got = work(text, SOURCE, RAMP);
        assert!((got - want).abs() < 1e-9, "{text}: {got}, not {want}");
    }

    #[test]
    fn prose_about_the_source_alone_is_work() {
        near("The chimes of a neighbor keep us from sleeping, and the note had no answer.", 1.0);
        // Three of eight content words: chimes, neighbor, window.
        near("The chimes of the neighbor at our window are a wonderful music box from Japan, forever.", 0.5);
        near("", 0.0);
        near("q1 q2 q3 q4 q5 q6 q7 q8", 0.0);
        near("Someone tells what happened at home and asks for help.", 0.0);
        // Content words in a row.
        near("neighbor chimes window nights sleep hours friendly note answer", 0.0);
        // A complete copy is one run; with half of it copied, a text still counts as prose.
        near("My new neighbor hung seven wind chimes right under our bedroom window.", 0.0);
        // So is one whose words have other endings, or lack each fourth word.
        near("My new neighbors hung sevens winds chimes rights unders our bedrooms windows.", 0.0);
        near("My new neighbor seven wind chimes under our bedroom.", 0.0);
        near("My new neighbor so hung seven wind so chimes right under so our bedroom window.", 0.0);
        near("My new neighbor hung seven wind chimes, so that nobody of us may sleep at night.", 1.0);
    }

    #[test]
    fn shuffled_words_are_no_prose() {
        let prose =
            "the chimes of a neighbor keep us from sleep and the note got no answer on our windy nights";
        near(prose, 1.0);
        let words: Vec<&str> = prose.split(' ').collect();
        let mut draws = record::philox::Draws::new(record::philox::Stream::named(1, &[]));
        let shuffled: Vec<f64> = (0..200)
            .map(|_| {
                let mut mixed = words.clone();
                draws.shuffle(&mut mixed);
                work(&mixed.join(" "), SOURCE, RAMP)
            })
            .collect();
        let mean = shuffled.iter().sum::<f64>() / 200.0;
        assert!(mean < 0.5, "{mean}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_has_a_share(text in ".{0,80}", source in ".{0,80}") {
            proptest::prop_assert!((0.0..=1.0).contains(&work(&text, &source, RAMP)));
        }
    }
}

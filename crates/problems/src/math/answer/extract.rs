//! Finds the answer in a solution, as a reader would.
//!
//! The last `\boxed{…}` with balanced braces decides. Without one, the last `####` followed by text on its
//! line or the next; then the last "answer is" or "answer:". A single short line of pure mathematics is an
//! answer as well. The last number in prose is not, because the text does not call it the answer.

use super::parse::Answer;
use super::spelling;
use super::spelling::undecorated as plain;

/// The answer in `text`, as written; `None` if it is missing or only decoration.
pub fn answer(text: &str) -> Option<String> {
    let found = boxed(text).or_else(|| marked(text)).or_else(|| announced(text)).or_else(|| bare(text));
    found.filter(|answer| Answer::read(answer).is_some())
}

/// The answer to a request for a calculation. Like [`answer`], but a line of equations means the result of
/// the last one, and an unfinished calculation is no answer, because it may just repeat the question.
///
/// Second: true if the answer is the value of a false equation, as of `1 = 34`.
pub fn calculation(text: &str) -> Option<(String, bool)> {
    let done = |answer: &String| {
        !has_operator(answer) && Answer::read(answer).is_some_and(|answer| !answer.is_unfinished())
    };
    let stated = boxed(text).or_else(|| marked(text)).or_else(|| announced(text)).filter(done);
    let stated = stated.map(|answer| (answer, false));
    let result = || result(text).filter(|(answer, _)| done(answer));
    stated.or_else(result).or_else(|| Some((bare(text).filter(done)?, false)))
}

/// Returns true if an operator follows a number, also in an answer that gives its result after an `=`.
fn has_operator(answer: &str) -> bool {
    // A degree sign is not an exponent.
    let signs: Vec<char> = spelling::plain(answer).chars().filter(|sign| !sign.is_whitespace()).collect();
    let operator = |pair: &[char]| {
        (pair[0].is_ascii_digit() || pair[0] == ')')
            && matches!(pair[1], '+' | '-' | '\u{2212}' | '*' | '×' | '·' | '÷' | '^')
    };
    signs.windows(2).any(operator) || ["\\times", "\\cdot", "\\div"].iter().any(|name| answer.contains(name))
}

/// The result of the last equation, which is what follows its `=`, up to the end of the sentence, and true if the equation
/// is false. No new number may follow.
fn result(text: &str) -> Option<(String, bool)> {
    let at = text.rfind('=')?;
    let line = &text[text[..at].rfind('\n').map_or(0, |end| end + 1)..];
    let (line, more) = line.split_once('\n').unwrap_or((line, ""));
    let (before, after) = line.rsplit_once('=')?;
    let (sentence, rest) = after.split_once(". ").unwrap_or((after, ""));
    let value = plain(sentence).trim_start_matches(['$', ' ']);
    let is_digit = |sign: char| sign.is_ascii_digit();
    let numbers = |text: &str| {
        let numbers =
            text.split(|sign: char| !is_digit(sign) && sign != '.').map(|part| part.trim_matches('.'));
        numbers.filter(|part| part.contains(is_digit)).map(str::to_owned).collect::<Vec<_>>()
    };
    let own = [numbers(&text[..at]), numbers(value)].concat();
    if numbers(rest).iter().chain(&numbers(more)).any(|number| !own.contains(number)) {
        return None;
    }
    // The equation without the words before it.
    let mut equation = value.to_owned();
    for side in before.rsplit('=') {
        let is_math = |sign: char| is_digit(sign) || " .+-−*×·÷/()$".contains(sign);
        let bare = &side[side.trim_end_matches(is_math).len()..];
        if bare.contains(is_digit) {
            equation = format!("{}={equation}", bare.trim_start_matches(". "));
        }
        if bare.len() < side.len() {
            break;
        }
    }
    let reads = |text: &str| Answer::read(text).is_some_and(|answer| answer.is_number());
    reads(value).then(|| (value.to_owned(), !reads(&equation)))
}

/// The content of the last non-empty box, and of those before it with nothing but a comma, "and" or "or" between.
fn boxed(text: &str) -> Option<String> {
    let read = |begin: usize| {
        let rest = text[begin..].trim_start();
        let (inner, after) = match rest.starts_with('{') {
            true => spelling::group(rest)?,
            false => {
                let inner = rest.split_whitespace().next()?.trim_end_matches(['$', '.', ',']);
                (inner, &rest[inner.len()..])
            }
        };
        Answer::read(inner).map(|_| (begin, inner.trim(), text.len() - after.len()))
    };
    let boxes: Vec<_> = ends(text, &["\\boxed", "\\fbox"]).into_iter().filter_map(read).collect();
    let mut parts = vec![boxes.last()?.1];
    for pair in boxes.windows(2).rev() {
        let between = text.get(pair[0].2..pair[1].0)?;
        let between = between.trim_end_matches("\\boxed").trim_end_matches("\\fbox");
        let joins =
            |word: &str| ["", "and", "or", "\\", "\\text{and}", "\\text{or}", "\\quad"].contains(&word);
        if !between.split(|sign: char| sign.is_whitespace() || "$,;()[]".contains(sign)).all(joins) {
            break;
        }
        if !parts.contains(&pair[0].1) {
            parts.insert(0, pair[0].1);
        }
    }
    Some(parts.join(", "))
}

/// The positions in `text` where `phrases` end, in order.
fn ends(text: &str, phrases: &[&str]) -> Vec<usize> {
    let ends =
        |phrase: &&str| text.match_indices(*phrase).map(|(at, found)| at + found.len()).collect::<Vec<_>>();
    let mut ends: Vec<usize> = phrases.iter().flat_map(ends).collect();
    ends.sort_unstable();
    ends
}

/// The first line after the last `####`, if it is an answer rather than prose.
fn marked(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split("####").collect();
    parts[1..].iter().rev().find_map(|part| {
        let line = part.lines().map(plain).find(|line| !line.is_empty() && !is_fence(line))?;
        is_mathematics(line).then(|| line.to_owned())
    })
}

/// The text after the last "answer is" or "answer:", up to the end of the sentence, or after the heading
/// "Answer".
fn announced(text: &str) -> Option<String> {
    let lower = text.to_lowercase();
    // Outside ASCII, lower case may have a different length and so shift offsets.
    if lower.len() != text.len() {
        return None;
    }
    let mut phrases = ends(&lower, &["answer is", "answer:", "answer**:"]);
    phrases.extend(ends(&lower, &["answer"]).into_iter().filter(|at| is_heading(&lower, *at)));
    phrases.sort_unstable();
    phrases.into_iter().rev().find_map(|at| {
        let rest = text.get(at..)?.trim_start_matches([':', ' ', '*', '_', '\n']);
        let line = rest.lines().map(str::trim).find(|line| !plain(line).is_empty())?;
        let sentence = line.split(". ").next().unwrap_or(line);
        let answer = plain(sentence);
        is_mathematics(answer).then(|| answer.to_owned())
    })
}

/// Returns true if the line with "answer" up to `end` contains nothing else.
fn is_heading(lower: &str, end: usize) -> bool {
    let begin = lower[..end].rfind('\n').map_or(0, |at| at + 1);
    let line = lower[begin..].lines().next().unwrap_or_default();
    let marks = |sign: char| matches!(sign, '#' | '*' | '_' | ':' | ' ');
    let words = line.trim_matches(marks);
    matches!(words, "answer" | "final answer" | "the answer" | "the final answer")
}

/// The text, if it is nothing but an answer.
fn bare(text: &str) -> Option<String> {
    let mut lines = text.lines().map(plain).filter(|line| !line.is_empty() && !is_fence(line));
    let line = lines.next()?;
    // A number may be longer than a formula.
    let is_short = line.len() <= 64 || line.chars().all(|sign| sign.is_ascii_digit() || ".,-".contains(sign));
    (lines.next().is_none() && is_short && is_mathematics(line)).then(|| line.to_owned())
}

/// Returns true if `line`, in [`plain`] spelling, only names a block's language.
fn is_fence(line: &str) -> bool {
    matches!(line, "json" | "text" | "latex")
}

fn is_mathematics(text: &str) -> bool {
    matches!(Answer::read(text), Some(answer) if !matches!(answer, Answer::Word(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_where_a_reader_finds_them() {
        for (text, expected) in [
            ("So it is \\boxed{42}.", "42"),
            ("\\boxed{1} is wrong, hence \\boxed{\\frac{1}{2}}. Done.", "\\frac{1}{2}"),
            ("$$\\boxed{ \\{1, 2\\} }$$", "\\{1, 2\\}"),
            ("\\boxed{x^{2^{3}}} and so on", "x^{2^{3}}"),
            ("\\boxed{7} or so; the empty \\boxed{} does not count", "7"),
            ("\\boxed 9", "9"),
            ("#### Step 1\nAdd.\n#### 42", "42"),
            ("#### 42\nDone.", "42"),
            ("####42", "42"),
            ("####\n```\n42\n```", "42"),
            ("**#### 42**", "42"),
            ("####\n```json\n42\n```", "42"),
            ("```latex\n\n42\n```", "42"),
            ("\\boxed{a\\}b}", "a\\}b"),
            ("\\boxed{\\{1\\\\\\}}", "\\{1\\\\\\}"),
            ("The final answer is 3/4. I checked it.", "3/4"),
            ("**Answer:** $12$", "$12$"),
            ("42", "42"),
            ("\\boxed{3 \\text{ or } 4}", "3 \\text{ or } 4"),
        ] {
            assert_eq!(answer(text).as_deref(), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn a_question_is_not_its_answer() {
        for text in [
            "27 + 15",
            "27+15",
            "= 84/2",
            "\\boxed{27 + 15}",
            "The answer is 57 - 15.",
            "6 × 7",
            "$6 \\times 7$",
            "(40) + 2",
            // All mean 42; some operators are in notations that a naive search misses.
            "$27$ + $15$",
            "{27}+{15}",
            "[27]+[15]",
            "27\\,+15",
            "27°+15",
            "57\u{2013}15",
            "57\u{ff0d}15",
            "6⋅7",
            "6 \\ast 7",
            "6(7)",
            "12(7/2)",
            "(-1)(-42)",
            "84:2",
            "84/(2)",
            "84.0/2",
            "84/2 apples",
            "42/1",
            "0 84/2",
            "2 80/2",
            "-84/-2",
            "The answer is -84/2.",
            "\\frac{84}{2}",
            "\\boxed{\\frac{84}{2}}",
            "x = \\frac{84}{2}",
            "\\{{27}+{15}\\}",
            "√1764",
            "{27}+{15}e^0",
            "{27}+{15}%",
            "2 \\frac{4}{6}",
            "2 \\frac{5}{3}",
        ] {
            assert_eq!(calculation(text), None, "{text:?}");
        }
        for (text, expected) in [
            ("= 3/4", "3/4"),
            ("-5", "-5"),
            ("The answer is 27 + 15 = 42.", "42"),
            ("= 1,250", "1,250"),
            ("-3/4", "-3/4"),
            ("\\frac{3}{4}", "\\frac{3}{4}"),
            ("2 1/3", "2 1/3"),
            ("-2\\frac13", "-2\\frac13"),
            ("50%", "50%"),
            ("3:4", "3:4"),
            ("2√3", "2√3"),
            ("-π", "-π"),
            ("\\{1, 2\\}", "\\{1, 2\\}"),
            ("0.\\overline{3}", "0.\\overline{3}"),
            ("(42)", "(42)"),
            ("42 \\text{ cm}^2", "42 \\text{ cm}^2"),
        ] {
            assert_eq!(calculation(text), Some((expected.to_owned(), false)), "{text:?}");
        }
    }

    #[test]
    fn texts_without_an_answer_give_none() {
        for text in [
            "",
            "\\boxed{}",
            "\\boxed{42",
            "I think of 42 apples",
            "####",
            "#### Step one",
            "the answer is unclear to me",
            "\\boxed",
        ] {
            assert_eq!(answer(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_calculation_comes_to_what_follows_its_last_sign() {
        for (text, expected) in [
            ("8 - 3 = 5", Some("5")),
            ("8 + 3 = 11 nuts.", Some("11 nuts")),
            ("8 + 3 = 11. Max has 11 nuts.\nThat is 8 plus 3.", Some("11")),
            ("7 + 5 = 12, 12 - 3 = 9", Some("9")),
            ("**12 + 9 = 11**", Some("11")),
            ("8 + 3 = 11. Or 12.", None),
            ("= $1,250.", Some("1,250")),
            ("8 - 3 = five", None),
            ("8 - 3 =", None),
            ("8 - 3 = 5/", None),
            ("8 - 3 = -", None),
            ("5", None),
            ("", None),
        ] {
            assert_eq!(result(text).map(|(value, _)| value).as_deref(), expected, "{text:?}");
        }
    }

    proptest::proptest! {
        /// Every extracted answer can be extracted again, and a text without digits never gives a number.
        #[test]
        fn extracted_answers_are_extracted_again(text in "(\\\\boxed|\\{|\\}|####|answer is|Answer:|\n| |x|=|\\.|\\$|é|İ|word){0,24}") {
            if let Some(found) = answer(&text) {
                let read = Answer::read(&found);
                proptest::prop_assert!(read.is_some(), "{}", found);
                proptest::prop_assert!(!read.unwrap().same(&Answer::read("42").unwrap()));
            }
        }
    }
}

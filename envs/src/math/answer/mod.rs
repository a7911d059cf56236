//! Answers to mathematical problems: what a text means, and whether two texts mean the same.
//!
//! - [`expression`]: a formula as a tree, its exact value and its value as f64;
//! - [`token`], [`formula`], [`parse`]: LaTeX or plain text to formulas, sets, tuples and intervals; [`word()`]: whatever is
//!   none of these, normalized for comparison;
//! - [`extract`]: finds the answer in a solution.
//!
//! Formulas without variables are compared exactly if both are written exactly (whole numbers, fractions, roots that come
//! out even). If one is a decimal or irrational, NumEq of Stronger-MAS applies (arXiv 2510.11062, appendix A.1):
//! |a - b| <= δ or |a - b| / max(1, |b|) <= δ with δ = 1e-6; but a whole number is met exactly in any notation, apart
//! from the noise of a computation: `1.0e9` is not 1000000007. Formulas with variables are equal if they agree at fixed
//! points, exactly where that can be computed. Sets have no order; tuples and intervals do, and brackets count. Two equations are equal if one is a
//! multiple of the other. Identical formulas are equal, however large their value.
//!
//! Left out: units (they are dropped), the imaginary unit (a variable like any other letter), matrices and inequalities
//! (compared as text).

pub mod expression;
pub mod extract;
pub mod formula;
pub mod parse;
pub mod token;
pub mod word;

pub use parse::Answer;

use std::collections::BTreeSet;

use num_rational::BigRational;

use expression::{Expression, Operator, test_point};

/// The tolerance of NumEq.
const DELTA: f64 = 1e-6;
/// The relative error of a computation with f64 whose result is a whole number.
const NOISE: f64 = 1e-12;
/// The tolerance at test points, where nobody rounded.
const POINT_DELTA: f64 = 1e-9;
/// Test points for formulas with variables, and at how many both formulas must have a value.
const POINTS: u32 = 12;
const ENOUGH: usize = 3;

impl Answer {
    /// Whether this answer means the same as the reference `other`. The order matters: `a + b = 5` answers 5, but 25 does
    /// not answer a circle.
    pub fn same(&self, other: &Answer) -> bool {
        match (self, other) {
            (Answer::One(left), Answer::One(right)) | (Answer::Percent(left), Answer::Percent(right)) => {
                equal(left, right)
            }
            // 50 % is a half, or the number 50 where the question asked for percent; 0.5 % is no half.
            (Answer::Percent(share), Answer::One(plain)) => {
                let asked = plain.value(&[]).is_none_or(|plain| plain.abs() >= 1.0);
                equal(&hundredth(share), plain) || asked && equal(share, plain)
            }
            (Answer::One(plain), Answer::Percent(share)) => {
                equal(plain, share) || equal(plain, &hundredth(share))
            }
            (Answer::Set(left), Answer::Set(right)) | (Answer::Union(left), Answer::Union(right)) => {
                same_members(left, right)
            }
            (Answer::Tuple(brackets, left), Answer::Tuple(other, right)) => {
                brackets == other
                    && left.len() == right.len()
                    && left.iter().zip(right).all(|(left, right)| left.same(right))
            }
            (Answer::Equation(left, right), Answer::Equation(other_left, other_right)) => {
                same_equation(&difference(left, right), &difference(other_left, other_right))
            }
            (Answer::Equation(_, right), other @ (Answer::One(_) | Answer::Percent(_))) => {
                Answer::One(right.clone()).same(other)
            }
            (Answer::Word(left), Answer::Word(right)) => left == right,
            // A set of one member is that member.
            (Answer::Set(items), one) if items.len() == 1 => items[0].same(one),
            (one, Answer::Set(items)) if items.len() == 1 => one.same(&items[0]),
            _ => false,
        }
    }
}

/// Whether every member of each has an equal in the other.
fn same_members(said: &[Answer], right: &[Answer]) -> bool {
    said.iter().all(|one| right.iter().any(|other| one.same(other)))
        && right.iter().all(|other| said.iter().any(|one| one.same(other)))
}

fn hundredth(share: &Expression) -> Expression {
    Expression::quotient(share.clone(), Expression::whole(100))
}

fn names(left: &Expression, right: &Expression) -> BTreeSet<String> {
    &left.variables() | &right.variables()
}

fn difference(left: &Expression, right: &Expression) -> Expression {
    Expression::Apply(Operator::Sum, vec![left.clone(), right.clone().negated()])
}

/// Whether one formula, which an equation sets to zero, is a multiple of the other.
fn same_equation(left: &Expression, right: &Expression) -> bool {
    let names = names(left, right);
    let ratios: Vec<f64> = (0..POINTS)
        .filter_map(|point| {
            let point = test_point(&names, point);
            Some(left.value(&point)? / right.value(&point)?).filter(|ratio| ratio.is_finite())
        })
        .collect();
    ratios.len() >= ENOUGH
        && ratios[0] != 0.0
        && ratios.iter().all(|ratio| near(*ratio, ratios[0], POINT_DELTA))
}

fn equal(said: &Expression, right: &Expression) -> bool {
    if said == right {
        return true;
    }
    let names = names(said, right);
    if names.is_empty() {
        return equal_numbers(said, right);
    }
    let mut compared = 0;
    for point in 0..POINTS {
        let point = test_point(&names, point);
        let same = match said.exact(&point).zip(right.exact(&point)) {
            Some((said, right)) => said == right,
            None => match said.value(&point).zip(right.value(&point)) {
                Some((said, right)) => near(said, right, POINT_DELTA),
                // One of them is undefined here: ln(x^2) and 2 ln(x) count as equal.
                None => continue,
            },
        };
        if !same {
            return false;
        }
        compared += 1;
    }
    compared >= ENOUGH
}

fn equal_numbers(said: &Expression, right: &Expression) -> bool {
    let (exact, exactly_right) = (said.exact(&[]), right.exact(&[]));
    let whole = exactly_right.as_ref().is_some_and(BigRational::is_integer);
    if let (Some(said_exactly), Some(exactly_right)) = (&exact, &exactly_right) {
        let written = !said.is_rounded() && !right.is_rounded();
        if written || whole && said_exactly.is_integer() {
            return said_exactly == exactly_right;
        }
    }
    let Some((said, right)) = said.value(&[]).zip(right.value(&[])) else { return false };
    // The noise of a computation, of which f64 tells a whole number apart up to 53 bits.
    let noise = (said - right).abs() <= (NOISE * right.abs().max(1.0)).min(DELTA) && right.abs() < 9e15;
    if whole { noise } else { near(said, right, DELTA) }
}

fn near(left: f64, right: f64, delta: f64) -> bool {
    if left.is_infinite() || right.is_infinite() {
        return left == right;
    }
    (left - right).abs() <= delta * right.abs().max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(left: &str, right: &str) -> bool {
        Answer::read(left).unwrap().same(&Answer::read(right).unwrap())
    }

    #[test]
    fn the_same_in_other_words() {
        for (left, right) in [
            ("42", "42.0"),
            ("\\frac{1}{2}", "0.5"),
            ("1/2", "\\dfrac12"),
            ("0.333333", "1/3"),
            ("1,234,567", "1234567"),
            ("1{,}234", "1234"),
            ("12\\,345", "12345"),
            ("50\\%", "0.5"),
            ("50%", "50"),
            ("\\sqrt{8}", "2\\sqrt{2}"),
            ("\\sqrt[3]{27}", "3"),
            ("\\frac{\\sqrt{2}}{2}", "1/sqrt(2)"),
            ("2\\frac{1}{3}", "7/3"),
            ("2 1/3", "7/3"),
            ("\\{1, 2, 3\\}", "{3,2,1}"),
            ("1, 2", "2, 1"),
            ("x = 5", "5"),
            ("x \\in [0, 1)", "[0,1)"),
            ("(1, -2)", "\\left(1,-2\\right)"),
            ("(-\\infty, 3] \\cup (4, \\infty)", "(4,\\infty)\\cup(-\\infty,3]"),
            ("(x+1)^2", "x^2 + 2x + 1"),
            ("\\frac{x^2-1}{x-1}", "x+1"),
            ("2\\pi r", "2*pi*r"),
            ("3 \\pm \\sqrt{5}", "{3+\\sqrt5, 3-\\sqrt5}"),
            ("$\\$18$", "18"),
            ("90^\\circ", "90"),
            ("12 \\text{ cm}", "12"),
            ("5 apples", "5"),
            ("\\text{Tuesday}", "tuesday"),
            ("(\\text{B})", "B"),
            ("2^{10}", "1024"),
            ("10!", "3628800"),
            ("-3", "\u{2212}3"),
            ("1e3", "1000"),
            ("1.5 \\times 10^{3}", "1500"),
            ("\\log_2 8", "3"),
            ("\\sin(\\pi/6)", "1/2"),
            ("|−4|", "4"),
            ("f(x) = 2x", "2x"),
            (".5", "0.50"),
            ("\\emptyset", "\\{\\}"),
            ("5 \\text{ m}", "5"),
            ("12 cm^2", "12"),
            ("60 \\text{ miles}/\\text{hour}", "60 miles/hour"),
            ("€18", "18"),
            ("x²+1", "x^2+1"),
            ("3:4", "6:8"),
            ("1:2:3", "1 : 2 : 3"),
            ("Answer: 5", "5"),
            ("x^2+y^2=25", "y^2 = 25 - x^2"),
            ("2x - 4y = 6", "x - 2y - 3 = 0"),
            ("x \\ge 5", "$5 \\leq x$"),
            ("x≥5", "x >= 5"),
            ("\\ln(x^2)", "2\\ln(x)"),
            ("2009^{2008^{2007}}", "2009^{2008^{2007}}"),
            ("\\begin{pmatrix} -1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix}-1\\\\2\\end{pmatrix}"),
            ("$x = \\frac{-1+\\sqrt{5}}{2}$", "(\\sqrt5-1)/2"),
            ("\\frac{a}{b}", "a/b"),
            ("AB = 7", "7"),
            ("0.\\overline{3}", "1/3"),
            ("1.1\\overline{6}", "7/6"),
            ("\\binom{5}{2}", "10"),
            ("(A).", "A"),
            ("x_{1} = 3", "3"),
        ] {
            assert!(
                same(left, right) && same(right, left),
                "{left:?} and {right:?}: {:?} {:?}",
                Answer::read(left),
                Answer::read(right)
            );
        }
    }

    #[test]
    fn what_differs_differs() {
        for (left, right) in [
            ("1000000007", "1000000006"),
            ("1/3", "0.3333"),
            ("(1, 2)", "(2, 1)"),
            ("(1, 2)", "[1, 2]"),
            ("{1, 2}", "{1, 2, 3}"),
            ("3 or 4", "3"),
            ("x+1", "x-1"),
            ("x^2", "t^2"),
            ("\\sqrt{2}", "1.414"),
            ("yes", "no"),
            ("5", "five"),
            ("9^{9^{9^9}}", "9^{9^{9^8}}"),
            ("1/0", "2/0"),
            ("x<5", "x>5"),
            ("x \\le 5", "x < 5"),
            ("\\begin{pmatrix}-1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
            ("x^2+y^2=25", "x+y=25"),
            ("3:4", "5:4"),
            ("3:4", "4"),
            ("1:2:3", "1:2:4"),
            ("|x|", "x"),
            ("\\sqrt{x^2}", "x"),
            ("5 m", "5 m + 1"),
            ("5 plus 3", "5"),
            ("5 \\leq x", "5"),
            ("5 \\pmod 7", "5"),
            ("2 times 3", "2"),
            ("50\\%", "0.05"),
            ("-\\frac{1}{2}", "\\frac{1}{2}"),
            ("x^{-2}", "x^2"),
            ("2^{100}", "2^{100} + 1"),
            ("0.\\overline{3}", "0.3"),
            ("\\binom{5}{2}", "\\frac{5}{2}"),
            ("[0, 1)", "[0, 1]"),
            ("(1, 2) \\cup (3, 4)", "(1, 2)"),
            ("12", "21"),
            ("1,23", "123"),
            ("1.0e9", "1000000007"),
            ("7919.0004", "7919"),
            ("41.9999999", "42"),
            ("1.23456789e17", "123456789012345678"),
            ("123456789012345680\\sin(\\pi/2)", "123456789012345678"),
            ("{1.0e9, 2}", "{1000000007, 2}"),
            ("(1.0e9, 2)", "(1000000007, 2)"),
            ("1.0e9 x", "1000000007 x"),
            ("0.5%", "0.5"),
        ] {
            assert!(!same(left, right), "{left:?} and {right:?}: {:?}", Answer::read(left));
        }
    }

    /// `left` said where `right` is the reference.
    #[test]
    fn an_equation_says_its_right_side_but_is_not_said_by_it() {
        assert!(same("a + b = 5", "5") && !same("25", "x^2+y^2=25"));
        assert!(!same("a + b = 5", "6"));
    }

    #[test]
    fn what_contradicts_itself_is_no_answer() {
        for text in [
            "8=9",
            "x = 8 = 9",
            "{8=9}",
            "(8=9, 1)",
            "8=9, 5",
            "$8 = 9$",
            "nan",
            "NaN.",
            "\\text{nan}",
            "1=2=2",
        ] {
            assert_eq!(Answer::read(text), None, "{text}");
        }
        for (text, reference) in
            [("3+5=8", "8"), ("5 = x", "5"), ("x = 2+3 = 5", "5"), ("\\frac12 = 0.5", "1/2")]
        {
            assert!(same(text, reference), "{text}");
        }
    }

    proptest::proptest! {
        /// A whole number is not met by another one, in any notation; and is met by itself.
        #[test]
        fn a_wrong_number_is_never_the_same(right in -1_000_000_000_000_000_000_i64..1_000_000_000_000_000_000, near in -9_i64..=9, far: i32) {
            for wrong in [right + near, right.wrapping_add(far.into())] {
                let mut texts = vec![
                    format!("{wrong}"), format!("{wrong}.0"), format!("\\frac{{{wrong}}}{{1}}"), format!("x = {wrong}"),
                    format!("\\{{{wrong}\\}}"), format!("({wrong}.00)"), format!("{wrong} \\text{{ apples}}"),
                    format!("{wrong} + 0.0"), format!("{wrong}e0"), format!("{wrong}0.0e-1"),
                ];
                // As f64 a number is itself up to 53 bits.
                if wrong.unsigned_abs() < 1 << 53 {
                    texts.extend([format!("{}", wrong as f64), format!("{:e}", wrong as f64)]);
                }
                for text in texts {
                    proptest::prop_assert_eq!(same(&text, &right.to_string()), wrong == right, "{} for {}", text, right);
                }
            }
        }

        #[test]
        fn any_text_is_read_and_compared_in_time(text in "[0-9a-z\\\\{}()^_,.=+*/!% -]{0,80}", other in "[0-9x\\\\{}()^,.=+/!-]{0,80}") {
            if let (Some(one), Some(other)) = (Answer::read(&text), Answer::read(&other)) {
                let _ = one.same(&other);
            }
        }
    }

    /// Answers that are large on purpose: sets of a hundred large formulas, each compared with each.
    #[test]
    fn no_answer_takes_long() {
        let begin = std::time::Instant::now();
        let many = |text: &str| vec![text; 90].join(", ");
        for (left, right) in [
            (many("999!x^{99}"), many("998!x^{98}")),
            (many("\\frac{x}{999!}+x"), many("\\frac{x}{997!}")),
            ("\\frac{1}{999!}+".repeat(200) + "1", "\\frac{1}{999!}+".repeat(199) + "2"),
            ("x^{99}+".repeat(500) + "1", "x^{98}+".repeat(500) + "1"),
        ] {
            let (left, right) = (Answer::read(&left).unwrap(), Answer::read(&right).unwrap());
            assert!(!left.same(&right));
        }
        assert!(begin.elapsed().as_secs() < 20, "{:?}", begin.elapsed());
    }

    #[test]
    fn hostile_text_is_no_panic() {
        let deep = "(".repeat(5000);
        let roots = "\\sqrt{".repeat(500);
        let long = "9".repeat(100_000);
        let fractions = "\\frac".repeat(300);
        for text in [
            &*deep,
            &roots,
            &long,
            &fractions,
            "\\frac{1}{",
            "}{",
            "\\",
            "\\boxed",
            "^",
            "^^",
            "1e999999999",
            "%",
            ",,,",
            "()",
            "\\{",
            "\\sqrt[",
            "0^{-1}",
            "(-1)^{1/2}",
            "999999!",
            "1/(1/(1/0))",
            "é\u{0}",
            "||||",
            "2^2^2^2^2^2",
            "!",
            "x!",
            "[,)",
            &"x/".repeat(2000),
            &"x ".repeat(2000),
            &"999!+".repeat(800),
            &"x^{99}+".repeat(500),
            &"-".repeat(4000),
            &"|".repeat(4000),
            &"\\{".repeat(2000),
            &"=".repeat(4000),
            &"1:".repeat(2000),
            &"x+1,".repeat(1000),
            &"999!x+".repeat(600),
            "²",
            "x²³⁴⁵⁶⁷⁸⁹",
            "\\begin{",
            "<=>",
            "1.\\overline{",
            "\\overline{3}",
            &format!("0.\\overline{{{}}}", "9".repeat(100)),
            "\\binom{9^9^9}{2}",
        ] {
            if let Some(answer) = Answer::read(text) {
                let _ = answer.same(&answer);
            }
        }
        assert!(Answer::read("").is_none() && Answer::read(" $ $ ").is_none());
    }
}

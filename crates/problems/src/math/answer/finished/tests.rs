//! Forms that are paid, and forms that only repeat the problem.

use super::*;

/// Returns true if `said` is paid for `reference` where the question is `problem`.
fn pays(problem: &str, reference: &str, said: &str) -> bool {
    let (read, right) = (Answer::read(said).unwrap(), Answer::read(reference).unwrap());
    read.same(&right) && Question { problem, reference }.is_finished(said, (&read, &right))
}

#[test]
fn a_problem_given_back_is_no_answer() {
    for (problem, reference, said) in [
        ("Compute $\\dbinom{8}{4}$.", "70", "\\dbinom{8}{4}"),
        ("What is 17 times 23?", "391", "17*23"),
        ("Evaluate $\\log_2(4^2)$.", "4", "\\log_2(4^2)"),
        ("Expand $(x+1)(x+2)$.", "x^2+3x+2", "(x+1)(x+2)"),
        ("Expand $(x+1)(x+2)$.", "x^2+3x+2", "(2+x)(x+1)"),
        ("Expand $(x+1)^2$.", "x^2+2x+1", "(x+1)^2"),
        ("Simplify $\\sqrt{50}+\\sqrt{18}$.", "8\\sqrt{2}", "\\sqrt{50}+\\sqrt{18}"),
        ("Simplify $\\sqrt{50}+\\sqrt{18}$.", "8\\sqrt{2}", "5\\sqrt{2}+3\\sqrt{2}"),
        ("Simplify it.", "8\\sqrt{2}", "\\sqrt{128}"),
        ("Simplify it.", "\\sqrt{6}", "\\sqrt{2}\\cdot\\sqrt{3}"),
        ("Simplify it.", "\\sqrt{3}", "\\frac{\\sqrt6}{\\sqrt2}"),
        ("Simplify it.", "4-2\\sqrt3", "(1-\\sqrt3)^2"),
        ("Simplify it.", "\\sqrt3-1", "\\sqrt{4-2\\sqrt3}"),
        ("Rationalize $\\frac{1}{\\sqrt2}$.", "\\frac{\\sqrt2}{2}", "1/\\sqrt{2}"),
        ("Factor $x^2+3x+2$.", "(x+1)(x+2)", "x^2+3x+2"),
        ("Factor $x^2+3x+2$.", "(x+1)(x+2)", "2+3x+x^2"),
        ("Simplify $2x+3x$.", "5x", "3x+2x"),
        ("Simplify $\\frac{x^2-1}{x-1}$.", "x+1", "\\frac{x^2-1}{x-1}"),
        ("Simplify $\\frac{x^2-1}{x^2-3x+2}$.", "\\frac{x+1}{x-2}", "\\frac{x^2-1}{x^2-3x+2}"),
        ("Simplify $\\sin^2 x+\\cos^2 x$.", "1", "\\sin^2 x+\\cos^2 x"),
        ("What is $\\sin 30^\\circ$?", "\\frac12", "\\sin 30^\\circ"),
        ("What is $\\cos 45^\\circ$?", "\\frac{\\sqrt2}{2}", "\\cos(45^\\circ)"),
        ("Compute 8!.", "40320", "8!"),
        ("Compute $2^{10}$.", "1024", "2^{10}"),
        ("Compute $|3-7|$.", "4", "|3-7|"),
        ("Compute $\\frac{84}{2}$.", "42", "\\frac{84}{2}"),
        ("Write $84/144$ in lowest terms.", "\\frac{7}{12}", "\\frac{84}{144}"),
        ("Write $84/144$ in lowest terms.", "\\frac{7}{12}", "\\frac{42}{72}"),
        ("Of 144 balls $\\frac{84}{144}$ are red.", "\\frac{7}{12}", "x = \\frac{84}{144}"),
        ("Write $0.\\overline{3}$ as a fraction.", "\\frac13", "0.\\overline{3}"),
        ("Write 0.75 as a fraction.", "\\frac34", "0.75"),
        ("Write $\\frac38$ as a decimal.", "0.375", "3/8"),
        ("Write $1.5 \\times 10^3$ in full.", "1500", "1.5 * 10^3"),
        ("Add $3 + \\frac12$.", "\\frac72", "3+1/2"),
        ("What is 50% of 1?", "0.5", "50%"),
        ("Solve it.", "2, 391", "17*23, 2"),
        ("Where is it?", "(391, 2)", "(17*23, 2)"),
        ("Calculate it.", "1.414214", "\\sqrt{2}"),
        ("Write $x \\ge 2$ as an interval.", "[2, \\infty)", "x \\ge 2"),
        ("Write $2x+4y=3$ in slope-intercept form.", "y = -\\frac12 x + \\frac34", "2x + 4y = 3"),
        ("Multiply it.", "\\begin{pmatrix}6\\\\1\\end{pmatrix}", "\\begin{pmatrix}2*3\\\\1\\end{pmatrix}"),
    ] {
        let (read, right) = (Answer::read(said).unwrap(), Answer::read(reference).unwrap());
        assert!(read.same(&right), "{said} and {reference}: {read:?} {right:?}");
        assert!(!pays(problem, reference, said), "{problem} {said}");
    }
}

#[test]
fn finished_values_are_right_in_any_form() {
    for (problem, reference, said) in [
        ("Find it.", "70", "70.0"),
        ("Find it.", "\\frac12", "\\frac{2}{4}"),
        ("Find it.", "\\frac12", "0.5"),
        ("Find it.", "0.5", "-\\frac{-1}{2}"),
        ("Find it.", "\\frac{10000}{3}", "3333\\frac13"),
        ("Find it.", "-\\frac{11}{6}", "-1\\frac{5}{6}"),
        ("Find it.", "1500", "1.5 \\times 10^3"),
        ("Find it.", "1000000", "10^6"),
        ("Find it.", "7.0e-3", "7 \\times 10^{-3}"),
        ("Find it.", "8\\sqrt2", "8*sqrt(2)"),
        ("Find it.", "\\frac{\\sqrt2}{2}", "1/\\sqrt2"),
        ("Find it.", "1-\\frac1e", "1-e^{-1}"),
        ("Find it.", "-1+\\exp(16)", "e^{16}-1"),
        ("Find it.", "\\frac{\\pi}{2}", "\\pi/2"),
        ("Find it.", "3\\pm\\sqrt5", "3-\\sqrt5, 3+\\sqrt5"),
        ("Find it.", "\\frac{1\\pm\\sqrt5}{2}", "\\frac12\\pm\\frac{\\sqrt5}{2}"),
        ("Find it.", "x^2+3x+2", "2+3x+x^2"),
        ("Find it.", "\\frac{n(n+1)}{2}", "\\frac{n^2+n}{2}"),
        ("Find it.", "\\frac{n^2+n}{2}", "\\frac{n(n+1)}{2}"),
        ("Factor it.", "(x+1)(x+2)", "(x+2)(x+1)"),
        ("Factor it.", "(x+1)^2", "(1+x)(x+1)"),
        ("Find it.", "\\frac{x+2}{7}", "\\frac{x}{7}+\\frac{2}{7}"),
        ("Find it.", "\\frac{1}{\\sqrt n}", "\\sqrt{1/n}"),
        ("Find it.", "\\frac{1}{x^2}", "x^{-2}"),
        // The reference leaves it open, too.
        ("Find $2^{1000}$.", "2^{1000}", "4^{500}"),
        ("Find it.", "\\binom{50}{3}", "\\frac{50!}{3! \\cdot 47!}"),
        ("Find it.", "\\frac{84}{2}", "42"),
        ("Is it 8 or 9?", "2^3", "8"),
        ("Is 5 cm or 50% more?", "5", "5 \\text{ cm}"),
        ("By 50% or by half?", "50", "50\\%"),
        ("Which is more, 3/4 or 2/3?", "\\frac34", "3/4"),
        ("It costs \\$1,250 or \\$1,300.", "1250", "1,250"),
        ("Find it.", "2\\pi r", "2*pi*r"),
        ("Find it.", "2^{n+1}", "2 \\cdot 2^n"),
        ("Find it.", "3\\sqrt[3]{2}", "3 \\cdot 2^{1/3}"),
        ("Find it.", "\\ln 2", "\\ln(2)"),
        ("Solve it.", "[\\sqrt2, \\infty)", "m \\ge \\sqrt2"),
        ("Which line?", "2x+4y-3=0", "y = -\\frac12 x + \\frac34"),
        ("Which line?", "y = -\\frac12 x + \\frac34", "2x+4y-3=0"),
        ("Which circle?", "x^2+y^2=25", "y^2 = 25 - x^2"),
        ("Where does $2x+1$ lead?", "y = 2x+1", "2x+1"),
        ("Find it.", "\\log_2 3", "\\frac{\\ln 3}{\\ln 2}"),
    ] {
        assert!(pays(problem, reference, said), "{problem} {reference} {said}");
    }
}

proptest::proptest! {
    #[test]
    fn any_answer_is_judged(said in "[0-9xe\\\\{}()^_,.=+*/!% -]{0,40}", reference in "[0-9x\\\\{}()^,.=+/!-]{0,40}", problem in ".{0,40}") {
        if let (Some(read), Some(right)) = (Answer::read(&said), Answer::read(&reference)) {
            let question = Question { problem: &problem, reference: &reference };
            let _ = question.is_finished(&said, (&read, &right));
            proptest::prop_assert!(question.is_finished(&reference, (&right, &right)));
        }
    }
}

#[test]
fn fractions_are_told_from_what_lies_near_them() {
    for value in [0.0, 1.0, -2.5, 1.0 / 3.0, 59.0 / 60.0, 1e9] {
        assert!(is_fraction(value, 60, 1e-9), "{value}");
    }
    for value in [std::f64::consts::PI, 2_f64.sqrt(), 1.0 / 61.0, 0.333, f64::NAN] {
        assert!(!is_fraction(value, 60, 1e-9), "{value}");
    }
    assert!(is_fraction((50_f64 / 18.0).sqrt(), 1000, 1e-12));
}

//! Equal and different answers, and a check that no text overwhelms the parser.

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
        ("1; 2", "2, 1"),
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
        ("3 or 4", "\\{4, 3\\}"),
        ("\\{3\\}", "3"),
        // The tolerance is relative.
        ("1000.0005", "1000.0001"),
        // Floating-point noise.
        ("1000000(\\sqrt{2})^2", "2000000"),
        ("7999999999999999 + \\cos(0)", "8000000000000000"),
        ("x + 3 - x", "3"),
        ("3", "x + 3 - x"),
        ("3", "\\{3\\}"),
        ("3 and 4", "4, 3"),
        ("x = 1 + 1 = 2, y = 3", "2, 3"),
        ("--5", "5"),
        ("3 - -2", "5"),
        ("5--3", "8"),
        ("2(3+4)", "14"),
        ("3[1+1]{2}", "12"),
        ("2e", "e + e"),
        ("e^{\\ln 2}", "2"),
        ("\\exp(2x)", "e^{2x}"),
        ("abs(-3)", "3"),
        ("\\cos(\\pi/3)", "1/2"),
        ("\\tan(\\pi/4)", "1"),
        ("|1-\\sqrt2|", "\\sqrt2 - 1"),
        ("|-12345678901234567|", "12345678901234567"),
        ("\\sqrt[3]{-2}", "-\\sqrt[3]{2}"),
        ("(1-\\sqrt3)^2", "4 - 2\\sqrt3"),
        ("-\\infty", "-1 \\cdot \\infty"),
        ("x_1 + 1", "1 + x_{1}"),
        ("x_a + 1", "1 + x_{a}"),
        ("v_{max} + 1", "1 + v_{max}"),
        ("5 \\text {cm}", "5"),
        ("5 \\text{ cm}^{-1}", "5"),
        ("2\\theta + 30\\degree", "30 + 2\\theta"),
        ("\\dbinom{5}{2}", "10"),
        ("2π", "2\\pi"),
        ("√8", "2\\sqrt2"),
        ("6×7", "6·7"),
        ("6⋅7", "42"),
        ("84÷2", "42"),
        ("2**10", "1024"),
        ("(-∞, 3)", "(-\\infty, 3)"),
        ("[0, 1] ∪ [2, 3]", "[2, 3] \\cup [0, 1]"),
        // Thousands.
        ("10,\\!236", "10236"),
        ("10,\\! 236", "10,236"),
        ("11,\\! 111,\\! 100", "11111100"),
        ("10,\\,236", "10236"),
        ("10,~236", "10236"),
        ("10\\text{,}236", "10236"),
        ("10 236", "10236"),
        ("10\\ 236", "10236"),
        ("10~236", "10236"),
        ("10\\;236", "10236"),
        ("10\\!236", "10236"),
        ("10\u{202f}236", "10\u{2009}236"),
        ("1_000_000", "1'000'000"),
        ("\\frac{10,000}{3}", "\\frac{10{,}000}{3}"),
        ("2^{1,000}", "2^{1000}"),
        ("\\sqrt{1,234}", "\\sqrt{1234}"),
        ("(1{,}234, 5)", "(1234, 5)"),
        ("\\text{\\$1,250}", "1250"),
        ("100,200,300", "100, 200, 300"),
        ("100,200,300", "100200300"),
        ("2 125/250", "5/2"),
        // Numbers in text.
        ("\\text{13}", "13"),
        ("\\mathrm{-4}", "-4"),
        ("\\textbf{1/2}", "0.5"),
        ("\\mbox{1,250}", "1250"),
        ("\\text{10 ways}", "10"),
        ("\\text{The answer is } 13", "13"),
        ("\\underline{13}", "{\\bf 13}"),
        ("\\bf{13}", "\\large 13"),
        ("\\color{red}{13}", "\\textcolor{red}{13}"),
        ("\\(13\\)", "\\text{$13$}"),
        ("**13**.", "13"),
        ("The answer is 42", "42"),
        // Angles.
        ("\\sin 30^\\circ", "\\frac12"),
        ("\\cos(60°)", "0.5"),
        ("\\tan 45^{\\circ}", "1"),
        ("\\sin^2 30^\\circ", "0.25"),
        ("60^\\circ", "60\\degree"),
        ("\\sec^2(y)", "\\tan^2(y) + 1"),
        // Intervals and inequalities.
        ("m \\ge \\sqrt{2}", "m \\in [\\sqrt{2}, +\\infty)"),
        ("[\\sqrt{2}, \\infty)", "m \\ge \\sqrt{2}"),
        ("(2,5)", "2 < x < 5"),
        ("5 > x \\geq 2", "[2, 5)"),
        ("x < -1 or x > 2", "(-\\infty, -1) \\cup (2, \\infty)"),
        ("x <= 5", "(-\\infty, 5]"),
        ("x < 2 \\text{ or } x > 3", "(-\\infty,2)\\cup(3,\\infty)"),
        ("6 \\text{ p.m.}", "6"),
        // Lines in two forms.
        ("y = -\\frac12 x + \\frac34", "2x+4y-3=0"),
        ("y = 2x + 1", "x = \\frac{y-1}{2}"),
        ("34x+45y-20z+100=0", "-34x-45y+20z-100=0"),
        // Matrices.
        ("\\begin{pmatrix}0.5\\\\1\\end{pmatrix}", "\\begin{pmatrix}\\frac12\\\\1\\end{pmatrix}"),
        ("\\begin{pmatrix}1&-2\\\\4&3\\end{pmatrix}", "\\begin{bmatrix}1&-2\\\\4&3\\end{bmatrix}"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix} 1 \\\\[4pt] 2 \\\\ \\end{pmatrix}"),
        (
            "A = \\begin{pmatrix}-7/4&2\\end{pmatrix}",
            "\\left(\\begin{array}{cc}-\\frac74&2\\end{array}\\right)",
        ),
        // Times and units.
        ("\\text{6:00 p.m.}", "6:00 \\text{ p.m.}"),
        ("3:15", "1:5"),
        ("500 \\text{ cm}", "5 \\text{ m}"),
        ("60 \\text{ minutes}", "1 \\text{ hour}"),
        ("\\$0.05", "5 \\text{ cents}"),
        ("3 \\text{ m}^2", "30000 \\text{ cm}^2"),
        ("x=2, y=3", "y = 3, x = 2"),
        ("x=2, y=3", "2, 3"),
        ("x=2, x=3", "x = 3 or x = 2"),
    ] {
        assert!(
            same(left, right) && same(right, left),
            "{left:?} and {right:?}: {:?} {:?}",
            Answer::read(left),
            Answer::read(right)
        );
    }
}

/// An expected fraction accepts the nearest integer; an expected integer must be met exactly.
#[test]
fn the_expected_number_decides_the_tolerance() {
    assert!(same("3", "2.9999999") && !same("2.9999999", "3"));
}

#[test]
fn different_answers_are_not_equal() {
    for (left, right) in [
        // From here on, f64 cannot distinguish integers.
        ("8999999999999999 + \\cos(0)", "9000000000000000"),
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
        ("x^2+y^2=25", "25"),
        ("a + b = 5", "5"),
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
        ("3", "3 or 4"),
        ("5", "\\{\\}"),
        ("\\{\\}", "5"),
        ("(1, 2)", "(1, 3)"),
        ("(1, 2)", "1"),
        ("(1,234)", "1234"),
        ("333333333/1000000000", "1/3"),
        ("10000003/2", "10000001/2"),
        ("|-1/3|", "333333333/1000000000"),
        ("1./3", "333333333/1000000000"),
        ("\\sqrt{-2}", "-\\sqrt2"),
        ("\\infty", "-\\infty"),
        ("5", "\\infty"),
        ("\\infty", "5"),
        ("x_1 + 1", "x_2 + 1"),
        ("v_{max} + 1", "v_{min} + 1"),
        ("5 apples - x", "5"),
        ("2 1/3^2 cm", "7/3"),
        ("5 \\text{m", "5"),
        ("below -5", "below 5"),
        ("below 5", "5"),
        ("12,34", "1234"),
        ("1,234,56", "123456"),
        ("10 23", "1023"),
        ("(100, 200)", "(100,200)1"),
        ("12:30", "10:25"),
        ("3:15", "1:05"),
        ("6:00 \\text{ p.m.}", "6:00 \\text{ a.m.}"),
        ("x=2, y=3", "x=3, y=2"),
        ("5 \\text{ cm}", "5 \\text{ m}"),
        ("5 \\text{ hours}", "5 \\text{ minutes}"),
        ("\\$5", "5 \\text{ cents}"),
        ("$5", "5¢"),
        ("3 \\text{ m}^2", "3 \\text{ cm}^2"),
        ("\\sin 30", "\\frac12"),
        ("\\text{Room 13}", "13"),
        ("x < 5", "y < 5"),
        ("2 < x < 5", "[2, 5)"),
        ("2 < x < 5", "2 < x < 6"),
        ("x > 5", "5"),
        ("x \\ge 2", "(2, \\infty)"),
        ("y = 2x + 1", "2x - y = 1"),
        ("y = 2x + 1", "y = x + 1"),
        ("y = \\frac12 x + \\frac34", "2x+4y-3=0"),
        ("\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\3\\end{pmatrix}"),
        ("\\begin{vmatrix}1&2\\\\3&4\\end{vmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
    ] {
        assert!(!same(left, right), "{left:?} and {right:?}: {:?}", Answer::read(left));
    }
}

#[test]
fn contradicting_texts_give_no_answer() {
    for text in
        ["8=9", "x = 8 = 9", "{8=9}", "(8=9, 1)", "8=9, 5", "$8 = 9$", "nan", "NaN.", "\\text{nan}", "1=2=2"]
    {
        assert_eq!(Answer::read(text), None, "{text}");
    }
    for (text, reference) in [("3+5=8", "8"), ("5 = x", "5"), ("x = 2+3 = 5", "5"), ("\\frac12 = 0.5", "1/2")]
    {
        assert!(same(text, reference), "{text}");
    }
}

proptest::proptest! {
    /// An integer never equals a different one, in any notation, and always equals itself.
    #[test]
    fn a_wrong_number_is_never_the_same(right in -1_000_000_000_000_000_000_i64..1_000_000_000_000_000_000, near in -9_i64..=9, far: i32) {
        for wrong in [right + near, right.wrapping_add(far.into())] {
            let mut texts = vec![
                format!("{wrong}"), format!("{wrong}.0"), format!("\\frac{{{wrong}}}{{1}}"), format!("x = {wrong}"),
                format!("\\{{{wrong}\\}}"), format!("({wrong}.00)"), format!("{wrong} \\text{{ apples}}"),
                format!("{wrong} + 0.0"), format!("{wrong}e0"), format!("{wrong}0.0e-1"),
            ];
            // f64 represents integers exactly up to 53 bits.
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

/// A sequence is not deeper than its members.
#[test]
fn many_brackets_in_a_row_are_not_deep() {
    assert!(same(&vec!["(1)"; 99].join("+"), "99"));
}

/// Deliberately large answers: sets of a hundred large formulas, with all pairs compared.
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

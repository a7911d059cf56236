//! Answers that are paid, and answers that are not.

use environment::Environment;
use serde_json::json;

use super::MATH;

/// Returns true if `text` earns everything for `reference` as the answer to `problem`.
fn pays(problem: &str, reference: &str, text: &str, reasoning: &str) -> bool {
    let spec = json!({"problem": problem, "answer": reference, "encoding": "full", "reasoning": reasoning});
    let mut state = MATH.reset(&spec, "single").unwrap();
    state.apply("reasoner", text).unwrap().success
}

/// The answers that are judged wrongly.
fn misjudged(problem: &str, reference: &str, texts: [&[&str]; 2], reasoning: &str) -> Vec<String> {
    let of = |right: bool| {
        let wrong = texts[usize::from(!right)]
            .iter()
            .filter(move |text| pays(problem, reference, text, reasoning) != right);
        wrong.map(move |text| {
            format!("{:.60} for {reference:.60}: {}\n", text, if right { "is right" } else { "is wrong" })
        })
    };
    of(true).chain(of(false)).collect()
}

#[test]
fn what_means_the_reference_earns_and_nothing_else() {
    let rows = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/answers.tsv")).unwrap();
    let rows = rows.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let [problem, reference, text, verdict] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let texts: [&[&str]; 2] = if verdict == "right" { [&[text][..], &[]] } else { [&[][..], &[text]] };
        misjudged(problem, reference, texts, "steps")
    });
    let misjudged: String = rows.flatten().collect();
    assert!(misjudged.is_empty(), "\n{misjudged}");
}

#[test]
fn numbers_may_have_thousands_of_digits() {
    let (sevens, zeros) = ("7".repeat(5000), "0".repeat(5000));
    let [other, fewer] = [format!("{}8", &sevens[1..]), sevens[1..].to_owned()];
    let boxed = |text: String| format!("\\boxed{{{text}}}");
    let [own, other, fewer] = [sevens.clone(), other, fewer].map(boxed);
    assert_eq!(misjudged("How many?", &sevens, [&[&own, &sevens], &[&other, &fewer]], "steps"), [""; 0]);
    let power = [400, 399].map(|count| boxed(format!("1{}", &zeros[..count])));
    assert_eq!(misjudged("How many?", "10^{400}", [&[&power[0]], &[&power[1]]], "steps"), [""; 0]);
    let tenth = ["0.1", "0.2"].map(|begin| boxed(format!("{begin}{zeros}")));
    assert_eq!(misjudged("How many?", "0.1", [&[&tenth[0]], &[&tenth[1]]], "steps"), [""; 0]);
}

#[test]
fn a_brief_answer_is_read_to_its_end() {
    let right = [
        "26 + 8 = 34",
        "26 + 8 = 34.",
        "26 + 8 = 34 cookies",
        "Carla has 26 + 8 = 34 cookies.",
        "20 + 6 = 26, 26 + 8 = 34",
        "26 + 8 = 34\n34",
        "26 + 8 = 34. She has 34 cookies.",
        "= 34",
        "34",
        "x = 26 + 8 = 34",
    ];
    let wrong = [
        "26 + 8 = 34 + 11",
        "26 + 8 = 34 - 1",
        "= 34 or 35",
        "1 = 34 + 0",
        "34 + 11",
        "34 or 35",
        "26 + 8 = 34, or 35",
        "26 + 8 = 34. Or 35.",
        "26 + 8 = 34\n35",
        "1 = 34",
        "Carla has 1 = 34",
        "1 = 34 = 34",
        "26 + 9 = 34",
        "= 34 million",
        "= 34 is wrong",
        "26 + 8 = 34 * 2",
        "26 + 8 = 3 4",
        "= 34, 35",
        "= 34/2",
        "26 + 8 = 34 times",
    ];
    let problem = "Carla has 26 cookies and gets 8. How many?";
    assert_eq!(misjudged(problem, "34", [&right, &wrong], "brief"), [""; 0]);
}

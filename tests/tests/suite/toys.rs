//! Exact gradients of credit rules on small games, and the same from records that went through `group | advantage`.

use serde_json::{Value, json};
use troupe_tests::must;

const TOYS: &str = "python3 examples/toy_credit.py";

/// The values that an independent program enumerated: late a0 and a1, idle a0, noise of a over the gradient of b in `rider`, stag a1,
/// hard a1, and noise over signal in `luck`.
const ENUMERATED: [(&str, [f64; 7]); 15] = [
    ("trajectory, mean", [0.015625, 0.015625, -0.078125, 1.414, 0.0048, 0.015, 4.123]),
    ("trajectory, std", [0.022097, 0.022097, -0.176776, 1.491, 0.006788, -0.077780, 2.646]),
    ("MAGRPO parallel, mean", [0.015625, 0.015625, -0.078125, 1.414, 0.0048, 0.015, 1.0]),
    ("own turn, mean", [0.0, 0.015625, 0.031250, 1.0, 0.0048, 0.015, 1.0]),
    ("AT-GRPO, mean", [0.0, 0.015625, 0.031250, 0.0, 0.0048, 0.015, f64::NAN]),
    ("AT-GRPO, std", [0.0, 0.022097, 0.176776, 0.0, -0.033941, -0.106064, f64::NAN]),
    ("aligned tree, mean", [0.015625, 0.015625, -0.078125, 1.225, 0.0048, 0.015, f64::NAN]),
    ("aligned tree, leave one out (C3)", [0.031250, 0.031250, -0.156250, 1.225, 0.0096, 0.03, f64::NAN]),
    ("aligned tree, std", [0.038670, 0.022097, -0.176776, 1.333, 0.006788, -0.106064, f64::NAN]),
    ("cross, mean", [0.015625, 0.015625, -0.078125, 0.5, 0.0048, 0.015, f64::NAN]),
    ("cross, std", [0.085453, 0.033146, -0.176776, 1.210, 0.047517, -0.106064, f64::NAN]),
    ("GiGPO, mean", [0.031250, 0.019531, -0.156250, 1.414, 0.006, 0.0135, 3.388]),
    ("GiGPO, std", [0.044194, 0.027621, -0.353553, 1.491, 0.008485, -0.130812, 2.285]),
    ("RAE, baseline J", [0.031250, 0.031250, -0.156250, 1.0, 0.0096, 0.03, 2.828]),
    ("RAE, baseline 0", [0.031250, 0.031250, -0.156250, 1.732, 0.0096, 0.03, 4.528]),
];

#[test]
fn exact_gradients_are_those_of_another_enumeration() {
    let printed = must(&format!("{TOYS} table"));
    let rows: Vec<Vec<String>> =
        printed.lines().skip(1).map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(rows.len(), ENUMERATED.len());
    for (row, (rule, expected)) in rows.iter().zip(ENUMERATED) {
        assert_eq!(row[0], rule);
        for (column, (found, expected)) in row[1..].iter().zip(expected).enumerate() {
            // The others add 1e-6 to a deviation, and noise has three digits.
            let close = if [3, 6].contains(&column) { 6e-4 } else { 4e-6 };
            match found.parse::<f64>() {
                Ok(found) => {
                    assert!((found - expected).abs() < close, "{rule}, {column}: {found} {expected}")
                }
                Err(_) => assert!(found == "-" && expected.is_nan(), "{rule}, {column}: {found}"),
            }
        }
    }
}

#[test]
fn records_through_the_programs_have_the_exact_gradients() {
    let episodes = "group -q --by episode | advantage -q --credit episode";
    let gigpo = "group -q --by agent --anchor prompt | advantage -q --credit gigpo";
    for (toy, kind, pipe, rule, agent, turn) in [
        ("stag", "at-grpo", "group -q | advantage -q".to_owned(), "AT-GRPO, std", "a", 1),
        ("stag", "at-grpo", "group -q | advantage -q --std none".to_owned(), "AT-GRPO, mean", "a", 1),
        ("idle", "at-grpo", "group -q | advantage -q --std none".to_owned(), "AT-GRPO, mean", "a", 0),
        ("hard", "parallel", episodes.to_owned(), "trajectory, std", "a", 1),
        ("hard", "parallel", format!("{episodes} --estimator dr-grpo"), "trajectory, mean", "a", 1),
        ("hard", "parallel", gigpo.to_owned(), "GiGPO, std", "a", 1),
        ("late", "parallel", format!("{gigpo} --estimator dr-grpo"), "GiGPO, mean", "a", 0),
        ("late", "parallel", format!("{episodes} --estimator raw"), "RAE, baseline 0", "b", 0),
    ] {
        let exact: f64 = must(&format!("{TOYS} exact '{rule}' {toy} {agent} {turn}")).trim().parse().unwrap();
        let printed = must(&format!("{TOYS} lines {toy} {kind} 4000 | {pipe} | {TOYS} gradient {toy}"));
        let rows: Vec<Value> = printed.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
        let row = rows.iter().find(|row| row["agent"] == agent && row["turn"] == json!(turn)).expect("a row");
        let [found, error] = ["gradient", "error"].map(|key| row[key].as_f64().expect("a number"));
        assert!((found - exact).abs() < 4.0 * error, "{toy}, {rule}: {found} ± {error}, not {exact}");
        // Enough records to tell its sign.
        assert!(exact.abs() > 2.0 * error, "{toy}, {rule}: {exact} ± {error}");
    }
}

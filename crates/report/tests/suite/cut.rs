//! Answers that the token limit cut: where a reader hears of them.

use serde_json::{Value, json};

use crate::fixture::{data, must};
use crate::made::Made;

#[test]
fn advice_names_cut_answers_first() {
    let folder = tempfile::tempdir().unwrap();
    Made { learns: false, cut: 1.0, ..Made::default() }.put(folder.path(), "stuck");
    Made { learns: false, cut: 0.5, ..Made::default() }.put(folder.path(), "half");
    Made { learns: false, cut: 0.1, ..Made::default() }.put(folder.path(), "short");
    Made::default().put(folder.path(), "fine");
    let view = must(folder.path(), &["stuck", "--watch"]);
    for line in [
        "cut        100 % of the answers ended at the token limit",
        "advice     All answers were cut at the limit of 8 tokens: no answer ends by itself, as with a base",
    ] {
        assert!(view.contains(line), "no {line} in\n{view}");
    }
    let view = must(folder.path(), &["half", "--watch"]);
    let advice = "advice     Raise --max-tokens first: 50 % of the answers were cut at the limit of 8 tokens";
    assert!(view.contains(advice), "{view}");
    let view = must(folder.path(), &["short", "--watch"]);
    assert!(
        !view.contains("\ncut ") && view.contains("advice     All groups of the last step are flat"),
        "{view}"
    );
    let view = must(folder.path(), &["fine", "--watch"]);
    assert!(!view.contains("\ncut ") && !view.contains("advice "), "{view}");
    assert!(
        view.contains("success, held out: 0.250 at step 0, 0.850 at step 12, best 0.850 at step 12"),
        "{view}"
    );
    for (name, advice) in [("stuck", 2), ("short", 1), ("fine", 0)] {
        must(folder.path(), &[name, "--quiet"]);
        let page = std::fs::read_to_string(folder.path().join(name).join("report.html")).unwrap();
        let data = data(&page);
        assert_eq!(data["runs"][0]["summary"]["advice"].as_array().map(Vec::len), Some(advice), "{name}");
        let chart =
            data["measured"].as_array().expect("charts").iter().find(|chart| chart["name"] == "cut-answers");
        let chart = chart.expect("a chart of cut answers");
        let names: Vec<&Value> =
            chart["series"].as_array().expect("series").iter().map(|one| &one["name"]).collect();
        assert_eq!(names, [&json!("planner"), &json!("tool")]);
        let most = chart["series"][0]["y"][0].as_f64().expect("a share");
        assert_eq!(most, if name == "stuck" { 1.0 } else { 0.0 }, "{name}");
    }
    let table = must(folder.path(), &["stuck", "--csv", "-"]);
    assert!(table.contains("stuck,4,test,plan,,tool,completions_cut,1,,"), "an evaluation counts them, too");
}

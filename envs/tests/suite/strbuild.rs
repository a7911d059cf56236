//! Words built of blocks, through the step protocol: numbers worked out by hand from the published rules.

use envs::check::{Effort, check, verdict};
use envs::{Settings, find, step};
use serde_json::{Value, json};

fn ask(request: &Value) -> Value {
    serde_json::from_str(&step::answer(find("strbuild").unwrap(), &request.to_string())).unwrap()
}

fn reset(spec: &Value, workflow: &str) -> Value {
    ask(&json!({"task": {"spec": spec}, "workflow": workflow}))
}

fn spec(feedback: &str) -> Value {
    json!({"word": "I", "turns": 2, "commands": 5, "feedback": feedback, "success": 0.9})
}

/// The letter I has nine of 25 cells.
#[test]
fn a_wall_by_hand() {
    let first = reset(&spec("position"), "team");
    assert_eq!((&first["reward_range"], &first["turns"]), (&json!([-3.0, 2.0]), &json!(2)));
    let prompt = first["observations"]["builder-2"][0]["content"].as_str().unwrap();
    assert!(
        prompt.contains(".###.\n..#..") && prompt.contains("obsidian") && prompt.contains("at most 2 lines"),
        "{prompt}"
    );
    assert!(first["observations"]["builder-1"][0]["content"].as_str().unwrap().contains("at most 3 lines"));

    // Three of four commands count for the first builder; the second overwrites one of them and builds next
    // to the letter.
    let one =
        "/setblock 1 0 0 stone\n/setblock 2 0 0 stone\n/setblock 2 1 0 oak_planks\n/setblock 3 0 0 stone";
    let two = "```\n/setblock 2 1 0 obsidian\n/setblock 0 0 0 obsidian\n```";
    let turn = ask(&json!({"state": first["state"], "actions": {"builder-2": two, "builder-1": one}}));
    // Covered 3 of 9, extra 1 of 16; pairs (1,0)-(2,0) alike, (2,0)-(2,1) and (0,0)-(1,0) not; both palettes incomplete.
    let want = 2.0 / 3.0 - 1.5 / 16.0 - 1.0 / 3.0 - 0.5;
    let team = turn["rewards"]["team"].as_f64().unwrap();
    assert!((team - want).abs() < 1e-12, "{turn}");
    assert_eq!((&turn["reward_components"]["iou"], &turn["terminated"]), (&json!(0.3), &json!(false)));
    let told = turn["observations"]["builder-1"][0]["content"].as_str().unwrap();
    assert!(
        told.contains("(1, 4, 0) (2, 4, 0)")
            && told.contains("You wrote")
            && !told.contains("Your partner wrote"),
        "{told}"
    );
}

#[test]
fn feedback_and_workflows() {
    for (feedback, has) in
        [("plain", "not the last turn"), ("score", "Score -0.50 of 2."), ("position", "(1, 4, 0)")]
    {
        let first = reset(&spec(feedback), "discussion");
        let turn =
            ask(&json!({"state": first["state"], "actions": {"builder-1": "no", "builder-2": "neither"}}));
        let told = turn["observations"]["builder-1"][0]["content"].as_str().unwrap();
        assert!(told.contains(has) && told.contains("Your partner wrote:\n\nneither"), "{told}");
    }
    let single = reset(&spec("plain"), "single");
    assert!(single["observations"]["builder"][0]["content"].as_str().unwrap().contains("at most 5 lines"));
}

#[test]
fn the_contract_is_kept() {
    let environment = find("strbuild").unwrap();
    for texts in [&["turns=1"][..], &["turns=2", "letters=1", "feedback=score"], &["turns=1", "commands=20"]]
    {
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        let settings = Settings::parse(&texts, "strbuild", environment.settings()).unwrap();
        let findings =
            check(environment, &Effort { tasks: 1, episodes: 40, seed: 1, settings }, &mut || ()).unwrap();
        verdict("strbuild", &findings).unwrap_or_else(|failure| panic!("{}: {findings:#?}", failure.message));
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 200, ..Default::default() })]
    #[test]
    fn any_texts_have_a_score_in_range(
        first in "(/setblock |[0-6] |0 |stone|oak_planks|air|\n|```|-1 |99999999999999999999 |é|\u{0}|~){0,60}",
        second in "(/setblock |[0-6] |0 |obsidian|white_concrete|air|\n|1\\. |é|🦀){0,60}",
    ) {
        let environment = find("strbuild").unwrap();
        let mut state = environment.reset(&spec("score"), "team").unwrap();
        let mut other = state.clone_state();
        let forward = state.apply_together(&[("builder-1", &first), ("builder-2", &second)]).unwrap();
        let backward = other.apply_together(&[("builder-2", &second), ("builder-1", &first)]).unwrap();
        proptest::prop_assert!((-3.0..=2.0).contains(&forward.rewards.team));
        proptest::prop_assert!(forward.components.values().all(|value| (0.0..=1.0).contains(value)));
        proptest::prop_assert_eq!(&forward, &backward);
        proptest::prop_assert_eq!(state.to_json(), other.to_json());
    }
}

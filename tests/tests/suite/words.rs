//! The tiny tokenizer has one token for every word of the compact encodings, in prompts and in completions.
//!
//! A word without a token is spelled in bytes. No test would fail, but texts grow, `--max-tokens` cuts completions off and tiny
//! policies stop learning.

use troupe_tests::must;

#[test]
fn every_word_of_a_compact_text_is_one_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = folder.path().join("policy").display().to_string();
    must(&format!("policy init {policy} --preset tiny --seed 1"));
    for demo in [
        "python3 examples/tic_tac_toe.py demo",
        "python3 examples/philosophers.py --philosophers 3,7 demo",
        "envs demo plan-path",
        "envs demo plan-path --workflow route-moves",
        "envs demo plan-path --set proposal=moves",
        "envs demo math",
        "envs demo math --workflow turns",
        "envs demo math --workflow ensemble --set level=6 --set largest=500",
        "envs demo code",
        "envs demo code --workflow single --set least=1 --set most=4",
        "envs demo sudoku",
        "envs demo sudoku --workflow mechanical",
        "envs demo sudoku --set size=9 --set fills=4 --set fewest=10 --set most=16",
        "envs demo write",
        "envs demo write --workflow pipeline",
        "envs demo write --workflow discussion --set words=9",
        "envs demo write --workflow single",
        "envs demo sokoban",
        "envs demo sokoban --workflow route-moves",
        "envs demo sokoban --set size=7 --set boxes=2 --set moves=6 --set farthest=20",
    ] {
        let lines = must(&format!("{demo} --count 24 | policy encode --policy {policy}"));
        let mut samples = 0;
        for line in lines.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
            if line["type"] != "sample" {
                continue;
            }
            samples += 1;
            let words =
                |text: &serde_json::Value| text.as_str().unwrap_or_default().split_whitespace().count();
            let ids = |key: &str| line[key].as_array().map_or(0, Vec::len);
            // A prompt has one token before it and one after it, a completion its stop token.
            let prompt = &line["prompt"][0]["content"];
            assert_eq!(ids("prompt_ids"), words(prompt) + 2, "{demo}: {prompt}");
            let answer = &line["completion"];
            assert_eq!(ids("completion_ids"), words(answer) + 1, "{demo}: {answer}");
        }
        assert!(samples >= 100, "{demo}: {samples} samples");
    }
}

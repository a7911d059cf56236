//! Tests of settings.

use super::*;

fn settings(words: &str) -> Result<Settings> {
    let words: Vec<String> = words.split(' ').filter(|word| !word.is_empty()).map(Into::into).collect();
    Settings::new(&flags::parse(&words)?.expect("no help"))
}

#[test]
fn numbers_follow_the_kind_of_policy_and_what_is_given_stays() {
    let tiny = settings("--tasks 010 --kl 0.00").unwrap();
    assert_eq!((tiny.number("tasks"), tiny.text("lr"), tiny.text("kl")), (10, "1e-3", "0"));
    let model = settings("--model smollm2 --lr 2e-5").unwrap();
    assert_eq!((model.text("lr"), model.text("temperature"), model.number("warmup")), ("2e-5", "0.7", 0));
    let adapters = settings("--model smollm2 --policies adapter-per-role").unwrap();
    assert_eq!((adapters.text("lr"), adapters.kind), ("5e-4", PolicyKind::Adapters));
    assert!(adapters.is_on("keep_best") && !tiny.is_on("keep_best") && !model.is_on("keep_best"));
    let adapters = settings("--model smollm2 --policies adapter-per-role --keep-best=no").unwrap();
    assert!(!adapters.is_on("keep_best"));
    assert_eq!(settings("--env-command x").unwrap().number("warmup"), 0);
    assert_eq!(settings("--env-command x --warmup 5").unwrap().number("warmup"), 5);
}

#[test]
fn an_agent_may_have_a_value_of_its_own() {
    let one = settings("--temperature planner=1.2").unwrap();
    assert_eq!(one.text("temperature"), "1.0 planner=1.2", "the others have the default");
    let pretrained = settings("--model smollm2 --temperature planner=1 --temperature tool=0.5").unwrap();
    assert_eq!(pretrained.text("temperature"), "0.7 planner=1 tool=0.5");
    let later = settings("--temperature planner=1 --temperature 0.5 --temperature planner=2").unwrap();
    assert_eq!(later.text("temperature"), "0.5 planner=2", "the later counts");
    // The form of a file.
    let words = Given { name: "max_tokens", value: "64 planner=8".to_owned() };
    let mut file = Settings::new(&[words]).unwrap();
    file.set_for_others("max_tokens", "32");
    assert_eq!(file.text("max_tokens"), "64 planner=8");
    let mut own = settings("--max-tokens planner=8").unwrap();
    own.set_for_others("max_tokens", "32");
    assert_eq!(own.text("max_tokens"), "32 planner=8");
    let roles = |words: &str| {
        settings(words).unwrap().roles().map(|(flag, role)| format!("{flag} {role}")).collect::<Vec<_>>()
    };
    assert_eq!(roles("--top-k a=3 --min-p 0.1 --stop b=x --stop =c=d"), ["--top-k a", "--stop b"]);
    for bad in [
        "--temperature a=warm",
        "--temperature =1",
        "--top-k a=1.5",
        "--max-tokens a=0",
        "--min-p a=-1",
        "--stop a=",
    ] {
        assert_eq!(settings(bad).unwrap_err().code, 2, "{bad}");
    }
}

#[test]
fn new_weights_without_a_warm_up_are_untrained() {
    for (words, untrained) in [
        ("", false),
        ("--warmup 0", true),
        ("--env-command x", true),
        ("--env-command x --warmup 600", false),
        ("--env-command x --model smollm2", false),
        ("--env-command x --policies a=y", false),
    ] {
        assert_eq!(settings(words).unwrap().begins_untrained(), untrained, "{words}");
    }
}

#[test]
fn truncation_is_what_leaves_tokens_out() {
    for (words, truncated) in [
        ("", false),
        ("--top-p 1 --top-k 0 --min-p 0.0", false),
        ("--top-p a=0.9", true),
        ("--top-k 20", true),
        ("--min-p 0.05 --min-p a=0", true),
        ("--temperature 0.5 --stop x", false),
    ] {
        assert_eq!(settings(words).unwrap().is_truncated(), truncated, "{words}");
    }
}

#[test]
fn policies_are_a_kind_or_pairs() {
    let named = |pairs: &[(&str, &str)]| {
        PolicyChoice::Named(pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect())
    };
    let both = settings("--policies shared --policies a=x --policies b=http://y/v1").unwrap();
    assert_eq!(both.policies, named(&[("a", "x"), ("b", "http://y/v1")]));
    assert_eq!(settings("--policies a=x --policies per-role").unwrap().policies, PolicyChoice::PerRole);
    for bad in ["perrole", "=x", "a="] {
        assert_eq!(settings(&format!("--policies {bad}")).unwrap_err().code, 2, "{bad}");
    }
}

#[test]
fn versions_that_opponents_are_drawn_from_are_kept() {
    for (words, keep) in [
        ("", "2"),
        ("--opponents past:0", "2"),
        ("--opponents past:1", "2"),
        ("--opponents past:4", "5"),
        ("--opponents past:4 --keep 9", "9"),
        ("--opponents past:4 --save-every 8", "12"),
    ] {
        let mut settings = settings(words).unwrap();
        settings.keep_opponents().unwrap();
        assert_eq!(settings.text("keep"), keep, "{words}");
    }
    let refused = settings("--opponents past:4 --train a").unwrap().keep_opponents().unwrap_err();
    assert_eq!((refused.code, refused.hint.is_some()), (2, true));
}

#[test]
fn values_are_checked_by_kind() {
    for bad in [
        "--steps 1.5",
        "--steps 1234567890123",
        "--branches 0",
        "--lr many",
        "--lr -1",
        "--betas 0.9",
        "--betas 0.9,x",
        "--set x",
        "--stage nobody=x",
        "--flags reward=x",
        "--flags update",
    ] {
        let failure = settings(bad).unwrap_err();
        assert!(failure.code == 2 && failure.hint.is_some(), "{bad}: {failure:?}");
    }
    let flags = settings("--flags update=--epochs --flags update=2 --stage reward=x").unwrap();
    assert_eq!((flags.flags["update"].as_str(), flags.stage["reward"].as_str()), ("--epochs 2", "x"));
    assert!(flags.has_flag("update", "--epochs") && !flags.has_flag("update", "--epoch"));
    let flags = settings(
        "--flags rollout=--timeout --flags rollout=2 --flags rollout=--joint=cross --flags rollout=--isa=avx2",
    );
    let given = flags.unwrap().given_to("rollout", &["--timeout", "--isa"]);
    assert_eq!(given, ["--timeout", "2", "--isa", "avx2"]);
}

#[test]
fn a_slip_is_answered_with_the_value_that_was_meant() {
    let hint = |words: &str| settings(words).unwrap_err().hint.unwrap();
    assert!(hint("--method GRPO").contains("--method trajectory"));
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    assert!(hint(&format!("--policies {place}")).contains(&format!("--policies AGENT={place}")));
    assert_eq!(hint("--policies nowhere"), HELP);
}

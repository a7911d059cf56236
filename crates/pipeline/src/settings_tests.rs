//! Tests of settings.

use super::*;
use crate::values::joined;

fn settings(words: &str) -> Result<Settings> {
    Settings::new(&words.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>())
}

#[test]
fn the_command_line_is_consistent() {
    Settings::command(PolicyKind::Tiny).debug_assert();
    crate::command_line::command(&[]).debug_assert();
}

#[test]
fn numbers_follow_the_kind_of_policy_and_what_is_given_stays() {
    let tiny = settings("--tasks 010 --kl 0.00").unwrap();
    assert_eq!((tiny.tasks, joined(&tiny.lr), tiny.kl), (10, "1e-3".to_owned(), Number(0.0)));
    let model = settings("--model smollm2 --lr 2e-5").unwrap();
    let numbers = [joined(&model.lr), joined(&model.temperature), model.warmup.to_string()];
    assert_eq!(numbers, ["2e-5", "0.7", "0"]);
    let adapters = settings("--model smollm2 --policies adapter-per-role").unwrap();
    assert_eq!((joined(&adapters.lr), adapters.kind), ("5e-4".to_owned(), PolicyKind::Adapters));
    assert!(adapters.keep_best && !tiny.keep_best && !model.keep_best);
    assert!(!settings("--model smollm2 --policies adapter-per-role --keep-best=no").unwrap().keep_best);
    assert_eq!(settings("--env-command x").unwrap().warmup, 0);
    assert_eq!(settings("--env-command x --warmup 5").unwrap().warmup, 5);
    // The later of two counts.
    let later =
        settings("--steps 3 --steps=4 --resident --resident=no --betas 0.8,0.9 --betas 0.9,0.99").unwrap();
    assert_eq!((later.steps, later.resident, &later.betas[..]), (4, false, &[Number(0.9), Number(0.99)][..]));
}

#[test]
fn an_agent_may_have_a_value_of_its_own() {
    let temperature = |words: &str| joined(&settings(words).unwrap().temperature);
    assert_eq!(temperature("--temperature planner=1.2"), "1 planner=1.2", "the others have the default");
    assert_eq!(
        temperature("--model smollm2 --temperature planner=1 --temperature tool=0.5"),
        "0.7 planner=1 tool=0.5"
    );
    let later = "--temperature planner=1 --temperature 0.5 --temperature planner=2";
    assert_eq!(temperature(later), "0.5 planner=2", "the later counts");
    // A model's rate is the default, also where an agent has another.
    for (words, rates) in
        [("--lr tool=3e-4", "1e-4 tool=3e-4"), ("--lr tool=3e-4 --lr 2e-4", "2e-4 tool=3e-4"), ("", "1e-4")]
    {
        let mut settings = settings(words).unwrap();
        settings.rate = Some(Number(1e-4));
        settings.set_default_rate();
        assert_eq!(joined(&settings.lr), rates);
    }
    for (words, limits) in [
        (&["--max-tokens=64 planner=8"][..], "64 planner=8"),
        (&["--max-tokens", "planner=8"], "32 planner=8"),
    ] {
        let mut settings = Settings::new(words).unwrap();
        settings.set_token_limit(32);
        assert_eq!(joined(&settings.max_tokens), limits);
    }
    let all = settings("--top-k a=3 --min-p 0.1 --stop b=x --stop =c=d").unwrap();
    assert_eq!(all.agents(), [("--top-k", "a"), ("--stop", "b")]);
    for bad in ["--temperature a=warm", "--temperature =1", "--top-k a=1.5", "--min-p a=-1", "--stop a="] {
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
fn truncation_leaves_tokens_out() {
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
        let pair =
            |(name, value): &(&str, &str)| Pair { name: (*name).to_owned(), value: (*value).to_owned() };
        PolicyChoice::Named(pairs.iter().map(pair).collect())
    };
    let both = settings("--policies shared --policies a=x --policies b=http://y/v1").unwrap();
    assert_eq!(both.policies, named(&[("a", "x"), ("b", "http://y/v1")]));
    assert_eq!(settings("--policies a=x --policies per-role").unwrap().policies, PolicyChoice::PerRole);
    for bad in ["perrole", "=x", "a="] {
        assert_eq!(settings(&format!("--policies {bad}")).unwrap_err().code, 2, "{bad}");
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().display();
    let failure = settings(&format!("--policies {place}")).unwrap_err();
    assert!(failure.message.contains(&format!("--policies AGENT={place}")), "{}", failure.message);
}

#[test]
fn versions_that_opponents_are_drawn_from_are_kept() {
    for (words, keep) in [
        ("", 2),
        ("--opponents past:0", 2),
        ("--opponents past:1", 2),
        ("--opponents past:4", 5),
        ("--opponents past:4 --keep 9", 9),
        ("--opponents past:4 --save-every 8", 12),
    ] {
        let mut settings = settings(words).unwrap();
        settings.keep_opponents().unwrap();
        assert_eq!(settings.keep, keep, "{words}");
    }
    let refused = settings("--opponents past:4 --train a").unwrap().keep_opponents().unwrap_err();
    assert_eq!((refused.code, refused.hint.is_some()), (2, true));
}

#[test]
fn values_are_checked_by_type() {
    for bad in [
        "--steps 1.5",
        "--steps 1234567890123",
        "--branches 0",
        "--lr many",
        "--lr -1",
        "--lr inf",
        "--betas 0.9,x",
        "--set x",
        "--stage nobody=x",
        "--flags reward=x",
        "--flags update",
        "--resident=maybe",
        "--nonsense",
        "--steps",
        "steps",
    ] {
        let failure = settings(bad).unwrap_err();
        assert!(failure.code == 2 && failure.hint.is_some(), "{bad}: {failure:?}");
    }
    let flags =
        settings("--flags update=--epochs --flags update=2 --stage reward=x --stage reward=y").unwrap();
    assert_eq!(flags.flags_of("update").collect::<Vec<_>>(), ["--epochs", "2"]);
    assert_eq!(flags.commands().map(Pair::to_string).collect::<Vec<_>>(), ["reward=y"]);
    assert!(flags.has_flag("update", "--epochs") && !flags.has_flag("update", "--epoch"));
    let flags = settings(
        "--flags rollout=--timeout --flags rollout=2 --flags rollout=--joint=cross --flags rollout=--isa=avx2",
    );
    let given = flags.unwrap().given_to("rollout", &["--timeout", "--isa"]);
    assert_eq!(given, ["--timeout", "2", "--isa", "avx2"]);
}

#[test]
fn numbers_are_decimal_and_written_short() {
    for (text, written) in [
        ("1", "1"),
        ("0.001", "1e-3"),
        (".5", "0.5"),
        ("+2.", "2"),
        ("0.95", "0.95"),
        ("1E5", "1e5"),
        ("-0", "0"),
    ] {
        assert_eq!(text.parse::<Number>().unwrap().to_string(), written);
    }
    for bad in ["", "many", "1,5", "0x1", "inf", "nan", ".", "e3", "1e", "--1", " 1", "-1", "1e999"] {
        assert!(bad.parse::<Number>().is_err(), "{bad}");
    }
}

//! Several GPUs, on the driver that computes nothing (`stand_in.rs`): each is used, and one that fails is named.

use std::collections::BTreeSet;

use troupe_tests::{mpirun, update_mpi};

use crate::stand_in::{Fixture, REWARD, ROLLOUT};

/// The lines of a stream without what depends on time.
fn without_timing(text: &str) -> Vec<serde_json::Value> {
    let parse = |line: &str| {
        let mut line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line.as_object_mut().expect("an object").remove("timing");
        line
    };
    text.lines().map(parse).collect()
}

/// An engine on each card: the same lines from 1, 2 and 4 cards, and from step to step with one process.
#[test]
fn several_cards_play_as_one() {
    let Some(fixture) = Fixture::new() else { return };
    let tasks = "for seed in 7 8; do envs tasks plan-path --count 16 --seed $seed; done";
    let play = |device: &str, cards: usize| {
        let rollout = ROLLOUT.replace("--device cuda", device);
        let command = format!("({tasks}) | {rollout} --resident --threads 4 --max-tokens 12 >rollout");
        let (code, printed) = fixture.run(&command, &[("STAND_IN_CARDS", "4")]);
        assert_eq!(code, 0, "{printed}");
        let log = fixture.log();
        let beginning = |word: &str| log.iter().filter(|line| line.starts_with(word)).collect::<Vec<_>>();
        // Each card has two sessions, a context, and work of each kind in a stream of its own.
        assert_eq!(beginning("cublas handle").len(), 2 * cards);
        let left = beginning("context left with ");
        assert!(left.len() >= cards && left.iter().all(|line| line.ends_with(" 0")), "{left:?}");
        for kind in ["launch sample_rows", "replay "] {
            let streams: BTreeSet<&str> =
                beginning(kind).iter().filter_map(|line| line.split_whitespace().last()).collect();
            // A busy machine may start a thread late, when others have taken its tasks.
            assert!((cards.min(2)..=cards).contains(&streams.len()), "{kind} {streams:?}");
        }
        without_timing(&std::fs::read_to_string(fixture.path("rollout")).expect("samples"))
    };
    let one = play("--device cuda", 1);
    assert!(one.len() > 2 * 16 * 4);
    assert_eq!(play("--device cuda:2", 1), one, "another card");
    assert_eq!(play("--device cuda:0,2", 2), one);
    assert_eq!(play("--device cuda:0-3", 4), one);
}

/// Each role has its policy on its card.
#[test]
fn a_policy_a_card() {
    let Some(fixture) = Fixture::new() else { return };
    let (code, printed) = fixture.run("policy init q --preset tiny --seed 2", &[]);
    assert_eq!(code, 0, "{printed}");
    let play = |policies: &str, cards: usize| {
        let rollout = ROLLOUT.replace("--policy p", policies).replace("--device cuda", "");
        let command = format!("envs tasks plan-path --count 8 --seed 7 | {rollout} --max-tokens 6 >rollout");
        let (code, printed) = fixture.run(&command, &[("STAND_IN_CARDS", "2")]);
        assert_eq!(code, 0, "{printed}");
        let log = fixture.log();
        let sampled = log.iter().filter(|line| line.starts_with("launch sample_rows"));
        let streams: BTreeSet<&str> = sampled.filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(streams.len(), 2, "an engine for each policy");
        let used: BTreeSet<&str> = log
            .iter()
            .filter(|line| line.starts_with("stream ") && streams.iter().any(|own| line.contains(own)))
            .filter_map(|line| line.split_whitespace().last())
            .collect();
        assert_eq!(used.len(), cards, "{used:?}");
        without_timing(&std::fs::read_to_string(fixture.path("rollout")).expect("samples"))
    };
    let both = play("--policy tool=p@cuda:0 --policy planner=q@cuda:0", 1);
    assert_eq!(play("--policy tool=p@cuda:0 --policy planner=q@cuda:1", 2), both);
}

/// A card that fails ends the run by its name, and one that is not there is refused before anything is read.
#[test]
fn a_dead_card_and_an_absent_one_are_named() {
    let Some(fixture) = Fixture::new() else { return };
    let rollout = ROLLOUT.replace("--device cuda", "--device cuda:0-3");
    let command =
        format!("envs tasks plan-path --count 64 --seed 7 | {rollout} --threads 4 --max-tokens 12 >rollout");
    let cards = ("STAND_IN_CARDS", "4");
    for graphs in ["all", "none"] {
        let variables = [cards, ("STAND_IN_DEAD", "2"), ("STAND_IN_GRAPHS", graphs)];
        let (code, printed) = fixture.run(&command, &variables);
        let lines: Vec<&str> = printed.lines().filter(|line| line.starts_with("rollout: cuda:2: ")).collect();
        assert!(code == 1 && !lines.is_empty() && printed.contains("hint: "), "{code} {printed}");
        let end = std::fs::read_to_string(fixture.path("rollout")).expect("lines");
        let end: serde_json::Value = serde_json::from_str(end.lines().last().expect("an end")).expect("JSON");
        assert_eq!((&end["type"], &end["ok"]), (&"end".into(), &false.into()));
        assert!(end["error"].as_str().is_some_and(|error| error.starts_with("cuda:2: ")), "{end}");
        fixture.log();
    }
    for program in
        [command.replace("cuda:0-3", "cuda:2-5"), "update --policy p --device cuda:4 <rollout".to_owned()]
    {
        let (code, printed) = fixture.run(&program, &[cards]);
        let wanted = "cuda:4: this machine has 4 NVIDIA GPUs\nhint: GPUs are counted from 0; there are cuda:0 (a stand-in), \
                      cuda:1 (a stand-in), cuda:2 (a stand-in), cuda:3 (a stand-in)";
        assert!(code == 69 && printed.contains(wanted), "{code} {printed}");
    }
}

/// Ranks of one machine take its cards, or the cards of a list; two on one card are refused.
#[test]
fn ranks_have_a_card_each() {
    let (Some(fixture), Some(program)) = (Fixture::new(), update_mpi()) else { return };
    let (code, printed) = fixture
        .run(&format!("envs tasks plan-path --count 8 --seed 7 | {ROLLOUT} --max-tokens 6 >rollout"), &[]);
    assert_eq!(code, 0, "{printed}");
    fixture.log();
    let learn = |device: &str, ranks: usize| {
        let update = format!(
            "{} '{}' --policy q --parts 2 --device {device} --max-logprob-gap 0 --quiet",
            mpirun(ranks),
            program.display()
        );
        // From the same version each time.
        let learn = format!("{REWARD} rollout | group --quiet | advantage --quiet | {update} >metrics");
        fixture.run(&format!("rm -rf q && cp -r p q && {learn}"), &[("STAND_IN_CARDS", "4")])
    };
    let (code, printed) = learn("cuda:1", 2);
    assert!(code == 2 && printed.contains("--device: ranks 0 and 1 are on one card\nhint: "), "{printed}");
    let (code, printed) = learn("cuda:1-2", 1);
    assert!(
        code == 2 && printed.contains("--device cuda:1-2: one process trains on one device"),
        "{printed}"
    );
    for (device, cards) in [("cuda", ["0", "1"]), ("cuda:3,1", ["1", "3"])] {
        let _ = std::fs::remove_file(fixture.path("log"));
        let (code, printed) = learn(device, 2);
        assert_eq!(code, 0, "{printed}");
        let log = fixture.log();
        let streams = log.iter().filter(|line| line.starts_with("stream "));
        let used: BTreeSet<&str> = streams.filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(used, BTreeSet::from(cards), "{device}");
    }
}

//! What is measured once on a GPU and kept, on the driver that computes nothing (`stand_in.rs`).

use crate::stand_in::{Fixture, REWARD, ROLLOUT, number};

/// Each shape of a product is measured once on a card; later runs use the algorithm that was fastest.
#[test]
fn algorithms_of_products_are_measured_once() {
    let Some(fixture) = Fixture::new() else { return };
    let choices = fixture.path("choices/card");
    let variable = ("TROUPE_PRODUCT_CHOICES", choices.to_str().expect("a name"));
    let rollout = format!("envs tasks plan-path --count 4 --seed 7 | {ROLLOUT} --max-tokens 6 >rollout");
    // From the same version each time, so that the shapes are the same.
    let update = "rm -rf q && cp -r p q && update --policy q --device cuda --max-logprob-gap 0 --quiet <samples >metrics";
    let learn = format!("{REWARD} rollout | group --quiet | advantage --quiet >samples && {update}");
    let run = |command: &str| {
        let (code, printed) = fixture.run(command, &[variable]);
        assert_eq!(code, 0, "{printed}");
        let log = fixture.log();
        let products = log.iter().filter(|line| line.contains("product ") && line.contains(" algorithm "));
        products.map(|line| number(line, "algorithm")).collect::<Vec<u64>>()
    };
    for command in [&rollout, &learn] {
        let measured = run(command);
        assert!((1..=3).all(|algorithm| measured.contains(&algorithm)), "{command}: {measured:?}");
        let text = std::fs::read_to_string(&choices).expect("choices");
        assert!(text.lines().all(|line| line.contains(" 0000000000000002 ")), "{text}");
        // One line per shape: each is measured once.
        let mut shapes: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        let lines = shapes.len();
        shapes.sort_unstable();
        shapes.dedup();
        assert_eq!(shapes.len(), lines, "{text}");
    }
    let known = std::fs::read_to_string(&choices).expect("choices");
    let again = run(&learn);
    assert!(!again.is_empty() && again.iter().all(|&algorithm| algorithm == 2), "{again:?}");
    assert_eq!(std::fs::read_to_string(&choices).expect("choices"), known);
    // One that cannot run is passed over, once.
    std::fs::write(&choices, known.replace(" 0000000000000002 ", " 0000000000000009 ")).expect("written");
    assert!(run(&learn).contains(&1));
    assert!(run(&learn).iter().all(|&algorithm| algorithm == 2));
}

/// Each batch shape is run with both attentions once on a card; later runs use the faster one without measuring.
#[test]
fn attentions_are_measured_once() {
    let Some(fixture) = Fixture::new() else { return };
    let choices = fixture.path("choices/card");
    let file = ("TROUPE_PRODUCT_CHOICES", choices.to_str().expect("a name"));
    let rollout = format!("envs tasks plan-path --count 4 --seed 7 | {ROLLOUT} --max-tokens 6 >rollout");
    let run = |attention: &str| {
        let (code, printed) = fixture.run(&rollout, &[file, ("TROUPE_ATTENTION", attention)]);
        assert_eq!(code, 0, "{printed}");
        let log = fixture.log();
        let count = |beginning: &str| log.iter().filter(|line| line.starts_with(beginning)).count();
        let ours = ["capture decode_attention", "launch prefill_attention"].map(count);
        (ours, count("captured "), printed)
    };
    // For decoding and for prompts.
    let kept = || -> [usize; 2] {
        let text = std::fs::read_to_string(&choices).unwrap_or_default();
        ["decode-attention:", "prefill-attention:"]
            .map(|kind| text.lines().filter(|line| line.starts_with(kind)).count())
    };
    let (own, all, printed) = run("onnxruntime");
    assert!(
        own == [0; 2] && all > 0 && kept() == [0; 2] && !printed.contains("attention"),
        "{own:?} {printed}"
    );
    let (own, all, printed) = run("fastest");
    let measured = kept();
    let [decoding, prompts] = measured;
    assert!(decoding > 0 && own[0] >= 3 * decoding && all >= 2 * decoding, "{own:?} {measured:?}");
    // In each of three layers, three times.
    assert!(prompts > 0 && own[1] >= 3 * 3 * prompts, "{own:?} {measured:?}");
    assert_eq!(printed.matches(" ms with our attention, ").count(), 2, "{printed}");
    // Later runs take the kept choices.
    let text = std::fs::read_to_string(&choices).expect("choices");
    for (word, ours) in [("0000000000000001", false), ("0000000000000002", true)] {
        let lines = text.lines().map(|line| {
            let (name, rest) = line.split_once(' ').expect("words");
            match name.contains("-attention:") {
                true => format!("{name} {word}{}\n", &rest[16..]),
                false => format!("{line}\n"),
            }
        });
        std::fs::write(&choices, lines.collect::<String>()).expect("written");
        let (own, all, printed) = run("fastest");
        // On a busy machine batches may have other shapes, which are measured.
        if kept() == measured {
            assert!(all > 0 && own[0] == if ours { 3 * all } else { 0 }, "{word}: {own:?} of {all}");
            assert_eq!(own[1] > 0, ours, "{word}: {own:?}");
            assert!(!printed.contains("attention"), "{printed}");
        }
    }
}

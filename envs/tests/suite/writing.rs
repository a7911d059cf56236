//! Joint rewards of two writers, through the step protocol: numbers worked out by hand from the published rules.

use envs::{Demonstration, Selection, Settings, Split, find, step};
use serde_json::{Value, json};

fn ask(environment: &str, request: &Value) -> Value {
    serde_json::from_str(&step::answer(find(environment).unwrap(), &request.to_string())).unwrap()
}

/// The answers to a reset and to the writers' texts, over `turns`.
fn play(environment: &str, spec: &Value, workflow: &str, turns: &[Value]) -> Vec<Value> {
    let reset = ask(environment, &json!({"task": {"env": environment, "spec": spec}, "workflow": workflow}));
    let mut answers = vec![reset];
    for actions in turns {
        let state = &answers.last().unwrap()["state"];
        answers.push(ask(environment, &json!({"state": state, "actions": actions})));
    }
    answers
}

/// The team's reward for two texts.
fn team(environment: &str, spec: &Value, first: &str, second: &str) -> f64 {
    let answers = play(environment, spec, "team", &[json!({"writer-1": first, "writer-2": second})]);
    assert_eq!((&answers[0]["reward_range"], &answers[0]["together"]), (&json!([0.0, 3.0]), &json!(true)));
    let last = &answers[1];
    assert_eq!((&last["terminated"], &last["rewards"]["local"]), (&json!(true), &json!(0.0)), "{last}");
    let team = last["rewards"]["team"].as_f64().unwrap();
    assert_eq!(last["success"], team >= 2.7, "{last}");
    team
}

fn near(got: f64, want: f64, what: &str) {
    assert!((got - want).abs() < 1e-9, "{what}: {got}, not {want}");
}

/// `count` different words of `length` letters that hold no connective.
fn fillers(kind: char, count: usize, length: usize) -> Vec<String> {
    (0..count).map(|number| format!("{kind}{}{number:02}", "z".repeat(length - 3))).collect()
}

fn post() -> Value {
    json!({"problem": "TITLE: Chimes\n\nPOST: They ring at night.", "gates": "published"})
}

/// ρ = 648/480 = 1.35, u = 132/80 = 1.65, three kinds of connectives, Jaccard 3/200 = .015.
#[test]
fn tldr_in_the_middle_of_every_range() {
    let stop = "me my we us he by to of in".split(' ');
    let shared = fillers('s', 3, 5);
    let mut first: Vec<String> = stop.clone().take(5).map(str::to_owned).chain(shared.clone()).collect();
    first.extend(fillers('q', 72, 5));
    let mut second: Vec<String> = stop.skip(5).map(str::to_owned).chain(shared).collect();
    second.extend(["moreover", "namely", "unless"].map(str::to_owned));
    // `q99` and `x99` are as short as different words can be here.
    second
        .extend((0..122).map(|number| format!("{}{:02}", if number < 61 { "k" } else { "x" }, number % 61)));
    let stretch = |words: &mut Vec<String>, length: usize| {
        let missing = length - words.join(" ").len();
        words.last_mut().unwrap().push_str(&"z".repeat(missing));
        words.join(" ")
    };
    assert_eq!((first.len(), second.len()), (80, 132));
    let (first, second) = (stretch(&mut first, 480), stretch(&mut second, 648));
    near(team("tldr", &post(), &first, &second), 0.5 + 0.5 + 0.25 + 0.5, "tldr");
}

/// Nine words and `more` letters; no shared words, no connectives.
fn text(kind: char, words: usize, characters: usize) -> String {
    let mut text = fillers(kind, words, 4).join(" ");
    text.push_str(&"z".repeat(characters - text.len()));
    text
}

#[test]
fn tldr_at_the_edges() {
    let first = text('q', 20, 200);
    for (characters, words, want) in [
        (220, 40, 0.5 + 0.0 + 0.5),
        (219, 40, 0.5),
        (1000, 40, 0.5 + 0.0 + 0.5),
        (1001, 40, 0.5),
        (1200, 40, 0.5),
        (320, 26, 1.5 + 0.0),
        (320, 25, 1.5),
        (320, 40, 2.0),
        (640, 33, 1.5 + 0.25),
        (820, 40, 0.5 + 0.5 + 0.5),
    ] {
        near(
            team("tldr", &post(), &first, &text('k', words, characters)),
            want,
            &format!("{characters} {words}"),
        );
    }
    let connected = format!("so {}", text('k', 40, 400 - 3));
    near(team("tldr", &post(), &first, &connected), 2.0 + 0.16, "u = 1.3 passes on to the style");
    for (words, want) in [(7, 0.0), (8, 0.5), (256, 0.5), (257, 0.0)] {
        let first = text('q', words, 6 * words);
        near(team("tldr", &post(), &first, &text('k', 8, 36 * words)), want, &format!("{words} words"));
    }
}

#[test]
fn a_connective_counts_inside_a_word_unless_words_are_asked_for() {
    let (first, second) = (text('q', 20, 200), format!("{} reason", text('k', 40, 393)));
    near(team("tldr", &post(), &first, &second), 2.0 + 0.4 * 0.45, "so, as: cause and time");
    let spec = json!({"problem": "x", "hits": "word", "gates": "published"});
    near(team("tldr", &spec, &first, &second), 2.0, "no whole word");
}

#[test]
fn arxiv_counts_both_texts_and_takes_the_older_range() {
    let source = json!({"problem": "We study how delays spread.", "gates": "published"});
    let first = text('q', 140, 1200);
    for (characters, words, want) in [
        (1200, 140, 2.0),
        (1560, 140, 2.0),
        (1680, 140, 1.5),
        (1800, 140, 1.0),
        (1801, 140, 0.5),
        (1080, 140, 1.5),
        (960, 140, 1.0),
        (959, 140, 0.5),
        (1524, 210, 0.5 + 1.0 + 0.25),
        (1524, 250, 1.5),
    ] {
        let second = text('k', words, characters);
        near(team("arxiv", &source, &first, &second), want, &format!("{characters} {words}"));
    }
    let connected = format!("so {}", text('q', 140, 997));
    near(
        team("arxiv", &source, &connected, &text('k', 140, 1000)),
        2.16,
        "connectives of the first text count",
    );
    near(team("arxiv", &source, &text('q', 127, 1000), &text('k', 140, 1000)), 0.0, "127 words");
}

/// What is paid without the work by the published rules, and by default. The numbers are those of docs/joint-reward.md.
#[test]
fn points_of_a_summary_take_a_source() {
    let post = "TITLE: Neighbor's wind chimes at three in the morning\n\nPOST: My new neighbor hung seven wind chimes right under our \
                bedroom window. On windy nights we sleep two hours at most. I left a friendly note last week and got no answer. My \
                partner wants to go to the landlord, I would rather knock and talk. How would you open that conversation without \
                starting a war?";
    let published = json!({"problem": post, "gates": "published"});
    let (earned, silent) = (json!({"problem": post, "gates": "earned"}), json!({"problem": post}));
    let long = "Also, the new neighbor hung wind chimes under a bedroom window; however, a friendly note got no answer, so the partner \
                would rather talk to the landlord, although, for example, a knock and a conversation at night, while we sleep two \
                hours, should indeed come first, therefore without a war; similarly, if it is windy, overall we wait.";
    let summary = [
        "A new neighbor hung wind chimes under our bedroom window, so that nobody may sleep on windy nights, and a note got no answer.",
        long,
    ];
    // Words in no language, one of them in both texts, and a connective of each kind.
    let connectives = "also notably indeed so but first overall likewise although if when";
    let gibberish = [text('q', 13, 100), format!("qz00 {connectives} {}", text('k', 14, 150))];
    let best = [
        "Someone tells what happened at home and asks for help.",
        "Also, someone tells what happened; notably, that is likewise the point, so it was hard at first, but overall, although things \
         went wrong, we should indeed act when we can.",
    ];
    let listed = [
        "neighbor chimes window nights hours note week answer partner",
        "landlord knock talk conversation war bedroom seven wind windy sleep left friendly got wants go open starting neighbor chimes",
    ];
    for (what, [first, second], by_the_rules, by_work) in [
        ("a summary", summary, 2.98, 2.98),
        ("gibberish", [&gibberish[0], &gibberish[1]], 2.98, 0.0),
        ("the same for every post", best, 2.98, 0.0),
        ("words of the post in a row", listed, 2.6, 0.0),
        ("the post itself", [&post[61..175], &post[61..]], 2.78, 0.0),
    ] {
        near(team("tldr", &published, first, second), by_the_rules, what);
        near(team("tldr", &earned, first, second), by_work, what);
        near(team("tldr", &silent, first, second), by_work, what);
    }
}

/// The best sentence, and the missing part where a gate fails.
#[test]
fn write_is_tldr_in_small() {
    let spec = json!({"post": ["c3", "f1", "a0", "j9", "b2", "e5"], "success": 0.9});
    for (first, second, want) in [
        ("c3 f1 a0", "c3 f1 a0 j9 b2 but was ok none", 3.0),
        ("c3 f1", "c3 f1 but was ok none", 3.0),
        ("c3 f1", "a0 j9 b2 e5", 2.0),
        ("c3 f1", "c3 f1 a0 but", 0.5 + 1.0 + 0.5 + 0.16 + 0.6),
        ("c3 f1 a0", "c3 f1 a0", 0.5),
        ("c3 f1", "c3 f1 h7 h8", 1.5),
        ("h7 h8", "c3 f1 a0 j9", 1.5),
        ("c3", "c3 f1 but", 0.0),
        ("c3 f1 a0 j9", "c3 f1 a0 j9 b2 but", 0.5 + 0.8 + 0.5 * (0.2 / 0.7) + 0.16 + 0.6),
    ] {
        near(team("write", &spec, first, second), want, &format!("{first} | {second}"));
    }
}

#[test]
fn who_sees_what_in_the_papers_baselines() {
    let spec = json!({"post": ["c3", "f1", "a0", "j9"], "success": 0.9});
    let seen = |answer: &Value, agent: &str| {
        answer["observations"][agent][0]["content"].as_str().unwrap().to_owned()
    };
    let both = json!({"writer-1": " c3 f1", "writer-2": " a0 nonsense but"});

    let pipeline = play(
        "write",
        &spec,
        "pipeline",
        &[json!({"writer-1": " c3 f1"}), json!({"writer-2": " c3 f1 but was ok none"})],
    );
    assert_eq!(pipeline[0]["order"], "sequential");
    assert_eq!(seen(&pipeline[0], "writer-2"), "at c3 f1 a0 j9 goal 2");
    assert_eq!((&pipeline[1]["terminated"], &pipeline[1]["rewards"]["team"]), (&json!(false), &json!(0.0)));
    assert_eq!(seen(&pipeline[1], "writer-2"), "at c3 f1 a0 j9 plan c3 f1 goal 2");
    assert_eq!((&pipeline[2]["terminated"], &pipeline[2]["rewards"]["team"]), (&json!(true), &json!(3.0)));

    let discussion = play("write", &spec, "discussion", &[both.clone(), both.clone()]);
    assert_eq!(seen(&discussion[0], "writer-1"), "at c3 f1 a0 j9 goal 1");
    assert_eq!(seen(&discussion[1], "writer-1"), "at c3 f1 a0 j9 plan c3 f1 route a0 but goal 1");
    assert_eq!(seen(&discussion[1], "writer-2"), "at c3 f1 a0 j9 plan c3 f1 route a0 but goal 2");
    assert_eq!((&discussion[1]["terminated"], &discussion[2]["terminated"]), (&json!(false), &json!(true)));
    let over = ask("write", &json!({"state": discussion[2]["state"], "actions": both}));
    assert!(over["error"].as_str().unwrap().contains("the episode is over"), "{over}");

    let single = play("write", &spec, "single", &[json!({"writer": " c3 f1 : c3 f1 but was ok none"})]);
    assert_eq!(seen(&single[0], "writer"), "at c3 f1 a0 j9 goal 0");
    assert_eq!(single[1]["rewards"]["team"], 3.0);

    let tldr = play(
        "tldr",
        &post(),
        "single",
        &[json!({"writer": "one text only, of more than eight words in all"})],
    );
    assert!(seen(&tldr[0], "writer").contains("[PARAGRAPH_SPLIT]"));
    assert_eq!(tldr[1]["rewards"]["team"], 0.0);
}

/// Scored alone, one of two writers earns nothing; given the other's text, it earns their joint reward.
#[test]
fn a_reward_is_the_teams_and_needs_both() {
    let spec = json!({"post": ["c3", "f1", "a0", "j9"], "success": 0.9});
    let state = ask("write", &json!({"task": {"spec": spec}}))["state"].clone();
    let second = " c3 f1 but was ok none";
    let alone = ask("write", &json!({"state": state, "agent": "writer-2", "action": second}));
    assert_eq!((&alone["rewards"]["team"], &alone["terminated"]), (&json!(0.0), &json!(false)));
    let beside = ask(
        "write",
        &json!({"state": state, "agent": "writer-2", "action": second, "beside": {"writer-1": " c3 f1"}}),
    );
    assert_eq!((&beside["rewards"]["team"], &beside["success"]), (&json!(3.0), &json!(true)));
}

/// The mix of a warm-up earns something between nothing and everything.
#[test]
fn demonstrations_leave_room() {
    let environment = find("write").unwrap();
    let mix = environment
        .metadata()
        .demonstrators
        .iter()
        .map(|(kind, share)| ((*kind).to_owned(), *share))
        .collect();
    let tasks = Selection { split: Split::Train, seed: 5, settings: Settings::default() };
    let specs: Vec<Value> =
        environment.tasks(&tasks).unwrap().take(300).map(|task| task.unwrap().spec).collect();
    let demonstration = Demonstration { tasks, workflow: "team".to_owned(), mix, states: 1, follow: 0.0 };
    let (mut sum, mut solved) = (0.0, 0);
    for (samples, spec) in environment.demonstrations(&demonstration).unwrap().zip(&specs) {
        let texts: Vec<String> =
            samples.unwrap().into_iter().map(|sample| sample.completion.unwrap().to_string()).collect();
        let mut state = environment.reset(spec, "team").unwrap();
        let outcome = state.apply_together(&[("writer-1", &texts[0]), ("writer-2", &texts[1])]).unwrap();
        sum += outcome.rewards.team;
        solved += usize::from(outcome.success);
    }
    let (mean, solved) = (sum / 300.0, solved as f64 / 300.0);
    assert!((0.3..2.0).contains(&mean) && (0.005..0.3).contains(&solved), "{mean} {solved}");
}

#[test]
fn a_huge_text_is_no_text() {
    let huge = "word ".repeat(1 << 20);
    near(team("tldr", &post(), &text('q', 20, 200), &huge), 0.0, "huge");
}

//! Default limits of completion tokens, as promised by `pipeline.sh --help`.

use envs::{Settings, find};

#[test]
fn each_environment_declares_its_limit_by_encoding_and_settings() {
    for (name, settings, limit) in [
        ("plan-path", &[][..], 8),
        ("plan-path", &["encoding=full"], 128),
        ("sokoban", &["encoding=full"], 128),
        ("sokoban", &[], 8),
        ("sudoku", &["size=4"], 8),
        ("sudoku", &["size=9"], 96),
        ("sudoku", &["size=4", "encoding=full"], 128),
        ("sudoku", &["size=9", "encoding=full"], 512),
        ("math", &[], 24),
        ("math", &["encoding=full"], 128),
        ("math", &["encoding=full", "reasoning=steps"], 512),
        ("math", &["level=2", "data=problems.jsonl"], 512),
        ("math", &["encoding=full", "data=problems.jsonl", "reasoning=brief"], 128),
        ("code", &[], 24),
        ("code", &["encoding=full"], 128),
        ("code", &["level=1", "encoding=full"], 128),
        ("code", &["encoding=full", "level=2"], 256),
        ("code", &["data=problems.jsonl", "encoding=full"], 512),
        ("write", &[], 24),
        ("tldr", &[], 256),
        ("arxiv", &[], 256),
        ("coop-code", &[], 256),
    ] {
        let environment = find(name).expect("an environment");
        let texts: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
        let parsed = Settings::parse(&texts, name, environment.metadata().settings).expect("settings");
        assert_eq!((environment.metadata().max_tokens)(&parsed), limit, "{name} {settings:?}");
    }
}

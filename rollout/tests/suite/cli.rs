//! The command line as its user sees it: commands, stdin, stdout, stderr, exit codes.

#[test]
fn transcripts() {
    trycmd::TestCases::new().case("tests/transcripts/*.trycmd").case("tests/transcripts/*.toml");
}

//! Each file in `cases/` is a command with its stdin, stdout, stderr and exit code.

#[test]
fn transcripts() {
    trycmd::TestCases::new()
        .register_bin("report", std::path::Path::new(env!("CARGO_BIN_EXE_report")))
        .case("tests/cases/*.toml");
}

//! The metrics as CSV (RFC 4180): one number per row, empty fields where a column does not apply.
//!
//! Names in a stream are anybody's: control characters are written as escapes, and a name that a spreadsheet
//! would run as a formula begins with an apostrophe.

use record::failure::{Failure, Result};
use record::stage::printable;

use crate::metrics::Metric;

const HEADER: [&str; 10] =
    ["run", "step", "split", "environment", "policy", "agent", "metric", "value", "low", "high"];

/// The metrics of several runs as CSV.
///
/// # Errors
/// 74: the table cannot be written to memory.
pub fn table(runs: &[(String, Vec<Metric>)]) -> Result<Vec<u8>> {
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record(HEADER).map_err(Failure::io)?;
    for (run, metric) in
        runs.iter().flat_map(|(run, metrics)| metrics.iter().map(move |metric| (run, metric)))
    {
        let Metric { step, split, environment, policy, agent, name, value, interval } = metric;
        let (low, high) =
            interval.map_or_else(Default::default, |(low, high)| (low.to_string(), high.to_string()));
        let (step, value) = (step.to_string(), value.to_string());
        let [run, split, environment, policy, agent, name] =
            [run, &**split, environment, policy, agent, name].map(cell);
        let row = [run, step, split, environment, policy, agent, name, value, low, high];
        table.write_record(row).map_err(Failure::io)?;
    }
    table.into_inner().map_err(Failure::io)
}

pub fn cell(name: &str) -> String {
    let formula = if name.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
    format!("{formula}{}", printable(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_hold_separators_are_quoted() {
        let metric = Metric {
            step: 3,
            split: "test".into(),
            name: "a,\"b\"".to_owned(),
            value: 0.1,
            interval: Some((0.0, 1.0)),
            ..Metric::default()
        };
        let text = String::from_utf8(table(&[("run".to_owned(), vec![metric])]).unwrap()).unwrap();
        assert_eq!(text, format!("{}\nrun,3,test,,,,\"a,\"\"b\"\"\",0.1,0,1\n", HEADER.join(",")));
    }

    #[test]
    fn names_steer_neither_a_terminal_nor_a_spreadsheet() {
        let metric = |agent: &str| Metric { agent: agent.to_owned(), value: -1.0, ..Metric::default() };
        let run = (
            "r\nun".to_owned(),
            vec![metric("=cmd|calc\u{1b}]0;owned\u{7}tool"), metric("@a"), metric("a=b")],
        );
        let text = String::from_utf8(table(&[run]).unwrap()).unwrap();
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            rows,
            [
                r"r\nun,0,,,,'=cmd|calc\u{1b}]0;owned\u{7}tool,,-1,,",
                r"r\nun,0,,,,'@a,,-1,,",
                r"r\nun,0,,,,a=b,,-1,,"
            ]
        );
    }
}

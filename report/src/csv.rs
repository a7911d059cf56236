//! The figures as CSV (RFC 4180): one number a row, a header, empty fields where a column does not apply.

use std::io::Write;

use record::failure::Result;

use crate::table::Figure;

const HEADER: &str = "run,step,split,environment,policy,agent,metric,value,low,high\n";

/// Writes the figures of several runs.
///
/// # Errors
/// 74 when writing fails.
pub fn write(output: &mut impl Write, runs: &[(String, Vec<Figure>)]) -> Result<()> {
    output.write_all(HEADER.as_bytes())?;
    for (run, figures) in runs {
        for figure in figures {
            let (low, high) = match figure.interval {
                Some((low, high)) => (low.to_string(), high.to_string()),
                None => (String::new(), String::new()),
            };
            let texts = [
                field(run),
                figure.step.to_string(),
                figure.split.to_owned(),
                field(&figure.environment),
                field(&figure.policy),
                field(&figure.agent),
                field(&figure.metric),
                figure.value.to_string(),
                low,
                high,
            ];
            output.write_all((texts.join(",") + "\n").as_bytes())?;
        }
    }
    Ok(())
}

/// A text as a field: quoted where it holds what would end it.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_hold_separators_are_quoted() {
        let figure = Figure {
            step: 3,
            split: "test",
            metric: "a,\"b\"".to_owned(),
            value: 0.1,
            interval: Some((0.0, 1.0)),
            ..Figure::default()
        };
        let mut output = Vec::new();
        write(&mut output, &[("run".to_owned(), vec![figure])]).unwrap();
        let text = String::from_utf8(output).unwrap();
        assert_eq!(text, format!("{HEADER}run,3,test,,,,\"a,\"\"b\"\"\",0.1,0,1\n"));
    }
}

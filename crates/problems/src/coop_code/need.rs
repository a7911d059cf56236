//! Whether a main function needs its helper, and adds to it: by trial, not by reading.
//!
//! The assertions that hold are tried again with stand-ins in the helper's place: functions that return None, their first argument,
//! 0 or True. The main function needs the helper if with each of them one of these assertions fails. It adds something if one
//! fails where the helper itself is asked in its place, too.
//!
//! A name in a comment, a string or dead code, and a value that is dropped or multiplied by 0, need no helper. Left out: a main
//! function that does everything by itself and refuses to work unless the helper returns what it expects; it does need it.

use record::failure::Result;
use sandbox::{Entry, Limits, Program};
use serde_json::{Value, json};

use super::judge::{CHECK, ours};
use crate::run;

/// What takes the helper's place. The first, nothing, tells which assertions hold when all are made by one process.
const STAND_INS: [&str; 5] = [
    "",
    "def aux(*values, **named):\n    return None\n",
    "def aux(*values, **named):\n    return values[0] if values else None\n",
    "def aux(*values, **named):\n    return 0\n",
    "def aux(*values, **named):\n    return True\n",
];

/// Makes the calls of each assertion; goes after the functions. None: they gave nothing.
const CALL_ALL: &str = "
def troupe_all(groups):
    found = []
    for calls in groups:
        try:
            found.append([repr(eval(call, globals())) for call in calls])
        except Exception:
            found.append(None)
    return found
";

/// Whether `entry` in `source` needs its helper for the assertions `held`, each as its calls and its check, and whether it adds
/// nothing to it.
pub fn tried(source: &str, entry: &str, held: &[&Value], limits: Limits) -> Result<(bool, bool)> {
    let alone = STAND_INS.map(|stand_in| format!("{source}{stand_in}\ncandidate = {entry}\n{CALL_ALL}"));
    let mut verdicts = Vec::new();
    for program in alone.iter().chain([&format!("{source}\ncandidate = aux\n{CALL_ALL}")]) {
        verdicts.push(holds(program, held, limits)?);
    }
    // What one process cannot show, because one assertion spoils the next, is not held against anybody.
    let shown: Vec<usize> = (0..held.len()).filter(|at| verdicts[0].get(*at) == Some(&true)).collect();
    let fails = |program: usize| shown.iter().any(|at| verdicts[program].get(*at) != Some(&true));
    let needs = (1..STAND_INS.len()).all(fails);
    Ok((needs, !(needs && fails(STAND_INS.len()))))
}

/// Which assertions hold; none where the program does not come to an end.
fn holds(source: &str, held: &[&Value], limits: Limits) -> Result<Vec<bool>> {
    let calls: Vec<&Value> = held.iter().map(|part| &part[0]).collect();
    let stdin = json!([calls]).to_string();
    let execution = run::run(&Program { source, entry: Entry::Call("troupe_all"), stdin: &stdin, limits })?;
    let result = execution.result.as_deref().filter(|_| execution.is_success());
    let Some(values) = result.and_then(|text| serde_json::from_str::<Vec<Option<Vec<String>>>>(text).ok())
    else {
        return Ok(Vec::new());
    };
    // A call that gave nothing is checked against nothing, which no check takes for a value.
    let checks = values.iter().zip(held).map(|(values, part)| match values {
        Some(values) => json!([values, part[1]]),
        None => json!([[], "assert False"]),
    });
    let verdicts = ours(CHECK, &checks.collect())?;
    Ok(serde_json::from_value(verdicts).unwrap_or_default())
}

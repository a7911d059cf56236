//! Reads a workflow file; a mistake in it is named in one line.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use environment::settings::suggest;
use record::failure::{Failure, Result};

use super::{Definition, Gives, When};

/// Agents of a role, at most, and bytes of a file.
const MOST_AGENTS: u32 = 16;
const LARGEST: u64 = 1 << 20;

/// Returns true if `--workflow` names a file and not a built-in workflow.
pub fn is_file(name: &str) -> bool {
    name.ends_with(".toml")
}

/// The definition in `file`. A process reads a file once.
///
/// # Errors
/// A file that cannot be read, or that makes no sense: usage, naming the file and the place.
pub fn load(file: &str) -> Result<Arc<Definition>> {
    static READ: LazyLock<Mutex<HashMap<String, Arc<Definition>>>> = LazyLock::new(Mutex::default);
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = read.get(file) {
        return Ok(Arc::clone(known));
    }
    let failed = |cause: String| Failure::usage(format!("--workflow {file}: {cause}"));
    let text = match std::fs::metadata(file) {
        Ok(facts) if facts.is_file() && facts.len() > LARGEST => Err(failed("more than 1 MiB".to_owned())),
        _ => std::fs::read_to_string(file).map_err(|error| {
            let is_missing = error.kind() == std::io::ErrorKind::NotFound;
            failed(if is_missing { "no such file".to_owned() } else { error.to_string() })
                .hint("examples/workflows/ has such files; `envs list` names the built-in workflows")
        }),
    }?;
    let definition = Arc::new(parse(&text).map_err(|failure| failure.at(format!("--workflow {file}")))?);
    read.insert(file.to_owned(), Arc::clone(&definition));
    Ok(definition)
}

/// Reads the text of a file.
fn parse(text: &str) -> Result<Definition> {
    let table: toml::Table = toml::from_str(text).map_err(|error| located(text, &error))?;
    for (key, hint) in [
        ("order", "order = [\"solver\", \"judge\"]: roles one after another, those in an inner list at once"),
        ("last", "last = \"judge\" gives that role the last word"),
        ("role", "[role.solver] is a role; it may be empty"),
    ] {
        if !table.contains_key(key) {
            let cause = match key {
                "last" => "`last` is missing: nobody has the last word".to_owned(),
                _ => format!("`{key}` is missing"),
            };
            return Err(Failure::usage(cause).hint(hint));
        }
    }
    let definition: Definition = toml::from_str(text).map_err(|error| located(text, &error))?;
    if definition.stop.is_some() && !table.contains_key("turns") {
        return Err(Failure::usage("`stop` without `turns` is a cycle with no end")
            .hint("turns = 3 ends it after three turns at the latest"));
    }
    definition.check()?;
    Ok(definition)
}

/// A failure of the TOML parser, with its line.
fn located(text: &str, error: &toml::de::Error) -> Failure {
    let line = error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
    Failure::usage(format!("line {line}: {}", error.message().replace('\n', " ")))
        .hint("docs/workflows.md has the keys")
}

impl Definition {
    /// Checks that every role can act and see, and that the episode ends with an answer.
    pub(super) fn check(&self) -> Result<()> {
        let fail = |cause: String, hint: &str| Err(Failure::usage(cause).hint(hint));
        let names: Vec<&str> = self.role.keys().map(String::as_str).collect();
        let known = |place: &str, role: &str| match self.role.contains_key(role) {
            true => Ok(()),
            false => Err(Failure::usage(format!("{place}: there is no role '{role}'"))
                .hint(format!("{}, or add [role.{role}]", suggest(role, &names)))),
        };
        if !(1..=99).contains(&self.turns) {
            return fail(
                format!("turns: {} is not from 1 to 99", self.turns),
                "an episode has one turn at least",
            );
        }
        let order: Vec<(usize, &String)> = self.in_order().collect();
        for (index, (_, role)) in order.iter().enumerate() {
            known("order", role)?;
            if order[..index].iter().any(|(_, before)| before == role) {
                return fail(
                    format!("order: '{role}' is there twice"),
                    "a role acts once in a turn: raise turns, or give the second part another role",
                );
            }
        }
        let stage = |role: &str| order.iter().find(|(_, name)| *name == role).map(|(stage, _)| *stage);
        for (name, role) in &self.role {
            let Some(own) = stage(name).filter(|_| role.count > 0) else {
                return fail(
                    format!("role.{name}: it never acts"),
                    "put it into `order`, with a count of 1 or more",
                );
            };
            if role.count > MOST_AGENTS {
                return fail(
                    format!("role.{name}: count: {} is more than {MOST_AGENTS}", role.count),
                    "take fewer agents",
                );
            }
            if !name.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-".contains(letter)) {
                return fail(format!("role.{name}: not a name"), "letters, digits, _ and - name a role");
            }
            for seen in &role.sees {
                known(&format!("role.{name}: sees"), seen)?;
                let before = stage(seen).is_some_and(|stage| stage < own);
                if !before && (self.turns == 1 || role.when == When::First) {
                    return fail(
                        format!("role.{name}: sees: '{seen}' has said nothing when '{name}' acts"),
                        "put it earlier into `order`, or raise turns",
                    );
                }
            }
            let sees_answer = role.sees.iter().any(|seen| self.role[seen].gives == Gives::Answer);
            if role.gives == Gives::Verdict && !sees_answer {
                return fail(
                    format!("role.{name}: its verdict is about nothing"),
                    "let it see a role that gives an answer",
                );
            }
        }
        known("last", &self.last)?;
        let last = &self.role[&self.last];
        if last.gives != Gives::Answer {
            return fail(
                format!("last: '{}' gives no answer, so the last word is missing", self.last),
                "name a role that gives an answer",
            );
        }
        let Some(stop) = &self.stop else { return Ok(()) };
        known("stop", stop)?;
        if self.role[stop].gives != Gives::Verdict {
            return fail(
                format!("stop: '{stop}' gives no verdict"),
                "gives = \"verdict\" lets it say right or wrong",
            );
        }
        if last.when == When::Last || stage(&self.last) >= stage(stop) {
            return fail(
                format!(
                    "stop: '{stop}' can end the episode before '{}' has acted, so the last word is missing",
                    self.last
                ),
                "put the last word before it, in every turn",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOP: &str = "order = ['solver', 'critic']\nlast = 'solver'\nturns = 3\nstop = 'critic'\n\
                        [role.solver]\nsees = ['solver', 'critic']\n[role.critic]\nsees = ['solver']\ngives = 'verdict'\n";

    /// Each mistake, made in a right file, and what is said of it.
    #[test]
    fn mistakes_are_explained() {
        parse(LOOP).unwrap();
        for (right, wrong, cause) in [
            ("last = 'solver'\n", "", "`last` is missing: nobody has the last word"),
            (
                "last = 'solver'",
                "last = 'critic'",
                "last: 'critic' gives no answer, so the last word is missing",
            ),
            ("turns = 3\n", "", "`stop` without `turns` is a cycle with no end"),
            ("turns = 3", "turns = 0", "turns: 0 is not from 1 to 99"),
            ("'critic']\nlast", "'critc']\nlast", "order: there is no role 'critc'"),
            ("['solver', 'critic']\nlast", "['solver']\nlast", "role.critic: it never acts"),
            (
                "['solver', 'critic']\nlast",
                "['solver', ['critic', 'solver']]\nlast",
                "order: 'solver' is there twice",
            ),
            ("[role.critic]\n", "[role.critic]\ncount = 0\n", "role.critic: it never acts"),
            ("sees = ['solver']", "sees = ['critic']", "role.critic: its verdict is about nothing"),
            ("turns = 3", "turns = 1", "role.solver: sees: 'solver' has said nothing when 'solver' acts"),
            ("stop = 'critic'", "stop = 'solver'", "stop: 'solver' gives no verdict"),
            (
                "[role.solver]\n",
                "[role.solver]\nwhen = 'last'\n",
                "stop: 'critic' can end the episode before 'solver' has acted, so the last word is missing",
            ),
            ("gives = 'verdict'", "give = 'verdict'", "line 9: unknown field `give`"),
            ("turns = 3", "turns = ", "line 3: "),
        ] {
            let text = LOOP.replacen(right, wrong, 1);
            let failure = parse(&text).unwrap_err();
            assert!(failure.message.starts_with(cause), "{text}\n{}", failure.message);
            assert_eq!((failure.code, failure.hint.is_some()), (2, true), "{cause}");
        }
    }
}

//! Quoting for shell command lines.

/// Quotes a word for the shell.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%_-+=:,./".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A command line that is written to a script: each flag with its values on its own line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellLine {
    words: Vec<String>,
}

impl ShellLine {
    pub fn new(program: impl std::fmt::Display) -> ShellLine {
        ShellLine { words: vec![quoted(&program.to_string())] }
    }

    /// Adds a word.
    pub fn word(mut self, word: impl std::fmt::Display) -> ShellLine {
        self.words.push(quoted(&word.to_string()));
        self
    }

    /// Adds words.
    pub fn words<T: std::fmt::Display>(self, words: impl IntoIterator<Item = T>) -> ShellLine {
        words.into_iter().fold(self, ShellLine::word)
    }

    /// Adds a flag and its value.
    pub fn flag(self, flag: &str, value: impl std::fmt::Display) -> ShellLine {
        self.word(flag).word(value)
    }

    /// Adds a flag and its value, if there is one.
    pub fn flag_if_any(self, flag: &str, value: Option<impl std::fmt::Display>) -> ShellLine {
        self.flag_of_each(flag, value.as_slice())
    }

    /// Adds a flag once for each value.
    pub fn flag_of_each(self, flag: &str, values: &[impl std::fmt::Display]) -> ShellLine {
        values.iter().fold(self, |line, value| line.flag(flag, value))
    }

    /// Adds a flag whose value is a shell expression.
    pub fn computed(mut self, flag: &str, expression: &str) -> ShellLine {
        self.words.push(flag.to_owned());
        self.words.push(expression.to_owned());
        self
    }

    /// The script, which passes its own arguments on.
    pub fn script(&self) -> String {
        let mut text = "exec".to_owned();
        for word in &self.words {
            text.push_str(if word.starts_with("--") { " \\\n    " } else { " " });
            text.push_str(word);
        }
        text.push_str(" \\\n    \"$@\"\n");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_words_again() {
        let line = ShellLine::new("printf").word("%s,").words(["a b", "it's", "$x\ny", "", "--z"]);
        let line = line.computed("--step", "\"$((STEP + 1))\"");
        let mut bash = std::process::Command::new("bash");
        let output = bash.args(["-c", &line.script(), "bash", "last"]).env("STEP", "2").output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "a b,it's,$x\ny,,--z,--step,3,last,");
    }
}

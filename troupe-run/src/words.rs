//! Words of a shell's command line.

/// A word as a shell reads it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%_-+=:,./".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A command line that a file of a shell holds: a flag with its values on each line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShellLine {
    words: Vec<String>,
}

impl ShellLine {
    /// A program.
    pub fn new(program: impl std::fmt::Display) -> ShellLine {
        ShellLine { words: vec![quoted(&program.to_string())] }
    }

    /// With one more word.
    pub fn word(mut self, word: impl std::fmt::Display) -> ShellLine {
        self.words.push(quoted(&word.to_string()));
        self
    }

    /// With more words.
    pub fn words<T: std::fmt::Display>(self, words: impl IntoIterator<Item = T>) -> ShellLine {
        words.into_iter().fold(self, ShellLine::word)
    }

    /// With a flag and its value.
    pub fn flag(self, flag: &str, value: impl std::fmt::Display) -> ShellLine {
        self.word(flag).word(value)
    }

    /// With a flag and its value, unless that is empty.
    pub fn flag_if_any(self, flag: &str, value: &str) -> ShellLine {
        if value.is_empty() { self } else { self.flag(flag, value) }
    }

    /// With a flag and what the shell makes of this.
    pub fn computed(mut self, flag: &str, expression: &str) -> ShellLine {
        self.words.push(flag.to_owned());
        self.words.push(expression.to_owned());
        self
    }

    /// The text of a file that runs it with further arguments.
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

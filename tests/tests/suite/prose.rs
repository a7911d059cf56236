//! Plain sentences: some constructions make readers stop. They are counted in comments, documents and the texts that
//! programs print, and none may become more frequent. Write the words that the construction hides: the noun, the verb,
//! the reason.

use std::collections::BTreeMap;
use std::process::Command;

use troupe_tests::root;

/// The kinds of text that are counted apart.
const KINDS: [&str; 4] = ["comments of code", "comments of scripts", "Markdown", "texts of programs"];

/// Most occurrences per 10,000 words of each kind. Lower a limit when the prose has become better.
const LIMITS: [(&str, [f64; 4]); 9] = [
    ("that of, those of", [2.0, 1.6, 1.1, 2.2]),
    ("what is, what they", [4.0, 9.0, 4.5, 13.8]),
    ("so many, as many", [1.1, 0.6, 0.8, 5.9]),
    ("beside", [0.6, 1.1, 0.5, 3.2]),
    ("own", [3.1, 12.5, 6.4, 17.2]),
    ("The same (a sentence's beginning)", [0.8, 0.5, 0.5, 2.2]),
    ("where there is", [0.4, 1.1, 0.5, 1.1]),
    ("; none", [1.8, 6.5, 1.5, 5.0]),
    ("Of, Those, That, As, Which, Whether, Whose (a sentence's beginning)", [3.9, 1.6, 1.7, 1.6]),
];

const AFTER_WHAT: &str = "is are was were it they he has have had come comes came follows remains stays belongs goes begins stands lies";

const BEGINNINGS: [&str; 7] = ["of", "those", "that", "as", "which", "whether", "whose"];

/// Longest line of a document outside tables and code, in characters: as wide as code is.
const WIDTH: usize = 110;

/// `line` without the text between backquotes.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// The markers in one paragraph, as indices of [`LIMITS`], and the number of its words.
fn markers(paragraph: &str) -> (Vec<usize>, usize) {
    let mut found = Vec::new();
    let (mut before, mut starts, mut ended) = (String::new(), true, ' ');
    let plain = without_code(paragraph);
    let tokens = plain.split_whitespace();
    let mut words = 0;
    for token in tokens {
        words += 1;
        let word: String = token.chars().filter(|at| at.is_alphanumeric() || *at == '\'').collect();
        let word = word.to_lowercase();
        let pair = (before.as_str(), word.as_str());
        found.extend(match pair {
            ("that" | "those", "of") => Some(0),
            ("what", next) if AFTER_WHAT.split(' ').any(|known| known == next) => Some(1),
            ("so" | "as", "many") => Some(2),
            (_, "beside") => Some(3),
            (_, "own") => Some(4),
            ("where", "there" | "one" | "none" | "nobody" | "nothing") => Some(6),
            (_, "none" | "nothing" | "nobody") if ";:,".contains(ended) => Some(7),
            _ => None,
        });
        if starts && BEGINNINGS.contains(&word.as_str()) && token.starts_with(char::is_uppercase) {
            found.push(8);
        }
        if pair == ("the", "same") && starts {
            found.push(5);
        }
        // "The" of a sentence that begins "The same" still counts as its beginning for the next word.
        starts = (starts && token == "The") || token.ends_with(['.', '!', '?']);
        ended = token.chars().last().unwrap_or(' ');
        before = word;
    }
    (found, words)
}

/// A paragraph and its first line's number.
type Paragraph = (usize, String);

/// Gathers lines of prose into paragraphs.
#[derive(Default)]
struct Paragraphs {
    done: Vec<Paragraph>,
    open: Option<Paragraph>,
    fenced: bool,
}

impl Paragraphs {
    fn close(&mut self) {
        self.done.extend(self.open.take());
    }

    /// Takes a line without its comment marks.
    fn push(&mut self, number: usize, line: &str) {
        let line = line.trim();
        if line.starts_with("```") {
            self.fenced ^= true;
            return self.close();
        }
        let item = ["- ", "* ", "# ", "## ", "### "].iter().find_map(|mark| line.strip_prefix(mark));
        if line.is_empty() || self.fenced || item.is_some() || line.starts_with('|') {
            self.close();
        }
        if line.is_empty() || self.fenced {
            return;
        }
        if line.starts_with('|') {
            let cells = line.split('|').map(str::trim).filter(|cell| cell.chars().any(char::is_alphanumeric));
            return self.done.extend(cells.map(|cell| (number, cell.to_owned())));
        }
        let text = item.unwrap_or(line).trim_start_matches(['*', '_', '>']);
        match &mut self.open {
            Some((_, open)) => *open += &format!(" {text}"),
            None => self.open = Some((number, text.to_owned())),
        }
    }

    fn finish(mut self) -> Vec<Paragraph> {
        self.close();
        self.done
    }
}

/// The paragraphs of comments that begin with `mark`, and of Python's docstrings.
fn comments(text: &str, mark: &str) -> Vec<Paragraph> {
    let mut found = Paragraphs::default();
    let mut in_docstring = false;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        if mark == "#" && (in_docstring || trimmed.starts_with("\"\"\"")) {
            in_docstring ^= line.matches("\"\"\"").count() % 2 == 1;
            found.push(number, &line.replace("\"\"\"", ""));
        } else if let Some(comment) = trimmed.strip_prefix(mark).filter(|rest| !rest.starts_with("!/")) {
            found.push(number, comment.trim_start_matches(['/', '!', '#']));
        } else {
            found.close();
            let behind =
                line.split_once(&format!(" {mark} ")).filter(|(code, _)| code.matches('"').count() % 2 == 0);
            if let Some((_, comment)) = behind {
                found.push(number, comment);
                found.close();
            }
        }
    }
    found.finish()
}

/// Fewer words are a name or a value.
const SHORTEST_TEXT: usize = 4;

/// The string literals of Rust that a program prints: sentences, outside of tests.
fn printed_texts(source: &str) -> Vec<Paragraph> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let (mut found, mut number, mut rest) = (Vec::new(), 1, source);
    while let Some(c) = rest.chars().next() {
        let length = match rest.as_bytes() {
            [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
            [b'\'', b'\\', _, ..] => 3,
            [b'\'', b'"', b'\'', ..] => 3,
            [b'r', b'#', b'"', ..] => rest.find("\"#").map_or(rest.len(), |end| end + 2),
            [b'"', ..] => {
                let mut escaped = false;
                let end = rest[1..].find(|c| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                let end = end.map_or(rest.len(), |end| end + 1);
                let text: Vec<&str> =
                    rest[1..end].split('\n').map(|line| line.trim_end_matches('\\').trim()).collect();
                let text = text.join(" ").replace("\\n", " ");
                if text.split_whitespace().count() >= SHORTEST_TEXT && !text.starts_with(['{', '[', '<']) {
                    found.push((number, text));
                }
                rest.len().min(end + 1)
            }
            _ => c.len_utf8(),
        };
        number += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

fn document(text: &str) -> Vec<Paragraph> {
    let mut found = Paragraphs::default();
    for (number, line) in (1..).zip(text.lines()) {
        found.push(number, line);
    }
    found.finish()
}

/// The kind of a file, an index of [`KINDS`], and its paragraphs.
fn paragraphs(path: &str, text: &str) -> Option<(usize, Vec<Paragraph>)> {
    let end = path.rsplit('.').next()?;
    match end {
        "rs" | "cu" | "cuh" | "cpp" | "c" | "h" | "js" => Some((0, comments(text, "//"))),
        "py" | "sh" | "toml" | "yml" => Some((1, comments(text, "#"))),
        "md" => Some((2, document(text))),
        _ => None,
    }
}

fn files() -> Vec<(String, String)> {
    let listed = Command::new("git").arg("ls-files").current_dir(root()).output().expect("git runs");
    let listed = String::from_utf8(listed.stdout).expect("names");
    let read = |path: &str| Some((path.to_owned(), std::fs::read_to_string(root().join(path)).ok()?));
    listed.lines().filter_map(read).collect()
}

#[test]
fn sentences_are_plain() {
    let mut words = [0; KINDS.len()];
    let mut places: BTreeMap<(usize, usize), Vec<String>> = BTreeMap::new();
    for (path, text) in files() {
        let is_program = path.ends_with(".rs") && path.contains("/src/") && !path.contains("tests");
        let printed = is_program.then(|| (3, printed_texts(&text)));
        for (kind, paragraphs) in paragraphs(&path, &text).into_iter().chain(printed) {
            for (line, paragraph) in paragraphs {
                let (found, count) = markers(&paragraph);
                words[kind] += count;
                for marker in found {
                    let beginning: String = paragraph.chars().take(90).collect();
                    places.entry((marker, kind)).or_default().push(format!("  {path}:{line}: {beginning}"));
                }
            }
        }
    }
    assert!(words[0] > 50_000 && words[2] > 20_000 && words[3] > 10_000, "only {words:?} words were found");
    let mut wrong = String::new();
    for (marker, (name, limits)) in LIMITS.iter().enumerate() {
        for (kind, limit) in limits.iter().enumerate() {
            let found = places.get(&(marker, kind)).map_or(&[][..], Vec::as_slice);
            let rate = found.len() as f64 * 1e4 / words[kind] as f64;
            println!(
                "{name}, {}: {} of {} words, {rate:.2} per 10,000",
                KINDS[kind],
                found.len(),
                words[kind]
            );
            if rate > *limit {
                wrong += &format!(
                    "\"{name}\" is {rate:.2} in 10,000 words of {}, more than {limit}:\n",
                    KINDS[kind]
                );
                wrong += &found.join("\n");
                wrong.push('\n');
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn documents_are_as_wide_as_code() {
    let mut wrong = String::new();
    for (path, text) in files().into_iter().filter(|(path, _)| path.ends_with(".md")) {
        let mut fenced = false;
        for (number, line) in (1..).zip(text.lines()) {
            fenced ^= line.trim_start().starts_with("```");
            let is_prose = !fenced && !line.starts_with(['|', ' ', '#', '!', '[', '`']);
            if is_prose && line.chars().count() > WIDTH {
                wrong += &format!("{path}:{number} has {} characters\n", line.chars().count());
            }
        }
    }
    assert!(wrong.is_empty(), "wrap these at {WIDTH} (python3 tests/wrap.py):\n{wrong}");
}

#[test]
fn each_marker_is_found_where_it_is() {
    let found = |text: &str| markers(text).0;
    assert_eq!(found("The width is that of a row, not those of two."), [0, 0]);
    assert_eq!(found("What is left: what it holds. What happened? what the file says"), [1, 1]);
    assert_eq!(found("So many rows and as many sums"), [2, 2]);
    assert_eq!(found("It lies beside its own file."), [3, 4]);
    assert_eq!(found("The same again. The same. It is the same"), [5, 5]);
    assert_eq!(found("Where there is one; none where nobody is"), [6, 7, 6]);
    assert_eq!(found("Of these. As a rule, that is. Whether"), [8, 8, 8]);
    assert_eq!(found("Uses `that of` and `beside` in code."), [0; 0]);
    let code = "fn f() {} // As told.\n/// One\n/// paragraph.\n///\n/// Two.\nlet x = \" // no\";\n";
    let texts: Vec<_> =
        comments(code, "//").into_iter().map(|(line, text)| format!("{line} {text}")).collect();
    assert_eq!(texts, ["1 As told.", "2 One paragraph.", "5 Two."]);
    let script = "#!/bin/sh\n# Reads\n# lines.\nx=1 # then\n\"\"\"Says\nmore.\"\"\"\n";
    let texts: Vec<_> = comments(script, "#").into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["Reads lines.", "then", "Says more."]);
    let program = "// \"a b c d\"\nf('\"', '\\'', \"so many \\\"are\\\" \\\n   there\");\ng(r#\"not \" this one\"#, \"too short\");\n";
    assert_eq!(printed_texts(program), [(2, "so many \\\"are\\\" there".to_owned())]);
    let page = "# Head\n\nText\ngoes on.\n\n- item\n- **more**\n\n| a | b |\n|---|---|\n```sh\n# none\n```\n";
    let texts: Vec<_> = document(page).into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["Head", "Text goes on.", "item", "more**", "a", "b"]);
}

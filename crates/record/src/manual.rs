//! The manual page of a program, and of each of its subcommands, from its command line.

use std::io;

use clap::Command;
use clap_mangen::Man;

use crate::installation::build;

/// Codes as in [`crate::failure`], for people.
const EXIT_STATUS: &str = "\
.SH \"EXIT STATUS\"
0 done; 1 the work failed; 2 usage; 65 a record that is broken or incomplete; 69 a library or device that is missing; 74 reading or writing
failed; 130 and 143 stopped by a signal. docs/stream-format.md says more.
";

/// (name, roff) of a program's pages.
pub fn pages(command: &Command, others: &[&str]) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let name = command.get_name().to_owned();
    let mut pages = Vec::new();
    add(&mut pages, &command, &name, others)?;
    Ok(pages)
}

fn add(pages: &mut Vec<(String, Vec<u8>)>, command: &Command, name: &str, others: &[&str]) -> io::Result<()> {
    pages.push((name.to_owned(), page(command, name, others)?));
    let shown = command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    shown.into_iter().try_for_each(|sub| add(pages, sub, &format!("{name}-{}", sub.get_name()), others))
}

fn page(command: &Command, name: &str, others: &[&str]) -> io::Result<Vec<u8>> {
    let source = format!("troupe {}", build());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let whole = command.get_long_about().map_or_else(|| about.clone(), ToString::to_string);
    let description = whole.split_once("\n\nExamples:\n").map_or(&*whole, |(description, _)| description);
    let examples = examples(command);
    let man = Man::new(command.clone()).title(name).source(source).manual("Troupe");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    let first = about.lines().next().unwrap_or_default().trim_end_matches('.');
    page.extend(format!(".SH NAME\n{} \\- {}\n", escaped(name), escaped(first)).bytes());
    page.extend(format!(".SH SYNOPSIS\n.nf\n{}\n.fi\n", escaped(usage)).bytes());
    page.extend(format!(".SH DESCRIPTION\n{}\n", escaped(&description.replace("\n\n", "\n.PP\n"))).bytes());
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.get_subcommands().next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    if !examples.is_empty() {
        page.extend(format!(".SH EXAMPLES\n.nf\n{}\n.fi\n", escaped(&examples)).bytes());
    }
    let after = command.get_after_long_help().or(command.get_after_help());
    let after = after.map(ToString::to_string).unwrap_or_default();
    if let Some((title, text)) = after.split_once(":\n").filter(|(title, _)| *title != "Examples") {
        page.extend(format!(".SH {}\n.nf\n{}\n.fi\n", title.to_uppercase(), escaped(text)).bytes());
    }
    page.extend(EXIT_STATUS.bytes());
    let others = others.iter().filter(|other| **other != name);
    let others: Vec<String> = others.map(|other| format!(".BR {other} (1)")).collect();
    if !others.is_empty() {
        page.extend(format!(".SH \"SEE ALSO\"\n{}\n", others.join(" ,\n")).bytes());
    }
    Ok(page)
}

/// The examples of a help text: the lines indented below "Examples:".
fn examples(command: &Command) -> String {
    let help = command.clone().term_width(0).max_term_width(usize::MAX).render_long_help().to_string();
    let (_, below) = help.split_once("Examples:\n").unwrap_or_default();
    let lines = below.lines().take_while(|line| line.is_empty() || line.starts_with(' '));
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// Text as roff prints it: no line is a request, no dash a hyphen.
fn escaped(text: &str) -> String {
    let line = |line: &str| {
        if line == ".PP" {
            return line.to_owned();
        }
        let text = line.replace('\\', "\\e").replace('-', "\\-");
        if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn a_page_has_its_sections_and_examples_as_they_are_typed() {
        let list = Command::new("list")
            .about("Lists\n")
            .long_about("Lists.\n\nMore.\n\nExamples:\n  demo list \\\n  '.x' --all");
        let command = Command::new("demo")
            .about("Does it")
            .after_help("Notes:\none\n.two")
            .before_help("Examples:\n  demo --count 3\n\n  # the second\n  demo list")
            .arg(Arg::new("count").long("count").help("How many"))
            .subcommand(list);
        let pages = pages(&command, &["demo", "rollout"]).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["demo", "demo-list"]);
        let text = |place: usize| String::from_utf8(pages[place].1.clone()).unwrap();
        let (first, second) = (text(0), text(1));
        assert!(
            first.starts_with(&format!(
                ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n.TH demo 1  \"troupe {}\" Troupe\n",
                build()
            )),
            "{first}"
        );
        for part in [
            ".SH NAME\ndemo \\- Does it\n.SH SYNOPSIS\n.nf\ndemo [OPTIONS] [COMMAND]\n.fi\n",
            ".SH EXAMPLES\n.nf\n  demo \\-\\-count 3\n\n  # the second\n  demo list\n.fi\n",
            "demo\\-list(1)",
            ".SH NOTES\n.nf\none\n\\&.two\n.fi\n",
            "\\-\\-count",
            ".SH \"EXIT STATUS\"\n",
            ".SH \"SEE ALSO\"\n.BR rollout (1)\n",
        ] {
            assert!(first.contains(part), "{part}\n{first}");
        }
        assert!(
            second.contains("demo\\-list \\- Lists\n")
                && second.contains(".SH DESCRIPTION\nLists.\n.PP\nMore.\n"),
            "{second}"
        );
        assert!(second.contains("  demo list \\e\n  '.x' \\-\\-all\n"), "{second}");
    }
}

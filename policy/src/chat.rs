//! Chat templates: a conversation as the text that the model was trained to see.
//!
//! A template is a Jinja program that ships with a checkpoint and expects the environment of `transformers`: trimmed blocks,
//! Python's string methods, `raise_exception`, `strftime_now`, a `tojson` without HTML escapes. This file provides that
//! environment and knows no model's format. Further variables, such as Qwen3's `enable_thinking`, belong to the policy
//! ([`ARGUMENTS`]). Left out: tools and documents, which no record carries.

use std::io::{self, Write};
use std::path::Path;

use minijinja::value::{Kwargs, Serde, Value as Jinja};
use minijinja::{Environment, Error, ErrorKind, context};
use record::failure::{Failure, Result};
use record::sample::Message;
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use serde_json::{Map, Value};

use crate::clock;
use crate::json::{LARGEST_JSON, read_json_if_present, read_text, show};

/// Instructions that one rendering may take: far above any real template, and the end of an endless loop.
const FUEL: u64 = 10_000_000;
/// A template of its own; otherwise it is a key of the tokenizer's configuration.
pub(crate) const FILE: &str = "chat_template.jinja";
pub(crate) const NAME: &str = "chat_template";
const HINT: &str =
    "templates are Jinja as transformers renders it; one of your own goes into chat_template.jinja";
/// Further template variables, a JSON object such as `{"enable_thinking": false}` for Qwen3. Stored with the policy, so that
/// every program renders the same prompt. `transformers` takes them as arguments of `apply_chat_template` instead.
pub(crate) const ARGUMENTS: &str = "chat_template_kwargs.json";

/// A compiled chat template and the special tokens it may print.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Jinja,
    arguments: Jinja,
    place: String,
}

impl ChatTemplate {
    /// Finds and compiles the template of a Hugging Face directory: `chat_template.jinja`, else the key of
    /// `tokenizer_config.json`, else `chat_template.json`. `None` where there is none.
    pub(crate) fn load(directory: &Path, tokenizer_config: &Value) -> Result<Option<ChatTemplate>> {
        let own_file = directory.join(FILE);
        let (source, place) = if own_file.exists() {
            (read_text(&own_file, LARGEST_JSON)?, own_file)
        } else if let Some(template) = tokenizer_config.get(NAME).filter(|value| !value.is_null()) {
            let place = directory.join("tokenizer_config.json");
            (pick(template, &place)?, place)
        } else {
            let place = directory.join("chat_template.json");
            match read_json_if_present(&place)? {
                Some(value) => (pick(&value[NAME], &place)?, place),
                None => return Ok(None),
            }
        };
        let side = directory.join(ARGUMENTS);
        let arguments = read_json_if_present(&side)?.unwrap_or_else(|| Value::Object(Map::new()));
        check_arguments(&arguments).map_err(|cause| Failure::data(format!("{}: {cause}", show(&side))))?;
        let special_tokens = special_tokens(tokenizer_config);
        ChatTemplate::compile(&source, special_tokens, &arguments, show(&place)).map(Some)
    }

    fn compile(
        source: &str,
        special_tokens: Jinja,
        arguments: &Value,
        place: String,
    ) -> Result<ChatTemplate> {
        let arguments = Jinja::from(Serde(arguments));
        let mut environment = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| Failure::data(format!("{place}: {error}")))?);
        environment.set_fuel(Some(FUEL));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> std::result::Result<Jinja, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| clock::format(clock::now(), &format));
        environment.add_filter("tojson", to_json);
        environment.add_template_owned(NAME, without_generation_marks(source)).map_err(|error| {
            Failure::data(format!("{place}: chat template: {}", describe(&error))).hint(HINT)
        })?;
        Ok(ChatTemplate { environment, special_tokens, arguments, place })
    }

    /// The conversation's text, with the opening of the assistant's next message.
    pub(crate) fn render(&self, messages: &[Message]) -> Result<String> {
        let failure = |error: Error| {
            Failure::data(format!("{}: chat template: {}", self.place, describe(&error))).hint(HINT)
        };
        let message =
            |m: &Message| Jinja::from_pairs([("role", m.role.as_str()), ("content", m.content.as_str())]);
        let messages: Vec<Jinja> = messages.iter().map(message).collect();
        let own = context! { messages => messages, add_generation_prompt => true };
        let template = self.environment.get_template(NAME).map_err(failure)?;
        let given = context! { ..self.arguments.clone(), ..self.special_tokens.clone() };
        template.render(context! { ..own, ..given }).map_err(failure)
    }
}

/// Checks that further template variables are an object and shadow none of ours.
///
/// # Errors
/// The cause, without its place.
pub(crate) fn check_arguments(arguments: &Value) -> std::result::Result<(), String> {
    let Some(object) = arguments.as_object() else {
        return Err("not a JSON object".to_owned());
    };
    match object.keys().find(|key| ["messages", "add_generation_prompt"].contains(&key.as_str())) {
        Some(key) => Err(format!("{key} is not for a policy to set")),
        None => Ok(()),
    }
}

/// The template's source: the value itself, or the entry named `default` of a list.
fn pick(template: &Value, place: &Path) -> Result<String> {
    let text = match template {
        Value::String(text) => Some(text.as_str()),
        Value::Array(list) => list
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))
            .or_else(|| list.first().filter(|_| list.len() == 1))
            .and_then(|entry| entry.get("template"))
            .and_then(Value::as_str),
        _ => None,
    };
    text.map(str::to_owned).ok_or_else(|| {
        Failure::data(format!("{}: chat_template holds no template", show(place)))
            .hint("it must be a string, or a list of named templates of which one is called default")
    })
}

/// `bos_token`, `eos_token` and so on; each is saved as a string or as an object with `content`.
fn special_tokens(tokenizer_config: &Value) -> Jinja {
    let texts = tokenizer_config.as_object().into_iter().flatten().filter_map(|(key, value)| {
        let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
        key.ends_with("_token").then(|| (key.clone(), text.to_owned()))
    });
    Jinja::from_pairs(texts)
}

/// Turns the `generation` blocks of `transformers`, which only matter to its loss masks, into `if true`.
fn without_generation_marks(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag
            .trim_start_matches("{%")
            .trim_end_matches("%}")
            .trim_matches(['-', '+', ' ', '\t', '\n', '\r']);
        match word {
            "generation" => result.push_str(&tag.replace(word, "if true")),
            "endgeneration" => result.push_str(&tag.replace(word, "endif")),
            _ => result.push_str(tag),
        }
        rest = after;
    }
    result + rest
}

/// Python's `json.dumps(value, ensure_ascii=False)`: a space after each comma and colon, nothing escaped for HTML.
fn to_json(value: &Jinja, arguments: Kwargs) -> std::result::Result<String, Error> {
    let invalid = |error: serde_json::Error| Error::new(ErrorKind::InvalidOperation, error.to_string());
    let mut text = Vec::new();
    match arguments.get::<Option<usize>>("indent")? {
        Some(width) => {
            let indent = " ".repeat(width);
            let pretty = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut text, pretty))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut text, Spaced)),
    }
    .map_err(invalid)?;
    String::from_utf8(text).map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// JSON on one line with Python's separators.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(writer, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

fn describe(error: &Error) -> String {
    let cause = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("line {line}: {cause}"),
        None => cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn compile(source: &str) -> Result<ChatTemplate> {
        let special = special_tokens(&json!({"bos_token": "<s>", "eos_token": {"content": "</s>"}}));
        ChatTemplate::compile(source, special, &json!({"enable_thinking": false}), "here".to_owned())
    }

    fn render(source: &str, messages: &[(&str, &str)]) -> Result<String> {
        let messages: Vec<Message> = messages
            .iter()
            .map(|(role, content)| Message { role: (*role).to_owned(), content: (*content).to_owned() })
            .collect();
        compile(source)?.render(&messages)
    }

    #[test]
    fn the_environment_of_transformers() {
        let cases = [
            ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
            // Jinja with trim_blocks and lstrip_blocks: a tag alone on its line leaves no trace.
            ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
            ("{{ messages[0].content.strip().upper() }}", "HI <B>"),
            ("{{ messages[0]['content'].split(' ')[-1] }}", ""),
            ("{{ messages | tojson }}", r#"[{"role": "user", "content": " hi <b> "}]"#),
            (
                "{{ [] | tojson(indent=2) }}{{ {'a': [1]} | tojson(indent=2) }}",
                "[]{\n  \"a\": [\n    1\n  ]\n}",
            ),
            ("{%- generation -%} x {%- endgeneration -%}", "x"),
            ("{% generation %}x{% endgeneration %}y", "xy"),
            (
                "{% for m in messages %}{% if loop.first %}{{ m.role }}{% continue %}{% endif %}{% endfor %}",
                "user",
            ),
            ("{{ messages[-1:] | length }}{{ messages[::-1] | length }}", "11"),
            ("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}", "2"),
            ("{{ undefined_name is defined }}{{ tools }}", "False"),
            ("{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}", "off"),
        ];
        for (source, expected) in cases {
            let text = render(source, &[("user", " hi <b> ")]);
            let text = text.map(|text| text.replace("false", "False"));
            assert_eq!(text.as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn faults_are_sentences() {
        let raised = render("{{ raise_exception('roles must alternate') }}", &[]).unwrap_err();
        assert_eq!(raised.message, "here: chat template: line 1: roles must alternate");
        assert_eq!(raised.code, 65);
        let broken = compile("{% if %}").unwrap_err();
        assert!(broken.message.starts_with("here: chat template: line 1: "), "{}", broken.message);
        let endless =
            render("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", &[]);
        assert_eq!(endless.unwrap_err().code, 65);
    }

    #[test]
    fn several_templates_and_none() {
        let place = Path::new("tokenizer_config.json");
        let list = json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
        assert_eq!(pick(&list, place).as_deref(), Ok("d"));
        assert_eq!(pick(&json!([]), place).unwrap_err().code, 65);
        assert_eq!(pick(&json!(7), place).unwrap_err().code, 65);
    }
}

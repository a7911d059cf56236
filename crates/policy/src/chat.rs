//! Chat templates: a conversation as the text that the model was trained to see.
//!
//! A template is a Jinja program that ships with a checkpoint and expects the environment of `transformers`: trimmed blocks,
//! Python's string methods, `raise_exception`, `strftime_now`. This file and [`crate::jinja`] provide that environment and know no
//! model's format. Further variables, such as Qwen3's `enable_thinking`, belong to the policy ([`ARGUMENTS`]). Documents, which no
//! record carries, are none.

use std::path::{Path, PathBuf};

use minijinja::value::{Serde, Value as Jinja};
use minijinja::{Environment, Error, ErrorKind, context};
use record::failure::{Failure, Result};
use record::sample::Message;
use serde_json::{Map, Value};

use crate::clock;
use crate::files::{read_text, show};
use crate::jinja;
use crate::json::{LARGEST_JSON, read_json_if_present};
use crate::tools;

/// Instructions that one rendering may take: far above any real template, and the end of an endless loop.
const FUEL: u64 = 10_000_000;
/// File of the template; otherwise it is a key of the tokenizer's configuration.
pub(crate) const FILE: &str = "chat_template.jinja";
pub(crate) const NAME: &str = "chat_template";
/// The template of conversations with tools, for models that have one of its own.
const TOOL_USE: &str = "tool_use";
/// Its file.
pub(crate) const TOOL_USE_FILE: &str = "additional_chat_templates/tool_use.jinja";
const HINT: &str =
    "templates are Jinja as transformers renders it; put a custom template into chat_template.jinja";
/// Further template variables, a JSON object such as `{"enable_thinking": false}` for Qwen3. Stored with the policy, so that
/// every program renders the same prompt. `transformers` takes them as arguments of `apply_chat_template` instead.
pub(crate) const ARGUMENTS: &str = "chat_template_kwargs.json";

/// The template for conversations, and the one for those with tools if there is one.
type Source = (String, Option<String>);

/// A directory's template and the file it is from: `chat_template.jinja`, else the key of `tokenizer_config.json`, else
/// `chat_template.json`; `None` without any of them.
pub(crate) fn source(directory: &Path, tokenizer_config: &Value) -> Result<Option<(Source, PathBuf)>> {
    let own_file = directory.join(FILE);
    if own_file.exists() {
        let tool_use = directory.join(TOOL_USE_FILE);
        let tool_use = tool_use.exists().then(|| read_text(&tool_use, LARGEST_JSON)).transpose()?;
        return Ok(Some(((read_text(&own_file, LARGEST_JSON)?, tool_use), own_file)));
    }
    if let Some(template) = tokenizer_config.get(NAME).filter(|value| !value.is_null()) {
        let place = directory.join("tokenizer_config.json");
        return Ok(Some((pick(template, &place)?, place)));
    }
    let place = directory.join("chat_template.json");
    let Some(value) = read_json_if_present(&place)? else { return Ok(None) };
    Ok(Some((pick(&value[NAME], &place)?, place)))
}

/// A compiled chat template and the special tokens it may print.
#[derive(Debug)]
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: Jinja,
    arguments: Jinja,
    place: String,
}

impl ChatTemplate {
    /// Finds and compiles the template of a Hugging Face directory. It may print the special tokens. A template named
    /// `tool_use` beside it is for conversations with tools.
    pub(crate) fn load(
        directory: &Path,
        tokenizer_config: &Value,
        special_tokens: &Map<String, Value>,
    ) -> Result<Option<ChatTemplate>> {
        let Some((source, place)) = source(directory, tokenizer_config)? else { return Ok(None) };
        let side = directory.join(ARGUMENTS);
        let arguments = read_json_if_present(&side)?.unwrap_or_else(|| Value::Object(Map::new()));
        check_arguments(&arguments).map_err(|cause| Failure::data(format!("{}: {cause}", show(&side))))?;
        ChatTemplate::compile(&source, special_tokens, &arguments, show(&place)).map(Some)
    }

    fn compile(
        (default, tool_use): &(String, Option<String>),
        special_tokens: &Map<String, Value>,
        arguments: &Value,
        place: String,
    ) -> Result<ChatTemplate> {
        let (special_tokens, arguments) = (Jinja::from(Serde(special_tokens)), Jinja::from(Serde(arguments)));
        let mut environment = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| Failure::data(format!("{place}: {error}")))?);
        environment.set_fuel(Some(FUEL));
        jinja::prepare(&mut environment);
        environment.add_function("raise_exception", |message: String| -> std::result::Result<Jinja, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| clock::format(clock::now(), &format));
        for (name, source) in
            [(NAME, default)].into_iter().chain(tool_use.as_ref().map(|source| (TOOL_USE, source)))
        {
            let compiled =
                jinja::source(source).and_then(|source| environment.add_template_owned(name, source));
            compiled.map_err(|error| {
                Failure::data(format!("{place}: chat template: {}", describe(&error))).hint(HINT)
            })?;
        }
        Ok(ChatTemplate { environment, special_tokens, arguments, place })
    }

    /// The conversation's text, with the opening of the assistant's next message, which may call `tools`.
    pub(crate) fn render(&self, messages: &[Message], tools: Option<&Value>) -> Result<String> {
        let failure = |error: Error| {
            Failure::data(format!("{}: chat template: {}", self.place, describe(&error))).hint(HINT)
        };
        let message =
            |m: &Message| Jinja::from_pairs([("role", m.role.as_str()), ("content", m.content.as_str())]);
        let none = context! { tools => (), documents => () };
        let given = context! { ..self.arguments.clone(), ..self.special_tokens.clone() };
        let given = context! { ..context! { add_generation_prompt => true }, ..context! { ..given, ..none } };
        let template = |name| self.environment.get_template(name);
        let Some(offered) = tools else {
            let messages: Vec<Jinja> = messages.iter().map(message).collect();
            let own = context! { ..context! { messages => messages }, ..given };
            return template(NAME).and_then(|template| template.render(own)).map_err(failure);
        };
        let with_tools = template(TOOL_USE).or_else(|_| template(NAME)).map_err(failure)?;
        let render = |as_text| {
            let messages = tools::structured(messages, Some(offered), as_text);
            let (messages, offered) = (Jinja::from(Serde(&messages)), Jinja::from(Serde(offered)));
            with_tools
                .render(context! { ..context! { messages => messages, tools => offered }, ..given.clone() })
        };
        // Some templates join arguments to a text, such as DeepSeek's, and fail on an object.
        render(false).or_else(|error| render(true).map_err(|_| error)).map_err(failure)
    }
}

/// Checks that further template variables are an object and shadow none of ours.
pub(crate) fn check_arguments(arguments: &Value) -> std::result::Result<(), String> {
    let Some(object) = arguments.as_object() else {
        return Err("not a JSON object".to_owned());
    };
    match object.keys().find(|key| ["messages", "add_generation_prompt"].contains(&key.as_str())) {
        Some(key) => Err(format!("{key} is not for a policy to set")),
        None => Ok(()),
    }
}

/// The sources of the template and of the one for tools: the value itself, or the entries of a list.
fn pick(template: &Value, place: &Path) -> Result<(String, Option<String>)> {
    let list = template.as_array().map_or(&[][..], Vec::as_slice);
    let text = |entry: &Value| entry.get("template").and_then(Value::as_str).map(str::to_owned);
    let named = |name: &str| list.iter().find(|entry| entry["name"] == name);
    let default = match template {
        Value::String(text) => Some(text.clone()),
        _ => named("default").or_else(|| list.first().filter(|_| list.len() == 1)).and_then(text),
    };
    default.map(|default| (default, named(TOOL_USE).and_then(text))).ok_or_else(|| {
        Failure::data(format!("{}: chat_template holds no template", show(place)))
            .hint("it must be a string, or a list of named templates of which one is called default")
    })
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
        let special = Map::from_iter([("bos_token".to_owned(), json!("<s>"))]);
        let source = (source.to_owned(), None);
        ChatTemplate::compile(&source, &special, &json!({"enable_thinking": false}), "here".to_owned())
    }

    fn render(source: &str, messages: &[(&str, &str)]) -> Result<String> {
        let messages: Vec<Message> = messages
            .iter()
            .map(|(role, content)| Message { role: (*role).to_owned(), content: (*content).to_owned() })
            .collect();
        compile(source)?.render(&messages, None)
    }

    #[test]
    fn the_environment_of_transformers() {
        let cases = [
            ("{{ bos_token }}{{ eos_token }}", "<s>"),
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
            ("{{ undefined_name is defined }}{{ tools }}{{ documents is none }}", "FalseNoneTrue"),
            ("{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}", "off"),
        ];
        for (source, expected) in cases {
            let text = render(source, &[("user", " hi <b> ")]);
            assert_eq!(text.as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn arguments_are_an_object_or_a_text_as_a_template_wants_them() {
        let message =
            |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
        let call = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
        let messages = [message("assistant", call), message("tool", "2")];
        for (source, expected) in [
            ("{{ messages[0].tool_calls[0].function.arguments | tojson }}", r#"{"a": 1}"#),
            ("{{ 'x' + messages[0].tool_calls[0].function.arguments }}", r#"x{"a":1}"#),
        ] {
            let text = compile(source).unwrap().render(&messages, Some(&json!([])));
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
        let picked = pick(&list, place).unwrap();
        assert_eq!(picked, ("d".to_owned(), Some("t".to_owned())));
        let special = Map::new();
        let template = ChatTemplate::compile(&picked, &special, &json!({}), "here".to_owned()).unwrap();
        assert_eq!(template.render(&[], None).as_deref(), Ok("d"));
        assert_eq!(template.render(&[], Some(&json!([]))).as_deref(), Ok("t"));
        assert_eq!(pick(&json!([]), place).unwrap_err().code, 65);
        assert_eq!(pick(&json!(7), place).unwrap_err().code, 65);
    }
}

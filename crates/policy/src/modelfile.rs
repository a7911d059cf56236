//! The Modelfile next to an exported GGUF file: what Ollama has to be told, above all the chat template in Ollama's language.
//!
//! Ollama runs no Jinja. Our renderings of a conversation show the text around each message, and its template repeats that
//! once per question and answer. Left out: tools, and templates that write a message differently by its position (thoughts of
//! earlier answers, say), for which the file has no TEMPLATE and Ollama looks for one itself.

use std::fmt::Write as _;

use record::sample::Message;

use crate::tokenizer::Tokenizer;

/// Contents that no template looks for.
const SYSTEM: &str = "\u{e000}system\u{e001}";
const FIRST: &str = "\u{e000}first\u{e001}";
const ANSWER: &str = "\u{e000}answer\u{e001}";
const SECOND: &str = "\u{e000}second\u{e001}";

/// The text for a GGUF file of this name. `stops` and `bos` are the texts of special tokens; `bos` is the one that the tokenizer
/// adds to every text, if it adds one.
pub(crate) fn text(file: &str, tokenizer: &Tokenizer, stops: &[&str], bos: &str) -> String {
    let mut text = format!("# ollama create NAME -f this file\nFROM ./{file}\n");
    if let Some((template, system)) =
        template(tokenizer, stops, bos).filter(|(text, _)| !text.contains("\"\"\""))
    {
        let _ = writeln!(text, "TEMPLATE \"\"\"{template}\"\"\"");
        if let Some(system) = system {
            let _ = writeln!(text, "SYSTEM \"\"\"{system}\"\"\"");
        }
    }
    for stop in stops {
        let _ = writeln!(text, "PARAMETER stop {stop:?}");
    }
    text
}

/// Ollama's template, and the system message that the model's template writes for conversations without one.
fn template(tokenizer: &Tokenizer, stops: &[&str], bos: &str) -> Option<(String, Option<String>)> {
    let render = |messages: &[(&str, &str)]| {
        let messages = messages
            .iter()
            .map(|(role, content)| Message { role: (*role).into(), content: (*content).into() });
        // A template may refuse a system message.
        let text =
            tokenizer.render(&messages.collect::<Vec<_>>()).ok().filter(|text| !text.contains("{{"))?;
        Some(text.strip_prefix(bos).unwrap_or(&text).to_owned())
    };
    let talk = [("user", FIRST), ("assistant", ANSWER), ("user", SECOND)];
    let plain = render(&talk)?;
    let (opening, rest) = plain.split_once(FIRST)?;
    let (asked, rest) = rest.split_once(ANSWER)?;
    let (between, last) = rest.split_once(SECOND)?;
    let stop = stops.iter().find_map(|stop| Some(between.find(stop)? + stop.len()))?;
    let shared = opening.bytes().rev().zip(between[stop..].bytes().rev()).take_while(|(a, b)| a == b).count();
    let (end, question) = between.split_at_checked(between.len() - shared)?;
    let default = opening.strip_suffix(question)?;
    if last != asked {
        return None;
    }
    let exchange = |system: &str| format!("{system}{{{{ .Prompt }}}}{asked}{{{{ .Response }}}}{end}");
    let with = render(&[&[("system", SYSTEM)], &talk[..]].concat());
    let Some((before, after)) = with.as_deref().and_then(|with| with.split_once(FIRST)?.0.split_once(SYSTEM))
    else {
        return default.is_empty().then(|| (exchange(question), None));
    };
    match after.strip_suffix(question) {
        Some(after) => {
            let system = default.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
            let opened =
                format!("{{{{ if .System }}}}{before}{{{{ .System }}}}{after}{{{{ end }}}}{question}");
            (default.is_empty() || system.is_some()).then(|| (exchange(&opened), system.map(str::to_owned)))
        }
        // In the first question.
        None => (before == opening && default.is_empty()).then(|| {
            (exchange(&format!("{question}{{{{ if .System }}}}{{{{ .System }}}}{after}{{{{ end }}}}")), None)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const CHATML: &str = "{% for message in messages %}DEFAULT{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + \
                          '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    const BESIDE: &str = "<s>{% set s = messages[0]['content'] + '\\n\\n' if messages[0]['role'] == 'system' else '' %}\
                          {% for message in messages if message['role'] != 'system' %}\
                          {% if message['role'] == 'user' %}{{ '[INST]' + (s if loop.first else '') + message['content'] + '[/INST]' }}\
                          {% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{% endfor %}";

    /// What Ollama makes of a template: one exchange after the other, the system message in the first.
    fn filled(template: &str, system: &str, exchanges: &[[&str; 2]]) -> String {
        let mut all = String::new();
        for (index, [prompt, response]) in exchanges.iter().enumerate() {
            let system = if index == 0 { system } else { "" };
            let (before, rest) = template.split_once("{{ if .System }}").unwrap();
            let (inner, after) = rest.split_once("{{ end }}").unwrap();
            let inner =
                if system.is_empty() { String::new() } else { inner.replace("{{ .System }}", system) };
            let whole = format!("{before}{inner}{after}").replace("{{ .Prompt }}", prompt);
            let (asked, end) = whole.split_once("{{ .Response }}").unwrap();
            all += asked;
            all += response;
            all += if response.is_empty() { "" } else { end };
        }
        all
    }

    #[test]
    fn conversations_look_to_ollama_as_to_the_template() {
        let default = "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe kind<|im_end|>\\n' }}{% endif %}";
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/qwen3-2-1-tied");
        for (jinja, own) in [
            (CHATML.replace("DEFAULT", ""), None),
            (CHATML.replace("DEFAULT", default), Some("Be kind")),
            (BESIDE.to_owned(), None),
        ] {
            let directory = tempfile::tempdir().unwrap();
            for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
                std::fs::copy(files.join(name), directory.path().join(name)).unwrap();
            }
            std::fs::write(directory.path().join("chat_template.jinja"), &jinja).unwrap();
            let tokenizer = Tokenizer::load(directory.path()).unwrap();
            let (template, system) = template(&tokenizer, &["<|im_end|>"], "<s>").unwrap();
            assert_eq!(system.as_deref(), own);
            for given in ["", "Be brief"] {
                let roles = ["system", "user", "assistant", "user"];
                let messages = roles.into_iter().zip([given, "one", "two", "three"]);
                let messages = messages.filter(|(_, content)| !content.is_empty());
                let messages: Vec<Message> = messages
                    .map(|(role, content)| Message { role: role.into(), content: content.into() })
                    .collect();
                let expected = tokenizer.render(&messages).unwrap();
                let expected = expected.strip_prefix("<s>").unwrap_or(&expected);
                let system = if given.is_empty() { own.unwrap_or_default() } else { given };
                assert_eq!(filled(&template, system, &[["one", "two"], ["three", ""]]), expected, "{jinja}");
            }
        }
    }
}

//! Jinja as Python's `jinja2` renders it, where minijinja differs: newlines, numbers, white space, `tojson`, `generation` blocks.
//!
//! A feature that minijinja lacks fails with an error that names it. A feature that behaves differently would silently change
//! the prompt, so it is reimplemented here like Python's, or refused. Left out, because minijinja has no hook for it: `'a' < 1`,
//! which is an error in Python and an order here, and the exponents of numbers joined by `~`.

mod json;
mod methods;
mod print;
mod range;
mod source;
mod text;

use minijinja::value::{Kwargs, Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind};

use json::to_json;
use methods::{is_space, method};
use print::{print, text_of};
use range::range;
pub(crate) use source::source;

type Result<T> = std::result::Result<T, Error>;

/// Brings an environment nearer to Python's.
pub(crate) fn prepare(environment: &mut Environment) {
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_formatter(print);
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", to_json);
    environment.add_filter("trim", |text: String, characters: Option<String>| match characters {
        Some(characters) => text.trim_matches(|c| characters.contains(c)).to_owned(),
        None => text.trim_matches(is_space).to_owned(),
    });
    environment.add_filter("string", |value: &Jinja| match value.kind() {
        ValueKind::String => Ok(value.clone()),
        _ => text_of(value).map(Jinja::from),
    });
    environment.add_filter("capitalize", |text: String| text::capitalized(&text).map_err(invalid));
    environment.add_filter("join", join);
    environment.add_function("range", range);
    environment.add_test("iterable", |value: &Jinja| {
        !value.is_none() && (value.is_undefined() || value.try_iter().is_ok())
    });
    // Python asks for a length and for items, which texts and dictionaries have, too.
    environment.add_test("sequence", |value: &Jinja| {
        // A part of a list is iterable here, with a length.
        let part = value.kind() == ValueKind::Iterable && value.len().is_some();
        part || matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
        )
    });
}

fn invalid(cause: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, cause)
}

/// `value | join(d='', attribute=None)`: items as `{{ item }}` prints them.
fn join(value: &Jinja, joiner: Option<Jinja>, attribute: Option<String>, named: Kwargs) -> Result<String> {
    let joiner = joiner.map_or_else(|| named.get("d"), |joiner| Ok(Some(joiner)))?;
    let attribute = attribute.map_or_else(|| named.get("attribute"), |name| Ok(Some(name)))?;
    named.assert_all_used()?;
    let mut texts = Vec::new();
    for mut item in value.try_iter()? {
        for name in attribute.iter().flat_map(|attribute| attribute.split('.')) {
            item = match name.parse::<usize>() {
                Ok(index) => item.get_item(&Jinja::from(index))?,
                Err(_) => item.get_attr(name)?,
            };
        }
        texts.push(text_of(&item)?);
    }
    Ok(texts.join(&joiner.map_or(Ok(String::new()), |joiner| text_of(&joiner))?))
}

#[cfg(test)]
mod tests {
    use minijinja::value::{Serde, Value};
    use minijinja::{Environment, context};
    use serde_json::json;

    /// Templates and their output with `jinja2` in the environment of transformers; `None` if it fails there
    /// too or is refused.
    const CASES: &[(&str, Option<&str>)] = &[
        ("{{ d | tojson(ensure_ascii=True) }}", Some(r#"{"b": 1, "a": ["\u00e9\ud83d\ude00\u007f"]}"#)),
        ("{{ d.a | tojson(ensure_ascii=False) }}", Some("[\"é😀\u{7f}\"]")),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':')) }}", Some(r#"{"b":1,"a":2}"#)),
        (
            "{{ [1, {'b': 1, 'a': 2}] | tojson(separators=[';', '='], sort_keys=True) }}",
            Some(r#"[1;{"a"=2;"b"=1}]"#),
        ),
        ("{{ {'b': [], 'a': {}} | tojson(False, 2, none, True) }}", Some("{\n  \"a\": {},\n  \"b\": []\n}")),
        ("{{ {'a': [1, 2]} | tojson(indent=0) }}", Some("{\n\"a\": [\n1,\n2\n]\n}")),
        ("{{ [1, 2] | tojson(indent=1, separators=(', ', ':')) }}", Some("[\n 1, \n 2\n]")),
        (
            "{{ [1e20, 1e-7, 1e16, 0.0001, 100.0, 1.5e-10] | tojson }}",
            Some("[1e+20, 1e-07, 1e+16, 0.0001, 100.0, 1.5e-10]"),
        ),
        (
            "{{ 1e20 }} {{ 1e-5 }} {{ 1e22 }} {{ 123456789.125 }} {{ 1e15 }} {{ 0.1 + 0.2 }}",
            Some("1e+20 1e-05 1e+22 123456789.125 1000000000000000.0 0.30000000000000004"),
        ),
        ("{{ 1e20 | string }}{{ 2.0 | string }}{{ [2.0, 'a'] | string }}", Some("1e+202.0[2.0, 'a']")),
        ("{{ [1.5, 1e-7, none, true, nothing] }}", Some("[1.5, 1e-07, None, True, Undefined]")),
        (
            "{{ ['it\\'s', '\"', '\\'\"', 'a\u{200b}é\\n\x07😀', '\u{301}'] }}{{ {'a\\\\': [2.0]} }}",
            Some("[\"it's\", '\"', '\\'\"', 'a\\u200bé\\n\\x07😀', '\u{301}']{'a\\\\': [2.0]}"),
        ),
        ("{{ '\\a\\v\\/\\U0001f600\\101\\q' }}", Some("\x07\x0b\\/😀A\\q")),
        ("{{ '\\N{DIGIT ONE}' }}", None),
        ("{{ '\\U00110000' }}", None),
        ("\\a{# '\\a #}{% raw %}{{ '\\a' }}{% endraw %}", Some("\\a{{ '\\a' }}")),
        (
            "{{ '½'.isdigit() }}{{ '²'.isdigit() }}{{ '٣4'.isdecimal() }}{{ '½'.isnumeric() }}{{ ''.isdigit() }}",
            Some("FalseTrueTrueTrueFalse"),
        ),
        (
            "{{ '中é'.isalpha() }}{{ 'Ⅷ'.isalpha() }}{{ 'का'.isalpha() }}{{ 'Ⅷ²a'.isalnum() }}{{ 'a b'.isalnum() }}",
            Some("TrueFalseFalseTrueFalse"),
        ),
        ("{{ '一'.isnumeric() }}", None),
        (
            "{{ range(3) is sequence }}{{ [1, 2][1:] is sequence }}{{ range(5, 1, -2) }}{{ range(3) | list }}{{ range(2, 9, 3)[-1] }}",
            Some("TrueTruerange(5, 1, -2)[0, 1, 2]8"),
        ),
        (
            "{% for i in range(5, 1, -2) %}{{ i }}{% endfor %}{{ range(0) | length }}{{ range(7)[3] }}",
            Some("5303"),
        ),
        ("{{ range(100001) }}", None),
        (
            "{{ [1, 1e-7, none, 'a'] | join('-') }}{{ [{'a': [1, 2]}] | join(attribute='a.1') }}",
            Some("1-1e-07-None-a2"),
        ),
        ("{{ ', '.join(['a', 'b']) }}", Some("a, b")),
        ("{{ ','.join([1, 2]) }}", None),
        (
            "{{ 'ǆ ßa 中a ა'.title() }}{{ 'ǆÀ ΑΣ'.capitalize() }}{{ 'ǆ' | capitalize }}",
            Some("ǅ Ssa 中A აǅà αςǅ"),
        ),
        ("{{ 'ﬁ'.title() }}", None),
        ("{{ nothing | tojson }}", None),
        ("{{ 1 | tojson(indents=2) }}", None),
        ("{{ none | tojson }}{{ true | tojson }}{{ 'a\\n' | tojson }}", Some(r#"nulltrue"a\n""#)),
        (
            "[{{ '\x1c\u{3000} a\x1f'.strip() }}][{{ '\x1ca\x1f' | trim }}][{{ 'xxax' | trim('x') }}]",
            Some("[a][a][a]"),
        ),
        ("{{ 'a\x1cb c '.split() }}{{ '\x1d'.isspace() }}", Some("['a', 'b', 'c']True")),
        (
            "{{ 'a\x0bb\u{2028}c\\r\\nd\\n'.splitlines() }}{{ 'a\\nb'.splitlines(true) }}",
            Some("['a', 'b', 'c', 'd']['a\\n', 'b']"),
        ),
        (
            "{{ 'a' is sequence }}{{ d is sequence }}{{ [] is sequence }}{{ 1 is sequence }}",
            Some("TrueTrueTrueFalse"),
        ),
        (
            "{{ none is iterable }}{{ 'a' is iterable }}{{ 1 is iterable }}{{ d is iterable }}",
            Some("FalseTrueFalseTrue"),
        ),
        ("{{ \"it's a héLLO\".title() }}{{ \"it's\" | title }}", Some("It'S A HélloIt's")),
        (
            "{% for x in [1, 2] %}{% generation %}{% set y = x %}{{ y }}{% endgeneration %}[{{ y }}]{% endfor %}",
            Some("1[]2[]"),
        ),
        (
            "{{ '{% generation %}' }}{# {% generation %} #}{% raw %}it's {% generation %}{% endraw %}",
            Some("{% generation %}it's {% generation %}"),
        ),
        ("a\r\n{% if true %}\r\nb\rc\r\n{% endif %}\r\nd\r\n", Some("a\nb\nc\nd")),
        ("{%- generation -%} {{ '%}' }} {%- endgeneration +%}\n{{ '{%' ~ \"a'}}\" }}", Some("%}\n{%a'}}")),
    ];

    #[test]
    fn prints_what_python_prints() {
        let mut environment = Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.unwrap());
        super::prepare(&mut environment);
        let d = Value::from(Serde(json!({"b": 1, "a": ["é😀\u{7f}"]})));
        for (source, expected) in CASES {
            let printed = super::source(source)
                .and_then(|source| environment.render_str(&source, context! { d => d.clone() }));
            match expected {
                Some(expected) => {
                    assert_eq!(printed.as_deref().ok(), Some(*expected), "{source}: {printed:?}")
                }
                None => assert!(printed.is_err(), "{source}: {printed:?}"),
            }
        }
    }
}

//! The special tokens that a tokenizer's side files name: `bos_token`, `eos_token` and so on, by the rules of `transformers`.

use std::path::Path;

use record::failure::Result;
use serde_json::{Map, Value};

use crate::json::read_json_if_present;

/// Names and texts. `special_tokens_map.json` counts if `tokenizer_config.json` lists no added tokens, as in
/// files of older versions; models may add further names.
pub(crate) fn special_tokens(directory: &Path, tokenizer_config: &Value) -> Result<Map<String, Value>> {
    let mut found = Map::new();
    add(&mut found, tokenizer_config);
    if tokenizer_config.get("added_tokens_decoder").is_none()
        && let Some(older) = read_json_if_present(&directory.join("special_tokens_map.json"))?
    {
        add(&mut found, &older);
    }
    Ok(found)
}

/// The tokens of a file: each is saved as a string or as an object with `content`.
fn add(found: &mut Map<String, Value>, file: &Value) {
    let text = |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(Value::from);
    for (key, value) in file.as_object().into_iter().flatten() {
        if let Some(text) = text(value).filter(|_| key.ends_with("_token")) {
            found.insert(key.clone(), text);
        }
    }
    for names in ["extra_special_tokens", "model_specific_special_tokens"] {
        for (key, value) in file[names].as_object().into_iter().flatten() {
            found.extend(text(value).map(|text| (key.clone(), text)));
        }
    }
}

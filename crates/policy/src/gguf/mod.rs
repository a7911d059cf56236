//! A policy from a GGUF file: llama.cpp's one file of configuration, tokenizer and weights, quantized or not.
//!
//! The file is mapped and its weights are dequantized piece by piece, so no model need fit into memory. What comes out is a
//! Hugging Face directory like any other; the quantized values are its weights, and training starts from them. The way
//! back is [`export`]. Left out: models cut into several files.

mod architecture;
mod dequantize;
mod few_bits;
mod header;
mod pieces;
mod tensors;
mod tokenizer;
mod write;

use std::fs::File;
use std::path::Path;

use half::{bf16, f16};
use record::failure::{DATA, Failure, Result};
use record::stage::interrupted;
use serde_json::Value;

use crate::chat;
use crate::checkpoint::{self, Data, NewTensor};
use crate::config::Config;
use crate::directory::Policy;
use crate::durable;
use crate::files::{io_failure, show};
use crate::initial;
use crate::json::in_file;
use crate::mapping::Mapping;
use crate::publish;
use crate::tokenizer::Tokenizer;
use crate::weights::{ElementType, SINGLE};

pub use dequantize::Format;
pub use write::export;

use architecture::Architecture;
use header::Header;
use tensors::Source;

/// Hint for a file that does not follow the format, or a model that is not implemented.
const HINT: &str = "copy or download the file again, or take the model's Hugging Face directory";

/// Returns true if a file calls itself GGUF, by its first bytes or its name.
pub fn is_gguf(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; header::MAGIC.len()];
    // Opening a pipe would block.
    path.is_file()
        && (path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
            || File::open(path)
                .is_ok_and(|mut file| file.read_exact(&mut magic).is_ok() && magic == header::MAGIC))
}

/// A policy directory whose version 0 is the model of a GGUF file, its weights in `dtype`. `template` holds further variables
/// of the chat template, as for [`crate::initial::from_directory`].
///
/// # Errors
/// `root` exists already (2); a file that is damaged, or a model or format that is not implemented (65); the disk's.
pub fn policy(root: &Path, path: &Path, dtype: ElementType, template: Option<&Value>) -> Result<Policy> {
    initial::check_variables(template)?;
    // Opening a pipe would block.
    if !path.metadata().map_err(|error| io_failure(path, &error))?.is_file() {
        return Err(Failure::data(format!("{}: not a file", show(path))).hint(HINT));
    }
    let file = File::open(path).map_err(|error| io_failure(path, &error))?;
    let map = Mapping::of(&file).map_err(|error| io_failure(path, &error))?;
    let at = |failure: Failure| in_file(failure, path, HINT);
    let header = Header::parse(&map).map_err(at)?;
    let architecture = Architecture::of(&header).map_err(at)?;
    let mut json = architecture.config(&header, dtype).map_err(at)?;
    let config = Config::from_value(&json, path)?;
    let sources = tensors::sources(architecture, &header, &config).map_err(at)?;
    let files = tokenizer::files(&header, config.vocab_size, config.max_positions).map_err(at)?;
    if let Some(object) = json.as_object_mut() {
        object.extend(files.special.clone());
    }
    publish::create(root, None, |directory| {
        durable::write_json(&directory.join("config.json"), &json)?;
        durable::write_json(&directory.join("generation_config.json"), &files.generation)?;
        durable::write_json(&directory.join("tokenizer_config.json"), &files.side)?;
        durable::write(&directory.join("tokenizer.json"), format!("{}\n", files.tokenizer).as_bytes())?;
        if let Some(text) = files.template {
            // A copy is read here, where a file that became shorter is reported by name; `write` would only fail with EFAULT.
            let copy = text.as_bytes().to_vec();
            durable::write(&directory.join(chat::FILE), &copy)?;
        }
        if let Some(variables) = template {
            durable::write_json(&directory.join(chat::ARGUMENTS), variables)?;
        }
        // The directory is about to be renamed or removed, so the error has to name the file.
        Tokenizer::load(directory).map_err(|mut failure| {
            failure.message = failure.message.replace(&format!("{}/", show(directory)), "");
            failure.at(show(path))
        })?;
        write(&directory.join(SINGLE), &sources, dtype).map_err(|failure| match failure.code {
            DATA => at(failure),
            _ => failure,
        })
    })
}

type Reader<'a> = Box<dyn Fn(usize, &mut [f32]) -> Result<()> + 'a>;

fn write(path: &Path, sources: &[Source], dtype: ElementType) -> Result<()> {
    let readers: Vec<Reader> = sources.iter().map(|source| reader(source, dtype)).collect();
    let tensors: Vec<NewTensor> = sources
        .iter()
        .zip(&readers)
        .map(|(source, reader)| NewTensor {
            name: &source.name,
            shape: &source.shape,
            data: Data::Pieces(reader),
        })
        .collect();
    checkpoint::write(path, &tensors, |_| dtype).map(drop)
}

/// Reads pieces of a tensor for weights in `dtype`, in which each is a number.
fn reader<'a>(source: &'a Source, dtype: ElementType) -> Reader<'a> {
    let is_finite = match dtype {
        ElementType::F16 => |value: &f32| f16::from_f32(*value).is_finite(),
        ElementType::BF16 => |value: &f32| bf16::from_f32(*value).is_finite(),
        _ => |value: &f32| value.is_finite(),
    };
    Box::new(move |from, values| {
        read(source, from, values)?;
        let Some(at) = values.iter().position(|value| !is_finite(value)) else { return Ok(()) };
        let (name, value, at) = (&source.name, values[at], from + at);
        Err(Failure::data(format!(
            "tensor {name:?} is {value} at element {at}, which is no {dtype:?} weight"
        )))
    })
}

/// Fills `values` with a tensor's elements from index `from` on; pieces begin and end with blocks.
fn read(source: &Source, from: usize, values: &mut [f32]) -> Result<()> {
    if interrupted() {
        return Err(Failure::interrupted());
    }
    let (stored, columns) = (&source.stored, source.shape.last().copied().unwrap_or(1));
    let mut done = 0;
    while done < values.len() {
        let (row, column) = ((from + done) / columns, (from + done) % columns);
        let count = (columns - column).min(values.len() - done);
        let row = source.interleaved.map_or(row, |head| interleaved(row, head));
        let row = source.first_row + row;
        let start = (row * columns + column) / stored.format.values() * stored.format.bytes();
        let length = count / stored.format.values() * stored.format.bytes();
        stored.format.dequantize(&stored.bytes[start..start + length], &mut values[done..done + count]);
        done += count;
    }
    if source.offset != 0.0 {
        values.iter_mut().for_each(|value| *value -= source.offset);
    }
    Ok(())
}

/// Where llama.cpp keeps a row of a head: it rotates neighbors, Hugging Face the two halves.
fn interleaved(row: usize, head: usize) -> usize {
    let (first, within) = (row / head * head, row % head);
    first + within % (head / 2) * 2 + within / (head / 2)
}
